"""Pre-warm windows from the daily and weekly shape: hours to which demand jumps at the same time on most days."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.demand.shape import Hours

WORKDAYS = 5
LEAST_DAYS = 3
"""Days on which the jump must have been seen."""

JUMP = 1.5
"""Growth from one hour to the next that a forecast of one cold start does not follow in time."""

LEAST_REPLICAS = 2.0
"""Busy replicas by which the hour must exceed the one before."""

REGULAR = 0.6
"""Share of the usual demand that the first hour reaches on three days of four."""


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
