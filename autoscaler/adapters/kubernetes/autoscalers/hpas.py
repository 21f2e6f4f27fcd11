"""HorizontalPodAutoscalers: their targets, behavior and metrics, and whether they can scale."""

from __future__ import annotations

from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.target_objects import (
    AutoscalerStatus,
    Behavior,
    HorizontalPodAutoscaler,
    ScalingRules,
)
from autoscaler.adapters.kubernetes.api.text import one_line
from autoscaler.adapters.kubernetes.autoscalers.by_target import AutoscalerStore, TargetKey, api_group
from autoscaler.config.check import scaledobject_fields as so

WRITE_CONFLICT = "the object has been modified"  # the API server's words in the controller's message
MAX_METRICS, MAX_NAME = 100, 253  # metrics of an HPA that are read, and characters of a name


class Hpa(NamedTuple):
    name: str
    target: TargetKey
    scaled_object: str  # name of the ScaledObject that it belongs to; "": none
    tolerance_up: float | None  # None: the controller's default
    tolerance_down: float | None
    scale_up_disabled: bool
    scale_down_disabled: bool
    delays_s: tuple[float, float]  # until it moves up and down, by its windows and the periods of its policies
    metrics: tuple[str, ...]  # names of its external metrics
    error: str  # why it cannot change the count, in the controller's words; "": it can


class HpaStore(AutoscalerStore[Hpa]):
    """The HPAs of the cluster. An HPA that is being deleted no longer counts."""

    def put(self, seen: HorizontalPodAutoscaler, /) -> None:
        metadata, reference = seen.metadata, seen.spec.scale_target_ref
        if metadata.deletion_timestamp is not None:
            self.remove(metadata.namespace, metadata.name)
            return
        owner = metadata.controller()
        behavior = seen.spec.behavior or Behavior()
        metrics = (seen.spec.metrics or ())[:MAX_METRICS]
        hpa = Hpa(
            metadata.name,
            TargetKey(metadata.namespace, api_group(reference.api_version), reference.kind, reference.name),
            owner.name if owner is not None and owner.kind == "ScaledObject" else "",
            _read_tolerance(behavior.scale_up),
            _read_tolerance(behavior.scale_down),
            behavior.scale_up is not None and behavior.scale_up.select_policy == so.DISABLED,
            behavior.scale_down is not None and behavior.scale_down.select_policy == so.DISABLED,
            (
                _read_delay_s(behavior.scale_up, so.DEFAULT_UP_WINDOW_S),
                _read_delay_s(behavior.scale_down, so.DEFAULT_DOWN_WINDOW_S),
            ),
            tuple(metric.external.metric.name[:MAX_NAME] for metric in metrics if metric.external is not None),
            _read_error(seen.status),
        )
        self.set(metadata.namespace, metadata.name, hpa)

    def of_scaled_object(self, scaled_object: str, target: TargetKey) -> Hpa | None:
        """Return the HPA that KEDA created for a ScaledObject and its target; None: none is known."""
        return next((hpa for hpa in self.for_target(target) if hpa.scaled_object == scaled_object), None)

    def owner(self, target: TargetKey, except_scaled_object: str = "") -> str:
        """Name the HPA or ScaledObject that scales a target; "": none.

        except_scaled_object: the HPA of this ScaledObject does not count.
        """
        for hpa in self.for_target(target):
            if not hpa.scaled_object:
                return f"HorizontalPodAutoscaler/{hpa.name}"
            if hpa.scaled_object != except_scaled_object:
                return f"ScaledObject/{hpa.scaled_object}"
        return ""


def _read_tolerance(rules: ScalingRules | None) -> float | None:
    try:
        return so.TOLERANCE.read(rules.tolerance) if rules is not None and rules.tolerance is not None else None
    except ValueError:
        return None  # the HPA of a valid ScaledObject never has such a tolerance


def _read_delay_s(rules: ScalingRules | None, default_window_s: float) -> float:
    """Return how long the HPA may wait before it moves: for its window, and after a step for the period of a policy."""
    rules = rules or ScalingRules()
    window_s = rules.stabilization_window_seconds
    periods_s = [policy.period_seconds for policy in (rules.policies or ())[: so.MAX_STEPS]] or [so.DEFAULT_PERIOD_S]
    return (default_window_s if window_s is None else window_s) + max(periods_s)


def _read_error(status: AutoscalerStatus) -> str:
    """Return why the HPA cannot change the count. A write conflict is ignored: the next sync of the HPA resolves it."""
    for condition in (status.conditions or ())[:MAX_METRICS]:
        is_conflict = WRITE_CONFLICT in (condition.message or "")
        if (condition.type, condition.status) == ("AbleToScale", "False") and not is_conflict:
            return one_line("", condition.message or condition.reason)
    return ""
