"""Columns that outlive a process, and those that must not."""

from copy import copy, deepcopy
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core import snapshot
from autoscaler.core.model.fleet import Fleet, PendingCause, Pool, Workload, WorkloadRef
from autoscaler.core.model.spec import Schedule
from autoscaler.core.model.types import Signal
from autoscaler.core.observe.pods import PodState
from autoscaler.core.planner.select import StrategyState
from autoscaler.core.planner.state import PlannerState
from autoscaler.core.planner.strategies import SIGNATURE, UPDATE_INTERVAL_S
from autoscaler.core.state import Memory, align
from autoscaler.core.table.columns import PER_STRATEGY_SET, TIMESTAMP, TRANSIENT, Columns
from tests.core.serving import LEARNED, Serving
from tests.core.world import Story, fleet, spec

pytestmark = pytest.mark.slow

DURATIONS = {
    "plan.idle_gap_s",
    "plan.output_token_s",
    "plan.observed_s",
    "plan.peak_expires_in_s",
    "plan.prompt_token_s",
    "plan.surge_counts_s",
    "plan.warm_up_s",
    "plan.work_s",
    "pods.rates.covered_s",
    "pods.progress.worked_s",
    "workloads.observe.arrivals.queue_s",
    "workloads.observe.wake_ups.deviation_s",
    "workloads.observe.wake_ups.mean_s",
    "strategies.budget.served_s",
    "strategies.speed.prompt_busy_s",
    "strategies.surges.calm_s",
    "strategies.surges.high_after_s",
    "strategies.speed.shortest_gap_s",
    "strategies.itl_objective_s",
    "strategies.warm_up_s",
    "strategies.history.observed_s",
    "strategies.shadow.observed_s",
    "strategies.season.busy_s",
    "strategies.season.observed_s",
    "strategies.offered_load.busy_s",
    "strategies.first_token_limit_s",
    "workloads.capacity.decode_tokens_per_s",
    "workloads.capacity.learned_s",
    "workloads.observe.arrivals.averaged_s",
    "workloads.observe.arrivals.counted_s",
    "workloads.observe.arrivals.per_s",
    "workloads.observe.arrivals.quiet_s",
    "workloads.observe.arrivals.recent_s",
    "workloads.observe.arrivals.rested_s",
    "workloads.observe.cold_start.deviation_s",
    "workloads.observe.cold_start.mean_s",
    "workloads.observe.cold_start.node_wait_s",
    "workloads.observe.ledger.expected.mean_s",
    "workloads.observe.ledger.expected.p50_s",
    "workloads.observe.ledger.expected.p90_s",
    "workloads.observe.ledger.took_s",
    "workloads.observe.ledger.weights_prior_s",
    "workloads.observe.loaded_idle_s",
    "workloads.observe.pending_history.backoff_s",
    "idle_timeouts.observed_s",
    "idle_timeouts.timeout_s",
    "idle_timeouts.unpaid_s",
    "idle_timeouts.waking_s",
}
"""Columns of memory that end in `_s` and are no moments: every other one must be a TimestampColumn."""

NOW_S, LATER_S = 1_000.0, 50_000.0  # on the clocks of two processes
SAVED_S = 1_800_000_000.0  # Unix time


def columns(memory):
    """Yield every column of memory with its place, and whether it holds moments; of one kept in shares, each share."""
    in_one_table = {"strategies": memory.planner.strategies}
    for name, part in (vars(memory) | vars(memory.planner) | in_one_table).items():
        if isinstance(part, Columns):
            for place, column in part.columns().items():
                yield f"{name}.{place}", column, TIMESTAMP in part.marks()[place]


def marked(table, mark):
    return {place for place, its in table.marks().items() if mark in its}


IS_MOMENT = {place: is_moment for place, _, is_moment in columns(Memory.empty())}


NOT_STORED = {"pods", "counted_id", "counted", "plan"}
"""Readings of pods, and what follows from the strategies when they are updated: both are known again within a minute.
"""


