"""The pre-warm windows that a workload states itself, in its annotation. Tenants write it, so it is untrusted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pydantic import ValidationError

from autoscaler.config.findings import one_of
from autoscaler.config.policy.namespace_limits import PREWARM
from autoscaler.config.policy.parse import describe_errors
from autoscaler.config.policy.schema import MAX_PREWARM, Prewarm, Section
from autoscaler.config.values import FieldKind
from autoscaler.config.yaml import dotted, read_documents

MAX_CHARS = 8192


class _StatedWindows(Section):
    """The annotation as a document, so that errors are worded as those of a policy."""

    prewarm: tuple[Prewarm, ...]


@dataclass(frozen=True)
class WindowsKind(FieldKind):
    """A YAML list of windows, stored as its text."""

    @property
    def allowed(self) -> str:
        keys = one_of(Prewarm.keys())
        return (
            f"a YAML list of at most {MAX_PREWARM} windows and {MAX_CHARS:,} characters, each a mapping with keys of "
            f"{keys}; they replace those of the policy, and [] means none"
        )

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("not text")
        read_windows(value)
        return value

    def show(self, value: str) -> str:
        return value


@lru_cache(maxsize=1024)
def read_windows(text: str) -> tuple[Prewarm, ...]:
    """Read the windows of an annotation. Raises ValueError with the problem only, of the first invalid value."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"{len(text):,} characters")
    documents, findings = read_documents("", text)
    if findings:
        raise ValueError(": ".join(filter(None, (findings[0].key, findings[0].problem))))
    if len(documents) != 1 or not isinstance(documents[0].value, list):
        raise ValueError("not a list")
    if len(documents[0].value) > MAX_PREWARM:
        raise ValueError(f"{len(documents[0].value):,} windows")
    try:
        return _StatedWindows.model_validate({PREWARM: documents[0].value}).prewarm
    except ValidationError as error:
        loc, problem, allowed = next(describe_errors(error, _StatedWindows))
        raise ValueError(f"{dotted(loc[1:])}: {problem} (allowed: {allowed})") from None
