"""Pods that serve for a moment between two restarts, again and again: a liveness probe kills them after each start.

Each run looks like a start that succeeds, so what became of the runs before it tells what will become of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.pod_objects import ContainerStatus, PodObject
from autoscaler.adapters.kubernetes.api.text import one_line
from autoscaler.adapters.kubernetes.pods.status import FAILED_STARTS, Key
from autoscaler.ports import Clock

BRIEF_S = 30.0
"""A run that serves for no longer than this, or than its start took, is brief."""


class _Runs(NamedTuple):
    """The runs of one pod. Times are Unix times of the kubelet; NaN: unknown."""

    uid: str
    restarts: int
    ready_s: float = math.nan  # since when the present run has served
    fell_s: float = math.nan  # when it ceased to
    limit_s: float = BRIEF_S  # a run that serves for longer is not brief
    brief: int = 0  # brief runs, the last of those in which it served
    words: str = ""


class BriefRuns:
    """The runs of pods whose containers have restarted while they were seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods: dict[Key, _Runs] = {}
        self._doubted: set[Key] = set()  # pods with several brief runs in a row

    def __bool__(self) -> bool:
        return bool(self._doubted)

    def put(self, seen: PodObject) -> None:
        key = seen.metadata.namespace, seen.metadata.name
        statuses = [*(seen.status.container_statuses or ()), *(seen.status.init_container_statuses or ())]
        restarts = sum(each.restart_count for each in statuses)
        runs = self._pods.get(key)
        if runs is None or runs.uid != seen.metadata.uid:
            self.remove(key)
            runs = _Runs(seen.metadata.uid, restarts)
        ready = next((each for each in seen.status.conditions or () if each.type == "Ready"), None)
        changed_s = _unix_s(ready.last_transition_time if ready is not None else None)
        is_ready = ready is not None and ready.status == "True"
        if not is_ready and not math.isnan(runs.ready_s):
            runs = runs._replace(fell_s=changed_s)
        if restarts > runs.restarts:
            runs = self._end_run(runs, statuses)._replace(restarts=restarts)
        if is_ready and math.isnan(runs.ready_s):
            took_s = changed_s - _latest_start_s(statuses)
            runs = runs._replace(ready_s=changed_s, limit_s=max(BRIEF_S, took_s) if took_s > 0 else BRIEF_S)
        self._pods[key] = runs
        (self._doubted.add if runs.brief >= FAILED_STARTS else self._doubted.discard)(key)

    def remove(self, key: Key) -> None:
        self._pods.pop(key, None)
        self._doubted.discard(key)

    def words(self, key: Key) -> str:
        """Return how the runs before ended, if the present one must be expected to end like them; "": it need not."""
        runs = self._pods[key] if key in self._doubted else None
        if runs is None or self._clock.wall_s() - runs.ready_s > runs.limit_s:  # False while it does not serve
            return ""
        return runs.words

    def _end_run(self, runs: _Runs, statuses: Iterable[ContainerStatus]) -> _Runs:
        """Return the runs after a restart. A run that never served says nothing here: its container's state tells."""
        if math.isnan(runs.ready_s):
            return runs
        ended = [each.last_state.terminated for each in statuses if each.last_state is not None]
        known = (each for each in ended if each is not None and each.finished_at is not None)
        last = max(known, key=lambda each: _unix_s(each.finished_at), default=None)
        fell_s = runs.fell_s
        if math.isnan(fell_s):
            fell_s = _unix_s(last.finished_at) if last is not None else self._clock.wall_s()
        served_s = max(fell_s - runs.ready_s, 0.0)
        code = f"{last.reason or 'Error'}, exit code {last.exit_code}" if last is not None else "an unknown code"
        words = one_line(f"its last run served for {served_s:.0f} s", f"it ended with {code}, as did those before it")
        brief = runs.brief + 1 if served_s <= runs.limit_s else 0
        return runs._replace(ready_s=math.nan, fell_s=math.nan, limit_s=BRIEF_S, brief=brief, words=words)


def _latest_start_s(statuses: Iterable[ContainerStatus]) -> float:
    """Return when the last container began to run."""
    states = (each.state.running for each in statuses if each.state is not None)
    return max((_unix_s(each.started_at) for each in states if each is not None and each.started_at), default=math.nan)


def _unix_s(moment: datetime | None) -> float:
    return math.nan if moment is None else moment.timestamp()
