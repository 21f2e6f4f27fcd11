"""The page in a real browser: light, dark, narrow and printed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Browser, Page

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.report.history import FleetHistory, Span
from autoscaler.report.html import document, notes, section
from autoscaler.report.load import measure_load
from autoscaler.report.page import page
from autoscaler.report.report import FleetReport, compute
from tests.harness.browser import screenshot
from tests.report.loads import START_S, facts_of, interactive, load_of, profiles_of
from tests.report.test_sampled import HOUR

pytestmark = pytest.mark.slow

STEPS, STEP_S = 2 * 720, 120.0
SCROLLING = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth).length"
PAPER = {"width": 1032, "height": 703}
"""What an A4 page across has within its margins, in CSS pixels."""


@pytest.fixture(scope="module")
def text() -> str:
    """The page of a report of two days on twelve services, with long names and large numbers."""
    return page(made(12))


def made(services: int) -> FleetReport:
    at = np.arange(STEPS)[:, None] / 720
    draw = np.random.default_rng(1)
    demand = np.maximum(3 + 3 * np.sin(2 * np.pi * at) + draw.normal(0, 0.3, (STEPS, services)), 0)
    counts = np.tile(4.0 + np.arange(services) * 9, (STEPS, 1))
    load = load_of(demand, counts, step_s=STEP_S, missed_share=(0.02 * (demand > 5.5)).astype(np.float32))
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


@pytest.fixture(scope="module")
def few() -> FleetReport:
    return made(2)


def test_few_services_are_in_one_table(text: str, few: FleetReport):
    heads = re.findall(r"<h2>([^<]*)", page(few))
    assert "Every service, most to gain first" in heads and "Most to gain" not in heads
    assert {"Every service", "Most to gain"} < set(re.findall(r"<h2>([^<]*)", text))


def test_page_shows_no_sign_that_turns_or_hides_text(few: FleetReport):
    """A model has any name; one sign would turn the figures that stand after it."""
    facts = replace(few.facts, model=("\u202eone\u2066", "two\x1b[31m\u200b"))
    written = page(replace(few, facts=facts, notes=("\u202enote",)))
    assert all(sign.isprintable() or sign == "\n" for sign in written)
    assert "?one?" in written and "two?[31m?" in written


USUAL = {
    **{"pods": 2.0, "ordered": 2.0, "running": 5.0, "waiting": 1.0, "kv_usage": 0.3, "gap_s": 20.0, "gaps": 2e4},
    **{
        "ttft_met": 95.0,
        "itl_met": 95.0,
        "itl_judged": 100.0,
        "finished": 100.0,
        "first_tokens": 100.0,
        "prompt_tokens": 1e4,
        "generation_tokens": 2e4,
    },
}


@pytest.mark.parametrize(("column", "value", "begin"), [("first_tokens", 1e-44, 0), ("gaps", np.nan, 61)])
def test_tiny_and_missing_numbers_of_one_service_spoil_no_report(column: str, value: float, begin: int):
    """Where they begin while requests wait, work of the past waits, and no request shows how much work it is."""
    steps = 120
    columns = {name: np.full((steps, 2), usual, np.float32) for name, usual in USUAL.items()}
    columns[column][begin:, 1] = value
    names = (ServiceName("", "a", "good"), ServiceName("", "odd", "liar"))
    history = FleetHistory(Span(START_S, 120.0, steps), names, columns)
    load, profiles = measure_load(history, interactive(2), np.full(2, np.nan))
    report = compute("x", history, load, profiles, facts_of(services=2), interactive(2), ("interactive",) * 2)
    assert page(report)
    for entry in report.entries:
        arrived = load.arrivals.cumsum(axis=0) * 1.001
        assert (entry.course.waiting <= np.maximum(arrived, load.waiting)).all()


def test_lines_break_where_nothing_was_seen(few: FleetReport):
    """Nobody saw the first service for six hours of each day, nor any service for the last two of these."""
    hole = np.zeros((2, 720, 2), bool)
    hole[:, 300:480, 0] = hole[:, 420:480] = True
    lines = r'class="line [^"]*" d="([^"]*)"'
    runs = [
        [path.count("M") for path in re.findall(lines, page(replace(few, load=replace(few.load, seen=seen))))]
        for seen in (~hole.reshape(-1, 2), np.ones_like(few.load.seen))
    ]
    by_hour, day = 3, 6  # lines of all services together, and of the day of each
    assert runs == [[3] * by_hour + [2] * 2 * day, [1] * (by_hour + 2 * day)]


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
@pytest.mark.parametrize("look", ["light", pytest.param("dark", marks=pytest.mark.long), "print"])
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


def test_notes_of_a_page_are_sentences_with_quotes():
    written = notes(["of 2 services", "team/chat is new", "`idleAfter: <b>` counts as `0`", "one ` alone"])
    quoted = "<code>idleAfter: &lt;b&gt;</code> counts as <code>0</code>"
    assert re.findall("<li>(.*?)</li>", written) == ["Of 2 services", "team/chat is new", quoted, "One ` alone"]


@pytest.mark.integration
async def test_page_stays_as_wide_as_the_window_when_a_text_has_no_blank(few: FleetReport, chromium: Browser):
    """A note or a title may hold the name of a model, and a tenant states it."""
    endless = "x" * 2000
    frame = document(endless, endless, endless, [section(endless, "", endless), notes([endless])])
    for written in (page(replace(few, notes=(endless,), doubts=(endless, ""))), frame):
        tab = await chromium.new_page(viewport={"width": 390, "height": 800})
        await tab.set_content(written)
        assert await tab.evaluate("document.documentElement.scrollWidth") == 390
        await tab.close()