def test_every_lasting_column_has_one_name_in_the_schema():
    parts = {field.name for table in (Memory, PlannerState) for field in fields(table)}
    parts = parts - {"workload_id", "pod_id", "planner", "by_phase"} | {"strategies"}
    assert snapshot.TABLES.keys() == parts - NOT_STORED, "add the table to TABLES of core/snapshot.py, or to NOT_STORED"
    lasting = {
        f"{name}.{place}"
        for name, table in snapshot.TABLES.items()
        for place in table.marks().keys() - marked(table, TRANSIENT)
    }
    stored, lasting = set(snapshot.SCHEMA.values()), lasting - {snapshot.QUEUED}
    assert sorted(lasting - stored) == [], "give each a name in SCHEMA of core/snapshot.py, or mark it transient"
    assert sorted(stored - lasting) == [], "take each out of SCHEMA of core/snapshot.py: no table has it"
    assert len(stored) == len(snapshot.SCHEMA), "two names of SCHEMA stand for one column"


def test_a_column_of_seconds_is_a_timestamp_or_a_duration():
    """A new one: declare it a TimestampColumn, or name it among DURATIONS."""
    in_seconds = {place for place in IS_MOMENT if place.endswith("_s")}
    durations = {place for place in in_seconds if not IS_MOMENT[place]}
    assert sorted(durations ^ DURATIONS) == [], (
        "make it a TimestampColumn, or add it to (take it out of) DURATIONS here"
    )


def test_a_column_says_in_its_name_whether_it_is_a_moment():
    for place, is_moment in IS_MOMENT.items():
        name = place.rpartition(".")[2]
        of_moment = name.startswith("last_") or name.endswith("_since_s") or name in {"time_s", "until_s", "since_s"}
        assert of_moment == is_moment, place


