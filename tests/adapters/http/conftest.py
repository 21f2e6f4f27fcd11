"""A running server whose ticks the test makes, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest

from autoscaler.adapters.http.board import Board
from autoscaler.adapters.http.metrics import Metrics
from autoscaler.adapters.http.readiness import Readiness
from autoscaler.adapters.http.server import HttpServer
from autoscaler.config.settings import HttpSettings
from autoscaler.ports import TickRecord
from tests.adapters.http.records import START_WALL_S, explain

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

    def __post_init__(self) -> None:
        self.board = Board(explain)
        self.metrics = Metrics("demo")
        self.readiness = Readiness(self.clock, MAX_AGE_S, lambda: self.detail)
        self.server = self.another(port=0)

    def another(self, port: int, heartbeat_s: float = 15.0, write_deadline_s: float = 10.0) -> HttpServer:
        settings = HttpSettings(host="127.0.0.1", port=port)
        parts = {"board": self.board, "metrics": self.metrics, "readiness": self.readiness}
        return HttpServer(settings, **parts, mode="demo", heartbeat_s=heartbeat_s, write_deadline_s=write_deadline_s)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def record(self, *ticks: TickRecord) -> None:
        for tick in ticks:
            for recorder in (self.board, self.metrics, self.readiness):
                recorder.record(tick)


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    running = Daemon()
    async with running.server:
        yield running


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(daemon.url, timeout=timeout) as session:
        yield session
