"""Rules of prometheus-adapter, which make the metrics of an HPA of series."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.preflight import promql
from autoscaler.config.preflight.facts import PENDING, QueryFacts
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.patterns import compiled, fits
from autoscaler.config.preflight.promql import Unparsed
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.series import nearest_name
from autoscaler.config.yaml import Loc, read_documents

_NAME = re.compile(r"[a-zA-Z_:][\w:]{4,100}")
_TEMPLATE = re.compile(r"<<[^<>]{1,60}>>")
_MAX_RULES = 256
_MAX_NAMES = 64  # of series in a rule
_MAX_NAMED = 300  # characters


@dataclass(frozen=True)
class AdapterRule:
    """One rule."""

    thing: Manifest
    loc: Loc
    series: str  # selector of the series
    query: str  # a template
    matches: str  # pattern of names of series
    named: str  # name of the metric, with $1 for a group of the pattern; "": that of the series

    def makes(self, name: str) -> bool:
        """Return whether the rule may make a metric of a name."""
        return name in self.made

    @cached_property
    def names(self) -> list[str]:
        """Names of series in the rule."""
        words = _NAME.findall(f"{self.series} {_TEMPLATE.sub(' ', self.query)}"[:10_000])
        return list(dict.fromkeys(words))[:_MAX_NAMES]

    @cached_property
    def made(self) -> frozenset[str]:
        """Names of metrics that the rule may make."""
        return frozenset(map(self._renamed, self.names) if "$" in self.named or not self.named else (self.named,))

    def _renamed(self, series: str) -> str:
        pattern = compiled(self.matches or ".*")
        matched = pattern.search(series) if pattern is not None else None
        if matched is None:
            return ""
        groups = (matched[0], *(each or "" for each in matched.groups()))
        named = self.named or ("$1" if len(groups) == 2 else "$0")
        return re.sub(r"\$\{?(\d)\}?", lambda each: groups[int(each[1])] if int(each[1]) < len(groups) else "", named)


def adapter_rules(fleet: Scene) -> Iterator[AdapterRule]:
    """Yield the rules of all ConfigMaps."""
    for thing in fleet.objects.of_kind("ConfigMap"):
        for key, text in thing.texts("data").items():
            if "seriesQuery" not in text or len(text) > 1 << 18:
                continue
            for document in read_documents("", text)[0]:
                listed = [at(document.value, part) for part in ("rules", "externalRules")]
                rules = [each for rules in listed if isinstance(rules, list) for each in rules]
                for rule in rules[:_MAX_RULES]:
                    yield AdapterRule(
                        thing,
                        ("data", key),
                        text_at(rule, "seriesQuery"),
                        text_at(rule, "metricsQuery"),
                        text_at(rule, "name", "matches"),
                        text_at(rule, "name", "as")[:_MAX_NAMED],
                    )


def check_rule(rule: AdapterRule, metric: str, facts: QueryFacts) -> Iterator[Result]:
    """Check that the server has the series of a rule."""
    try:
        selectors = promql.parse(rule.series).selectors
    except Unparsed as error:
        yield not_checked(rule.thing, rule.loc, "series of a rule", str(error))
        return
    answer = facts.names()
    if answer is PENDING:
        return
    if answer.error:
        yield not_checked(rule.thing, rule.loc, f"series of the metric {metric}", answer.error)
        return
    for selector in selectors:
        if not selector.about or any(fits(selector.about, each) is not False for each in answer.names):
            continue
        plain = selector.about.strip("^$")
        nearest = nearest_name(plain, answer.names)
        meant = f"; the nearest is {nearest}" if nearest else ""
        why = f"The adapter finds no series for its rule, so the metric {metric} does not exist and the HPA stands."
        message = f"no series is called {plain}{meant}"
        yield found("VA1201", rule.thing, rule.loc, message, why, f"seriesQuery: {nearest or '...'}")
