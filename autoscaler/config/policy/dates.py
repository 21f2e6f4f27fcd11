"""Dates of holidays and exceptions: single days and ranges, of one year or of every year.

They are written as in ISO 8601, `2027-05-01` or `2026-12-24/2027-01-01`, and without a year for every year: `12-25`,
`12-24/01-01`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple

from autoscaler.config.values import FieldKind

MAX_DATES = 64
FIRST_YEAR, LAST_YEAR = 2000, 2199
_DATE = re.compile(r"(?:(\d{4})-)?(\d{2})-(\d{2})", re.ASCII)
_LEAP_YEAR = 2000
_LEAP_GAP = 8  # years between two leap days, at most
_DAY = timedelta(days=1)


class Days(NamedTuple):
    """Consecutive days, both ends included."""

    first: date
    last: date


@dataclass(frozen=True)
class DateRange:
    """A day or a range of days. year: of its first day; 0: every year."""

    year: int
    first: tuple[int, int]  # month and day
    last_year: int  # likewise of its last day
    last: tuple[int, int]

    def from_day(self, day: date) -> Days | None:
        """Return the first of these ranges that does not end before a day; None: there is no more."""
        if self.year:
            only = Days(date(self.year, *self.first), date(self.last_year, *self.last))
            return only if only.last >= day else None
        for year in range(day.year - 1, day.year + _LEAP_GAP + 1):
            days = _in_year(year, self.first, year + (self.last < self.first), self.last)
            if days is not None and days.last >= day:
                return days
        return None

    def __str__(self) -> str:
        first, last = _written(self.year, self.first), _written(self.last_year, self.last)
        return first if first == last else f"{first}/{last}"


@dataclass(frozen=True)
class Dates:
    """Some dates."""

    ranges: tuple[DateRange, ...] = ()

    def __contains__(self, day: date) -> bool:
        return self.holding(day) is not None

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def holding(self, day: date) -> Days | None:
        """Return the range with this day that ends last; None: the day is not among the dates."""
        found = [days for each in self.ranges if (days := each.from_day(day)) is not None and days.first <= day]
        return max(found, key=lambda days: days.last, default=None)

    def first_from(self, day: date) -> date | None:
        """Return the first of the dates at or after a day; None: there is no more."""
        starts = [max(days.first, day) for each in self.ranges if (days := each.from_day(day)) is not None]
        return min(starts, default=None)


@dataclass(frozen=True)
class DatesKind(FieldKind):
    """A list of dates."""

    allowed: str = (
        f"a list of at most {MAX_DATES} dates or ranges from {FIRST_YEAR} to {LAST_YEAR}, such as 2027-05-01, "
        "2026-12-24/2027-01-01, or 12-25 for every year"
    )

    def read(self, value: object) -> Dates:
        if not isinstance(value, list):
            raise ValueError("not a list")
        if len(value) > MAX_DATES:
            raise ValueError(f"a list of {len(value):,} dates")
        return Dates(tuple(dict.fromkeys(_read_range(item) for item in value)))

    def show(self, value: Dates) -> Any:
        return [str(each) for each in value.ranges]


def _read_range(value: object) -> DateRange:
    """Read one date or range. Raises ValueError with the problem only."""
    if not isinstance(value, str) or len(value) > 32:
        raise ValueError("an item that is no date")
    first, slash, last = value.partition("/")
    (year, *begin), (last_year, *end) = _read_date(first), _read_date(last if slash else first)
    if (year == 0) != (last_year == 0):
        raise ValueError(f"{value}, where only one date has a year")
    if (last_year, end) < (year, begin) and year:
        raise ValueError(f"{value}, which ends before it begins")
    return DateRange(year, (begin[0], begin[1]), last_year, (end[0], end[1]))


def _read_date(text: str) -> tuple[int, int, int]:
    """Return year, month and day; year 0: every year."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("an item that is no date")
    year, month, day = int(match[1] or 0), int(match[2]), int(match[3])
    if match[1] and not FIRST_YEAR <= year <= LAST_YEAR:
        raise ValueError(f"{text}, a year out of bounds")
    try:
        date(year or _LEAP_YEAR, month, day)
    except ValueError:
        raise ValueError(f"{text}, which is no date of the calendar") from None
    return year, month, day


def _in_year(year: int, first: tuple[int, int], last_year: int, last: tuple[int, int]) -> Days | None:
    """Return a range of days; None: it is a leap day that this year does not have."""
    begin = date(year, *first) if _exists(year, first) else date(year, 3, 1)
    end = date(last_year, *last) if _exists(last_year, last) else date(last_year, 2, 28)
    return Days(begin, end) if begin <= end else None


def _exists(year: int, day: tuple[int, int]) -> bool:
    return day != (2, 29) or (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))


def _written(year: int, day: tuple[int, int]) -> str:
    return f"{year:04}-{day[0]:02}-{day[1]:02}" if year else f"{day[0]:02}-{day[1]:02}"


@dataclass(frozen=True)
class Calendar:
    """The days on which a window begins."""

    only: Dates = Dates()  # without dates: every day
    never: Dates = Dates()  # but not on these

    @property
    def is_every_day(self) -> bool:
        return not self.only and not self.never

    def __contains__(self, day: date) -> bool:
        return (not self.only or day in self.only) and day not in self.never

    def first_after(self, day: date) -> date | None:
        """Return the first of these days after a day; None: there is no more."""
        found: date | None = day + _DAY
        for _ in range(4 * MAX_DATES):  # each turn passes a range of dates
            if found is not None and self.only:
                found = self.only.first_from(found)
            if found is None or found.year > LAST_YEAR:
                return None
            held = self.never.holding(found)
            if held is None:
                return found
            found = held.last + _DAY
        return None
