"""SkyServe: requests per second of the last minute over a target, with hysteresis counted in decisions.

Source: SkyPilot at 4b81f5d, sky/serve/autoscalers.py and constants.py: window 60 s, decision every 20 s (5 s while
there is no replica). Upscale delay 300 s (15 decisions), downscale delay 1200 s (60 decisions).
"""

from __future__ import annotations

import math

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
from autoscaler.lab.baselines.load_test import mean_request_s
from autoscaler.lab.baselines.signals import rate
from autoscaler.lab.replay.case import Case, Scaler, View

WINDOW_S = 60.0
DECISION_S = 20.0
EMPTY_DECISION_S = 5.0
UP_DELAY_S = 300.0
DOWN_DELAY_S = 1200.0


class SkyServe:
    """`target`: requests per second of one replica. It is called every 5 s and usually decides every 20 s."""

    name = "skyserve"
    period_s = EMPTY_DECISION_S

    def __init__(
        self, case: Case, target: float, up_s: float = UP_DELAY_S, down_s: float = DOWN_DELAY_S, least: int = 1
    ) -> None:
        self._target, self._least, self._most = target, least, case.max_replicas
        self._needed = {1: int(up_s / DECISION_S), -1: int(down_s / DECISION_S)}
        self._counted = 0
        self._direction = 0
        self._decided_s = -DECISION_S

    def decide(self, view: View) -> int:
        due_s = self._decided_s + (DECISION_S if view.desired else EMPTY_DECISION_S)
        if view.now_s < due_s - 1e-6:
            return view.desired
        self._decided_s = view.now_s
        return self.count(view.desired, rate(view, "arrivals", WINDOW_S))

    def count(self, current: int, requests_per_s: float) -> int:
        """Return the count after one more decision."""
        desired = min(max(math.ceil(requests_per_s / self._target - 1e-9), self._least), self._most)
        if current == 0:
            self._counted = 0
            return desired
        direction = (desired > current) - (desired < current)
        self._counted = self._counted + 1 if direction == self._direction else 1
        self._direction = direction
        if direction == 0 or self._counted < self._needed[direction]:
            return current
        self._counted = 0
        return desired


def _make(case: Case, params: Params) -> Scaler:
    up_s, down_s = number(params, "upscale_delay_s"), number(params, "downscale_delay_s")
    return SkyServe(case, number(params, "target"), up_s, down_s, int(number(params, MIN_REPLICAS)))


def _axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", request_rates_to_try(case), within=POSITIVE),
        Axis("upscale_delay_s", (20.0, UP_DELAY_S)),
        Axis("downscale_delay_s", (300.0, DOWN_DELAY_S)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, 300.0)),
    )


def _default(case: Case) -> Params:
    """As in docs/source/serving/autoscaling.rst: a request that takes two seconds gives a target of 0.5."""
    return {
        "target": float(f"{1 / mean_request_s(case):.6g}"),
        "upscale_delay_s": UP_DELAY_S,
        "downscale_delay_s": DOWN_DELAY_S,
        MIN_REPLICAS: 1.0,
    }


SKYSERVE = Baseline(
    "skyserve",
    "SkyPilot SkyServe, RequestRateAutoscaler",
    _make,
    _axes,
    _default,
    derived="target: one over the time that one request takes alone in a replica, as its documentation advises",
)
