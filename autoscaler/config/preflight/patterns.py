"""Patterns that others wrote, compared with names: only such as Python compares in short time."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_PATTERN = 400
MAX_TEXT = 256
MAX_WAYS = 1 << 20  # in which a pattern can be tried on a text; a loop has as many as the text is long
# Loops of a group, and what RE2 reads otherwise: further groups, references, {,5}, and counts above 1000.
_REFUSED = re.compile(r"\)[*+{]|[*+}][*+{]|\(\?[^:]|\\[1-9]|\{,|\{\d{0,9},?\d{5}")
_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\(\?:|\{[\d,]{1,15}\}|.", re.DOTALL | re.ASCII)


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern of RE2; None: it is one that Python reads otherwise, or that could take long."""
    if len(pattern) > MAX_PATTERN or _REFUSED.search(pattern) or _count_ways(pattern) > MAX_WAYS:
        return None
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def _count_ways(pattern: str) -> float:
    """Return in how many ways a pattern can be tried, at most: what Python does where RE2 takes linear time."""
    groups = [[0.0, 1.0]]  # of each open group: the ways of its alternatives before, and of this one
    for token in _TOKENS.finditer(pattern):
        last = groups[-1]
        match token[0]:
            case "(" | "(?:":
                groups.append([0.0, 1.0])
            case ")" if len(groups) > 1:
                groups.pop()
                groups[-1][1] *= sum(last)
            case "|":
                groups[-1] = [sum(last), 1.0]
            case "?":
                last[1] *= 2
            case "*" | "+":
                last[1] *= MAX_TEXT
            case text if len(text) > 2 and text[0] == "{":
                low, comma, high = text[1:-1].partition(",")
                last[1] *= max(int(high) - int(low) + 1, 1) if high.isdigit() else MAX_TEXT if comma else 1
    return sum(map(sum, groups))


def fits(pattern: str, text: str) -> bool | None:
    """Return whether a whole text fits a pattern; None: unknown."""
    found = compiled(pattern)
    return None if found is None or len(text) > MAX_TEXT else found.fullmatch(text) is not None
