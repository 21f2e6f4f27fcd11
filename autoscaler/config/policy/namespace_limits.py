"""Limits on what the workloads of a namespace may claim from others: their priority, weight, floor and headroom.

Every author of a workload can choose its policy and override the policy's fields. These limits hold for the result,
so a choice of policy raises a workload no further than an override. The document is read with the policies, and
without one nothing is limited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from autoscaler.config.findings import shown
from autoscaler.config.policy.schema import (
    API_VERSION,
    MAX_REPLICAS,
    PRIORITY,
    SHARED,
    WEIGHT,
    Policy,
    PolicyMetadata,
    PolicySpec,
    Section,
)
from autoscaler.config.values import NAMESPACES, Integer, OneOf, Share, namespace_pattern

LIMITS_KIND = "NamespaceLimits"
MAX_NAMESPACES = 1000

PREWARM = "prewarm"
"""Path of the windows, which are limited where the workload states them itself."""

MIN_REPLICAS = "minReplicaCount"
"""Name of the floor that a ScaledObject states in addition to the policy."""


class NamespaceLimit(Section):
    """The limits of some namespaces. A field that is left out limits nothing."""

    name: Annotated[str, NAMESPACES] = Field(
        description="The namespace; `*` stands for any characters. The first entry that matches counts."
    )
    max_priority: Annotated[int | None, PRIORITY] = Field(
        default=None, description="Highest `priority`. With it the annotation `weights-pinned` has no effect."
    )
    max_weight: Annotated[float | None, WEIGHT] = Field(default=None, description="Highest `weight`.")
    max_headroom_share: Annotated[float | None, Share(0.0, 1.0)] = Field(
        default=None, description="Highest `headroomShare` where `headroom` is `guaranteed`; 0: it is `shared`."
    )
    max_min_replicas: Annotated[int | None, Integer(1, MAX_REPLICAS)] = Field(
        default=None,
        description="Highest floor: `replicas.min`, or the `minReplicaCount` of a ScaledObject. Also the most "
        "replicas of a window that an annotation states.",
    )


class NamespaceLimitsSpec(Section):
    """The limits by namespace."""

    namespaces: Annotated[tuple[NamespaceLimit, ...], Field(max_length=MAX_NAMESPACES)] = Field(
        default=(), description=f"The entries, at most {MAX_NAMESPACES:,}."
    )


@dataclass(frozen=True)
class Excess:
    """A value above the limit of its namespace, which counts instead."""

    namespace: str
    path: str  # "priority", or `MIN_REPLICAS`
    found: float
    most: float
    policy: str = ""  # the policy that has the value; "": the workload states it itself

    @property
    def problem(self) -> str:
        return f"too high for the namespace {shown(self.namespace)}, so {self.most:g} counts"

    @property
    def value(self) -> str:
        return f"{self.found:g}" + (f" of the policy {self.policy}" if self.policy else "")

    @property
    def allowed(self) -> str:
        return f"at most {self.most:g}"

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}, found {self.value}; allowed: {self.allowed}"


class NamespaceLimits(Section):
    """One document: the limits of all namespaces."""

    api_version: Annotated[str, OneOf((API_VERSION,))] = Field(description="Version of this format.")
    kind: Annotated[str, OneOf((LIMITS_KIND,))] = Field(description="Kind of the document.")
    metadata: PolicyMetadata
    spec: NamespaceLimitsSpec = NamespaceLimitsSpec()

    def may_pin_weights(self, namespace: str) -> bool:
        """Return whether weights of a namespace may take the room of others: only where its priority has no limit."""
        for entry in self.spec.namespaces:
            if namespace_pattern(entry.name).match(namespace):
                return entry.max_priority is None
        return False

    def of(self, namespace: str, policy: PolicySpec, default: PolicySpec) -> Mapping[str, float]:
        """Return the most that a workload may have, by path; a path that is absent has no limit.

        policy: the one that it chose, without overrides. default: the policy without a choice. A namespace
        without an entry may raise nothing above either of them, but for a floor of one replica.
        """
        for entry in self.spec.namespaces:
            if namespace_pattern(entry.name).match(namespace):
                return {path: most for path, most in _stated(entry).items() if most is not None}
        most = {path: min(value, _values(default)[path]) for path, value in _values(policy).items()}
        return {**most, "replicas.min": max(most["replicas.min"], 1)}


def find_excess(
    policy: Policy,
    overridden: Mapping[str, object],
    least: float,
    namespace: str,
    most: Mapping[str, float],
) -> Iterator[Excess]:
    """Yield what is above the limits.

    policy: with its overrides. overridden: the fields that the workload states itself. least: its `minReplicaCount`.
    """
    for path, value in _values(policy.spec).items():
        if path in most and value > most[path]:
            yield Excess(namespace, path, value, most[path], "" if path in overridden else policy.name)
    floor = most.get("replicas.min")
    largest = max((window.replicas for window in policy.spec.prewarm), default=0) if PREWARM in overridden else 0
    if floor is not None and largest > floor:
        yield Excess(namespace, PREWARM, largest, floor)
    if floor is not None and least > floor:
        yield Excess(namespace, MIN_REPLICAS, least, floor)


def cap(spec: PolicySpec, most: Mapping[str, float]) -> PolicySpec:
    """Return the policy with each value at most at its limit."""
    capped = {path: min(value, most.get(path, value)) for path, value in _values(spec).items()}
    replicas = spec.replicas.model_copy(update={"min": int(capped["replicas.min"])})
    update: dict[str, object] = {"priority": int(capped["priority"]), "weight": capped["weight"], "replicas": replicas}
    if capped["headroomShare"] < spec.guaranteed_share:
        share = capped["headroomShare"]
        update |= {"headroom_share": share} if share > 0 else {"headroom": SHARED}
    return spec.model_copy(update=update)


def cap_windows(spec: PolicySpec, most: float) -> PolicySpec:
    """Return the policy with at most this many replicas in each pre-warm window; infinity: no limit."""
    if not any(window.replicas > most for window in spec.prewarm):
        return spec
    windows = [window.model_copy(update={"replicas": int(min(window.replicas, most))}) for window in spec.prewarm]
    return spec.model_copy(update={"prewarm": tuple(windows)})


def _values(spec: PolicySpec) -> dict[str, float]:
    """Return what is limited of a policy, by path."""
    return {
        "priority": spec.priority,
        "weight": spec.weight,
        "headroomShare": spec.guaranteed_share,
        "replicas.min": spec.replicas.min,
    }


def _stated(entry: NamespaceLimit) -> dict[str, float | None]:
    """Return the same of an entry; None: no limit."""
    return {
        "priority": entry.max_priority,
        "weight": entry.max_weight,
        "headroomShare": entry.max_headroom_share,
        "replicas.min": entry.max_min_replicas,
    }
