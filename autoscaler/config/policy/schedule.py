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

from autoscaler.config.policy.recurrence import first_begin, first_end, last_end
from autoscaler.config.policy.schema import Prewarm
from autoscaler.core.model.spec import Schedule
from autoscaler.core.table.columns import IntColumn

_DRIFT_S = 0.5  # drift between wall clock and the clock of the tick before times are converted again


class Window(NamedTuple):
    """One occurrence of a window, Unix times."""

    start_s: float
    until_s: float


def windows_at(prewarm: Prewarm, wall_s: float) -> tuple[Window | None, Window]:
    """Return the window open at this Unix time, or None, and the next window."""
    now = datetime.fromtimestamp(wall_s, UTC)
    first = _window(prewarm, last_end(prewarm.recurrence, now))
    return (None, first) if first.start_s > now.timestamp() else (first, _after(prewarm, first))


def _window(prewarm: Prewarm, moment: datetime) -> Window:
    """Return the first window that begins at or after a moment; it ends after its begin."""
    start = first_begin(prewarm.recurrence, moment)
    return Window(start.timestamp(), first_end(prewarm.recurrence, start).timestamp())


def _after(prewarm: Prewarm, window: Window) -> Window:
    """Return the window that follows another."""
    return _window(prewarm, datetime.fromtimestamp(window.until_s, UTC))


class _Occurrences(NamedTuple):
    """The windows of one entry that are open and next, at a moment and until one of them opens or closes."""

    opened: Window | None
    following: Window

    @property
    def until_s(self) -> float:
        return self.opened.until_s if self.opened else self.following.start_s

    def at(self, prewarm: Prewarm, wall_s: float) -> _Occurrences:
        """Return them at a later moment. Only a window that has opened needs a search."""
        following = self.following
        if wall_s < self.until_s:
            return self
        if wall_s < following.start_s:
            return _Occurrences(None, following)
        if wall_s < following.until_s:
            return _Occurrences(following, _after(prewarm, following))
        return _Occurrences(*windows_at(prewarm, wall_s))


class Windows:
    """The windows of all workloads. Those of an entry are searched again only when one of them opens."""

    def __init__(self, prewarm: Sequence[tuple[Prewarm, ...]], rows: IntColumn, before: Windows | None = None) -> None:
        """prewarm: [D], the distinct sets of windows. rows: int64[W], index into them.

        before: the windows of the previous fleet; what it has found is kept.
        """
        entries = list(dict.fromkeys(entry for each in prewarm for entry in each))
        known: Mapping[Prewarm, _Occurrences | None] = before._found if before is not None else {}
        self._found: dict[Prewarm, _Occurrences | None] = {entry: known.get(entry) for entry in entries}
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
        found: dict[Prewarm, _Occurrences | None] = {}
        times = np.full((len(self._found) + 1, 2, 2), np.nan)  # by entry, open or next, begin or end
        edge_s = np.inf
        for number, (entry, known) in enumerate(self._found.items()):
            is_known = known is not None and not stepped_back
            each = (
                known.at(entry, wall_s) if known is not None and is_known else _Occurrences(*windows_at(entry, wall_s))
            )
            found[entry] = each
            edge_s = min(edge_s, each.until_s)
            times[number] = each.opened or (np.nan, np.nan), each.following
        self._found = found
        start_s, until_s = np.moveaxis(times[self._entry, self._is_next], -1, 0)
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
