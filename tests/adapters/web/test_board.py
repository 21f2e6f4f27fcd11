"""What the API is answered from."""

import dataclasses

import numpy as np
import pytest

from autoscaler.adapters.web.board import CHANGES_EACH, FEW, MAX_REASON, Board
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Change, ChangeStatus, Outcome, TickRecord
from tests.adapters.web.records import World, explain


def changes_of(board: Board, row: int) -> list[dict[str, object]]:
    changes: list[dict[str, object]] = board.workload(row)["changes"]
    return changes


def with_outcomes(tick: TickRecord, *outcomes: Outcome) -> TickRecord:
    return dataclasses.replace(tick, outcomes=outcomes)


def outcome(ref: WorkloadRef, before: int, after: int, status: ChangeStatus, reason: str = "because") -> Outcome:
    return Outcome(Change(ref, "", before, after, reason), status, "503" if status is ChangeStatus.FAILED else "")


def test_before_the_first_tick_there_is_no_table_and_nothing_to_tell() -> None:
    board = Board(explain)
    assert board.table() is None
    with pytest.raises(LookupError, match="no tick yet"):
        board.workload(0)


def test_a_failed_tick_keeps_the_last_good_one_on_the_board() -> None:
    board, tick = Board(explain), World(2).tick()
    board.record(tick)
    board.failed(0.0, RuntimeError("away"))
    table = board.table()
    assert table is not None
    assert table.number == tick.number


def test_a_wish_is_marked_once_and_again_when_it_changes() -> None:
    board, world = Board(explain), World(1)
    ref = world.members[0].ref
    for wanted in (3, 3, 3, 4, 4):
        board.record(with_outcomes(world.tick(), outcome(ref, 2, wanted, ChangeStatus.RECORDED)))
    assert [(change["tick"], change["after"]) for change in changes_of(board, 0)] == [(0, 3), (3, 4)]


def test_an_attempt_that_keeps_failing_is_marked_once() -> None:
    board, world = Board(explain), World(1)
    ref = world.members[0].ref
    for status in (ChangeStatus.FAILED, ChangeStatus.FAILED, ChangeStatus.CONFLICT, ChangeStatus.APPLIED):
        board.record(with_outcomes(world.tick(), outcome(ref, 2, 3, status)))
    assert [change["fate"] for change in changes_of(board, 0)] == ["failed", "conflict", "applied"]


def test_the_changes_of_one_restless_workload_do_not_push_out_those_of_another() -> None:
    board, world = Board(explain), World(2)
    calm, restless = (member.ref for member in world.members)
    board.record(with_outcomes(world.tick(), outcome(calm, 1, 2, ChangeStatus.APPLIED)))
    for count in range(500):
        board.record(with_outcomes(world.tick(), outcome(restless, count, count + 1, ChangeStatus.APPLIED)))
    assert len(changes_of(board, 0)) == 1
    assert len(changes_of(board, 1)) == CHANGES_EACH


def test_with_ten_thousand_workloads_each_keeps_a_few_changes() -> None:
    board, world = Board(explain), World(10_000)
    ref = world.members[17].ref
    tick = world.tick()
    for count in range(10):
        board.record(with_outcomes(tick, outcome(ref, count, count + 1, ChangeStatus.APPLIED)))
    assert len(changes_of(board, 17)) == FEW


def test_changes_follow_a_workload_whose_row_moves() -> None:
    board, world = Board(explain), World(3)
    last = world.members[2].ref
    board.record(with_outcomes(world.tick(), outcome(last, 1, 2, ChangeStatus.APPLIED)))
    smaller = World(world.members[1:])
    smaller.ids = np.array([1, 2])
    board.record(with_outcomes(smaller.tick()))
    assert [change["after"] for change in changes_of(board, 1)] == [2]


def test_a_change_of_a_workload_that_is_gone_is_left_out() -> None:
    board, world = Board(explain), World(1)
    board.record(with_outcomes(world.tick(), outcome(WorkloadRef("ns", "gone"), 1, 2, ChangeStatus.FAILED)))
    assert changes_of(board, 0) == []


def test_reasons_are_bounded() -> None:
    board, world = Board(explain), World(1)
    board.record(with_outcomes(world.tick(), outcome(world.members[0].ref, 1, 2, ChangeStatus.APPLIED, "x" * 10_000)))
    assert len(str(changes_of(board, 0)[0]["reason"])) == MAX_REASON


def test_a_listener_hears_each_tick_until_it_stops() -> None:
    board, world = Board(explain), World(1)
    heard: list[int] = []
    stop = board.listen(lambda: heard.append(world.number))
    board.record(world.tick())
    board.record(world.tick())
    stop()
    board.record(world.tick())
    assert heard == [1, 2]
