"""A scaling rule as its owner has written it, with the defaults of KEDA, the HPA and Knative filled in.

Plain values: `lab.baselines.own_rule` evaluates them. Times are seconds, targets are in the unit of their metric.
Sources: KEDA 2.21 `scaledobject_types.go`, `autoscaling/v2` of Kubernetes 1.36 and its defaults, Knative serving
`config-autoscaler`.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Literal, NamedTuple

from autoscaler.config.rules.cron import CronWindow
from autoscaler.config.rules.formula import Formula
from autoscaler.config.rules.query import QueryPart

SYNC_S = 15.0  # of the HPA controller
TOLERANCE = 0.1  # of the HPA controller, both ways

SHOWN_CHARS = 120  # of a query in messages
OUTSIDE = frozenset({"gateway_waiting", "held", "arrivals"})  # signals that are there while no pod is
ASLEEP = "its metrics come from pods alone, so nothing wakes it from zero replicas"

Select = Literal["Max", "Min", "Disabled"]


class RuleNote(NamedTuple):
    """A sentence about a rule, for the page and the terminal."""

    namespace: str  # of the rule; "": of no single one
    text: str


@dataclass(frozen=True)
class BehaviorPolicy:
    """A scaling policy: at most this much per period."""

    kind: Literal["Pods", "Percent"]
    value: float
    period_s: float = SYNC_S


@dataclass(frozen=True)
class Direction:
    """`behavior.scaleUp` or `behavior.scaleDown`."""

    stabilization_s: float
    policies: tuple[BehaviorPolicy, ...]
    select: Select = "Max"
    tolerance: float = TOLERANCE


UP = Direction(0.0, (BehaviorPolicy("Pods", 4), BehaviorPolicy("Percent", 100)))
DOWN = Direction(300.0, (BehaviorPolicy("Percent", 100),))


@dataclass(frozen=True)
class HpaRule:
    """Bounds and behavior of an HPA. Without `behavior` the controller doubles, or goes to 4, per sync."""

    least: int = 1
    most: int = 100
    up: Direction = UP
    down: Direction = DOWN
    stated: bool = True  # whether `behavior` is stated at all


@dataclass(frozen=True)
class Fallback:
    """What KEDA serves for a trigger that failed more than `failures` times in a row."""

    failures: int
    replicas: int
    behavior: str = "static"


@dataclass(frozen=True)
class Modifiers:
    """`scalingModifiers`: one metric computed from the values of all named triggers."""

    formula: Formula
    target: float
    activation: float = 0.0
    is_average: bool = True


@dataclass(frozen=True)
class Keda:
    """The part of a ScaledObject that KEDA's own loop acts on."""

    polling_s: float = 30.0
    cooldown_s: float = 300.0
    initial_cooldown_s: float = 0.0
    least: int = 0  # minReplicaCount
    idle: int | None = None  # idleReplicaCount
    fallback: Fallback | None = None
    modifiers: Modifiers | None = None
    paused: bool = False
    paused_at: int | None = None  # paused-replicas
    paused_in: bool = False
    paused_out: bool = False
    forced: bool = False


@dataclass(frozen=True)
class Closed:
    """A query whose meaning is known: it is evaluated on the simulated signals, which the count changes."""

    node: QueryPart


@dataclass(frozen=True)
class Open:
    """Any other query: it is run over the history as it was, whatever the count."""

    reason: str  # why its meaning is not known


@dataclass(frozen=True)
class Metric:
    """One trigger or metric that is evaluated."""

    place: str  # "spec.triggers[0]"
    source: Closed | Open | CronWindow
    target: float
    query: str = ""  # as written; "": none
    is_average: bool = True  # AverageValue; False: Value
    per_pod: bool = False  # an HPA metric of type Pods
    activation: float = 0.0
    ignores_null: bool = True  # no result counts as 0
    cached: bool = False  # the HPA is served the value of KEDA's last poll
    name: str = ""  # of the trigger, for a formula


@dataclass(frozen=True)
class LeftOut:
    """A trigger or metric that is not evaluated."""

    place: str
    kind: str  # "cpu"
    reason: str


@dataclass(frozen=True)
class Knative:
    """Annotations of Knative's pod autoscaler (KPA)."""

    target: float = 100.0  # concurrent requests, or requests per second, of a replica
    utilization: float = 0.7
    counts_rate: bool = False  # metric `rps` instead of `concurrency`
    window_s: float = 60.0
    panic_share: float = 0.1  # of the window
    panic_threshold: float = 2.0  # of the ready replicas
    least: int = 0
    most: float = math.inf
    initial: int = 1
    activation: int = 1  # replicas of a scale-up from zero, at least
    down_delay_s: float = 0.0
    retention_s: float = 0.0  # of the last replica


@dataclass(frozen=True)
class Rule:
    """One rule for one target."""

    kind: str  # "ScaledObject", "HorizontalPodAutoscaler", or that of an object with Knative annotations
    name: str
    namespace: str  # "": not stated
    target: str  # name of the workload
    place: str  # file and line
    metrics: tuple[Metric, ...] = ()
    hpa: HpaRule = HpaRule()
    keda: Keda | None = None
    knative: Knative | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def title(self) -> str:
        """The name of the rule in tables: `ScaledObject my-team/llama`."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def queries(self) -> tuple[str, ...]:
        """The queries to run over the history, each once."""
        return tuple(dict.fromkeys(metric.query for metric in self.metrics if isinstance(metric.source, Open)))

    def is_for(self, namespace: str, name: str) -> bool:
        """Return whether it scales a workload. Platforms append words to the name of a service."""
        if self.namespace and self.namespace != namespace:
            return False
        return name == self.target or (self.knative is not None and name.startswith(f"{self.target}-"))

    @property
    def has_cron(self) -> bool:
        return any(isinstance(metric.source, CronWindow) for metric in self.metrics)

    def describe(self, known: Container[str] = ()) -> list[str]:
        """Return which part is closed loop, open loop and left out, one line each.

        known: queries whose results in the past were read.
        """
        closed = [each.place for each in self.metrics if isinstance(each.source, Closed)]
        if self.knative is not None:
            closed.append("requests per second" if self.knative.counts_rate else "concurrent requests")
        lines = [f"closed loop, on the simulated signals: {', '.join(closed)}"] if closed else []
        lines += [f"by the clock: {each.place}" for each in self.metrics if isinstance(each.source, CronWindow)]
        for each in self.metrics:
            if isinstance(each.source, Open):
                read = (
                    "open loop, on the history as it was" if each.query in known else "left out, as no history was read"
                )
                lines.append(f"{read}: {each.place}: {each.source.reason}: {each.query[:SHOWN_CHARS]}")
        lines += [f"left out: {each.place} ({each.kind}): {each.reason}" for each in self.left_out]
        if self.keda is not None and self.keda.modifiers and (doubt := self.keda.modifiers.formula.doubt()):
            lines.append(f"the formula fails, as in KEDA: {doubt}")
        lines += [ASLEEP] if self._stays_at_zero() else []
        return [_printable(line) for line in lines]

    def _stays_at_zero(self) -> bool:
        """Return whether the rule goes to zero and only metrics of pods could wake it, which are gone then."""
        keda = self.keda
        if keda is None or keda.forced or (keda.least if keda.idle is None else keda.idle):
            return False
        outside = [
            not isinstance(each.source, Closed) or bool(each.source.node.columns() & OUTSIDE) for each in self.metrics
        ]
        return not any(outside)


def _printable(text: str) -> str:
    """Replace control characters, which queries of tenants may contain."""
    return "".join(character if character.isprintable() else " " for character in text)
