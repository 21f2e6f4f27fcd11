"""Where the sample reads an hour of one service: Prometheus, or a record."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from autoscaler.adapters.prometheus.range.history import PrometheusHistory
from autoscaler.adapters.prometheus.range.resample import LatencyHistograms, WorkloadHistory
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.adapters.record.reader import Record
from autoscaler.adapters.record.rows import TRAFFIC_S
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.case import Goal
from autoscaler.ports import Unavailable

ReadPast = Callable[[ServiceName, float, float, Goal], WorkloadHistory]
"""Reads a service between two Unix times; the goal is that of its policy. Raises Unavailable or ValueError."""

READ_S = 60.0
"""Time limit for reading one hour."""

STEP_S = 15.0
PARTS = round(TRAFFIC_S / STEP_S)
SUMS = ("arrived", "finished", "first_tokens", "prompt_tokens", "generation_tokens", "running_s", "waiting_s")
JUDGED = ("ttft_met", "ttft_judged")


def past_of_prometheus(settings: PrometheusSettings) -> ReadPast:
    def read(name: ServiceName, start_s: float, end_s: float, goal: Goal) -> WorkloadHistory:
        reading = PrometheusHistory(settings).read(
            name.namespace, name.name, start_s, end_s, step_s=STEP_S, deadline_s=READ_S
        )
        return asyncio.run(reading)

    return read


def past_of_record(folder: Path) -> ReadPast:
    """Return a reader of a record. Its sums of five minutes are spread evenly over their time."""

    def read(name: ServiceName, start_s: float, end_s: float, goal: Goal) -> WorkloadHistory:
        start_s = start_s // TRAFFIC_S * TRAFFIC_S
        steps = math.ceil((end_s - start_s) / TRAFFIC_S) * PARTS
        with Record(folder) as record:
            sums = _sums(record, name, start_s, steps // PARTS)
            ready = _ready(record, name, np.linspace(start_s, start_s + STEP_S * steps, steps, endpoint=False))
            objectives = _rows(record, "facts", name, ("ttft_s",))
        is_judged = bool(objectives) and objectives[-1][0] == goal.ttft_s
        met = np.stack([sums[name] for name in JUDGED], axis=1)
        spread = {name: np.repeat(column / PARTS, PARTS) for name, column in sums.items()}
        return WorkloadHistory(
            start_s=start_s,
            step_s=STEP_S,
            pods=ready,
            pods_added=np.maximum(np.diff(ready, prepend=ready[:1]), 0.0),
            running=spread["running_s"] / STEP_S,
            waiting=spread["waiting_s"] / STEP_S,
            arrivals=spread["arrived"],
            finished=spread["finished"],
            first_tokens=spread["first_tokens"],
            prompt_tokens=spread["prompt_tokens"],
            generation_tokens=spread["generation_tokens"],
            window_s=float(TRAFFIC_S),
            ttft=LatencyHistograms(np.array([goal.ttft_s, np.inf]), met) if is_judged else LatencyHistograms.none(),
            itl=LatencyHistograms.none(),
        )

    return read


def _rows(record: Record, table: str, name: ServiceName, columns: tuple[str, ...]) -> list[tuple[float, ...]]:
    query = f"SELECT {', '.join(columns)} FROM {table} JOIN workloads ON id = workload WHERE namespace = ? AND name = ?"
    return [row for _, row in record.query(query, name.namespace, name.name)]


def _sums(record: Record, name: ServiceName, start_s: float, rows: int) -> dict[str, FloatColumn]:
    """Return the sums of each five minutes from a time on; float64[rows], 0 where nothing was served."""
    columns = {each: np.zeros(rows) for each in (*SUMS, *JUDGED)}
    for from_s, *values in _rows(record, "traffic", name, ("from_s", *columns)):
        if 0 <= (row := int((from_s - start_s) // TRAFFIC_S)) < rows:
            for column, value in zip(columns.values(), values, strict=True):
                column[row] += value
    return columns


def _ready(record: Record, name: ServiceName, wall_s: FloatColumn) -> FloatColumn:
    """Return the ready replicas at each time. Raises Unavailable if none of them is known."""
    known = sorted(row for row in _rows(record, "counts", name, ("at_s", "ready")) if row[1] is not None)
    if not known:
        raise Unavailable("its counts are not recorded")
    at_s, ready = np.array(known, dtype=np.float64).T
    return np.asarray(ready[np.maximum(at_s.searchsorted(wall_s, side="right") - 1, 0)])
