"""The error budget: which share of requests may still be missed, and how far paper is from truth.

What was really missed steers what the rule in force may miss on paper, and a fleet on paper of the size that really
served tells by how much paper is wrong. All columns float64[W]; counts of requests fade over `BUDGET_S`.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.columns import FloatColumn, or_zero

BUDGET_S = 86_400.0
"""Time constant of the error budget: what was missed a day ago is nearly forgiven."""

REPAID_S = 3600.0
"""Within so long what was missed too often is to be made up for, if it can be."""

SPENT_S = 12 * 3600.0
"""Within so long what was saved may be spent: the next surge is a matter of hours."""

AIMED, AIMED_LATER = 0.8, 0.95
"""Share of the error budget that is aimed at, first and when a day of it was counted: what is promised on paper is not
kept to the digit, and the longer it was counted the less is left to chance."""

STRICTEST, LAXEST = 0.1, 1.3
"""Of the error budget, however much of it was burnt or saved."""

TRUST_REQUESTS = 300.0
"""Requests that are believed to miss as promised, on paper and in truth, before any were seen."""

LEAST_WRONG, MOST_WRONG = 0.1, 4.0
"""By how much truth may be believed to differ from paper."""


def steered(
    promised: FloatColumn, burnt: FloatColumn, counted: FloatColumn, served_per_s: FloatColumn, unavoidable: FloatColumn
) -> FloatColumn:
    """Return the share of requests that the rule in force may miss, so that in the end the promised share is missed.

    promised: share that may miss. burnt, counted: requests that missed, of so many. served_per_s: requests; NaN: not
    known. unavoidable: share that misses on any number of replicas, which is no rule's to miss. 1 % promised, 0.95 %
    aimed at, 0.2 % missed in a day: what was saved may be spent within `SPENT_S`. What nobody counted was neither saved
    nor burnt. What was burnt is made up for within `REPAID_S`; of more than can be, the more it is the less, within
    `BUDGET_S`: one surge in a young service is more than the strictest rule regains, and little of what its day may
    miss. Where more than is promised misses whatever is done, strictness saves no promise: the further out of reach it
    is, the less strict, until the others have what is aimed at for all.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        known = np.minimum(or_zero(counted / served_per_s) / BUDGET_S, 1.0)
        aimed = (AIMED + (AIMED_LATER - AIMED) * known**2) * promised
        saved, can = aimed * counted - burnt, aimed - STRICTEST * promised
        gained = saved / (served_per_s * np.where(saved > 0, SPENT_S, REPAID_S))
        gained = np.where(gained < -can, np.fmin(can**2 / gained, saved / (served_per_s * BUDGET_S)), gained)
    share = aimed + gained - unavoidable
    share = np.where(np.isnan(share), aimed, share)
    strictest = np.clip(unavoidable - promised, STRICTEST * promised, AIMED * promised)
    return np.clip(share, strictest, LAXEST * promised)


def wrongness(
    promised: FloatColumn, burnt: FloatColumn, counted: FloatColumn, on_paper: FloatColumn, unavoidable: FloatColumn
) -> FloatColumn:
    """Return how many requests really missed for each that was to miss on paper; 1 where nobody counts them.

    on_paper: requests that were to miss before as many replicas as really served; the others as in `steered`.
    """
    trusted = promised * TRUST_REQUESTS
    avoidable = np.maximum(burnt - unavoidable * counted, 0.0)
    ratio = (avoidable + trusted) / np.maximum(on_paper + trusted, 1e-9)
    return np.clip(ratio, LEAST_WRONG, MOST_WRONG)
