"""Quotas as rows of the API, and as series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoscaler.adapters.web.tick_values import bounded
from autoscaler.core.model.quotas import Quotas
from autoscaler.core.table.columns import FloatColumn

FIELDS = {
    "quota": "what states it: `ClusterQueue/NAME`, `Cohort/NAME`, `ResourceQuota NAMESPACE/NAME`, `quota NAME` (file)",
    "resource": "name of the resource",
    "flavor": "Kueue's ResourceFlavor; empty: all nodes",
    "cohort": "owners of one cohort lend each other what they do not use; empty: none",
    "nominal": "devices that its owner may use at any time",
    "borrowing_limit": "most devices beyond them; null: no limit",
    "lending_limit": "most of the nominal devices that are lent",
    "ours": "devices charged for pods of managed workloads; null: unknown",
    "others": "devices charged for other pods",
    "borrowed": "devices used beyond the nominal ones; null: unknown",
    "lent": "devices that others of the cohort borrow, shared out by what each owner has to lend; null: unknown",
}
LABELS = ("quota", "resource", "flavor", "cohort")
COLUMNS = tuple(FIELDS)[len(LABELS) :]


def rows(sources: Sequence[Quotas], most: int) -> list[dict[str, Any]]:
    """Return the first rows with the fields of `FIELDS`. NaN and infinity become null when encoded."""
    found: list[dict[str, Any]] = []
    for quotas in sources:
        numbers = zip(*(column.tolist() for column in columns(quotas).values()), strict=True)
        for labels, row in zip(_labels(quotas), numbers, strict=True):
            found.append(dict(zip(FIELDS, (*labels, *row), strict=True)))
    return found[:most]


def series(sources: Sequence[Quotas], most: int) -> dict[tuple[str, ...], dict[str, float]]:
    """Return the columns of the first quotas by their labels."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows(sources, most):
        found.setdefault(tuple(row[label] for label in LABELS), {column: row[column] for column in COLUMNS})
    return found


def columns(quotas: Quotas) -> dict[str, FloatColumn]:
    """Return the numbers of each quota, float64[Q] each; NaN: unknown."""
    ours = quotas.used if quotas.used is not None else np.full(len(quotas.quotas), np.nan)
    used = ours + quotas.used_by_others
    borrowed = np.maximum(used - quotas.nominal, 0.0)
    spare = np.minimum(quotas.lending_limit, np.maximum(quotas.nominal - used, 0.0))
    return {
        "nominal": quotas.nominal,
        "borrowing_limit": quotas.borrowing_limit,
        "lending_limit": quotas.lending_limit,
        "ours": ours,
        "others": quotas.used_by_others,
        "borrowed": borrowed,
        "lent": _lent(quotas, borrowed, spare),
    }


def _lent(quotas: Quotas, borrowed: FloatColumn, spare: FloatColumn) -> FloatColumn:
    """Return what each quota lends: the cohort's loans by what each has to spare. Without a cohort it is 0."""
    cohorts = [(each.cohort, each.resource, each.flavor) for each in quotas.quotas]
    places = {cohort: place for place, cohort in enumerate(dict.fromkeys(cohorts))}
    cohort = np.array([places[each] for each in cohorts], dtype=np.int64)
    loans, to_lend = (np.bincount(cohort, column, len(places)) for column in (borrowed, spare))
    share = np.divide(loans, to_lend, out=np.zeros(len(places)), where=to_lend != 0)
    is_lent = np.array([bool(each.cohort) for each in quotas.quotas])
    return np.where(is_lent, spare * np.minimum(share[cohort], 1.0), 0.0)


def _labels(quotas: Quotas) -> list[tuple[str, ...]]:
    return [tuple(bounded(text) for text in quota) for quota in quotas.quotas]
