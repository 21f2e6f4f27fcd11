"""Workloads found from the labels of metrics, for a dry run with nothing but a Prometheus URL.

A workload is what owns pods from which an engine reports. Owners, readiness, times and spec.replicas come from
kube-state-metrics where it is scraped; else the owner is read from the pod's name, and the pods that report are the
ready ones. A workload that has had no pod since the daemon started is not found: nothing in the metrics names it.
Where series of an engine name no pod, their scrape targets stand for pods, and all that serve one model in one job are
a workload.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import structlog

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.discovery.inventory import MAX_PODS, MAX_WORKLOADS, Roster, Sighting
from autoscaler.adapters.prometheus.discovery.kube_state import (
    Name,
    controllers_query,
    pods_query,
    read_controllers,
    read_pods,
)
from autoscaler.adapters.prometheus.duplicates import Cluster, cluster_of, tell_clusters
from autoscaler.adapters.prometheus.instant.client import PrometheusClient
from autoscaler.adapters.prometheus.instant.query_round import Sampling, by_name
from autoscaler.adapters.prometheus.instant.server_clock import ServerClock
from autoscaler.adapters.prometheus.instant.unread_metrics import NearMisses
from autoscaler.adapters.prometheus.pod_labels import names_pod, pod_name
from autoscaler.adapters.prometheus.promql.conventions import CONVENTIONS, convention_query, read_conventions
from autoscaler.adapters.prometheus.promql.engines import engines_presence, seen_engines_query
from autoscaler.adapters.prometheus.promql.gpus import devices_query
from autoscaler.adapters.prometheus.promql.labels import METRIC
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.series import own_label
from autoscaler.catalog.spellings import all_spellings, engines_spelled
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet, Pool
from autoscaler.core.model.samples import Objectives, Samples, SourceReport
from autoscaler.ports import Clock, Unavailable

log = structlog.get_logger(__name__)

SOURCE = "discovery"
NO_PODS = (
    "series of engines have none, so each scrape target counts as a pod, and all that serve one model in one job as a "
    "workload; the labels namespace and pod would tell more"
)
SOME_HAVE_NO_PODS = f"some {NO_PODS}"
SILENT = (
    "no engine of {} reports any more, and kube-state-metrics does not say how many replicas there should be: "
    "that is taken for zero"
)
MAX_SILENT = 100  # namespaces in which no engine reports any more, and that are named to kube-state-metrics
PERIOD_S = 10.0  # metrics are scraped every 15 or 30 s
MAX_DEVICES = 1024  # of one pod; no node has more
_NOTHING = Vector(math.nan, [], np.empty(0))


class DiscoveredFleet:
    """A WorkloadSource over one server: `async with DiscoveredFleet(settings, clock) as workloads`.

    It looks once on entering, and then every `PERIOD_S` in a task of its own. Entering does not raise when the server
    is down: `fleet` says so until it is there. It is also a SampleSource that reads nothing, so that its problems are
    told where those of readings are.
    """

    def __init__(self, settings: PrometheusSettings, clock: Clock, namespaces: Sequence[str] = ()) -> None:
        """namespaces: look for workloads in these alone; none: in all. Raises ValueError as PrometheusClient does."""
        self._client = PrometheusClient(settings, clock)
        self._clock = clock
        self._timeout_s = settings.timeout_s
        self._selector = settings.selector
        self._namespaces = frozenset(namespaces)
        self._spellings = all_spellings(settings.metric_prefixes)
        self._near_misses = NearMisses(self._spellings, pods=True)
        self._server_clock = ServerClock()
        self._roster = Roster()
        self._clusters: dict[Name, set[Cluster]] = {}  # of the last look: clusters that series of each pod name
        self._fleet: Fleet | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure = ""  # why the last look brought nothing; "": it brought something
        self._report = SourceReport(SOURCE)  # of the last look, with the queries since it was given on

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self.refresh(self._timeout_s)
        except BaseException:  # Ctrl-C while a slow server is asked
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
        """Return the latest snapshot. Raises Unavailable, with the reason, until a workload was found."""
        if self._fleet is None and self._failure:
            raise Unavailable(f"could not look for workloads: {self._failure}")
        if self._fleet is None:
            sought = ", ".join(next(iter(engine.readings["running"])).name for engine in ENGINES.values())
            where = f" from namespace {' or '.join(sorted(self._namespaces))}" if self._namespaces else ""
            where += f" with the labels {self._selector}" if self._selector else ""
            nobody = f"no engine reports metrics{where} to {self._client.name}, which has none of {sought}"
            nobody += self._near_misses.unasked
            reason = "; ".join(self.problems) or nobody
            raise Unavailable(f"no workloads found: {reason}")
        return self._fleet

    @property
    def problems(self) -> tuple[str, ...]:
        """What was wrong with the last look, one line each."""
        return self._report.problems

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Tell how the last look fared, but for a failure that all readings share."""
        report = replace(self._report, problems=() if self._failure else self.problems)
        self._report = replace(self._report, queries=0, failed=0)
        return Samples.nothing(len(fleet.workloads), len(fleet.pods), (report,))

    async def refresh(self, deadline_s: float) -> None:
        """Look again, within so many seconds. What fails leaves the snapshot as it was, and `problems` tell."""
        sampling = Sampling(self._client, self._clock, deadline_s)
        looked = False
        try:
            looked = await self._take_in(sampling)
        except Exception as error:  # the boundary of a look: an odd answer must not end all later ones
            log.error("discovery failed", exc_info=error)
            sampling.note("discovery", f"{type(error).__name__}: {clean(str(error))}")
        report, untold = sampling.report(), self._report
        queries, failed = report.queries + untold.queries, report.failed + untold.failed
        self._report = replace(report, source=SOURCE, queries=queries, failed=failed)
        self._failure = "" if looked else sampling.reason

    async def _take_in(self, sampling: Sampling) -> bool:
        """Look, and return whether anything could be seen."""
        sighting = await self._look(sampling)
        if sighting is None:
            return False
        self._roster.update(sighting, sampling.started_s)
        fleet = self._roster.fleet(sampling.started_s, self._server_clock.tick_s)
        self._fleet = fleet if fleet.workloads or self._fleet else None
        if silent := self._roster.silent():
            more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
            sampling.note("engines", SILENT.format(f"{clean(str(silent[0]))}{more}"))
        self._tell_clusters(sampling)
        if self._roster.full():
            sampling.note("discovery", f"no more than {MAX_WORKLOADS} workloads and {MAX_PODS} pods are followed")
        return True

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(PERIOD_S)
            began_s = self._clock.now_s()
            await self.refresh(self._timeout_s)
            # A fleet of many thousands takes a second to read: leave the loop nine tenths of the time.
            await self._clock.sleep(9 * (self._clock.now_s() - began_s))

    async def _look(self, sampling: Sampling) -> Sighting | None:
        """Ask everything; None where not even the engines are known."""
        conventions = await sampling.ask(CONVENTIONS, convention_query(self._spellings))
        if conventions is None:
            return None
        self._server_clock.hear(conventions)
        await self._near_misses.tell(sampling)
        found = read_conventions(by_name(conventions.vector))
        table = engines_spelled(found.spellings).values()
        engines = await sampling.ask("engines", seen_engines_query(table))
        if engines is None:
            return None
        seen = _read_engines(engines.vector, self._namespaces)
        if seen.targets:
            sampling.note(CONVENTIONS, NO_PODS if len(seen.targets) == len(seen.reporting) else SOME_HAVE_NO_PODS)
        present = engines_presence(table)
        namespaces = {namespace for namespace, _ in seen.reporting}
        silent = sorted(self._roster.namespaces() - namespaces)[:MAX_SILENT]
        queries: dict[str, str] = {}
        if not seen.targets or len(seen.targets) < len(seen.reporting):
            queries |= {"pods": pods_query(present, silent), "controllers": controllers_query(present, silent)}
        if found.gpus:
            queries["devices"] = devices_query()
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(sampling.ask(name, query)) for name, query in queries.items()}
        answers = {name: answer.vector for name, task in tasks.items() if (answer := task.result()) is not None}
        vectors = conventions.vector, engines.vector, *answers.values()
        self._clusters = seen.clusters
        return Sighting(
            reporting=seen.reporting,
            pods=read_pods(answers.get("pods", _NOTHING)),
            controllers=read_controllers(answers.get("controllers", _NOTHING)),
            gpus=_devices(answers.get("devices", _NOTHING)),
            whole=len(answers) == len(queries) and not any(vector.partial for vector in vectors),
            targets=frozenset(seen.targets),
        )

    def _tell_clusters(self, sampling: Sampling) -> None:
        """Say which workloads have pods in several clusters: they are taken for one."""
        of_workload: dict[Name, set[Cluster]] = {}
        for name, clusters in self._clusters.items():
            if ref := self._roster.owner(name):
                of_workload.setdefault((ref.namespace, ref.name), set()).update(clusters)
        if several := {name: clusters for name, clusters in of_workload.items() if len(clusters) > 1}:
            sampling.note("engines", tell_clusters("workload", several))


