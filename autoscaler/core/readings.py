"""Which readings are believed, and counters to rates. What comes from outside may be anything; here it becomes
plausible or unknown, so that nothing behind this file meets an infinite, negative or absurd number.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from autoscaler.core.columns import FloatColumn
from autoscaler.core.memory import COUNTERS, PodMemory
from autoscaler.core.samples import FrontSamples, PodSamples

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
LARGEST |= dict.fromkeys(("ttft_s", "itl_s"), 86_400.0) | dict.fromkeys((*COUNTERS, "kv_capacity_tokens"), 1e15)
"""Largest believable reading of each column of `PodSamples` and `FrontSamples`; the least is 0 for all of them."""

TIMES = ("time_s", "gpu_time_s")

Table = TypeVar("Table", PodSamples, FrontSamples)


def believe(samples: Table, now_s: float) -> Table:
    """Make every reading that cannot be true unknown; one from the future, of a clock that is ahead, is of now."""
    doubtful = {}
    for field in fields(samples):
        values: FloatColumn = getattr(samples, field.name)
        if field.name in TIMES:
            near = np.abs(values - now_s) <= MOST_AGE_S
            doubtful[field.name] = np.where(near, np.minimum(values, now_s), np.nan)
            continue
        absurd = (values < 0) | (values > LARGEST[field.name])
        if absurd.any():
            doubtful[field.name] = np.where(absurd, np.nan, values)
    return replace(samples, **doubtful)


def rates(samples: PodSamples, memory: PodMemory) -> tuple[PodMemory, FloatColumn, FloatColumn]:
    """Turn counters into rates per second, float64[C, P]; NaN until two readings in a row were seen.

    The mean over the past, in which a moment weighs less the older it is (time constant RATE_WINDOW_S), whatever the
    spacing of readings: between two of them the rate counts as constant. A counter that went back was reset: what it
    shows has been counted since, though no more than was usual, since it may be a sum of which one part was reset.
    Also returns by how much each counter grew since the last reading, float64[C, P]: 0 where there is no new one, NaN
    where it is unknown.
    """
    counter = np.stack([getattr(samples, name) for name in COUNTERS])
    step_s = samples.time_s - memory.time_s
    moved = step_s > 0
    step_s = np.where(moved, step_s, np.nan)
    fade = np.where(moved, np.exp(-np.fmin(step_s, 1e3 * RATE_WINDOW_S) / RATE_WINDOW_S), 1.0)
    weight_s = RATE_WINDOW_S * (1 - fade)
    observed_s = memory.observed_s * fade + weight_s

    delta = counter - memory.counter
    back = delta < 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if back.any():
            usual = memory.increase / memory.observed_s
            delta = np.where(back, np.fmin(counter, usual * step_s), delta)
        delta[delta > MOST_PER_S * step_s] = np.nan
        rate = delta / step_s
        increase = np.where(np.isnan(memory.increase), rate * observed_s, memory.increase * fade + rate * weight_s)
        increase = np.where(moved, increase, memory.increase)
        mean = increase / observed_s
    first = np.isnan(memory.time_s)
    after = replace(
        memory,
        time_s=np.where(moved | first, samples.time_s, memory.time_s),
        counter=np.where(moved | first, counter, memory.counter),
        increase=increase,
        observed_s=observed_s,
    )
    return after, mean, np.where(moved, delta, 0.0)
