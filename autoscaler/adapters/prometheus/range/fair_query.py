"""A range query whose answer one tenant may have made too long: the namespaces with most series are left out.

Only an answer that was refused as too long costs more than one query.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np

from autoscaler.adapters.prometheus.promql.expressions import by
from autoscaler.adapters.prometheus.promql.matchers import MOST_CHARS, NAMESPACE_ORDER, add_matchers, leave_out
from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader, Rows
from autoscaler.config.findings import shown

MOST_SERVICES = 5_000
"""Services at a time of all namespaces that are read."""

MOST_NAMESPACES = 1_000
MOST_TAKEN_APART = 2
"""Crowded namespaces of which it is asked whether they are those of exporters."""

MOST_SERIES = (4 * MOST_SERVICES, MOST_SERVICES, MOST_SERVICES // 4, MOST_SERVICES // 16)
"""Series of all namespaces, tried one after the other: long labels fill an answer sooner."""


def query_fairly(
    reader: RangeReader,
    expression: str,
    first_s: float,
    last_s: float,
    step_s: float,
    problems: dict[str, None],
    counted: str = "",
) -> Rows:
    """Return the series of a range query; tell in `problems` which namespaces were left out. Raises Unavailable.

    counted: an expression with the same number of series and the labels of namespaces as they are stored. "": the
    result of `expression` has these.
    """
    span = first_s, last_s, step_s
    try:
        rows: Rows | None = reader.query(expression, *span)
    except RangeQueryFailed as error:
        if not error.too_large:
            raise
        rows = _query_without(reader, expression, span, problems, counted or expression, NAMESPACE_ORDER)
        if rows is None:
            raise
    problems |= dict.fromkeys(reader.left_out)
    return rows or []


def _query_without(
    reader: RangeReader,
    expression: str,
    span: tuple[float, float, float],
    problems: dict[str, None],
    counted: str,
    labels: Sequence[str],
    told_by: str = "",
) -> Rows | None:
    """Return the series without those of crowded namespaces; None: too many are left, whichever is left out.

    A namespace may be that of an exporter, which tells of the pods of all. So the answer for it alone is taken apart
    likewise, by the other `labels`. told_by: words for that.
    """
    for number, label in enumerate(labels):
        found = _query(reader, f"topk({MOST_NAMESPACES}, count by ({label}) ({counted}))", span)
        counts = Counter[tuple[str, str]]()
        for row in found or ():
            if name := row["metric"].get(label, ""):
                counts[label, name] += int(np.nanmax(row["values"][:, 1], initial=0.0))
        if told_by and len(counts) >= MOST_NAMESPACES:  # a pod that invents namespaces
            return None
        for most in MOST_SERIES:
            crowded = _crowded(counts, most)
            if not crowded or len(crowded) == len(counts):
                continue
            rows = _query(reader, add_matchers(expression, leave_out(crowded)), span)
            if rows is None:
                continue
            left_out = dict(crowded)
            for _, name in [each for each in crowded if len(each[1]) <= MOST_CHARS][:MOST_TAKEN_APART]:
                only = f"{label}={json.dumps(name, ensure_ascii=False)}"
                of_it, counted_of_it = (add_matchers(text, only) for text in (expression, counted))
                words = f", of which pods of {shown(name)} tell,"
                parts = _query_without(reader, of_it, span, problems, counted_of_it, labels[number + 1 :], words)
                if parts:
                    del left_out[label, name]
                    rows += parts
            if left_out:
                (_, name), series = next(iter(left_out.items()))
                others = f" and {len(left_out) - 1:,} more" if len(left_out) > 1 else ""
                said = f"left out: its {series:,} series made an answer too long"
                problems[f"namespace {shown(name)}{others}{told_by} {said}"] = None
            return rows
    return None


def _query(reader: RangeReader, expression: str, span: tuple[float, float, float]) -> Rows | None:
    """Return the series of a query; None: the answer is too long. Raises Unavailable."""
    try:
        return reader.query(expression, *span)
    except RangeQueryFailed as error:
        if not error.too_large:
            raise
        return None


def as_stored(series: str, *labels: str) -> str:
    """Return what to count where the result of an expression names namespaces otherwise than its series do.

    labels: those that tell the rows of the result apart; each replica of a daemon exports them.
    """
    return f"group {by(*NAMESPACE_ORDER, *labels)} ({series})"


def _crowded(counts: Counter[tuple[str, str]], most: int) -> dict[tuple[str, str], int]:
    """Return the namespaces for which no room is left after all smaller ones, the largest first."""
    total, crowded = 0, dict[tuple[str, str], int]()
    for place, number in sorted(counts.items(), key=lambda each: each[1]):
        total += number
        if total > most:
            crowded[place] = number
    return dict(reversed(crowded.items()))
