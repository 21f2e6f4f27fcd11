"""Plans of weights: examples, and properties of any plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.wishes.parts import MOST_COPIES
from tests.core.wishes.fleets import Case, bytes_used, case, fleet


def nodes_of(copies: np.ndarray, model: int = 0) -> list[int]:
    return np.flatnonzero(copies[model]).tolist()


def test_model_gets_nodes_for_all_places_that_replicas_need():
    found = case([10], [5], [100] * 4, free=[[2, 2, 2, 2]]).plan()
    assert len(nodes_of(found.copies)) == 3
    assert found.missing.tolist() == [0]


def test_nodes_that_hold_the_weights_come_first():
    found = case([10], [2], [100] * 4, held=[(0, 1), (0, 3)]).plan()
    assert nodes_of(found.copies) == [1, 3]


def test_places_of_its_own_pods_count():
    found = case([10], [2], [100] * 3, free=[[0, 0, 0]], running=[(0, 2, 2.0)]).plan()
    assert nodes_of(found.is_needed) == [2]


def test_copies_are_spread_over_zones():
    seen = case([10], [4], [100] * 8, zones=[0, 0, 0, 0, 0, 0, 1, 1])
    found = seen.plan()
    assert np.bincount(seen.nodes.zone[nodes_of(found.copies)]).tolist() == [2, 2]


def test_second_zone_gets_a_copy_where_one_node_has_all_places():
    seen = case([10], [1], [100] * 4, free=[[8, 8, 1, 1]], zones=[0, 0, 1, 1])
    found = seen.plan()
    assert sorted(seen.nodes.zone[nodes_of(found.copies)].tolist()) == [0, 1]


def test_spare_copy_makes_way_for_a_needed_one():
    seen = case([60, 60], [1, 2], [100, 100], held=[(0, 0), (0, 1)], before=[(0, 0), (0, 1)])
    found = seen.plan()
    assert (len(nodes_of(found.copies, 0)), len(nodes_of(found.copies, 1))) == (1, 1)
    assert found.missing.tolist() == [0, 1]


def test_pinned_model_takes_the_room_of_others():
    seen = case([60, 60], [1, 1], [100], pinned=[1], held=[(0, 0)], before=[(0, 0)])
    assert (nodes_of(seen.plan().copies, 0), nodes_of(seen.plan().copies, 1)) == ([], [0])


@pytest.mark.parametrize("pinned", [[], [1]])
def test_no_model_takes_the_room_of_weights_that_a_pod_uses(pinned: list[int]):
    """No agent removes them, so that the room would exist in the plan only."""
    before = [(0, 0), (0, 1)]
    seen = case([60, 60], [1, 1], [100] * 2, pinned=pinned, held=before, before=before, running=[(0, 0, 1.0)])
    assert nodes_of(seen.plan().copies, 1) == [1]
    full = case([60, 60], [0, 1], [100], pinned=pinned, held=before[:1], before=before[:1], running=[(0, 0, 1.0)])
    assert full.plan().missing.tolist() == [0, 1]


def test_higher_priority_gets_the_last_room_when_both_are_new():
    assert nodes_of(case([60, 60], [1, 1], [100], priority=[0, 10]).plan().copies, 1) == [0]


def test_held_copies_stay_and_unfetched_go_when_load_falls():
    before = [(0, node) for node in range(6)]
    seen = case([10], [1], [100] * 6, held=before[:4], before=before, zones=[0, 1, 0, 1, 0, 1])
    assert nodes_of(seen.plan().copies) == [0, 1, 2, 3]


def test_workload_without_a_place_on_a_node_keeps_no_copy_there():
    """Two workloads share a model. The second fits on none of these nodes, so it lacks places whatever happens."""
    free = [[1, 1, 1, 1], [0, 0, 0, 0]]
    seen = case([10, 10], [1, 3], [100] * 4, free=free, before=[(0, node) for node in range(4)])
    seen = seen._replace(demands=replace(seen.demands, model=np.zeros(2, dtype=np.int64)))
    assert len(nodes_of(seen.plan().copies)) == 2


def test_node_whose_budget_shrank_keeps_what_fits():
    before = [(model, 0) for model in range(4)]
    seen = case([30] * 4, [1] * 4, [70], before=before, held=before, priority=[3, 1, 2, 0])
    assert np.flatnonzero(seen.plan().copies[:, 0]).tolist() == [0, 2]


def test_closed_node_gets_no_new_copy_and_keeps_its_own():
    seen = case([10, 10], [1, 1], [100, 100], closed=[0], before=[(0, 0)], held=[(0, 0)])
    found = seen.plan()
    assert 0 in nodes_of(found.copies, 0)
    assert nodes_of(found.copies, 1) == [1]


def test_too_large_model_is_planned_nowhere():
    found = case([200, 10], [1, 1], [100, 100]).plan()
    assert nodes_of(found.copies, 0) == []
    assert found.missing.tolist() == [1, 0]


def test_copies_of_a_node_are_bounded():
    seen = case([1] * 100, [1] * 100, [1000])
    assert seen.plan().copies[:, 0].sum() == MOST_COPIES


def test_spare_copies_keep_no_needed_one_out_by_their_number():
    tiny = [(model, 0) for model in range(MOST_COPIES)]
    seen = case([1] * MOST_COPIES + [10], [0] * MOST_COPIES + [1], [1000], held=tiny, before=tiny)
    found = seen.plan()
    assert nodes_of(found.copies, MOST_COPIES) == [0]
    assert found.copies.sum() == MOST_COPIES


TINY = MOST_COPIES + 6  # models of a namespace beside one of a neighbour, which is the last


@pytest.mark.parametrize("use", ["new", "planned", "run"])
def test_tiny_models_of_a_namespace_leave_labels_to_others(use: str):
    """All are needed. A node has a label for each planned model, and for no others where there are too many."""
    tiny = [(model, 0) for model in range(TINY)]
    before = tiny[:MOST_COPIES] if use != "new" else []
    seen = case(
        [1] * TINY + [10],
        [1] * (TINY + 1),
        [1000],
        priority=[1] * TINY + [0],
        held=before,
        before=before,
        running=[(*each, 1.0) for each in tiny] if use == "run" else None,
        namespaces=[0] * TINY + [1],
    )
    found = seen.plan()
    assert nodes_of(found.copies, TINY) == [0]
    assert found.copies[:, 0].sum() == MOST_COPIES // 2 + 1


def test_needed_models_of_a_namespace_leave_half_of_a_disk():
    """A namespace came first, and has the higher priority: what it holds beyond half makes way for a neighbour."""
    before = [(model, 0) for model in range(9)]
    seen = case(
        [10] * 9 + [40, 20],
        [1] * 11,
        [100],
        priority=[1] * 9 + [0, 0],
        held=before,
        before=before,
        namespaces=[0] * 9 + [1, 1],
    )
    found = seen.plan()
    assert nodes_of(found.copies, 9) == [0]
    assert found.copies[:9, 0].sum() == 6
    assert nodes_of(found.copies, 10) == [], "the neighbour would hold more than half by it"
    assert case([10] * 10, [1] * 10, [100]).plan().copies.all(), "one namespace alone has the whole disk"


def test_spare_models_of_a_namespace_leave_half_of_a_disk():
    seen = case([10] * 10, [0] * 10, [100], spare=[1] * 10, namespaces=[0] * 9 + [1])
    found = seen.plan()
    assert (found.copies[:9].sum(), found.copies[9].sum()) == (5, 1)
    assert case([90, 10], [0, 0], [100], namespaces=[0, 1]).plan().copies.all(), "a large model may be alone"


def test_namespaces_on_other_nodes_take_no_share():
    """Pods of the neighbour run on the second node alone, so the first has room for a spare copy of each model."""
    seen = case([40, 40, 40], [0, 0, 0], [100, 100], namespaces=[0, 0, 1])
    admits = np.array([[True, False], [True, False], [False, True]])
    found = seen._replace(nodes=replace(seen.nodes, admits=admits)).plan()
    assert found.copies.tolist() == admits.tolist()
    assert case([40, 40, 40], [0, 0, 0], [100], namespaces=[0, 0, 1]).plan().copies.sum() == 2, "they share the node"


def test_namespaces_take_turns_when_their_priorities_are_equal():
    found = case([40] * 4, [1] * 4, [90], namespaces=[0, 0, 0, 1]).plan()
    assert nodes_of(found.copies, 3) == [0]
    assert found.order.tolist().index(3) < 2


def test_no_model_and_no_node_are_planned():
    assert case([], [], [100]).plan().copies.shape == (0, 1)
    assert case([10], [1], []).plan().missing.tolist() == [0]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    models, nodes = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    each = lambda values: draw(st.lists(values, min_size=models, max_size=models))  # noqa: E731
    per_node = lambda values: draw(st.lists(values, min_size=nodes, max_size=nodes))  # noqa: E731
    pairs = st.lists(st.tuples(st.integers(0, models - 1), st.integers(0, nodes - 1)), max_size=12)
    places = st.lists(st.integers(0, 3).map(float), min_size=nodes, max_size=nodes)
    pods = st.tuples(st.integers(0, models - 1), st.integers(0, nodes - 1), st.integers(1, 3).map(float))
    return case(
        each(st.sampled_from([5.0, 10.0, 20.0, 40.0])),
        each(st.integers(0, 6).map(float)),
        per_node(st.sampled_from([0.0, 20.0, 45.0, 100.0])),
        free=each(places),
        zones=per_node(st.integers(0, 2)),
        spare=each(st.integers(0, 3).map(float)),
        pinned=draw(st.lists(st.integers(0, models - 1), max_size=2)),
        priority=each(st.sampled_from([0.0, 1.0])),
        held=draw(pairs),
        before=draw(pairs),
        running=draw(st.lists(pods, max_size=4)),
        closed=draw(st.lists(st.integers(0, nodes - 1), max_size=2)),
        namespaces=each(st.integers(0, 2)),
    )


@pytest.mark.slow
@given(cases())
def test_budgets_are_never_exceeded(seen: Case):
    assert (bytes_used(seen, seen.plan()) <= seen.nodes.budget_bytes).all()


@pytest.mark.slow
@given(cases(), st.integers(0, 1000))
def test_order_of_rows_does_not_matter(seen: Case, seed: int):
    shuffled, models, nodes = seen.shuffled(seed)
    assert (shuffled.plan().copies == seen.plan().copies[np.ix_(models, nodes)]).all()


@pytest.mark.slow
@given(cases())
def test_nothing_changes_without_a_cause(seen: Case):
    first = seen.plan()
    again = seen.plan(before=first.copies)
    assert (again.copies == first.copies).all()
    assert (again.is_needed == first.is_needed).all()


@pytest.mark.slow
@given(cases())
def test_needed_copies_come_before_spare_ones(seen: Case):
    """Where a model lacks needed places, no node with places for it has room, spare copies of others counted out."""
    found = seen.plan()
    for model in np.flatnonzero(found.missing > 0).tolist():
        places = seen.nodes.free[model].copy()
        rows, at, pods = seen.demands.running
        np.add.at(places, at[rows == model], pods[rows == model])
        for node in np.flatnonzero((places > 0) & ~found.copies[model] & seen.nodes.is_open).tolist():
            removable = [
                seen.models.size_bytes[other]
                for other in np.flatnonzero(found.copies[:, node]).tolist()
                if (
                    is_spare(seen, found.copies, other, node)
                    or (seen.models.is_pinned[model] and not seen.models.is_pinned[other])
                )
                and not ((rows == other) & (at == node)).any()
            ]
            room = seen.nodes.budget_bytes[node] - bytes_used(seen, found)[node] + sum(removable)
            assert room < seen.models.size_bytes[model]


def is_spare(seen: Case, copies: np.ndarray, model: int, node: int) -> bool:
    places = seen.nodes.free[model].copy()
    rows, at, pods = seen.demands.running
    np.add.at(places, at[rows == model], pods[rows == model])
    return bool(places[node] == 0 or places @ copies[model] - places[node] >= seen.demands.needed[model])


@pytest.mark.parametrize("seed", [1, 2])
def test_large_fleet_has_places_and_few_moves_when_load_changes(seed: int):
    seen = fleet(120, 300, seed)
    first = seen.plan()
    assert (bytes_used(seen, first) <= seen.nodes.budget_bytes).all()
    assert first.missing.sum() == 0
    grown = np.random.default_rng(seed).random(120) < 0.1
    more = seen.demands.needed + 3 * grown
    changed = seen._replace(
        demands=type(seen.demands)(**{**vars(seen.demands), "needed": more}), held=first.copies, before=first.copies
    )
    second = changed.plan()
    moved = (second.copies != first.copies).sum(axis=1)
    assert not moved[~grown].any(), "only models whose load changed move"
