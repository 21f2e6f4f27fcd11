"""The first hours of a workload: conservative strategies, and no headroom over the initial fleet in steady traffic."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.planner import load_history
from autoscaler.core.planner.select import STEADY_S, StrategyState, update_strategies
from autoscaler.core.planner.strategies import LONGEST_HOLD, STEADY_LIMIT, UPDATE_INTERVAL_S
from tests.core.planner.interval_stats import make_silent_stats, make_stats, run, update

INITIAL_FLEET = 66.0
STEADY, BURSTY = [50.0, 52.0, 48.0, 50.0] * 2, [20.0, 80.0, 20.0, 80.0] * 2


def requested_by_selected(state):
    return state.shadow.requested[int(state.strategy[0]), 0]


def requested_by_limit(state):
    return state.shadow.requested[STEADY_LIMIT, 0]


# --- steady traffic


def test_no_headroom_is_added_to_the_initial_fleet():
    state = run(STEADY, replicas=INITIAL_FLEET)
    assert requested_by_selected(state) > INITIAL_FLEET == requested_by_limit(state)
    assert state.replicas[0] == INITIAL_FLEET


def test_traffic_is_not_steady_without_load():
    assert not load_history.is_steady(run([0.0] * 5, replicas=12.0).history)[0]
    assert load_history.is_steady(run(STEADY).history)[0]


def test_peak_so_far_is_served_when_traffic_is_steady():
    state = run(STEADY, replicas=55.0, busy=0.9)
    limit = requested_by_limit(state)
    assert requested_by_selected(state) > limit > 55
    assert state.replicas[0] == limit


def test_strategy_decides_when_traffic_is_bursty():
    state = run(BURSTY, replicas=INITIAL_FLEET)
    assert state.replicas[0] == requested_by_selected(state) > INITIAL_FLEET


def test_strategy_decides_after_a_single_outburst():
    before = run(STEADY, replicas=INITIAL_FLEET)
    now_s = float(before.last_updated_s[0])
    after = run([250.0, 250.0], before, now_s, replicas=INITIAL_FLEET, busy=0.95, ceiling=1000.0)
    assert after.replicas[0] == requested_by_selected(after) > INITIAL_FLEET


def test_strategy_decides_when_the_budget_is_used_up():
    few, many = (run(STEADY, replicas=INITIAL_FLEET, late=late) for late in (0.02, 0.05))
    assert few.replicas[0] == INITIAL_FLEET
    assert many.replicas[0] == requested_by_selected(many) > INITIAL_FLEET


def test_strategy_decides_after_two_hours_of_steady_traffic():
    before = run(STEADY, replicas=INITIAL_FLEET)
    assert requested_by_selected(before) > before.replicas[0]
    before = before.with_columns({"shadow.observed_s": np.full(1, STEADY_S)})
    after = update(before, make_stats(50.0, replicas=INITIAL_FLEET))
    assert after.replicas[0] == requested_by_selected(after)


@pytest.mark.slow
@given(st.lists(st.floats(0.1, 40.0), min_size=2, max_size=30), st.floats(1.0, 50.0), st.floats(0.0, 0.1))
def test_recommendation_is_between_limit_and_strategy(demands, replicas, late):
    state = run([5.0] * 5 + demands, replicas=math.ceil(replicas), late=late)
    requested = requested_by_selected(state)
    assert min(requested, requested_by_limit(state)) <= state.replicas[0] <= max(requested, state.initial_fleet[0])


def test_deviation_stays_when_demand_is_unknown():
    before = run(BURSTY, replicas=INITIAL_FLEET)
    after = update(before, make_silent_stats())
    assert np.isnan(after.offered_load.demand[0])
    for name in ("squared_deviation", "observed_s"):
        assert getattr(after.history, name)[0] == getattr(before.history, name)[0] > 0


# --- the initial fleet


def test_initial_fleet_is_kept_below_the_ceiling():
    state = run([1.0, 1.0, 1.0], replicas=12.0)
    assert state.replicas[0] == 12
    assert update(state, make_stats(1.0, replicas=12.0, ceiling=5.0)).replicas[0] == 5


def test_initial_fleet_does_not_return_when_cold_starts_lengthen():
    """A start that takes ten times as long makes ten cold starts longer than all demand so far."""
    state = run([1.0] * round(LONGEST_HOLD * 60.0 / UPDATE_INTERVAL_S), replicas=12.0)
    assert state.shadow.requested.min() == 12
    later = update(update(state, make_stats(1.0)), make_stats(1.0))
    assert later.shadow.requested.min() < 12
    after = update(later, make_stats(1.0, cold_start_s=600.0))
    assert after.shadow.requested.min() < 12
    assert run([1.0] * 40, replicas=12.0, cold_start_s=600.0).shadow.requested.min() == 12


def test_warm_up_follows_the_present_cold_start():
    state = run([1.0] * 10, replicas=12.0, cold_start_s=600.0)
    shorter = run([1.0] * 20, state, float(state.last_updated_s[0]), replicas=12.0)
    assert shorter.shadow.requested.min() < 12
    longer = run([1.0] * 30, run([1.0] * 10, replicas=12.0), 1300.0, replicas=12.0, cold_start_s=600.0)
    assert longer.shadow.requested.min() == 12


def test_initial_fleet_is_the_owners_count_when_a_queue_adds():
    """The count is 1 at first. Three serve when demand is first known."""
    first = update_strategies(StrategyState.blank(1), make_silent_stats(ordered=1.0), 1000.0)
    state = run(STEADY[:1], first, replicas=3.0)
    assert state.initial_fleet[0] == 1
