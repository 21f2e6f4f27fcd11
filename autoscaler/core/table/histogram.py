"""Classic Prometheus histograms: cumulative buckets to quantiles and shares, and the increase over a window.

A histogram is a pair: `bounds`, float64[B], ascending upper bounds of which the last is +Inf, and `counts`,
float64[..., B], cumulative: how many observations were at most that bound. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn


class Histogram(NamedTuple):
    """One histogram, as read at one moment."""

    bounds: FloatColumn  # float64[B]
    counts: FloatColumn  # float64[B], cumulative


def quantile(q: float, bounds: FloatColumn, counts: FloatColumn) -> FloatColumn:
    """Estimate the `q` quantile (0 < q <= 1) by linear interpolation inside its bucket.

    counts: float64[..., B]. Returns float64[...]: NaN where there are no observations, a count is unknown or there
    is no finite bound; the highest finite bound where the quantile lies beyond it.
    Source: `histogram_quantile` of Prometheus, promql/quantile.go.

    Example: bounds 1, 2, +Inf and counts 4, 8, 10 give 1.25 for q = 0.5: rank 5 is a quarter into the second bucket.
    """
    if not 0 < q <= 1:
        raise ValueError(f"quantile {q:g}, must be above 0 and at most 1")
    if not _usable(bounds):
        return np.full(counts.shape[:-1], np.nan)
    # Scrapes are not atomic, and folding may break the order.
    cumulative = np.maximum.accumulate(counts, axis=-1).reshape(-1, len(bounds))
    row, total = np.arange(len(cumulative)), cumulative[:, -1]
    rank = q * total
    bucket = (cumulative[:, :-1] < rank[:, None]).sum(axis=1)  # first bucket that holds the rank
    first = bucket == 0
    below = np.where(first, 0.0, cumulative[row, bucket - 1])
    inside = cumulative[row, bucket] - below
    start, end = np.where(first, 0.0, bounds[bucket - 1]), bounds[bucket]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = start + (end - start) * (rank - below) / inside
    value = np.where(first & (end <= 0), end, value)  # no lower bound to start from
    value = np.where(np.isinf(end), bounds[-2], value)
    return np.asarray(np.where(total > 0, value, np.nan).reshape(counts.shape[:-1]))


class Part(NamedTuple):
    """Where a limit lies among bounds: how much of which buckets is within it."""

    below: float  # upper bound of the highest bucket that is within as a whole; 0: there is none
    above: float  # upper bound of the bucket that the limit cuts; `below` where it cuts none
    fraction: float  # 0..1, how much of that bucket is within


def part_within(limit: float, bounds: FloatColumn) -> Part | None:
    """Find what of a histogram is at most `limit`, by linear interpolation inside its bucket.

    bounds: float64[B], ascending; +Inf counts as no bound. Beyond the highest finite bound only what is certainly
    within counts, so that nothing is flattered. None: no finite bound, or no limit.

    Example: of bounds 1, 2, +Inf a limit of 1.25 takes all up to 1 and a quarter of what lies between 1 and 2; a limit
    of 60 takes all up to 2.
    """
    finite = bounds[np.isfinite(bounds)]
    if np.isnan(limit) or not len(finite):
        return None
    bucket = int(np.searchsorted(finite, limit, side="right"))  # first bound above the limit
    below = float(finite[bucket - 1]) if bucket else 0.0
    if bucket == len(finite) or limit <= below:
        return Part(below, below, 0.0)
    above = float(finite[bucket])
    return Part(below, above, (limit - below) / (above - below))


def bound_above(limit: float, bounds: FloatColumn) -> float:
    """Return the lowest finite bound that is at least `limit`: what lies beyond it lies beyond the limit for certain.

    NaN without a limit, or where none is so high.
    """
    finite = bounds[np.isfinite(bounds)]
    place = int(np.searchsorted(finite, limit))  # NaN sorts beyond all
    return float(finite[place]) if place < len(finite) else np.nan


def count_within(limit: float, bounds: FloatColumn, counts: FloatColumn) -> FloatColumn:
    """Estimate how many observations were at most `limit`, as `part_within` says.

    counts: float64[..., B]. Returns float64[...]; it grows as the counts do, so of counters it is a counter. NaN
    without a limit or without a finite bound.
    """
    return count_part(part_within(limit, bounds) if _usable(bounds) else None, bounds, counts)


def count_part(part: Part | None, bounds: FloatColumn, counts: FloatColumn) -> FloatColumn:
    """Estimate how many observations were in `part`, as of `count_within`: for who asks often with the same limit."""
    if part is None:
        return np.full(counts.shape[:-1], np.nan)
    counts = np.maximum.accumulate(counts, axis=-1)  # scrapes are not atomic, and folding may break the order
    bucket = int(np.searchsorted(bounds, part.below, side="right")) - 1
    below = counts[..., bucket] if bucket >= 0 else np.zeros(counts.shape[:-1])
    return np.asarray(below + (counts[..., bucket + 1] - below) * part.fraction if part.fraction else below)


def share_within(limit: float, bounds: FloatColumn, counts: FloatColumn) -> FloatColumn:
    """Estimate which share of the observations was at most `limit`, float64[...], 0..1; NaN without observations."""
    total = np.max(counts, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(total > 0, count_within(limit, bounds, counts) / total, np.nan))


def increase(before: FloatColumn, after: FloatColumn) -> FloatColumn:
    """Return how much counters grew, float64[...]; a counter that went back was reset and counts from 0.

    NaN where either is unknown. Source: `increase` of Prometheus, without its extrapolation.
    """
    return np.where(after < before, after, after - before)


def fold(histograms: Iterable[Histogram]) -> Histogram | None:
    """Add histograms, of several engines say. Different bounds are added on those they share, where counts are exact.

    None without histograms, or without a finite bound in common.
    """
    pool = list(histograms)
    if not pool:
        return None
    bounds = pool[0].bounds
    if len(pool) == 1:
        counts = pool[0].counts
    elif all(np.array_equal(bounds, other.bounds) for other in pool[1:]):
        counts = np.sum([other.counts for other in pool], axis=0)
    else:
        for other in pool[1:]:
            bounds = np.intersect1d(bounds, other.bounds)
        counts = np.sum([other.counts[np.searchsorted(other.bounds, bounds)] for other in pool], axis=0)
    return Histogram(bounds, counts) if _usable(bounds) else None


class Window(NamedTuple):
    """The last stretch of one histogram. Bounded: a few moments are remembered, however often it is read."""

    bounds: FloatColumn = np.empty(0)
    times_s: tuple[float, ...] = ()  # ascending
    counts: tuple[FloatColumn, ...] = ()  # one per time

    def push(self, now_s: float, reading: Histogram, window_s: float, slots: int = 12) -> Window:
        """Return the window with `reading` added, reaching back `window_s` seconds, give or take one of its slots.

        The window begins anew where counts are not comparable: other bounds (an upgrade, a changed setting), or a count
        that went back (a restart, an engine gone), or a gap of more than two windows in the reading.
        """
        restarted = Window(reading.bounds, (now_s,), (reading.counts,))
        if not self.times_s or now_s <= self.times_s[-1] or now_s - self.times_s[-1] > 2 * window_s:
            return restarted
        if not np.array_equal(self.bounds, reading.bounds) or bool(np.any(reading.counts < self.counts[-1])):
            return restarted
        times, counts = self.times_s, self.counts
        if len(times) > 1 and now_s - times[-2] < window_s / slots:  # the last moment was only passing
            times, counts = times[:-1], counts[:-1]
        keep = sum(time <= now_s - window_s for time in times[1:])  # the first kept is the last before the window
        return Window(self.bounds, (*times[keep:], now_s), (*counts[keep:], reading.counts))

    def observed(self) -> Histogram | None:
        """Return what was observed within the window; None: nothing was, or only one moment is known."""
        if len(self.times_s) < 2 or self.counts[-1][-1] <= self.counts[0][-1]:
            return None
        return Histogram(self.bounds, self.counts[-1] - self.counts[0])


def pooled_quantile(q: float, windows: Iterable[Window]) -> float:
    """Estimate the `q` quantile of what was observed within all of these windows together.

    NaN: nothing was, or the windows in which something was have no bound in common. The mean of their own quantiles is
    another number: 10 requests of 100 s in one and 90 of 1 s in another have a 95th percentile of 100 s, and the mean
    of theirs, weighted by requests, is 11 s.
    """
    pool = fold(found for window in windows if (found := window.observed()) is not None)
    return float("nan") if pool is None else float(quantile(q, *pool))


def _usable(bounds: FloatColumn) -> bool:
    return len(bounds) >= 2 and bool(bounds[-1] == np.inf)
