"""The observation of a tick: the state of each workload, from the samples of its pods and gateway.

Only pods count that are ready, not terminating, and have a recent reading. A pod without a reading is left out of sums
and counts, and shows as the difference of `ready` and `reporting`. Pods whose engine sleeps are neither ready nor
starting, but the requests that their servers hold count. Other pods with requests are counted in columns of their own
(`draining`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.diagnosis import Diagnosed
from autoscaler.core.model.observation import Observation, StartTimes
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe import (
    answer_lengths,
    arrivals,
    diagnosis,
    draining,
    flaps,
    freshness,
    gateways,
    gpu_activity,
    latency,
    load,
    pending,
    pods,
    standstill,
)
from autoscaler.core.observe.answer_lengths import AnswerLengths
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.observe.flaps import Flaps
from autoscaler.core.observe.freshness import Freshness
from autoscaler.core.observe.pending import Claims, PendingHistory
from autoscaler.core.observe.pods import GroupedPods, PodMeasurements, PodState
from autoscaler.core.observe.standstill import Standstill
from autoscaler.core.starts import cold_start, starts, wake_ups
from autoscaler.core.starts.cold_start import ColdStarts
from autoscaler.core.starts.ledger import Ledger
from autoscaler.core.starts.link_leads import find_leads
from autoscaler.core.starts.wake_ups import WakeUps
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, Transient, or_zero, replace


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
class Observed:
    """Result of one observation, for the stages that decide."""

    observation: Observation
    diagnosed: Diagnosed
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
    measured = pods.measure_pods(samples, inp.now_s, pods_before)
    ledger, next_node = starts.expect_next(inp, before.ledger)
    found = starts.find(inp, ledger, next_node, pods_before.seen_ready > 0, pods_before.awaited_node > 0)
    observation, diagnosed, refusing, working, after, pod_state = _sum_up(
        inp, elapsed_s, measured, replace(before, ledger=ledger), pods_before, found
    )
    missing, claims, pending_history = pending.update(
        inp, observation, before.pending_history, pending.has_free_gpus(inp.fleet)
    )
    observation = replace(observation, missing_pods=missing)
    arrived = arrivals.update(before.arrivals, observation, elapsed_s, inp.now_s, refusing, working)
    trusted, fresh = freshness.update(inp, observation, before.freshness)
    observed = Observed(
        observation=observation,
        diagnosed=diagnosed,
        starts=found,
        arrivals=arrived,
        pods=measured,
        claims=claims,
        trusted=trusted,
        trusted_since_s=fresh.trusted_since_s,
        last_tick_s=last_tick_s,
        link_s=find_leads(inp, observation, after.cold_start, found, on_requested),
        requested_link_s=find_leads(inp, observation, after.cold_start, found, np.ones(len(elapsed_s), dtype=bool)),
    )
    return observed, replace(after, pending_history=pending_history, arrivals=arrived, freshness=fresh), pod_state


def _sum_up(
    inp: TickInput,
    elapsed_s: FloatColumn,
    measured: PodMeasurements,
    before: ObserveState,
    pods_before: PodState,
    found: Starts,
) -> tuple[Observation, Diagnosed, BoolColumn, BoolColumn, ObserveState, PodState]:
    """Aggregate the measurements of pods per workload, and say what their GPUs do.

    Also return the workloads of which a pod has refused requests, or has done work, since its last reading; bool[W].
    """
    fleet, front = inp.fleet, gateways.read(inp)
    classes = pods.classify(inp, measured, before.cold_start, pods_before, found)
    grouped, of_outliers, pod_state = pods.group(inp, measured, classes, pods_before)
    samples, by_workload, worked, asleep = grouped.samples, grouped.by_workload, grouped.worked, classes.asleep

    of_starts, after = _learn_starts(inp, grouped, found, pods_before, before)
    cold_start_s = of_starts.cold_start_s
    of_stuck, stands = standstill.update(inp, grouped, front, cold_start_s, before.standstill)
    summed = grouped.sum_load().without_motion(of_stuck.stuck)
    lengths = answer_lengths.update(before.lengths, elapsed_s, summed)
    of_sleep, woken, sleep = wake_ups.update(
        inp, samples, asleep, classes.reporting & ~worked, by_workload, before.wake_ups, pods_before.sleep
    )
    of_gpus, loaded_idle_s = gpu_activity.count(inp.now_s, grouped, elapsed_s, before.loaded_idle_s)
    counts = classes.count(fleet.pod_terminating, by_workload)
    of_gateways, last_gateway_s, last_unserved_s = gateways.count(
        inp, front, counts.ready, before.last_gateway_s, before.last_unserved_s
    )
    changes = flaps.update(before.flaps, fleet.replicas, cold_start_s, inp.now_s)
    (ended,) = by_workload.sum_known([grouped.ended], classes.serving | asleep)
    refused = grouped.grown["rejections"] > 0
    at_work, refusing = by_workload.count([classes.serving & worked, classes.serving & refused])
    observation = Observation.join(
        *(counts, of_starts, of_sleep, of_stuck, of_outliers, summed, of_gateways, of_gpus),
        draining.sum_load(draining.is_draining(inp, samples) & ~measured.is_stuck, grouped),
        latency.average(grouped, pod_state.queued_readings, lengths.output_tokens, summed.waiting),
        replicas=fleet.replicas,
        missing_pods=np.zeros(len(fleet.replicas)),  # `pending.update` sets it, from the other columns
        age_s=by_workload.max(np.where(classes.reporting | asleep, inp.now_s - samples.time_s, np.nan)),
        ended=ended,
        output_tokens=lengths.output_tokens,
        flaps=changes.count,
        flap_age_s=inp.now_s - changes.last_flap_s,
    )
    after = replace(
        after,
        wake_ups=woken,
        lengths=lengths,
        standstill=stands,
        last_gateway_s=last_gateway_s,
        last_unserved_s=last_unserved_s,
        loaded_idle_s=loaded_idle_s,
        flaps=changes,
    )
    diagnosed = diagnosis.diagnose(inp.now_s, grouped)
    return observation, diagnosed, refusing > 0, at_work > 0, after, replace(pod_state, sleep=sleep)


def _learn_starts(
    inp: TickInput, grouped: GroupedPods, found: Starts, pods_before: PodState, before: ObserveState
) -> tuple[StartTimes, ObserveState]:
    """Learn from the pods that have become ready, and say how long the next ones will take."""
    classes, by_workload = grouped.classes, grouped.by_workload
    fresh = classes.serving & ~classes.stuck & ~(pods_before.seen_ready > 0)
    awaited_node = pods_before.awaited_node > 0
    learned, ledger = cold_start.learn(inp, before.cold_start, before.ledger, fresh, by_workload, awaited_node)
    ledger = starts.learn_first_tokens(inp, ledger, classes.serving, grouped.deltas)
    cold_start_s = starts.next_start_s(found, cold_start.usual_s(inp, learned))
    served_s, ready_in_s = cold_start.promise(inp, learned, cold_start_s, found)
    (starting_replica_s,) = by_workload.sum_known([served_s], classes.starting)
    next_ready_s = by_workload.min(np.where(classes.starting, ready_in_s, np.nan))
    times = StartTimes(next_ready_s, or_zero(starting_replica_s), cold_start_s)
    return times, replace(before, cold_start=learned, ledger=ledger)


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
