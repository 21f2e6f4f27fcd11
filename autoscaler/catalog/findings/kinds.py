"""A kind of finding, and the page on which it stands."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)  # worst first
PAGES = "docs/reference/findings"


class FindingKind(NamedTuple):
    """One kind of finding."""

    id: str
    severity: str  # the usual one; a finding may be one step milder where less is at stake
    subject: str
    symptom: str  # what is seen
    cause: str
    cure: str
    sources: str

    @property
    def page(self) -> str:
        return f"{PAGES}/{FILES[self.id[:4]]}.md#{self.id.lower()}"


FILES: Mapping[str, str] = MappingProxyType(
    {"VA11": "reading", "VA12": "autoscaling", "VA13": "engine", "VA14": "pod", "VA15": "cluster", "VA16": "metrics"}
)
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "VA11": "Findings about files",
        "VA12": "Findings about autoscalers and their queries",
        "VA13": "Findings about the engine's arguments",
        "VA14": "Findings about the pod",
        "VA15": "Findings about the cluster",
        "VA16": "Findings about metrics",
    }
)
