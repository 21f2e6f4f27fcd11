"""What a ScaledObject may hold where the daemon looks: it and `check` read the same by these names and kinds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from autoscaler.config.values import Quantity, Whole

PUSH, POLL = "external-push", "external"  # types of a trigger that may be ours
POLICY = "policy"  # key of the metadata of our trigger
DEFAULT_MIN, DEFAULT_MAX = 0, 100  # as KEDA reads counts that are absent
LEAST, MOST = Whole(0, 100_000), Whole(1, 100_000)  # an HPA has a maximum of 1 at least
TOLERANCE = Quantity(10)
TARGETS: Mapping[str, str] = MappingProxyType(
    {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}
)
"""Kinds that can be scaled, each with its apiVersion; another version of the same group will do."""


def with_defaults(kind: Any, api_version: Any) -> tuple[Any, Any]:
    """Return kind and apiVersion of a target as KEDA reads them: absent and empty are those of a Deployment."""
    return "Deployment" if kind in (None, "") else kind, "apps/v1" if api_version in (None, "") else api_version


def is_target(kind: Any, api_version: Any) -> bool:
    """Say whether a target of this kind and apiVersion can be scaled."""
    if not (isinstance(kind, str) and isinstance(api_version, str)) or kind not in TARGETS:
        return False
    return api_version.rpartition("/")[0] == TARGETS[kind].rpartition("/")[0]
