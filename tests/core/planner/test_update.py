"""When rules are judged, on what, and what they ask for in a whole tick."""

import math
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model.types import Plan, Signal
from autoscaler.core.observe.workloads import observe
from autoscaler.core.planner import scale_to_zero
from autoscaler.core.planner import update as forecast
from autoscaler.core.planner.groups import GROUPS
from autoscaler.core.planner.scale_to_zero import RESTS_S
from autoscaler.core.planner.strategies import BY_MARGIN, COUNTS, EVERY_S
from autoscaler.core.tick import tick
from tests.core.serving import IDLE_GAP_S, LEARNED, WORK_S, Serving
from tests.core.world import fleet, spec, world

NAN = math.nan


class Unjudged(Serving):
    """Engines of which nobody knows how many requests met their objective."""

    def counted(self, *args, **how):
        return super().counted(*args, **how) | {"ttft_met": NAN}


def learned(rules, cluster, demand, story=Serving, **how):
    """The last decision after the engines were seen almost idle, and then busy for half an hour."""
    told = story(rules)
    told.serve(cluster, np.minimum(demand, 0.1), 600.0, 15.0, **how)
    return told.serve(cluster, demand, 1800.0, 15.0, **how)


def of(plan, row=0):
    return {field.name: float(getattr(plan, field.name)[row]) for field in fields(Plan)}


# --- when


def test_each_group_of_workloads_is_judged_once_in_so_many_seconds_and_they_take_turns():
    story, cluster = Serving(spec(GROUPS, **LEARNED)), fleet([2] * GROUPS)
    story.serve(cluster, 1.0, 60.0)
    at = []
    for _ in range(24):
        before = story.memory.planner.rules
        story.serve(cluster, 1.0, 5.0)
        now = story.memory.planner.rules
        at += [(story.now_s, group) for group, rules in enumerate(now) if rules is not before[group]]
    assert len(at) == len({now_s for now_s, _ in at}) == 24  # one group a tick
    for group in range(GROUPS):
        assert set(np.diff([now_s for now_s, judged in at if judged == group])) == {EVERY_S}


@pytest.mark.parametrize("every_s", [30.0, 45.0, 100.0])
def test_slow_ticks_judge_everybody_every_time(every_s):
    story, cluster = Serving(spec(GROUPS, **LEARNED)), fleet([2] * GROUPS)
    for _ in range(6):
        story.serve(cluster, 1.0, every_s, every_s)
        assert {float(rules.last_judged_s[0]) for rules in story.memory.planner.rules} == {story.now_s}


def test_a_group_that_is_due_waits_for_the_next_reading_and_no_longer_than_counters_are_compared():
    """Read at 1005 and 1035 s, and then no more. The turns are at 1020, 1050, 1080 s and so on."""
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    shown = story.counted(cluster, 1.0, 15.0) | {"time_s": 1005.0}
    judged_s = set()
    while story.now_s < 1300:
        if story.now_s + 5 == 1035:
            shown = story.counted(cluster, 1.0, 30.0) | {"time_s": 1035.0}
        story.tick(cluster, 5.0, **shown)
        judged_s.add(float(story.memory.planner.rules[0].last_judged_s[0]))
    assert sorted(judged_s) == [1005.0, 1035.0, 1155.0, 1275.0]


def scraped_every(seconds, neighbour):
    """Whether the forecast spoke, by tick, of a workload that is scraped so often; a neighbour, every 5 s."""
    story = Serving(spec(1 + neighbour, max_input_age_s=120.0, **LEARNED))
    cluster = replace(fleet([4] * (1 + neighbour)), workload_id=np.array([0, GROUPS][: 1 + neighbour]))
    own, read, spoke = cluster.pod_workload == 0, {}, []
    for number in range(480):
        now = story.counted(cluster, 1.0, 5.0) | {"time_s": story.now_s + 5.0}
        now = {name: np.broadcast_to(column, len(own)).astype(float) for name, column in now.items()}
        read = now if number % (seconds // 5) == 0 else {name: np.where(own, read[name], now[name]) for name in now}
        decision = story.tick(cluster, 5.0, **read)
        spoke.append(not np.isnan(decision.recommendations[Signal.PLANNER, 0]))
    return spoke, decision.plan.observed_s[0]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [45, 60])
def test_how_often_a_neighbour_is_scraped_changes_nothing(seconds):
    (alone, alone_s), (beside, beside_s) = (scraped_every(seconds, neighbour) for neighbour in (False, True))
    assert all(alone[60:])
    assert all(beside[60:])
    assert beside_s == alone_s


