"""The strategy set: what each strategy requests, as a pure function of the predicted load."""

import math

import numpy as np
import pytest

from autoscaler.core.measure.capacity import SPARE_ROOTS, count_carrying
from autoscaler.core.planner import strategies
from autoscaler.core.planner.strategies import (
    AVERAGES_S,
    CONSTANT_COUNTS,
    LONGEST_HOLD,
    MARGINS,
    MIN_REPLICAS,
    PEAK_HOLDS,
    ROUNDING_TOLERANCE,
    STEADY_LIMIT,
    STRATEGIES,
    add_margin,
    compute_prior_misses,
    compute_replicas,
)
from tests.core.planner.planned import PEAK_STRATEGIES

NAN = math.nan


def request(predicted, floor=1.0, ceiling=1000.0):
    """Return what each strategy requests if all predictions are the same."""
    load = np.full((len(PEAK_HOLDS), 1), predicted, np.float32)
    return compute_replicas(load, MIN_REPLICAS, np.array([floor]), np.array([ceiling]))[:, 0]


@pytest.mark.parametrize("strategy", range(len(STRATEGIES)))
def test_every_strategy_has_its_own_parameters(strategy):
    described = STRATEGIES[strategy]
    assert (list(AVERAGES_S).index(described.average_s), described.hold) == PEAK_HOLDS[described.prediction]
    assert described.hold >= 1  # a replica that is removed while it still loads was never of use
    assert described.margin_share == 0 or described.margin_roots == 0
    assert (described.min_replicas > 0) == (strategy >= PEAK_STRATEGIES)
    assert STRATEGIES.count(described) == 1


def test_steady_limit_is_the_longest_peak_and_one_root():
    limit = STRATEGIES[STEADY_LIMIT]
    assert (limit.average_s, limit.hold) == (AVERAGES_S[0], LONGEST_HOLD)
    assert limit[1:] == (0.0, 1.0, 0.0)


def test_prior_misses_fall_with_the_margin_and_the_hold():
    shape = len(PEAK_HOLDS), len(MARGINS)
    at_4, at_100 = (
        compute_prior_misses(np.array([average]), MIN_REPLICAS)[:PEAK_STRATEGIES, 0].reshape(shape)
        for average in (4.0, 100.0)
    )
    shares, roots = np.array(MARGINS).T
    assert (np.diff(at_4[:, shares == 0]) < 0).all()
    assert (at_100[:, shares > 0] < at_4[:, shares > 0]).all()
    assert at_100[:, roots > 0] == pytest.approx(at_4[:, roots > 0])
    holds = np.array([hold for _, hold in PEAK_HOLDS])
    assert (np.diff(at_4[np.argsort(holds, kind="stable")], axis=0) <= 0).all()


def test_prior_misses_of_a_count_are_those_of_its_excess():
    """8 replicas carry 7.55, which is 1.77 roots beyond an average of 4. Two serve less, as if without a margin."""
    misses = compute_prior_misses(np.array([4.0]), MIN_REPLICAS)[PEAK_STRATEGIES:, 0]
    by_count = dict(zip(CONSTANT_COUNTS, misses.tolist(), strict=True))
    without_margin = strategies.PRIOR_MISS_SHARE * math.exp(-strategies.PRIOR_HOLD_DECAY)
    roots = (8 - SPARE_ROOTS * math.sqrt(8) - 4) / 2
    assert by_count[8] == pytest.approx(without_margin * math.exp(-strategies.PRIOR_MARGIN_DECAY * roots))
    assert by_count[2] == by_count[4] == pytest.approx(without_margin)
    assert (np.diff(misses) <= 0).all()


@pytest.mark.parametrize(("load", "expected"), [(0.1, 6.0), (5.0, 6.0), (7.0, 8.0), (NAN, NAN)])
def test_constant_count_rises_when_the_load_needs_more(load, expected):
    replicas = request(load, ceiling=40.0)
    np.testing.assert_array_equal(replicas[PEAK_STRATEGIES + CONSTANT_COUNTS.index(6)], expected)
    if expected > 0:
        assert replicas[-1] == 40  # the ceiling, instead of 60


def test_margins_are_added_and_replicas_are_whole():
    busy = [4 * (1 + share) + 2 * roots for share, roots in MARGINS]
    expected = [math.ceil(count_carrying(each) - ROUNDING_TOLERANCE) for each in busy] * len(PEAK_HOLDS)
    assert request(4.0)[:PEAK_STRATEGIES].tolist() == expected
    assert request(4.0, 9.0, 12.0)[:PEAK_STRATEGIES].tolist() == np.clip(expected, 9, 12).tolist()


def test_each_strategy_follows_its_own_prediction():
    predicted = np.array([[1.0], [10.0], [100.0]], np.float32)
    replicas = compute_replicas(predicted, MIN_REPLICAS, np.ones(1), np.full(1, 1000.0))[:, 0]
    for strategy, requested in zip(STRATEGIES, replicas.tolist(), strict=True):
        assert requested == request(float(predicted[strategy.prediction, 0]))[STRATEGIES.index(strategy)]


@pytest.mark.parametrize(("load", "expected"), [(4.0, 7.0), (0.0, -0.0), (NAN, NAN)])
def test_one_root_margin_rounds_up(load, expected):
    np.testing.assert_array_equal(add_margin(np.array([load], np.float32), 0.0, 1.0), [expected])


@pytest.mark.parametrize("strategy", range(0, PEAK_STRATEGIES, 2))
@pytest.mark.parametrize("replicas", [1.0, 3.0, 40.0])
def test_highest_load_is_the_last_before_replicas_grow(strategy, replicas):
    load = strategies.find_highest_load(np.array([strategy]), np.array([replicas]))[0]
    below, above = (request(load * factor, floor=0.0)[strategy] for factor in (0.999, 1.001))
    assert below <= replicas < above
