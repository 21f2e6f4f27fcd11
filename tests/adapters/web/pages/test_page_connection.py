"""What the page says of the daemon itself, in a real Chromium: no tick, no answer, a cut stream, many tabs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import aiohttp
import pytest
from playwright.async_api import Browser, Page, Route, expect

from autoscaler.adapters.web.stream import MAX_CLIENTS
from autoscaler.core.model.samples import Samples, SourceReport
from tests.adapters.web.conftest import Daemon
from tests.adapters.web.pages.conftest import Open, open_page_quietly, rows
from tests.adapters.web.records import START_WALL_S, World
from tests.harness.browser import PATIENCE_MS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


async def test_before_the_first_tick_the_page_claims_nothing(daemon: Daemon, chromium: Browser) -> None:
    page = await open_page_quietly(chromium, daemon, "/", [])
    await expect(page.locator("#live")).to_have_text("Waiting for the first tick")
    await expect(page.locator("#tiles dd")).to_have_text(["–"] * 6)
    await expect(page.locator("#empty")).to_have_text("Nothing is known before the first tick.")
    daemon.record(World(3).tick())
    await expect(page.locator("#tiles dd").first).to_have_text("3")
    await expect(page.locator("#empty")).to_be_hidden()


async def test_while_ticks_fail_the_page_says_why(daemon: Daemon, chromium: Browser) -> None:
    refused: list[str] = []
    page = await open_page_quietly(chromium, daemon, "/", refused)
    failure = page.get_by_role("alert")
    await expect(failure).to_be_hidden()
    daemon.readiness.failed(0.0, OSError("http://prometheus:9090: no connection"))
    await expect(failure).to_have_text("The last tick failed. OSError: http://prometheus:9090: no connection")
    daemon.record(World(3).tick())
    await expect(page.locator("#live")).to_have_text("Live")
    await expect(failure).to_be_hidden()
    assert all("503" in text for text in refused)


async def test_page_is_not_live_when_opened_while_ticks_fail(daemon: Daemon, chromium: Browser) -> None:
    world = World(3)
    daemon.record(world.tick())
    daemon.readiness.failed(0.0, OSError("http://prometheus:9090: no connection"))
    daemon.clock.time_s = 3600.0
    page = await open_page_quietly(chromium, daemon, "/", [])
    await expect(rows(page)).to_have_count(3)
    await expect(page.locator("#live")).to_have_text("No recent tick")
    await expect(page.get_by_role("alert")).to_contain_text("no connection")
    daemon.record(replace(world.tick(), now_s=3600.0))
    await expect(page.locator("#live")).to_have_text("Live")


async def test_problems_of_sources_and_policies_show_until_fixed(daemon: Daemon, open_page: Open) -> None:
    world = World(2)
    tick = world.tick()
    report = SourceReport("prometheus", queries=14, failed=3, duration_s=0.02, problems=("running: HTTP 500",) * 3)
    daemon.record(replace(tick, input=replace(tick.input, samples=Samples.unknown(2, 0, (report,)))))
    daemon.detail["policy_problem"] = "a.yaml:3: spec.weight: 0; allowed: above 0"
    page = await open_page()
    problems = page.locator("#problems")
    await expect(problems).to_contain_text("not in force: a.yaml:3: spec.weight: 0; allowed: above 0")
    await expect(problems).to_contain_text("prometheus: 3 of 14 queries failed: running: HTTP 500 (and 2 more)")
    daemon.detail.clear()
    daemon.record(world.tick())
    await expect(problems).to_be_hidden()


async def test_a_pod_that_did_not_answer_once_is_no_problem_to_tell(daemon: Daemon, open_page: Open) -> None:
    world = World(2)
    daemon.record(world.tick())
    page = await open_page()
    await page.clock.install()
    await page.reload()
    await page.evaluate(
        "new MutationObserver(() => { window.told ||= !problems.hidden; }).observe(problems, { attributes: true })"
    )
    tick = world.tick()
    report = SourceReport("scrape", queries=9, failed=1, duration_s=0.02, problems=("ns/pod: connection refused",))
    once = replace(tick, input=replace(tick.input, samples=Samples.unknown(2, 0, (report,))))
    later = [once, world.tick(), world.tick()]

    async def answer(route: Route) -> None:
        """Tick before the page has the answer, so that it reads each tick once."""
        response = await route.fetch()
        if later:
            daemon.record(later.pop(0))
        await route.fulfill(response=response)

    await page.route("**/readyz", answer)
    while later:
        async with page.expect_response("**/readyz"):
            await page.clock.fast_forward(3000)  # to the next question
    assert not await page.evaluate("window.told")


@pytest.mark.parametrize("path", ["/api/v1/stream", "/"])
async def test_a_stream_that_is_cut_without_a_word_is_replaced(daemon: Daemon, chromium: Browser, path: str) -> None:
    world = World(3)
    daemon.record(world.tick())
    async with _Wire(daemon.server.port) as wire:
        page = await chromium.new_page()
        await page.clock.install()
        await page.goto(wire.url)
        await expect(page.locator("#live")).to_have_text("Live")
        await expect(page.locator("#clock")).not_to_be_empty()
        shown = await page.locator("#clock").text_content()
        wire.cut(path)
        daemon.record(world.tick())
        await page.clock.fast_forward(20_000)
        # Each of the browser's six connections may have to be found dead: five seconds, and three to the next question.
        await expect(page.locator("#clock")).not_to_have_text(shown or "")
        await expect(page.locator("#live")).to_have_text("Live")


async def test_where_too_many_follow_the_page_is_filled_all_the_same(daemon: Daemon, chromium: Browser) -> None:
    world = World(3)
    daemon.record(world.tick())
    async with aiohttp.ClientSession(daemon.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        followers = [await session.get("/api/v1/stream") for _ in range(MAX_CLIENTS)]
        page = await open_page_quietly(chromium, daemon, "/", [])
        await expect(rows(page)).to_have_count(3)
        await expect(page.locator("#live")).to_have_text("Live")
        daemon.record(replace(world.tick(), wall_s=START_WALL_S + 3600))
        await expect(page.locator("#live")).to_have_text("Live")
        for follower in followers:
            follower.close()


async def test_any_number_of_tabs_may_be_open_in_one_browser(daemon: Daemon, chromium: Browser) -> None:
    world = World(7)  # browsers open six connections to a server
    daemon.record(world.tick())
    context = await chromium.new_context()
    context.set_default_timeout(PATIENCE_MS)
    pages = []
    for member in world.members:
        pages.append(await context.new_page())
        await pages[-1].goto(f"{daemon.url}/#{member.ref}")
        await expect(pages[-1].locator("#live")).to_have_text("Live")
        await expect(pages[-1].locator(".sentence")).to_contain_text(str(member.ref))
        await look(pages[-1], away=True)
    daemon.record(world.tick())
    await look(pages[0], away=False)
    await expect(pages[0].locator("#live")).to_have_text("Live")
    await expect(pages[0].locator(".panel .line.ttft")).to_have_attribute("d", re.compile(r"^M[^L]*L[^L]+$"))
    await context.close()


async def look(page: Page, *, away: bool) -> None:
    """Say to a page what a browser says when its tab is left or shown; headless Chromium never hides one."""
    await page.evaluate(
        """(away) => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => away });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        away,
    )


