from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.prometheus.range.resample import EngineSeries, describe_late_engines, resample


def engine(
    time_s: list[float], finished: list[float], running: list[float] | None = None, pod: str = "a"
) -> EngineSeries:
    counter = np.array(finished, np.float64)
    held = np.array(running if running is not None else [0.0] * len(time_s))
    return EngineSeries(pod, np.array(time_s), held, np.zeros(len(time_s)), counter, counter, 10 * counter, 5 * counter)


def test_increase_is_spread_evenly_between_two_scrapes() -> None:
    columns = resample(0, 60, 15, [engine([0, 30, 60], [100, 110, 140])])
    assert columns["finished"].tolist() == [5, 5, 15, 15]
    assert columns["prompt_tokens"].tolist() == [50, 50, 150, 150]
    assert columns["pods"].tolist() == [1, 1, 1, 1]


def test_counter_counts_from_zero_when_it_was_reset() -> None:
    columns = resample(0, 45, 15, [engine([0, 15, 30, 45], [100, 110, 4, 10])])
    assert columns["finished"].tolist() == [10, 4, 6]


def test_arrivals_are_finished_requests_and_growth_in_flight() -> None:
    columns = resample(0, 45, 15, [engine([0, 15, 30, 45], [0, 2, 5, 9], running=[1, 4, 4, 0])])
    assert columns["arrivals"].tolist() == [5, 3, 0]


def test_arrivals_are_never_negative_when_clients_leave() -> None:
    columns = resample(0, 45, 15, [engine([0, 15, 30, 45], [0, 0, 0, 0], running=[10, 10, 0, 3])])
    assert columns["arrivals"].tolist() == [0, 0, 3]


def test_requests_lost_at_a_reset_do_not_lower_later_arrivals() -> None:
    """30 were lost at the reset. Since then 5 have ended and 20 run, so at least 25 arrived."""
    columns = resample(0, 45, 15, [engine([0, 15, 30, 45], [990, 1000, 5, 7], running=[30, 30, 20, 20])])
    assert columns["arrivals"].tolist() == [10, 25, 2]


@pytest.mark.parametrize("counter", ["first_tokens", "generation_tokens"])
def test_reset_is_found_by_any_counter_when_no_request_finished(counter: str) -> None:
    running = engine([0, 15, 30], [0, 0, 0], running=[30, 30, 20])
    died = replace(running, **{counter: np.array([10.0, 20.0, np.nan]), "waiting": np.array([0.0, 5.0, 5.0])})
    assert resample(0, 30, 15, [died])["arrivals"].tolist() == [5, 0]
    died = replace(died, **{counter: np.array([10.0, 20.0, 15.0])})
    assert resample(0, 30, 15, [died])["arrivals"].tolist() == [5, 25]


def test_later_pod_counts_from_zero_and_as_added() -> None:
    first = engine([0, 15, 30, 300, 315], [50, 50, 50, 50, 50])
    columns = resample(0, 315, 15, [first, engine([300, 315], [7, 9], pod="b")])
    assert columns["pods_added"].tolist() == [0] * 19 + [0, 1]
    assert np.nansum(columns["finished"]) == 9


def test_earlier_requests_of_a_late_target_are_not_counted() -> None:
    """The pod has run for weeks, but is scraped from 600 s on only."""
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


def test_pod_counts_from_zero_when_it_began_during_a_gap() -> None:
    """Without the gap of an hour, 3,000 requests would be more than the pod can have served."""
    seconds = np.concatenate([np.arange(0, 600, 15.0), np.arange(4200, 4800, 15.0)])
    first = engine(seconds.tolist(), seconds.tolist())
    late = engine(seconds[41:].tolist(), (seconds[41:] - 1215).tolist(), pod="b")
    columns = resample(0, 4800, 15, [first, late])
    assert np.nansum(columns["finished"]) == pytest.approx(4785 + 4785 - 1215)
    assert columns["pods_added"].sum() == 1
    assert describe_late_engines(0, [first, late]) == ()


def test_several_engines_of_one_pod_count_as_one_pod() -> None:
    columns = resample(0, 30, 15, [engine([0, 15, 30], [0, 1, 2]), engine([0, 15, 30], [0, 3, 6])])
    assert columns["pods"].tolist() == [1, 1]
    assert columns["finished"].tolist() == [4, 4]
    assert not columns["pods_added"].any()


def test_steps_without_pods_are_nan_and_keep_the_total() -> None:
    columns = resample(0, 900, 15, [engine([0, 15, 600, 615, 900], [0, 0, 585, 600, 600])])
    assert np.isnan(columns["pods"][20])
    assert np.nansum(columns["finished"]) == 600
    assert columns["finished"][20] == pytest.approx(15)  # spread over the gap


def test_request_that_ended_in_a_gap_is_counted() -> None:
    columns = resample(0, 300, 15, [engine([0, 15, 30, 300], [0, 0, 0, 1], running=[1, 1, 1, 0])])
    assert np.nansum(columns["finished"]) == pytest.approx(1)
    assert np.nansum(columns["arrivals"]) == 0


def test_columns_are_nan_without_engines() -> None:
    columns = resample(0, 30, 15, [])
    assert not columns.pop("pods_added").any()
    assert all(np.isnan(values).all() for values in columns.values())


@given(
    st.lists(st.tuples(st.floats(1, 120), st.integers(0, 50), st.integers(0, 20)), min_size=2, max_size=40),
    st.sampled_from([5.0, 15.0, 60.0]),
)
def test_totals_are_exact_for_any_scrape_times(steps: list[tuple[float, int, int]], step_s: float) -> None:
    time_s = np.cumsum([gap for gap, _, _ in steps])
    finished = np.cumsum([grown for _, grown, _ in steps])
    one = engine(time_s.tolist(), finished.tolist(), [float(held) for _, _, held in steps])
    end_s = float(np.ceil(time_s[-1] / step_s) * step_s)
    columns = resample(0, end_s, step_s, [one])
    assert np.nansum(columns["finished"]) == pytest.approx(finished[-1] - finished[0])
    assert (np.nan_to_num(columns["arrivals"]) >= 0).all()
    assert np.nansum(columns["arrivals"]) >= finished[-1] - finished[0] - steps[0][2] - 1e-6
    assert np.nanmax(columns["pods"]) <= 1 + 1e-9
