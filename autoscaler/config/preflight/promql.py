"""What a PromQL expression selects, and what its result stands for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from autoscaler.config.preflight.metric_names import COUNTERS, ENGINE, GAUGES, LOAD, SURVIVES, is_ratio
from autoscaler.config.promql import InvalidQuery, parse_query

TOLERANCE = 0.1  # of the HPA
RATES = frozenset({"rate", "irate", "increase"})
_NOT_THE_VALUE = RATES | {"delta", "idelta", "deriv", "changes", "resets", "count", "group", "timestamp", "absent"}
"""Functions and aggregations whose result is no sum or mean of the values."""
_TO_ONE = frozenset({"vector", "scalar", "time", "absent", "absent_over_time", "pi"})
_MEANS = frozenset({"avg", "max", "min", "quantile", "stddev", "stdvar"})
_SUMS = frozenset({"sum", "count", "group"})

# Labels that do not tell workloads apart.
_COMMON = frozenset(
    {
        "namespace",
        "exported_namespace",
        "cluster",
        "k8s_cluster",
        "engine",
        "le",
        "finished_reason",
        "reason",
        "server",
    }
    | {
        "__name__",
        "container",
        "endpoint",
        "phase",
        "condition",
        "region",
        "environment",
        "env",
        "prometheus",
        "source",
    }
)


class Matcher(NamedTuple):
    """One label matcher."""

    name: str
    op: str  # "=", "!=", "=~", "!~"
    value: str

    def __str__(self) -> str:
        value = self.value.replace("\\", "\\\\").replace('"', '\\"')
        return f'{self.name}{self.op}"{value}"'

    @property
    def selects(self) -> bool:
        """Whether it narrows to some values, rather than excluding some or taking all."""
        return (self.op == "=" and self.value != "") or (
            self.op == "=~" and self.value not in ("", ".*", ".+", ".*.*") and not self.value.startswith("$")
        )


class MetricSelector(NamedTuple):
    """One selector of an expression."""

    name: str  # of the metric; "": selected by a pattern
    matchers: tuple[Matcher, ...]
    range_s: float = 0.0  # of the window; 0: an instant
    function: str = ""  # around the window
    offset_s: float = 0.0  # how long ago
    differs: bool = False  # whether differences are taken of its values, or its series are counted

    def __str__(self) -> str:
        inside = ",".join(map(str, self.matchers))
        return f"{self.name}{{{inside}}}" if inside or not self.name else self.name

    @property
    def is_engine(self) -> bool:
        """Whether only pods of an engine (or the node of one) write it."""
        return bool(ENGINE.fullmatch(self.about)) and not SURVIVES.fullmatch(self.about) and not self._is_recorded

    @property
    def is_load(self) -> bool:
        """Whether it is a metric of an engine's requests."""
        return bool(LOAD.match(self.about)) and not SURVIVES.fullmatch(self.about) and not self._is_recorded

    @property
    def is_counter(self) -> bool:
        """Whether it only ever rises, until its pod ends."""
        return COUNTERS.fullmatch(self.name) is not None and not self._is_recorded

    @property
    def is_gauge(self) -> bool:
        """Whether it is a number of an engine that falls, too: requests that run or wait, or use of the cache."""
        return self.is_load and self.name.endswith(GAUGES)

    @property
    def about(self) -> str:
        """Its name, or the pattern of its names."""
        return self.name or next((m.value for m in self.matchers if m.name == "__name__" and m.op == "=~"), "")

    @property
    def _is_recorded(self) -> bool:
        """Whether a recording rule makes it, as vllm:num_requests_waiting:sum."""
        return self.name.count(":") > 1

    def value(self, *labels: str) -> str:
        """Return the value that one of some labels must have; "": none."""
        return next((m.value for m in self.matchers if m.name in labels and m.op == "=" and m.value), "")

    @property
    def narrowing(self) -> tuple[Matcher, ...]:
        """Matchers that may tell one workload or model from others."""
        return tuple(m for m in self.matchers if m.name not in _COMMON and m.selects)


class ResultShape(NamedTuple):
    """What the result of an expression is."""

    series: str  # "one", "many", "unknown"
    grows: bool | None  # whether the value grows with the pods; None: unknown


@dataclass(frozen=True)
class ParsedQuery:
    """A parsed expression."""

    text: str
    selectors: tuple[MetricSelector, ...]
    shape: ResultShape
    dies: bool  # whether the result is empty, or a constant 0, while no engine runs
    compares: bool  # whether a comparison may leave out what there is
    counts: bool = False  # whether it is the number of some series
    by_absence: bool = False  # whether the absence of an engine's series is a value
    lacks_le: bool = False  # whether a quantile is computed without the bounds of its buckets

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.selectors if each.name)


