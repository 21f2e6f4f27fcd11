"""Label selectors: as text, as a scale subresource states them, and as objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

MAX_CHARS, MAX_TERMS = 4096, 32  # of one selector; longer ones select nothing
_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<lacking>[^\s!=,()]+)"
    r"|(?P<key>[^\s!=,()]+)(?:\s*(?P<equal>==|=|!=)\s*+(?P<value>[^\s!=,()]*)"
    r"|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)


class Term(NamedTuple):
    """One condition on a label."""

    key: str
    values: frozenset[str] | None = None  # None: any value
    negated: bool = False


Selector = tuple[Term, ...]


def read_selector(text: str) -> Selector:
    """Parse a selector such as "app=llama,role in (a,b)". (): it is empty or invalid, and selects nothing.

    Source: k8s.io/apimachinery/pkg/labels.
    """
    terms: list[Term] = []
    position = 0
    if len(text) > MAX_CHARS or not text.strip():
        return ()
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None or len(terms) == MAX_TERMS:
            return ()
        position = match.end()
        if match["absent"]:
            terms.append(Term(match["lacking"], None, negated=True))
        elif match["equal"]:
            terms.append(Term(match["key"], frozenset((match["value"],)), match["equal"] == "!="))
        elif match["set"]:
            values = frozenset(value.strip() for value in match["values"].split(","))
            terms.append(Term(match["key"], values, match["set"] == "notin"))
        else:
            terms.append(Term(match["key"]))
    return tuple(terms)


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether a selector matches some labels. An empty one matches none, unlike that of Kubernetes."""
    return bool(selector) and all(
        term.negated != (term.key in labels and (term.values is None or labels[term.key] in term.values))
        for term in selector
    )
