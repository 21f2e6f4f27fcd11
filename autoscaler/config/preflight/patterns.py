"""Patterns that others wrote, compared with names: only such as Python compares in short time."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_PATTERN = 400
MAX_TEXT = 256
MAX_LOOPS = 2  # in one alternative; the time of a comparison grows with the length to this power
_LOOP_OF_GROUP = re.compile(r"\)[*+{]|[*+}][*+{]|\(\?[^:]|\\[1-9]")
_LOOPS = re.compile(r"[*+]|\{\d*,")


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern of RE2; None: it is one that Python reads otherwise, or that could take long."""
    if len(pattern) > MAX_PATTERN or _LOOP_OF_GROUP.search(pattern):
        return None
    if any(len(_LOOPS.findall(part)) > MAX_LOOPS for part in pattern.split("|")):
        return None
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def fits(pattern: str, text: str) -> bool | None:
    """Return whether a whole text fits a pattern; None: unknown."""
    found = compiled(pattern)
    return None if found is None or len(text) > MAX_TEXT else found.fullmatch(text) is not None
