"""The strategy set: what each strategy requests, as a pure function of the held peak."""

import math

import numpy as np
import pytest

from autoscaler.core.planner import strategies
from autoscaler.core.planner.strategies import (
    AVERAGES_S,
    CONSERVATIVE,
    CONSTANT_COUNTS,
    LONGEST_HOLD,
    MARGIN_COUNT,
    MAX_UTILIZATION,
    ONE_ROOT_MARGIN,
    PEAK_HOLDS,
    PEAK_STRATEGY_COUNT,
    ROOT_MARGINS,
    ROUNDING_TOLERANCE,
    SHARE_MARGIN_COUNT,
    SHARE_MARGINS,
    STEADY_LIMIT,
    STRATEGY_COUNT,
    add_margins,
    compute_prior_misses,
    compute_replicas,
    describe,
)

NAN = math.nan


@pytest.mark.parametrize("strategy", range(STRATEGY_COUNT))
def test_every_strategy_has_its_own_parameters(strategy):
    described = describe(strategy)
    assert (list(AVERAGES_S).index(described.average_s), described.hold) in PEAK_HOLDS
    assert described.hold >= 1  # a replica that is removed while it still loads was never of use
    assert described.margin_share == 0 or described.margin_roots == 0
    assert (described.min_replicas > 0) == (strategy >= PEAK_STRATEGY_COUNT)
    assert sum(describe(other) == described for other in range(STRATEGY_COUNT)) == 1


def test_strategies_of_one_peak_hold_are_neighbours():
    described = [describe(strategy)[:2] for strategy in range(PEAK_STRATEGY_COUNT)]
    assert described == [(AVERAGES_S[average], hold) for average, hold in PEAK_HOLDS for _ in range(MARGIN_COUNT)]


def test_conservative_have_fastest_average_and_longest_hold():
    conservative = {describe(int(strategy))[:2] for strategy in np.flatnonzero(CONSERVATIVE)}
    assert conservative == {(AVERAGES_S[0], LONGEST_HOLD)}
    assert CONSERVATIVE.sum() == MARGIN_COUNT


def test_steady_limit_is_the_longest_peak_and_one_root():
    assert describe(STEADY_LIMIT) == (20.0, LONGEST_HOLD, 0.0, 1.0, 0.0)
    assert CONSERVATIVE[STEADY_LIMIT]


def test_prior_misses_fall_with_the_margin_and_the_hold():
    shape = len(PEAK_HOLDS), MARGIN_COUNT
    at_4, at_100 = (
        compute_prior_misses(np.array([average]))[:PEAK_STRATEGY_COUNT, 0].reshape(shape) for average in (4.0, 100.0)
    )
    assert (np.diff(at_4[:, :SHARE_MARGIN_COUNT]) < 0).all()
    assert (np.diff(at_4[:, SHARE_MARGIN_COUNT:]) < 0).all()
    assert (at_100[:, :SHARE_MARGIN_COUNT] < at_4[:, :SHARE_MARGIN_COUNT]).all()
    holds = np.array([hold for _, hold in PEAK_HOLDS])
    assert (np.diff(at_4[np.argsort(holds, kind="stable")], axis=0) <= 0).all()


def test_prior_misses_of_a_count_are_those_of_its_excess():
    """8 replicas serve 7.44, which is 1.72 roots beyond an average of 4. Two serve less, as if without a margin."""
    misses = compute_prior_misses(np.array([4.0]))[PEAK_STRATEGY_COUNT:, 0]
    by_count = dict(zip(CONSTANT_COUNTS[:, 0].tolist(), misses.tolist(), strict=True))
    without_margin = strategies.PRIOR_MISS_SHARE * math.exp(-strategies.PRIOR_HOLD_DECAY)
    roots = (8 * MAX_UTILIZATION - 4) / 2
    assert by_count[8] == pytest.approx(without_margin * math.exp(-strategies.PRIOR_MARGIN_DECAY * roots))
    assert by_count[1] == by_count[2] == pytest.approx(without_margin)
    assert (np.diff(misses) <= 0).all()


@pytest.mark.parametrize(("peak", "expected"), [(0.1, 6.0), (5.0, 6.0), (7.0, 8.0), (NAN, NAN)])
def test_constant_count_rises_when_the_peak_needs_more(peak, expected):
    one, ceiling = np.ones(1), np.full(1, 40.0)
    replicas = compute_replicas(np.full((3, 1), peak), one, ceiling)
    six = PEAK_STRATEGY_COUNT + CONSTANT_COUNTS[:, 0].tolist().index(6.0)
    np.testing.assert_array_equal(replicas[six], [expected])
    if expected > 0:
        assert replicas[-1, 0] == 40  # the ceiling, instead of 64
        with_margins = add_margins(np.full((3, 1), peak), one, ceiling)
        np.testing.assert_array_equal(replicas[:PEAK_STRATEGY_COUNT], with_margins.reshape(PEAK_STRATEGY_COUNT, 1))


def test_margins_are_added_and_replicas_are_whole():
    one = np.ones(1)
    replicas = add_margins(4 * np.ones((1, 1)), one, 100 * one)[0, :, 0]
    busy = [4 * (1 + share) for share in SHARE_MARGINS[:, 0]] + [4 + 2 * roots for roots in ROOT_MARGINS[:, 0]]
    assert replicas.tolist() == [math.ceil(each / MAX_UTILIZATION - ROUNDING_TOLERANCE) for each in busy]
    bounded = add_margins(4 * np.ones((1, 1)), 9 * one, 12 * one)[0, :, 0]
    assert bounded.tolist() == np.clip(replicas, 9, 12).tolist()


@pytest.mark.parametrize(
    ("load", "floor", "ceiling", "expected"),
    [(4.0, 1.0, 100.0, 7.0), (4.0, 9.0, 100.0, 9.0), (4.0, 1.0, 5.0, 5.0), (0.0, 1.0, 9.0, 1.0), (NAN, 1.0, 9.0, NAN)],
)
def test_one_root_margin_stays_within_floor_and_ceiling(load, floor, ceiling, expected):
    replicas = add_margins(np.array([[load]], np.float32), np.array([floor]), np.array([ceiling]))
    np.testing.assert_array_equal(replicas[0, ONE_ROOT_MARGIN], [expected])


@pytest.mark.parametrize("strategy", range(0, PEAK_STRATEGY_COUNT, 5))
@pytest.mark.parametrize("replicas", [1.0, 3.0, 40.0])
def test_highest_load_is_the_last_before_replicas_grow(strategy, replicas):
    load = strategies.find_highest_load(np.array([strategy]), np.array([replicas]))[0]
    margin, none, many = strategy % MARGIN_COUNT, np.zeros(1), np.full(1, 1e6)
    below, above = (add_margins(np.array([[load * factor]]), none, many)[0, margin, 0] for factor in (0.999, 1.001))
    assert below <= replicas < above
