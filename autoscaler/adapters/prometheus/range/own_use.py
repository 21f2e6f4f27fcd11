"""What GPUs were used for over a span, from the series that the daemon exports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from autoscaler.adapters.prometheus.promql.expressions import by, duration, in_namespaces
from autoscaler.adapters.prometheus.range.reader import RangeReader

PREFIX = "vllm_autoscaler_"
WINDOW_S, PIECE_HOURS = 3600.0, 24
MOST_ROWS = 100_000
MOST_SECONDS = 1e12
STATE, CAUSE, USD = "state", "cause", "usd"
SERIES = (
    (STATE, "gpu_seconds_total", "state"),
    (CAUSE, "idle_gpu_seconds_total", "cause"),
    (USD, "gpu_cost_dollars_total", "state"),
)
"""Kind of a sum, its series, and the label that divides it."""


class GpuUseRow(NamedTuple):
    """GPU-seconds of one workload in one state, or by one cause, over a span."""

    namespace: str
    workload: str
    kind: str  # STATE or CAUSE
    name: str  # published, of a GpuState or an IdleCause
    gpu_s: float
    usd: float  # NaN: no price, or not of a state


def _windows(start_s: float, end_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield windows that cover a span once: their length, and the ends of the first and the last one of a query."""
    hours = int((end_s - start_s) // WINDOW_S)
    for first in range(0, hours, PIECE_HOURS):
        last = min(first + PIECE_HOURS, hours)
        yield WINDOW_S, start_s + (first + 1) * WINDOW_S, start_s + last * WINDOW_S
    if (rest_s := end_s - start_s - hours * WINDOW_S) >= 1:
        yield rest_s, end_s, end_s


def read_own_use(reader: RangeReader, span_s: tuple[float, float]) -> tuple[GpuUseRow, ...]:
    """Return what the daemon counted; (): it exported nothing. Raises Unavailable."""
    sums: dict[tuple[str, str, str, str], float] = {}
    for kind, series, label in SERIES:
        own = ("namespace", "workload", label)
        for window_s, first_s, last_s in _windows(*span_s):
            grown = in_namespaces(f"increase({PREFIX}{series}[{duration(window_s)}])")
            query = f"sum {by(*own)} (max {by(*own, 'kind')} ({grown}))"  # followers count the same time as the leader
            for row in reader.query(query, first_s, last_s, WINDOW_S):
                labels, values = row["metric"], row["values"][:, 1]
                added = float(values[(values > 0) & (values < MOST_SECONDS)].sum())  # False for NaN
                key = (labels.get("namespace", ""), labels.get("workload", ""), kind, labels.get(label, ""))
                if added and (key in sums or len(sums) < MOST_ROWS):
                    sums[key] = sums.get(key, 0.0) + added
    return tuple(
        GpuUseRow(*key, gpu_s, sums.get((*key[:2], USD, key[3]), math.nan) if key[2] == STATE else math.nan)
        for key, gpu_s in sums.items()
        if key[2] != USD
    )
