"""The state of the planner, in groups of workloads that are updated one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from autoscaler.core.model.types import Plan
from autoscaler.core.observe.pod_deltas import PodReadings
from autoscaler.core.planner.replica_speed import ReplicaSpeed
from autoscaler.core.planner.scale_to_zero import IdleTimeouts
from autoscaler.core.planner.select import StrategyState
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    TimestampColumn,
    Transient,
    find_ids,
    moved,
    replace,
)

GROUPS = 6
"""Workloads are updated in this many groups, one after another, so that no tick has to update all."""

Table = TypeVar("Table", bound=Columns)


@dataclass(frozen=True)
class CountedReadings(Columns):
    """Readings up to which the work of pods is counted. Rows are found by the id of the pod: not those of a fleet."""

    pod_id: IntColumn  # int64[P], ascending
    readings: PodReadings

    @classmethod
    def blank(cls, rows: int) -> CountedReadings:
        return cls(np.arange(rows), PodReadings.blank(rows))

    def find(self, pod_id: IntColumn) -> CountedReadings:
        """Return the readings of these pods, ids ascending; NaN for pods that are not in it."""
        return CountedReadings(pod_id, moved(self.readings, self.pod_id, pod_id))

    def update(self, newer: CountedReadings) -> CountedReadings:
        """Return it with newer readings of the pods that are in it; others are ignored."""
        place, known = find_ids(newer.pod_id, self.pod_id)
        return self.with_rows(place[known], newer.take(np.flatnonzero(known))) if known.any() else self


@dataclass(frozen=True)
class OutOfTurn(Columns):
    """Strategies that were updated out of turn, kept until the turn of their group. So no group has to be copied."""

    workload_id: IntColumn  # int64[n], the workload of each row, ascending
    strategies: StrategyState

    @classmethod
    def blank(cls, rows: int) -> OutOfTurn:
        return cls(np.arange(rows), StrategyState.blank(rows))


@dataclass(frozen=True)
class LateQueues(Columns):
    """Queues that last longer than the policy allows."""

    last_late_s: Transient[TimestampColumn]  # float64[W], last moment with such a queue; NaN: never


@dataclass(frozen=True)
class PlannerState:
    """Everything that the planner remembers from tick to tick."""

    workload_id: IntColumn  # int64[W]
    strategies: tuple[StrategyState, ...]  # [GROUPS], of the workloads with id % GROUPS, in the order of their rows
    out_of_turn: OutOfTurn  # strategies that were updated since
    plan: Plan  # the recommendation, as of the last update
    counted: tuple[CountedReadings, ...]  # [GROUPS], of their pods, as of the last update
    idle_timeouts: IdleTimeouts
    late_queues: LateQueues

    @classmethod
    def empty(cls) -> PlannerState:
        """Return the state without workloads, as after a first start."""
        return cls(
            workload_id=np.empty(0, dtype=np.int64),
            strategies=(StrategyState.blank(0),) * GROUPS,
            out_of_turn=OutOfTurn.blank(0),
            plan=Plan.blank(0),
            counted=(CountedReadings.blank(0),) * GROUPS,
            idle_timeouts=IdleTimeouts.blank(0),
            late_queues=LateQueues.blank(0),
        )

    def aligned(self, after: IntColumn) -> PlannerState:
        """Return it on the rows of these workloads, int64[W]. New workloads are blank, removed ones are forgotten."""
        before = self.workload_id
        if np.array_equal(before, after):
            return replace(self, workload_id=after)
        return PlannerState(
            workload_id=after,
            strategies=tuple(
                moved(strategies, before[before % GROUPS == group], after[after % GROUPS == group])
                for group, strategies in enumerate(self.strategies)
            ),
            out_of_turn=self.out_of_turn.take(np.flatnonzero(np.isin(self.out_of_turn.workload_id, after))),
            plan=moved(self.plan, before, after),
            counted=self.counted,
            idle_timeouts=moved(self.idle_timeouts, before, after),
            late_queues=moved(self.late_queues, before, after),
        )

    @property
    def counts_itl(self) -> BoolColumn:
        """Whether the planner counts the requests that met the ITL objective; bool[W]."""
        return np.asarray(self.plan.itl_counted_requests > 0)

    @property
    def idle_after_s(self) -> FloatColumn:
        """Seconds without work after which the error budget allows zero replicas; float64[W], NaN: it does not."""
        return self.idle_timeouts.timeout_s

    def group_rows(self, group: int) -> IntColumn:
        """Return the rows of the workloads of one group."""
        return np.flatnonzero(self.workload_id % GROUPS == group)

    def rows_by_group(self) -> list[IntColumn]:
        """Return the rows of the workloads of each group."""
        group_of = self.workload_id % GROUPS
        return [np.flatnonzero(group_of == group) for group in range(GROUPS)]

    def strategies_of(self, rows: IntColumn) -> StrategyState:
        """Return the strategies of these workloads."""
        return self._take(rows, self.strategies, self.out_of_turn.strategies)

    def replica_speed_of(self, rows: IntColumn) -> ReplicaSpeed:
        """Return the replica speed of these workloads, a small part of the strategies."""
        return self._take(rows, [group.speed for group in self.strategies], self.out_of_turn.strategies.speed)

    def strategies_of_group(self, group: int) -> StrategyState:
        """Return the strategies of the workloads of one group."""
        return self._put_out_of_turn(self.strategies[group], self.group_rows(group), self.out_of_turn.strategies)

    def all_strategies(self) -> StrategyState:
        """Return the strategies of all workloads, in the order of their rows."""
        return self.strategies_of(np.arange(len(self.workload_id)))

    def counted_of(self, pod_id: IntColumn) -> CountedReadings:
        """Return the counted readings of these pods; ids ascending."""
        found = CountedReadings(pod_id, PodReadings.blank(len(pod_id)))
        for group in self.counted:
            place, known = find_ids(pod_id, group.pod_id)
            found = found.with_rows(np.flatnonzero(known), group.take(place[known]))
        return found

    def with_group(self, group: int, strategies: StrategyState, counted: CountedReadings) -> PlannerState:
        """Return it with the updated strategies of one group, and the counted readings of its pods."""
        is_other = self.out_of_turn.workload_id % GROUPS != group
        return replace(
            self,
            strategies=(*self.strategies[:group], strategies, *self.strategies[group + 1 :]),
            out_of_turn=self.out_of_turn.take(np.flatnonzero(is_other)),
            counted=(*self.counted[:group], counted, *self.counted[group + 1 :]),
        )

    def with_out_of_turn(self, rows: IntColumn, strategies: StrategyState, counted: CountedReadings) -> PlannerState:
        """Return it with strategies that were updated out of turn, and the counted readings of their pods."""
        ids, before = self.workload_id[rows], self.out_of_turn
        other = np.flatnonzero(~np.isin(before.workload_id, ids))
        order = np.append(before.workload_id[other], ids).argsort()
        place = np.append(other, len(before.workload_id) + np.arange(len(ids)))[order]
        return replace(
            self,
            out_of_turn=OutOfTurn.stack([before, OutOfTurn(ids, strategies)]).take(place),
            counted=tuple(group.update(counted) for group in self.counted),
        )

    def with_strategies(self, strategies: StrategyState) -> PlannerState:
        """Return it with the strategies of all workloads, in the order of their rows."""
        by_group = tuple(strategies.take(rows) for rows in self.rows_by_group())
        return replace(self, strategies=by_group, out_of_turn=OutOfTurn.blank(0))

    def _take(self, rows: IntColumn, by_group: Sequence[Table], out_of_turn: Table) -> Table:
        """Return these rows of a table of all workloads. out_of_turn: the rows of it that were updated out of turn."""
        group_of = self.workload_id[rows] % GROUPS
        places = [np.flatnonzero(group_of == group) for group in range(GROUPS)]
        taken = [
            table.take(members.searchsorted(rows[place]))
            for table, members, place in zip(by_group, self.rows_by_group(), places, strict=True)
        ]
        table = out_of_turn.stack(taken).take(np.concatenate(places).argsort())
        return self._put_out_of_turn(table, rows, out_of_turn)

    def _put_out_of_turn(self, table: Table, rows: IntColumn, out_of_turn: Table) -> Table:
        """Return a table of these rows with those that were updated out of turn."""
        place, known = find_ids(self.workload_id[rows], self.out_of_turn.workload_id)
        return table.with_rows(np.flatnonzero(known), out_of_turn.take(place[known])) if known.any() else table
