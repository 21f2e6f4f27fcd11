"""The forecast: the replicas that the load of a day and of a week ago would need in the next two hours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, or_zero

BIN_S = 900.0
"""Length of a bin: short compared with a rise of the load in the morning, and a week has only 1.3 KB."""

MAX_BINS_AHEAD = 8
"""Bins that are looked ahead at most: two hours, longer than any cold start."""

BINS = MAX_BINS_AHEAD + 1
"""Those, and the present one."""


@dataclass(frozen=True)
class Forecast(Columns):
    """Replicas by bin, the present bin first."""

    replicas: FloatColumn  # float64[BINS, W], that the selected strategy requests for the load; NaN: it is not known
    is_weekly: BoolColumn  # bool[BINS, W], the load is that of a week ago; False: of a day ago
    since_s: TimestampColumn  # float64[W], beginning of the present bin

    @classmethod
    def blank(cls, rows: int) -> Self:
        return cls(np.full((BINS, rows), np.nan), np.zeros((BINS, rows), dtype=bool), np.full(rows, np.nan))

    @property
    def due_s(self) -> FloatColumn:
        """When the replicas of each bin must be ready; float64[BINS, W].

        This is a bin before its own, as in `season.find_past_loads`: the rise may come earlier than a day ago.
        """
        return self.since_s + BIN_S * np.arange(-1.0, MAX_BINS_AHEAD)[:, None]

    @property
    def until_s(self) -> FloatColumn:
        """The end of each bin; float64[BINS, W]. A rise that has not come by then is not expected any more."""
        return self.since_s + BIN_S * np.arange(1.0, BINS + 1)[:, None]

    def most_replicas(self, now_s: float, soon_s: float) -> FloatColumn:
        """Return the most replicas that must be ready between these times; float64[W], 0: none."""
        is_near = (self.due_s <= soon_s) & (self.until_s > now_s)
        return np.asarray(np.where(is_near, or_zero(self.replicas), 0.0).max(axis=0))
