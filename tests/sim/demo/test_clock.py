import asyncio
import math

import pytest

from autoscaler.sim.demo.clock import DAY_S, MONDAY_WALL_S, CompressedClock, Pace


def test_clock_runs_at_the_given_speed_from_the_given_time() -> None:
    real_s = 100.0
    clock = CompressedClock(speed=60, start_s=3600, real_s=lambda: real_s)
    assert clock.now_s() == 3600
    real_s = 102.5
    assert clock.now_s() == 3600 + 150
    assert clock.wall_s() == MONDAY_WALL_S + 3750


def test_first_simulated_midnight_is_a_monday_in_utc() -> None:
    assert MONDAY_WALL_S % DAY_S == 0
    assert (MONDAY_WALL_S / DAY_S + 3) % 7 == 0  # 1970-01-01 was a Thursday


@pytest.mark.looptime
async def test_sleep_takes_simulated_seconds() -> None:
    loop = asyncio.get_running_loop()
    clock = CompressedClock(speed=60, start_s=0, real_s=loop.time)
    await clock.sleep(30)
    assert clock.now_s() == pytest.approx(30)
    assert loop.time() == pytest.approx(0.5)
    await clock.sleep(-1)
    assert clock.now_s() == pytest.approx(30)


def test_held_clock_drops_time_and_goes_on_from_there() -> None:
    real_s = 0.0
    clock = CompressedClock(speed=60, start_s=0, real_s=lambda: real_s)
    clock.hold_at(90)
    real_s = 10.0
    assert clock.now_s() == 90
    assert clock.dropped_s == 510
    clock.hold_at(1000)
    real_s = 11.0
    assert clock.now_s() == 150
    clock.hold_at(30)
    assert clock.now_s() == 150, "a clock does not go back"


@pytest.mark.looptime
async def test_sleep_lasts_until_the_held_clock_has_passed_it() -> None:
    loop = asyncio.get_running_loop()
    clock = CompressedClock(speed=60, start_s=0, real_s=loop.time)
    clock.hold_at(10)
    loop.call_later(5, clock.hold_at, math.inf)
    await clock.sleep(30)
    assert clock.now_s() >= 30 - 1e-6
    assert loop.time() == pytest.approx(5 + 20 / 60, abs=0.02)


def test_pace_holds_the_clock_for_simulation_and_ticks() -> None:
    real_s = 0.0
    clock = CompressedClock(speed=60, start_s=0, real_s=lambda: real_s)
    pace = Pace(clock, tick_s=30)
    pace.simulated(0.0)
    real_s = 1.0
    assert clock.now_s() == Pace.AHEAD_S
    pace.simulated(1000.0)
    pace.failed(0.0, TimeoutError())
    real_s = 2.0
    assert clock.now_s() == Pace.AHEAD_S + 30


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
def test_speed_must_be_a_positive_number(speed: float) -> None:
    with pytest.raises(ValueError, match=rf"speed is {speed:g}; it must be"):
        CompressedClock(speed)