@pytest.mark.slow
def test_a_hole_in_the_readings_does_not_silence_the_forecast_where_counters_still_say_what_came():
    story, cluster = Serving(spec(max_input_age_s=120.0, **LEARNED)), fleet([2])
    story.learn(cluster)
    before = story.serve(cluster, 1.2, 1200.0, 15.0).plan
    unread = story.counted(cluster, 1.2, 0.0) | {"time_s": story.now_s}
    for _ in range(16):
        assert not np.isnan(story.tick(cluster, 5.0, **unread).recommendations[Signal.PLANNER, 0])
    story.tick(cluster, 5.0, **story.counted(cluster, 1.2, 85.0))
    after = story.serve(cluster, 1.2, 30.0).plan
    assert after.observed_s[0] - before.observed_s[0] >= 85.0
    assert after.demand[0] == pytest.approx(before.demand[0], rel=0.05)


def test_between_two_judgements_the_forecast_stands():
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    story.serve(cluster, 1.0, 600.0)
    plans = {id(story.memory.planner.plan)}
    for _ in range(5):
        decision = story.serve(cluster, 1.0, 5.0)
        plans.add(id(decision.plan))
        assert decision.plan is story.memory.planner.plan
    assert len(plans) <= 2


@pytest.mark.slow
def test_a_workload_that_joins_a_group_changes_nothing_for_those_in_it():
    alone, joined = Serving(spec(**LEARNED)), Serving(spec(**LEARNED))
    one = fleet([2])
    two = replace(fleet([2, 3]), workload_id=np.array([0, GROUPS]))
    alone.serve(one, 1.2, 600.0)
    joined.serve(one, 1.2, 600.0)
    expected = alone.serve(one, 1.2, 600.0)
    joined.spec = spec(2, **LEARNED)
    joined.serve(two, np.array([1.2, 0.1]), 300.0)
    decision = joined.serve(two, np.array([1.2, 2.0]), 300.0)
    assert of(decision.plan) == pytest.approx(of(expected.plan), nan_ok=True)
    assert of(decision.plan, 1)["demand"] == pytest.approx(2.0, rel=0.05)


@pytest.mark.slow
def test_a_new_queue_of_a_neighbour_teaches_nothing_of_a_workload():
    """Both are of one group. The first has a queue and unknown slots, so each tick looks at it."""
    memories = []
    for rows in (1, 2):
        story, cluster = Serving(spec(rows, **LEARNED, max_wait_s=2.0)), fleet([2] * rows)
        cluster = replace(cluster, workload_id=np.array([0, GROUPS][:rows]))
        story.serve(cluster, 1.0, 600.0)
        for number in range(12):
            counted, own = story.counted(cluster, 1.9, 5.0), cluster.pod_workload == 0
            waits = own | (number >= 7)
            counted |= {"waiting": np.where(waits, 9.0, 0.0), "running": np.where(own & (number == 7), 12.0, 4.0)}
            story.tick(cluster, 5.0, **counted)
        memories.append(story.memory)
    alone, beside = (memory.planner.all_rules().take(np.array([0])) for memory in memories)
    for place, column in alone.columns().items():
        np.testing.assert_array_equal(beside.columns()[place], column, err_msg=place)


# --- what


@pytest.mark.slow
def test_the_forecast_says_what_was_found():
    told = of(learned(spec(**LEARNED), fleet([4]), 2.0, late=0.002).plan)
    assert told["idle_gap_s"] == pytest.approx(IDLE_GAP_S, rel=0.05)
    assert told["demand"] == pytest.approx(2.0, rel=0.05)
    assert told["work_s"] == pytest.approx(WORK_S, rel=0.05)
    assert told["missed_fraction"] == pytest.approx(0.002, rel=0.05)
    assert 0 < told["allowed_fraction"] < 0.02
    assert 0 < told["shadow_missed_fraction"] < 0.2  # no rule saw it rise so suddenly
    assert 1800 < told["observed_s"] < 2400 - EVERY_S  # of 2400 s, without those before its speed was known


@pytest.mark.slow
def test_what_a_rule_would_have_missed_is_told_as_it_is_weighed():
    story, cluster = Serving(spec(**LEARNED)), fleet([4])
    story.learn(cluster)
    told = story.serve(cluster, 3.7, 1800.0).plan
    rules = story.memory.planner.all_rules()
    on_paper = rules.paper.missed[int(rules.rule[0]), 0] / rules.paper.arrived[0]
    assert told.paper_missed[0] == pytest.approx(on_paper, rel=1e-5)


