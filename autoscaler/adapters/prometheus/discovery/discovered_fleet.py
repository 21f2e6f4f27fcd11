"""Finds workloads from the labels of metrics, for a dry run with only a Prometheus URL.

A workload is the owner of pods that report an engine. Owners, readiness, times and spec.replicas come from
kube-state-metrics if it is scraped. Otherwise the owner is inferred from the name of the pod, and pods that report are
ready. A workload without a pod since the daemon started is not found, because no metric names it.
If engine series name no pod, each scrape target counts as a pod, and all targets of one job with one model as a
workload.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import structlog

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.discovery.inventory import (
    MAX_PODS,
    MAX_WORKLOADS,
    DiscoveredWorkloads,
    DiscoveryResult,
)
from autoscaler.adapters.prometheus.discovery.kube_state import (
    Name,
    controllers_query,
    pods_query,
    read_controllers,
    read_pods,
)
from autoscaler.adapters.prometheus.duplicates import NamedCluster, cluster_of, describe_clusters
from autoscaler.adapters.prometheus.instant.client import MAX_ANSWER_BYTES, PrometheusClient
from autoscaler.adapters.prometheus.instant.query_round import QueryRound, values_by_metric
from autoscaler.adapters.prometheus.instant.server_clock import ServerClock
from autoscaler.adapters.prometheus.instant.unread_metrics import UnreadMetrics
from autoscaler.adapters.prometheus.owners import MAX_NAME
from autoscaler.adapters.prometheus.pod_labels import believed, names_pod, pod_name, scrape_of
from autoscaler.adapters.prometheus.promql.conventions import CONVENTIONS, convention_query, read_conventions
from autoscaler.adapters.prometheus.promql.engines import engine_presence, reporting_pods_query
from autoscaler.adapters.prometheus.promql.gpus import MAX_DEVICES, devices_query, pool_of
from autoscaler.adapters.prometheus.promql.labels import METRIC
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.series import is_moved, own_label
from autoscaler.catalog.spellings import all_spellings, engines_spelled
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet, Pool
from autoscaler.core.model.samples import Objectives, Samples, SourceReport
from autoscaler.ports import Clock, Unavailable

log = structlog.get_logger(__name__)

SOURCE = "discovery"
NO_PODS = (
    "series of engines have none, so each scrape target counts as a pod, and all targets of one job with one model as "
    "a workload; add the labels namespace and pod to tell more apart"
)
SOME_HAVE_NO_PODS = f"some {NO_PODS}"
SILENT = (
    "no engine of {} reports any more, and kube-state-metrics does not report its spec.replicas, so they count as zero"
)
UNKNOWN_READY = (
    "kube-state-metrics does not report kube_pod_status_ready, so a pod counts as ready if its engine reports; "
    "add it to the allow list"
)
MAX_SILENT = 100  # namespaces without engines that are still queried from kube-state-metrics
PERIOD_S = 10.0  # metrics are scraped every 15 or 30 s
_NOTHING = Vector(math.nan, [], np.empty(0))


class DiscoveredFleet:
    """A WorkloadSource over one server: `async with DiscoveredFleet(settings, clock) as workloads`.

    Discovery runs once on entering, and then every `PERIOD_S` in a task. Entering does not raise if the server is
    down; `fleet` raises until the server answers. It is also a SampleSource without readings, so that its problems are
    reported with those of other sources.
    """

    def __init__(
        self,
        settings: PrometheusSettings,
        clock: Clock,
        namespaces: Sequence[str] = (),
        gpus_per_replica: float = math.nan,
        *,
        tells_clusters: bool = True,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """namespaces: the only ones to search; () for all. gpus_per_replica: where no series tells.

        tells_clusters: report workloads that are of several clusters, and count as one. Raises ValueError as
        PrometheusClient does.
        """
        self._tells_clusters = tells_clusters
        self._client = PrometheusClient(settings, clock, max_answer_bytes=max_answer_bytes)
        self._clock = clock
        self._timeout_s = settings.timeout_s
        self._selector = settings.selector
        self._namespaces = frozenset(namespaces)
        self._spellings = all_spellings(settings.metric_prefixes)
        self._unread_metrics = UnreadMetrics(self._spellings, pods=True)
        self._server_clock = ServerClock()
        self._inventory = DiscoveredWorkloads(gpus_per_replica)
        self._clusters: dict[Name, set[NamedCluster]] = {}  # clusters named by series of each pod, in the last pass
        self._fleet: Fleet | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure = ""  # why the last pass failed; "" if it did not
        self._report = SourceReport(SOURCE)  # of the last pass, with all queries since the last `sample`

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self.refresh(self._timeout_s)
        except BaseException:  # Ctrl-C while a slow server is queried
            await self._client.__aexit__(None, None, None)
            raise
        self._task = asyncio.create_task(self._run(), name="discovery of workloads")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._client.__aexit__(kind, error, trace)

    def fleet(self) -> Fleet:
        """Return the latest snapshot. Raises Unavailable, with the reason, until a workload is found."""
        if self._fleet is None and self._failure:
            raise Unavailable(f"could not look for workloads: {self._failure}")
        if self._fleet is None:
            metrics = ", ".join(next(iter(engine.readings["running"])).name for engine in ENGINES.values())
            where = f" from namespace {' or '.join(sorted(self._namespaces))}" if self._namespaces else ""
            where += f" with the labels {self._selector}" if self._selector else ""
            no_engine = f"no engine reports metrics{where} to {self._client.name}, which has none of {metrics}"
            no_engine += self._unread_metrics.not_searched
            reason = "; ".join(self.problems) or no_engine
            raise Unavailable(f"no workloads found: {reason}")
        return self._fleet

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of the last pass, one line each."""
        return self._report.problems

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Report on the last pass. A failure of the complete server is left to the other sources."""
        report = replace(self._report, problems=() if self._failure else self.problems)
        self._report = replace(self._report, queries=0, failed=0)
        return Samples.unknown(len(fleet.workloads), len(fleet.pods), (report,))

    async def refresh(self, deadline_s: float) -> None:
        """Run discovery once, within `deadline_s` seconds. A failed pass keeps the snapshot and sets `problems`."""
        query_round = QueryRound(self._client, self._clock, deadline_s)
        succeeded = False
        try:
            succeeded = await self._update(query_round)
        except Exception as error:  # an unexpected answer must not end discovery
            log.error("discovery failed", exc_info=error)
            query_round.note("discovery", f"{type(error).__name__}: {clean(str(error))}")
        report, unreported = query_round.report(), self._report
        queries, failed = report.queries + unreported.queries, report.failed + unreported.failed
        self._report = replace(report, source=SOURCE, queries=queries, failed=failed)
        self._failure = "" if succeeded else query_round.reason

    async def _update(self, query_round: QueryRound) -> bool:
        """Update the inventory and the snapshot; return whether the queries succeeded."""
        result = await self._query(query_round)
        if result is None:
            return False
        self._inventory.update(result, query_round.started_s)
        fleet = self._inventory.fleet(query_round.started_s, self._server_clock.tick_s)
        self._fleet = fleet if fleet.workloads or self._fleet else None
        if silent := self._inventory.workloads_without_pods():
            more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
            query_round.note("engines", SILENT.format(f"{clean(str(silent[0]))}{more}"))
        if self._tells_clusters:
            self._report_clusters(query_round)
        if self._inventory.is_full():
            query_round.note(
                "discovery",
                f"no more than {MAX_WORKLOADS} workloads and {MAX_PODS} pods are followed, and half as many of which "
                "only other pods tell",
            )
        return True

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(PERIOD_S)
            began_s = self._clock.now_s()
            await self.refresh(self._timeout_s)
            # Reading many thousands of pods takes a second: leave nine tenths of the time to the event loop.
            await self._clock.sleep(9 * (self._clock.now_s() - began_s))

    async def _query(self, query_round: QueryRound) -> DiscoveryResult | None:
        """Run all queries; None if those for conventions or engines failed."""
        answer = await query_round.query(CONVENTIONS, convention_query(self._spellings))
        if answer is None:
            return None
        self._server_clock.update(answer)
        await self._unread_metrics.report(query_round)
        conventions = read_conventions(values_by_metric(answer.vector))
        table = engines_spelled(conventions.spellings).values()
        engines = await query_round.query("engines", reporting_pods_query(table))
        if engines is None:
            return None
        found = _read_engines(engines.vector, self._namespaces)
        if found.targets:
            query_round.note(CONVENTIONS, NO_PODS if len(found.targets) == len(found.reporting) else SOME_HAVE_NO_PODS)
        present = engine_presence(table)
        namespaces = {namespace for namespace, _ in found.reporting}
        silent = sorted(self._inventory.namespaces() - namespaces)[:MAX_SILENT]
        queries: dict[str, str] = {}
        if not found.targets or len(found.targets) < len(found.reporting):
            queries |= {"pods": pods_query(present, silent), "controllers": controllers_query(present, silent)}
        if conventions.gpus:
            queries["devices"] = devices_query()
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(query_round.query(name, query)) for name, query in queries.items()}
        answers = {name: each.vector for name, task in tasks.items() if (each := task.result()) is not None}
        vectors = answer.vector, engines.vector, *answers.values()
        self._clusters = found.clusters
        odd: dict[str, None] = {}
        pods = read_pods(answers.get("pods", _NOTHING), odd)
        knows_ready = any(pod.ready is not None for pod in pods.values())
        if not knows_ready and found.reporting.keys() & pods.keys():
            query_round.note("pods", UNKNOWN_READY)
        if found.unassigned:
            query_round.note("engines", _describe_unassigned(found.unassigned))
        controllers = read_controllers(answers.get("controllers", _NOTHING), odd)
        gpus = _devices(answers.get("devices", _NOTHING), odd)
        for problem in odd:
            query_round.note("pods", problem)
        return DiscoveryResult(
            reporting=found.reporting,
            told=frozenset(found.told),
            pods=pods,
            knows_ready=knows_ready,
            controllers=controllers,
            gpus=gpus,
            complete=len(answers) == len(queries)
            and not query_round.left_out
            and not any(vector.partial for vector in vectors),
            targets=frozenset(found.targets),
        )

    def _report_clusters(self, query_round: QueryRound) -> None:
        """Report workloads with pods in several clusters, which count as one workload."""
        of_workload: dict[Name, set[NamedCluster]] = {}
        for name, clusters in self._clusters.items():
            if ref := self._inventory.owner(name):
                of_workload.setdefault((ref.namespace, ref.name), set()).update(clusters)
        if several := {name: clusters for name, clusters in of_workload.items() if len(clusters) > 1}:
            query_round.note("engines", describe_clusters("workload", several))


class _Engines(NamedTuple):
    """The pods that report engines."""

    reporting: dict[Name, tuple[str, str]]  # engine and model, by pod
    told: set[Name]  # those of them that are not scraped, of which another pod tells
    targets: set[Name]  # those of them that are scrape targets without a pod
    clusters: dict[Name, set[NamedCluster]]  # clusters that series of a pod name
    unassigned: dict[
        tuple[str, str], float
    ]  # running requests of series without a pod or target, by namespace and model


def _read_engines(vector: Vector, namespaces: Set[str]) -> _Engines:
    """Read the answer to `reporting_pods_query`. namespaces: the only ones to search; empty for all.

    Any pod may expose series about another one, so they do not count where that one is scraped itself.
    """
    found = _Engines({}, set(), set(), {}, {})
    series = [(parse_labels(raw), running) for raw, running in zip(vector.labels, vector.values.tolist(), strict=True)]
    for labels, running in sorted(series, key=lambda each: is_moved(each[0])):
        name = pod_name(labels)
        model = own_label(labels, "model_name") or own_label(labels, "model")
        engine_and_model = labels.get(METRIC, ""), model[:MAX_NAME]
        if not name[1]:
            key = labels.get("namespace", ""), engine_and_model[1]
            found.unassigned[key] = found.unassigned.get(key, 0.0) + (running if math.isfinite(running) else 0.0)
        if not name[1] or (namespaces and name[0] not in namespaces) or not _is_name(name):
            continue
        if is_moved(labels) and name not in found.told:
            if name in found.reporting:
                continue
            found.told.add(name)
        found.reporting[name] = min(
            found.reporting.get(name, engine_and_model), engine_and_model
        )  # of several models in one pod, always the same one
        if not names_pod(labels):
            found.targets.add(name)
        if cluster := cluster_of(labels):
            found.clusters.setdefault(name, set()).add(cluster)
    return found


def _describe_unassigned(unassigned: Mapping[tuple[str, str], float]) -> str:
    (namespace, model), running = max(unassigned.items(), key=lambda item: (item[1], item[0]))
    of = f"of model {clean(model)}" if model else "of an engine"
    inside = f" in namespace {clean(namespace)}" if namespace else ""
    more = f", and of {len(unassigned) - 1} more models," if len(unassigned) > 1 else ""
    return (
        f"series {of}{inside}{more} name neither a pod with its namespace nor a scrape target, so {running:g} running "
        "requests count for no workload: keep the labels namespace and pod"
    )


def _is_name(name: Name) -> bool:
    """Return whether Kubernetes could have such a name. Others would fill lines and memory."""
    return all(len(part) <= MAX_NAME and part.isprintable() for part in name)


def _devices(vector: Vector, problems: dict[str, None]) -> dict[Name, Counter[Pool]]:
    """Return how many devices each pod holds, by pool. Contradictions are told in `problems`."""
    told: dict[str, dict[str, dict[Name, Counter[Pool]]]] = {}  # by namespace and scrape
    for raw, count in zip(vector.labels, vector.values.tolist(), strict=True):
        if not 1 <= count <= MAX_DEVICES:  # also true for NaN
            continue
        labels = parse_labels(raw)
        pool, name = pool_of(labels), pod_name(labels)
        counted = told.setdefault(name[0], {}).setdefault(scrape_of(labels), {}).setdefault(name, Counter())
        counted[pool] = max(counted[pool], int(count))  # two exporters may name the pod by different labels
    return {name: pools for held in believed(told, "GPUs", problems) for name, pools in held.items()}
