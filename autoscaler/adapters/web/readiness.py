"""Whether the daemon does its work: the answer of `/readyz`, from the age of the last successful tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from autoscaler.adapters.web.view import bounded
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Clock, TickRecord

Detail = Callable[[], Mapping[str, Any]]
MAX_PROBLEMS = 32
MAX_PROBLEM = 300  # characters


@dataclass(frozen=True)
class Verdict:
    ready: bool
    detail: dict[str, Any]


def by_name(problems: Mapping[WorkloadRef, str], most: int) -> dict[str, str]:
    """Return problems by the name of their object, with its kind where several kinds share one; at most so many."""
    named = Counter(map(str, problems))
    return {
        str(ref) if named[str(ref)] == 1 else f"{ref} ({ref.kind})": problem
        for ref, problem in islice(problems.items(), most)
    }


class Readiness:
    """Recorder that knows when the last successful tick began.

    max_age_s: an older last tick makes the daemon not ready; two periods and one tick's deadline is a fair choice.
    detail: further facts for people, such as problems with policies that keep the old ones in force. They are shown
    and change nothing: a daemon that decides on the last good policy is ready.
    """

    def __init__(self, clock: Clock, max_age_s: float, detail: Detail = dict) -> None:
        self._clock = clock
        self._max_age_s = max_age_s
        self._detail = detail
        self._tick: TickRecord | None = None
        self._last_error = ""
        self._failed_in_a_row = 0

    def record(self, tick: TickRecord) -> None:
        self._tick = tick
        self._last_error = ""
        self._failed_in_a_row = 0

    def failed(self, wall_s: float, error: BaseException) -> None:
        self._last_error = bounded(f"{type(error).__name__}: {error}", MAX_PROBLEM)
        self._failed_in_a_row += 1

    def check(self) -> Verdict:
        """Judge now."""
        tick, age_s = self._tick, self._age_s()
        ready = age_s is not None and age_s <= self._max_age_s
        detail: dict[str, Any] = {
            "ready": ready,
            "reason": self._reason(age_s),
            "last_tick_age_s": None if age_s is None else round(age_s, 3),
            "max_tick_age_s": self._max_age_s,
            "leader": bool(tick and tick.leading),
            "failed_ticks_in_a_row": self._failed_in_a_row,
            "last_error": self._last_error,
            "sources": _sources(tick) if tick else [],
        }
        return Verdict(ready, {**self._detail(), **detail})

    def stale(self) -> str:
        """Say why the last tick tells nothing recent, with what later ones failed of; "": it does."""
        reason = self._reason(self._age_s())
        return ": ".join(filter(None, (reason, self._last_error))) if reason else ""

    def _age_s(self) -> float | None:
        return self._clock.now_s() - self._tick.now_s if self._tick else None

    def _reason(self, age_s: float | None) -> str:
        if age_s is None:
            return "no tick has succeeded yet"
        if age_s > self._max_age_s:
            return f"the last successful tick is {age_s:.1f} s old, more than {self._max_age_s:g} s"
        return ""


def _sources(tick: TickRecord) -> list[dict[str, Any]]:
    return [
        {
            "source": bounded(report.source),
            "queries": report.queries,
            "failed": report.failed,
            "problems": [bounded(problem, MAX_PROBLEM) for problem in report.problems[:MAX_PROBLEMS]],
        }
        for report in tick.input.samples.reports[:MAX_PROBLEMS]
    ]
