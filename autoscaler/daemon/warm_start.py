"""Warm start: learns from recent history by running the ticks that this process would have run.

Only the memory of these ticks is used; their decisions are dropped. The replay runs in a thread, so that live ticks go
on, and covers only workloads that exist now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import structlog

from autoscaler.config.pairs import find_pairs
from autoscaler.config.policy.compile import Compiled, compile_specs
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, PendingCause, Pod
from autoscaler.core.model.phases import PodStarts
from autoscaler.core.model.recent import RecentReadings
from autoscaler.core.model.samples import GatewaySamples, PodSamples, Samples
from autoscaler.core.model.types import TickInput
from autoscaler.core.model.weights import PodCache, WeightPlaces, Weights
from autoscaler.core.readings import counter_falls
from autoscaler.core.snapshot import Snapshot, take
from autoscaler.core.state import Memory
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.tick import tick
from autoscaler.ports import Clock, HistorySource, Unavailable, WorkloadSource

log = structlog.get_logger(__name__)

SPAN_S = 3 * 3600.0
"""Length of the history: enough for learned capacity, output lengths and load averages to settle."""

DEADLINE_S = 20.0
"""Time limit for reading. The replay uses what was read by then."""

NOT_IN_HISTORY = ("gateway.age_s", "gpu.loaded_idle_replica_s", "changes.flaps")
"""Stored columns that the replay cannot fill: history has neither gateways, GPUs nor the desired count. Their present
values stay."""

WINDOW_S = 120.0
"""Window of latency quantiles, the default of live readings."""

LONGEST_STARTUP_S = 300.0
"""A pod that reported metrics for longer than this before its ready time was ready before: engines report once they can
serve."""

RETRY_S = 1.0
"""Pause between attempts to read the fleet while the cluster is not synced."""


class WarmStart:
    """Reads history and learns from it: `await WarmStart(history, workloads, policies, clock).learn()`."""

    def __init__(
        self, history: HistorySource, workloads: WorkloadSource, policies: Callable[[], PolicyBook], clock: Clock
    ) -> None:
        self._history = history
        self._workloads = workloads
        self._policies = policies
        self._clock = clock

    async def learn(self) -> Snapshot | None:
        """Return the state learned from history; None if it has no workload of the fleet. Raises Unavailable."""
        fleet = await self._fleet()
        spec = compile_specs(fleet.workloads, self._policies()).spec
        began_s = self._clock.now_s()
        recent = await self._history.recent(fleet, spec.objectives, SPAN_S, DEADLINE_S)
        read_s = self._clock.now_s()
        past = arrange(recent, fleet)
        specs = compile_specs(past.fleet.workloads, self._policies())
        offset_s = self._clock.wall_s() - self._clock.now_s()
        snapshot = await asyncio.to_thread(replay, past, specs, offset_s)
        log.info(
            "learned from history",
            workloads=len(snapshot.workloads),
            of=len(fleet.workloads),
            pods=len(past.fleet.pods),
            read_s=round(read_s - began_s, 1),
            learned_s=round(self._clock.now_s() - read_s, 1),
            **({"problem": recent.problem} if recent.problem else {}),
        )
        return snapshot if snapshot.workloads else None

    async def _fleet(self) -> Fleet:
        """Wait until the cluster is synced, and return its fleet."""
        while True:
            try:
                return self._workloads.fleet()
            except Unavailable:
                await self._clock.sleep(RETRY_S)


@dataclass(frozen=True)
class Past:
    """Recent history on rows of its own: the workloads that it has readings of, and all pods they had. T steps."""

    fleet: Fleet  # the present fleet; deleted pods have no times
    recent: RecentReadings  # on the rows of `fleet`
    reporting: BoolColumn  # bool[T, P], between a pod's first and last reading
    starting: BoolColumn  # bool[T, P], created, and no reading yet


def arrange(recent: RecentReadings, fleet: Fleet) -> Past:
    """Give history a fleet of its own: workloads with readings, their present pods and their deleted pods."""
    recent = _split_reused_names(recent, fleet)
    read = _has_reading(recent)
    order = np.flatnonzero(read.any(axis=0))
    workload, pod = recent.pod_workload[order], recent.pod[order]
    rows = np.unique(workload)
    exists = pod >= 0

    def of_pod(column: FloatColumn) -> FloatColumn:
        return np.where(exists, column[pod], np.nan) if len(column) else np.full(len(pod), np.nan)

    def of_workload(column: FloatColumn | None) -> FloatColumn | None:
        return None if column is None else column[rows]

    read = read[:, order]
    begun = np.logical_or.accumulate(read)
    reporting = begun & np.logical_or.accumulate(read[::-1])[::-1]
    ready_s = of_pod(fleet.pod_ready_s)
    is_first_start = ready_s - recent.time_s[begun.argmax(axis=0)] <= LONGEST_STARTUP_S

    alive = replace(
        fleet,
        workloads=tuple(fleet.workloads[row] for row in rows.tolist()),
        workload_id=fleet.workload_id[rows],
        replicas=fleet.replicas[rows],
        paused=fleet.paused[rows],
        other_owner=tuple(fleet.other_owner[row] for row in rows.tolist()),
        foreign=None,
        held=None,
        gpus_per_replica=fleet.gpus_per_replica[rows],
        pool=np.full(len(rows), -1, dtype=np.int64),  # the free GPUs, quotas and holds of that time are not known
        obstacles=Obstacles.none(len(rows)),
        pods=tuple(fleet.pods[row] if row >= 0 else Pod("", "") for row in pod.tolist()),
        pod_id=np.arange(len(pod), dtype=np.int64),
        pod_workload=np.searchsorted(rows, workload),
        pod_ready=np.zeros(len(pod), dtype=bool),
        pod_terminating=np.zeros(len(pod), dtype=bool),
        pod_pending=np.full(len(pod), PendingCause.NONE, dtype=np.int64),
        pod_created_s=of_pod(fleet.pod_created_s),
        pod_scheduled_s=of_pod(fleet.pod_scheduled_s),
        pod_started_s=of_pod(fleet.pod_started_s),
        pod_ready_s=np.where(is_first_start, ready_s, np.nan),
        pod_slots=None if fleet.pod_slots is None else of_pod(fleet.pod_slots),
        pools=(),
        groups=NodeGroups.of_pools((), np.empty(0)),
        hpa_limits=None,
        quotas=(),
        gpus_per_pod=of_workload(fleet.gpus_per_pod),
        drain_s=None,
        weights=None if fleet.weights is None else _weights_of(fleet.weights, rows, pod),
        starts=None
        if fleet.starts is None
        else PodStarts(**{name: of_pod(column) for name, column in fleet.starts.columns().items()}),
        pods_of_replica={
            place: fleet.pods_of_replica[row] for place, row in enumerate(rows.tolist()) if row in fleet.pods_of_replica
        },
        parts=(),
    )
    known = replace(
        recent,
        pod_workload=alive.pod_workload,
        pod=pod,
        columns={name: column[:, order] for name, column in recent.columns.items()},
    )
    return Past(alive, known, reporting, ~begun & (alive.pod_created_s <= recent.time_s[:, None]))


def _weights_of(weights: Weights, rows: IntColumn, pod: IntColumn) -> Weights:
    """Return the weights of some workloads and pods; -1: a deleted pod. Where there was room then is not known."""
    cache = np.append(weights.pod_cache, int(PodCache.UNKNOWN))[pod]
    return replace(
        weights,
        source=weights.source[rows],
        size_bytes=weights.size_bytes[rows],
        steered=weights.steered[rows],
        places=WeightPlaces.none(),
        pod_cache=cache,
    )


def _has_reading(recent: RecentReadings) -> BoolColumn:
    """Return which pods have a reading at which step; bool[T, P]."""
    return ~np.isnan(recent.columns.get("running", np.full((len(recent.time_s), len(recent.pod)), np.nan)))


def _split_reused_names(recent: RecentReadings, fleet: Fleet) -> RecentReadings:
    """Move readings older than a pod to a deleted pod of its own: a StatefulSet reuses pod names."""
    deleted = np.full(1, np.nan)
    created_s = np.concatenate([fleet.pod_created_s, deleted])[recent.pod]  # -1: deleted
    former = _has_reading(recent) & (recent.columns.get("time_s", recent.time_s[:, None]) < created_s)
    reused = np.flatnonzero(former.any(axis=0))
    if not len(reused):
        return recent
    columns = {
        name: np.concatenate(
            [np.where(former, np.nan, column), np.where(former[:, reused], column[:, reused], np.nan)], axis=1
        )
        for name, column in recent.columns.items()
    }
    return replace(
        recent,
        pod_workload=np.concatenate([recent.pod_workload, recent.pod_workload[reused]]),
        pod=np.concatenate([recent.pod, np.full(len(reused), -1)]),
        columns=columns,
    )


def replay(past: Past, specs: Compiled, offset_s: float) -> Snapshot:
    """Run one tick per step of history, and return the memory of the last one.

    specs: of the workloads of `past`. offset_s: seconds to add to the clock of ticks to get Unix time.
    """
    fleet, recent, memory = past.fleet, past.recent, Memory.empty()
    rows, pods = len(fleet.workloads), len(fleet.pods)
    front, pairs = GatewaySamples.filled(rows), find_pairs(fleet.workloads, specs.spec)
    names = [field.name for field in fields(PodSamples)]
    unknown, counted = np.full(pods, np.nan), counter_falls.CounterHistory.blank(0)
    now_s = float(recent.time_s[-1])
    for step, now_s in enumerate(recent.time_s.tolist()):
        reporting, starting = past.reporting[step], past.starting[step]
        exists = reporting | starting
        fleet_then = replace(
            fleet,
            time_s=now_s,
            replicas=np.bincount(fleet.pod_workload[exists], minlength=rows).astype(np.float64),
            pod_ready=reporting,
            pod_terminating=~exists,  # a pod that does not exist neither serves nor starts
            pod_ready_s=np.where(reporting, fleet.pod_ready_s, np.nan),
        )
        columns = {name: recent.columns[name][step] if name in recent.columns else unknown for name in names}
        start_s = (
            recent.columns[counter_falls.PROCESS_START][step]
            if counter_falls.PROCESS_START in recent.columns
            else unknown
        )
        believed, counted = counter_falls.discard_fallen(counted, PodSamples(**columns), start_s, fleet, WINDOW_S)
        samples = Samples(believed, front)
        schedule = specs.windows.at(now_s + offset_s, now_s)
        inp = TickInput(now_s, fleet_then, specs.spec, schedule, samples, pairs=pairs)
        _, memory = tick(inp, memory)
    snapshot = take(memory, fleet.workloads, now_s, now_s + offset_s)
    learned = {name: column for name, column in snapshot.columns.items() if name not in NOT_IN_HISTORY}
    return replace(snapshot, columns=learned)
