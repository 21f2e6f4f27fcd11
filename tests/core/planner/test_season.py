"""The load of the last week by quarter of an hour, and what it predicts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from autoscaler.core.model.forecast import BIN_S, BINS
from autoscaler.core.planner.season import (
    DAY_BINS,
    WEEK_BINS,
    Season,
    expect_load,
    find_past_loads,
    is_unknown,
    update_season,
)
from autoscaler.core.table.columns import replace
from autoscaler.daemon.past_week import MIN_BUSY_S, learn_past_load, resample_work

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
    return np.fmax(*find_past_loads(state, np.array([ahead_s]), now_s))[0]


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


def test_rise_is_predicted_in_time_wherever_its_bins_begin():
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
    assert len(blank.load) == WEEK_BINS == 7 * 86_400 / BIN_S


def work_of(load_at, until_s, *, per_load=1.0, steps=WEEK_BINS + 1):
    """The work of each step, the last first, of an engine with this load."""
    middle_s = until_s - (np.arange(steps) + 0.5) * BIN_S
    return per_load * np.array([[load_at(at_s)] for at_s in middle_s])


def taught(state, work, until_s):
    return learn_past_load(state, resample_work(state, work, until_s))


@pytest.mark.parametrize("hour", [3.0, 8.2, 13.2, 16.1])
def test_hours_before_the_start_are_learned_from_their_work(hour):
    day_s = 30 * DAY_S
    state, now_s = follow(office, 3 / 24, start_s=day_s + (hour - 3) * 3600)
    assert np.isnan(predict(state, now_s))
    state = taught(state, work_of(office, now_s, per_load=4e5), now_s)
    assert not np.isnan(state.load).any()
    followed, _ = follow(office, 7, start_s=now_s - 7 * DAY_S)
    for ahead_s in (0.0, 240.0, 7200.0):
        assert predict(state, now_s, ahead_s) == pytest.approx(predict(followed, now_s, ahead_s), rel=0.02)


@given(offset_s=some.floats(0, 3 * BIN_S), per_load=some.floats(1e-3, 1e9), load=some.floats(0.05, 60.0))
def test_past_load_depends_neither_on_the_unit_nor_on_the_phase(offset_s, per_load, load):
    state, now_s = follow(lambda _: load, 0.2)
    state = taught(state, work_of(lambda _: load, now_s + offset_s, per_load=per_load), now_s + offset_s)
    known = ~np.isnan(state.load[:, 0])
    assert known[: WEEK_BINS - 4].all()
    np.testing.assert_allclose(state.load[known, 0], load, rtol=2e-3)


@given(seed=some.integers(0, 2**32 - 1), known_share=some.floats(0, 1), work_share=some.floats(0, 1))
def test_measured_load_stays_and_only_bins_with_work_are_learned(seed, known_share, work_share):
    random = np.random.default_rng(seed)
    load = np.where(random.random((WEEK_BINS, 2)) < known_share, random.random((WEEK_BINS, 2)), np.nan)
    work = np.where(random.random((WEEK_BINS, 2)) < work_share, random.random((WEEK_BINS, 2)), np.nan)
    before = replace(Season.blank(2), load=load.astype(np.float16), bin_since_s=np.full(2, 1e6))
    after = learn_past_load(before, work)
    known = ~np.isnan(before.load)
    np.testing.assert_array_equal(after.load[known], before.load[known])
    assert (np.isnan(after.load) | known | ~np.isnan(work)).all()
    alone = learn_past_load(before.take(np.array([1])), work[:, 1:])
    np.testing.assert_array_equal(alone.load[:, 0], after.load[:, 1])


def test_nothing_is_learned_before_a_busy_minute_was_measured():
    idle, now_s = follow(lambda _: 0.0, 0.2)
    assert np.isnan(taught(idle, work_of(office, now_s), now_s).load[DAY_BINS:]).all()
    little = 0.9 * MIN_BUSY_S / (0.2 * DAY_S)
    barely, now_s = follow(lambda _: little, 0.2)
    assert np.isnan(taught(barely, work_of(office, now_s), now_s).load[DAY_BINS:]).all()
    blank = Season.blank(1)
    assert np.isnan(taught(blank, work_of(office, 0.0), 0.0).load).all()


def test_hours_without_a_reading_stay_unknown():
    state, now_s = follow(office, 0.5)
    work = work_of(office, now_s)
    work[200:230] = np.nan
    learned = taught(state, work, now_s)
    assert np.isnan(learned.load[201:229]).all()
    assert (~np.isnan(learned.load)).sum() >= WEEK_BINS - 31
    short = taught(state, work_of(office, now_s, steps=2 * DAY_BINS), now_s)
    assert np.isnan(short.load[2 * DAY_BINS + 1 :]).all()
    assert (~np.isnan(short.load[: 2 * DAY_BINS - 1])).all()


def test_impossible_work_teaches_nothing():
    state, now_s = follow(office, 0.5)
    work = work_of(office, now_s)
    work[300] = 1e15
    learned = taught(state, work, now_s)
    assert np.isnan(learned.load[299:301]).any()
    assert np.nanmax(learned.load) <= 4.0


def follow_until(load_at, day, hour=0.0):
    """Follow a load until an hour of a day, the first being 0. Bins begin at quarters of an hour."""
    return follow(load_at, (day * 24 + hour) / 24 + STEP_S / DAY_S, start_s=-STEP_S)


def expect(state):
    load, is_weekly = expect_load(state)
    return load[:, 0].tolist(), is_weekly[:, 0].tolist()


def test_load_is_expected_by_bin_from_the_present_one_on():
    state, _ = follow_until(office, 1, 8.3)
    assert expect(state) == ([0.5] * 3 + [4.0] * 6, [False] * 9)


def test_a_rise_that_stays_away_is_expected_until_its_bin_ends():
    """The third day is a holiday: from the end of the first busy bin on, nothing more than now is expected."""
    state, now_s = follow_until(office, 2, 8.75)
    expected = {}
    for _ in range(12):
        state, now_s = follow(lambda _: 0.5, STEP_S / DAY_S, state, now_s)
        expected[now_s % DAY_S / 3600] = max(expect(state)[0])
    assert [round(hour, 2) for hour, load in expected.items() if load == 4.0] == [8.83, 8.92, 9.0, 9.08, 9.17]
    assert [load for hour, load in expected.items() if hour >= 9.25] == [0.5] * 7


def test_a_later_rise_is_expected_on_top_of_a_quiet_day():
    def steps(now_s):
        hour = now_s % DAY_S / 3600
        return 0.5 if hour < 9 or now_s > 2 * DAY_S else 4.0 if hour < 11 else 6.0

    state, _ = follow_until(steps, 2, 10.3)
    assert max(expect(state)[0]) == 2.5


def test_a_week_ago_is_told_and_given_up_likewise():
    state, now_s = follow_until(lambda now_s: office(now_s) if now_s < DAY_S else 0.5, 7, 8.3)
    assert expect(state) == ([0.5] * 3 + [4.0] * 6, [False] * 3 + [True] * 6)
    state, now_s = follow(lambda _: 0.5, 1 / 24, state, now_s)
    assert expect(state)[0] == [0.5] * 9


def test_unknown_load_of_now_takes_nothing_from_what_is_expected():
    state, now_s = follow_until(office, 1, 10)
    state = update_season(state, np.array([np.nan]), np.zeros(1), now_s + 2 * BIN_S)
    assert np.isnan(state.load[0, 0]) and expect(state)[0][:4] == [4.0] * 4


loads = some.lists(some.floats(0, 50), min_size=DAY_BINS, max_size=DAY_BINS)


@given(loads, some.integers(1, DAY_BINS - BINS), some.floats(0, 50))
def test_less_than_a_day_ago_is_expected_by_what_is_lacking(day, bins, now):
    def load_at(now_s):
        return now if now_s >= DAY_S + (bins - 1) * BIN_S else day[round(now_s // BIN_S) % DAY_BINS]

    state, _ = follow_until(load_at, 1, bins / 4)
    lacking = max(day[bins - 1] - now, 0.0)
    expected = np.fmax(np.array(day[bins : bins + BINS]) - lacking, 0.0)
    assert expect(state)[0] == pytest.approx(expected.tolist(), abs=0.1)
