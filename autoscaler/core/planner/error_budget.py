"""The error budget: the share of requests that may still miss their objective.

The misses of the real fleet decide what the selected strategy may miss now. All columns are float64[W]. Counts of
requests fade over the window of the policy: a miss counts 37 % after one window and 5 % after three. An overspend is
made up for within a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.measure import miss_curve
from autoscaler.core.measure.interval import Interval, IntervalStats
from autoscaler.core.table.columns import Columns, FloatColumn, PerObjective, clip, or_zero

SAVINGS_SHARE = 0.5
"""Share of the window within which savings may be spent: in a window of a day the next surge is some hours away."""

FIRST_AIM, LATER_AIM = 0.8, 0.95
"""Share of the error budget that is aimed at, at first and once a window was counted.
Shadow fleets do not match reality exactly, and the longer requests were counted the less is left to chance."""

MIN_ALLOWED, MAX_ALLOWED = 0.1, 1.3
"""Bounds of what the selected strategy may miss, as shares of the error budget, whatever was spent or saved."""


@dataclass(frozen=True)
class ErrorBudget(Columns):
    """Requests that missed and that were counted, fading."""

    missed: PerObjective[FloatColumn]  # requests that really missed
    counted: PerObjective[FloatColumn]  # requests of which it is known whether they missed
    served: FloatColumn  # all requests
    served_s: FloatColumn  # seconds in which they arrived

    @classmethod
    def blank(cls, rows: int) -> ErrorBudget:
        return cls.filled(rows, 0.0)


def update_error_budget(
    budget: ErrorBudget, stats: IntervalStats, interval: Interval
) -> tuple[ErrorBudget, FloatColumn]:
    """Add the requests of an interval, and those of them that missed; also return the latter, float64[W].

    A request counts when its histogram counts it, whenever it arrived: a queue misses when it ends. Objectives count
    at the first token and at the end, so the one that counted more requests says how many there were.
    """
    missed, counted = miss_curve.count_by_objective(stats.totals)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = miss_curve.combine_objectives(np.where(counted > 0, missed / counted, 0.0))
    fade = np.exp(-interval.observed_s / stats.window_s)
    counted_now = counted.max(axis=0)
    missed_now = share * counted_now
    after = ErrorBudget(
        missed=budget.missed * fade + missed_now,
        counted=budget.counted * fade + counted_now,
        served=budget.served * fade + np.where(interval.observed_s > 0, interval.arrivals, 0.0),
        served_s=budget.served_s * fade + interval.observed_s,
    )
    return after, missed_now


def compute_requests_per_s(budget: ErrorBudget) -> FloatColumn:
    """Return the mean rate of requests over the time of the budget; NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(budget.served_s > 0, budget.served / budget.served_s, np.nan)


def compute_allowed_share(
    budget: ErrorBudget, budget_share: FloatColumn, window_s: FloatColumn, unavoidable: FloatColumn
) -> FloatColumn:
    """Return the share of requests that the selected strategy may miss, so that the budget is kept in the end.

    budget_share: share that may miss by the policy, over a window of `window_s` seconds. unavoidable: share that misses
    on any number of replicas. The unavoidable misses are no strategy's, and nothing of them is left to chance: the
    aim is a share of the rest. Example: 1 % may miss in a day, 0.95 % is aimed at, and 0.2 % missed. The savings
    may be spent within half a day. An overspend is made up for within a day, because only a fleet that costs twice
    as much makes up for a single surge any sooner. Requests that were not counted neither save nor spend.

    Strictness keeps no promise where the unavoidable misses alone exceed the budget. The more they exceed it, the more
    the others may miss, up to the share that is aimed at for all.
    """
    requests_per_s = compute_requests_per_s(budget)
    with np.errstate(divide="ignore", invalid="ignore"):
        counted_windows = np.minimum(or_zero(budget.counted / requests_per_s) / window_s, 1.0)
        aim = FIRST_AIM + (LATER_AIM - FIRST_AIM) * counted_windows**2
        aimed = aim * budget_share + (1 - aim) * np.minimum(unavoidable, budget_share)
        saved = aimed * budget.counted - budget.missed
        correction = saved / (requests_per_s * window_s * np.where(saved > 0, SAVINGS_SHARE, 1.0))
    share = aimed + correction - unavoidable
    share = np.where(np.isnan(share), aimed, share)
    least = clip(unavoidable - budget_share, MIN_ALLOWED * budget_share, FIRST_AIM * budget_share)
    return clip(share, least, MAX_ALLOWED * budget_share)
