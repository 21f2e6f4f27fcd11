"""Classic Prometheus histograms: quantiles and fractions of cumulative buckets, and the increase over a window.

A histogram is a pair of arrays. `bounds`, float64[B], are ascending upper bounds, the last of which is +Inf. `counts`,
float64[..., B], are cumulative: the observations that were at most that bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn


class Histogram(NamedTuple):
    """One histogram, as read at one time."""

    bounds: FloatColumn  # float64[B]
    counts: FloatColumn  # float64[B], cumulative


def quantile(q: float, bounds: FloatColumn, counts: FloatColumn) -> FloatColumn:
    """Estimate the `q` quantile (0 < q <= 1) by linear interpolation inside its bucket.

    counts: float64[..., B]. Returns float64[...]. NaN: there are no observations, a count is unknown, or no bound is
    finite. If the quantile lies beyond the highest finite bound, that bound is returned.
    Source: `histogram_quantile` of Prometheus, promql/quantile.go.

    Example: bounds 1, 2, +Inf and counts 4, 8, 10 give 1.25 for q = 0.5: rank 5 is a quarter into the second bucket.
    """
    if not 0 < q <= 1:
        raise ValueError(f"quantile {q:g}, must be above 0 and at most 1")
    if not _usable(bounds):
        return np.full(counts.shape[:-1], np.nan)
    # A scrape is not atomic, and merged counts may not ascend.
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
    value = np.where(first & (end <= 0), end, value)  # this bucket has no lower bound
    value = np.where(np.isinf(end), bounds[-2], value)
    return np.asarray(np.where(total > 0, value, np.nan).reshape(counts.shape[:-1]))


class LimitPosition(NamedTuple):
    """The position of a limit among the bounds of a histogram."""

    below: float  # upper bound of the highest bucket that lies within the limit; 0: none does
    above: float  # upper bound of the bucket that the limit cuts; equal to `below` if it cuts none
    fraction: float  # 0..1, of the cut bucket, that lies within the limit


def find_limit(limit: float, bounds: FloatColumn) -> LimitPosition | None:
    """Find the buckets that lie within `limit`, and by linear interpolation the fraction of the bucket that it cuts.

    bounds: float64[B], ascending; +Inf is no bound. A limit beyond the highest finite bound takes the buckets up to
    that bound only, since observations above it may exceed the limit. None: no bound is finite, or the limit is NaN.

    Example: with bounds 1, 2, +Inf a limit of 1.25 takes the bucket up to 1 and a quarter of the bucket from 1 to 2. A
    limit of 60 takes the buckets up to 2.
    """
    finite = bounds[np.isfinite(bounds)]
    if np.isnan(limit) or not len(finite):
        return None
    bucket = int(np.searchsorted(finite, limit, side="right"))  # first bound above the limit
    below = float(finite[bucket - 1]) if bucket else 0.0
    if bucket == len(finite) or limit <= below:
        return LimitPosition(below, below, 0.0)
    above = float(finite[bucket])
    return LimitPosition(below, above, (limit - below) / (above - below))


def bound_above(limit: float, bounds: FloatColumn) -> float:
    """Return the lowest finite bound that is at least `limit`; NaN: there is none, or the limit is NaN.

    Observations above this bound certainly exceed the limit.
    """
    finite = bounds[np.isfinite(bounds)]
    index = int(np.searchsorted(finite, limit))  # NaN sorts last
    return float(finite[index]) if index < len(finite) else np.nan


def count_within(limit: float, bounds: FloatColumn, counts: FloatColumn) -> FloatColumn:
    """Estimate how many observations were at most `limit`, by linear interpolation as in `find_limit`.

    counts: float64[..., B]. Returns float64[...]; for counters the result is a counter too. NaN: the limit is NaN, or
    no bound is finite.
    """
    return count_up_to(find_limit(limit, bounds) if _usable(bounds) else None, bounds, counts)


def count_up_to(limit: LimitPosition | None, bounds: FloatColumn, counts: FloatColumn) -> FloatColumn:
    """Estimate how many observations were at most a limit, as `count_within`, from its known position."""
    if limit is None:
        return np.full(counts.shape[:-1], np.nan)
    counts = np.maximum.accumulate(counts, axis=-1)  # a scrape is not atomic, and merged counts may not ascend
    bucket = int(np.searchsorted(bounds, limit.below, side="right")) - 1
    below = counts[..., bucket] if bucket >= 0 else np.zeros(counts.shape[:-1])
    return np.asarray(below + (counts[..., bucket + 1] - below) * limit.fraction if limit.fraction else below)


def fraction_within(limit: float, bounds: FloatColumn, counts: FloatColumn) -> FloatColumn:
    """Estimate the fraction of observations that were at most `limit`, float64[...], 0..1; NaN without observations."""
    total = np.max(counts, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(total > 0, count_within(limit, bounds, counts) / total, np.nan))


def increase(before: FloatColumn, after: FloatColumn) -> FloatColumn:
    """Return the increase of counters, float64[...]. A counter that fell was reset, and has counted from 0 since.

    NaN if either reading is unknown. Source: `increase` of Prometheus, without its extrapolation.
    """
    return np.where(after < before, after, after - before)


def merge(histograms: Iterable[Histogram]) -> Histogram | None:
    """Add histograms, for example those of several engines. Only common bounds remain, since their counts are exact.

    None: there are no histograms, or no finite bound is common to all.
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


