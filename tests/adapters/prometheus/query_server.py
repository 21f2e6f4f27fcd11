"""A query API that answers by rules, a manual clock, and a small fleet for them."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from autoscaler.adapters.prometheus.instant.gateways import WakeUpQuery
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Objectives, Samples, SourceReport
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.responses import NOW_UNIX_S, pod, serving, vector
from tests.harness.exposition import Answer
from tests.harness.objectives import objectives
from tests.harness.process import PATIENCE_S

FLEET = fleet_of({"llm/a": ["a-0", "a-1"], "llm/b": ["b-0"]})
STARTED_S = 1000.0


class HandClock:
    """A clock that only a test moves; sleeping takes no time."""

    def __init__(self) -> None:
        self.time_s = STARTED_S

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return NOW_UNIX_S + 7_000  # wrong by two hours: nothing may depend on it

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(0)


class Server:
    """Answers queries by what occurs in them: the first of `rules` that matches; else with an empty vector.

    Its clock says NOW_UNIX_S when the clock of the tick says STARTED_S.
    """

    def __init__(self, **rules: Answer | str | float) -> None:
        self.rules: dict[str, Answer | str | float] = {"engine/pod": vector(({"metric": "engine/pod"}, 1)), **rules}
        self.queried: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.queried.append(form)
        for pattern, rule in self.rules.items():
            if re.search(pattern, form["query"]):
                return await self._respond(rule)
        return web.Response(text=vector())

    async def _respond(self, rule: Answer | str | float) -> web.Response:
        if isinstance(rule, float):
            return web.Response(text=vector(*[(pod(f"{name}"), rule) for name in ("a-0", "a-1", "b-0")]))
        if isinstance(rule, str):
            return web.Response(text=rule)
        await asyncio.sleep(rule.delay_s)
        return web.Response(text=str(rule.body), status=rule.status, headers=rule.headers)

    @asynccontextmanager
    async def source(
        self, clock: HandClock | None = None, queries: Callable[[], tuple[WakeUpQuery, ...]] = tuple, **settings: object
    ) -> AsyncIterator[PrometheusSource]:
        async with (
            serving(self.answer) as url,
            PrometheusSource(
                PrometheusSettings(url=url, **settings), clock or HandClock(), wake_up_queries=queries
            ) as source,
        ):
            yield source

    async def sample(self, fleet: Fleet = FLEET, promised: Objectives | None = None, **settings: object) -> Samples:
        async with self.source(**settings) as source:
            return await source.sample(fleet, promised or objectives(fleet), PATIENCE_S)


def healthy(**more: Answer | str | float) -> dict[str, Answer | str | float]:
    """Rules of a server that answers for all pods; single rules changed or added."""
    plain: dict[str, Answer | str | float] = {
        "count_over_time": vector(),  # scrapes are as frequent as they must be
        r"^max by .*timestamp\(vllm": NOW_UNIX_S - 3,
        "num_requests_running": 4.0,
        r"num_requests_waiting(?!_by_reason)": 2.0,
        "generation_tokens": 1000.0,
    }
    return {**plain, **more}


def report(samples: Samples) -> SourceReport:
    (only,) = samples.reports
    assert only.source == "prometheus"
    return only
