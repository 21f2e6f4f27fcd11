"""Builds the report of one reading: requests, failures, and a bounded number of lines."""

from __future__ import annotations

from autoscaler.core.model.samples import SourceReport

MAX_LINES = 8
MAX_CHARACTERS = 240


class ReportBuilder:
    """Collects requests, failures and notes while a source reads."""

    def __init__(self) -> None:
        self.requests = 0
        self._failed = 0
        self._notes = 0
        self._lines: list[str] = []

    def note(self, place: str, problem: str) -> None:
        """Add a line about a problem. Both texts may be untrusted, so they are truncated and made printable."""
        self._notes += 1
        if len(self._lines) < MAX_LINES:
            line = f"{place}: {problem}"[:MAX_CHARACTERS]
            self._lines.append("".join(character if character.isprintable() else "?" for character in line))

    def fail(self, place: str, problem: str) -> None:
        """Count a failed request and add a line about it."""
        self._failed += 1
        self.note(place, problem)

    def build(self, source: str, duration_s: float) -> SourceReport:
        """Return the report; its last line has the number of lines left out."""
        more = self._notes - len(self._lines)
        lines = (*self._lines, f"and {more} more") if more else tuple(self._lines)
        return SourceReport(source, self.requests, self._failed, lines, duration_s)
