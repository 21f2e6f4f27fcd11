"""HTTP of the agent of weights: /metrics and /healthz. The agent itself is known by what it shows only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from autoscaler.adapters.web.answers import HEADERS
from autoscaler.adapters.web.exported_metrics import AGENT
from autoscaler.adapters.web.metric_family import PREFIX
from autoscaler.adapters.web.tick_values import bounded
from autoscaler.config.settings import HttpSettings
from autoscaler.config.weights.report import Report, State
from autoscaler.http.listener import Listener

MAX_CONNECTIONS = 64


class PeerStatus(NamedTuple):
    """Counts of bytes and files that an agent shares with others, since the start."""

    received_bytes: int
    sent_bytes: int
    failures: int  # of requests to others
    rejected_files: int  # with ranges of others, and a wrong checksum


class AgentStatus(NamedTuple):
    """The state of an agent, as it is shown."""

    report: Report
    fetching: str  # key of the model that is being fetched; "": none
    fetching_bytes: int  # of it, that are here
    fetched_bytes: int  # since the start, as all that follows
    fetched_models: int
    failures: Mapping[str, int]  # by cause
    evictions: int
    checks: Mapping[str, int]  # models whose checksums were compared: "right", "wrong"
    cache_bytes: int  # of compile caches, now
    peers: PeerStatus | None = None  # None: nothing is shared


class AgentServer:
    """Serves while its context is open. Raises CannotServe on entering if the port cannot be used."""

    def __init__(self, settings: HttpSettings, status: Callable[[], AgentStatus]) -> None:
        self._status = status
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(status))
        ProcessCollector(registry=self._registry)
        application = web.Application()
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/metrics", self._metrics)
        self._listener = Listener(application, (settings.host, settings.port), MAX_CONNECTIONS)

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._listener.__aexit__(*failure)

    @property
    def port(self) -> int:
        """The bound port."""
        return self._listener.port

    async def _health(self, _: web.Request) -> web.Response:
        """Answer 200 while the event loop runs. A restart mends no disk and no source, so these are only told."""
        report = self._status().report
        states = Counter(model.state.value for model in report.models.values())
        body: dict[str, Any] = {"cause": report.cause, "text": report.text, "models": states}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json", headers=HEADERS)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", "")[:1000])
        return web.Response(body=encode(self._registry), headers={**HEADERS, "Content-Type": content_type})


class _Collector(Collector):
    def __init__(self, status: Callable[[], AgentStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        values = _values(self._status())
        for family in AGENT:
            kind = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
            metric = kind(PREFIX + family.name.removesuffix("_total"), family.meaning, labels=family.labels)
            for labels, value in values[family.name]:
                metric.add_metric(list(labels), value)
            yield metric


def _values(status: AgentStatus) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    report, models = status.report, sorted(status.report.models.items())
    states = Counter(model.state for _, model in models)
    sizes = {key: float(model.size) for key, model in models}
    there = {key: sizes[key] for key, model in models if model.state is State.READY}
    if status.fetching in sizes:
        there[status.fetching] = float(status.fetching_bytes)
    peers = status.peers
    return {
        "weights_agent_info": [((report.agent,), 1.0)],
        "weights_agent_models": [((state.value,), float(states[state])) for state in State],
        "weights_agent_model": [
            ((key, bounded(model.source), model.state.value, model.cause), 1.0) for key, model in models
        ],
        "weights_agent_model_size_bytes": [((key,), size) for key, size in sizes.items() if size],
        "weights_agent_model_present_bytes": [((key,), size) for key, size in there.items()],
        "weights_agent_budget_bytes": [((), float(report.budget_bytes))] if report.budget_bytes else [],
        "weights_agent_free_bytes": [((), float(report.free_bytes))] if report.budget_bytes else [],
        "weights_agent_compile_cache_bytes": [((), float(status.cache_bytes))],
        "weights_agent_problem": [((report.cause,), 1.0)] if report.cause else [],
        "weights_agent_fetched_bytes_total": [((), float(status.fetched_bytes))],
        "weights_agent_fetched_models_total": [((), float(status.fetched_models))],
        "weights_agent_failures_total": [((cause,), float(count)) for cause, count in sorted(status.failures.items())],
        "weights_agent_evictions_total": [((), float(status.evictions))],
        "weights_agent_checked_models_total": [
            ((result,), float(status.checks.get(result, 0))) for result in ("right", "wrong")
        ],
        "weights_agent_peer_received_bytes_total": [((), float(peers.received_bytes))] if peers else [],
        "weights_agent_peer_sent_bytes_total": [((), float(peers.sent_bytes))] if peers else [],
        "weights_agent_peer_failures_total": [((), float(peers.failures))] if peers else [],
        "weights_agent_peer_rejected_files_total": [((), float(peers.rejected_files))] if peers else [],
    }
