"""The page in a real browser: light, dark, narrow and printed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Browser, Page

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.report.history import FleetHistory
from autoscaler.report.page import page
from autoscaler.report.report import FleetReport, compute
from tests.harness.browser import screenshot
from tests.report.loads import facts_of, interactive, load_of, profiles_of
from tests.report.test_sampled import HOUR

STEPS = 2 * 1440
SCROLLING = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth).length"
PAPER = {"width": 1032, "height": 703}
"""What an A4 page across has within its margins, in CSS pixels."""


@pytest.fixture(scope="module")
def text() -> str:
    """The page of a report of two days on twelve services, with long names and large numbers."""
    return page(made(12))


def made(services: int) -> FleetReport:
    at = np.arange(STEPS)[:, None] / 1440
    draw = np.random.default_rng(1)
    demand = np.maximum(3 + 3 * np.sin(2 * np.pi * at) + draw.normal(0, 0.3, (STEPS, services)), 0)
    counts = np.tile(4.0 + np.arange(services) * 9, (STEPS, 1))
    load = load_of(demand, counts, missed_share=(0.02 * (demand > 5.5)).astype(np.float32))
    names = [f"<b>team-{row}-of-the-department-of-language</b>" for row in range(services)]
    history = FleetHistory(
        load.span, tuple(ServiceName("europe-west-1", name, f"{'assistant-' * 4}{name[7]}") for name in names), {}
    )
    report = compute(
        "http://prometheus:9090",
        history,
        load,
        profiles_of(services),
        facts_of(gpus=8.0, usd=98.32, services=services),
        interactive(services),
        ("interactive",) * services,
    )
    doubts = ("92.5% within TTFT in the replay, 98.0% measured", *[""] * (services - 1))
    modelled = np.array([not doubt for doubt in doubts])
    return replace(report, sampled=(HOUR, replace(HOUR, row=1)), doubts=doubts, modelled=modelled)


def test_page_holds_everything_and_names_are_escaped(text: str):
    assert set(re.findall(r"(?:https?:)?//[\w.]+", text)) == {"http://prometheus", "http://www.w3.org"}
    assert "<b>team" not in text and "&lt;b&gt;team" in text
    assert "<script" not in text


async def cut(tab: Page) -> list[str]:
    """Return what reaches beyond the page, or beyond a part that does not scroll."""
    return await tab.evaluate(
        """() => [...document.querySelectorAll('section, table, tr > *, figure, svg')].filter((each) => {
          const scrolls = getComputedStyle(each.closest('.scroll') ?? document.body).overflowX === 'auto'
          const inside = each.closest('.scroll') === null || !scrolls
          return inside && each.getBoundingClientRect().right > innerWidth + 1
        }).map((each) => each.tagName + ' ' + each.textContent.slice(0, 40))"""
    )


@pytest.mark.integration
@pytest.mark.parametrize("look", ["light", "dark", "print"])
async def test_page_is_whole_when_seen_in_a_browser(chromium: Browser, tmp_path: Path, text: str, look: str):
    file = tmp_path / "report.html"
    file.write_text(text, "utf-8")
    scheme = "dark" if look != "light" else "light"  # paper is white, whatever the screen
    size = PAPER if look == "print" else {"width": 1280, "height": 900}
    context = await chromium.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    tab = await context.new_page()
    asked, problems = list[str](), list[str]()
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: problems.append(message.text))
    await tab.goto(file.as_uri())
    if look == "print":
        await tab.emulate_media(media="print")
    ground = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(14, 17, 22)") == (look == "dark")
    ink = await tab.evaluate("getComputedStyle(document.querySelector('td')).color")
    assert ink == {"light": "rgb(23, 27, 34)", "dark": "rgb(231, 234, 240)", "print": "rgb(0, 0, 0)"}[look]
    assert await cut(tab) == []
    await screenshot(tab, f"report-{look}")
    if look == "print":
        pdf = await tab.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
        assert pdf.startswith(b"%PDF")
    else:
        await tab.set_viewport_size({"width": 1200, "height": 800})
        assert await tab.evaluate(SCROLLING) == 0
        await tab.set_viewport_size({"width": 390, "height": 800})
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await cut(tab) == []
    assert {*asked} == {file.as_uri()} and problems == []
    await context.close()
