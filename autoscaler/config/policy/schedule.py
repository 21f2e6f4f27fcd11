"""Pre-warm windows: cron expressions in time zones, resolved to seconds on the clock of the tick.

A window begins when `from` occurs and lasts until `until` occurs next; while it is open, further begins do not matter.
Where both occur at once, one window ends and the next begins.
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

# cronsim keeps wall-clock time where an expression names an hour, so it cannot tell the first 02:30 of an autumn night
# from the second. Starting this far off and leaving out what is on the wrong side makes up for it; clocks are set by
# at most two hours.
_MARGIN = timedelta(hours=3)
# Rare expressions, as every fifth Monday of a February: cronsim looks no further than fifty years.
_NEVER = datetime(9000, 1, 1, tzinfo=UTC)
_BEFORE_ALL = datetime(1970, 1, 2, tzinfo=UTC)
_DRIFT_S = 0.5  # between wall clock and the clock of the tick, before times are converted anew


class Window(NamedTuple):
    """One occurrence, Unix times."""

    start_s: float
    until_s: float


def windows_at(prewarm: Prewarm, wall_s: float) -> tuple[Window | None, Window]:
    """Return the window that is open at this Unix time, if any, and the one that opens next."""
    now = datetime.fromtimestamp(wall_s, UTC)
    start = _begin(prewarm, _last(prewarm.until, prewarm.timezone, now))
    if start > now:
        return None, _window(prewarm, start)
    opened = _window(prewarm, start)
    end = datetime.fromtimestamp(opened.until_s, UTC)
    return opened, _window(prewarm, _begin(prewarm, end))


class Windows:
    """The windows of all workloads. What was computed holds until the next edge; between edges a tick costs nothing."""

    def __init__(self, prewarm: Sequence[tuple[Prewarm, ...]], rows: IntColumn) -> None:
        """prewarm: [D], the distinct sets of windows. rows: int64[W], index into them."""
        self._prewarm = prewarm
        self._rows = rows
        self._from_s = self._edge_s = np.nan  # Unix times between which the columns hold; NaN: not computed
        self._wall: Schedule | None = None  # in Unix time
        self._shift_s = np.nan
        self._tick: Schedule | None = None  # in time of the tick

    def at(self, wall_s: float, now_s: float) -> Schedule:
        """Return the windows open now and those opening next; the same object while nothing moved.

        wall_s, now_s: the same moment as Unix time and on the clock of the tick. Either may have been set.
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
        """Compute the columns anew. Each entry takes two slots: its open window and its next one."""
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
    """Return when a window first begins at or after a moment, in UTC.

    One from 02:15 to 02:45 in a night that skips these is none: both occur at once, when the clock has jumped.
    """
    start = _first(prewarm.from_, prewarm.timezone, moment)
    at_once = start < _NEVER and _first(prewarm.until, prewarm.timezone, start) == start
    if at_once and _skipped(prewarm.from_, prewarm.timezone, start):
        return _first(prewarm.from_, prewarm.timezone, start + timedelta(seconds=1))
    return start


def _skipped(expression: str, zone: str, occurred: datetime) -> bool:
    """Say whether the expression names another time than the one on the clock at which it occurred."""
    clock = occurred.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC)
    return next(CronSim(expression, clock - timedelta(seconds=1)), None) != clock


def _window(prewarm: Prewarm, start: datetime) -> Window:
    """Return the window that begins at `start`; it ends later than it begins."""
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
