"""The wall clock jumps (NTP, a suspended machine, a dead battery); decisions go by the monotonic one."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from autoscaler.adapters.web.readiness import Readiness
from autoscaler.config.policy.parse import load
from tests.daemon.test_loop import World
from tests.harness.in_memory import LoopClock

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

DAY_S = 86_400.0
STEPS_S = (3600.0, -3600.0, 30 * DAY_S, -365 * DAY_S, 20 * 365 * DAY_S, -50 * 365 * DAY_S)
NIGHT_S = 1_800_000_000.0 // DAY_S * DAY_S  # midnight, UTC
MORNING = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: interactive}
spec:
  replicas: {min: 1, max: 8}
  prewarm: [{from: "0 8 * * *", until: "0 19 * * *", replicas: 5, lead: 0s}]
"""


class SteppingClock(LoopClock):
    """A clock whose wall time a test sets forth and back."""

    step_s = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self.step_s


@pytest.mark.slow
@pytest.mark.parametrize("step_s", STEPS_S)
async def test_counts_stay_when_the_wall_clock_steps(step_s: float):
    clock = SteppingClock()
    readiness = Readiness(clock, max_age_s=40.0)
    world = World(clock=clock, recorders=[readiness])
    world.load = {"running": 24.0, "waiting": 0.0}  # 48 of 51 that two replicas are to hold
    async with world.running():
        await asyncio.sleep(120.0)
        clock.step_s = step_s
        await asyncio.sleep(20.0)
        assert readiness.check().ready
        await asyncio.sleep(100.0)
    assert world.recorder.failures == []
    assert world.replicas == 2
    assert {later.now_s - earlier.now_s for earlier, later in pairwise(world.recorder.ticks)} == {5.0}
    assert all(tick.decision.trusted[0] for tick in world.recorder.ticks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step_s", [STEPS_S[0], *(pytest.param(each, marks=pytest.mark.long) for each in STEPS_S[1:-1]), STEPS_S[-1]]
)
async def test_idle_timeout_ignores_the_wall_clock(step_s: float):
    clock = SteppingClock()
    world = World(clock=clock)
    async with world.running():
        await asyncio.sleep(60.0)
        clock.step_s = step_s
        await asyncio.sleep(200.0)
        assert world.replicas == 2, "a whole stabilization window of 5 minutes has not been seen"
        await asyncio.sleep(60.0)
        assert world.replicas == 1


async def test_schedule_windows_follow_the_wall_clock(tmp_path: Path):
    policy = tmp_path / "morning.yaml"
    policy.write_text(MORNING)
    clock = SteppingClock(NIGHT_S)
    world = World(clock=clock, book=load([policy]))
    async with world.running():
        await asyncio.sleep(60.0)
        assert world.replicas == 2
        clock.step_s = 9 * 3600.0
        await asyncio.sleep(60.0)
        assert world.replicas == 5
        clock.step_s = -5 * 3600.0
        await asyncio.sleep(60.0)
        assert world.replicas == 5, "less is wanted, and not at once"
    assert world.recorder.failures == []
