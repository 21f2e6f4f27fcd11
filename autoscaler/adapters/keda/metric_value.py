"""Which metric value makes the HPA land on a wanted count, and when none does. Arithmetic only.

The metric is of type AverageValue with target 1, so outside its tolerance the HPA goes to ceil(value). Inside it the
HPA goes to the current count C, which is that of `status.replicas`: it does not see a value between C x (1 - down) and
C x (1 + up), both bounds included. KEDA hands values on with three decimals: from 2.20 it rounds, before it cuts off
what is below a thousandth.
Source: Kubernetes 1.36 pkg/controller/podautoscaler/replica_calculator.go; KEDA 2.20 and 2.18 pkg/scalers/scaler.go.
"""

from __future__ import annotations

from typing import NamedTuple

METRIC_NAME = "replicas"
TARGET = 1
DEFAULT_TOLERANCE = 0.1  # of the HPA controller, where the ScaledObject states none
SMALLEST_STEP_MILLI = 1  # three decimals: with this added, N - 1 still rounds up to N
UNCUT_MILLI = 0.25  # so much more is sent: as a float 8.001 is a little less, and would be cut to 8


class Tolerance(NamedTuple):
    """Relative changes that the HPA does not act on."""

    up: float = DEFAULT_TOLERANCE
    down: float = DEFAULT_TOLERANCE


class Published(NamedTuple):
    """What is told to the HPA."""

    value: float  # >= 0
    reachable: bool  # False: the tolerance swallows the step, whatever value is sent


def publish(wanted: int, current: int, tolerance: Tolerance) -> Published:
    """Choose the value that moves the HPA from `current` to `wanted` replicas.

    current: pods that are there, with those that a roll-out has added: 13 while 12 are asked for and one more is let
    live. An HPA that is told 12 then would keep the 13. 0: none yet, or the HPA is off.
    Going down, wanted - 1 + 0.001 means the same count and lies further from `current`: 11 -> 10 with tolerance 0.1
    is seen as 9.001/11 = 0.82, where 10/11 = 0.91 would be kept. Going up there is no such way: a value above
    `wanted` would overshoot. At zero nothing is swallowed: any value is infinitely more.
    """
    if current == wanted or current <= 0 or _is_seen(wanted * 1000, current, tolerance):
        return Published(float(wanted), True)
    lowest_milli = (wanted - 1) * 1000 + SMALLEST_STEP_MILLI
    if 0 < wanted < current and _is_seen(lowest_milli, current, tolerance):
        return Published((lowest_milli + UNCUT_MILLI) / 1000, True)
    return Published(float(wanted), False)


def _is_seen(milli: int, current: int, tolerance: Tolerance) -> bool:
    # In thousandths and in the controller's own order of operations, so that the bounds agree to the last bit.
    ratio = milli / (TARGET * 1000.0 * current)
    return not 1.0 - tolerance.down <= ratio <= 1.0 + tolerance.up
