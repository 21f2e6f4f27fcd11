"""The family of rules: levels, holds and margins, each a pure function."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core import family

NAN = math.nan


@pytest.mark.parametrize(("cold_start_s", "spans"), [(1.0, 1), (30.0, 1), (31.0, 2), (60.0, 2), (120.0, 4), (900.0, 4)])
def test_a_cold_start_takes_whole_spans_and_at_most_four(cold_start_s, spans):
    assert family.spans(np.array([cold_start_s]))[0] == spans


def test_an_unknown_cold_start_takes_one_span():
    assert family.spans(np.array([NAN]))[0] == 1


@pytest.mark.parametrize("rule", range(family.RULES))
def test_every_rule_is_described_by_its_own_numbers(rule):
    level_s, hold, share, root = family.describe(rule)
    assert (list(family.LEVELS_S).index(level_s), hold) in family.PREDICTORS
    assert hold >= 1  # what is given up while it loads was never of use
    assert share == 0 or root == 0
    assert sum(family.describe(other) == family.describe(rule) for other in range(family.RULES)) == 1


def test_each_rule_belongs_to_one_predictor():
    rows = np.concatenate([np.arange(family.RULES)[family.rows_of(each)] for each in range(len(family.PREDICTORS))])
    np.testing.assert_array_equal(rows, np.arange(family.RULES))


def test_the_careful_are_those_on_the_fastest_level_with_the_longest_hold():
    careful = {family.describe(int(rule))[:2] for rule in np.flatnonzero(family.CAREFUL)}
    assert careful == {(family.LEVELS_S[0], family.LONGEST_HOLD)}
    assert family.CAREFUL.sum() == family.MARGINS


def test_what_is_enough_is_the_longest_peak_and_one_root():
    assert family.describe(family.ENOUGH) == (20.0, family.LONGEST_HOLD, 0.0, 1.0)
    assert family.CAREFUL[family.ENOUGH]


def test_larger_margins_and_longer_holds_are_believed_to_miss_less_before_anything_was_seen():
    believed, larger = family.doubted(np.array([4.0]))[..., 0], family.doubted(np.array([100.0]))[..., 0]
    assert (np.diff(believed[:, : family.BY_SHARE]) < 0).all()
    assert (np.diff(believed[:, family.BY_SHARE :]) < 0).all()
    assert (larger[:, : family.BY_SHARE] < believed[:, : family.BY_SHARE]).all()
    holds = np.array([hold for _, hold in family.PREDICTORS])
    assert (np.diff(believed[np.argsort(holds, kind="stable")], axis=0) <= 0).all()


def test_margins_are_on_top_of_the_level_and_replicas_are_whole():
    one = np.ones(1)
    asked = family.fleets(4 * one, one, 100 * one)[:, 0]
    by_share = [math.ceil(4 * (1 + share) / family.MOST_BUSY - family.NEARLY) for share in family.SHARE_MARGINS[:, 0]]
    by_root = [math.ceil((4 + 2 * root) / family.MOST_BUSY - family.NEARLY) for root in family.ROOT_MARGINS[:, 0]]
    assert asked.tolist() == by_share + by_root
    bounded = family.fleets(4 * one, 9 * one, 12 * one)[:, 0]
    assert bounded.tolist() == np.clip(asked, 9, 12).tolist()


@pytest.mark.parametrize(
    ("load", "floor", "ceiling", "needed"),
    [(4.0, 1.0, 100.0, 7.0), (4.0, 9.0, 100.0, 9.0), (4.0, 1.0, 5.0, 5.0), (0.0, 1.0, 9.0, 1.0), (NAN, 1.0, 9.0, NAN)],
)
def test_the_load_needs_its_peak_and_one_root_more_within_the_limits(load, floor, ceiling, needed):
    asked = family.fleets(np.array([load], np.float32), np.array([floor]), np.array([ceiling]))[family.ONE_ROOT]
    np.testing.assert_array_equal(asked, [needed])


# --- levels


def followed(*steps):
    """The levels after demand was so much for so long, one after the other."""
    level, level_s = np.full((len(family.LEVELS_S), 1), NAN), np.zeros(1)
    for demand, step_s in steps:
        level = family.levels(level, level_s, np.array([demand]), np.array([step_s]))
        level_s = level_s + step_s
    return level[:, 0]


@given(st.lists(st.tuples(st.floats(0.0, 1000.0), st.floats(0.1, 120.0)), min_size=1, max_size=20))
def test_a_level_is_the_mean_of_all_demand_so_far_the_older_the_less_it_weighs(steps):
    ends_s = np.cumsum([step_s for _, step_s in steps])
    for level, over_s in zip(followed(*steps), family.LEVELS_S.tolist(), strict=True):
        past = [math.exp((end_s - ends_s[-1]) / over_s) for end_s in ends_s]
        weights = [at * -math.expm1(-step_s / over_s) for at, (_, step_s) in zip(past, steps, strict=True)]
        mean = sum(weight * demand for weight, (demand, _) in zip(weights, steps, strict=True)) / sum(weights)
        assert level == pytest.approx(mean, rel=1e-6, abs=1e-6)


def test_engines_that_fill_at_first_do_not_stand_for_a_whole_time_constant():
    """Read for 5 s and half full, then for 30 s: what was seen for a sixth of the time does not lower the mean more."""
    level = followed((5.0, 5.0), (10.0, 30.0))
    assert level[-1] == pytest.approx(10 - 5 / 7, rel=0.01)
    assert level[0] < 1.06 * level[1]


def test_a_level_stands_while_demand_is_not_known():
    assert followed((4.0, 30.0), (NAN, 0.0)).tolist() == [4.0] * len(family.LEVELS_S)
    assert np.isnan(followed((NAN, 0.0))).all()


@given(st.floats(0.01, 1000.0), st.floats(0.0, 5000.0), st.floats(0.01, 100.0))
def test_demand_is_off_its_steady_level_by_a_share_whatever_the_size(level, demand, times):
    def off(size):
        return family.off_level(np.full((len(family.LEVELS_S), 1), level * size), np.array([demand * size]))[0]

    assert off(1.0) == pytest.approx(abs(demand / level - 1), abs=1e-9)
    assert off(times) == pytest.approx(off(1.0), abs=1e-9)


def test_nothing_is_off_no_level():
    assert family.off_level(np.zeros((len(family.LEVELS_S), 1)), np.zeros(1))[0] == 0
    assert np.isnan(family.off_level(np.full((len(family.LEVELS_S), 1), NAN), np.full(1, NAN))[0])


# --- a peak that is held


@given(st.lists(st.floats(0, 100, width=32), min_size=60, max_size=60), st.integers(1, family.SPANS_A_COLD_START))
def test_each_predictor_says_the_peak_of_its_level_over_its_hold(run, reach):
    """Against looking back over all that ever was."""
    past = np.zeros((len(family.LEVELS_S), family.PEAKS, 1), np.float32)
    scale = np.arange(1, len(family.LEVELS_S) + 1, dtype=np.float32)[:, None]  # levels that differ
    for value in run:
        level = scale * np.float32(value)
        past = family.push(past, level, np.ones(1, bool), np.maximum)
    said = family.held(level, past, np.array([reach]))[:, 0]
    for predictor, (place, hold) in enumerate((*family.PREDICTORS, family.OF_LOAD)):
        peak = max(float(np.float32(value)) for value in run[-1 - hold * reach :])
        assert said[predictor] == pytest.approx(float(scale[place, 0]) * peak, rel=1e-6)


def test_what_is_not_known_is_not_held():
    level = np.full((len(family.LEVELS_S), 1), np.nan, np.float32)
    past = np.ones((len(family.LEVELS_S), family.PEAKS, 1), np.float32)
    assert np.isnan(family.held(level, past, np.array([1]))).all()


def test_a_span_keeps_its_extreme_until_its_time_is_over():
    past = np.array([[[5.0, 5.0], [3.0, 3.0]]], np.float32)
    pushed = family.push(past, np.array([[4.0, 4.0]], np.float32), np.array([False, True]), np.maximum)
    assert pushed[0].tolist() == [[5.0, 4.0], [3.0, 5.0]]
