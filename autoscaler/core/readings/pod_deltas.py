"""The last reading of each pod's engine, and what its counters and gauges grew by between two readings.

All stages that compare two readings of a pod do so here. Rates and progress compare a reading with the one before. The
planner compares it with the one that it counted last, which is some 30 s old.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    TimestampColumn,
    cache_sized_slices,
    stack_rows,
)

RATED = ("prompt_tokens", "generation_tokens", "finished", "first_tokens", "preemptions", "rejections")
"""Counters of `PodSamples` with a rate."""

COUNTERS = (
    *RATED,
    "ttft_met",
    "gap_s",
    "gaps",
    "itl_judged",
    "itl_met",
    "prefill_judged",
    "prefill_met",
)
"""All counters that are compared; the rows of `PodReadings.counter`."""

MIN_INTERVAL_S = 0.1
"""Shortest time between two readings of a pod: growth in less is no rate."""

MAX_INTERVAL_S = 120.0
"""After a longer gap in the readings of a pod its counters start again."""

MAX_INCREASE = 1e9
"""Most that a counter of a pod can grow by in MAX_INTERVAL_S."""


@dataclass(frozen=True)
class PodReadings(Columns):
    """One reading of each pod; float64[P] unless stated."""

    time_s: TimestampColumn  # of the reading; NaN: none
    running: FloatColumn  # requests
    waiting: FloatColumn  # requests
    counter: FloatColumn  # float64[C, P], rows of COUNTERS

    @classmethod
    def blank(cls, rows: int) -> PodReadings:
        unknown = np.full(rows, np.nan)
        return cls(unknown, unknown, unknown, np.full((len(COUNTERS), rows), np.nan))

    def of(self, counter: str) -> FloatColumn:
        """Return a counter."""
        column: FloatColumn = self.counter[COUNTERS.index(counter)]
        return column

    @property
    def requests(self) -> FloatColumn:
        """Requests in the engine."""
        return self.running + self.waiting

    def update(self, newer: PodReadings, is_new: BoolColumn) -> PodReadings:
        """Return it with the newer readings of some pods. is_new: bool[P]."""
        return PodReadings(**{name: np.where(is_new, each, getattr(self, name)) for name, each in vars(newer).items()})


@dataclass(frozen=True)
class PodDeltas:
    """Growth of each pod from one reading to another; float64[P], NaN: not known."""

    before: PodReadings
    now: PodReadings
    is_new: BoolColumn  # bool[P], the second reading counts

    def take(self, pods: IntColumn) -> PodDeltas:
        """Return the growth of some pods."""
        return PodDeltas(self.before.take(pods), self.now.take(pods), self.is_new[pods])

    @cached_property
    def interval_s(self) -> FloatColumn:
        """Time between the readings; NaN: the second does not count, or there was none before."""
        interval_s = self.now.time_s - self.before.time_s
        return np.where(self.is_new & (interval_s > 0), interval_s, np.nan)

    @cached_property
    def is_valid(self) -> BoolColumn:
        """Whether the interval is neither too short nor too long; bool[P]."""
        return np.asarray((self.interval_s >= MIN_INTERVAL_S) & (self.interval_s <= MAX_INTERVAL_S))

    @property
    def running(self) -> FloatColumn:
        """Growth of the batch, in requests."""
        return self.now.running - self.before.running

    @property
    def waiting(self) -> FloatColumn:
        """Growth of the queue, in requests."""
        return self.now.waiting - self.before.waiting

    @property
    def arrivals(self) -> FloatColumn:
        """Requests that arrived: those that ended, and the growth of those in flight. Engines count no arrivals."""
        return self.valid("finished") + self.waiting + self.running

    def growth(self, counter: str) -> FloatColumn:
        """Return the growth of a counter; below zero where it fell."""
        return self.now.of(counter) - self.before.of(counter)

    def valid(self, counter: str) -> FloatColumn:
        """Return the growth of a counter; NaN where it fell or grew impossibly, or where the interval is not valid."""
        growth = self.growth(counter)
        return np.where(self.is_valid & (growth >= 0) & (growth <= MAX_INCREASE), growth, np.nan)


def read(samples: PodSamples, before: PodReadings) -> PodDeltas:
    """Return the growth of each pod since its last reading, and with it the new last reading.

    samples: plausible ones. A pod that did not answer keeps its last reading.
    """
    is_new = (samples.time_s > before.time_s) | (np.isnan(before.time_s) & ~np.isnan(samples.time_s))
    if not is_new.any():  # as in most ticks, which come more often than readings
        return PodDeltas(before, before, is_new)
    counter = np.empty_like(before.counter)
    for some in cache_sized_slices(len(COUNTERS), len(is_new)):
        read_now = stack_rows([getattr(samples, name) for name in COUNTERS[some]])
        counter[some] = np.where(is_new, read_now, before.counter[some])
    time_s, running, waiting = (
        np.where(is_new, getattr(samples, name), getattr(before, name)) for name in ("time_s", "running", "waiting")
    )
    return PodDeltas(before, PodReadings(time_s, running, waiting, counter), is_new)
