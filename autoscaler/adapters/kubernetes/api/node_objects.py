"""The fields of nodes, node pools and resource quotas that are read, as types for the JSON decoder."""

from __future__ import annotations

import msgspec

from autoscaler.adapters.kubernetes.api.objects import Condition, Fields, Metadata, Object


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
