"""Recognizes the meaning of a PromQL query: which simulated signals it is computed from, and how.

promql-parser reads the text; this module keeps what a simulation can compute. It knows series of engines, gateways and
replica counts (`catalog.query_signals`), whatever their spelling, the order of labels and the way they are summed up.
Recording rules are replaced by their expressions.
"""

from __future__ import annotations

import math
import operator
import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import promql_parser as promql

from autoscaler.catalog.query_signals import QuerySignal, SeriesShape, query_signals
from autoscaler.catalog.series import POD_LABELS
from autoscaler.config.promql import InvalidQuery, parse_query

MAX_RULES = 8  # recording rules that refer to one another
MAX_WINDOW_S = 6 * 3600.0  # what a simulation remembers
MAX_STEPS = 400  # of a subquery
MAX_WORK = 5000  # samples and steps for one value: subqueries in subqueries multiply
SCRAPE_S = 15.0  # usual time between two samples
SUBQUERY_STEP_S = 60.0  # Prometheus' default, its evaluation interval

# Labels whose values differ between the pods of a workload.
_OF_PODS = frozenset(
    {pod for _, pod in POD_LABELS}
    | {
        "instance",
        "node",
        "nodename",
        "host",
        "hostname",
        "pod_ip",
        "uid",
        "container_id",
        "model_server_pod",
        "server",
    }
)
# Labels that split the series of a pod: a matcher on one of them selects a part that no simulation has.
_PARTS = frozenset({"finished_reason", "reason", "source", "status", "status_code", "code", "lora_name", "priority"})
_NAMESPACES = frozenset({namespace for namespace, _ in POD_LABELS})

_ENGINES = re.compile(r"([a-z]{1,20}_)?(vllm|sglang)[:_]|tgi_|trtllm_|nv_trt_llm_|DCGM_FI_", re.ASCII)

RATES = frozenset({"rate", "irate", "increase"})
OVER_TIME = frozenset(
    f"{name}_over_time"
    for name in ("avg", "max", "min", "sum", "count", "last", "stddev", "stdvar", "present", "quantile")
)
TRENDS = frozenset({"delta", "idelta", "deriv", "predict_linear"})
"""Functions of two samples of a gauge, or more."""
MATH = frozenset({"abs", "ceil", "floor", "sqrt", "exp", "ln", "log2", "log10", "sgn", "round"})
CLAMPS = frozenset({"clamp", "clamp_min", "clamp_max"})
CLOCKS: Mapping[str, Callable[[datetime], float]] = {
    "time": lambda moment: moment.timestamp(),
    "minute": lambda moment: moment.minute,
    "hour": lambda moment: moment.hour,
    "day_of_week": lambda moment: moment.isoweekday() % 7,
    "day_of_month": lambda moment: moment.day,
    "day_of_year": lambda moment: moment.timetuple().tm_yday,
    "days_in_month": lambda moment: monthrange(moment.year, moment.month)[1],
    "month": lambda moment: moment.month,
    "year": lambda moment: moment.year,
}
"""Functions of the time of the evaluation, UTC."""

_UNCHANGED = frozenset({"sort", "sort_desc", "label_replace", "label_join"})
AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count", "group", "stddev", "stdvar", "quantile"})
SETS = frozenset({"and", "or", "unless"})
ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "^", "atan2"})
_FOLDED: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
    "^": math.pow,
}
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})


class NotRecognized(ValueError):
    """A query whose meaning is not known, with the reason as a clause."""


@dataclass(frozen=True)
class QueryPart:
    """A part of a query.

    kind: "number"; "signal"; "range" (`name` is a function over `window_s`); "clock", "aggregate", "call", "binary"
    with their `name`. Durations are seconds.
    """

    kind: str
    name: str = ""
    parts: tuple[QueryPart, ...] = ()
    number: float = math.nan  # a number, the `le` of a bucket, or the fraction of a quantile
    signal: QuerySignal | None = None
    window_s: float = 0.0
    step_s: float = 0.0  # of a subquery; 0: the window is over samples
    offset_s: float = 0.0
    by_pod: bool = False  # an aggregation keeps pods apart
    by_le: bool = False  # an aggregation keeps buckets apart
    is_bool: bool = False
    many: bool = False  # group_left or group_right

    def columns(self) -> frozenset[str]:
        """Return the signals that it is computed from."""
        own = {self.signal.column} if self.signal else set()
        return frozenset(own.union(*(part.columns() for part in self.parts)))


