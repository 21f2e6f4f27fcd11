"""How one reading went: requests, failures, and a few bounded lines about them."""

from __future__ import annotations

from autoscaler.core.model.samples import SourceReport

MAX_LINES = 8
MAX_CHARACTERS = 240


class Tally:
    """Counts while a source reads, and makes its report."""

    def __init__(self) -> None:
        self.requests = 0
        self._failed = 0
        self._notes = 0
        self._lines: list[str] = []

    def note(self, where: str, what: str) -> None:
        """Say that `what` is wrong at `where`; both may come from outside, so they are cut and made printable."""
        self._notes += 1
        if len(self._lines) < MAX_LINES:
            line = f"{where}: {what}"[:MAX_CHARACTERS]
            self._lines.append("".join(character if character.isprintable() else "?" for character in line))

    def fail(self, where: str, what: str) -> None:
        """Say so, and count a request that brought nothing."""
        self._failed += 1
        self.note(where, what)

    def report(self, source: str, duration_s: float) -> SourceReport:
        """Return the report; its last line says how many were left out."""
        more = self._notes - len(self._lines)
        lines = (*self._lines, f"and {more} more") if more else tuple(self._lines)
        return SourceReport(source, self.requests, self._failed, lines, duration_s)
