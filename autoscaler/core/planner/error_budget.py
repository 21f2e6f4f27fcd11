"""The error budget: which share of requests may still be missed.

What was really missed steers what the rule in force may miss on paper. All columns float64[W]; counts of requests fade
over `BUDGET_S`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.planner import miss_curve
from autoscaler.core.planner.interval import Seen, Step
from autoscaler.core.table.columns import Columns, FloatColumn, PerObjective, clip, or_zero

BUDGET_S = 86_400.0
"""Time constant of the error budget: of what was missed a day ago 37 % still counts, after three days 5 %. Within so
long what was missed too often is made up for."""

SPENT_S = 12 * 3600.0
"""Within so long what was saved may be spent: the next surge is a matter of hours."""

AIMED, AIMED_LATER = 0.8, 0.95
"""Share of the error budget that is aimed at, first and when a day of it was counted: what is promised on paper is not
kept to the digit, and the longer it was counted the less is left to chance."""

STRICTEST, LAXEST = 0.1, 1.3
"""Of the error budget, however much of it was burnt or saved."""


@dataclass(frozen=True)
class Budget(Columns):
    """What was missed, fading; requests but for what is stated."""

    burnt: PerObjective[FloatColumn]  # that really missed
    counted: PerObjective[FloatColumn]  # all of which it is known whether they missed
    served: FloatColumn  # all
    served_s: FloatColumn  # seconds of that

    @classmethod
    def blank(cls, rows: int) -> Budget:
        return cls.filled(rows, 0.0)


def count(budget: Budget, seen: Seen, step: Step) -> Budget:
    """Count what was missed."""
    missed, judged = miss_curve.told(seen.tally)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = miss_curve.either(np.where(judged > 0, missed / judged, 0.0))
    lived = step.lived_s > 0
    known = lived & (judged.max(axis=0) > 0)
    fade = np.exp(-step.lived_s / BUDGET_S)
    return Budget(
        burnt=budget.burnt * fade + np.where(known, share * step.arrivals, 0.0),
        counted=budget.counted * fade + np.where(known, step.arrivals, 0.0),
        served=budget.served * fade + np.where(lived, step.arrivals, 0.0),
        served_s=budget.served_s * fade + step.lived_s,
    )


def served_per_s(budget: Budget) -> FloatColumn:
    """Return how many requests came a second, of late; NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(budget.served_s > 0, budget.served / budget.served_s, np.nan)


def steered(budget: Budget, promised: FloatColumn, unavoidable: FloatColumn) -> FloatColumn:
    """Return the share of requests that the rule in force may miss, so that in the end the promised share is missed.

    promised: share that may miss. unavoidable: share that misses on any number of replicas, which is no rule's to miss
    and left to no chance: what is aimed at is a share of the rest. 1 % promised, 0.95 % aimed at, 0.2 % missed in a
    day: what was saved may be spent within `SPENT_S`. What was burnt is made up for within `BUDGET_S`: one surge is
    little of what a day may miss, and soon regained only by fleets that cost twice as much. What nobody counted was
    neither saved nor burnt. Where more than is promised misses whatever is done, strictness saves no promise: the
    further out of reach it is, the less strict, until the others have what is aimed at for all.
    """
    came_per_s = served_per_s(budget)
    with np.errstate(divide="ignore", invalid="ignore"):
        known = np.minimum(or_zero(budget.counted / came_per_s) / BUDGET_S, 1.0)
        aim = AIMED + (AIMED_LATER - AIMED) * known**2
        aimed = aim * promised + (1 - aim) * np.minimum(unavoidable, promised)
        saved = aimed * budget.counted - budget.burnt
        gained = saved / (came_per_s * np.where(saved > 0, SPENT_S, BUDGET_S))
    share = aimed + gained - unavoidable
    share = np.where(np.isnan(share), aimed, share)
    strictest = clip(unavoidable - promised, STRICTEST * promised, AIMED * promised)
    return clip(share, strictest, LAXEST * promised)