def at_time(node: QueryPart, unix_s: float) -> QueryPart:
    """Return a query in which functions of the clock have their values of a time."""
    if node.kind == "clock":
        moment = datetime.fromtimestamp(unix_s - node.offset_s, UTC)
        number = QueryPart("number", number=float(CLOCKS[node.name](moment)))
        return number if node.name == "time" else QueryPart("call", "vector", (number,))
    return replace(node, parts=tuple(at_time(part, unix_s) for part in node.parts)) if node.parts else node


def reads_clock(node: QueryPart) -> bool:
    """Return whether a query has a function of the clock."""
    return node.kind == "clock" or any(map(reads_clock, node.parts))


def recognize(query: str, namespace: str = "", recorded: Mapping[str, str] = MappingProxyType({})) -> QueryPart:
    """Return the meaning of a query. Raises NotRecognized.

    namespace: of the workload; "": any. recorded: expressions of recording rules by name.
    """
    try:
        return _Recognizer(namespace, recorded).whole(query)
    except RecursionError:
        raise NotRecognized("it is nested too deeply") from None


def lookback_s(node: QueryPart) -> float:
    """Return how far back its samples lie, in seconds."""
    return node.offset_s + node.window_s + max(map(lookback_s, node.parts), default=0.0)


def _parse(query: str) -> Any:
    """Parse a query. Raises NotRecognized for one that is no PromQL, or beyond the bounds."""
    try:
        return parse_query(query)
    except InvalidQuery as error:
        raise NotRecognized(str(error)) from None


