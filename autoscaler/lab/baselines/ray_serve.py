"""Ray Serve: ongoing requests over a target, with delays before it acts.

Source: Ray at 00590c4, python/ray/serve/autoscaling_policy.py, and AutoscalingConfig: target_ongoing_requests 2,
upscale_delay_s 30, downscale_delay_s 600, look_back_period_s 30; from zero at once.
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

LOOP_S = 5.0  # its own loop runs every 0.1 s on metrics that come every 10 s
LOOK_BACK_S = 30.0
UP_DELAY_S = 30.0
DOWN_DELAY_S = 600.0


class RayServe:
    """`target`: ongoing requests of one replica."""

    name = "ray-serve"
    period_s = LOOP_S

    def __init__(
        self, case: Case, target: float, up_s: float = UP_DELAY_S, down_s: float = DOWN_DELAY_S, least: int = 1
    ) -> None:
        self._target, self._least, self._most = target, least, case.max_replicas
        self._up_s, self._down_s = up_s, down_s
        self._ongoing = MovingMean(LOOK_BACK_S)
        self._since_s = 0.0  # begin of the present direction
        self._direction = 0

    def decide(self, view: View) -> int:
        ongoing = view.live_concurrency()
        mean = self._ongoing.add(view.now_s, ongoing)
        if view.ready == 0:  # without a ready replica the last target stays, at least one with requests
            return min(max(view.desired, self._least, 1 if ongoing > 0 else 0), self._most)
        return self.delay(view.now_s, view.desired, mean)

    def delay(self, now_s: float, current: int, ongoing: float) -> int:
        """Return the desired count once it lay on the same side for the whole delay, else the present one."""
        desired = min(max(math.ceil(ongoing / self._target), self._least), self._most)
        if current > 1:
            desired = max(desired, 1)  # zero is only reached from one
        direction = (desired > current) - (desired < current)
        if direction != self._direction:
            self._direction, self._since_s = direction, now_s
        delay_s = self._up_s if direction > 0 else self._down_s
        if direction == 0 or now_s - self._since_s < delay_s:
            return current
        self._direction = 0
        return desired


def _make(case: Case, params: Params) -> Scaler:
    least = int(number(params, MIN_REPLICAS))
    up_s, down_s = number(params, "upscale_delay_s"), number(params, "downscale_delay_s")
    return RayServe(case, number(params, "target"), up_s, down_s, least)


def _axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", concurrencies_to_try(case), within=POSITIVE),
        Axis("upscale_delay_s", (LOOP_S, UP_DELAY_S)),
        Axis("downscale_delay_s", (120.0, DOWN_DELAY_S)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, 120.0)),
    )


def _default(case: Case) -> Params:
    """As in AutoscalingConfig."""
    return {
        "target": 2.0,
        "upscale_delay_s": UP_DELAY_S,
        "downscale_delay_s": DOWN_DELAY_S,
        MIN_REPLICAS: 1.0,
    }


RAY_SERVE = Baseline("ray-serve", "Ray Serve, autoscaling_policy.py, ongoing requests", _make, _axes, _default)
