"""The fields of API objects that are read, as types for the JSON decoder, which skips all other fields.

The schema of a custom resource is the one installed in the cluster, so `ScaledObject` is untyped below its metadata.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Fields(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base: JSON names in camel case, unknown fields skipped."""


class OwnerReference(Fields, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Fields, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None

    def controller(self) -> OwnerReference | None:
        """Return the controller of the object."""
        for owner in self.owner_references or ():
            if owner.controller:
                return owner
        return None


class Object(Fields, frozen=True):
    """Any object with metadata; used for objects whose other fields cannot be read."""

    metadata: Metadata = Metadata()


class Condition(Fields, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


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


class ManagedField(Fields, frozen=True):
    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="fieldsV1")


class TargetMetadata(Metadata, frozen=True):
    annotations: dict[str, str] | None = None
    managed_fields: list[ManagedField] | None = None


class TemplateMetadata(Fields, frozen=True):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class PodTemplate(Fields, frozen=True):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: PodSpec = PodSpec()


class Selector(Fields, frozen=True):
    match_labels: dict[str, str] | None = None


class RollingUpdate(Fields, frozen=True):
    partition: int | None = None  # replicas below it keep the earlier template


class UpdateStrategy(Fields, frozen=True):
    rolling_update: RollingUpdate | None = None


class TargetSpec(Fields, frozen=True):
    replicas: int | None = None
    selector: Selector | None = None
    template: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))  # a PodTemplate, decoded when needed
    paused: bool | None = None  # of a Deployment
    update_strategy: UpdateStrategy | None = None  # of a StatefulSet


class TargetStatus(Fields, frozen=True):
    conditions: list[Condition] | None = None


class TargetObject(Object, frozen=True):
    """A Deployment or StatefulSet."""

    metadata: TargetMetadata = TargetMetadata()
    spec: TargetSpec = TargetSpec()
    status: TargetStatus = TargetStatus()


class LeaderWorkerTemplate(Fields, frozen=True):
    size: int | None = None
    leader_template: PodTemplate | None = None
    worker_template: PodTemplate | None = None


class RolloutStrategy(Fields, frozen=True):
    rolling_update: RollingUpdate | None = msgspec.field(default=None, name="rollingUpdateConfiguration")


class GroupSpec(Fields, frozen=True):
    replicas: int | None = None
    rollout_strategy: RolloutStrategy | None = None
    leader_worker_template: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))  # likewise


class LeaderWorkerSet(Object, frozen=True):
    metadata: TargetMetadata = TargetMetadata()
    spec: GroupSpec = GroupSpec()
    status: TargetStatus = TargetStatus()


class CustomTarget(Object, frozen=True):
    """A scale target of any other kind. Its schema is the one installed in the cluster."""

    metadata: TargetMetadata = TargetMetadata()
    spec: Any = None
    status: Any = None


class Untyped(Object, frozen=True):
    """An object of a custom kind whose schema is the one installed in the cluster."""

    spec: Any = None
    status: Any = None


class AnnotatedObject(Object, frozen=True):
    """An object of which only metadata are read."""

    metadata: TargetMetadata = TargetMetadata()


class TargetReference(Fields, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class ScalingPolicy(Fields, frozen=True):
    period_seconds: int = 0


class ScalingRules(Fields, frozen=True):
    select_policy: str | None = None
    tolerance: str | int | float | None = None
    stabilization_window_seconds: int | None = None
    policies: list[ScalingPolicy] | None = None


class Behavior(Fields, frozen=True):
    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


class MetricIdentifier(Fields, frozen=True):
    name: str = ""


class ExternalMetric(Fields, frozen=True):
    metric: MetricIdentifier = MetricIdentifier()


class MetricSpec(Fields, frozen=True):
    external: ExternalMetric | None = None


class AutoscalerSpec(Fields, frozen=True):
    metrics: list[MetricSpec] | None = None
    scale_target_ref: TargetReference = TargetReference()
    behavior: Behavior | None = None


class AutoscalerStatus(Fields, frozen=True):
    conditions: list[Condition] | None = None


class HorizontalPodAutoscaler(Object, frozen=True):
    spec: AutoscalerSpec = AutoscalerSpec()
    status: AutoscalerStatus = AutoscalerStatus()


class AnnotatedMetadata(Metadata, frozen=True):
    annotations: dict[str, str] | None = None


class ScaledObject(Object, frozen=True):
    metadata: AnnotatedMetadata = AnnotatedMetadata()
    spec: Any = None
    status: Any = None


class Dataset(Object, frozen=True):
    """A Dataset of Fluid, of which also an annotation counts."""

    metadata: AnnotatedMetadata = AnnotatedMetadata()
    spec: Any = None
    status: Any = None


class NodeStatus(Fields, frozen=True):
    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    conditions: list[Condition] | None = None


class Taint(Fields, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Fields, frozen=True):
    taints: list[Taint] | None = None
    unschedulable: bool | None = None


class NodeMetadata(Metadata, frozen=True):
    annotations: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))  # decoded when needed


class NodeObject(Object, frozen=True):
    metadata: NodeMetadata = NodeMetadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodePoolSpec(Fields, frozen=True):
    limits: dict[str, str | int | float] | None = None


class NodePoolStatus(Fields, frozen=True):
    resources: dict[str, str | int | float] | None = None
    nodes: int | None = None


class NodePool(Object, frozen=True):
    """A NodePool of Karpenter."""

    spec: NodePoolSpec = NodePoolSpec()
    status: NodePoolStatus = NodePoolStatus()


class ScopeExpression(Fields, frozen=True):
    scope_name: str = ""
    operator: str = ""
    values: list[str] | None = None


class ScopeSelector(Fields, frozen=True):
    match_expressions: list[ScopeExpression] | None = None


class ResourceQuotaSpec(Fields, frozen=True):
    hard: dict[str, str | int | float] | None = None
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Fields, frozen=True):
    used: dict[str, str | int | float] | None = None


class ResourceQuota(Object, frozen=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


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


class ConfigMap(Object, frozen=True):
    data: dict[str, str] | None = None


class ListMetadata(Fields, frozen=True):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class Page(Fields, frozen=True):
    """One page of a list. Items are decoded one by one, so that an invalid item does not affect others."""

    metadata: ListMetadata
    items: list[msgspec.Raw] | None = None


class Event(Fields, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class StatusObject(Fields, frozen=True):
    """The object of an ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
