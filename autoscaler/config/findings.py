"""What is wrong with something people wrote: where it stands, what was found, and what is allowed. Words only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

MAX_FINDINGS = 100  # told of one set of files; the rest is only counted
_SHOWN_CHARS = 80
_NAMED = 3  # models in one line


class Severity(StrEnum):
    """Whether it stops the thing from being used."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One thing wrong in one place."""

    file: str
    line: int  # from 1; 0: the file as a whole
    key: str  # "spec.replicas.min"; "": the document as a whole
    problem: str  # "above replicas.max"
    value: str = ""  # what was found, made printable by `shown`; "": nothing to show
    allowed: str = ""  # "" where the problem says it
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        words = [f"{place}: {self.severity}: {self.key or 'document'}: {self.problem}"]
        if self.value:
            words.append(f", found {self.value}")
        if self.allowed:
            words.append(f"; allowed: {self.allowed}")
        return "".join(words)


class PolicyError(Exception):
    """Policies that cannot be used. Carries every finding; none of the documents came into force."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        found = tuple(findings)
        self.findings = found[:MAX_FINDINGS]
        more = f"\n... and {len(found) - MAX_FINDINGS} more" if len(found) > MAX_FINDINGS else ""
        super().__init__("\n".join(map(str, self.findings)) + more)


def shown(value: object) -> str:
    """Make an untrusted value printable: one line, quoted if text, at most some 80 characters."""
    text = repr(value[: _SHOWN_CHARS + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def one_of(names: Iterable[str], found: str = "") -> str:
    """List what is allowed, and the closest to what was found."""
    known = sorted(names)
    listed = ", ".join(known[:40]) + (f" and {len(known) - 40} more" if len(known) > 40 else "")
    close = get_close_matches(found[:100], known, n=1) if found else []
    return (listed or "none") + (f" (did you mean {close[0]}?)" if close else "")


def foreign_models(reported: Sequence[str], served: Sequence[str]) -> str:
    """Say that series are left out, of models that a pod reports and does not serve."""
    return f"series of the model {_some(reported)} are left out: the pod's command line serves {_some(served)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(shown(name) for name in names[:_NAMED]) + more
