"""The page of demand in a real browser: light, dark and narrow."""

import re
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from playwright.async_api import Browser

from autoscaler.adapters.prometheus.range.latency_queries import ITL, REQUEST, TTFT
from autoscaler.adapters.record.quarter_hours import UseName
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.core.table.histogram import Histogram
from autoscaler.demand.capacity import BuyLimits, pool_name
from autoscaler.demand.model import DemandHistory, DemandModel, model_demand
from autoscaler.demand.page import page
from autoscaler.demand.purchase import Purchase, plan_purchase
from autoscaler.report.history import FleetHistory
from tests.demand.test_purchase import HOURS, capacity, in_hours
from tests.harness.browser import screenshot
from tests.report.test_page import cut, made


def modelled() -> DemandModel:
    """Two services with long and hostile names, one with histograms; the history is too short for drafts.

    Nobody saw them from 10 to 14 o'clock of the first day.
    """
    report = made(2)
    unseen = np.zeros(report.load.shape, bool)
    unseen[600:840] = True
    report = replace(report, load=replace(report.load, seen=~unseen))
    facts = replace(report.facts, products=("NVIDIA-L4",) * 2)
    report = replace(report, facts=facts, teams=("<i>team</i>", ""))
    book, span = load_policies(()), report.load.span
    stays = {report.services[0]: Histogram(np.array([1.0, 5.0, np.inf]), np.array([50.0, 90.0, 100.0]))}
    history = FleetHistory(span._replace(steps=10), report.services, {})
    latencies = {TTFT: stays, ITL: {}, REQUEST: stays}
    return model_demand(report, DemandHistory(history, latencies), book, ZoneInfo("Asia/Kolkata"))


def purchased(demand: DemandModel) -> Purchase:
    """Return the answer for two kinds of slices, of which a workload with a hostile name lacked some for an hour."""
    pools = tuple((f"nvidia.com/mig-{name}", "NVIDIA-H100-80GB-HBM3", "") for name in ("1g.10gb", "3g.40gb"))
    names = tuple(
        UseName("team", f"<i>{'assistant-' * 6}{row}</i>", "Deployment", pool) for row, pool in enumerate(pools)
    )
    short = {"lacking": in_hours(3, value=0.5), "lacking_s": in_hours(3, value=3600)}
    history = capacity(pools, names, HOURS, needed=[1 / 7, 1.5], pool_gpus=[2.0, 2.0], pool_busy=[2.0, 1.0], **short)
    return plan_purchase(demand, history, BuyLimits(), {}, "")


@pytest.mark.integration
async def test_demand_is_drawn_whole_in_a_browser(chromium: Browser, tmp_path: Path):
    demand, file = modelled(), tmp_path / "demand.html"
    purchase = purchased(demand)
    text = page(demand, purchase)
    file.write_text(text, "utf-8")
    assert "<script" not in text
    assert "<b>team" not in text and "<i>" not in text
    queues = re.findall(r'<b>Queue</b>.*?class="line [^"]*" d="([^"]*)"', text)
    assert [path.count("M") for path in queues] == [2, 2]  # a gap
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
        cards = await tab.locator("section h2").all_inner_texts()
        assert cards[: 1 + len(purchase.pools)] == [
            "When to buy",
            *(f"Pool {pool_name(each.pool)}" for each in purchase.pools),
        ]
        said = await tab.locator("section").nth(1).inner_text()
        assert purchase.sentence in await tab.locator("section").nth(0).inner_text()
        assert all(each.sentence in said for each in purchase.pools[0].advice) and "x (3g + 3g)" in said
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
