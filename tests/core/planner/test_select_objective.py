"""Counts start over when an objective changes."""

from functools import cache

import numpy as np
import pytest

from autoscaler.core.planner.select import StrategyState
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from tests.core.planner.interval_stats import NAN, WORK_S, make_stats, run, update

CONSTANT_COUNTS = ("miss_counts.missed", "miss_counts.prefill_late", "miss_counts.unavoidable", "budget.missed")
SHADOW_COUNTS = ("shadow.queue_missed", "shadow.missed")
KEPT = ("speed.readings", "speed.shortest_gap_s", "budget.served_s", "history.observed_s", "offered_load.requests")
PREFILL = {"prefill_counted": 45.0, "prefill_late": 12.0}


@cache
def run_with_misses(**columns):
    """Run three hours in which a third of all requests missed, many of them unavoidably."""
    return run([3.0, 12.0, 3.0] * 120, late=0.3, replicas=5.0, totals=PREFILL, **columns)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"first_token_limit_s": 2.0}, {"itl_objective_s": 0.2}, {"itl_objective_s": NAN}])
def test_counts_begin_again_when_an_objective_changes(changed):
    before = run_with_misses()
    after = update(before, make_stats(3.0, replicas=7.0, **changed))
    columns_before, columns = before.columns(), after.columns()
    for place in CONSTANT_COUNTS:
        assert columns_before[place].max() > 0, place
        assert columns[place].max() == 0, place
    arrivals = 3.0 * UPDATE_INTERVAL_S / WORK_S
    assert after.budget.counted[0] == pytest.approx(arrivals)
    for place in SHADOW_COUNTS:
        assert columns_before[place].max() > 10 * arrivals, place
        assert columns[place].max() <= arrivals, place  # those of this interval
    assert after.shadow.observed_s[0] == 30
    assert after.initial_fleet[0] == 7  # as for a new workload
    assert after.replicas[0] >= 7
    for place in KEPT:
        assert columns[place][0] > 0.9 * columns_before[place][0], place
    assert after.offered_load.demand[0] == pytest.approx(3.0, rel=0.05)


def test_counts_begin_again_only_once():
    after = update(run_with_misses(), make_stats(3.0, first_token_limit_s=2.0, late=0.2))
    again = update(after, make_stats(3.0, first_token_limit_s=2.0, late=0.2))
    assert again.budget.missed[0] == pytest.approx(2 * after.budget.missed[0], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("same", [{"first_token_limit_s": 1.0 + 1e-12}, {"budget_share": 0.02}, {"ceiling": 50.0}])
def test_counts_stay_when_only_rounding_or_other_fields_change(same):
    before = run_with_misses()
    assert update(before, make_stats(3.0, **same)).budget.missed[0] > 0.99 * before.budget.missed[0]


def test_counts_stay_when_there_is_still_no_objective():
    before = run_with_misses(itl_objective_s=NAN)
    assert update(before, make_stats(3.0, itl_objective_s=NAN)).budget.missed[0] > 0.99 * before.budget.missed[0]


@pytest.mark.slow
def test_counts_stay_while_there_is_no_policy():
    no_policy = {"first_token_limit_s": NAN, "itl_objective_s": NAN, "budget_share": NAN}
    before = run_with_misses()
    without = update(before, make_stats(3.0, **no_policy, totals={"ttft_counted": 0.0}))
    assert update(without, make_stats(3.0)).budget.missed[0] > 0.99 * before.budget.missed[0]


def test_counts_of_other_workloads_stay():
    row = np.array([0])
    before = run([np.array([3.0, 3.0])] * 100, late=0.3)
    after = update(before, make_stats(np.array([3.0, 3.0]), late=0.3, first_token_limit_s=np.array([1.0, 2.0])))
    alone = update(before.take(row), make_stats(3.0, late=0.3))
    for place, column in alone.columns().items():
        np.testing.assert_array_equal(after.columns()[place][..., row], column, err_msg=place)
    assert after.budget.missed[1] < after.budget.missed[0]
    assert after.shadow.queue_sum.dtype == StrategyState.blank(1).shadow.queue_sum.dtype
