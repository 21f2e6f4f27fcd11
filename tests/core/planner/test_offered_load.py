"""The offered load, in the replicas that arriving requests keep busy."""

import pytest

from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from tests.core.planner.interval_stats import WORK_S, make_stats, run, update


def test_demand_is_arrivals_times_the_work_of_a_request():
    assert run([3.0] * 100).offered_load.demand[0] == pytest.approx(3.0, rel=0.01)


def test_demand_is_the_mean_of_two_estimates():
    """Arrivals say 2 replicas, token gaps say 3 of 4: 2.5."""
    totals = {"first_tokens": 0.0, "queue_growth": 0.0, "arrivals": 2 * UPDATE_INTERVAL_S / WORK_S}
    after = update(run([3.0] * 100), make_stats(3.0, replicas=4, busy=0.75, totals=totals))
    assert after.offered_load.demand[0] == pytest.approx(2.5, rel=0.01)


def test_growing_queue_is_demand():
    totals = {"first_tokens": 0.0, "queue_growth": 30.0}
    after = update(run([3.0] * 100), make_stats(3.0, replicas=4, busy=0.75, totals=totals))
    assert after.offered_load.demand[0] == pytest.approx((3 + 3 + 30 * WORK_S / UPDATE_INTERVAL_S) / 2, rel=0.01)


def test_growing_batch_is_demand_as_far_as_replicas_are_busy():
    arrivals = 3 * UPDATE_INTERVAL_S / WORK_S
    totals = {"first_tokens": 0.0, "queue_growth": 0.0, "batch_growth": 16.0, "arrivals": arrivals}
    after = update(run([3.0] * 100), make_stats(3.0, replicas=4, busy=0.75, totals=totals))
    batch = 0.75**2 * 16 * WORK_S / UPDATE_INTERVAL_S
    assert after.offered_load.demand[0] == pytest.approx((3 + 3 + batch) / 2, rel=0.01)


def test_working_off_a_queue_is_no_demand():
    totals = {"first_tokens": 60.0, "arrivals": 15.0, "queue_growth": -45.0}
    after = update(run([3.0] * 100), make_stats(1.0, replicas=4, busy=0.95, totals=totals))
    assert after.offered_load.demand[0] == pytest.approx(1.0, abs=0.15)


def test_demand_is_measured_by_arrivals_when_gaps_are_too_few():
    totals = {"gaps": 5.0, "gap_s": 0.2, "first_tokens": 0.0}
    after = update(run([3.0] * 100), make_stats(1.0, totals=totals))
    assert after.offered_load.demand[0] == pytest.approx(1.0, rel=0.01)


def test_demand_is_scaled_to_pods_that_were_not_read():
    arrivals = 1.5 * UPDATE_INTERVAL_S / WORK_S
    totals = {"covered_s": 2 * UPDATE_INTERVAL_S, "arrivals": arrivals, "first_tokens": 0.0}
    before = run([3.0] * 100)
    after = update(before, make_stats(3.0, replicas=4, busy=0.75, totals=totals))
    assert after.offered_load.demand[0] == pytest.approx(3.0, rel=0.01)
    assert after.budget.served[0] - before.budget.served[0] == pytest.approx(45.0, rel=0.1)


def test_demand_follows_when_answers_become_longer():
    state = run([3.0] * 100)
    for _ in range(60):  # as many requests, each with twice the work
        state = update(state, make_stats(6.0, totals={"arrivals": 45.0, "first_tokens": 45.0, "ttft_counted": 0.0}))
    assert state.offered_load.demand[0] == pytest.approx(6.0, rel=0.05)
