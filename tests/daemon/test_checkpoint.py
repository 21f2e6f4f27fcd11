"""Over a restart: loops on virtual time that follow each other, with a store between them."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
import structlog

from autoscaler.adapters.in_memory import AlwaysLeading
from autoscaler.config.policy.parse import load
from autoscaler.core.snapshot import ManualOverride, Snapshot
from autoscaler.daemon.checkpoint import MAX_AGE_S, SAVE_PERIOD_S, START_WAIT_S, Checkpointer
from autoscaler.daemon.loop import Loop, Parts
from autoscaler.ports import Unavailable
from tests.core.world import fleet, samples
from tests.harness.in_memory import LoopClock, MemoryCluster, MemoryRecorder, MemorySamples, MemoryState

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime, pytest.mark.slow]

BOOK = load(())


class Clock(LoopClock):
    """A process' clock: its monotonic zero is its own."""

    def __init__(self, born_s: float = 0.0, wall_at_zero_s: float = 1_800_000_000.0) -> None:
        super().__init__(wall_at_zero_s)
        self._born_s = born_s

    def now_s(self) -> float:
        return super().now_s() - self._born_s

    def wall_s(self) -> float:
        return self._wall_at_zero_s + super().now_s()


@dataclass
class MemoryOverrides:
    """Manual overrides in memory."""

    overrides: tuple[ManualOverride, ...] = ()

    def snapshot(self):
        return self.overrides

    def restore(self, overrides):
        self.overrides = tuple(overrides)


