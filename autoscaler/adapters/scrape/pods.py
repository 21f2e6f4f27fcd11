"""Read each pod's own /metrics: sub-second reaction, and no Prometheus needed.

One `PodScraper` per process. It remembers per pod what a single reading cannot tell: the window of each latency
histogram, and whether the engine's `/load` can be believed.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
from yarl import URL

from autoscaler.adapters.credentials import CredentialError
from autoscaler.adapters.scrape import reading
from autoscaler.adapters.scrape.access import Access
from autoscaler.adapters.scrape.exposition import Exposition, Unreadable, parse
from autoscaler.adapters.scrape.fetch import SPEAKS_HTTP, SPEAKS_TLS, TO_TLS, Answer, Fetcher
from autoscaler.adapters.scrape.tally import Tally
from autoscaler.catalog.engines import QUANTILES, UNCOUNTED, WITHIN, Engine
from autoscaler.catalog.spellings import LOOKS_LIKE, all_spellings, engines_spelled, unread_name_hint
from autoscaler.config.annotations import PREFIX, SCHEMES
from autoscaler.config.findings import foreign_models
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Fleet, Pod
from autoscaler.core.model.samples import FrontSamples, Objectives, PodSamples, Samples
from autoscaler.core.observe import counter_falls
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import Histogram, HistogramWindow, pooled_quantile
from autoscaler.ports import Clock

QUANTILE = 0.95
LOAD_PROBE_S = 300.0  # how long "this engine does not track its load" is believed

LOOKED_AT_BYTES = 1 << 20  # of a body without what is sought
_NAME = re.compile(rf"(?m)^([a-zA-Z0-9_:]{{0,64}}(?:{LOOKS_LIKE}))[{{ ]".encode())

_COLUMNS = {column.name: index for index, column in enumerate(fields(PodSamples))}


@dataclass
class _Known:
    """What is remembered of one pod between readings."""

    pod: Pod
    engine: Engine
    metrics_url: URL
    load_url: URL | None
    model: str = ""  # as the workload declares it
    asked_s: float = -math.inf  # when it was last asked
    silent: bool = False  # and brought nothing
    start_time_s: float = math.nan
    windows: dict[str, HistogramWindow] = field(default_factory=dict)
    tracks_load: bool = False  # /load has been seen to count
    probe_after_s: float = -math.inf  # when to ask /load again whether it counts


class PodScraper:
    """A SampleSource that asks the pods. An async context manager."""

    def __init__(self, settings: ScrapeSettings, clock: Clock, engines: Mapping[str, Engine] | None = None) -> None:
        """engines: by name; None: those of the table, in every spelling that their names may have."""
        self._settings = settings
        self._clock = clock
        self._spellings = all_spellings(settings.metric_prefixes)
        self._engines = engines or engines_spelled(self._spellings)
        self._wanted = {name: reading.wanted(engine) for name, engine in self._engines.items()}
        self._access = Access(settings)
        self._fetcher = Fetcher(
            concurrency=settings.concurrency,
            timeout_s=settings.timeout_s,
            max_body_bytes=settings.max_body_bytes,
            context=self._access.context,
        )
        self._known: dict[int, _Known] = {}
        self._counted = counter_falls.Counted.blank(0)

    async def __aenter__(self) -> Self:
        await self._fetcher.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fetcher.__aexit__()

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Read every pod that has an address, as far as `deadline_s` seconds allow.

        A pod that is not ready and does not answer is loading, which is no failure. Pods that were silent the last time
        are asked last, the longest not asked first, so that they keep neither the others waiting nor each other.
        """
        begin_s = self._clock.now_s()
        tally = Tally()
        table = np.full((len(_COLUMNS), len(fleet.pods)), np.nan)
        self._remember(fleet, tally)
        rows = [row for row, pod_id in enumerate(fleet.pod_id.tolist()) if pod_id in self._known]
        known = {row: self._known[int(fleet.pod_id[row])] for row in rows}
        rows.sort(key=lambda row: (known[row].silent, not fleet.pod_ready[row], known[row].asked_s))

        async def visit(row: int) -> None:
            known[row].asked_s, known[row].silent = self._clock.now_s(), True
            workload = fleet.pod_workload[row]
            limits_s = {name: float(getattr(objectives, name)[workload]) for name in WITHIN.values()}
            problem = await self._read(known[row], limits_s, table[:, row], tally)
            known[row].silent = bool(problem)
            if problem and fleet.pod_ready[row]:
                tally.fail(_name(known[row].pod), problem)

        for row in await self._fetcher.each(rows, visit, deadline_s):
            if fleet.pod_ready[row]:
                tally.fail(_name(known[row].pod), f"not reached within the {deadline_s:g} s of this reading")
        read = [row for row in rows if not math.isnan(table[_COLUMNS["time_s"], row])]
        _fill_quantiles(table, {row: known[row].windows for row in read}, fleet)
        pods = self._doubt(fleet, PodSamples(**{name: table[index] for name, index in _COLUMNS.items()}), tally)
        report = tally.report("scrape", self._clock.now_s() - begin_s)
        return Samples(pods, FrontSamples.filled(len(fleet.workloads)), (report,))

    def _doubt(self, fleet: Fleet, pods: PodSamples, tally: Tally) -> PodSamples:
        """Make counters unknown that fell although their process stands, and say so."""
        known = (self._known.get(pod_id) for pod_id in fleet.pod_id.tolist())
        start_s = np.array([math.nan if each is None else each.start_time_s for each in known])
        pods, self._counted = counter_falls.doubt(self._counted, pods, start_s, fleet, self._settings.window_s)
        for row in np.flatnonzero(self._counted.told(self._clock.now_s())):
            tally.note(_name(fleet.pods[row]), counter_falls.WORDS)
        return pods

    def _remember(self, fleet: Fleet, tally: Tally) -> None:
        """Make `_known` hold exactly the pods that can be asked, keeping what is known of those it had."""
        before, self._known = self._known, {}
        for pod_id, pod, workload_row in zip(
            fleet.pod_id.tolist(), fleet.pods, fleet.pod_workload.tolist(), strict=True
        ):
            if not pod.ip:
                continue
            workload = fleet.workloads[workload_row]
            engine = self._engines.get(workload.engine)
            if engine is None:
                tally.note(str(workload.ref), f"engine {workload.engine[:40]!r}, known are {', '.join(self._engines)}")
                continue
            known = before.get(pod_id)
            if known is None or known.pod != pod or known.engine is not engine or known.model != workload.model:
                base = _base(pod)
                if base is None:
                    tally.note(
                        _name(pod),
                        f"address {pod.ip[:60]!r} port {pod.metrics_port}; "
                        "allowed: an IP address and a port from 1 to 65535",
                    )
                    continue
                load_url = base.with_path(engine.load_path) if engine.load_path else None
                known = _Known(pod, engine, base.with_path(pod.metrics_path or engine.path), load_url, workload.model)
            self._known[pod_id] = known

    async def _read(self, known: _Known, objectives_s: Mapping[str, float], cells: FloatColumn, tally: Tally) -> str:
        """Read one pod into its cells of the table; return what went wrong, "" if nothing did."""
        tally.requests += 1
        body, problem = await self._ask(known, known.metrics_url)
        if body is None:
            return problem + _advice(problem, known)
        now_s = self._clock.now_s()
        try:
            exposition = parse(body, self._wanted[known.engine.name])
        except Unreadable as error:
            return str(error)
        if exposition.broken:
            tally.note(_name(known.pod), f"lines that cannot be read: {', '.join(sorted(exposition.broken))}")
        served = known.pod.served
        foreign = reading.drop_foreign(known.engine, exposition, lambda name: served.include(name, known.model))
        values = reading.gauges_and_counters(known.engine, exposition)
        unread = all(math.isnan(value) for value in values.values())
        if foreign and unread:
            return foreign_models(foreign, served.names)
        if foreign:
            tally.note(_name(known.pod), foreign_models(foreign, served.names))
        if unread:  # statistics switched off, or another server
            return f"no metric of {known.engine.name} in {len(body)} bytes{self._resembling(known.engine, body)}"
        histograms = reading.histograms(known.engine, exposition)
        self._watch(known, histograms, reading.start_time_s(exposition), now_s)
        values |= reading.within(histograms, objectives_s)
        for column, lost in UNCOUNTED.items():
            if objectives_s[WITHIN[column]] > 0 and values["finished"] > 0 and math.isnan(values.get(column, math.nan)):
                tally.note(_name(known.pod), f"{column} unknown: {lost}")
        cells[_COLUMNS["time_s"]] = now_s
        for column, value in values.items():
            cells[_COLUMNS[column]] = value
        cells[_COLUMNS["held"]] = await self._held(known, values, exposition, tally)
        return ""

    def _resembling(self, engine: Engine, body: bytes) -> str:
        """Return what may explain that nothing of an engine is in a body."""
        found = _NAME.search(body, 0, LOOKED_AT_BYTES)
        line = unread_name_hint(found[1].decode(), self._spellings, engine.name) if found else ""
        return f": {line or 'are its statistics off (--disable-log-stats), or not on (--enable-metrics)?'}"

    async def _ask(self, known: _Known, url: URL) -> Answer:
        try:
            return await self._fetcher.get(url, self._access.pod_token(known.pod.namespace))
        except CredentialError as error:
            return Answer(None, str(error))

    def _watch(self, known: _Known, histograms: Mapping[str, Histogram], start_time_s: float, now_s: float) -> None:
        """Bring the windows of latencies up to now; a process that started anew begins a new window."""
        if start_time_s != known.start_time_s:  # NaN never equals: without a start time, counts going back must do
            if not math.isnan(start_time_s) and not math.isnan(known.start_time_s):
                known.windows.clear()
            known.start_time_s = start_time_s
        for column in QUANTILES:
            if column not in histograms:
                known.windows.pop(column, None)
                continue
            window = known.windows.get(column, HistogramWindow())
            known.windows[column] = window.push(now_s, histograms[column], self._settings.window_s)

    async def _held(self, known: _Known, values: Mapping[str, float], exposition: Exposition, tally: Tally) -> float:
        """Return the requests inside the server as `/load` counts them; NaN: not needed, or not to be believed.

        A sleeping engine's gauges stay at 0 whatever it holds, so there `/load` is the only witness. It answers 0 as
        well where the server does not track its load, which therefore is learned while the engine is awake and busy.
        Of several API server processes only the one that answers counts, so that its 0 says nothing either.
        """
        asleep = values.get("asleep", math.nan) > 0
        busy = values.get("running", 0.0) + values.get("waiting", 0.0) > 0
        learning = busy and not known.tracks_load and self._clock.now_s() >= known.probe_after_s
        if known.load_url is None or not (asleep or learning):
            return math.nan
        tally.requests += 1
        load = _server_load((await self._ask(known, known.load_url)).body)
        known.tracks_load = known.tracks_load or load > 0
        if learning and not known.tracks_load:
            known.probe_after_s = self._clock.now_s() + LOAD_PROBE_S
        one_process = not math.isnan(reading.start_time_s(exposition))
        return load if load > 0 or (known.tracks_load and one_process) else math.nan


