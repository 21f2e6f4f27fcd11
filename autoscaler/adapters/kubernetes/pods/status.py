"""The state of one pod: owner, conditions, the reason why it is blocked, and when its engine started.

Pure functions of a pod object. `offset_s` converts Unix times to the clock of the tick.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from autoscaler.adapters.kubernetes.api.objects import Condition, Object
from autoscaler.adapters.kubernetes.api.pod_objects import ContainerState, ContainerStatus, PodEvent, PodObject
from autoscaler.adapters.kubernetes.api.text import one_line
from autoscaler.adapters.kubernetes.pods.requests import ALWAYS
from autoscaler.adapters.kubernetes.pods.template import engine_container
from autoscaler.catalog.scale_targets import LWS_NAME, POD_GROUPS
from autoscaler.catalog.weights import FETCHES_WEIGHTS
from autoscaler.config.findings import UNREADABLE
from autoscaler.core.model.fleet import PendingCause

LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"  # annotation: number of pods of the group
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"  # annotation, read by ReplicaSets alone
WITHOUT_REPLICAS = ("DaemonSet", "Job", "Node")  # controllers of pods that no scale target creates
_COST = re.compile(r"[+-]?[0-9]{1,10}")
_GROUPS = tuple((scheme, re.compile(scheme.leads), re.compile(scheme.member)) for scheme in POD_GROUPS)

FAILED_STARTS = 2
"""After this many starts that failed in a row, the next one counts for nothing until it succeeds."""

LONGEST_BACKOFF = timedelta(seconds=310)
"""The kubelet restarts a container after at most this time."""

FINISHED = ("Succeeded", "Failed")  # phases of a pod that holds no GPU and is replaced by its owner
WAITING = {
    "ImagePullBackOff": PendingCause.IMAGE_PULL,
    "ErrImagePull": PendingCause.IMAGE_PULL,
    "ErrImageNeverPull": PendingCause.IMAGE_PULL,
    "InvalidImageName": PendingCause.IMAGE_PULL,
    "ImageInspectError": PendingCause.IMAGE_PULL,
    "RegistryUnavailable": PendingCause.IMAGE_PULL,
    "SignatureValidationFailed": PendingCause.IMAGE_PULL,
    "ImageVolumeMountFailed": PendingCause.IMAGE_PULL,
    "CrashLoopBackOff": PendingCause.CRASH_LOOP,
    "CreateContainerConfigError": PendingCause.CONFIG_ERROR,
    "CreateContainerError": PendingCause.CONFIG_ERROR,
    "CreatePodSandboxError": PendingCause.CONFIG_ERROR,
    "PostStartHookError": PendingCause.CONFIG_ERROR,
    "PreCreateHookError": PendingCause.CONFIG_ERROR,
    "PreStartHookError": PendingCause.CONFIG_ERROR,
    "RunContainerError": PendingCause.CONFIG_ERROR,
    "RunInitContainerError": PendingCause.CONFIG_ERROR,
}
QUEUE_GATES = ("kueue.x-k8s.io/", "scheduling.volcano.sh/", "volcano.sh/", "kai.scheduler/", "yunikorn.apache.org/")
"""Prefixes of the scheduling gates by which a queue holds pods back."""

QUEUE_SCHEDULERS = ("volcano", "kai-scheduler", "yunikorn")
_BY_QUEUE = re.compile(r"queue|quota|pod ?group|gang", re.IGNORECASE)  # in their words for a pod that is not admitted

DEFAULT_SCHEDULER = "default-scheduler"
UNSCHEDULED = {"Unschedulable": PendingCause.UNSCHEDULABLE, "SchedulingGated": PendingCause.SCHEDULING_GATED}

Key = tuple[str, str]  # namespace and name
OwnerKey = Key  # namespace, and the uid of a controller or the name of a LeaderWorkerSet
Group = tuple[str, ...]  # namespace, and the values of the labels that the pods of a replica have in common


def owner_of(pod: Object) -> OwnerKey | None:
    """Return the owner of a pod; None: no owner that can be scaled.

    A LeaderWorkerSet creates its pods through StatefulSets, so its label takes precedence. An owner is always in the
    namespace of its pods: the API server does not check the uid that an owner reference states.
    """
    labels = pod.metadata.labels or {}
    if labels.get(LWS_NAME):
        return pod.metadata.namespace, labels[LWS_NAME]
    controller = pod.metadata.controller()
    if controller is None or controller.kind in WITHOUT_REPLICAS:
        return None
    return pod.metadata.namespace, controller.uid


def group_of(namespace: str, labels: Mapping[str, str]) -> tuple[Group, bool] | None:
    """Return the group of pods that serve as one replica, and whether this pod leads it; None: it serves alone."""
    for scheme, leads, member in _GROUPS:
        if all(labels.get(label) for label in scheme.same) and member.fullmatch(labels.get(scheme.leader, "")):
            is_leader = leads.fullmatch(labels.get(scheme.leader, "")) is not None
            return (namespace, *(labels[label] for label in scheme.same)), is_leader
    return None


def group_size(pod: PodObject) -> int:
    """Return the number of pods of a LeaderWorkerSet's group; 1 if the annotation is missing or invalid."""
    try:
        annotations = msgspec.json.decode(pod.metadata.annotations, type=dict[str, str] | None) or {}
    except UNREADABLE:
        return 1
    size = annotations.get(LWS_SIZE, "")
    return int(size) if size.isascii() and size.isdigit() and len(size) < 6 else 1


