"""The fields of scale targets and of their autoscalers that are read, as types for the JSON decoder.

The schema of a custom resource is the one installed in the cluster, so `ScaledObject` is untyped below its metadata.
"""

from __future__ import annotations

from typing import Any

import msgspec

from autoscaler.adapters.kubernetes.api.objects import AnnotatedMetadata, Condition, Fields, Object, TargetMetadata
from autoscaler.adapters.kubernetes.api.pod_objects import PodTemplate


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


class ScaledObject(Object, frozen=True):
    metadata: AnnotatedMetadata = AnnotatedMetadata()
    spec: Any = None
    status: Any = None
