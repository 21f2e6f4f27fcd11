"""`report`: what the counts of all services cost and missed, from the history in Prometheus alone."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.discovery.discovered_fleet import DiscoveredFleet
from autoscaler.adapters.prometheus.range.crowds import read_crowds
from autoscaler.adapters.prometheus.range.node_costs import NodeCosts, read_capacity_types, read_node_costs
from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader
from autoscaler.adapters.prometheus.range.service_queries import (
    Devices,
    FoundEngines,
    Objective,
    ServiceName,
    find_engines,
    read_cold_starts,
    read_devices,
    read_policy_names,
    read_scrape_interval,
    service_queries,
)
from autoscaler.adapters.record.reader import Record
from autoscaler.app.report_gpus import of_teams, with_gpus
from autoscaler.app.report_rules import check_files, rule_columns
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import DEFAULT_POLICY, PolicyBook
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.settings import KubeSettings, PrometheusSettings
from autoscaler.config.values import show_duration
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.report import output_files
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.ports import Unavailable
from autoscaler.report.document import to_json
from autoscaler.report.facts import PriceSources, ServiceFacts, gather_facts
from autoscaler.report.gpu_use import USE_OF_DAEMON
from autoscaler.report.history import MOST_BYTES, FleetHistory, Span, read_history
from autoscaler.report.load import measure_load
from autoscaler.report.page import page
from autoscaler.report.past import ReadPast, past_of_prometheus, past_of_record
from autoscaler.report.piece_cache import PieceCache
from autoscaler.report.recorded import read_record, read_recorded_policies
from autoscaler.report.report import FleetReport, compute
from autoscaler.report.size_prior import assume_gap_s
from autoscaler.report.table import print_report
from autoscaler.report.tiers import Tiers

Answer = TypeVar("Answer")

STEPS_S = (60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
SCRAPES = 2.0
"""Scrapes that a step must hold at least, so that the growth within it is known."""

MOST_READ = 1_700_000
"""Steps of all services that are read. Beyond it steps are longer."""

TEAM_LABEL = "team"
"""Label of Kubernetes that names the team of a workload or a namespace, unless another is stated."""

LEAST_STEPS = 60
DEADLINE_S = 3600.0


Sampler = Callable[[FleetReport, ReadPast, Callable[[float], None]], FleetReport]
"""`report.sample.sample`, which needs the simulator."""


@dataclass(frozen=True)
class ReportOptions:
    """The options of `report`."""

    prometheus: PrometheusSettings | None  # None: the record is read
    since_s: float
    policies: tuple[Path, ...]
    default_policy: str  # "" with a record and no `policies`: each service by its own
    namespaces: tuple[str, ...]
    prices: Mapping[str, float]
    step_s: float | None
    cache: Path | None
    html: Path | None
    json: Path | None
    sample: Sampler | None = None  # None: no hour is replayed
    sampling: str = "pip install 'vllm-autoscaler[sim]' adds the simulator"  # what it takes that hours are replayed
    against: tuple[Path, ...] = ()  # files with scaling rules
    record: Path | None = None
    policy_for: tuple[tuple[str, str], ...] = ()  # patterns of namespace/name, and policies
    kube: KubeSettings | None = None  # of the cluster whose scaling rules are read; None: none
    team_label: str = TEAM_LABEL
    teams: tuple[str, ...] = ()  # that are reported; (): all, and services of no team


def record_options(folder: Path, since_s: float, html: Path | None = None, json: Path | None = None) -> ReportOptions:
    """Return the options for the report of a record, with the policies and prices that it has."""
    return ReportOptions(
        prometheus=None,
        since_s=since_s,
        policies=(),
        default_policy="",
        namespaces=(),
        prices={},
        step_s=None,
        cache=None,
        html=html,
        json=json,
        record=folder,
        sampling=f"vllm-autoscaler report --record {folder} does so, with the extra `sim`",
    )


def report(options: ReportOptions) -> int:
    """Read the history, compute the report, print it and write its files."""
    outputs = tuple(path for path in (options.html, options.json) if path is not None)
    output_files.check(outputs, (*options.policies, *options.against))
    check_files(options.against)
    console = Console(stderr=True)
    made = make_report(options, console)
    write_report(made, options)
    if options.html is not None:
        console.print(f"The page: {options.html.resolve()}", markup=False, highlight=False)
    print_report(made, Console())
    return 0


def write_report(made: FleetReport, options: ReportOptions) -> None:
    """Write the files that the options name."""
    texts = ((options.html, page), (options.json, to_json))
    output_files.write([(path, write(made)) for path, write in texts if path is not None])


def make_report(options: ReportOptions, console: Console) -> FleetReport:
    """Read the history and compute the report. Raises Unavailable, ValueError, PolicyError."""
    made = make_report_of_history(options, console)[0]
    if options.sample is None:
        note = f"no hour was replayed request by request: {options.sampling}"
        return replace(made, notes=(*made.notes, note))
    if options.record is not None:
        note = "requests of the hours that were replayed came evenly within five minutes: a record holds their sums"
        made, past = replace(made, notes=(*made.notes, note)), past_of_record(options.record)
    else:
        assert options.prometheus is not None
        past = past_of_prometheus(options.prometheus)
    with ProgressBar("replaying a sample", console) as progress:
        return options.sample(made, past, progress)


def make_report_of_history(options: ReportOptions, console: Console) -> tuple[FleetReport, FleetHistory]:
    """Return the report with the history that it was computed from. Raises Unavailable, ValueError, PolicyError."""
    if options.record is not None:
        return _of_record(options, options.record, console)
    settings, until_s = options.prometheus, time.time()
    assert settings is not None
    book = load_policies(options.policies, options.default_policy)
    Tiers(book, options.policy_for, {})  # refuses unknown names before minutes of reading
    deadline_s = time.monotonic() + DEADLINE_S
    source = _find_source(settings, (math.floor(until_s - options.since_s), math.floor(until_s)), deadline_s)
    settings = source.settings
    fleet, notes = asyncio.run(_discover(settings, options.namespaces))
    notes = (*source.problems, *notes)
    credentials = Credentials(settings)

    def reader() -> RangeReader:
        return RangeReader(settings, credentials, deadline_s, MOST_BYTES)

    tiers, untold = _find_tiers(options, book, reader, until_s)
    history = _read(options, source, reader, tiers.objectives, until_s, console)
    asked_s = history.span.steps * history.span.step_s
    history = history.only(options.namespaces).from_first(LEAST_STEPS)
    kept_s = history.span.steps * history.span.step_s
    if kept_s < asked_s:
        notes = (
            *notes,
            f"the first engine reported {show_duration(asked_s - kept_s)} after the begin of the span: all "
            "figures are over the time since then",
        )
    with reader_of(reader) as one:
        history, teams, unread = of_teams(options.team_label, options.teams, one, history)
    policies, unmatched = tiers.choose(history.services)
    history, spec = tiers.judge(history, policies), tiers.spec_of(policies)
    with reader_of(reader) as one:
        server, facts, cold_start_s, problems = one.name, *_learn_facts(options, settings, one, history, fleet)
    load, profiles = measure_load(history, spec, cold_start_s, assume_gap_s(facts.model, facts.gpus, facts.products))
    cluster = None if options.kube is None else (options.kube, options.namespaces)
    columns, told = rule_columns(options.against, cluster, reader, history.services, load, profiles)
    made = compute(
        server,
        replace(history, columns={}),  # they are in the load
        load,
        profiles,
        facts,
        spec,
        policies,
        columns=columns,
        notes=(*notes, *untold, *unmatched, *problems, *unread, *told),
        stage=_stages(console),
        doubts=history.doubts,
    )
    with reader_of(reader) as one:
        made = replace(made, asked_days=asked_s / 86_400, teams=teams)
        with ProgressBar("what the GPUs did", console) as progress:
            made = with_gpus(made, settings, one, not options.teams, progress)
    return made, history


def _find_tiers(
    options: ReportOptions, book: PolicyBook, reader: Callable[[], RangeReader], until_s: float
) -> tuple[Tiers, tuple[str, ...]]:
    """Return the policies of services by name, and problems."""
    with reader_of(reader) as one:
        try:
            named = read_policy_names(one, (math.floor(until_s - options.since_s), math.floor(until_s)))
        except Unavailable as error:
            return Tiers(book, options.policy_for, {}), (f"policies of workloads could not be read: {error}",)
    return Tiers(book, options.policy_for, named), ()


def _learn_facts(
    options: ReportOptions,
    settings: PrometheusSettings,
    reader: RangeReader,
    history: FleetHistory,
    fleet: Fleet | None,
) -> tuple[ServiceFacts, FloatColumn, tuple[str, ...]]:
    """Return the hardware and prices of all services, their cold starts, and what could not be read."""
    span_s, problems = (history.span.start_s, history.span.end_s), list[str]()

    def read(what: str, query: Callable[[], Answer], otherwise: Answer) -> Answer:
        try:
            return query()
        except Unavailable as error:
            problems.append(f"{what} could not be read: {error}")
            return otherwise

    spellings = all_spellings(settings.metric_prefixes)
    devices = read("the GPUs of replicas", lambda: read_devices(reader, span_s), dict[ServiceName, Devices]())
    starts = read("cold starts", lambda: read_cold_starts(reader, spellings, span_s), dict[ServiceName, float]())
    costs = read("prices of nodes", lambda: read_node_costs(reader, span_s), NodeCosts({}, ()))
    types = read("how nodes are paid for", lambda: read_capacity_types(reader, span_s), dict[ServiceName, str]())
    facts = gather_facts(history.services, devices, fleet, PriceSources(options.prices, costs.prices, types))
    cold_start_s = np.array([starts.get(name, math.nan) for name in history.services], dtype=np.float64)
    return facts, cold_start_s, (*problems, *costs.problems)


def _of_record(options: ReportOptions, folder: Path, console: Console) -> tuple[FleetReport, FleetHistory]:
    """Compute the report of a record: each service by its own policy, or all by the stated one."""
    with Record(folder) as record:
        _, last_s = record.span()
        recorded = read_record(record, last_s - options.since_s, last_s, options.namespaces, options.prices)
        own, unread = read_recorded_policies(record)
    if not recorded.history.services:
        where = f" of namespace {' or '.join(options.namespaces)}" if options.namespaces else ""
        raise Unavailable("; ".join((f"--record {folder}: no service{where} in it", *recorded.history.problems)))
    if options.default_policy or options.policies:
        book = load_policies(options.policies, options.default_policy or DEFAULT_POLICY)
        policies, names = book.policies, (book.default,) * len(recorded.policies)
    else:
        policies = {**load_policies().policies, **own}
        names = tuple(name if name in policies else DEFAULT_POLICY for name in recorded.policies)
    rows = [spec_row(policies[name].spec) for name in names]
    spec = Spec(*(np.array(column) for column in zip(*rows, strict=True)))
    facts = recorded.facts
    gap_s = assume_gap_s(facts.model, facts.gpus, facts.products)
    load, profiles = measure_load(recorded.history, spec, np.full(len(names), math.nan), gap_s)
    cluster = None if options.kube is None else (options.kube, options.namespaces)
    columns, told = rule_columns(options.against, cluster, None, recorded.history.services, load, profiles)
    made = compute(
        str(folder),
        recorded.history,
        load,
        profiles,
        recorded.facts,
        spec,
        names,
        columns=columns,
        notes=(*unread, *told),
        stage=_stages(console),
    )
    teams = recorded.teams if any(recorded.teams) else ()
    return replace(made, gpu_use=recorded.gpu_use, use_from=USE_OF_DAEMON, teams=teams), recorded.history


@dataclass(frozen=True)
class _Source:
    """The server, and what is asked of it."""

    settings: PrometheusSettings  # its selector leaves crowded namespaces out
    engines: FoundEngines
    services: int  # at a time
    problems: tuple[str, ...]


def _find_source(settings: PrometheusSettings, span_s: tuple[float, float], deadline_s: float) -> _Source:
    """Find the engines of a span. Raises Unavailable."""
    with reader_of(lambda: RangeReader(settings, Credentials(settings), deadline_s, MOST_BYTES)) as reader:
        found = find_engines(reader, all_spellings(settings.metric_prefixes), span_s)
        if not found.engines:
            raise Unavailable(
                f"{reader.name}: no engine reported in the last {show_duration(span_s[1] - span_s[0])}; "
                "looked for the metrics of vLLM, SGLang, TGI, TensorRT-LLM, Triton and NIM"
            )
        try:
            crowds = read_crowds(reader, found, span_s)
        except RangeQueryFailed as error:
            return _Source(settings, found, 1, (f"services were not counted by namespace: {error}",))
    selector = ",".join(filter(None, (settings.selector, crowds.matchers)))
    return _Source(settings.model_copy(update={"selector": selector}), found, crowds.services, crowds.problems)


def _read(
    options: ReportOptions,
    source: _Source,
    reader: Callable[[], RangeReader],
    objectives: Sequence[Objective],
    until_s: float,
    console: Console,
) -> FleetHistory:
    with reader_of(reader) as one:
        wide = (math.floor(until_s - options.since_s), math.floor(until_s))
        every_s = read_scrape_interval(one, source.engines.spellings, wide)
        span = _choose_span(options, every_s or STEPS_S[0] / SCRAPES, source.services, until_s)
        queries = service_queries(
            one, source.engines, objectives, (span.start_s, span.end_s), span.step_s, options.namespaces
        )
        server = f"{one.name} {source.settings.selector}"
    cache = PieceCache(options.cache, server)
    try:
        with ProgressBar(f"reading {show_duration(options.since_s)} of history", console) as progress:
            history = read_history(reader, queries, span, cache, progress)
    finally:
        cache.close()
    if not history.services:
        where = f" of namespace {' or '.join(options.namespaces)}" if options.namespaces else ""
        raise Unavailable(f"{server.strip()}: no engine{where} reported in the last {show_duration(options.since_s)}")
    if cache.problem:
        console.print(f"note: {cache.problem}", markup=False)
    return history


def _choose_span(options: ReportOptions, scraped_every_s: float, services: int, until_s: float) -> Span:
    """Choose the step: a minute, or longer where scrapes are rare or services many."""
    least_s = SCRAPES * scraped_every_s
    step_s = options.step_s or next(
        (each for each in STEPS_S if each >= least_s and services * options.since_s / each <= MOST_READ),
        max(STEPS_S[-1], math.ceil(least_s / 60) * 60.0),
    )
    if step_s < least_s:
        raise ValueError(
            f"--step is {show_duration(step_s)}; allowed: at least {show_duration(least_s)}, "
            f"as engines are scraped every {show_duration(scraped_every_s)}"
        )
    end_s = math.floor(until_s / step_s) * step_s
    steps = round(options.since_s / step_s)
    if steps < LEAST_STEPS:
        least = show_duration(LEAST_STEPS * step_s)
        raise ValueError(f"--since is {show_duration(options.since_s)}; allowed: at least {least}")
    return Span(end_s - steps * step_s, step_s, steps)


async def _discover(settings: PrometheusSettings, namespaces: tuple[str, ...]) -> tuple[Fleet | None, tuple[str, ...]]:
    """Return the workloads of the present moment, as `dry-run` finds them, and problems; None if there is none."""
    async with DiscoveredFleet(settings, SystemClock(), namespaces) as discovered:
        try:
            return discovered.fleet(), discovered.problems
        except Unavailable as error:
            return None, (f"names of models are known only while engines report: {error}",)


@contextmanager
def reader_of(make: Callable[[], RangeReader]) -> Iterator[RangeReader]:
    """Open a reader and close it."""
    reader = make()
    try:
        yield reader
    finally:
        reader.close()


def _stages(console: Console) -> Callable[[str], Callable[[float], None]]:
    """Return a function that shows a bar for one part of the work at a time."""
    shown: list[ProgressBar] = []

    def stage(name: str) -> Callable[[float], None]:
        bar = ProgressBar(name, console)
        bar.__enter__()
        shown.append(bar)

        def progress(part: float) -> None:
            bar(part)
            if part >= 1:
                bar.__exit__(None, None, None)

        return progress

    return stage
