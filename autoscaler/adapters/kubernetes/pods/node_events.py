"""Events in which autoscalers of nodes say whether a node is created for a pod.

Sources: cluster-autoscaler's FAQ (`TriggeredScaleUp`, `NotTriggerScaleUp`), Karpenter's `pkg/events/reason.go`
(`Nominated`, `FailedScheduling`). The API server selects the events by who reports them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.api import pod_objects
from autoscaler.adapters.kubernetes.api.reflector import Resource
from autoscaler.adapters.kubernetes.pods.rows import PodRows
from autoscaler.adapters.kubernetes.pods.status import Key, last_seen
from autoscaler.adapters.kubernetes.pods.store import PodStore
from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.model.phases import SKEW_S
from autoscaler.core.table.columns import IntColumn
from autoscaler.ports import Clock

REPORTERS = ("cluster-autoscaler", "karpenter", "eks-auto-mode/compute")
CAUSES = {
    "TriggeredScaleUp": PendingCause.NODE_COMING,
    "Nominated": PendingCause.NODE_COMING,
    "NotTriggerScaleUp": PendingCause.NO_NODE,
    "FailedScheduling": PendingCause.NO_NODE,
}

VALID_S = 900.0
"""An event counts for this long: both autoscalers give a node up that has not registered after 15 min."""

MAX_PODS = 10_000  # the last ones that events name


class _Said(NamedTuple):
    cause: PendingCause
    wall_s: float


class NodeEvents:
    """The last word of an autoscaler about each pod."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: dict[Key, _Said] = {}  # by pod, the latest last

    def resources(self) -> list[Resource[pod_objects.PodEvent]]:
        """Return the events to watch. Without permission, pods only count as unschedulable."""
        kind = "involvedObject.kind=Pod"
        return [
            Resource("/api/v1", "events", pod_objects.PodEvent, optional=True, selector=f"{kind},source={reporter}")
            for reporter in REPORTERS
        ]

    def put(self, seen: pod_objects.PodEvent, /) -> None:
        cause, moment = CAUSES.get(seen.reason or ""), last_seen(seen)
        if cause is None or moment is None:
            return
        key = seen.involved_object.namespace, seen.involved_object.name
        before = self._said.pop(key, _Said(cause, -math.inf))
        self._said[key] = max(_Said(cause, moment.timestamp()), before, key=lambda said: said.wall_s)
        if len(self._said) > MAX_PODS:
            del self._said[next(iter(self._said))]

    def remove(self, namespace: str, name: str, /) -> None:
        """Keep what an expired event said, which is old by then."""

    def causes(self, rows: PodRows, pods: PodStore) -> IntColumn:
        """Return why pods are not ready, with what autoscalers say about unschedulable ones; int64[P].

        What became of the pods before them counts as well.
        """
        causes = pods.lost_starts.causes(rows.keys, rows.created_s, rows.blocked, rows.waits)
        for row in np.flatnonzero(causes == PendingCause.UNSCHEDULABLE).tolist() if self._said else ():
            members = pods.members((rows.pods[row].namespace, rows.pods[row].name))
            said = {self._cause(key, float(rows.created_s[row])) for key in members} - {PendingCause.NONE}
            if said:
                causes[row] = max(said)
        return causes

    def _cause(self, key: Key, created_s: float) -> PendingCause:
        said = self._said.get(key)
        if said is None:
            return PendingCause.NONE
        at_s = said.wall_s + self._clock.now_s() - self._clock.wall_s()
        is_valid = created_s - SKEW_S <= at_s and self._clock.now_s() - at_s <= VALID_S
        return said.cause if is_valid else PendingCause.NONE
