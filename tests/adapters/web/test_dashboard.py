"""What the API is answered from."""

import dataclasses

import numpy as np
import pytest

from autoscaler.adapters.web.dashboard import CHANGES_EACH, FEW, MAX_REASON, Dashboard
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Change, ChangeStatus, Outcome, TickRecord
from tests.adapters.web.records import World, explain


def changes_of(dashboard: Dashboard, row: int) -> list[dict[str, object]]:
    changes: list[dict[str, object]] = dashboard.workload(row)["changes"]
    return changes


def with_outcomes(tick: TickRecord, *outcomes: Outcome) -> TickRecord:
    return dataclasses.replace(tick, outcomes=outcomes)


def outcome(ref: WorkloadRef, before: int, after: int, status: ChangeStatus, reason: str = "because") -> Outcome:
    return Outcome(Change(ref, "", before, after, reason), status, "503" if status is ChangeStatus.FAILED else "")


def test_table_is_empty_before_the_first_tick() -> None:
    dashboard = Dashboard(explain)
    assert dashboard.table() is None
    with pytest.raises(LookupError, match="no tick yet"):
        dashboard.workload(0)


def test_a_failed_tick_keeps_the_last_good_one_on_the_board() -> None:
    dashboard, tick = Dashboard(explain), World(2).tick()
    dashboard.record(tick)
    dashboard.failed(0.0, RuntimeError("away"))
    table = dashboard.table()
    assert table is not None
    assert table.number == tick.number


def test_waiting_change_is_marked_once_and_again_when_it_changes() -> None:
    dashboard, world = Dashboard(explain), World(1)
    ref = world.members[0].ref
    for wanted in (3, 3, 3, 4, 4):
        dashboard.record(with_outcomes(world.tick(), outcome(ref, 2, wanted, ChangeStatus.RECORDED)))
    assert [(change["tick"], change["after"]) for change in changes_of(dashboard, 0)] == [(0, 3), (3, 4)]


def test_an_attempt_that_keeps_failing_is_marked_once() -> None:
    dashboard, world = Dashboard(explain), World(1)
    ref = world.members[0].ref
    for status in (ChangeStatus.FAILED, ChangeStatus.FAILED, ChangeStatus.CONFLICT, ChangeStatus.APPLIED):
        dashboard.record(with_outcomes(world.tick(), outcome(ref, 2, 3, status)))
    assert [change["outcome"] for change in changes_of(dashboard, 0)] == ["failed", "conflict", "applied"]


@pytest.mark.slow
def test_changes_of_a_busy_workload_do_not_evict_those_of_others() -> None:
    dashboard, world = Dashboard(explain), World(2)
    calm, restless = (member.ref for member in world.members)
    dashboard.record(with_outcomes(world.tick(), outcome(calm, 1, 2, ChangeStatus.APPLIED)))
    for count in range(500):
        dashboard.record(with_outcomes(world.tick(), outcome(restless, count, count + 1, ChangeStatus.APPLIED)))
    assert len(changes_of(dashboard, 0)) == 1
    assert len(changes_of(dashboard, 1)) == CHANGES_EACH


def test_with_ten_thousand_workloads_each_keeps_a_few_changes() -> None:
    dashboard, world = Dashboard(explain), World(10_000)
    ref = world.members[17].ref
    tick = world.tick()
    for count in range(10):
        dashboard.record(with_outcomes(tick, outcome(ref, count, count + 1, ChangeStatus.APPLIED)))
    assert len(changes_of(dashboard, 17)) == FEW


def test_changes_follow_a_workload_whose_row_moves() -> None:
    dashboard, world = Dashboard(explain), World(3)
    last = world.members[2].ref
    dashboard.record(with_outcomes(world.tick(), outcome(last, 1, 2, ChangeStatus.APPLIED)))
    smaller = World(world.members[1:])
    smaller.ids = np.array([1, 2])
    dashboard.record(with_outcomes(smaller.tick()))
    assert [change["after"] for change in changes_of(dashboard, 1)] == [2]


def test_a_change_of_a_workload_that_is_gone_is_left_out() -> None:
    dashboard, world = Dashboard(explain), World(1)
    dashboard.record(with_outcomes(world.tick(), outcome(WorkloadRef("ns", "gone"), 1, 2, ChangeStatus.FAILED)))
    assert changes_of(dashboard, 0) == []


def test_reasons_are_bounded() -> None:
    dashboard, world = Dashboard(explain), World(1)
    dashboard.record(
        with_outcomes(world.tick(), outcome(world.members[0].ref, 1, 2, ChangeStatus.APPLIED, "x" * 10_000))
    )
    assert len(str(changes_of(dashboard, 0)[0]["reason"])) == MAX_REASON


def test_a_listener_hears_each_tick_until_it_stops() -> None:
    dashboard, world = Dashboard(explain), World(1)
    heard: list[int] = []
    stop = dashboard.listen(lambda: heard.append(world.number))
    dashboard.record(world.tick())
    dashboard.record(world.tick())
    stop()
    dashboard.record(world.tick())
    assert heard == [1, 2]
