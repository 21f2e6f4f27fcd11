"""Kubernetes Events of workloads: scaled, refused, another owner, a problem, missing replicas.

`kubectl describe` shows them. Recording a tick never waits for the API server: events are queued, and an event that
cannot be written is dropped. The text is that of the explanation, cut to the limit of an event.
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
from autoscaler.adapters.kubernetes.api.text import micro_time
from autoscaler.core.explain import pods
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.observe.pending import count_pending_replicas
from autoscaler.ports import ChangeStatus, Clock, Outcome, TickRecord

log = structlog.get_logger(__name__)

API_ROOT = "/apis/events.k8s.io/v1"
MERGE_PATCH = "application/merge-patch+json"
CONTROLLER = "vllm-autoscaler.io/autoscaler"
NOTE_LIMIT_BYTES = 1000  # the API allows 1 kB
QUEUE_LIMIT = 1000  # events waiting to be written; beyond it the oldest is dropped
SERIES_LIMIT = 2000  # events that may still be repeated
SERIES_S = 360.0  # a repetition after this time is a new event, as in client-go
REPEAT_S = 60.0  # a series is written at most this often, with its present count
MISSING_AFTER_S = 30.0  # replicas may be missing for this long without an event: creating a node takes time
NORMAL, WARNING = "Normal", "Warning"
NOT_FOUND = 404


class _EventSubject(NamedTuple):
    """The subject of an event. Events of one subject form a series, whose note is that of the first."""

    uid: str
    reason: str
    subject: str  # such as the change of the count; without numbers that change from tick to tick


class _Event(NamedTuple):
    """The content of an event."""

    ref: WorkloadRef
    key: _EventSubject
    type: str
    action: str
    note: str


@dataclass
class _EventSeries:
    """A written event, and how often it was repeated."""

    name: str
    count: int
    seen_s: float  # last repetition, on the clock of the ticks
    written_s: float


class _Reported(NamedTuple):
    """The last reported state of a workload, so that only changes are reported."""

    other_owner: str = ""
    published: int = -1
    problem: str = ""
    missing: str = ""  # why replicas are missing, without the numbers, which change; "": none is
    missing_since_s: float = 0.0
    missing_reported: bool = False


class EventRecorder:
    """Records ticks as Events: implements Recorder. `run` it in a task; without it nothing is written."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self.dropped = 0  # events that were not written, since the start
        self._kube = kube
        self._clock = clock
        self._instance = socket.gethostname()[:128]
        self._queue: deque[tuple[_Event, float]] = deque()  # with the wall time
        self._ready = asyncio.Event()
        self._series: OrderedDict[_EventSubject, _EventSeries] = OrderedDict()
        self._reported: dict[str, _Reported] = {}  # by uid
        self._failing = False

    def record(self, tick: TickRecord) -> None:
        """Queue the changes of this tick. A follower reports nothing."""
        reported = {}
        published = {
            outcome.change.uid: outcome for outcome in tick.outcomes if outcome.status is ChangeStatus.PUBLISHED
        }
        fleet, missing = tick.input.fleet, _find_missing(tick)
        for row, (workload, owner) in enumerate(zip(fleet.workloads, fleet.other_owner, strict=True)):
            ref, uid = workload.ref, workload.uid
            before = self._reported.get(uid, _Reported())
            outcome = published.get(uid)
            # A new leader reports all problems, so a follower must not mark them as reported.
            problem = tick.problems.get(row, "") if tick.leading else ""
            now = _Reported(owner, outcome.change.after if outcome is not None else before.published, problem)
            if row in missing and tick.leading:
                since_s = before.missing_since_s if before.missing else tick.now_s
                is_reported = before.missing_reported and before.missing == missing[row]
                now = now._replace(missing=missing[row], missing_since_s=since_s, missing_reported=is_reported)
                if not is_reported and tick.now_s - since_s >= MISSING_AFTER_S:
                    text = pods.not_running(tick.input, tick.decision, row)
                    self._add(_missing_event(ref, uid, text), tick.wall_s)
                    now = now._replace(missing_reported=True)
            elif before.missing_reported and tick.leading:
                self._add(_missing_event(ref, uid, ""), tick.wall_s)
            if now != _Reported():
                reported[uid] = now
            if not tick.leading or now == before:
                continue
            if now.other_owner != before.other_owner:
                lasts = fleet.foreign is not None and fleet.foreign.owned_until_s[row] == np.inf
                self._add(_owner_event(ref, uid, owner, before.other_owner, lasts), tick.wall_s)
            if _without_numbers(problem) != _without_numbers(before.problem):
                self._add(_problem_event(ref, uid, problem), tick.wall_s)
            if outcome is not None and now.published != before.published:
                self._add(_scale_event(outcome, "Recommended", NORMAL), tick.wall_s)
        self._reported = reported
        for outcome in tick.outcomes if tick.leading else ():
            if outcome.status is ChangeStatus.APPLIED:
                self._add(_scale_event(outcome, "Scaled", NORMAL), tick.wall_s)
            elif outcome.status is ChangeStatus.CONFLICT:
                self._add(_scale_event(outcome, "ScaleConflict", WARNING), tick.wall_s)
            elif outcome.status is ChangeStatus.FAILED:
                self._add(_scale_event(outcome, "ScaleFailed", WARNING), tick.wall_s)

    def failed(self, wall_s: float, error: BaseException) -> None:
        """Do nothing: a failed tick concerns no single workload, and log and metrics report it."""

    async def run(self) -> None:
        """Write queued events one by one until cancelled."""
        while True:
            await self._ready.wait()
            while self._queue:
                event, wall_s = self._queue.popleft()
                await self._write(event, wall_s)
            self._ready.clear()

    def _add(self, event: _Event, wall_s: float) -> None:
        if len(self._queue) >= QUEUE_LIMIT:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append((event, wall_s))
        self._ready.set()

    async def _write(self, event: _Event, wall_s: float) -> None:
        now_s = self._clock.now_s()
        series = self._series.get(event.key)
        try:
            if series is not None and now_s - series.seen_s < SERIES_S:
                series.count += 1
                series.seen_s = now_s
                if now_s - series.written_s >= REPEAT_S or series.count == 2:
                    series.written_s = now_s
                    await self._repeat(event, series, wall_s)
                return
            name = f"{event.ref.name[:200].rstrip('-.')}.{secrets.token_hex(8)}"
            await self._create(event, name, wall_s)
            self._series[event.key] = _EventSeries(name, 1, now_s, now_s)
            self._series.move_to_end(event.key)
            while len(self._series) > SERIES_LIMIT:
                self._series.popitem(last=False)
        except ApiError as error:
            self._drop(error)
            if series is not None and error.status == NOT_FOUND:  # the server deletes events after a while
                del self._series[event.key]
            if error.retry_after_s is not None:
                await self._clock.sleep(min(error.retry_after_s, REPEAT_S))
        else:
            self._failing = False

    async def _create(self, event: _Event, name: str, wall_s: float) -> None:
        namespace = event.ref.namespace
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": micro_time(wall_s),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": event.action,
            "reason": event.key.reason,
            "type": event.type,
            "note": event.note,
            "regarding": {
                "apiVersion": event.ref.api_version,
                "kind": event.ref.kind,
                "namespace": namespace,
                "name": event.ref.name,
                "uid": event.key.uid,
            },
        }
        await self._kube.request("POST", object_path(API_ROOT, namespace, "events"), body)

    async def _repeat(self, event: _Event, series: _EventSeries, wall_s: float) -> None:
        patch: dict[str, Any] = {"series": {"count": series.count, "lastObservedTime": micro_time(wall_s)}}
        path = object_path(API_ROOT, event.ref.namespace, "events", series.name)
        await self._kube.request("PATCH", path, patch, content_type=MERGE_PATCH)

    def _drop(self, error: ApiError) -> None:
        self.dropped += 1
        if not self._failing:
            log.warning("events cannot be written", error=str(error))
        self._failing = True


