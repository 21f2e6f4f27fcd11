"""The charts of `bench/studies/dots.py`."""

from xml.etree import ElementTree

import pytest

from bench.studies.dots import Dot, dots, standalone


def test_dots_are_ordered_on_a_log_axis_and_hollow_when_missed() -> None:
    rows = {
        "a": {"ours": Dot(2.0, 1.5, 2.5), "hpa": Dot(20.0), "static": Dot(0.0)},
        "b": {"ours": Dot(200.0, hollow=True), "hpa": Dot(float("inf"))},
    }
    drawn = ElementTree.fromstring(dots("cost", rows, "times the bound"))
    space = "{http://www.w3.org/2000/svg}"
    told = [circle for circle in drawn.iter(f"{space}circle") if circle.find(f"{space}title") is not None]
    at = {str(circle.findtext(f"{space}title")): float(circle.get("cx", "nan")) for circle in told}
    assert list(at) == ["a, hpa: 20.00", "a, ours: 2.00", "b, ours: 200.00, misses the goal"]
    assert at["b, ours: 200.00, misses the goal"] - at["a, hpa: 20.00"] == pytest.approx(
        at["a, hpa: 20.00"] - at["a, ours: 2.00"], abs=0.2
    )
    assert [circle.get("class") for circle in told] == ["dot series-0", "dot ours", "dot ours hollow"]
    assert len([line for line in drawn.iter(f"{space}line") if line.get("class") == "whisker"]) == 1


def test_standalone_picture_is_well_formed_and_styled() -> None:
    made = standalone(dots("excess", {"a": {"ours": Dot(0.1, 0.05, 0.2), "hpa": Dot(float("nan"))}}, "excess"))
    style = ElementTree.fromstring(made).findtext("{http://www.w3.org/2000/svg}style", default="")
    assert ".dot.hollow" in style
    assert ".chart" in style
