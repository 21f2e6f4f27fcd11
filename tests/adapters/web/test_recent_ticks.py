"""The recent past in columns: rows follow the fleet, and memory is bounded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.web.recent_ticks import MAX_BYTES, MAX_TICKS, History
from tests.adapters.web.records import World, workloads


def world_of(ids: list[int], everybody: tuple, seed: int = 1) -> World:
    """Return a world of those workloads out of everybody, by id."""
    world = World(tuple(everybody[i] for i in ids), seed)
    world.ids = np.array(ids, dtype=np.int64)
    return world


@pytest.mark.slow
def test_the_oldest_ticks_are_forgotten_first() -> None:
    history, world = History(), World(2)
    ticks = world.ticks(MAX_TICKS + 30)
    for tick in ticks:
        history.record(tick)
    series = history.of(1)
    assert series["tick"] == list(range(30, MAX_TICKS + 30))
    assert series["wanted"] == [tick.decision.replicas[1] for tick in ticks[30:]]
    np.testing.assert_allclose(series["busy"], [tick.decision.plan.demand[1] for tick in ticks[30:]], atol=1e-4)
    np.testing.assert_allclose(series["running"], [tick.decision.observation.running[1] for tick in ticks[30:]], atol=1)
    assert series["wall_s"] == [tick.wall_s for tick in ticks[30:]]


def test_history_is_read_by_tick_when_the_wall_clock_steps_back() -> None:
    history = History()
    first, second = World(1).tick(), World(1)
    history.record(first)
    second.number = 1
    later = second.tick()
    object.__setattr__(later, "wall_s", first.wall_s - 3600)
    history.record(later)
    assert history.of(0, since=0)["wall_s"] == [first.wall_s - 3600]


@pytest.mark.slow
@given(st.lists(st.sets(st.integers(0, 60), min_size=1, max_size=50), min_size=1, max_size=12))
def test_workloads_keep_their_history_when_the_fleet_changes(fleets: list[set[int]]) -> None:
    """Compared with a plain dictionary of lists."""
    everybody, history = workloads(61), History()
    plain: dict[int, dict[int, float]] = {}
    for number, members in enumerate(fleets):
        ids = sorted(members)
        world = world_of(ids, everybody, seed=number)
        world.number = number
        tick = world.tick()
        history.record(tick)
        plain = {i: plain.get(i, {}) | {number: float(tick.decision.observation.waiting[r])} for r, i in enumerate(ids)}
        for row, i in enumerate(ids):
            seen = history.of(row)
            known = {t: v for t, v in zip(seen["tick"], seen["waiting"], strict=True) if not np.isnan(v)}
            assert known == plain[i]


@pytest.mark.parametrize(("count", "at_least"), [(1, 720), (1_000, 720), (10_000, 150)])
def test_memory_stays_within_its_bound_and_keeps_enough_to_draw(count: int, at_least: int) -> None:
    history = History()
    history.record(World(count).tick())
    assert history.nbytes <= MAX_BYTES
    assert at_least <= history.ticks <= MAX_TICKS


def test_a_fleet_that_shrinks_gives_its_memory_back() -> None:
    history, everybody = History(), workloads(4_000)
    history.record(world_of(list(range(4_000)), everybody).tick())
    large = history.nbytes
    history.record(world_of([7], everybody).tick())
    assert history.nbytes < large / 10
    assert len(history.of(0)["tick"]) == 2


def test_a_fleet_without_workloads_is_recorded() -> None:
    history = History()
    history.record(World(()).tick())
    history.record(World(2).tick())
    assert len(history.of(1)["tick"]) == 2
