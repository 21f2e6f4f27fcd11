"""Sleeping replicas: which of them can be woken, how long that takes, and which awake ones have had nothing to do.

A wake-up is learned apart from cold starts: the weights come from the memory of the host, or from the disk, and the
process runs already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.observation import SleepingPods
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import TickInput
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, replace
from autoscaler.core.table.groupby import GroupBy

FIRST_WAKE_S = np.array([15.0, 60.0])
"""Time to count on before a wake-up of level 1 or 2 was seen: the copy of the weights, and the period of a probe."""

LONGEST_WAKE_S = 3600.0
"""A replica that took longer was repaired: nothing is learned from it."""

LEAST_OVERDUE_S, OVERDUE_WAKES = 120.0, 3.0
"""A replica that has not woken for this long, and this many usual wake-ups, is no capacity: a new one is requested."""

RETRIED_S = 900.0
"""An overdue replica counts as one that can be woken again after this long; until then it is woken after all others."""


@dataclass(frozen=True)
class PodSleep(Columns):
    """What is remembered of the sleep of each pod; float64[P]."""

    asleep: FloatColumn  # 1 if its engine was asleep at the last tick
    idle_since_s: TimestampColumn  # since when it serves and has had no request; NaN: it has some, or it is not known
    last_wake_ordered_s: TimestampColumn  # when it was to wake; NaN: it is awake, or not to wake

    @classmethod
    def blank(cls, rows: int) -> PodSleep:
        return replace(super().blank(rows), asleep=np.zeros(rows))


@dataclass(frozen=True)
class WakeUps(Columns):
    """Wake-ups of each workload; float64[W]."""

    mean_s: FloatColumn  # from the order until it serves; NaN: none seen
    deviation_s: FloatColumn  # mean absolute deviation


def is_managed(inp: TickInput) -> BoolColumn:
    """Return the workloads of which the daemon may put replicas to sleep, and wake them; bool[W]."""
    return np.asarray((inp.spec.sleep_replicas > 0) & inp.fleet.is_ours)


def update(
    inp: TickInput,
    samples: PodSamples,
    asleep: BoolColumn,
    quiet: BoolColumn,
    by_workload: GroupBy,
    known: WakeUps,
    before: PodSleep,
) -> tuple[SleepingPods, WakeUps, PodSleep]:
    """Count sleeping pods, and return what is remembered.

    asleep: bool[P]. quiet: bool[P], pods that serve, and did no work since their last reading.
    """
    wake_s = usual_s(inp, known)
    serves = inp.fleet.pod_ready & ~inp.fleet.pod_terminating & ~asleep
    if serves.any() and not np.isnan(before.last_wake_ordered_s).all():
        known = learn(inp, serves, by_workload, known, before)
        wake_s = usual_s(inp, known)
    idle = quiet & (samples.running == 0) & (samples.waiting == 0)
    after = PodSleep(
        asleep=asleep.astype(np.float64),
        idle_since_s=np.where(idle, np.fmin(before.idle_since_s, inp.now_s), np.nan),
        last_wake_ordered_s=np.where(asleep, before.last_wake_ordered_s, np.nan),
    )
    can_wake = asleep & is_managed(inp)[inp.fleet.pod_workload] & ~is_overdue(inp, wake_s, after)
    of_workloads, wakeable = by_workload.count([asleep, can_wake])
    return SleepingPods(of_workloads, wakeable, wake_s), known, after


def first_start_s(inp: TickInput, wake_s: FloatColumn, cold_start_s: FloatColumn) -> FloatColumn:
    """Return the time until the first further replica serves: a wake-up if some are kept asleep; float64[W]."""
    return np.where(is_managed(inp), np.fmin(wake_s, cold_start_s), cold_start_s)


def usual_s(inp: TickInput, known: WakeUps) -> FloatColumn:
    """Return the wake-up to count on: as learned, with room for its spread; float64[W]."""
    first_s = FIRST_WAKE_S[(inp.spec.sleep_level == 2).astype(np.int64)]
    return np.where(np.isnan(known.mean_s), first_s, known.mean_s + 2 * known.deviation_s)


def is_overdue(inp: TickInput, wake_s: FloatColumn, pods: PodSleep) -> BoolColumn:
    """Return the pods that should have woken long ago; bool[P]. wake_s: float64[W], a usual wake-up."""
    late_s = np.fmax(OVERDUE_WAKES * wake_s, LEAST_OVERDUE_S)[inp.fleet.pod_workload]
    since_s = inp.now_s - pods.last_wake_ordered_s
    return np.asarray((since_s > late_s) & (since_s <= late_s + RETRIED_S))  # False where it is not to wake


def learn(inp: TickInput, serves: BoolColumn, by_workload: GroupBy, known: WakeUps, before: PodSleep) -> WakeUps:
    """Learn from the pods that serve again, as cold starts are learned (RFC 6298). serves: bool[P]."""
    ready_s, ordered_s = inp.fleet.pod_ready_s, before.last_wake_ordered_s
    # Without a probe of its own a pod stays ready; then the first reading that says so counts.
    took_s = np.where(ready_s > ordered_s, np.minimum(ready_s, inp.now_s), inp.now_s) - ordered_s
    took_s = by_workload.max(np.where(serves & (took_s <= LONGEST_WAKE_S), took_s, np.nan))
    error_s, first = took_s - known.mean_s, np.isnan(known.mean_s)
    mean_s = np.where(first, took_s, known.mean_s + error_s / 4)
    deviation_s = np.where(first, took_s / 4, known.deviation_s + (np.abs(error_s) - known.deviation_s) / 4)
    none = np.isnan(took_s)
    return WakeUps(np.where(none, known.mean_s, mean_s), np.where(none, known.deviation_s, deviation_s))
