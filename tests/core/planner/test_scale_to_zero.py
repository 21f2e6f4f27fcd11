"""Zero within the error budget: what wake-ups would have cost on paper, and the rest that this allows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model.types import Observation
from autoscaler.core.observe import arrivals
from autoscaler.core.observe.arrivals import MOST_REQUESTS, Arrivals
from autoscaler.core.observe.rates import LONGEST_STEP_S
from autoscaler.core.planner import scale_to_zero
from autoscaler.core.planner.scale_to_zero import LATE_S, RESTS_S, SHARE, YOUNG_S, Zero
from tests.core.world import Story, fleet, spec, world

STEP_S, COLD_START_S = 10.0, 60.0
BUDGETED = {"idle_after_s": math.inf, "down_stabilization_s": 0.0}


def seen(in_flight=0.0, ended=0.0, gateway=0.0, ready=1.0, next_ready_s=math.nan, draining=0.0):
    known = {
        "next_ready_s": next_ready_s,
        "ready": ready,
        "running": in_flight if ready else np.nan,
        "waiting": 0.0 if ready else np.nan,
        "gateway_waiting": gateway,
        "ended": ended,
        "draining_requests": draining,
        "cold_start_s": COLD_START_S,
    }
    columns = {name: np.array([known.get(name, np.nan)]) for name in Observation.__dataclass_fields__}
    return Observation(**columns)


class Life:
    """One workload with one replica on paper; requests come and end within a step."""

    def __init__(self, **rules):
        self.inp = world(0.0, fleet([1]), spec(**{**BUDGETED, **rules}))
        self.zero, self.arrivals, self.now_s = Zero.blank(1), Arrivals.blank(1), 0.0

    def step(self, came=0.0, step_s=STEP_S, **what):
        found, no, self.now_s = seen(ended=came, **what), np.zeros(1, dtype=bool), self.now_s + step_s
        self.arrivals = arrivals.update(self.arrivals, found, np.array([step_s]), self.now_s, no, no)
        self.zero = scale_to_zero.update(self.inp, found, self.arrivals, self.zero)
        return self.zero

    def live(self, requests):
        for came in requests:
            self.step(came)
        return self.zero

    @property
    def rest_s(self):
        return float(self.zero.rest_s[0])


def plain_waited(arrivals, rest_s):
    """Count, for one rest, who would have waited and how often somebody woke it: one moment after the other."""
    quiet_s = waking_s = waited = wakes = 0.0
    for came in arrivals:
        waking_s = max(waking_s - STEP_S, 0.0)
        if came and quiet_s >= rest_s:
            waking_s = COLD_START_S + LATE_S
            wakes += 1
        if came and waking_s > 0:
            waited += came
        quiet_s = 0.0 if came else quiet_s + STEP_S
    return waited, wakes


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 5)), max_size=12))
def test_who_would_have_waited_is_counted_for_each_rest_as_if_it_had_been_in_force(bursts):
    arrivals = [came for pause, came in bursts for came in [0] * pause + [came]]
    life = Life()
    life.step()  # the first one has nothing before it
    life.live(arrivals)
    for place, rest_s in enumerate(RESTS_S):
        waited, wakes = plain_waited([0, *arrivals], rest_s)
        # Within these hours hardly anything fades.
        np.testing.assert_allclose(life.zero.waited[place, 0], waited, rtol=0.05)
        np.testing.assert_allclose(life.zero.wakes[place, 0], wakes, rtol=0.05)
    assert (np.diff(life.zero.waited[:, 0]) <= 1e-9).all()  # a longer rest never makes more wait


def busy_then_quiet(life, hours, quiet_steps=40, each=5.0):
    """An hour of plenty and a pause, again and again."""
    for _ in range(hours):
        life.live([each] * 360)
        life.live([0.0] * quiet_steps)


@pytest.mark.slow
def test_the_shortest_rest_whose_misses_the_budget_bears_is_in_force():
    life = Life()
    busy_then_quiet(life, 6)
    # Each pause of 400 s ends with some 40 requests that wait, of 1,800: more than the budget's part for wake-ups.
    bears = [rest for rest, waited in zip(RESTS_S, life.zero.waited[:, 0], strict=True) if waited < 0.004 * 10_800]
    assert life.rest_s == bears[0] == 420.0
    life = Life(attainment=0.9)
    busy_then_quiet(life, 6)
    assert life.rest_s == RESTS_S[0]


@pytest.mark.slow
def test_what_wake_ups_cost_is_known_and_within_their_part_of_the_budget():
    life = Life(attainment=0.9)
    busy_then_quiet(life, 8)
    spent = float(scale_to_zero.spent(life.zero, life.inp.spec.attainment)[0])
    assert 0.01 < spent < SHARE * 0.1
    assert spent == pytest.approx(float(life.zero.waited[0, 0] / life.zero.requests[0]))


def test_nothing_is_spent_where_no_rest_is_in_force():
    assert scale_to_zero.spent(Zero.blank(3), np.full(3, 0.99)).tolist() == [0.0, 0.0, 0.0]


def test_the_young_do_not_go_to_zero():
    life = Life(attainment=0.5)
    life.live([5.0] * int(YOUNG_S / STEP_S - 20) + [0.0] * 18)
    assert math.isnan(life.rest_s)
    life.live([0.0] * 4)
    assert life.rest_s == RESTS_S[0]


def test_without_a_gateway_that_holds_requests_nothing_goes_to_zero():
    life = Life(attainment=0.5)
    life.live([5.0] * 500 + [0.0] * 10)
    assert life.rest_s == RESTS_S[0]
    assert math.isnan(life.step(gateway=np.nan).rest_s[0])
    assert math.isnan(life.step(5.0, gateway=np.nan).rest_s[0])


@pytest.mark.slow
@pytest.mark.parametrize("stated", [math.nan, 600.0])
def test_a_policy_that_leaves_nothing_open_spends_none_of_the_budget_on_wake_ups(stated):
    life = Life(attainment=0.9, idle_after_s=stated)
    busy_then_quiet(life, 6)
    assert math.isnan(life.rest_s)
    assert scale_to_zero.spent(life.zero, life.inp.spec.attainment)[0] == 0


@pytest.mark.slow
def test_who_has_had_no_request_yet_is_kept_for_the_first():
    life = Life()
    life.live([0.0] * 10_000)
    assert math.isnan(life.rest_s)


def test_requests_at_the_gateway_count_when_they_come_and_not_again_when_they_are_served():
    life = Life()
    life.step(ready=0.0)
    life.step(ready=0.0, gateway=3.0)
    assert life.zero.requests[0] == pytest.approx(3.0, rel=1e-3)
    life.step(in_flight=3.0)
    life.step(came=3.0)  # and those who came have ended
    assert life.zero.requests[0] == pytest.approx(3.0, rel=1e-3)


def test_requests_on_leaving_pods_keep_a_workload_from_being_quiet():
    life = Life()
    life.step()
    life.step(in_flight=8.0)
    for _ in range(60):
        life.step(ready=0.0, draining=8.0)
    assert life.arrivals.quiet_s[0] == 0
    assert life.zero.requests[0] == pytest.approx(8, rel=0.01)  # they came once, while a pod served
    assert life.zero.knocked[0] == 0
    life.step(ready=0.0)
    assert life.arrivals.quiet_s[0] == STEP_S


@pytest.mark.slow
def test_a_workload_stays_when_only_leaving_pods_hold_requests():
    """A node is drained: the pod still writes three answers, its successor is not needed yet."""
    leaving = fleet([2], replicas=[1], pod_terminating=np.array([True, False]))
    story, answers = Story(spec(**BUDGETED, attainment=0.9)), np.array([3.0, 0.0])
    sparse(story, 2)
    for step in range(30):
        tokens = 1e4 + np.array([500.0 * step, 0.0])
        decision = story.tick(
            leaving, 20.0, running=answers, generation_tokens=tokens, gaps=tokens, gateway_waiting=0.0
        )
        assert decision.observation.draining_requests[0] == 3
    assert decision.replicas[0] == 1
    assert story.memory.workloads.observe.arrivals.quiet_s[0] == 0


def test_while_nobody_is_heard_nothing_moves():
    life = Life()
    life.live([1.0, 0.0, 0.0])
    before, quiet_s = life.zero, life.arrivals.quiet_s
    life.step(in_flight=np.nan)
    np.testing.assert_array_equal(life.arrivals.quiet_s, quiet_s)
    np.testing.assert_array_equal(life.zero.counted_s, before.counted_s)
    np.testing.assert_array_equal(life.zero.waited, before.waited)


def test_of_a_long_pause_between_two_ticks_no_more_counts_than_its_beginning():
    life = Life()
    life.step()
    life.step(step_s=3600.0)
    assert life.arrivals.quiet_s[0] == STEP_S + LONGEST_STEP_S
    assert life.zero.counted_s[0] == pytest.approx(STEP_S + LONGEST_STEP_S, rel=1e-3)


def test_a_broken_counter_is_not_believed():
    life = Life()
    life.live([1.0, 0.0, 0.0])
    before, arrived = life.zero, life.arrivals
    life.step(in_flight=2 * MOST_REQUESTS)
    for name in ("counted_in_flight", "quiet_s"):
        np.testing.assert_array_equal(getattr(life.arrivals, name), getattr(arrived, name), err_msg=name)
    for name in ("requests", "counted_s"):
        np.testing.assert_array_equal(getattr(life.zero, name), getattr(before, name), err_msg=name)
    life.step(came=2 * MOST_REQUESTS)
    assert life.zero.requests[0] == pytest.approx(before.requests[0], rel=1e-3)


def test_a_rest_that_cost_more_than_its_part_of_the_budget_leaves_the_rest_of_it():
    waited = np.full_like(Zero.blank(1).waited, 50.0)
    dear = replace(Zero.blank(1), rest_s=RESTS_S[:1], waited=waited, requests=np.array([100.0]))
    assert scale_to_zero.spent(dear, np.array([0.9])) == pytest.approx(SHARE * 0.1)


def late(life):
    return float(life.zero.late[0])


def test_who_waits_for_a_cold_start_and_may_not_wait_so_long_is_late():
    for ttft_s, missed in ((30.0, 3.0), (90.0, 0.0)):
        life = Life(ttft_objective_s=ttft_s)
        life.step()
        life.step(ready=0.0, gateway=2.0)
        life.step(ready=0.0, gateway=3.0)
        life.step(in_flight=3.0)  # they are served
        life.step(in_flight=9.0, came=3.0)  # and others come
        assert late(life) == pytest.approx(missed, rel=1e-3)
        assert life.zero.knocked[0] == pytest.approx(3.0, rel=1e-3)


def test_who_comes_while_the_first_replica_is_about_to_serve_is_in_time():
    life = Life(ttft_objective_s=30.0)
    life.step()
    for next_ready_s in (45.0, 35.0, 25.0, 15.0):
        gateway = 60.0 - next_ready_s
        life.step(ready=0.0, gateway=gateway, next_ready_s=next_ready_s)
    assert late(life) == pytest.approx(25.0, rel=1e-3)  # who came in the last half minute is not


def test_the_objective_of_who_states_none_is_how_long_requests_may_wait():
    for max_wait_s, missed in ((2.0, 1.0), (90.0, 0.0), (math.nan, 0.0)):
        life = Life(ttft_objective_s=math.nan, max_wait_s=max_wait_s)
        life.step()
        life.step(ready=0.0, gateway=1.0)
        assert late(life) == missed


def test_who_comes_oftener_presses_more_and_the_unknown_is_given_one_request():
    cold_start_s = np.full(1, 60.0)
    quiet, loud, blank = Life(), Life(), Life()
    quiet.live([0.0] * 60)
    loud.live([1.0] * 60)
    presses = [float(arrivals.recent_per_s(life.arrivals, cold_start_s)[0]) for life in (quiet, blank, loud)]
    assert presses == sorted(presses)
    assert presses[1] == pytest.approx(1 / 60)


# In the tick.


def sparse(story, hours):
    """A request every 20 s for some hours, each over within a tick."""
    served = 0.0
    for _ in range(int(hours * 180)):
        served += 1
        story.tick(
            fleet([1]), 20.0, finished=served, first_tokens=served, generation_tokens=served, gateway_waiting=0.0
        )
    return served


def rested(story, served, minutes, **front):
    for _ in range(minutes * 3):
        decision = story.tick(fleet([1]), 20.0, finished=served, first_tokens=served, generation_tokens=served, **front)
    return decision


@pytest.mark.slow
def test_a_workload_goes_to_zero_as_its_budget_bears_it():
    story = Story(spec(**BUDGETED, attainment=0.9))
    served = sparse(story, 2)
    assert rested(story, served, 1, gateway_waiting=0.0).replicas[0] == 1
    decision = rested(story, served, 3, gateway_waiting=0.0)
    assert decision.replicas[0] == 0
    assert decision.idle_after_s[0] == RESTS_S[0]


@pytest.mark.slow
def test_it_stays_where_the_budget_does_not_bear_it_or_nobody_would_hold_requests():
    for attainment, front in ((0.9999, {"gateway_waiting": 0.0}), (0.9, {})):
        story = Story(spec(**BUDGETED, attainment=attainment))
        served = sparse(story, 2)
        decision = rested(story, served, 60, **front)
        assert decision.replicas[0] == 1
        assert math.isnan(decision.idle_after_s[0])


def test_a_pod_that_is_read_again_brings_no_requests():
    """Four pods with ten requests each and no arrivals; every other half minute one of them is not heard."""
    story, four = Story(spec(**BUDGETED)), fleet([4])
    for step in range(120):
        time_s = np.full(4, story.now_s + 5)
        time_s[3] = np.nan if step % 12 >= 6 else time_s[3]
        running = np.where(np.isnan(time_s), np.nan, 10.0)
        story.tick(four, 5, running=running, time_s=time_s, gateway_waiting=0.0, gateway_arrivals_per_s=0.0)
    followed = story.memory.planner.zero
    assert followed.requests[0] == 0
    assert 250 < followed.counted_s[0] < 350  # of six hundred: while all were heard


@pytest.mark.slow
def test_a_gateway_that_is_heard_again_brings_no_requests():
    """It holds forty all the time, and is heard for two minutes of every four."""
    story, two = Story(spec(**BUDGETED)), fleet([2])
    for step in range(240):
        heard = {"gateway_waiting": 40.0} if step // 24 % 2 == 0 else {}
        story.tick(two, 5, running=3.0, **heard)
    assert story.memory.planner.zero.requests[0] == 0


@pytest.mark.slow
def test_while_a_gateway_is_silent_nobody_knows_whether_it_is_quiet():
    story, none = Story(spec(**BUDGETED, min_replicas=0.0)), fleet([0], replicas=[0])
    story.watch(none, 300, gateway_waiting=0.0, gateway_arrivals_per_s=0.0)
    before, quiet_s = story.memory.planner.zero, story.memory.workloads.observe.arrivals.quiet_s[0]
    story.watch(none, 600)
    after, longer_s = story.memory.planner.zero, story.memory.workloads.observe.arrivals.quiet_s[0]
    silent_s = float(story.spec.max_input_age_s[0])
    assert after.counted_s[0] - before.counted_s[0] <= longer_s - quiet_s <= silent_s < 600
    story.watch(none, 300, gateway_waiting=0.0, gateway_arrivals_per_s=0.0)
    assert story.memory.workloads.observe.arrivals.quiet_s[0] - longer_s >= 290