class _Recognizer:
    def __init__(self, namespace: str, recorded: Mapping[str, str]) -> None:
        self._namespace, self._recorded = namespace, recorded
        self._following: list[str] = []
        self._parts = 0

    def whole(self, query: str) -> QueryPart:
        node = self._read(_parse(query))
        _check_counters(node)
        if (work := work_of(node)) > MAX_WORK:
            raise NotRecognized(
                f"it takes {work:,.0f} samples and steps for one value; at most {MAX_WORK:,} are computed"
            )
        if not node.columns():
            raise NotRecognized("it depends on no signal of the workload")
        return node

    def _read(self, part: Any) -> QueryPart:
        self._parts += 1
        if self._parts > MAX_WORK:  # recording rules that name others many times multiply
            raise NotRecognized(f"with its recording rules it has more than {MAX_WORK:,} parts")
        match part:
            case promql.NumberLiteral():
                return QueryPart("number", number=float(part.val))
            case promql.ParenExpr():
                return self._read(part.expr)
            case promql.UnaryExpr():
                return QueryPart("binary", "*", (self._read(part.expr), QueryPart("number", number=-1.0)))
            case promql.VectorSelector():
                return self._selector(part)
            case promql.AggregateExpr():
                return self._aggregate(part)
            case promql.BinaryExpr():
                return self._binary(part)
            case promql.Call():
                return self._call(part)
        raise NotRecognized(f"a part of it is not supported: {_words(part)}")

    def _selector(self, part: Any) -> QueryPart:
        name, bucket = part.name or "", math.nan
        if part.matchers.or_matchers:
            raise NotRecognized("a selector joins matchers by `or`")
        if part.at is not None:
            raise NotRecognized("a selector is fixed in time by @")
        for matcher in part.matchers.matchers:
            label, text, is_equal = matcher.name, matcher.value, matcher.op == promql.MatchOp.Equal
            if label == "__name__" and is_equal:
                name = text
            elif label == "__name__":
                raise NotRecognized("the name of its metric is a pattern")
            elif label == "le" and is_equal:
                bucket = _bound(text)
            elif label in _PARTS or label == "le":
                raise NotRecognized(f"it selects by the label {label}, a part that is not simulated")
            elif label in _OF_PODS and is_equal and label != "server":
                raise NotRecognized(f"it selects one pod, by {label}")
            elif label in _NAMESPACES and is_equal and self._namespace and text != self._namespace:
                raise NotRecognized(f"it selects {label} {text[:80]!r}, and the workload is in {self._namespace!r}")
        if name in self._recorded:
            return self._follow(name, _seconds(part.offset))
        signal = query_signals().get(name)
        if signal is None and f"{name}_bucket" in query_signals():
            raise NotRecognized(f"{name[:120]} alone is a native histogram, whose buckets are not known")
        if signal is None and _ENGINES.match(name):
            raise NotRecognized(f"{name[:120]} is not simulated")
        if signal is None:
            raise NotRecognized(f"{name[:120] or 'a selector without a name'} is no metric whose meaning is known")
        if not math.isnan(bucket) and signal.shape is not SeriesShape.HISTOGRAM:
            raise NotRecognized(f"it selects by the label le, which {name} does not have")
        return QueryPart("signal", name, number=bucket, signal=signal, offset_s=_seconds(part.offset))

    def _follow(self, name: str, offset_s: float) -> QueryPart:
        """Return the meaning of a recording rule."""
        if name in self._following or len(self._following) >= MAX_RULES:
            raise NotRecognized(f"the recording rule {name[:80]} refers to itself, or to more than {MAX_RULES} others")
        self._following.append(name)
        try:
            found = self._read(_parse(self._recorded[name]))
        except NotRecognized as error:
            raise NotRecognized(f"recording rule {name[:80]}: {error}") from None
        finally:
            self._following.pop()
        return _shift(found, offset_s) if offset_s else found

    def _aggregate(self, part: Any) -> QueryPart:
        name = str(part.op)
        number = math.nan
        if part.param is not None:
            number = self._constant(part.param)
        if name in ("topk", "bottomk") and number == 1:
            name = {"topk": "max", "bottomk": "min"}[name]
        if name not in AGGREGATIONS:
            raise NotRecognized(f"the aggregation {name} is not supported")
        labels = frozenset(part.modifier.labels) if part.modifier else frozenset()
        if part.modifier and part.modifier.type == promql.AggModifierType.Without:
            by_pod, by_le = not _OF_PODS & {"pod", "instance"} <= labels, "le" not in labels
        else:
            by_pod, by_le = bool(labels & _OF_PODS), "le" in labels
        if split := sorted(labels & _PARTS):
            raise NotRecognized(f"it sums up by the label {split[0]}, which is not simulated")
        return QueryPart("aggregate", name, (self._read(part.expr),), number, by_pod=by_pod, by_le=by_le)

    def _binary(self, part: Any) -> QueryPart:
        name = str(part.op)
        if name not in SETS | ARITHMETIC | COMPARISONS:
            raise NotRecognized(f"the operator {name} is not supported")
        modifier = part.modifier
        many = modifier is not None and modifier.card in (
            promql.VectorMatchCardinality.ManyToOne,
            promql.VectorMatchCardinality.OneToMany,
        )
        is_bool = modifier is not None and modifier.return_bool
        return QueryPart("binary", name, (self._read(part.lhs), self._read(part.rhs)), is_bool=is_bool, many=many)

    def _call(self, part: Any) -> QueryPart:
        name, arguments = part.func.name, list(part.args)
        if name in RATES:
            return self._range(name, arguments[0])
        if name in OVER_TIME:
            quantile = self._constant(arguments[0]) if name == "quantile_over_time" else math.nan
            return replace(self._range(name, arguments[-1]), number=quantile)
        if name in TRENDS:
            ahead_s = self._constant(arguments[1]) if name == "predict_linear" else math.nan
            return replace(self._range(name, arguments[0]), number=ahead_s)
        if name == "histogram_quantile":
            return QueryPart("call", name, (self._read(arguments[1]),), self._constant(arguments[0]))
        if name in _UNCHANGED:
            return self._read(arguments[0])
        if name in CLOCKS and not arguments:
            return QueryPart("clock", name)
        if name in MATH | CLAMPS | {"scalar", "vector", "absent"}:
            return QueryPart("call", name, tuple(self._read(argument) for argument in arguments))
        raise NotRecognized(f"the function {name} is not supported")

    def _range(self, name: str, argument: Any) -> QueryPart:
        while isinstance(argument, promql.ParenExpr):
            argument = argument.expr
        if isinstance(argument, promql.MatrixSelector):
            inner, step_s, offset_s = self._selector(argument.vector_selector), 0.0, 0.0
            if inner.kind != "signal":  # a recording rule: its past is that of its expression
                step_s = SUBQUERY_STEP_S
        elif isinstance(argument, promql.SubqueryExpr):
            if argument.at is not None:
                raise NotRecognized("a subquery is fixed in time by @")
            inner, offset_s = self._read(argument.expr), _seconds(argument.offset)
            step_s = _seconds(argument.step) or SUBQUERY_STEP_S
        else:
            raise NotRecognized(f"{name} is not over a range of a metric")
        if reads_clock(inner):
            raise NotRecognized("it reads the clock over a range")
        window_s = argument.range.total_seconds()
        if not 0 < window_s <= MAX_WINDOW_S:
            raise NotRecognized(f"a window of {window_s:,.0f} s; a simulation remembers {MAX_WINDOW_S:,.0f} s")
        if step_s and window_s / step_s > MAX_STEPS:
            step_s = window_s / MAX_STEPS
        is_counter = inner.signal is not None and inner.signal.shape not in (SeriesShape.POD_GAUGE, SeriesShape.GAUGE)
        if (name in RATES) != is_counter and not (step_s and name in OVER_TIME | TRENDS):
            raise NotRecognized(
                f"{name} is over {inner.name or 'an expression'}, which is "
                f"{inner.signal.shape if inner.signal else 'no counter'}"
            )
        return QueryPart("range", name, (inner,), window_s=window_s, step_s=step_s, offset_s=offset_s)

    def _constant(self, part: Any) -> float:
        number = _fold(self._read(part))
        if number is None:
            raise NotRecognized("a parameter is computed from what is not a number")
        return number


