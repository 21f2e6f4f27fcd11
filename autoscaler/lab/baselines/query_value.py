"""Computes recognized queries (`config.rules.query`) on the signals of a simulation, as Prometheus would.

Replicas are told apart where a scrape tells them apart: gauges of the last scrape. Counters and the past are known for
all replicas together; each then has an equal part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autoscaler.catalog.query_signals import QuerySignal, SeriesShape
from autoscaler.config.rules.query import COMPARISONS, SETS, TRENDS, QueryPart
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.core.table.histogram import quantile
from autoscaler.lab.baselines.past import ScrapedPast
from autoscaler.lab.baselines.signals import BOUNDS, inflight
from autoscaler.lab.replay.case import Totals


@dataclass(frozen=True)
class _Vector:
    """Elements: one per row of `data` if they differ in their pod, else one. `present`: bool, per element."""

    data: FloatColumn  # float64[R] or float64[R, B] with buckets; R is 1 without pods
    present: BoolColumn  # bool[R]
    by_pod: bool = False
    bounds: FloatColumn | None = None  # float64[B], of buckets
    is_scalar: bool = False


def elements(node: QueryPart, past: ScrapedPast) -> FloatColumn:
    """Return the values of the elements of an instant query, float64[n]; none: no result."""
    with np.errstate(all="ignore"):  # as Prometheus, which goes on with NaN and Inf
        found = _value(node, past, 0.0)
    return found.data[found.present].ravel()


def _one(value: float, present: bool = True, is_scalar: bool = False) -> _Vector:
    return _Vector(np.array([value]), np.array([present]), is_scalar=is_scalar)


def _value(node: QueryPart, past: ScrapedPast, ago_s: float) -> _Vector:
    match node.kind:
        case "number":
            return _one(node.number, is_scalar=True)
        case "signal":
            assert node.signal is not None
            return _signal(node, node.signal, past, ago_s + node.offset_s)
        case "range":
            return _range(node, past, ago_s + node.offset_s)
        case "aggregate":
            return _aggregate(node, _value(node.parts[0], past, ago_s))
        case "call":
            return _call(node, [_value(part, past, ago_s) for part in node.parts])
    left, right = (_value(part, past, ago_s) for part in node.parts)
    if node.name in SETS:
        return _set(node.name, left, right)
    return _operate(node, left, right)


def _signal(node: QueryPart, signal: QuerySignal, past: ScrapedPast, ago_s: float) -> _Vector:
    totals = past.totals_ago(ago_s) if ago_s > 0 else past.totals
    count = len(totals.running)
    match signal.shape:
        case SeriesShape.POD_GAUGE:
            data = np.ones(count) if signal.column == "up" else getattr(totals, signal.column)
            return _Vector(data * signal.scale, np.ones(count, np.bool_), by_pod=True)
        case SeriesShape.HISTOGRAM:
            bounds = BOUNDS[signal.column] * signal.scale
            return _buckets(node, bounds, totals.latencies[signal.column].counts, count)
        case _:
            return _one(_gauge(signal, totals, past) * signal.scale)


def _gauge(signal: QuerySignal, totals: Totals, past: ScrapedPast) -> float:
    if signal.mean:
        data = getattr(totals, signal.column)
        return float(data.mean()) if len(data) else 0.0
    match signal.column:
        case "ready":
            return float(len(totals.running))
        case "desired":
            return float(past.desired)
        case "inflight":
            return inflight(totals) - totals.gateway_waiting
        case "held":
            return inflight(totals)
    return totals.gateway_waiting


def _counter(column: str, totals: Totals) -> float:
    name, _, what = column.partition("_")
    if name in BOUNDS:
        latency = totals.latencies[name]
        return latency.sum_s if what == "sum_s" else float(latency.counts[-1])
    return float(getattr(totals, column))


def _buckets(node: QueryPart, bounds: FloatColumn, counts: FloatColumn, pods: int) -> _Vector:
    """Return buckets, an equal part for each pod; those up to `node.number` alone if it is a number."""
    share = np.tile(counts / max(pods, 1), (pods, 1))
    present = np.ones(pods, np.bool_)
    if math.isnan(node.number):
        return _Vector(share, present, by_pod=True, bounds=bounds)
    place = np.flatnonzero(np.isclose(bounds, node.number))
    if not len(place):
        return _Vector(np.zeros(pods), np.zeros(pods, np.bool_), by_pod=True)
    return _Vector(share[:, place[0]], present, by_pod=True)


# Functions over a range.


def _range(node: QueryPart, past: ScrapedPast, ago_s: float) -> _Vector:
    if node.name in ("rate", "irate", "increase"):
        return _rate(node, past, ago_s)
    inner = node.parts[0]
    ages = list(_ages(node, past, ago_s))
    found = [_value(inner, past, age_s - inner.offset_s * (inner.kind == "signal")) for age_s in ages]
    over_pods = {"max_over_time": np.max, "min_over_time": np.min}.get(node.name, np.mean)
    there = [(age_s, each.data[each.present]) for age_s, each in zip(ages, found, strict=True) if each.present.any()]
    values = np.array([float(over_pods(data)) for _, data in there])
    rows = max(len(found[0].present), 1) if found[0].by_pod else 1
    if len(values) < (2 if node.name in TRENDS else 1):
        return _Vector(np.zeros(rows), np.zeros(rows, np.bool_), by_pod=found[0].by_pod)
    with np.errstate(all="ignore"):
        result = _over_time(node, values, np.array([ago_s - age_s for age_s, _ in there]))
    return _Vector(np.full(rows, result), np.ones(rows, np.bool_), by_pod=found[0].by_pod)


def _ages(node: QueryPart, past: ScrapedPast, ago_s: float) -> Iterator[float]:
    """Yield the ages of the samples of a window, or of the steps of a subquery, youngest first."""
    if node.step_s:
        yield from (ago_s + float(age_s) for age_s in np.arange(0.0, node.window_s, node.step_s))
        return
    age_s = past.now_s - past.totals_ago(ago_s + node.parts[0].offset_s).time_s
    oldest_s = ago_s + node.parts[0].offset_s + node.window_s
    yield age_s
    while age_s < oldest_s:
        before_s = past.now_s - past.totals_ago(age_s + 1e-3).time_s
        if before_s <= age_s or before_s >= oldest_s:
            return
        age_s = before_s
        yield age_s


def _over_time(node: QueryPart, values: FloatColumn, at_s: FloatColumn) -> float:
    """Return a function over values, float64[N], youngest first. at_s: float64[N], their times; 0 is the evaluation."""
    match node.name:
        case "max_over_time":
            return float(values.max())
        case "min_over_time":
            return float(values.min())
        case "sum_over_time":
            return float(values.sum())
        case "count_over_time":
            return float(len(values))
        case "last_over_time":
            return float(values[0])
        case "stddev_over_time":
            return float(values.std())
        case "stdvar_over_time":
            return float(values.var())
        case "present_over_time":
            return 1.0
        case "delta":
            return float(values[0] - values[-1]) * node.window_s / float(at_s[0] - at_s[-1])
        case "idelta":
            return float(values[0] - values[1])
        case "deriv" | "predict_linear":
            slope, now = np.polyfit(at_s, values, 1).tolist()
            return float(slope if node.name == "deriv" else now + slope * node.number)
        case "quantile_over_time":
            return float(_quantile(node.number, values))
    return float(values.mean())


def _rate(node: QueryPart, past: ScrapedPast, ago_s: float) -> _Vector:
    inner = node.parts[0]
    signal = inner.signal
    assert signal is not None
    ago_s += inner.offset_s
    now = past.totals_ago(ago_s) if ago_s > 0 else past.totals
    window_s = past.now_s - ago_s - now.time_s + 1e-3 if node.name == "irate" else node.window_s
    before = past.totals_ago(ago_s + window_s)
    passed_s = now.time_s - before.time_s
    count = len(now.running)
    factor = (node.window_s if node.name == "increase" else 1.0) / passed_s if passed_s > 0 else 0.0
    if signal.shape is SeriesShape.HISTOGRAM:
        grown = (now.latencies[signal.column].counts - before.latencies[signal.column].counts) * factor
        return _buckets(inner, BOUNDS[signal.column] * signal.scale, grown, count)
    grown_by = (_counter(signal.column, now) - _counter(signal.column, before)) * factor * signal.scale
    if signal.shape is SeriesShape.COUNTER:
        return _one(grown_by)
    return _Vector(np.full(count, grown_by / max(count, 1)), np.ones(count, np.bool_), by_pod=True)


# Aggregations, functions and operators.

_SUMS: Mapping[str, Callable[[FloatColumn], FloatColumn]] = {
    "sum": lambda data: data.sum(axis=0),
    "avg": lambda data: data.mean(axis=0),
    "max": lambda data: data.max(axis=0),
    "min": lambda data: data.min(axis=0),
    "count": lambda data: np.full(data.shape[1:], float(len(data))),
    "group": lambda data: np.ones(data.shape[1:]),
    "stddev": lambda data: data.std(axis=0),
    "stdvar": lambda data: data.var(axis=0),
}


def _aggregate(node: QueryPart, inner: _Vector) -> _Vector:
    data, bounds = inner.data[inner.present], inner.bounds
    keeps = node.by_pod and inner.by_pod
    if bounds is not None and not node.by_le:  # buckets are summed up like any other series
        rows = inner.data
        if keeps:
            return _Vector(_sum_up(node, rows.T), inner.present, by_pod=True)
        data, bounds = data.reshape(-1), None
    if keeps:
        if node.name in ("count", "group"):
            return _Vector(np.ones(inner.data.shape), inner.present, True, bounds)
        return inner
    if not len(data):
        shape = (1, len(bounds)) if bounds is not None else (1,)
        return _Vector(np.zeros(shape), np.zeros(1, np.bool_), bounds=bounds)
    return _Vector(np.asarray(_sum_up(node, data))[np.newaxis], np.ones(1, np.bool_), bounds=bounds)


def _sum_up(node: QueryPart, data: FloatColumn) -> FloatColumn:
    if node.name == "quantile":
        return _quantile(node.number, data)
    return _SUMS[node.name](data)


def _quantile(q: float, values: FloatColumn) -> FloatColumn:
    """Return the quantile over the first axis."""
    if math.isnan(q) or not 0 <= q <= 1:
        return np.full(values.shape[1:], math.nan if math.isnan(q) else math.copysign(math.inf, q))
    return np.asarray(np.quantile(values, q, axis=0))


FUNCTIONS: Mapping[str, Callable[..., FloatColumn]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sgn": np.sign,
    "clamp": np.clip,
    "clamp_min": np.maximum,
    "clamp_max": np.minimum,
    "round": lambda data, to=1.0: np.floor(data / to + 0.5) * to,
}
"""Functions of each value and of the numbers that are given."""


def _call(node: QueryPart, given: list[_Vector]) -> _Vector:
    inner, others = given[0], [float(each.data[0]) for each in given[1:]]
    match node.name:
        case "histogram_quantile":
            return _histogram_quantile(node.number, inner)
        case "scalar":
            values = inner.data[inner.present]
            return _one(float(values.item()) if values.size == 1 else math.nan, is_scalar=True)
        case "vector":
            return _one(float(inner.data[0]))
        case "absent":
            return _one(1.0, not inner.present.any())
        case _:
            data = FUNCTIONS[node.name](inner.data, *others)
    return _Vector(data, inner.present, inner.by_pod, inner.bounds)


def _histogram_quantile(q: float, inner: _Vector) -> _Vector:
    if inner.bounds is None:  # without buckets there is no quantile
        return _Vector(np.zeros(len(inner.present)), np.zeros(len(inner.present), np.bool_), inner.by_pod)
    if q == 0:  # the begin of the first bucket, if anything lies in it
        data = np.where(inner.data[:, 0] > 0, 0.0, math.nan)
    elif 0 < q <= 1:
        data = np.array([float(quantile(q, inner.bounds, row)) for row in inner.data])
    else:
        data = np.full(len(inner.data), math.nan if math.isnan(q) else math.copysign(math.inf, q))
    return _Vector(data, inner.present, inner.by_pod)


def _set(name: str, left: _Vector, right: _Vector) -> _Vector:
    if name == "or":
        if left.by_pod == right.by_pod and left.data.shape == right.data.shape and left.data.ndim == 1:
            data = np.where(left.present, left.data, right.data)
            return _Vector(data, left.present | right.present, left.by_pod)
        chosen = [each.data[each.present].ravel() for each in (left, right)]
        data = np.concatenate(chosen)
        return _Vector(data, np.ones(len(data), np.bool_), by_pod=True)
    same = len(left.present) == len(right.present)
    there = right.present if same else np.full(len(left.present), bool(right.present.any()))
    return _Vector(left.data, left.present & (there if name == "and" else ~there), left.by_pod, left.bounds)


OPERATORS: Mapping[str, Callable[[FloatColumn, FloatColumn], FloatColumn]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


def _operate(node: QueryPart, left: _Vector, right: _Vector) -> _Vector:
    """Apply an operator. Pods and one element without a pod match with `on()` and group_left or group_right alone."""
    wide = right if left.is_scalar or (right.by_pod and not left.by_pod) else left
    scalars = left.is_scalar or right.is_scalar
    if not (scalars or node.many or left.by_pod == right.by_pod) or not _fit(left, right):
        return _Vector(np.zeros(len(wide.present)), np.zeros(len(wide.present), np.bool_), wide.by_pod)
    first, second, bounds = left.data, right.data, left.bounds if right.bounds is None else right.bounds
    if left.bounds is not None and right.bounds is not None:  # buckets match those of the same `le`
        bounds, *places = np.intersect1d(left.bounds, right.bounds, return_indices=True)
        first, second = first[:, places[0]], second[:, places[1]]
    if first.ndim < second.ndim:
        first = first[:, np.newaxis]
    elif second.ndim < first.ndim:
        second = second[:, np.newaxis]
    data = np.asarray(OPERATORS[node.name](first, second), np.float64)
    present = left.present & right.present
    if node.name not in COMPARISONS or node.is_bool:
        return _Vector(data, present, wide.by_pod, bounds, left.is_scalar and right.is_scalar)
    kept = np.broadcast_to(second if left.is_scalar else first, data.shape)
    holds = data != 0 if data.ndim == 1 else (data != 0).any(axis=1)
    return _Vector(kept, present & holds, wide.by_pod, bounds)


def _fit(left: _Vector, right: _Vector) -> bool:
    """Return whether two vectors have as many elements, or one of them has one."""
    return len(left.present) == len(right.present) or 1 in (len(left.present), len(right.present))
