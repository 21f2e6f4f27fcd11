"""KEDA's ScaledObjects: which of them name this scaler, for which target, and what they ask.

A custom resource holds whatever its author and its schema allowed, so everything is looked at before it is used; what
makes no sense becomes `problem`. What KEDA is answered belongs to `adapters.keda`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from autoscaler.adapters.kube import objects
from autoscaler.adapters.kube.claims import ClaimTable, HpaTable, TargetKey, target_key
from autoscaler.adapters.kube.declared import VALUE_LIMIT, read_override, worded
from autoscaler.config.findings import shown
from autoscaler.config.model import OVERRIDES
from autoscaler.config.scaledobject import (
    DEFAULT_MAX,
    DEFAULT_MIN,
    LEAST,
    MOST,
    POLICY,
    POLL,
    PUSH,
    TARGETS,
    TOLERANCE,
    is_target,
    with_defaults,
)
from autoscaler.config.values import NAME, Whole
from autoscaler.core.fleet import WorkloadRef
from autoscaler.ports import ScaledObject

METADATA_LIMIT = 64  # keys of a trigger
PAUSED, PAUSED_AT = "autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"
FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})  # of Go's strconv.ParseBool; nonsense is true to KEDA


class Asked(NamedTuple):
    """A ScaledObject as this scaler sees it."""

    port: ScaledObject  # with the tolerances that are stated
    target: TargetKey
    external: bool  # it has a trigger of an external scaler, which may be this one
    ours: bool  # ... and that names a policy
    policy: str
    overrides: tuple[tuple[str, str], ...]
    bounds: tuple[float, float]  # stated or KEDA's; the HPA keeps to them whatever the policy says
    paused: bool
    doubts: str  # overrides that are dropped, in words; the rest holds


class ScaledObjectTable(ClaimTable[Asked]):
    """Receives ScaledObjects.

    hpas: among them those that KEDA made of ScaledObjects.
    """

    def __init__(self, hpas: HpaTable) -> None:
        super().__init__()
        self._hpas = hpas
        self._ports: dict[tuple[str, str], ScaledObject] = {}  # what was returned last

    def put(self, seen: objects.ScaledObject, /) -> None:
        self.keep(seen.metadata.namespace, seen.metadata.name, read_scaled_object(seen))

    def remove(self, namespace: str, name: str, /) -> None:
        super().remove(namespace, name)
        self._ports.pop((namespace, name), None)

    def port(self, namespace: str, name: str) -> ScaledObject | None:
        """Return one with an external trigger, under the tolerance of its HPA; the same object while nothing changes.

        An API server before 1.35 drops the tolerance from the HPA, whatever the ScaledObject states.
        """
        key = namespace, name
        asked = self._kept.get(key)
        if asked is None or not asked.external:
            return None
        port, hpa = asked.port, self._hpas.made_by(name, asked.target)
        if hpa is not None:
            port = replace(port, tolerance_up=hpa.tolerance_up, tolerance_down=hpa.tolerance_down)
        if self._ports.get(key) != port:
            self._ports[key] = port
        return self._ports[key]

    def all(self) -> list[Asked]:
        return list(self._kept.values())


def read_scaled_object(seen: objects.ScaledObject) -> Asked:
    """Read one ScaledObject; nothing in it makes this raise."""
    spec = _mapping(seen.spec)
    problems: list[str] = []
    doubts: list[str] = []
    target = _target(seen.metadata.namespace, _mapping(spec.get("scaleTargetRef")), problems)
    metadata = _trigger(spec.get("triggers"), problems)
    least = _count("minReplicaCount", spec.get("minReplicaCount"), LEAST, DEFAULT_MIN, problems)
    most = _count("maxReplicaCount", spec.get("maxReplicaCount"), MOST, DEFAULT_MAX, problems)
    if least > most:
        problems.append(f"minReplicaCount {least} is above maxReplicaCount {most}")
    behavior = _mapping(_mapping(_mapping(spec.get("advanced")).get("horizontalPodAutoscalerConfig")).get("behavior"))
    policy = (metadata or {}).get(POLICY, "")
    ours = metadata is not None and POLICY in metadata
    if ours and not re.fullmatch(NAME.expression, policy):
        problems.append(f"policy: found {shown(policy)}; allowed: {NAME.allowed}")
    overrides: dict[str, str] = {}
    for path, text in (metadata or {}).items():
        if path in OVERRIDES:
            overrides |= read_override(path, text, doubts)
    annotations = seen.metadata.annotations or {}
    return Asked(
        port=ScaledObject(
            namespace=seen.metadata.namespace,
            name=seen.metadata.name,
            target=target,
            min_replicas=least,
            max_replicas=most,
            tolerance_up=_tolerance("scaleUp", behavior, problems),
            tolerance_down=_tolerance("scaleDown", behavior, problems),
            metadata=tuple(sorted((metadata or {}).items())),
            problem=worded(problems),
        ),
        target=target_key(target),
        external=metadata is not None,
        ours=ours,
        policy=policy,
        overrides=tuple(sorted(overrides.items())),
        bounds=(least, most),
        paused=annotations.get(PAUSED, "false") not in FALSE or PAUSED_AT in annotations,
        doubts=worded(doubts),
    )


def _trigger(triggers: Any, problems: list[str]) -> dict[str, str] | None:
    """Return the metadata of the trigger that names a policy; empty: none does; None: no trigger is external."""
    found: list[Mapping[str, Any]] = [
        metadata
        for trigger in (triggers if isinstance(triggers, list) else ())
        if _mapping(trigger).get("type") in (PUSH, POLL) and (metadata := _mapping(_mapping(trigger).get("metadata")))
    ]
    ours = [metadata for metadata in found if POLICY in metadata]
    if not ours:
        if found:
            problems.append("the trigger's metadata names no policy; allowed: policy: <name of a policy>")
        return {} if found else None
    if len(ours) > 1:
        problems.append(f"{len(ours)} triggers name a policy; allowed: one, because the HPA takes the largest answer")
    metadata = ours[0]
    if len(metadata) > METADATA_LIMIT:
        problems.append(f"the trigger's metadata has {len(metadata)} keys; allowed: {METADATA_LIMIT}")
    kept = {}
    for key, value in list(metadata.items())[:METADATA_LIMIT]:
        if isinstance(value, str) and len(value) <= VALUE_LIMIT and len(key) <= VALUE_LIMIT:
            kept[key] = value
        elif key == POLICY or key in OVERRIDES:
            problems.append(f"{shown(key)}: found {shown(value)}; allowed: text of at most {VALUE_LIMIT} characters")
        # Anything else is KEDA's, certificates and keys among it: neither kept nor repeated. A key that nobody knows is
        # refused when KEDA asks with it.
    return kept


def _target(namespace: str, reference: Mapping[str, Any], problems: list[str]) -> WorkloadRef:
    kind, api_version = with_defaults(reference.get("kind"), reference.get("apiVersion"))
    name = reference.get("name")
    if is_target(kind, api_version):
        api_version = TARGETS[kind]
    else:
        allowed = ", ".join(f"{version} {kind}" for kind, version in TARGETS.items())
        problems.append(f"scaleTargetRef: found {shown(api_version)} {shown(kind)}; allowed: {allowed}")
    if not name:
        problems.append(f"scaleTargetRef.name: found {shown(name)}; allowed: the target's name")
    name, kind, api_version = (
        text if isinstance(text, str) and len(text) <= 253 else "" for text in (name, kind, api_version)
    )
    return WorkloadRef(namespace, name, kind, api_version)


def _count(key: str, value: Any, kind: Whole, absent: int, problems: list[str]) -> int:
    if value is None:
        return absent
    try:
        return kind.read(value)
    except ValueError as error:
        problems.append(f"{key}: {error}, found {shown(value)}; allowed: {kind.allowed}")
        return absent


def _tolerance(direction: str, behavior: Mapping[str, Any], problems: list[str]) -> float | None:
    value = _mapping(behavior.get(direction)).get("tolerance")
    if value is None:
        return None
    try:
        return TOLERANCE.read(value)
    except ValueError as error:
        problems.append(f"{direction}.tolerance: {error}, found {shown(value)}; allowed: {TOLERANCE.allowed}")
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
