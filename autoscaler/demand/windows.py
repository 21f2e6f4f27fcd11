"""Pre-warm windows from the daily and weekly shape: hours to which demand jumps at the same time on most days."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.config.policy.schema import MAX_PREWARM
from autoscaler.core.measure.capacity import count_carrying
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.demand.halves import Half
from autoscaler.demand.shape import Hours
from autoscaler.report.history import Steps

WORKDAYS = 5
LEAST_DAYS = 3
"""Days on which the jump must have been seen."""

JUMP = 1.5
"""Growth from one hour to the next that a forecast of one cold start does not follow in time."""

LEAST_REPLICAS = 2.0
"""Busy replicas by which the hour must exceed the one before."""

REGULAR = 0.6
"""Share of the usual demand that the first hour reaches on three days of four."""

SAME_WINDOW = 0.9
"""Share of a window's time from which on a window of today's policy is the same: its lead may differ."""


class JumpWindow(NamedTuple):
    """A window of a pre-warm schedule, on the clock of `Hours`."""

    first: int  # hour of the day, 0..23
    last: int  # hour of the day at which it ends
    workdays: bool  # Monday to Friday only
    demand: float  # replicas that the first hour keeps busy
    days: int  # on which it was seen

    @property
    def cron(self) -> tuple[str, str]:
        """Return `from` and `until`."""
        days = "mon-fri" if self.workdays else "*"
        return f"0 {self.first} * * {days}", f"0 {self.last} * * *"

    def covers(self, hour: int, weekday: int) -> bool:
        """Tell whether an hour of the clock lies in it. A window past midnight belongs to the day on which it began."""
        length, since = (self.last - self.first) % 24, (hour - self.first) % 24
        began = weekday if hour >= self.first else (weekday - 1) % 7
        return since < length and (not self.workdays or began < WORKDAYS)


def find_window(hours: Hours, w: int) -> JumpWindow | None:
    """Return the window of a service; None: its demand does not jump, or not at a regular hour."""
    demand = hours.demand[:, w]
    workday = hours.weekday < WORKDAYS
    usual = _by_hour(demand, hours, workday)
    if np.isnan(usual).any():
        return None
    jump = usual - np.roll(usual, 1)
    first = int(np.argmax(jump))
    before = usual[first - 1]
    if jump[first] < LEAST_REPLICAS or usual[first] < JUMP * before:
        return None
    busy = usual >= (usual.max() + usual.min()) / 2
    length = next((n for n in range(1, 24) if not busy[(first + n) % 24]), 23)
    starts = workday & (hours.hour == first) & ~np.isnan(demand)
    if starts.sum() < LEAST_DAYS or np.quantile(demand[starts], 0.25) < REGULAR * usual[first]:
        return None
    weekend = demand[~workday & (hours.hour == first) & ~np.isnan(demand)]
    everyday = len(weekend) > 0 and float(np.median(weekend)) >= (usual[first] + before) / 2
    return JumpWindow(first, (first + length) % 24, not everyday, float(usual[first]), int(starts.sum()))


def _by_hour(demand: FloatColumn, hours: Hours, rows: BoolColumn) -> FloatColumn:
    """Return the usual demand of each hour of the day, float64[24]; NaN: never seen."""
    found = np.full(24, np.nan)
    for hour in range(24):
        values = demand[rows & (hours.hour == hour) & ~np.isnan(demand)]
        if len(values):
            found[hour] = np.median(values)
    return found


def window_replicas(window: JumpWindow) -> int:
    """Return the replicas that serve the first hour of a window."""
    return max(int(np.ceil(count_carrying(np.array([window.demand])).item())), 1)


def window_floors(half: Half, windows: Sequence[JumpWindow | None]) -> Steps:
    """Return the replicas that windows ask for in each step, and one cold start before; NaN: none."""
    load, hours = half.load, half.hours
    floors = np.full(load.shape, np.nan, np.float32)
    starts = hours.starts
    lengths = np.diff([*starts, load.shape[0]])
    for w, window in enumerate(windows):
        if window is None:
            continue
        inside = [window.covers(*each) for each in zip(hours.hour.tolist(), hours.weekday.tolist(), strict=True)]
        steps = np.repeat(np.array(inside), lengths)
        lead = int(np.ceil(half.profiles.cold_start_s[w] / load.span.step_s))
        early = np.concatenate([steps[lead:], np.zeros(min(lead, len(steps)), bool)])[: len(steps)]
        floors[steps | early, w] = window_replicas(window)
    return floors


def missing_windows(half: Half) -> tuple[JumpWindow | None, ...]:
    """Return the window of each service; None: it has none, or the policy of today has the same or no room for it."""
    has_room, today = [number < MAX_PREWARM for number in half.windows], half.load.floors
    found = [find_window(half.hours, w) if has else None for w, has in enumerate(has_room)]
    if today is None:
        return tuple(found)
    asked = window_floors(half, found)
    inside = ~np.isnan(asked)
    same = (inside & (today >= asked)).sum(axis=0) >= SAME_WINDOW * inside.sum(axis=0)
    return tuple(None if has else window for has, window in zip(same.tolist(), found, strict=True))
