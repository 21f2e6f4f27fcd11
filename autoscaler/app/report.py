"""`report`: what the counts of all services cost and missed, from the history in Prometheus alone."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.discovery.discovered_fleet import DiscoveredFleet
from autoscaler.adapters.prometheus.range.node_costs import NodeCosts, read_capacity_types, read_node_costs
from autoscaler.adapters.prometheus.range.own_use import read_gateways
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import (
    Devices,
    ServiceName,
    read_cold_starts,
    read_devices,
    read_policy_names,
)
from autoscaler.adapters.record.reader import Record
from autoscaler.app.report_gpus import of_teams, with_gpus
from autoscaler.app.report_reading import DEADLINE_S, LEAST_STEPS, ReportOptions, find_server, read_all, reader_of
from autoscaler.app.report_rules import check_files, rule_columns
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import DEFAULT_POLICY, PolicyBook
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.report import output_files
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.ports import Unavailable
from autoscaler.report.document import to_json
from autoscaler.report.facts import PriceSources, ServiceFacts, gather_facts
from autoscaler.report.gpu_use import USE_OF_DAEMON
from autoscaler.report.history import FleetHistory
from autoscaler.report.load import measure_load
from autoscaler.report.page import page
from autoscaler.report.past import past_of_prometheus, past_of_record
from autoscaler.report.read_history import MOST_BYTES
from autoscaler.report.recorded import read_record, read_recorded_policies
from autoscaler.report.report import FleetReport, compute, find_holding
from autoscaler.report.size_prior import assume_gap_s
from autoscaler.report.table import print_report
from autoscaler.report.tiers import Tiers
from autoscaler.report.verdict import seen_of
from autoscaler.report.windows import with_windows

Answer = TypeVar("Answer")


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
    source = find_server(settings, options, (math.floor(until_s - options.since_s), math.floor(until_s)), deadline_s)
    settings = source.settings
    fleet, notes = asyncio.run(_discover(settings, options.namespaces))
    notes = (*source.problems, *notes)
    credentials = Credentials(settings)

    def reader() -> RangeReader:
        return RangeReader(settings, credentials, deadline_s, MOST_BYTES)

    tiers, untold = _find_tiers(options, book, reader, until_s)
    history = read_all(options, source, reader, tiers.objectives, until_s, console)
    asked_s = history.span.steps * history.span.step_s
    history = history.only(options.namespaces).from_first(LEAST_STEPS)
    kept_s = history.span.steps * history.span.step_s
    if kept_s < asked_s:
        notes = (
            *notes,
            f"{seen_of(kept_s / 86_400, asked_s / 86_400)}: no engine reported before, or the server keeps no more; "
            "all figures are over this time",
        )
    with reader_of(reader) as one:
        history, teams, unread = of_teams(options.team_label, options.teams, one, history)
    policies, unmatched = tiers.choose(history.services)
    history, spec = tiers.judge(history, policies), tiers.spec_of(policies)
    with reader_of(reader) as one:
        server, facts, cold_start_s, problems = one.name, *_learn_facts(options, settings, one, history, fleet)
        answers = _Answers((history.span.start_s, history.span.end_s))
        gateways = answers.read("gateways", lambda *of: read_gateways(one, *of), frozenset[tuple[str, str]]())
    load, profiles = measure_load(history, spec, cold_start_s, assume_gap_s(facts.model, facts.gpus, facts.products))
    load = with_windows(load, [book.policies[name] for name in policies], profiles.cold_start_s)
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
        notes=(*notes, *untold, *unmatched, *problems, *answers.problems, *unread, *told),
        stage=_stages(console),
        doubts=history.doubts,
        holds=find_holding(history.services, gateways),
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
    answers = _Answers((math.floor(until_s - options.since_s), math.floor(until_s)))
    with reader_of(reader) as one:
        named = answers.read("policies of workloads", lambda *of: read_policy_names(one, *of), dict[ServiceName, str]())
    return Tiers(book, options.policy_for, named), (*answers.problems,)


class _Answers:
    """The answers of servers over one span; a missing answer becomes a problem, as does what an answer leaves out."""

    def __init__(self, span_s: tuple[float, float]) -> None:
        self.span_s = span_s
        self.problems = list[str]()

    def read(
        self, what: str, query: Callable[[tuple[float, float], dict[str, None]], Answer], otherwise: Answer
    ) -> Answer:
        left_out = dict[str, None]()
        try:
            answer = query(self.span_s, left_out)
        except Unavailable as error:
            answer = otherwise
            self.problems.append(f"{what} could not be read: {error}")
        self.problems += [f"{what}: {each}" for each in left_out]
        return answer


def _learn_facts(
    options: ReportOptions,
    settings: PrometheusSettings,
    reader: RangeReader,
    history: FleetHistory,
    fleet: Fleet | None,
) -> tuple[ServiceFacts, FloatColumn, tuple[str, ...]]:
    """Return the hardware and prices of all services, their cold starts, and what could not be read."""
    answers = _Answers((history.span.start_s, history.span.end_s))
    spellings = all_spellings(settings.metric_prefixes)
    devices = answers.read("the GPUs of replicas", lambda *of: read_devices(reader, *of), dict[ServiceName, Devices]())
    starts = answers.read(
        "cold starts", lambda *of: read_cold_starts(reader, spellings, *of), dict[ServiceName, float]()
    )
    costs = answers.read("prices of nodes", lambda span_s, _: read_node_costs(reader, span_s), NodeCosts({}, ()))
    types = answers.read(
        "how nodes are paid for", lambda *of: read_capacity_types(reader, *of), dict[ServiceName, str]()
    )
    facts = gather_facts(history.services, devices, fleet, PriceSources(options.prices, costs.prices, types))
    cold_start_s = np.array([starts.get(name, math.nan) for name in history.services], dtype=np.float64)
    return facts, cold_start_s, (*answers.problems, *costs.problems)


def _of_record(options: ReportOptions, folder: Path, console: Console) -> tuple[FleetReport, FleetHistory]:
    """Compute the report of a record: each service by its own policy, or all by the stated one."""
    with Record(folder) as record:
        _, last_s = record.span()
        recorded = read_record(record, last_s - options.since_s, last_s, options.namespaces, options.prices)
        own, unread = read_recorded_policies(record)
    if not recorded.history.services:
        where = f" of namespace {' or '.join(options.namespaces)}" if options.namespaces else ""
        raise Unavailable("; ".join((f"--record {folder}: no service{where} in it", *recorded.history.problems)))
    recorded = recorded.of_teams(options.teams)
    if options.default_policy or options.policies:
        book = load_policies(options.policies, options.default_policy or DEFAULT_POLICY)
        policies, names = book.policies, (book.default,) * len(recorded.policies)
    else:
        policies = {**load_policies().policies, **own}
        names = tuple(name if name in policies else DEFAULT_POLICY for name in recorded.policies)
    rows = [spec_row(policies[name].spec) for name in names]
    spec = Spec(*(np.array(column) for column in zip(*rows, strict=True)))
    if not (options.default_policy or options.policies):
        spec = recorded.last.in_force(spec)
    facts = recorded.facts
    gap_s = assume_gap_s(facts.model, facts.gpus, facts.products)
    unknown = np.full(len(names), math.nan)
    load, profiles = measure_load(recorded.history, spec, unknown, gap_s, recorded.last.slots)
    load = with_windows(load, [policies[name] for name in names], profiles.cold_start_s)
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


async def _discover(settings: PrometheusSettings, namespaces: tuple[str, ...]) -> tuple[Fleet | None, tuple[str, ...]]:
    """Return the workloads of the present moment, as `dry-run` finds them, and problems; None if there is none."""
    async with DiscoveredFleet(settings, SystemClock(), namespaces, tells_clusters=False) as discovered:
        try:
            return discovered.fleet(), discovered.problems
        except Unavailable as error:
            return None, (f"names of models are known only while engines report: {error}",)


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
