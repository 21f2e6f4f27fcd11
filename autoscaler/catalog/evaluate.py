"""Evaluates a row of the catalog on the series of one pod.

The Prometheus adapter compiles rows to PromQL instead, and evaluates only what PromQL cannot express: numbers of
processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoscaler.catalog.series import Aggregation, Labels, Readings, Series, SeriesByName

PROCESS, RANK = "pid", "tp_rank"
MAX_PID_DIGITS = 10  # Linux has at most 2**22 processes


def read(readings: Readings, series: SeriesByName) -> float:
    """Return the first known alternative; NaN if there is none.

    A sample that is NaN, infinite or negative makes its alternative unknown, because a sum without it would be too
    small.
    """
    for row in readings:
        value = _read_row(row, series)
        if value is not None and not math.isnan(value):
            return value
    return math.nan


def _read_row(row: Series, series: SeriesByName) -> float | None:
    """Return the value of one alternative; None if absent, NaN if unknown."""
    if row.beside and not series.get(row.beside):
        return None
    values = [(labels, _if_count(value)) for labels, value in series.get(row.name, ()) if row.accepts(labels)]
    added = [value for part in row.plus if (value := _read_row(part, series)) is not None]
    if not values and not added:
        return None
    numbers = [value for _, value in values] if len(values) < 2 else _merge_repeats(row, values)
    value = _largest(numbers) if row.aggregation is Aggregation.MAX else sum(numbers)
    value += sum(added)
    if row.minus:
        less = sum(part for readings in row.minus if not math.isnan(part := read(readings, series)))
        again = read(row.again, series) - value
        value -= max(less - again, 0.0) if again > 0 else less
    if row.inverted:
        value = 1.0 - value
    return _if_count(value * row.scale)


def _merge_repeats(row: Series, values: Sequence[tuple[Labels, float]]) -> list[float]:
    """Return the largest value of each group of series that repeat one number."""
    merged: dict[tuple[str, ...], float] = {}
    for labels, value in _drop_dead_processes(values):
        key = tuple(labels.get(label, "") for label in row.distinct_labels)
        merged[key] = _largest((merged.get(key, 0.0), value))
    return list(merged.values())


def _drop_dead_processes(values: Sequence[tuple[Labels, float]]) -> Sequence[tuple[Labels, float]]:
    """Drop series of dead processes. A rank is one process, so of several the one with the highest `pid` is alive.

    Of several texts that are no numbers, the largest value counts.
    """
    if not any(PROCESS in labels and RANK in labels for labels, _ in values):
        return values
    newest: dict[frozenset[tuple[str, str]], tuple[int, tuple[Labels, float]]] = {}
    for labels, value in values:
        pid = labels.get(PROCESS, "")
        others = frozenset((name, text) for name, text in labels.items() if name != PROCESS or RANK not in labels)
        number = int(pid) if pid.isascii() and pid.isdecimal() and len(pid) < MAX_PID_DIGITS else -1
        kept, (_, kept_value) = newest.get(others, (-2, (labels, 0.0)))
        if number > kept or (number == kept and not value <= kept_value):
            newest[others] = number, (labels, value)
    return [kept for _, kept in newest.values()]


def _if_count(value: float) -> float:
    return value if 0 <= value < math.inf else math.nan


def _largest(values: Sequence[float]) -> float:
    """Return the largest value; NaN if any is NaN."""
    return math.nan if any(math.isnan(value) for value in values) else max(values, default=0.0)
