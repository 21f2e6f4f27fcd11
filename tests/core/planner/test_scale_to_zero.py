"""Scale to zero within the error budget: what wake-ups would have cost, and the idle timeout that this allows."""

import math
from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.observation import Observation
from autoscaler.core.observe import arrivals
from autoscaler.core.observe.arrivals import MOST_REQUESTS, Arrivals
from autoscaler.core.planner.scale_to_zero import (
    MIN_OBSERVED_S,
    TIMEOUTS_S,
    WAKE_UP_DELAY_S,
    WAKE_UP_SHARE,
    IdleTimeouts,
    compute_wake_up_share,
    update_idle_timeouts,
)
from autoscaler.core.readings.pod_deltas import MAX_INTERVAL_S
from tests.core.world import Story, fleet, spec, world

pytestmark = pytest.mark.slow

TICK_S, COLD_START_S, WAKE_S = 10.0, 60.0, 15.0
AUTO = {"idle_after_s": math.inf, "down_stabilization_s": 0.0}
ONE = fleet([1])


def observe(in_flight=0.0, ended=0.0, gateway=0.0, ready=1.0, next_ready_s=math.nan, draining=0.0, wakeable=0.0):
    """Return an observation of one workload."""
    known = {
        "next_ready_s": next_ready_s,
        "ready": ready,
        "running": in_flight if ready else np.nan,
        "waiting": 0.0 if ready else np.nan,
        "gateway_waiting": gateway,
        "ended": ended,
        "draining_requests": draining,
        "cold_start_s": COLD_START_S,
        "wakeable": wakeable,
        "wake_s": WAKE_S,
    }
    columns = {name: np.array([known.get(name, np.nan)]) for name in Observation.__dataclass_fields__}
    return Observation(**columns)


class Workload:
    """One workload with one replica, whose requests arrive and end within a tick."""

    def __init__(self, **policy):
        self.inp = world(0.0, fleet([1]), spec(**{**AUTO, **policy}))
        self.timeouts, self.arrivals, self.now_s = IdleTimeouts.blank(1), Arrivals.blank(1), 0.0

    def tick(self, arrived=0.0, tick_s=TICK_S, **columns):
        observation, no = observe(ended=arrived, **columns), np.zeros(1, dtype=bool)
        self.now_s += tick_s
        self.arrivals = arrivals.update(self.arrivals, observation, np.array([tick_s]), self.now_s, no, no)
        self.timeouts = update_idle_timeouts(self.inp, observation, self.arrivals, self.timeouts)
        return self.timeouts

    def serve(self, requests):
        """Let these requests arrive, one number per tick."""
        for arrived in requests:
            self.tick(arrived)
        return self.timeouts

    def serve_with_pauses(self, hours, pause_ticks=40, requests=5.0):
        """Serve an hour of load and then a pause, again and again."""
        for _ in range(hours):
            self.serve([requests] * 360)
            self.serve([0.0] * pause_ticks)

    @property
    def timeout_s(self):
        return float(self.timeouts.timeout_s[0])

    @property
    def late_arrivals(self):
        return float(self.timeouts.late_arrivals[0])

    @property
    def wake_up_share(self):
        return float(compute_wake_up_share(self.timeouts, self.inp.spec.attainment)[0])


def count_delayed(requests, timeout_s):
    """Count the delayed requests, the wake-ups and the unpaid seconds of one timeout, tick by tick."""
    quiet_s = waking_s = delayed = wake_ups = unpaid_s = 0.0
    for arrived in requests:
        waking_s = max(waking_s - TICK_S, 0.0)
        if arrived and quiet_s >= timeout_s:
            waking_s = COLD_START_S + WAKE_UP_DELAY_S
            wake_ups += 1
            unpaid_s = max(unpaid_s + COLD_START_S - (quiet_s - timeout_s), 0.0)
        if arrived and waking_s > 0:
            delayed += arrived
        quiet_s = 0.0 if arrived else quiet_s + TICK_S
    return delayed, wake_ups, unpaid_s


