"""Kubernetes Events about what changed: scaled, refused, another owner, a problem, replicas that do not come.

`kubectl describe` shows them.

An event that cannot be written is dropped; nothing here waits for the API server while a tick records. The words are
those of the explanation, cut to what an event may hold.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import structlog

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.leader_election import micro_time
from autoscaler.core.explain import pods
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.observe.pending import lacking
from autoscaler.ports import ChangeStatus, Clock, Outcome, TickRecord

log = structlog.get_logger(__name__)

API_ROOT = "/apis/events.k8s.io/v1"
MERGE_PATCH = "application/merge-patch+json"
CONTROLLER = "vllm-autoscaler.io/autoscaler"
NOTE_LIMIT_BYTES = 1000  # the API allows 1 kB
QUEUE_LIMIT = 1000  # events that wait to be written; beyond it the oldest is dropped
SERIES_LIMIT = 2000  # events that may still be repeated
SERIES_S = 360.0  # a repetition later than this is a new event, as in client-go
TOLD_AFTER_S = 30.0  # replicas that are absent for so long are told: a node that is made for a pod takes its time
REPEAT_S = 60.0  # a series is written at most this often, with what has been counted meanwhile
NORMAL, WARNING = "Normal", "Warning"
NOT_FOUND = 404


class _Fact(NamedTuple):
    """What an event says; equal facts form a series."""

    ref: WorkloadRef
    uid: str
    type: str
    reason: str
    action: str
    note: str


@dataclass
class _Series:
    """An event that was written, and how often its fact has been seen."""

    name: str
    count: int
    seen_s: float  # last seen, on the clock of the ticks
    written_s: float


class _Said(NamedTuple):
    """What was last said about a workload, so that only changes are told."""

    other_owner: str = ""
    published: int = -1
    problem: str = ""
    absent: str = ""  # why replicas do not come, without the numbers, which change; "": all come
    absent_since_s: float = 0.0
    absent_told: bool = False


class EventRecorder:
    """Records ticks as Events: implements Recorder. `run` it in a task; without it nothing is written."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self.dropped = 0  # events that were not written, ever
        self._kube = kube
        self._clock = clock
        self._instance = socket.gethostname()[:128]
        self._due: deque[tuple[_Fact, float]] = deque()  # with the wall time
        self._ready = asyncio.Event()
        self._series: OrderedDict[_Fact, _Series] = OrderedDict()
        self._said: dict[str, _Said] = {}  # by uid
        self._failing = False

    def record(self, tick: TickRecord) -> None:
        """Queue what changed in this tick. A follower has nothing to tell."""
        said = {}
        published = {
            outcome.change.uid: outcome for outcome in tick.outcomes if outcome.status is ChangeStatus.PUBLISHED
        }
        fleet, absent = tick.input.fleet, _absent(tick)
        for row, (workload, owner) in enumerate(zip(fleet.workloads, fleet.other_owner, strict=True)):
            before = self._said.get(workload.uid, _Said())
            outcome = published.get(workload.uid)
            problem = (
                tick.problems.get(row, "") if tick.leading else ""
            )  # whoever begins to lead tells of all there are
            now = _Said(owner, outcome.change.after if outcome is not None else before.published, problem)
            if row in absent and tick.leading:
                since_s = before.absent_since_s if before.absent else tick.now_s
                told = before.absent_told and before.absent == absent[row]
                now = now._replace(absent=absent[row], absent_since_s=since_s, absent_told=told)
                if not told and tick.now_s - since_s >= TOLD_AFTER_S:
                    words = pods.not_running(tick.input, tick.decision, row)
                    self._tell(_missing(workload.ref, workload.uid, words), tick.wall_s)
                    now = now._replace(absent_told=True)
            elif before.absent_told and tick.leading:
                self._tell(_missing(workload.ref, workload.uid, ""), tick.wall_s)
            if now != _Said():
                said[workload.uid] = now
            if not tick.leading or now == before:
                continue
            if now.other_owner != before.other_owner:
                self._tell(_other_owner(workload.ref, workload.uid, owner, before.other_owner), tick.wall_s)
            if problem != before.problem:
                self._tell(_problem(workload.ref, workload.uid, problem), tick.wall_s)
            if outcome is not None and now.published != before.published:
                self._tell(_outcome(outcome, "Recommended", NORMAL), tick.wall_s)
        self._said = said
        for outcome in tick.outcomes if tick.leading else ():
            if outcome.status is ChangeStatus.APPLIED:
                self._tell(_outcome(outcome, "Scaled", NORMAL), tick.wall_s)
            elif outcome.status is ChangeStatus.CONFLICT:
                self._tell(_outcome(outcome, "ScaleConflict", WARNING), tick.wall_s)
            elif outcome.status is ChangeStatus.FAILED:
                self._tell(_outcome(outcome, "ScaleFailed", WARNING), tick.wall_s)

    def failed(self, wall_s: float, error: BaseException) -> None:
        """A tick that came to nothing concerns no single workload: log and metrics tell of it."""

    async def run(self) -> None:
        """Write queued events, one after the other, until cancelled."""
        while True:
            await self._ready.wait()
            while self._due:
                fact, wall_s = self._due.popleft()
                await self._write(fact, wall_s)
            self._ready.clear()

    def _tell(self, fact: _Fact, wall_s: float) -> None:
        if len(self._due) >= QUEUE_LIMIT:
            self._due.popleft()
            self.dropped += 1
        self._due.append((fact, wall_s))
        self._ready.set()

    async def _write(self, fact: _Fact, wall_s: float) -> None:
        now_s = self._clock.now_s()
        series = self._series.get(fact)
        try:
            if series is not None and now_s - series.seen_s < SERIES_S:
                series.count += 1
                series.seen_s = now_s
                if now_s - series.written_s >= REPEAT_S or series.count == 2:
                    series.written_s = now_s
                    await self._repeat(fact, series, wall_s)
                return
            name = f"{fact.ref.name[:200].rstrip('-.')}.{secrets.token_hex(8)}"
            await self._create(fact, name, wall_s)
            self._series[fact] = _Series(name, 1, now_s, now_s)
            self._series.move_to_end(fact)
            while len(self._series) > SERIES_LIMIT:
                self._series.popitem(last=False)
        except ApiError as error:
            self._fail(error)
            if series is not None and error.status == NOT_FOUND:  # the server forgets events after a while
                del self._series[fact]
            if error.retry_after_s is not None:
                await self._clock.sleep(min(error.retry_after_s, REPEAT_S))
        else:
            self._failing = False

    async def _create(self, fact: _Fact, name: str, wall_s: float) -> None:
        namespace = fact.ref.namespace
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": micro_time(wall_s),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": fact.action,
            "reason": fact.reason,
            "type": fact.type,
            "note": fact.note,
            "regarding": {
                "apiVersion": fact.ref.api_version,
                "kind": fact.ref.kind,
                "namespace": namespace,
                "name": fact.ref.name,
                "uid": fact.uid,
            },
        }
        await self._kube.request("POST", object_path(API_ROOT, namespace, "events"), event)

    async def _repeat(self, fact: _Fact, series: _Series, wall_s: float) -> None:
        patch: dict[str, Any] = {"series": {"count": series.count, "lastObservedTime": micro_time(wall_s)}}
        path = object_path(API_ROOT, fact.ref.namespace, "events", series.name)
        await self._kube.request("PATCH", path, patch, content_type=MERGE_PATCH)

    def _fail(self, error: ApiError) -> None:
        self.dropped += 1
        if not self._failing:
            log.warning("events cannot be written", error=str(error))
        self._failing = True


