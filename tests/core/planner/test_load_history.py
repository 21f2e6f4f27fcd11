"""The history of demand: load averages, deviations from them, and held peaks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.planner import load_history
from autoscaler.core.planner.load_history import LoadHistory
from autoscaler.core.planner.strategies import AVERAGES_S, BASE_PEAK_HOLD, PEAK_HOLDS, UPDATE_INTERVAL_S

NAN = math.nan

PEAK_SPANS = LoadHistory.blank(0).peaks.shape[1]


def average(*intervals):
    """Return the load averages after intervals of (demand, seconds)."""
    averages, observed_s = np.full((len(AVERAGES_S), 1), NAN), np.zeros(1)
    for demand, interval_s in intervals:
        averages = load_history.update_averages(averages, observed_s, np.array([demand]), np.array([interval_s]))
        observed_s = observed_s + interval_s
    return averages[:, 0]


@given(st.lists(st.tuples(st.floats(0.0, 1000.0), st.floats(0.1, 120.0)), min_size=1, max_size=20))
def test_average_is_the_mean_of_all_demand_weighted_by_age(intervals):
    ends_s = np.cumsum([interval_s for _, interval_s in intervals])
    for value, over_s in zip(average(*intervals), AVERAGES_S.tolist(), strict=True):
        age_weights = [math.exp((end_s - ends_s[-1]) / over_s) for end_s in ends_s]
        weights = [at * -math.expm1(-s / over_s) for at, (_, s) in zip(age_weights, intervals, strict=True)]
        mean = sum(weight * demand for weight, (demand, _) in zip(weights, intervals, strict=True)) / sum(weights)
        assert value == pytest.approx(mean, rel=1e-6, abs=1e-6)


def test_first_reading_does_not_count_for_a_whole_time_constant():
    """Engines are read half full for 5 s, and then for 30 s. The first sixth of the time lowers the mean by as much."""
    averages = average((5.0, 5.0), (10.0, 30.0))
    assert averages[-1] == pytest.approx(10 - 5 / 7, rel=0.01)
    assert averages[0] < 1.06 * averages[1]


def test_averages_stay_when_demand_is_unknown():
    assert average((4.0, 30.0), (NAN, 0.0)).tolist() == [4.0] * len(AVERAGES_S)
    assert np.isnan(average((NAN, 0.0))).all()


@given(st.floats(0.01, 1000.0), st.floats(0.0, 5000.0), st.floats(0.01, 100.0))
def test_deviation_is_relative_to_the_average_at_any_size(mean, demand, factor):
    def deviation(size):
        averages = np.full((len(AVERAGES_S), 1), mean * size)
        return load_history.compute_deviation(averages, np.array([demand * size]))[0]

    assert deviation(1.0) == pytest.approx(abs(demand / mean - 1), abs=1e-9)
    assert deviation(factor) == pytest.approx(deviation(1.0), abs=1e-9)


def test_deviation_without_load_is_zero_and_else_unknown():
    assert load_history.compute_deviation(np.zeros((len(AVERAGES_S), 1)), np.zeros(1))[0] == 0
    assert np.isnan(load_history.compute_deviation(np.full((len(AVERAGES_S), 1), NAN), np.full(1, NAN))[0])


# --- held peaks


@pytest.mark.parametrize(("cold_start_s", "spans"), [(1.0, 1), (30.0, 1), (31.0, 2), (60.0, 2), (120.0, 4), (900.0, 4)])
def test_cold_start_has_one_to_four_whole_spans(cold_start_s, spans):
    assert load_history.count_spans(np.array([cold_start_s]))[0] == spans


def test_unknown_cold_start_has_one_span():
    assert load_history.count_spans(np.array([NAN]))[0] == 1


@pytest.mark.parametrize("max_delay_s", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("cold_start_s", [60.0, 124.0, 180.0, 244.0])
def test_peaks_expire_after_their_hold_when_ticks_are_late(cold_start_s, max_delay_s):
    """One surge, and no load after it."""
    rng, cold = np.random.default_rng(1), np.array([cold_start_s])
    history, held_at_s, last_s = LoadHistory.blank(1), {}, -UPDATE_INTERVAL_S
    for number in range(int(12 * cold_start_s / UPDATE_INTERVAL_S)):
        now_s = UPDATE_INTERVAL_S * number + rng.uniform(0.0, max_delay_s)
        demand = np.array([10.0 if number == 0 else 0.0])
        history, peaks = load_history.update_load_history(
            history, demand, np.full(1, np.nan, np.float32), cold, np.array([now_s - last_s]), now_s
        )
        held_at_s |= dict.fromkeys(np.flatnonzero(peaks[:, 0] >= 9.9).tolist(), now_s)
        last_s = now_s
    tolerance_s = 2 * load_history.compute_span_s(cold)[0] + max_delay_s
    for peak_hold, (_, hold) in enumerate(PEAK_HOLDS):
        assert held_at_s[peak_hold] == pytest.approx(hold * cold_start_s, abs=tolerance_s)


@given(
    st.lists(st.floats(0, 100, width=32), min_size=60, max_size=60), st.integers(1, load_history.SPANS_PER_COLD_START)
)
def test_held_peak_is_the_highest_average_of_its_hold(values, cold_start_spans):
    """The second source looks back over all values."""
    peaks = np.zeros((len(AVERAGES_S), PEAK_SPANS, 1), np.float32)
    scale = np.arange(1, len(AVERAGES_S) + 1, dtype=np.float32)[:, None]  # so that the averages differ
    for value in values:
        averages = scale * np.float32(value)
        peaks = load_history.push_span(peaks, averages, np.ones(1, bool), np.maximum)
    held = load_history.hold_peaks(averages, peaks, np.array([cold_start_spans]))[:, 0]
    for peak_hold, (row, hold) in enumerate((*PEAK_HOLDS, BASE_PEAK_HOLD)):
        peak = max(float(np.float32(value)) for value in values[-1 - hold * cold_start_spans :])
        assert held[peak_hold] == pytest.approx(float(scale[row, 0]) * peak, rel=1e-6)


def test_held_peak_is_unknown_when_the_average_is():
    averages = np.full((len(AVERAGES_S), 1), np.nan, np.float32)
    peaks = np.ones((len(AVERAGES_S), PEAK_SPANS, 1), np.float32)
    assert np.isnan(load_history.hold_peaks(averages, peaks, np.array([1]))).all()


def test_span_keeps_its_extreme_until_it_is_over():
    past = np.array([[[5.0, 5.0], [3.0, 3.0]]], np.float32)
    pushed = load_history.push_span(past, np.array([[4.0, 4.0]], np.float32), np.array([False, True]), np.maximum)
    assert pushed[0].tolist() == [[5.0, 4.0], [3.0, 5.0]]


def test_peak_expires_when_its_last_span_leaves_the_hold():
    """Spans of 30 s, 4 for each of 10 cold starts: a peak 6 spans ago expires 35 spans after the present one began."""
    history = LoadHistory.blank(2)
    history.peaks[0, 6] = history.peaks[0, 9] = np.float32(3.0)
    history.peaks[0, 0, 1] = np.float32(3.0)
    history = LoadHistory(**{**vars(history), "span_since_s": np.full(2, 1000.0)})
    cold_start_s = np.full(2, 4 * UPDATE_INTERVAL_S)
    expires_s = load_history.find_peak_expiry(history, np.zeros(2, np.int64), np.full(2, 2.0), cold_start_s)
    assert expires_s[0] == 1000 + (40 - 6 + 1) * UPDATE_INTERVAL_S
    assert np.isnan(expires_s[1])  # the present span is as high
    no_peak_s = load_history.find_peak_expiry(history, np.zeros(2, np.int64), np.full(2, 4.0), cold_start_s)
    assert np.isnan(no_peak_s).all()
