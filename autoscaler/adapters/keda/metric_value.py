"""The metric value that makes the HPA scale to a desired count, and whether there is one. Pure functions.

The metric has the type AverageValue and the target 1, so outside its tolerance the HPA scales to ceil(value). Inside
its tolerance it keeps the current count C of `status.replicas`: a value from C x (1 - down) to C x (1 + up) has no
effect. KEDA passes values on with three decimals: version 2.20 rounds, earlier versions truncate.
Source: Kubernetes 1.36 pkg/controller/podautoscaler/replica_calculator.go; KEDA 2.20 and 2.18 pkg/scalers/scaler.go.
"""

from __future__ import annotations

from typing import NamedTuple

METRIC_NAME = "replicas"
TARGET = 1
DEFAULT_TOLERANCE = 0.1  # of the HPA controller, if the ScaledObject states none
SMALLEST_STEP_MILLI = 1  # N - 1 plus this still rounds up to N
TRUNCATION_MARGIN_MILLI = 0.25  # added because the float 8.001 is slightly less, and would be truncated to 8


class Tolerance(NamedTuple):
    """Relative changes that the HPA ignores."""

    up: float = DEFAULT_TOLERANCE
    down: float = DEFAULT_TOLERANCE


class PublishedValue(NamedTuple):
    """The value for the HPA."""

    value: float  # >= 0
    reachable: bool  # False: the tolerance hides the step for every value


def publish(desired: int, current: int, tolerance: Tolerance) -> PublishedValue:
    """Return the value that moves the HPA from `current` to `desired` replicas.

    current: existing pods, including those that a roll-out added: 13 of 12 desired, for example. With the value 12 the
    HPA would keep the 13. 0: no pod yet, or the HPA is off.

    Scaling down, desired - 1 + 0.001 means the same count and is further from `current`. From 11 to 10 with tolerance
    0.1 the HPA sees 9.001/11 = 0.82, while it would ignore 10/11 = 0.91. Scaling up, a value above `desired` would
    overshoot. From zero every value has an effect.
    """
    if current == desired or current <= 0 or _has_effect(desired * 1000, current, tolerance):
        return PublishedValue(float(desired), True)
    lowest_milli = (desired - 1) * 1000 + SMALLEST_STEP_MILLI
    if 0 < desired < current and _has_effect(lowest_milli, current, tolerance):
        return PublishedValue((lowest_milli + TRUNCATION_MARGIN_MILLI) / 1000, True)
    return PublishedValue(float(desired), False)


def _has_effect(milli: int, current: int, tolerance: Tolerance) -> bool:
    # Thousandths and the controller's order of operations make the bounds equal to the last bit.
    ratio = milli / (TARGET * 1000.0 * current)
    return not 1.0 - tolerance.down <= ratio <= 1.0 + tolerance.up
