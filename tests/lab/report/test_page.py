"""The page in a real browser, in light and dark mode, and its security."""

import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.async_api import Browser

from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.compare.result import ACTUAL, OFFLINE_PLAN, OURS, RECORDED, Comparison
from autoscaler.lab.report import charts
from autoscaler.lab.report.page import page
from tests.harness.browser import screenshot
from tests.lab.report.comparisons import PLAN, UNTOLD, comparison, run


def rings(made: Comparison) -> dict[str, tuple[float, float]]:
    """Return the position of each policy's ring on the frontier."""
    space = "{http://www.w3.org/2000/svg}"
    curves = ElementTree.fromstring(charts.frontier(made)).iter(f"{space}g")
    chosen = {
        curve.get("data-policy", ""): circle
        for curve in curves
        for circle in curve.iter(f"{space}circle")
        if "chosen" in circle.get("class", "")
    }
    return {name: (float(each.get("cx", "")), float(each.get("cy", ""))) for name, each in chosen.items()}


def test_file_names_are_escaped() -> None:
    text = page([comparison(run(), run('"><img src=x onerror=alert(1)>'), trace="<script>alert(1)</script>")])
    assert "<script>alert" not in text
    assert "<img" not in text


def test_page_has_no_external_address() -> None:
    assert set(re.findall(r"(?:https?:)?//[\w.]+", page([comparison()]))) <= {"http://www.w3.org"}


def test_every_chart_is_well_formed() -> None:
    made = comparison()
    for picture in (
        charts.frontier(made),
        charts.timeline(made, made.runs[0], charts.replica_axis_top(made)),
    ):
        ElementTree.fromstring(picture)


def test_unknown_values_are_not_drawn() -> None:
    """Two histograms do not show the actual `attainment`; a circle without a position would appear at the top edge."""
    drawn = charts.frontier(comparison(run(), run("hpa"), run("actual", attainment=float("nan"), gpu_hours=40.0)))
    assert "nan" not in drawn
    assert "actual" not in drawn
    assert "hpa" in drawn


def test_unknown_attainment_is_no_miss() -> None:
    text = page([comparison(run(), UNTOLD)])
    assert "Pale rows" not in text
    assert 'class="missed"' not in text
    assert "–/s" not in text
    assert "Pale rows" in page([comparison(run(), UNTOLD, run("hpa", attainment=0.5))])


def test_our_row_is_pale_when_it_misses_the_goal() -> None:
    assert '<tr class="ours missed"' in page([comparison(run(attainment=0.5), run("hpa"))])
    assert '<tr class="ours"' in page([comparison(run(), run("hpa", attainment=0.5))])


def test_goal_line_is_below_runs_that_meet_it() -> None:
    made = comparison(run(attainment=1.0), run("hpa", attainment=1.0), frontier={})
    (goal,) = re.findall(r'class="limit" x1="[^"]*" x2="[^"]*" y1="([^"]*)"', charts.frontier(made))
    assert float(goal) > rings(made)["ours"][1] + 100


@pytest.mark.parametrize("attainment", [0.5, 1.0])
def test_extreme_baseline_does_not_flatten_the_chart(attainment: float) -> None:
    wild = run("wild", attainment=attainment, gpu_hours=400.0)
    wild.timeline[50, 1:3] = 900.0
    made = comparison(run(), run("best", gpu_hours=11.0), wild)
    assert charts.replica_axis_top(made) < 20
    x = {policy: circle[0] for policy, circle in rings(made).items()}
    assert x["best"] + 100 < x["ours"] < x["wild"] == charts.WIDTH - charts.RIGHT  # at the edge, with an arrow
    assert charts.frontier(made).count("→") == 1


def test_replica_axis_fits_history_and_the_best_baseline() -> None:
    best, actual = run("best", gpu_hours=11.0), run("actual", attainment=float("nan"))
    best.timeline[50, 1:3] = 30.0
    actual.timeline[50, 1:3] = 50.0
    assert (
        30
        <= charts.replica_axis_top(comparison(run(), best))
        < 50
        <= charts.replica_axis_top(comparison(run(), best, actual))
        < 90
    )


