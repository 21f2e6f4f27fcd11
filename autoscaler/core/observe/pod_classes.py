"""Classes of pods, and how many pods of each workload are of each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import TickInput
from autoscaler.core.starts import cold_start
from autoscaler.core.starts.cold_start import ColdStarts
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.core.table.groupby import GroupBy


class PodCounts(NamedTuple):
    """Columns of `Observation`; float64[W]."""

    ready: FloatColumn
    starting: FloatColumn
    pending: FloatColumn
    terminating: FloatColumn
    reporting: FloatColumn
    newly_ready: FloatColumn


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

    @property
    def counts(self) -> BoolColumn:
        """Pods that make progress, and whose reading is recent."""
        return self.reporting & ~self.stuck

    def count(self, terminating: BoolColumn, by_workload: GroupBy) -> PodCounts:
        """Return the pods of each workload by class. terminating: bool[P]."""
        classes = self.serving, self.starting, self.pending, terminating, self.reporting, self.newly_ready
        return PodCounts(*by_workload.count(classes))


def classify(
    inp: TickInput,
    samples: PodSamples,
    known: ColdStarts,
    was_asleep: BoolColumn,
    seen_ready: BoolColumn,
    never_read: BoolColumn,
    stuck: BoolColumn,
    found: Starts,
) -> Pods:
    """Return the classes of pods. Masks are bool[P], as of the tick before, but for `stuck`.

    never_read: pods without a reading, also in this tick.
    """
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
        stuck=reporting & stuck,
        newly_ready=serving & never_read & (inp.now_s - fleet.pod_ready_s <= max_age_s),
    )
