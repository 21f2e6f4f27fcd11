"""The annotations by which a workload declares itself, and what each may hold. They are written by tenants."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autoscaler.config.engines import ENGINES
from autoscaler.config.model import OVERRIDES
from autoscaler.config.values import Kind, Name, OneOf, Text, Whole

PREFIX = "vllm-autoscaler.io/"
OVERRIDE = "override."  # followed by the path of a policy field: vllm-autoscaler.io/override.objective.ttft

# Short forms of the overrides that are wanted most.
SHORT_OVERRIDES: Mapping[str, str] = MappingProxyType({"min-replicas": "replicas.min", "max-replicas": "replicas.max"})

# What is not an override, by its name behind the prefix.
ANNOTATIONS: Mapping[str, Kind] = MappingProxyType(
    {
        "policy": Name(),
        "service": Text(253),
        "model": Text(253),
        "engine": OneOf(tuple(ENGINES)),
        "metrics-port": Whole(1, 65_535),
        "paused": OneOf(("true", "false")),
        "weights": Text(1024),
    }
)


def names() -> list[str]:
    """List every annotation there is, without its prefix."""
    return [*ANNOTATIONS, *SHORT_OVERRIDES, *(f"{OVERRIDE}{path}" for path in OVERRIDES)]


def override_path(name: str) -> str:
    """Return the policy field that an annotation overrides, "replicas.max"; "": it overrides none.

    name: without the prefix.
    """
    path = SHORT_OVERRIDES.get(name, name.removeprefix(OVERRIDE) if name.startswith(OVERRIDE) else "")
    return path if path in OVERRIDES else ""
