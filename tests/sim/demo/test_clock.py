import asyncio

import pytest

from autoscaler.sim.demo.clock import DAY_S, MONDAY_WALL_S, CompressedClock


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


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
def test_speed_must_be_a_positive_number(speed: float) -> None:
    with pytest.raises(ValueError, match=rf"speed is {speed:g}; it must be"):
        CompressedClock(speed)
