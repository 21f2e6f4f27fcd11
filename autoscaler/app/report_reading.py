"""What `report` is asked for, and how the history of all services is read from Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.range.crowds import read_crowds
from autoscaler.adapters.prometheus.range.fair_query import MOST_SERVICES
from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader
from autoscaler.adapters.prometheus.range.service_queries import (
    FoundEngines,
    Objective,
    find_engines,
    read_scrape_interval,
    service_queries,
)
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import KubeSettings, PrometheusSettings
from autoscaler.config.values import show_duration
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.ports import Unavailable
from autoscaler.report.history import FleetHistory, Span
from autoscaler.report.past import ReadPast
from autoscaler.report.piece_cache import PieceCache
from autoscaler.report.read_history import MOST_BYTES, read_history
from autoscaler.report.report import FleetReport

STEPS_S = (60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
SCRAPES = 2.0
"""Scrapes that a step must hold at least, so that the growth within it is known."""

MOST_READ = 1_700_000
"""Steps of all services that are read. Beyond it steps are longer."""

LONGEST_OF_ONE_S = 600.0
"""Longest step that the services of a few namespaces may cause to those of others."""

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


@dataclass(frozen=True)
class FoundServer:
    """The server, and what is asked of it."""

    settings: PrometheusSettings  # its selector leaves crowded namespaces out
    engines: FoundEngines
    services: int  # at a time
    problems: tuple[str, ...]


def find_server(
    settings: PrometheusSettings, options: ReportOptions, span_s: tuple[float, float], deadline_s: float
) -> FoundServer:
    """Find the engines of a span. Raises Unavailable."""
    most = MOST_SERVICES if options.step_s else min(int(MOST_READ * LONGEST_OF_ONE_S / options.since_s), MOST_SERVICES)
    with reader_of(lambda: RangeReader(settings, Credentials(settings), deadline_s, MOST_BYTES)) as reader:
        found = find_engines(reader, all_spellings(settings.metric_prefixes), span_s)
        if not found.engines:
            raise Unavailable(
                f"{reader.name}: no engine reported in the last {show_duration(span_s[1] - span_s[0])}; "
                "looked for the metrics of vLLM, SGLang, TGI, TensorRT-LLM, Triton and NIM"
            )
        try:
            crowds = read_crowds(reader, found, span_s, options.namespaces, most)
        except RangeQueryFailed as error:
            return FoundServer(settings, found, 1, (f"services were not counted by namespace: {error}",))
    selector = ",".join(filter(None, (settings.selector, crowds.matchers)))
    return FoundServer(settings.model_copy(update={"selector": selector}), found, crowds.services, crowds.problems)


def read_all(
    options: ReportOptions,
    source: FoundServer,
    reader: Callable[[], RangeReader],
    objectives: Sequence[Objective],
    until_s: float,
    console: Console,
) -> FleetHistory:
    """Read the history of all services, or of the wanted namespaces. Raises Unavailable, ValueError.

    until_s: Unix time. Answers of settled times are kept in the cache file of the options.
    """
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


@contextmanager
def reader_of(make: Callable[[], RangeReader]) -> Iterator[RangeReader]:
    """Open a reader and close it."""
    reader = make()
    try:
        yield reader
    finally:
        reader.close()
