"""When windows begin and end: a search in cron expressions, time zones and dates. All times are in UTC.

Exceptions remove begins by their date, as EXDATE of RFC 5545 does: a window that began before a holiday goes on until
its end.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

from autoscaler.config.policy.dates import Calendar

# For expressions that name an hour, cronsim cannot tell the first 02:30 of an autumn night from the second. So near a
# change of the clocks, search starts this much earlier or later, and occurrences on the wrong side are dropped. Clocks
# change by at most two hours.
_MARGIN = timedelta(hours=3)
_SECOND = timedelta(seconds=1)
# For rare expressions, such as a fifth Monday in February: cronsim searches at most fifty years.
NEVER = datetime(9000, 1, 1, tzinfo=UTC)
BEFORE_ALL = datetime(1970, 1, 2, tzinfo=UTC)
_ANY_YEAR = 2024  # a leap year, from which a search for begins of every year starts
MOST_SEARCHES = 200
"""Begins in a row that are removed by their date, until a window counts as one that never begins. It bounds time."""


class Recurrence(NamedTuple):
    """The times of a window."""

    begin: str  # cron expression
    until: str  # likewise
    zone: str
    calendar: Calendar


def first_begin(recurrence: Recurrence, moment: datetime) -> datetime:
    """Return when a window first begins at or after a time, in UTC, on a date on which it applies."""
    calendar = recurrence.calendar
    for _ in range(MOST_SEARCHES):
        start = _begin_on_any_date(recurrence, moment)
        if calendar.is_every_day or start == NEVER:
            return start
        day = start.astimezone(ZoneInfo(recurrence.zone)).date()
        if day in calendar:
            return start
        following = calendar.first_after(day)
        if following is None:
            return NEVER
        moment = _midnight(following, recurrence.zone)
    return NEVER


def begins_ever(recurrence: Recurrence) -> bool:
    """Return whether the dates leave any begin of a window."""
    calendar = recurrence.calendar
    if calendar.is_every_day:
        return True
    years = [each.year for each in calendar.only.ranges]
    first = date(min(years) if years and all(years) else _ANY_YEAR, 1, 1)
    return first_begin(recurrence, _midnight(first, recurrence.zone)) != NEVER


def _midnight(day: date, zone: str) -> datetime:
    """Return when a day begins, in UTC."""
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)


def _begin_on_any_date(recurrence: Recurrence, moment: datetime) -> datetime:
    """Return when a window first begins at or after a time, in UTC, whatever the date.

    A window from 02:15 to 02:45 does not exist in a night that skips these times: both occur when the clock jumps.
    """
    start = _first(recurrence.begin, recurrence.zone, moment)
    at_once = start < NEVER and _first(recurrence.until, recurrence.zone, start) == start
    if at_once and _skipped(recurrence.begin, recurrence.zone, start):
        return _first(recurrence.begin, recurrence.zone, start + _SECOND)
    return start


def _skipped(expression: str, zone: str, occurred: datetime) -> bool:
    """Return whether an occurrence was moved because daylight saving skipped its time."""
    clock = occurred.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC)
    return next(CronSim(expression, clock - _SECOND), None) != clock


def last_end(recurrence: Recurrence, moment: datetime) -> datetime:
    """Return when a window last ended at or before a time, if one was open, in UTC."""
    return _last(recurrence.until, recurrence.zone, moment)


def first_end(recurrence: Recurrence, begin: datetime) -> datetime:
    """Return when a window that begins at a time ends, in UTC: after its begin."""
    return _first(recurrence.until, recurrence.zone, begin + _SECOND)


def _first(expression: str, zone: str, moment: datetime) -> datetime:
    """Return when the expression first occurs at or after a moment, in UTC."""
    near = (moment - _margin(zone, moment)).astimezone(ZoneInfo(zone))
    times = (occurrence.astimezone(UTC) for occurrence in CronSim(expression, near))
    return next((found for found in times if found >= moment), NEVER)


def _last(expression: str, zone: str, moment: datetime) -> datetime:
    """Return when the expression last occurred at or before a moment, in UTC."""
    near = (moment + _margin(zone, moment)).astimezone(ZoneInfo(zone))
    times = (occurrence.astimezone(UTC) for occurrence in CronSim(expression, near, reverse=True))
    return next((found for found in times if found <= moment), BEFORE_ALL)


def _margin(zone: str, moment: datetime) -> timedelta:
    """Return how far from a moment to begin a search: cronsim's results exclude where it begins."""
    around = ((moment + margin).astimezone(ZoneInfo(zone)).utcoffset() for margin in (-_MARGIN, _MARGIN))
    return _SECOND if len(set(around)) == 1 else _MARGIN
