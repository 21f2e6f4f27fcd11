"""Data behind the API and the page: the last tick, its history, and the scale changes of each workload.

Recording a tick keeps references and writes one slot of the history. Tables and explanations are computed on request.
Memory is bounded: 64 MiB of history (see `history`), CHANGES scale changes, and one tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from autoscaler.adapters.web.recent_ticks import History
from autoscaler.adapters.web.table import Table
from autoscaler.adapters.web.tick_values import NewChanges, bounded
from autoscaler.core.explain.chain import NextNeed
from autoscaler.core.explain.sentence import Explanation
from autoscaler.core.explain.starts import NextStart
from autoscaler.core.model.fleet import Fleet, NodeGroups
from autoscaler.core.model.quotas import Quotas
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.ports import ChangeStatus, Outcome, TickRecord

Explain = Callable[[TickInput, Decision, tuple[str, ...], Mapping[int, str], int, bool], Explanation]
CHANGES = 32_768  # entries over all workloads
CHANGES_EACH = 64  # of one workload; fewer if there are many workloads, but at least FEW
FEW = 4
MAX_REASON = 500  # characters


@dataclass(frozen=True)
class Mark:
    """One scale change, as marked in the chart."""

    tick: int
    wall_s: float
    before: int
    after: int
    outcome: str
    reason: str
    detail: str


class Dashboard:
    """Recorder that keeps the last tick, the history and the changes for the API and the page.

    explain: explains one row of a tick in words, see `autoscaler.core.explain`.
    """

    def __init__(self, explain: Explain) -> None:
        self._explain = explain
        self._tick: TickRecord | None = None
        self._table: Table | None = None  # of the last tick that was requested
        self._table_is_current = False
        self._history = History()
        self._new_changes = NewChanges()
        self._marks: dict[int, deque[Mark]] = {}  # by workload_id
        self._listeners: list[Callable[[], None]] = []

    def record(self, tick: TickRecord) -> None:
        self._tick = tick
        self._table_is_current = False
        self._history.record(tick)
        self._mark(tick)
        for listener in self._listeners:
            listener()

    def failed(self, wall_s: float, error: BaseException) -> None:
        """Keep the last successful tick; readiness and metrics report the failure."""

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each tick until the returned function is called. It must not wait or raise."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def table(self) -> Table | None:
        """Return the last tick as a table; None before the first."""
        if self._tick is not None and not self._table_is_current:
            self._table = Table.of(self._tick, self._table)
            self._table_is_current = True
        return self._table

    def node_groups(self) -> NodeGroups | None:
        """Return the node groups of the last tick; None before the first."""
        return self._tick.input.fleet.groups if self._tick is not None else None

    def fleet(self) -> Fleet | None:
        """Return the fleet of the last tick; None before the first."""
        return self._tick.input.fleet if self._tick is not None else None

    def quotas(self) -> tuple[Quotas, ...]:
        """Return the quotas of the last tick; (): there are none, or no tick yet."""
        return self._tick.input.fleet.quotas if self._tick is not None else ()

    def workload(self, row: int, since: int = -1) -> dict[str, Any]:
        """Return row, explanation, history and changes of one row of `table()`, the latter two after tick `since`.

        Raises LookupError before the first tick. Do not await between `table()` and this call: rows may move.
        """
        tick, table = self._tick, self.table()
        if tick is None or table is None:
            raise LookupError("no tick yet")
        workload_id = int(table.columns["id"][row])
        explanation = self._explain(tick.input, tick.decision, tick.policies, tick.problems, row, tick.leading)
        return {
            "workload": table.rows(np.array([row]))[0],
            "explanation": _as_json(explanation, tick.wall_s),
            "history": self._history.of(row, since),
            "changes": [asdict(mark) for mark in self._marks.get(workload_id, ()) if mark.tick > since],
        }

    def _mark(self, tick: TickRecord) -> None:
        """Keep the new changes of this tick. A change that waits for its owner over many ticks is kept once."""
        fleet = tick.input.fleet
        news = self._new_changes.select(tick.outcomes)
        if not news:
            return
        ids = dict(zip((workload.ref for workload in fleet.workloads), fleet.workload_id.tolist(), strict=True))
        each = max(FEW, min(CHANGES_EACH, CHANGES // max(len(ids), 1)))
        if len(self._marks) > 2 * len(ids):  # most of these workloads were deleted
            self._marks = {key: self._marks[key] for key in ids.values() if key in self._marks}
        for outcome in news:
            workload_id = ids.get(outcome.change.ref)
            if workload_id is not None:
                marks = self._marks.get(workload_id)
                if marks is None or marks.maxlen != each:
                    marks = self._marks[workload_id] = deque(marks or (), maxlen=each)
                mark = _mark(tick, outcome)
                if not (marks and _same(marks[-1], mark)):
                    marks.append(mark)


def _as_json(explanation: Explanation, wall_s: float) -> dict[str, Any]:
    """Return the fields of an explanation. wall_s: Unix time of its tick."""
    return {
        "workload": explanation.workload,
        "policy": explanation.policy,
        "current": explanation.current,
        "wanted": explanation.wanted,
        "ready": explanation.ready,
        "recommender": explanation.recommender,
        "signal": explanation.signal,
        "bound": explanation.bound,
        "asks": explanation.asks,
        "steps": [
            {"stage": step.stage, "replicas": step.replicas, "reason": step.reason} for step in explanation.steps
        ],
        "forecast": [{"name": line.name, "text": line.text} for line in explanation.forecast],
        "gpus": explanation.gpus._asdict(),
        "inputs": explanation.inputs,
        "sentence": explanation.sentence,
        "warnings": list(explanation.warnings),
        "pair": explanation.pair,
        "start": _start(explanation.start),
        "weights": explanation.weights,
        "chain": _chain(explanation.chain, wall_s),
    }


def _start(start: NextStart | None) -> dict[str, Any] | None:
    """Return the fields of the next start, in seconds."""
    if start is None:
        return None
    return {
        "takes_s": start.takes_s,
        "by_phase": start.by_phase,
        "starts": start.starts,
        "weights": start.weights,
        "new_node": start.new_node,
        "phases": {name: each._asdict() for name, each in start.phases.items()},
        "by_weights": {name: each._asdict() for name, each in start.by_weights.items()},
        "starting": [each._asdict() for each in start.starting],
    }


def _chain(need: NextNeed | None, wall_s: float) -> dict[str, Any] | None:
    """Return the fields of the next need, with Unix times; None: there is none soon."""
    if need is None:
        return None
    return {
        "cause": need.cause,
        "window": need.window,
        "wall_s": round(wall_s + need.in_s),
        "replicas": need.replicas,
        "places": need.places,
        "links": [{"link": each.link, "wall_s": round(wall_s + each.in_s)} for each in need.links],
    }


def _same(last: Mark, mark: Mark) -> bool:
    """Return whether the same attempt failed again in the same way."""
    failed = mark.outcome in (ChangeStatus.FAILED.value, ChangeStatus.CONFLICT.value)
    return failed and (last.before, last.after, last.outcome) == (mark.before, mark.after, mark.outcome)


def _mark(tick: TickRecord, outcome: Outcome) -> Mark:
    change = outcome.change
    return Mark(
        tick.number,
        tick.wall_s,
        change.before,
        change.after,
        outcome.status.value,
        bounded(change.reason, MAX_REASON),
        bounded(outcome.detail, MAX_REASON),
    )
