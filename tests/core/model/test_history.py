from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.history import EngineSeries, describe_late_engines, resample


def engine(
    time_s: list[float], finished: list[float], running: list[float] | None = None, pod: str = "a"
) -> EngineSeries:
    counter = np.array(finished, np.float64)
    held = np.array(running if running is not None else [0.0] * len(time_s))
    return EngineSeries(pod, np.array(time_s), held, np.zeros(len(time_s)), counter, counter, 10 * counter, 5 * counter)


def test_a_counter_is_spread_over_the_time_between_two_scrapes() -> None:
    columns = resample(0, 60, 15, [engine([0, 30, 60], [100, 110, 140])])
    assert columns["finished"].tolist() == [5, 5, 15, 15]
    assert columns["prompt_tokens"].tolist() == [50, 50, 150, 150]
    assert columns["pods"].tolist() == [1, 1, 1, 1]


def test_a_counter_that_went_back_counts_from_zero() -> None:
    columns = resample(0, 45, 15, [engine([0, 15, 30, 45], [100, 110, 4, 10])])
    assert columns["finished"].tolist() == [10, 4, 6]


def test_arrivals_are_what_ended_and_what_was_added_in_flight() -> None:
    columns = resample(0, 45, 15, [engine([0, 15, 30, 45], [0, 2, 5, 9], running=[1, 4, 4, 0])])
    assert columns["arrivals"].tolist() == [5, 3, 0]


def test_clients_that_left_are_not_taken_back_from_later_arrivals() -> None:
    columns = resample(0, 45, 15, [engine([0, 15, 30, 45], [0, 0, 0, 0], running=[10, 10, 0, 3])])
    assert columns["arrivals"].tolist() == [0, 0, 3]


def test_what_an_engine_held_when_it_died_is_not_set_against_those_who_came_to_the_next_one() -> None:
    """30 ran and died; since then 5 ended and 20 run, so 25 came at least."""
    columns = resample(0, 45, 15, [engine([0, 15, 30, 45], [990, 1000, 5, 7], running=[30, 30, 20, 20])])
    assert columns["arrivals"].tolist() == [10, 25, 2]


@pytest.mark.parametrize("counter", ["first_tokens", "generation_tokens"])
def test_an_engine_that_died_before_anybody_finished_is_known_by_its_other_counters(counter: str) -> None:
    calm = engine([0, 15, 30], [0, 0, 0], running=[30, 30, 20])
    died = replace(calm, **{counter: np.array([10.0, 20.0, np.nan]), "waiting": np.array([0.0, 5.0, 5.0])})
    assert resample(0, 30, 15, [died])["arrivals"].tolist() == [5, 0]
    died = replace(died, **{counter: np.array([10.0, 20.0, 15.0])})
    assert resample(0, 30, 15, [died])["arrivals"].tolist() == [5, 25]


def test_a_pod_that_comes_later_counts_from_zero_and_is_counted() -> None:
    first = engine([0, 15, 30, 300, 315], [50, 50, 50, 50, 50])
    columns = resample(0, 315, 15, [first, engine([300, 315], [7, 9], pod="b")])
    assert columns["pods_added"].tolist() == [0] * 19 + [0, 1]
    assert np.nansum(columns["finished"]) == 9


def test_what_a_pod_that_is_seen_late_served_before_is_no_burst() -> None:
    """It has run for weeks, and was scraped only from 600 s on."""
    seconds = np.arange(0, 3600, 15.0)
    first = engine(seconds.tolist(), (1e6 + seconds).tolist())
    late = engine(seconds[40:].tolist(), (2e6 + seconds[40:]).tolist(), [3.0] * 200, pod="b")
    columns = resample(0, 3600, 15, [first, late])
    assert np.nansum(columns["arrivals"]) == pytest.approx(3585 + 2985)
    assert not columns["pods_added"].any()
    assert describe_late_engines(0, [first, late]) == (
        "1 engine, seen later than others, had served long before: what came until then is left out",
    )
    assert describe_late_engines(0, [first]) == describe_late_engines(0, []) == ()


def test_a_pod_that_began_while_nobody_was_scraped_counts_from_zero() -> None:
    """Without the hour in which nobody was seen, 3,000 would be more than it can have served."""
    seconds = np.concatenate([np.arange(0, 600, 15.0), np.arange(4200, 4800, 15.0)])
    first = engine(seconds.tolist(), seconds.tolist())
    late = engine(seconds[41:].tolist(), (seconds[41:] - 1215).tolist(), pod="b")
    columns = resample(0, 4800, 15, [first, late])
    assert np.nansum(columns["finished"]) == pytest.approx(4785 + 4785 - 1215)
    assert columns["pods_added"].sum() == 1
    assert describe_late_engines(0, [first, late]) == ()


def test_several_engines_of_one_pod_are_one_pod() -> None:
    columns = resample(0, 30, 15, [engine([0, 15, 30], [0, 1, 2]), engine([0, 15, 30], [0, 3, 6])])
    assert columns["pods"].tolist() == [1, 1]
    assert columns["finished"].tolist() == [4, 4]
    assert not columns["pods_added"].any()


def test_where_nobody_reports_nothing_is_known_and_nothing_is_lost() -> None:
    columns = resample(0, 900, 15, [engine([0, 15, 600, 615, 900], [0, 0, 585, 600, 600])])
    assert np.isnan(columns["pods"][20])
    assert np.nansum(columns["finished"]) == 600
    assert columns["finished"][20] == pytest.approx(15)  # spread over the hole


def test_a_request_that_ended_in_a_hole_is_counted_also_where_none_came() -> None:
    columns = resample(0, 300, 15, [engine([0, 15, 30, 300], [0, 0, 0, 1], running=[1, 1, 1, 0])])
    assert np.nansum(columns["finished"]) == pytest.approx(1)
    assert np.nansum(columns["arrivals"]) == 0


def test_no_engine_at_all_is_all_unknown() -> None:
    columns = resample(0, 30, 15, [])
    assert not columns.pop("pods_added").any()
    assert all(np.isnan(values).all() for values in columns.values())


@given(
    st.lists(st.tuples(st.floats(1, 120), st.integers(0, 50), st.integers(0, 20)), min_size=2, max_size=40),
    st.sampled_from([5.0, 15.0, 60.0]),
)
def test_nothing_is_counted_twice_or_lost_whatever_the_scrapes(
    steps: list[tuple[float, int, int]], step_s: float
) -> None:
    time_s = np.cumsum([gap for gap, _, _ in steps])
    finished = np.cumsum([grown for _, grown, _ in steps])
    one = engine(time_s.tolist(), finished.tolist(), [float(held) for _, _, held in steps])
    end_s = float(np.ceil(time_s[-1] / step_s) * step_s)
    columns = resample(0, end_s, step_s, [one])
    assert np.nansum(columns["finished"]) == pytest.approx(finished[-1] - finished[0])
    assert (np.nan_to_num(columns["arrivals"]) >= 0).all()
    assert np.nansum(columns["arrivals"]) >= finished[-1] - finished[0] - steps[0][2] - 1e-6
    assert np.nanmax(columns["pods"]) <= 1 + 1e-9
