"""When cron triggers are active, compared with a scan of every minute."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.rules.cron import CronSchedule, CronWindow, read_schedule

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo"]


def unix(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def scan(schedule: CronSchedule, now_s: float, zone: ZoneInfo) -> float:
    """Look at every minute: the first whose local time matches all fields."""
    moment_s = now_s // 60 * 60 + 60
    for _ in range(4 * 1440):
        local = datetime.fromtimestamp(moment_s, UTC).astimezone(zone)
        of_month, of_week = local.day in schedule.days, local.isoweekday() % 7 in schedule.weekdays
        day = of_month and of_week if schedule.starred else of_month or of_week
        if local.month in schedule.months and day and local.hour in schedule.hours and local.minute in schedule.minutes:
            return moment_s
        moment_s += 60
    raise AssertionError("every schedule of this test occurs within four days")


HOURS = st.sampled_from(["*", "2", "3", "1,2", "0", "23", "*/6", "2-4"])
MINUTES = st.sampled_from(["0", "30", "*/15", "59", "5-10"])
DAYS = st.sampled_from(["*", "sun-sat", "0-6", "*/2"])
# around changes of the clocks, and in between
MOMENTS = st.sampled_from(["2026-03-28", "2026-03-07", "2026-10-24", "2026-10-31", "2026-04-04", "2026-07-15"])


@given(MINUTES, HOURS, DAYS, st.sampled_from(ZONES), MOMENTS, st.integers(0, 3 * 86_400))
def test_next_occurrence_matches_a_scan(minute: str, hour: str, day: str, zone: str, date: str, late_s: int) -> None:
    schedule, now_s = read_schedule(f"{minute} {hour} * * {day}"), unix(date) + late_s
    assert schedule.after(now_s, ZoneInfo(zone)) == scan(schedule, now_s, ZoneInfo(zone))


@pytest.mark.parametrize(
    ("expression", "now", "following"),
    [
        ("30 8 * * 1-5", "2026-11-27T08:30", "2026-11-30T08:30"),  # Friday to Monday
        ("0 0 13 * 5", "2026-11-28T00:00", "2026-12-04T00:00"),  # a day of the month or of the week
        ("0 0 13 * *", "2026-11-28T00:00", "2026-12-13T00:00"),
        ("0 12 29 2 *", "2026-01-01T00:00", "2028-02-29T12:00"),
        ("15 10 ? jan,DEC sun", "2026-11-28T00:00", "2026-12-06T10:15"),
        ("5/20 * * * *", "2026-11-28T10:06", "2026-11-28T10:25"),
    ],
)
def test_fields_are_read_as_the_library_of_keda_does(expression: str, now: str, following: str) -> None:
    assert read_schedule(expression).after(unix(now), ZoneInfo("UTC")) == unix(following)


def test_date_that_never_comes_is_far_away() -> None:
    assert read_schedule("0 0 30 2 *").after(unix("2026-01-01"), ZoneInfo("UTC")) > unix("2100-01-01")


@pytest.mark.parametrize(
    ("now", "is_open"),
    [
        ("2026-03-27T07:59", False),
        ("2026-03-27T08:00", True),
        ("2026-03-27T17:59", True),
        ("2026-03-27T18:00", False),
        ("2026-03-28T12:00", False),  # a Saturday
        ("2026-03-30T08:00", True),  # summer time since Sunday
        ("2026-10-26T08:00", True),  # winter time
    ],
)
def test_window_is_open_by_the_local_clock(now: str, is_open: bool) -> None:
    window = CronWindow(read_schedule("0 8 * * 1-5"), read_schedule("0 18 * * 1-5"), "Europe/Berlin", 4)
    assert window.state_at(unix(now, "Europe/Berlin"))[0] == is_open


def test_window_over_midnight_ends_the_next_day() -> None:
    window = CronWindow(read_schedule("0 22 * * *"), read_schedule("0 6 * * *"), "UTC", 4)
    states = [window.state_at(unix(f"2026-11-28T{hour}:00"))[0] for hour in ("21", "22", "23", "05", "06")]
    assert states == [False, True, True, True, False]
    assert window.state_at(unix("2026-11-28T23:00"))[1] == unix("2026-11-29T06:00")


def test_window_stays_open_when_the_night_skips_its_start() -> None:
    """KEDA looks at what comes next, and that is the end of the window whose start does not occur."""
    window = CronWindow(read_schedule("30 2 * * *"), read_schedule("0 5 * * *"), "Europe/Berlin", 4)
    times = ("27T12:00", "28T12:00", "29T04:59", "29T05:00", "30T03:00")
    states = [window.state_at(unix(f"2026-03-{time}", "Europe/Berlin"))[0] for time in times]
    assert states == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("* * * *", "a cron expression of 4 fields"),
        ("60 * * * *", "'60' in the field minute, which has 0 to 59"),
        ("* 9-5 * * *", "'9-5' in the field hour"),
        ("* * * * 7", "'7' in the field day-of-week, which has 0 to 6"),
        ("*/0 * * * *", r"'\*/0' in the field minute"),
        ("x * * * *", "'x' in the field minute"),
        (", * * * *", "nothing in the field minute"),
        ("0 0 1 1 99999", "'99999' in the field day-of-week"),
        ("@daily", "a cron expression of 1 fields"),
        ("* " * 60, "not a cron expression"),
    ],
)
def test_invalid_expression_is_named(expression: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_schedule(expression)