class _Wire:
    """A way to the daemon whose connections can go dead, as when a node vanishes: they stay open and carry nothing."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: list[tuple[bytearray, asyncio.StreamWriter, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> _Wire:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for _asked, near, far in self._connections:
            near.transport.abort()
            far.transport.abort()

    def cut(self, path: str) -> None:
        """Carry nothing more on those of the open connections on which this was asked for."""
        for asked, near, far in self._connections:
            if path.encode() in asked:
                near.transport.pause_reading()
                far.transport.pause_reading()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        asked = bytearray()
        self._connections.append((asked, writer, far_writer))
        await asyncio.gather(_pump(reader, far_writer, asked), _pump(far_reader, writer, bytearray()))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, seen: bytearray) -> None:
    with suppress(ConnectionError):
        while part := await source.read(65536):
            seen += part
            sink.write(part)
        sink.close()


async def test_page_reconnects_when_the_daemon_restarts(chromium: Browser) -> None:
    said: list[str] = []
    async with serving(World(3), 0) as first:
        port = first.server.port
        page = await chromium.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto(first.url)
        await expect(rows(page)).to_have_count(3)
    await expect(page.locator("#live")).to_have_text("Reconnecting")
    silence = page.get_by_role("alert")
    await expect(silence).to_contain_text("does not answer.\nWhat is shown is from 18 Nov, ", use_inner_text=True)
    async with serving(World(5), port):
        await expect(page.locator("#live")).to_have_text("Live")
        await expect(silence).to_be_hidden()
        await expect(rows(page)).to_have_count(5)
    assert said == []


@asynccontextmanager
async def serving(world: World, port: int) -> AsyncIterator[Daemon]:
    daemon = Daemon()
    daemon.server = daemon.another(port)
    async with daemon.server:
        daemon.record(world.tick())
        yield daemon
