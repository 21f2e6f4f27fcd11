"""Parts of the loop that commands share. Only the package `app` chooses concrete classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import structlog

from autoscaler.adapters.engine_sleep import EngineSleep
from autoscaler.adapters.in_memory import AlwaysLeading, RecordingActuator
from autoscaler.adapters.keda.answers import Answers
from autoscaler.adapters.keda.metrics import Calls, KedaCollector
from autoscaler.adapters.keda.server import KedaServer
from autoscaler.adapters.keda.service import KedaService
from autoscaler.adapters.kubernetes.api.client import Kube, own_namespace
from autoscaler.adapters.kubernetes.deletion_costs import CostsBefore, DeletionCosts
from autoscaler.adapters.kubernetes.events import EventRecorder
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.leader_election import Elector
from autoscaler.adapters.kubernetes.node_requests.reconciler import NodeRequester
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.scale import ScaleActuator
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.adapters.kubernetes.weights.publisher import WishPublisher
from autoscaler.adapters.model_files import ModelSizes
from autoscaler.adapters.prometheus.instant.gateways import WakeUpQuery
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.adapters.prometheus.range.recent import RecentHistory
from autoscaler.adapters.record.timeline import read_timeline
from autoscaler.adapters.scrape.gateways import GatewayScraper
from autoscaler.adapters.scrape.gpus import DcgmScraper
from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.adapters.state_file import StateFile
from autoscaler.adapters.web.dashboard import Dashboard
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.adapters.web.readiness import Readiness, by_name
from autoscaler.adapters.web.server import HttpServer
from autoscaler.app.record import PolicyWatch, open_writer
from autoscaler.app.report_page import page_of_record
from autoscaler.config.policy.compile import stated_weights_gb
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.policy.reload import PolicyFiles, Reload
from autoscaler.config.prices import Prices
from autoscaler.config.quotas import QuotaFiles, StatedQuota
from autoscaler.config.settings import Mode, NodeRequests, ScrapeSettings, Settings
from autoscaler.config.system_namespaces import SystemNamespaces
from autoscaler.core.explain.sentence import explain as explain_row
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.daemon.checkpoint import Checkpointer
from autoscaler.daemon.loop import Loop, Parts, follower_period_s
from autoscaler.daemon.past_week import PastWeek
from autoscaler.daemon.warm_start import WarmStart
from autoscaler.ports import Clock, Leadership, ManualOverrides, SampleSource

log = structlog.get_logger(__name__)

MAX_PROBLEMS = 50
"""Problems of each kind in the answer of /readyz."""

Background = tuple[str, Callable[[], Coroutine[Any, Any, None]]]


@dataclass(kw_only=True)
class LoopParts(Parts):
    """The parts of a loop that differ between commands and modes, and what runs beside it."""

    sources: list[SampleSource]
    policies: PolicyFiles
    leadership: Leadership = field(default_factory=AlwaysLeading)
    background: list[Background] = field(default_factory=list)
    manual_overrides: ManualOverrides | None = None
    detail: Callable[[], dict[str, Any]] = dict  # further facts for /readyz
    page: str = ""  # URL, once HTTP is served


async def open_sources(
    stack: AsyncExitStack, settings: Settings, clock: Clock, policies: PolicyFiles
) -> list[SampleSource]:
    """Open the metrics sources. If several provide a reading, the earlier source wins."""
    sources: list[SampleSource] = []
    if settings.scrape:
        if settings.scrape.pods:
            sources.append(await stack.enter_async_context(PodScraper(settings.scrape, clock)))
        if settings.scrape.dcgm:
            sources.append(await stack.enter_async_context(DcgmScraper(settings.scrape, clock)))
        if settings.scrape.gateways:
            sources.append(await stack.enter_async_context(GatewayScraper(settings.scrape, clock)))
    if settings.prometheus:
        prometheus = PrometheusSource(
            settings.prometheus,
            clock,
            wake_up_queries=lambda: _wakeups(policies.book),
            gateway_namespaces=settings.gateway_namespaces,
        )
        sources.append(await stack.enter_async_context(prometheus))
    return sources


def _wakeups(book: PolicyBook) -> tuple[WakeUpQuery, ...]:
    return tuple(WakeUpQuery(name, query, name == book.default) for name, query in book.wakeup_queries().items())


async def connect_cluster(
    stack: AsyncExitStack,
    settings: Settings,
    clock: Clock,
    policies: PolicyFiles,
    sources: list[SampleSource],
    metrics: Metrics,
) -> LoopParts:
    """Watch the cluster, and build the actuator of the mode. `KubeFleet` decides what is watched in which mode."""
    assert settings.kube
    kube = await stack.enter_async_context(Kube.connect(settings.kube))
    writes = OwnWrites(clock, settings.lease.installation)
    woken = asyncio.Event()
    elected = settings.lease.enabled and settings.mode is not Mode.DRY_RUN
    elector = Elector(kube, settings.lease, clock, woken, _watches(settings)) if elected else None
    quotas = QuotaFiles(settings.quotas, clock) if settings.quotas else None
    scope = Scope(
        mode=settings.mode,
        namespaces=settings.namespaces,
        target_kinds=settings.target_kinds,
        node_group_max=dict(settings.node_group_max),
        team_label=settings.team_label,
        stated_quotas=_reloading_quotas(quotas) if quotas is not None else tuple,
        weights_gb=lambda workload: stated_weights_gb(workload, policies.book),
        with_caches=settings.weights,
        system=SystemNamespaces({*settings.system_namespaces, *settings.namespaces}, own_namespace()),
    )
    fleet = KubeFleet(kube, clock, scope, writes, elector, woken)
    parts = LoopParts(
        clock=clock,
        workloads=fleet,
        sources=sources,
        actuator=RecordingActuator(),
        policies=policies,
        woken=woken,
        background=[("cluster", fleet.run)],
        fetches_weights=settings.weights and settings.mode is not Mode.DRY_RUN,
    )
    cluster = _Cluster(kube, fleet, writes.manager, [fleet.problems], [])
    parts.problems = lambda: _joined(*(problems() for problems in cluster.of_workloads))
    parts.detail = lambda: _cluster_detail(cluster, parts.problems(), quotas)
    publisher = _plan_weights(parts, cluster, settings, elector or parts.leadership) if settings.weights else None
    if elector is not None:
        cluster.problems.append(lambda: elector.problem)
    if settings.mode is Mode.DRY_RUN:
        return parts

    if elector is not None:
        elector.counts = fleet.manual_overrides if settings.mode is Mode.DIRECT else None
        parts.leadership = elector
        parts.background.append(("leader election", elector.run))
    sleeper = EngineSleep(settings.scrape or ScrapeSettings(), clock, parts.leadership)
    parts.sleeper = await stack.enter_async_context(sleeper)
    cluster.of_workloads.append(sleeper.problems)
    events = EventRecorder(kube, clock)
    parts.recorders.append(events)
    parts.background.append(("events", events.run))
    _request_nodes(parts, cluster, settings, publisher)
    costs = None
    if settings.deletion_cost:
        costs = DeletionCosts(
            kube, clock, fleet.deletion_cost, parts.leadership, writes.manager, metrics.count_deletion_cost
        )
    if settings.mode is Mode.DIRECT:
        parts.actuator = ScaleActuator(kube, writes, parts.leadership, fleet.kinds, costs)
        parts.manual_overrides = fleet.manual_overrides
    else:
        await _answer_keda(stack, parts, cluster, settings, metrics, costs)
    return parts


class _Cluster(NamedTuple):
    """A cluster that is watched, and what is told of it."""

    kube: Kube
    fleet: KubeFleet
    manager: str  # of the fields that this installation owns
    of_workloads: list[Callable[[], Mapping[WorkloadRef, str]]]  # return problems of workloads
    problems: list[Callable[[], str]]  # return a problem of the whole process each, or ""


def _request_nodes(parts: LoopParts, cluster: _Cluster, settings: Settings, publisher: WishPublisher | None) -> None:
    """Request nodes ahead where that is turned on, else remove what was requested when it was."""
    requester = NodeRequester(
        cluster.kube,
        parts.clock,
        settings.node_requests or NodeRequests(),
        settings.lease,
        cluster.manager,
        cluster.fleet.needs_of,
        parts.leadership,
        cluster.fleet.image_of,
        warmed=lambda: publisher.warmed if publisher is not None else {},
    )
    if settings.node_requests is None:
        parts.background.append(("former node requests", requester.remove_leftovers))
        return
    parts.recorders.append(requester)
    parts.requests_nodes = requester.can_request
    parts.background.append(("node requests", requester.run))
    cluster.problems.append(lambda: requester.problem)


async def _answer_keda(
    stack: AsyncExitStack,
    parts: LoopParts,
    cluster: _Cluster,
    settings: Settings,
    metrics: Metrics,
    costs: DeletionCosts | None,
) -> None:
    """Answer the calls of KEDA, which sets the counts."""
    assert settings.keda
    answers, calls = Answers(parts.clock, parts.leadership), Calls()
    parts.actuator = CostsBefore(answers, costs, parts.clock) if costs is not None else answers
    parts.recorders.append(answers)
    metrics.registry.register(KedaCollector(answers, calls))
    service = KedaService(answers, cluster.fleet, lambda: parts.policies.book)
    server = await stack.enter_async_context(KedaServer(settings.keda, service, parts.leadership, calls))
    cluster.of_workloads.extend((lambda: answers.zero_risks, answers.refusals.by_workload))
    of_cluster = parts.detail
    parts.detail = lambda: {
        **of_cluster(),
        "keda_problem": server.problem,
        "keda_refused": answers.refusals.unknown()[:MAX_PROBLEMS],
    }


def _plan_weights(parts: LoopParts, cluster: _Cluster, settings: Settings, leadership: Leadership) -> WishPublisher:
    """Add the plan of weights, which is published in the namespace of the Lease. In dry-run it is only shown."""
    fleet = cluster.fleet
    publisher = WishPublisher(
        cluster.kube,
        parts.clock,
        fleet.inventory,
        fleet.weights.reports,
        leadership,
        settings.lease.namespace,
        cluster.manager,
        publishes=settings.mode is not Mode.DRY_RUN,
        local_models=fleet.local_models,
        may_pin=lambda namespace: (limits := parts.policies.book.limits) is None or limits.may_pin_weights(namespace),
        rules=settings.weights_sources,
    )
    fleet.weights.published = publisher.published
    if settings.weights_hub:
        fleet.weights.index = sizes = ModelSizes(parts.clock, settings.weights_hub, settings.weights_sources.allows)
        parts.background.append(("sizes of weights", sizes.run))
    parts.recorders.append(publisher)
    parts.background.append(("weights", publisher.run))
    return publisher


def _watches(settings: Settings) -> str:
    """Describe the scope of this process; all replicas of an installation have the same one."""
    namespaces = ", ".join(sorted(set(settings.namespaces))) or "all namespaces"
    return f"{namespaces} in {settings.mode.value} mode"


def _joined(*of_workloads: Mapping[WorkloadRef, str]) -> dict[WorkloadRef, str]:
    """Merge problems of workloads, in this order."""
    merged: dict[WorkloadRef, str] = {}
    for problems in of_workloads:
        for ref, problem in problems.items():
            merged[ref] = f"{merged[ref]}; {problem}" if merged.get(ref) else problem
    return merged


def _cluster_detail(
    cluster: _Cluster, problems: Mapping[WorkloadRef, str], quotas: QuotaFiles | None
) -> dict[str, Any]:
    fleet, of_process = cluster.fleet, [problem() for problem in cluster.problems]
    in_file = quotas.problem.splitlines() if quotas is not None else []
    return {
        "cluster_problems": [*filter(None, of_process), *fleet.watch_problems()][:MAX_PROBLEMS],
        "workload_problems": by_name(problems, MAX_PROBLEMS),
        "obstructed_workloads": by_name(fleet.obstructed(), MAX_PROBLEMS),
        "pool_limits": fleet.limits()[:MAX_PROBLEMS],
        "unlisted_kinds": fleet.unlisted_kinds(),
        "quota_problems": [*in_file, *fleet.quota_problems()][:MAX_PROBLEMS],
    }


async def build_loop(
    stack: AsyncExitStack, parts: LoopParts, settings: Settings, metrics: Metrics | None = None, mode: str = ""
) -> Loop:
    """Build the loop with its recorders and its HTTP server."""
    mode = mode or settings.mode.value
    metrics = metrics or Metrics(mode)
    reloaded, record = _reloading(parts.policies, metrics), None
    if settings.record:
        record = await open_writer(stack, settings.record, metrics.count_lost_ticks)
        parts.recorders.append(record)
        parts.keeps_memories = True
        watch = PolicyWatch(record, parts.clock, parts.policies.book)
        reloaded = _reloading(parts.policies, metrics, watch.loaded)
    prices = Prices(dict(settings.prices))
    if settings.http:
        dashboard = Dashboard(explain_row)
        readiness = Readiness(
            parts.clock,
            2 * settings.period_s + settings.tick_deadline_s,
            lambda: {
                "policy_problem": parts.policies.problem,
                "price_problems": prices.problems[:MAX_PROBLEMS],
                "record_problem": record.problem if record is not None else "",
                **parts.detail(),
            },
            2 * follower_period_s(settings.period_s) + settings.tick_deadline_s,
        )
        parts.recorders += [dashboard, metrics, readiness]
        folder = settings.record.folder if settings.record else None
        server = HttpServer(
            settings.http,
            dashboard=dashboard,
            metrics=metrics,
            readiness=readiness,
            mode=mode,
            timeline=partial(read_timeline, folder) if folder else None,
            report=partial(page_of_record, folder) if folder else None,
        )
        await stack.enter_async_context(server)
        parts.page = server.url
    return Loop(
        parts,
        policies=reloaded,
        period_s=settings.period_s,
        deadline_s=settings.tick_deadline_s,
        prices=prices,
    )


async def restore_memory(
    loop: Loop, parts: LoopParts, settings: Settings, saved: Callable[[float], None] = lambda _wall_s: None
) -> None:
    """Load what was learned before: from the state file, otherwise from history. The load of a week is from both."""
    store = StateFile(settings.state) if settings.state else None
    history = RecentHistory(settings.prometheus, parts.clock) if settings.prometheus and settings.history else None
    warm_start = WarmStart(history, parts.workloads, lambda: parts.policies.book, parts.clock) if history else None
    checkpointer = Checkpointer(
        loop, parts.clock, store, warm_start.learn if warm_start else None, saved, parts.manual_overrides
    )
    await checkpointer.begin()
    parts.background.append(("state", checkpointer.run))
    if history:
        past_week = PastWeek(loop, history, parts.workloads, parts.clock, checkpointer.wait_restored)
        parts.background.append(("past week", past_week.run))


def _reloading(
    files: PolicyFiles, metrics: Metrics, on_loaded: Callable[[PolicyBook], None] = lambda _book: None
) -> Callable[[], PolicyBook]:
    """Return a function that returns the present policies and reloads them when their files change."""

    def current() -> PolicyBook:
        match files.poll():
            case Reload.LOADED:
                log.info("policies reloaded", policies=sorted(files.book.policies))
                metrics.set_policy_problems(0)
                on_loaded(files.book)
            case Reload.BROKEN:
                log.error("policies are invalid; the previous ones stay in force", problem=files.problem)
                metrics.set_policy_problems(len(files.problem.splitlines()))
            case Reload.UNCHANGED:
                pass
        return files.book

    return current


def _reloading_quotas(files: QuotaFiles) -> Callable[[], tuple[StatedQuota, ...]]:
    """Return a function that returns the present quotas of a file and reloads them when it changes."""

    def current() -> tuple[StatedQuota, ...]:
        match files.poll():
            case Reload.LOADED:
                log.info("quotas reloaded", quotas=[quota.name for quota in files.content][:MAX_PROBLEMS])
            case Reload.BROKEN:
                log.error("quotas are invalid; the previous ones stay in force", problem=files.problem)
            case Reload.UNCHANGED:
                pass
        return files.content

    return current


async def run_loop(loop: Loop, parts: LoopParts) -> None:
    """Run the loop and its background tasks; a failure of one ends all.

    The loop ends first, so that no change is in progress when the lease is released.
    """
    async with asyncio.TaskGroup() as group:
        for name, work in parts.background:
            group.create_task(work(), name=name)
        await loop.run()
