"""Counters that fall although their process has not started again: what they counted meanwhile is unknown.

A process that starts again counts from zero, and then its start time changes. When that stands still, a fall is a fault
of what is shown: an answer without some of its series, another server's answer, or a pod that forges its counts. Read
as a restart, all that the counter shows when it is back would count as requests of one moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    TimestampColumn,
    find_ids,
    replace,
)

GROWING = (
    "generation_tokens",
    "finished",
    "first_tokens",
    "gap_s",
    "gaps",
    "steps",
    "itl_judged",
    "prefill_judged",
    "preemptions",
    "rejections",
)
"""Counters that nothing but a restart lowers."""

DERIVED = ("prompt_tokens", "ttft_met", "itl_met", "prefill_met")
"""Differences, and counts within an objective that may be changed: these alone may fall."""

COUNTERS = (*GROWING, *DERIVED)

PROCESS_START = "process_start_s"
"""Name in the sources of the Unix time at which a pod's process started; it is no column of `PodSamples`."""

QUANTILES = ("ttft_s", "itl_s")

LATE = 0.5
"""A fall is a late answer, of another replica of the server, if at least this share is left of the count, and if it had
grown by as much in the step before."""

TOLD_S = 300.0
"""How long a fall is told."""

WINDOWS = 1.25
"""Quantiles are unknown for so many of their windows after a fall: a window may reach back a little further."""

WORDS = (
    "counters fell although the process did not start again (process_start_time_seconds stands still); "
    "what they counted then is unknown"
)


@dataclass(frozen=True)
class Counted(Columns):
    """The last believed counters of each pod. It knows its rows by id, and stands on no fleet's rows."""

    pod_id: IntColumn  # int64[P], ascending
    time_s: TimestampColumn  # float64[P], of the reading; NaN: none
    start_s: FloatColumn  # float64[P], Unix time at which the process started; NaN: it does not tell
    counter: FloatColumn  # float64[C, P], rows of COUNTERS
    grown: FloatColumn  # float64[C, P], by how much they had grown since the reading before; NaN: unknown
    doubted: BoolColumn  # bool[C, P], what that reading showed is not believed
    last_fell_s: TimestampColumn  # float64[P], the last reading that was not believed; NaN: none

    @classmethod
    def blank(cls, rows: int) -> Counted:
        unknown, table = np.full(rows, np.nan), np.full((len(COUNTERS), rows), np.nan)
        return cls(np.arange(rows), unknown, unknown, table, table, np.zeros(table.shape, dtype=bool), unknown)

    def of(self, pod_id: IntColumn) -> Counted:
        """Return it for these pods, ids ascending; blank for those it does not know."""
        if np.array_equal(self.pod_id, pod_id):
            return self
        place, known = find_ids(pod_id, self.pod_id)
        after = replace(Counted.blank(len(pod_id)), pod_id=pod_id)
        return after.with_rows(np.flatnonzero(known), self.take(place[known]))

    def told(self, now_s: float) -> BoolColumn:
        """Say of which pods counters fell lately; bool[P]."""
        return np.asarray(now_s - self.last_fell_s <= TOLD_S)


def doubt(
    before: Counted, samples: PodSamples, start_s: FloatColumn, fleet: Fleet, window_s: float
) -> tuple[PodSamples, Counted]:
    """Make every counter unknown that fell since the last reading while its process did not start again.

    start_s: float64[P], Unix time at which each process started; where it is NaN, now or before, every fall is a
    restart. window_s: of the quantiles. They are of all pods of a workload, and unknown while such a fall of one of
    these is in them.

    What is below the last believed count in the reading after that as well is counted anew from there.
    """
    before = before.of(fleet.pod_id)
    taken = (samples.time_s > before.time_s) | (np.isnan(before.time_s) & ~np.isnan(samples.time_s))
    counted = _counted(before, samples, start_s, taken) if taken.any() else before
    unknown: dict[str, FloatColumn] = {}
    if counted.doubted.any():
        believed = zip(COUNTERS, ~counted.doubted, strict=True)
        unknown |= {name: np.where(some, getattr(samples, name), np.nan) for name, some in believed}
    recent = samples.time_s - counted.last_fell_s <= WINDOWS * window_s
    if recent.any():
        spoilt = np.isin(fleet.pod_workload, fleet.pod_workload[recent])
        unknown |= {name: np.where(spoilt, np.nan, getattr(samples, name)) for name in QUANTILES}
    return replace(samples, **unknown), counted


def _counted(before: Counted, samples: PodSamples, start_s: FloatColumn, taken: BoolColumn) -> Counted:
    """Return what is believed after a reading. taken: bool[P], which pods were read anew."""
    now = np.array([getattr(samples, name) for name in COUNTERS])
    same = start_s == before.start_s
    with np.errstate(invalid="ignore"):
        rise = now - before.counter
        late = (-rise <= before.grown) & (now >= LATE * before.counter)
        fell = same & (rise < 0) & ~late
    fell[len(GROWING) :] &= fell[: len(GROWING)].any(axis=0)
    doubted = np.where(taken, fell & ~before.doubted, before.doubted)
    new = taken & ~doubted & ~(np.isnan(now) & same)
    return Counted(
        pod_id=before.pod_id,
        time_s=np.where(taken, samples.time_s, before.time_s),
        start_s=np.where(taken, start_s, before.start_s),
        counter=np.where(new, now, before.counter),
        grown=np.where(new, np.where(same & (rise >= 0), rise, np.nan), before.grown),
        doubted=doubted,
        last_fell_s=np.where(taken & doubted.any(axis=0), samples.time_s, before.last_fell_s),
    )
