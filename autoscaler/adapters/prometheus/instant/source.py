"""Reads samples from Prometheus at each tick: a fixed list of queries for all workloads, joined to the pods.

Age of readings: Prometheus returns the last sample of up to five minutes ago, unless a later scrape failed, which ends
the series at once. A lost remote write, or a backend without staleness markers, can show old numbers as new. So the
sample time of each pod is queried too (`timestamp()`) and returned as `time_s`; the core decides whether it is too old.
Readings of gateways have no sample time and count as read when they were queried.

All queries of one tick are evaluated at one instant of the server's clock, so that counters and their times match. GPU
metrics and constants of engines are queried every `SLOW_PERIOD_S` and reused in between.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, clean
from autoscaler.adapters.prometheus.duplicates import describe_duplicates, find_duplicates
from autoscaler.adapters.prometheus.instant.client import MAX_ANSWER_BYTES, PrometheusClient
from autoscaler.adapters.prometheus.instant.dead_processes import Values, read_dead_processes, without_dead_processes
from autoscaler.adapters.prometheus.instant.foreign_models import ForeignModels
from autoscaler.adapters.prometheus.instant.gateways import GatewayReader, WakeUpQuery
from autoscaler.adapters.prometheus.instant.group_join import GroupJoin
from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.instant.query_round import ESSENTIAL, QueryRound, values_by_metric
from autoscaler.adapters.prometheus.instant.scrape_limits import ScrapeLimits
from autoscaler.adapters.prometheus.instant.server_clock import ServerClock
from autoscaler.adapters.prometheus.instant.sources import SourceReader
from autoscaler.adapters.prometheus.instant.unread_metrics import STATISTICS_HINT, UnreadMetrics
from autoscaler.adapters.prometheus.instant.within_objective import ObjectiveCounts, report_uncounted
from autoscaler.adapters.prometheus.promql.conventions import (
    CONVENTIONS,
    Conventions,
    convention_query,
    read_conventions,
)
from autoscaler.adapters.prometheus.promql.engines import (
    SampleQuery,
    engine_queries,
    process_start_query,
    quantile_queries,
)
from autoscaler.adapters.prometheus.promql.expressions import QuantileQuery
from autoscaler.adapters.prometheus.promql.gpus import GPU_COLUMNS, gpu_queries
from autoscaler.adapters.prometheus.promql.labels import POD, TARGET, Identity
from autoscaler.adapters.prometheus.promql.native_histograms import native_quantile_queries, native_queries
from autoscaler.catalog.engines import ENGINES, LIMITS, QUANTILES, UNCOUNTED, WITHIN
from autoscaler.catalog.inputs import LOST
from autoscaler.catalog.spellings import all_spellings, engines_spelled
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Objectives, PodSamples, Samples
from autoscaler.core.readings import counter_falls
from autoscaler.core.table.columns import FloatColumn, IntColumn, fill_unknown, find_ids
from autoscaler.core.table.groupby import GroupBy
from autoscaler.ports import Clock

SLOW_PERIOD_S = 30.0
SLOW_AT_ONCE = 2  # slow queries repeated per tick, so that no tick runs all of them
MAX_SLOW_AGE_S = 300.0  # older slow readings are unknown
SCRAPED_BY_S = 90.0  # a pod that has been ready for longer should have been scraped
MAX_SILENT = 3  # silent workloads named in one report

MEAN_OF_PODS = "the mean of its pods, weighted by their work: names and labels do not show which pods serve together"
_TIMES = frozenset({"time_s", "gpu_time_s"})
_FROM_GPUS = GPU_COLUMNS | {"gpu_time_s"}
# How the readings of several processes in one pod are combined; others are added up.
_TOGETHER: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"time_s": max, counter_falls.PROCESS_START: max, "kv_usage": max, "asleep": min}
)


@dataclass(frozen=True)
class _SlowReading:
    """A column of a slow query, with the pods at the time it was read."""

    pod_id: IntColumn
    column: FloatColumn
    read_s: float

    def for_fleet(self, fleet: Fleet) -> FloatColumn:
        """Return the column for the pods of a fleet; NaN for pods that are new since."""
        if self.pod_id is fleet.pod_id:
            return self.column
        if not len(self.pod_id):
            return np.full(len(fleet.pods), np.nan)
        rows, known = find_ids(fleet.pod_id, self.pod_id)
        return np.where(known, self.column[rows], np.nan)


class PrometheusSource:
    """A SampleSource over one server: `async with PrometheusSource(settings, clock) as source`.

    The fleets passed to `sample` must come from one WorkloadSource, because pod ids are kept between ticks.
    """

    def __init__(
        self,
        settings: PrometheusSettings,
        clock: Clock,
        wake_up_queries: Callable[[], tuple[WakeUpQuery, ...]] = lambda: (),
        gateway_namespaces: tuple[str, ...] = (),
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """Raises ValueError as the client.

        wake_up_queries: returns the queries of the policies. gateway_namespaces: namespaces whose gateways are trusted
        about workloads of other namespaces, in addition to `GATEWAY_NAMESPACES`.
        """
        self._client = PrometheusClient(settings, clock, max_answer_bytes=max_answer_bytes)
        self._clock = clock

        self._window_s = settings.rate_window_s
        self._gateways = GatewayReader(wake_up_queries, gateway_namespaces)
        self._spellings = all_spellings(settings.metric_prefixes)
        self._unread_metrics = UnreadMetrics(self._spellings)
        self._server_clock = ServerClock()
        self._join = PodJoin()
        self._groups = GroupJoin(self._join, POD, Conventions.pod_labels)
        self._query_each_pod = False  # also query quantiles of single pods
        self._conventions = Conventions()
        self._conventions_s = -np.inf
        self._slow_readings: dict[str, _SlowReading] = {}
        self._objective_counts = ObjectiveCounts()
        self._models = ForeignModels()
        self._sources = SourceReader()
        self._gauges: Values = {}  # of pods with dead processes
        self._scrape_limits = ScrapeLimits(self._window_s)
        self._lost: frozenset[str] = frozenset()  # names of the queries that failed in the last tick
        self._counted = counter_falls.CounterHistory.blank(0)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Read all columns. Columns of failed queries stay NaN, and the report names the failure."""
        query_round = QueryRound(self._client, self._clock, deadline_s)
        first = not self._server_clock.known
        if first:
            await self._update_conventions(query_round)
        if not self._server_clock.known:  # samples could not be dated
            query_round.note(CONVENTIONS, "nothing is read before this query is answered")
            return Samples.unknown(len(fleet.workloads), len(fleet.pods), (query_round.report(),))
        self._join.align(fleet)
        at_s = self._server_clock.server_s(query_round.started_s)
        names = [counter_falls.PROCESS_START, *(field.name for field in fields(PodSamples))]
        columns = dict.fromkeys(names, np.full(len(fleet.pods), np.nan))
        answers: list[tuple[SampleQuery, Vector]] = []
        if self._groups.pairs != self._conventions.pod_labels:
            self._groups = GroupJoin(self._join, POD, self._conventions.pod_labels)
        identities = self._identities(fleet)
        engines = engines_spelled(self._conventions.spellings)
        used = [engines[name] for name in sorted({each.engine for each in fleet.workloads}) if name in engines]
        sources = await self._sources.read(query_round, at_s, used, identities, self._join, fleet)
        self._join.merge(sources.merge)
        for line in sources.lines:
            query_round.note("sources", line)
        self._gauges = await read_dead_processes(query_round, at_s, used, identities, sources.labels)
        by_source = tuple((*identity, *sources.labels) for identity in identities)
        await self._models.read(query_round, at_s, engines, by_source, self._join, fleet)
        queries = self._pod_queries(fleet, identities, sources.labels, query_round)
        due = self._due_queries(queries, query_round.started_s)
        # A slow server leaves the last ones unanswered, so those that were lost in the last tick come earlier.
        queries.sort(key=lambda query: (query.column not in ESSENTIAL, query.column not in self._lost))
        async with asyncio.TaskGroup() as group:
            front = group.create_task(self._gateways.read(query_round, at_s, fleet), name="prometheus gateways")
            if not first and query_round.started_s - self._conventions_s >= SLOW_PERIOD_S:
                group.create_task(self._update_conventions(query_round), name="prometheus conventions")
            reads = [
                self._read_pods(
                    query_round, at_s, query, not query.slow or query.expression in due, fleet, columns, answers
                )
                for query in queries
            ]
            after = sum(query.column in ESSENTIAL for query in queries) if self._lost & WITHIN.keys() else len(reads)
            for read in reads[:after]:
                group.create_task(read, name="prometheus pods")
            counting = self._objective_counts.read(
                query_round,
                at_s,
                engines,
                by_source,
                self._join,
                fleet,
                objectives,
                native=self._conventions.native,
            )
            counts = group.create_task(counting, name="prometheus objectives")
            for read in reads[after:]:
                group.create_task(read, name="prometheus pods")
            limits_s = objectives.max_age_s[fleet.pod_workload] / 2
            limits = self._scrape_limits.report(query_round, at_s, used, identities, self._join, limits_s)
            group.create_task(limits, name="prometheus scrapes")
        self._report_lost(query_round)
        if (fleet.pod_ready & np.isnan(columns["running"])).any():
            await self._unread_metrics.report(query_round)
        self._report_silent_workloads(query_round, fleet, columns["running"])
        self._read_groups(query_round, fleet, columns, answers)
        for column, counted in counts.result().items():
            columns[column] = self._drop_impossible(column, counted, query_round.started_s)
        for column in UNCOUNTED:
            report_uncounted(query_round, column, fleet, objectives, columns)
        former = columns["time_s"] < fleet.pod_created_s  # samples of a former pod of the same name
        for column in columns.keys() - _FROM_GPUS if former.any() else ():
            columns[column] = np.where(former, np.nan, columns[column])
        columns["gpu_time_s"] = np.minimum(columns["gpu_time_s"], self._oldest_gpu_s(queries, query_round.started_s))
        pods = self._reject_false_falls(query_round, fleet, columns)
        return Samples(pods, front.result(), (query_round.report(),))

    def _reject_false_falls(self, query_round: QueryRound, fleet: Fleet, columns: dict[str, FloatColumn]) -> PodSamples:
        """Make counters unknown that fell without a restart of their process, and report them."""
        start_s = columns.pop(counter_falls.PROCESS_START)
        pods, self._counted = counter_falls.discard_fallen(
            self._counted, PodSamples(**columns), start_s, fleet, self._window_s
        )
        if len(rows := np.flatnonzero(self._counted.fell_recently(query_round.started_s))):
            more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
            pod = fleet.pods[rows[0]]
            query_round.note("counters", f"pod {clean(f'{pod.namespace}/{pod.name}')}{more}: {counter_falls.PROBLEM}")
        return pods

    def _report_lost(self, query_round: QueryRound) -> None:
        """Report what the columns cost that were not answered, unless nothing was."""
        self._lost = frozenset(query_round.lost)
        lost = sorted(self._lost & LOST.keys())
        for column in lost if query_round.failed < query_round.queries else ():
            query_round.note(column, f"not read in this tick: {LOST[column]}")

    async def _update_conventions(self, query_round: QueryRound) -> None:
        """Query the conventions of the backend, and update the server's clock from the answer.

        A partial answer may lack labels, so it counts only until there is a complete one, and the query is repeated at
        the next tick.
        """
        answer = await query_round.query(CONVENTIONS, convention_query(self._spellings))
        if answer is None:
            return
        self._server_clock.update(answer)
        if not answer.vector.partial or math.isinf(self._conventions_s):
            self._conventions = read_conventions(values_by_metric(answer.vector))
        if not answer.vector.partial:
            self._conventions_s = query_round.started_s

    def _identities(self, fleet: Fleet) -> tuple[Identity, ...]:
        """Return the labels to read engines by. Scrape targets are read only if a discovered workload has no object."""
        found = self._conventions.identities
        if POD in found and all(workload.ref.api_version for workload in fleet.workloads):
            return (POD,)
        return found

    def _pod_queries(
        self, fleet: Fleet, identities: tuple[Identity, ...], apart: Identity, query_round: QueryRound
    ) -> list[SampleQuery]:
        """Return the queries for the engines in use. apart: labels that tell the sources of a pod apart."""
        queries: list[SampleQuery] = []
        per_group, per_pod = QuantileQuery(self._window_s, self._groups.pairs), QuantileQuery(self._window_s)
        for name in sorted({workload.engine for workload in fleet.workloads}):
            if engine := engines_spelled(self._conventions.spellings).get(name):
                for identity in identities:
                    queries += engine_queries(engine, identity, per_group, apart)
                    queries += quantile_queries(engine, identity, per_pod) if self._query_each_pod else ()
                    queries.append(process_start_query(engine, (*identity, *apart)))
                    queries += self._models.queries(engine, identity, per_pod, apart)
                    if self._conventions.native:
                        queries += native_queries(engine, identity, per_group, apart)
                        queries += native_quantile_queries(engine, identity, per_pod) if self._query_each_pod else ()
            else:
                query_round.note(f"engine {clean(name)!r}", f"not in the table of engines: {', '.join(ENGINES)}")
        if self._conventions.gpus:
            queries += gpu_queries(POD)
        left_out = self._conventions.series_without_target
        left_out += self._conventions.series_without_pod if TARGET not in identities else 0.0
        if left_out:
            several = "series of engines name no pod and are"
            found = several if left_out > 1 else "series of an engine names no pod and is"
            problem = f"{left_out:.0f} {found} left out: give them the labels namespace and pod"
            query_round.note(CONVENTIONS, problem)
        return queries

    def _due_queries(self, queries: list[SampleQuery], now_s: float) -> set[str]:
        """Return the slow queries to run: those never answered, and the `SLOW_AT_ONCE` that are overdue longest."""
        readings = self._slow_readings
        slow = [query.expression for query in queries if query.slow]
        self._slow_readings = readings = {each: readings[each] for each in slow if each in readings}
        overdue = [each for each in readings if self._age_s(each, now_s) >= SLOW_PERIOD_S]
        overdue.sort(key=lambda each: readings[each].read_s)  # stable: equal ones stay in the order of the list
        return {each for each in slow if each not in readings} | set(overdue[:SLOW_AT_ONCE])

    def _age_s(self, expression: str, now_s: float) -> float:
        return now_s - self._slow_readings[expression].read_s if expression in self._slow_readings else math.inf

    def _oldest_gpu_s(self, queries: list[SampleQuery], now_s: float) -> float:
        """Return when the oldest GPU column in use was queried, since all GPU columns share one time."""
        ages_s = [self._age_s(query.expression, now_s) for query in queries if query.column in GPU_COLUMNS]
        return now_s - max((age_s for age_s in ages_s if age_s < MAX_SLOW_AGE_S), default=0.0)

    async def _read_pods(
        self,
        query_round: QueryRound,
        at_s: float,
        query: SampleQuery,
        ask: bool,
        fleet: Fleet,
        columns: dict[str, FloatColumn],
        answers: list[tuple[SampleQuery, Vector]],
    ) -> None:
        """Fill the unknown values of one column, since several engines may fill the same column.

        Adds to `answers` what `_read_groups` needs later.
        """
        reading = self._slow_readings.get(query.expression)
        if ask:
            answer = await query_round.query(query.column, query.expression, at_s)
            if answer is not None:
                if query.grouped or (query.column == "time_s" and not query.models):
                    answers.append((query, answer.vector))
                if query.grouped:
                    return
                if query.column == "running":
                    rows = self._join.rows(answer.vector.labels)
                    for line in describe_duplicates(find_duplicates(answer.vector, rows, fleet)):
                        query_round.note(query.column, line)
                include_excluded = bool(query.models) or query.column in _FROM_GPUS
                together = _TOGETHER.get(query.column, math.fsum)
                gauges = {} if query.models else self._gauges.get(query.column, {})
                vector = without_dead_processes(answer.vector, gauges)
                alike = query.column in GPU_COLUMNS
                column = self._join.column(vector, include_excluded=include_excluded, together=together, alike=alike)
                if query.models:
                    column = np.where(self._models.has_models(query.models, fleet), column, np.nan)
                column = self._drop_impossible(query.column, column, query_round.started_s)
                reading = _SlowReading(fleet.pod_id, column, query_round.started_s)
                if query.slow:
                    self._slow_readings[query.expression] = reading
        if reading is not None and query_round.started_s - reading.read_s < MAX_SLOW_AGE_S:
            columns[query.column] = fill_unknown(columns[query.column], reading.for_fleet(fleet))

    def _read_groups(
        self,
        query_round: QueryRound,
        fleet: Fleet,
        columns: dict[str, FloatColumn],
        answers: list[tuple[SampleQuery, Vector]],
    ) -> None:
        """Fill in the quantiles of groups of pods.

        Pods of mixed groups keep quantiles of their own, which are queried from the next tick on. The same holds for
        all pods if the server drops native histograms with an added label (Prometheus 2.42 does, 3 does not).
        """
        members = [labels for query, vector in answers if not query.grouped for labels in vector.labels]
        mixed = self._groups.update(members, fleet)
        grouped = {column: np.full(len(fleet.pods), np.nan) for column in sorted(QUANTILES)}
        series = 0
        for query, vector in answers:
            if query.grouped:
                series += len(vector.labels)
                found = self._drop_impossible(query.column, self._groups.column(vector), query_round.started_s)
                grouped[query.column] = fill_unknown(grouped[query.column], found)
        self._query_each_pod = bool(mixed.any()) or (self._conventions.native and series == 0)
        by_workload = GroupBy(fleet.pod_workload, len(fleet.workloads))
        for column, values in grouped.items():
            columns[column] = fill_unknown(values, columns[column])
            several = np.flatnonzero(by_workload.min(columns[column]) < by_workload.max(columns[column]))
            if len(several):
                more = f" and {len(several) - 1} more" if len(several) > 1 else ""
                first = clean(str(fleet.workloads[several[0]].ref))
                query_round.note(column, f"{first}{more}: {MEAN_OF_PODS}")

    def _report_silent_workloads(self, query_round: QueryRound, fleet: Fleet, running: FloatColumn) -> None:
        """Report ready pods and workloads without metrics, which would otherwise be held without a reason shown."""
        if query_round.failed:
            return
        not_searched = self._unread_metrics.not_searched
        if fleet.pod_ready.any() and np.isnan(running).all():
            targets = POD not in self._conventions.identities
            labels = "job and instance" if targets else "namespace and pod"
            needed = "; series of engines have no label pod: give them the labels namespace and pod"
            advice = needed if targets else ""
            query_round.note(
                "running", f"no series has labels {labels} that name a ready pod of the fleet{advice}{not_searched}"
            )
            return
        old = fleet.pod_ready & ~(fleet.pod_ready_s > query_round.started_s - SCRAPED_BY_S)
        rows = len(fleet.workloads)
        ready, silent = (
            np.bincount(fleet.pod_workload[pods], minlength=rows) for pods in (old, old & np.isnan(running))
        )
        for row in np.flatnonzero((ready > 0) & (silent == ready))[:MAX_SILENT]:
            workload = fleet.workloads[row]
            problem = f"no ready pod of {clean(workload.ref.label)} reports a metric of {clean(workload.engine)}"
            query_round.note("running", f"{problem}: is it scraped, and {STATISTICS_HINT}{not_searched}")

    def _drop_impossible(self, name: str, column: FloatColumn, now_s: float) -> FloatColumn:
        """Make impossible values unknown, and convert times to the clock of the tick, at most `now_s`."""
        column = np.where((column >= 0) & (column <= LIMITS.get(name, np.finfo(np.float64).max)), column, np.nan)
        return np.minimum(self._server_clock.tick_s(column), now_s) if name in _TIMES else column  # keeps NaN
