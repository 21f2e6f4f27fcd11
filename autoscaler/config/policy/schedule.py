"""Pre-warm windows: cron expressions in time zones, resolved to seconds on the clock of the tick.

A window begins when `from` occurs and ends when `until` occurs next; further begins within it have no effect. If both
occur at once, one window ends and the next begins. `recurrence` searches both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from autoscaler.config.policy.recurrence import Recurrence, first_begin, first_end, last_end
from autoscaler.config.policy.schema import Prewarm
from autoscaler.core.model.spec import Schedule
from autoscaler.core.table.columns import IntColumn

_DRIFT_S = 0.5  # drift between wall clock and the clock of the tick before times are converted again


class Window(NamedTuple):
    """One occurrence of a window, Unix times."""

    start_s: float
    until_s: float


def windows_at(recurrence: Recurrence, wall_s: float) -> tuple[Window | None, Window]:
    """Return the window open at this Unix time, or None, and the next window."""
    now = datetime.fromtimestamp(wall_s, UTC)
    first = _window(recurrence, last_end(recurrence, now))
    return (None, first) if first.start_s > now.timestamp() else (first, _after(recurrence, first))


def _window(recurrence: Recurrence, moment: datetime) -> Window:
    """Return the first window that begins at or after a moment; it ends after its begin."""
    start = first_begin(recurrence, moment)
    return Window(start.timestamp(), first_end(recurrence, start).timestamp())


def _after(recurrence: Recurrence, window: Window) -> Window:
    """Return the window that follows another."""
    return _window(recurrence, datetime.fromtimestamp(window.until_s, UTC))


class _Occurrences(NamedTuple):
    """The windows of one entry that are open and next, at a moment and until one of them opens or closes."""

    opened: Window | None
    following: Window

    @property
    def until_s(self) -> float:
        return self.opened.until_s if self.opened else self.following.start_s

    def at(self, recurrence: Recurrence, wall_s: float) -> _Occurrences:
        """Return them at a later moment. Only a window that has opened needs a search."""
        following = self.following
        if wall_s < self.until_s:
            return self
        if wall_s < following.start_s:
            return _Occurrences(None, following)
        if wall_s < following.until_s:
            return _Occurrences(following, _after(recurrence, following))
        return _Occurrences(*windows_at(recurrence, wall_s))


class ScheduleWindows:
    """The windows of all workloads. Equal ones are searched once, and again only when one of them opens."""

    def __init__(
        self, prewarm: Sequence[tuple[Prewarm, ...]], rows: IntColumn, before: ScheduleWindows | None = None
    ) -> None:
        """prewarm: [D], the distinct sets of windows. rows: int64[W], index into them.

        before: the windows of the previous fleet; what it has found is kept.
        """
        entries = list(dict.fromkeys(entry for each in prewarm for entry in each))
        known: Mapping[Recurrence, _Occurrences | None] = before._found if before is not None else {}
        recurrences = [entry.recurrence for entry in entries]
        self._found: dict[Recurrence, _Occurrences | None] = {each: known.get(each) for each in recurrences}
        rows_of = {each: place for place, each in enumerate(self._found)}
        self._of_entry = np.array([*(rows_of[each] for each in recurrences), len(rows_of)])  # row of `times`
        number = {entry: index for index, entry in enumerate(entries)}
        most = max([1, *map(len, prewarm)])  # an empty axis has no maximum
        sets = np.full((len(prewarm), most), -1)
        for row, each in enumerate(prewarm):
            sets[row, : len(each)] = [number[entry] for entry in each]
        # Each entry takes two slots: its open window and its next one. Number -1 is the last row, which has no window.
        self._entry = np.repeat(sets, 2, axis=1)[rows] if entries else np.full((len(rows), 1), -1)
        self._is_next = np.arange(self._entry.shape[1]) % 2
        self._replicas = np.array([*(float(entry.replicas) for entry in entries), np.nan])
        self._lead_s = np.array([*(np.nan if entry.lead is None else entry.lead for entry in entries), np.nan])
        named = {name: index for index, name in enumerate(dict.fromkeys(entry.name or "" for entry in entries))}
        self._name = np.array([*(named[entry.name or ""] for entry in entries), -1])
        self._names = tuple(named)
        # Unix time for which `_found` was searched.
        self._from_s: float = before._from_s if before is not None else np.nan
        self._edge_s = np.nan  # Unix time until which the columns are valid; NaN if not computed
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
            self._tick = replace(wall, start_s=wall.start_s + shift_s, until_s=wall.until_s + shift_s)
            self._shift_s = shift_s
        return self._tick

    def _resolve(self, wall_s: float) -> None:
        """Compute the columns."""
        stepped_back = not self._from_s <= wall_s
        found: dict[Recurrence, _Occurrences | None] = {}
        times = np.full((len(self._found) + 1, 2, 2), np.nan)  # by recurrence, open or next, begin or end
        edge_s = np.inf
        for number, (recurrence, known) in enumerate(self._found.items()):
            is_known = known is not None and not stepped_back
            each = (
                known.at(recurrence, wall_s)
                if known is not None and is_known
                else _Occurrences(*windows_at(recurrence, wall_s))
            )
            found[recurrence] = each
            edge_s = min(edge_s, each.until_s)
            times[number] = each.opened or (np.nan, np.nan), each.following
        self._found = found
        start_s, until_s = np.moveaxis(times[self._of_entry[self._entry], self._is_next], -1, 0)
        exists = ~np.isnan(start_s)
        self._wall = Schedule(
            start_s=start_s,
            until_s=until_s,
            replicas=np.where(exists, self._replicas[self._entry], np.nan),
            lead_s=np.where(exists, self._lead_s[self._entry], np.nan),
            name=np.where(exists, self._name[self._entry], -1),
            names=self._names,
        )
        self._tick = None
        self._from_s, self._edge_s = wall_s, edge_s
