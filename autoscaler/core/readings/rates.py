"""Plausibility of readings, and rates of counters.

Metrics may hold any number. An implausible one becomes NaN here, so no stage reads an infinite, negative or absurd one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from autoscaler.core.model.samples import GatewaySamples, PodSamples
from autoscaler.core.readings.pod_deltas import COUNTERS, RATED, PodDeltas
from autoscaler.core.table.columns import Columns, FloatColumn, cache_sized_slices, replace, stack_rows

RATE_WINDOW_S = 30.0
"""Time constant of rates: long enough for two scrapes at the usual 15 s, short compared to a cold start."""

MAX_PER_S = 1e8
"""A faster increase is implausible: a large node reads some 1e6 cached prompt tokens per second."""

MAX_AGE_S = 86_400.0
"""An older reading is discarded."""

MIN_PER_S = 1e-3
"""A lower rate counts as 0, since averaged rates never reach 0."""

MAX_PLAUSIBLE = {
    "asleep": 1.0,
    "kv_usage": 1.0,
    "fb_usage": 1.0,
    "tensor_active": 1.0,
    "sm_active": 1.0,
    "dram_active": 1.0,
    "gpu_util": 100.0,
    "pcie_bytes_per_s": 1e13,
    "nvlink_bytes_per_s": 1e13,
}
MAX_PLAUSIBLE |= dict.fromkeys(("running", "waiting", "deferred", "held", "max_running", "arrivals_per_s"), 1e6)
MAX_PLAUSIBLE |= dict.fromkeys(("ttft_s", "itl_s"), 86_400.0)
MAX_PLAUSIBLE |= dict.fromkeys((*COUNTERS, "steps"), 1e15)
"""Largest plausible reading of each column of `PodSamples` and `GatewaySamples`; the smallest is 0."""

GAUGES = ("running", "waiting", "deferred", "held", "asleep", "kv_usage")
"""Gauges of an engine."""

TIMES = {"time_s", "gpu_time_s"}

_NAMES = {
    table: [each.name for each in fields(table) if each.name not in TIMES] for table in (PodSamples, GatewaySamples)
}
_LARGEST = {table: np.array([[MAX_PLAUSIBLE[name]] for name in names]) for table, names in _NAMES.items()}
"""The columns of each table that are no times, and the largest plausible reading of each."""

Table = TypeVar("Table", PodSamples, GatewaySamples)


@dataclass(frozen=True)
class Rates(Columns):
    """Recent increases of the counters of each pod."""

    increase: FloatColumn  # float64[C, P], rows of RATED, weighted less the older; NaN: no two readings in a row
    covered_s: FloatColumn  # float64[P], seconds of these increases, weighted likewise

    @classmethod
    def blank(cls, rows: int) -> Rates:
        return cls(np.full((len(RATED), rows), np.nan), np.zeros(rows))


def discard_implausible(samples: Table, now_s: float) -> Table:
    """Replace implausible readings by NaN. A time in the future, of a clock that is ahead, becomes the present.

    The gauges of an engine with an implausible counter are unknown too.
    """
    columns, changed = vars(samples), {}
    believed = np.ones(len(samples.time_s), dtype=bool)
    for name in TIMES & columns.keys():
        near = np.abs(columns[name] - now_s) <= MAX_AGE_S
        changed[name] = np.where(near, np.minimum(columns[name], now_s), np.nan)
    for some in cache_sized_slices(len(_NAMES[type(samples)]), len(samples.time_s)):
        names, largest = _NAMES[type(samples)][some], _LARGEST[type(samples)][some]
        values = stack_rows([columns[name] for name in names])
        implausible = (values < 0) | (values > largest)
        if implausible.any():
            changed |= zip(names, np.where(implausible, np.nan, values), strict=True)
            believed &= ~implausible[[name in COUNTERS for name in names]].any(axis=0)
    if not believed.all():
        changed |= {name: np.where(believed, changed.get(name, columns[name]), np.nan) for name in GAUGES}
    return replace(samples, **changed)


def update(before: Rates, deltas: PodDeltas) -> tuple[Rates, FloatColumn, FloatColumn]:
    """Return rates per second, float64[C, P], NaN before two readings in a row; and increases since the last reading.

    A rate is an exponentially weighted mean of time constant RATE_WINDOW_S, for any spacing of readings. A counter that
    fell was reset, and its value has been counted since. But it may be a sum of which one part was reset, so at most
    the usual rate counts. An increase, float64[C, P], is 0 without a new reading, and NaN if it is unknown.
    """
    if not deltas.is_new.any():  # as in most ticks, which come more often than readings
        with np.errstate(divide="ignore", invalid="ignore"):
            return before, before.increase / before.covered_s, np.zeros_like(before.increase)
    interval_s, has_interval = deltas.interval_s, ~np.isnan(deltas.interval_s)
    fade = np.where(has_interval, np.exp(-np.fmin(interval_s, 1e3 * RATE_WINDOW_S) / RATE_WINDOW_S), 1.0)
    weight_s = RATE_WINDOW_S * (1 - fade)
    covered_s = before.covered_s * fade + weight_s

    increase, mean, grown = (np.empty_like(before.increase) for _ in range(3))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        most, share, whole = MAX_PER_S * interval_s, weight_s / interval_s, covered_s / interval_s
        for row in cache_sized_slices(len(RATED), len(interval_s)):
            now, last = (each.counter[: len(RATED)][row] for each in (deltas.now, deltas.before))
            delta, past = now - last, before.increase[row]
            fell = delta < 0
            if fell.any():
                delta = np.where(fell, np.fmin(now, past / before.covered_s * interval_s), delta)
            implausible = delta > most
            if implausible.any():
                delta = np.where(implausible, np.nan, delta)
            later = np.where(np.isnan(past), delta * whole, past * fade + delta * share)
            increase[row] = np.where(has_interval, later, past)
            mean[row] = increase[row] / covered_s
            grown[row] = np.where(has_interval, delta, 0.0)
    return Rates(increase, covered_s), mean, grown
