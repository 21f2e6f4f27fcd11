"""What a query of others would read, so that none is run that a server would feel.

KEDA runs a query as it stands once it is applied; here it may come from a pull request.
"""

from __future__ import annotations

import re
from typing import Any

from autoscaler.config.preflight.waking import seconds
from autoscaler.config.promql import MAX_CHARS, InvalidQuery, parse_query

MAX_POINTS = 10_000  # of one series: a day of scrapes each 15 s is 5,760
MAX_REACH_S = 8 * 86_400.0
_SCRAPE_S = 15.0
_STEP_S = 60.0  # of a subquery without one
_PREFIX = re.compile(r"[A-Za-z_:]{4,}")
_WINDOW = re.compile(r"\[\s*([0-9a-z]{1,20})")


def reads_too_much(text: str) -> str:
    """Return why a query is not run; "": it reads little."""
    try:
        root = parse_query(text)
    except InvalidQuery:
        # Others may understand it, such as VictoriaMetrics.
        if len(text) > MAX_CHARS:
            return "it is too long to be known what it reads"
        long = next((each for each in _WINDOW.findall(text) if not seconds(each) <= 86_400), "")
        return f"it reads a window of {long}, and is not understood" if long else ""
    points, reach_s = _points(root)
    if points > MAX_POINTS or reach_s > MAX_REACH_S:
        return (
            f"it reads up to {points:,.0f} points of each series in {reach_s / 86_400:.1f} days; allowed: 10,000 in 8"
        )
    for name, matchers in _selected(root):
        if not name and not any(each.name == "__name__" and _names_few(each) for each in matchers):
            return "it reads series of every name; allowed: a name, or a pattern that begins with one"
    return ""


def _names_few(matcher: Any) -> bool:
    if str(matcher.op) != "MatchOp.Re":
        return str(matcher.op) == "MatchOp.Equal" and bool(matcher.value)
    pattern = str(matcher.value).removeprefix("^").removesuffix("$")
    if pattern.startswith("(") and pattern.endswith(")") and pattern.count("(") == 1:
        pattern = pattern[1:-1].removeprefix("?:")
    outside = re.sub(r"\([^()]*\)", "", pattern)
    parts = pattern.split("|") if "(" not in pattern else [pattern]
    return ("(" not in pattern or "|" not in outside) and all(_PREFIX.match(part) for part in parts)


def _children(node: Any) -> list[Any]:
    match type(node).__name__:
        case "BinaryExpr":
            return [node.lhs, node.rhs]
        case "Call":
            return list(node.args)
        case "AggregateExpr":
            return [node.expr] if node.param is None else [node.expr, node.param]
    inner = getattr(node, "expr", None)
    return [] if inner is None else [inner]


def _points(node: Any) -> tuple[float, float]:
    """Return the points that are read of one series, and how far back."""
    if type(node).__name__ == "MatrixSelector":
        range_s = node.range.total_seconds()
        return range_s / _SCRAPE_S, range_s
    inner = [_points(each) for each in _children(node)]
    points, reach_s = max((each[0] for each in inner), default=1.0), max((each[1] for each in inner), default=0.0)
    if type(node).__name__ == "SubqueryExpr":
        range_s = node.range.total_seconds()
        step_s = node.step.total_seconds() if node.step is not None else _STEP_S
        return points * max(1.0, range_s / max(step_s, 0.001)), reach_s + range_s
    return points, reach_s


def _selected(node: Any) -> list[tuple[str, list[Any]]]:
    match type(node).__name__:
        case "VectorSelector":
            return [(node.name or "", list(node.matchers.matchers))]
        case "MatrixSelector":
            return _selected(node.vector_selector)
    return [found for each in _children(node) for found in _selected(each)]