class Unparsed(ValueError):
    """The expression is not understood. The message has the reason."""


@lru_cache(maxsize=4096)
def parse(text: str) -> ParsedQuery:
    """Parse an expression. Raises Unparsed for what the parser does not know, as MetricsQL."""
    try:
        root = parse_query(text)
    except InvalidQuery as error:
        raise Unparsed(str(error)) from None
    dies = _at_zero(root) != "alive"
    return ParsedQuery(
        text,
        tuple(_selectors(root)),
        _shape(root),
        dies,
        _compares(root),
        _counts(root),
        _by_absence(root),
        _lacks_le(root),
    )


def _selectors(node: Any, function: str = "", *, differs: bool = False) -> Iterator[MetricSelector]:
    match type(node).__name__:
        case "VectorSelector":
            yield _selector(node, 0.0, function, differs=differs)
        case "MatrixSelector":
            yield _selector(node.vector_selector, node.range.total_seconds(), function, differs=differs)
        case "SubqueryExpr" | "ParenExpr" | "UnaryExpr":
            yield from _selectors(node.expr, function, differs=differs)
        case "AggregateExpr":
            yield from _selectors(node.expr, differs=differs or str(node.op) in _NOT_THE_VALUE)
            if node.param is not None:
                yield from _selectors(node.param)
        case "BinaryExpr":
            # Counters minus counters of before, as x - x offset 5m, are a difference, too.
            own = differs or str(node.op) == "-"
            yield from _selectors(node.lhs, differs=own)
            yield from _selectors(node.rhs, differs=own)
        case "Call":
            name = node.func.name
            for each in node.args:
                yield from _selectors(each, name, differs=differs or name in _NOT_THE_VALUE)


def _selector(node: Any, range_s: float, function: str, *, differs: bool) -> MetricSelector:
    found = [Matcher(each.name, _OPS[str(each.op)], each.value) for each in node.matchers.matchers]
    name = node.name or next((m.value for m in found if m.name == "__name__" and m.op == "="), "")
    kept = tuple(m for m in found if m.name != "__name__" or m.op != "=")
    ago = getattr(getattr(node, "offset", None), "total_seconds", lambda: 0.0)()
    return MetricSelector(name, kept, range_s, function, ago, differs)


_OPS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}


def _shape(node: Any) -> ResultShape:
    kind = type(node).__name__
    if kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr"):
        return _shape(node.expr)
    if kind == "NumberLiteral":
        return ResultShape("one", False)
    if kind == "AggregateExpr":
        return _aggregated(node)
    if kind == "BinaryExpr":
        return _combined(node)
    if kind == "Call":
        return _called(node)
    if kind in ("VectorSelector", "MatrixSelector"):
        selector = next(_selectors(node))
        pinned = selector.value("pod", "exported_pod", "pod_name", "instance")
        many = "one" if pinned else "many" if selector.is_engine else "unknown"
        return ResultShape(many, False if is_ratio(selector.name) else None)
    return ResultShape("unknown", None)


def _aggregated(node: Any) -> ResultShape:
    op, inner = str(node.op), _shape(node.expr)
    modifier = node.modifier
    labels = list(modifier.labels) if modifier is not None else []
    by = modifier is None or str(modifier.type).endswith("By")
    pinned = {m.name for s in _selectors(node.expr) for m in s.matchers if m.op == "=" and m.value}
    if by:
        series = "one" if all(label in pinned for label in labels) else "many"
    else:
        series = "many" if inner.series == "many" else inner.series
    if op in ("topk", "bottomk", "limitk"):
        first = getattr(node.param, "val", None)
        series = "one" if first == 1 and modifier is None else "many"
        return ResultShape(series, False)
    if op == "count_values":
        return ResultShape("many", False)
    if op in ("avg", "max", "min") and inner.series == "one":
        return inner  # of one series it is that series
    if op in _SUMS:
        # A sum over ratios, divided by the target of one pod, counts pods as well.
        return ResultShape(series, True)
    return ResultShape(series, False if op in _MEANS else None)


def _combined(node: Any) -> ResultShape:
    left, right, op = _shape(node.lhs), _shape(node.rhs), str(node.op)
    numbers = [type(_bare(side)).__name__ == "NumberLiteral" for side in (node.lhs, node.rhs)]
    if op == "or":
        series = "many" if "many" in (left.series, right.series) else "unknown"
        if left.series == right.series == "one":
            series = "one"
        return ResultShape(series, left.grows if not _is_constant(node.lhs) else right.grows)
    if op in ("and", "unless"):
        return left
    if any(numbers):
        other = right if numbers[0] else left
        return other
    series = "one" if left.series == right.series == "one" else "many" if left.series == right.series else "unknown"
    if op == "/":
        grows = left.grows if _is_constant(node.rhs) else (False if left.grows and right.grows else None)
        return ResultShape(series, False if left.grows is False else grows)
    if op in ("+", "-"):
        return ResultShape(
            series, True if left.grows and right.grows else left.grows if left.grows == right.grows else None
        )
    return ResultShape(series, None)


