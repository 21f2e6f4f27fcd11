"""Findings about configuration: the place, the value found, and the allowed values. Texts only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

MAX_FINDINGS = 100  # shown for one set of files; the rest is counted
_SHOWN_CHARS = 80
_MAX_LISTED = 20  # names in one line
_MAX_NAMED = 3  # models named in one line

UNREADABLE = (ValueError, RecursionError)
"""What json and msgspec raise for bytes from outside: not JSON, not of the type, no UTF-8, or nested too deeply.

One that is caught alone lets the others end the process.
"""


REFERENCE = "docs/reference/policy.md"  # lists keys of policies and annotations


class Severity(StrEnum):
    """Whether a finding prevents use."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One problem in one place."""

    file: str
    line: int  # from 1; 0 for the whole file
    key: str  # "spec.replicas.min"; "" for the whole document
    problem: str  # "above replicas.max"
    value: str = ""  # value found, made printable by `shown`; "" for none
    allowed: str = ""  # "" if the problem states it
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        words = [f"{place}: {self.severity}: {self.key or 'document'}: {self.problem}"]
        if self.value:
            words.append(f", found {self.value}")
        if self.allowed:
            words.append(f"; {'allowed' if self.severity is Severity.ERROR else 'better'}: {self.allowed}")
        return "".join(words)


class PolicyError(Exception):
    """Policies that cannot be used, with all findings. None of the documents is applied."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        found = tuple(findings)
        self.findings = found[:MAX_FINDINGS]
        more = f"\n... and {len(found) - MAX_FINDINGS} more" if len(found) > MAX_FINDINGS else ""
        super().__init__("\n".join(map(str, self.findings)) + more)


def shown(value: object) -> str:
    """Make an untrusted value printable: one line, quoted if it is text, at most 80 characters."""
    text = repr(value[: _SHOWN_CHARS + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def one_of(names: Iterable[str], reference: str = REFERENCE) -> str:
    """List the allowed names; of many only the page that lists them, or a few where there is none."""
    known = sorted(names)
    if len(known) > _MAX_LISTED:
        return f"the {len(known)} names in {reference}" if reference else name_some(known)
    return ", ".join(known) or "none"


def unknown(problem: str, names: Iterable[str], found: str, reference: str = REFERENCE) -> tuple[str, str]:
    """Return the problem with a name, the closest name before it, and the allowed names."""
    known = list(names)
    close = get_close_matches(found[:100], known, n=1)
    return (f"did you mean {close[0]}? " if close else "") + problem, one_of(known, reference)


def foreign_models(reported: Sequence[str], served: Sequence[str]) -> str:
    """Describe series that are left out because their models are not served by the pod."""
    return f"series of the model {name_some(reported)} are left out: the pod's command line serves {name_some(served)}"


def name_some(names: Sequence[str]) -> str:
    """List the first few names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(shown(name) for name in names[:_MAX_NAMED]) + more


def without_running(engine: str, names: Sequence[str]) -> str:
    """Describe an engine whose running requests are missing among its metrics. names: of metrics that show them."""
    return (
        f"reports metrics of {engine}, but none of {', '.join(names)}, so it counts as silent; other versions or "
        "backends of the engine have them, or the pipeline drops them"
    )
