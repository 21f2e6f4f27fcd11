"""Seeded request arrivals with a daily shape, bursts and silent times.

Arrivals are a Poisson process whose rate is constant within a second. They are drawn in blocks of one minute, each with
its own seed, so they do not depend on the steps of the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn

DAY_S = 86_400
BLOCK_S = 60
ALWAYS = (1.0,) * 24

_LENGTHS, _BURSTS = 0, 1  # random streams of a seed


@dataclass(frozen=True)
class Lengths:
    """Lognormal token counts, rounded, within 1..`most_tokens`."""

    median_tokens: float
    sigma: float  # standard deviation of the logarithm
    most_tokens: int

    def draw(self, rng: np.random.Generator, count: int) -> IntColumn:
        """Return int64[count]."""
        drawn = np.exp(rng.normal(math.log(self.median_tokens), self.sigma, count))
        return np.clip(np.rint(drawn), 1, self.most_tokens).astype(np.int64)


@dataclass(frozen=True)
class Bursts:
    """Times of more traffic, with random starts and lognormal lengths. They end at midnight at the latest."""

    per_hour: float
    median_s: float
    sigma: float
    height: float  # factor on the rate during a burst; the highest of concurrent bursts applies


@dataclass(frozen=True)
class Shape:
    """The traffic pattern of one workload."""

    requests_per_s: float  # rate where `day` is 1
    prompt: Lengths
    output: Lengths
    day: tuple[float, ...] = ALWAYS  # factor at each full hour, interpolated linearly
    bursts: tuple[Bursts, ...] = ()
    silences: tuple[tuple[float, float], ...] = ()  # (from, until) in hours of the day without requests

    def __post_init__(self) -> None:
        if len(self.day) != 24:
            raise ValueError(f"day has {len(self.day)} factors; it must have 24, one for each hour")


@dataclass(frozen=True)
class DrawnRequests:
    """Requests in order of arrival, one per row."""

    time_s: FloatColumn  # float64[N], seconds since midnight of the first day
    prompt_tokens: IntColumn  # int64[N]
    output_tokens: IntColumn  # int64[N]


class Traffic:
    """The requests of one workload. `stream` distinguishes the workloads of one seed."""

    def __init__(self, shape: Shape, seed: int, stream: int = 0) -> None:
        self.shape = shape
        self._seed = (seed, stream)
        self._burst_days: dict[int, FloatColumn] = {}

    def rate_per_s(self, time_s: FloatColumn) -> FloatColumn:
        """Return the expected requests per second at each time.

        time_s: float64[T], seconds since midnight of the first day.
        Returns float64[T].
        """
        hour = (time_s % DAY_S) / 3600
        rate = self.shape.requests_per_s * np.interp(hour, np.arange(25), (*self.shape.day, self.shape.day[0]))
        height = np.ones_like(rate)
        for day in np.unique(time_s // DAY_S):
            for start_s, until_s, factor in self._bursts(int(day)):
                height = np.where((time_s >= start_s) & (time_s < until_s), np.maximum(height, factor), height)
        rate *= height
        for start_h, until_h in self.shape.silences:
            rate = np.where((hour >= start_h) & (hour < until_h), 0.0, rate)
        return rate

    def block(self, number: int) -> DrawnRequests:
        """Return the arrivals of the minute that begins `number` minutes after the first midnight."""
        rng = np.random.default_rng((*self._seed, _LENGTHS, number))
        second_s = np.arange(number * BLOCK_S, (number + 1) * BLOCK_S, dtype=np.float64)
        counts = rng.poisson(self.rate_per_s(second_s))
        time_s = np.sort(np.repeat(second_s, counts) + rng.random(int(counts.sum())))
        return DrawnRequests(time_s, self.shape.prompt.draw(rng, len(time_s)), self.shape.output.draw(rng, len(time_s)))

    def _bursts(self, day: int) -> FloatColumn:
        """Return the bursts of a day as rows of (start, until, height)."""
        if day not in self._burst_days:
            rng = np.random.default_rng((*self._seed, _BURSTS, day))
            rows = []
            for kind in self.shape.bursts:
                start_s = day * DAY_S + rng.uniform(0, DAY_S, rng.poisson(kind.per_hour * 24))
                until_s = start_s + np.exp(rng.normal(math.log(kind.median_s), kind.sigma, len(start_s)))
                rows += [
                    (start, min(until, (day + 1) * DAY_S), kind.height)
                    for start, until in zip(start_s, until_s, strict=True)
                ]
            self._burst_days = {day: np.array(rows).reshape(-1, 3)}  # time only moves forward, so one day is kept
        return self._burst_days[day]
