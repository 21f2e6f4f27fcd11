"""A running server whose ticks the test makes, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest

from autoscaler.adapters.web.dashboard import Dashboard, Explain
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.adapters.web.readiness import Readiness
from autoscaler.adapters.web.server import HttpServer
from autoscaler.config.settings import HttpSettings
from autoscaler.ports import TickRecord
from tests.adapters.web.records import START_WALL_S, explain
from tests.harness.process import PATIENCE_S

MAX_AGE_S = 40.0


class HandClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return START_WALL_S + self.time_s

    async def sleep(self, duration_s: float) -> None:
        self.time_s += duration_s


@dataclass
class Daemon:
    """The recorders and the server over them, wired as the application does it."""

    clock: HandClock = field(default_factory=HandClock)
    detail: dict[str, object] = field(default_factory=dict)
    servers: AsyncExitStack = field(default_factory=AsyncExitStack)  # which end when the test does

    def __post_init__(self) -> None:
        self.dashboard = Dashboard(explain)
        self.metrics = Metrics("demo")
        self.readiness = Readiness(self.clock, MAX_AGE_S, lambda: self.detail)
        self.server = self.another(port=0)

    def another(self, port: int, **deadlines: float) -> HttpServer:
        settings = HttpSettings(host="127.0.0.1", port=port)
        parts = {"dashboard": self.dashboard, "metrics": self.metrics, "readiness": self.readiness}
        return HttpServer(settings, **parts, mode="demo", **deadlines)

    async def explain_by(self, explain: Explain) -> None:
        """Serve what this function explains from now on. Open pages follow the server of before."""
        self.dashboard = Dashboard(explain)
        self.server = await self.servers.enter_async_context(self.another(port=0))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def record(self, *ticks: TickRecord) -> None:
        for tick in ticks:
            for recorder in (self.dashboard, self.metrics, self.readiness):
                recorder.record(tick)


@asynccontextmanager
async def served() -> AsyncIterator[Daemon]:
    running = Daemon()
    async with running.servers:
        await running.servers.enter_async_context(running.server)
        yield running


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    async with served() as running:
        yield running


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(daemon.url, timeout=timeout) as session:
        yield session