def deletion_cost(pod: PodObject) -> float:
    """Return the cost by which a ReplicaSet chooses the pods that it removes; NaN: no ReplicaSet controls the pod."""
    controller = pod.metadata.controller()
    if controller is None or controller.kind != "ReplicaSet":
        return math.nan
    stated = bytes(pod.metadata.annotations)
    if DELETION_COST.encode() not in stated:
        return 0.0
    try:
        cost = (msgspec.json.decode(stated, type=dict[str, str] | None) or {}).get(DELETION_COST, "")
    except UNREADABLE:
        return 0.0
    return float(cost) if _COST.fullmatch(cost) else 0.0  # an invalid cost counts as none, as for the ReplicaSet


def true_conditions(pod: PodObject) -> dict[str, Condition]:
    """Return the conditions with status True, by type."""
    return {condition.type: condition for condition in pod.status.conditions or () if condition.status == "True"}


def since_s(condition: Condition | None, offset_s: float) -> float:
    """Return when a condition became true; NaN: it is not."""
    return at_s(condition.last_transition_time if condition is not None else None, offset_s)


def is_leaving(pod: PodObject, conditions: Mapping[str, Condition]) -> bool:
    return pod.metadata.deletion_timestamp is not None or "DisruptionTarget" in conditions


def latest_s(moments_s: Sequence[float]) -> float:
    """Return the latest of several moments; NaN if one of them is NaN."""
    return math.nan if any(map(math.isnan, moments_s)) else max(moments_s)


def blocked_by(pod: PodObject) -> tuple[PendingCause, str]:
    """Return why a pod does not become ready by waiting, and the cluster's message.

    A ready pod is never blocked, even if a sidecar is.
    """
    status = pod.status
    known = {condition.type: condition for condition in status.conditions or ()}
    ready, scheduled = known.get("Ready"), known.get("PodScheduled")
    if ready is not None and ready.status == "True":
        return PendingCause.NONE, ""
    if scheduled is not None and scheduled.status == "False":
        reason = scheduled.reason or ""
        why = UNSCHEDULED.get(reason, PendingCause.NOT_SCHEDULED)
        if _is_queued(pod, why, scheduled.message or ""):
            why = PendingCause.QUEUED
        return why, one_line(reason, scheduled.message)
    containers = [*(status.init_container_statuses or ()), *(status.container_statuses or ())]
    if scheduled is None and not pod.spec.node_name and not containers:
        return PendingCause.NOT_SCHEDULED, one_line("schedulerName", pod.spec.scheduler_name or DEFAULT_SCHEDULER)
    found = [*_waiting_containers(containers), *_restarted_containers(containers, ready)]
    return max(found, key=lambda each: each[0], default=(PendingCause.NONE, ""))


