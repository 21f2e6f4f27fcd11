"""The pods of a tick: what is measured and remembered of each, their classes, and their sums by workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.model.observation import ObservedLoad, OutlierCounts, PodCounts
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe import queue_outliers
from autoscaler.core.observe.queue_outliers import QueueOutliers
from autoscaler.core.readings import pod_deltas, progress
from autoscaler.core.readings import rates as counter_rates
from autoscaler.core.readings.pod_deltas import RATED, PodDeltas, PodReadings
from autoscaler.core.readings.progress import Progress
from autoscaler.core.readings.rates import Rates
from autoscaler.core.starts import cold_start
from autoscaler.core.starts.cold_start import ColdStarts
from autoscaler.core.starts.wake_ups import PodSleep
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, or_zero, replace
from autoscaler.core.table.groupby import GroupBy

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


def measure_pods(samples: PodSamples, now_s: float, before: PodState) -> PodMeasurements:
    """Return the measurements of each pod, and their growth since its last reading."""
    samples = counter_rates.discard_implausible(samples, now_s)
    deltas = pod_deltas.read(samples, before.readings)
    pace = progress.update(before.progress, samples, deltas)
    return PodMeasurements(samples, deltas, pace, progress.is_stuck(pace, deltas.now, samples))


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

    @cached_property
    def counts(self) -> BoolColumn:
        """Pods that make progress, and whose reading is recent."""
        return self.reporting & ~self.stuck

    def count(self, terminating: BoolColumn, by_workload: GroupBy) -> PodCounts:
        """Return the pods of each workload by class. terminating: bool[P]."""
        classes = self.serving, self.starting, self.pending, terminating, self.reporting, self.newly_ready
        return PodCounts(*by_workload.count(classes))


def classify(inp: TickInput, measured: PodMeasurements, known: ColdStarts, before: PodState, found: Starts) -> Pods:
    """Return the classes of pods. known: cold starts. before: as of the tick before."""
    samples, seen_ready, was_asleep = measured.samples, before.seen_ready > 0, before.sleep.asleep > 0
    never_read = np.isnan(samples.time_s) & np.isnan(before.readings.time_s)
    fleet = inp.fleet
    max_age_s = inp.spec.max_input_age_s[fleet.pod_workload]
    fresh = inp.now_s - samples.time_s <= max_age_s  # False if the engine did not answer
    # A pod with a probe of its own is not ready while it sleeps. It is asleep until its engine says otherwise, or its
    # container restarts.
    silent = ~fresh & was_asleep & ~fleet.pod_ready & ~np.isnan(fleet.pod_started_s)
    runs = fleet.pod_ready | (fleet.pod_pending == PendingCause.NONE)  # one that crashes has a reading of before
    asleep = ~fleet.pod_terminating & runs & ((fresh & (samples.asleep > 0)) | silent)
    serving = fleet.pod_ready & ~fleet.pod_terminating & ~asleep
    not_ready = ~fleet.pod_ready & ~fleet.pod_terminating & ~asleep
    # A pod that starts for longer than any cold start does not become ready with time. A pod that was ready before has
    # restarted, or fails a probe.
    is_coming = fleet.pod_pending == PendingCause.NODE_COMING
    is_pending = (~is_coming & (fleet.pod_pending != PendingCause.NONE)) | (
        found.pod_late | (cold_start.is_endless(inp, known) & ~seen_ready)
    )
    reporting = serving & fresh & ~np.isnan(samples.running) & ~np.isnan(samples.waiting)
    return Pods(
        serving=serving,
        starting=not_ready & ~is_pending,
        pending=not_ready & is_pending,
        asleep=asleep,
        reporting=reporting,
        stuck=reporting & measured.is_stuck,
        newly_ready=serving & never_read & (inp.now_s - fleet.pod_ready_s <= max_age_s),
    )


@dataclass(frozen=True)
class GroupedPods:
    """The measurements of pods without queues that are no load, with their classes and workloads; [P]."""

    samples: PodSamples
    deltas: PodDeltas
    progress: Progress
    classes: Pods
    rates: Mapping[str, FloatColumn]  # float64[P], per second, by the name of the counter
    grown: Mapping[str, FloatColumn]  # float64[P], increase since the last reading, likewise
    by_workload: GroupBy

    @cached_property
    def ended(self) -> FloatColumn:
        """Requests that ended or were refused since the last reading; float64[P]."""
        return self.grown["finished"] + or_zero(self.grown["rejections"])

    @cached_property
    def worked(self) -> BoolColumn:
        """Pods that have done something since the last reading; bool[P]."""
        return np.asarray((self.grown["generation_tokens"] > 0) | (self.ended > 0))

    def sum_load(self) -> ObservedLoad:
        """Return the load of pods that count, and of those that sleep.

        The gauges of a sleeping engine do not change; only /load counts its requests.
        """
        samples, asleep = self.samples, self.classes.asleep
        running, waiting = (np.where(asleep, or_zero(column), column) for column in (samples.running, samples.waiting))
        hidden = np.where(asleep, np.fmax(samples.held - running - waiting, 0.0), 0.0)
        columns = [running, waiting + hidden, *self.rates.values()]
        return ObservedLoad(*self.by_workload.sum_known(columns, self.classes.counts | asleep))


def group(
    inp: TickInput, measured: PodMeasurements, pods: Pods, before: PodState
) -> tuple[GroupedPods, OutlierCounts, PodState]:
    """Group the measurements of pods, without queues that are no load, and remember what they are."""
    samples, deltas, fleet = measured.samples, measured.deltas, inp.fleet
    by_workload = GroupBy(fleet.pod_workload, len(fleet.workloads))
    last_read_s = deltas.now.time_s
    outliers = queue_outliers.update(before.queue_outliers, last_read_s, samples, by_workload, pods.counts)
    samples, counts = queue_outliers.remove(inp.now_s, samples, last_read_s, outliers, by_workload, pods.counts)
    averages, *counted = counter_rates.update(before.rates, deltas)
    rates, grown = (dict(zip(RATED, columns, strict=True)) for columns in counted)
    after = PodState(
        deltas.now,
        averages,
        measured.progress,
        outliers,
        seen_ready=np.where(pods.serving | pods.asleep, 1.0, before.seen_ready),
        sleep=before.sleep,
        awaited_node=np.where(fleet.pod_pending == PendingCause.NODE_COMING, 1.0, before.awaited_node),
        queued_readings=_count_queued_readings(samples, deltas, before.queued_readings),
    )
    return GroupedPods(samples, deltas, measured.progress, pods, rates, grown, by_workload), counts, after


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