# --- selection
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 5)), max_size=12))
def test_delayed_requests_of_each_timeout_equal_a_plain_count(bursts):
    requests = [arrived for pause, burst in bursts for arrived in [0] * pause + [burst]]
    workload = Workload()
    workload.tick()  # nothing is known before the first tick
    workload.serve(requests)
    for row, timeout_s in enumerate(TIMEOUTS_S):
        delayed, wake_ups, unpaid_s = count_delayed([0, *requests], timeout_s)
        # Hardly anything fades within these hours.
        np.testing.assert_allclose(workload.timeouts.delayed[row, 0], delayed, rtol=0.05)
        np.testing.assert_allclose(workload.timeouts.wake_ups[row, 0], wake_ups, rtol=0.05)
        np.testing.assert_allclose(workload.timeouts.unpaid_s[row, 0], unpaid_s, rtol=0.05, atol=5.0)
    assert (np.diff(workload.timeouts.delayed[:, 0]) <= 1e-9).all()  # a longer timeout never delays more requests


def test_shortest_timeout_within_the_budget_is_selected():
    """Some 40 of 1,800 requests wait after each pause of 400 s, more than the budget allows for wake-ups."""
    workload = Workload()
    workload.serve_with_pauses(6)
    by_timeout = zip(TIMEOUTS_S, workload.timeouts.delayed[:, 0], strict=True)
    allowed = [timeout_s for timeout_s, delayed in by_timeout if delayed < 0.004 * 10_800]
    assert workload.timeout_s == allowed[0] == 420.0
    workload = Workload(attainment=0.9)
    workload.serve_with_pauses(6)
    assert workload.timeout_s == TIMEOUTS_S[0]


def nights_at_zero(per_s, nights, seed=1):
    """Let requests arrive at random by night after days of load; return how often zero was selected in vain, and hours.

    In vain: the next request came within a cold start. hours: at zero, of all nights.
    """
    random, workload, in_vain, at_zero_s = np.random.default_rng(seed), Workload(), 0, 0.0
    workload.tick()
    for _ in range(nights):
        workload.serve([5.0] * 180)
        since_s = math.nan
        for arrived in random.poisson(per_s * TICK_S, 4320).tolist():
            workload.tick(float(arrived))
            is_zero = workload.arrivals.quiet_s[0] >= workload.timeout_s
            if is_zero and math.isnan(since_s):
                since_s = workload.now_s
            if not is_zero and not math.isnan(since_s):
                at_zero_s += workload.now_s - since_s
                in_vain += workload.now_s - since_s < COLD_START_S
                since_s = math.nan
    return in_vain, at_zero_s / 3600


def test_nothing_goes_to_zero_for_less_than_a_cold_start():
    """A request every 16 s: ten gaps a night are longer than two minutes, and the next request comes soon."""
    in_vain, hours = nights_at_zero(1 / 24, nights=3)
    assert in_vain <= 2
    assert hours < 0.2


def test_pause_goes_to_zero_when_it_outlasts_the_debt():
    workload = Workload(attainment=0.9)
    workload.serve_with_pauses(3, pause_ticks=13)  # 10 s at zero each time, for a start of 60 s
    assert workload.timeouts.unpaid_s[0, 0] == pytest.approx(2 * 50.0, rel=0.05)
    assert workload.timeout_s != TIMEOUTS_S[0]
    workload.serve([1.0] * 360)
    selected = [(workload.tick().timeout_s[0], float(workload.arrivals.quiet_s[0])) for _ in range(60)]
    first_s = next(quiet_s for timeout_s, quiet_s in selected if timeout_s == TIMEOUTS_S[0])
    assert first_s == pytest.approx(TIMEOUTS_S[0] + workload.timeouts.unpaid_s[0, 0], abs=2 * TICK_S)
    workload.serve([1.0])
    assert workload.timeouts.unpaid_s[0, 0] == 0


def test_wake_up_share_is_within_its_part_of_the_budget():
    workload = Workload(attainment=0.9)
    workload.serve_with_pauses(8)
    assert 0.01 < workload.wake_up_share < WAKE_UP_SHARE * 0.1
    delayed, requests = workload.timeouts.delayed[0, 0], workload.timeouts.requests[0]
    assert workload.wake_up_share == pytest.approx(float(delayed / requests))


