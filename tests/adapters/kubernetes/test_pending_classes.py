"""Why replicas are not ready, on a real API server: gates, quotas, crashes, coming nodes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.reflector import WatchTimes
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.settings import Mode
from autoscaler.core.model.fleet import Fleet, PendingCause, PendingClass
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.adapters.kubernetes.world import (
    LATER,
    SCHEDULED,
    World,
    condition,
    running,
    synced,
    until,
    waiting_status,
)
from tests.core.world import spec
from tests.core.world import world as tick_input

pytestmark = pytest.mark.integration

FAST = WatchTimes(silence_s=5.0, backoff_s=0.05, backoff_cap_s=0.2, absent_s=0.2, heartbeat_s=0.2)
UNSCHEDULABLE = {"phase": "Pending", "conditions": [condition("PodScheduled", "False", LATER, "Unschedulable")]}


def direct(kube: Kube, clock: SystemClock, world: World) -> KubeFleet:
    return KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace], times=FAST))


def classes(view: Fleet, clock: SystemClock) -> dict[PendingClass, float]:
    """Return the classes of the replicas of the first workload, in a tick with this view."""
    decision, _ = tick(tick_input(clock.now_s(), view, spec(len(view.workloads))), Memory.empty())
    counts = decision.pending_by_class[:, 0]
    return {each: float(counts[each]) for each in PendingClass if counts[each]}


async def say(world: World, pod: str, reason: str, reporter: str, new_api: bool = False) -> None:
    """Write an Event about a pod like an autoscaler."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    uid = (await world.api.get("v1", "Pod", world.namespace, pod))["metadata"]["uid"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": world.namespace, "name": pod, "uid": uid}
    body: dict[str, Any]
    if new_api:
        body = {"apiVersion": "events.k8s.io/v1", "regarding": about, "note": "x", "eventTime": f"{at}.000000Z"}
        body |= {"reportingController": reporter, "reportingInstance": "a", "action": "Scale"}
    else:
        body = {"apiVersion": "v1", "involvedObject": about, "message": "x", "source": {"component": reporter}}
        body |= {"lastTimestamp": f"{at}Z", "firstTimestamp": f"{at}Z", "count": 1}
    metadata = {"name": f"{pod}.{reason.lower()}.{reporter.replace('/', '-')}", "namespace": world.namespace}
    await world.api.apply({"kind": "Event", "metadata": metadata, "type": "Normal", "reason": reason, **body})


@pytest.mark.parametrize(
    ("reporter", "coming", "not_coming", "new_api"),
    [
        ("cluster-autoscaler", "TriggeredScaleUp", "NotTriggerScaleUp", False),
        ("karpenter", "Nominated", "FailedScheduling", False),
        ("eks-auto-mode/compute", "Nominated", "FailedScheduling", True),
    ],
)
async def test_events_of_an_autoscaler_say_whether_a_node_comes(
    kube: Kube, clock: SystemClock, world: World, reporter: str, coming: str, not_coming: str, new_api: bool
):
    await world.deployment("llama")
    await world.pod("llama", "llama-a", UNSCHEDULABLE)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert view.pod_pending.tolist() == [PendingCause.UNSCHEDULABLE]
        assert classes(view, clock) == {PendingClass.NO_ROOM: 1}
        await say(world, "llama-a", "FailedScheduling", "default-scheduler", new_api)
        await say(world, "llama-a", not_coming, reporter, new_api)
        view = await until(fleet, "no node comes", lambda v: v.pod_pending[0] == PendingCause.NO_NODE)
        assert classes(view, clock) == {PendingClass.NO_ROOM: 1}
        await say(world, "llama-a", coming, reporter, new_api)
        view = await until(fleet, "a node comes", lambda v: v.pod_pending[0] == PendingCause.NODE_COMING)
        assert classes(view, clock) == {PendingClass.NODE_COMING: 1}
        await world.status("llama-a", {"phase": "Pending", "conditions": [SCHEDULED]})
        view = await until(fleet, "the pod is scheduled", lambda v: v.pod_pending[0] == PendingCause.NONE)


async def test_gates_quotas_and_crashes_have_their_classes(kube: Kube, clock: SystemClock, world: World):
    await world.deployment("llama", replicas=2)
    fleet = direct(kube, clock, world)
    gate = condition("PodScheduled", "False", LATER, "SchedulingGated")
    async with running(fleet):
        await synced(fleet)
        failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
        failed |= {"lastTransitionTime": LATER, "lastUpdateTime": LATER}
        await world.api.set_status("apps/v1", "Deployment", world.namespace, "llama", {"conditions": [failed]})
        view = await until(fleet, "the quota is known", lambda v: v.obstacles.creation_failed.all())
        assert classes(view, clock) == {PendingClass.QUOTA: 2}
        assert view.obstacles.messages == ("FailedCreate: exceeded quota",)
        await world.pod("llama", "llama-a", {"phase": "Pending", "conditions": [gate]})
        await world.pod("llama", "llama-b", waiting_status("CrashLoopBackOff"))
        view = await until(fleet, "both pods", lambda v: len(v.pods) == 2 and (v.pod_pending > 0).all())
        assert classes(view, clock) == {PendingClass.QUEUED: 1, PendingClass.CRASHING: 1}


async def test_pods_that_fit_no_node_are_impossible(kube: Kube, clock: SystemClock, world: World):
    """The replica needs eight GPUs, and the node has four."""
    name = f"four-{world.namespace}"
    labels = {"for": world.namespace, "nvidia.com/gpu.product": "L4"}
    await world.api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    has = {"nvidia.com/gpu": "4", "cpu": "64", "memory": "512Gi", "pods": "100"}
    ready = {"type": "Ready", "status": "True", "reason": "r", "message": "m"}
    status = {"allocatable": has, "capacity": has, "conditions": [ready]}
    await world.api.set_status("v1", "Node", None, name, status)
    await world.deployment("llama", gpus=8, nodeSelector={"for": world.namespace})
    await world.pod("llama", "llama-a", UNSCHEDULABLE)
    fleet = direct(kube, clock, world)
    async with running(fleet):
        await synced(fleet)
        view = await until(fleet, "the pod", lambda v: len(v.pods) == 1 and len(v.groups.groups) > 0)
        assert classes(view, clock) == {PendingClass.IMPOSSIBLE: 1}
