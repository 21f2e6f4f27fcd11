"""What autoscalers of nodes say about pods: the latest word counts, for a while."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from autoscaler.adapters.kubernetes.api import pod_objects
from autoscaler.adapters.kubernetes.pods import node_events
from autoscaler.adapters.kubernetes.pods.node_events import NodeEvents
from autoscaler.adapters.kubernetes.pods.store import PodStore
from autoscaler.core.model.fleet import PendingCause


class Clock:
    """Shows the time that a test sets; Unix time is the same."""

    def __init__(self, now_s: float) -> None:
        self.now = now_s

    def now_s(self) -> float:
        return self.now

    def wall_s(self) -> float:
        return self.now

    async def sleep(self, duration_s: float) -> None:
        raise NotImplementedError


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(reason: str | None, at_s: float, pod: str = "a-0", **more: Any) -> pod_objects.PodEvent:
    about = {"kind": "Pod", "namespace": "ns", "name": pod}
    body = {"metadata": {"name": "e"}, "involvedObject": about, "reason": reason, "lastTimestamp": stamp(at_s)} | more
    return msgspec.convert(body, pod_objects.PodEvent)


def unschedulable(store: PodStore, name: str, created_s: float, **labels: str) -> None:
    owner = {"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    metadata = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": stamp(created_s)}
    metadata |= {"ownerReferences": [owner], "labels": labels}
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    store.put(msgspec.convert({"metadata": metadata, "status": {"conditions": [waits]}}, pod_objects.PodObject))


def causes(events: NodeEvents, store: PodStore) -> list[int]:
    store.set_target(("ns", "rs"), 1)
    return events.causes(store.rows(np.array([1])), store).tolist()


def test_latest_event_counts_whatever_the_order_of_arrival():
    clock = Clock(1_800_000_000.0)
    events, store = NodeEvents(clock), PodStore(clock)
    unschedulable(store, "a-0", clock.now - 60)
    assert causes(events, store) == [PendingCause.UNSCHEDULABLE]
    events.put(event("TriggeredScaleUp", clock.now - 20))
    events.put(event("NotTriggerScaleUp", clock.now - 40))
    assert causes(events, store) == [PendingCause.NODE_COMING]
    events.put(event("NotTriggerScaleUp", clock.now - 50, series={"count": 2, "lastObservedTime": stamp(clock.now)}))
    assert causes(events, store) == [PendingCause.NO_NODE]
    events.put(event("SomethingElse", clock.now))
    events.put(event(None, clock.now))
    assert causes(events, store) == [PendingCause.NO_NODE]


def test_event_ends_with_time_and_does_not_count_for_a_later_pod():
    clock = Clock(1_800_000_000.0)
    events, store = NodeEvents(clock), PodStore(clock)
    unschedulable(store, "a-0", clock.now - 60)
    events.put(event("Nominated", clock.now))
    clock.now += node_events.VALID_S - 1
    assert causes(events, store) == [PendingCause.NODE_COMING]
    unschedulable(store, "a-0", clock.now)
    assert causes(events, store) == [PendingCause.UNSCHEDULABLE]
    unschedulable(store, "a-1", clock.now)
    events.put(event("Nominated", clock.now, "a-1"))
    clock.now += node_events.VALID_S + 1
    assert causes(events, store) == [PendingCause.UNSCHEDULABLE] * 2


def test_old_pods_are_forgotten_when_events_name_too_many():
    clock = Clock(1_800_000_000.0)
    events, store = NodeEvents(clock), PodStore(clock)
    unschedulable(store, "a-0", clock.now)
    unschedulable(store, "last", clock.now)
    for pod in ("a-0", *map(str, range(node_events.MAX_PODS - 1)), "last"):
        events.put(event("Nominated", clock.now, pod))
    assert causes(events, store) == [PendingCause.UNSCHEDULABLE, PendingCause.NODE_COMING]
