"""When workloads are updated, by which pods, and what is recommended in a whole tick."""

import math
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.measure.interval import count_serving
from autoscaler.core.model.types import Signal
from autoscaler.core.observe.workloads import observe
from autoscaler.core.planner import update
from autoscaler.core.planner.scale_to_zero import TIMEOUTS_S, compute_wake_up_share
from autoscaler.core.planner.state import PHASES
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from autoscaler.core.tick import tick
from tests.core.planner.planned import decide_after_learning, plan_of
from tests.core.serving import LEARNED, Serving
from tests.core.world import few_examples, fleet, spec, world

pytestmark = pytest.mark.slow

NAN = math.nan


# --- when


def updated_s(story):
    """Return when each workload was last updated."""
    return story.memory.planner.strategies.last_updated_s.tolist()


def test_workloads_take_turns_and_each_has_one_per_interval():
    story, cluster = Serving(spec(PHASES, **LEARNED)), fleet([2] * PHASES)
    story.serve(cluster, 1.0, 60.0)
    updates = []
    for _ in range(24):
        story.serve(cluster, 1.0, 5.0)
        updates += [(story.now_s, row) for row, last_s in enumerate(updated_s(story)) if last_s == story.now_s]
    assert len(updates) == len({now_s for now_s, _ in updates}) == 24  # one workload per tick
    for row in range(PHASES):
        assert set(np.diff([now_s for now_s, updated in updates if updated == row])) == {UPDATE_INTERVAL_S}


@pytest.mark.parametrize("every_s", [30.0, 45.0, 100.0])
def test_all_workloads_are_updated_when_ticks_are_slow(every_s):
    story, cluster = Serving(spec(PHASES, **LEARNED)), fleet([2] * PHASES)
    for _ in range(6):
        story.serve(cluster, 1.0, every_s, every_s)
        assert set(updated_s(story)) == {story.now_s}


def test_due_workload_waits_for_a_reading_but_not_for_ever():
    """Pods are read at 1005 and 1035 s, and no more. The turns are at 1020, 1050, 1080 s and so on."""
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    samples = story.counted(cluster, 1.0, 15.0) | {"time_s": 1005.0}
    updates = set()
    while story.now_s < 1300:
        if story.now_s + 5 == 1035:
            samples = story.counted(cluster, 1.0, 30.0) | {"time_s": 1035.0}
        story.tick(cluster, 5.0, **samples)
        updates.update(updated_s(story))
    assert sorted(updates) == [1005.0, 1035.0, 1155.0, 1275.0]