def _fill_quantiles(table: FloatColumn, windows: Mapping[int, Mapping[str, HistogramWindow]], fleet: Fleet) -> None:
    """Write into the cells of each pod the latency quantiles of its workload: of what all of these pods observed.

    windows: of each pod that was read, by its row and by column.
    """
    pods_of: dict[int, list[int]] = {}
    for row in windows:
        pods_of.setdefault(int(fleet.pod_workload[row]), []).append(row)
    for pods in pods_of.values():
        for column in QUANTILES:
            of_column = (windows[row][column] for row in pods if column in windows[row])
            table[_COLUMNS[column], pods] = pooled_quantile(QUANTILE, of_column)


def _base(pod: Pod) -> URL | None:
    """Return the pod's address as URL; None: it is not an IP address, or the port is none."""
    try:
        address = ipaddress.ip_address(pod.ip)
    except ValueError:
        return None
    if pod.metrics_scheme not in SCHEMES:
        return None
    if "%" in pod.ip or not 0 < pod.metrics_port < 65536:  # no pod has a link-local address with a scope
        return None
    return URL.build(scheme=pod.metrics_scheme, host=str(address), port=pod.metrics_port)


def _advice(problem: str, known: _Known) -> str:
    """Return what may help against a problem, to be said behind it; "" for most."""
    path = known.metrics_url.path
    if problem == SPEAKS_TLS or problem.endswith(f"{TO_TLS})"):
        return f"; the annotation {PREFIX}metrics-scheme: https says so"
    if problem == SPEAKS_HTTP:
        return f"; the annotation {PREFIX}metrics-scheme: http says so"
    if problem.startswith(("HTTP 401", "HTTP 403")):
        return f": it wants a token, which is sent over https alone, by --scrape-token {known.pod.namespace}=FILE"
    if problem.startswith("HTTP 404"):
        switch = "; SGLang has metrics with --enable-metrics only" if known.engine.name == "sglang" else ""
        return f": nothing is at {path}; the annotation {PREFIX}metrics-path names another path{switch}"
    return ""


def _name(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _server_load(body: bytes | None) -> float:
    """Return the number in {"server_load": n}; NaN: there is none."""
    try:
        load = json.loads((body or b"")[:1024])["server_load"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.nan
    return float(load) if type(load) is int and 0 <= load < 2**53 else math.nan
