"""Reads the /metrics of each pod directly: faster than by way of Prometheus, which is then not needed.

One `PodScraper` per process keeps state per pod: the window of each latency histogram, and whether the `/load` of the
engine can be used.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
from yarl import URL

from autoscaler.adapters.scrape import pod_columns
from autoscaler.adapters.scrape.exposition import Exposition, Unreadable, parse
from autoscaler.adapters.scrape.patience import Patience
from autoscaler.adapters.scrape.report import ReportBuilder
from autoscaler.adapters.turns import in_turns
from autoscaler.catalog.engines import ENGINES, QUANTILES, UNCOUNTED, WITHIN, Engine
from autoscaler.catalog.series import names_of
from autoscaler.catalog.spellings import LOOKS_LIKE, all_spellings, engines_spelled, unread_name_hint
from autoscaler.config.annotations import PREFIX
from autoscaler.config.findings import foreign_models, without_running
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Fleet, Pod
from autoscaler.core.model.samples import GatewaySamples, Objectives, PodSamples, Samples
from autoscaler.core.readings import counter_falls
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import Histogram, HistogramWindow, pooled_quantile
from autoscaler.http.access import Access, pod_url
from autoscaler.http.credentials import CredentialError
from autoscaler.http.fetch import SPEAKS_HTTP, SPEAKS_TLS, TO_TLS, FetchAnswer, Fetcher
from autoscaler.ports import Clock

QUANTILE = 0.95
LOAD_PROBE_S = 300.0  # until an engine that does not track its load is probed again

MAX_SEARCHED_BYTES = 1 << 20  # of a body without engine metrics
_NAME = re.compile(rf"(?m)^([a-zA-Z0-9_:]{{0,64}}(?:{LOOKS_LIKE}))[{{ ]".encode())

_COLUMNS = {column.name: index for index, column in enumerate(fields(PodSamples))}


@dataclass
class _PodState:
    """State kept about one pod between readings."""

    pod: Pod
    engine: Engine
    metrics_url: URL
    load_url: URL | None
    model: str = ""  # as declared by the workload
    requested_s: float = -math.inf  # time of the last request
    silent: bool = False  # the last request failed
    start_time_s: float = math.nan
    windows: dict[str, HistogramWindow] = field(default_factory=dict)
    tracks_load: bool = False  # /load has reported requests
    probe_after_s: float = -math.inf  # time of the next probe of /load


class PodScraper:
    """A SampleSource for the pods themselves. An async context manager."""

    def __init__(self, settings: ScrapeSettings, clock: Clock, engines: Mapping[str, Engine] | None = None) -> None:
        """engines: by name; None for all of the table, in every spelling of their names."""
        self._settings = settings
        self._clock = clock
        self._spellings = all_spellings(settings.metric_prefixes)
        self._engines = engines or engines_spelled(self._spellings)
        self._sample_names = {name: pod_columns.sample_names(engine) for name, engine in self._engines.items()}
        self._access = Access(settings)
        self._fetcher = Fetcher(
            concurrency=settings.concurrency,
            timeout_s=settings.timeout_s,
            max_body_bytes=settings.max_body_bytes,
            context=self._access.context,
        )
        self._states: dict[int, _PodState] = {}
        self._counted = counter_falls.CounterHistory.blank(0)

    async def __aenter__(self) -> Self:
        await self._fetcher.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fetcher.__aexit__()

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Read every pod that has an address, within `deadline_s` seconds.

        A pod that is not ready and does not answer is starting, which is no failure. Pods that were silent last time
        come last, in the order of their last request, so that they do not delay other pods. Namespaces take turns, and
        after some slow pods the others of a namespace wait for the next reading, where there are several.
        """
        begin_s, loop = self._clock.now_s(), asyncio.get_running_loop()
        builder = ReportBuilder()
        table = np.full((len(_COLUMNS), len(fleet.pods)), np.nan)
        self._update_states(fleet, builder)
        rows = [row for row, pod_id in enumerate(fleet.pod_id.tolist()) if pod_id in self._states]
        states = {row: self._states[int(fleet.pod_id[row])] for row in rows}
        rows.sort(key=lambda row: (states[row].silent, not fleet.pod_ready[row], states[row].requested_s))
        patience = Patience(self._settings, (states[row].pod.namespace for row in rows))
        rows = in_turns(rows, lambda row: states[row].pod.namespace, lambda row: states[row].silent)

        async def visit(row: int) -> None:
            namespace = states[row].pod.namespace
            if why := patience.refusal(namespace):
                if fleet.pod_ready[row]:
                    builder.fail(_name(states[row].pod), why)
                return
            states[row].requested_s, states[row].silent = self._clock.now_s(), True
            asked_s = loop.time()
            workload = fleet.pod_workload[row]
            limits_s = {name: float(getattr(objectives, name)[workload]) for name in WITHIN.values()}
            problem = await self._read(states[row], limits_s, table[:, row], builder)
            states[row].silent = bool(problem)
            patience.note(namespace, loop.time() - asked_s)
            if problem and fleet.pod_ready[row]:
                builder.fail(_name(states[row].pod), problem)

        for row in await self._fetcher.each(rows, visit, deadline_s):
            if fleet.pod_ready[row]:
                builder.fail(_name(states[row].pod), f"not reached within the {deadline_s:g} s of this reading")
        read = [row for row in rows if not math.isnan(table[_COLUMNS["time_s"], row])]
        _fill_quantiles(table, {row: states[row].windows for row in read}, fleet)
        pods = self._reject_false_falls(
            fleet, PodSamples(**{name: table[index] for name, index in _COLUMNS.items()}), builder
        )
        report = builder.build("scrape", self._clock.now_s() - begin_s)
        return Samples(pods, GatewaySamples.filled(len(fleet.workloads)), (report,))

    def _reject_false_falls(self, fleet: Fleet, pods: PodSamples, builder: ReportBuilder) -> PodSamples:
        """Make counters unknown that fell without a restart of their process, and report them."""
        states = (self._states.get(pod_id) for pod_id in fleet.pod_id.tolist())
        start_s = np.array([math.nan if each is None else each.start_time_s for each in states])
        pods, self._counted = counter_falls.discard_fallen(self._counted, pods, start_s, fleet, self._settings.window_s)
        for row in np.flatnonzero(self._counted.fell_recently(self._clock.now_s())):
            builder.note(_name(fleet.pods[row]), counter_falls.PROBLEM)
        return pods

    def _update_states(self, fleet: Fleet, builder: ReportBuilder) -> None:
        """Make `_states` contain exactly the pods that can be read, and keep existing state."""
        before, self._states = self._states, {}
        for pod_id, pod, workload_row in zip(
            fleet.pod_id.tolist(), fleet.pods, fleet.pod_workload.tolist(), strict=True
        ):
            if not pod.ip:
                continue
            workload = fleet.workloads[workload_row]
            engine = self._engines.get(pod.engine or workload.engine)
            if engine is None:
                builder.note(
                    workload.ref.label, f"engine {workload.engine[:40]!r}, known are {', '.join(self._engines)}"
                )
                continue
            state = before.get(pod_id)
            if state is None or state.pod != pod or state.engine is not engine or state.model != workload.model:
                base = pod_url(pod)
                if base is None:
                    builder.note(
                        _name(pod),
                        f"address {pod.ip[:60]!r} port {pod.metrics_port}; "
                        "allowed: an IP address and a port from 1 to 65535",
                    )
                    continue
                load_url = base.with_path(engine.load_path) if engine.load_path else None
                state = _PodState(
                    pod, engine, base.with_path(pod.metrics_path or engine.path), load_url, workload.model
                )
            self._states[pod_id] = state

    async def _read(
        self, state: _PodState, objectives_s: Mapping[str, float], cells: FloatColumn, builder: ReportBuilder
    ) -> str:
        """Read one pod into its cells of the table; return the problem, or ""."""
        builder.requests += 1
        body, problem = await self._get(state, state.metrics_url)
        if body is None:
            return problem + _advice(problem, state)
        now_s = self._clock.now_s()
        try:
            exposition = parse(body, self._sample_names[state.engine.name])
        except Unreadable as error:
            return str(error)
        if exposition.broken:
            builder.note(_name(state.pod), f"lines that cannot be read: {', '.join(sorted(exposition.broken))}")
        served = state.pod.served
        foreign = pod_columns.drop_foreign_models(
            state.engine, exposition, lambda name: served.include(name, state.model)
        )
        values = pod_columns.gauges_and_counters(state.engine, exposition)
        unread = all(math.isnan(value) for value in values.values())
        if foreign and unread:
            return foreign_models(foreign, served.names)
        if foreign:
            builder.note(_name(state.pod), foreign_models(foreign, served.names))
        if unread:  # statistics are off, or it is another server
            return f"no metric of {state.engine.name} in {len(body)} bytes{self._unread_hint(state.engine, body)}"
        shown = exposition.series.keys() | exposition.broken
        if shown.isdisjoint(names_of(state.engine.readings["running"])):
            usual = names_of(ENGINES[state.engine.name].readings["running"])
            builder.note(_name(state.pod), without_running(state.engine.name, usual))
        histograms = pod_columns.histograms(state.engine, exposition)
        self._update_windows(state, histograms, pod_columns.start_time_s(exposition), now_s)
        values |= pod_columns.count_within_objectives(histograms, objectives_s)
        for column, lost in UNCOUNTED.items():
            if objectives_s[WITHIN[column]] > 0 and values["finished"] > 0 and math.isnan(values.get(column, math.nan)):
                builder.note(_name(state.pod), f"{column} unknown: {lost}")
        cells[_COLUMNS["time_s"]] = now_s
        for column, value in values.items():
            cells[_COLUMNS[column]] = value
        cells[_COLUMNS["held"]] = await self._held(state, values, exposition, builder)
        return ""

    def _unread_hint(self, engine: Engine, body: bytes) -> str:
        """Return a hint why a body has no metrics of the engine."""
        found = _NAME.search(body, 0, MAX_SEARCHED_BYTES)
        line = unread_name_hint(found[1].decode(), self._spellings, engine.name) if found else ""
        return f": {line or 'are its statistics off (--disable-log-stats), or not on (--enable-metrics)?'}"

    async def _get(self, state: _PodState, url: URL) -> FetchAnswer:
        try:
            return await self._fetcher.get(url, self._access.pod_token(state.pod.namespace))
        except CredentialError as error:
            return FetchAnswer(None, str(error))

    def _update_windows(
        self, state: _PodState, histograms: Mapping[str, Histogram], start_time_s: float, now_s: float
    ) -> None:
        """Add the histograms to the latency windows. A restarted process begins a new window."""
        if start_time_s != state.start_time_s:  # NaN differs too; then only decreasing counts show a restart
            if not math.isnan(start_time_s) and not math.isnan(state.start_time_s):
                state.windows.clear()
            state.start_time_s = start_time_s
        for column in QUANTILES:
            if column not in histograms:
                state.windows.pop(column, None)
                continue
            window = state.windows.get(column, HistogramWindow())
            state.windows[column] = window.push(now_s, histograms[column], self._settings.window_s)

    async def _held(
        self, state: _PodState, values: Mapping[str, float], exposition: Exposition, builder: ReportBuilder
    ) -> float:
        """Return the requests inside the server by `/load`; NaN if it is not needed or not usable.

        The gauges of a sleeping engine stay at 0, so only `/load` shows its requests. `/load` is also 0 if the server
        does not track its load, which is therefore learned while the engine is awake and busy. With several API server
        processes only the one that answers is counted, so its 0 is not usable either.
        """
        asleep = values.get("asleep", math.nan) > 0
        busy = values.get("running", 0.0) + values.get("waiting", 0.0) > 0
        learning = busy and not state.tracks_load and self._clock.now_s() >= state.probe_after_s
        if state.load_url is None or not (asleep or learning):
            return math.nan
        builder.requests += 1
        load = _server_load((await self._get(state, state.load_url)).body)
        state.tracks_load = state.tracks_load or load > 0
        if learning and not state.tracks_load:
            state.probe_after_s = self._clock.now_s() + LOAD_PROBE_S
        one_process = not math.isnan(pod_columns.start_time_s(exposition))
        return load if load > 0 or (state.tracks_load and one_process) else math.nan


