"""KEDA's ScaledObjects: which of them use this scaler, their targets, and their settings.

A custom resource may hold anything that its schema allowed. So every field is checked before use, and invalid values
become `problem`. The answers to KEDA's calls are in `adapters.keda`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from autoscaler.adapters.kubernetes.api import target_objects
from autoscaler.adapters.kubernetes.api.text import join_problems
from autoscaler.adapters.kubernetes.autoscalers.by_target import AutoscalerStore, TargetKey, target_key
from autoscaler.adapters.kubernetes.autoscalers.hpas import HpaStore
from autoscaler.config.check import scaledobject_fields as so
from autoscaler.config.check import trigger
from autoscaler.config.check.manifests import at, mapping
from autoscaler.config.policy.schema import OVERRIDES
from autoscaler.config.yaml import Loc
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import ScaledObjectFields

MAX_TRIGGERS = 100  # of one ScaledObject that are read
MAX_FAULTS = 20  # of one ScaledObject that are reported
METRIC_NAME = "replicas"  # as the scaler answers it; KEDA puts the index of the trigger in front
COMPOSITE_METRIC = "composite-metric"  # KEDA's name if scalingModifiers make one metric of all


class ScaledObjectSpec(NamedTuple):
    """The settings of a ScaledObject that matter to this scaler."""

    scaled_object: ScaledObjectFields  # with the tolerances that its spec states
    target: TargetKey
    has_external_trigger: bool  # of any external scaler
    is_ours: bool  # an external trigger names a policy
    policy: str
    overrides: tuple[tuple[str, str], ...]
    bounds: tuple[float, float]  # stated or KEDA's defaults; the HPA respects them whatever the policy says
    paused: bool
    pauses_scale_in: bool  # KEDA and the HPA remove no replica
    pauses_scale_out: bool  # KEDA and the HPA add no replica
    forces_activation: bool  # KEDA keeps the workload above zero
    disabled_directions: tuple[bool, bool]  # up and down, of its HPA
    delays_s: tuple[float, float]  # until its HPA moves up and down
    poll_s: float
    cooldown_s: float  # without activity until KEDA scales to zero
    scales_to_zero: bool  # KEDA goes to zero from any count while no trigger is active
    metric: str  # name of our metric in its HPA
    other_deciders: str  # other triggers or formulas that affect the count, in words


class ScaledObjectStore(AutoscalerStore[ScaledObjectSpec]):
    """The ScaledObjects of the cluster. A ScaledObject that is being deleted no longer counts."""

    def __init__(self, hpas: HpaStore) -> None:
        """hpas: including those that KEDA created for ScaledObjects."""
        super().__init__()
        self._hpas = hpas
        self._returned: dict[tuple[str, str], ScaledObjectFields] = {}  # by the last call of `get`

    def put(self, seen: target_objects.ScaledObject, /) -> None:
        if seen.metadata.deletion_timestamp is not None:
            self.remove(seen.metadata.namespace, seen.metadata.name)
        else:
            self.set(seen.metadata.namespace, seen.metadata.name, read_scaled_object(seen))

    def remove(self, namespace: str, name: str, /) -> None:
        super().remove(namespace, name)
        self._returned.pop((namespace, name), None)

    def get(
        self, namespace: str, name: str, find_ref: Callable[[TargetKey], WorkloadRef | None] = lambda key: None
    ) -> ScaledObjectFields | None:
        """Return a ScaledObject with an external trigger, and the tolerance of its HPA.

        find_ref: names a target that exists; its kind may be served in another version than the ScaledObject states.

        The same object is returned until it changes. An API server before 1.35 drops the tolerance from the HPA, even
        if the ScaledObject states one.
        """
        key = namespace, name
        spec = self._by_name.get(key)
        if spec is None or not spec.has_external_trigger:
            return None
        scaled_object, hpa = spec.scaled_object, self._hpas.of_scaled_object(name, spec.target)
        if (ref := find_ref(spec.target)) is not None and ref != scaled_object.target:
            scaled_object = replace(scaled_object, target=ref)
        if hpa is not None:
            scaled_object = replace(scaled_object, tolerance_up=hpa.tolerance_up, tolerance_down=hpa.tolerance_down)
        if self._returned.get(key) != scaled_object:
            self._returned[key] = scaled_object
        return self._returned[key]

    def owner(self, target: TargetKey) -> str:
        """Name the autoscaler of a target, a ScaledObject or an HPA; "": there is none."""
        specs = self.for_target(target)
        return f"ScaledObject/{specs[0].scaled_object.name}" if specs else self._hpas.owner(target)

    def all(self) -> list[ScaledObjectSpec]:
        return list(self._by_name.values())


def read_scaled_object(seen: target_objects.ScaledObject) -> ScaledObjectSpec:
    """Read a ScaledObject. Never raises, whatever the object holds."""
    value: dict[str, Any] = {"spec": seen.spec}
    stated = at(value, *so.TRIGGERS)
    triggers = stated[:MAX_TRIGGERS] if isinstance(stated, list) else []
    external = [index for index, one in enumerate(triggers) if _metadata(one) is not None]
    ours = [index for index in external if trigger.POLICY in (_metadata(triggers[index]) or {})]
    metadata = _comparable(_metadata(triggers[ours[0]]) or {}) if ours else {}
    least = so.integer(value, so.MIN, so.LEAST, so.DEFAULT_MIN) or 0
    most = so.integer(value, so.MAX, so.MOST, so.DEFAULT_MAX) or so.DEFAULT_MAX
    target = _target(seen.metadata.namespace, mapping(at(value, "spec", "scaleTargetRef")))
    annotations = seen.metadata.annotations or {}
    return ScaledObjectSpec(
        scaled_object=ScaledObjectFields(
            namespace=seen.metadata.namespace,
            name=seen.metadata.name,
            target=target,
            min_replicas=least,
            max_replicas=most,
            tolerance_up=_tolerance(value, so.UP),
            tolerance_down=_tolerance(value, so.DOWN),
            metadata=tuple(sorted(metadata.items())),
            is_only_trigger=len(triggers) <= 1 and not at(value, *so.MODIFIERS),
            problem=_problem(value, ours, bool(external)),
        ),
        target=target_key(target),
        has_external_trigger=bool(external),
        is_ours=bool(ours),
        policy=metadata.get(trigger.POLICY, ""),
        overrides=tuple(sorted((path, text) for path, text in metadata.items() if path in OVERRIDES)),
        bounds=(least, most),
        paused=so.is_set(annotations, so.PAUSED) or so.PAUSED_AT in annotations,
        pauses_scale_in=so.is_set(annotations, so.PAUSED_IN),
        pauses_scale_out=so.is_set(annotations, so.PAUSED_OUT),
        forces_activation=so.is_set(annotations, so.FORCED),
        disabled_directions=(_is_disabled(value, so.UP), _is_disabled(value, so.DOWN)),
        delays_s=(so.delay_s(value, so.UP), so.delay_s(value, so.DOWN)),
        poll_s=so.integer(value, so.POLLING, so.POLL_SECONDS) or so.DEFAULT_POLLING_S,
        cooldown_s=max(
            so.integer(value, so.COOLDOWN, so.SECONDS, so.DEFAULT_COOLDOWN_S) or 0,
            so.integer(value, so.INITIAL_COOLDOWN, so.SECONDS, 0) or 0,
        ),
        scales_to_zero=least == 0 or so.integer(value, so.IDLE, so.LEAST) == 0,
        metric=COMPOSITE_METRIC if at(value, *so.MODIFIERS) else f"s{ours[0] if ours else 0}-{METRIC_NAME}",
        other_deciders=_other_deciders(value, triggers, seen.status),
    )


def _metadata(stated: Any) -> Mapping[str, Any] | None:
    """Return the metadata of an external trigger; None: another type of trigger, or no metadata."""
    return mapping(at(stated, "metadata")) or None if at(stated, "type") in (so.PUSH, so.POLL) else None


def _comparable(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that a request must repeat. Certificates and keys are never stored."""
    return {
        key: text
        for key, text in islice(metadata.items(), trigger.MAX_KEYS)
        if isinstance(text, str) and key not in trigger.SECRETS and len(text) <= trigger.MAX_VALUE_CHARS
    }


def _problem(value: object, ours: list[int], external: bool) -> str:
    """Return why a ScaledObject cannot be used; "": it can, or has no trigger of this scaler."""
    if ours:
        return join_problems(fault.describe(value) for fault in islice(so.faults(value, ours), MAX_FAULTS))
    return "the trigger's metadata names no policy; allowed: policy: <name of a policy>" if external else ""


def _other_deciders(value: object, triggers: list[Any], status: Any) -> str:
    """Describe other triggers or formulas that affect the count; "": none."""
    found = []
    if len(triggers) > 1:
        kinds = ", ".join(str(at(one, "type"))[:40] for one in triggers[:5])
        found.append(f"has {len(triggers)} triggers ({kinds}), of which the HPA takes the largest answer")
    if at(value, *so.MODIFIERS):
        found.append("replaces the daemon's answer by the formula of its scalingModifiers")
    conditions = at(status, "conditions")
    for condition in conditions[:MAX_TRIGGERS] if isinstance(conditions, list) else ():
        if (at(condition, "type"), at(condition, "status")) == ("Fallback", "True"):
            found.append("uses its fallback, because KEDA got no answer")
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
