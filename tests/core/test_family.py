"""The family of rules: predictors and margins, each a pure function."""

import math

import numpy as np
import pytest

from autoscaler.core import family

NAN = math.nan


@pytest.mark.parametrize("rule", range(family.RULES))
def test_every_rule_is_described_by_its_own_numbers(rule):
    level_s, hold, share, root, count = family.describe(rule)
    assert (list(family.LEVELS_S).index(level_s), hold) in family.PREDICTORS
    assert hold >= 1  # what is given up while it loads was never of use
    assert share == 0 or root == 0
    assert (count > 0) == (rule >= family.BY_MARGIN)
    assert sum(family.describe(other) == family.describe(rule) for other in range(family.RULES)) == 1


def test_the_rules_of_each_predictor_stand_side_by_side_in_their_order():
    described = [family.describe(rule)[:2] for rule in range(family.BY_MARGIN)]
    expected = [(family.LEVELS_S[level], hold) for level, hold in family.PREDICTORS for _ in range(family.MARGINS)]
    assert described == expected


def test_the_careful_are_those_on_the_fastest_level_with_the_longest_hold():
    careful = {family.describe(int(rule))[:2] for rule in np.flatnonzero(family.CAREFUL)}
    assert careful == {(family.LEVELS_S[0], family.LONGEST_HOLD)}
    assert family.CAREFUL.sum() == family.MARGINS


def test_what_is_enough_is_the_longest_peak_and_one_root():
    assert family.describe(family.ENOUGH) == (20.0, family.LONGEST_HOLD, 0.0, 1.0, 0.0)
    assert family.CAREFUL[family.ENOUGH]


def test_larger_margins_and_longer_holds_are_believed_to_miss_less_before_anything_was_seen():
    by_margin = (len(family.PREDICTORS), family.MARGINS)
    believed, larger = (
        family.doubted(np.array([level]))[: family.BY_MARGIN, 0].reshape(by_margin) for level in (4.0, 100.0)
    )
    assert (np.diff(believed[:, : family.BY_SHARE]) < 0).all()
    assert (np.diff(believed[:, family.BY_SHARE :]) < 0).all()
    assert (larger[:, : family.BY_SHARE] < believed[:, : family.BY_SHARE]).all()
    holds = np.array([hold for _, hold in family.PREDICTORS])
    assert (np.diff(believed[np.argsort(holds, kind="stable")], axis=0) <= 0).all()


def test_a_count_is_doubted_like_its_margin_held_for_one_cold_start():
    """8 replicas serve 7.44: 1.72 roots beyond a level of 4. Two serve less, as if without a margin."""
    believed = family.doubted(np.array([4.0]))[family.BY_MARGIN :, 0]
    of_count = dict(zip(family.COUNTS[:, 0].tolist(), believed.tolist(), strict=True))
    of_one = family.DOUBT * math.exp(-family.DOUBT_HOLD)
    assert of_count[8] == pytest.approx(of_one * math.exp(-family.DOUBT_MARGIN * (8 * family.MOST_BUSY - 4) / 2))
    assert of_count[1] == of_count[2] == pytest.approx(of_one)
    assert (np.diff(believed) <= 0).all()


@pytest.mark.parametrize(("level", "asked"), [(0.1, 6.0), (5.0, 6.0), (7.0, 8.0), (NAN, NAN)])
def test_a_constant_count_gives_way_to_what_the_level_needs(level, asked):
    by_rule = family.asked(np.full((3, 1), level), np.ones(1), np.full(1, 40.0))
    six = family.BY_MARGIN + family.COUNTS[:, 0].tolist().index(6.0)
    np.testing.assert_array_equal(by_rule[six], [asked])
    if asked > 0:
        assert by_rule[-1, 0] == 40  # of 64 the ceiling
        fleets = family.fleets(np.full((3, 1), level), np.ones(1), np.full(1, 40.0))
        np.testing.assert_array_equal(by_rule[: family.BY_MARGIN], fleets.reshape(family.BY_MARGIN, 1))


def test_margins_are_on_top_of_the_level_and_replicas_are_whole():
    one = np.ones(1)
    asked = family.fleets(4 * np.ones((1, 1)), one, 100 * one)[0, :, 0]
    by_share = [math.ceil(4 * (1 + share) / family.MOST_BUSY - family.NEARLY) for share in family.SHARE_MARGINS[:, 0]]
    by_root = [math.ceil((4 + 2 * root) / family.MOST_BUSY - family.NEARLY) for root in family.ROOT_MARGINS[:, 0]]
    assert asked.tolist() == by_share + by_root
    bounded = family.fleets(4 * np.ones((1, 1)), 9 * one, 12 * one)[0, :, 0]
    assert bounded.tolist() == np.clip(asked, 9, 12).tolist()


@pytest.mark.parametrize(
    ("load", "floor", "ceiling", "needed"),
    [(4.0, 1.0, 100.0, 7.0), (4.0, 9.0, 100.0, 9.0), (4.0, 1.0, 5.0, 5.0), (0.0, 1.0, 9.0, 1.0), (NAN, 1.0, 9.0, NAN)],
)
def test_the_load_needs_its_peak_and_one_root_more_within_the_limits(load, floor, ceiling, needed):
    asked = family.fleets(np.array([[load]], np.float32), np.array([floor]), np.array([ceiling]))
    np.testing.assert_array_equal(asked[0, family.ONE_ROOT], [needed])


@pytest.mark.parametrize("rule", range(0, family.BY_MARGIN, 5))
@pytest.mark.parametrize("replicas", [1.0, 3.0, 40.0])
def test_highest_level_for_some_replicas_is_the_one_before_they_grow(rule, replicas):
    level = family.level_for(np.array([rule]), np.array([replicas]))[0]
    margin, none, many = rule % family.MARGINS, np.zeros(1), np.full(1, 1e6)
    below, above = (family.fleets(np.array([[level * by]]), none, many)[0, margin, 0] for by in (0.999, 1.001))
    assert below <= replicas < above
