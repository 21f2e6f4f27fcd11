"""Replicas whose pods end again and again before one of them was ready.

The kubelet rejects a pod, the scheduler preempts it, or a controller deletes it, and its owner creates another. Each
new pod looks as if it had just begun to start, so what became of the pods before it tells what will become of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.api.objects import Condition
from autoscaler.adapters.kubernetes.api.pod_objects import PodObject
from autoscaler.adapters.kubernetes.api.text import one_line
from autoscaler.adapters.kubernetes.pods.brief_runs import BriefRuns
from autoscaler.adapters.kubernetes.pods.status import FAILED_STARTS, FINISHED, Key, OwnerKey, owner_of, true_conditions
from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.ports import Clock

REVISIONS = ("pod-template-hash", "controller-revision-hash", "leaderworkerset.sigs.k8s.io/template-revision-hash")
"""Labels that tell the pods of one template from those of another of the same owner."""

REPLACED_S = 10.0
"""A controller replaces a pod at most this long after its deletion was requested. A pod of a StatefulSet comes when the
one before it is gone, and has its name. A pod that a lower count removed is not replaced."""

REMEMBERED_S = 7200.0
"""A start that was lost counts for pods that were created at most this long after its pod."""

OUTLIVES, OUTLIVES_S = 2.0, 30.0
"""A pod that is twice as old as the lost ones became, and this, is past what ended them."""

NOT_SCHEDULED_S = 30.0
"""A scheduler answers for a pod within this time: it binds it, or states why not."""

MAX_OWNERS, MAX_DELETED = 10_000, 100


class _Lost(NamedTuple):
    """A pod that ended before it was ready. Times are Unix times."""

    created_s: float
    age_s: float
    words: str


class _Owner:
    """The pods of one template."""

    def __init__(self) -> None:
        self.lost: list[_Lost] = []  # the last `FAILED_STARTS` of them
        self.deleted: dict[str, tuple[_Lost, float]] = {}  # by name, with the time: those that may be replaced


class _UnreadyPod(NamedTuple):
    uid: str
    owner: tuple[OwnerKey, str]
    created_s: float
    ready: bool = False  # it has been
    ended: bool = False


class LostStarts:
    """The fate of those pods of each template that were not ready yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.brief_runs = BriefRuns(clock)
        self._pods: dict[Key, _UnreadyPod] = {}
        self._owners: dict[tuple[OwnerKey, str], _Owner] = {}  # the one that changed last is the last

    def put(self, seen: PodObject) -> None:
        """Note the state of a pod. Pods that have ended may be put again."""
        self.brief_runs.put(seen)
        key, owner_key, metadata = (seen.metadata.namespace, seen.metadata.name), owner_of(seen), seen.metadata
        if owner_key is None or metadata.creation_timestamp is None:
            return
        pod, conditions = self._pods.get(key), true_conditions(seen)
        if pod is None or pod.uid != metadata.uid:
            self.remove(key)
            revision = next((value for each in REVISIONS if (value := (metadata.labels or {}).get(each))), "")
            pod = _UnreadyPod(metadata.uid, (owner_key, revision), metadata.creation_timestamp.timestamp())
            self._replace(key, pod)
        if "Ready" in conditions and not pod.ready:
            pod = pod._replace(ready=True)
            if owner := self._owners.get(pod.owner):
                owner.lost = [each for each in owner.lost if each.created_s > pod.created_s]
        if not pod.ready and not pod.ended:
            pod = self._note_end(key, pod, seen)
        self._pods[key] = pod

    def remove(self, key: Key) -> None:
        self.brief_runs.remove(key)
        pod = self._pods.pop(key, None)
        owner = self._owners.get(pod.owner) if pod is not None else None
        if pod is None or pod.ready:
            return
        if owner is not None and key[1] in owner.deleted:  # its name may come back from now on
            owner.deleted[key[1]] = owner.deleted[key[1]][0], self._clock.wall_s()
        elif not pod.ended:  # its deletion was not seen
            self._note_deleted(key[1], pod, self._clock.wall_s())

    def causes(
        self, keys: Callable[[], list[Key]], created_s: FloatColumn, causes: IntColumn, waits: BoolColumn
    ) -> IntColumn:
        """Return why pods are not ready, with what became of those before them and of their own runs; int64[P].

        A pod that serves, but must be expected to restart soon, has a cause as well.

        keys, created_s: of the pods. causes: that their own state tells. waits: bool[P], they are not ready or leaving.
        """
        young = self._clock.now_s() - created_s < NOT_SCHEDULED_S
        causes = np.where(young & (causes == PendingCause.NOT_SCHEDULED), PendingCause.NONE, causes)
        if any(len(owner.lost) == FAILED_STARTS for owner in self._owners.values()):
            of_pods = keys()
            for row in np.flatnonzero(waits & (causes == PendingCause.NONE)).tolist():
                if self.words(of_pods[row]):
                    causes[row] = PendingCause.LOST_STARTS
        for row, key in enumerate(keys()) if self.brief_runs else ():
            if causes[row] == PendingCause.NONE and self.brief_runs.words(key):
                causes[row] = PendingCause.CRASH_LOOP
        return causes

    def words(self, key: Key) -> str:
        """Return how the pod before this one ended, if this one must be expected to end like it; "": it need not."""
        pod = self._pods.get(key)
        owner = self._owners.get(pod.owner) if pod is not None else None
        if pod is None or owner is None or len(owner.lost) < FAILED_STARTS:
            return ""
        first_s, last_s = (pick(each.created_s for each in owner.lost) for pick in (min, max))
        is_later = last_s < pod.created_s and pod.created_s - first_s <= REMEMBERED_S
        survived_s = OUTLIVES * max(each.age_s for each in owner.lost) + OUTLIVES_S
        return owner.lost[-1].words if is_later and self._clock.wall_s() - pod.created_s < survived_s else ""

    def _note_end(self, key: Key, pod: _UnreadyPod, seen: PodObject) -> _UnreadyPod:
        """Note that a pod that has not been ready ends."""
        status, metadata = seen.status, seen.metadata
        known = {condition.type: condition for condition in status.conditions or ()}
        leaves = known.get("DisruptionTarget")
        is_target = leaves is not None and leaves.status == "True"
        if not is_target and metadata.deletion_timestamp is None and status.phase not in FINISHED:
            return pod
        if _was_ready(seen, known.get("Ready")):
            return pod._replace(ended=True, ready=True)
        if status.phase in FINISHED or is_target:
            said = leaves if is_target and leaves is not None and not status.reason else status
            self._lose(pod, self._lost(pod, self._ended_s(seen), one_line(said.reason or status.phase, said.message)))
        elif metadata.deletion_timestamp is not None:
            grace_s = metadata.deletion_grace_period_seconds or 0
            self._note_deleted(key[1], pod, metadata.deletion_timestamp.timestamp() - grace_s)
        return pod._replace(ended=True)

    def _note_deleted(self, name: str, pod: _UnreadyPod, requested_s: float) -> None:
        deleted = self._owner(pod).deleted
        deleted[name] = self._lost(pod, requested_s, "it was deleted"), requested_s
        if len(deleted) > MAX_DELETED:
            del deleted[next(iter(deleted))]

    def _replace(self, key: Key, pod: _UnreadyPod) -> None:
        """Count the deleted pod that a new one replaces."""
        owner = self._owners.get(pod.owner)
        deleted = owner.deleted if owner is not None else {}
        for name, (lost, at_s) in deleted.items():
            after_s = pod.created_s - at_s
            if after_s <= REPLACED_S and (name == key[1] or after_s >= -REPLACED_S):
                del deleted[name]
                self._lose(pod, lost)
                return

    def _lose(self, pod: _UnreadyPod, lost: _Lost) -> None:
        owner = self._owner(pod)
        owner.lost = sorted([*owner.lost, lost])[-FAILED_STARTS:]

    def _owner(self, pod: _UnreadyPod) -> _Owner:
        """Return what is known of a pod's template, which becomes the last to be forgotten."""
        owner = self._owners.pop(pod.owner) if pod.owner in self._owners else _Owner()
        self._owners[pod.owner] = owner
        if len(self._owners) > MAX_OWNERS:
            del self._owners[next(iter(self._owners))]
        return owner

    def _lost(self, pod: _UnreadyPod, ended_s: float, words: str) -> _Lost:
        age_s = min(max(ended_s, pod.created_s), self._clock.wall_s()) - pod.created_s
        return _Lost(pod.created_s, max(age_s, 0.0), words)

    def _ended_s(self, seen: PodObject) -> float:
        """Return when a pod ended, by the last of its conditions."""
        times = [each.last_transition_time for each in seen.status.conditions or ()]
        return max((each.timestamp() for each in times if each is not None), default=0.0)


def _was_ready(seen: PodObject, ready: Condition | None) -> bool:
    """Return whether a pod was ready in the last run of a container. ready: its condition, which is false."""
    fell = ready.last_transition_time if ready is not None else None
    states = (each.state for each in seen.status.container_statuses or () if each.state is not None)
    runs = (each.terminated or each.running for each in states)
    begun = (run.started_at for run in runs if run is not None)
    return fell is not None and any(at is not None and at < fell for at in begun)
