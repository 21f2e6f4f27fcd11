"""The demo as a newcomer meets it: first decision, page, summary, Ctrl-C."""

import asyncio
import json
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.harness.browser import screenshot
from tests.harness.process import eventually, free_port
from tests.integration.command import Daemon, daemon, run

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
WORKLOADS = {"chat-8b", "assistant-70b", "code-8b", "summaries-14b", "playground-8b", "helpdesk-14b"}


async def first_decision(demo: Daemon) -> None:
    """Wait for the first tick in the API."""

    async def decided() -> bool:
        return (await demo.json("/api/v1/workloads")).get("tick") is not None

    await eventually(decided, "the first decision", every_s=0.02)


@pytest.mark.long
async def test_demo_decides_and_stops_cleanly_on_ctrl_c(tmp_path: Path):
    async with daemon(tmp_path, "demo", ready=False) as demo:
        await first_decision(demo)
        assert {row["name"] for row in (await demo.json("/api/v1/workloads"))["workloads"]} == WORKLOADS
        await demo.ready()
        demo.signal(signal.SIGINT)
        assert await demo.ended() == 0
        assert demo.url in demo.out
        assert "Traceback" not in demo.out + demo.err


async def test_make_demo_prints_the_page_and_stops_on_ctrl_c(tmp_path: Path):
    # Its set-up is done: this test runs from it. -o: not even if pyproject.toml looks newer.
    port = free_port()
    make = ("make", "-C", ROOT, "-o", ".venv/installed", "demo", f"DEMO_ARGS=--http-port {port}")
    demo = Daemon(tmp_path, *make, port=port)
    try:
        await first_decision(demo)
        demo.signal(signal.SIGINT, group=True)
        await demo.ended()
        assert demo.url in demo.out
        assert "Traceback" not in demo.out + demo.err
        assert "no report: " in demo.err, "its record is shorter than an hour"
        assert await demo.get("/healthz") == (0, "")
        assert demo.code in (0, -signal.SIGINT), "make itself ends by the signal, once the demo has ended"
    finally:
        demo.kill()


async def test_planner_learns_from_the_replicas_and_explain_shows_it(tmp_path: Path):
    async with daemon(tmp_path, "demo", "--speed", "120") as demo:

        async def learned() -> dict[str, Any]:
            explanation = (await demo.workload("models", "chat-8b"))["explanation"]
            names = {line["name"] for line in explanation["forecast"]}
            return explanation["inputs"] if explanation["signal"] == "planner" and "strategy" in names else {}

        inputs = await eventually(learned, "a recommendation of the planner", every_s=0.2)
        assert 0.004 < inputs["planner_idle_gap_s"] < 0.02, "an 8B model on an H100"
        assert 0 <= inputs["planner_missed_fraction"] < 1, "misses are counted"
        told = await run(tmp_path, "explain", "models/chat-8b", "--url", demo.url)
        assert told.code == 0
        assert re.search(
            r"^  replica     \S+ requests/s keep one busy; \S+ ms between tokens when idle", told.out, re.M
        )


async def test_page_shows_a_replica_that_sleeps_before_office_hours(tmp_path: Path, chromium: Browser):
    page = await chromium.new_page()
    async with daemon(tmp_path, "demo", "--speed", "30", "--seed", "1", ready=False) as demo:
        await first_decision(demo)
        await page.goto(f"{demo.url}/#models/helpdesk-14b")
        await expect(page.locator("dt", has_text="Asleep")).to_be_visible()
        await expect(page.locator(".sentence")).to_contain_text("asleep")
        # The page may show it before the call that puts it to sleep has answered and is logged.
        await eventually(lambda: asyncio.sleep(0, "replica asleep" in demo.err), "the replica that sleeps in the log")


async def test_as_json_it_ends_by_itself_with_one_summary(tmp_path: Path):
    arguments = ("--json", "--duration", "5s", "--speed", "120", "--seed", "7")
    async with daemon(tmp_path, "demo", *arguments, ready=False) as demo:
        assert await demo.ended() == 0
        took_s = time.monotonic() - demo.started_s
        assert took_s >= 5
        assert demo.err == ""
        (line,) = demo.out.splitlines()
    summary: dict[str, Any] = json.loads(line)
    assert summary["seed"] == 7
    # Two minutes in each second; on a busy machine the clock waits for decisions.
    assert 0 < summary["simulated_s"] <= 120 * took_s
    assert summary["requests"] > 0.8 * summary["simulated_s"]
    assert 0 <= summary["attainment"] <= 1
    assert 0 < summary["gpu_hours"] <= summary["static_gpu_hours"]
    assert summary["errors"] == sum(row["failed"] for row in summary["workloads"].values())
    assert summary["errors"] == 0 or summary["crashes"] > 0, summary  # a pod crashes once in two days
    assert {name.removeprefix("models/") for name in summary["workloads"]} == WORKLOADS
    for row in summary["workloads"].values():
        assert row["arrived"] == sum(row[key] for key in ("finished", "rejected", "given_up", "failed", "open"))
    for key in ("requests", "gpu_hours", "scale_ups", "scale_downs"):
        each = "arrived" if key == "requests" else key
        assert summary[key] == pytest.approx(sum(row[each] for row in summary["workloads"].values()), abs=0.01)


async def test_a_port_in_use_is_one_clear_line_and_code_2(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = await run(tmp_path, "demo", "--http-port", str(port), "--record", str(tmp_path / "record"))
    assert demo.code == 2
    (line,) = demo.err.splitlines()
    assert line.startswith("error: ")
    assert str(port) in line
    assert "in use" in line


async def test_page_shows_every_workload_and_its_decisions(tmp_path: Path, chromium: Browser):
    complaints: list[str] = []
    async with daemon(tmp_path, "demo", "--speed", "120", "--seed", "3", ready=False) as demo:
        await first_decision(demo)
        page = await chromium.new_page(viewport={"width": 1400, "height": 900})
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(demo.url)
        await expect(page.locator("#rows .name")).to_have_count(len(WORKLOADS))
        await expect(page.locator("#live")).to_have_text("Live")
        await expect(page.locator("#mode")).to_have_text("demo")

        async def changed() -> str:
            """Return a workload with requests and decisions to see, after some history."""
            for name in ("chat-8b", "code-8b"):
                seen = await demo.workload("models", name)
                if seen and len(seen["changes"]) >= 2 and len(seen["history"]["tick"]) >= 40:
                    return name
            return ""

        name = await eventually(changed, "a workload with two changes", every_s=0.5)
        await screenshot(page, "demo-list")
        await page.locator("#rows a", has_text=name).click()
        await expect(page.locator(".mark").nth(1)).to_be_visible()
        for line in ("demand", "ready", "wanted", "waiting", "ttft"):
            drawn = re.compile("[HLVh]")  # h: a single value
            await expect(page.locator(f".panel .line.{line}")).to_have_attribute("d", drawn)
        await expect(page.locator("table.changes tbody tr").nth(1)).to_be_visible()
        await expect(page.locator(".sentence")).to_contain_text(re.compile("replica"))
        picture = await screenshot(page, "demo-workload")
        assert picture.stat().st_size > 20_000

        demo.signal(signal.SIGINT)  # with a browser following the stream
        assert await demo.ended() == 0
        await expect(page.locator("#live")).to_have_text("Reconnecting")
    assert complaints == []
