"""Recording rules among the objects, put in place of the names that they record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.preflight import promql
from autoscaler.config.preflight.objects import Manifests
from autoscaler.config.preflight.promql import MetricSelector, Unparsed

MAX_EXPANDED = 4000  # characters
_MAX_RULES = 512
_SELECTOR = re.compile(r"([A-Za-z_:][\w:]*+)(?:\s*+\{([^{}]*+)\})?", re.ASCII)


def recorded(objects: Manifests) -> dict[str, str]:
    """Return the expressions of recording rules by the name that they record."""
    rules: dict[str, str] = {}
    for thing in objects.of_kind("PrometheusRule"):
        for group in thing.list("spec", "groups")[:64]:
            listed = at(group, "rules")
            for rule in listed[:_MAX_RULES] if isinstance(listed, list) else []:
                if text_at(rule, "record") and text_at(rule, "expr"):
                    rules.setdefault(text_at(rule, "record"), text_at(rule, "expr"))
    return rules


def expanded(text: str, rules: Mapping[str, str]) -> str:
    """Return a query with expressions in place of recorded names; matchers go to what they select.

    A matcher on a label that the rule has set, or removed, selects what is recorded and not what it is made of, so
    the meaning is that of the query only for labels that the rule keeps.
    """
    try:
        selectors = [each for each in promql.parse(text).selectors if each.name in rules and not each.range_s]
        selectors = [each for each in selectors if not each.is_engine]  # a rule may not stand for what engines export
        for selector in dict.fromkeys(selectors):
            inner = _narrowed(rules[selector.name], selector)
            if text.count(selector.name) * len(inner) > MAX_EXPANDED:
                return ""
            text = _put(text, selector.name, _always(f"({inner})"))
        promql.parse(text)
    except Unparsed:
        return ""
    return text if selectors and len(text) <= MAX_EXPANDED else ""


def _narrowed(text: str, by: MetricSelector) -> str:
    """Return an expression with more matchers at each of its selectors. Raises Unparsed."""
    matchers = ",".join(map(str, by.matchers))
    for name in sorted(promql.parse(text).names) if matchers else ():
        text = _put(text, name, lambda match: f"{match[1]}{{{','.join(filter(None, (match[2], matchers)))}}}")
    return text


def _always(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _: text


def _put(text: str, name: str, made: Callable[[re.Match[str]], str]) -> str:
    """Replace each selector of a name."""
    return _SELECTOR.sub(lambda match: made(match) if match[1] == name else match[0], text)
