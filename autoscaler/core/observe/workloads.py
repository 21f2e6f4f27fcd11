"""From readings to the state of each workload: counters to rates, pods folded, ages judged, cold starts learned.

Only pods that are ready, not leaving, and whose reading is fresh count; a pod that says nothing is left out of sums and
of counts alike, and shows as a gap between `ready` and `reporting`. What other pods still hold is in columns of its own
(`draining`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import Blocked
from autoscaler.core.model.samples import FrontSamples, PodSamples
from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.observe import draining, progress
from autoscaler.core.observe import rates as readings
from autoscaler.core.observe.progress import Progress
from autoscaler.core.state import COUNTERS, Memory, WorkloadMemory
from autoscaler.core.table.columns import BoolColumn, FloatColumn, clip, or_zero, replace
from autoscaler.core.table.groupby import GroupBy

OUTPUT_LENGTH_WINDOW_S = 1200.0
"""Time constant of tokens per request: lengths drift over tens of minutes, and few requests must not make them jump."""

LOADED_FB_USAGE = 0.5
"""Framebuffer share from which a model counts as loaded: vLLM takes 0.85 to 0.95, a sleeping one at most 0.1."""

ACTIVE_TENSOR, ACTIVE_SM, ACTIVE_DRAM = 0.005, 0.01, 0.01
"""Below all of these a loaded GPU is idle (readings of an idle engine; one of them above is work)."""

MAX_GPU_AGE_S = 120.0
"""DCGM samples every 30 s and is scraped as rarely; an older reading says nothing about now."""

GATEWAY_REMEMBERED_S = 86_400.0
"""A gateway that has told nothing for so long was removed, and is no longer waited for."""

GATEWAY_STUCK_S = 120.0
"""A queue at the gateway beside engines that do nothing for so long does not move: a gateway that holds requests back
for engines that are full would see them work."""

CHANCES = 2.0
"""Cold starts for which a replica stands in beside stuck ones when nothing shows that requests reach it."""

LASTING_WAIT_S = 1.0
"""A queue that is gone sooner waits for its prompts to be computed, not for a slot."""

LONGEST_COLD_START_S = 3600.0
"""A pod that took longer was repaired, not started: nothing is learned from it."""

OVERDUE = 0.9
"""Share of a usual cold start after which a pod that has not become ready is overdue."""

SHORT_S = 60.0
"""Least usual start in that comparison, so that a quick engine does not cut an ordinary one short."""

LONGEST_OF_USUAL = 3.0
"""A cold start counts for at most so many usual ones: a single long one may be a probe that failed for a while."""


@dataclass(frozen=True)
class Pods:
    """Which pods count for what; bool[P]."""

    serving: BoolColumn  # ready and staying
    starting: BoolColumn  # will become ready by waiting
    blocked: BoolColumn  # will not
    reporting: BoolColumn  # serving, and read lately
    stuck: BoolColumn  # of those, whose requests do not move
    joining: BoolColumn  # serving only just, and never read: it has hardly any load yet


def observe(inp: TickInput, memory: Memory) -> tuple[Observation, Memory]:
    """Understand one set of samples. Memory must be aligned to the fleet."""
    fleet, workloads, elapsed_s = inp.fleet, memory.workloads, inp.now_s - memory.workloads.last_tick_s
    samples, front = readings.believe(inp.samples.pods, inp.now_s), readings.believe(inp.samples.front, inp.now_s)
    by_workload = GroupBy(fleet.pod_workload, len(fleet.workloads))
    pace = progress.follow(memory.pods.progress, samples)
    stands = progress.stuck(pace, samples)
    pods = _classify(inp, samples, memory, stands)
    counts = pods.reporting & ~pods.stuck
    samples, pace, queues_apart = _without_apart(inp.now_s, samples, pace, by_workload, counts)

    pod_memory, *counted = readings.rates(samples, memory.pods)
    rates, grown = (dict(zip(COUNTERS, each, strict=True)) for each in counted)
    ended = grown["finished"] + or_zero(grown["rejections"])
    worked = (grown["generation_tokens"] > 0) | (ended > 0)

    asleep = pods.reporting & (samples.asleep > 0)
    # A sleeping engine's own gauges stay where they are whatever it holds; only /load tells.
    hidden = np.where(asleep, np.fmax(samples.held - samples.running - samples.waiting, 0.0), 0.0)
    running, waiting, *of_counters = by_workload.sum_known(
        [samples.running, samples.waiting + hidden, *rates.values()], counts
    )
    cold_start_mean_s, cold_start_deviation_s, seen_ready = _learn_cold_start(inp, memory, by_workload, pods)
    cold_start_s = _usual_s(inp, cold_start_mean_s, cold_start_deviation_s)
    standstill, watched = _standstill(
        inp, samples, front, pace, pods, counts & worked, by_workload, workloads, cold_start_s
    )
    none_moves = (standstill["stuck"] > 0) & np.isnan(running)
    running, waiting = np.where(none_moves, 0.0, running), np.where(none_moves, 0.0, waiting)
    per_s = dict(zip(COUNTERS, of_counters, strict=True))
    generation_tokens_per_s = per_s["generation_tokens"]

    written_tokens, served_requests = _follow_lengths(
        workloads, elapsed_s, generation_tokens_per_s, per_s["finished"], per_s["first_tokens"]
    )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        output_tokens = np.where(served_requests >= 1, written_tokens / served_requests, np.nan)
        pod_per_s = np.where(counts & ~asleep, progress.tokens_per_s(pace), np.nan)
        writes = (samples.waiting > 0) & (pod_per_s > readings.NOTHING_PER_S)
        pod_wait_s = np.where(writes, samples.waiting * output_tokens[fleet.pod_workload] / pod_per_s, np.nan)
    queue_wait_s = np.where(waiting > 0, by_workload.max(pod_wait_s), waiting)  # no queue: 0; unknown stays unknown
    full = _full(samples, pace, counts & ~asleep, pod_wait_s)

    of_gpus = _gpus(inp.now_s, samples, pods.serving)
    all_ended, loaded, active, idle = by_workload.sum_known([ended, *of_gpus], pods.serving)
    watched_s = clip(or_zero(elapsed_s), 0.0, MAX_GPU_AGE_S)  # of a longer pause nothing is known
    loaded_idle_s = workloads.loaded_idle_s + or_zero(idle) * watched_s

    gateway_heard = inp.now_s - front.time_s <= inp.spec.max_input_age_s
    gateway_tells = gateway_heard & ~(np.isnan(front.waiting) & np.isnan(front.arrivals_per_s))
    gateway_s = np.where(gateway_tells, inp.now_s, workloads.gateway_s)
    gateway_silent_s = inp.now_s - gateway_s
    pledged_s = _pledged_s(inp, cold_start_s)
    (all_pledged_s,) = by_workload.sum_known([pledged_s], pods.starting)
    pod_age_s = np.where(pods.reporting, inp.now_s - samples.time_s, np.nan)
    ready, starting, blocked, terminating, reporting, joining, sleeping, at_work, refusing, of_full = by_workload.count(
        [
            pods.serving,
            pods.starting,
            pods.blocked,
            fleet.pod_terminating,
            pods.reporting,
            pods.joining,
            asleep,
            pods.serving & worked,
            pods.serving & (grown["rejections"] > 0),
            full,
        ]
    )
    awake, by_tokens = np.where(asleep, 0.0, 1.0), _by_rate(rates["generation_tokens"])
    # Of latencies all pods have one quantile, unless a source could not tell that they belong together.
    kv_usage, ttft_s, itl_s, batch, pod_tokens_per_s, full_running, full_tokens_per_s = by_workload.mean(
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
        blocked=blocked,
        missing=np.zeros(len(blocked)),  # of `obstacles`, which needs the time since when
        terminating=terminating,
        next_ready_s=by_workload.min(np.where(pods.starting, cold_start_s[fleet.pod_workload] - pledged_s, np.nan)),
        pledged_s=or_zero(all_pledged_s),
        reporting=reporting,
        joining=joining,
        asleep=sleeping,
        **standstill,
        **queues_apart,
        full=of_full,
        full_running=full_running,
        full_tokens_per_s=full_tokens_per_s,
        batch=batch,
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
        loaded=loaded,
        active=active,
        loaded_idle_s=np.where(~np.isnan(idle) | (loaded_idle_s > 0), loaded_idle_s, np.nan),
        cold_start_s=cold_start_s,
    )
    memory = replace(memory, pods=replace(pod_memory, seen_ready=seen_ready, progress=pace))
    return observation, memory.noting(
        last_busy_s=np.where(at_work > 0, inp.now_s, workloads.last_busy_s),
        last_refused_s=np.where(refusing > 0, inp.now_s, workloads.last_refused_s),
        **watched,
        gateway_s=gateway_s,
        written_tokens=written_tokens,
        served_requests=served_requests,
        cold_start_mean_s=cold_start_mean_s,
        cold_start_deviation_s=cold_start_deviation_s,
        loaded_idle_s=loaded_idle_s,
    )


def _classify(inp: TickInput, samples: PodSamples, memory: Memory, stuck: BoolColumn) -> Pods:
    fleet = inp.fleet
    serving = fleet.pod_ready & ~fleet.pod_terminating
    coming = ~fleet.pod_ready & ~fleet.pod_terminating
    # A pod that has been starting for longer than any cold start is held up, whatever it waits for. One that has served
    # before is being restarted, or misses a probe.
    workloads = memory.workloads
    usual_s = _usual_s(inp, workloads.cold_start_mean_s, workloads.cold_start_deviation_s)[fleet.pod_workload]
    endless = inp.now_s - fleet.pod_created_s > np.fmax(LONGEST_OF_USUAL * usual_s, LONGEST_COLD_START_S)
    held_up = (fleet.pod_blocked != Blocked.NO) | (endless & (memory.pods.seen_ready == 0))
    max_age_s = inp.spec.max_input_age_s[fleet.pod_workload]
    fresh = inp.now_s - samples.time_s <= max_age_s  # False where the engine did not answer
    reporting = serving & fresh & ~np.isnan(samples.running) & ~np.isnan(samples.waiting)
    never_read = np.isnan(samples.time_s) & np.isnan(memory.pods.time_s)
    return Pods(
        serving=serving,
        starting=coming & ~held_up,
        blocked=coming & held_up,
        reporting=reporting,
        stuck=reporting & stuck,
        joining=serving & never_read & (inp.now_s - fleet.pod_ready_s <= max_age_s),
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
        "apart": pods,
        "apart_requests": or_zero(requests),
        "apart_s": by_workload.min(np.where(apart, now_s - pace.apart_since_s, np.nan)),
    }
    if not apart.any():  # as in most ticks
        return samples, pace, found
    waiting, kv_usage = np.where(apart, 0.0, samples.waiting), np.where(apart, np.nan, samples.kv_usage)
    return replace(samples, waiting=waiting, kv_usage=kv_usage), pace, found


def _standstill(
    inp: TickInput,
    samples: PodSamples,
    front: FrontSamples,
    pace: Progress,
    pods: Pods,
    working: BoolColumn,
    by_workload: GroupBy,
    workloads: WorkloadMemory,
    cold_start_s: FloatColumn,
) -> tuple[dict[str, FloatColumn], dict[str, FloatColumn]]:
    """Say which load does not move, and beside which stuck pods others are to serve.

    working: bool[P], pods that are not stuck and have done something since the last reading. Returns columns of
    `Observation` and of `WorkloadMemory`.

    A stuck pod is replaced where there is something to serve: others of its workload work, or more requests come. A
    single one with a queue has another beside it for a while without that, and so have those behind a gateway with a
    queue: it comes, and no request may reach it. Several at once, with nothing else going on, are more likely gauges
    that nobody has brought up to date since the clients left.
    """
    heard = inp.now_s - front.time_s <= inp.spec.max_input_age_s
    gateway_waits = heard & (front.waiting > 0)
    awake = pods.reporting & ~(samples.asleep > 0)
    stuck, queueing, growing, works, serves, uncounted = by_workload.count(
        [
            pods.stuck,
            pods.stuck & (samples.waiting > 0),
            pods.stuck & (inp.now_s - pace.last_grown_s <= progress.GROWING_S),
            working,
            awake,
            awake & np.isnan(samples.gaps),
        ]
    )
    stuck_s = by_workload.min(np.where(pods.stuck, inp.now_s - pace.last_moved_s, np.nan))
    (requests,) = by_workload.sum_known([samples.running + samples.waiting], pods.stuck)
    comes = (works > 0) | (growing > 0) | (heard & (front.arrivals_per_s > 0))
    last_beside_s = np.where(stuck > 0, np.where(comes, inp.now_s, workloads.last_beside_s), np.nan)
    replaces = inp.now_s - last_beside_s <= progress.REPLACED_S
    waits = (stuck_s <= chance_s(cold_start_s)) & (((stuck == 1) & (queueing > 0)) | gateway_waits)
    # From the moment at which all engines are stuck the queue in front of them is, too, until one of them works.
    moved_s = np.where((stuck > 0) & (stuck == serves), inp.now_s - GATEWAY_STUCK_S, inp.now_s)
    moved_s = np.fmin(workloads.last_gateway_moved_s, moved_s)
    stands = gateway_waits & (serves > 0) & (uncounted + works == 0)
    last_gateway_moved_s = np.where(stands, moved_s, inp.now_s)
    found = {
        "stuck": stuck,
        "stuck_requests": or_zero(requests),
        "stuck_s": stuck_s,
        "replaced": np.where(replaces, stuck, 0.0),
        "stand_in": np.where(waits, stuck + 1, np.nan),
        "gateway_stuck": (inp.now_s - last_gateway_moved_s >= GATEWAY_STUCK_S).astype(np.float64),
    }
    return found, {"last_beside_s": last_beside_s, "last_gateway_moved_s": last_gateway_moved_s}


def chance_s(cold_start_s: FloatColumn) -> FloatColumn:
    """Return for how long a replica stands in beside stuck ones without a sign that requests reach it; float64[W]."""
    return np.fmin(CHANCES * cold_start_s + GATEWAY_STUCK_S, progress.REPLACED_S)


def _full(samples: PodSamples, pace: Progress, awake: BoolColumn, wait_s: FloatColumn) -> BoolColumn:
    """Say which of the pods that are awake have more requests than they can run; bool[P].

    wait_s: float64[P], how long the last in line waits; NaN: not known. One that was not seen to make progress between
    its last two readings teaches nothing.
    """
    moves = ((pace.still == 0) & (pace.worked_s > 0)) | np.isnan(samples.gaps)
    return np.asarray(awake & moves & (samples.waiting >= 1) & ~(wait_s < LASTING_WAIT_S))


def _learn_cold_start(
    inp: TickInput, memory: Memory, by_workload: GroupBy, pods: Pods
) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Learn the time from created to ready from pods that became ready since the last tick.

    Mean and mean absolute deviation as TCP keeps its round-trip time (RFC 6298), the mean with a gain of 1/4 instead of
    1/8 since cold starts are few, and with half the first deviation. Readiness that flapped can only look slower, so of
    several new pods the quickest counts. Of the wait to be scheduled no more counts than what came after it took: a
    node that is made for a pod is there in minutes, a GPU that others hold when they let go of it. An engine that was
    started again in its pod has shown no such start.
    """
    fleet, workloads = inp.fleet, memory.workloads
    took_s = np.fmin(fleet.pod_ready_s - fleet.pod_created_s, 2 * (fleet.pod_ready_s - fleet.pod_scheduled_s))
    fresh = pods.serving & ~pods.stuck & (memory.pods.seen_ready == 0) & ~np.isnan(fleet.pod_started_s)
    fresh &= (took_s > 0) & (took_s <= LONGEST_COLD_START_S)
    seen_ready = np.where(pods.serving, 1.0, memory.pods.seen_ready)
    if not fresh.any():  # as in most ticks
        return workloads.cold_start_mean_s, workloads.cold_start_deviation_s, seen_ready
    sample = by_workload.min(np.where(fresh, took_s, np.nan))
    first = np.isnan(workloads.cold_start_mean_s)
    usual_s = _usual_s(inp, workloads.cold_start_mean_s, workloads.cold_start_deviation_s)
    most_s = LONGEST_OF_USUAL * np.maximum(usual_s, SHORT_S)
    sample = np.where(sample > most_s, most_s, sample)
    error = sample - workloads.cold_start_mean_s
    mean = np.where(first, sample, workloads.cold_start_mean_s + error / 4)
    deviation = np.where(
        first, sample / 4, workloads.cold_start_deviation_s + (np.abs(error) - workloads.cold_start_deviation_s) / 4
    )
    nothing = np.isnan(sample)
    return (
        np.where(nothing, workloads.cold_start_mean_s, mean),
        np.where(nothing, workloads.cold_start_deviation_s, deviation),
        seen_ready,
    )


