"""What outlives a process, and what must not."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core import kept
from autoscaler.core.columns import moments
from autoscaler.core.fleet import Workload, WorkloadRef
from autoscaler.core.memory import PRESENT, Memory, PodMemory, WorkloadMemory
from tests.core.world import Story, fleet, spec

DURATIONS = {
    "arrivals_per_s",
    "cold_start_deviation_s",
    "cold_start_mean_s",
    "decode_tokens_per_s",
    "learned_s",
    "loaded_idle_s",
    "pods.observed_s",
}
"""Columns of memory that end in `_s` and are no moments: every other one must be a MomentColumn."""

NOW_S, LATER_S = 1_000.0, 50_000.0  # on the clocks of two processes
SAVED_S = 1_800_000_000.0  # Unix time


def tables(value, name=""):
    """Yield every table of memory with its name, nested ones too."""
    for field in fields(value):
        part = getattr(value, field.name)
        if is_dataclass(part):
            place = f"{name}.{field.name}".strip(".")
            yield place, part
            yield from tables(part, place)


MOMENTS = {type(table): moments(type(table)) for _, table in tables(Memory.empty())}


def columns(memory):
    """Every column of memory by its place."""
    return {
        f"{name}.{field.name}": (getattr(table, field.name), field.name in MOMENTS[type(table)])
        for name, table in tables(memory)
        for field in fields(table)
        if not is_dataclass(getattr(table, field.name))
    }


def test_every_part_of_memory_is_a_table_or_the_ids_of_one():
    assert {field.name for field in fields(Memory)} - {"workload_id", "pod_id"} == {
        name for name, _ in tables(Memory.empty()) if "." not in name
    }


@pytest.mark.parametrize("place", [place for place in columns(Memory.empty()) if place.endswith("_s")])
def test_a_column_of_seconds_is_declared_a_moment_or_known_as_a_duration(place: str):
    _, is_moment = columns(Memory.empty())[place]
    known = place in DURATIONS or place.rpartition(".")[2] in DURATIONS
    assert is_moment != known, f"{place}: declare it a MomentColumn, or name it among DURATIONS"


def busy_story(start_s: float) -> Story:
    """A while of load, queue, growth and rest, on clocks that differ by a multiple of every slot of a window."""
    rules = spec(2, concurrency=np.nan, up_stabilization_s=30.0, down_stabilization_s=60.0)
    story = Story(rules, start_s)
    for step in range(30):
        count = 1.0 + step
        pods = fleet([2, 1], [0, 1], starting_since_s=start_s, created_s=start_s - 1000.0)
        story.tick(
            pods,
            running=20.0,
            waiting=5.0 if step < 20 else 0.0,
            generation_tokens=2000.0 * count,
            first_tokens=10.0 * count,
            finished=10.0 * count,
            prompt_tokens=900.0 * count,
        )
    return story


def test_columns_that_move_with_the_clock_are_those_declared_as_moments():
    shift_s = 64_000.0
    before, after = columns(busy_story(1000.0).memory), columns(busy_story(1000.0 + shift_s).memory)
    for place, (column, is_moment) in before.items():
        moved = after[place][0]
        np.testing.assert_allclose(
            moved, column + shift_s if is_moment else column, rtol=1e-6, atol=1e-6, err_msg=place
        )
        if is_moment:
            assert not np.isnan(column).all(), f"{place}: this story does not show that it is a moment"


def filled(rows: int, seed: int) -> Memory:
    """A memory of numbers that are all different."""
    random = np.random.default_rng(seed)

    def fill(table):
        made = {}
        for field in fields(table):
            value = getattr(table, field.name)
            made[field.name] = fill(value) if is_dataclass(value) else random.random(value.shape).astype(value.dtype)
        return type(table)(**made)

    ids = np.arange(rows, dtype=np.int64)
    blank = {
        field.name: type(getattr(Memory.empty(), field.name)).blank(0 if field.name == "pods" else rows)
        for field in fields(Memory)
        if is_dataclass(getattr(Memory.empty(), field.name))
    }
    return Memory(workload_id=ids, pod_id=ids[:0], **{name: fill(table) for name, table in blank.items()})


def workloads(names: list[int]) -> tuple[Workload, ...]:
    return tuple(Workload(WorkloadRef("ns", f"w{name}"), uid=f"uid-{name}") for name in names)


def cluster(names: list[int]):
    """A fleet of these workloads without pods, numbered by another process."""
    rows = len(names)
    return replace(fleet([0] * rows), workloads=workloads(names), workload_id=7 + 3 * np.arange(rows))


names = st.lists(st.integers(0, 20), unique=True, max_size=8)


@settings(max_examples=40, deadline=None)
@given(names, names, st.integers(0, 2**32 - 1), st.floats(0, 40_000))
def test_every_workload_gets_back_what_was_its_own_and_strangers_keep_theirs(before, after, seed, away_s):
    saved = filled(len(before), seed)
    what = kept.keep(saved, workloads(before), NOW_S, SAVED_S)
    own = replace(filled(len(after), seed + 1), workload_id=cluster(after).workload_id)
    there, count = kept.recall(what, own, cluster(after), LATER_S, SAVED_S + away_s)

    assert count == len(set(before) & set(after))
    old, mine, now = columns(saved), columns(own), columns(there)
    assert set(what.columns) <= set(old)
    for place, (column, is_moment) in now.items():
        for row, name in enumerate(after if not place.startswith("pods.") else []):
            if name in before and place in what.columns:
                value = old[place][0][..., before.index(name)]
                expected = LATER_S - away_s - (NOW_S - value) if is_moment else value
            else:
                expected = mine[place][0][..., row]
            np.testing.assert_allclose(column[..., row], expected, rtol=1e-6, atol=1e-6, err_msg=place)


def test_all_that_is_learned_is_kept_and_nothing_of_the_present():
    places = set(kept.blank())
    learned = {field.name for field in fields(WorkloadMemory)} - PRESENT
    assert {place.split(".")[1] for place in places if place.startswith("workloads.")} == learned
    assert not any(place.startswith("pods.") for place in places)
    assert {field.name for field in fields(WorkloadMemory)} >= PRESENT


def test_an_object_made_again_under_its_name_is_a_stranger():
    what = kept.keep(filled(1, 1), workloads([1]), NOW_S, SAVED_S)
    again = replace(cluster([1]), workloads=(Workload(WorkloadRef("ns", "w1"), uid="another"),))
    assert kept.recall(what, Memory.empty(), again, LATER_S, SAVED_S)[1] == 0


def test_a_wall_clock_that_was_set_back_puts_nothing_into_the_future():
    story = Story(spec())
    story.watch(fleet([1]), 60.0)
    what = kept.keep(story.memory, fleet([1]).workloads, story.now_s, SAVED_S)
    back, _ = kept.recall(what, Memory.empty(), fleet([1]), LATER_S, SAVED_S - 7200.0)
    for place, (column, is_moment) in columns(back).items():
        assert not is_moment or not (column > LATER_S).any(), place


def restarted(story: Story, cluster, away_s: float, *, recalled: bool = True) -> Story:
    """The same workloads in the hands of a process that starts `away_s` later, with a clock of its own."""
    what = kept.keep(story.memory, cluster.workloads, story.now_s, SAVED_S)
    later = Story(story.spec, LATER_S)
    if recalled:
        later.memory, _ = kept.recall(what, Memory.empty(), cluster, LATER_S, SAVED_S + away_s)
    return later


def on_clock(cluster, moved_s: float):
    """The same pods as a process sees them whose clock shows `moved_s` more."""
    times = ("created", "scheduled", "started", "ready")
    return replace(cluster, **{f"pod_{name}_s": getattr(cluster, f"pod_{name}_s") + moved_s for name in times})


def test_capacity_and_cold_start_are_the_same_after_a_restart_and_its_first_ticks():
    rules = spec(concurrency=np.nan)
    story = Story(rules)
    story.watch(fleet([1], created_s=600.0), 60.0, running=12.0)
    three = fleet([1], [2], created_s=600.0, starting_since_s=story.now_s)
    story.watch(three, 90.0, running=12.0, waiting=8.0)
    served = fleet([3], created_s=story.now_s - 90.0)
    story.watch(served, 300.0, running=12.0, waiting=4.0)
    learned = story.memory.workloads
    assert learned.concurrency[0] == pytest.approx(12.0, abs=1.0)

    away_s = 30.0
    same = on_clock(served, LATER_S - away_s - story.now_s)
    later = restarted(story, same, away_s)
    decision = later.tick(same, running=12.0)
    for name in ("concurrency", "learned_s", "cold_start_mean_s", "cold_start_deviation_s", "decode_tokens_per_s"):
        np.testing.assert_array_equal(getattr(later.memory.workloads, name), getattr(learned, name), err_msg=name)
    assert decision.capacity.confidence[0] > 0.5
    blank = restarted(story, same, away_s, recalled=False)
    assert blank.tick(same, running=12.0).capacity.confidence[0] == 0.0


def test_a_pod_that_became_ready_meanwhile_still_teaches_its_cold_start():
    story = Story(spec())
    story.watch(fleet([1], created_s=900.0), 30.0)
    away_s = 200.0
    both = fleet([2])
    born_s = np.array([900.0 + LATER_S - away_s - story.now_s, LATER_S - 150.0])
    both = replace(both, pod_created_s=born_s, pod_ready_s=born_s + np.array([60.0, 100.0]))
    later = restarted(story, both, away_s)
    later.tick(both)
    assert later.memory.workloads.cold_start_mean_s[0] == pytest.approx(60.0 + 40.0 / 4)


def test_nothing_shrinks_for_a_restart_before_a_full_window_was_watched_again():
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


def test_pods_are_not_kept_and_give_their_rates_with_the_second_reading():
    story = busy_story(1000.0)
    pods = fleet([2, 1], [0, 1])
    later = restarted(story, pods, 10.0)
    untouched = PodMemory.blank(len(pods.pods))
    np.testing.assert_array_equal(later.memory.pods.counter, untouched.counter)
    np.testing.assert_array_equal(later.memory.pods.time_s, untouched.time_s)
