"""A double of the HorizontalPodAutoscaler of Kubernetes 1.36 and of KEDA's 2.20 executor, for external metrics.

The real ones run in `tests/keda`, in minutes and on real clocks. This is their arithmetic, written from the tables of
what they do and from a run of the real ones: it is not their code, it knows no pods that are missing metrics, and no
metrics but external ones. `tests.operator` has the order of calls.
Time is an argument, in seconds.
"""

from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from math import ceil, isfinite, isnan
from typing import Literal

SYNC_PERIOD_S = 15.0


def keda_value(value_float: float, value_int: int) -> Decimal:
    """Return what KEDA hands to the HPA: the float when it is above zero, else the integer, with three decimals."""
    chosen = value_float if value_float > 0 else float(value_int)  # NaN is not above zero
    if isnan(chosen) or not isfinite(chosen) or chosen < 0:
        return Decimal(0)
    return Decimal(chosen).quantize(Decimal("0.001"), ROUND_HALF_EVEN)


def older_keda_value(value_float: float) -> Decimal:
    """Return the same of a float above zero in versions before 2.20, which cut off what is below a thousandth."""
    return Decimal(int(value_float * 1000)) / 1000


@dataclass(frozen=True)
class Policy:
    """At most this much change per period; the larger policy of a direction wins (selectPolicy: Max)."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_s: float = SYNC_PERIOD_S


@dataclass(frozen=True)
class Direction:
    """`behavior.scaleUp` or `behavior.scaleDown`."""

    stabilization_s: float
    policies: tuple[Policy, ...]
    tolerance: float = 0.1
    disabled: bool = False  # selectPolicy: Disabled


DEFAULT_UP = Direction(0, (Policy("Pods", 4), Policy("Percent", 100)))
DEFAULT_DOWN = Direction(300, (Policy("Percent", 100),))
EXACT = Direction(0, (Policy("Pods", 10_000),), tolerance=0)


@dataclass
class Hpa:
    """One HPA and the count it holds. `sync` is one pass of the controller."""

    min_replicas: int = 1
    max_replicas: int = 100
    metric_type: Literal["AverageValue", "Value"] = "AverageValue"
    target: Decimal = Decimal(1)
    up: Direction = DEFAULT_UP
    down: Direction = DEFAULT_DOWN
    replicas: int = 1  # spec.replicas of the target
    surge: int = 0  # pods that a roll-out keeps beyond those: status.replicas follows at once, with them
    ready: int | None = None  # ready pods; None: all of them
    _recommendations: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)  # positive: up, negative: down

    def sync(self, now_s: float, *values: Decimal | None) -> int:
        """Read each metric (None: its query failed), scale, and return the new count.

        The largest wins. While one fails the count does not fall; while all fail it stays.
        """
        if self.replicas == 0:  # ScalingActive=False, reason ScalingDisabled
            return 0
        if self.replicas > self.max_replicas:
            return self._scale(now_s, self.max_replicas)
        if self.replicas < self.min_replicas:
            return self._scale(now_s, self.min_replicas)
        proposals = [self._propose(value) for value in values if value is not None]
        if not proposals or (len(proposals) < len(values) and max(proposals) < self.replicas):
            return self.replicas
        proposal = self._stabilize(now_s, max(proposals))
        return self._scale(now_s, self._limit(now_s, proposal))

    def _propose(self, value: Decimal) -> int:
        """Return the count for the metric, after the tolerance."""
        milli = int(value * 1000)
        target_milli = int(self.target * 1000)
        if self.metric_type == "AverageValue":
            pods = self.replicas + self.surge
            ratio = float(milli) / (float(target_milli) * float(pods))
            return pods if self._within_tolerance(ratio) else ceil(float(milli) / float(target_milli))
        ratio = float(milli) / float(target_milli)
        if self._within_tolerance(ratio):
            return self.replicas
        return ceil(ratio * float(self.replicas if self.ready is None else self.ready))

    def _within_tolerance(self, ratio: float) -> bool:
        return 1.0 - self.down.tolerance <= ratio <= 1.0 + self.up.tolerance

    def _stabilize(self, now_s: float, proposal: int) -> int:
        self._recommendations.append((now_s, proposal))
        longest_s = max(self.up.stabilization_s, self.down.stabilization_s)
        self._recommendations = [(at, count) for at, count in self._recommendations if now_s - at <= longest_s]
        least = min(c for at, c in self._recommendations if now_s - at <= self.up.stabilization_s)
        most = max(c for at, c in self._recommendations if now_s - at <= self.down.stabilization_s)
        if self.replicas < least:
            return least
        return most if self.replicas > most else self.replicas

    def _limit(self, now_s: float, proposal: int) -> int:
        if self.up.disabled if proposal > self.replicas else self.down.disabled:
            return self.replicas
        if proposal > self.replicas:
            ceiling = max(self._allowed_up(now_s, policy) for policy in self.up.policies)
            return min(proposal, max(ceiling, self.replicas), self.max_replicas)
        if proposal < self.replicas:
            floor = min(self._allowed_down(now_s, policy) for policy in self.down.policies)
            return max(proposal, min(floor, self.replicas), self.min_replicas)
        return proposal

    def _allowed_up(self, now_s: float, policy: Policy) -> int:
        start = self.replicas - sum(n for at, n in self._changes if n > 0 and now_s - at < policy.period_s)
        return start + policy.value if policy.kind == "Pods" else ceil(start * (1 + policy.value / 100))

    def _allowed_down(self, now_s: float, policy: Policy) -> int:
        start = self.replicas - sum(n for at, n in self._changes if n < 0 and now_s - at < policy.period_s)
        return start - policy.value if policy.kind == "Pods" else int(start * (1 - policy.value / 100))

    def _scale(self, now_s: float, replicas: int) -> int:
        if replicas != self.replicas:
            self._changes.append((now_s, replicas - self.replicas))
        self.replicas = replicas
        return replicas


@dataclass
class Executor:
    """What KEDA's operator does at the edge of zero; 1..N is the HPA's. `poll` is one round of its loop."""

    min_replicas: int = 0  # minReplicaCount
    cooldown_s: float = 300.0
    idle_replicas: int | None = None  # idleReplicaCount
    fallback_replicas: int | None = None
    paused: bool = False  # the annotations, by what they do
    paused_in: bool = False
    paused_out: bool = False
    forced: bool = False
    last_active_s: float | None = None

    def poll(self, now_s: float, active: bool | None, replicas: int) -> int:
        """Return the count after one poll; `active` None: nothing is active and a trigger answered with an error."""
        if self.paused:
            return replicas
        if active or self.forced:
            return self._activate(now_s, replicas)
        if active is None and self.fallback_replicas != 0:
            return replicas  # without a fallback, and while the HPA is to go to it
        if self.idle_replicas is not None and replicas > self.idle_replicas:
            return self._idle(now_s, replicas, self.idle_replicas)
        if replicas > 0 and self.min_replicas == 0:
            return self._idle(now_s, replicas, 0)
        return self.min_replicas if self.idle_replicas is None and replicas < self.min_replicas else replicas

    def _activate(self, now_s: float, replicas: int) -> int:
        if replicas == 0 or (self.idle_replicas is not None and replicas < self.min_replicas):
            if self.paused_out:
                return replicas
            replicas = max(self.min_replicas, 1)
        self.last_active_s = now_s
        return replicas

    def _idle(self, now_s: float, replicas: int, idle_replicas: int) -> int:
        cooled_down = self.last_active_s is None or now_s - self.last_active_s >= self.cooldown_s
        return idle_replicas if cooled_down and not self.paused_in else replicas
