"""The only place that picks concrete classes: what each command is made of, its start-up, tasks and shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.console import ChangeLines, JsonLines, LiveTable, leave_standard_output, printing
from autoscaler.adapters.in_memory import AlwaysLeading, RecordingActuator
from autoscaler.adapters.keda.answers import Answers
from autoscaler.adapters.keda.check import check_scaled_object
from autoscaler.adapters.keda.metrics import Calls, KedaCollector
from autoscaler.adapters.keda.server import CannotServe, KedaServer
from autoscaler.adapters.keda.service import KedaService
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.events import EventRecorder
from autoscaler.adapters.kubernetes.fleet import NEEDED, KubeFleet
from autoscaler.adapters.kubernetes.leader_election import Elector
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.scale import ScaleActuator
from autoscaler.adapters.prometheus.discovery.discovered_fleet import DiscoveredFleet
from autoscaler.adapters.prometheus.instant.gateways import FrontQuery
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.adapters.prometheus.range.recent import RecentHistory
from autoscaler.adapters.scrape.gateways import GatewayScraper
from autoscaler.adapters.scrape.gpus import DcgmScraper
from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.adapters.state_file import StateFile
from autoscaler.adapters.web import client
from autoscaler.adapters.web.board import Board
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.adapters.web.readiness import Readiness, by_name
from autoscaler.adapters.web.server import CannotListen, HttpServer
from autoscaler.config.check.files import check as check_files
from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.parse import PolicyBook, read_policies, shipped
from autoscaler.config.policy.reload import PolicyFiles, Reload
from autoscaler.config.prices import Prices
from autoscaler.config.settings import HttpSettings, Mode, ScrapeSettings, Settings
from autoscaler.core.explain.sentence import explain as explain_row
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.daemon.checkpoint import Keeper
from autoscaler.daemon.log import LogRecorder
from autoscaler.daemon.loop import Loop
from autoscaler.daemon.warm_start import LookBack
from autoscaler.ports import (
    Actuator,
    Clock,
    Holds,
    Leadership,
    Recorder,
    SampleSource,
    Unavailable,
    Unwritable,
    WorkloadSource,
)
from autoscaler.sim.demo.clock import CompressedClock
from autoscaler.sim.demo.serve import SimulatedFleet
from autoscaler.sim.demo.world import POLICIES as DEMO_POLICIES
from autoscaler.sim.demo.world import world

log = structlog.get_logger(__name__)

LISTED_S, LOOK_S = 15.0, 0.1
"""How long `dry-run --once` waits for the cluster to be listed, and how often it looks."""

MAX_TOLD = 50
"""Problems told in /readyz, of each kind."""

DEMO_PERIOD_S = 15.0
"""Simulated seconds between ticks: a quarter of a real second at the default speed."""

Background = tuple[str, Callable[[], Coroutine[Any, Any, None]]]


class StartError(Exception):
    """The daemon cannot start: bad policies, a port that is taken, a cluster that cannot be reached."""


def configure_log(style: str, level: str) -> None:
    """Write the log to standard error, as JSON lines or for people."""
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    renderer: Any = structlog.processors.JSONRenderer() if style == "json" else console
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([structlog.processors.format_exc_info] if style == "json" else []),
    ]
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    libraries = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    libraries.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[remove, *processors, renderer]))
    logging.basicConfig(level=logging.ERROR, handlers=[libraries])


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: direct scrape keeps a connection to every pod."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def until_signalled(work: Awaitable[int | None], *, endless: bool) -> int:
    """Run until the work ends, or SIGINT or SIGTERM ask for an orderly end. Returns the exit code.

    endless: the work ends by a signal alone, which is then no failure; else the code tells that it was cut short.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    heard: list[int] = []

    def stop(number: int) -> None:
        heard.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task or 0
    except asyncio.CancelledError:
        return 128 + heard[0] if heard and not endless else 0
    except (CannotListen, CannotServe, PolicyError, Unavailable, ValueError) as error:
        raise StartError(str(error)) from error
    except BrokenPipeError:
        leave_standard_output()  # whoever read it has seen enough, as `head` does
        return 0
    except BaseExceptionGroup as errors:
        if errors.split((BrokenPipeError, Unwritable))[1] is not None:
            raise
        leave_standard_output()
        if full := errors.subgroup(Unwritable):
            raise StartError(str(_first(full))) from errors
        return 0