def busy_story(start_s: float) -> Story:
    """A while of load, queue, refusals, growth, rest, on clocks that differ by a multiple of every slot of a window.

    One pod stands still while its queue grows, one alone has a queue, one has no work, and one sleeps. A replica of the
    third workload crashes, and another is missing; its count is raised and lowered again. Nodes are requested for a
    window of the first workload. Requests arrive for the last one, which has no replica.
    """
    rules = spec(4, concurrency=np.nan, sleep_replicas=1.0, up_stabilization_s=30.0, down_stabilization_s=60.0)
    story = Story(rules, start_s)
    story.requests_nodes = np.ones(4, dtype=bool)
    begin_s = np.array([[start_s + 250.0], [np.nan], [np.nan], [np.nan]])
    story.schedule = Schedule(begin_s, begin_s + 600.0, np.full((4, 1), 50.0), np.full((4, 1), np.nan))
    for step in range(30):
        count = np.array(
            [1.0 + step, min(1.0 + step, 4.0), 1.0 + step, 0.0, 0.0, 1.0 + step, np.nan, 1.0 + step, np.nan]
        )
        waiting = 5.0 * (step < 20)
        pods = fleet(
            [5, 1, 1, 0],
            [0, 1, 1, 0],
            replicas=[5, 2, 4 if step == 10 else 3, 0],
            starting_since_s=start_s,
            created_s=start_s - 1000.0,
            pools=(Pool("nvidia.com/gpu", "H100", grows="pool=gpu"),),
            pod_pending=np.array([PendingCause.NONE] * 8 + [PendingCause.CRASH_LOOP]),
        )
        story.tick(
            pods,
            running=np.array([20.0, 20.0, 20.0, 0.0, 0.0, 20.0, 20.0, 20.0, 20.0]),
            asleep=np.array([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
            waiting=np.array([waiting, 5.0 + step, 10.0, 0.0, 0.0, 5.0, np.nan, waiting, np.nan]),
            gateway_waiting=0.0,
            gateway_arrivals_per_s=np.array([0.0, 0.0, 0.0, 1.0]),
            generation_tokens=2000.0 * count,
            first_tokens=10.0 * count,
            finished=10.0 * count,
            prompt_tokens=900.0 * count,
            gap_s=40.0 * count,
            gaps=2000.0 * count,
            rejections=count,
        )
    return story


def test_columns_that_move_with_the_clock_are_timestamps():
    shift_s = 201_600.0
    before, after = columns(busy_story(1000.0).memory), columns(busy_story(1000.0 + shift_s).memory)
    shown = set()
    for (place, column, is_moment), (_, moved, _) in zip(before, after, strict=True):
        expected = column + shift_s if is_moment else column
        np.testing.assert_allclose(moved, expected, rtol=1e-6, atol=1e-6, err_msg=place)
        shown |= {place} if is_moment and not np.isnan(column).all() else set()
    assert shown == {place for place, is_moment in IS_MOMENT.items() if is_moment}, "a story that shows all moments"


def filled(seen: Fleet, seed: int) -> Memory:
    """A memory of these workloads whose numbers are all different."""
    random = np.random.default_rng(seed)

    def fill(table):
        return table.with_columns({n: random.random(c.shape).astype(c.dtype) for n, c in table.columns().items()})

    memory = align(Memory.empty(), seen)
    signature = np.full(len(seen.workloads), SIGNATURE)
    strategies = replace(fill(memory.planner.strategies), signature=signature)
    idle_timeouts = fill(memory.planner.idle_timeouts)
    planner = replace(memory.planner, idle_timeouts=idle_timeouts).with_strategies(strategies)
    return replace(memory, workloads=fill(memory.workloads), planner=planner)


def workloads(names: list[int]) -> tuple[Workload, ...]:
    return tuple(Workload(WorkloadRef("ns", f"w{name}"), uid=f"uid-{name}") for name in names)


def cluster(names: list[int], first_id: int = 7) -> Fleet:
    """A fleet of these workloads without pods, numbered by another process."""
    rows = len(names)
    return replace(fleet([0] * rows), workloads=workloads(names), workload_id=first_id + 3 * np.arange(rows))


names = st.lists(st.integers(0, 20), unique=True, max_size=8)


@given(names, names, st.integers(0, 2**32 - 1), st.floats(0, 40_000))
def test_restore_gives_each_workload_its_own_columns(before, after, seed, away_s):
    saved = snapshot.take(filled(cluster(before, 2), seed), workloads(before), NOW_S, SAVED_S)
    own = filled(cluster(after), seed + 1)
    there, count = snapshot.restore(saved, own, cluster(after), LATER_S, SAVED_S + away_s)

    assert count == len(set(before) & set(after))
    taken = [snapshot.take(memory, workloads(after), LATER_S, SAVED_S) for memory in (own, there)]
    mine, now = (each.columns for each in taken)
    assert saved.columns.keys() == mine.keys() == now.keys()
    rows_before, rows = (
        [int(name.removeprefix("w")) for _, _, name, _ in each.workloads] for each in (saved, taken[0])
    )
    assert (sorted(rows_before), sorted(rows)) == (sorted(before), sorted(after))
    for stored, column in now.items():
        place = snapshot.SCHEMA[stored]
        for row, name in enumerate(rows):
            if name in before:
                expected = saved.columns[stored][..., rows_before.index(name)] + (away_s if IS_MOMENT[place] else 0.0)
            else:
                expected = mine[stored][..., row]
            np.testing.assert_allclose(column[..., row], expected, rtol=1e-6, atol=1e-6, err_msg=place)
        assert column.dtype == snapshot.blank()[stored].dtype, place
    for one, other in (
        (there.workloads, own.workloads),
        (there.planner.strategies, own.planner.strategies),
    ):
        for name in marked(type(one), TRANSIENT):
            np.testing.assert_array_equal(one.columns()[name], other.columns()[name], err_msg=name)
            assert one.columns()[name].dtype == other.columns()[name].dtype, name


@pytest.mark.parametrize("missing", ["", "strategies.signature", "shadow_fleets.replica_s"])
def test_strategy_columns_begin_again_when_strategies_changed(missing):
    """An upgrade changes the strategy set. Files leave out columns of another shape."""
    saved, own = snapshot.take(filled(cluster([1]), 2), workloads([1]), NOW_S, SAVED_S), filled(cluster([1]), 3)
    columns = dict(saved.columns)
    if missing:
        del columns[missing]
    else:
        columns[snapshot.SIGNATURE] = columns[snapshot.SIGNATURE] + 1
    there, count = snapshot.restore(replace(saved, columns=columns), own, cluster([1]), LATER_S, SAVED_S)
    assert count == 1
    restored, before = there.planner.strategies, own.planner.strategies
    for name in marked(StrategyState, PER_STRATEGY_SET):
        np.testing.assert_array_equal(restored.columns()[name], before.columns()[name], err_msg=name)
    np.testing.assert_array_equal(restored.speed.step_sums, saved.columns["replica.step_time_sums"])
    # New shadow fleets would keep the initial fleet of another day for ten cold starts.
    np.testing.assert_array_equal(restored.initial_fleet, before.initial_fleet)


def test_misses_by_load_are_stored_as_one_sum():
    what = filled(cluster([1]), 1)
    saved = snapshot.take(what, workloads([1]), NOW_S, SAVED_S)
    there, _ = snapshot.restore(saved, Memory.empty(), cluster([1]), NOW_S, SAVED_S)
    restored, before = there.planner.strategies.shadow, what.planner.strategies.shadow
    for name in ("queue_missed", "missed"):
        np.testing.assert_array_equal(getattr(restored, name), before.missed)
    assert (restored.missed > 0).any()
    assert not restored.queue_sum.any()


def test_an_object_made_again_under_its_name_is_a_stranger():
    what = snapshot.take(filled(cluster([1]), 1), workloads([1]), NOW_S, SAVED_S)
    again = replace(cluster([1]), workloads=(Workload(WorkloadRef("ns", "w1"), uid="another"),))
    assert snapshot.restore(what, Memory.empty(), again, LATER_S, SAVED_S)[1] == 0


def test_timestamps_are_not_in_the_future_after_a_clock_reset():
    what = snapshot.take(filled(cluster([1]), 1), workloads([1]), NOW_S, SAVED_S)
    back, known = snapshot.restore(what, Memory.empty(), cluster([1]), LATER_S, SAVED_S - 7200.0)
    assert known
    for place, column, is_moment in columns(back):
        assert not is_moment or not (column > LATER_S).any(), place


def restarted(story: Story, cluster, away_s: float, *, restored_state: bool = True) -> Story:
    """Return the same workloads in a process that starts `away_s` later, with a clock of its own."""
    what = snapshot.take(story.memory, cluster.workloads, story.now_s, SAVED_S)
    later = copy(story)
    later.now_s, later.memory = LATER_S, Memory.empty()
    if restored_state:
        later.memory, _ = snapshot.restore(what, Memory.empty(), cluster, LATER_S, SAVED_S + away_s)
    return later


def on_clock(cluster, moved_s: float):
    """The same pods as a process sees them whose clock shows `moved_s` more."""
    times = ("created", "scheduled", "started", "ready")
    return replace(cluster, **{f"pod_{name}_s": getattr(cluster, f"pod_{name}_s") + moved_s for name in times})


def test_capacity_and_cold_start_survive_a_restart():
    rules = spec(concurrency=np.nan)
    story = Story(rules)
    story.watch(fleet([1], created_s=600.0), 60.0, running=12.0)
    three = fleet([1], [2], created_s=600.0, starting_since_s=story.now_s)
    story.watch(three, 90.0, running=12.0, waiting=8.0)
    served = fleet([3], created_s=story.now_s - 90.0)
    story.watch(served, 300.0, running=12.0, waiting=4.0)
    learned = story.memory.workloads
    assert learned.capacity.concurrency[0] == pytest.approx(12.0, abs=1.0)

    away_s = 30.0
    same = on_clock(served, LATER_S - away_s - story.now_s)
    later = restarted(story, same, away_s)
    decision = later.tick(same, running=12.0)
    lasting = ("concurrency", "learned_s", "decode_tokens_per_s")
    for place in [f"capacity.{name}" for name in lasting] + [
        "observe.cold_start.mean_s",
        "observe.cold_start.deviation_s",
    ]:
        np.testing.assert_array_equal(later.memory.workloads.columns()[place], learned.columns()[place], err_msg=place)
    assert decision.capacity.confidence[0] > 0.5
    blank = restarted(story, same, away_s, restored_state=False)
    assert blank.tick(same, running=12.0).capacity.confidence[0] == 0.0


def test_a_cold_start_is_learned_when_it_ended_in_a_restart():
    story = Story(spec())
    story.watch(fleet([1], created_s=900.0), 30.0)
    away_s = 200.0
    both = fleet([2])
    born_s = np.array([900.0 + LATER_S - away_s - story.now_s, LATER_S - 150.0])
    both = replace(both, pod_created_s=born_s, pod_ready_s=born_s + np.array([60.0, 100.0]))
    later = restarted(story, both, away_s)
    later.tick(both)
    assert later.memory.workloads.observe.cold_start.mean_s[0] == pytest.approx(60.0 + 40.0 / 4)


def test_nothing_shrinks_for_a_full_window_after_a_restart():
    story = Story(spec(down_stabilization_s=60.0))
    for _ in range(11):  # idle almost long enough to shrink
        assert story.tick(fleet([4]), running=0.0).replicas[0] == 4
    later = restarted(story, fleet([4]), 5.0)
    counts = [later.tick(fleet([4]), running=0.0).replicas[0] for _ in range(14)]
    assert counts[:12] == [4] * 12
    assert counts[-1] == 1


def test_idleness_before_a_restart_does_not_count():
    story = Story(spec(idle_after_s=120.0, down_stabilization_s=0.0, min_replicas=1.0))
    assert story.watch(fleet([1]), 115.0, running=0.0).replicas[0] == 1
    later = restarted(story, fleet([1]), 300.0)
    assert later.watch(fleet([1]), 110.0, running=0.0).replicas[0] == 1
    assert later.watch(fleet([1]), 30.0, running=0.0).replicas[0] == 0


def test_planner_recommends_the_same_soon_after_a_restart():
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    story.serve(cluster, 0.1, 900.0)
    before = story.serve(cluster, 1.2, 3600.0)
    assert before.recommendations[Signal.PLANNER, 0] > 0

    blank = restarted(story, cluster, 30.0, restored_state=False).serve(cluster, 1.2, UPDATE_INTERVAL_S)
    assert np.isnan(blank.recommendations[Signal.PLANNER, 0])
    later = restarted(story, cluster, 30.0)
    assert np.isnan(later.serve(cluster, 1.2, 5.0).recommendations[Signal.PLANNER, 0])
    after = later.serve(cluster, 1.2, UPDATE_INTERVAL_S - 5.0)
    for name in ("replicas", "idle_gap_s", "missed_fraction"):
        assert getattr(after.plan, name)[0] == pytest.approx(getattr(before.plan, name)[0], rel=0.01), name
    assert after.plan.demand[0] == pytest.approx(1.2, rel=0.05)
    assert after.recommendations[Signal.PLANNER, 0] == before.recommendations[Signal.PLANNER, 0]
    assert later.serve(cluster, 1.2, UPDATE_INTERVAL_S).plan.observed_s[0] > before.plan.observed_s[0]


@cache
def story_with_misses():
    story, cluster = Serving(spec(**LEARNED)), fleet([2])
    story.learn(cluster)
    assert story.serve(cluster, 1.2, 3600.0, late=0.3).plan.missed_fraction[0] > 0.25
    return story, cluster


@pytest.mark.parametrize("changed", [{}, {"ttft_objective_s": 2.0}, {"itl_objective_s": 0.2}])
def test_misses_are_forgotten_when_the_objective_changed(changed):
    story, cluster = story_with_misses()
    later = restarted(deepcopy(story), cluster, 30.0)
    later.spec = spec(**(LEARNED | changed))
    missed = later.serve(cluster, 1.2, 2 * UPDATE_INTERVAL_S).plan.missed_fraction[0]
    assert missed == 0 if changed else missed > 0.25


def test_pod_counters_are_not_stored():
    story = busy_story(1000.0)
    pods = fleet([2, 1], [0, 1])
    later = restarted(story, pods, 10.0)
    untouched = PodState.blank(len(pods.pods))
    np.testing.assert_array_equal(later.memory.pods.readings.counter, untouched.readings.counter)
    np.testing.assert_array_equal(later.memory.pods.readings.time_s, untouched.readings.time_s)
