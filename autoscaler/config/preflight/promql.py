"""What a PromQL expression selects, and what its result stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from autoscaler.config.promql import InvalidQuery, parse_query

_LOAD = re.compile(
    r"(?:ray_|kserve_)?(?:vllm|sglang|lmdeploy)[:_]|tgi_|trtllm_|nv_trt_llm_|nv_inference_|dynamo_component_"
    r"|num_requests_(?:running|waiting)(?:$|_)|gpu_cache_usage_perc$"
)
"""Of an engine's requests; names without a prefix are those of NIM."""
_ENGINE = re.compile(rf"(?:{_LOAD.pattern}).*|DCGM_FI_.+|container_.+")
"""Metrics that are there only while a pod of the workload is there."""
_SURVIVES = re.compile(r"(?:vllm[:_](?:num_incoming_requests|healthy_pods)|ray_serve_).*")
"""Of a router: they count without any engine."""
TOLERANCE = 0.1  # of the HPA
_NAME_CHARS = 200  # of a metric's name that are looked at
_RATIO_WORDS = frozenset({"perc", "percent", "ratio", "usage", "utilization", "utilisation", "util", "saturation"})
_GPU_MEMORY = re.compile(
    r"fb_used|fb_free|fb_total|framebuffer|gpu_?mem|vram|accelerator_memory|nvidia_[a-z_]{0,40}memory",
    re.IGNORECASE,
)
_GPU_USE = re.compile(
    r"gpu_?util|gpu_?duty|duty_cycle|gr_engine|sm_active|sm_util|tensor_active|tensor_util|dram_active|gpu_usage",
    re.IGNORECASE,
)
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

    def __str__(self) -> str:
        inside = ",".join(map(str, self.matchers))
        return f"{self.name}{{{inside}}}" if inside or not self.name else self.name

    @property
    def is_engine(self) -> bool:
        """Whether only pods of an engine (or the node of one) write it."""
        return bool(_ENGINE.fullmatch(self.about)) and not _SURVIVES.fullmatch(self.about) and not self._is_recorded

    @property
    def is_load(self) -> bool:
        """Whether it is a metric of an engine's requests."""
        return bool(_LOAD.match(self.about)) and not _SURVIVES.fullmatch(self.about) and not self._is_recorded

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

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.selectors if each.name)


class Unparsed(ValueError):
    """The expression is not understood. The message has the reason."""


def is_gpu_memory(name: str) -> bool:
    return _GPU_MEMORY.search(name[:_NAME_CHARS]) is not None and "cache_usage" not in name


def is_gpu_use(name: str) -> bool:
    return _GPU_USE.search(name[:_NAME_CHARS]) is not None and "cache_usage" not in name and not is_gpu_memory(name)


def is_running(name: str) -> bool:
    return name.endswith(("num_requests_running", "num_running_reqs", "batch_current_size"))


def is_ratio(name: str) -> bool:
    return not _RATIO_WORDS.isdisjoint(re.split(r"[_:]", name.lower()))


@lru_cache(maxsize=4096)
def parse(text: str) -> ParsedQuery:
    """Parse an expression. Raises Unparsed for what the parser does not know, as MetricsQL."""
    try:
        root = parse_query(text)
    except InvalidQuery as error:
        raise Unparsed(str(error)) from None
    return ParsedQuery(text, tuple(_selectors(root)), _shape(root), _at_zero(root) != "alive", _compares(root))


def _selectors(node: Any, function: str = "", range_s: float = 0.0) -> Iterator[MetricSelector]:
    match type(node).__name__:
        case "VectorSelector":
            yield _selector(node, 0.0, function)
        case "MatrixSelector":
            yield _selector(node.vector_selector, node.range.total_seconds(), function)
        case "SubqueryExpr" | "ParenExpr" | "UnaryExpr":
            yield from _selectors(node.expr, function)
        case "AggregateExpr":
            yield from _selectors(node.expr)
            if node.param is not None:
                yield from _selectors(node.param)
        case "BinaryExpr":
            yield from _selectors(node.lhs)
            yield from _selectors(node.rhs)
        case "Call":
            for each in node.args:
                yield from _selectors(each, node.func.name)


def _selector(node: Any, range_s: float, function: str) -> MetricSelector:
    found = [Matcher(each.name, _OPS[str(each.op)], each.value) for each in node.matchers.matchers]
    name = node.name or next((m.value for m in found if m.name == "__name__" and m.op == "="), "")
    kept = tuple(m for m in found if m.name != "__name__" or m.op != "=")
    return MetricSelector(name, kept, range_s, function)


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


def _compares(node: Any) -> bool:
    if type(node).__name__ == "BinaryExpr":
        comparing = str(node.op) in (">", "<", ">=", "<=", "==", "!=", "and", "unless")
        return comparing or _compares(node.lhs) or _compares(node.rhs)
    if type(node).__name__ == "Call":
        return any(map(_compares, node.args))
    inner = getattr(node, "expr", None)
    return inner is not None and _compares(inner)