@pytest.mark.slow
def test_before_the_speed_is_known_other_signals_ask_and_then_the_forecast_alone():
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    early = story.serve(cluster, 1.0, EVERY_S)
    assert np.isnan(early.recommendations[Signal.PLANNER, 0])
    assert early.recommendations[Signal.CONCURRENCY, 0] > 0
    late = story.serve(cluster, 1.0, 900.0)
    assert late.recommendations[Signal.PLANNER, 0] == late.plan.replicas[0] >= 1
    assert np.isnan(late.recommendations[Signal.CONCURRENCY, 0])


@pytest.mark.slow
def test_without_a_promise_no_rule_speaks_and_a_tolerated_wait_is_one():
    silent = learned(spec(**LEARNED, ttft_objective_s=NAN, max_wait_s=NAN), fleet([2]), 1.0)
    assert np.isnan(silent.plan.replicas[0])
    assert np.isnan(silent.recommendations[Signal.PLANNER, 0])
    assert silent.plan.demand[0] > 0
    patient = learned(spec(**LEARNED, ttft_objective_s=NAN, max_wait_s=5.0), fleet([2]), 1.0)
    assert patient.recommendations[Signal.PLANNER, 0] >= 1


@pytest.mark.slow
def test_without_a_policy_nothing_is_said():
    decision = learned(spec(**dict.fromkeys(vars(spec()), NAN)), fleet([2]), 1.0)
    assert np.isnan(decision.recommendations[:, 0]).all()
    assert decision.replicas[0] == 2


@pytest.mark.slow
def test_floor_and_ceiling_of_the_policy_hold():
    assert learned(spec(**LEARNED, min_replicas=3.0), fleet([4]), 0.2).plan.replicas[0] == 3
    assert learned(spec(**LEARNED, max_replicas=2.0), fleet([2]), 1.8).plan.replicas[0] == 2


def judged(inp, memory):
    """The planner after one more look at the world."""
    tables = memory.workloads
    observed, *_ = observe(inp, tables.last_tick_s, tables.observe, memory.pods)
    return forecast.update(inp, observed, memory.planner)


@pytest.mark.slow
def test_what_wake_ups_cost_of_the_error_budget_is_not_for_the_rules_to_spend():
    rules, cluster = spec(**LEARNED, idle_after_s=math.inf, attainment=0.9), fleet([2])
    plain, woken = Serving(rules), Serving(rules)
    for story in (plain, woken):
        story.serve(cluster, 1.0, 900.0, 15.0)
    lived = woken.memory.planner
    often = replace(
        lived.zero,
        rest_s=np.array([RESTS_S[0]]),
        waited=np.broadcast_to(0.04 * lived.zero.requests, lived.zero.waited.shape).copy(),
    )
    woken.memory = replace(woken.memory, planner=replace(lived, zero=often))
    before, after = (scale_to_zero.spent(story.memory.planner.zero, rules.attainment)[0] for story in (plain, woken))
    assert (before, after) == (0.0, pytest.approx(0.04))
    now = [story.now_s + EVERY_S for story in (plain, woken)]
    seen = [
        world(at, cluster, rules, **story.counted(cluster, 1.0, EVERY_S))
        for at, story in zip(now, (plain, woken), strict=True)
    ]
    told = [judged(inp, story.memory).plan for inp, story in zip(seen, (plain, woken), strict=True)]
    assert told[1].allowed[0] < told[0].allowed[0]


def test_however_many_wait_for_wake_ups_the_rules_keep_their_part_of_the_budget():
    story, cluster = Serving(spec(**LEARNED, idle_after_s=math.inf)), fleet([2])
    story.serve(cluster, 1.0, 900.0, 15.0)
    lived = story.memory.planner
    every_one = np.broadcast_to(lived.zero.requests, lived.zero.waited.shape).copy()
    flooded = replace(lived.zero, rest_s=np.array([RESTS_S[0]]), waited=every_one)
    story.memory = replace(story.memory, planner=replace(lived, zero=flooded))
    inp = world(story.now_s + EVERY_S, cluster, story.spec, **story.counted(cluster, 1.0, EVERY_S))
    assert judged(inp, story.memory).plan.allowed_fraction[0] > 0


@pytest.mark.slow
def test_requests_that_nobody_counted_are_not_said_to_be_in_time():
    assert learned(spec(**LEARNED), fleet([2]), 1.0).plan.missed_fraction[0] == 0
    uncounted = learned(spec(**LEARNED), fleet([2]), 1.0, Unjudged)
    assert uncounted.recommendations[Signal.PLANNER, 0] >= 1
    assert np.isnan(uncounted.plan.missed_fraction[0])


