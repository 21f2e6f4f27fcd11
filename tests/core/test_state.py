"""Memory follows rows that come, go and move."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core import state
from autoscaler.core.model.types import Plan
from autoscaler.core.observe.pods import PodState
from autoscaler.core.planner.scale_to_zero import IdleTimeouts
from autoscaler.core.planner.select import StrategyState
from autoscaler.core.planner.state import PHASES, PlannerState, find_phase
from autoscaler.core.readings.pod_deltas import PodReadings
from autoscaler.core.state import Memory, WorkloadState
from autoscaler.core.table import sliding_window
from autoscaler.core.table.blocks import Blocks
from autoscaler.core.table.sliding_window import SlidingWindow
from tests.core.world import Story, fleet, spec

ids = st.lists(st.integers(0, 30), unique=True, max_size=12).map(sorted)


def mark(table, row_ids):
    """The same table with the id of its row in every cell."""
    numbers = np.array(row_ids, dtype=float)
    return table.with_columns({n: np.broadcast_to(numbers, c.shape).copy() for n, c in table.columns().items()})


def marked(workload_ids, pod_ids):
    """A memory in which every cell holds the id of its row."""
    rows, pods = len(workload_ids), np.array(pod_ids, dtype=np.int64)
    phase = find_phase(np.array(workload_ids, dtype=np.int64))
    planner = PlannerState(
        Blocks.of(mark(StrategyState.blank(rows), workload_ids), phase, PHASES),
        mark(Plan.blank(rows), workload_ids),
        pods,
        mark(PodReadings.blank(len(pods)), pod_ids),
        mark(IdleTimeouts.blank(rows), workload_ids),
    )
    return Memory(
        np.array(workload_ids, dtype=np.int64),
        pods,
        mark(WorkloadState.blank(rows), workload_ids),
        mark(PodState.blank(len(pod_ids)), pod_ids),
        planner,
    )


def cluster(workload_ids, pod_ids):
    rows = len(workload_ids)
    return replace(
        fleet([0] * rows),
        workload_id=np.array(workload_ids, dtype=np.int64),
        pod_id=np.array(pod_ids, dtype=np.int64),
    )


def check(table, blank, row_ids, known):
    fresh = blank.columns()
    for place, column in table.columns().items():
        expected = np.where([number in known for number in row_ids], np.array(row_ids, dtype=float), fresh[place])
        np.testing.assert_array_equal(column, expected, err_msg=place)


@pytest.mark.slow
@given(ids, ids, ids, ids)
def test_rows_keep_their_memory_and_new_rows_are_blank(workloads, pods, later_workloads, later_pods):
    aligned = state.align(marked(workloads, pods), cluster(later_workloads, later_pods))
    check(aligned.workloads, WorkloadState.blank(len(later_workloads)), later_workloads, set(workloads))
    check(aligned.pods, PodState.blank(len(later_pods)), later_pods, set(pods))
    for table in (aligned.planner.strategies, aligned.planner.plan, aligned.planner.idle_timeouts):
        check(table, type(table).blank(len(later_workloads)), later_workloads, set(workloads))
    assert aligned.workload_id.tolist() == later_workloads
    assert aligned.pod_id.tolist() == later_pods


def test_a_row_is_blank_when_it_comes_back():
    gone = state.align(marked([1, 2], [7]), cluster([2], []))
    back = state.align(gone, cluster([1, 2], [7]))
    assert np.isnan(back.workloads.stabilize.last_busy_s[0])
    assert back.workloads.stabilize.last_busy_s[1] == 2
    assert np.isnan(back.pods.readings.time_s[0])


def test_counted_readings_stay_with_pod_ids_when_rows_move():
    """Readings that were counted are found by the id of the pod."""
    before = marked([1, 2], [7, 9])
    assert state.align(before, cluster([2], [9])).planner.counted is before.planner.counted


def test_nothing_is_copied_while_nothing_moves():
    world = cluster([1, 2], [7])
    aligned = state.align(marked([1, 2], [7]), world)
    assert state.align(aligned, world) is aligned
    same_ids = state.align(aligned, cluster([1, 2], [7]))
    assert same_ids.workloads is aligned.workloads


def test_windows_move_with_their_rows():
    length = np.array([60.0, 60.0])
    values, nothing = np.array([5.0, 9.0]), np.full(2, np.nan)
    pushed, _, _ = sliding_window.update(SlidingWindow.blank(2), values, values, 100.0, length, length)
    tables = WorkloadState.blank(2).with_columns(
        {f"stabilize.desired_lately.{n}": c for n, c in pushed.columns().items()}
    )
    before = replace(marked([1, 2], []), workloads=tables)
    after = state.align(before, cluster([0, 2], [])).workloads.stabilize.desired_lately
    _, *extremes = sliding_window.update(after, nothing, nothing, 101.0, length, length)
    np.testing.assert_array_equal(extremes, [[np.nan, 9], [np.nan, 9]])


def test_counters_of_a_pod_survive_when_other_pods_come_and_go():
    story = Story(spec())
    story.tick(replace(fleet([2]), pod_id=np.array([3, 5])), 10, generation_tokens=np.array([100.0, 5000.0]))
    decision = story.tick(
        replace(fleet([3]), pod_id=np.array([5, 6, 9])), 10, generation_tokens=np.array([6000.0, 70.0, 80.0])
    )
    assert round(decision.observation.generation_tokens_per_s[0], 6) == 100  # of pod 5 alone; 6 and 9 are new