def _scale_event(outcome: Outcome, reason: str, severity: str) -> _Event:
    """Return the event of a change. A failure omits the explanation."""
    change = outcome.change
    counts = f"{change.before} to {change.after} replicas"
    note = change.reason if severity == NORMAL else f"{counts}: {outcome.detail}"
    key = _EventSubject(change.uid, reason, f"{counts}: {_without_numbers(outcome.detail)}")
    return _Event(change.ref, key, severity, "Scale", _cut(note))


def _owner_event(ref: WorkloadRef, uid: str, owner: str, before: str, lasts: bool) -> _Event:
    """lasts: it has set a zero, which ends when somebody raises the count."""
    if owner:
        until = " until somebody raises it from zero" if lasts else ""
        note = _cut(f"{owner} owns the replica count; it is left alone{until}.")
        return _Event(ref, _EventSubject(uid, "OtherOwnerDetected", owner), WARNING, "Observe", note)
    note = _cut(f"{before} no longer owns the replica count.")
    return _Event(ref, _EventSubject(uid, "OtherOwnerGone", before), NORMAL, "Observe", note)


def _problem_event(ref: WorkloadRef, uid: str, problem: str) -> _Event:
    if problem:
        key = _EventSubject(uid, "ProblemDetected", _without_numbers(problem))
        return _Event(ref, key, WARNING, "Observe", _cut(problem))
    note = "Nothing is wrong with its declarations any more."
    return _Event(ref, _EventSubject(uid, "ProblemGone", ""), NORMAL, "Observe", note)


def _missing_event(ref: WorkloadRef, uid: str, text: str) -> _Event:
    if text:
        key = _EventSubject(uid, "ReplicasMissing", _without_numbers(text))
        return _Event(ref, key, WARNING, "Observe", _cut(text))
    note = "No replica is missing or blocked any more."
    return _Event(ref, _EventSubject(uid, "ReplicasComplete", ""), NORMAL, "Observe", note)


def _without_numbers(text: str) -> str:
    """Return what a text is about. Its numbers, such as ages and counts, may differ from tick to tick."""
    return re.sub(r"[0-9]+", "", text)


def _find_missing(tick: TickRecord) -> dict[int, str]:
    """Return why replicas are missing, by row and without numbers."""
    observation, words = tick.decision.observation, tick.input.fleet.obstacles.messages
    lack = count_pending_replicas(observation)
    rows = np.flatnonzero((observation.missing_pods > 0) | (lack > 0)).tolist()
    return {row: f"{observation.missing_pods[row] > 0} {lack[row] > 0} {_without_numbers(words[row])}" for row in rows}


def _cut(text: str) -> str:
    """Cut a text to the limit of an event in bytes, and never inside a character."""
    raw = text.encode()
    return text if len(raw) <= NOTE_LIMIT_BYTES else raw[: NOTE_LIMIT_BYTES - 3].decode(errors="ignore") + "..."
