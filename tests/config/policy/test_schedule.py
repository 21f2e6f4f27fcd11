"""Pre-warm windows: time zones, daylight saving, and clocks that are set."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.policy import schedule
from autoscaler.config.policy.compile import compile_specs
from autoscaler.config.policy.schedule import ScheduleWindows, Window
from autoscaler.config.policy.schema import Prewarm, to_document
from tests.config.policy.test_compile import BOOK, with_policies, workload
from tests.harness.calls import counted_calls

BERLIN = "Europe/Berlin"


def prewarm(begin: str, until: str, zone: str = BERLIN, replicas: int = 3, lead: str = "auto") -> Prewarm:
    return Prewarm.model_validate({"from": begin, "until": until, "timezone": zone, "replicas": replicas, "lead": lead})


def unix(text: str, zone: str = BERLIN) -> float:
    """2026-03-29 03:00, on the clocks of the zone; a trailing + means the second time it happens."""
    local = datetime.strptime(text.rstrip("+"), "%Y-%m-%d %H:%M").replace(tzinfo=ZoneInfo(zone))
    return local.replace(fold=1 if text.endswith("+") else 0).timestamp()


def window(begin: str, until: str, zone: str = BERLIN) -> Window:
    return Window(unix(begin, zone), unix(until, zone))


def windows_at(entry: Prewarm, wall_s: float) -> tuple[Window | None, Window]:
    return schedule.windows_at(entry.recurrence, wall_s)


OFFICE = prewarm("30 8 * * mon-fri", "0 19 * * mon-fri")


@pytest.mark.parametrize(
    ("now", "opened", "following"),
    [
        ("2026-01-15 08:29", None, ("2026-01-15 08:30", "2026-01-15 19:00")),
        ("2026-01-15 08:30", ("2026-01-15 08:30", "2026-01-15 19:00"), ("2026-01-16 08:30", "2026-01-16 19:00")),
        ("2026-01-15 18:59", ("2026-01-15 08:30", "2026-01-15 19:00"), ("2026-01-16 08:30", "2026-01-16 19:00")),
        ("2026-01-15 19:00", None, ("2026-01-16 08:30", "2026-01-16 19:00")),
        ("2026-01-16 20:00", None, ("2026-01-19 08:30", "2026-01-19 19:00")),  # a weekend
    ],
)
def test_a_window_is_open_from_its_begin_until_its_end(
    now: str, opened: tuple[str, str] | None, following: tuple[str, str]
):
    assert windows_at(OFFICE, unix(now)) == (window(*opened) if opened else None, window(*following))


def test_a_window_across_midnight_is_one_window():
    night = prewarm("0 22 * * *", "0 6 * * *")
    expected = window("2026-01-15 22:00", "2026-01-16 06:00")
    for now in ("2026-01-15 22:00", "2026-01-15 23:59", "2026-01-16 00:00", "2026-01-16 05:59"):
        assert windows_at(night, unix(now))[0] == expected
    assert windows_at(night, unix("2026-01-16 06:00"))[0] is None


def test_an_end_before_the_begin_is_on_the_next_day():
    late = prewarm("0 18 * * fri", "0 8 * * mon")
    assert windows_at(late, unix("2026-01-17 12:00"))[0] == window("2026-01-16 18:00", "2026-01-19 08:00")


def test_further_begins_inside_an_open_window_do_not_matter():
    often = prewarm("*/10 8-11 * * *", "0 12 * * *")
    assert windows_at(often, unix("2026-01-15 10:34"))[0] == window("2026-01-15 08:00", "2026-01-15 12:00")


def test_windows_that_meet_follow_each_other():
    shifts = prewarm("0 6,14 * * *", "0 14,22 * * *")
    assert windows_at(shifts, unix("2026-01-15 14:00"))[0] == window("2026-01-15 14:00", "2026-01-15 22:00")
    opened, following = windows_at(shifts, unix("2026-01-15 13:59"))
    assert opened == window("2026-01-15 06:00", "2026-01-15 14:00")
    assert following == window("2026-01-15 14:00", "2026-01-15 22:00")


def test_the_clocks_of_the_zone_count_on_both_sides_of_a_change():
    before, after = unix("2026-03-28 09:00"), unix("2026-03-30 09:00")
    daily = prewarm("30 8 * * *", "0 19 * * *")
    assert windows_at(daily, before)[0] == window("2026-03-28 08:30", "2026-03-28 19:00")
    assert windows_at(daily, after)[0] == window("2026-03-30 08:30", "2026-03-30 19:00")
    assert (after - before) / 3600 == 47, "one of these days has 23 hours"


@pytest.mark.parametrize(
    ("begin", "until", "expected"),
    [
        ("30 2 * * *", "0 9 * * *", ("2026-03-29 03:00", "2026-03-29 09:00")),  # begins in the hour that is skipped
        ("0 1 * * *", "30 2 * * *", ("2026-03-29 01:00", "2026-03-29 03:00")),  # ends in it
        ("0 1 * * *", "0 4 * * *", ("2026-03-29 01:00", "2026-03-29 04:00")),  # spans it
    ],
)
def test_a_skipped_time_occurs_when_the_clock_jumps(begin: str, until: str, expected: tuple[str, str]):
    _, following = windows_at(prewarm(begin, until), unix("2026-03-29 00:00"))
    assert following == window(*expected)
    assert windows_at(prewarm(begin, until), following.start_s)[0] == following
    assert windows_at(prewarm(begin, until), following.until_s)[0] is None


@pytest.mark.parametrize(
    ("begin", "until", "expected"),
    [
        ("30 2 * * *", "0 9 * * *", ("2026-10-25 02:30", "2026-10-25 09:00")),  # begins in the hour that is repeated
        ("0 1 * * *", "30 2 * * *", ("2026-10-25 01:00", "2026-10-25 02:30")),  # ends in it, the first time
        ("0 1 * * *", "0 4 * * *", ("2026-10-25 01:00", "2026-10-25 04:00")),  # spans it: four hours
    ],
)
def test_a_repeated_time_occurs_the_first_time(begin: str, until: str, expected: tuple[str, str]):
    entry, expected_window = prewarm(begin, until), window(*expected)
    for minutes in range(0, 10 * 60, 10):  # every ten minutes of that night, the repeated hour included
        moment_s = unix("2026-10-25 00:00") + minutes * 60
        opened, following = windows_at(entry, moment_s)
        if moment_s < expected_window.start_s:
            assert (opened, following) == (None, expected_window)
        elif moment_s < expected_window.until_s:
            assert opened == expected_window
        else:
            assert opened is None
            assert following.start_s > unix("2026-10-25 23:00")


def test_a_window_in_the_repeated_hour_does_not_open_twice():
    brief = prewarm("0 2 * * *", "30 2 * * *")
    assert windows_at(brief, unix("2026-10-25 02:15"))[0] == window("2026-10-25 02:00", "2026-10-25 02:30")
    assert windows_at(brief, unix("2026-10-25 02:15+"))[0] is None


def test_a_window_in_a_skipped_hour_does_not_occur():
    hour, office = prewarm("15 2 * * *", "45 2 * * *"), prewarm("0 3 * * *", "0 3 * * sun")
    for now in ("2026-03-29 00:30", "2026-03-29 03:00", "2026-03-29 12:00"):
        assert windows_at(hour, unix(now)) == (None, window("2026-03-30 02:15", "2026-03-30 02:45"))
    assert windows_at(hour, unix("2026-03-28 02:30"))[0] == window("2026-03-28 02:15", "2026-03-28 02:45")
    opened, _ = windows_at(office, unix("2026-03-29 12:00"))  # that both occur at three is meant
    assert opened == window("2026-03-29 03:00", "2026-04-05 03:00")


def test_a_leap_day_comes_every_four_years():
    leap = prewarm("0 0 29 2 *", "0 0 1 3 *", "UTC")
    assert windows_at(leap, unix("2026-06-01 00:00", "UTC")) == (
        None,
        window("2028-02-29 00:00", "2028-03-01 00:00", "UTC"),
    )
    opened, following = windows_at(leap, unix("2028-02-29 12:00", "UTC"))
    assert opened == window("2028-02-29 00:00", "2028-03-01 00:00", "UTC")
    assert following == window("2032-02-29 00:00", "2032-03-01 00:00", "UTC")


def test_a_very_rare_expression_is_valid():
    rare = prewarm("0 0 29 2 *", "0 0 */31 1 mon#1", "UTC")
    opened, following = windows_at(rare, unix("2099-06-01 00:00", "UTC"))
    assert following.until_s > following.start_s
    assert opened is None or opened.until_s > opened.start_s


crons = st.builds(
    "{} {} * * {}".format,
    st.sampled_from(["0", "30", "*/20", "15,45"]),
    st.sampled_from(["*", "0", "2", "3", "8", "1-4", "22"]),
    st.sampled_from(["*", "sun", "mon-fri", "7"]),
)
around_changes = st.builds(
    lambda day, minutes: day + minutes * 60.0,
    st.sampled_from([unix("2026-03-28 12:00"), unix("2026-10-24 12:00"), unix("2026-06-14 12:00")]),
    st.integers(0, 36 * 60),
)


@pytest.mark.slow
@given(crons, crons, around_changes, st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "UTC"]))
def test_windows_agree_with_walking_through_every_minute(begin: str, until: str, now_s: float, zone: str):
    """The second source: an automaton that walks a fortnight minute by minute on the clocks of the zone."""
    if begin == until:
        return
    opened, following = windows_at(prewarm(begin, until, zone), now_s)
    assert following.start_s > now_s
    assert following.until_s > following.start_s
    if opened:
        assert opened.start_s <= now_s < opened.until_s <= following.start_s
    begins, ends = (occurrences(cron, zone, now_s - 15 * 86_400, now_s) for cron in (begin, until))
    open_since = None
    for moment_s in sorted(begins | ends):
        if moment_s in ends:
            open_since = None
        empty = moment_s in ends and not names(begin, zone, moment_s)  # both were skipped when the clock jumped
        if moment_s in begins and open_since is None and not empty:
            open_since = moment_s
    assert (opened.start_s if opened else None) == open_since


def names(cron: str, zone: str, moment_s: float) -> bool:
    """Say whether the expression names the time that is on the clock."""
    minutes, hours, *_ = cron.split()
    local = datetime.fromtimestamp(moment_s, ZoneInfo(zone))
    return local.minute in expand(minutes, 60) and local.hour in expand(hours, 24)


def occurrences(cron: str, zone: str, from_s: float, to_s: float) -> set[float]:
    """Find the minutes of a cron expression in plain Python, as Debian's cron takes daylight saving."""
    minutes, hours, _, _, days = cron.split()
    wanted_minutes = expand(minutes, 60)
    wanted_hours = expand(hours, 24)
    wanted_days = {"*": set(range(7)), "sun": {6}, "7": {6}, "mon-fri": set(range(5))}[days]
    found: set[float] = set()
    where = ZoneInfo(zone)
    if hours == "*" or minutes.startswith("*"):  # real minutes: a repeated hour counts twice, a skipped one never
        moment_s = from_s
        while moment_s <= to_s:
            local = datetime.fromtimestamp(moment_s, where)
            if local.minute in wanted_minutes and local.hour in wanted_hours and local.weekday() in wanted_days:
                found.add(moment_s)
            moment_s += 60
        return found
    day = datetime.fromtimestamp(from_s, where).replace(hour=0, minute=0, tzinfo=None)
    for _ in range(int((to_s - from_s) // 86_400) + 2):
        for hour in wanted_hours if day.weekday() in wanted_days else ():
            for minute in wanted_minutes:
                local = day.replace(hour=hour, minute=minute, tzinfo=where)
                while datetime.fromtimestamp(local.timestamp(), where).replace(tzinfo=None) != local.replace(
                    tzinfo=None
                ):
                    local += timedelta(minutes=1)  # skipped: on to when the clock has jumped
                if from_s <= local.timestamp() <= to_s:
                    found.add(local.timestamp())
        day += timedelta(days=1)
    return found


def expand(text: str, size: int) -> set[int]:
    if text.startswith("*"):
        return set(range(0, size, int(text.partition("/")[2] or 1)))
    if "-" in text:
        low, high = map(int, text.split("-"))
        return set(range(low, high + 1))
    return set(map(int, text.split(",")))


SOME_DATES = [
    {},
    {"except": ["2026-03-29", "2026-10-25"]},
    {"except": ["03-28/03-29", "10-24"]},
    {"only": ["03-29", "10-25", "2026-06-14/2026-06-15"]},
    {"only": ["2026-01-01/2026-12-31"], "except": ["03-01/03-28", "10-20/10-24"]},
]


@pytest.mark.slow
@given(
    crons,
    crons,
    around_changes,
    st.sampled_from([BERLIN, "America/New_York", "America/Havana", "Asia/Beirut", "UTC"]),
    st.sampled_from(SOME_DATES),
)
def test_dates_agree_with_walking_through_every_minute(begin: str, until: str, now_s: float, zone: str, dates: dict):
    """The second source: the automaton above, which drops the begins of excluded dates."""
    if begin == until:
        return
    entry = Prewarm.model_validate({"from": begin, "until": until, "timezone": zone, "replicas": 1, **dates})
    opened, following = windows_at(entry, now_s)
    begins, ends = (occurrences(cron, zone, now_s - 15 * 86_400, now_s + 5 * 86_400) for cron in (begin, until))
    begins = {moment_s for moment_s in begins if begins_on(datetime.fromtimestamp(moment_s, ZoneInfo(zone)), dates)}
    open_since, next_s = None, None
    for moment_s in sorted(begins | ends):
        if moment_s in ends:
            open_since = None
        empty = moment_s in ends and not names(begin, zone, moment_s)
        if moment_s in begins and open_since is None and not empty:
            open_since = moment_s
            next_s = moment_s if moment_s > now_s and next_s is None else next_s
        if moment_s <= now_s:
            open_now = open_since
    assert (opened.start_s if opened else None) == open_now
    assert following.start_s == next_s or (next_s is None and following.start_s > now_s + 5 * 86_400)


def begins_on(local: datetime, dates: dict) -> bool:
    """Compare a date with the texts of `only` and `except`: text order is the order of dates."""

    def named(texts: list[str]) -> bool:
        day, of_year = local.strftime("%Y-%m-%d"), local.strftime("%m-%d")
        pairs = [text.split("/") * (1 if "/" in text else 2) for text in texts]
        return any(first <= (day if len(first) > 5 else of_year) <= last for first, last in pairs)

    return ("only" not in dates or named(dates["only"])) and not named(dates.get("except", []))


def windows(*entries: Prewarm) -> ScheduleWindows:
    return ScheduleWindows([entries], np.zeros(1, dtype=np.int64))


def dated(**dates: list[str]) -> Prewarm:
    office = {"from": "0 9 * * mon-fri", "until": "0 18 * * mon-fri", "timezone": BERLIN, "replicas": 4}
    return Prewarm.model_validate({**office, **dates})


def test_a_window_does_not_begin_on_excepted_dates():
    office = dated(**{"except": ["2026-12-24/2027-01-01", "05-01"]})
    christmas = window("2027-01-04 09:00", "2027-01-04 18:00")  # the first Monday of the year
    assert windows_at(office, unix("2026-12-24 10:00")) == (None, christmas)
    assert windows_at(office, unix("2026-12-31 10:00")) == (None, christmas)
    labour_day = window("2028-05-02 09:00", "2028-05-02 18:00")
    assert windows_at(office, unix("2028-05-01 09:00")) == (None, labour_day)


def test_another_window_applies_on_a_holiday():
    office = dated(**{"except": ["12-24"]})
    eve = dated(only=["12-24"], until="0 13 * * *", replicas=2)
    now_s = unix("2026-12-24 10:00")
    columns = windows(office, eve).at(now_s, now_s)
    is_open = (columns.start_s <= now_s) & (now_s < columns.until_s)
    assert columns.replicas[is_open].tolist() == [2]
    assert columns.until_s[is_open].tolist() == [unix("2026-12-24 13:00")]


def test_a_window_that_began_before_a_holiday_goes_on():
    night = Prewarm.model_validate(
        {"from": "0 22 * * *", "until": "0 6 * * *", "timezone": BERLIN, "replicas": 1, "except": ["12-25"]}
    )
    opened, following = windows_at(night, unix("2026-12-25 03:00"))
    assert opened == window("2026-12-24 22:00", "2026-12-25 06:00")
    assert following == window("2026-12-26 22:00", "2026-12-27 06:00")


def test_a_date_is_that_of_the_time_zone():
    tokyo = Prewarm.model_validate(
        {"from": "0 8 * * *", "until": "0 9 * * *", "timezone": "Asia/Tokyo", "replicas": 1, "only": ["2026-06-02"]}
    )
    _, following = windows_at(tokyo, unix("2026-06-01 12:00", "UTC"))
    assert following == window("2026-06-02 08:00", "2026-06-02 09:00", "Asia/Tokyo")
    assert datetime.fromtimestamp(following.start_s, ZoneInfo("UTC")).day == 1


def test_a_window_whose_dates_are_over_stays_closed():
    past = dated(only=["2026-03-02"])
    assert windows_at(past, unix("2026-03-02 10:00"))[0] == window("2026-03-02 09:00", "2026-03-02 18:00")
    opened, following = windows_at(past, unix("2026-03-03 10:00"))
    assert opened is None and following.start_s > unix("2200-01-01 00:00")
    columns = windows(past).at(unix("2026-03-03 10:00"), 0.0)
    assert columns.start_s[0, 1] > 1e9


def test_a_leap_day_is_an_exception_in_leap_years_only():
    daily = {"from": "0 9 * * *", "until": "0 10 * * *", "replicas": 1}
    leap = Prewarm.model_validate({**daily, "except": ["02-29"]})
    assert windows_at(leap, unix("2028-02-29 08:00", "UTC"))[1].start_s == unix("2028-03-01 09:00", "UTC")
    assert windows_at(leap, unix("2027-02-28 12:00", "UTC"))[1].start_s == unix("2027-03-01 09:00", "UTC")
    only = Prewarm.model_validate({**daily, "only": ["02-29"]})
    assert windows_at(only, unix("2026-06-01 00:00", "UTC"))[1].start_s == unix("2028-02-29 09:00", "UTC")


@pytest.mark.parametrize(
    ("dates", "problem"),
    [
        ({"except": ["2026-02-30"]}, "no date of the calendar"),
        ({"except": ["1999-01-01"]}, "a year out of bounds"),
        ({"except": ["2026-01-02/2026-01-01"]}, "ends before it begins"),
        ({"except": ["2026-12-24/01-01"]}, "only one date has a year"),
        ({"except": ["tomorrow"]}, "no date"),
        ({"except": "12-25"}, "not a list"),
        ({"except": [f"{year}-12-25" for year in range(2000, 2070)]}, "a list of 70 dates"),
        ({"except": [20261225]}, "no date"),
        ({"except": ["١٢-٢٥"]}, "no date"),
        ({"except": ["01-01/12-31"]}, "leave no begin"),
        ({"only": ["2026-06-14"]}, "leave no begin"),  # a Sunday
        ({"only": ["12-25"], "except": ["12-24/12-26"]}, "leave no begin"),
    ],
)
def test_bad_dates_are_refused(dates: dict, problem: str):
    with pytest.raises(ValueError, match=problem):
        dated(**dates)


def test_dates_are_written_as_they_were_read():
    office = dated(**{"except": ["2026-12-24/2027-01-01", "05-01", "12-30/01-02"], "only": ["2026-01-01/2030-12-31"]})
    document = to_document(office)
    assert document["except"] == ["2026-12-24/2027-01-01", "05-01", "12-30/01-02"]
    assert Prewarm.model_validate(document) == office


def test_windows_of_an_earlier_fleet_are_kept():
    now_s = unix("2026-01-15 12:00")
    rows = np.zeros(1, dtype=np.int64)
    before = ScheduleWindows([(OFFICE,)], rows)
    before.at(now_s, 0.0)
    noon = prewarm("0 11 * * *", "0 14 * * *", replicas=6)
    after = ScheduleWindows([(noon, OFFICE)], rows, before)
    fresh = ScheduleWindows([(noon, OFFICE)], rows)
    for later_s in (0, 3600, 2 * 3600, 7 * 3600, 24 * 3600, 30 * 3600, 30 * 86_400):
        mine, theirs = after.at(now_s + later_s, later_s), fresh.at(now_s + later_s, later_s)
        np.testing.assert_array_equal(mine.start_s, theirs.start_s)
        opened, following = windows_at(OFFICE, now_s + later_s)
        assert mine.start_s[0, 3] == following.start_s - now_s
        assert (mine.start_s[0, 2] == opened.start_s - now_s) if opened else np.isnan(mine.start_s[0, 2])


def test_equal_times_are_searched_once():
    """Ten thousand workloads with the same hours and counts of their own cost as much as one."""
    entries = [prewarm("30 8 * * mon-fri", "0 19 * * mon-fri", replicas=count) for count in (1, 500)]
    many = [prewarm("30 8 * * mon-fri", "0 19 * * mon-fri", replicas=count) for count in range(1, 501)]
    with counted_calls() as few:
        windows(*entries).at(unix("2026-01-15 12:00"), 0.0)
    with counted_calls() as all_of_them:
        windows(*many).at(unix("2026-01-15 12:00"), 0.0)
    assert all_of_them.made - few.made < 100 * 500  # one search makes some 900 calls


def test_overlapping_windows_take_slots_of_their_own():
    day = prewarm("0 8 * * *", "0 18 * * *", replicas=2)
    noon = prewarm("0 11 * * *", "0 14 * * *", replicas=6, lead="10m")
    now_s = unix("2026-01-15 12:00")
    columns = windows(day, noon).at(now_s, now_s)
    assert columns.start_s[0].tolist() == [
        unix(text) for text in ("2026-01-15 08:00", "2026-01-16 08:00", "2026-01-15 11:00", "2026-01-16 11:00")
    ]
    assert columns.replicas[0].tolist() == [2, 2, 6, 6]
    np.testing.assert_array_equal(columns.lead_s[0], [np.nan, np.nan, 600, 600])


def test_times_are_those_of_the_clock_of_the_tick():
    now_s = unix("2026-01-15 08:00")
    columns = windows(OFFICE).at(now_s, 100.0)
    np.testing.assert_array_equal(columns.start_s[0], [np.nan, 100.0 + 1800])
    np.testing.assert_array_equal(columns.until_s[0], [np.nan, 100.0 + 11 * 3600])


def test_columns_change_only_when_a_window_opens_or_closes():
    rows, start_s = windows(OFFICE), unix("2026-01-15 08:00")
    first = rows.at(start_s, 0.0)
    assert rows.at(start_s + 1799.9, 1799.9) is first
    opened = rows.at(start_s + 1800, 1800.0)
    assert opened is not first
    assert opened.start_s[0, 0] == 1800.0
    assert rows.at(start_s + 11 * 3600 - 1, 11 * 3600 - 1.0) is opened
    assert np.isnan(rows.at(start_s + 11 * 3600, 11 * 3600.0).start_s[0, 0])


def test_a_clock_that_steps_back_finds_the_earlier_window_again():
    rows, open_s = windows(OFFICE), unix("2026-01-15 09:00")
    assert rows.at(open_s, 1000.0).start_s[0, 0] == 1000.0 - 1800
    closed = rows.at(open_s - 3600, 1005.0)  # set back by an hour: it is 08:00 again, and the monotonic clock went on
    assert np.isnan(closed.start_s[0, 0])
    assert closed.start_s[0, 1] == 1005.0 + 1800


def test_a_clock_that_steps_within_a_window_moves_its_end():
    rows, open_s = windows(OFFICE), unix("2026-01-15 09:00")
    assert rows.at(open_s, 0.0).until_s[0, 0] == 10 * 3600
    assert rows.at(open_s + 600, 5.0).until_s[0, 0] == 5.0 + 10 * 3600 - 600


def test_a_clock_that_is_slewed_a_little_keeps_the_columns():
    rows, open_s = windows(OFFICE), unix("2026-01-15 09:00")
    first = rows.at(open_s, 0.0)
    assert rows.at(open_s + 60.2, 60.0) is first
    assert rows.at(open_s + 61.0, 60.0).until_s[0, 0] == first.until_s[0, 0] - 1


def test_workloads_without_windows_have_one_empty_slot():
    columns = compile_specs((workload(), workload("nobody")), BOOK).windows.at(unix("2026-01-15 09:00"), 0.0)
    for column in (columns.start_s, columns.until_s, columns.replicas, columns.lead_s):
        assert column.shape == (2, 1)
        assert np.isnan(column).all()


def test_rows_follow_their_workloads():
    entry = {"from": "0 8 * * *", "until": "0 18 * * *", "timezone": BERLIN, "replicas": 4, "lead": "5m"}
    book = with_policies(office={"prewarm": [entry]}, double={"prewarm": [entry, {**entry, "replicas": 5}]})
    asked = (workload("office"), workload(), workload("double"), workload("office"))
    columns = compile_specs(asked, book).windows.at(unix("2026-01-15 09:00"), 0.0)
    nan = np.nan
    np.testing.assert_array_equal(columns.replicas, [[4, 4, nan, nan], [nan] * 4, [4, 4, 5, 5], [4, 4, nan, nan]])
    np.testing.assert_array_equal(columns.start_s[0], columns.start_s[3])
