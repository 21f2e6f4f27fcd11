"""The rows of the plain tables of a record: what a tick adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from textwrap import shorten
from typing import Any

import numpy as np

from autoscaler.adapters.record.file import TRAFFIC, RecordFile
from autoscaler.adapters.record.values import Decided
from autoscaler.config.prices import shares_of
from autoscaler.core import tally
from autoscaler.core.explain.sentence import binding_stages
from autoscaler.core.gpu_totals import GpuTotals
from autoscaler.core.gpu_use import GpuState, IdleCause
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.table.columns import BoolColumn, IntColumn
from autoscaler.core.tally import Tally, TallyState
from autoscaler.ports import ChangeStatus, TickRecord

TRAFFIC_S = 300
"""Seconds of one row of traffic."""

USE_S = 3600
"""Most seconds of one row of what GPUs are used for."""

MAX_SENTENCE = 240
"""Characters of a sentence that are kept: its first reasons. The whole one is said again where inputs are kept."""

MAX_PROBLEM, MAX_MODEL = 300, 200
LAST_TRAFFIC = (
    f"SELECT workload, from_s, seconds, {', '.join(TRAFFIC)} FROM traffic "
    "WHERE from_s = ( SELECT max(from_s) FROM traffic )"
)
WORKLOADS = "SELECT id, namespace, name, kind, uid FROM workloads"


@dataclass(frozen=True)
class PolicyLoad:
    """Policies that came into force, as text by name, and how they differ from those before."""

    texts: Mapping[str, str]
    differences: Mapping[str, str]


class TableRows:
    """TableRows that are not written yet, by table, and what the last written ones say."""

    def __init__(self) -> None:
        self.pending: dict[str, list[tuple[Any, ...]]] = {}
        self._workloads: dict[tuple[str, ...], int] = {}  # namespace, name, kind, uid
        self._numbers: tuple[tuple[Workload, ...], IntColumn] = ((), np.empty(0, np.int64))
        self._facts: dict[int, tuple[Any, ...]] = {}
        self._counts: dict[int, tuple[Any, ...]] = {}
        self._owners: dict[int, str] = {}
        self._problems: dict[str, str] = {}
        self._policies: Mapping[str, str] = {}
        self._proposed: dict[WorkloadRef, tuple[int, ChangeStatus]] = {}
        self._tally: TallyState | None = None
        self._traffic: dict[int, tuple[int, dict[str, float]]] = {}  # by workload: begin of its row, and sums
        self._use, self._use_from_s = GpuTotals(), 0.0
        self._use_of: IntColumn = np.empty(0, np.int64)  # numbers of the workloads that are summed up

    def take_pending(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows that are to be written now."""
        pending, self.pending = self.pending, {}
        return pending

    def forget(self) -> None:
        """Drop what is pending: what holds is written again with the next tick."""
        self.pending, self._traffic = {}, {}
        self._use.restart()
        self._facts, self._counts, self._owners, self._problems = {}, {}, {}, {}

    def go_on(self, file: RecordFile) -> None:
        """Go on with workloads and the last traffic of a file. Raises sqlite3.Error, also where the disk is full."""
        self._workloads = {tuple(key): number for number, *key in file.rows(WORKLOADS)}
        for workload, from_s, *sums in file.rows(LAST_TRAFFIC):
            self._traffic.setdefault(workload, (from_s, dict(zip(("seconds", *TRAFFIC), sums, strict=True))))
        self._numbers = (), np.empty(0, np.int64)

    def note_policies(self, load: PolicyLoad, number: int, at_s: float) -> None:
        """Add policies that came into force. number: of the next tick."""
        self._policies = load.texts
        for name in sorted({*load.texts, *load.differences}):
            row = (number, round(at_s), name, load.differences.get(name, ""), load.texts.get(name, ""))
            self._add("policies", row)

    def repeat_policies(self, number: int, at_s: float) -> None:
        """Add the policies in force, unless they are about to be written."""
        if "policies" not in self.pending:
            self.note_policies(PolicyLoad(self._policies, {}), number, at_s)

    def number_workloads(self, members: tuple[Workload, ...]) -> IntColumn:
        """Return the number of each workload in the file; int64[W]."""
        if self._numbers[0] is not members:
            numbers = []
            for workload in members:
                key = (workload.ref.namespace, workload.ref.name, workload.ref.kind, workload.uid)
                if key not in self._workloads:
                    self._workloads[key] = len(self._workloads)
                    self._add("workloads", (self._workloads[key], *key))
                numbers.append(self._workloads[key])
            self._numbers = members, np.array(numbers, np.int64)
        return self._numbers[1]

    def note(self, tick: TickRecord, number: int, decided: Decided) -> None:
        """Add what a tick changes."""
        self._note_counts(tick, number, decided)
        self._note_changes(tick, number, decided.workload)
        self._note_problems(tick, number)
        self._count_traffic(tick, decided.workload)
        self._count_use(tick, decided.workload)

    def add_begun(self) -> None:
        """Add the rows of traffic and of use as far as they are now; they replace what was written of them."""
        for workload in self._traffic:
            self._add_traffic(workload)
        self._add_use()

    def _end_traffic(self, wall_s: float) -> None:
        """Add the rows of traffic that are over by then."""
        for workload, (from_s, _) in [*self._traffic.items()]:
            if not from_s <= wall_s < from_s + TRAFFIC_S:
                self._add_traffic(workload)
                del self._traffic[workload]

    def _add_traffic(self, workload: int) -> None:
        from_s, sums = self._traffic[workload]
        self._add("traffic", (workload, from_s, *(round(sums[name]) for name in ("seconds", *TRAFFIC))))

    def _add_use(self) -> None:
        """Add the rows of what GPUs are used for."""
        sums = self._use.of_workloads
        priced = sums.unpriced_s == 0
        for kind, names, gpu_s in (("state", GpuState, sums.gpu_s), ("cause", IdleCause, sums.idle_gpu_s)):
            for code, row in zip(*(each.tolist() for each in np.nonzero(gpu_s >= 0.5)), strict=True):
                usd = round(float(sums.usd[code, row]), 6) if kind == "state" and priced[row] else None
                key = int(self._use_of[row]), round(self._use_from_s), kind, names(code).published
                self._add("gpu_use", (*key, round(float(gpu_s[code, row])), usd))

    def _count_use(self, tick: TickRecord, workload: IntColumn) -> None:
        """Add the tick to the rows of what GPUs are used for."""
        if not self._use.seconds:
            self._use_from_s = tick.wall_s
        elif tick.wall_s // USE_S != self._use_from_s // USE_S:
            self._add_use()
            self._use.restart()
            self._use_from_s = tick.wall_s
        groups = tick.input.fleet.groups.groups
        self._use.add(tick.input, tick.decision, shares_of(groups), most_pools=0)
        self._use_of = workload

    def _add(self, table: str, row: tuple[Any, ...]) -> None:
        self.pending.setdefault(table, []).append(row)

    def _note_counts(self, tick: TickRecord, number: int, decided: Decided) -> None:
        """Add rows of `facts`, `counts` and `owners` where they differ from the last ones."""
        at_s, owners = round(tick.wall_s), tick.input.fleet.other_owner
        bound = [int(stage) if stage > 0 else None for stage in binding_stages(tick.decision).tolist()]
        current = _whole(decided.current)
        counts = zip(
            current,
            *(_whole(column) for column in (decided.ready, decided.starting, decided.replicas)),
            decided.recommender.tolist(),
            (value if value >= 0 else None for value in decided.signal.tolist()),
            strict=True,
        )
        rows = zip(decided.workload.tolist(), _facts(tick), counts, strict=True)
        for row, (workload, facts, count) in enumerate(rows):
            if self._facts.get(workload) != facts:
                self._facts[workload] = facts
                self._add("facts", (workload, number, at_s, *facts))
            if self._counts.get(workload) != count:
                self._counts[workload] = count
                self._add("counts", (workload, number, at_s, *count, bound[row]))
            if self._owners.get(workload, "") != owners[row]:
                self._owners[workload] = owners[row]
                self._add("owners", (number, at_s, workload, owners[row][:MAX_PROBLEM], current[row]))

    def _note_changes(self, tick: TickRecord, number: int, workload: IntColumn) -> None:
        """Add changes. One that waits for another component, or is tried again, is added once."""
        rows = {each.ref: row for row, each in enumerate(tick.input.fleet.workloads)} if tick.outcomes else {}
        proposed = {each.change.ref: (each.change.after, each.status) for each in tick.outcomes}
        before, self._proposed = self._proposed, proposed
        for outcome in tick.outcomes:
            change, status = outcome.change, outcome.status
            if before.get(change.ref) == (change.after, status) and status is not ChangeStatus.APPLIED:
                continue
            key = (number, round(tick.wall_s), int(workload[rows[change.ref]]))
            said = outcome.detail[:MAX_PROBLEM], shorten(change.reason, MAX_SENTENCE, placeholder="…")
            self._add("changes", (*key, change.before, change.after, status.value, *said))

    def _note_problems(self, tick: TickRecord, number: int) -> None:
        """Add problems of sources when they change; "" when one ends."""
        for report in tick.input.samples.reports:
            problem = "; ".join(report.problems)[:MAX_PROBLEM]
            if self._problems.get(report.source, "") != problem:
                self._problems[report.source] = problem
                self._add("problems", (number, round(tick.wall_s), report.source[:100], problem))

    def _count_traffic(self, tick: TickRecord, workload: IntColumn) -> None:
        """Add the tick to the rows of traffic."""
        self._tally, since = tally.advance(self._tally, tick.input, tick.decision)
        self._end_traffic(tick.wall_s)
        from_s = int(tick.wall_s // TRAFFIC_S) * TRAFFIC_S
        columns = {name: getattr(since, name) for name in ("seconds", *TRAFFIC)}
        for row in np.flatnonzero(_has_traffic(since)).tolist():
            _, sums = self._traffic.setdefault(int(workload[row]), (from_s, dict.fromkeys(columns, 0.0)))
            for name, column in columns.items():
                sums[name] += float(column[row])


def _facts(tick: TickRecord) -> list[tuple[Any, ...]]:
    """Return what holds of each workload: the columns of the table `facts` after the time."""
    fleet, spec, variants = tick.input.fleet, tick.input.spec, tick.input.variants
    columns = (
        fleet.gpus_per_replica,
        variants.cost if variants is not None else np.full(len(tick.policies), np.nan),
        spec.ttft_objective_s,
        spec.itl_objective_s,
        spec.attainment,
    )
    gpus, usd, *objectives = ([None if isnan(each) else each for each in column.tolist()] for column in columns)
    products = [fleet.pools[pool].product if pool >= 0 else "" for pool in fleet.pool.tolist()]
    models = [each.model[:MAX_MODEL] for each in fleet.workloads]
    teams = [each.team for each in fleet.workloads]
    return list(zip(tick.policies, teams, models, gpus, products, usd, *objectives, strict=True))


def _has_traffic(since: Tally) -> BoolColumn:
    names = ("arrived", "finished", "first_tokens", "prompt_tokens", "generation_tokens", "running_s", "waiting_s")
    return np.asarray(np.logical_or.reduce([getattr(since, name) > 0 for name in names]))


def _whole(column: Any) -> list[int | None]:
    return [None if isnan(value) else round(value) for value in column.tolist()]