class HistogramWindow(NamedTuple):
    """A sliding window over one histogram. It keeps a bounded number of readings, however often it is read."""

    bounds: FloatColumn = np.empty(0)
    times_s: tuple[float, ...] = ()  # ascending
    counts: tuple[FloatColumn, ...] = ()  # one array per time

    def push(self, now_s: float, reading: Histogram, window_s: float, slots: int = 12) -> HistogramWindow:
        """Return the window with `reading` added. It reaches back `window_s` seconds, plus or minus one slot.

        The window restarts when counts cannot be compared. Bounds may change with an upgrade or a setting, and a count
        falls when an engine restarts or leaves. It also restarts after a gap of more than two windows.
        """
        restarted = HistogramWindow(reading.bounds, (now_s,), (reading.counts,))
        if not self.times_s or now_s <= self.times_s[-1] or now_s - self.times_s[-1] > 2 * window_s:
            return restarted
        if not np.array_equal(self.bounds, reading.bounds) or bool(np.any(reading.counts < self.counts[-1])):
            return restarted
        times, counts = self.times_s, self.counts
        if len(times) > 1 and now_s - times[-2] < window_s / slots:  # the latest reading does not begin a slot
            times, counts = times[:-1], counts[:-1]
        keep = sum(time <= now_s - window_s for time in times[1:])  # the first one kept is the latest before the window
        return HistogramWindow(self.bounds, (*times[keep:], now_s), (*counts[keep:], reading.counts))

    def observed(self) -> Histogram | None:
        """Return the observations within the window; None: there are none, or the window has only one reading."""
        if len(self.times_s) < 2 or self.counts[-1][-1] <= self.counts[0][-1]:
            return None
        return Histogram(self.bounds, self.counts[-1] - self.counts[0])


def pooled_quantile(q: float, windows: Iterable[HistogramWindow]) -> float:
    """Estimate the `q` quantile of the observations of several windows together.

    NaN: there are no observations, or the windows that have some share no finite bound. A mean of quantiles would be
    another number. Let one window have 10 requests of 100 s, and another 90 of 1 s. Together their 95th percentile is
    100 s, while the mean of both percentiles, weighted by requests, is 11 s.
    """
    pool = merge(observed for window in windows if (observed := window.observed()) is not None)
    return float("nan") if pool is None else float(quantile(q, *pool))


def _usable(bounds: FloatColumn) -> bool:
    return len(bounds) >= 2 and bool(bounds[-1] == np.inf)