class _Seen(NamedTuple):
    """From which pods engines report."""

    reporting: dict[Name, tuple[str, str]]  # engine and model of each
    targets: set[Name]  # of these, scrape targets whose series name no pod
    clusters: dict[Name, set[Cluster]]  # that series of a pod name


def _read_engines(vector: Vector, namespaces: Set[str]) -> _Seen:
    """Read the answer to `seen_engines_query`. namespaces: to look in; none: all."""
    seen = _Seen({}, set(), {})
    for raw in vector.labels:
        labels = parse_labels(raw)
        name = pod_name(labels)
        told = labels.get(METRIC, ""), own_label(labels, "model_name") or own_label(labels, "model")
        if not name[1] or (namespaces and name[0] not in namespaces):
            continue
        seen.reporting[name] = min(seen.reporting.get(name, told), told)  # several models in one pod: always the same
        if not names_pod(labels):
            seen.targets.add(name)
        if cluster := cluster_of(labels):
            seen.clusters.setdefault(name, set()).add(cluster)
    return seen


def _devices(vector: Vector) -> dict[Name, Counter[Pool]]:
    """Return how many devices each pod holds, by pool."""
    held: dict[Name, Counter[Pool]] = {}
    for raw, count in zip(vector.labels, vector.values.tolist(), strict=True):
        if not 1 <= count <= MAX_DEVICES:  # nor does NaN pass
            continue
        labels = parse_labels(raw)
        profile = labels.get("GPU_I_PROFILE", "")
        resource = f"nvidia.com/mig-{profile}" if profile else "nvidia.com/gpu"
        pool = Pool(resource, labels.get("modelName", "").replace(" ", "-"))  # as GPU feature discovery writes it
        counted = held.setdefault(pod_name(labels), Counter())
        counted[pool] = max(counted[pool], int(count))  # by another exporter, whose labels name the pod otherwise
    return held
