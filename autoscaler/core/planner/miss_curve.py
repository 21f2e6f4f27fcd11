"""The miss curve: the share of requests that miss their objective, by the load of the replicas.

Requests are counted in bins of load (demand divided by replicas), separately for TTFT and ITL, fading over a day. Each
bin begins with a few requests of a prior curve, which real requests soon outweigh. The steepness of the prior is
learned from all bins together, so a load that was never tried is judged by the loads that were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.planner.interval import IntervalStats, WorkTotals
from autoscaler.core.planner.offered_load import OfferedLoad, compute_queue_s
from autoscaler.core.table.columns import Columns, FloatColumn, cache_sized_slices, clip, or_zero

BINS = 16
BIN_WIDTH = 1 / BINS  # of demand divided by replicas; the last bin also holds all loads beyond 1

OBJECTIVES = 2
"""First axis of the counts: TTFT, ITL."""

STEEPNESS = np.array([0.0005, 0.003, 0.01, 0.04, 0.15, 0.5])
"""Steepnesses of the prior curve. The more requests a replica serves at once, the flatter the curve. With the flattest,
that of random requests in batches of a hundred and more, 0.2 % miss at a load of 0.85."""

_LOADS = BIN_WIDTH * (np.arange(BINS) + 0.5)
PRIOR_CURVES = np.minimum(STEEPNESS[:, None] * _LOADS**2 / (1 - _LOADS), 1.0)
"""float64[STEEPNESS, BINS], the prior curve of each steepness.

