"""Where the sample reads an hour of one service: Prometheus, or a record."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.duplicates import cluster_of
from autoscaler.adapters.prometheus.promql.engines import engine_presence
from autoscaler.adapters.prometheus.promql.expressions import by
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.resample import LatencyHistograms, WorkloadHistory
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.adapters.prometheus.range.workload_history import PrometheusHistory
from autoscaler.adapters.record.reader import Record
from autoscaler.adapters.record.rows import TRAFFIC_S
from autoscaler.catalog.spellings import all_spellings, engines_spelled
from autoscaler.config.findings import shown
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
    """Return a reader of a server, which may have several clusters."""
    matchers: dict[str, str] = {}  # by cluster

    def read(name: ServiceName, start_s: float, end_s: float, goal: Goal) -> WorkloadHistory:
        if name.cluster and name.cluster not in matchers:
            matchers.update(_find_clusters(settings, start_s, end_s))
            if name.cluster not in matchers:
                raise Unavailable(f"no engine of cluster {shown(name.cluster)} reported")
        selector = ",".join(filter(None, (settings.selector, matchers.get(name.cluster, ""))))
        of_cluster = settings.model_copy(update={"selector": selector})
        reading = PrometheusHistory(of_cluster).read(
            name.namespace, name.name, start_s, end_s, step_s=STEP_S, deadline_s=READ_S
        )
        return asyncio.run(reading)

    return read


def _find_clusters(settings: PrometheusSettings, start_s: float, end_s: float) -> dict[str, str]:
    """Return a label matcher for each cluster whose engines reported. Raises Unavailable."""
    present = engine_presence(engines_spelled(all_spellings(settings.metric_prefixes)).values())
    reader = RangeReader(settings, Credentials(settings), time.monotonic() + READ_S)
    try:
        rows = reader.query(f"count {by(*CLUSTER_LABELS)} ({present})", start_s, end_s, STEP_S * PARTS)
    finally:
        reader.close()
    clusters = (cluster_of(row["metric"]) for row in rows)
    return {each.name: f"{each.label}={json.dumps(each.name, ensure_ascii=False)}" for each in clusters if each}


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
