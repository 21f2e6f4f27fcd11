"""The inputs of the model, each compared with the truth of a generated load."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.demand.bursts import find_bursts, profile_bursts, surroundings
from autoscaler.demand.halves import Half
from autoscaler.demand.shape import bands, hours_of, measure_concurrency, measure_queue
from autoscaler.demand.windows import JumpWindow, find_window, window_floors
from autoscaler.report.idle import find_rest
from tests.report.loads import START_S, STEP_S, load_of, profiles_of

UTC, BERLIN, LORD_HOWE = ZoneInfo("UTC"), ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe")
DAY = 1440  # steps


def flat(days=4.0, demand=2.0, count=4.0):
    steps = round(days * DAY)
    return np.full((steps, 1), demand), np.full((steps, 1), count)


def with_bursts(starts, length, factor, days=4.0):
    """Return a load of 20 requests a second with bursts at these steps."""
    demand, counts = flat(days)
    for start in starts:
        demand[start : start + length] *= factor
    return load_of(demand, counts)


def local_day(low, high, first, last, days=10, zone=BERLIN, workdays=True, start_s=START_S):
    """Return a load that is high between two hours of the clock of a zone."""
    steps = days * DAY
    clock = [datetime.fromtimestamp(start_s + (step + 0.5) * STEP_S, zone) for step in range(steps)]
    demand = [high if first <= at.hour < last and not (workdays and at.weekday() > 4) else low for at in clock]
    load = load_of(np.array(demand)[:, None], np.full((steps, 1), 10.0))
    return replace(load, span=load.span._replace(start_s=start_s))


def test_floor_is_held_in_95_of_100_hours():
    demand, counts = flat(days=100 / 24, demand=5.0)
    demand[: 4 * 60] = 0.5  # four hours of a hundred
    found = measure_concurrency(hours_of(load_of(demand, counts), UTC))
    assert found.floor[0] == pytest.approx(50)  # ten requests for each busy replica
    assert found.floor_replicas[0] == pytest.approx(5)
    assert found.high[0] == pytest.approx(50)


def test_floor_is_unknown_when_less_than_a_day_was_seen():
    found = measure_concurrency(hours_of(load_of(*flat(days=0.9)), UTC))
    assert np.isnan(found.floor[0])


def test_hours_that_were_hardly_seen_count_nowhere():
    demand, counts = flat(days=2.0)
    seen = np.ones(demand.shape, bool)
    seen[: DAY + 40] = False
    hours = hours_of(load_of(demand, counts, seen=seen), UTC)
    assert np.isnan(hours.demand[:24]).all()
    assert measure_concurrency(hours).hours[0] <= 24


def test_bands_follow_the_clock_of_the_zone():
    hours = hours_of(local_day(1.0, 6.0, 9, 17), BERLIN)
    low, middle, high = bands(hours, hours.demand, hours.hour, 24)[:, :, 0]
    assert middle[9] == middle[16] == 6.0
    assert middle[8] == middle[17] == 1.0
    assert low[12] == 1.0  # at the weekend
    assert high[12] == 6.0
    by_day = bands(hours, hours.demand, hours.weekday, 7)[1, :, 0]
    assert by_day[5] == by_day[6] == 1.0


def test_hours_follow_a_zone_off_by_half_an_hour():
    hours = hours_of(load_of(*flat(days=1.0)), ZoneInfo("Asia/Kolkata"))
    assert set(np.diff(hours.hour).tolist()) == {1, -23}
    at = datetime.fromtimestamp(START_S + hours.starts[1] * STEP_S, ZoneInfo("Asia/Kolkata"))
    assert at.minute == 0


@pytest.mark.parametrize(("length", "noise"), [(1, 1), (2, 0), (30, 0)])
def test_burst_is_noise_when_it_is_shorter_than_a_start(length, noise):
    load = with_bursts([700, 2000, 3500], length, 3.0)
    bursts = find_bursts(load)
    found = profile_bursts(bursts, load, profiles_of())
    assert [burst.start_s for burst in bursts[0]] == [START_S + at * STEP_S for at in (700, 2000, 3500)]
    assert found.bursts[0] == 3
    assert found.noise[0] == 3 * noise  # a start takes two steps
    assert found.duration_max_s[0] == length * STEP_S
    assert found.height_max[0] == pytest.approx(3.0)
    assert found.extra_replicas[0] == pytest.approx(0.0 if noise else 4.0, rel=1e-3)


def test_shape_of_a_day_is_no_burst():
    assert find_bursts(local_day(1.0, 6.0, 9, 17))[0] == []


@pytest.mark.parametrize("minutes", [15, 45, 100])
def test_rest_of_a_level_at_the_border_of_the_span_is_no_burst(minutes):
    demand, counts = flat(demand=1.0)
    demand[:minutes] = demand[-minutes:] = 6.0
    demand[700:720] = 6.0
    (burst,) = find_bursts(load_of(demand, counts))[0]
    assert burst.start_s == START_S + 700 * STEP_S


@given(st.integers(0, 60), st.integers(181, 600), st.floats(0.0, 2.0))
def test_edges_of_a_higher_level_are_no_bursts(start, length, low):
    demand, counts = flat(demand=low)
    for day in range(4):
        demand[day * DAY + 420 + start : day * DAY + 420 + start + length] = 6.0
    assert find_bursts(load_of(demand, counts))[0] == []


@given(st.integers(0, 2**32), st.floats(0.05, 5.0))
def test_chance_is_no_burst(seed, demand):
    counts = np.random.default_rng(seed).poisson(demand * STEP_S / 0.1, (DAY, 1))
    load = load_of(counts * 0.1 / STEP_S, np.full((DAY, 1), 6.0))
    assert len(find_bursts(load)[0]) <= 1


@given(st.integers(0, 2**32))
def test_surroundings_are_the_median_by_hand(seed):
    values = np.random.default_rng(seed).uniform(0, 9, (200, 2))
    values[40:50] = np.nan
    found = surroundings(values, 60.0)
    blocks = [np.nanmedian(values[at : at + 15], axis=0) for at in range(0, 200, 15)]
    for step in (0, 47, 100, 199):
        near = blocks[max(step // 15 - 6, 0) : step // 15 + 7]
        assert found[step] == pytest.approx(np.median(near, axis=0))


def test_depth_that_becomes_a_breach_is_found():
    demand, counts = flat(days=2.0)
    waiting = np.zeros_like(demand)
    waiting[100:200] = np.linspace(1, 80, 100)[:, None]  # 20 for each of four replicas
    missed = np.where(waiting / 4 >= 8, 0.9, 0.02)
    found = measure_queue(load_of(demand, counts, waiting=waiting, missed_share=missed.astype(np.float32)))
    assert found.breach_depth[0] == pytest.approx(8, abs=0.3)
    assert found.breach_errors[0] == 0
    assert found.queued_min[0] == 100
    assert found.deepest[0] == pytest.approx(20)
    assert found.wait_p50_s[0] == pytest.approx(20 * 0.1 / 2, rel=0.1)  # replicas serve ten requests a second each


def test_depth_is_unknown_when_nothing_missed():
    demand, counts = flat(days=1.0)
    found = measure_queue(load_of(demand, counts, waiting=np.full_like(demand, 4.0)))
    assert np.isnan(found.breach_depth[0])
    assert found.deepest[0] == 1


def test_window_is_found_where_demand_jumps_on_workdays():
    window = find_window(hours_of(local_day(1.0, 6.0, 9, 17), BERLIN), 0)
    assert window.cron == ("0 9 * * mon-fri", "0 17 * * *")
    assert window.demand == pytest.approx(6.0)
    assert window.covers(16, 4)
    assert not window.covers(17, 4)
    assert not window.covers(12, 5)


@pytest.mark.parametrize(
    ("zone", "changed_on"),
    [
        (BERLIN, datetime(2026, 3, 29, tzinfo=BERLIN)),
        (BERLIN, datetime(2026, 10, 25, tzinfo=BERLIN)),
        (LORD_HOWE, datetime(2026, 4, 5, tzinfo=LORD_HOWE)),  # half an hour back, and forward
        (LORD_HOWE, datetime(2026, 10, 4, tzinfo=LORD_HOWE)),
    ],
)
def test_window_keeps_its_hour_when_daylight_saving_changes(zone, changed_on):
    load = local_day(1.0, 6.0, 9, 17, start_s=changed_on.timestamp() - 5 * 86_400, workdays=False, zone=zone)
    hours = hours_of(load, zone)
    assert find_window(hours, 0).cron == ("0 9 * * *", "0 17 * * *")
    for at, hour, weekday, day in zip(hours.starts, hours.hour, hours.weekday, hours.day, strict=True):
        seen = datetime.fromtimestamp(load.span.start_s + (at + 0.5) * STEP_S, zone)
        assert (seen.hour, seen.weekday(), seen.toordinal()) == (hour, weekday, day)
    assert set(hours.demand[:, 0].tolist()) == {1.0, 6.0}  # no hour has parts of two
    by_utc = find_window(hours_of(load, UTC), 0)
    assert by_utc is None or by_utc.cron != ("0 9 * * *", "0 17 * * *")


@pytest.mark.parametrize(
    ("changed_on", "first", "last", "hours_of_change"),
    [
        ("2026-03-29", 22, 5, 6),  # the window of the night before crosses the change
        ("2026-10-25", 22, 5, 8),
        ("2026-03-29", 2, 6, 3),  # two o'clock is left out
        ("2026-10-25", 2, 6, 5),  # it comes twice
        ("2026-03-29", 9, 17, 8),
        ("2026-10-25", 9, 17, 8),
    ],
)
def test_window_of_a_draft_crosses_the_change_of_clocks(changed_on, first, last, hours_of_change):
    start_s = datetime.fromisoformat(changed_on).replace(tzinfo=BERLIN).timestamp() - 86_400 - 12 * 3600
    load = local_day(1.0, 1.0, 0, 0, days=3, start_s=start_s)
    half = Half(load, profiles_of(cold_start_s=600.0), hours_of(load, BERLIN))
    asked = ~np.isnan(window_floors(half, [JumpWindow(first, last, False, 4.0, 9)])[:, 0])
    edges = np.flatnonzero(np.diff(asked, prepend=False, append=False)).reshape(-1, 2)
    begin, end = ([datetime.fromtimestamp(start_s + step * STEP_S, BERLIN) for step in column] for column in edges.T)
    (place,) = (place for place, at in enumerate(end) if at.date().isoformat() == changed_on and at.hour == last)
    assert (end[place].hour, end[place].minute) == (last, 0)
    lasted_s = end[place].timestamp() - begin[place].timestamp()
    assert lasted_s == hours_of_change * 3600 + 600  # and a cold start
    assert {(at.hour, at.minute) for at in end[:-1]} == {(last, 0)}


def test_window_is_found_on_all_days_and_past_midnight():
    steps = 10 * DAY
    hour = (START_S + (np.arange(steps) + 0.5) * STEP_S) / 3600 % 24
    demand = np.where((hour >= 22) | (hour < 3), 8.0, 1.0)[:, None]
    window = find_window(hours_of(load_of(demand, np.full((steps, 1), 10.0)), UTC), 0)
    assert window.cron == ("0 22 * * *", "0 3 * * *")
    assert window.covers(2, 0)
    assert not window.covers(3, 0)


@pytest.mark.parametrize(
    "load",
    [load_of(*flat(days=10.0)), local_day(1.0, 1.8, 9, 17), local_day(5.0, 7.4, 9, 17), local_day(1, 6, 9, 17, 2)],
)
def test_no_window_where_demand_does_not_jump_or_too_few_days_show_it(load):
    assert find_window(hours_of(load, BERLIN), 0) is None


def test_rest_takes_the_idle_time_that_saves_most_within_the_budget():
    steps = 7 * DAY
    demand = np.zeros((steps, 1))
    for day in range(7):  # one hour of work a day, with breaks of seven minutes
        for part in range(4):
            start = day * DAY + 600 + part * 15
            demand[start : start + 8] = 3.0
    load = load_of(demand, np.full((steps, 1), 4.0))
    rest = find_rest(load, 0, 120.0, 0.2)
    assert rest.idle_s == 600  # five minutes would sleep in each break
    assert rest.wakes == 8
    assert rest.missed_share == pytest.approx(7 * 2 / (7 * 32), rel=1e-3)
    assert find_rest(load, 0, 120.0, 0.01) is None
    assert find_rest(load_of(*flat()), 0, 120.0, 0.5) is None


def test_unseen_time_is_no_silence():
    demand, counts = flat(days=4.0)
    demand[DAY : 2 * DAY] = 0
    seen = np.ones(demand.shape, bool)
    seen[DAY : 2 * DAY] = False
    assert find_rest(load_of(demand, counts, seen=seen), 0, 120.0, 0.5) is None
