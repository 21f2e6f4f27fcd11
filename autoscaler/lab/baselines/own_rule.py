"""Evaluates a scaling rule as KEDA, the HPA and Knative would: the only place with their arithmetic.

`step` is pure apart from what the rule itself remembers: the past of the workload, its count and the time go in, the
wanted count comes out. It serves a simulation of single requests, and columns of a fluid model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoscaler.config.rules.cron import CronWindow
from autoscaler.config.rules.query import at_time, reads_clock
from autoscaler.config.rules.rule import SYNC_S, Closed, Keda, Metric, Open, Rule
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.baselines.hpa import HpaController, propose
from autoscaler.lab.baselines.keda import Executor, TriggerFailures, TriggerState
from autoscaler.lab.baselines.knative import KnativeAutoscaler
from autoscaler.lab.baselines.past import ScrapedPast
from autoscaler.lab.baselines.query_value import elements

STALE_S = 300.0  # age from which Prometheus drops a sample
MOST_VALUE = 9e15  # quantities have 64 bits, in thousandths
EMPTY = np.zeros(0)

Reader = Callable[[ScrapedPast], FloatColumn]


@dataclass(frozen=True, eq=False)
class OpenSeries:
    """The result of a query over the history, in seconds since its start."""

    time_s: FloatColumn  # float64[T], ascending
    value: FloatColumn  # float64[T]
    several: IntColumn  # int64[T], series at that time

    def at(self, now_s: float) -> FloatColumn:
        """Return the values of the elements at a time, float64[n]; none: no result."""
        place = int(np.searchsorted(self.time_s, now_s, side="right")) - 1
        if place < 0 or now_s - self.time_s[place] > STALE_S:
            return EMPTY
        return np.full(int(self.several[place]), self.value[place])


@dataclass(frozen=True)
class RuleSetting:
    """A rule and what it needs of the world: when the simulation begins, and the results of its queries."""

    rule: Rule
    start_s: float  # Unix time
    series: Mapping[str, OpenSeries] = field(default_factory=dict)  # by query

    def start_replicas(self, replicas: int) -> int:
        """Return the initial replicas of an established service that has `replicas` without bounds of its own."""
        rule = self.rule
        if rule.knative is not None:
            return int(min(max(replicas, rule.knative.least), rule.knative.most))
        return min(max(replicas, rule.keda.least if rule.keda else rule.hpa.least), rule.hpa.most)

    def lines(self) -> list[str]:
        """Return which parts of the rule are evaluated, and how."""
        return [f"{self.rule.title}: {line}" for line in self.rule.describe(self.series)]

    def evaluated(self) -> tuple[Metric, ...]:
        """Return the metrics that have a value: an open query without history is left out."""
        return tuple(
            metric for metric in self.rule.metrics if not isinstance(metric.source, Open) or metric.query in self.series
        )

    def check(self) -> None:
        """Raise ValueError if nothing of the rule can be evaluated."""
        if not self.evaluated() and self.rule.knative is None:
            why = "; ".join(self.rule.describe()) or "it has no metric"
            raise ValueError(f"{self.rule.place}: {self.rule.title}: nothing of it can be evaluated: {why}")


class OwnRule:
    """One rule for one workload; implements `case.Scaler`. One object serves one run."""

    def __init__(
        self,
        setting: RuleSetting,
        start_replicas: int,
        name: str = "",
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        """readers: of metrics by their place, in place of their sources."""
        rule = setting.rule
        self.name = name or rule.title
        self._setting, self._rule, self._readers = setting, rule, readers or {}
        self._metrics = setting.evaluated()
        self._cron = {each.place: _Cron(each.source) for each in self._metrics if isinstance(each.source, CronWindow)}
        self._clocks = {
            each.place for each in self._metrics if isinstance(each.source, Closed) and reads_clock(each.source.node)
        }
        self._hpa = HpaController(rule.hpa)
        self._knative = KnativeAutoscaler(rule.knative, start_replicas) if rule.knative else None
        keda = rule.keda or Keda()
        self._failures = TriggerFailures(keda)
        # A workload that has replicas counts as active before the run.
        self._executor = Executor(keda, active_s=0.0 if start_replicas else None)
        self._polled: dict[str, TriggerState] = {}  # of triggers with cached metrics
        self._next_poll_s = self._next_sync_s = -math.inf
        self._read: dict[str, FloatColumn] = {}  # by place, of one moment
        self._read_s = math.nan
        self._polls = rule.keda is not None and _polling_matters(rule.keda, self._metrics)
        self.period_s = self._period_s()

    def _period_s(self) -> float:
        """Return the time between two steps at which something may happen."""
        if self._knative is not None:
            return self._knative.period_s
        keda = self._rule.keda
        return float(math.gcd(int(SYNC_S), int(keda.polling_s))) if keda and self._polls else SYNC_S

    def decide(self, view: ScrapedPast) -> int:
        return self.step(view.now_s, view, view.desired)

    def step(self, now_s: float, past: ScrapedPast, current: int) -> int:
        """Return the wanted count. now_s: seconds since the start; steps may be longer than `period_s`.

        past: what has been scraped until now. current: spec.replicas.
        """
        if self._knative is not None:
            return self._knative.step(now_s, past, current)
        keda, desired = self._rule.keda, current
        if keda is not None and (keda.paused or keda.paused_at is not None):
            return current if keda.paused_at is None else keda.paused_at
        if self._polls and keda is not None and now_s >= self._next_poll_s - 1e-6:
            self._next_poll_s = now_s + keda.polling_s
            desired = self._poll(now_s, past, desired, keda)
            if not current:  # the HPA follows with its own next sync
                return desired
        if now_s >= self._next_sync_s - 1e-6:
            self._next_sync_s = now_s + SYNC_S
            desired = self._hpa.sync(now_s, desired, self._proposals(now_s, past, desired) if desired else [])
        return desired

    def _poll(self, now_s: float, past: ScrapedPast, current: int, keda: Keda) -> int:
        states = {metric.place: self._state(metric, now_s, past, current) for metric in self._metrics}
        self._polled = states
        failed = any(state.failed for state in states.values())
        active = any(state.active for state in states.values())
        if keda.modifiers is not None:
            value = None if failed else self._composite(states)
            active = value is not None and value > keda.modifiers.activation
        return self._executor.poll(now_s, current, active, failed)

    def _proposals(self, now_s: float, past: ScrapedPast, current: int) -> Sequence[int | None]:
        hpa, keda = self._rule.hpa, self._rule.keda
        if keda is None:
            values = [self._elements(metric, now_s, past) for metric in self._metrics]
            finite = [each if np.isfinite(each).all() else EMPTY for each in values]
            pairs = zip(self._metrics, finite, strict=True)
            return [propose(metric, each, current, past.ready, hpa) for metric, each in pairs]
        states = {metric.place: self._served(metric, now_s, past, current) for metric in self._metrics}
        if keda.modifiers is None:
            return [
                propose(metric, _as_values(states[metric.place].value), current, past.ready, hpa)
                for metric in self._metrics
            ]
        failed = any(state.failed for state in states.values())
        served = any(state.fallback for state in states.values())
        value = None if failed and not served else self._composite(states)
        composite = Metric("", self._metrics[0].source, keda.modifiers.target, is_average=keda.modifiers.is_average)
        return [propose(composite, _as_values(value), current, past.ready, hpa)]

    def _composite(self, states: Mapping[str, TriggerState]) -> float | None:
        """Return the value of the formula; that of a fallback if one is served; None: it cannot be computed."""
        keda = self._rule.keda
        assert keda is not None and keda.modifiers is not None
        fallback = next((state.value for state in states.values() if state.fallback), None)
        if fallback is not None:
            return fallback
        named = {metric.name: states[metric.place].value for metric in self._metrics if metric.name}
        try:
            result = keda.modifiers.formula.compute(named)
        except ValueError:
            return None
        if result is None:
            return keda.fallback.replicas * keda.modifiers.target if keda.fallback else None
        return math.trunc(result * 1000) / 1000

    def _served(self, metric: Metric, now_s: float, past: ScrapedPast, current: int) -> TriggerState:
        """Return what KEDA answers to the HPA."""
        if metric.cached and metric.place in self._polled:
            return self._polled[metric.place]
        return self._state(metric, now_s, past, current)

    def _state(self, metric: Metric, now_s: float, past: ScrapedPast, current: int) -> TriggerState:
        """Return a trigger's state as KEDA's prometheus and cron scalers do."""
        found = self._elements(metric, now_s, past)
        value: float | None = float(found[0]) if len(found) == 1 else None
        if not len(found) or (value is not None and not math.isfinite(value)):
            value = 0.0 if metric.ignores_null else None  # several elements fail in any case
        active = value is not None and value > metric.activation
        if value is not None:  # no more than three decimals, and nothing below zero
            value = round(min(max(value, 0.0), MOST_VALUE), 3)
        return self._failures.state(metric, value, active, current, past.ready)

    def _elements(self, metric: Metric, now_s: float, past: ScrapedPast) -> FloatColumn:
        """Return the values of a metric, float64[n]. KEDA and the HPA may read it at the same moment."""
        if now_s != self._read_s:
            self._read, self._read_s = {}, now_s
        if metric.place not in self._read:
            self._read[metric.place] = self._query(metric, now_s, past)
        return self._read[metric.place]

    def _query(self, metric: Metric, now_s: float, past: ScrapedPast) -> FloatColumn:
        if metric.place in self._readers:
            return self._readers[metric.place](past)
        match metric.source:
            case Closed(node):
                unix_s = self._setting.start_s + now_s
                return elements(at_time(node, unix_s) if metric.place in self._clocks else node, past)
            case CronWindow():
                return np.array([self._cron[metric.place].value(self._setting.start_s + now_s)])
        return self._setting.series[metric.query].at(now_s)


def _as_values(value: float | None) -> FloatColumn:
    return EMPTY if value is None else np.array([value])


def _polling_matters(keda: Keda, metrics: Sequence[Metric]) -> bool:
    """Return whether KEDA's loop queries triggers itself: it does where it can leave the range of the HPA."""
    cached = any(metric.cached for metric in metrics)
    return keda.least == 0 or keda.idle is not None or cached or keda.modifiers is not None


class _Cron:
    """A cron trigger: its state holds until its next begin or end."""

    def __init__(self, window: CronWindow) -> None:
        self._window, self._open, self._until_s = window, False, -math.inf

    def value(self, unix_s: float) -> float:
        if unix_s >= self._until_s:
            self._open, self._until_s = self._window.state_at(unix_s)
        return float(self._window.replicas) if self._open else 0.0
