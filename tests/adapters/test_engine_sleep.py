"""Sleep and wake-up over the API of engines, with their failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from autoscaler.adapters import engine_sleep
from autoscaler.adapters.engine_sleep import EngineSleep
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Pod, WorkloadRef
from autoscaler.ports import SleepOrder
from tests.harness.sleep_engine import SleepEngine, sleep_engine

REF = WorkloadRef("team", "llama")
PAUSE, RESUME = "/sleep?level=0&mode=wait", "/wake_up"
RELOAD = ["/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache"]


class QuickClock:
    """A clock on which sleeping takes no time."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return self.time_s

    async def sleep(self, duration_s: float) -> None:
        self.time_s += duration_s
        await asyncio.sleep(0)


@dataclass
class Leader:
    leading: bool = True
    has_other_leader: bool = False


@dataclass
class Daemon:
    """A daemon whose ticks order what the test says."""

    sleeper: EngineSleep
    clock: QuickClock
    leader: Leader
    present: list[Pod] = field(default_factory=list)

    def order(self, engine: SleepEngine, *, sleeps: bool, level: int = 1, ready: bool | None = None) -> None:
        """Order as a tick does. Without `ready`, the readiness probe asks /is_sleeping."""
        is_ready = not engine.asleep if ready is None else ready
        self.present = [engine.pod, *self.present]
        self.sleeper.order([SleepOrder(REF, engine.pod, sleeps, level, engine.asleep, is_ready)], self.present)

    async def settle(self, engine: SleepEngine, *, sleeps: bool, level: int = 1, ready: bool | None = None) -> None:
        """Tick until nothing is going on."""
        self.order(engine, sleeps=sleeps, level=level, ready=ready)
        while self.busy:
            await asyncio.sleep(0.001)
            self.order(engine, sleeps=sleeps, level=level, ready=ready)

    @property
    def busy(self) -> bool:
        return any("sleep (" in task.get_name() for task in asyncio.all_tasks())

    @property
    def problem(self) -> str:
        return self.sleeper.problems().get(REF, "")


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  there is no event to wait for
        await asyncio.sleep(0.001)


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    clock, leader = QuickClock(), Leader()
    async with EngineSleep(ScrapeSettings(), clock, leader) as sleeper:
        yield Daemon(sleeper, clock, leader)


@pytest.fixture
async def engine() -> AsyncIterator[SleepEngine]:
    async with sleep_engine() as served:
        yield served


@pytest.mark.parametrize(("level", "weights"), [(1, "offloaded"), (2, "dropped")])
async def test_pod_is_paused_and_leaves_its_services_before_it_sleeps(daemon, engine, level, weights):
    await daemon.settle(engine, sleeps=True, level=level)
    assert engine.calls == [PAUSE, f"/sleep?level={level}&mode=keep"]
    assert (engine.weights, daemon.problem) == (weights, "")


async def test_sleeping_pod_is_called_only_once(daemon, engine):
    await daemon.settle(engine, sleeps=True)
    calls: list[str] = []
    engine.before = calls.append
    for _ in range(5):
        daemon.clock.time_s += 600
        await daemon.settle(engine, sleeps=True)
    assert calls == []


@pytest.mark.parametrize(("level", "calls"), [(1, [RESUME]), (2, RELOAD)])
async def test_wake_up_follows_the_level_of_the_engine(daemon, engine, level, calls):
    engine.sleep(level)
    await daemon.settle(engine, sleeps=False)
    assert engine.calls == calls
    assert not (engine.asleep or engine.serves_garbage)


async def test_wake_up_restores_weights_when_the_level_has_changed(daemon, engine):
    engine.sleep(2)
    await daemon.settle(engine, sleeps=False, level=1)
    assert (engine.calls, engine.serves_garbage) == (RELOAD, False)


@pytest.mark.parametrize("step", RELOAD)
async def test_engine_is_not_served_when_a_step_of_its_wake_up_fails(daemon, engine, step):
    engine.sleep(2)
    engine.fail[step] = 500
    await daemon.settle(engine, sleeps=False, level=2)
    assert engine.asleep and not engine.serves_garbage
    assert "does not wake" in daemon.problem and "HTTP 500" in daemon.problem
    before = len(engine.calls)
    await daemon.settle(engine, sleeps=False, level=2)  # its next try is not due
    assert len(engine.calls) == before
    engine.fail.clear()
    daemon.clock.time_s += 60
    await daemon.settle(engine, sleeps=False, level=2)
    assert (engine.asleep, engine.serves_garbage, daemon.problem) == (False, False, "")


async def test_another_daemon_completes_a_wake_up(engine):
    """The first daemon ends after the weights are allocated, before they are loaded."""
    engine.sleep(2)
    engine.wait["/collective_rpc"] = asyncio.Event()
    async with EngineSleep(ScrapeSettings(), QuickClock(), Leader()) as sleeper:
        daemon = Daemon(sleeper, QuickClock(), Leader())
        daemon.order(engine, sleeps=False, level=2)
        await until(lambda: "/collective_rpc" in engine.calls)
    assert engine.asleep
    engine.wait.clear()
    async with EngineSleep(ScrapeSettings(), QuickClock(), Leader()) as sleeper:
        await Daemon(sleeper, QuickClock(), Leader()).settle(engine, sleeps=False, level=2)
    assert (engine.calls[-3:], engine.asleep, engine.serves_garbage) == (RELOAD, False, False)


async def test_pod_is_resumed_when_requests_come_as_it_leaves_services(daemon, engine):
    engine.before = lambda call: setattr(engine, "held", 2) if call == PAUSE else None
    await daemon.settle(engine, sleeps=True)
    assert engine.calls == [PAUSE, RESUME]
    assert "2 requests came" in daemon.problem