def _fold(node: QueryPart) -> float | None:
    """Return the value of arithmetic with numbers, such as 1 - 0.05; None: it is another query."""
    if node.kind == "number":
        return node.number
    if node.kind != "binary" or node.name not in _FOLDED:
        return None
    left, right = map(_fold, node.parts)
    if left is None or right is None:
        return None
    try:
        return float(_FOLDED[node.name](left, right))
    except (ArithmeticError, ValueError):
        return math.nan


def _check_counters(node: QueryPart, inside: str = "") -> None:
    """Refuse counters without a rate: their start is unknown. The buckets of a quantile may be without."""
    if node.kind == "signal" and node.signal is not None:
        shape = node.signal.shape
        if shape in (SeriesShape.POD_COUNTER, SeriesShape.COUNTER) or (
            shape is SeriesShape.HISTOGRAM and inside != "histogram_quantile"
        ):
            raise NotRecognized(f"{node.name} is a counter, and it has no rate")
        return
    if node.kind == "range" and node.name in RATES:
        return
    for part in node.parts:
        _check_counters(part, node.name if node.name == "histogram_quantile" else inside)


def work_of(node: QueryPart) -> float:
    """Return how many samples and steps one value takes, about."""
    inner = 1 + sum(map(work_of, node.parts))
    if node.kind != "range" or node.name in RATES:
        return inner
    return inner * max(node.window_s / (node.step_s or SCRAPE_S), 1)


def _shift(node: QueryPart, offset_s: float) -> QueryPart:
    if node.kind in ("signal", "clock"):
        return replace(node, offset_s=node.offset_s + offset_s)
    return replace(node, parts=tuple(_shift(part, offset_s) for part in node.parts))


def _seconds(duration: timedelta | None) -> float:
    seconds = duration.total_seconds() if duration is not None else 0.0
    if not 0 <= seconds <= MAX_WINDOW_S:
        raise NotRecognized(f"an offset or step of {seconds:,.0f} s")
    return seconds


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise NotRecognized(f"le={text[:40]!r} is no number") from None


def _words(part: Any) -> str:
    return {"StringLiteral": "a text", "SubqueryExpr": "a subquery", "MatrixSelector": "a range"}.get(
        type(part).__name__, type(part).__name__
    )
