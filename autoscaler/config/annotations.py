"""The annotations by which a workload declares itself, and what each may hold. They are written by tenants."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from autoscaler.catalog.engines import ENGINES
from autoscaler.config.policy.schema import OVERRIDES
from autoscaler.config.values import NAME, Kind, OneOf, Pattern, Text, Whole
from autoscaler.config.yaml import read_scalar

PREFIX = "vllm-autoscaler.io/"
OVERRIDE = "override."  # followed by the path of a policy field: vllm-autoscaler.io/override.objective.ttft

# Short forms of the overrides that are wanted most.
SHORT_OVERRIDES: Mapping[str, str] = MappingProxyType({"min-replicas": "replicas.min", "max-replicas": "replicas.max"})

SCHEMES = ("http", "https")
MODEL = Pattern(r"[\x21-\x7e]{1,256}", "1 to 256 printable ASCII characters without blanks")

# By these, many scrape configurations find the metrics of a pod. Read where ours say nothing.
USUAL: Mapping[str, str] = MappingProxyType(
    {
        "prometheus.io/port": "metrics-port",
        "prometheus.io/scheme": "metrics-scheme",
        "prometheus.io/path": "metrics-path",
    }
)

# What is not an override, by its name behind the prefix. `weights` is for the cache of weights: known, so that it is no
# mistake to write it, and not read by what decides.
ANNOTATIONS: Mapping[str, Kind] = MappingProxyType(
    {
        "policy": Pattern(rf"({NAME.expression})?", f"{NAME.allowed}; empty: the default policy"),
        "service": Pattern(r"[A-Za-z0-9]([-_./A-Za-z0-9]{0,126}[A-Za-z0-9])?", "1 to 128 letters, digits and - _ . /"),
        "model": MODEL,
        "engine": OneOf(tuple(ENGINES)),
        "metrics-port": Whole(1, 65_535),
        "metrics-scheme": OneOf(SCHEMES),
        "metrics-path": Pattern(r"/[-._~/A-Za-z0-9]{0,255}", "a path: / and at most 255 letters, digits and - . _ ~ /"),
        "paused": OneOf(("true", "false")),
        "weights": Text(1024),
    }
)


def names() -> list[str]:
    """List every annotation there is, without its prefix."""
    return [*ANNOTATIONS, *SHORT_OVERRIDES, *(f"{OVERRIDE}{path}" for path in OVERRIDES)]


def usual(annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return what `USUAL` annotations say, by the names of ours. One that makes no sense was meant for others."""
    found = {}
    for name, ours in USUAL.items():
        if name in annotations:
            with suppress(ValueError):
                found[ours] = read(ours, annotations[name])
    return found


def override_path(name: str) -> str:
    """Return the policy field that an annotation overrides, "replicas.max"; "": it overrides none.

    name: without the prefix.
    """
    path = SHORT_OVERRIDES.get(name, name.removeprefix(OVERRIDE) if name.startswith(OVERRIDE) else "")
    return path if path in OVERRIDES else ""


def read(name: str, text: str) -> Any:
    """Read the value of one of `ANNOTATIONS`. Raises ValueError whose text is the problem alone."""
    kind = ANNOTATIONS[name]
    return kind.read(read_scalar(text) if isinstance(kind, Whole) else text)
