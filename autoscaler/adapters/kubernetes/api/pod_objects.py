"""The fields of pods, of their templates and of Events about them that are read, as types for the JSON decoder."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from autoscaler.adapters.kubernetes.api.objects import Condition, Fields, Metadata, Object


class RunningState(Fields, frozen=True):
    started_at: datetime | None = None


class Waiting(Fields, frozen=True):
    reason: str | None = None
    message: str | None = None


class Terminated(Fields, frozen=True):
    reason: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0


class ContainerState(Fields, frozen=True):
    running: RunningState | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Fields, frozen=True):
    name: str = ""
    state: ContainerState | None = None
    last_state: ContainerState | None = None
    restart_count: int = 0
    ready: bool = False


class Resources(Fields, frozen=True):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None
    claims: list[Any] | None = None


class Port(Fields, frozen=True):
    name: str = ""
    container_port: int = 0


class PortAction(Fields, frozen=True):
    port: str | int = 0  # a number, or the name of one of the container's ports


class Probe(Fields, frozen=True):
    http_get: PortAction | None = None
    tcp_socket: PortAction | None = None


class Variable(Fields, frozen=True):
    """An environment variable of a container."""

    name: str = ""
    value: str | None = ""
    value_from: Any = None  # a Secret or ConfigMap, whose value is not read


class Container(Fields, frozen=True):
    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))  # decoded when needed
    ports: list[Port] | None = None
    resources: Resources | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    restart_policy: str | None = None  # of an init container
    lifecycle: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))  # decoded when needed


class Expression(Fields, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(Fields, frozen=True):
    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(Fields, frozen=True):
    node_selector_terms: list[NodeTerm] | None = None


class PreferredTerm(Fields, frozen=True):
    preference: NodeTerm = NodeTerm()


class NodeAffinity(Fields, frozen=True):
    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[PreferredTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Fields, frozen=True):
    node_affinity: NodeAffinity | None = None


class Toleration(Fields, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class SchedulingGate(Fields, frozen=True):
    name: str = ""


class PodClaim(Fields, frozen=True):
    """A reference of a pod to a ResourceClaim of its own, or to one that other pods may use as well."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Fields, frozen=True):
    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: Resources | None = None  # of the pod as a whole
    priority_class_name: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    resource_claims: list[PodClaim] | None = None


class PodStatus(Fields, frozen=True):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodMetadata(Metadata, frozen=True):
    annotations: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))  # decoded when needed


class PodObject(Object, frozen=True):
    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class TemplateMetadata(Fields, frozen=True):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class PodTemplate(Fields, frozen=True):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: PodSpec = PodSpec()


class ObjectReference(Fields, frozen=True):
    namespace: str = ""
    name: str = ""


class EventSeries(Fields, frozen=True):
    last_observed_time: datetime | None = None


class PodEvent(Object, frozen=True):
    """An Event about a pod."""

    involved_object: ObjectReference = ObjectReference()
    reason: str | None = None
    message: str | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: EventSeries | None = None
