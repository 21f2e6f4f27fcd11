"""The daemon's own series about GPUs over a span, hour by hour: what workloads held, needed and lacked, and what pools
were used for. The series are those of `vllm-autoscaler run`; without it there are none.

A week at a time, the newest first, because a server loads all samples of a window at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import Unavailable

HOUR_S = 3600.0
PIECE_H = 7 * 24
MOST_VALUES = 4_000_000
"""Hours times workloads, pools and quotas that are read: a year of 450."""

LABELS = ("namespace", "workload", "kind", "resource", "product", "nodes")
LOOSE = "loaded_idle|headroom|floor|asleep"
_OF_WORKLOAD = "namespace, workload, kind"
_OF_POOL = "resource, product, nodes"
QUERIES = {
    "needed": ("needed_gpu_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "lacking": ("lacking_gpu_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "lacking_s": ("lacking_gpus_duration_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "beyond": ("beyond_ceiling_gpu_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "beyond_s": ("ceiling_duration_seconds", "", f"{_OF_WORKLOAD}, {_OF_POOL}"),
    "gpus": ("gpu_seconds", '{state!="ordered"}', _OF_WORKLOAD),
    "idle": ("gpu_seconds", f'{{state=~"{LOOSE}"}}', _OF_WORKLOAD),
    "pool": ("pool_gpu_seconds", "", _OF_POOL),
    "pool_busy": ("pool_gpu_seconds", f'{{state!~"free|{LOOSE}"}}', _OF_POOL),
    "quota_spare": ("", "", "quota, resource"),
}
_SPARE = " - ".join(f"vllm_autoscaler_quota_{name}" for name in ("gpus", "used_gpus", "others_gpus", "lent_gpus"))
"""Counter, matchers and labels of each column. Each replica of the daemon exports what it sees: the largest counts."""


Column = dict[tuple[str, ...], FloatColumn]


class ExportedUse(NamedTuple):
    """Growth of the counters in each hour: GPU-seconds, or seconds."""

    start_s: float  # the first hour begins
    hours: int
    columns: dict[str, Column]  # of QUERIES, by the values of LABELS; float64[H]
    problems: tuple[str, ...]


def read_exported_use(
    reader: RangeReader, span_s: tuple[float, float], progress: Callable[[float], None] = lambda _: None
) -> ExportedUse:
    """Read all columns over a span. What a server does not answer is unknown, and told in `problems`."""
    start_s = span_s[0] // HOUR_S * HOUR_S
    hours = max(int((span_s[1] - start_s) // HOUR_S), 0)
    edges = [*range(0, hours, PIECE_H), hours]
    parts: list[tuple[int, dict[str, Column]]] = []  # the hour at which each week begins, and its columns
    problems: dict[str, None] = {}
    keys: set[tuple[str, ...]] = set()
    first = hours
    for number, (begin, until) in enumerate(reversed([*pairwise(edges)])):
        progress(number / len(edges))
        part, answers = _read_part(reader, start_s + begin * HOUR_S, until - begin, problems)
        keys.update(*part.values())
        if parts and (hours - begin) * len(keys) > MOST_VALUES:
            told = f"the daemon's metrics of {len(keys):,} workloads and pools are read as far as memory allows"
            problems[f"{told}: {(hours - first) / 24:.3g} days"] = None
            break
        parts.append((begin, part))
        first = begin
        if not answers:
            break
    progress(1.0)
    columns: dict[str, Column] = {name: {} for name in QUERIES}
    for begin, part in parts:
        for column, rows in part.items():
            for key, values in rows.items():
                whole = columns[column].setdefault(key, np.full(hours - first, np.nan))
                whole[begin - first : begin - first + len(values)] = values
    return ExportedUse(start_s + first * HOUR_S, hours - first, columns, (*problems,))


def _read_part(
    reader: RangeReader, start_s: float, hours: int, problems: dict[str, None]
) -> tuple[dict[str, Column], bool]:
    """Return all columns of some hours, and whether the server answers."""
    found: dict[str, Column] = {name: {} for name in QUERIES}
    for column, (name, matchers, labels) in QUERIES.items():
        expression = f"max by ({labels}) ({_values(name, matchers)})"
        try:
            series = reader.query(expression, start_s + HOUR_S, start_s + hours * HOUR_S, HOUR_S)
        except Unavailable as error:
            problems[f"{column} of the daemon's metrics: {error}"] = None
            if isinstance(error, RangeQueryFailed) and not (error.status or error.too_large):
                return found, False  # a server that cannot be reached is not asked again
            continue
        for row in series:
            values = found[column].setdefault(_key(row["metric"], column), np.full(hours, np.nan))
            at = np.round((row["values"][:, 0] - start_s) / HOUR_S).astype(np.int64) - 1
            inside = (at >= 0) & (at < hours)
            values[at[inside]] = np.maximum(row["values"][inside, 1], 0.0)
    return found, True


def _values(counter: str, matchers: str) -> str:
    """Return what a query takes the largest of: the growth of a counter, or the spare GPUs of quotas."""
    if not counter:
        return _SPARE
    grown = f"increase(vllm_autoscaler_{counter}_total{matchers}[1h])"
    return f"sum without (state) ({grown})"


def _key(labels: dict[str, str], column: str) -> tuple[str, ...]:
    """Return the values of LABELS. A quota stands in the place of a resource, and its resource in that of a product."""
    if column == "quota_spare":
        return ("", "", "", labels.get("quota", ""), labels.get("resource", ""), "")
    return tuple(labels.get(label, "") for label in LABELS)