def test_every_policy_has_its_own_colour() -> None:
    names = [OURS, OFFLINE_PLAN, *BASELINES, ACTUAL, RECORDED]
    classes = charts.css_classes(names)
    assert len(set(classes.values())) == len(names)
    style = page([comparison()])
    for css_class in classes.values():
        assert f".{css_class} {{ color:" in style
    values = [re.findall(rf"--s{place}: (#\w+);", style) for place in range(charts.SERIES)]
    assert [len(of_schemes) for of_schemes in values] == [2] * charts.SERIES  # light and dark
    assert len(set(map(tuple, values))) == charts.SERIES


def test_charts_work_without_timeline_or_bound() -> None:
    drawn, lone = run(), replace(run("lone"), timeline=np.empty((0, 5)))
    text = page([comparison(drawn, lone, lower_bound_gpu_hours=math.nan, estimate_gpu_hours=math.nan, frontier={})])
    assert text.count("<figure") == 1
    assert text.count("<svg") == 2  # the frontier and one timeline
    assert "lower bound</text>" not in text
    assert "with interference, estimated</text>" not in text


def test_frontier_labels_stay_inside_and_do_not_overlap() -> None:
    made = comparison(run(attainment=1.0), lower_bound_gpu_hours=2e-6, estimate_gpu_hours=2e-6, frontier={})
    texts = [*ElementTree.fromstring(charts.frontier(made)).iter("{http://www.w3.org/2000/svg}text")]
    at = {str(each.text): (float(each.get("x", "")), each.get("text-anchor")) for each in texts}
    assert max(x for x, anchor in at.values() if anchor == "middle") <= charts.WIDTH - 2 * charts.RIGHT
    assert at["goal"][0] > at["with interference, estimated"][0] + 700


def test_bound_labels_stay_inside_the_chart() -> None:
    made = comparison(run(attainment=1.0), lower_bound_gpu_hours=980.0, estimate_gpu_hours=980.0, frontier={})
    texts = [*ElementTree.fromstring(charts.frontier(made)).iter("{http://www.w3.org/2000/svg}text")]
    labels = [each for each in texts if str(each.text) in ("lower bound", "with interference, estimated")]
    assert len(labels) == 2
    assert all(each.get("text-anchor") == "end" for each in labels)
    assert all(float(each.get("x", "")) <= charts.WIDTH for each in labels)


def test_full_attainment_lies_above_every_other() -> None:
    heights = rings(comparison(run(attainment=1.0), run("hpa", attainment=0.9999), frontier={}))
    assert heights["ours"][1] < heights["hpa"][1]


def test_offline_plan_is_in_table_frontier_and_timelines() -> None:
    text = page([comparison(offline_plan=PLAN)])
    assert text.count('data-policy="offline-plan"') == 4  # row, curve, chip, timeline
    assert "offline-plan (knows the trace): 99.20% at 11 GPU-hours" in text
    assert "offline-plan" not in page([comparison()]).partition("</style>")[2]


@pytest.mark.integration
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_page_opens_offline_and_highlights_one_policy(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "comparison.html"
    file.write_text(page([comparison(offline_plan=PLAN)]), "utf-8")
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
    await screenshot(tab, f"comparison-{scheme}")
    assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await tab.set_viewport_size({"width": 1200, "height": 900})
    assert await tab.evaluate("[...document.querySelectorAll('.scroll')].every(e => e.scrollWidth <= e.clientWidth)")
    columns = "getComputedStyle(document.querySelector('.timelines')).gridTemplateColumns.split(' ').length"
    assert await tab.evaluate(columns) == 2
    await tab.set_viewport_size({"width": 390, "height": 800})
    assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    sizes = "(all) => all.map((text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"
    assert min(await tab.locator("svg text").evaluate_all(sizes)) >= 9  # pixels, so that it can be read
    cut = "(all) => all.filter((text) => text.getBBox().x < 0).map((text) => text.textContent)"
    assert await tab.locator("svg text").evaluate_all(cut) == []
    await tab.reload()
    ours, box = await tab.locator(".chosen.ours").bounding_box(), await tab.locator(".wide").bounding_box()
    assert ours is not None
    assert box is not None
    assert box["x"] < ours["x"] < box["x"] + box["width"]
    await context.close()
    assert set(asked) == {file.as_uri()}
    assert problems == []
