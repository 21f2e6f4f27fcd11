"""KEDA's ScaledObjects: which of them name this scaler, for which target, and what they ask.

A custom resource holds whatever its author and its schema allowed, so everything is looked at before it is used; what
makes no sense becomes `problem`. What KEDA is answered belongs to `adapters.keda`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.autoscalers.hpas import ClaimTable, HpaTable, TargetKey, target_key
from autoscaler.adapters.kubernetes.workloads.annotations import worded
from autoscaler.config.check import scaledobject as so
from autoscaler.config.check import trigger
from autoscaler.config.check.manifests import at, mapping
from autoscaler.config.policy.schema import OVERRIDES
from autoscaler.config.yaml import Loc
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import ScaledObject

MAX_TRIGGERS = 100  # of one ScaledObject that are looked at
MAX_FAULTS = 20  # of one that are worded
METRIC_NAME = "replicas"  # as the scaler answers it; KEDA puts the place of the trigger before it
COMPOSITE = "composite-metric"  # of a ScaledObject whose formula makes one metric of all


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
    pauses_in: bool  # KEDA and the HPA take no replica away
    pauses_out: bool  # they add none
    forced: bool  # KEDA keeps it above zero
    holds: tuple[bool, bool]  # directions in which its HPA is not to move: up, down
    to_zero: bool  # from any count KEDA goes to zero while nothing is active
    metric: str  # name of our metric in its HPA
    beside: str  # what decides beside us, in words


class ScaledObjectTable(ClaimTable[Asked]):
    """Receives ScaledObjects. One that is being deleted asks nothing any more.

    hpas: among them those that KEDA made of ScaledObjects.
    """

    def __init__(self, hpas: HpaTable) -> None:
        super().__init__()
        self._hpas = hpas
        self._ports: dict[tuple[str, str], ScaledObject] = {}  # what was returned last

    def put(self, seen: objects.ScaledObject, /) -> None:
        if seen.metadata.deletion_timestamp is not None:
            self.remove(seen.metadata.namespace, seen.metadata.name)
        else:
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
    value: dict[str, Any] = {"spec": seen.spec}
    stated = at(value, *so.TRIGGERS)
    triggers = stated[:MAX_TRIGGERS] if isinstance(stated, list) else []
    external = [place for place, one in enumerate(triggers) if _metadata(one) is not None]
    ours = [place for place in external if trigger.POLICY in (_metadata(triggers[place]) or {})]
    metadata = _kept(_metadata(triggers[ours[0]]) or {}) if ours else {}
    least = so.whole(value, so.MIN, so.LEAST, so.DEFAULT_MIN) or 0
    most = so.whole(value, so.MAX, so.MOST, so.DEFAULT_MAX) or so.DEFAULT_MAX
    target = _target(seen.metadata.namespace, mapping(at(value, "spec", "scaleTargetRef")))
    annotations = seen.metadata.annotations or {}
    beside = _beside(value, triggers, seen.status)
    return Asked(
        port=ScaledObject(
            namespace=seen.metadata.namespace,
            name=seen.metadata.name,
            target=target,
            min_replicas=least,
            max_replicas=most,
            tolerance_up=_tolerance(value, so.UP),
            tolerance_down=_tolerance(value, so.DOWN),
            metadata=tuple(sorted(metadata.items())),
            alone=len(triggers) <= 1 and not at(value, *so.MODIFIERS),
            problem=_problem(value, ours, bool(external)),
        ),
        target=target_key(target),
        external=bool(external),
        ours=bool(ours),
        policy=metadata.get(trigger.POLICY, ""),
        overrides=tuple(sorted((path, text) for path, text in metadata.items() if path in OVERRIDES)),
        bounds=(least, most),
        paused=so.is_set(annotations, so.PAUSED) or so.PAUSED_AT in annotations,
        pauses_in=so.is_set(annotations, so.PAUSED_IN),
        pauses_out=so.is_set(annotations, so.PAUSED_OUT),
        forced=so.is_set(annotations, so.FORCED),
        holds=(_is_disabled(value, so.UP), _is_disabled(value, so.DOWN)),
        to_zero=least == 0 or so.whole(value, so.IDLE, so.LEAST) == 0,
        metric=COMPOSITE if at(value, *so.MODIFIERS) else f"s{ours[0] if ours else 0}-{METRIC_NAME}",
        beside=beside,
    )


def _metadata(stated: Any) -> Mapping[str, Any] | None:
    """Return the metadata of an external trigger; None: it is of another type, or has none."""
    return mapping(at(stated, "metadata")) or None if at(stated, "type") in (so.PUSH, so.POLL) else None


def _kept(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return what a request is held against. Certificates and keys are neither kept nor repeated."""
    return {
        key: text
        for key, text in islice(metadata.items(), trigger.MAX_KEYS)
        if isinstance(text, str) and key not in trigger.SECRETS and len(text) <= trigger.MAX_VALUE_CHARS
    }


def _problem(value: object, ours: list[int], external: bool) -> str:
    """Say why it cannot be used; "": it can, or is somebody else's."""
    if ours:
        return worded(fault.worded(value) for fault in islice(so.faults(value, ours), MAX_FAULTS))
    return "the trigger's metadata names no policy; allowed: policy: <name of a policy>" if external else ""


def _beside(value: object, triggers: list[Any], status: Any) -> str:
    """Say what decides the count beside our answer; "": nothing does."""
    found = []
    if len(triggers) > 1:
        kinds = ", ".join(str(at(one, "type"))[:40] for one in triggers[:5])
        found.append(f"has {len(triggers)} triggers ({kinds}), of which the HPA takes the largest answer")
    if at(value, *so.MODIFIERS):
        found.append("puts the formula of its scalingModifiers in the place of our answer")
    conditions = at(status, "conditions")
    for condition in conditions[:MAX_TRIGGERS] if isinstance(conditions, list) else ():
        if (at(condition, "type"), at(condition, "status")) == ("Fallback", "True"):
            found.append("is in its fallback, as KEDA got no answer")
            break
    return "; ".join(found)


def _is_disabled(value: object, direction: Loc) -> bool:
    return at(value, *direction, "selectPolicy") == so.DISABLED


def _tolerance(value: object, direction: Loc) -> float | None:
    stated = so.tolerance(value, direction)
    return None if stated is None or math.isnan(stated) else stated


def _target(namespace: str, reference: Mapping[str, Any]) -> WorkloadRef:
    kind, api_version = so.with_defaults(reference.get("kind"), reference.get("apiVersion"))
    if so.is_target(kind, api_version):
        api_version = so.TARGETS[kind]
    name, kind, api_version = (
        text if isinstance(text, str) and len(text) <= 253 else ""
        for text in (reference.get("name"), kind, api_version)
    )
    return WorkloadRef(namespace, name, kind, api_version)
