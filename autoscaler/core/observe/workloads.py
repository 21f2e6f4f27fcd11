"""From readings to the state of each workload: counters to rates, pods folded, ages judged, cold starts learned.

Only pods that are ready, not leaving, and whose reading is fresh count; a pod that says nothing is left out of sums and
of counts alike, and shows as a gap between `ready` and `reporting`. What other pods still hold is in columns of its own
(`draining`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import PendingClass
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.observe import (
    answer_lengths,
    arrivals,
    cold_start,
    draining,
    freshness,
    pending,
    progress,
    standstill,
)
from autoscaler.core.observe import rates as readings
from autoscaler.core.observe.answer_lengths import AnswerLengths
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.observe.cold_start import ColdStarts
from autoscaler.core.observe.freshness import Freshness
from autoscaler.core.observe.pending import Claims, Struggle
from autoscaler.core.observe.progress import Progress
from autoscaler.core.observe.rates import COUNTERS, Counters
from autoscaler.core.observe.standstill import Standstill
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    TimestampColumn,
    clip,
    or_zero,
    replace,
)
from autoscaler.core.table.groupby import GroupBy

LOADED_FB_USAGE = 0.5
"""Framebuffer share from which a model counts as loaded: vLLM takes 0.85 to 0.95, a sleeping one at most 0.1."""

ACTIVE_TENSOR, ACTIVE_SM, ACTIVE_DRAM = 0.005, 0.01, 0.01
"""Below all of these a loaded GPU is idle (readings of an idle engine; one of them above is work)."""

MAX_GPU_AGE_S = 120.0
"""DCGM samples every 30 s and is scraped as rarely; an older reading says nothing about now."""

GATEWAY_REMEMBERED_S = 86_400.0
"""A gateway that has told nothing for so long was removed, and is no longer waited for."""

LASTING_WAIT_S = 1.0
"""A queue that is gone sooner waits for its prompts to be computed, not for a slot."""


@dataclass(frozen=True)
class PodState(Columns):
    """What is remembered of each pod; [P]."""

    counters: Counters
    progress: Progress
    seen_ready: FloatColumn  # 1 once its cold start has been learned from

    @classmethod
    def blank(cls, rows: int) -> PodState:
        return cls(Counters.blank(rows), Progress.blank(rows), np.zeros(rows))


@dataclass(frozen=True)
class ObserveState(Columns):
    """What is remembered of each workload; [W]."""

    cold_start: ColdStarts
    lengths: AnswerLengths
    arrivals: Arrivals
    standstill: Standstill
    freshness: Freshness
    struggle: Struggle  # how long it has had replicas that do not come
    last_gateway_s: TimestampColumn  # last moment at which its gateway reported; NaN: never
    loaded_idle_s: FloatColumn  # replica-seconds that GPUs were loaded and idle

    @classmethod
    def blank(cls, rows: int) -> ObserveState:
        return replace(super().blank(rows), loaded_idle_s=np.zeros(rows))


@dataclass(frozen=True)
class Observed:
    """All that one tick observes, for the stages that decide."""

    observation: Observation
    arrivals: Arrivals
    progress: Progress  # [P]
    claims: Claims  # how far each workload may take GPUs from a pool
    trusted: BoolColumn  # bool[W], inputs are known and fresh enough to shrink on
    trusted_since_s: FloatColumn  # float64[W], moment since which it is watched without a long gap in trust
    last_tick_s: FloatColumn  # float64[W], moment of the tick before; NaN: there was none

    def elapsed_s(self, now_s: float) -> FloatColumn:
        """Return the seconds since the tick before; float64[W], NaN: there was none."""
        return now_s - self.last_tick_s


@dataclass(frozen=True)
class Pods:
    """Which pods count for what; bool[P]."""

    serving: BoolColumn  # ready and staying
    starting: BoolColumn  # will become ready by waiting
    pending: BoolColumn  # will not
    reporting: BoolColumn  # serving, and read lately
    stuck: BoolColumn  # of those, whose requests do not move
    newly_ready: BoolColumn  # serving only just, and never read: it has hardly any load yet


def observe(
    inp: TickInput, last_tick_s: FloatColumn, before: ObserveState, pods_before: PodState
) -> tuple[Observed, ObserveState, PodState]:
    """Understand one set of samples. The tables must be aligned to the fleet.

    last_tick_s: float64[W], moment of the tick before; NaN: there was none.
    """
    elapsed_s = inp.now_s - last_tick_s
    observation, refusing, working, after, pod_state = _read(inp, elapsed_s, before, pods_before)
    missing, claims, struggle = pending.follow(inp, observation, before.struggle, pending.roomy(inp.fleet))
    observation = replace(observation, missing_pods=missing)
    arrived = arrivals.update(before.arrivals, observation, elapsed_s, inp.now_s, refusing, working)
    trusted, fresh = freshness.update(inp, observation, before.freshness)
    observed = Observed(observation, arrived, pod_state.progress, claims, trusted, fresh.trusted_since_s, last_tick_s)
    return observed, replace(after, struggle=struggle, arrivals=arrived, freshness=fresh), pod_state


def _read(
    inp: TickInput, elapsed_s: FloatColumn, before: ObserveState, pods_before: PodState
) -> tuple[Observation, BoolColumn, BoolColumn, ObserveState, PodState]:
    """Fold the samples of pods to workloads.

    Also returns which workloads have a pod that has refused requests, or has done something, since it was read before;
    bool[W] each.
    """
    fleet = inp.fleet
    samples, front = readings.believe(inp.samples.pods, inp.now_s), readings.believe(inp.samples.gateways, inp.now_s)
    by_workload = GroupBy(fleet.pod_workload, len(fleet.workloads))
    pace = progress.follow(pods_before.progress, samples)
    stands = progress.stuck(pace, samples)
    pods = _classify(inp, samples, before.cold_start, pods_before, stands)
    counts = pods.reporting & ~pods.stuck
    samples, pace, queues_apart = _without_apart(inp.now_s, samples, pace, by_workload, counts)

    counters, *counted = readings.rates(samples, pods_before.counters)
    rates, grown = (dict(zip(COUNTERS, each, strict=True)) for each in counted)
    ended = grown["finished"] + or_zero(grown["rejections"])
    worked = (grown["generation_tokens"] > 0) | (ended > 0)

    asleep = pods.reporting & (samples.asleep > 0)
    # A sleeping engine's own gauges stay where they are whatever it holds; only /load tells.
    hidden = np.where(asleep, np.fmax(samples.held - samples.running - samples.waiting, 0.0), 0.0)
    running, waiting, *of_counters = by_workload.sum_known(
        [samples.running, samples.waiting + hidden, *rates.values()], counts
    )
    starts = cold_start.learn(
        inp, before.cold_start, pods.serving & ~pods.stuck & (pods_before.seen_ready == 0), by_workload
    )
    cold_start_s = cold_start.usual_s(inp, starts)
    standing, standstill_after = standstill.update(
        inp,
        samples,
        front,
        pace,
        pods.reporting,
        pods.stuck,
        counts & worked,
        by_workload,
        cold_start_s,
        before.standstill,
    )
    none_moves = (standing["stuck"] > 0) & np.isnan(running)
    running, waiting = np.where(none_moves, 0.0, running), np.where(none_moves, 0.0, waiting)
    per_s = dict(zip(COUNTERS, of_counters, strict=True))
    generation_tokens_per_s = per_s["generation_tokens"]

    lengths = answer_lengths.update(
        before.lengths, elapsed_s, generation_tokens_per_s, per_s["finished"], per_s["first_tokens"]
    )
    output_tokens = lengths.output_tokens
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        pod_per_s = np.where(counts & ~asleep, progress.tokens_per_s(pace), np.nan)
        writes = (samples.waiting > 0) & (pod_per_s > readings.NOTHING_PER_S)
        pod_wait_s = np.where(writes, samples.waiting * output_tokens[fleet.pod_workload] / pod_per_s, np.nan)
    queue_wait_s = np.where(waiting > 0, by_workload.max(pod_wait_s), waiting)  # no queue: 0; unknown stays unknown
    full = _full(samples, pace, counts & ~asleep, pod_wait_s)

    of_gpus = _gpus(inp.now_s, samples, pods.serving)
    all_ended, loaded, active, idle = by_workload.sum_known([ended, *of_gpus], pods.serving)
    watched_s = clip(or_zero(elapsed_s), 0.0, MAX_GPU_AGE_S)  # of a longer pause nothing is known
    loaded_idle_s = before.loaded_idle_s + or_zero(idle) * watched_s

    gateway_heard = inp.now_s - front.time_s <= inp.spec.max_input_age_s
    gateway_tells = gateway_heard & ~(np.isnan(front.waiting) & np.isnan(front.arrivals_per_s))
    last_gateway_s = np.where(gateway_tells, inp.now_s, before.last_gateway_s)
    gateway_silent_s = inp.now_s - last_gateway_s
    starting_replica_s = cold_start.pledged_s(inp, cold_start_s)
    (all_pledged_s,) = by_workload.sum_known([starting_replica_s], pods.starting)
    pod_age_s = np.where(pods.reporting, inp.now_s - samples.time_s, np.nan)
    ready, starting, pending, terminating, reporting, newly_ready, sleeping, at_work, refusing, of_full = (
        by_workload.count(
            [
                pods.serving,
                pods.starting,
                pods.pending,
                fleet.pod_terminating,
                pods.reporting,
                pods.newly_ready,
                asleep,
                pods.serving & worked,
                pods.serving & (grown["rejections"] > 0),
                full,
            ]
        )
    )
    awake, by_tokens = np.where(asleep, 0.0, 1.0), _by_rate(rates["generation_tokens"])
    # Of latencies all pods have one quantile, unless a source could not tell that they belong together.
    kv_usage, ttft_s, itl_s, batch, pod_tokens_per_s, saturated_running, saturated_tokens_per_s = by_workload.mean(
        [
            samples.kv_usage,
            samples.ttft_s,
            samples.itl_s,
            samples.running,
            pod_per_s,
            np.where(full, samples.running, np.nan),
            np.where(full, pod_per_s, np.nan),
        ],
        [awake, _by_rate(rates["first_tokens"]), by_tokens, awake * by_tokens, awake, awake, awake],
        counts,
    )

    observation = Observation(
        replicas=fleet.replicas,
        ready=ready,
        starting=starting,
        pending=pending,
        missing_pods=np.zeros(len(pending)),  # `pending` finds them, which needs these counts
        terminating=terminating,
        next_ready_s=by_workload.min(
            np.where(pods.starting, cold_start_s[fleet.pod_workload] - starting_replica_s, np.nan)
        ),
        starting_replica_s=or_zero(all_pledged_s),
        reporting=reporting,
        newly_ready=newly_ready,
        asleep=sleeping,
        **standing,
        **queues_apart,
        saturated=of_full,
        saturated_running=saturated_running,
        saturated_tokens_per_s=saturated_tokens_per_s,
        batch_size=batch,
        age_s=by_workload.max(pod_age_s),
        running=running,
        waiting=waiting,
        **draining.load(draining.holding(inp, samples) & ~stands, samples, rates, ended, by_workload),
        gateway_waiting=np.where(gateway_heard, front.waiting, np.nan),
        gateway_arrivals_per_s=np.where(gateway_heard, front.arrivals_per_s, np.nan),
        gateway_silent_s=np.where(gateway_silent_s <= GATEWAY_REMEMBERED_S, gateway_silent_s, np.nan),
        kv_usage=kv_usage,
        prompt_tokens_per_s=per_s["prompt_tokens"],
        generation_tokens_per_s=generation_tokens_per_s,
        finished_per_s=per_s["finished"],
        first_tokens_per_s=per_s["first_tokens"],
        preemptions_per_s=per_s["preemptions"],
        rejections_per_s=per_s["rejections"],
        ended=all_ended,
        output_tokens=output_tokens,
        ttft_s=ttft_s,
        itl_s=itl_s,
        pod_tokens_per_s=pod_tokens_per_s,
        queue_wait_s=queue_wait_s,
        gpu_loaded=loaded,
        gpu_active=active,
        loaded_idle_s=np.where(~np.isnan(idle) | (loaded_idle_s > 0), loaded_idle_s, np.nan),
        cold_start_s=cold_start_s,
    )
    after = replace(
        before,
        cold_start=starts,
        lengths=lengths,
        standstill=standstill_after,
        last_gateway_s=last_gateway_s,
        loaded_idle_s=loaded_idle_s,
    )
    seen_ready = np.where(pods.serving, 1.0, pods_before.seen_ready)
    return observation, refusing > 0, at_work > 0, after, PodState(counters, pace, seen_ready)


def _classify(inp: TickInput, samples: PodSamples, known: ColdStarts, before: PodState, stuck: BoolColumn) -> Pods:
    fleet = inp.fleet
    serving = fleet.pod_ready & ~fleet.pod_terminating
    coming = ~fleet.pod_ready & ~fleet.pod_terminating
    # A pod that has been starting for longer than any cold start is held up, whatever it waits for. One that has served
    # before is being restarted, or misses a probe.
    held_up = (fleet.pod_pending != PendingClass.NONE) | (cold_start.is_endless(inp, known) & (before.seen_ready == 0))
    max_age_s = inp.spec.max_input_age_s[fleet.pod_workload]
    fresh = inp.now_s - samples.time_s <= max_age_s  # False where the engine did not answer
    reporting = serving & fresh & ~np.isnan(samples.running) & ~np.isnan(samples.waiting)
    never_read = np.isnan(samples.time_s) & np.isnan(before.counters.time_s)
    return Pods(
        serving=serving,
        starting=coming & ~held_up,
        pending=coming & held_up,
        reporting=reporting,
        stuck=reporting & stuck,
        newly_ready=serving & never_read & (inp.now_s - fleet.pod_ready_s <= max_age_s),
    )


def _without_apart(
    now_s: float, samples: PodSamples, pace: Progress, by_workload: GroupBy, counts: BoolColumn
) -> tuple[PodSamples, Progress, dict[str, FloatColumn]]:
    """Take away the queues that no other replica can take, and the KV caches that are full for the same reason.

    counts: bool[P], pods that report and move. Also returns columns of `Observation`.
    """
    pace = progress.compare(pace, samples, by_workload, counts & ~(samples.asleep > 0))
    apart = counts & progress.apart(pace)
    (pods,), (requests,) = by_workload.count([apart]), by_workload.sum_known([samples.waiting], apart)
    found = {
        "queue_outliers": pods,
        "queue_outlier_requests": or_zero(requests),
        "queue_outlier_s": by_workload.min(np.where(apart, now_s - pace.apart_since_s, np.nan)),
    }
    if not apart.any():  # as in most ticks
        return samples, pace, found
    waiting, kv_usage = np.where(apart, 0.0, samples.waiting), np.where(apart, np.nan, samples.kv_usage)
    return replace(samples, waiting=waiting, kv_usage=kv_usage), pace, found


def _full(samples: PodSamples, pace: Progress, awake: BoolColumn, wait_s: FloatColumn) -> BoolColumn:
    """Say which of the pods that are awake have more requests than they can run; bool[P].

    wait_s: float64[P], how long the last in line waits; NaN: not known. One that was not seen to make progress between
    its last two readings teaches nothing.
    """
    moves = ((pace.still == 0) & (pace.worked_s > 0)) | np.isnan(samples.gaps)
    return np.asarray(awake & moves & (samples.waiting >= 1) & ~(wait_s < LASTING_WAIT_S))


def _gpus(now_s: float, samples: PodSamples, serving: BoolColumn) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Say which pods are loaded, which work, and which are loaded and idle; float64[P], 0 or 1, NaN unknown.

    The framebuffer tells that a model is there, never that more or fewer are needed. A pod is idle only if the GPU and
    the engine agree: short replies can leave no trace in a 30 s sample.
    """
    fresh = serving & (now_s - samples.gpu_time_s <= MAX_GPU_AGE_S)  # False where the GPU was not read
    if not fresh.any():  # as where nobody reads them
        unknown = np.full(len(fresh), np.nan)
        return unknown, unknown, unknown
    loaded = samples.fb_usage >= LOADED_FB_USAGE
    active = (
        (samples.tensor_active >= ACTIVE_TENSOR)
        | (samples.sm_active >= ACTIVE_SM)
        | (samples.dram_active >= ACTIVE_DRAM)
    )
    witnessed = ~np.isnan(samples.tensor_active) | ~np.isnan(samples.sm_active) | ~np.isnan(samples.dram_active)
    engine_read = ~np.isnan(samples.running) & ~np.isnan(samples.waiting)
    quiet = (samples.running == 0) & (samples.waiting == 0)
    weighed = fresh & ~np.isnan(samples.fb_usage)
    return (
        np.where(weighed, loaded, np.nan),
        np.where(fresh & witnessed, active, np.nan),
        np.where(weighed & witnessed & engine_read, loaded & ~active & quiet, np.nan),
    )


def _by_rate(per_s: FloatColumn) -> FloatColumn:
    """Return how much each pod's latency weighs: by what it does. float64[P].

    Where no pod has a rate yet (its second reading is still to come), pods weigh the same.
    """
    return np.where(np.isnan(per_s), 1e-9, np.fmax(per_s, 1e-9))
