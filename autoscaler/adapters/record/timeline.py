"""The past of one workload from a record, as the page draws it: at most some hundred points, whatever the span."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autoscaler.adapters.record.reader import Record
from autoscaler.adapters.record.rows import COUNTS_ORDER, TRAFFIC_S
from autoscaler.core.table.columns import FloatColumn

POINTS = 600
MAX_CHANGES = 500
MAX_NOTES = 100
COUNTS = ("current", "ready", "wanted")
MEANS = ("running", "waiting")


def read_timeline(folder: Path, namespace: str, name: str, kind: str, hours: float) -> dict[str, Any]:
    """Return the last hours of a workload, from the record of this process. kind: "" for any.

    Raises Unavailable, or LookupError.
    """
    with Record(folder, own=True) as record:
        first_s, last_s = record.span()
        start_s = max(last_s - hours * 3600, first_s)
        step_s = max(math.ceil((last_s - start_s) / POINTS), 1)
        wall_s = np.arange(start_s + step_s, last_s + step_s, step_s)
        key = (namespace, name, kind)
        found = "FROM {} JOIN workloads ON id = workload WHERE namespace = ? AND name = ? AND (? = '' OR kind = ?)"
        counts = f"SELECT at_s, {', '.join(COUNTS)} {found.format('counts')} {COUNTS_ORDER}"
        rows = [row for _, row in record.query(counts, *key, kind)]
        if not rows:
            raise LookupError(f"{namespace}/{name} is not in the record")
        unknown = [(begin_s, *[None] * len(COUNTS)) for begin_s in record.begins()]
        ticked = _ticked(record, wall_s, max(step_s, TRAFFIC_S))
        history = _hold([*unknown, *rows], COUNTS, wall_s)
        means = (
            f"SELECT from_s + {TRAFFIC_S}, 1.0 * running_s / {TRAFFIC_S}, 1.0 * waiting_s / {TRAFFIC_S} "
            f"{found.format('traffic')} AND from_s >= ? ORDER BY from_s"
        )
        traffic = [row for _, row in record.query(means, *key, kind, start_s - TRAFFIC_S)]
        drawn: dict[str, Sequence[float | None]] = {**history, **_sample(traffic, wall_s, step_s)}
        said = "SELECT at_s, before, after, outcome, sentence, detail"
        changes = f"{said} {found.format('changes')} AND at_s >= ? ORDER BY tick"
        owners = f"SELECT at_s, owner, count {found.format('owners')} AND at_s >= ? ORDER BY tick"
        policies = "SELECT at_s, name, difference FROM policies WHERE difference != '' AND at_s >= ? ORDER BY tick"
        return {
            "from_s": start_s,
            "until_s": last_s,
            "history": {"wall_s": wall_s.tolist(), **{name: _where(ticked, drawn[name]) for name in drawn}},
            "changes": _named(
                ("wall_s", "before", "after", "outcome", "reason", "detail"),
                [row for _, row in record.query(changes, *key, kind, start_s)][-MAX_CHANGES:],
            ),
            "owners": _named(
                ("wall_s", "owner", "replicas"),
                [row for _, row in record.query(owners, *key, kind, start_s)][-MAX_NOTES:],
            ),
            "policies": _named(
                ("wall_s", "policy", "difference"),
                [row for _, row in record.query(policies, start_s)][-MAX_NOTES:],
            ),
            "problems": record.problems[:MAX_NOTES],
        }


def _ticked(record: Record, wall_s: FloatColumn, within_s: float) -> list[bool]:
    """Return the moments that lie within this time after a tick. After it nobody knows what was."""
    rows = [row for _, row in record.query("SELECT at_s, until_s FROM ticks WHERE until_s >= ?", wall_s[0] - within_s)]
    from_s, until_s = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    order = np.argsort(from_s, kind="stable")
    last = from_s[order].searchsorted(wall_s, side="right") - 1
    latest_s = np.append(np.maximum.accumulate(until_s[order]), -np.inf)  # of all that began by then; last: of none
    return [bool(known) for known in wall_s <= latest_s[last] + within_s]


def _where(known: Sequence[bool], values: Sequence[float | None]) -> list[float | None]:
    return [value if is_known else None for value, is_known in zip(values, known, strict=True)]


def _hold(rows: Sequence[tuple[Any, ...]], names: Sequence[str], wall_s: FloatColumn) -> dict[str, list[float | None]]:
    """Return values that hold from one moment to the next; None before the first one."""
    at_s = np.array([row[0] for row in rows], dtype=np.float64)
    order = np.argsort(at_s, kind="stable")
    index = at_s[order].searchsorted(wall_s, side="right") - 1
    held: dict[str, list[float | None]] = {}
    for place, name in enumerate(names, 1):
        values = [rows[row][place] for row in order.tolist()]
        held[name] = [values[each] if each >= 0 else None for each in index.tolist()]
    return held


def _sample(rows: Sequence[tuple[Any, ...]], wall_s: FloatColumn, step_s: float) -> dict[str, list[float]]:
    """Return the mean of the rows that end within each step, or of the one that covers it; 0 where there is none."""
    sampled = {name: np.zeros(len(wall_s)) for name in MEANS}
    if rows:
        ends_s, *values = np.array(rows, dtype=np.float64).T
        first = ends_s.searchsorted(wall_s - step_s, side="right")
        last = np.maximum(ends_s.searchsorted(wall_s, side="right"), first)
        last = np.where((last == first) & (first < len(ends_s)), first + 1, last)
        for name, column in zip(MEANS, values, strict=True):
            total = np.concatenate([[0.0], np.cumsum(column)])
            count = last - first
            starts_s = np.append(ends_s, np.inf)[first] - TRAFFIC_S
            known = (count > 0) & (starts_s < wall_s)
            sampled[name] = np.where(known, (total[last] - total[first]) / np.maximum(count, 1), 0.0)
    return {name: column.round(2).tolist() for name, column in sampled.items()}


def _named(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]
