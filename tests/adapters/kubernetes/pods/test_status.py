"""Why a pod is not ready, as scheduler, queues and kubelet state it."""

import math
from datetime import UTC, datetime

import pytest

from autoscaler.adapters.kubernetes.api.objects import Condition
from autoscaler.adapters.kubernetes.api.pod_objects import (
    Container,
    ContainerState,
    ContainerStatus,
    PodObject,
    PodSpec,
    PodStatus,
    RunningState,
    SchedulingGate,
    Terminated,
    Waiting,
)
from autoscaler.adapters.kubernetes.pods.status import blocked_by, weights_init
from autoscaler.core.model.fleet import PendingCause


def unscheduled(reason: str, message: str = "", scheduler: str = "", gates: tuple[str, ...] = ()) -> PodObject:
    condition = Condition("PodScheduled", "False", reason, message)
    spec = PodSpec(scheduler_name=scheduler, scheduling_gates=[SchedulingGate(gate) for gate in gates])
    return PodObject(spec=spec, status=PodStatus(conditions=[condition]))


def waiting(reason: str, ended: str = "") -> PodObject:
    last = ContainerState(terminated=Terminated(ended)) if ended else None
    status = ContainerStatus("vllm", ContainerState(waiting=Waiting(reason, "back-off 10s")), last)
    return PodObject(status=PodStatus(container_statuses=[status]))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def restarted(
    restarts: int,
    last: tuple[float, float] | None,
    why: str = "Error",
    fell: float = 9000,
    ready: bool = False,
    init: bool = False,
) -> PodObject:
    """A pod whose container has run for 10 s.

    last: how many seconds ago its last run began and ended. fell: how many seconds ago the pod ceased to be ready.
    """
    now, (began, ended) = 10_000, last or (0, 0)
    state = ContainerState(terminated=Terminated(why, at(now - began), at(now - ended), 137)) if last else None
    runs = ContainerState(running=RunningState(at(now - 10)))
    statuses = [ContainerStatus("vllm", runs, state, restarts, ready)]
    conditions = [Condition("PodScheduled", "True"), Condition("Ready", "False", last_transition_time=at(now - fell))]
    if init:
        return PodObject(status=PodStatus(conditions=conditions, init_container_statuses=statuses))
    return PodObject(status=PodStatus(conditions=conditions, container_statuses=statuses))


@pytest.mark.parametrize(
    ("pod", "cause"),
    [
        (unscheduled("SchedulingGated", gates=("kueue.x-k8s.io/admission",)), PendingCause.QUEUED),
        (unscheduled("SchedulingGated", gates=("a/b", "kueue.x-k8s.io/topology")), PendingCause.QUEUED),
        (unscheduled("SchedulingGated", gates=("scheduling.volcano.sh/queue-allocation-gate",)), PendingCause.QUEUED),
        (unscheduled("SchedulingGated", gates=("example.com/wait",)), PendingCause.SCHEDULING_GATED),
        (unscheduled("SchedulingGated"), PendingCause.SCHEDULING_GATED),
        (unscheduled("Unschedulable", "pod group is not ready", "volcano"), PendingCause.QUEUED),
        (unscheduled("Unschedulable", "queue a is over its quota", "kai-scheduler"), PendingCause.QUEUED),
        (unscheduled("Unschedulable", "0/2 nodes are available", "yunikorn"), PendingCause.UNSCHEDULABLE),
        (unscheduled("Unschedulable", "quota", "default-scheduler"), PendingCause.UNSCHEDULABLE),
        (unscheduled("SchedulerError", "queue", "volcano"), PendingCause.NOT_SCHEDULED),
        (PodObject(spec=PodSpec(scheduler_name="gone")), PendingCause.NOT_SCHEDULED),
        (PodObject(spec=PodSpec(node_name="node-1")), PendingCause.NONE),
        (waiting("CrashLoopBackOff", "Error"), PendingCause.CRASH_LOOP),
        (waiting("CrashLoopBackOff", "OOMKilled"), PendingCause.OUT_OF_MEMORY),
        (waiting("ContainerCreating", "OOMKilled"), PendingCause.NONE),
        (waiting("RunContainerError"), PendingCause.CONFIG_ERROR),
        (restarted(7, last=(640, 20)), PendingCause.CRASH_LOOP),
        (restarted(2, last=(640, 20), why="OOMKilled"), PendingCause.OUT_OF_MEMORY),
        (restarted(2, last=(640, 20), init=True), PendingCause.CRASH_LOOP),
        (restarted(1, last=(640, 20)), PendingCause.NONE),
        (restarted(7, last=(640, 20), fell=30), PendingCause.NONE),  # it was ready until it crashed
        (restarted(7, last=(640, 20), ready=True), PendingCause.NONE),  # another container of the pod is not
        (restarted(7, last=None), PendingCause.CRASH_LOOP),
        (restarted(7, last=None, fell=300), PendingCause.NONE),
    ],
)
def test_cause_of_a_pod_that_is_not_ready(pod: PodObject, cause: PendingCause):
    assert blocked_by(pod)[0] is cause


def test_message_names_a_lack_of_memory():
    assert blocked_by(waiting("CrashLoopBackOff", "OOMKilled"))[1].startswith("CrashLoopBackOff: OOMKilled")


def started_by(*containers: ContainerStatus, sidecars: tuple[str, ...] = ()) -> PodObject:
    spec = PodSpec(init_containers=[Container(name=name, restart_policy="Always") for name in sidecars])
    return PodObject(spec=spec, status=PodStatus(init_container_statuses=list(containers)))


def ended(name: str, began_s: float, ended_s: float) -> ContainerStatus:
    terminated = Terminated("Completed", at(began_s), at(ended_s))
    return ContainerStatus(name, ContainerState(terminated=terminated))


def runs(name: str, since_s: float) -> ContainerStatus:
    return ContainerStatus(name, ContainerState(running=RunningState(at(since_s))))


@pytest.mark.parametrize(
    ("pod", "took_s", "since_s"),
    [
        (started_by(ended("storage-initializer", 1000, 1090)), 90, math.nan),
        (started_by(ended("init-model", 1000, 1090), ended("wait-for-db", 1090, 1200)), 90, math.nan),
        (started_by(ended("init-model", 1000, 1090), runs("weights", 1100)), 90, 1600),
        (started_by(runs("weights", 1100)), math.nan, 1600),
        (started_by(runs("model-cache", 1100), sidecars=("model-cache",)), math.nan, math.nan),
        (started_by(ended("istio-init", 1000, 1001)), math.nan, math.nan),
        (started_by(ContainerStatus("weights")), math.nan, math.nan),
        (started_by(), math.nan, math.nan),
    ],
)
def test_init_containers_that_fetch_weights_are_timed(pod: PodObject, took_s: float, since_s: float):
    assert weights_init(pod, offset_s=500.0) == pytest.approx((took_s, since_s), nan_ok=True)
