"""KEDA: its own poll between zero and one, its HPA from one on.

Source: KEDA 2.20.2, pkg/scaling/executor/scale_scaledobjects.go and the ScaledObject reference. Poll every 30 s,
cooldown 300 s, then from any count straight to zero.
"""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.lab.baselines.base import (
    MIN_REPLICAS,
    POSITIVE,
    Axis,
    Baseline,
    Params,
    min_replicas_to_try,
    number,
    request_rates_to_try,
)
from autoscaler.lab.baselines.hpa import DOWN, SYNC_S, Direction, HpaRule
from autoscaler.lab.baselines.load_test import tested_rps
from autoscaler.lab.baselines.signals import rate, waiting
from autoscaler.lab.replay.case import Case, Scaler, View

POLL_S = 30.0
COOLDOWN_S = 300.0
RATE_WINDOW_S = 60.0  # window of `rate(...[1m])`


class Executor:
    """Scaling to and from zero. `poll` is one round of KEDA's loop. active_s: last activity; None: never."""

    def __init__(self, least: int, active_s: float | None = None) -> None:
        self._least, self._active_s = least, active_s

    def poll(self, now_s: float, current: int, active: bool) -> int:
        """Return the count after a poll."""
        if active:
            self._active_s = now_s
            return current or max(self._least, 1)
        if current < self._least:
            return self._least
        cooled_down = self._active_s is None or now_s - self._active_s >= COOLDOWN_S
        return 0 if self._least == 0 and cooled_down else current


class Keda:
    """A ScaledObject with one trigger: `value` returns the metric, which is active above zero."""

    period_s = SYNC_S

    def __init__(self, name: str, value: Callable[[View], float], hpa: HpaRule, least: int) -> None:
        self.name = name
        self._value, self._hpa = value, hpa
        self._executor = Executor(least, active_s=0.0)  # the workload counts as active before the run
        self._polled_s = -POLL_S

    def decide(self, view: View) -> int:
        value, desired = self._value(view), view.desired
        if view.now_s - self._polled_s >= POLL_S - 1e-6:
            self._polled_s = view.now_s
            # Defect fixed: a metric of pods wakes nothing without pods, so requests held by the gateway count as well.
            desired = self._executor.poll(view.now_s, desired, value > 0 or view.totals.gateway_waiting > 0)
            if not view.desired:  # the HPA follows with its own next sync
                return desired
        return self._hpa.sync(view.now_s, desired, value)


def _queue(case: Case, params: Params) -> Scaler:
    return _keda("keda-queue", lambda view: waiting(view.totals), case, params)


def _requests(case: Case, params: Params) -> Scaler:
    return _keda("keda-rps", lambda view: rate(view, "arrivals", RATE_WINDOW_S), case, params)


def _keda(name: str, value: Callable[[View], float], case: Case, params: Params) -> Scaler:
    least = int(number(params, MIN_REPLICAS))
    down = Direction(number(params, "stabilization_s"), DOWN.policies)
    return Keda(name, value, HpaRule(number(params, "target"), least, case.max_replicas, down=down), least)


def _queue_axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", (2.0, 5.0, 12.5), within=POSITIVE),
        Axis("stabilization_s", (300.0, 900.0)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, COOLDOWN_S)),
    )


def _request_axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", request_rates_to_try(case), within=POSITIVE),
        Axis("stabilization_s", (60.0, 300.0, 900.0)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, COOLDOWN_S)),
    )


def _queue_default(case: Case) -> Params:
    """As in the guide of vLLM's production stack (docs/source/use_cases/autoscaling-keda.rst)."""
    return {"target": 5.0, "stabilization_s": DOWN.stabilization_s, MIN_REPLICAS: 1.0}


def _request_default(case: Case) -> Params:
    """With KEDA's own minimum, `minReplicaCount` 0."""
    return {"target": float(f"{tested_rps(case):.6g}"), "stabilization_s": DOWN.stabilization_s, MIN_REPLICAS: 0.0}


KEDA_QUEUE = Baseline(
    "keda-queue", "KEDA 2.20.2, sum(waiting), AverageValue, threshold 5", _queue, _queue_axes, _queue_default
)
KEDA_RPS = Baseline(
    "keda-rps",
    "KEDA 2.20.2, requests per second per replica",
    _requests,
    _request_axes,
    _request_default,
    derived="target: requests per second that one replica takes within the objectives, as a load test would find",
)
