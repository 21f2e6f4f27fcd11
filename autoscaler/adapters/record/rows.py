"""The rows of the plain tables of a record: what a tick adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isnan
from operator import itemgetter
from textwrap import shorten
from typing import Any

import numpy as np

from autoscaler.adapters.record.file import TRAFFIC, RecordFile
from autoscaler.adapters.record.tick_values import Decided
from autoscaler.config.prices import shares_of
from autoscaler.core import tally
from autoscaler.core.explain.sentence import binding_stages
from autoscaler.core.gpu_totals import GpuTotals
from autoscaler.core.gpu_use import GpuState, IdleCause
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.types import Recommender
from autoscaler.core.table.columns import BoolColumn, IntColumn
from autoscaler.core.tally import Tally, TallyState
from autoscaler.ports import ChangeStatus, TickRecord

TRAFFIC_S = 300
"""Seconds of one row of traffic."""

LEAST_STEPS = 12
"""Rows of traffic in the shortest time that a report can be about."""

USE_S = 3600
"""Most seconds of one row of what GPUs are used for."""

MAX_SENTENCE = 240
"""Characters of a sentence that are kept: its first reasons. The whole one is said again where inputs are kept."""

MAX_PROBLEM, MAX_MODEL = 300, 200
MOST_TEXTS, TEXT_S = 100, 300
"""Rows with texts about a workload or of a source in a file, beyond which the next one waits this long: a tenant could
change its texts with each tick, and so shorten how far back the record of all reaches."""

MOST_OBJECTS = 20
"""Objects of one name in a file, beyond which the next ones have the number of the last: a tenant could make one again
with each tick."""

LAST_TRAFFIC = (
    f"SELECT workload, from_s, seconds, {', '.join(TRAFFIC)} FROM traffic "
    "WHERE from_s = ( SELECT max(from_s) FROM traffic )"
)
COUNTS_ORDER = "ORDER BY tick, coalesce(current, ready, wanted) IS NOT NULL"
"""Order of counts: a workload that is made again leaves and comes in one tick."""

GONE = (None, None, None, None, Recommender.NO_POLICY.value, None, None)
"""Counts of a workload that left."""

PRESENT = (
    "SELECT workload FROM ( SELECT workload, max(tick), current, ready, wanted FROM counts GROUP BY workload ) "
    "WHERE coalesce(current, ready, wanted) IS NOT NULL"
)
WORKLOADS = "SELECT id, namespace, name, kind, uid FROM workloads"


def first_step_s(at_s: float) -> int:
    """Return the Unix time at which the first whole row of traffic from then on begins."""
    return ceil(at_s / TRAFFIC_S) * TRAFFIC_S


def first_report_s(first_s: float) -> int:
    """Return the Unix time of the last tick that the first report needs. first_s: of the first tick."""
    return first_step_s(first_s) + LEAST_STEPS * TRAFFIC_S


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
        self._objects: dict[tuple[str, ...], list[int]] = {}  # numbers of those with the same first three
        self._numbers: tuple[tuple[Workload, ...], IntColumn] = ((), np.empty(0, np.int64))
        self._facts: dict[int, tuple[Any, ...]] = {}
        self._counts: dict[int, tuple[Any, ...]] = {}
        self._present = set[int]()  # workloads whose last counts in the file are known
        self._owners: dict[int, str] = {}
        self._texts: dict[tuple[str, ...], tuple[int, int]] = {}  # rows with texts in the file, and the last one's time
        self._problems: dict[str, str] = {}
        self._policies = PolicyLoad({}, {})  # the last ones; differences: those that are not written yet
        self._policies_tick = -1  # with which they were added; -1: again with the next one
        self._proposed: dict[WorkloadRef, tuple[int, ChangeStatus]] = {}
        self._tally: TallyState | None = None
        self._traffic: dict[int, tuple[int, dict[str, float]]] = {}  # by workload: begin of its row, and sums
        self._use, self._use_from_s = GpuTotals[int](), 0.0
        self._use_of: IntColumn = np.empty(0, np.int64)  # numbers of the workloads that are summed up

    def take_pending(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows that are to be written now."""
        pending, self.pending = self.pending, {}
        return pending

    def forget(self) -> None:
        """Drop what is pending: what holds is written again with the next tick."""
        self.pending, self._traffic = {}, {}
        self._use.restart()
        self._facts, self._counts, self._owners, self._problems, self._texts = {}, {}, {}, {}, {}
        self._policies_tick = -1

    def confirm(self) -> None:
        """Take notice that what was pending is written."""
        self._policies = PolicyLoad(self._policies.texts, {})

    def go_on(self, file: RecordFile) -> None:
        """Go on with workloads and the last traffic of a file. Raises sqlite3.Error, also where the disk is full."""
        self._workloads = {tuple(key): number for number, *key in file.rows(WORKLOADS)}
        self._objects = {}
        for key, number in sorted(self._workloads.items(), key=itemgetter(1)):
            self._objects.setdefault(key[:3], []).append(number)
        self._present = {workload for (workload,) in file.rows(PRESENT)}
        for workload, from_s, *sums in file.rows(LAST_TRAFFIC):
            self._traffic.setdefault(workload, (from_s, dict(zip(("seconds", *TRAFFIC), sums, strict=True))))
        self._numbers = (), np.empty(0, np.int64)

    def note_policies(self, load: PolicyLoad, number: int, at_s: float) -> None:
        """Add policies that came into force. number: of the next tick."""
        self._policies, self._policies_tick = load, number
        for name in sorted({*load.texts, *load.differences}):
            row = (number, round(at_s), name, load.differences.get(name, ""), load.texts.get(name, ""))
            self._add("policies", row)

    def repeat_policies(self, number: int, at_s: float) -> None:
        """Add the policies in force, unless they came with this tick: their difference would be lost."""
        if self._policies_tick != number:
            self.note_policies(self._policies, number, at_s)

    def number_workloads(self, members: tuple[Workload, ...]) -> IntColumn:
        """Return the number of each workload in the file; int64[W]."""
        if self._numbers[0] is not members:
            numbers = []
            for workload in members:
                key = (workload.ref.namespace, workload.ref.name, workload.ref.kind, workload.uid)
                same = self._objects.setdefault(key[:3], [])
                if key not in self._workloads and len(same) < MOST_OBJECTS:
                    self._workloads[key] = len(self._workloads)
                    same.append(self._workloads[key])
                    self._add("workloads", (self._workloads[key], *key))
                numbers.append(self._workloads.get(key, same[-1]))
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
        numbers, sums = self._use.by_name(lambda row, _: int(self._use_of[row]))
        priced = sums.unpriced_s == 0
        for kind, names, gpu_s in (("state", GpuState, sums.gpu_s), ("cause", IdleCause, sums.idle_gpu_s)):
            for code, row in zip(*(each.tolist() for each in np.nonzero(gpu_s >= 0.5)), strict=True):
                usd = round(float(sums.usd[code, row]), 6) if kind == "state" and priced[row] else None
                key = numbers[row], round(self._use_from_s), kind, names(code).published
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
        by = (lambda row, _: int(self._use_of[row])), tick.device_prices
        self._use.add(tick.use, shares_of(groups), 0, *by)
        self._use_of = workload

    def _add(self, table: str, row: tuple[Any, ...]) -> None:
        self.pending.setdefault(table, []).append(row)

    def _note_counts(self, tick: TickRecord, number: int, decided: Decided) -> None:
        """Add rows of `facts`, `counts` and `owners` where they differ from the last ones.

        A workload that is not in the fleet any more has no counts: otherwise its last ones would hold for ever.
        """
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
        names = [each.ref[:3] for each in tick.input.fleet.workloads]
        rows = zip(decided.workload.tolist(), _facts(tick), counts, strict=True)
        for row, (workload, facts, count) in enumerate(rows):
            before = self._facts.get(workload)
            if before != facts and (self._has_room(names[row], at_s) or before is None):
                self._facts[workload] = facts
                self._add("facts", (workload, number, at_s, *facts))
            if self._counts.get(workload) != count:
                self._counts[workload] = count
                self._add("counts", (workload, number, at_s, *count, bound[row]))
            if self._owners.get(workload, "") != owners[row] and self._has_room(names[row], at_s):
                self._owners[workload] = owners[row]
                self._add("owners", (number, at_s, workload, owners[row][:MAX_PROBLEM], current[row]))
        present = {*decided.workload.tolist()}
        for workload in sorted(self._present - present):
            self._counts.pop(workload, None)
            self._add("counts", (workload, number, at_s, *GONE))
        self._present = present

    def _has_room(self, about: tuple[str, ...], at_s: int) -> bool:
        """Return whether another row with texts about a workload or a source is added now, and count it."""
        rows, last_s = self._texts.get(about, (0, at_s))
        if rows >= MOST_TEXTS and 0 <= at_s - last_s < TEXT_S:
            return False
        self._texts[about] = rows + 1, at_s
        return True

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
            at_s = round(tick.wall_s)
            if self._problems.get(report.source, "") != problem and self._has_room((report.source,), at_s):
                self._problems[report.source] = problem
                self._add("problems", (number, at_s, report.source[:100], problem))

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
