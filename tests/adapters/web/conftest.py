"""A running server whose ticks the test makes, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import aiohttp
import pytest
from playwright.async_api import Browser, Page

from autoscaler.adapters.web.dashboard import Dashboard
from autoscaler.adapters.web.metrics import Metrics
from autoscaler.adapters.web.readiness import Readiness
from autoscaler.adapters.web.server import HttpServer
from autoscaler.config.settings import HttpSettings
from autoscaler.ports import TickRecord
from tests.adapters.web.records import START_WALL_S, explain
from tests.harness.browser import PATIENCE_MS
from tests.harness.process import PATIENCE_S

MAX_AGE_S = 40.0
Open = Callable[..., Awaitable[Page]]
WIDE = {"width": 1400, "height": 900}


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
        self.dashboard = Dashboard(explain)
        self.metrics = Metrics("demo")
        self.readiness = Readiness(self.clock, MAX_AGE_S, lambda: self.detail)
        self.server = self.another(port=0)

    def another(self, port: int, **deadlines: float) -> HttpServer:
        settings = HttpSettings(host="127.0.0.1", port=port)
        parts = {"dashboard": self.dashboard, "metrics": self.metrics, "readiness": self.readiness}
        return HttpServer(settings, **parts, mode="demo", **deadlines)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def record(self, *ticks: TickRecord) -> None:
        for tick in ticks:
            for recorder in (self.dashboard, self.metrics, self.readiness):
                recorder.record(tick)


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    running = Daemon()
    async with running.server:
        yield running


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(daemon.url, timeout=timeout) as session:
        yield session


@pytest.fixture
async def open_page(daemon: Daemon, chromium: Browser) -> AsyncIterator[Open]:
    """Open the page; what it complains of on the console, or fails to load, fails the test."""
    complaints: list[str] = []

    async def opened(
        path: str = "/",
        scheme: Literal["light", "dark"] = "light",
        viewport: dict[str, int] = WIDE,
    ) -> Page:
        page = await chromium.new_page(color_scheme=scheme, viewport=viewport, timezone_id="Europe/Berlin")
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        await page.goto(daemon.url + path)
        return page

    yield opened
    assert complaints == []


async def open_page_quietly(chromium: Browser, daemon: Daemon, path: str, said: list[str]) -> Page:
    """Open a page whose console may tell of answers other than 200; they are collected."""
    page = await chromium.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: said.append(message.text))
    await page.goto(daemon.url + path)
    return page


def rows(page: Page) -> object:
    return page.locator("#rows tr:not(.spacer)")