def _first(error: BaseException) -> BaseException:
    """Return the first of the errors that a group is of, however deep."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass
class Parts:
    """What the loop is put together from; everything that differs between the ways to run."""

    clock: Clock
    workloads: WorkloadSource
    sources: list[SampleSource]
    actuator: Actuator
    policies: PolicyFiles
    leadership: Leadership = field(default_factory=AlwaysLeading)
    recorders: list[Recorder] = field(default_factory=list)
    background: list[Background] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    holds: Holds | None = None
    detail: Callable[[], dict[str, Any]] = dict  # further facts for /readyz
    problems: Callable[[], Mapping[WorkloadRef, str]] = dict  # of workloads, in words
    page: str = ""  # URL, once HTTP is served


async def run(settings: Settings) -> int:
    """Run in a cluster: direct patches replicas, keda answers KEDA, dry-run records."""
    allow_many_connections()
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        policies = PolicyFiles(settings.policies, clock, settings.default_policy)
        sources = await _sources(stack, settings, clock, policies)
        leads = settings.mode is not Mode.DRY_RUN
        metrics = Metrics(settings.mode.value, settings.lease.installation if leads else "")
        parts = await _in_cluster(stack, settings, clock, policies, sources, metrics)
        parts.recorders.append(LogRecorder())
        loop = await _assemble(stack, parts, settings, metrics)
        log.info("serving HTTP", url=parts.page)
        await _remember(loop, parts, settings, metrics.set_state_saved)
        await _run(loop, parts)
    return 0


async def dry_run(settings: Settings, *, as_json: bool, once: bool) -> int:
    """Recommend from metrics; with cluster access for the real objects. Prints, and changes nothing."""
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        policies = PolicyFiles(settings.policies, clock, settings.default_policy)
        sources = await _sources(stack, settings, clock, policies)
        if settings.kube:
            parts = await _in_cluster(stack, settings, clock, policies, sources, Metrics())
        else:
            assert settings.prometheus  # the command line has seen to it
            discovery = DiscoveredFleet(settings.prometheus, clock, settings.namespaces)
            discovered = await stack.enter_async_context(discovery)
            parts = Parts(clock, discovered, [*sources, discovered], RecordingActuator(), policies)
        console = Console()
        nothing = f"no workload was found; needed: {NEEDED[settings.mode]}"
        if as_json:
            parts.recorders.append(JsonLines(sys.stdout, nothing))
        elif console.is_terminal:
            parts.recorders.append(stack.enter_context(LiveTable(console, once=once, nothing=nothing)))
        else:
            parts.recorders.append(ChangeLines(sys.stdout, nothing))
        loop = await _assemble(stack, parts, settings)
        if not once:
            print(f"The page: {parts.page}", file=sys.stderr)
            await _remember(loop, parts, settings)
            await _run(loop, parts)
        return await _once(loop, parts)


async def _once(loop: Loop, parts: Parts) -> int:
    """Tick once the workloads are known, or when it has been waited for them; 1 if that came to nothing."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(), name=name) for name, work in parts.background]
        until_s = parts.clock.now_s() + LISTED_S
        while tasks and not _known(parts.workloads) and parts.clock.now_s() < until_s:
            await parts.clock.sleep(LOOK_S)
        record = await loop.attempt()
        for task in tasks:
            task.cancel()
    return 0 if record else 1


def _known(workloads: WorkloadSource) -> bool:
    try:
        workloads.fleet()
    except Unavailable:
        return False
    return True


