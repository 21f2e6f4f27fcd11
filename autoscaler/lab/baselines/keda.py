"""KEDA's operator: its loop between zero and the least count, and what it serves while a trigger fails.

Source: KEDA 2.21, pkg/scaling/executor/scale_scaledobjects.go, pkg/fallback/fallback.go, pkg/scaling/scale_handler.go.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from autoscaler.config.rules.rule import Fallback, Keda, Metric


class TriggerState(NamedTuple):
    """One trigger at one reading."""

    value: float | None  # what KEDA serves; None: its query failed, or the formula reads nil
    active: bool
    failed: bool = False  # the query failed, and no fallback is served instead
    fallback: bool = False


class Executor:
    """Scaling to and from zero, or the idle count. active_s: last activity; None: never."""

    def __init__(self, keda: Keda, created_s: float = 0.0, active_s: float | None = None) -> None:
        self._keda, self._created_s, self._active_s = keda, created_s, active_s

    def poll(self, now_s: float, current: int, active: bool, failed: bool = False) -> int:
        """Return the count after one round of the loop. failed: at least one trigger failed."""
        keda = self._keda
        if active or keda.forced:
            if (keda.idle is not None and current < keda.least) or current == 0:
                if keda.paused_out:
                    return current
                self._active_s = now_s
                return max(keda.least, 1)
            if not failed:
                self._active_s = now_s
            return current
        if failed and (keda.fallback is None or keda.fallback.replicas):
            return current
        if (keda.idle is not None and current > keda.idle) or (current > 0 and keda.least == 0):
            return self._deactivate(now_s, current)
        return keda.least if keda.idle is None and current < keda.least else current

    def _deactivate(self, now_s: float, current: int) -> int:
        keda = self._keda
        if keda.paused_in:
            return current
        if self._active_s is None:
            over = now_s - self._created_s >= keda.initial_cooldown_s
        else:
            over = now_s - self._active_s >= keda.cooldown_s
        if not over:
            return current
        return keda.least if keda.idle is None else keda.idle


class TriggerFailures:
    """TriggerFailures of each trigger in a row, over polls and queries of the HPA."""

    def __init__(self, keda: Keda) -> None:
        self._keda = keda
        self._fallback = _valid_fallback(keda)
        self._counts: dict[str, int] = {}

    def state(self, metric: Metric, value: float | None, active: bool, current: int, ready: int) -> TriggerState:
        """Return what KEDA serves for a value; None: the query failed."""
        if value is not None:
            self._counts[metric.place] = 0
            return TriggerState(value, active)
        self._counts[metric.place] = count = self._counts.get(metric.place, 0) + 1
        fallback = self._fallback
        if fallback is None or count <= fallback.failures:
            return TriggerState(None, False, failed=True)
        if fallback.behavior == "scalingModifiers":
            return TriggerState(None, False)
        modifiers = self._keda.modifiers
        replicas = _fallback_replicas(fallback, current)
        if not (metric.is_average if modifiers is None else modifiers.is_average):
            if not ready:
                return TriggerState(None, False, failed=True)
            replicas /= ready
        target = metric.target if modifiers is None else modifiers.target
        return TriggerState(math.floor(target * 1000 * replicas + 1e-6) / 1000, True, fallback=True)


def _valid_fallback(keda: Keda) -> Fallback | None:
    """Return the fallback; with a formula KEDA heeds it if the target is a whole number."""
    fallback, modifiers = keda.fallback, keda.modifiers
    return None if modifiers is not None and not modifiers.target.is_integer() else fallback


def _fallback_replicas(fallback: Fallback, current: int) -> float:
    match fallback.behavior:
        case "currentReplicas":
            return float(current)
        case "currentReplicasIfHigher":
            return float(max(current, fallback.replicas))
        case "currentReplicasIfLower":
            return float(min(current, fallback.replicas))
    return float(fallback.replicas)
