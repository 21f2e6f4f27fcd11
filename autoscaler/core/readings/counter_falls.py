"""Readings that cannot be true: counters fall although their process did not restart, or rise faster than any engine.

A process that restarts counts from zero, and its start time changes. If the start time stays, a fall is a fault of the
answer: some series are missing, another server answered, or a pod forges its counts. If it were read as a restart, the
whole count would look like new requests as soon as the counter is back. The gauges of such an answer are no better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.readings.rates import GAUGES, MAX_PER_S
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    TimestampColumn,
    cache_sized_slices,
    find_ids,
    replace,
    stack_rows,
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
"""Counters that only a restart lowers."""

DERIVED = ("prompt_tokens", "ttft_met", "itl_met", "prefill_met")
"""Counters that may also fall otherwise: differences, and counts within an objective that may be changed."""

COUNTERS = (*GROWING, *DERIVED)

PROCESS_START = "process_start_s"
"""Name that sources use for the Unix time at which a pod's process started; it is no column of `PodSamples`."""

QUANTILES = ("ttft_s", "itl_s")

LATE_FRACTION = 0.5
"""A fall may be a late answer of another replica of the Prometheus server. It is one if at least this fraction of the
count is left, and if the fall is at most the previous increase."""

REPORTED_S = 300.0
"""How long a fall is reported."""

UNKNOWN_WINDOWS = 1.25
"""Quantiles are unknown for this many of their windows after a fall, since a window may reach back a little further."""

PROBLEM = (
    "counters fell although the process did not start again (process_start_time_seconds stands still), or rose faster "
    "than any engine counts; gauges, and what was counted then, are unknown"
)


@dataclass(frozen=True)
class CounterHistory(Columns):
    """The last valid counters of each pod, by id of the pod and not by row of the fleet."""

    pod_id: IntColumn  # int64[P], ascending
    time_s: TimestampColumn  # float64[P], of the reading; NaN: none
    start_s: FloatColumn  # float64[P], Unix time at which the process started; NaN: unknown
    counter: FloatColumn  # float64[C, P], rows of COUNTERS
    grown: FloatColumn  # float64[C, P], their increase since the previous reading; NaN: unknown
    discarded: BoolColumn  # bool[C, P], the counter cannot be true at that reading
    last_fell_s: TimestampColumn  # float64[P], the last such reading; NaN: none

    @classmethod
    def blank(cls, rows: int) -> CounterHistory:
        unknown, table = np.full(rows, np.nan), np.full((len(COUNTERS), rows), np.nan)
        return cls(np.arange(rows), unknown, unknown, table, table, np.zeros(table.shape, dtype=bool), unknown)

    def for_pods(self, pod_id: IntColumn) -> CounterHistory:
        """Return the rows of these pods, ids ascending; blank ones for unknown pods."""
        if np.array_equal(self.pod_id, pod_id):
            return self
        index, known = find_ids(pod_id, self.pod_id)
        after = replace(CounterHistory.blank(len(pod_id)), pod_id=pod_id)
        return after.with_rows(np.flatnonzero(known), self.take(index[known]))

    def fell_recently(self, now_s: float) -> BoolColumn:
        """Return the pods with impossible counters in a recent reading; bool[P]."""
        return np.asarray(now_s - self.last_fell_s <= REPORTED_S)


def discard_fallen(
    before: CounterHistory, samples: PodSamples, start_s: FloatColumn, fleet: Fleet, window_s: float
) -> tuple[PodSamples, CounterHistory]:
    """Replace impossible counters by NaN, and the gauges beside them.

    A counter is impossible if it fell since the last reading although its process did not restart, or rose too fast.
    start_s: float64[P], Unix time at which each process started. If it is NaN, now or before, every fall is a restart.
    window_s: length of the window of the quantiles. These are of all pods of a workload, so they become NaN while the
    fall of any of its pods is in the window.

    If the next reading is below the last valid count too, the counter is valid again from there on.
    """
    before = before.for_pods(fleet.pod_id)
    taken = (samples.time_s > before.time_s) | (np.isnan(before.time_s) & ~np.isnan(samples.time_s))
    history = _update(before, samples, start_s, taken) if taken.any() else before
    unknown: dict[str, FloatColumn] = {}
    if history.discarded.any():
        valid = zip(COUNTERS, ~history.discarded, strict=True)
        unknown |= {name: np.where(some, getattr(samples, name), np.nan) for name, some in valid}
        believed = ~history.discarded.any(axis=0)
        unknown |= {name: np.where(believed, getattr(samples, name), np.nan) for name in GAUGES}
    recent = samples.time_s - history.last_fell_s <= UNKNOWN_WINDOWS * window_s
    if recent.any():
        affected = np.isin(fleet.pod_workload, fleet.pod_workload[recent])
        unknown |= {name: np.where(affected, np.nan, getattr(samples, name)) for name in QUANTILES}
    return replace(samples, **unknown), history


def _update(before: CounterHistory, samples: PodSamples, start_s: FloatColumn, taken: BoolColumn) -> CounterHistory:
    """Return the history after a reading. taken: bool[P], pods with a new reading."""
    same = start_s == before.start_s
    fell, counter, grown = np.empty_like(before.discarded), np.empty_like(before.counter), np.empty_like(before.grown)
    slices = list(cache_sized_slices(len(COUNTERS), len(same)))
    with np.errstate(invalid="ignore"):
        for rows in slices:
            now, last = stack_rows([getattr(samples, name) for name in COUNTERS[rows]]), before.counter[rows]
            late = (last - now <= before.grown[rows]) & (now >= LATE_FRACTION * last)
            fell[rows] = same & (now < last) & ~late
            fell[rows] |= now - last > MAX_PER_S * (samples.time_s - before.time_s)
        fell[len(GROWING) :] &= fell[: len(GROWING)].any(axis=0)
        discarded = np.where(taken, fell & ~before.discarded, before.discarded)
        for rows in slices:
            now, last = stack_rows([getattr(samples, name) for name in COUNTERS[rows]]), before.counter[rows]
            new = taken & ~discarded[rows] & ~(np.isnan(now) & same)
            rise = np.where(same & (now >= last), now - last, np.nan)
            counter[rows], grown[rows] = np.where(new, now, last), np.where(new, rise, before.grown[rows])
    return CounterHistory(
        pod_id=before.pod_id,
        time_s=np.where(taken, samples.time_s, before.time_s),
        start_s=np.where(taken, start_s, before.start_s),
        counter=counter,
        grown=grown,
        discarded=discarded,
        last_fell_s=np.where(taken & discarded.any(axis=0), samples.time_s, before.last_fell_s),
    )