def _is_queued(pod: PodObject, why: PendingCause, message: str) -> bool:
    """Tell whether a queue will admit a pod that is not scheduled."""
    if why is PendingCause.SCHEDULING_GATED:
        return any(gate.name.startswith(QUEUE_GATES) for gate in pod.spec.scheduling_gates or ())
    is_of_queue = pod.spec.scheduler_name in QUEUE_SCHEDULERS and _BY_QUEUE.search(message) is not None
    return why is PendingCause.UNSCHEDULABLE and is_of_queue


def _waiting_containers(statuses: Iterable[ContainerStatus]) -> Iterable[tuple[PendingCause, str]]:
    """Yield why containers do not run, where the kubelet names a cause, with its message."""
    for status in statuses:
        waiting = status.state.waiting if status.state is not None else None
        if waiting is None or waiting.reason not in WAITING:
            continue
        why, last = WAITING[waiting.reason], status.last_state.terminated if status.last_state is not None else None
        if why is PendingCause.CRASH_LOOP and last is not None and last.reason == "OOMKilled":
            yield PendingCause.OUT_OF_MEMORY, one_line(waiting.reason or "", one_line("OOMKilled", waiting.message))
        else:
            yield why, one_line(waiting.reason or "", waiting.message)


def _restarted_containers(
    statuses: Iterable[ContainerStatus], ready: Condition | None
) -> Iterable[tuple[PendingCause, str]]:
    """Yield the containers that were started several times, and have not been ready in their last run.

    A probe that is shorter than the start kills them. Each run is longer than the kubelet's back-off, so hardly ever
    does their state say so. ready: the condition of their pod, which has not been true since its last transition.
    """
    fell = ready.last_transition_time if ready is not None else None
    for status in statuses:
        state, last = status.state or ContainerState(), (status.last_state or ContainerState()).terminated
        if status.ready or status.restart_count < FAILED_STARTS or state.waiting is not None:
            continue
        began = last.started_at if last is not None else None
        if last is None and state.running is not None and state.running.started_at is not None:
            began = state.running.started_at - LONGEST_BACKOFF  # the runtime has forgotten the run before
        if began is None or (fell is not None and began < fell):
            continue
        ended = f"{last.reason or 'Error'}, exit code {last.exit_code}" if last is not None else "an unknown code"
        why = PendingCause.OUT_OF_MEMORY if ended.startswith("OOMKilled") else PendingCause.CRASH_LOOP
        times = f"container {status.name} has restarted {status.restart_count} times"
        yield why, one_line(times, f"its last run was never ready, and ended with {ended}")


def engine_start(pod: PodObject, offset_s: float) -> tuple[float, bool]:
    """Return when the engine's container started (NaN: it does not run), and whether it was restarted."""
    engine = engine_container(pod.spec)
    for status in (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())):
        if engine is not None and status.name == engine.name:
            running = status.state.running if status.state is not None else None
            return at_s(running.started_at if running is not None else None, offset_s), status.restart_count > 0
    return math.nan, False


def weights_init(pod: PodObject, offset_s: float) -> tuple[float, float]:
    """Return the seconds that init containers for weights have run, and the time since which one runs; NaN: none."""
    took_s, since_s = math.nan, math.nan
    sidecars = {each.name for each in pod.spec.init_containers or () if each.restart_policy == ALWAYS}
    for status in pod.status.init_container_statuses or ():
        if status.state is None or status.name in sidecars or not FETCHES_WEIGHTS.search(status.name):
            continue
        ended, running = status.state.terminated, status.state.running
        if ended is not None and ended.started_at is not None and ended.finished_at is not None:
            one_s = max((ended.finished_at - ended.started_at).total_seconds(), 0.0)
            took_s = one_s if math.isnan(took_s) else took_s + one_s
        elif running is not None:
            since_s = at_s(running.started_at, offset_s)
    return took_s, since_s


def last_seen(seen: PodEvent) -> datetime | None:
    """Return when an event was last seen."""
    in_series = seen.series.last_observed_time if seen.series is not None else None
    return in_series or seen.last_timestamp or seen.event_time or seen.metadata.creation_timestamp


def at_s(moment: datetime | None, offset_s: float) -> float:
    """Convert a time of the API server to the clock of the tick; NaN: none."""
    return math.nan if moment is None else moment.timestamp() + offset_s