def _called(node: Any) -> ResultShape:
    name = node.func.name
    if name in _TO_ONE:
        return ResultShape("one", False if name != "vector" else None)
    inside = [each for each in node.args if type(each).__name__ not in ("NumberLiteral", "StringLiteral")]
    if not inside:
        return ResultShape("unknown", None)
    inner = _shape(inside[0])
    if name.startswith("histogram_"):
        aggregate = _bare(inside[0])
        modifier = getattr(aggregate, "modifier", None) if type(aggregate).__name__ == "AggregateExpr" else None
        by_le = modifier is not None and set(modifier.labels) <= {"le"}
        return ResultShape("one" if by_le or inner.series == "one" else "many", False)
    return inner


def _bare(node: Any) -> Any:
    while type(node).__name__ in ("ParenExpr", "UnaryExpr"):
        node = node.expr
    return node


def _is_constant(node: Any) -> bool:
    return not list(_selectors(node))


def _value(node: Any) -> float | None:
    """Return the number of a constant: 0 of vector(0); None: it is none."""
    node = _bare(node)
    if type(node).__name__ == "NumberLiteral":
        return float(node.val)
    if type(node).__name__ == "Call" and node.func.name == "vector" and node.args:
        return _value(node.args[0])
    return None


def _at_zero(node: Any) -> str:
    """Return what an expression is while no pod of an engine is there: "empty", "zero" or "alive"."""
    node = _bare(node)
    kind = type(node).__name__
    if kind in ("VectorSelector", "MatrixSelector"):
        return "empty" if next(_selectors(node)).is_engine else "alive"
    if kind in ("SubqueryExpr", "AggregateExpr"):
        return _at_zero(node.expr)
    if (constant := _value(node)) is not None:
        return "alive" if constant else "zero"
    if kind == "Call":
        inside = [each for each in node.args if type(each).__name__ not in ("NumberLiteral", "StringLiteral")]
        if node.func.name in ("absent", "absent_over_time", "time") or not inside:
            return "alive"
        state = _at_zero(inside[0])
        if state == "zero" and node.func.name in ("clamp_min", "clamp") and (_value(node.args[1]) or 0.0) > 0:
            return "alive"
        return state
    if kind != "BinaryExpr":
        return "alive"
    op, left, right = str(node.op), _at_zero(node.lhs), _at_zero(node.rhs)
    states = (left, right)
    if op == "or":
        return "alive" if "alive" in states else "zero" if "zero" in states else "empty"
    if op == "unless":
        return left
    if "empty" in states:
        return "empty"
    if op in ("+", "-"):
        return "alive" if "alive" in states else "zero"
    if op in ("*", "/"):
        return "zero" if "zero" in states[: 1 if op == "/" else 2] else "alive"
    return left


def _children(node: Any) -> list[Any]:
    if type(node).__name__ == "BinaryExpr":
        return [node.lhs, node.rhs]
    if type(node).__name__ == "Call":
        return list(node.args)
    inner = getattr(node, "expr", None)
    return [] if inner is None else [inner]


def _counts(node: Any) -> bool:
    node = _bare(node)
    return type(node).__name__ == "AggregateExpr" and str(node.op) in ("count", "group")


def _by_absence(node: Any) -> bool:
    if type(node).__name__ == "Call" and node.func.name in ("absent", "absent_over_time"):
        return any(each.is_engine for each in _selectors(node))
    return any(map(_by_absence, _children(node)))


def _lacks_le(node: Any) -> bool:
    """Return whether a quantile of buckets is taken of what an aggregation has left without the label `le`."""
    if type(node).__name__ == "Call" and node.func.name == "histogram_quantile" and len(node.args) > 1:
        inside = _bare(node.args[1])
        if type(inside).__name__ == "AggregateExpr" and any(s.name.endswith("_bucket") for s in _selectors(inside)):
            modifier = inside.modifier
            labels = set(modifier.labels) if modifier is not None else set()
            keeps = modifier is not None and ("le" in labels) == str(modifier.type).endswith("By")
            if not keeps:
                return True
    return any(map(_lacks_le, _children(node)))


def _compares(node: Any) -> bool:
    comparing = (">", "<", ">=", "<=", "==", "!=", "and", "unless")
    return (type(node).__name__ == "BinaryExpr" and str(node.op) in comparing) or any(map(_compares, _children(node)))