def test_wake_up_share_is_zero_without_a_timeout():
    assert compute_wake_up_share(IdleTimeouts.blank(3), np.full(3, 0.99)).tolist() == [0.0, 0.0, 0.0]


def test_wake_up_share_is_bounded_when_a_timeout_cost_more():
    blank = IdleTimeouts.blank(1)
    delayed = np.full_like(blank.delayed, 50.0)
    expensive = replace(blank, timeout_s=TIMEOUTS_S[:1], delayed=delayed, requests=np.array([100.0]))
    assert compute_wake_up_share(expensive, np.array([0.9])) == pytest.approx(WAKE_UP_SHARE * 0.1)


def test_no_timeout_is_selected_in_the_first_hour():
    workload = Workload(attainment=0.5)
    workload.serve([5.0] * int(MIN_OBSERVED_S / TICK_S - 20) + [0.0] * 18)
    assert math.isnan(workload.timeout_s)
    workload.serve([0.0] * 4)
    assert workload.timeout_s == TIMEOUTS_S[0]


def test_no_timeout_is_selected_without_a_gateway():
    workload = Workload(attainment=0.5)
    workload.serve([5.0] * 500 + [0.0] * 10)
    assert workload.timeout_s == TIMEOUTS_S[0]
    assert math.isnan(workload.tick(gateway=np.nan).timeout_s[0])
    assert math.isnan(workload.tick(5.0, gateway=np.nan).timeout_s[0])


@pytest.mark.parametrize("stated", [math.nan, 600.0])
def test_no_timeout_is_selected_when_the_policy_is_not_auto(stated):
    workload = Workload(attainment=0.9, idle_after_s=stated)
    workload.serve_with_pauses(6)
    assert math.isnan(workload.timeout_s)
    assert workload.wake_up_share == 0


def test_no_timeout_is_selected_before_the_first_request():
    workload = Workload()
    workload.serve([0.0] * 2_000)
    assert math.isnan(workload.timeout_s)


# --- which requests count


def test_gateway_requests_count_when_they_arrive_and_only_once():
    workload = Workload()
    workload.tick(ready=0.0)
    workload.tick(ready=0.0, gateway=3.0)
    assert workload.timeouts.requests[0] == pytest.approx(3.0, rel=1e-3)
    workload.tick(in_flight=3.0)
    workload.tick(arrived=3.0)  # they have ended
    assert workload.timeouts.requests[0] == pytest.approx(3.0, rel=1e-3)


def test_workload_is_not_quiet_while_leaving_pods_hold_requests():
    workload = Workload()
    workload.tick()
    workload.tick(in_flight=8.0)
    for _ in range(60):
        workload.tick(ready=0.0, draining=8.0)
    assert workload.arrivals.quiet_s[0] == 0
    assert workload.timeouts.requests[0] == pytest.approx(8, rel=0.01)  # they arrived once, while a pod served
    assert workload.timeouts.arrivals_at_zero[0] == 0
    workload.tick(ready=0.0)
    assert workload.arrivals.quiet_s[0] == TICK_S


def test_nothing_changes_while_arrivals_are_unknown():
    workload = Workload()
    workload.serve([1.0, 0.0, 0.0])
    before, quiet_s = workload.timeouts, workload.arrivals.quiet_s
    workload.tick(in_flight=np.nan)
    np.testing.assert_array_equal(workload.arrivals.quiet_s, quiet_s)
    np.testing.assert_array_equal(workload.timeouts.observed_s, before.observed_s)
    np.testing.assert_array_equal(workload.timeouts.delayed, before.delayed)


def test_long_gap_between_ticks_counts_for_two_minutes():
    workload = Workload()
    workload.tick()
    workload.tick(tick_s=3600.0)
    assert workload.arrivals.quiet_s[0] == TICK_S + MAX_INTERVAL_S
    assert workload.timeouts.observed_s[0] == pytest.approx(TICK_S + MAX_INTERVAL_S, rel=1e-3)


