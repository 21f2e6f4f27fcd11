"""What comes, in replicas that it keeps busy."""

import pytest

from autoscaler.core.planner.strategies import EVERY_S
from tests.core.shown import WORK_S, judged, live, seen


def test_demand_is_arrivals_times_the_work_of_a_request():
    assert live([3.0] * 100).traffic.demand[0] == pytest.approx(3.0, rel=0.01)


def test_two_estimates_are_averaged_arrivals_times_work_and_how_busy_replicas_are():
    """Arrivals say 2 replicas, gaps say 3 of 4: 2.5."""
    known, quiet = live([3.0] * 100), {"began": 0.0, "queue_grown": 0.0}
    both = judged(known, seen(3.0, replicas=4, busy=0.75, tally={**quiet, "arrived": 2 * EVERY_S / WORK_S}))
    assert both.traffic.demand[0] == pytest.approx(2.5, rel=0.01)


def test_a_queue_that_grows_is_demand_and_a_batch_that_grows_as_far_as_replicas_are_full():
    known = live([3.0] * 100)
    arrived = 3 * EVERY_S / WORK_S
    queue = judged(known, seen(3.0, replicas=4, busy=0.75, tally={"began": 0.0, "queue_grown": 30.0}))
    assert queue.traffic.demand[0] == pytest.approx((3 + 3 + 30 * WORK_S / EVERY_S) / 2, rel=0.01)
    batch = {"began": 0.0, "queue_grown": 0.0, "batch_grown": 16.0, "arrived": arrived}
    full = judged(known, seen(3.0, replicas=4, busy=0.75, tally=batch))
    assert full.traffic.demand[0] == pytest.approx((3 + 3 + 0.75**2 * 16 * WORK_S / EVERY_S) / 2, rel=0.01)


def test_a_queue_that_is_worked_off_is_no_demand():
    known = live([3.0] * 100)
    drained = {"began": 60.0, "arrived": 15.0, "queue_grown": -45.0}
    after = judged(known, seen(1.0, replicas=4, busy=0.95, tally=drained))
    assert after.traffic.demand[0] == pytest.approx(1.0, abs=0.15)


def test_with_too_few_gaps_arrivals_alone_speak():
    after = judged(live([3.0] * 100), seen(1.0, tally={"gaps": 5.0, "gap_s": 0.2, "began": 0.0}))
    assert after.traffic.demand[0] == pytest.approx(1.0, rel=0.01)


def test_pods_that_were_counted_speak_for_those_that_were_not():
    half = {"covered_s": 2 * EVERY_S, "arrived": 1.5 * EVERY_S / WORK_S, "began": 0.0}
    after = judged(live([3.0] * 100), seen(3.0, replicas=4, busy=0.75, tally=half))
    assert after.traffic.demand[0] == pytest.approx(3.0, rel=0.01)
    assert after.budget.served[0] - live([3.0] * 100).budget.served[0] == pytest.approx(45.0, rel=0.1)


def test_demand_follows_answers_that_become_longer():
    longer = live([3.0] * 100)
    for _ in range(60):  # as many requests, each twice the work
        longer = judged(longer, seen(6.0, tally={"arrived": 45.0, "began": 45.0, "ttft_judged": 0.0}))
    assert longer.traffic.demand[0] == pytest.approx(6.0, rel=0.05)
