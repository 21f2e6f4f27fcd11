"""An outage of something outside: logged once when it begins, and once when it is over."""

from __future__ import annotations

from typing import Any


class Outage:
    """What does not work now."""

    def __init__(self, log: Any, begins: str, ends: str, level: str = "warning", **place: str) -> None:
        """begins, ends: the messages. level: of the first. place: what both tell."""
        self._log, self._begins, self._ends, self._level, self._place = log, begins, ends, level, place
        self.problem = ""  # of the last failure; "": it works

    def fail(self, problem: str, **more: object) -> None:
        """Note a failure. The first in a row is logged."""
        problem = problem or "no reason is given"
        if not self.problem:
            getattr(self._log, self._level)(self._begins, **self._place, error=problem, **more)
        self.problem = problem

    def end(self) -> None:
        """Note that it works, which is logged after a failure."""
        if self.problem:
            self._log.info(self._ends, **self._place)
        self.problem = ""
