"""Knative's pod autoscaler (KPA): concurrency over a stable window, and over a short window in panic mode.

Source: knative/serving at 15413ab, pkg/autoscaler/scaling/autoscaler.go, and config-autoscaler. Tick 2 s, stable window
60 s, panic window 10 % of it. Panic at 200 % of the ready replicas, target 70 % of the limit. Up at most 1000-fold,
down at most by half. Scale to zero after the stable window and at most 30 s of grace.
"""

from __future__ import annotations

import math

from autoscaler.lab.baselines.base import (
    MIN_REPLICAS,
    POSITIVE,
    Axis,
    Baseline,
    Params,
    concurrencies_to_try,
    min_replicas_to_try,
    number,
)
from autoscaler.lab.baselines.signals import MovingMean
from autoscaler.lab.replay.case import Case, Scaler, View

TICK_S = 2.0
STABLE_S = 60.0
PANIC_SHARE = 0.1
PANIC_THRESHOLD = 2.0
UTILIZATION = 0.7
MAX_UP_RATE = 1000.0
MAX_DOWN_RATE = 2.0
GRACE_S = 30.0


class Knative:
    """Counts requests as its proxies do, without a scrape. `limit`: concurrent requests of a replica."""

    name = "knative-kpa"
    period_s = TICK_S

    def __init__(self, case: Case, limit: float, stable_s: float = STABLE_S, least: int = 1) -> None:
        self._target = limit * UTILIZATION
        self._least, self._most, self._stable_s = least, case.max_replicas, stable_s
        self._stable = MovingMean(stable_s)
        self._panic = MovingMean(stable_s * PANIC_SHARE)
        # its autoscaler starts in panic mode with several replicas
        self._panic_s: float | None = 0.0 if case.start_replicas > 1 else None
        self._panic_replicas = case.start_replicas if case.start_replicas > 1 else 0
        self._idle_since_s: float | None = None

    def decide(self, view: View) -> int:
        concurrency = view.live_concurrency()
        stable = self._stable.add(view.now_s, concurrency)
        panic = self._panic.add(view.now_s, concurrency)
        return self._bound(view, self.scale(view.now_s, view.ready, stable, panic))

    def scale(self, now_s: float, ready: int, stable: float, panic: float) -> int:
        """Return the count for the mean concurrency in both windows."""
        ready = max(ready, 1)
        highest, lowest = math.ceil(MAX_UP_RATE * ready), math.floor(ready / MAX_DOWN_RATE)
        for_panic = math.ceil(panic / self._target)
        desired = min(max(math.ceil(stable / self._target), lowest), highest)
        if for_panic / ready >= PANIC_THRESHOLD:
            self._panic_s = now_s
        elif self._panic_s is not None and now_s - self._panic_s > self._stable_s:
            self._panic_s, self._panic_replicas = None, 0
        if self._panic_s is None:
            return desired
        self._panic_replicas = max(self._panic_replicas, desired, min(max(for_panic, lowest), highest))
        return self._panic_replicas  # no scale-down in panic mode

    def _bound(self, view: View, desired: int) -> int:
        """Keep the last replica through the grace period, and clamp the count."""
        if desired > 0:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = view.now_s
        graced = self._idle_since_s is not None and view.now_s - self._idle_since_s < GRACE_S
        graced |= view.now_s < self._stable_s  # part of the window lies before the run
        least = max(self._least, 1 if graced and view.desired > 0 else 0)
        return min(max(desired, least), self._most)


def _make(case: Case, params: Params) -> Scaler:
    return Knative(case, number(params, "limit"), number(params, "stable_s"), int(number(params, MIN_REPLICAS)))


def _axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("limit", concurrencies_to_try(case), within=POSITIVE),
        Axis("stable_s", (STABLE_S, 300.0)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, STABLE_S)),
    )


def _default(case: Case) -> Params:
    """As in config-autoscaler: `container-concurrency-target-default`, `stable-window`, `enable-scale-to-zero`."""
    return {"limit": 100.0, "stable_s": STABLE_S, MIN_REPLICAS: 0.0}


KNATIVE_KPA = Baseline("knative-kpa", "Knative Serving, autoscaler.go, concurrency", _make, _axes, _default)
