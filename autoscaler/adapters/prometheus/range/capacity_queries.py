"""What the daemon exported about GPUs over a span, hour by hour: what workloads held, needed and lacked, and what pools
were used for. The series are those of `vllm-autoscaler run`; without it there are none.

A week at a time, because a server loads all samples of a window at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import Unavailable

HOUR_S = 3600.0
PIECE_S = 7 * 86_400.0
MAX_SERIES = 20_000
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


class ExportedUse(NamedTuple):
    """Growth of the counters in each hour: GPU-seconds, or seconds."""

    start_s: float  # the first hour begins
    hours: int
    columns: dict[str, dict[tuple[str, ...], FloatColumn]]  # of QUERIES, by the values of LABELS; float64[H]
    problems: tuple[str, ...]


def read_exported_use(
    reader: RangeReader, span_s: tuple[float, float], progress: Callable[[float], None] = lambda _: None
) -> ExportedUse:
    """Read all columns over a span. What a server does not answer is unknown, and told in `problems`."""
    start_s = span_s[0] // HOUR_S * HOUR_S
    hours = max(int((span_s[1] - start_s) // HOUR_S), 0)
    found: dict[str, dict[tuple[str, ...], FloatColumn]] = {}
    problems: dict[str, None] = {}
    pieces = [start_s + begin for begin in np.arange(0.0, hours * HOUR_S, PIECE_S).tolist()]
    for number, (column, (name, matchers, labels)) in enumerate(QUERIES.items()):
        expression = f"max by ({labels}) ({_values(name, matchers)})"
        rows = found.setdefault(column, {})
        for piece, begin_s in enumerate(pieces):
            until_s = min(begin_s + PIECE_S, start_s + hours * HOUR_S)
            try:
                series = reader.query(expression, begin_s + HOUR_S, until_s, HOUR_S)
            except RangeQueryFailed as error:
                problems[f"{column} of the daemon's metrics: {error}"] = None
                if not (error.status or error.too_large):  # a server that cannot be reached is not asked again
                    return ExportedUse(
                        start_s, hours, found | {each: {} for each in QUERIES.keys() - found}, (*problems,)
                    )
                continue
            except Unavailable as error:
                problems[f"{column} of the daemon's metrics: {error}"] = None
                break
            for row in series[:MAX_SERIES]:
                key = _key(row["metric"], column)
                values = rows.setdefault(key, np.full(hours, np.nan))
                at = np.round((row["values"][:, 0] - start_s) / HOUR_S).astype(np.int64) - 1
                inside = (at >= 0) & (at < hours)
                values[at[inside]] = np.maximum(row["values"][inside, 1], 0.0)
            progress((number + (piece + 1) / len(pieces)) / len(QUERIES))
    progress(1.0)
    return ExportedUse(start_s, hours, found, tuple(problems))


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