def _fill_quantiles(table: FloatColumn, windows: Mapping[int, Mapping[str, HistogramWindow]], fleet: Fleet) -> None:
    """Write the latency quantiles of each workload, over all its pods, into the cells of these pods.

    windows: latency windows by column, by row of the pods that were read.
    """
    pods_of: dict[int, list[int]] = {}
    for row in windows:
        pods_of.setdefault(int(fleet.pod_workload[row]), []).append(row)
    for pods in pods_of.values():
        for column in QUANTILES:
            of_column = (windows[row][column] for row in pods if column in windows[row])
            table[_COLUMNS[column], pods] = pooled_quantile(QUANTILE, of_column)


def _advice(problem: str, state: _PodState) -> str:
    """Return advice to append to a problem, or ""."""
    path = state.metrics_url.path
    if problem == SPEAKS_TLS or problem.endswith(f"{TO_TLS})"):
        return f"; the annotation {PREFIX}metrics-scheme: https says so"
    if problem == SPEAKS_HTTP:
        return f"; the annotation {PREFIX}metrics-scheme: http says so"
    if problem.startswith(("HTTP 401", "HTTP 403")):
        return f": it wants a token, which is sent over https alone, by --scrape-token {state.pod.namespace}=FILE"
    if problem.startswith("HTTP 404"):
        switch = "; SGLang has metrics with --enable-metrics only" if state.engine.name == "sglang" else ""
        return f": nothing is at {path}; the annotation {PREFIX}metrics-path names another path{switch}"
    return ""


def _name(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _server_load(body: bytes | None) -> float:
    """Return n of {"server_load": n}; NaN if there is none."""
    try:
        load = json.loads((body or b"")[:1024])["server_load"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.nan
    return float(load) if type(load) is int and 0 <= load < 2**53 else math.nan