class Process:
    """One run of the daemon on a cluster that outlives it."""

    def __init__(self, cluster: MemoryCluster, load: dict[str, float], store, *, otherwise=None, clock=None) -> None:
        self.clock = clock or Clock(asyncio.get_running_loop().time() - 5000.0)
        self.cluster, self.load = cluster, load
        self.recorder = MemoryRecorder()
        self.saved: list[float] = []
        self.loop = Loop(
            Parts(
                clock=self.clock,
                workloads=self,
                sources=[MemorySamples(lambda seen: samples(seen, self.clock.now_s(), **self.load))],
                actuator=cluster,
                recorders=[self.recorder],
                leadership=AlwaysLeading(),
            ),
            policies=lambda: BOOK,
            period_s=5.0,
            deadline_s=30.0,
        )
        self.manual_overrides = MemoryOverrides()
        self.keeper = Checkpointer(self.loop, self.clock, store, otherwise, self.saved.append, self.manual_overrides)

    def fleet(self):
        now_s = self.clock.now_s()
        seen = self.cluster.fleet()
        born_s = np.full(len(seen.pods), now_s - 4000.0)
        return replace(seen, time_s=now_s, pod_created_s=born_s, pod_ready_s=born_s + 80.0)

    @property
    def last(self):
        return self.recorder.ticks[-1]

    @asynccontextmanager
    async def running(self):
        await self.keeper.begin()
        tasks = [asyncio.create_task(self.loop.run()), asyncio.create_task(self.keeper.run())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Slow(MemoryState):
    """A store on a disk that takes its time."""

    takes_s: float = 0.0

    async def load(self):
        await asyncio.sleep(self.takes_s)
        return await super().load()

    async def save(self, snapshot):
        await asyncio.sleep(self.takes_s)
        await super().save(snapshot)


class Broken:
    """A store that cannot be used, until it can."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    async def load(self):
        if self.error:
            raise self.error

    async def save(self, snapshot):
        if self.error:
            raise self.error


def cluster(replicas: int = 3) -> MemoryCluster:
    return MemoryCluster(fleet([replicas]))


async def learned(store, for_s: float = 600.0) -> Process:
    """Run a process that learns on a saturated workload, to its orderly end."""
    process = Process(cluster(), {"running": 20.0, "waiting": 10.0, "generation_tokens": 1.0}, store)
    process.cluster.apply = stand  # nothing is to change but what is learned
    async with process.running():
        await asyncio.sleep(for_s)
    return process


async def stand(changes, deadline_s):
    return []


async def test_first_tick_uses_state_of_the_last_process():
    store = MemoryState()
    before = (await learned(store)).last.decision
    await asyncio.sleep(30.0)
    async with Process(cluster(), {"running": 2.0}, store).running() as later:
        await asyncio.sleep(0.1)
        first = later.last.decision
    assert before.capacity.confidence[0] > 0.8
    assert first.capacity.confidence[0] == before.capacity.confidence[0]
    assert first.capacity.concurrency[0] == pytest.approx(before.capacity.concurrency[0], rel=0.01)
    assert first.observation.cold_start_s[0] == before.observation.cold_start_s[0] == pytest.approx(120.0)


async def test_manual_overrides_survive_a_restart():
    store, override = (
        MemoryState(),
        ManualOverride("uid", "a manual change by an unknown client", 1_800_000_900.0, 300.0),
    )
    process = Process(cluster(), {"running": 1.0}, store)
    process.manual_overrides.overrides = (override,)
    async with process.running():
        await asyncio.sleep(1)
    later = Process(cluster(), {"running": 1.0}, store)
    await later.keeper.begin()
    assert later.manual_overrides.overrides == (override,)


async def test_no_count_drops_when_restarted():
    store = MemoryState()
    await learned(store)
    standing = cluster(5)
    async with Process(standing, {"running": 0.0}, store).running() as later:
        await asyncio.sleep(290.0)  # the policy shrinks after 5 min of watching
        assert {tick.decision.replicas[0] for tick in later.recorder.ticks} == {5}
        await asyncio.sleep(120.0)
    assert standing.fleet().replicas[0] < 5


async def test_state_is_saved_periodically_and_at_shutdown():
    store = MemoryState()
    process = Process(cluster(), {"running": 1.0}, store)
    async with process.running():
        await asyncio.sleep(SAVE_PERIOD_S - 1)
        assert store.saved is None
        await asyncio.sleep(2)
        assert store.saved is not None
        first = store.saved.wall_s
        await asyncio.sleep(20)
    assert store.saved.wall_s > first + 10
    assert process.saved == [first, store.saved.wall_s]


async def test_old_state_is_kept_when_no_tick_succeeded():
    store = MemoryState()
    await learned(store)
    before = store.saved
    process = Process(MemoryCluster(), {}, store)  # a cluster that cannot be read
    async with process.running():
        await asyncio.sleep(3 * SAVE_PERIOD_S)
    assert process.recorder.failures
    assert store.saved is before


async def test_first_tick_waits_a_bounded_time_when_the_store_is_slow():
    store = MemoryState()
    before = (await learned(store)).last.decision
    later = Process(cluster(), {"running": 2.0}, Slow(store.saved, takes_s=20.0))
    began_s = asyncio.get_running_loop().time()
    async with later.running():
        await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() - began_s < START_WAIT_S + 0.5
        assert later.last.decision.capacity.confidence[0] == 0.0
        await asyncio.sleep(25.0)
        assert later.last.decision.capacity.confidence[0] == before.capacity.confidence[0]


async def test_state_is_not_overwritten_when_stopped_while_loading():
    store = MemoryState()
    await learned(store)
    slow = Slow(store.saved, takes_s=60.0)
    async with Process(cluster(), {"running": 2.0}, slow).running():
        await asyncio.sleep(10.0)
    assert slow.saved is store.saved


async def test_shutdown_is_prompt_when_the_store_hangs():
    store = Slow()
    process = Process(cluster(), {"running": 2.0}, store)
    began_s = asyncio.get_running_loop().time()
    async with process.running():
        await asyncio.sleep(1.0)
        store.takes_s = 3600.0
    assert asyncio.get_running_loop().time() - began_s < 10.0


@pytest.mark.parametrize("away_s", [MAX_AGE_S + 360.0, 30.0], ids=["old", "young"])
async def test_state_is_ignored_with_a_warning_when_too_old(away_s: float):
    store = MemoryState()
    await learned(store)
    await asyncio.sleep(away_s)
    with structlog.testing.capture_logs() as logs:
        async with Process(cluster(), {"running": 2.0}, store).running() as later:
            await asyncio.sleep(0.1)
            confident = later.last.decision.capacity.confidence[0] > 0
    assert confident == (away_s < MAX_AGE_S)
    words = [line.get("reason") for line in logs if line["event"] == "state is not used"]
    assert words == ([] if confident else ["it is 12.1 h old; allowed: at most 12 h"])


async def test_restored_state_is_logged_once():
    store = MemoryState()
    await learned(store)
    await asyncio.sleep(40.0)
    with structlog.testing.capture_logs() as logs:
        async with Process(cluster(), {"running": 2.0}, store).running():
            await asyncio.sleep(30.0)
    (line,) = [line for line in logs if line["event"] == "state restored"]
    assert (line["workloads"], line["of"]) == (1, 1)
    assert 40 <= line["age_s"] <= 46


async def test_broken_store_is_logged_once_and_scaling_goes_on():
    store = Broken(Unavailable("state.npz: it ends early"))
    with structlog.testing.capture_logs() as logs:
        async with Process(cluster(), {"running": 2.0}, store).running() as process:
            await asyncio.sleep(3.5 * SAVE_PERIOD_S)
            ticks = len(process.recorder.ticks)
            store.error = None
            await asyncio.sleep(SAVE_PERIOD_S)
            assert len(process.recorder.ticks) > ticks > 80
    told = [(line["event"], line.get("reason") or line.get("error")) for line in logs if "state" in line["event"]]
    assert told == [
        ("state is not used", "state.npz: it ends early"),
        ("state cannot be saved", "state.npz: it ends early"),
        ("state is saved again", None),
    ]


async def test_only_saving_ends_when_the_store_raises():
    with structlog.testing.capture_logs() as logs:
        async with Process(cluster(), {"running": 2.0}, Broken(RuntimeError("a fault"))).running() as process:
            await asyncio.sleep(60.0)
            assert len(process.recorder.ticks) > 10
    assert "state is no longer saved" in [line["event"] for line in logs]


@pytest.mark.parametrize("there", [False, True], ids=["no state", "state"])
async def test_history_is_read_when_there_is_no_state(there: bool):
    history = MemoryState()
    before = (await learned(history)).last.decision
    asked = []

    async def otherwise() -> Snapshot | None:
        asked.append(1)
        await asyncio.sleep(12.0)
        return history.saved

    store = MemoryState(history.saved if there else None)
    async with Process(cluster(), {"running": 2.0}, store, otherwise=otherwise).running() as later:
        await asyncio.sleep(0.1)
        assert later.last.number == 1
        confident = later.last.decision.capacity.confidence[0] > 0
        await asyncio.sleep(20.0)
        assert later.last.decision.capacity.confidence[0] == before.capacity.confidence[0]
    assert (confident, bool(asked)) == (there, not there)


@pytest.mark.parametrize("error", [Unavailable("no answer"), ValueError("an odd answer")])
async def test_unreadable_history_is_logged_and_learning_goes_on(error: Exception):
    async def otherwise() -> Snapshot | None:
        raise error

    store = MemoryState()
    with structlog.testing.capture_logs() as logs:
        async with Process(cluster(), {"running": 2.0}, store, otherwise=otherwise).running():
            await asyncio.sleep(10.0)
    assert "nothing was learned from history" in [line["event"] for line in logs]
    assert store.saved is not None
