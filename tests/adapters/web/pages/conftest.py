"""Pages in Chromium. Their tests share one event loop and connection: one of its own is half a second of a core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.adapters.web.conftest import Daemon, served
from tests.harness.browser import PATIENCE_MS, connected

Open = Callable[..., Awaitable[Page]]
WIDE = {"width": 1400, "height": 900}


@pytest_asyncio.fixture(loop_scope="session")
async def daemon() -> AsyncIterator[Daemon]:
    async with served() as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def connection(shared_chromium: str) -> AsyncIterator[Browser]:
    async with connected(shared_chromium) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def chromium(connection: Browser) -> AsyncIterator[Browser]:
    """The Chromium of all pages; what a test opens is closed at its end."""
    before = set(connection.contexts)
    yield connection
    for context in set(connection.contexts) - before:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
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
