"""The answer of `/readyz`: whether ticks succeed, judged by the age of the last successful one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from autoscaler.adapters.web.tick_values import bounded
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Clock, TickRecord

Detail = Callable[[], Mapping[str, Any]]
LATE_TICKS = 3  # in a row, before the loop is called late: one slow tick is no trouble
MAX_PROBLEMS = 32
MAX_PROBLEM = 300  # characters


@dataclass(frozen=True)
class ReadinessVerdict:
    ready: bool
    detail: dict[str, Any]


def by_name(problems: Mapping[WorkloadRef, str], most: int) -> dict[str, str]:
    """Return at most `most` problems by object name, with the kind added if objects of several kinds share a name."""
    named = Counter(map(str, problems))
    return {
        str(ref) if named[str(ref)] == 1 else f"{ref} ({ref.kind})": problem
        for ref, problem in islice(problems.items(), most)
    }


class Readiness:
    """Recorder of the time of the last successful tick.

    max_age_s: the daemon is not ready if its last successful tick is older than this.
    follower_max_age_s: the same for a replica that does not lead, which ticks less often; None: the same value.
    detail: further facts for operators, such as errors in changed policy files. They do not affect readiness: a daemon
    that decides by the last valid policies is ready.
    """

    def __init__(
        self, clock: Clock, max_age_s: float, detail: Detail = dict, follower_max_age_s: float | None = None
    ) -> None:
        self._clock = clock
        self._leader_max_age_s = max_age_s
        self._follower_max_age_s = max_age_s if follower_max_age_s is None else follower_max_age_s
        self._detail = detail
        self._tick: TickRecord | None = None
        self._last_error = ""
        self._failed_in_a_row = 0
        self._late_in_a_row = 0

    def record(self, tick: TickRecord) -> None:
        self._tick = tick
        self._last_error = ""
        self._failed_in_a_row = 0
        self._late_in_a_row = self._late_in_a_row + 1 if tick.late else 0

    def failed(self, wall_s: float, error: BaseException) -> None:
        self._last_error = bounded(f"{type(error).__name__}: {error}", MAX_PROBLEM)
        self._failed_in_a_row += 1

    def check(self) -> ReadinessVerdict:
        """Compute the verdict now."""
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
            "loop_problem": self._loop_problem(),
            "sources": _sources(tick) if tick else [],
        }
        return ReadinessVerdict(ready, {**self._detail(), **detail})

    def stale(self) -> str:
        """Return why the last tick is out of date, with the error of later ticks; "" if it is recent."""
        reason = self._reason(self._age_s())
        return ": ".join(filter(None, (reason, self._last_error))) if reason else ""

    def _loop_problem(self) -> str:
        if self._tick is None or self._late_in_a_row < LATE_TICKS:
            return ""
        return (
            f"the last {self._late_in_a_row} ticks took longer than the period, the last one "
            f"{self._tick.duration_s:.1f} s: decisions follow demand late"
        )

    @property
    def _max_age_s(self) -> float:
        follows = self._tick is not None and not self._tick.leading
        return self._follower_max_age_s if follows else self._leader_max_age_s

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
