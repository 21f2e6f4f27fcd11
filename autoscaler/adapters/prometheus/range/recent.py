"""Reads the last hours of a whole fleet, for a daemon that starts without state: the columns of ticks, in coarse steps.

The queries are those of ticks, over a range instead of at an instant, and only for the given workloads: the largest
first, until all are read or time or room is used up. Gateways and GPUs are not read, because nothing is learned from
their history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TypeVar

import msgspec
import numpy as np

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.decode import Vector
from autoscaler.adapters.prometheus.pod_labels import Name, pod_name
from autoscaler.adapters.prometheus.promql.engines import (
    bounds_query,
    engine_queries,
    process_start_query,
    quantile_queries,
)
from autoscaler.adapters.prometheus.promql.expressions import QuantileQuery
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.adapters.prometheus.promql.pod_groups import Group, group_of
from autoscaler.adapters.prometheus.promql.within_objective import (
    MAX_BOUNDS,
    Bounds,
    count_expression,
    most_common,
    read_bounds,
)
from autoscaler.adapters.prometheus.range.fleet_queries import Batch, FleetQueries
from autoscaler.adapters.prometheus.range.past_tokens import read_past_tokens
from autoscaler.adapters.prometheus.range.reader import RangeReader, Rows, run_in_thread
from autoscaler.catalog.engines import WITHIN, Engine
from autoscaler.catalog.series import POD_LABELS, is_moved
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.recent import PastTokens, RecentReadings
from autoscaler.core.model.samples import Objectives
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import Clock, Unavailable

Answer = TypeVar("Answer")

STEP_S = 60.0  # every fourth of the usual scrapes; shorter than the time in which learned values change
MAX_PODS = 2500  # in total, with deleted ones; each takes some 90 KB while its history is replayed
QUERY_TIMEOUT_S = 5.0  # the end of the daemon waits at most this long for a running query


class RecentHistory:
    """A HistorySource over one server: `await RecentHistory(settings, clock).recent(fleet, objectives, 3600, 20)`."""

    def __init__(self, settings: PrometheusSettings, clock: Clock) -> None:
        """Raises ValueError if the settings contradict each other."""
        timeout_s = min(settings.timeout_s, QUERY_TIMEOUT_S)
        self._settings = settings.model_copy(update={"timeout_s": timeout_s})
        self._credentials = Credentials(settings)
        self._clock = clock

    async def recent(self, fleet: Fleet, objectives: Objectives, span_s: float, deadline_s: float) -> RecentReadings:
        """Return what of the last `span_s` could be read in `deadline_s` seconds. Raises Unavailable if nothing was."""
        offset_s = self._clock.now_s() - self._clock.wall_s()  # converts Unix time to the clock of the tick
        until_s, steps = math.floor(self._clock.wall_s()), max(int(span_s // STEP_S), 1)
        window_s, spellings = self._settings.rate_window_s, all_spellings(self._settings.metric_prefixes)

        def read(reader: RangeReader) -> RecentReadings:
            queries = FleetQueries(reader, fleet, spellings, until_s)
            return _RecentReading(reader, queries, fleet, objectives, until_s, steps, window_s).read(offset_s)

        return await self._read(read, deadline_s)

    async def past_tokens(
        self, fleet: Fleet, rows: Collection[int], step_s: float, steps: int, deadline_s: float
    ) -> PastTokens:
        """Return the tokens of some workloads in the last steps, as far as they could be read. Raises Unavailable."""
        until_s, spellings = math.floor(self._clock.wall_s()), all_spellings(self._settings.metric_prefixes)

        def read(reader: RangeReader) -> PastTokens:
            queries = FleetQueries(reader, fleet, spellings, until_s)
            return read_past_tokens(reader, queries, rows, len(fleet.workloads), until_s, step_s, steps)

        return await self._read(read, deadline_s)

    async def _read(self, read: Callable[[RangeReader], Answer], deadline_s: float) -> Answer:
        """Call a function with a reader in a thread. The reader is closed in the end."""
        now_s = self._clock.now_s
        reader = RangeReader(self._settings, self._credentials, now_s() + deadline_s, now_s=now_s)
        try:
            return await run_in_thread(read, reader)
        finally:
            reader.close()


class _RecentReading:
    """One reading of the recent history. Not thread-safe."""

    def __init__(
        self,
        reader: RangeReader,
        queries: FleetQueries,
        fleet: Fleet,
        objectives: Objectives,
        until_s: float,
        steps: int,
        window_s: float,
    ) -> None:
        """until_s: Unix time of the last of `steps` + 1 evaluations. window_s: range of histogram quantiles."""
        self._reader = reader
        self._queries = queries
        self._fleet = fleet
        self._objectives = objectives
        self._steps = steps
        self._until_s = until_s
        self._window_s = window_s
        self._bounds: dict[tuple[str, str], Bounds] = {}
        self._pods: dict[Name, int] = {}  # column of each pod that was read
        self._workload: list[int] = []  # row of the workload, by column
        # By name of the reading: column of the pod, its values, and whether another pod may have written them.
        self._columns: dict[str, list[tuple[int, FloatColumn, bool]]] = {}

    def read(self, offset_s: float) -> RecentReadings:
        """Return what could be read. offset_s: from Unix time to the clock of the tick."""
        problem, failures = "", list[Unavailable]()
        for batch in self._queries.batches(range(len(self._fleet.workloads))):
            if len(self._pods) + batch.pods > MAX_PODS:
                problem = f"no more than {MAX_PODS} pods are read from history"
                continue  # smaller ones may still fit
            before = len(self._pods)
            try:
                self._read_batch(batch)
            except Unavailable as error:
                problem = str(error)
                self._drop(before)
                failures.append(error)
                if len(failures) == 2:  # in a row, so the size of the batch is not the reason
                    break
            else:
                failures.clear()
        if failures and not self._pods:
            raise failures[0]
        return self._recent(offset_s, problem)

    def _read_batch(self, batch: Batch) -> None:
        for identity, engine in self._queries.narrowed_engines(batch):
            self._read_narrowed(batch, identity, engine)

    def _read_narrowed(self, batch: Batch, identity: Identity, engine: Engine) -> None:
        workload_rows = set(batch.rows)
        self._read_columns(engine, identity, workload_rows)
        for column, aim in WITHIN.items():
            if not (readings := engine.readings.get(column)):
                continue
            limits_s = np.full(len(self._fleet.workloads), np.nan)
            limits_s[batch.rows] = getattr(self._objectives, aim)[batch.rows]
            for objective_s in most_common(limits_s, batch.pods)[0]:
                bounds = self._bounds_of(batch.engine, column)
                if expression := count_expression(column, readings, identity, objective_s, bounds):
                    rows = set(np.flatnonzero(limits_s == objective_s).tolist())
                    self._add(column, self._query(expression), rows)

    def _read_columns(self, engine: Engine, identity: Identity, workload_rows: set[int]) -> None:
        """Read the columns that depend on no objective; quantiles of groups as in `PrometheusSource`."""
        pairs = tuple(pair for pair in POD_LABELS if pair[1] in identity)
        workloads: dict[
            Group, set[int | None]
        ] = {}  # workloads of the pods in a group; None for pods of other workloads
        indices: dict[Group, set[int]] = {}
        start = process_start_query(engine, identity)
        moved = is_moved(dict.fromkeys(identity, "its pods"))  # the series of groups name none
        for query in (*engine_queries(engine, identity, QuantileQuery(self._window_s, pairs)), start):
            rows = self._query(query.expression)
            if not query.grouped:
                self._add(query.column, rows, workload_rows)
            if query.column == "time_s":
                for row in rows:
                    group, index = (
                        group_of(row["metric"], identity, pairs),
                        self._pod_column(pod_name(row["metric"]), workload_rows),
                    )
                    workloads.setdefault(group, set()).add(None if index is None else self._workload[index])
                    indices.setdefault(group, set()).update(() if index is None else (index,))
            if query.grouped:
                for row in rows:
                    group = group_of(row["metric"], identity, pairs)
                    if len(workloads.get(group, ())) == 1:
                        read = self._values(row["values"])
                        found = ((index, read, moved) for index in indices[group])
                        self._columns.setdefault(query.column, []).extend(found)
        mixed = {group for group, of_group in workloads.items() if len(of_group) > 1}
        for query in quantile_queries(engine, identity, QuantileQuery(self._window_s)) if mixed else ():
            rows = [row for row in self._query(query.expression) if group_of(row["metric"], identity, pairs) in mixed]
            self._add(query.column, rows, workload_rows)

    def _bounds_of(self, engine: str, column: str) -> Bounds:
        """Return the bounds of a histogram over all pods, as ticks use them."""
        if (engine, column) not in self._bounds:
            readings = self._queries.spelled_engine(engine).readings[column]
            asked = self._reader.query(bounds_query(readings, MAX_BOUNDS), self._until_s, self._until_s, STEP_S)
            labels = [msgspec.json.encode(row["metric"]) for row in asked]
            counts = np.array([self._values(row["values"])[-1] for row in asked], dtype=np.float64)
            self._bounds[engine, column] = read_bounds(Vector(self._until_s, labels, counts), readings[0].scale)
        return self._bounds[engine, column]

    def _query(self, expression: str) -> Rows:
        start_s = self._until_s - self._steps * STEP_S
        return self._reader.query(expression, start_s, self._until_s, STEP_S)

    def _add(self, column: str, rows: Rows, workload_rows: set[int]) -> None:
        """Add the series of pods of the given workloads to a column."""
        for row in rows:
            index = self._pod_column(pod_name(row["metric"]), workload_rows)
            if index is not None:
                read = index, self._values(row["values"]), is_moved(row["metric"])
                self._columns.setdefault(column, []).append(read)

    def _values(self, points: FloatColumn) -> FloatColumn:
        """Return the values of the points float64[n, 2] of one series at the steps, float64[T]; NaN without a point."""
        at_s, read = points.T
        step = np.round(self._steps - (self._until_s - at_s) / STEP_S)
        inside = (step >= 0) & (step <= self._steps)
        values = np.full(self._steps + 1, np.nan)
        values[step[inside].astype(np.int64)] = read[inside]
        return values

    def _pod_column(self, name: Name, workload_rows: set[int]) -> int | None:
        """Return the column of a pod; None if it belongs to none of the given workloads."""
        workload = self._queries.workload_of(name)
        if workload is None or workload not in workload_rows:
            return None
        if name not in self._pods:
            if len(self._pods) >= 2 * MAX_PODS:  # bounds the deleted pods
                return None
            self._pods[name] = len(self._pods)
            self._workload.append(workload)
        return self._pods[name]

    def _drop(self, before: int) -> None:
        """Drop the pods of a batch that could not be read completely."""
        self._pods = {name: index for name, index in self._pods.items() if index < before}
        del self._workload[before:]
        for column, read in self._columns.items():
            self._columns[column] = [each for each in read if each[0] < before]

    def _recent(self, offset_s: float, problem: str) -> RecentReadings:
        shape = (self._steps + 1, len(self._pods))
        columns = {}
        # Any scraped pod may write of others: that counts for workloads alone of which no pod was scraped itself.
        own = {self._workload[index] for read in self._columns.values() for index, _, moved in read if not moved}
        for name, read in self._columns.items():
            columns[name] = column = np.full(shape, np.nan)
            for index, values, moved in read:
                if not (moved and self._workload[index] in own):
                    column[:, index] = np.fmax(column[:, index], values)  # as in a tick
        if "time_s" in columns:
            columns["time_s"] += offset_s
        return RecentReadings(
            time_s=self._until_s + offset_s + STEP_S * np.arange(-self._steps, 1.0),
            pod_workload=np.array(self._workload, dtype=np.int64),
            pod=np.array([self._queries.pod_of.get(name, -1) for name in self._pods], dtype=np.int64),
            columns=columns,
            problem=problem,
        )