def test_broken_counter_is_ignored():
    workload = Workload()
    workload.serve([1.0, 0.0, 0.0])
    before, arrivals_before = workload.timeouts, workload.arrivals
    workload.tick(in_flight=2 * MOST_REQUESTS)
    for name in ("counted_in_flight", "quiet_s"):
        value, expected = getattr(workload.arrivals, name), getattr(arrivals_before, name)
        np.testing.assert_array_equal(value, expected, err_msg=name)
    for name in ("requests", "observed_s"):
        np.testing.assert_array_equal(getattr(workload.timeouts, name), getattr(before, name), err_msg=name)
    workload.tick(arrived=2 * MOST_REQUESTS)
    assert workload.timeouts.requests[0] == pytest.approx(before.requests[0], rel=1e-3)


@pytest.mark.parametrize(("ttft_s", "late"), [(30.0, 3.0), (90.0, 0.0)])
def test_arrivals_at_zero_are_late_when_the_start_is_long(ttft_s, late):
    workload = Workload(ttft_objective_s=ttft_s)
    workload.tick()
    workload.tick(ready=0.0, gateway=2.0)
    workload.tick(ready=0.0, gateway=3.0)
    workload.tick(in_flight=3.0)  # a replica serves them
    workload.tick(in_flight=9.0, arrived=3.0)  # and others arrive
    assert workload.late_arrivals == pytest.approx(late, rel=1e-3)
    assert workload.timeouts.arrivals_at_zero[0] == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize(("wakeable", "late"), [(1.0, 0.0), (0.0, 1.0)])
def test_arrivals_are_in_time_when_a_replica_can_wake(wakeable, late):
    workload = Workload(ttft_objective_s=20.0)
    workload.tick()
    workload.tick(1.0, ready=0.0, wakeable=wakeable)
    assert workload.late_arrivals == late


def test_wake_ups_of_sleeping_replicas_delay_fewer_requests():
    cold, asleep = Workload(), Workload(sleep_replicas=1.0)
    for workload in (cold, asleep):
        workload.serve_with_pauses(3)
    assert (asleep.timeouts.delayed < cold.timeouts.delayed).any()
    assert (asleep.timeouts.delayed <= cold.timeouts.delayed).all()


def test_arrivals_are_in_time_when_a_replica_is_about_to_serve():
    workload = Workload(ttft_objective_s=30.0)
    workload.tick()
    for next_ready_s in (45.0, 35.0, 25.0, 15.0):
        workload.tick(ready=0.0, gateway=60.0 - next_ready_s, next_ready_s=next_ready_s)
    assert workload.late_arrivals == pytest.approx(25.0, rel=1e-3)  # those of the last half minute are in time


@pytest.mark.parametrize(("max_wait_s", "late"), [(2.0, 1.0), (90.0, 0.0), (math.nan, 0.0)])
def test_maximum_wait_stands_in_for_a_missing_ttft_objective(max_wait_s, late):
    workload = Workload(ttft_objective_s=math.nan, max_wait_s=max_wait_s)
    workload.tick()
    workload.tick(ready=0.0, gateway=1.0)
    assert workload.late_arrivals == late


def test_recent_rate_assumes_one_request_of_an_unknown_workload():
    cold_start_s = np.full(1, 60.0)
    quiet, busy, unknown = Workload(), Workload(), Workload()
    quiet.serve([0.0] * 60)
    busy.serve([1.0] * 60)
    rates = [float(arrivals.recent_per_s(each.arrivals, cold_start_s)[0]) for each in (quiet, unknown, busy)]
    assert rates == sorted(rates)
    assert rates[1] == pytest.approx(1 / 60)


# --- in whole ticks


def serve_sparsely(story, hours, cluster=ONE):
    """Serve a request every 20 s, each of which ends within a tick; return their number."""
    served = 0.0
    for _ in range(int(hours * 180)):
        served += 1
        story.tick(cluster, 20.0, finished=served, first_tokens=served, generation_tokens=served, gateway_waiting=0.0)
    return served


@cache
def two_hours_of_three():
    """Three workloads that served sparsely; the second has no budget. Also return their requests."""
    story = Story(spec(3, **AUTO, attainment=np.array([0.9, 0.9999, 0.9])))
    return story, serve_sparsely(story, 2, fleet([1, 1, 1]))