Misses grow with what each neighbour in the batch does and with their number, and requests queue beside a full replica.
With a steepness of 0.15, 0.8 % miss at 0.2, 7.5 % at 0.5 and 48 % at 0.8.
"""

MIN_MISS_SHARE = 0.001
"""Share that may miss at any load, such as requests that all reach a replica which has just become ready."""

_EXPECTED = np.clip(PRIOR_CURVES, MIN_MISS_SHARE, 1 - MIN_MISS_SHARE).T[..., None, None]
_LOG_MISSED, _LOG_MET = np.log(_EXPECTED), np.log(1 - _EXPECTED)
"""Log-likelihood of each steepness for a request that missed and for one that met; float64[BINS, STEEPNESS, 1, 1]."""

CLUSTER_SIZE = 20.0
"""Requests that are worth one independent observation: neighbours miss together."""

PRIOR_REQUESTS = 30.0
"""Requests of the prior curve in each bin."""

LOW_BINS = 8
"""Bins of a load below a half, where misses grow in proportion to the load."""

UNLOADED_REQUESTS = 1000.0
"""Requests without a miss that are assumed for idle replicas."""

MIN_PROMPTS = 100.0
"""Prompts from which the share of those that took too long is believed."""

FADE_S = 86_400.0
"""Time constant with which counts fade."""

MAX_QUEUE_S = 0.5
"""Queued work per replica, in seconds, from which misses are those of the queue and not of the load."""


@dataclass(frozen=True)
class MissCounts(Columns):
    """Requests counted by load, fading. B bins."""

    missed: FloatColumn  # float64[OBJECTIVES, B, W], requests that missed
    counted: FloatColumn  # float64[OBJECTIVES, B, W], requests of which it is known whether they missed
    prefill_counted: FloatColumn  # float64[W], requests whose time to compute the prompt is known
    prefill_late: FloatColumn  # float64[W], requests whose prompt alone took longer than the TTFT objective
    unavoidable: FloatColumn  # float64[W], share of requests that misses on any number of replicas

    @classmethod
    def blank(cls, rows: int) -> MissCounts:
        by_load, none = np.zeros((OBJECTIVES, BINS, rows)), np.zeros(rows)
        return cls(by_load, by_load, none, none, none)


def update_miss_counts(
    counts: MissCounts, stats: IntervalStats, load: OfferedLoad, interval_s: FloatColumn
) -> tuple[MissCounts, FloatColumn]:
    """Add the requests of an interval; also return the miss curve, float64[B, W].

    interval_s: float64[W]; 0: demand was not known. Intervals with a queue are left out, because shadow fleets compute
    the queue themselves.
    """
    totals = stats.totals
    with np.errstate(divide="ignore", invalid="ignore"):
        utilization = load.demand / np.maximum(stats.mean_replicas, 1.0)
        # Waiting now or at the reading before: TTFT is reported only once a wait is over.
        waiting = stats.waiting - np.minimum(totals.queue_growth, 0.0)
    has_queue = compute_queue_s(load, stats, waiting) > MAX_QUEUE_S
    usable = (interval_s > 0) & (utilization < 1.2) & ~has_queue
    utilization = np.where(usable, utilization, np.nan)
    requests = add_requests(counts.missed, counts.counted, utilization, *count_by_objective(totals), interval_s)
    fade = np.exp(-interval_s / FADE_S)
    prefill_counted = counts.prefill_counted * fade + np.where(usable, totals.prefill_counted, 0.0)
    prefill_late = counts.prefill_late * fade + np.where(usable, totals.prefill_late, 0.0)
    curve, unavoidable = compute_curve(*requests, prefill_late, prefill_counted)
    return MissCounts(*requests, prefill_counted, prefill_late, unavoidable), curve


def count_by_objective(totals: WorkTotals) -> tuple[FloatColumn, FloatColumn]:
    """Return the requests that missed, and those of which it is known whether they did; float64[OBJECTIVES, W] each."""
    return np.array([totals.ttft_missed, totals.itl_missed]), np.array([totals.ttft_counted, totals.itl_counted])


def find_bin(load: FloatColumn) -> FloatColumn:
    """Return the bin of a load; whole numbers."""
    return clip(np.floor(load / BIN_WIDTH), 0, BINS - 1)


def add_requests(
    missed: FloatColumn,
    counted: FloatColumn,
    load: FloatColumn,
    new_missed: FloatColumn,
    new_counted: FloatColumn,
    interval_s: FloatColumn,
) -> tuple[FloatColumn, FloatColumn]:
    """Add requests that were served at a load; return missed and counted requests, float64[OBJECTIVES, B, W] each.

    missed, counted: as returned. load, interval_s: float64[W]. new_missed, new_counted: float64[OBJECTIVES, W]. Nothing
    is added where the load is not known.
    """
    fade = np.exp(-interval_s / FADE_S)
    missed, counted = missed * fade, counted * fade
    rows = np.flatnonzero(~np.isnan(load))
    load_bin = find_bin(load[rows]).astype(np.int64)
    missed[:, load_bin, rows] += new_missed[:, rows]
    counted[:, load_bin, rows] += new_counted[:, rows]
    return missed, counted


def compute_curve(
    missed: FloatColumn, counted: FloatColumn, prefill_late: FloatColumn, prefill_counted: FloatColumn
) -> tuple[FloatColumn, FloatColumn]:
    """Return the avoidable share of misses by bin, float64[B, W], and the unavoidable share, float64[W].

    The arguments are the columns of `MissCounts`.
    """
    by_objective = estimate_unavoidable(missed, counted, prefill_late, prefill_counted)
    unavoidable = combine_objectives(by_objective)
    return np.maximum(fit_curve(missed, counted, by_objective) - unavoidable, 0.0), unavoidable


def fit_curve(missed: FloatColumn, counted: FloatColumn, unavoidable: FloatColumn) -> FloatColumn:
    """Return the share that misses either objective, by bin; float64[B, W], never falling with load.

    unavoidable: float64[OBJECTIVES, W], of `estimate_unavoidable`.

    Bins out of order are pooled, weighted by their requests (isotonic regression). The min-max formula computes it. For
    each first bin up to a given one, take the lowest mean of a pool that ends at the given bin or later. The value is
    the highest of these. An objective without counts, as it is not set or not reported, counts as met.
    """
    none = np.zeros_like(counted[:, :1])
    weight = np.concatenate([none, np.cumsum(counted + PRIOR_REQUESTS, axis=1)], axis=1)
    prior = PRIOR_REQUESTS * compute_prior_curve(missed, counted, unavoidable)
    total = np.concatenate([none, np.cumsum(missed + prior, axis=1)], axis=1)
    pooled, lowest = np.empty_like(counted), np.full_like(counted, np.inf)
    for some in cache_sized_slices(BINS, counted.size):  # last bins of a pool, from the end on
        begin, end = max(BINS - some.stop, 0), BINS - some.start
        sums, weights = (each[:, begin + 1 : end + 1, None] - each[:, None, :end] for each in (total, weight))
        with np.errstate(invalid="ignore"):
            mean = sums / weights  # includes pools that would end before they begin; they are not read below
        for last in reversed(range(begin, end)):
            lowest = np.minimum(lowest[:, : last + 1], mean[:, last - begin, : last + 1])
            pooled[:, last] = lowest.max(axis=1)
    is_counted = counted.sum(axis=1) > 0
    return combine_objectives(np.where((is_counted | ~is_counted.any(axis=0))[:, None], pooled, 0.0))


def compute_prior_curve(missed: FloatColumn, counted: FloatColumn, unavoidable: FloatColumn) -> FloatColumn:
    """Return the prior curve, given the requests of all loads; float64[OBJECTIVES, B, W].

    It is the mean of the curves of all steepnesses, weighted by their likelihood: a workload without misses at 0.8 will
    hardly have any at 0.9. Unavoidable misses say nothing about the steepness.
    """
    missed = np.maximum(missed - unavoidable[:, None] * counted, 0.0)
    missed_by_bin, met_by_bin = (each.swapaxes(0, 1)[:, None] for each in (missed, counted - missed))
    log_likelihood = np.zeros((len(STEEPNESS), *missed[:, 0].shape))
    for some in cache_sized_slices(BINS, log_likelihood.size):
        for of_bin in _LOG_MISSED[some] * missed_by_bin[some] + _LOG_MET[some] * met_by_bin[some]:
            log_likelihood += of_bin  # a sum of numpy would differ in its last digit with the number of rows
    likelihood = np.exp((log_likelihood - log_likelihood.max(axis=0)) / CLUSTER_SIZE)
    share = np.zeros_like(missed)
    for curve, weight in zip(PRIOR_CURVES, likelihood / likelihood.sum(axis=0), strict=True):
        share += curve[:, None] * weight[:, None]
    return np.minimum(share + unavoidable[:, None], 1.0)


def estimate_unavoidable(
    missed: FloatColumn, counted: FloatColumn, prefill_late: FloatColumn, prefill_counted: FloatColumn
) -> FloatColumn:
    """Return the share that misses on any number of replicas; float64[OBJECTIVES, W].

    prefill_late, prefill_counted: float64[W], requests whose prompt alone took longer to compute than the TTFT
    objective, and those of which this is known. Their share is known soon, and hardly changes with the load.

    Without them, or for another cause, the share is the intercept of a line through the shares at low loads. There
    avoidable misses grow in proportion to the load. With 2 % at loads of 0.1 and 0.4 the intercept is 2 %, with 1 % and
    4 % it is 0. It is believed by degrees:

    * `UNLOADED_REQUESTS` without a miss at no load are assumed, so a few misses count only within a day.
    * Once it is two standard errors above zero nearly all of it is believed: within the hour where a tenth misses.
    * It never exceeds the lowest share of any load, because a burst of seconds within a quiet reading bends the line.
    """
    load = _LOADS[:LOW_BINS, None]
    missed, counted = missed[:, :LOW_BINS], counted[:, :LOW_BINS]
    requests, weighted = counted.sum(axis=1), (counted * load).sum(axis=1)
    squared = (counted * load**2).sum(axis=1)
    total, weighted_missed = missed.sum(axis=1), (missed * load).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spread = requests * squared - weighted**2
        intercept = (squared * total - weighted * weighted_missed) / spread
        variance = CLUSTER_SIZE * total / requests * squared / spread  # of a count: not 0 where all of a few missed
        by_requests = spread / (spread + UNLOADED_REQUESTS * squared)
        believed = np.maximum(by_requests, 1 - (variance / intercept**2) ** 2)
    prompts = np.where(prefill_counted >= MIN_PROMPTS, prefill_late / np.maximum(prefill_counted, 1.0), 0.0)
    lowest = ((missed + CLUSTER_SIZE) / (counted + CLUSTER_SIZE)).min(axis=1)
    ttft, itl = clip(np.minimum(or_zero(intercept * believed), lowest), 0.0, 1.0)
    return np.array([np.maximum(ttft, prompts), itl])


def combine_objectives(by_objective: FloatColumn) -> FloatColumn:
    """Return the share that misses at least one objective, given that of each; float64[OBJECTIVES, ...] to [...].

    No metric says how many requests miss both. It is between none and all of the smaller share; half of it is assumed.
    """
    ttft, itl = by_objective
    return np.asarray(np.minimum(np.maximum(ttft, itl) + np.minimum(ttft, itl) / 2, 1.0))
