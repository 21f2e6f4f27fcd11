"""The need of the highest hour of a week, as a band with a stated rate, from the days that were seen.

The logarithm of the highest hour of a day is taken as normal around the mean of its kind, workdays or the weekend, and
the days as independent. So the band is that of weeks like the seen ones: it knows no trend, no holiday and no launch.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn

RATE = 0.9
LEAST_DAYS, LEAST_HOURS = 7, 20
"""Whole days that a band needs, and hours of which a day is whole."""

DRAWS = 4000
WEEK = (5, 2)  # workdays, days of the weekend


class WeekBand(NamedTuple):
    """Between these the highest hour lies in `RATE` of the weeks; NaN: fewer than a week of days was seen."""

    low: float
    high: float
    days: int


def band_of_weeks(at_s: FloatColumn, needed: FloatColumn, zone: ZoneInfo) -> WeekBand:
    """Return the band of whole GPUs. at_s: Unix times of hours, needed: GPUs in each; float64[H]."""
    highest, is_weekend = _days(at_s, needed, zone)
    days = len(highest)
    if days < LEAST_DAYS:
        return WeekBand(np.nan, np.nan, days)
    logs = np.log1p(highest)
    kinds = [logs[is_weekend == kind] for kind in (0, 1)]
    kinds = [each if len(each) else logs for each in kinds]
    residuals = np.concatenate([each - each.mean() for each in kinds])
    free = max(len(residuals) - len(kinds), 1)
    draw = np.random.default_rng(0)
    deviation = np.sqrt((residuals**2).sum() / draw.chisquare(free, DRAWS))
    drawn = [
        each.mean()
        + deviation[:, None] * (draw.normal(size=(DRAWS, 1)) / np.sqrt(len(each)) + draw.normal(size=(DRAWS, number)))
        for each, number in zip(kinds, WEEK, strict=True)
    ]
    low, high = np.quantile(np.expm1(np.concatenate(drawn, axis=1).max(axis=1)), [(1 - RATE) / 2, (1 + RATE) / 2])
    return WeekBand(float(np.floor(low)), float(np.ceil(high)), days)


def _days(at_s: FloatColumn, needed: FloatColumn, zone: ZoneInfo) -> tuple[FloatColumn, IntColumn]:
    """Return the highest hour of each whole day, and whether it is of the weekend."""
    by_day: dict[int, list[float]] = {}
    for time_s, gpus in zip(at_s.tolist(), needed.tolist(), strict=True):
        by_day.setdefault(datetime.fromtimestamp(time_s, zone).toordinal(), []).append(gpus)
    whole = {day: max(hours) for day, hours in by_day.items() if len(hours) >= LEAST_HOURS}
    return np.array([*whole.values()], np.float64), np.array([(day - 1) % 7 > 4 for day in whole], np.int64)
