"""Computes recognized queries for many services at once, as `lab.baselines.query_value` does for one.

In a fluid model the replicas of a service are alike, so the series of its pods are one value and their number. A query
that tells replicas apart, or looks at single samples of a window, is not computed here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autoscaler.catalog.query_signals import QuerySignal, SeriesShape
from autoscaler.config.rules.query import ARITHMETIC, COMPARISONS, SETS, QueryPart
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.table.histogram import quantile
from autoscaler.lab.baselines.query_value import FUNCTIONS, OPERATORS
from autoscaler.lab.baselines.signals import BOUNDS

NO_VALUES = np.zeros(0)


class NotAlike(ValueError):
    """A query that is computed service by service."""


class FleetLatency(NamedTuple):
    """The histogram of a latency of each service."""

    counts: FloatColumn  # float64[W, B], cumulative counts at `BOUNDS`
    sum_s: FloatColumn  # float64[W]

    def observe(self, bounds: FloatColumn, value_s: FloatColumn, times: FloatColumn) -> FleetLatency:
        """Return it with a value of each service, float64[W], observed `times` times."""
        seen = np.where(value_s[:, None] <= bounds, times[:, None], 0.0)
        return FleetLatency(self.counts + seen, self.sum_s + times * value_s)


class FleetTotals(NamedTuple):
    """The totals of one scrape of each service; float64[W]. Counters never decrease."""

    time_s: FloatColumn  # of the scrape
    pods: FloatColumn  # that serve
    running: FloatColumn  # requests of a pod
    waiting: FloatColumn  # requests of a pod
    kv_usage: FloatColumn  # 0..1, of a pod
    gateway_waiting: FloatColumn
    arrivals: FloatColumn
    finished: FloatColumn
    first_tokens: FloatColumn
    prompt_tokens: FloatColumn
    generation_tokens: FloatColumn
    latencies: Mapping[str, FleetLatency]

    @classmethod
    def nothing(cls, services: int, latencies: Iterable[str] = BOUNDS) -> FleetTotals:
        """Return totals without any request. latencies: names of those that are counted."""
        none = {name: FleetLatency(np.zeros((services, len(BOUNDS[name]))), np.zeros(services)) for name in latencies}
        return cls._make([*np.zeros((len(cls._fields) - 1, services)), none])

    @property
    def size(self) -> int:
        """Return how many numbers these are."""
        *columns, latencies = self
        return sum(map(len, columns)) + sum(each.counts.size + len(each.sum_s) for each in latencies.values())

    def where(self, chosen: BoolColumn, others: FleetTotals) -> FleetTotals:
        """Return these totals for the services of `chosen`, bool[W], else those of `others`."""
        *columns, latencies = self
        *other_columns, other_latencies = others
        merged = {
            name: FleetLatency(
                np.where(chosen[:, None], ours.counts, other_latencies[name].counts),
                np.where(chosen, ours.sum_s, other_latencies[name].sum_s),
            )
            for name, ours in latencies.items()
        }
        pairs = zip(columns, other_columns, strict=True)
        return FleetTotals._make([*(np.where(chosen, ours, theirs) for ours, theirs in pairs), merged])


@dataclass
class FleetPast:
    """The totals of all services, step by step, as far back as a query looks. A step without news repeats the last."""

    totals: FleetTotals
    keeps_s: float
    begun: BoolColumn  # bool[W], services that have been scraped
    _kept: deque[tuple[float, FleetTotals]] = field(default_factory=deque)

    def add(self, time_s: float, totals: FleetTotals, scraped: BoolColumn) -> None:
        """Add the totals of a step of the services that were `scraped`, bool[W]."""
        self.totals = totals.where(scraped, self.totals)
        if (first := scraped & ~self.begun).any():  # before its first scrape a service has no past
            self._kept = deque((at_s, totals.where(first, kept)) for at_s, kept in self._kept)
            self.begun = self.begun | first
        self._kept.append((time_s, self.totals))
        while len(self._kept) > 1 and self._kept[1][0] <= time_s - self.keeps_s:
            self._kept.popleft()

    def ago(self, now_s: float, seconds: float) -> FleetTotals:
        """Return the latest totals that are at least `seconds` old, else the oldest."""
        for at_s, totals in reversed(self._kept):
            if at_s <= now_s - seconds + 1e-6:
                return totals
        return self._kept[0][1] if self._kept else self.totals


class FleetValues(NamedTuple):
    """The result of a query for each of G services: one element, or one for each of its pods, which are alike."""

    data: FloatColumn  # float64[G], or float64[G, B] with buckets
    present: BoolColumn  # bool[G], whether there is any element
    pods: IntColumn | None = None  # int64[G], elements; None: one
    bounds: FloatColumn | None = None  # float64[B], of buckets
    is_scalar: bool = False

    def elements(self, index: int) -> FloatColumn:
        """Return the values of the elements of one service, float64[n]."""
        if not self.present[index]:
            return NO_VALUES
        if self.pods is None:
            return self.data[index : index + 1]
        return np.full(self.pods[index], self.data[index])


class FleetQuery:
    """One query of several services."""

    def __init__(self, node: QueryPart, rows: IntColumn) -> None:
        """rows: int64[G], of the services. Raises NotAlike."""
        self._node, self._rows = node, rows
        # Which values have buckets, or one for each pod, follows from the query alone.
        nothing = FleetPast(FleetTotals.nothing(int(rows.max()) + 1), 0.0, np.zeros(0, bool))
        if self.values(nothing, 0.0).bounds is not None:
            raise NotAlike("its result has buckets")

    def values(self, past: FleetPast, now_s: float) -> FleetValues:
        """Return its values at a time."""
        with np.errstate(all="ignore"):
            return self._value(self._node, past, now_s)

    def _value(self, node: QueryPart, past: FleetPast, now_s: float) -> FleetValues:
        match node.kind:
            case "number":
                return self._same(node.number, is_scalar=True)
            case "signal" if node.signal is not None:
                totals = past.ago(now_s, node.offset_s) if node.offset_s > 0 else past.totals
                return self._signal(node.signal, totals)
            case "range" if node.name in ("rate", "increase"):
                return self._rate(node, past, now_s)
            case "aggregate":
                return self._aggregate(node, self._value(node.parts[0], past, now_s))
            case "call":
                return self._call(node, [self._value(part, past, now_s) for part in node.parts])
            case "binary":
                left, right = (self._value(part, past, now_s) for part in node.parts)
                return _combine(node, left, right)
        raise NotAlike(node.name)

    def _same(self, value: float, is_scalar: bool = False) -> FleetValues:
        size = len(self._rows)
        return FleetValues(np.full(size, value), np.ones(size, bool), is_scalar=is_scalar)

    def _signal(self, signal: QuerySignal, totals: FleetTotals) -> FleetValues:
        pods = totals.pods[self._rows]
        if signal.shape is SeriesShape.POD_GAUGE and signal.column in ("running", "waiting", "kv_usage", "up"):
            data = np.ones(len(pods)) if signal.column == "up" else getattr(totals, signal.column)[self._rows]
            return FleetValues(data * signal.scale, pods > 0, pods.astype(np.int64))
        if signal.shape is not SeriesShape.GAUGE:
            raise NotAlike(signal.column)
        return FleetValues(self._gauge(signal, totals, pods) * signal.scale, np.ones(len(pods), bool))

    def _gauge(self, signal: QuerySignal, totals: FleetTotals, pods: FloatColumn) -> FloatColumn:
        at_gateway = totals.gateway_waiting[self._rows]
        if signal.mean and signal.column in ("running", "waiting", "kv_usage"):
            return np.where(pods > 0, getattr(totals, signal.column)[self._rows], 0.0)
        match signal.column:
            case "ready":
                return pods
            case "gateway_waiting":
                return at_gateway
            case "inflight" | "held":
                in_pods = pods * (totals.running[self._rows] + totals.waiting[self._rows])
                return in_pods if signal.column == "inflight" else in_pods + at_gateway
        raise NotAlike(signal.column)

    def _rate(self, node: QueryPart, past: FleetPast, now_s: float) -> FleetValues:
        inner = node.parts[0]
        signal = inner.signal
        if signal is None or inner.number == inner.number:  # a single bucket
            raise NotAlike(inner.name)
        now = past.ago(now_s, inner.offset_s) if inner.offset_s > 0 else past.totals
        before = past.ago(now_s, inner.offset_s + node.window_s)
        passed_s = (now.time_s - before.time_s)[self._rows]
        factor = np.where(passed_s > 0, (node.window_s if node.name == "increase" else 1.0) / passed_s, 0.0)
        pods = now.pods[self._rows]
        of_pod = factor / np.maximum(pods, 1)
        if signal.shape is SeriesShape.HISTOGRAM:
            after, first = (totals.latencies[signal.column].counts[self._rows] for totals in (now, before))
            bounds = BOUNDS[signal.column] * signal.scale
            return FleetValues((after - first) * of_pod[:, None], pods > 0, pods.astype(np.int64), bounds)
        grown = (_counter(signal.column, now) - _counter(signal.column, before))[self._rows] * signal.scale
        if signal.shape is SeriesShape.COUNTER:
            return FleetValues(grown * factor, np.ones(len(pods), bool))
        return FleetValues(grown * of_pod, pods > 0, pods.astype(np.int64))

    def _aggregate(self, node: QueryPart, inner: FleetValues) -> FleetValues:
        if inner.bounds is not None and not node.by_le:
            raise NotAlike("it sums up buckets")
        count = np.ones(len(inner.present)) if inner.pods is None else inner.pods.astype(np.float64)
        keeps = node.by_pod and inner.pods is not None
        of_one = count if inner.data.ndim == 1 else count[:, None]
        match node.name:
            case "sum":
                data = inner.data if keeps else inner.data * of_one
            case "avg" | "max" | "min":
                data = inner.data
            case "count":
                data = np.ones(inner.data.shape) if keeps else np.broadcast_to(of_one, inner.data.shape)
            case "group":
                data = np.ones(inner.data.shape)
            case _:
                raise NotAlike(node.name)
        return FleetValues(data, inner.present, inner.pods if keeps else None, inner.bounds)

    def _call(self, node: QueryPart, given: list[FleetValues]) -> FleetValues:
        inner, others = given[0], [each.data for each in given[1:]]
        if node.name == "histogram_quantile" and inner.bounds is not None and 0 < node.number <= 1:
            return FleetValues(quantile(node.number, inner.bounds, inner.data), inner.present, inner.pods)
        if inner.bounds is not None:
            raise NotAlike(node.name)
        match node.name:
            case "vector":
                return FleetValues(inner.data, np.ones(len(inner.present), bool))
            case "absent":
                return FleetValues(np.ones(len(inner.present)), ~inner.present)
            case name if name in FUNCTIONS:
                data = FUNCTIONS[name](inner.data, *others)
            case _:
                raise NotAlike(node.name)
        return FleetValues(data, inner.present, inner.pods)


def _counter(column: str, totals: FleetTotals) -> FloatColumn:
    """Return a counter of each service, float64[W]."""
    name, _, what = column.partition("_")
    if (latency := totals.latencies.get(name)) is not None:
        return latency.sum_s if what == "sum_s" else latency.counts[:, -1]
    return np.asarray(getattr(totals, column))


def _offsets_s(node: QueryPart) -> set[float]:
    """Return how long ago the pods served that a query is about, in seconds."""
    own = {node.offset_s} if node.signal is not None else set()
    return own.union(*map(_offsets_s, node.parts))


def _combine(node: QueryPart, left: FleetValues, right: FleetValues) -> FleetValues:
    """Apply an operator to values of one element, or of the same pods."""
    scalars = left.is_scalar or right.is_scalar
    if (
        left.bounds is not None
        or right.bounds is not None
        or ((left.pods is None) != (right.pods is None) and not scalars)
    ):
        raise NotAlike(node.name)
    if left.pods is not None and right.pods is not None and len(_offsets_s(node)) > 1:
        raise NotAlike("its pods are those of several times")
    if node.name in SETS:
        if node.name == "or":
            data = np.where(left.present, left.data, right.data)
            return FleetValues(data, left.present | right.present, left.pods)
        return FleetValues(left.data, left.present & (right.present == (node.name == "and")), left.pods)
    if node.name not in ARITHMETIC | COMPARISONS:
        raise NotAlike(node.name)
    data = np.asarray(OPERATORS[node.name](left.data, right.data), np.float64)
    present = left.present & right.present
    pods = right.pods if left.pods is None else left.pods
    if node.name not in COMPARISONS or node.is_bool:
        return FleetValues(data, present, pods, is_scalar=left.is_scalar and right.is_scalar)
    return FleetValues(right.data if left.is_scalar else left.data, present & (data != 0), pods)