def _usual_s(inp: TickInput, mean_s: FloatColumn, deviation_s: FloatColumn) -> FloatColumn:
    """Return the cold start to count on: as learned, with room for its spread, or as stated before any was seen."""
    return np.where(np.isnan(mean_s), inp.spec.cold_start_s, mean_s + 2 * deviation_s)


def _follow_lengths(
    workloads: WorkloadMemory,
    elapsed_s: FloatColumn,
    tokens_per_s: FloatColumn,
    finished_per_s: FloatColumn,
    first_tokens_per_s: FloatColumn,
) -> tuple[FloatColumn, FloatColumn]:
    """Add up generated tokens and the requests they belong to, older ones fading; float64[W] each.

    A request counts half when it begins and half when it ends, as those in between have written half of their tokens on
    average; without the counter of either, the other counts whole. Of times in which nothing moved nothing fades.
    """
    requests_per_s = np.where(np.isnan(finished_per_s), first_tokens_per_s, finished_per_s)
    requests_per_s = (requests_per_s + np.where(np.isnan(first_tokens_per_s), finished_per_s, first_tokens_per_s)) / 2
    moving = (tokens_per_s > readings.NOTHING_PER_S) & (requests_per_s >= 0) & (elapsed_s > 0)
    step_s = np.where(moving, elapsed_s, 0.0)
    fade = np.exp(-step_s / OUTPUT_LENGTH_WINDOW_S)
    return (
        workloads.written_tokens * fade + np.where(moving, tokens_per_s, 0.0) * step_s,
        workloads.served_requests * fade + np.where(moving, requests_per_s, 0.0) * step_s,
    )


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


def _pledged_s(inp: TickInput, cold_start_s: FloatColumn) -> FloatColumn:
    """Seconds each pod, if it is starting, will have served one cold start from now; float64[P].

    As many as it is old, its wait to be scheduled for half a cold start at most, as in `_learn_cold_start`. A pod that
    is overdue is expected after another tenth of a cold start: it may still come, but nobody counts on now.
    """
    usual_s = cold_start_s[inp.fleet.pod_workload]
    age_s = np.fmin(inp.now_s - inp.fleet.pod_created_s, inp.now_s - inp.fleet.pod_scheduled_s + usual_s / 2)
    return np.minimum(np.maximum(age_s, 0.0), OVERDUE * usual_s)


def _by_rate(per_s: FloatColumn) -> FloatColumn:
    """Return how much each pod's latency weighs: by what it does. float64[P].

    Where no pod has a rate yet (its second reading is still to come), pods weigh the same.
    """
    return np.where(np.isnan(per_s), 1e-9, np.fmax(per_s, 1e-9))
