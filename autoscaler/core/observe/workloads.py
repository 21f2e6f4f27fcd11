"""The observation of a tick: the state of each workload, from the samples of its pods and gateway.

Only pods count that are ready, not terminating, and have a recent reading. A pod without a reading is left out of sums
and counts, and shows as the difference of `ready` and `reporting`. Pods whose engine sleeps are neither ready nor
starting, but the requests that their servers hold count. Other pods with requests are counted in columns of their own
(`draining`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.observe import (
    answer_lengths,
    arrivals,
    draining,
    flaps,
    freshness,
    gateways,
    gpu_activity,
    latency,
    load,
    pending,
    queue_outliers,
    standstill,
)
from autoscaler.core.observe.answer_lengths import AnswerLengths
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.observe.flaps import Flaps
from autoscaler.core.observe.freshness import Freshness
from autoscaler.core.observe.pending import Claims, PendingHistory
from autoscaler.core.observe.pod_classes import Pods, classify
from autoscaler.core.observe.queue_outliers import QueueOutliers
from autoscaler.core.observe.standstill import Standstill
from autoscaler.core.readings import pod_deltas, progress
from autoscaler.core.readings import rates as counter_rates
from autoscaler.core.readings.pod_deltas import RATED, PodDeltas, PodReadings
from autoscaler.core.readings.progress import Progress
from autoscaler.core.readings.rates import Rates
from autoscaler.core.starts import cold_start, starts, wake_ups
from autoscaler.core.starts.cold_start import ColdStarts
from autoscaler.core.starts.ledger import Ledger
from autoscaler.core.starts.link_leads import find_leads
from autoscaler.core.starts.wake_ups import PodSleep, WakeUps
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


def observe(
    inp: TickInput, last_tick_s: FloatColumn, before: ObserveState, pods_before: PodState, on_requested: BoolColumn
) -> tuple[Observed, ObserveState, PodState]:
    """Derive the observation from one set of samples. The tables must be aligned to the fleet.

    last_tick_s: float64[W], time of the previous tick; NaN: there was none. on_requested: bool[W], nodes were requested
    for the next replicas.
    """
    elapsed_s = inp.now_s - last_tick_s
    samples = load.with_stated_slots(inp.fleet, _without_transfers(inp))
    pods = measure_pods(samples, inp.now_s, pods_before)
    ledger, next_node = starts.expect_next(inp, before.ledger)
    found = starts.find(inp, ledger, next_node, pods_before.seen_ready > 0, pods_before.awaited_node > 0)
    observation, refusing, working, after, pod_state = _sum_up(
        inp, elapsed_s, pods, replace(before, ledger=ledger), pods_before, found
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


def measure_pods(samples: PodSamples, now_s: float, before: PodState) -> PodMeasurements:
    """Return the measurements of each pod, and their growth since its last reading."""
    samples = counter_rates.discard_implausible(samples, now_s)
    deltas = pod_deltas.read(samples, before.readings)
    pace = progress.update(before.progress, samples, deltas)
    return PodMeasurements(samples, deltas, pace, progress.is_stuck(pace, deltas.now, samples))


class ObservedLoad(NamedTuple):
    """Columns of `Observation`, summed over pods; float64[W]. Rates are in the order of `RATED`."""

    running: FloatColumn
    waiting: FloatColumn
    prompt_tokens_per_s: FloatColumn
    generation_tokens_per_s: FloatColumn
    finished_per_s: FloatColumn
    first_tokens_per_s: FloatColumn
    preemptions_per_s: FloatColumn
    rejections_per_s: FloatColumn

    @classmethod
    def of(
        cls, samples: PodSamples, rates: Mapping[str, FloatColumn], pods: Pods, by_workload: GroupBy
    ) -> ObservedLoad:
        """Return the load of pods that count, and of those that sleep. rates: by name, float64[P].

        The gauges of a sleeping engine do not change; only /load counts its requests.
        """
        asleep = pods.asleep
        running, waiting = (np.where(asleep, or_zero(column), column) for column in (samples.running, samples.waiting))
        hidden = np.where(asleep, np.fmax(samples.held - running - waiting, 0.0), 0.0)
        return cls(*by_workload.sum_known([running, waiting + hidden, *rates.values()], pods.counts | asleep))

    def without_motion(self, stuck: FloatColumn) -> ObservedLoad:
        """Return no requests where all pods that report are stuck. stuck: float64[W], pods."""
        none_moves = (stuck > 0) & np.isnan(self.running)
        return self._replace(
            running=np.where(none_moves, 0.0, self.running), waiting=np.where(none_moves, 0.0, self.waiting)
        )


def _sum_up(
    inp: TickInput,
    elapsed_s: FloatColumn,
    measured: PodMeasurements,
    before: ObserveState,
    pods_before: PodState,
    found: Starts,
) -> tuple[Observation, BoolColumn, BoolColumn, ObserveState, PodState]:
    """Aggregate the measurements of pods per workload.

    Also return the workloads of which a pod has refused requests, or has done work, since its last reading; bool[W].
    """
    fleet, samples, deltas, pace = inp.fleet, measured.samples, measured.deltas, measured.progress
    readings, front = deltas.now, gateways.read(inp)
    by_workload = GroupBy(fleet.pod_workload, len(fleet.workloads))
    seen_ready, awaited_node = pods_before.seen_ready > 0, pods_before.awaited_node > 0
    never_read = np.isnan(samples.time_s) & np.isnan(pods_before.readings.time_s)
    was_asleep = pods_before.sleep.asleep > 0
    pods = classify(inp, samples, before.cold_start, was_asleep, seen_ready, never_read, measured.is_stuck, found)
    counts, asleep = pods.counts, pods.asleep
    outliers = queue_outliers.update(pods_before.queue_outliers, readings.time_s, samples, by_workload, counts)
    samples, of_outliers = queue_outliers.remove(inp.now_s, samples, readings.time_s, outliers, by_workload, counts)

    averages, *counted = counter_rates.update(pods_before.rates, deltas)
    rates, grown = (dict(zip(RATED, each, strict=True)) for each in counted)
    ended = grown["finished"] + or_zero(grown["rejections"])
    worked = (grown["generation_tokens"] > 0) | (ended > 0)

    fresh = pods.serving & ~pods.stuck & ~seen_ready
    learned, ledger = cold_start.learn(inp, before.cold_start, before.ledger, fresh, by_workload, awaited_node)
    ledger = starts.learn_first_tokens(inp, ledger, pods.serving, deltas)
    cold_start_s = starts.next_start_s(found, cold_start.usual_s(inp, learned))
    starting_replica_s, ready_in_s = cold_start.promise(inp, learned, cold_start_s, found)
    changes = flaps.update(before.flaps, fleet.replicas, cold_start_s, inp.now_s)
    of_stuck, stands = standstill.update(
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
    summed = ObservedLoad.of(samples, rates, pods, by_workload).without_motion(of_stuck["stuck"])
    lengths = answer_lengths.update(
        before.lengths, elapsed_s, summed.generation_tokens_per_s, summed.finished_per_s, summed.first_tokens_per_s
    )
    queued_readings = latency.count_queued_readings(samples, deltas, pods_before.queued_readings)
    latencies = latency.average(
        samples,
        readings,
        pace,
        queued_readings,
        rates["generation_tokens"],
        rates["first_tokens"],
        lengths.output_tokens,
        summed.waiting,
        counts,
        by_workload,
    )
    of_sleep, woken, sleep = wake_ups.update(
        inp, samples, asleep, pods.reporting & ~worked, by_workload, before.wake_ups, pods_before.sleep
    )
    all_ended, loaded, active, idle = by_workload.sum_known(
        [ended, *gpu_activity.classify(inp.now_s, samples, pods.serving)], pods.serving | asleep
    )
    watched_s = clip(or_zero(elapsed_s), 0.0, gpu_activity.MAX_GPU_AGE_S)
    loaded_idle_s = before.loaded_idle_s + or_zero(idle) * watched_s
    (all_pledged_s,) = by_workload.sum_known([starting_replica_s], pods.starting)
    at_work, refusing = by_workload.count([pods.serving & worked, pods.serving & (grown["rejections"] > 0)])
    pod_counts = pods.count(fleet.pod_terminating, by_workload)
    of_gateways, last_gateway_s, last_unserved_s = gateways.count(
        inp, front, pod_counts.ready, before.last_gateway_s, before.last_unserved_s
    )
    drains = draining.is_draining(inp, samples) & ~measured.is_stuck

    observation = Observation(
        replicas=fleet.replicas,
        **pod_counts._asdict(),
        missing_pods=np.zeros(len(fleet.replicas)),  # `pending.update` sets it, from the other columns
        next_ready_s=by_workload.min(np.where(pods.starting, ready_in_s, np.nan)),
        starting_replica_s=or_zero(all_pledged_s),
        **of_sleep,
        **of_stuck,
        **of_outliers,
        age_s=by_workload.max(np.where(pods.reporting | asleep, inp.now_s - samples.time_s, np.nan)),
        **summed._asdict(),
        **draining.sum_load(drains, samples, rates, ended, by_workload),
        **of_gateways._asdict(),
        ended=all_ended,
        output_tokens=lengths.output_tokens,
        **latencies._asdict(),
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
        standstill=stands,
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
