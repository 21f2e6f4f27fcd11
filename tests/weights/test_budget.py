"""Room for a model: the least recently used goes, never more than necessary, and never what is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.weights.budget import (
    Files,
    HeldItem,
    Limits,
    RoomPlan,
    Space,
    UnwishedModel,
    judge,
    make_room,
    room_for_pods,
    trim,
)

INF = float("inf")

files: st.SearchStrategy[Files] = st.dictionaries(st.sampled_from("abcdefgh"), st.just(10), max_size=5)
held = st.lists(
    st.tuples(files, st.integers(0, 5), st.booleans()).map(lambda each: HeldItem("", each[0], float(each[1]), each[2])),
    max_size=6,
).map(lambda found: tuple(each._replace(name=str(number)) for number, each in enumerate(found)))
spaces = st.builds(Space, held, st.integers(-20, 80).map(float), st.sampled_from([INF, 0.0, 20.0, 40.0, 60.0]))


def on_disk(each: tuple[HeldItem, ...]) -> set[str]:
    return {name for one in each for name in one.files}


def fits(wished: Files, there: int, space: Space, evicted: tuple[HeldItem, ...]) -> bool:
    """State the two limits in another way: with sets of files of ten bytes."""
    left = on_disk(tuple(each for each in space.held if each not in evicted))
    freed = 10 * len(on_disk(space.held) - left)
    fetched = max(10 * len(wished.keys() - left) - there, 0)
    return 10 * len(left | wished.keys()) <= space.max_bytes and fetched <= space.free_bytes + freed


@given(files, st.integers(0, 30), spaces)
def test_what_is_evicted_is_enough_and_no_more(wished: Files, there: int, space: Space) -> None:
    plan = make_room(wished, there, space)
    assert not any(each.kept for each in plan.evicted)
    if plan.missing_bytes > 0:
        assert not plan.evicted
        assert not fits(wished, there, space, tuple(each for each in space.held if not each.kept))
        return
    assert fits(wished, there, space, plan.evicted)
    for each in plan.evicted:
        assert not fits(wished, there, space, tuple(other for other in plan.evicted if other is not each))


@given(files, spaces)
def test_order_of_the_folder_does_not_matter(wished: Files, space: Space) -> None:
    turned = space._replace(held=space.held[::-1])
    names = {each.name for each in make_room(wished, 0, space).evicted}
    assert names == {each.name for each in make_room(wished, 0, turned).evicted}


def one(name: str, size: int, used_s: float, kept: bool = False) -> HeldItem:
    return HeldItem(name, {name: size}, used_s, kept)


def test_least_recently_used_goes_first() -> None:
    space = Space((one("old", 40, 1.0), one("new", 40, 2.0), one("used", 40, 0.0, True)), INF, 150.0)
    assert [each.name for each in make_room({"x": 40}, 0, space).evicted] == ["old"]
    assert [each.name for each in make_room({"x": 100}, 0, space).evicted] == ["old", "new"]
    assert make_room({"x": 30}, 0, space) == RoomPlan()


def test_too_large_model_evicts_nothing() -> None:
    space = Space((one("old", 40, 1.0), one("used", 40, 0.0, True)), INF, 100.0)
    assert make_room({"x": 70}, 0, space) == RoomPlan((), 10.0)


def test_small_old_model_stays_if_a_large_one_has_to_go() -> None:
    space = Space((one("small", 5, 1.0), one("large", 90, 2.0)), INF, 100.0)
    assert [each.name for each in make_room({"x": 95}, 0, space).evicted] == ["large"]


def test_shared_file_counts_once_and_goes_with_its_last_model() -> None:
    first, second = HeldItem("1", {"base": 50, "a": 5}, 1.0, False), HeldItem("2", {"base": 50, "b": 5}, 2.0, False)
    space = Space((first, second), INF, 100.0)
    assert space.held_bytes == 60
    assert make_room({"x": 40}, 0, space) == RoomPlan()
    assert len(make_room({"x": 60}, 0, space).evicted) == 2
    assert make_room({"base": 50, "c": 40}, 0, space) == RoomPlan()


def test_bytes_of_an_earlier_transfer_need_no_room() -> None:
    assert make_room({"x": 90}, 60, Space((), 30.0, INF)) == RoomPlan()
    assert make_room({"x": 90}, 50, Space((), 30.0, INF)) == RoomPlan((), 10.0)


def test_free_space_has_a_floor_in_bytes_and_as_a_share() -> None:
    assert Limits().free_floor(1000) == 50
    assert Limits(min_free_bytes=300).free_floor(1000) == 300
    assert Space((one("a", 40, 0.0),), 10.0, INF).budget_bytes == 50
    assert Space((one("a", 40, 0.0),), 10.0, 45.0).budget_bytes == 45


def test_least_recently_used_goes_when_a_kind_exceeds_its_share() -> None:
    found = [one("old", 40, 1.0), one("used", 40, 0.0, True), one("new", 40, 2.0)]
    assert [each.name for each in trim(found, 100.0)] == ["old"]
    assert [each.name for each in trim(found, 10.0)] == ["old", "new"]
    assert trim(found, 120.0) == []


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.frozensets(st.sampled_from("abcdef")), st.integers(0, 6))
def test_only_what_is_less_urgent_may_go(wished: list[str], never: frozenset[str], rank: int) -> None:
    judged = {each.name: each for each in judge([one(name, 1, 0.0) for name in "abcdef"], wished, never, rank)}
    for name, each in judged.items():
        more_urgent = name in wished[: rank + 1]
        assert each.kept == (name in never or more_urgent)
    order = make_room({"x": 6}, 0, Space(tuple(judged.values()), INF, 6.0)).evicted
    if order:
        assert {each.name for each in order} == set("abcdef")
    first = make_room({"x": 1}, 0, Space(tuple(judged.values()), INF, 6.0)).evicted
    movable = [each for each in judged.values() if not each.kept]
    assert [each.rank for each in first] == [max(each.rank for each in movable)] if movable else not first


def test_what_nobody_wishes_goes_before_the_last_wish() -> None:
    found = judge([one("last", 40, 1.0), one("first", 40, 0.0), one("old", 40, 2.0)], ["first", "last"], (), 0)
    assert [each.name for each in make_room({"x": 40}, 0, Space(found, INF, 120.0)).evicted] == ["old"]
    assert [each.name for each in make_room({"x": 80}, 0, Space(found, INF, 120.0)).evicted] == ["old", "last"]
    assert make_room({"x": 120}, 0, Space(found, INF, 120.0)).missing_bytes == 40


@pytest.mark.parametrize(
    ("namespaces", "present", "wished", "room"),
    [
        (["a"], [], 0, 50),  # half of the budget
        (["a"], [UnwishedModel(30, ["a"])], 0, 20),
        (["b"], [UnwishedModel(50, ["a"])], 0, 25),  # three quarters of all pods
        (["b"], [UnwishedModel(50, ["a"])], 40, 10),  # and what wishes leave
        (["a", "b"], [UnwishedModel(50, ["a"])], 0, 25),
        (["a"], [UnwishedModel(10, ["a", "b"])], 0, 40),
        (["c"], [UnwishedModel(40, ["a"]), UnwishedModel(40, ["b"])], 0, 0),
        ([], [UnwishedModel(70, [])], 0, 5),
        (["a"], [], 120, 0),
    ],
)
def test_pods_get_the_room_that_wishes_and_others_leave(
    namespaces: list[str], present: list[UnwishedModel], wished: int, room: float
) -> None:
    assert room_for_pods(namespaces, present, wished, 100.0) == room
