"""A constant replica count from the start. Tuned, it is the smallest that meets the goal: that of the peak."""

from __future__ import annotations

from autoscaler.lab.baselines.base import Axis, Baseline, Params, number
from autoscaler.lab.replay.case import Case, Scaler, View

REPLICAS = "replicas"


class Static:
    """Recommends `replicas` at any time."""

    name = "static"
    period_s = 60.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def decide(self, view: View) -> int:
        return self._replicas


def _replicas(params: Params) -> int:
    return int(number(params, REPLICAS))


def _make(case: Case, params: Params) -> Scaler:
    return Static(_replicas(params))


def _axes(case: Case) -> tuple[Axis, ...]:
    powers = range(case.max_replicas.bit_length())
    return (Axis(REPLICAS, tuple(sorted({float(2**power) for power in powers} | {float(case.max_replicas)}))),)


STATIC = Baseline("static", "a constant count", _make, _axes, monotone=True, starts=_replicas)