async def demo(*, duration_s: float | None, speed: float, seed: int, as_json: bool, http_port: int) -> int:
    """Run the real daemon on a simulated fleet that serves real metrics over loopback."""
    clock = CompressedClock(speed)
    policies = PolicyFiles((shipped(), DEMO_POLICIES), SystemClock())
    http = HttpSettings(host="127.0.0.1", port=http_port)
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(SimulatedFleet(world(seed), clock))
        scrape = ScrapeSettings(dcgm=(fleet.dcgm_url,), gateways=(fleet.gateway_url,))
        settings = Settings(mode=Mode.DIRECT, period_s=DEMO_PERIOD_S, scrape=scrape, http=http)
        sources = await _sources(stack, settings, clock, policies)
        parts = Parts(clock, fleet, sources, fleet, policies, background=[("world", fleet.run)])
        parts.recorders.append(LogRecorder())
        loop = await _assemble(stack, parts, settings, mode="demo")
        if not as_json:
            print(f"The page: {parts.page}   (seed {seed}, {speed:g} times real time, Ctrl-C ends it)", flush=True)
        try:
            async with asyncio.timeout(duration_s):
                await _run(loop, parts)
        except TimeoutError:
            pass
        finally:
            summary = fleet.summary()
            if as_json:
                with printing():
                    print(json.dumps(summary.as_json()))
    return 0


async def explain(url: str, namespace: str, name: str) -> int:
    """Ask a running daemon for one workload's explanation and print it."""
    try:
        lines = await client.explanation(url, namespace, name)
    except client.Refused as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 1
    with printing():
        print(*lines, sep="\n")
    return 0


async def _sources(
    stack: AsyncExitStack, settings: Settings, clock: Clock, policies: PolicyFiles
) -> list[SampleSource]:
    """Open the sources of metrics; where several know a reading, the earlier one wins."""
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
            front_queries=lambda: _wakeups(policies.book),
            gateway_namespaces=settings.gateway_namespaces,
        )
        sources.append(await stack.enter_async_context(prometheus))
    return sources


def _wakeups(book: PolicyBook) -> tuple[FrontQuery, ...]:
    return tuple(FrontQuery(name, query, name == book.default) for name, query in book.wakeup_queries().items())


async def _in_cluster(
    stack: AsyncExitStack,
    settings: Settings,
    clock: Clock,
    policies: PolicyFiles,
    sources: list[SampleSource],
    metrics: Metrics,
) -> Parts:
    """Follow the objects of a cluster, and act by the mode. What is watched in which mode is `KubeFleet`'s business."""
    assert settings.kube
    kube = await stack.enter_async_context(Kube.connect(settings.kube))
    writes = OwnWrites(clock, settings.lease.installation)
    woken = asyncio.Event()
    elected = settings.lease.enabled and settings.mode is not Mode.DRY_RUN
    elector = Elector(kube, settings.lease, clock, woken, _watches(settings)) if elected else None
    fleet = KubeFleet(kube, clock, settings.mode, settings.namespaces, writes, wakeup=woken, leadership=elector)
    parts = Parts(
        clock, fleet, sources, RecordingActuator(), policies, background=[("cluster", fleet.run)], woken=woken
    )
    parts.problems = fleet.problems
    parts.detail = lambda: _cluster_detail(fleet, elector, parts.problems())
    if settings.mode is Mode.DRY_RUN:
        return parts

    if elector is not None:
        parts.leadership = elector
        parts.background.append(("leader election", elector.run))
    events = EventRecorder(kube, clock)
    parts.recorders.append(events)
    parts.background.append(("events", events.run))
    if settings.mode is Mode.DIRECT:
        parts.actuator = ScaleActuator(kube, writes, parts.leadership)
        parts.holds = fleet.hands
        return parts

    assert settings.keda
    answers, calls = Answers(clock, parts.leadership), Calls()
    parts.actuator = answers
    parts.recorders.append(answers)
    metrics.registry.register(KedaCollector(answers, calls))
    service = KedaService(answers, fleet, lambda: policies.book)
    server = await stack.enter_async_context(KedaServer(settings.keda, service, parts.leadership, calls))
    parts.problems = lambda: _joined(fleet.problems(), answers.refusals.by_workload())
    parts.detail = lambda: {
        **_cluster_detail(fleet, elector, parts.problems()),
        "keda_problem": server.problem,
        "keda_refused": answers.refusals.unknown()[:MAX_TOLD],
    }
    return parts


def _watches(settings: Settings) -> str:
    """Word what this process acts on; replicas of one installation say the same."""
    namespaces = ", ".join(sorted(set(settings.namespaces))) or "all namespaces"
    return f"{namespaces} in {settings.mode.value} mode"


def _joined(declared: Mapping[WorkloadRef, str], refused: Mapping[WorkloadRef, str]) -> dict[WorkloadRef, str]:
    """Put what calls are refused for behind what the objects tell."""
    return {**declared, **{ref: "; ".join(filter(None, (declared.get(ref), told))) for ref, told in refused.items()}}


