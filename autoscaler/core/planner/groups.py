"""What the planner remembers of all workloads, in groups that are judged one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from autoscaler.core.model.types import Plan
from autoscaler.core.planner.pod_work import PodWork
from autoscaler.core.planner.replica_speed import Engine
from autoscaler.core.planner.scale_to_zero import Zero
from autoscaler.core.planner.select import Rules
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
"""Workloads are judged by their rules in so many groups, one after another: that no tick has to judge all."""

Table = TypeVar("Table", bound=Columns)


@dataclass(frozen=True)
class Early(Columns):
    """Rules that were judged out of turn, until the turn of their group: for a few rows no group has to be copied."""

    workload_id: IntColumn  # int64[n], whose each row is, ascending
    rules: Rules

    @classmethod
    def blank(cls, rows: int) -> Early:
        return cls(np.arange(rows), Rules.blank(rows))


@dataclass(frozen=True)
class Pressure(Columns):
    """Queues that last longer than they may."""

    last_pressed_s: Transient[TimestampColumn]  # float64[W], last moment with such a queue; NaN: never


@dataclass(frozen=True)
class PlannerState:
    """Everything that the planner carries from tick to tick."""

    workload_id: IntColumn  # int64[W]
    rules: tuple[Rules, ...]  # [GROUPS], of the workloads whose id is so much modulo GROUPS, in the order of their rows
    early: Early  # those that were judged since
    plan: Plan  # the recommendation of the planner, as of its last update
    work: tuple[PodWork, ...]  # [GROUPS], readings of their pods by then
    zero: Zero  # what going to zero would have cost
    pressure: Pressure

    @classmethod
    def empty(cls) -> PlannerState:
        """Remember nothing, as after a first start."""
        return cls(
            np.empty(0, dtype=np.int64),
            (Rules.blank(0),) * GROUPS,
            Early.blank(0),
            Plan.blank(0),
            (PodWork.blank(0),) * GROUPS,
            Zero.blank(0),
            Pressure.blank(0),
        )

    @property
    def counts_itl(self) -> BoolColumn:
        """Whether the planner counts the requests that met the ITL objective; bool[W]."""
        return np.asarray(self.plan.itl_counted_requests > 0)

    @property
    def idle_after_s(self) -> FloatColumn:
        """Seconds without work after which the error budget allows zero replicas; float64[W], NaN: it does not."""
        return self.zero.rest_s

    def aligned(self, after: IntColumn) -> PlannerState:
        """Return it on the rows of these workloads, int64[W]; new ones are blank, and those that are gone forgotten."""
        before = self.workload_id
        if np.array_equal(before, after):
            return replace(self, workload_id=after)
        return PlannerState(
            workload_id=after,
            rules=tuple(
                moved(rules, before[before % GROUPS == group], after[after % GROUPS == group])
                for group, rules in enumerate(self.rules)
            ),
            early=self.early.take(np.flatnonzero(np.isin(self.early.workload_id, after))),
            plan=moved(self.plan, before, after),
            work=self.work,
            zero=moved(self.zero, before, after),
            pressure=moved(self.pressure, before, after),
        )

    def group(self, number: int) -> IntColumn:
        """Return the rows of one group."""
        return np.flatnonzero(self.workload_id % GROUPS == number)

    def groups(self) -> list[IntColumn]:
        """Return the rows of each group."""
        group = self.workload_id % GROUPS
        return [np.flatnonzero(group == number) for number in range(GROUPS)]

    def rules_of(self, rows: IntColumn) -> Rules:
        """Return the rules of these workloads."""
        return self._of(rows, self.rules, self.early.rules)

    def engine_of(self, rows: IntColumn) -> Engine:
        """Return what was learned of the engines of these workloads: a small part of their rules."""
        return self._of(rows, [rules.engine for rules in self.rules], self.early.rules.engine)

    def rules_of_group(self, number: int) -> Rules:
        """Return the rules of the workloads of one group."""
        return self._brought_up(self.rules[number], self.group(number), self.early.rules)

    def all_rules(self) -> Rules:
        """Return the rules of all workloads, in the order of their rows."""
        return self.rules_of(np.arange(len(self.workload_id)))

    def work_of(self, pod_id: IntColumn) -> PodWork:
        """Return what these pods showed when they were counted last; ids ascending."""
        found = replace(PodWork.blank(len(pod_id)), pod_id=pod_id)
        for work in self.work:
            place, known = find_ids(pod_id, work.pod_id)
            found = found.with_rows(np.flatnonzero(known), work.take(place[known]))
        return found

    def with_group(self, number: int, rules: Rules, work: PodWork) -> PlannerState:
        """Return it with the rules of one group, and with what its pods showed by then."""
        return replace(
            self,
            rules=(*self.rules[:number], rules, *self.rules[number + 1 :]),
            early=self.early.take(np.flatnonzero(self.early.workload_id % GROUPS != number)),
            work=(*self.work[:number], work, *self.work[number + 1 :]),
        )

    def with_early(self, rows: IntColumn, rules: Rules, work: PodWork) -> PlannerState:
        """Return it with rules that were judged out of turn, and with what the pods of their workloads showed."""
        ids = self.workload_id[rows]
        stay = np.flatnonzero(~np.isin(self.early.workload_id, ids))
        order = np.append(self.early.workload_id[stay], ids).argsort()
        place = np.append(stay, len(self.early.workload_id) + np.arange(len(ids)))[order]
        return replace(
            self,
            early=Early.stack([self.early, Early(ids, rules)]).take(place),
            work=tuple(each.laid(work) for each in self.work),
        )

    def with_rules(self, rules: Rules) -> PlannerState:
        """Return it with the rules of all workloads, in the order of their rows."""
        return replace(self, rules=tuple(rules.take(rows) for rows in self.groups()), early=Early.blank(0))

    def _of(self, rows: IntColumn, by_group: Sequence[Table], early: Table) -> Table:
        """Return these rows of a table of all workloads. early: its rows that were judged out of turn."""
        group = self.workload_id[rows] % GROUPS
        has = [np.flatnonzero(group == number) for number in range(GROUPS)]
        places = [members.searchsorted(rows[its]) for members, its in zip(self.groups(), has, strict=True)]
        some = early.stack([table.take(place) for table, place in zip(by_group, places, strict=True)])
        return self._brought_up(some.take(np.concatenate(has).argsort()), rows, early)

    def _brought_up(self, table: Table, rows: IntColumn, early: Table) -> Table:
        """Return a table of these rows with those in it that were judged out of turn."""
        place, known = find_ids(self.workload_id[rows], self.early.workload_id)
        return table.with_rows(np.flatnonzero(known), early.take(place[known])) if known.any() else table
