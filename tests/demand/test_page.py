"""The page of demand in a real browser: light, dark and narrow."""

from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from playwright.async_api import Browser

from autoscaler.adapters.prometheus.range.latency_queries import ITL, REQUEST, TTFT
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.core.table.histogram import Histogram
from autoscaler.demand.model import DemandModel, model_demand
from autoscaler.demand.page import page
from autoscaler.report.history import FleetHistory
from tests.harness.browser import screenshot
from tests.report.test_page import cut, made


def modelled() -> DemandModel:
    """Two services with long and hostile names, one with histograms; the history is too short for drafts."""
    report = replace(made(2), teams=("<i>team</i>", ""))
    book, span = load_policies(()), report.load.span
    stays = {report.services[0]: Histogram(np.array([1.0, 5.0, np.inf]), np.array([50.0, 90.0, 100.0]))}
    history = FleetHistory(span._replace(steps=10), report.services, {})
    latencies = {TTFT: stays, ITL: {}, REQUEST: stays}
    return model_demand(report, history, latencies, book.policies[book.default], ZoneInfo("Asia/Kolkata"))


@pytest.mark.integration
async def test_demand_is_drawn_whole_in_a_browser(chromium: Browser, tmp_path: Path):
    text, file = page(modelled()), tmp_path / "demand.html"
    file.write_text(text, "utf-8")
    assert "<script" not in text
    assert "<b>team" not in text and "<i>team" not in text
    problems = list[str]()
    for scheme in ("light", "dark"):
        context = await chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
        tab = await context.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        await tab.goto(file.as_uri())
        captions = await tab.locator("figcaption b").all_inner_texts()
        assert captions == 2 * [*INPUTS]
        assert await tab.locator("figure svg").count() == 2 * len(INPUTS) - 2  # no histogram of the second
        assert await cut(tab) == []
        await screenshot(tab, f"demand-{scheme}")
        await tab.set_viewport_size({"width": 390, "height": 800})
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await cut(tab) == []
        await context.close()
    assert problems == []


INPUTS = (
    "Concurrency by hour",
    "Concurrency by weekday",
    "Queue",
    "Bursts",
    "Latency",
    "Mix",
    "Residency",
    "Duration",
)
