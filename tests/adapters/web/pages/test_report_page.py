"""The report of the record at `/report`: computed beside the loop, one at a time, and kept."""

from __future__ import annotations

import threading
from functools import partial

import aiohttp
import pytest
from playwright.async_api import Browser, expect

from autoscaler.adapters.web.report_page import CONTENT, NotYet
from autoscaler.ports import Unavailable
from tests.adapters.web.conftest import Daemon
from tests.adapters.web.pages.conftest import Open
from tests.adapters.web.records import World
from tests.harness.process import eventually

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


async def text_of(session: aiohttp.ClientSession) -> str:
    async with session.get("/report") as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        assert response.headers["Content-Security-Policy"] == CONTENT
        return await response.text()


async def test_report_is_computed_once_when_many_ask(daemon: Daemon, chromium: Browser):
    began, finish, asked = threading.Event(), threading.Event(), []

    def make() -> str:
        asked.append(threading.current_thread().name)
        began.set()
        finish.wait(30)
        return "<!doctype html><title>t</title><h1>All services</h1>"

    async with daemon.another(port=0, report=make) as server, aiohttp.ClientSession(server.url) as session:
        for _ in range(3):
            assert "is being computed" in await text_of(session)
        page = await chromium.new_page()
        await page.goto(server.url + "report")
        await expect(page.locator("p").first).to_contain_text("is being computed")
        finish.set()
        await expect(page.locator("h1")).to_have_text("All services")  # the page asks again by itself
        assert "All services" in await text_of(session)
    assert asked == ["report"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable("it has <8 minutes>"), "no report: it has &lt;8 minutes&gt;. It is tried again 10 minutes after"),
        (ZeroDivisionError("x"), "There is no report: ZeroDivisionError; the log of the daemon has more. It is tried"),
    ],
)
async def test_failure_is_told_when_there_is_no_report(daemon: Daemon, error: Exception, said: str):
    asked = []

    def make() -> str:
        asked.append(error)
        raise error

    async with daemon.another(port=0, report=make) as server, aiohttp.ClientSession(server.url) as session:

        async def told() -> bool:
            return said in await text_of(session)

        await eventually(told, "the failure", every_s=0.02)
        await text_of(session)
    assert asked == [error]


async def test_short_record_is_looked_at_again_soon(daemon: Daemon):
    """Not after the ten minutes for which a report is kept."""
    pages = iter(["", "<!doctype html><title>t</title><h1>All services</h1>"])

    def make() -> str:
        if text := next(pages):
            return text
        raise NotYet("An hour is needed <so far: 8 minutes>.")

    async with daemon.another(port=0, report=make) as server, aiohttp.ClientSession(server.url) as session:

        async def told(said: str) -> bool:
            return said in await text_of(session)

        await eventually(
            partial(told, "<p>An hour is needed &lt;so far: 8 minutes&gt;.</p>"), "the words", every_s=0.02
        )
        await eventually(partial(told, "All services"), "the report")


async def test_page_leads_to_what_to_do_when_no_record_is_kept(daemon: Daemon, open_page: Open):
    daemon.record(World(1).tick())
    page = await open_page()
    await page.get_by_role("link", name="Report").click()
    await expect(page.locator("p").first).to_contain_text("--record DIR")
    await page.get_by_role("link", name="Back to the workloads").click()
    await expect(page.locator("#workloads")).to_be_visible()
