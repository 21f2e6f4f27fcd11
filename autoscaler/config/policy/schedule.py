"""Pre-warm windows: cron expressions in time zones, resolved to seconds on the clock of the tick.

A window begins when `from` occurs and ends when `until` occurs next; further begins within it have no effect. If both
occur at once, one window ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from cronsim import CronSim

from autoscaler.config.policy.schema import Prewarm
from autoscaler.core.model.spec import Schedule
from autoscaler.core.table.columns import IntColumn

# For expressions that name an hour, cronsim cannot tell the first 02:30 of an autumn night from the second. So search
# starts this much earlier or later, and occurrences on the wrong side are dropped; clocks change by at most two hours.
_MARGIN = timedelta(hours=3)
# For rare expressions, such as a fifth Monday in February: cronsim searches at most fifty years.
_NEVER = datetime(9000, 1, 1, tzinfo=UTC)
_BEFORE_ALL = datetime(1970, 1, 2, tzinfo=UTC)
_DRIFT_S = 0.5  # drift between wall clock and the clock of the tick before times are converted again


class Window(NamedTuple):
    """One occurrence of a window, Unix times."""

    start_s: float
    until_s: float


def windows_at(prewarm: Prewarm, wall_s: float) -> tuple[Window | None, Window]:
    """Return the window open at this Unix time, or None, and the next window."""
    now = datetime.fromtimestamp(wall_s, UTC)
    start = _begin(prewarm, _last(prewarm.until, prewarm.timezone, now))
    if start > now:
        return None, _window(prewarm, start)
    opened = _window(prewarm, start)
    end = datetime.fromtimestamp(opened.until_s, UTC)
    return opened, _window(prewarm, _begin(prewarm, end))


class Windows:
    """The windows of all workloads, computed again only when a window opens or closes."""

    def __init__(self, prewarm: Sequence[tuple[Prewarm, ...]], rows: IntColumn) -> None:
        """prewarm: [D], the distinct sets of windows. rows: int64[W], index into them."""
        self._prewarm = prewarm
        self._rows = rows
        self._from_s = self._edge_s = np.nan  # Unix times between which the columns are valid; NaN if not computed
        self._wall: Schedule | None = None  # in Unix time
        self._shift_s = np.nan
        self._tick: Schedule | None = None  # in time of the tick

    def at(self, wall_s: float, now_s: float) -> Schedule:
        """Return the open and the next windows; the same object while nothing changed.

        wall_s, now_s: the same moment as Unix time and on the clock of the tick. Either clock may have been set.
        """
        if self._wall is None or not self._from_s <= wall_s < self._edge_s:
            self._resolve(wall_s)
        assert self._wall is not None
        shift_s = now_s - wall_s
        if self._tick is None or not abs(shift_s - self._shift_s) < _DRIFT_S:
            wall = self._wall
            self._tick = Schedule(wall.start_s + shift_s, wall.until_s + shift_s, wall.replicas, wall.lead_s)
            self._shift_s = shift_s
        return self._tick

    def _resolve(self, wall_s: float) -> None:
        """Compute the columns. Each entry takes two slots: its open window and its next one."""
        slots = max([1, *(2 * len(entries) for entries in self._prewarm)])  # an empty axis has no maximum
        start, until, replicas, lead = np.full((4, len(self._prewarm), slots), np.nan)
        edges = [np.inf]
        for row, entries in enumerate(self._prewarm):
            for number, prewarm in enumerate(entries):
                opened, following = windows_at(prewarm, wall_s)
                edges.append(opened.until_s if opened else following.start_s)
                for slot, window in ((2 * number, opened), (2 * number + 1, following)):
                    if window is not None:
                        start[row, slot], until[row, slot] = window
                        replicas[row, slot] = prewarm.replicas
                        lead[row, slot] = np.nan if prewarm.lead is None else prewarm.lead
        self._wall = Schedule(start[self._rows], until[self._rows], replicas[self._rows], lead[self._rows])
        self._tick = None
        self._from_s, self._edge_s = wall_s, min(edges)


def _begin(prewarm: Prewarm, moment: datetime) -> datetime:
    """Return when a window first begins at or after a time, in UTC.

    A window from 02:15 to 02:45 does not exist in a night that skips these times: both occur when the clock jumps.
    """
    start = _first(prewarm.from_, prewarm.timezone, moment)
    at_once = start < _NEVER and _first(prewarm.until, prewarm.timezone, start) == start
    if at_once and _skipped(prewarm.from_, prewarm.timezone, start):
        return _first(prewarm.from_, prewarm.timezone, start + timedelta(seconds=1))
    return start


def _skipped(expression: str, zone: str, occurred: datetime) -> bool:
    """Return whether an occurrence was moved because daylight saving skipped its time."""
    clock = occurred.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC)
    return next(CronSim(expression, clock - timedelta(seconds=1)), None) != clock


def _window(prewarm: Prewarm, start: datetime) -> Window:
    """Return the window that begins at `start`; it ends after `start`."""
    until = _first(prewarm.until, prewarm.timezone, start + timedelta(seconds=1))
    return Window(start.timestamp(), until.timestamp())


def _first(expression: str, zone: str, moment: datetime) -> datetime:
    """Return when the expression first occurs at or after a moment, in UTC."""
    near = (moment - _MARGIN).astimezone(ZoneInfo(zone))
    times = (occurrence.astimezone(UTC) for occurrence in CronSim(expression, near))
    return next((time for time in times if time >= moment), _NEVER)


def _last(expression: str, zone: str, moment: datetime) -> datetime:
    """Return when the expression last occurred at or before a moment, in UTC."""
    near = (moment + _MARGIN).astimezone(ZoneInfo(zone))
    times = (occurrence.astimezone(UTC) for occurrence in CronSim(expression, near, reverse=True))
    return next((time for time in times if time <= moment), _BEFORE_ALL)
