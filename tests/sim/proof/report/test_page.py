"""The page in a real browser, in light and dark, and what it must never do."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.async_api import Browser

from autoscaler.sim.proof.report import charts
from autoscaler.sim.proof.report.page import page
from tests.harness.browser import screenshot
from tests.sim.proof.report.proofs import PLAN, proof, run


def test_names_from_files_are_text_and_not_markup() -> None:
    text = page([proof(run(), run('"><img src=x onerror=alert(1)>'), trace="<script>alert(1)</script>")])
    assert "<script>alert" not in text
    assert "<img" not in text


def test_the_page_names_no_other_address() -> None:
    assert set(re.findall(r"(?:https?:)?//[\w.]+", page([proof()]))) <= {"http://www.w3.org"}


def test_every_picture_is_well_formed() -> None:
    made = proof()
    for picture in (
        charts.frontier(made),
        charts.timeline(made, made.runs[0], charts.most_replicas(made)),
    ):
        ElementTree.fromstring(picture)


def test_a_wild_baseline_that_missed_does_not_flatten_the_rest() -> None:
    wild = run("wild", attainment=0.5)
    wild.timeline[50, 1:3] = 900.0
    assert charts.most_replicas(proof(run(), wild)) < 20


def test_runs_without_a_timeline_and_proofs_without_a_bound_are_drawn() -> None:
    lone = run()
    text = page([proof(run(), lone, clairvoyant_gpu_hours=float("nan"), frontier={})])
    assert "<svg" in text


def test_a_plan_is_in_the_table_on_the_frontier_and_over_the_trace() -> None:
    text = page([proof(planned=PLAN)])
    assert text.count('data-policy="planned"') == 4  # row, curve, chip, timeline
    assert "planned (knows the trace): 99.20 % at 11 GPU-hours" in text
    assert "planned" not in page([proof()]).partition("</style>")[2]


@pytest.mark.integration
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_opens_without_a_request_and_lights_up_one_policy(
    chromium: Browser, tmp_path: Path, scheme: str
) -> None:
    file = tmp_path / "proof.html"
    file.write_text(page([proof(planned=PLAN)]), "utf-8")
    context = await chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    tab = await context.new_page()
    asked: list[str] = []
    problems: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    await tab.goto(file.as_uri())
    await tab.hover('.legend button[data-policy="keda-queue"]')
    assert await tab.locator("article.lit .curve.on").get_attribute("data-policy") == "keda-queue"
    assert await tab.locator(".curve:not(.on)").first.evaluate("(e) => e.matches('.lit *')")
    await screenshot(tab, f"proof-{scheme}")
    assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await tab.set_viewport_size({"width": 390, "height": 800})
    assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await context.close()
    assert asked == [file.as_uri()]
    assert problems == []
