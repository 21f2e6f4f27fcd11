"""How KEDA and its HPA limit a published count: pauses, disabled directions, other metrics, an HPA that fails."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.autoscalers.hpas import Hpa
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import ScaledObjectSpec
from autoscaler.core.model.fleet import HpaDelays, HpaLimits


class Delays(NamedTuple):
    """One row of `HpaDelays`."""

    wake_s: float = inf
    grow_s: float = inf
    shrink_s: float = inf
    zero_s: float = inf


class HpaLimit(NamedTuple):
    """One row of `HpaLimits`."""

    min_replicas: float = 0.0
    max_replicas: float = inf
    to_zero: bool = False
    shared: bool = False
    reason: str = ""
    error: str = ""  # why the HPA cannot change the count at all; not a column of `HpaLimits`, but one of the obstacles
    delays: Delays = Delays()


NO_LIMIT = HpaLimit()


def limit_of(spec: ScaledObjectSpec, hpa: Hpa | None, replicas: int) -> HpaLimit:
    """Return how far KEDA and its HPA can move a count of `replicas`, whatever the daemon publishes.

    The HPA returns to its bounds without reading a metric. A direction that is disabled in the HPA does not bind KEDA,
    which still starts the first replica and scales to zero. The HPA is off at zero replicas.
    hpa: the HPA that KEDA created; None: it is not known, and the ScaledObject tells what it will be.
    Source: KEDA 2.20 pkg/scaling/executor/scale_scaledobjects.go, Kubernetes 1.36 podautoscaler/horizontal.go.
    """
    up_disabled, down_disabled = (
        (hpa.scale_up_disabled, hpa.scale_down_disabled) if hpa is not None else spec.disabled_directions
    )
    lowest, highest = max(spec.bounds[0], 1.0), spec.bounds[1]
    least, most, reasons = 0.0, inf, []
    if spec.pauses_scale_in:
        least = min(float(replicas), highest)
        reasons.append("KEDA's annotation paused-scale-in keeps every replica")
    elif down_disabled:
        least = min(float(replicas), highest)
        reasons.append("its HPA takes no replica away (scaleDown.selectPolicy: Disabled)")
    if spec.pauses_scale_out:
        most = max(float(replicas), spec.bounds[0])
        reasons.append("KEDA's annotation paused-scale-out adds none")
    elif up_disabled:
        most = max(float(replicas), lowest)
        reasons.append("its HPA adds no replica (scaleUp.selectPolicy: Disabled)")
    if spec.forces_activation:
        least = max(least, lowest)
        reasons.append("KEDA's annotation force-activation keeps it above zero")
    if not spec.scales_to_zero and least < spec.bounds[0]:  # KEDA keeps the minimum, even if the workload is idle
        least = spec.bounds[0]
        reasons.append(f"the minReplicaCount of its ScaledObject is {least:g}")
    has_error = hpa is not None and bool(hpa.error)
    return HpaLimit(
        min_replicas=min(least, most),
        max_replicas=most,
        to_zero=down_disabled and spec.scales_to_zero and not (spec.pauses_scale_in or spec.forces_activation),
        shared=bool(spec.other_deciders) or bool(missing_metric(spec, hpa)) or has_error,
        reason=" and ".join(reasons),
        error=hpa.error if hpa is not None else "",
        delays=delays_of(spec, hpa),
    )


def delays_of(spec: ScaledObjectSpec, hpa: Hpa | None) -> Delays:
    """Return how long KEDA and its HPA may take to begin to follow an answer.

    The HPA waits for its stabilization window and for the period of its policies. KEDA polls, and goes to zero only
    after its cooldown.
    """
    grow_s, shrink_s = spec.delays_s if hpa is None else hpa.delays_s
    zero_s = spec.cooldown_s + spec.poll_s if spec.scales_to_zero else inf
    return Delays(spec.poll_s, grow_s, shrink_s, zero_s)


def missing_metric(spec: ScaledObjectSpec, hpa: Hpa | None) -> str:
    """Return a message if the HPA that KEDA created does not have our metric; "": it has it, or is not known."""
    if hpa is None or spec.metric in hpa.metrics:
        return ""
    return (
        f"HorizontalPodAutoscaler/{hpa.name} has no metric {spec.metric}, so the daemon's answer has no effect; "
        "KEDA writes the HPA again when the spec of the ScaledObject changes"
    )


def hpa_error(hpa: Hpa | None) -> str:
    """Return a message if the HPA that KEDA created cannot change the count; "": it can, or is not known."""
    return f"HorizontalPodAutoscaler/{hpa.name}: {hpa.error}" if hpa is not None and hpa.error else ""


def to_columns(limits: Sequence[HpaLimit]) -> HpaLimits | None:
    """Convert the rows to columns; None: no HPA carries out the decisions."""
    if all(limit == NO_LIMIT for limit in limits):
        return None
    return HpaLimits(
        min_replicas=np.array([limit.min_replicas for limit in limits]),
        max_replicas=np.array([limit.max_replicas for limit in limits]),
        to_zero=np.array([limit.to_zero for limit in limits], dtype=bool),
        shared=np.array([limit.shared for limit in limits], dtype=bool),
        reason=tuple(limit.reason for limit in limits),
        delays=HpaDelays(*np.array([limit.delays for limit in limits], dtype=np.float64).T),
    )
