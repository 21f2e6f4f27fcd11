"""Adds label matchers to every selector of a query, also of queries in policies: the settings', and for namespaces.

The tokenizer only distinguishes selectors from strings, comments, numbers, label lists and functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

from autoscaler.catalog.series import POD_LABELS

NAMESPACE_ORDER = ("namespace", *(namespace for namespace, _ in POD_LABELS if namespace != "namespace"))
"""Labels that name a namespace. That of the target comes first, as a tenant cannot write it."""

MOST_CHARS = 253
"""Longest name of a namespace or a pod in Kubernetes, also of those kinds with shorter ones."""

Place = tuple[str, str]
"""A label that names namespaces, and a namespace."""

_TOKENS = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?|`[^`]*`)
      | (?P<blank>\s+|\#[^\n]*)
      | (?P<number>\d[\w.]*)
      | (?P<word>[a-zA-Z_:][\w:.]*)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_LABEL_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_OPERATORS = frozenset({"and", "or", "unless", "atan2", "default", "if", "ifnot", "ifexists"})
_OTHERS = frozenset({"bool", "offset", "inf", "nan", "limit", "keep_metric_names", "with", "start", "end"})
_NO_METRIC = _LABEL_LISTS | _OPERATORS | _OTHERS
_OPENING = {"(": ")", "[": "]", "{": "}"}


@lru_cache(maxsize=512)
def add_matchers(expression: str, matchers: str) -> str:
    """Return the expression with `matchers` (see `config.matchers`) added to each selector."""
    if not matchers:
        return expression
    tokens = [(match.lastgroup or "", match[0]) for match in _TOKENS.finditer(expression)]
    significant = [index for index, (kind, _) in enumerate(tokens) if kind != "blank"]
    after = {index: tokens[later][1] for index, later in pairwise(significant)}
    written: list[str] = []
    closing: list[str] = []  # closing brackets of the open ones
    last = ""  # the previous token
    for index, (kind, text) in enumerate(tokens):
        if kind == "blank":
            written.append(text)
            continue
        inside = closing[-1] if closing else ""
        if kind == "sign" and text in _OPENING:
            listed = text == "(" and last.lower() in _LABEL_LISTS
            closing.append("labels" if listed else _OPENING[text])
        elif kind == "sign" and text in ")]}" and closing:
            closing.pop()
            if text == "}":
                written.append(_more(last, matchers))
        elif kind == "word" and inside == "}" and text.lower() == "or" and last not in ("{", ","):
            written.append(_more(last, matchers) + " ")  # MetricsQL: {a="b" or c="d"}
        written.append(text)
        bare = kind == "word" and inside not in ("labels", "]", "}") and text.lower() not in _NO_METRIC
        if bare and after.get(index) not in ("{", "(") and after.get(index, "").lower() not in ("by", "without"):
            written.append(f"{{{matchers}}}")
        last = text
    return "".join(written)


def _more(last: str, matchers: str) -> str:
    """Return the matchers as written after the last token within braces."""
    return matchers if last in ("{", ",") else f",{matchers}"


def leave_out(crowded: Iterable[Place]) -> str:
    """Return matchers for all but these. One for all long names: no namespace in Kubernetes has one."""
    places = [*crowded]
    short = [f"{label}!={json.dumps(name, ensure_ascii=False)}" for label, name in places if len(name) <= MOST_CHARS]
    long = {f'{label}!~".{{{MOST_CHARS + 1},}}"' for label, name in places if len(name) > MOST_CHARS}
    return ",".join((*short, *sorted(long)))
