"""The observation of a tick: the state of each workload, from the samples of its pods and gateway.

Only pods count that are ready, not terminating, and have a recent reading. A pod without a reading is left out of sums
and counts, and shows as the difference of `ready` and `reporting`. Pods whose engine sleeps are neither ready nor
starting, but the requests that their servers hold count. Other pods with requests are counted in columns of their own
(`draining`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.samples import GatewaySamples, PodSamples
from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.observe import (
    answer_lengths,
    arrivals,
    cold_start,
    draining,
    flaps,
    freshness,
    gpu_activity,
    load,
    pending,
    pod_deltas,
    progress,
    queue_outliers,
    standstill,
    starts,
    wake_ups,
)
from autoscaler.core.observe import rates as counter_rates
from autoscaler.core.observe.answer_lengths import AnswerLengths
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.observe.cold_start import ColdStarts
from autoscaler.core.observe.flaps import Flaps
from autoscaler.core.observe.freshness import Freshness
from autoscaler.core.observe.ledger import Ledger
from autoscaler.core.observe.link_leads import find_leads
from autoscaler.core.observe.pending import Claims, PendingHistory
from autoscaler.core.observe.pod_deltas import RATED, PodDeltas, PodReadings
from autoscaler.core.observe.progress import Progress
from autoscaler.core.observe.queue_outliers import QueueOutliers
from autoscaler.core.observe.rates import Rates
from autoscaler.core.observe.standstill import Standstill
from autoscaler.core.observe.wake_ups import PodSleep, WakeUps
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    TimestampColumn,
    Transient,
    clip,
    or_zero,
    replace,
)
from autoscaler.core.table.groupby import GroupBy

GATEWAY_REMEMBERED_S = 86_400.0
"""A gateway without a reading for so long was removed, and is no longer expected to report."""

UNSERVED_S = 120.0
"""A request that arrives while no replica serves counts for so long, unless one becomes ready. Whoever is to wake the
workload may miss a single tick."""

LASTING_WAIT_S = 1.0
"""A queue that ends sooner waits for prefill, not for a slot."""

STEP_QUEUE = 8.0
"""Requests that may wait for one step at the moment of a reading, as a step takes in several prompts. So few are a
queue only if some waited at the reading before, too, or if the engine is full."""

FULL_KV_CACHE = 0.9
"""KV-cache usage from which an engine takes in no request: the next prompt needs blocks of its own."""


@dataclass(frozen=True)
class PodState(Columns):
    """State of each pod, kept between ticks; [P]."""

    readings: PodReadings
    rates: Rates
    progress: Progress
    queue_outliers: QueueOutliers
    seen_ready: FloatColumn  # 1 if it has been ready, or asleep
    sleep: PodSleep
    awaited_node: FloatColumn  # 1 if a node was created for it
    queued_readings: FloatColumn  # readings in a row with waiting requests, up to the last one

    @classmethod
    def blank(cls, rows: int) -> PodState:
        none = np.zeros(rows)
        return replace(super().blank(rows), seen_ready=none, awaited_node=none, queued_readings=none)


@dataclass(frozen=True)
class ObserveState(Columns):
    """State of each workload, kept between ticks; [W]."""

    cold_start: ColdStarts
    ledger: Ledger
    wake_ups: WakeUps
    lengths: AnswerLengths
    arrivals: Arrivals
    standstill: Standstill
    freshness: Freshness
    pending_history: PendingHistory
    last_gateway_s: TimestampColumn  # last time at which its gateway reported; NaN: never
    last_unserved_s: Transient[TimestampColumn]  # last arrival at its gateway since no replica serves; NaN: none
    loaded_idle_s: FloatColumn  # replica-seconds with a loaded but idle GPU
    flaps: Flaps

    @classmethod
    def blank(cls, rows: int) -> ObserveState:
        return replace(super().blank(rows), loaded_idle_s=np.zeros(rows))


@dataclass(frozen=True)
class PodMeasurements:
    """Measurements of each pod, for the stages that read single pods; [P]."""

    samples: PodSamples  # the plausible ones of this tick; times are not in the future
    deltas: PodDeltas  # from the reading before to the one of this tick
    progress: Progress
    is_stuck: BoolColumn  # bool[P], its requests make no progress

    @property
    def readings(self) -> PodReadings:
        """The last reading of each pod, also of one that did not answer now."""
        return self.deltas.now


@dataclass(frozen=True)
class Observed:
    """Result of one observation, for the stages that decide."""

    observation: Observation
    starts: Starts
    arrivals: Arrivals
    pods: PodMeasurements
    claims: Claims  # GPUs that each workload may claim of its pool
    trusted: BoolColumn  # bool[W], inputs are known and fresh enough to shrink
    trusted_since_s: FloatColumn  # float64[W], start of the present time without a long gap in trust
    last_tick_s: FloatColumn  # float64[W], time of the previous tick; NaN: none
    link_s: FloatColumn  # float64[L, W], lead of each link of a chain
    requested_link_s: FloatColumn  # float64[L, W], likewise for replicas that go to nodes that are requested for them

    def elapsed_s(self, now_s: float) -> FloatColumn:
        """Return the seconds since the previous tick; float64[W], NaN: there was none."""
        return now_s - self.last_tick_s


@dataclass(frozen=True)
class Pods:
    """Classes of pods; bool[P]."""

    serving: BoolColumn  # ready, awake and not terminating
    starting: BoolColumn  # not ready yet, can become ready with time
    pending: BoolColumn  # not ready, and time does not help
    asleep: BoolColumn  # their engine sleeps, ready or not
    reporting: BoolColumn  # serving, with a recent reading
    stuck: BoolColumn  # reporting, but their requests make no progress
    newly_ready: BoolColumn  # have just become ready and have no reading yet; they hardly have load


def observe(
    inp: TickInput, last_tick_s: FloatColumn, before: ObserveState, pods_before: PodState, on_requested: BoolColumn
) -> tuple[Observed, ObserveState, PodState]:
    """Derive the observation from one set of samples. The tables must be aligned to the fleet.

    last_tick_s: float64[W], time of the previous tick; NaN: there was none. on_requested: bool[W], nodes were requested
    for the next replicas.
    """
    elapsed_s = inp.now_s - last_tick_s
    samples = load.with_stated_slots(inp.fleet, _without_transfers(inp))
    pods, deltas = measure_pods(samples, inp.now_s, pods_before)
    ledger, next_node = starts.expect_next(inp, before.ledger)
    found = starts.find(inp, ledger, next_node, pods_before.seen_ready > 0, pods_before.awaited_node > 0)
    observation, refusing, working, after, pod_state = _sum_up(
        inp, elapsed_s, pods, deltas, replace(before, ledger=ledger), pods_before, found
    )
    missing, claims, pending_history = pending.update(
        inp, observation, before.pending_history, pending.has_free_gpus(inp.fleet)
    )
    observation = replace(observation, missing_pods=missing)
    arrived = arrivals.update(before.arrivals, observation, elapsed_s, inp.now_s, refusing, working)
    trusted, fresh = freshness.update(inp, observation, before.freshness)
    observed = Observed(
        observation=observation,
        starts=found,
        arrivals=arrived,
        pods=pods,
        claims=claims,
        trusted=trusted,
        trusted_since_s=fresh.trusted_since_s,
        last_tick_s=last_tick_s,
        link_s=find_leads(inp, observation, after.cold_start, found, on_requested),
        requested_link_s=find_leads(inp, observation, after.cold_start, found, np.ones(len(elapsed_s), dtype=bool)),
    )
    return observed, replace(after, pending_history=pending_history, arrivals=arrived, freshness=fresh), pod_state


def measure_pods(samples: PodSamples, now_s: float, before: PodState) -> tuple[PodMeasurements, PodDeltas]:
    """Return the measurements of each pod, and their growth since its last reading."""
    samples = counter_rates.discard_implausible(samples, now_s)
    deltas = pod_deltas.read(samples, before.readings)
    pace = progress.update(before.progress, samples, deltas)
    return PodMeasurements(samples, deltas, pace, progress.is_stuck(pace, deltas.now, samples)), deltas


def _sum_up(
    inp: TickInput,
    elapsed_s: FloatColumn,
    measured: PodMeasurements,
    deltas: PodDeltas,
    before: ObserveState,
    pods_before: PodState,
    found: Starts,
) -> tuple[Observation, BoolColumn, BoolColumn, ObserveState, PodState]:
    """Aggregate the measurements of pods per workload.

    Also return the workloads of which a pod has refused requests, or has done work, since its last reading; bool[W].
    """
    fleet, samples, readings, pace = inp.fleet, measured.samples, measured.readings, measured.progress
    gateways = _read_gateways(inp)
    by_workload = GroupBy(fleet.pod_workload, len(fleet.workloads))
    pods = _classify(inp, samples, before.cold_start, pods_before, measured.is_stuck, found)
    counts = pods.reporting & ~pods.stuck
    outliers = queue_outliers.update(pods_before.queue_outliers, readings.time_s, samples, by_workload, counts)
    samples, of_outliers = queue_outliers.remove(inp.now_s, samples, readings.time_s, outliers, by_workload, counts)

    averages, *counted = counter_rates.update(pods_before.rates, deltas)
    rates, grown = (dict(zip(RATED, each, strict=True)) for each in counted)
    ended = grown["finished"] + or_zero(grown["rejections"])
    worked = (grown["generation_tokens"] > 0) | (ended > 0)

    asleep, held = pods.asleep, counts | pods.asleep
    running, waiting, *of_counters = by_workload.sum_known([*_requests(samples, asleep), *rates.values()], held)
    fresh = pods.serving & ~pods.stuck & (pods_before.seen_ready == 0)
    learned, ledger = cold_start.learn(
        inp, before.cold_start, before.ledger, fresh, by_workload, pods_before.awaited_node > 0
    )
    ledger = starts.learn_first_tokens(inp, ledger, pods.serving, deltas)
    cold_start_s = starts.next_start_s(found, cold_start.usual_s(inp, learned))
    of_stuck, standstill_after = standstill.update(
        inp,
        samples,
        gateways,
        pace,
        pods.reporting,
        pods.stuck,
        counts & worked,
        by_workload,
        cold_start_s,
        before.standstill,
    )
    none_moves = (of_stuck["stuck"] > 0) & np.isnan(running)
    running, waiting = np.where(none_moves, 0.0, running), np.where(none_moves, 0.0, waiting)
    per_s = dict(zip(RATED, of_counters, strict=True))
    generation_tokens_per_s = per_s["generation_tokens"]

    lengths = answer_lengths.update(
        before.lengths, elapsed_s, generation_tokens_per_s, per_s["finished"], per_s["first_tokens"]
    )
    output_tokens = lengths.output_tokens
    pod_per_s = np.where(counts, progress.tokens_per_s(pace, readings), np.nan)
    queued_readings = _count_queued_readings(samples, deltas, pods_before.queued_readings)
    waits_for_step = (samples.waiting <= STEP_QUEUE) & (queued_readings < 2)
    pod_wait_s = _find_wait_s(samples.waiting, waits_for_step, output_tokens[fleet.pod_workload], pod_per_s)
    queue_wait_s = np.where(waiting > 0, by_workload.max(pod_wait_s), waiting)  # no queue: 0; NaN stays
    is_saturated = _is_saturated(samples, pace, counts & ~waits_for_step, pod_wait_s)

    all_ended, loaded, active, idle = by_workload.sum_known(
        [ended, *gpu_activity.classify(inp.now_s, samples, pods.serving)], pods.serving | asleep
    )
    watched_s = clip(or_zero(elapsed_s), 0.0, gpu_activity.MAX_GPU_AGE_S)
    loaded_idle_s = before.loaded_idle_s + or_zero(idle) * watched_s

    changes = flaps.update(before.flaps, fleet.replicas, cold_start_s, inp.now_s)
    gateway_fresh = inp.now_s - gateways.time_s <= inp.spec.max_input_age_s
    gateway_reports = gateway_fresh & ~(np.isnan(gateways.waiting) & np.isnan(gateways.arrivals_per_s))
    last_gateway_s = np.where(gateway_reports, inp.now_s, before.last_gateway_s)
    gateway_silent_s = inp.now_s - last_gateway_s
    starting_replica_s, ready_in_s = cold_start.promise(inp, learned, cold_start_s, found)
    of_sleep, woken, sleep = wake_ups.update(
        inp, samples, asleep, pods.reporting & ~worked, by_workload, before.wake_ups, pods_before.sleep
    )
    (all_pledged_s,) = by_workload.sum_known([starting_replica_s], pods.starting)
    pod_age_s = np.where(pods.reporting | asleep, inp.now_s - samples.time_s, np.nan)
    ready, starting, pending, terminating, reporting, newly_ready, at_work, refusing, saturated = by_workload.count(
        [
            pods.serving,
            pods.starting,
            pods.pending,
            fleet.pod_terminating,
            pods.reporting,
            pods.newly_ready,
            pods.serving & worked,
            pods.serving & (grown["rejections"] > 0),
            is_saturated,
        ]
    )
    arrivals_per_s, last_unserved_s = _remember_unserved(
        np.where(gateway_fresh, gateways.arrivals_per_s, np.nan), ready, inp.now_s, before.last_unserved_s
    )
    alike, by_tokens = np.ones(len(asleep)), _by_rate(rates["generation_tokens"])
    # All pods of a workload have the same quantile, unless a source does not know that they belong together.
    kv_usage, ttft_s, itl_s, batch, pod_tokens_per_s, saturated_running, saturated_tokens_per_s = by_workload.mean(
        [
            samples.kv_usage,
            samples.ttft_s,
            samples.itl_s,
            samples.running,
            pod_per_s,
            np.where(is_saturated, samples.running, np.nan),
            np.where(is_saturated, pod_per_s, np.nan),
        ],
        [alike, _by_rate(rates["first_tokens"]), by_tokens, by_tokens, alike, alike, alike],
        counts,
    )

    observation = Observation(
        replicas=fleet.replicas,
        ready=ready,
        starting=starting,
        pending=pending,
        missing_pods=np.zeros(len(pending)),  # `pending.update` sets it, from the other columns
        terminating=terminating,
        next_ready_s=by_workload.min(np.where(pods.starting, ready_in_s, np.nan)),
        starting_replica_s=or_zero(all_pledged_s),
        reporting=reporting,
        newly_ready=newly_ready,
        **of_sleep,
        **of_stuck,
        **of_outliers,
        saturated=saturated,
        saturated_running=saturated_running,
        saturated_tokens_per_s=saturated_tokens_per_s,
        batch_size=batch,
        age_s=by_workload.max(pod_age_s),
        running=running,
        waiting=waiting,
        **draining.sum_load(
            draining.is_draining(inp, samples) & ~measured.is_stuck, samples, rates, ended, by_workload
        ),
        gateway_waiting=np.where(gateway_fresh, gateways.waiting, np.nan),
        gateway_arrivals_per_s=arrivals_per_s,
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
        flaps=changes.count,
        flap_age_s=inp.now_s - changes.last_flap_s,
    )
    after = replace(
        before,
        cold_start=learned,
        ledger=ledger,
        wake_ups=woken,
        lengths=lengths,
        standstill=standstill_after,
        last_gateway_s=last_gateway_s,
        last_unserved_s=last_unserved_s,
        loaded_idle_s=loaded_idle_s,
        flaps=changes,
    )
    pod_state = PodState(
        readings,
        averages,
        pace,
        outliers,
        seen_ready=np.where(pods.serving | asleep, 1.0, pods_before.seen_ready),
        sleep=sleep,
        awaited_node=np.where(fleet.pod_pending == PendingCause.NODE_COMING, 1.0, pods_before.awaited_node),
        queued_readings=queued_readings,
    )
    return observation, refusing > 0, at_work > 0, after, pod_state


def _remember_unserved(
    arrivals_per_s: FloatColumn, ready: FloatColumn, now_s: float, before: TimestampColumn
) -> tuple[FloatColumn, TimestampColumn]:
    """Return the arrivals with those that found no replica, and the moment of the last of these; float64[W] each."""
    last_s = np.where(arrivals_per_s > 0, now_s, before)
    last_s = np.where(ready > 0, np.nan, last_s)
    waits = now_s - last_s <= UNSERVED_S  # False for NaN
    return np.where(waits, np.fmax(arrivals_per_s, 1 / UNSERVED_S), arrivals_per_s), last_s


def _requests(samples: PodSamples, asleep: BoolColumn) -> tuple[FloatColumn, FloatColumn]:
    """Return the running and the waiting requests of each pod, float64[P]; 0 if those of a sleeping one are unknown.

    The gauges of a sleeping engine do not change; only /load counts its requests.
    """
    running, waiting = (np.where(asleep, or_zero(column), column) for column in (samples.running, samples.waiting))
    hidden = np.where(asleep, np.fmax(samples.held - running - waiting, 0.0), 0.0)
    return running, waiting + hidden


def _without_transfers(inp: TickInput) -> PodSamples:
    """Return the readings of pods, without the requests that wait for a transfer between the sides of a pair.

    More replicas would not shorten this wait, and a pod with free slots is not full because of them.
    """
    samples, pairs = inp.samples.pods, inp.pairs
    if pairs is None or not (with_role := pairs.prefill | pairs.decode).any():
        return samples
    has_role = with_role[inp.fleet.pod_workload]
    waiting = np.fmax(samples.waiting - or_zero(samples.deferred), 0.0)
    return replace(samples, waiting=np.where(has_role & ~np.isnan(samples.waiting), waiting, samples.waiting))


def _read_gateways(inp: TickInput) -> GatewaySamples:
    """Return the plausible readings of gateways. Both sides of a pair have the same requests before them."""
    gateways = counter_rates.discard_implausible(inp.samples.gateways, inp.now_s)
    if inp.pairs is None:
        return gateways
    return GatewaySamples(**{name: inp.pairs.share(column) for name, column in vars(gateways).items()})


def _classify(
    inp: TickInput, samples: PodSamples, known: ColdStarts, before: PodState, stuck: BoolColumn, found: Starts
) -> Pods:
    fleet = inp.fleet
    max_age_s = inp.spec.max_input_age_s[fleet.pod_workload]
    fresh = inp.now_s - samples.time_s <= max_age_s  # False if the engine did not answer
    # A pod with a probe of its own is not ready while it sleeps. It is asleep until its engine says otherwise, or its
    # container restarts.
    silent = ~fresh & (before.sleep.asleep > 0) & ~fleet.pod_ready & ~np.isnan(fleet.pod_started_s)
    runs = fleet.pod_ready | (fleet.pod_pending == PendingCause.NONE)  # one that crashes has a reading of before
    asleep = ~fleet.pod_terminating & runs & ((fresh & (samples.asleep > 0)) | silent)
    serving = fleet.pod_ready & ~fleet.pod_terminating & ~asleep
    not_ready = ~fleet.pod_ready & ~fleet.pod_terminating & ~asleep
    # A pod that starts for longer than any cold start does not become ready with time. A pod that was ready before has
    # restarted, or fails a probe.
    is_coming = fleet.pod_pending == PendingCause.NODE_COMING
    is_pending = (~is_coming & (fleet.pod_pending != PendingCause.NONE)) | (
        found.pod_late | (cold_start.is_endless(inp, known) & (before.seen_ready == 0))
    )
    reporting = serving & fresh & ~np.isnan(samples.running) & ~np.isnan(samples.waiting)
    never_read = np.isnan(samples.time_s) & np.isnan(before.readings.time_s)
    return Pods(
        serving=serving,
        starting=not_ready & ~is_pending,
        pending=not_ready & is_pending,
        asleep=asleep,
        reporting=reporting,
        stuck=reporting & stuck,
        newly_ready=serving & never_read & (inp.now_s - fleet.pod_ready_s <= max_age_s),
    )


def _find_wait_s(
    waiting: FloatColumn, waits_for_step: BoolColumn, output_tokens: FloatColumn, tokens_per_s: FloatColumn
) -> FloatColumn:
    """Return the wait of the last request in the queue of each pod; float64[P], NaN: unknown, or there is no queue.

    A full pod takes in a request when another ends. waits_for_step: bool[P], requests wait for the next step only.
    """
    writes = (waiting > 0) & (tokens_per_s > counter_rates.MIN_PER_S)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wait_s = np.where(writes, waiting * output_tokens / tokens_per_s, np.nan)
    return np.where(writes & waits_for_step, 0.0, wait_s)


def _count_queued_readings(samples: PodSamples, deltas: PodDeltas, before: FloatColumn) -> FloatColumn:
    """Return the readings in a row that show waiting requests; float64[P]. One of a full engine counts as two.

    The next step takes in no request if the slots or the KV cache are full. Where slots are not known, an engine shows
    that they are full if it took in requests since its reading before, and still more wait than run.
    """
    took_in = deltas.now.running > deltas.before.running
    has_no_room = (samples.running >= samples.max_running) | (samples.kv_usage >= FULL_KV_CACHE)
    is_full = has_no_room | (took_in & (samples.waiting > samples.running))
    counted = before + deltas.is_new * np.where(is_full, 2.0, 1.0)
    return np.where(deltas.now.waiting >= 1, counted, 0.0)


def _is_saturated(samples: PodSamples, pace: Progress, can_be: BoolColumn, wait_s: FloatColumn) -> BoolColumn:
    """Return the pods that have more requests than they can run, and made progress at the last reading; bool[P].

    can_be: bool[P], pods that are awake, and whose requests do not wait for a step only. wait_s: float64[P], wait of
    the last request in the queue; NaN: unknown.
    """
    moves = ((pace.unchanged_readings == 0) & (pace.worked_s > 0)) | np.isnan(samples.gaps)
    return np.asarray(can_be & moves & (samples.waiting >= 1) & ~(wait_s < LASTING_WAIT_S))


def _by_rate(per_s: FloatColumn) -> FloatColumn:
    """Return the weight of each pod's latency: its rate, float64[P].

    Before the second reading no pod has a rate, and all pods have the same weight.
    """
    return np.where(np.isnan(per_s), 1e-9, np.fmax(per_s, 1e-9))