@pytest.mark.slow
def test_who_came_while_nobody_served_has_missed_whatever_engines_say():
    """They count from when a gateway lets a request through, and are first read when those who waited run."""
    story, cluster = Serving(spec(**LEARNED)), fleet([1])
    assert story.serve(cluster, 0.5, 1800.0).plan.missed_fraction[0] == 0
    story.tick(fleet([0]), 30.0, gateway_waiting=54.0)  # four of which ran in the replica that is gone
    decision = story.tick(fleet([0], [1], starting_since_s=story.now_s), 30.0, gateway_waiting=54.0)
    counted = story.memory.planner.rules[0].budget.counted[0]
    assert decision.plan.missed_fraction[0] == pytest.approx(50 / (counted + 50), rel=1e-3)


@cache
def after_a_peak():
    story = Serving(spec(cold_start_s=60.0, **LEARNED))
    story.learn(fleet([2]))
    story.serve(fleet([2]), 1.7, 600)
    story.serve(fleet([2]), 0.1, 420)
    return story


@pytest.mark.parametrize("place", range(len(COUNTS)))
def test_no_end_of_a_peak_is_named_when_a_constant_count_asks(place):
    """A peak of some minutes needs two replicas. A count of one gives way to it, a larger one stays."""
    story = after_a_peak()
    count = {"rule": np.array([float(BY_MARGIN + place)]), "replicas": np.full(1, max(2.0, COUNTS[place, 0]))}
    held_s = forecast._held_s(story.memory.planner.all_rules().with_columns(count), np.array([60.0]))
    assert (held_s[0] > 0) == (COUNTS[place, 0] == 1)


def test_pods_that_start_or_are_given_up_are_not_counted():
    story = Serving(spec(**LEARNED))
    leaves = np.array([False, False, True, False])
    story.serve(fleet([3], [1], replicas=[2], pod_terminating=leaves), 1.0, 60.0)
    assert story.memory.planner.work[0].pod_id.tolist() == [0, 1]


def test_a_pod_that_leaves_is_counted_while_it_is_missed():
    story = Serving(spec(**LEARNED))
    leaves = np.array([False, False, True, False])
    story.serve(fleet([3], [1], replicas=[3], pod_terminating=leaves), 1.0, 60.0)
    assert story.memory.planner.work[0].pod_id.tolist() == [0, 1, 2]


@pytest.mark.slow
def test_sleeping_engines_take_no_part():
    """Two serve and two sleep: as much work for each request as where there are but the two."""
    two = of(learned(spec(**LEARNED), fleet([2]), 1.0, late=0.01).plan)
    four = of(learned(spec(**LEARNED), fleet([4]), 1.0, late=0.01, asleep=np.array([0.0, 0.0, 1.0, 1.0])).plan)
    assert four == pytest.approx(two, nan_ok=True)


@pytest.mark.slow
def test_a_pod_that_restarts_changes_the_demand_of_nobody():
    story, cluster = Serving(spec(**LEARNED)), fleet([4])
    story.serve(cluster, 0.1, 600.0)
    story.serve(cluster, 2.0, 1800.0)
    for counter in story.counters.values():
        counter[2] = 0.0
    for _ in range(12):
        decision = story.serve(cluster, 2.0, 5.0)
        assert decision.plan.demand[0] == pytest.approx(2.0, rel=0.05)


@cache
def two_serve():
    story, two = Serving(spec(**LEARNED)), fleet([2])
    story.serve(two, 0.1, 600.0)
    story.serve(two, 1.6, 1800.0)
    return story


@pytest.mark.slow
@pytest.mark.parametrize("moment_s", [5.0, 10.0, 15.0, 20.0, 25.0])
def test_a_pod_that_came_within_an_interval_does_not_make_demand_larger(moment_s: float):
    """Two serve a demand of 1.6, and from then on a third with them: its share of the load is not a third yet."""
    story = deepcopy(two_serve())
    story.serve(fleet([2]), 1.6, moment_s)
    three = fleet([3], pod_ready_s=np.array([0.0, 0.0, story.now_s]))
    for _ in range(12):
        assert story.serve(three, 1.6, 5.0).plan.demand[0] == pytest.approx(1.6, rel=0.1)


# --- bad input, rows, values