def scrape_every(seconds, with_neighbour):
    """Return whether the planner had an opinion at each tick, and for how long it observed demand.

    The workload is scraped at intervals of this many seconds. The neighbour, with the same turns, is scraped every 5 s.
    """
    rows = 1 + with_neighbour
    story = Serving(spec(rows, max_input_age_s=120.0, **LEARNED))
    cluster = replace(fleet([4] * rows), workload_id=np.array([0, PHASES][:rows]))
    own, samples, has_opinion = cluster.pod_workload == 0, {}, []
    for number in range(240):
        now = story.counted(cluster, 1.0, 5.0) | {"time_s": story.now_s + 5.0}
        now = {name: np.broadcast_to(column, len(own)).astype(float) for name, column in now.items()}
        is_read = number % (seconds // 5) == 0
        samples = now if is_read else {name: np.where(own, samples[name], now[name]) for name in now}
        decision = story.tick(cluster, 5.0, **samples)
        has_opinion.append(not np.isnan(decision.recommendations[Signal.PLANNER, 0]))
    return has_opinion, decision.plan.observed_s[0]


@pytest.mark.parametrize("seconds", [45, pytest.param(60, marks=pytest.mark.long)])
def test_scrapes_of_a_neighbour_change_nothing(seconds):
    (alone, alone_s), (beside, beside_s) = (scrape_every(seconds, neighbour) for neighbour in (False, True))
    assert all(alone[60:])
    assert all(beside[60:])
    assert beside_s == alone_s


def test_planner_keeps_its_opinion_through_a_gap_in_readings():
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


def test_late_queue_is_judged_with_every_reading_but_not_learned():
    """Five clients in a second join a load of 1.0. Until the next turn, each reading raises what is recommended."""
    story, cluster = Serving(spec(**LEARNED, max_wait_s=2.0)), fleet([2])
    story.serve(cluster, 1.0, 1800.0)
    while updated_s(story) != [story.now_s]:
        before = story.serve(cluster, 1.0, 5.0)
    stored, replicas = story.memory.planner, [before.plan.replicas[0]]
    for number in range(1, 6):
        queue = {"waiting": 12.0 * number}
        decision = story.tick(cluster, 5.0, **(story.counted(cluster, 1.9, 5.0) | queue))
        assert decision.observation.queue_wait_s[0] > 2.0
        assert decision.plan.last_updated_s[0] == story.now_s
        for place, column in story.memory.planner.strategies.columns().items():
            if place not in ("speed.slots", "speed.peak_running"):
                np.testing.assert_array_equal(column, stored.strategies.columns()[place], err_msg=place)
        assert story.memory.planner.counted is stored.counted
        replicas.append(decision.plan.replicas[0])
    assert replicas == sorted(replicas) and replicas[-1] > replicas[0]
    assert story.serve(cluster, 1.0, 5.0).plan.last_updated_s[0] == updated_s(story)[0] == story.now_s


def test_plan_stays_between_two_updates():
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    story.serve(cluster, 1.0, 600.0)
    plans = {id(story.memory.planner.plan)}
    for _ in range(5):
        decision = story.serve(cluster, 1.0, 5.0)
        plans.add(id(decision.plan))
        assert decision.plan is story.memory.planner.plan
    assert len(plans) <= 2


def test_workload_that_joins_changes_no_other():
    alone, joined = Serving(spec(**LEARNED)), Serving(spec(**LEARNED))
    one = fleet([2])
    two = replace(fleet([2, 3]), workload_id=np.array([0, PHASES]))
    alone.serve(one, 1.2, 600.0)
    joined.serve(one, 1.2, 600.0)
    for _ in range(2):
        expected = alone.serve(one, 1.2, 300.0)
    joined.spec = spec(2, **LEARNED)
    joined.serve(two, np.array([1.2, 0.1]), 300.0)
    decision = joined.serve(two, np.array([1.2, 2.0]), 300.0)
    assert plan_of(decision) == pytest.approx(plan_of(expected), nan_ok=True)
    assert plan_of(decision, 1)["demand"] == pytest.approx(2.0, rel=0.05)


def test_late_queue_of_a_neighbour_changes_nothing():
    """Both workloads have the same turns. The first has a queue, so each tick judges it."""
    memories = []
    for rows in (1, 2):
        story, cluster = Serving(spec(rows, **LEARNED, max_wait_s=2.0)), fleet([2] * rows)
        cluster = replace(cluster, workload_id=np.array([0, PHASES][:rows]))
        story.serve(cluster, 1.0, 600.0)
        for number in range(12):
            samples, own = story.counted(cluster, 1.9, 5.0), cluster.pod_workload == 0
            has_queue = own | (number >= 7)
            running = np.where(own & (number == 7), 12.0, 4.0)
            queue = {"waiting": np.where(has_queue, 9.0, 0.0), "running": running}
            story.tick(cluster, 5.0, **(samples | queue))
        memories.append(story.memory)
    alone, beside = (memory.planner.strategies.take(np.array([0])) for memory in memories)
    for place, column in alone.columns().items():
        np.testing.assert_array_equal(beside.columns()[place], column, err_msg=place)


# --- what is recommended
def test_planner_replaces_reactive_signals_when_it_has_learned():
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    early = story.serve(cluster, 1.0, UPDATE_INTERVAL_S)
    assert np.isnan(early.recommendations[Signal.PLANNER, 0])
    assert early.recommendations[Signal.CONCURRENCY, 0] > 0
    late = story.serve(cluster, 1.0, 900.0)
    assert late.recommendations[Signal.PLANNER, 0] == late.plan.replicas[0] >= 1
    assert np.isnan(late.recommendations[Signal.CONCURRENCY, 0])


def test_maximum_wait_stands_in_for_a_missing_objective():
    """The first of two has neither."""
    rules = spec(2, **LEARNED, ttft_objective_s=NAN, max_wait_s=np.array([NAN, 5.0]))
    decision = decide_after_learning(rules, fleet([2, 2]), 1.0)
    recommended = decision.recommendations[Signal.PLANNER]
    assert np.isnan(decision.plan.replicas[0]) and np.isnan(recommended[0])
    assert decision.plan.demand[0] > 0
    assert recommended[1] >= 1


def test_no_signal_has_an_opinion_without_a_policy():
    decision = decide_after_learning(spec(**dict.fromkeys(vars(spec()), NAN)), fleet([2]), 1.0)
    assert np.isnan(decision.recommendations[:, 0]).all()
    assert decision.replicas[0] == 2


def test_plan_stays_within_floor_and_ceiling():
    rules = spec(2, **LEARNED | {"min_replicas": np.array([3.0, 1.0]), "max_replicas": np.array([40.0, 2.0])})
    assert decide_after_learning(rules, fleet([4, 2]), np.array([0.2, 1.8])).plan.replicas.tolist() == [3, 2]


def update_once(story, cluster):
    """Return the plan after one more update."""
    samples = story.counted(cluster, 1.0, UPDATE_INTERVAL_S)
    inp, tables = world(story.now_s + UPDATE_INTERVAL_S, cluster, story.spec, **samples), story.memory.workloads
    none = np.zeros(len(cluster.workloads), dtype=bool)
    observed, *_ = observe(inp, tables.last_tick_s, tables.observe, story.memory.pods, none)
    return update.update_due_workloads(inp, observed, story.memory.planner).plan


def delay_requests(story, share):
    """Let this share of all requests have waited for wake-ups with the shortest timeout, which is selected."""
    planner = story.memory.planner
    timeouts = planner.idle_timeouts
    delayed = np.broadcast_to(share * timeouts.requests, timeouts.delayed.shape).copy()
    timeouts = replace(timeouts, timeout_s=np.array([TIMEOUTS_S[0]]), delayed=delayed)
    story.memory = replace(story.memory, planner=replace(planner, idle_timeouts=timeouts))


def test_strategies_may_not_spend_the_budget_of_wake_ups():
    policy, cluster = spec(**LEARNED, idle_after_s=math.inf, attainment=0.9), fleet([2])
    without, with_wake_ups = Serving(policy), Serving(policy)
    for story in (without, with_wake_ups):
        story.serve(cluster, 1.0, 900.0, 15.0)
    delay_requests(with_wake_ups, 0.04)
    shares = [
        compute_wake_up_share(story.memory.planner.idle_timeouts, policy.attainment)[0]
        for story in (without, with_wake_ups)
    ]
    assert shares == [0.0, pytest.approx(0.04)]
    plans = [update_once(story, cluster) for story in (without, with_wake_ups)]
    assert plans[1].allowed_fraction[0] < plans[0].allowed_fraction[0]


def test_strategies_keep_some_budget_when_all_requests_wait():
    story, cluster = Serving(spec(**LEARNED, idle_after_s=math.inf)), fleet([2])
    story.serve(cluster, 1.0, 900.0, 15.0)
    delay_requests(story, 1.0)
    assert update_once(story, cluster).allowed_fraction[0] > 0


# --- which pods count


def counted_pods(story):
    """Return the ids of the pods whose work was counted."""
    planner = story.memory.planner
    return planner.counted_id[~np.isnan(planner.counted.time_s)].tolist()


def test_starting_and_surplus_leaving_pods_do_not_count():
    story = Serving(spec(**LEARNED))
    leaves = np.array([False, False, True, False])
    story.serve(fleet([3], [1], replicas=[2], pod_terminating=leaves), 1.0, 60.0)
    assert counted_pods(story) == [0, 1]


def test_leaving_pod_counts_while_its_replica_is_missing():
    story = Serving(spec(**LEARNED))
    leaves = np.array([False, False, True, False])
    story.serve(fleet([3], [1], replicas=[3], pod_terminating=leaves), 1.0, 60.0)
    assert counted_pods(story) == [0, 1, 2]


@pytest.mark.parametrize(("paused", "fewer"), [(False, True), (True, False)])
def test_replicas_kept_asleep_serve_rises_in_the_shadow_fleets(paused, fewer):
    """A rise lasts two cold starts. A paused workload keeps none asleep."""

    def missed(**policy):
        serving, cluster = Serving(spec(**LEARNED, **policy)), fleet([4], paused=np.array([paused]))
        for demand in (0.5, 3.5):
            serving.serve(cluster, demand, 900.0 if demand < 1 else 180.0, 15.0)
        return serving.memory.planner.strategies.shadow.missed.sum()

    assert bool(missed(sleep_replicas=3.0) < missed()) is fewer


def test_sleeping_engines_do_not_count():
    """Two engines serve. The plan is the same with two sleeping engines beside them."""
    asleep = np.array([0.0, 0.0, 1.0, 1.0])
    two = decide_after_learning(spec(**LEARNED), fleet([2]), 1.0, late=0.01)
    four = decide_after_learning(spec(**LEARNED), fleet([4]), 1.0, late=0.01, asleep=asleep)
    assert plan_of(four) == pytest.approx(plan_of(two), nan_ok=True)


def test_restart_of_a_pod_does_not_change_demand():
    story, cluster = Serving(spec(**LEARNED)), fleet([4])
    story.serve(cluster, 0.1, 600.0)
    story.serve(cluster, 2.0, 1800.0)
    for counter in story.counters.values():
        counter[2] = 0.0
    for _ in range(12):
        decision = story.serve(cluster, 2.0, 5.0)
        assert decision.plan.demand[0] == pytest.approx(2.0, rel=0.05)


@cache
def story_of_two_pods():
    story, two = Serving(spec(**LEARNED)), fleet([2])
    story.serve(two, 0.1, 600.0)
    story.serve(two, 1.6, 1800.0)
    return story


@pytest.mark.parametrize(
    "moment_s",
    [5.0, pytest.param(10.0, marks=pytest.mark.long), 15.0, pytest.param(20.0, marks=pytest.mark.long), 25.0],
)
def test_pod_that_becomes_ready_does_not_raise_demand(moment_s: float):
    """Two pods serve a demand of 1.6. A third becomes ready within an interval, and has less than a third of it."""
    story = deepcopy(story_of_two_pods())
    story.serve(fleet([2]), 1.6, moment_s)
    three = fleet([3], pod_ready_s=np.array([0.0, 0.0, story.now_s]))
    for _ in range(12):
        assert story.serve(three, 1.6, 5.0).plan.demand[0] == pytest.approx(1.6, rel=0.1)


def test_pod_counts_for_the_share_of_the_interval_it_was_ready():
    ready_s, row = np.array([-500.0, 985.0, 1000.0]), np.zeros(3, int)
    assert count_serving(ready_s, row, np.array([970.0]), 1000.0) == pytest.approx([1.5])
    assert count_serving(ready_s, row, np.array([NAN]), 1000.0) == pytest.approx([3.0])


# --- bad input, rows, values

NEW = ("gap_s", "gaps", "ttft_met", "itl_judged", "itl_met")
ABSURD = (NAN, 0.0, -1.0, 1e-320, 7.0, 1e9, 1e15, 1e300, math.inf, -math.inf)


@few_examples
@given(st.integers(0, 2**32 - 1))
def test_absurd_counters_stay_with_their_workload_and_in_bounds(seed):
    """Warnings are errors in these tests."""
    random = np.random.default_rng(seed)
    alone, together = (Serving(spec(rows, **LEARNED, max_replicas=9.0)) for rows in (1, 2))
    one, two = fleet([2]), replace(fleet([2, 3]), workload_id=np.array([0, PHASES]))
    for number in range(30):
        demand = 0.1 if number < 12 else 1.2
        sane = alone.counted(one, demand, 30.0)
        expected = alone.tick(one, 30.0, **sane)
        columns = {
            name: np.append(np.broadcast_to(value, 2), np.full(3, 10.0 * number)) for name, value in sane.items()
        }
        for name in NEW:
            mine = columns.get(name, np.full(5, NAN))
            columns[name] = np.append(mine[:2], random.choice(ABSURD, 3))
        decision = together.tick(two, 30.0, **columns)
        assert plan_of(decision) == pytest.approx(plan_of(expected), nan_ok=True)
        planned = expected.recommendations[Signal.PLANNER, 0]
        assert decision.recommendations[Signal.PLANNER, 0] == pytest.approx(planned, nan_ok=True)
        assert 1 <= decision.replicas[1] <= 9
        assert not any(math.isinf(value) for value in plan_of(decision, 1).values())
    assert expected.recommendations[Signal.PLANNER, 0] >= 1


@pytest.mark.parametrize("jump", [1e6, -1e6])
def test_no_request_is_late_when_an_objective_changes(jump):
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    story.serve(cluster, 0.1, 600.0)
    story.counters["met"] += 2e6
    story.serve(cluster, 1.0, 600.0)
    story.counters["met"] += jump
    assert story.serve(cluster, 1.0, 300.0).plan.missed_fraction[0] == 0
    story.serve(cluster, 1.0, 60.0, late=1.0)
    assert story.serve(cluster, 1.0, 60.0).plan.missed_fraction[0] > 0.01  # misses are still counted


def arrays(value):
    """Yield every array in a value."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple) and not hasattr(value, "_fields"):
        for part in value:
            yield from arrays(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from arrays(getattr(value, field.name))


def test_tick_is_deterministic_and_changes_no_input():
    story, cluster = Serving(spec(3, **LEARNED)), fleet([2, 3, 1])
    story.serve(cluster, 0.5, 1200.0)
    inp = world(story.now_s + 30, cluster, story.spec, **story.counted(cluster, 0.8, 30.0))
    memory = story.memory
    for array in (*arrays(memory), *arrays(inp)):
        array.flags.writeable = False
    (first, first_memory), (second, second_memory) = tick(inp, memory), tick(inp, memory)
    np.testing.assert_array_equal(first.replicas, second.replicas)
    np.testing.assert_array_equal(first.recommendations, second.recommendations)
    assert first_memory.planner.strategies is not memory.planner.strategies
    tables = ((made.planner.strategies, made.planner.counted) for made in (first_memory, second_memory))
    for one, other in ((first.plan, second.plan), *zip(*tables, strict=True)):
        for place, column in one.columns().items():
            np.testing.assert_array_equal(other.columns()[place], column, err_msg=place)


@cache
def story_of_eight_pods():
    story, cluster = Serving(spec(1, **LEARNED, max_replicas=40.0)), fleet([8])
    story.learn(cluster)
    story.serve(cluster, 4.0, 2 * 3600, 15.0)
    return story


@pytest.mark.parametrize(
    "gap_s", [pytest.param(60.0, marks=pytest.mark.long), 300.0, pytest.param(3600.0, marks=pytest.mark.long)]
)
def test_time_without_a_policy_is_not_charged_to_strategies(gap_s):
    """The ceiling is unknown as well, so a shadow fleet of one replica would have had all the load."""
    recommended, before, cluster = {}, story_of_eight_pods(), fleet([8])
    policy = before.spec
    for outage_s in (0.0, gap_s):
        story = deepcopy(before)
        story.spec = replace(policy, **{field.name: np.full(1, NAN) for field in fields(policy)})
        if outage_s:
            story.serve(cluster, 4.0, outage_s, 15.0)
        story.spec = policy
        back = story.serve(cluster, 4.0, 300.0, 15.0)
        recommended[outage_s] = back.recommendations[Signal.PLANNER, 0], plan_of(back)["shadow_missed_fraction"]
    assert recommended[gap_s][0] == recommended[0.0][0]
    assert recommended[gap_s][1] == pytest.approx(recommended[0.0][1], abs=1e-3)


def test_full_slots_are_demand_at_once_when_they_are_stated():
    """All of two pods' 24 slots are taken, while the engines compute for a quarter of their time."""
    demand = {}
    for stated in (None, np.full(2, 24.0)):
        story, cluster = Serving(spec(**LEARNED)), fleet([2], pod_slots=stated)
        for _ in range(24):
            readings = story.counted(cluster, 0.5, 5.0) | {"running": 24.0, "waiting": 1.0}
            decision = story.tick(cluster, 5.0, **readings)
        demand[stated is None] = decision.plan.demand[0]
    assert demand[False] == pytest.approx(2.0, rel=0.1)
    assert demand[True] < 0.6
