"""The whole tick: stories by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.fleet import HpaLimits, PendingCause
from autoscaler.core.model.spec import Schedule
from autoscaler.core.model.types import Signal, Stage
from autoscaler.core.tick import tick
from tests.core.serving import LEARNED, Serving
from tests.core.world import Story, fleet, spec, world

pytestmark = pytest.mark.slow

NAN = math.nan


def replicas(decision, row=0):
    return decision.replicas[row]


# --- growing


def test_load_doubles_and_the_next_tick_orders_what_it_needs():
    story = Story(spec(concurrency=10.0))
    assert replicas(story.watch(fleet([4]), 120, running=9.0)) == 4
    assert replicas(story.tick(fleet([4]), running=18.0)) == 8
    assert replicas(story.tick(fleet([4], [4], starting_since_s=story.now_s), 5, running=18.0)) == 8


def test_unread_ready_replicas_order_no_others():
    story = Story(spec(concurrency=10.0))
    story.watch(fleet([4]), 120, running=18.0)
    ready_s = np.array([-9_000.0] * 4 + [story.now_s + 5] * 4)
    unread = np.array([story.now_s + 5] * 4 + [NAN] * 4)
    decision = story.tick(fleet([8], pod_ready_s=ready_s), 5, running=18.0, time_s=unread)
    assert replicas(decision) == 8


def test_few_refusals_order_nothing_when_the_planner_speaks():
    """A trickle of refusals recommends a little more than the present count, whatever that is."""
    story, cluster = Serving(spec(tolerance=0.1, **LEARNED)), fleet([8])
    story.learn(cluster)
    for number in range(120):
        shown = story.counted(cluster, 3.0, 5.0) | {"rejections": 0.02 * number}
        decision = story.tick(cluster, 5.0, **shown)
    assert decision.recommendations[Signal.REJECTIONS, 0] > max(decision.recommendations[Signal.PLANNER, 0], 8.0)
    assert replicas(decision) == 8


# --- shrinking
def test_signals_shrink_after_a_window_when_the_planner_stops():
    story, cluster = Serving(spec(down_stabilization_s=300.0, **LEARNED)), fleet([8])
    story.learn(cluster)
    assert replicas(story.serve(cluster, 4.0, 600.0)) >= 8
    mute = {"finished": NAN, "first_tokens": NAN}
    silent_s = None
    while silent_s is None or story.now_s < silent_s + 310:
        decision = story.tick(cluster, 5.0, **story.counted(cluster, 1.0, 5.0) | mute)
        if silent_s is None and math.isnan(decision.recommendations[Signal.PLANNER, 0]):
            silent_s = story.now_s
        if silent_s is not None and story.now_s < silent_s + 290:
            assert replicas(decision) >= 8
    assert decision.recommendations[Signal.CONCURRENCY, 0] < 8
    assert replicas(decision) < 8


@pytest.mark.parametrize("floor", [pytest.param(1.0, marks=pytest.mark.long), 2.0])
def test_an_idle_workload_goes_to_zero_from_any_floor(floor):
    rules = spec(min_replicas=floor, max_replicas=8.0, idle_after_s=600.0, **LEARNED)
    story, cluster = Serving(rules), fleet([2])
    story.learn(cluster)
    for _ in range(160):
        decision = story.tick(cluster, 15.0, **story.counted(cluster, 0.0, 15.0) | {"running": 0.0})
    assert decision.recommendations[Signal.PLANNER, 0] == 0
    assert replicas(decision) == 0


def test_one_moment_of_load_in_the_window_keeps_what_it_needed():
    story = Story(spec(down_stabilization_s=60.0))
    story.watch(fleet([5]), 120, running=10.0)
    story.watch(fleet([5]), 30, running=1.0)
    story.tick(fleet([5]), running=8.0)
    assert replicas(story.watch(fleet([5]), 50, running=1.0)) == 4
    assert replicas(story.watch(fleet([4]), 20, running=1.0)) == 1


# --- zero and back


NIGHT = {"idle_after_s": 600.0, "down_stabilization_s": 60.0}


def test_idle_goes_to_zero_one_request_wakes_it_at_the_next_tick():
    story = Story(spec(**NIGHT))
    story.watch(fleet([1]), 60, running=2.0)
    assert replicas(story.watch(fleet([1]), 595)) == 1
    assert replicas(story.watch(fleet([1]), 10)) == 0
    assert replicas(story.watch(fleet([0]), 600, gateway_waiting=0.0)) == 0
    decision = story.tick(fleet([0]), gateway_waiting=1.0)
    assert replicas(decision) == 1
    assert decision.active[0]
    assert replicas(story.tick(fleet([0], [1], starting_since_s=story.now_s), gateway_waiting=1.0)) == 1


def test_so_few_requests_at_the_gateway_as_wake_it_keep_it_awake():
    """One within two minutes is shared by ten variants of a service: each has a rate of 0.0008 a second."""
    story, trickle = Story(spec(idle_after_s=60.0)), {"gateway_waiting": 0.0, "gateway_arrivals_per_s": 1 / 1200}
    assert replicas(story.tick(fleet([0]), **trickle)) == 1
    assert replicas(story.watch(fleet([1]), 600, **trickle)) == 1


def test_requests_too_short_to_be_seen_running_keep_it_awake():
    story, done = Story(spec(**NIGHT)), 0.0
    for _ in range(400):
        done += 0.05  # one in twenty readings shows one more
        decision = story.tick(fleet([1]), 5, finished=math.floor(done), generation_tokens=50.0 * math.floor(done))
    assert replicas(decision) == 1


def test_nothing_goes_to_zero_when_its_gateway_is_silent():
    story = Story(spec(**NIGHT))
    story.watch(fleet([1]), 60, running=2.0, gateway_waiting=0.0)
    decision = story.watch(fleet([1]), 3000)
    assert replicas(decision) == 1
    assert decision.trusted[0]
    asleep = Story(spec(**NIGHT))
    assert asleep.watch(fleet([0]), 60, gateway_waiting=0.0).trusted[0]
    decision = asleep.watch(fleet([0]), 300)
    assert replicas(decision) == 0
    assert not decision.trusted[0]
    assert asleep.watch(fleet([0]), 60, gateway_arrivals_per_s=0.0).trusted[0]


def test_a_gateway_keeps_nothing_awake_when_silent_for_a_day():
    story = Story(spec(**NIGHT))
    story.watch(fleet([1]), 60, running=2.0, gateway_waiting=0.0)
    for number in range(118):
        story.tick(fleet([1]), 5, **({} if number % 4 else {"gateway_waiting": 0.0}))
    assert replicas(story.watch(fleet([1]), 20, gateway_waiting=0.0)) == 0
    removed = Story(spec(**NIGHT))
    removed.watch(fleet([1]), 60, running=2.0, gateway_waiting=0.0)
    for _ in range(24 * 15 + 1):
        decision = removed.tick(fleet([1]), 240)
    assert replicas(decision) == 1
    for _ in range(12):
        decision = removed.tick(fleet([1]), 60)
    assert replicas(decision) == 0


def test_idle_time_begins_with_the_last_request():
    story, done = Story(spec(**NIGHT)), 0.0
    for _ in range(60):
        done += 100.0
        story.tick(fleet([1]), 5, finished=done, first_tokens=done, generation_tokens=50 * done)
    quiet = {"finished": done, "first_tokens": done, "generation_tokens": 50 * done}
    assert replicas(story.watch(fleet([1]), 595, **quiet)) == 1
    assert replicas(story.watch(fleet([1]), 10, **quiet)) == 0


def test_any_sign_of_work_keeps_it_awake():
    """Each of five workloads has one sign. The last has none."""
    signs = ("running", "waiting", "gateway_waiting", "gateway_arrivals_per_s", "tensor_active")
    rows = np.arange(len(signs) + 1)
    story, cluster = Story(spec(len(rows), **NIGHT)), fleet([1] * len(rows))
    work = {name: np.where(rows == row, 1.0, NAN if row > 1 else 0.0) for row, name in enumerate(signs)}
    for _ in range(134):
        gpu_time_s = np.where(np.isnan(work["tensor_active"]), NAN, story.now_s)
        decision = story.tick(cluster, 15, **work, gpu_time_s=gpu_time_s)
    assert decision.replicas.tolist() == [1, 1, 1, 1, 1, 0]


def test_idle_time_begins_when_the_last_leaving_pod_is_done():
    cluster = replace(fleet([2], replicas=[1]), pod_terminating=np.array([False, True]))
    story = Story(spec(idle_after_s=10.0))
    story.watch(cluster, 25.0, 5.0, running=np.array([0.0, 1.0]))  # 5 s later it would be stuck
    assert [replicas(story.tick(cluster)) for _ in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(("idle_after_s", "left"), [(math.nan, [1, 1]), (7200.0, [0, 2])])
def test_without_scale_to_zero_the_floor_is_no_equals_to_take(idle_after_s, left):
    """One rests, the other has work for two, and there are two GPUs."""
    story = Story(spec(2, idle_after_s=np.array([idle_after_s, math.nan]), down_stabilization_s=60.0))
    two, quiet = fleet([1, 1], pool_gpus=np.array([2.0])), {"gateway_waiting": 0.0, "gateway_arrivals_per_s": 0.0}
    story.watch(two, 1200, running=np.array([0.0, 5.0]), **quiet)
    decision = story.watch(two, 60, running=np.array([0.0, 15.0]), **quiet)
    assert decision.stages[Stage.BOUNDS].tolist() == [1, 2]
    assert decision.replicas.tolist() == left


def test_a_workload_whose_pods_never_become_ready_is_held():
    story = Story(spec(**NIGHT))
    stuck = fleet([0], [2], pod_pending=np.full(2, PendingCause.UNSCHEDULABLE))
    decision = story.watch(stuck, 3000, 30)
    assert replicas(decision) == 2
    assert decision.trusted[0]


def test_an_unready_replica_is_removed_when_no_request_waits():
    """Woken by one request, whose client gave up: the gateway, which alone can know, says so.

    A node that is being created is awaited for three cold starts first. There is a workload for each cause.
    """
    whys = np.array(list(PendingCause))
    rows, coming = len(whys), whys == PendingCause.NODE_COMING
    story, quiet = Story(spec(rows, **NIGHT)), {"gateway_waiting": 0.0}
    story.watch(fleet([0] * rows), 60, **quiet)
    stuck = fleet([0] * rows, [1] * rows, pod_pending=whys, starting_since_s=story.now_s)
    assert (story.watch(stuck, 30, gateway_waiting=1.0).replicas == 1).all()
    for duration_s, left in ((590, np.ones(rows)), (100, coming), (80, coming), (100, np.zeros(rows))):
        assert (story.watch(stuck, duration_s, **quiet).replicas == left).all()
    assert (story.tick(stuck, gateway_waiting=1.0).replicas == 1).all()


def test_unready_replicas_stay_when_the_gateway_reports_arrivals():
    """So they do where the gateway tells of no queue, or of nothing, and without scale-to-zero."""
    story = Story(spec(4, **NIGHT | {"idle_after_s": np.array([600.0, 600.0, 600.0, NAN])}))
    front = {"gateway_waiting": np.array([0.0, NAN, NAN, 0.0]), "gateway_arrivals_per_s": np.array([0.01, 0, NAN, NAN])}
    causes = np.array([*[PendingCause.CRASH_LOOP] * 3, *[PendingCause.NONE] * 3])
    stuck = fleet([0] * 4, [1, 1, 1, 3], pod_pending=causes)
    assert story.watch(stuck, 3000, 30, **front).replicas.tolist() == [1, 1, 1, 3]


def test_a_starting_replica_is_kept_for_one_cold_start():
    """It takes longer than the idle time, and its client may come again: otherwise it would never serve."""
    story, quiet = (
        Story(spec(idle_after_s=30.0, down_stabilization_s=10.0, cold_start_s=300.0)),
        {"gateway_waiting": 0.0},
    )
    story.tick(fleet([0]), gateway_waiting=1.0)
    starting = fleet([0], [1], starting_since_s=story.now_s)
    assert replicas(story.watch(starting, 260, **quiet)) == 1
    assert replicas(story.watch(starting, 60, **quiet)) == 0


def test_a_replica_that_never_starts_keeps_nothing_awake():
    story = Story(spec(**NIGHT, min_replicas=0.0))
    story.watch(fleet([1]), 60, running=5.0)
    stuck = fleet([1], [1], starting_since_s=story.now_s)
    assert replicas(story.watch(stuck, 1300)) == 0


def test_a_smaller_window_removes_no_loading_replica():
    """No ready replica reports the load: the window recommends at least two, not just two."""
    story = Story(spec(down_stabilization_s=60.0))
    story.schedule = windows(story.now_s - 100, story.now_s + 9000, 2)
    assert replicas(scheduled(story, fleet([0], [5]), 600)) == 5


def test_a_sleeping_engine_that_holds_requests_gets_help():
    story = Story(spec(**NIGHT))
    story.watch(fleet([1]), 60, asleep=1.0)
    decision = story.tick(fleet([1]), asleep=1.0, held=6.0)
    assert (replicas(decision), decision.recommendations[Signal.WAKE, 0]) == (2, 2)


# --- schedules


def windows(start_s, until_s, count, lead_s=NAN):
    return Schedule(*(np.array([[float(value)]]) for value in (start_s, until_s, count, lead_s)))


def scheduled(story, cluster, for_s, **columns):
    for _ in range(int(for_s / 5)):
        story.now_s += 5
        decision, story.memory = tick(world(story.now_s, cluster, story.spec, story.schedule, **columns), story.memory)
    return decision


def test_a_window_is_served_one_cold_start_early():
    """Slow growth guards against noise; a promise is none, and its lead is not longer than a cold start."""
    story = Story(spec(up_stabilization_s=600.0, up_step_replicas=1.0, up_period_s=60.0, tolerance=0.5))
    story.schedule = windows(story.now_s + 400, story.now_s + 800, 6)
    waiting = fleet([1], pod_ready_s=np.array([NAN]))  # the stated 60 s hold
    assert replicas(scheduled(story, waiting, 335, running=1.0)) == 1
    assert replicas(scheduled(story, waiting, 5, running=1.0)) == 6


def test_a_window_does_not_exceed_the_maximum():
    story = Story(spec(max_replicas=4.0))
    story.schedule = windows(0, 9e9, 6)
    assert replicas(scheduled(story, fleet([1]), 5)) == 4


def test_after_a_window_the_load_decides_again():
    story = Story(spec(down_stabilization_s=60.0))
    story.schedule = windows(story.now_s, story.now_s + 300, 4)
    assert replicas(scheduled(story, fleet([4]), 300, running=1.0)) == 4
    assert replicas(scheduled(story, fleet([4]), 70, running=1.0)) == 1


# --- silence and restarts


def test_nothing_shrinks_when_the_cluster_view_is_old():
    """The API server hangs: what would be sent to it now may be applied when the load is back."""
    story = Story(spec(down_stabilization_s=10.0))
    story.watch(fleet([4]), 60, running=10.0)
    for view_age_s, trusted in ((15.0, True), (25.0, False)):
        inp = world(story.now_s + 1, fleet([4]), story.spec, running=1.0)
        decision, _ = tick(replace(inp, fleet=replace(inp.fleet, time_s=inp.now_s - view_age_s)), story.memory)
        assert decision.trusted.tolist() == [trusted]


def test_a_lowered_maximum_is_reached_in_steps_without_readings():
    """The maximum was lowered by mistake while the load is unknown: 20 replicas serve it."""
    steps = {"down_step_fraction": 0.25, "down_step_replicas": 1.0, "down_period_s": 60.0}
    story = Story(spec(max_replicas=20.0, **steps))
    story.watch(fleet([20]), 120, running=190.0)
    story.spec = spec(max_replicas=5.0, **steps)
    assert replicas(story.tick(fleet([20]), time_s=NAN)) == 15
    assert replicas(story.tick(fleet([15]), time_s=NAN)) == 15
    story.watch(fleet([15]), 60, time_s=NAN)
    assert replicas(story.tick(fleet([15]), time_s=NAN)) == 12
    assert replicas(story.tick(fleet([12]), running=100.0)) == 5  # the load is known again, and so is the maximum


def test_silence_holds_and_after_it_a_full_window_passes():
    story = Story(spec(down_stabilization_s=60.0))
    story.watch(fleet([4]), 300, running=10.0)
    decision = story.watch(fleet([4]), 600, time_s=NAN)
    assert (replicas(decision), decision.trusted[0]) == (4, False)
    assert replicas(story.watch(fleet([4]), 60, running=1.0)) == 4
    assert replicas(story.watch(fleet([4]), 10, running=1.0)) == 1


def test_one_slow_scrape_does_not_start_the_watch_again():
    story = Story(spec(down_stabilization_s=60.0))
    story.watch(fleet([4]), 300, running=10.0)
    story.watch(fleet([4]), 30, running=1.0)
    story.tick(fleet([4]), time_s=NAN)
    assert replicas(story.watch(fleet([4]), 35, running=1.0)) == 1


def test_half_of_the_pods_may_grow_and_not_shrink_the_workload():
    story = Story(spec(down_stabilization_s=60.0))
    half = np.array([True, True, False, False])
    for load, expected in ((1.0, 4), (30.0, 12)):
        for _ in range(60):
            heard = np.where(half, story.now_s + 5, NAN)
            decision = story.tick(fleet([4]), 5, running=load, time_s=heard)
        assert replicas(decision) == expected


def test_after_a_restart_growth_is_immediate():
    assert replicas(Story(spec()).tick(fleet([2]), running=30.0)) == 6


# --- who owns the count


def test_a_paused_workload_keeps_its_count_and_shows_its_target():
    decision = Story(spec()).tick(fleet([2], paused=np.array([True])), running=30.0)
    assert (replicas(decision), decision.stages[Stage.ALLOCATION, 0]) == (2, 6)


def test_a_rival_is_not_fought():
    decision = Story(spec()).tick(fleet([2], other_owner=("ScaledObject/chat",)), running=30.0)
    assert replicas(decision) == 2


def held(least=0.0, most=np.inf, to_zero=False, shared=False):
    """Hold the first of two workloads; nothing holds the second."""
    return HpaLimits(
        np.array([least, 0.0]),
        np.array([most, np.inf]),
        np.array([to_zero, False]),
        np.array([shared, False]),
        ("", ""),
    )


def drained(held, idle_after_s=NAN, watch_s=200):
    """Six replicas without work beside one with work for four, of eight GPUs; return both decisions and stages."""
    cluster = fleet([6, 1], hpa_limits=held, pool_gpus=np.array([8.0]))
    story = Story(spec(2, idle_after_s=[idle_after_s, NAN]))
    load = {"running": np.array([0.0] * 6 + [10.0]), "waiting": np.array([0.0] * 6 + [30.0])}
    decision = story.watch(cluster, watch_s, 10, **load, gateway_waiting=0.0)
    return replicas(decision, 0), replicas(decision, 1), decision.stages


def test_a_count_that_cannot_fall_keeps_its_gpus_from_others():
    assert drained(None)[:2] == (1, 4)
    first, second, stages = drained(held(least=6.0))
    assert (first, second) == (6, 2)
    assert (stages[Stage.ALLOCATION, 0], stages[Stage.OWNER, 0]) == (1, 6)
    assert stages[Stage.ALLOCATION, 1] == 2  # and this is what its pool gives, no owner


def test_a_count_that_cannot_rise_leaves_its_gpus_to_others():
    cluster = fleet([2, 1], hpa_limits=held(most=2.0), pool_gpus=np.array([8.0]))
    load = {"running": np.array([10.0, 10.0, 10.0]), "waiting": np.array([30.0, 30.0, 50.0])}
    decision = Story(spec(2)).watch(cluster, 60, 10, **load)
    assert (replicas(decision, 0), replicas(decision, 1)) == (2, 6)
    assert decision.stages[Stage.ALLOCATION, 0] > 2


def test_zero_is_reached_when_only_the_hpa_is_held():
    assert drained(held(least=6.0, to_zero=True), idle_after_s=60.0)[:2] == (0, 4)
    assert drained(held(least=6.0, to_zero=True))[:2] == (6, 2)
    assert drained(held(least=6.0), idle_after_s=60.0)[:2] == (6, 2)


def test_what_stands_is_counted_when_something_else_decides_too():
    """The decision stays as it is: the other controller shows its own in the current count."""
    assert drained(held(shared=True))[:2] == (1, 2)


def test_a_workload_without_a_policy_is_never_changed():
    rules = spec(2, **{name: [NAN, value] for name, value in vars_of(spec()).items()})
    cluster = fleet([3, 3], pool_gpus=np.array([4.0]))
    story = Story(rules)
    for columns in ({"running": 0.0}, {"running": 500.0}, {"time_s": NAN}, {"running": 9.0, "waiting": 1e4}):
        decision = story.watch(cluster, 600, 30, **columns)
        assert replicas(decision, 0) == 3
        assert not decision.trusted[0]
        assert np.isnan(decision.recommendations[:, 0]).all()


def vars_of(rules):
    return {name: float(column[0]) for name, column in vars(rules).items()}


# --- sharing GPUs


def test_when_gpus_are_short_priority_decides_and_floors_hold():
    rules = spec(3, priority=[10.0, 1000.0, 500.0], min_replicas=1.0)
    decision = Story(rules).tick(fleet([4, 2, 2], pool_gpus=np.array([9.0])), running=30.0)
    assert decision.replicas.tolist() == [1, 6, 2]


@pytest.mark.parametrize(
    "theirs", [{"paused": np.array([False, True])}, {"other_owner": ("", "HorizontalPodAutoscaler/b")}]
)
def test_a_foreign_count_without_pods_takes_no_replica(theirs):
    """Otherwise a count of 100 in a paused Deployment would take every GPU of its pool from replicas that serve."""
    cluster = fleet([6, 2], replicas=[6, 100], pool_gpus=np.array([8.0]), **theirs)
    busy = np.where(cluster.pod_workload == 0, 9.0, 0.0)
    assert Story(spec(2)).watch(cluster, for_s=300.0, running=busy).replicas.tolist() == [6, 100]


def test_foreign_pods_that_wait_for_gpus_take_no_replica():
    cluster = fleet([6, 0], [0, 9], pool_gpus=np.array([8.0]), paused=np.array([False, True]))
    waiting = np.where(cluster.pod_workload == 1, PendingCause.UNSCHEDULABLE, PendingCause.NONE).astype(np.int64)
    cluster = replace(cluster, pod_pending=waiting)
    busy = np.where(cluster.pod_workload == 0, 9.0, 0.0)
    assert Story(spec(2)).watch(cluster, for_s=300.0, running=busy).replicas.tolist() == [6, 9]


def test_a_silent_workload_takes_no_replica_when_a_node_is_lost():
    """Four of six replicas wait for GPUs and one is silent: no other workload gives up a serving replica for them."""
    cluster = fleet([2, 2], [4, 0], pool_gpus=np.array([4.0]))
    waiting = np.where(cluster.pod_ready, PendingCause.NONE, PendingCause.UNSCHEDULABLE).astype(np.int64)
    cluster = replace(cluster, pod_pending=waiting)
    story = Story(spec(2, priority=[10.0, 1000.0]))
    deaf = np.where(np.arange(len(cluster.pods)) == 0, NAN, 10.0)
    decision = story.watch(cluster, 120, running=deaf)
    assert decision.trusted.tolist() == [False, True]
    assert decision.replicas.tolist() == [6, 2]


def test_gpus_held_in_reserve_go_to_who_has_the_work():
    """The first ranks higher. It needs as many again when its peak comes again, and then has them."""
    story = Serving(spec(2, priority=[1000.0, 10.0], max_replicas=9.0, cold_start_s=60.0, **LEARNED))
    few, many = (fleet([count, 2], pool_gpus=np.array([8.0])) for count in (2, 6))
    story.learn(few)
    story.serve(many, np.array([5.5, 1.0]), 120)
    held = story.serve(many, np.array([1.0, 1.0]), 230)
    assert held.replicas.tolist() == [6, 2]
    crowded = story.serve(many, np.array([1.0, 1.9]), 45)
    assert crowded.plan.replicas.tolist() == [8, 4]
    assert crowded.plan.base_replicas.tolist() == [4, 3]
    assert crowded.replicas.tolist() == [5, 3]
    assert story.serve(many, np.array([4.0, 1.0]), 240).replicas.tolist() == [6, 2]


# --- changes of policy


def test_a_shortened_window_keeps_the_counts_within_it():
    story = Story(spec(down_stabilization_s=300.0))
    story.watch(fleet([4]), 600, running=10.0)
    story.watch(fleet([4]), 30, running=1.0)
    story.spec = spec(down_stabilization_s=60.0)
    assert replicas(story.watch(fleet([4]), 25, running=1.0)) == 4
    assert replicas(story.watch(fleet([4]), 120, running=1.0)) == 1


def test_a_longer_window_holds_from_the_next_tick():
    story = Story(spec(down_stabilization_s=60.0))
    story.watch(fleet([4]), 600, running=10.0)
    story.watch(fleet([4]), 30, running=1.0)
    story.spec = spec(down_stabilization_s=300.0)
    assert replicas(story.watch(fleet([4]), 240, running=1.0)) == 4
    assert replicas(story.watch(fleet([4]), 400, running=1.0)) == 1


def test_new_bounds_hold_at_the_next_tick_whatever_limits_steps():
    story = Story(spec(up_step_replicas=1.0, down_step_replicas=1.0))
    story.watch(fleet([4]), 300, running=10.0)
    story.spec = spec(up_step_replicas=1.0, down_step_replicas=1.0, min_replicas=9.0)
    assert replicas(story.tick(fleet([4]), running=10.0)) == 9
    story.spec = spec(up_step_replicas=1.0, down_step_replicas=1.0, max_replicas=2.0)
    assert replicas(story.tick(fleet([4]), running=10.0)) == 2


# --- small counts


def test_two_replicas_become_one_only_when_one_suffices():
    story = Story(spec(tolerance=0.1, down_stabilization_s=10.0))
    assert replicas(story.watch(fleet([2]), 60, running=5.2)) == 2
    assert replicas(story.watch(fleet([2]), 60, running=5.0)) == 1
    assert replicas(story.watch(fleet([1]), 60, running=10.4)) == 1  # and stays there: no flapping at the edge


# --- the same tick everywhere


def test_an_empty_cluster_is_decided_on():
    decision = Story(spec(0)).tick(fleet([]))
    assert decision.replicas.shape == (0,)
