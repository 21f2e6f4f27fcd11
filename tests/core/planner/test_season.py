"""The load of the last week by quarter of an hour, and what it predicts."""

import numpy as np
import pytest

from autoscaler.core.planner import season
from autoscaler.core.planner.season import BIN_S, DAY_BINS, WEEK_BINS, Season, is_unknown, predict_load, update_season

DAY_S, STEP_S = 86_400.0, 300.0


def follow(load_at, days, state=None, start_s=50.0):
    """Update a season every five minutes with the load at each moment; return it and the time of the last update."""
    state = Season.blank(1) if state is None else state
    now_s = start_s
    for _ in range(round(days * DAY_S / STEP_S)):
        now_s += STEP_S
        state = update_season(state, np.array([load_at(now_s)]), np.array([STEP_S]), now_s)
    return state, now_s


def office(now_s):
    """Return 4 busy replicas from 9 to 17 h of each day, else 0.5."""
    return 4.0 if 9 <= (now_s % DAY_S) / 3600 < 17 else 0.5


def predict(state, now_s, ahead_s=240.0):
    return predict_load(state, np.array([ahead_s]), now_s)[0]


def test_nothing_is_predicted_until_a_day_has_passed():
    state, now_s = follow(office, 0.98)
    assert np.isnan(predict(state, now_s))
    assert is_unknown(state).all()
    state, now_s = follow(office, 0.04, state, now_s)
    assert predict(state, now_s) == 0.5
    assert not is_unknown(state).any()


@pytest.mark.parametrize(("hour", "expected"), [(8.2, 0.5), (8.95, 4.0), (12.0, 4.0), (17.5, 0.5)])
def test_load_of_yesterday_is_predicted_one_cold_start_ahead(hour, expected):
    state, now_s = follow(office, 1 + hour / 24)
    assert predict(state, now_s) == pytest.approx(expected, abs=0.01)


def test_rise_is_predicted_in_time_whatever_the_phase_of_the_bins():
    for offset_s in (0.0, 100.0, 450.0, 899.0):
        state, now_s = follow(office, 1 + (9 * 3600 - 240 - offset_s) / DAY_S, start_s=offset_s)
        assert predict(state, now_s) == pytest.approx(4.0, abs=0.01)


def test_week_ago_counts_where_yesterday_was_quiet():
    state, now_s = follow(lambda now_s: office(now_s) if now_s < DAY_S else 0.5, 7 + 10 / 24)
    assert predict(state, now_s) == pytest.approx(4.0, abs=0.01)
    state, now_s = follow(office, 1, state, now_s)
    state, now_s = follow(lambda _: 0.5, 0.5, state, now_s)
    assert predict(state, now_s, 0.0) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("gap_bins", [3, 100, 700])
def test_bins_of_a_gap_are_unknown(gap_bins):
    state, now_s = follow(lambda _: 2.0, 2)
    now_s += gap_bins * BIN_S
    state = update_season(state, np.array([2.0]), np.zeros(1), now_s)
    unknown = np.isnan(state.load[:, 0])
    assert unknown[: gap_bins - 1].all()
    assert (~unknown[gap_bins : 2 * DAY_BINS]).all()
    assert np.isnan(predict(state, now_s, 0.0)) == (gap_bins in (100, 700))


def test_gap_of_yesterday_does_not_make_earlier_days_unknown():
    state, now_s = follow(lambda _: 2.0, 1.5)
    state = update_season(state, np.array([2.0]), np.zeros(1), now_s + 5 * BIN_S)
    state, now_s = follow(lambda _: 2.0, 1.0, state, now_s + 5 * BIN_S)
    assert not is_unknown(state).any()


def test_bin_of_which_little_was_observed_is_unknown():
    state, now_s = follow(lambda _: 2.0, 0.125)
    for observed_s in (STEP_S, 0.0, 0.0, 0.0):
        now_s += STEP_S
        state = update_season(state, np.array([9.0]), np.array([observed_s]), now_s)
    assert np.isnan(state.load[0, 0])
    assert np.nanmax(state.load) == 2.0


def test_workloads_do_not_influence_one_another():
    both, now_s = Season.blank(2), 0.0
    alone, _ = follow(lambda _: 3.0, 1.2, start_s=0.0)
    for number in range(round(1.2 * DAY_S / STEP_S)):
        now_s += STEP_S
        interval_s = np.array([STEP_S, STEP_S if number % 2 else 0.0])
        both = update_season(both, np.array([3.0, np.nan if number % 7 == 0 else 1.0]), interval_s, now_s)
    np.testing.assert_array_equal(both.load[:, 0], alone.load[:, 0])


def test_a_week_takes_little_memory():
    blank = Season.blank(1)
    assert blank.load.dtype == np.float16
    assert sum(column.nbytes for column in blank.columns().values()) < 1400
    assert len(blank.load) == WEEK_BINS == 7 * 86_400 / season.BIN_S
