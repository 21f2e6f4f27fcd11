"""The fate of an answer that KEDA and its HPA carry out: pauses, directions that are off, others that decide."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.autoscalers.hpas import Hpa
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import Asked
from autoscaler.core.model.fleet import Held


class Hold(NamedTuple):
    """One row of `Held`."""

    least: float = 0.0
    most: float = inf
    to_zero: bool = False
    shared: bool = False
    reason: str = ""
    unable: str = ""  # why the HPA cannot change the count at all; no column, but one of the obstacles


def hold(asked: Asked, hpa: Hpa | None, replicas: int) -> Hold:
    """Say how KEDA and its HPA move a count of `replicas`, whatever they are told.

    The bounds of the HPA hold all the same: it goes back within them without asking for a metric. Its own direction
    that is off binds the HPA alone: KEDA still makes the first replica, and goes to zero. At zero the HPA is off.
    hpa: the one that KEDA made; None: none is known, and the ScaledObject says what it will be.
    Source: KEDA 2.20 pkg/scaling/executor/scale_scaledobjects.go, Kubernetes 1.36 podautoscaler/horizontal.go.
    """
    holds_up, holds_down = (hpa.holds_up, hpa.holds_down) if hpa is not None else asked.holds
    lowest, highest = max(asked.bounds[0], 1.0), asked.bounds[1]
    least, most, reasons = 0.0, inf, []
    if asked.pauses_in:
        least = min(float(replicas), highest)
        reasons.append("KEDA's annotation paused-scale-in keeps every replica")
    elif holds_down:
        least = min(float(replicas), highest)
        reasons.append("its HPA takes no replica away (scaleDown.selectPolicy: Disabled)")
    if asked.pauses_out:
        most = max(float(replicas), asked.bounds[0])
        reasons.append("KEDA's annotation paused-scale-out adds none")
    elif holds_up:
        most = max(float(replicas), lowest)
        reasons.append("its HPA adds no replica (scaleUp.selectPolicy: Disabled)")
    if asked.forced:
        least = max(least, lowest)
        reasons.append("KEDA's annotation force-activation keeps it above zero")
    if not asked.to_zero and least < asked.bounds[0]:  # KEDA leaves it at its minimum, however long it is idle
        least = asked.bounds[0]
        reasons.append(f"the minReplicaCount of its ScaledObject is {least:g}")
    return Hold(
        least=min(least, most),
        most=most,
        to_zero=holds_down and asked.to_zero and not (asked.pauses_in or asked.forced),
        shared=bool(asked.beside) or bool(lacks(asked, hpa)) or (hpa is not None and bool(hpa.unable)),
        reason=" and ".join(reasons),
        unable=hpa.unable if hpa is not None else "",
    )


def lacks(asked: Asked, hpa: Hpa | None) -> str:
    """Say that the HPA which KEDA made lacks our metric; "": it has it, or is not known."""
    if hpa is None or asked.metric in hpa.metrics:
        return ""
    return (
        f"HorizontalPodAutoscaler/{hpa.name} has no metric {asked.metric}, so that our answer moves nothing; "
        "KEDA writes it anew when the spec of the ScaledObject is changed"
    )


def fails(hpa: Hpa | None) -> str:
    """Say that the HPA which KEDA made cannot change the count; "": it can, or is not known."""
    return f"HorizontalPodAutoscaler/{hpa.name}: {hpa.unable}" if hpa is not None and hpa.unable else ""


def table(holds: Sequence[Hold]) -> Held | None:
    """Lay the rows out as columns; None: nothing is held."""
    if not any(hold.reason or hold.shared for hold in holds):
        return None
    return Held(
        least=np.array([hold.least for hold in holds]),
        most=np.array([hold.most for hold in holds]),
        to_zero=np.array([hold.to_zero for hold in holds], dtype=bool),
        shared=np.array([hold.shared for hold in holds], dtype=bool),
        reason=tuple(hold.reason for hold in holds),
    )
