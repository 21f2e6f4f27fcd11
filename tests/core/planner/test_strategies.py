"""The family of rules: predictors and margins, each a pure function."""

import math

import numpy as np
import pytest

from autoscaler.core.planner import strategies

NAN = math.nan


@pytest.mark.parametrize("rule", range(strategies.RULES))
def test_every_rule_is_described_by_its_own_numbers(rule):
    level_s, hold, share, root, count = strategies.describe(rule)
    assert (list(strategies.LEVELS_S).index(level_s), hold) in strategies.PREDICTORS
    assert hold >= 1  # what is given up while it loads was never of use
    assert share == 0 or root == 0
    assert (count > 0) == (rule >= strategies.BY_MARGIN)
    assert sum(strategies.describe(other) == strategies.describe(rule) for other in range(strategies.RULES)) == 1


def test_the_rules_of_each_predictor_stand_side_by_side_in_their_order():
    described = [strategies.describe(rule)[:2] for rule in range(strategies.BY_MARGIN)]
    expected = [
        (strategies.LEVELS_S[level], hold) for level, hold in strategies.PREDICTORS for _ in range(strategies.MARGINS)
    ]
    assert described == expected


def test_the_careful_are_those_on_the_fastest_level_with_the_longest_hold():
    careful = {strategies.describe(int(rule))[:2] for rule in np.flatnonzero(strategies.CAREFUL)}
    assert careful == {(strategies.LEVELS_S[0], strategies.LONGEST_HOLD)}
    assert strategies.CAREFUL.sum() == strategies.MARGINS


def test_what_is_enough_is_the_longest_peak_and_one_root():
    assert strategies.describe(strategies.ENOUGH) == (20.0, strategies.LONGEST_HOLD, 0.0, 1.0, 0.0)
    assert strategies.CAREFUL[strategies.ENOUGH]


def test_larger_margins_and_longer_holds_are_believed_to_miss_less_before_anything_was_seen():
    by_margin = (len(strategies.PREDICTORS), strategies.MARGINS)
    believed, larger = (
        strategies.doubted(np.array([level]))[: strategies.BY_MARGIN, 0].reshape(by_margin) for level in (4.0, 100.0)
    )
    assert (np.diff(believed[:, : strategies.BY_SHARE]) < 0).all()
    assert (np.diff(believed[:, strategies.BY_SHARE :]) < 0).all()
    assert (larger[:, : strategies.BY_SHARE] < believed[:, : strategies.BY_SHARE]).all()
    holds = np.array([hold for _, hold in strategies.PREDICTORS])
    assert (np.diff(believed[np.argsort(holds, kind="stable")], axis=0) <= 0).all()


def test_a_count_is_doubted_like_its_margin_held_for_one_cold_start():
    """8 replicas serve 7.44: 1.72 roots beyond a level of 4. Two serve less, as if without a margin."""
    believed = strategies.doubted(np.array([4.0]))[strategies.BY_MARGIN :, 0]
    of_count = dict(zip(strategies.COUNTS[:, 0].tolist(), believed.tolist(), strict=True))
    of_one = strategies.DOUBT * math.exp(-strategies.DOUBT_HOLD)
    assert of_count[8] == pytest.approx(
        of_one * math.exp(-strategies.DOUBT_MARGIN * (8 * strategies.MOST_BUSY - 4) / 2)
    )
    assert of_count[1] == of_count[2] == pytest.approx(of_one)
    assert (np.diff(believed) <= 0).all()


@pytest.mark.parametrize(("level", "asked"), [(0.1, 6.0), (5.0, 6.0), (7.0, 8.0), (NAN, NAN)])
def test_a_constant_count_gives_way_to_what_the_level_needs(level, asked):
    by_rule = strategies.asked(np.full((3, 1), level), np.ones(1), np.full(1, 40.0))
    six = strategies.BY_MARGIN + strategies.COUNTS[:, 0].tolist().index(6.0)
    np.testing.assert_array_equal(by_rule[six], [asked])
    if asked > 0:
        assert by_rule[-1, 0] == 40  # of 64 the ceiling
        fleets = strategies.fleets(np.full((3, 1), level), np.ones(1), np.full(1, 40.0))
        np.testing.assert_array_equal(by_rule[: strategies.BY_MARGIN], fleets.reshape(strategies.BY_MARGIN, 1))


def test_margins_are_on_top_of_the_level_and_replicas_are_whole():
    one = np.ones(1)
    asked = strategies.fleets(4 * np.ones((1, 1)), one, 100 * one)[0, :, 0]
    by_share = [
        math.ceil(4 * (1 + share) / strategies.MOST_BUSY - strategies.NEARLY)
        for share in strategies.SHARE_MARGINS[:, 0]
    ]
    by_root = [
        math.ceil((4 + 2 * root) / strategies.MOST_BUSY - strategies.NEARLY) for root in strategies.ROOT_MARGINS[:, 0]
    ]
    assert asked.tolist() == by_share + by_root
    bounded = strategies.fleets(4 * np.ones((1, 1)), 9 * one, 12 * one)[0, :, 0]
    assert bounded.tolist() == np.clip(asked, 9, 12).tolist()


@pytest.mark.parametrize(
    ("load", "floor", "ceiling", "needed"),
    [(4.0, 1.0, 100.0, 7.0), (4.0, 9.0, 100.0, 9.0), (4.0, 1.0, 5.0, 5.0), (0.0, 1.0, 9.0, 1.0), (NAN, 1.0, 9.0, NAN)],
)
def test_the_load_needs_its_peak_and_one_root_more_within_the_limits(load, floor, ceiling, needed):
    asked = strategies.fleets(np.array([[load]], np.float32), np.array([floor]), np.array([ceiling]))
    np.testing.assert_array_equal(asked[0, strategies.ONE_ROOT], [needed])


@pytest.mark.parametrize("rule", range(0, strategies.BY_MARGIN, 5))
@pytest.mark.parametrize("replicas", [1.0, 3.0, 40.0])
def test_highest_level_for_some_replicas_is_the_one_before_they_grow(rule, replicas):
    level = strategies.level_for(np.array([rule]), np.array([replicas]))[0]
    margin, none, many = rule % strategies.MARGINS, np.zeros(1), np.full(1, 1e6)
    below, above = (strategies.fleets(np.array([[level * by]]), none, many)[0, margin, 0] for by in (0.999, 1.001))
    assert below <= replicas < above