NEW = ("gap_s", "gaps", "ttft_met", "itl_judged", "itl_met")
ABSURD = (NAN, 0.0, -1.0, 1e-320, 7.0, 1e9, 1e15, 1e300, math.inf, -math.inf)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_absurd_counters_of_one_workload_change_nothing_for_another_and_its_own_count_stays_within_bounds(seed):
    """Warnings are errors in these tests."""
    random = np.random.default_rng(seed)
    alone, together = (Serving(spec(rows, **LEARNED, max_replicas=9.0)) for rows in (1, 2))
    one, two = fleet([2]), replace(fleet([2, 3]), workload_id=np.array([0, GROUPS]))
    for step in range(40):
        demand = 0.1 if step < 20 else 1.2
        sane = alone.counted(one, demand, 30.0)
        expected = alone.tick(one, 30.0, **sane)
        columns = {name: np.append(np.broadcast_to(value, 2), np.full(3, 10.0 * step)) for name, value in sane.items()}
        for name in NEW:
            mine = columns.get(name, np.full(5, NAN))
            columns[name] = np.append(mine[:2], random.choice(ABSURD, 3))
        decision = together.tick(two, 30.0, **columns)
        assert of(decision.plan) == pytest.approx(of(expected.plan), nan_ok=True)
        assert decision.recommendations[Signal.PLANNER, 0] == pytest.approx(
            expected.recommendations[Signal.PLANNER, 0], nan_ok=True
        )
        assert 1 <= decision.replicas[1] <= 9
        assert not any(math.isinf(value) for value in of(decision.plan, 1).values())
    assert expected.recommendations[Signal.PLANNER, 0] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("jump", [1e6, -1e6])
def test_a_new_objective_makes_its_counter_jump_and_nobody_late(jump):
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    story.serve(cluster, 0.1, 600.0)
    story.counters["met"] += 2e6
    story.serve(cluster, 1.0, 600.0)
    story.counters["met"] += jump
    assert story.serve(cluster, 1.0, 300.0).plan.missed_fraction[0] == 0
    story.serve(cluster, 1.0, 60.0, late=1.0)
    assert story.serve(cluster, 1.0, 60.0).plan.missed_fraction[0] > 0.01  # it goes on counting


def arrays(value):
    """Every array in it, however deep."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple) and not hasattr(value, "_fields"):
        for part in value:
            yield from arrays(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from arrays(getattr(value, field.name))


@pytest.mark.slow
def test_a_tick_writes_into_nothing_it_was_given_and_gives_the_same_again():
    story, cluster = Serving(spec(3, **LEARNED)), fleet([2, 3, 1])
    story.serve(cluster, 0.5, 1200.0)
    inp = world(story.now_s + 30, cluster, story.spec, **story.counted(cluster, 0.8, 30.0))
    memory = story.memory
    for array in (*arrays(memory), *arrays(inp)):
        array.flags.writeable = False
    (once, after), (again, too) = tick(inp, memory), tick(inp, memory)
    np.testing.assert_array_equal(once.replicas, again.replicas)
    np.testing.assert_array_equal(once.recommendations, again.recommendations)
    assert after.planner.rules[0] is not memory.planner.rules[0]
    for one, other in ((once.plan, again.plan), *zip(after.planner.rules, too.planner.rules, strict=True)):
        for place, column in one.columns().items():
            np.testing.assert_array_equal(other.columns()[place], column, err_msg=place)


@cache
def eight_serve():
    story, cluster = Serving(spec(1, **LEARNED, max_replicas=40.0)), fleet([8])
    story.learn(cluster)
    story.serve(cluster, 4.0, 2 * 3600, 15.0)
    return story


@pytest.mark.slow
@pytest.mark.parametrize("gap_s", [60.0, 300.0, 3600.0])
def test_time_without_a_policy_is_held_against_no_rule(gap_s):
    """Its ceiling is not known either: on paper one replica would have had all the load."""
    asked, known, cluster = {}, eight_serve(), fleet([8])
    good = known.spec
    for outage_s in (0.0, gap_s):
        story = deepcopy(known)
        story.spec = replace(good, **{field.name: np.full(1, NAN) for field in fields(good)})
        if outage_s:
            story.serve(cluster, 4.0, outage_s, 15.0)
        story.spec = good
        back = story.serve(cluster, 4.0, 300.0, 15.0)
        asked[outage_s] = back.recommendations[Signal.PLANNER, 0], of(back.plan)["shadow_missed_fraction"]
    assert asked[gap_s][0] == asked[0.0][0]
    assert asked[gap_s][1] == pytest.approx(asked[0.0][1], abs=1e-3)


def test_a_pod_serves_for_as_long_as_it_was_ready_and_whole_if_nothing_was_ever_judged():
    cluster = replace(fleet([3]), pod_ready_s=np.array([-500.0, 985.0, 1000.0]))
    inp, pods, row = world(1000.0, cluster, spec(1)), np.arange(3), np.zeros(3, int)
    assert forecast._served(inp, pods, row, np.array([970.0])) == pytest.approx([1.5])
    assert forecast._served(inp, pods, row, np.array([NAN])) == pytest.approx([3.0])
