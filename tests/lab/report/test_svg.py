from math import nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoscaler.lab.report import svg


def test_text_and_attributes_are_escaped() -> None:
    made = svg.text("<script>", 1, 2, data_policy='"><b>')
    assert "<script>" not in made
    assert '"><b>' not in made


@example(3e-05, 500_000.0, 1)  # beyond a tick by less than a billionth of a step
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 12))
def test_ticks_enclose_the_values_and_are_few(low: float, extent: float, about: int) -> None:
    ticks = svg.nice_ticks(low, low + extent, about)
    assert ticks[0] <= low + 1e-6
    assert ticks[-1] >= low + extent - 1e-6
    assert 2 <= len(ticks) <= 2 * about + 4


@pytest.mark.parametrize(
    ("duration_s", "last"), [(30.0, "30 s"), (3600.0, "1 h"), (86_400.0, "1 d"), (14 * 86_400.0, "14 d")]
)
def test_times_are_formatted_in_the_unit_of_the_steps(duration_s: float, last: str) -> None:
    ticks = svg.time_ticks(duration_s, 900.0)
    assert ticks[-1][1] == last
    assert len(ticks) <= 12


def test_step_path_holds_each_value() -> None:
    assert svg.step_path([0, 10, 20, 30], [5, 5, 1, 1]) == "M0 5H20V1H30"
    assert svg.step_path([0, 10, 20, 30], [5, 5, 1, 1], base=9) == "M0 5H20V1H30V9H0Z"


def test_step_path_breaks_where_nothing_is_known() -> None:
    y = [nan, 5, nan, nan, 1, 2]
    assert svg.step_path([0, 10, 20, 30, 40, 50], y) == "M10 5H20M40 1H50V2"
    assert svg.step_path([0, 10, 20, 30, 40, 50], y, base=9) == "M10 5H20V9H10ZM40 1H50V2V9H40Z"
    assert svg.step_path([0, 10], [nan, nan], base=9) == ""
