"""The figures in the plan of a workload."""

from functools import cache

import numpy as np
import pytest

from autoscaler.core.planner.plan import compute_peak_expiry
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from tests.core.planner.planned import PEAK_STRATEGIES, NotCounting, decide_after_learning, plan_of
from tests.core.serving import IDLE_GAP_S, LEARNED, WORK_S, Serving
from tests.core.world import fleet, spec

pytestmark = pytest.mark.slow


def test_plan_says_what_was_measured():
    plan = plan_of(decide_after_learning(spec(**LEARNED), fleet([4]), 2.0, late=0.002))
    assert plan["idle_gap_s"] == pytest.approx(IDLE_GAP_S, rel=0.05)
    assert plan["demand"] == pytest.approx(2.0, rel=0.05)
    assert plan["work_s"] == pytest.approx(WORK_S, rel=0.05)
    assert plan["missed_fraction"] == pytest.approx(0.002, rel=0.05)
    assert 0 < plan["allowed_fraction"] < 0.02
    assert 0 < plan["shadow_missed_fraction"] < 0.2  # no strategy is prepared for so sudden a rise
    assert 1800 < plan["observed_s"] < 2400 - UPDATE_INTERVAL_S  # of 2400 s, without those before the speed was known


def test_shadow_misses_are_those_that_the_selection_weighs():
    story, cluster = Serving(spec(**LEARNED)), fleet([4])
    story.learn(cluster)
    plan = story.serve(cluster, 3.7, 1800.0).plan
    state = story.memory.planner.strategies
    share = state.shadow.missed[int(state.strategy[0]), 0] / state.shadow.arrived[0]
    assert plan.shadow_missed_fraction[0] == pytest.approx(share, rel=1e-5)


def test_missed_fraction_is_unknown_when_nothing_is_counted():
    assert decide_after_learning(spec(**LEARNED), fleet([2]), 1.0).plan.missed_fraction[0] == 0
    uncounted = decide_after_learning(spec(**LEARNED), fleet([2]), 1.0, NotCounting)
    assert uncounted.plan.replicas[0] >= 1
    assert np.isnan(uncounted.plan.missed_fraction[0])


def test_requests_that_arrive_at_zero_have_missed():
    """Engines count from when a gateway lets a request through, so they report these requests as met."""
    story, cluster = Serving(spec(**LEARNED)), fleet([1])
    assert story.serve(cluster, 0.5, 1800.0).plan.missed_fraction[0] == 0
    story.tick(fleet([0]), 30.0, gateway_waiting=54.0)  # four of them ran on the replica that is gone
    decision = story.tick(fleet([0], [1], starting_since_s=story.now_s), 30.0, gateway_waiting=54.0)
    counted = story.memory.planner.strategies.budget.counted[0]
    assert decision.plan.missed_fraction[0] == pytest.approx(50 / (counted + 50), rel=1e-3)


@cache
def story_after_a_peak():
    story = Serving(spec(cold_start_s=60.0, **LEARNED))
    story.learn(fleet([2]))
    story.serve(fleet([2]), 1.7, 600)
    story.serve(fleet([2]), 0.1, 420)
    return story


@pytest.mark.parametrize("count", [1, 2, 9, 645])
def test_peak_expiry_is_unknown_when_a_constant_count_decides(count):
    """A peak some minutes ago needs two replicas. A count of one rises for it, a larger one stays."""
    before = story_after_a_peak().memory.planner.strategies
    selected = {
        "strategy": np.array([float(PEAK_STRATEGIES)]),
        "replicas": np.full(1, max(2.0, count)),
        "shadow.counts": np.full_like(before.shadow.counts, count),
    }
    state = before.with_columns(selected)
    assert (compute_peak_expiry(state, np.array([60.0]))[0] > 0) == (count == 1)
