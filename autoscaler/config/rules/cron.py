"""When a cron trigger of KEDA is active.

Source: KEDA 2.21 `pkg/scalers/cron_scaler.go`; robfig/cron v3 `parser.go` and `spec.go`. That library searches on the
local clock: a time that a night skips does not occur in it, and one that a night repeats occurs twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from autoscaler.config.findings import shown

MAX_CHARS = 100
ALLOWED = 'five fields: minute hour day-of-month month day-of-week, as "30 8 * * 1-5"'
_YEARS = 5  # a search ends after them
_NEVER_S = 1e15
_NAMES = "jan feb mar apr may jun jul aug sep oct nov dec"
_MONTHS = {_NAMES[4 * number : 4 * number + 3]: number + 1 for number in range(12)}
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day-of-month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day-of-week", 0, 6, _DAYS),
)


@dataclass(frozen=True)
class CronSchedule:
    """A cron expression: the allowed values of each field, and whether a field of days is a star."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    starred: bool  # days of month or week; then a day must be in both, else in one

    def _has_day(self, moment: datetime) -> bool:
        of_month, of_week = moment.day in self.days, moment.isoweekday() % 7 in self.weekdays
        return of_month and of_week if self.starred else of_month or of_week

    def after(self, now_s: float, zone: ZoneInfo) -> float:
        """Return the first occurrence after a Unix time; a time far away if there is none within five years."""
        moment = _local(float(int(now_s) // 60 * 60 + 60), zone)
        last = moment.year + _YEARS
        while moment.year <= last:
            if moment.month not in self.months:
                following = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1)
                moment = _local(following.replace(tzinfo=zone).timestamp(), zone)
            elif not self._has_day(moment):
                following = datetime(moment.year, moment.month, moment.day) + timedelta(days=1)
                moment = _local(following.replace(tzinfo=zone).timestamp(), zone)
            elif moment.hour not in self.hours:
                moment = _local(moment.timestamp() + 60 * (60 - moment.minute), zone)
            elif moment.minute not in self.minutes:
                moment = _local(moment.timestamp() + 60, zone)
            else:
                return moment.timestamp()
        return _NEVER_S


def read_schedule(written: object) -> CronSchedule:
    """Parse a cron expression. Raises ValueError with the problem."""
    if not isinstance(written, str) or len(written) > MAX_CHARS:
        raise ValueError("not a cron expression")
    parts = written.split()
    if len(parts) != len(_FIELDS):
        raise ValueError(f"a cron expression of {len(parts)} fields")
    minutes, hours, days, months, weekdays = (_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True))
    starred = any(_is_star(item) for part in (parts[2], parts[4]) for item in part.split(","))
    return CronSchedule(minutes, hours, days, months, weekdays, starred)


def _is_star(item: str) -> bool:
    step = item.partition("/")[2]
    return item[:1] in ("*", "?") and (not step or step == "1")


def _values(part: str, name: str, least: int, most: int, names: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for item in filter(None, part.split(",")):
        span, _, step = item.partition("/")
        first, dash, last = span.partition("-")
        if first in ("*", "?"):
            start, end = least, most
        else:
            start = _number(first, names, name)
            end = _number(last, names, name) if dash else most if step else start
        by = _number(step, {}, name) if step else 1
        if not least <= start <= end <= most or by < 1:
            raise ValueError(f"{shown(item)} in the field {name}, which has {least} to {most}")
        found.update(range(start, end + 1, by))
    if not found:
        raise ValueError(f"nothing in the field {name}")
    return frozenset(found)


def _number(text: str, names: dict[str, int], name: str) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise ValueError(f"{shown(text)} in the field {name}")
    return int(text)


def _local(moment_s: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(moment_s, UTC).astimezone(zone)


@dataclass(frozen=True)
class CronWindow:
    """A cron trigger: `replicas` from each occurrence of `start` until the next of `end`."""

    start: CronSchedule
    end: CronSchedule
    zone: str
    replicas: int

    def state_at(self, now_s: float) -> tuple[bool, float]:
        """Return whether the window is open at a Unix time, and until when that holds.

        As KEDA does it: it is open if the next end comes no later than the next start.
        """
        zone = ZoneInfo(self.zone)
        start_s, end_s = self.start.after(now_s, zone), self.end.after(now_s, zone)
        return start_s >= end_s, min(start_s, end_s)
