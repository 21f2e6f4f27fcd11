"""The answers to KEDA, in memory: the last decision of each workload, until its inputs are too old.

`Answers` is the actuator and a recorder of KEDA mode: the loop publishes to it, and KEDA's calls read from it. The
columns are replaced at each tick, so a lookup is two dictionary reads and never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isnan
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.keda.metric_value import PublishedValue, Tolerance, publish
from autoscaler.adapters.keda.refusals import Refusals
from autoscaler.adapters.keda.zero_risk import find_zero_risks
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, find_ids
from autoscaler.ports import Change, ChangeStatus, Clock, Leadership, Outcome, TickRecord

NO_LEADER = "no replica is known to lead; the next leader answers"
HAND_OVER_S = 5.0  # for the first tick of a new leader, and for the connections of the one before to end
NEW_LEADER = "this replica has begun to lead; its next decision is the first answer"
OTHER_LEADER = "another replica leads and answers; this one does not"


class NoAnswer(Exception):
    """There is no answer, with the reason. KEDA gets UNAVAILABLE, so that its own fallback works."""

    def __init__(self, text: str, lasting: str = "") -> None:
        """lasting: the same reason without numbers that change from tick to tick."""
        super().__init__(text)
        self.lasting = lasting or text


class HandingOver(NoAnswer):
    """This replica has just begun to lead, and not decided since, or has just ceased to lead."""

    def __init__(self, text: str, has_replicas: bool) -> None:
        """has_replicas: the workload had replicas, or was to have some, at the last decision."""
        super().__init__(text)
        self.has_replicas = has_replicas


class CountAnswer(NamedTuple):
    """The count of one workload."""

    replicas: int  # desired
    current: int  # pods at the time of the decision, from which the HPA moves; 0: the HPA is off
    active: bool  # the workload must stay above zero
    age_s: float  # age of its oldest input


@dataclass(frozen=True)
class _Table(Columns):
    """One row per workload; every field float64[W]."""

    replicas: FloatColumn  # desired; NaN: no pod was read yet
    current: FloatColumn
    active: FloatColumn  # 1 or 0
    as_of_s: FloatColumn  # when the oldest input was read; NaN: never
    max_age_s: FloatColumn


_Row = tuple[int, int, bool, float, float]  # replicas (-1: unknown), current, active, as_of_s, max_age_s


@dataclass(frozen=True)
class _Snapshot:
    """The answers of one tick. It is never changed, only replaced."""

    rows: dict[WorkloadRef, int]
    workload_id: IntColumn  # int64[W], ascending
    table: _Table
    plain: list[_Row]  # the same values as Python numbers, which single lookups read faster


_NOTHING = _Snapshot({}, np.empty(0, dtype=np.int64), _Table.filled(0), [])


class Answers:
    """Actuator, recorder and memory of KEDA mode.

    A decision on untrusted inputs may raise the answer but never lower it. If some pods were read, it also renews the
    answer, because one hanging pod must not stop scaling up. The first answer after a restart is then the present
    count. If no pod is read, the answer expires. `record` and the streams run in one event loop.

    A decision counts only in the role in which it was made. A process that was frozen would otherwise answer old calls
    with an old count, and a new leader with its count as a follower, which may be below what the leader has answered.
    """

    def __init__(self, clock: Clock, leadership: Leadership) -> None:
        """clock: that of the ticks."""
        self.refusals = Refusals(clock)
        self.zero_risks: dict[WorkloadRef, str] = {}  # of the last tick
        self._clock = clock
        self._leadership = leadership
        self._snapshot = _NOTHING
        self._led: bool | None = None  # as last seen; None: not seen yet
        self._changed_s = -inf  # when another role was first seen
        self._decided = False  # by a tick in the present role, as leader
        self._tolerances: dict[WorkloadRef, Tolerance] = {}  # of workloads whose value KEDA has read
        self._watchers: dict[WorkloadRef, set[Callable[[], None]]] = {}  # open streams

    @property
    def leading(self) -> bool:
        return self._leadership.leading

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        """Report the changes as published, because KEDA reads them from the record of this tick.

        A change has failed if KEDA does not get it: its calls are refused, or there is no answer.
        """
        refused = self.refusals.by_workload()
        return [self._outcome(change, refused.get(change.ref, "")) for change in changes]

    def record(self, tick: TickRecord) -> None:
        """Store the decisions of a tick, and notify the streams of workloads that became active or idle."""
        before, after = self._snapshot, self._replace(tick)
        is_first = self._led is None
        self._see_role(tick.leading)
        changes_role, self._decided = not is_first and tick.leading != self._decided, tick.leading
        self._snapshot = after
        workloads, risks = tick.input.fleet.workloads, find_zero_risks(tick.input.fleet.hpa_limits, tick.input.spec)
        self.zero_risks = {workloads[row].ref: problem for row, problem in risks.items()}
        for ref in list(self._watchers):
            old, new = _active(before, ref), _active(after, ref)
            if old != new or changes_role:
                for notify in list(self._watchers.get(ref, ())):
                    notify()

    def failed(self, wall_s: float, error: BaseException) -> None:
        """Do nothing: the answers stay until they expire."""

    def answer(self, ref: WorkloadRef) -> CountAnswer:
        """Return the count of a workload.

        Raises NoAnswer if its inputs are missing or too old, and HandingOver shortly after a change of the role.
        """
        replicas, current, active, as_of_s, _ = self._fresh(ref)
        return CountAnswer(replicas, current, active, self._clock.now_s() - as_of_s)

    def publish(self, ref: WorkloadRef, tolerance: Tolerance) -> PublishedValue:
        """Return the metric value for a workload whose HPA has this tolerance. Raises NoAnswer like `answer`."""
        replicas, current, _, _, _ = self._fresh(ref)
        self._tolerances[ref] = tolerance
        return publish(replicas, current, tolerance)

    def is_swallowed(self, ref: WorkloadRef) -> bool:
        """Return whether the HPA's tolerance hides the desired count. False until KEDA has read the value."""
        try:
            answer = self.answer(ref)
        except NoAnswer:
            return False
        tolerance = self._tolerances.get(ref)
        return tolerance is not None and not publish(answer.replicas, answer.current, tolerance).reachable

    def swallowed_workloads(self) -> list[WorkloadRef]:
        """List the workloads whose desired count the HPA's tolerance hides now."""
        return [ref for ref in self._tolerances if self.is_swallowed(ref)]

    @property
    def watchers(self) -> int:
        """Number of open streams."""
        return sum(map(len, self._watchers.values()))

    @contextmanager
    def watching(self, ref: WorkloadRef, notify: Callable[[], None]) -> Iterator[None]:
        """Call `notify` in each tick in which the workload becomes active, idle, known or unknown."""
        self._watchers.setdefault(ref, set()).add(notify)
        try:
            yield
        finally:
            self._watchers[ref].discard(notify)
            if not self._watchers[ref]:
                del self._watchers[ref]

    def _fresh(self, ref: WorkloadRef) -> _Row:
        leading, now_s = self.leading, self._clock.now_s()
        self._see_role(leading)
        is_handing_over = not (leading and self._decided) and now_s - self._changed_s <= HAND_OVER_S
        if not leading and not is_handing_over:
            raise NoAnswer(self._reason_of_role())
        snapshot = self._snapshot
        row = snapshot.rows.get(ref)
        if row is None:
            raise NoAnswer(f"{ref.kind} {ref} is not among the workloads of the last tick")
        found = snapshot.plain[row]
        replicas, current, active, as_of_s, max_age_s = found
        if replicas < 0:
            raise NoAnswer(f"{ref.kind} {ref}: no pod was read yet")
        if is_handing_over:
            raise HandingOver(self._reason_of_role(), active or current > 0)
        if not self._decided:
            raise NoAnswer(self._reason_of_role())
        age_s = now_s - as_of_s
        if not age_s <= max_age_s:
            allowed = "no policy is in force" if isnan(max_age_s) else f"the policy allows {max_age_s:g} s"
            text = f"{ref.kind} {ref}: its inputs are {age_s:.0f} s old; {allowed}"
            raise NoAnswer(text, f"{ref.kind} {ref}: its inputs are too old; {allowed}")
        return found

    def _see_role(self, leading: bool) -> None:
        """Note the role at a call or a tick. What was decided in another role does not count any more."""
        if leading == self._led:
            return
        if self._led is not None:
            self._changed_s = self._clock.now_s()
        self._led, self._decided = leading, False

    def _reason_of_role(self) -> str:
        if self.leading:
            return NEW_LEADER
        return OTHER_LEADER if self._leadership.has_other_leader else NO_LEADER

    def _replace(self, tick: TickRecord) -> _Snapshot:
        fleet, decision, old = tick.input.fleet, tick.decision, self._snapshot
        if np.array_equal(fleet.workload_id, old.workload_id):
            rows, table = old.rows, old.table
        else:
            rows = {workload.ref: row for row, workload in enumerate(fleet.workloads)}
            table = _moved(old, fleet.workload_id)
            self._tolerances = {ref: tolerance for ref, tolerance in self._tolerances.items() if ref in rows}

        known = np.isfinite(decision.replicas) & (decision.replicas >= 0)
        trusted = decision.trusted & known
        is_fresh = trusted | (known & ~np.isnan(decision.observation.age_s))
        is_first = is_fresh & ~trusted & np.isnan(table.replicas)
        present = np.where(is_first, fleet.replicas, table.replicas)
        grows: BoolColumn = known & ~trusted & (decision.replicas > present)
        taken = trusted | grows
        active = decision.active | (decision.replicas > 0)  # KEDA scales an inactive workload from N to 0 at once
        table = _Table(
            replicas=np.where(taken, np.ceil(decision.replicas), present),
            current=np.where(fleet.replicas > 0, decision.observation.pods, 0.0),
            active=np.where(taken, active, np.where(is_first, present > 0, table.active)),
            as_of_s=np.where(is_fresh, _as_of_s(tick), table.as_of_s),
            max_age_s=tick.input.spec.max_input_age_s,
        )
        return _Snapshot(rows, fleet.workload_id, table, _plain(table))

    def _outcome(self, change: Change, refused: str) -> Outcome:
        if not refused and not change.has_fresh_input:
            try:
                self._fresh(change.ref)
            except NoAnswer as error:
                refused = f"KEDA gets no answer: {error.lasting}"
        if refused:
            return Outcome(change, ChangeStatus.FAILED, refused)
        return Outcome(change, ChangeStatus.PUBLISHED, self._caveat(change))

    def _caveat(self, change: Change) -> str:
        tolerance = self._tolerances.get(change.ref)
        if tolerance is None or publish(change.after, change.before, tolerance).reachable:
            return ""
        return "inside the tolerance of the HPA, which will not act on it"


