"""The cost of a query of others, so that none is run that a server would feel.

KEDA runs a query as it stands once it is applied; here it may come from a pull request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from autoscaler.config.preflight.waking import seconds
from autoscaler.config.promql import MAX_CHARS, TOKENS, InvalidQuery, parse_query

MAX_POINTS = 10_000  # of one series: a day of scrapes each 15 s is 5,760
MAX_REACH_S = 8 * 86_400.0
_SCRAPE_S = 15.0
_STEP_S = 60.0  # of a subquery without one
_DAY_S = 86_400.0  # the longest window of a query that is not understood
_PREFIX = re.compile(r"[A-Za-z_:]{4,}")
_NAME = re.compile(r"[A-Za-z_:][\w:.]*", re.ASCII)
_OPERATORS = frozenset(
    {"and", "bool", "by", "default", "group_left", "group_right", "if", "ifnot", "ignoring", "keep_metric_names"}
    | {"limit", "offset", "on", "or", "unless", "without"}
)
"""Words that stand before a selector, and are no name of it."""


def reads_too_much(text: str) -> str:
    """Return why a query is not run; "": it reads little."""
    try:
        root = parse_query(text)
    except InvalidQuery:
        return _judge_by_signs(text)
    points, reach_s = _points(root)
    if points > MAX_POINTS or reach_s > MAX_REACH_S:
        return (
            f"it reads up to {points:,.0f} points of each series in {reach_s / 86_400:.1f} days; allowed: 10,000 in 8"
        )
    for name, matchers in _selected(root):
        if not name and not any(
            each.name == "__name__" and _names_few(_SIGNS.get(str(each.op), ""), str(each.value)) for each in matchers
        ):
            return "it reads series of every name; allowed: a name, or a pattern that begins with one"
    return ""


_SIGNS = {"MatchOp.Equal": "=", "MatchOp.Re": "=~"}


def _judge_by_signs(text: str) -> str:
    """Return why a query is not run that only others understand, such as VictoriaMetrics; "": it reads little."""
    if len(text) > MAX_CHARS:
        return "it is too long to be known what it reads"
    tokens = TOKENS.findall(text)
    steps = points = 1.0
    for index, token in enumerate(tokens):
        inside = tokens[index + 1 :]
        if token == "[":
            window, is_subquery, step = "".join(_until("]", inside)).partition(":")
            range_s = seconds(window)
            if not range_s <= _DAY_S:
                return f"it reads a window of {window[:20]}, and is not understood"
            step_s = seconds(step or None, _STEP_S)
            if is_subquery:
                steps *= max(1.0, range_s / (step_s if step_s > 0.001 else 0.001))
            else:
                points = max(points, range_s / _SCRAPE_S)
        elif token == "{" and not (index and _is_name(tokens[index - 1])) and not _selects_few(_until("}", inside)):
            return "it may read series of every name, and is not understood"
    if not steps * points <= MAX_POINTS:
        return f"it may read {steps * points:,.0f} points of each series, and is not understood; allowed: 10,000"
    return ""


def _until(end: str, tokens: Sequence[str]) -> Sequence[str]:
    return tokens[: tokens.index(end)] if end in tokens else tokens


def _is_name(token: str) -> bool:
    return _NAME.fullmatch(token) is not None and token.lower() not in _OPERATORS


def _selects_few(matchers: Sequence[str]) -> bool:
    """Return whether the tokens of a selector without a name in front name a metric, in each alternative."""
    if "or" in matchers:
        middle = matchers.index("or")
        return _selects_few(matchers[:middle]) and _selects_few(matchers[middle + 1 :])
    for index, token in enumerate(matchers):
        after = "".join(matchers[index + 1 : index + 3])
        if token.strip("\"'`") == "__name__" and after.startswith("="):
            sign = "=~" if after.startswith("=~") else "="
            value = "".join(matchers[index + 1 + len(sign) : index + 2 + len(sign)])
            return _names_few(sign, value[1:-1])
        if (
            token[0] in "\"'`"
            and len(token) > 2
            and after[:1] in ("", ",")
            and (not index or matchers[index - 1] == ",")
        ):
            return True
    return False


def _names_few(sign: str, value: str) -> bool:
    """Return whether a matcher of the name selects a metric, or those that begin alike. sign: "=", "=~"; else ""."""
    if sign != "=~":
        return sign == "=" and bool(value)
    pattern = value.removeprefix("^").removesuffix("$")
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