async def test_pod_is_resumed_when_its_probe_does_not_see_the_sleep(daemon, engine):
    await daemon.settle(engine, sleeps=True, ready=True)
    assert (engine.calls, engine.asleep) == ([PAUSE, RESUME], False)
    assert "must ask /is_sleeping" in daemon.problem
    daemon.clock.time_s += 86_400
    await daemon.settle(engine, sleeps=True, ready=True)
    assert engine.calls == [PAUSE, RESUME], "another try would hold up requests again"
    async with sleep_engine() as other:
        await daemon.settle(other, sleeps=True)
        assert other.calls == [], "its probe is the same"
        daemon.present.clear()
        daemon.present.append(other.pod)
        daemon.sleeper.order([], daemon.present)
        await daemon.settle(other, sleeps=True)
        assert (other.asleep, daemon.problem) == (True, "")


async def test_pod_is_resumed_when_it_is_needed_after_all(daemon, engine):
    engine.before = lambda call: daemon.order(engine, sleeps=False) if call == "/load" else None
    daemon.order(engine, sleeps=True, ready=True)
    await until(lambda: not daemon.busy)
    assert (engine.calls, engine.asleep, daemon.problem) == ([PAUSE, RESUME], False, "")


async def test_paused_pod_is_resumed_when_its_workload_is_unmanaged(daemon, engine):
    engine.before = lambda call: daemon.sleeper.order([], daemon.present) if call == "/load" else None
    daemon.order(engine, sleeps=True, ready=True)
    await until(lambda: not daemon.busy)
    assert engine.calls == [PAUSE, RESUME]


async def test_paused_pod_is_resumed_when_the_daemon_ends(engine):
    async with EngineSleep(ScrapeSettings(), QuickClock(), Leader()) as sleeper:
        daemon = Daemon(sleeper, QuickClock(), Leader())
        engine.wait["/load"] = asyncio.Event()
        daemon.order(engine, sleeps=True, ready=True)
        await until(lambda: PAUSE in engine.calls)
    assert (engine.calls, engine.asleep) == ([PAUSE, RESUME], False)


async def test_paused_pod_is_left_to_the_next_leader(daemon, engine):
    def lose(call: str) -> None:
        daemon.leader.leading = daemon.leader.leading and call != "/load"

    engine.before = lose
    daemon.order(engine, sleeps=True, ready=True)
    await until(lambda: not daemon.busy)
    assert engine.calls == [PAUSE]
    engine.before = lambda call: None
    async with EngineSleep(ScrapeSettings(), QuickClock(), Leader()) as sleeper:
        await Daemon(sleeper, QuickClock(), Leader()).settle(engine, sleeps=True)
    assert engine.calls == [PAUSE, PAUSE, "/sleep?level=1&mode=keep"]


@pytest.mark.parametrize(("level", "undone"), [(1, [RESUME]), (2, [])])
async def test_weights_of_unknown_state_are_not_served(daemon, engine, level, undone):
    """Where the release of level 2 fails, a plain wake-up might serve without weights."""
    release = f"/sleep?level={level}&mode=keep"
    engine.fail[release] = 500
    await daemon.settle(engine, sleeps=True, level=level)
    assert engine.calls == [PAUSE, release, *undone]
    assert "HTTP 500" in daemon.problem
    engine.weights = "garbage" if level == 2 else engine.weights
    await daemon.settle(engine, sleeps=False, level=level)
    assert not (engine.asleep or engine.serves_garbage)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dev_mode": False}, "VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"),
        ({"version": "0.16.2"}, "allowed: vLLM 0.17 or later"),
        ({"version": "nightly"}, "allowed: vLLM 0.17 or later"),
        ({"sleep_mode": False}, "HTTP 500"),
        ({"fail": {"/is_sleeping": 503}}, "HTTP 503"),
    ],
)
async def test_engine_that_cannot_sleep_goes_on_serving(daemon, fields, expected):
    async with sleep_engine(**fields) as engine:
        await daemon.settle(engine, sleeps=True)
        assert expected in daemon.problem
        assert not engine.asleep


async def test_unreachable_pod_is_reported(daemon):
    engine = SleepEngine(port=1)
    await daemon.settle(engine, sleeps=False)
    assert "connection refused" in daemon.problem


async def test_pod_that_restarts_is_awake(daemon, engine):
    await daemon.settle(engine, sleeps=True)
    engine.restart()
    engine.calls.clear()
    await daemon.settle(engine, sleeps=False)
    assert (engine.calls, daemon.problem) == ([], "")


async def test_pod_that_a_rival_woke_sleeps_again(daemon, engine):
    await daemon.settle(engine, sleeps=True)
    engine.wake_up([])
    engine.calls.clear()
    await daemon.settle(engine, sleeps=True)
    assert engine.calls == [], "the metrics may lag behind"
    daemon.clock.time_s += 2 * engine_sleep.LAG_S
    await daemon.settle(engine, sleeps=True)
    assert engine.calls == [PAUSE, "/sleep?level=1&mode=keep"]


async def test_weights_are_reloaded_where_an_awake_engine_still_sleeps(daemon, engine):
    """Older versions report `awake` as soon as the weights are allocated."""
    engine.sleep(2)
    engine.wake_up(["weights"])
    engine.reports_early = True
    await daemon.settle(engine, sleeps=False)
    assert (engine.calls, engine.serves_garbage) == (RELOAD, False)


@pytest.mark.parametrize("body", ["", "[]", "{", "[" * 20_000, '{"is_sleeping": "yes"}', "x" * 100_000])
async def test_hostile_answers_are_problems(daemon, body):
    async with sleep_engine(body=body) as odd:
        await daemon.settle(odd, sleeps=True)
        assert "/is_sleeping" in daemon.problem
        assert len(daemon.problem) < 200
