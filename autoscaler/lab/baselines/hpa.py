"""The algorithm of the HorizontalPodAutoscaler.

Source: Kubernetes 1.36, pkg/controller/podautoscaler/horizontal.go and replica_calculator.go; autoscaling/v2. Sync
every 15 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoscaler.config.rules.rule import BehaviorPolicy, Direction, HpaRule, Metric
from autoscaler.core.table.columns import FloatColumn


def propose(metric: Metric, values: FloatColumn, current: int, ready: int, hpa: HpaRule) -> int | None:
    """Return the count that one metric asks for; None: it is invalid.

    values: what the metrics API answers, of which the sum counts; for a Pods metric one value per ready pod.
    current: spec.replicas, at least 1. Value 12 and target 5 give 3; 10.9 and target 5 keep 2: the ratio is 1.09.
    """
    if not len(values):
        return None
    milli = np.floor(values * 1000 + 1e-6)  # quantities have three decimals
    target = math.floor(metric.target * 1000 + 1e-6)
    if metric.per_pod:
        return _propose_by_pods(milli, target, current, hpa)
    total = float(milli.sum())
    if metric.is_average:
        ratio = total / (float(target) * current)
        return current if _is_tolerated(ratio, hpa) else math.ceil(total / target)
    ratio = total / target
    return current if _is_tolerated(ratio, hpa) else math.ceil(ratio * ready)


def _is_tolerated(ratio: float, hpa: HpaRule) -> bool:
    return 1.0 - hpa.down.tolerance <= ratio <= 1.0 + hpa.up.tolerance


def _propose_by_pods(milli: FloatColumn, target: int, current: int, hpa: HpaRule) -> int:
    """Return the count of a Pods metric. A pod without one counts as 0 upwards, and as at its target downwards."""
    missing = max(current - len(milli), 0)
    ratio = float(milli.sum() // len(milli)) / target
    if not missing:
        return current if _is_tolerated(ratio, hpa) else math.ceil(ratio * len(milli))
    filled = float(milli.sum()) + (missing * target if ratio < 1 else 0)
    pods = len(milli) + missing if ratio != 1 else len(milli)
    again = float(filled // pods) / target
    if _is_tolerated(again, hpa) or (ratio < 1 < again) or (again < 1 < ratio):
        return current
    count = math.ceil(again * pods)
    turned = (again < 1 and count > current) or (again > 1 and count < current)
    return current if turned else count


class HpaController:
    """One HPA. `sync` is one pass of its controller."""

    def __init__(self, hpa: HpaRule) -> None:
        self.hpa = hpa
        self._recommendations: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def sync(self, now_s: float, current: int, proposals: Sequence[int | None]) -> int:
        """Return the new count for the proposals of all metrics. At zero the HPA is disabled.

        The largest proposal wins. While a metric is invalid the count does not fall; while all are, it stays.
        """
        self._recommendations = self._recommendations or [(now_s, current)]  # the first count is also the first one
        if current == 0:
            return 0
        bounded = min(max(current, self.hpa.least), self.hpa.most)
        if bounded != current:
            return self._record(now_s, current, bounded)
        valid = [proposal for proposal in proposals if proposal is not None]
        if not valid or (len(valid) < len(proposals) and max(valid) < current):
            return current
        return self._record(now_s, current, self._limit(now_s, current, self._stabilize(now_s, current, max(valid))))

    def _stabilize(self, now_s: float, current: int, recommendation: int) -> int:
        """Return the lowest recommendation of the upward window if above, the highest of the downward one if below.

        Without a stated behavior only the latter counts, and it may be above the count.
        """
        up_s, down_s = self.hpa.up.stabilization_s, self.hpa.down.stabilization_s
        least = most = recommendation
        for at_s, count in self._recommendations:
            if now_s - at_s < up_s:
                least = min(least, count)
            if now_s - at_s < down_s:
                most = max(most, count)
        longest_s = max(up_s, down_s)
        self._recommendations = [entry for entry in self._recommendations if now_s - entry[0] < longest_s]
        self._recommendations.append((now_s, recommendation))
        if not self.hpa.stated:
            return most
        return least if current < least else min(most, current)

    def _limit(self, now_s: float, current: int, desired: int) -> int:
        hpa = self.hpa
        if not hpa.stated:
            return min(max(desired, hpa.least), max(2 * current, 4), hpa.most)
        if desired > current:
            return min(desired, max(self._furthest(now_s, current, hpa.up, 1), current), hpa.most)
        if desired < current:
            return max(desired, min(self._furthest(now_s, current, hpa.down, -1), current), hpa.least)
        return current

    def _furthest(self, now_s: float, current: int, direction: Direction, sign: int) -> int:
        """Return the furthest count that the policies of a direction allow."""
        if direction.select == "Disabled":
            return current
        limits = [self._policy_limit(now_s, current, policy, sign) for policy in direction.policies]
        return max(limits) if (direction.select == "Max") == (sign > 0) else min(limits)

    def _policy_limit(self, now_s: float, current: int, policy: BehaviorPolicy, sign: int) -> int:
        """Return the furthest count that a policy allows from the count at the beginning of its period."""
        start = current - sum(change for at_s, change in self._changes if now_s - at_s < policy.period_s)
        if policy.kind == "Pods":
            return start + sign * int(policy.value)
        return math.ceil(start * (1 + policy.value / 100)) if sign > 0 else int(start * (1 - policy.value / 100))

    def _record(self, now_s: float, current: int, desired: int) -> int:
        if desired != current:
            longest_s = max(policy.period_s for policy in (*self.hpa.up.policies, *self.hpa.down.policies))
            self._changes = [entry for entry in self._changes if now_s - entry[0] < longest_s]
            self._changes.append((now_s, desired - current))
        return desired
