"""Samples from Prometheus: a fixed list of queries for all workloads, joined to the pods of the fleet.

How old a reading is: Prometheus answers with the last sample of up to five minutes ago, unless a scrape has failed
since, which ends the series at once. So a lost remote write or a backend without such marks can show old numbers as
if they were new. Each pod's own sample time is asked for (`timestamp()`) and given on as `time_s`; whether it is too
old is for the core to judge. Readings of gateways have no such witness and count as read when they were asked for.

Requests within an objective are counted by the server (`attained`): a query for each objective that the policies in
force have, however many workloads share it.

All queries of one tick are evaluated at one instant by the server's clock, so that counters and their times belong
together. GPU readings and what an engine sets at its start are asked for every `SLOW_PERIOD_S` and carried between.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Self

import numpy as np

from autoscaler.adapters.gateways import Reporters, WorkloadNames, read_front
from autoscaler.adapters.prometheus.decode import Vector, clean
from autoscaler.adapters.prometheus.duplicates import doubled, tell_clusters, tell_doubles
from autoscaler.adapters.prometheus.instant.client import PrometheusClient
from autoscaler.adapters.prometheus.instant.foreign_models import Models
from autoscaler.adapters.prometheus.instant.gateways import FrontQuery, by_metric, clusters_of, read_wakeup
from autoscaler.adapters.prometheus.instant.group_join import GroupJoin
from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.instant.query_round import Sampling, by_name
from autoscaler.adapters.prometheus.instant.server_clock import ServerClock
from autoscaler.adapters.prometheus.instant.unread_metrics import STATISTICS, NearMisses
from autoscaler.adapters.prometheus.instant.within_objective import Attained, tell_uncounted
from autoscaler.adapters.prometheus.promql.conventions import (
    CONVENTIONS,
    Conventions,
    convention_query,
    read_conventions,
)
from autoscaler.adapters.prometheus.promql.engines import (
    PodQuery,
    engine_queries,
    process_start_query,
    quantile_queries,
)
from autoscaler.adapters.prometheus.promql.expressions import Quantiles
from autoscaler.adapters.prometheus.promql.gateways import front_arrivals_query, front_waiting_query
from autoscaler.adapters.prometheus.promql.gpus import GPU_COLUMNS, gpu_queries
from autoscaler.adapters.prometheus.promql.labels import POD, TARGET, Identity
from autoscaler.adapters.prometheus.promql.native_histograms import native_quantile_queries, native_queries
from autoscaler.catalog.engines import ENGINES, LIMITS, QUANTILES, UNCOUNTED
from autoscaler.catalog.gateways import GATEWAY_NAMESPACES
from autoscaler.catalog.series import SeriesByName
from autoscaler.catalog.spellings import all_spellings, engines_spelled
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import FrontSamples, Objectives, PodSamples, Samples
from autoscaler.core.observe import counter_falls
from autoscaler.core.table.columns import FloatColumn, IntColumn, find
from autoscaler.core.table.groupby import Fold
from autoscaler.ports import Clock

SLOW_PERIOD_S = 30.0
SLOW_AT_ONCE = 2  # slow queries renewed by one tick, so that no tick has to bear them all
MAX_CARRIED_S = 300.0  # a slow reading that cannot be renewed is unknown after this
SCRAPED_BY_S = 90.0  # a pod that is ready for longer has been scraped, if it ever will be
MOST_SILENT = 3  # workloads whose silence is told
MAX_FRONT_QUERIES = 32
MAX_FRONT_SERIES = 50_000  # of one answer; a mesh may have far more destinations than there are workloads
MEAN_OF_PODS = "the mean of pods, weighted by what each did: names and labels do not tell which of them serve together"
_TIMES = frozenset({"time_s", "gpu_time_s"})
_OF_GPUS = GPU_COLUMNS | {"gpu_time_s"}


@dataclass(frozen=True)
class _Carried:
    """A slow column as it was read, on the pods of that time."""

    pod_id: IntColumn
    column: FloatColumn
    read_s: float

    def on(self, fleet: Fleet) -> FloatColumn:
        """Return it on the pods of another fleet; NaN for pods that were not there."""
        if not len(self.pod_id):
            return np.full(len(fleet.pods), np.nan)
        rows, known = find(fleet.pod_id, self.pod_id)
        return np.where(known, self.column[rows], np.nan)


class PrometheusSource:
    """A SampleSource over one server: `async with PrometheusSource(settings, clock) as source`.

    The fleets given to `sample` must come from one WorkloadSource, whose pod ids are remembered.
    """

    def __init__(
        self,
        settings: PrometheusSettings,
        clock: Clock,
        front_queries: Callable[[], tuple[FrontQuery, ...]] = lambda: (),
        gateway_namespaces: tuple[str, ...] = (),
    ) -> None:
        """Raises ValueError as the client.

        front_queries: the policies' own expressions, asked for at each sampling. gateway_namespaces: whose gateways
        are believed about workloads of others, besides those of `config.reporters`.
        """
        self._gateway_namespaces = (*GATEWAY_NAMESPACES, *gateway_namespaces)
        self._client = PrometheusClient(settings, clock)
        self._clock = clock
        self._front_queries = front_queries
        self._window_s = settings.rate_window_s
        self._spellings = all_spellings(settings.metric_prefixes)
        self._near_misses = NearMisses(self._spellings)
        self._server_clock = ServerClock()
        self._join = PodJoin()
        self._groups = GroupJoin(self._join, POD, Conventions.pod_labels)
        self._own_too = False  # each pod's own quantiles are asked for as well
        self._conventions = Conventions()
        self._conventions_s = -np.inf
        self._carried: dict[str, _Carried] = {}
        self._attained = Attained()
        self._models = Models()
        self._counted = counter_falls.Counted.blank(0)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Read all columns that Prometheus knows. What fails stays NaN and is told in the one report."""
        sampling = Sampling(self._client, self._clock, deadline_s)
        first = not self._server_clock.known
        if first:
            await self._learn_conventions(sampling)
        if not self._server_clock.known:  # nothing the server says could be dated
            sampling.note(CONVENTIONS, "nothing is read before this query is answered")
            return Samples.nothing(len(fleet.workloads), len(fleet.pods), (sampling.report(),))
        self._join.align(fleet)
        at_s = self._server_clock.server_s(sampling.started_s)
        names = [counter_falls.PROCESS_START, *(field.name for field in fields(PodSamples))]
        columns = {name: np.full(len(fleet.pods), np.nan) for name in names}
        answers: list[tuple[PodQuery, Vector]] = []
        if self._groups.pairs != self._conventions.pod_labels:
            self._groups = GroupJoin(self._join, POD, self._conventions.pod_labels)
        identities = self._identities(fleet)
        engines = engines_spelled(self._conventions.spellings)
        await self._models.read(sampling, at_s, engines, identities, self._join, fleet)
        queries = self._plan(fleet, identities, sampling)
        due = self._due(queries, sampling.started_s)
        async with asyncio.TaskGroup() as group:
            if not first and sampling.started_s - self._conventions_s >= SLOW_PERIOD_S:
                group.create_task(self._learn_conventions(sampling), name="prometheus conventions")
            for query in queries:
                ask = not query.slow or query.expression in due
                reading = self._read_pods(sampling, at_s, query, ask, fleet, columns, answers)
                group.create_task(reading, name="prometheus pods")
            counts = group.create_task(
                self._attained.read(
                    sampling,
                    at_s,
                    engines,
                    identities,
                    self._join,
                    fleet,
                    objectives,
                    native=self._conventions.native,
                ),
                name="prometheus objectives",
            )
            front = group.create_task(self._read_front(sampling, at_s, fleet), name="prometheus gateways")
        if (fleet.pod_ready & np.isnan(columns["running"])).any():
            await self._near_misses.tell(sampling)
        self._tell_strangers(sampling, fleet, columns["running"])
        self._read_groups(sampling, fleet, columns, answers)
        for column, counted in counts.result().items():
            columns[column] = self._believable(column, counted, sampling.started_s)
        for column in UNCOUNTED:
            tell_uncounted(sampling, column, fleet, objectives, columns)
        columns["gpu_time_s"] = np.minimum(columns["gpu_time_s"], self._oldest_gpu_s(queries, sampling.started_s))
        pods = self._doubt(sampling, fleet, columns)
        return Samples(pods, front.result(), (sampling.report(),))

    def _doubt(self, sampling: Sampling, fleet: Fleet, columns: dict[str, FloatColumn]) -> PodSamples:
        """Make counters unknown that fell although their process stands, and say so."""
        start_s = columns.pop(counter_falls.PROCESS_START)
        pods, self._counted = counter_falls.doubt(self._counted, PodSamples(**columns), start_s, fleet, self._window_s)
        if len(rows := np.flatnonzero(self._counted.told(sampling.started_s))):
            more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
            pod = fleet.pods[rows[0]]
            sampling.note("counters", f"pod {clean(f'{pod.namespace}/{pod.name}')}{more}: {counter_falls.WORDS}")
        return pods

    async def _learn_conventions(self, sampling: Sampling) -> None:
        """Ask by which labels this backend names pods, and hear the server's clock: it evaluates at its own now.

        A partial answer may lack the labels that matter: it counts only until there was a whole one, and it is asked
        again at the next tick.
        """
        answer = await sampling.ask(CONVENTIONS, convention_query(self._spellings))
        if answer is None:
            return
        self._server_clock.hear(answer)
        if not answer.vector.partial or math.isinf(self._conventions_s):
            self._conventions = read_conventions(by_name(answer.vector))
        if not answer.vector.partial:
            self._conventions_s = sampling.started_s

    def _identities(self, fleet: Fleet) -> tuple[Identity, ...]:
        """Return which labels to read engines by. Scrape targets are read only where they are what was found."""
        found = self._conventions.identities
        if POD in found and all(workload.ref.api_version for workload in fleet.workloads):
            return (POD,)
        return found

    def _plan(self, fleet: Fleet, identities: tuple[Identity, ...], sampling: Sampling) -> list[PodQuery]:
        """Return the queries for the engines in use. Workloads count only by which engines they name."""
        queries: list[PodQuery] = []
        together, alone = Quantiles(self._window_s, self._groups.pairs), Quantiles(self._window_s)
        for name in sorted({workload.engine for workload in fleet.workloads}):
            if engine := engines_spelled(self._conventions.spellings).get(name):
                for identity in identities:
                    queries += engine_queries(engine, identity, together)
                    queries += quantile_queries(engine, identity, alone) if self._own_too else ()
                    queries.append(process_start_query(engine, identity))
                    queries += self._models.queries(engine, identity, alone)
                    if self._conventions.native:
                        queries += native_queries(engine, identity, together)
                        queries += native_quantile_queries(engine, identity, alone) if self._own_too else ()
            else:
                sampling.note(f"engine {clean(name)!r}", f"not in the table of engines: {', '.join(ENGINES)}")
        if self._conventions.gpus:
            queries += gpu_queries(POD)
        if TARGET not in identities and (nameless := self._conventions.nameless):
            many = (
                "series of engines name no pod and are" if nameless > 1 else "series of an engine names no pod and is"
            )
            sampling.note(CONVENTIONS, f"{nameless:.0f} {many} left out: give them the labels namespace and pod")
        return queries

    def _due(self, queries: list[PodQuery], now_s: float) -> set[str]:
        """Choose which slow queries to ask: those never answered, and of the others the few that wait longest."""
        slow = [query.expression for query in queries if query.slow]
        self._carried = {expression: self._carried[expression] for expression in slow if expression in self._carried}
        overdue = [each for each in self._carried if self._age_s(each, now_s) >= SLOW_PERIOD_S]
        overdue.sort(key=lambda expression: self._carried[expression].read_s)  # of equals, the list's order decides
        return {each for each in slow if each not in self._carried} | set(overdue[:SLOW_AT_ONCE])

    def _age_s(self, expression: str, now_s: float) -> float:
        return now_s - self._carried[expression].read_s if expression in self._carried else math.inf

    def _oldest_gpu_s(self, queries: list[PodQuery], now_s: float) -> float:
        """Return when the oldest GPU column in use was asked for: their one time must not promise more than that."""
        ages_s = [self._age_s(query.expression, now_s) for query in queries if query.column in GPU_COLUMNS]
        return now_s - max((age_s for age_s in ages_s if age_s < MAX_CARRIED_S), default=0.0)

    async def _read_pods(
        self,
        sampling: Sampling,
        at_s: float,
        query: PodQuery,
        ask: bool,
        fleet: Fleet,
        columns: dict[str, FloatColumn],
        answers: list[tuple[PodQuery, Vector]],
    ) -> None:
        """Fill one column where it is still unknown: several engines may fill the same.

        What `_read_groups` needs, once all are read, goes to `answers`.
        """
        carried = self._carried.get(query.expression)
        if ask:
            answer = await sampling.ask(query.column, query.expression, at_s)
            if answer is not None:
                if query.grouped or (query.column == "time_s" and not query.models):
                    answers.append((query, answer.vector))
                if query.grouped:
                    return
                if query.column == "running":
                    for line in tell_doubles(doubled(answer.vector, self._join.rows(answer.vector.labels), fleet)):
                        sampling.note(query.column, line)
                whole = bool(query.models) or query.column in _OF_GPUS
                column = self._join.column(answer.vector, whole=whole)
                if query.models:
                    column = np.where(self._models.rows(query.models, fleet), column, np.nan)
                column = self._believable(query.column, column, sampling.started_s)
                carried = _Carried(fleet.pod_id, column, sampling.started_s)
                if query.slow:
                    self._carried[query.expression] = carried
        if carried is not None and sampling.started_s - carried.read_s < MAX_CARRIED_S:
            known = columns[query.column]
            columns[query.column] = np.where(np.isnan(known), carried.on(fleet), known)

    def _read_groups(
        self,
        sampling: Sampling,
        fleet: Fleet,
        columns: dict[str, FloatColumn],
        answers: list[tuple[PodQuery, Vector]],
    ) -> None:
        """Fill in the quantiles of groups of pods.

        Pods of mixed groups keep their own, which are asked for from the next sampling on; so do all where the server
        drops native histograms that get another label (Prometheus 2.42 does, 3 does not).
        """
        members = [labels for query, vector in answers if not query.grouped for labels in vector.labels]
        mixed = self._groups.gather(members, fleet)
        grouped = {column: np.full(len(fleet.pods), np.nan) for column in sorted(QUANTILES)}
        series = 0
        for query, vector in answers:
            if query.grouped:
                series += len(vector.labels)
                found = self._believable(query.column, self._groups.column(vector), sampling.started_s)
                grouped[query.column] = np.where(np.isnan(grouped[query.column]), found, grouped[query.column])
        self._own_too = bool(mixed.any()) or (self._conventions.native and series == 0)
        of_pods = Fold(fleet.pod_workload, len(fleet.workloads))
        for column, values in grouped.items():
            columns[column] = np.where(np.isnan(values), columns[column], values)
            several = np.flatnonzero(of_pods.smallest(columns[column]) < of_pods.largest(columns[column]))
            if len(several):
                more = f" and {len(several) - 1} more" if len(several) > 1 else ""
                first = clean(str(fleet.workloads[several[0]].ref))
                sampling.note(column, f"{first}{more}: {MEAN_OF_PODS}")

    def _tell_strangers(self, sampling: Sampling, fleet: Fleet, running: FloatColumn) -> None:
        """Say so when metrics and cluster do not meet: else all workloads would be held, and nothing would say why."""
        if sampling.failed:
            return
        unasked = self._near_misses.unasked
        if fleet.pod_ready.any() and np.isnan(running).all():
            targets = POD not in self._conventions.identities
            labels = "job and instance" if targets else "namespace and pod"
            needed = "; series of engines have no label pod: give them the labels namespace and pod"
            advice = needed if targets else ""
            sampling.note(
                "running", f"no series has labels {labels} that name a ready pod of the fleet{advice}{unasked}"
            )
            return
        old = fleet.pod_ready & ~(fleet.pod_ready_s > sampling.started_s - SCRAPED_BY_S)
        rows = len(fleet.workloads)
        ready, silent = (
            np.bincount(fleet.pod_workload[pods], minlength=rows) for pods in (old, old & np.isnan(running))
        )
        for row in np.flatnonzero((ready > 0) & (silent == ready))[:MOST_SILENT]:
            workload = fleet.workloads[row]
            problem = f"no ready pod of {clean(str(workload.ref))} reports a metric of {clean(workload.engine)}"
            sampling.note("running", f"{problem}: is it scraped, and {STATISTICS}{unasked}")

    def _believable(self, name: str, column: FloatColumn, now_s: float) -> FloatColumn:
        """Turn what no server can mean into unknown, and times into those of the tick, none of them in the future."""
        column = np.where((column >= 0) & (column <= LIMITS.get(name, np.finfo(np.float64).max)), column, np.nan)
        return np.minimum(self._server_clock.tick_s(column), now_s) if name in _TIMES else column  # NaN stays NaN

    async def _read_front(self, sampling: Sampling, at_s: float, fleet: Fleet) -> FrontSamples:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(self._gateways(sampling, at_s, "gateway queues", front_waiting_query()))
            arrivals = group.create_task(
                self._gateways(sampling, at_s, "gateway arrivals", front_arrivals_query(self._window_s))
            )
            wakeups = group.create_task(self._read_wakeups(sampling, at_s, fleet))
        held = wakeups.result()
        arrivals_per_s = np.full(len(fleet.workloads), np.nan)
        if waiting.result() or arrivals.result():
            reporters = Reporters(self._gateway_namespaces)
            gateway_held, arrivals_per_s = read_front(fleet, waiting.result(), arrivals.result(), reporters)
            if problem := reporters.problem():
                sampling.note("gateways", clean(problem))
            if clusters := clusters_of({**waiting.result(), **arrivals.result()}):
                sampling.note("gateways", tell_clusters("metric", clusters))
            held = np.fmax(held, gateway_held)  # the same requests, it may be: an expression over a gateway's gauge
        known = ~np.isnan(held) | ~np.isnan(arrivals_per_s)
        return FrontSamples(np.where(known, sampling.started_s, np.nan), held, arrivals_per_s)

    async def _gateways(self, sampling: Sampling, at_s: float, name: str, expression: str) -> SeriesByName:
        answer = await sampling.ask(name, expression, at_s)
        if answer is None:
            return {}
        if (found := len(answer.vector.labels)) > MAX_FRONT_SERIES:
            sampling.note(name, f"{found} series; only the first {MAX_FRONT_SERIES} count")
        return by_metric(answer.vector, MAX_FRONT_SERIES)

    async def _read_wakeups(self, sampling: Sampling, at_s: float, fleet: Fleet) -> FloatColumn:
        """Ask each policy's own expression: one query for each policy that has one."""
        held = np.full(len(fleet.workloads), np.nan)
        queries = self._front_queries()
        if len(queries) > MAX_FRONT_QUERIES:
            sampling.note("wakeUp.query", f"{len(queries)} policies have one; only the first {MAX_FRONT_QUERIES} count")
            queries = queries[:MAX_FRONT_QUERIES]
        if not queries:
            return held
        names = WorkloadNames(fleet)

        async def ask(query: FrontQuery) -> FloatColumn:
            name = f"wakeUp.query of policy {clean(query.policy)}"
            answer = await sampling.ask(name, query.query, at_s)
            if answer is None:
                return np.full(len(fleet.workloads), np.nan)
            column, problems = read_wakeup(fleet, names, query, answer.vector)
            for problem in problems:
                sampling.note(name, problem)
            return column

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(query)) for query in queries]
        for task in tasks:
            held = np.fmax(held, task.result())
        return held