def _cluster_detail(fleet: KubeFleet, elector: Elector | None, problems: Mapping[WorkloadRef, str]) -> dict[str, Any]:
    shared = [elector.problem] if elector is not None and elector.problem else []
    return {
        "cluster_problems": [*shared, *fleet.watch_problems()][:MAX_TOLD],
        "workload_problems": by_name(problems, MAX_TOLD),
        "obstructed_workloads": by_name(fleet.obstructed(), MAX_TOLD),
        "pool_limits": fleet.limits()[:MAX_TOLD],
    }


async def _assemble(
    stack: AsyncExitStack, parts: Parts, settings: Settings, metrics: Metrics | None = None, mode: str = ""
) -> Loop:
    """Put the loop together with what people see of it."""
    mode = mode or settings.mode.value
    metrics = metrics or Metrics(mode)
    recorders = list(parts.recorders)
    if settings.http:
        board = Board(explain_row)
        readiness = Readiness(
            parts.clock,
            2 * settings.period_s + settings.tick_deadline_s,
            lambda: {"policy_problem": parts.policies.problem, **parts.detail()},
        )
        recorders += [board, metrics, readiness]
        server = HttpServer(settings.http, board=board, metrics=metrics, readiness=readiness, mode=mode)
        await stack.enter_async_context(server)
        parts.page = server.url
    return Loop(
        clock=parts.clock,
        workloads=parts.workloads,
        sources=parts.sources,
        policies=_reloaded(parts.policies, metrics),
        actuator=parts.actuator,
        recorders=recorders,
        leadership=parts.leadership,
        period_s=settings.period_s,
        deadline_s=settings.tick_deadline_s,
        prices=Prices(dict(settings.prices)),
        woken=parts.woken,
        problems=parts.problems,
    )


async def _remember(
    loop: Loop, parts: Parts, settings: Settings, saved: Callable[[float], None] = lambda _wall_s: None
) -> None:
    """Begin with what was learned before: from the state file, else from history."""
    store = StateFile(settings.state) if settings.state else None
    look_back = None
    if settings.prometheus and settings.history:
        history = RecentHistory(settings.prometheus, parts.clock)
        look_back = LookBack(history, parts.workloads, lambda: parts.policies.book, parts.clock)
    keeper = Keeper(loop, parts.clock, store, look_back.learn if look_back else None, saved, parts.holds)
    await keeper.begin()
    parts.background.append(("state", keeper.run))


def _reloaded(files: PolicyFiles, metrics: Metrics) -> Callable[[], PolicyBook]:
    """Give the policies in force, read again when their files have changed."""

    def current() -> PolicyBook:
        match files.poll():
            case Reload.LOADED:
                log.info("policies reloaded", policies=sorted(files.book.policies))
                metrics.set_policy_problems(0)
            case Reload.BROKEN:
                log.error("policies are invalid; the previous ones stay in force", problem=files.problem)
                metrics.set_policy_problems(len(files.problem.splitlines()))
            case Reload.UNCHANGED:
                pass
        return files.book

    return current


async def _run(loop: Loop, parts: Parts) -> None:
    """Run the loop and what it stands on; the failure of one ends all.

    The loop ends first, so that nothing is on its way when leadership is given back.
    """
    async with asyncio.TaskGroup() as group:
        for name, work in parts.background:
            group.create_task(work(), name=name)
        await loop.run()


def check(files: Sequence[Path], policies: Sequence[Path], default_policy: str) -> int:
    """Validate policies and manifests, print what is wrong; 1 if something is."""
    try:
        book = PolicyBook(read_policies(policies or (shipped(),)), default_policy)
        checked = check_files(files, book, {"ScaledObject": check_scaled_object})
    except PolicyError as error:
        raise StartError(str(error)) from error
    counted, passed = (
        ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
        for kinds in (checked.documents, checked.skipped)
    )
    try:
        with printing():
            for finding in checked.findings:
                print(finding)
            print(f"checked {counted or 'nothing'}" + (f"; not checked: {passed}" if passed else ""))
    except Unwritable as error:
        raise StartError(str(error)) from error
    return int(checked.failed)
