"""The load of the last week by quarter of an hour: what the load was at this time a day and a week ago.

This is the seasonal naive method (Hyndman and Athanasopoulos, Forecasting: Principles and Practice), with the highest
value of a window, because a replica must serve before the load rises. Other periods than a day and a week are not
looked for: periods found in bursty traffic were spurious.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.core.model.forecast import BIN_S, BINS
from autoscaler.core.planner.strategies import Float32Column
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, Transient, or_zero

DAY_BINS, WEEK_BINS = 96, 7 * 96

MIN_KNOWN_SHARE = 0.5
"""Share of a bin that must have been observed for its load to be known."""


@dataclass(frozen=True)
class Season(Columns):
    """Load by bin."""

    load: npt.NDArray[np.float16]  # float16[WEEK_BINS, W], mean load, the last complete bin first; NaN: not known
    bin_since_s: TimestampColumn  # float64[W], beginning of the present bin; NaN: none yet
    busy_s: FloatColumn  # float64[W], busy replica-seconds in it
    observed_s: FloatColumn  # float64[W], seconds in it of which the load is known
    week_ago: Transient[npt.NDArray[np.float16]]  # float16[W], load a week before the last complete bin; NaN: not known

    @classmethod
    def blank(cls, rows: int) -> Season:
        none, load = np.zeros(rows), np.full((WEEK_BINS, rows), np.nan, np.float16)
        return cls(load, np.full(rows, np.nan), none, none, load[0])


def update_season(season: Season, demand: FloatColumn, observed_s: FloatColumn, now_s: float) -> Season:
    """Add the demand of an interval. observed_s: float64[W], its length; 0: demand is not known.

    The interval belongs to the bin in which it ends.
    """
    since_s = np.where(np.isnan(season.bin_since_s), now_s, season.bin_since_s)
    bins = np.fmax(np.floor((now_s - since_s) / BIN_S), 0.0).astype(np.int64)
    is_over = bins > 0
    busy_s = np.where(is_over, 0.0, season.busy_s) + np.where(observed_s > 0, or_zero(demand) * observed_s, 0.0)
    known_s = np.where(is_over, 0.0, season.observed_s) + observed_s
    load = _push_bins(season, bins) if is_over.any() else season.load
    week_ago = np.where(is_over, season.load[-1], season.week_ago)
    return Season(load, since_s + bins * BIN_S, busy_s, known_s, week_ago)


def find_past_loads(season: Season, ahead_s: FloatColumn, now_s: float | TimestampColumn) -> list[Float32Column]:
    """Return the highest load of a day ago, and that of a week ago, from this time of day until a bin after `ahead_s`.

    ahead_s: float64[W]. float32[W] each, NaN: not known.
    """
    bins = np.fmin((now_s - season.bin_since_s + ahead_s) // BIN_S + 1, BINS - 1)
    place = or_zero(bins).astype(np.int64), np.arange(len(bins))
    highest = (np.fmax.accumulate(each, axis=0) for each in _look_ahead(season))  # of the next n bins
    return [each[place].astype(np.float32) for each in highest]


def expect_load(season: Season) -> tuple[Float32Column, BoolColumn]:
    """Return the load to expect in the present bin and in each of the next ones, and whether a week ago tells it.

    float32[BINS, W], NaN: not known, and bool[BINS, W]. What the last complete bin lacked of a day and a week ago
    is taken from all bins. So a day that begins like a holiday is expected to go on like one, but for later rises.
    """
    day, week = (each.astype(np.float32) for each in _look_ahead(season))
    before, last = np.fmax(season.load[DAY_BINS], season.week_ago), season.load[0].astype(np.float32)
    lacking = np.fmax(before - last, 0.0)  # 0 where one of them is not known
    return np.maximum(np.fmax(day, week) - lacking, 0.0), ~(week <= day) & ~np.isnan(week)


def _look_ahead(season: Season) -> list[npt.NDArray[np.float16]]:
    """Return the load of a day and of a week ago in the present bin and in each of the next ones; float16[BINS, W]."""
    return [season.load[first - BINS : first][::-1] for first in (DAY_BINS, WEEK_BINS)]


def is_unknown(season: Season) -> BoolColumn:
    """Return whether no load of a day ago or earlier is known; bool[W]. A bin in every two hours is looked at."""
    return np.asarray(np.isnan(season.load[DAY_BINS - 1 :: BINS - 1]).all(axis=0))


def _push_bins(season: Season, bins: npt.NDArray[np.int64]) -> npt.NDArray[np.float16]:
    """Return the load by bin after the present bin has ended. bins: int64[W], bins that have begun since."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = np.where(season.observed_s >= MIN_KNOWN_SHARE * BIN_S, season.busy_s / season.observed_s, np.nan)
        mean = mean.astype(np.float16)
    load = season.load.copy()
    for count in np.unique(bins[bins > 0]).tolist():
        rows, new = np.flatnonzero(bins == count), min(count, WEEK_BINS)
        load[new:, rows] = season.load[: WEEK_BINS - new, rows]
        load[:new, rows] = np.nan
        if count <= WEEK_BINS:
            load[count - 1, rows] = mean[rows]
    return load
