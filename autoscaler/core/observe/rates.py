"""Which readings are believed, and counters to rates. What comes from outside may be anything; here it becomes
plausible or unknown, so that `observe` meets no infinite, negative or absurd number. `work` and the slots of `capacity`
read samples as they came, and look at them themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from autoscaler.core.model.samples import GatewaySamples, PodSamples
from autoscaler.core.table.columns import Columns, FloatColumn, TimestampColumn, cache_sized_slices, replace, stack_rows

COUNTERS = ("prompt_tokens", "generation_tokens", "finished", "first_tokens", "preemptions", "rejections")
"""Counters of `PodSamples` whose rates are kept; the row order of `Counters.counter`."""

COUNTED = (
    "finished",
    "first_tokens",
    "ttft_met",
    "gap_s",
    "gaps",
    "itl_judged",
    "itl_met",
    "prefill_judged",
    "prefill_met",
    "prompt_tokens",
    "generation_tokens",
)
"""Counters of `PodSamples` from which the planner learns."""

LONGEST_STEP_S = 120.0
"""After a longer hole in the readings of a pod its counters are compared anew."""

RATE_WINDOW_S = 30.0
"""Time constant of rates. Long enough for two scrapes of the usual 15 s, short against a cold start."""

MOST_PER_S = 1e8
"""A counter that moves faster was not counting: a large node reads some 1e6 cached prompt tokens per second."""

MOST_AGE_S = 86_400.0
"""A reading of another day is none."""

NOTHING_PER_S = 1e-3
"""Rates fade and never reach zero: below this nothing moves."""

LARGEST = {"asleep": 1.0, "kv_usage": 1.0, "fb_usage": 1.0, "tensor_active": 1.0, "sm_active": 1.0, "dram_active": 1.0}
LARGEST |= dict.fromkeys(("running", "waiting", "held", "max_running", "arrivals_per_s"), 1e6)
LARGEST |= dict.fromkeys(("ttft_s", "itl_s"), 86_400.0)
LARGEST |= dict.fromkeys((*COUNTERS, *COUNTED, "steps"), 1e15)
"""Largest believable reading of each column of `PodSamples` and `GatewaySamples`; the least is 0 for all of them."""

TIMES = {"time_s", "gpu_time_s"}

_NAMES = {
    table: [each.name for each in fields(table) if each.name not in TIMES] for table in (PodSamples, GatewaySamples)
}
_LARGEST = {table: np.array([[LARGEST[name]] for name in names]) for table, names in _NAMES.items()}
"""Of each table: the columns that hold no times, and the largest believable reading of each."""

Table = TypeVar("Table", PodSamples, GatewaySamples)


@dataclass(frozen=True)
class Counters(Columns):
    """The last counters of each pod, to turn them into rates."""

    time_s: TimestampColumn  # float64[P], time of the last reading
    counter: FloatColumn  # float64[C, P], the last reading
    increase: FloatColumn  # float64[C, P], increases, older ones fading; NaN: not two readings in a row
    covered_s: FloatColumn  # float64[P], seconds those increases cover, fading alike

    @classmethod
    def blank(cls, rows: int) -> Counters:
        unknown = np.full((len(COUNTERS), rows), np.nan)
        return cls(np.full(rows, np.nan), unknown, unknown, np.zeros(rows))


def believe(samples: Table, now_s: float) -> Table:
    """Make every reading that cannot be true unknown; one from the future, of a clock that is ahead, is of now."""
    columns, doubtful = vars(samples), {}
    for name in TIMES & columns.keys():
        near = np.abs(columns[name] - now_s) <= MOST_AGE_S
        doubtful[name] = np.where(near, np.minimum(columns[name], now_s), np.nan)
    for some in cache_sized_slices(len(_NAMES[type(samples)]), len(samples.time_s)):
        names, largest = _NAMES[type(samples)][some], _LARGEST[type(samples)][some]
        values = stack_rows([columns[name] for name in names])
        untrue = (values < 0) | (values > largest)
        if untrue.any():
            doubtful |= zip(names, np.where(untrue, np.nan, values), strict=True)
    return replace(samples, **doubtful)


def rates(samples: PodSamples, before: Counters) -> tuple[Counters, FloatColumn, FloatColumn]:
    """Turn counters into rates per second, float64[C, P]; NaN until two readings in a row were seen.

    The mean over the past, in which a moment weighs less the older it is (time constant RATE_WINDOW_S), whatever the
    spacing of readings: between two of them the rate counts as constant. A counter that went back was reset: what it
    shows has been counted since, though no more than was usual, since it may be a sum of which one part was reset.
    Also returns by how much each counter grew since the last reading, float64[C, P]: 0 where there is no new one, NaN
    where it is unknown.
    """
    step_s = samples.time_s - before.time_s
    moved = step_s > 0
    taken = moved | np.isnan(before.time_s)
    if not taken.any():  # as in most ticks, which come more often than readings
        with np.errstate(divide="ignore", invalid="ignore"):
            return before, before.increase / before.covered_s, np.zeros_like(before.increase)
    step_s = np.where(moved, step_s, np.nan)
    fade = np.where(moved, np.exp(-np.fmin(step_s, 1e3 * RATE_WINDOW_S) / RATE_WINDOW_S), 1.0)
    weight_s = RATE_WINDOW_S * (1 - fade)
    covered_s = before.covered_s * fade + weight_s

    counter, increase, mean, grown = (np.empty_like(before.increase) for _ in range(4))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        most, share, whole = MOST_PER_S * step_s, weight_s / step_s, covered_s / step_s
        for row in cache_sized_slices(len(COUNTERS), len(step_s)):
            now = stack_rows([getattr(samples, name) for name in COUNTERS[row]])
            last, past = before.counter[row], before.increase[row]
            delta = now - last
            back = delta < 0
            if back.any():
                delta = np.where(back, np.fmin(now, past / before.covered_s * step_s), delta)
            absurd = delta > most
            if absurd.any():
                delta = np.where(absurd, np.nan, delta)
            later = np.where(np.isnan(past), delta * whole, past * fade + delta * share)
            counter[row] = np.where(taken, now, last)
            increase[row] = np.where(moved, later, past)
            mean[row] = increase[row] / covered_s
            grown[row] = np.where(moved, delta, 0.0)
    time_s = np.where(taken, samples.time_s, before.time_s)
    return Counters(time_s, counter, increase, covered_s), mean, grown
