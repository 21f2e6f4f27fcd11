"""What one tick remembers for the next: small, per row, and given back by every tick.

Rows change place here and nowhere else: `align` moves memory onto the rows of a new fleet, by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.types import Plan
from autoscaler.core.observe.pending import Struggle
from autoscaler.core.observe.progress import Progress
from autoscaler.core.planner.pod_work import PodWork
from autoscaler.core.planner.replica_speed import Engine
from autoscaler.core.planner.scale_to_zero import Zero
from autoscaler.core.planner.select import Rules
from autoscaler.core.table.columns import Columns, FloatColumn, IntColumn, TimestampColumn, Transient, find_ids, replace
from autoscaler.core.table.sliding_window import SlidingWindow

COUNTERS = ("prompt_tokens", "generation_tokens", "finished", "first_tokens", "preemptions", "rejections")
"""Counters of `PodSamples` whose rates are kept; the row order of `PodMemory.counter`."""

GROUPS = 6
"""Workloads are judged by their rules in so many groups, one after another: that no tick has to judge all."""

Table = TypeVar("Table", bound=Columns)


@dataclass(frozen=True)
class PodMemory(Columns):
    """Per pod, to turn counters into rates, and to see whether its requests move."""

    time_s: TimestampColumn  # float64[P], time of the last reading
    counter: FloatColumn  # float64[C, P], the last reading
    increase: FloatColumn  # float64[C, P], increases, older ones fading; NaN: not two readings in a row
    covered_s: FloatColumn  # float64[P], seconds those increases cover, fading alike
    seen_ready: FloatColumn  # float64[P], 1 once its cold start has been learned from
    progress: Progress

    @classmethod
    def blank(cls, rows: int) -> PodMemory:
        unknown = np.full(rows, np.nan)
        counters = np.full((len(COUNTERS), rows), np.nan)
        return cls(unknown, counters, counters, np.zeros(rows), np.zeros(rows), Progress.blank(rows))


@dataclass(frozen=True)
class WorkloadMemory(Columns):
    """Per workload; every field [W] or a Window over W."""

    last_tick_s: Transient[TimestampColumn]  # time of the last tick that saw it
    trusted_since_s: Transient[TimestampColumn]  # since when it has been watched without a long gap in trust
    last_trusted_s: Transient[TimestampColumn]  # time of the last trusted tick; NaN: none
    last_busy_s: Transient[TimestampColumn]  # last moment with work, or of not knowing
    last_refused_s: Transient[TimestampColumn]  # last moment at which a pod had refused requests; NaN: never
    gateway_s: TimestampColumn  # last moment at which its gateway told something; NaN: never. State files call it so
    last_queued_s: Transient[TimestampColumn]  # last moment with a queue; NaN: never
    last_beside_s: Transient[TimestampColumn]  # last moment at which others had work beside stuck pods; NaN: never
    last_gateway_moved_s: Transient[
        TimestampColumn
    ]  # last moment at which nothing waited at its gateway, or an engine worked
    last_pressed_s: Transient[TimestampColumn]  # last moment at which a queue lasted longer than it may; NaN: never
    last_forecast_s: Transient[TimestampColumn]  # when it spoke, or load was unknown; NaN: nobody served since
    in_flight: Transient[FloatColumn]  # requests running and waiting at the last tick; NaN: unknown
    arrivals_per_s: Transient[FloatColumn]  # requests, averaged over about one cold start; noise may take it below zero
    arriving_s: Transient[FloatColumn]  # seconds that this average is of, since something was in flight
    lasting: Transient[FloatColumn]  # replicas that load without its queue asked for, averaged likewise
    batch: Transient[FloatColumn]  # running requests of an awake replica, averaged over as long as ITL reaches back
    written_tokens: FloatColumn  # generated tokens over many minutes, older ones fading
    served_requests: FloatColumn  # the requests they belong to, fading alike
    cold_start_mean_s: FloatColumn  # NaN: none seen
    cold_start_deviation_s: FloatColumn  # mean absolute deviation
    concurrency: FloatColumn  # learned requests per replica; begins at the prior
    decode_tokens_per_s: FloatColumn  # learned per replica; NaN: never seen saturated
    learned_s: FloatColumn  # seconds of load that capacity was learned from
    loaded_idle_s: FloatColumn  # replica-seconds

    wanted_lately: Transient[
        SlidingWindow
    ]  # replicas; the highest over scaleDown.stabilization, the lowest over scaleUp's
    counts_lately: Transient[SlidingWindow]  # of replicas; the highest over scaleDown.per, the lowest over scaleUp.per

    zero: Zero  # what going to zero would have cost
    struggle: Struggle  # how long it has had replicas that do not come

    @classmethod
    def blank(cls, rows: int) -> WorkloadMemory:
        none = dict.fromkeys(("learned_s", "loaded_idle_s", "written_tokens", "served_requests"), np.zeros(rows))
        return super().blank(rows).with_columns(none)


@dataclass(frozen=True)
class Early(Columns):
    """Rules that were judged out of turn, until the turn of their group: for a few rows no group has to be copied."""

    workload_id: IntColumn  # int64[n], whose each row is, ascending
    rules: Rules

    @classmethod
    def blank(cls, rows: int) -> Early:
        return cls(np.arange(rows), Rules.blank(rows))


@dataclass(frozen=True)
class Memory:
    """Everything that is carried from tick to tick."""

    workload_id: IntColumn  # int64[W]
    pod_id: IntColumn  # int64[P]
    workloads: WorkloadMemory
    pods: PodMemory
    rules: tuple[Rules, ...]  # [GROUPS], of the workloads whose id is so much modulo GROUPS, in the order of their rows
    early: Early  # those that were judged since
    plan: Plan  # the recommendation of the planner, as of its last update
    work: tuple[PodWork, ...]  # [GROUPS], readings of their pods by then

    @classmethod
    def empty(cls) -> Memory:
        """Remember nothing, as after a first start."""
        no_ids = np.empty(0, dtype=np.int64)
        return cls(
            no_ids,
            no_ids,
            WorkloadMemory.blank(0),
            PodMemory.blank(0),
            (Rules.blank(0),) * GROUPS,
            Early.blank(0),
            Plan.blank(0),
            (PodWork.blank(0),) * GROUPS,
        )

    def noting(self, **columns: Any) -> Memory:
        """Return memory with these columns and tables of its workloads."""
        return replace(self, workloads=replace(self.workloads, **columns))

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

    def with_group(self, number: int, rules: Rules, work: PodWork) -> Memory:
        """Return memory with the rules of one group, and with what its pods showed by then."""
        return replace(
            self,
            rules=(*self.rules[:number], rules, *self.rules[number + 1 :]),
            early=self.early.take(np.flatnonzero(self.early.workload_id % GROUPS != number)),
            work=(*self.work[:number], work, *self.work[number + 1 :]),
        )

    def with_early(self, rows: IntColumn, rules: Rules, work: PodWork) -> Memory:
        """Return memory with rules that were judged out of turn, and with what the pods of their workloads showed."""
        ids = self.workload_id[rows]
        stay = np.flatnonzero(~np.isin(self.early.workload_id, ids))
        order = np.append(self.early.workload_id[stay], ids).argsort()
        place = np.append(stay, len(self.early.workload_id) + np.arange(len(ids)))[order]
        return replace(
            self,
            early=Early.stack([self.early, Early(ids, rules)]).take(place),
            work=tuple(each.laid(work) for each in self.work),
        )

    def with_rules(self, rules: Rules) -> Memory:
        """Return memory with the rules of all workloads, in the order of their rows."""
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


def align(memory: Memory, fleet: Fleet) -> Memory:
    """Put memory onto the rows of `fleet`; what is new is blank, what is gone is forgotten."""
    if memory.workload_id is fleet.workload_id and memory.pod_id is fleet.pod_id:
        return memory
    memory = replace(memory, pod_id=fleet.pod_id, pods=_moved(memory.pods, memory.pod_id, fleet.pod_id))
    before, after = memory.workload_id, fleet.workload_id
    if np.array_equal(before, after):
        return replace(memory, workload_id=after)
    return replace(
        memory,
        workload_id=after,
        workloads=_moved(memory.workloads, before, after),
        rules=tuple(
            _moved(rules, before[before % GROUPS == group], after[after % GROUPS == group])
            for group, rules in enumerate(memory.rules)
        ),
        early=memory.early.take(np.flatnonzero(np.isin(memory.early.workload_id, after))),
        plan=_moved(memory.plan, before, after),
    )


def _moved(table: Table, before: IntColumn, after: IntColumn) -> Table:
    if np.array_equal(before, after):
        return table
    blank = type(table).blank(len(after))
    if len(before) == 0:
        return blank
    row, known = find_ids(after, before)
    old = table.columns()
    return blank.with_columns(
        {place: np.where(known, old[place][..., row], new) for place, new in blank.columns().items()}
    )
