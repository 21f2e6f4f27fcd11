"""The algorithm of the HorizontalPodAutoscaler for one metric, and a scaler on requests in flight.

Source: Kubernetes 1.36, pkg/controller/podautoscaler/horizontal.go and replica_calculator.go; autoscaling/v2. Sync
every 15 s. Tolerance 0.1 both ways. Up: at most the larger of 4 pods and 100 % per 15 s, no stabilization. Down: 100 %
per 15 s, to the highest recommendation of 300 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autoscaler.lab.baselines.base import MIN_REPLICAS, POSITIVE, Axis, Baseline, Params, concurrencies_to_try, number
from autoscaler.lab.baselines.signals import inflight
from autoscaler.lab.replay.case import Case, Scaler, View

SYNC_S = 15.0
TOLERANCE = 0.1


@dataclass(frozen=True)
class HpaPolicy:
    """A scaling policy: at most this much per period."""

    kind: Literal["Pods", "Percent"]
    value: float
    period_s: float = SYNC_S


@dataclass(frozen=True)
class Direction:
    """`behavior.scaleUp` or `behavior.scaleDown`; the policy that allows most applies."""

    stabilization_s: float
    policies: tuple[HpaPolicy, ...]


UP = Direction(0.0, (HpaPolicy("Pods", 4), HpaPolicy("Percent", 100)))
DOWN = Direction(300.0, (HpaPolicy("Percent", 100),))


class HpaRule:
    """One HPA with an external metric of type AverageValue. `sync` is one pass of its controller."""

    def __init__(
        self,
        target: float,
        least: int,
        most: int,
        up: Direction = UP,
        down: Direction = DOWN,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.target, self.least, self.most = target, max(least, 1), most
        self.up, self.down, self.tolerance = up, down, tolerance
        self._recommendations: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def sync(self, now_s: float, current: int, value: float) -> int:
        """Return the new count for the sum of the metric. At zero the HPA is disabled."""
        if current == 0:
            return 0
        bounded = min(max(current, self.least), self.most)
        if bounded != current:
            return self._record(now_s, current, bounded)
        return self._record(now_s, current, self._limit(now_s, current, self._stabilize(now_s, current, value)))

    def recommend(self, current: int, value: float) -> int:
        """Return the recommendation: value 12 and target 5 give 3; 10.9 and target 5 keep 2 (ratio 1.09)."""
        milli = int(value * 1000)  # quantities have three decimals
        per_replica = int(self.target * 1000)
        ratio = milli / (per_replica * current)
        if 1 - self.tolerance <= ratio <= 1 + self.tolerance:
            return current
        return math.ceil(milli / per_replica)

    def _stabilize(self, now_s: float, current: int, value: float) -> int:
        """Return the lowest recommendation of the upward window if above, the highest of the downward one if below.

        The first count is also the first recommendation.
        """
        recommendation = self.recommend(current, value)
        self._recommendations = self._recommendations or [(now_s, current)]
        least = most = recommendation
        for at_s, count in self._recommendations:
            if now_s - at_s < self.up.stabilization_s:
                least = min(least, count)
            if now_s - at_s < self.down.stabilization_s:
                most = max(most, count)
        longest_s = max(self.up.stabilization_s, self.down.stabilization_s)
        self._recommendations = [entry for entry in self._recommendations if now_s - entry[0] < longest_s]
        self._recommendations.append((now_s, recommendation))
        return least if current < least else min(most, current)

    def _limit(self, now_s: float, current: int, desired: int) -> int:
        if desired > current:
            most = max(self._policy_limit(now_s, current, policy, 1) for policy in self.up.policies)
            return min(desired, max(most, current), self.most)
        if desired < current:
            least = min(self._policy_limit(now_s, current, policy, -1) for policy in self.down.policies)
            return max(desired, min(least, current), self.least)
        return current

    def _policy_limit(self, now_s: float, current: int, policy: HpaPolicy, sign: int) -> int:
        """Return the furthest count that a policy allows from the count at the beginning of its period."""
        start = current - sum(change for at_s, change in self._changes if now_s - at_s < policy.period_s)
        if policy.kind == "Pods":
            return start + sign * int(policy.value)
        return math.ceil(start * (1 + policy.value / 100)) if sign > 0 else int(start * (1 - policy.value / 100))

    def _record(self, now_s: float, current: int, desired: int) -> int:
        if desired != current:
            longest_s = max(policy.period_s for policy in (*self.up.policies, *self.down.policies))
            self._changes = [entry for entry in self._changes if now_s - entry[0] < longest_s]
            self._changes.append((now_s, desired - current))
        return desired


class HpaInflight:
    """Keeps running and waiting requests per replica at a target.

    Defect fixed: requests held by a gateway count even without a ready pod. It cannot leave zero, so the minimum is 1.
    """

    name = "hpa-inflight"
    period_s = SYNC_S

    def __init__(self, case: Case, target: float, stabilization_s: float, least: int = 1) -> None:
        self._hpa = HpaRule(target, least, case.max_replicas, down=Direction(stabilization_s, DOWN.policies))

    def decide(self, view: View) -> int:
        return self._hpa.sync(view.now_s, max(view.desired, 1), inflight(view.totals))


def _make(case: Case, params: Params) -> Scaler:
    return HpaInflight(
        case, number(params, "target"), number(params, "stabilization_s"), int(number(params, MIN_REPLICAS))
    )


def _axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", concurrencies_to_try(case), within=POSITIVE),
        Axis("stabilization_s", (60.0, 300.0, 900.0)),
        Axis(MIN_REPLICAS, (1.0,)),
    )


def _default(case: Case) -> Params:
    """As in llm-d's guide (guides/workload-autoscaling/keda-epp): 16 running requests per replica."""
    return {"target": 16.0, "stabilization_s": DOWN.stabilization_s, MIN_REPLICAS: 1.0}


HPA_INFLIGHT = Baseline(
    "hpa-inflight", "Kubernetes 1.36 HPA, AverageValue of running + waiting", _make, _axes, _default
)
