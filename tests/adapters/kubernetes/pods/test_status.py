"""Why a pod is not ready, as scheduler, queues and kubelet state it."""

import pytest

from autoscaler.adapters.kubernetes.api.objects import (
    Condition,
    ContainerState,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    SchedulingGate,
    Terminated,
    Waiting,
)
from autoscaler.adapters.kubernetes.pods.status import blocked_by
from autoscaler.core.model.fleet import PendingCause


def unscheduled(reason: str, message: str = "", scheduler: str = "", gates: tuple[str, ...] = ()) -> Pod:
    condition = Condition("PodScheduled", "False", reason, message)
    spec = PodSpec(scheduler_name=scheduler, scheduling_gates=[SchedulingGate(gate) for gate in gates])
    return Pod(spec=spec, status=PodStatus(conditions=[condition]))


def waiting(reason: str, ended: str = "") -> Pod:
    last = ContainerState(terminated=Terminated(ended)) if ended else None
    status = ContainerStatus("vllm", ContainerState(waiting=Waiting(reason, "back-off 10s")), last)
    return Pod(status=PodStatus(container_statuses=[status]))


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
        (unscheduled("SchedulerError", "queue", "volcano"), PendingCause.NONE),
        (waiting("CrashLoopBackOff", "Error"), PendingCause.CRASH_LOOP),
        (waiting("CrashLoopBackOff", "OOMKilled"), PendingCause.OUT_OF_MEMORY),
        (waiting("ContainerCreating", "OOMKilled"), PendingCause.NONE),
        (waiting("RunContainerError"), PendingCause.CONFIG_ERROR),
    ],
)
def test_cause_of_a_pod_that_is_not_ready(pod: Pod, cause: PendingCause):
    assert blocked_by(pod)[0] is cause


def test_message_names_a_lack_of_memory():
    assert blocked_by(waiting("CrashLoopBackOff", "OOMKilled"))[1].startswith("CrashLoopBackOff: OOMKilled")
