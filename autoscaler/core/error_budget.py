"""The error budget: which share of requests may still be missed, and how far paper is from truth.

What was really missed steers what the rule in force may miss on paper, and a fleet on paper of the size that really
served tells by how much paper is wrong. All columns float64[W]; counts of requests fade over `BUDGET_S`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core import misses
from autoscaler.core.columns import Columns, FloatColumn, OfObjective, Present, or_zero, within
from autoscaler.core.family import MOST_BUSY
from autoscaler.core.seen import Seen, Step

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

TRUST_REQUESTS = 300.0
"""Requests that are believed to miss as promised, on paper and in truth, before any were seen."""

SURPRISING = 2.0
"""Standard errors by which more must miss than the fleet that served does on paper, or it is no surprise."""

LEAST_WRONG, MOST_WRONG = 0.1, 4.0
"""By how much truth may be believed to differ from paper."""


@dataclass(frozen=True)
class Budget(Columns):
    """What was missed and what was to be, fading; requests but for what is stated."""

    burnt: OfObjective[FloatColumn]  # that really missed
    counted: OfObjective[FloatColumn]  # all of which it is known whether they missed
    served: FloatColumn  # all
    served_s: FloatColumn  # seconds of that
    promised: OfObjective[FloatColumn]  # that miss before as many replicas as really served, on paper
    backlog: Present[FloatColumn]  # replica-seconds that wait there

    @classmethod
    def blank(cls, rows: int) -> Budget:
        return cls.filled(rows, 0.0)


def count(budget: Budget, seen: Seen, step: Step, unavoidable: FloatColumn) -> tuple[Budget, FloatColumn]:
    """Count what was missed, and what was to be. unavoidable: share that misses on any number of replicas.

    Also returns the requests that missed by surprise: more than could be on paper before the fleet that served, even by
    chance. Work that queues is measured once it is done, and a burst of seconds lies within a calm reading. Such is
    charged to each fleet on paper by its size, so that it says no more of how wrong paper is elsewhere.
    """
    step_s, arrivals = step.lived_s, step.arrivals
    lived = step_s > 0
    missed, judged = misses.told(seen.tally)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = misses.either(np.where(judged > 0, missed / judged, 0.0))
    known = lived & (judged.max(axis=0) > 0)
    fade = np.exp(-step_s / BUDGET_S)
    ready = np.maximum(seen.served, 0.5)
    demand = np.where(lived, step.demand, 0.0)
    backlog = np.where(lived, np.maximum(budget.backlog + (demand - MOST_BUSY * ready) * step_s, 0.0), 0.0)
    place = misses.bin_of(demand / ready).astype(np.int64)
    by_load = step.likely[place, np.arange(len(place))]
    promised = arrivals * np.where(backlog > seen.patience_s * MOST_BUSY * ready, 1.0, by_load)
    by_chance = misses.CLUSTER + SURPRISING * np.sqrt(misses.CLUSTER * promised)
    surprise = np.maximum((share - unavoidable) * arrivals - promised - by_chance, 0.0)
    surprise = np.where(known, surprise, 0.0)
    budget = Budget(
        burnt=budget.burnt * fade + np.where(known, share * arrivals, 0.0),
        counted=budget.counted * fade + np.where(known, arrivals, 0.0),
        served=budget.served * fade + np.where(lived, arrivals, 0.0),
        served_s=budget.served_s * fade + step_s,
        promised=budget.promised * fade + np.where(known, promised + surprise, 0.0),
        backlog=backlog,
    )
    return budget, surprise


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
    strictest = within(unavoidable - promised, STRICTEST * promised, AIMED * promised)
    return within(share, strictest, LAXEST * promised)


def wrongness(budget: Budget, promised: FloatColumn, unavoidable: FloatColumn) -> FloatColumn:
    """Return how many requests really missed for each that was to miss on paper; 1 where nobody counts them.

    promised, unavoidable: shares, as in `steered`.
    """
    trusted = promised * TRUST_REQUESTS
    avoidable = np.maximum(budget.burnt - unavoidable * budget.counted, 0.0)
    ratio = (avoidable + trusted) / np.maximum(budget.promised + trusted, 1e-9)
    return within(ratio, LEAST_WRONG, MOST_WRONG)
