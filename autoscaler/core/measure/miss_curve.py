"""The miss curve: the share of requests that miss their objective, by the load of the replicas.

It is a steepness times the mean queue of an M/M/1 at that load, x^2 / (1 - x), as misses grow with what the neighbours
in the batch do. Misses are Poisson with this mean, and the prior of the steepness is a gamma distribution. So one
number is learned from all loads, and a load that was never tried is judged by the loads that were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.core.measure.interval import IntervalStats, WorkTotals
from autoscaler.core.measure.offered_load import OfferedLoad, queue_misses_limit
from autoscaler.core.table.columns import Columns, FloatColumn, Floating, clip, or_zero

BINS = 16
"""Bins in which requests are counted, by demand divided by replicas. The last one also holds all loads beyond 1."""

MAX_UTILIZATION = 0.93
"""Share of its time for which a replica can serve. Beyond it work queues, and the curve says nothing."""

OBJECTIVES = 2
"""First axis of the counts: TTFT, ITL."""

PRIOR_STEEPNESS = 0.1
"""Prior mean of the steepness, worth one cluster of misses: 0.5 % miss at a load of 0.2, 5 % at 0.5, 32 % at 0.8.
Engines that run hundreds of requests at once have a hundredth of it, small ones five times as much."""

CLUSTER_SIZE = 20.0
"""Requests that are worth one independent observation: neighbours miss together."""

UNLOADED_REQUESTS = 1000.0
"""Requests without a miss that are assumed for idle replicas."""

MIN_PROMPTS = 100.0
"""Prompts from which the share of those that took too long is believed."""

FADE_S = 86_400.0
"""Time constant with which counts fade."""

_LOADS = (np.arange(BINS) + 0.5) / BINS
_LOW = _LOADS < 0.5  # where misses grow in proportion to the load at most


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
    """Add the requests of an interval; also return the steepness of the miss curve, float64[W].

    interval_s: float64[W]; 0: demand was not known. Intervals in which requests wait for too long are left out, because
    shadow fleets compute the queue themselves.
    """
    totals, fade = stats.totals, np.exp(-interval_s / FADE_S)
    usable = (interval_s > 0) & ~queue_misses_limit(load, stats)
    with np.errstate(divide="ignore", invalid="ignore"):
        load_bin = np.minimum(np.floor(BINS * load.demand / np.maximum(stats.mean_replicas, 1.0)), BINS - 1)
    is_bin = usable & (np.arange(BINS)[:, None] == load_bin)
    missed, counted = (
        before * fade + np.where(is_bin, new[:, None], 0.0)
        for before, new in zip((counts.missed, counts.counted), count_by_objective(totals), strict=True)
    )
    prefill_counted = counts.prefill_counted * fade + np.where(usable, totals.prefill_counted, 0.0)
    prefill_late = counts.prefill_late * fade + np.where(usable, totals.prefill_late, 0.0)
    unavoidable = estimate_unavoidable(missed, counted, prefill_late, prefill_counted)
    after = MissCounts(missed, counted, prefill_counted, prefill_late, combine_objectives(unavoidable))
    return after, fit_steepness(missed, counted, unavoidable)


def count_by_objective(totals: WorkTotals) -> tuple[FloatColumn, FloatColumn]:
    """Return the requests that missed, and those of which it is known whether they did; float64[OBJECTIVES, W] each."""
    return np.array([totals.ttft_missed, totals.itl_missed]), np.array([totals.ttft_counted, totals.itl_counted])


def compute_mean_queue(load: npt.NDArray[Floating]) -> npt.NDArray[Floating]:
    """Return the mean number of waiting requests in an M/M/1 at a load; beyond `MAX_UTILIZATION`, that of the latter.

    Above it work queues in a shadow fleet, which computes these misses itself.
    """
    load = np.minimum(load, MAX_UTILIZATION)
    return load**2 / (1 - load)


def fit_steepness(missed: FloatColumn, counted: FloatColumn, unavoidable: FloatColumn) -> FloatColumn:
    """Return the steepness of the curve of avoidable misses, of either objective; float64[W].

    missed, counted: of `MissCounts`. unavoidable: float64[OBJECTIVES, W], of `estimate_unavoidable`.

    An objective without counts, as it is not set or not reported, counts as met.
    """
    queue_sum = (counted * compute_mean_queue(_LOADS)[:, None]).sum(axis=1)
    avoidable = np.maximum(missed.sum(axis=1) - unavoidable * counted.sum(axis=1), 0.0)
    steepness = (avoidable + CLUSTER_SIZE) / (queue_sum + CLUSTER_SIZE / PRIOR_STEEPNESS)
    is_counted = counted.sum(axis=1) > 0
    return combine_objectives(np.where(is_counted | ~is_counted.any(axis=0), steepness, 0.0))


def estimate_unavoidable(
    missed: FloatColumn, counted: FloatColumn, prefill_late: FloatColumn, prefill_counted: FloatColumn
) -> FloatColumn:
    """Return the share that misses on any number of replicas; float64[OBJECTIVES, W].

    prefill_late, prefill_counted: float64[W], requests whose prompt alone took longer to compute than the TTFT
    objective, and those of which this is known. Their share is known soon, and hardly changes with the load.

    Without them, or for another cause, the share is the intercept of a line through the shares at low loads. There
    avoidable misses grow in proportion to the load at most. With 2 % at loads of 0.1 and 0.4 the intercept is 2 %, with
    1 % and 4 % it is 0. It is believed by degrees:

    * `UNLOADED_REQUESTS` without a miss at no load are assumed, so a few misses count only within a day.
    * Once it is two standard errors above zero nearly all of it is believed: within the hour where a tenth misses.
    * It never exceeds the lowest share of any load, because a burst of seconds within a quiet reading bends the line.
    """
    load, missed, counted = _LOADS[_LOW, None], missed[:, _LOW], counted[:, _LOW]
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