def rest(story, served, minutes, cluster=ONE, **gateway):
    """Return the last decision of a time without requests."""
    counters = dict.fromkeys(("finished", "first_tokens", "generation_tokens"), served)
    for _ in range(minutes * 3):
        decision = story.tick(cluster, 20.0, **counters, **gateway)
    return decision


def test_workload_goes_to_zero_when_budget_and_gateway_allow_it():
    """The first of three; the second has no budget, and the gateway of the third ends to tell."""
    (story, served), three, told = deepcopy(two_hours_of_three()), fleet([1, 1, 1]), np.array([0.0, 0.0, math.nan])
    assert rest(story, served, 1, three, gateway_waiting=told).replicas.tolist() == [1, 1, 1]
    decision = rest(story, served, 3, three, gateway_waiting=told)
    assert decision.replicas.tolist() == [0, 1, 1]
    assert decision.idle_after_s[0] == TIMEOUTS_S[0]
    decision = rest(story, served, 56, three, gateway_waiting=told)
    assert decision.replicas[1:].tolist() == [1, 1]
    assert np.isnan(decision.idle_after_s[1:]).all()


def test_workload_stays_when_only_leaving_pods_hold_requests():
    """A node is drained: the pod still generates three answers, and its successor has no work yet."""
    (story, _), is_leaving = deepcopy(two_hours_of_three()), np.array([True, False, False, False])
    leaving = fleet([2, 1, 1], replicas=[1, 1, 1], pod_terminating=is_leaving)
    for number in range(30):
        answers, tokens = 3.0 * is_leaving, 1e4 + 500.0 * number * is_leaving
        decision = story.tick(
            leaving, 20.0, running=answers, generation_tokens=tokens, gaps=tokens, gateway_waiting=0.0
        )
        assert decision.observation.draining_requests[0] == 3
    assert decision.replicas[0] == 1
    assert story.memory.workloads.observe.arrivals.quiet_s[0] == 0


def test_pod_that_reports_again_adds_no_requests():
    """Four pods hold ten requests each, and none arrives. One of them is silent every other half minute."""
    story, four = Story(spec(**AUTO)), fleet([4])
    for number in range(120):
        time_s = np.full(4, story.now_s + 5)
        time_s[3] = np.nan if number % 12 >= 6 else time_s[3]
        running = np.where(np.isnan(time_s), np.nan, 10.0)
        story.tick(four, 5, running=running, time_s=time_s, gateway_waiting=0.0, gateway_arrivals_per_s=0.0)
    timeouts = story.memory.planner.idle_timeouts
    assert timeouts.requests[0] == 0
    assert 250 < timeouts.observed_s[0] < 350  # of 600 s, the time in which all pods reported


def test_gateway_that_reports_again_adds_no_requests():
    """It holds 40 requests all the time, and reports for two minutes of every four."""
    story, two = Story(spec(**AUTO)), fleet([2])
    for number in range(240):
        gateway = {"gateway_waiting": 40.0} if number // 24 % 2 == 0 else {}
        story.tick(two, 5, running=3.0, **gateway)
    assert story.memory.planner.idle_timeouts.requests[0] == 0


def test_workload_is_not_quiet_while_its_gateway_is_silent():
    story, none = Story(spec(**AUTO, min_replicas=0.0)), fleet([0], replicas=[0])

    def watch_s():
        timeouts, counted = story.memory.planner.idle_timeouts, story.memory.workloads.observe.arrivals
        return timeouts.observed_s[0], counted.quiet_s[0]

    story.watch(none, 300, gateway_waiting=0.0, gateway_arrivals_per_s=0.0)
    observed_s, quiet_s = watch_s()
    story.watch(none, 600)
    silent_observed_s, silent_quiet_s = watch_s()
    max_input_age_s = float(story.spec.max_input_age_s[0])
    assert silent_observed_s - observed_s <= silent_quiet_s - quiet_s <= max_input_age_s < 600
    story.watch(none, 300, gateway_waiting=0.0, gateway_arrivals_per_s=0.0)
    assert watch_s()[1] - silent_quiet_s >= 290