def _outcome(outcome: Outcome, reason: str, severity: str) -> _Fact:
    """Word an outcome. What failed is told without the sentence, whose numbers change: it fails again next tick."""
    change = outcome.change
    failed = f"{change.before} to {change.after} replicas: {outcome.detail}"
    note = _note(change.reason if severity == NORMAL else failed)
    return _Fact(change.ref, change.uid, severity, reason, "Scale", note)


def _other_owner(ref: WorkloadRef, uid: str, owner: str, before: str) -> _Fact:
    if owner:
        note = _note(f"{owner} owns the replica count; it is left alone.")
        return _Fact(ref, uid, WARNING, "OtherOwnerDetected", "Observe", note)
    return _Fact(ref, uid, NORMAL, "OtherOwnerGone", "Observe", _note(f"{before} no longer owns the replica count."))


def _problem(ref: WorkloadRef, uid: str, problem: str) -> _Fact:
    if problem:
        return _Fact(ref, uid, WARNING, "ProblemDetected", "Observe", _note(problem))
    return _Fact(ref, uid, NORMAL, "ProblemGone", "Observe", "Nothing is wrong with its declarations any more.")


def _absent(tick: TickRecord) -> dict[int, str]:
    """Return by row which kind of replicas do not come, and why, without numbers."""
    observation, words = tick.decision.observation, tick.input.fleet.obstacles.words
    lack = lacking(observation)
    rows = np.flatnonzero((observation.missing > 0) | (lack > 0)).tolist()
    return {row: f"{observation.missing[row] > 0} {lack[row] > 0} {re.sub(r'[0-9]+', '', words[row])}" for row in rows}


def _missing(ref: WorkloadRef, uid: str, words: str) -> _Fact:
    if words:
        return _Fact(ref, uid, WARNING, "ReplicasMissing", "Observe", _note(words))
    return _Fact(ref, uid, NORMAL, "ReplicasComplete", "Observe", "No replica is missing or blocked any more.")


def _note(text: str) -> str:
    """Cut to what an event may hold, in bytes and never inside a character."""
    raw = text.encode()
    return text if len(raw) <= NOTE_LIMIT_BYTES else raw[: NOTE_LIMIT_BYTES - 3].decode(errors="ignore") + "..."
