"""Learns from what was measured before this process began: the recent past, tick by tick, through the very decision.

Nothing is decided here and nobody acts: of each tick only the memory is used. Learning takes place in a thread, beside
ticks of the present that go on, and for the workloads that exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import structlog

from autoscaler.config.policy.compile import Compiled, compile_specs
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.core.model.fleet import Blocked, Fleet, Obstacles, Pod
from autoscaler.core.model.recent import Recent
from autoscaler.core.model.samples import FrontSamples, Objectives, PodSamples, Samples
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe import counter_falls
from autoscaler.core.snapshot import Snapshot, take
from autoscaler.core.state import Memory
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.core.tick import tick
from autoscaler.ports import Clock, HistorySource, Unavailable, WorkloadSource

log = structlog.get_logger(__name__)

SPAN_S = 3 * 3600.0
"""How far back: enough for capacity, lengths of answers and the course of demand to settle."""

DEADLINE_S = 20.0
"""For reading. What was read by then is learned from."""

UNTOLD = ("gateway.age_s", "gpu.loaded_idle_replica_s")
"""What history says nothing of: there are neither gateways nor GPUs in it. What is known of these by now stays."""

WINDOW_S = 120.0
"""Of latency quantiles, as usual."""

SETTLED_S = 300.0
"""A pod that reported for longer before it became ready had been ready before: engines report when they can serve."""

AGAIN_S = 1.0
"""Between two looks at a cluster that is not known yet."""


class LookBack:
    """Reads and learns: `await LookBack(history, workloads, policies, clock).learn()`."""

    def __init__(
        self, history: HistorySource, workloads: WorkloadSource, policies: Callable[[], PolicyBook], clock: Clock
    ) -> None:
        self._history = history
        self._workloads = workloads
        self._policies = policies
        self._clock = clock

    async def learn(self) -> Snapshot | None:
        """Return what the recent past teaches; None: it knows none of the workloads. Raises Unavailable."""
        fleet = await self._fleet()
        spec = compile_specs(fleet.workloads, self._policies()).spec
        objectives = Objectives(spec.ttft_objective_s, spec.itl_objective_s)
        began_s = self._clock.now_s()
        recent = await self._history.recent(fleet, objectives, SPAN_S, DEADLINE_S)
        read_s = self._clock.now_s()
        course = lay_out(recent, fleet)
        rules = compile_specs(course.fleet.workloads, self._policies())
        offset_s = self._clock.wall_s() - self._clock.now_s()
        snapshot = await asyncio.to_thread(relive, course, rules, offset_s)
        log.info(
            "learned from history",
            workloads=len(snapshot.workloads),
            of=len(fleet.workloads),
            pods=len(course.fleet.pods),
            read_s=round(read_s - began_s, 1),
            learned_s=round(self._clock.now_s() - read_s, 1),
            **({"problem": recent.problem} if recent.problem else {}),
        )
        return snapshot if snapshot.workloads else None

    async def _fleet(self) -> Fleet:
        """Wait until the cluster is known."""
        while True:
            try:
                return self._workloads.fleet()
            except Unavailable:
                await self._clock.sleep(AGAIN_S)


@dataclass(frozen=True)
class Course:
    """The recent past on the rows of the workloads of which anything is known, and of all pods they had."""

    fleet: Fleet  # as it is now; pods that are gone have no times
    recent: Recent  # on its rows
    reporting: BoolColumn  # bool[T, P], between a pod's first and last reading
    starting: BoolColumn  # bool[T, P], created and not yet reporting


def lay_out(recent: Recent, fleet: Fleet) -> Course:
    """Give the past a fleet of its own: some workloads of the present one, and pods that are gone beside those here."""
    recent = _apart(recent, fleet)
    read = _read(recent)
    order = np.flatnonzero(read.any(axis=0))
    workload, pod = recent.pod_workload[order], recent.pod[order]
    rows = np.unique(workload)
    there = pod >= 0

    def of_pod(column: FloatColumn) -> FloatColumn:
        return np.where(there, column[pod], np.nan) if len(column) else np.full(len(pod), np.nan)

    seen = read[:, order]
    begun = np.logical_or.accumulate(seen)
    reporting = begun & np.logical_or.accumulate(seen[::-1])[::-1]
    ready_s = of_pod(fleet.pod_ready_s)
    settled = ready_s - recent.time_s[begun.argmax(axis=0)] <= SETTLED_S

    alive = replace(
        fleet,
        workloads=tuple(fleet.workloads[row] for row in rows.tolist()),
        workload_id=fleet.workload_id[rows],
        replicas=fleet.replicas[rows],
        paused=fleet.paused[rows],
        other_owner=tuple(fleet.other_owner[row] for row in rows.tolist()),
        gpus_per_replica=fleet.gpus_per_replica[rows],
        pool=np.full(len(rows), -1, dtype=np.int64),  # what pools had to give then is not known
        obstacles=Obstacles.none(len(rows)),
        pods=tuple(fleet.pods[row] if row >= 0 else Pod("", "") for row in pod.tolist()),
        pod_id=np.arange(len(pod), dtype=np.int64),
        pod_workload=np.searchsorted(rows, workload),
        pod_ready=np.zeros(len(pod), dtype=bool),
        pod_terminating=np.zeros(len(pod), dtype=bool),
        pod_blocked=np.full(len(pod), Blocked.NO, dtype=np.int64),
        pod_created_s=of_pod(fleet.pod_created_s),
        pod_scheduled_s=of_pod(fleet.pod_scheduled_s),
        pod_started_s=of_pod(fleet.pod_started_s),
        pod_ready_s=np.where(settled, ready_s, np.nan),
        pools=(),
        pool_gpus=np.empty(0),
    )
    known = replace(
        recent,
        pod_workload=alive.pod_workload,
        pod=pod,
        columns={name: column[:, order] for name, column in recent.columns.items()},
    )
    return Course(alive, known, reporting, ~begun & (alive.pod_created_s <= recent.time_s[:, None]))


def _read(recent: Recent) -> BoolColumn:
    """Say when which pod was read; bool[T, P]."""
    return ~np.isnan(recent.columns.get("running", np.full((len(recent.time_s), len(recent.pod)), np.nan)))


def _apart(recent: Recent, fleet: Fleet) -> Recent:
    """Give what was read before a pod was created to another one, that is gone: StatefulSets give names again."""
    nobody = np.full(1, np.nan)
    created_s = np.concatenate([fleet.pod_created_s, nobody])[recent.pod]  # -1 is nobody
    former = _read(recent) & (recent.columns.get("time_s", recent.time_s[:, None]) < created_s)
    twice = np.flatnonzero(former.any(axis=0))
    if not len(twice):
        return recent
    columns = {
        name: np.concatenate(
            [np.where(former, np.nan, column), np.where(former[:, twice], column[:, twice], np.nan)], axis=1
        )
        for name, column in recent.columns.items()
    }
    return replace(
        recent,
        pod_workload=np.concatenate([recent.pod_workload, recent.pod_workload[twice]]),
        pod=np.concatenate([recent.pod, np.full(len(twice), -1)]),
        columns=columns,
    )


def relive(course: Course, rules: Compiled, offset_s: float) -> Snapshot:
    """Tick through the past, and keep what is remembered then.

    rules: of the workloads of the course. offset_s: from the clock of the tick to Unix time.
    """
    fleet, recent, memory = course.fleet, course.recent, Memory.empty()
    rows, pods = len(fleet.workloads), len(fleet.pods)
    front = FrontSamples.filled(rows)
    names = [field.name for field in fields(PodSamples)]
    unknown, counted = np.full(pods, np.nan), counter_falls.Counted.blank(0)
    now_s = float(recent.time_s[-1])
    for step, now_s in enumerate(recent.time_s.tolist()):
        reporting, starting = course.reporting[step], course.starting[step]
        there = reporting | starting
        then = replace(
            fleet,
            time_s=now_s,
            replicas=np.bincount(fleet.pod_workload[there], minlength=rows).astype(np.float64),
            pod_ready=reporting,
            pod_terminating=~there,  # what is not there yet, or no more, neither serves nor starts
            pod_ready_s=np.where(reporting, fleet.pod_ready_s, np.nan),
        )
        columns = {name: recent.columns[name][step] if name in recent.columns else unknown for name in names}
        start_s = (
            recent.columns[counter_falls.PROCESS_START][step]
            if counter_falls.PROCESS_START in recent.columns
            else unknown
        )
        believed, counted = counter_falls.doubt(counted, PodSamples(**columns), start_s, fleet, WINDOW_S)
        samples = Samples(believed, front)
        inp = TickInput(now_s, then, rules.spec, rules.windows.at(now_s + offset_s, now_s), samples)
        _, memory = tick(inp, memory)
    snapshot = take(memory, fleet.workloads, now_s, now_s + offset_s)
    return replace(snapshot, columns={name: column for name, column in snapshot.columns.items() if name not in UNTOLD})