def _plain(table: _Table) -> list[_Row]:
    counts = (
        np.nan_to_num(column, nan=unknown).astype(int) for column, unknown in ((table.replicas, -1), (table.current, 0))
    )
    columns = (*counts, table.active > 0, table.as_of_s, table.max_age_s)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _as_of_s(tick: TickRecord) -> FloatColumn:
    """Return when the oldest input of each decision was read, float64[W]: an engine, or the cluster."""
    age_s = tick.decision.observation.age_s
    return np.asarray(np.fmin(tick.now_s - age_s, min(tick.now_s, tick.input.fleet.time_s)), dtype=np.float64)


def _moved(old: _Snapshot, workload_id: IntColumn) -> _Table:
    """Move rows to the present rows of their workloads; NaN for new workloads."""
    if not len(old.workload_id):
        return _Table.filled(len(workload_id))
    place, same = find_ids(workload_id, old.workload_id)
    taken = old.table.take(place)
    return _Table(*(np.where(same, column, np.nan) for column in vars(taken).values()))


def _active(snapshot: _Snapshot, ref: WorkloadRef) -> bool | None:
    """Return whether a workload is active, as of its last answer; None: unknown."""
    row = snapshot.rows.get(ref)
    if row is None or np.isnan(snapshot.table.replicas[row]):
        return None
    return bool(snapshot.table.active[row])
