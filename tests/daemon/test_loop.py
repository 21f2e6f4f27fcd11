"""The loop on virtual time, with a cluster and metrics in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import structlog

from autoscaler.adapters.in_memory import AlwaysLeading, RecordingActuator
from autoscaler.config.policy.namespace_limits import NamespaceLimits
from autoscaler.config.policy.parse import load
from autoscaler.core.model.fleet import Fleet, Workload, WorkloadRef
from autoscaler.core.model.samples import Samples, SourceReport
from autoscaler.daemon.loop import Loop, Parts, follower_period_s
from autoscaler.ports import ChangeStatus, Unavailable, Unwritable
from tests.core.world import fleet, samples
from tests.harness.in_memory import LoopClock, MemoryCluster, MemoryRecorder, MemorySamples

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

BOOK = load(())


class Following:
    leading = False


class World:
    """A loop with everything around it."""

    def __init__(
        self,
        *,
        clock=None,
        book=BOOK,
        sources=None,
        actuator=None,
        recorders=(),
        leadership=None,
        sleeper=None,
        deadline_s=30.0,
        period_s=5.0,
    ):
        self.clock = clock or LoopClock()
        self.cluster = MemoryCluster(fleet([2]))
        self.load = {"running": 0.0, "waiting": 0.0}
        self.recorder = MemoryRecorder()
        self.woken = asyncio.Event()
        self.problems = {}
        self.sources = sources or [MemorySamples(self.read)]
        self.actuator = actuator or self.cluster
        self.loop = Loop(
            Parts(
                clock=self.clock,
                workloads=self,
                sources=self.sources,
                actuator=self,
                recorders=[*recorders, self.recorder],
                leadership=leadership or AlwaysLeading(),
                woken=self.woken,
                problems=lambda: self.problems,
                sleeper=sleeper,
            ),
            policies=lambda: book,
            period_s=period_s,
            deadline_s=deadline_s,
        )

    def fleet(self) -> Fleet:
        return replace(self.cluster.fleet(), time_s=self.clock.now_s())

    async def apply(self, changes, deadline_s):
        return await self.actuator.apply(changes, deadline_s)

    def read(self, seen: Fleet) -> Samples:
        return samples(seen, self.clock.now_s(), **self.load)

    @property
    def replicas(self) -> float:
        return self.cluster.fleet().replicas[0]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run())
        try:
            yield
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_first_tick_runs_at_once_and_the_next_after_a_period():
    world = World()
    async with world.running():
        await asyncio.sleep(0.05)
        assert len(world.recorder.ticks) == 1
        await asyncio.sleep(10.0)
    assert [round(tick.now_s) for tick in world.recorder.ticks] == [0, 5, 10]
    assert [tick.number for tick in world.recorder.ticks] == [1, 2, 3]


async def test_problems_of_workloads_are_recorded_with_the_tick():
    world = World()
    workload = world.cluster.fleet().workloads[0]
    world.problems = {workload.ref: "KEDA is refused: x", WorkloadRef("ns", "gone"): "y"}
    world.load = {"running": 200.0, "waiting": 200.0}
    async with world.running():
        await asyncio.sleep(0.05)
    (tick,) = world.recorder.ticks
    assert (tick.problems, tick.policy_problems) == ({0: "KEDA is refused: x"}, {})
    assert tick.outcomes[0].change.reason.endswith(" But KEDA is refused: x.")
    assert tick.outcomes[0].change.has_fresh_input


async def test_priority_above_a_limit_takes_no_gpu_from_others():
    limits = NamespaceLimits.model_validate(
        {
            "apiVersion": "vllm-autoscaler.io/v1",
            "kind": "NamespaceLimits",
            "metadata": {"name": "tenants"},
            "spec": {"namespaces": [{"name": "prod", "maxPriority": 1000}, {"name": "*", "maxPriority": 400}]},
        }
    )
    world = World(book=replace(BOOK, limits=limits))
    workloads = (
        Workload(WorkloadRef("prod", "chat"), uid="a", policy="interactive"),
        Workload(WorkloadRef("team-a", "jobs"), uid="b", policy="interactive", overrides=(("priority", "5000"),)),
    )
    world.cluster = MemoryCluster(fleet([2, 2], workloads=workloads, pool_gpus=[6.0]))
    world.actuator = world.cluster
    world.load = {"running": 200.0, "waiting": 200.0}
    async with world.running():
        await asyncio.sleep(0.05)
    told = "priority: too high for the namespace 'team-a', so 400 counts, found 5000; allowed: at most 400"
    assert world.recorder.ticks[0].problems == {1: told}
    assert world.cluster.fleet().replicas.tolist() == [5, 1]
    outcome = world.recorder.ticks[0].outcomes[0]
    assert str(outcome.change.ref) == "prod/chat"


async def test_load_grows_the_workload_in_the_cluster():
    world = World()
    world.load = {"running": 200.0, "waiting": 200.0}
    async with world.running():
        await asyncio.sleep(0.05)
    assert world.replicas > 2
    outcome = world.recorder.ticks[0].outcomes[0]
    assert outcome.status is ChangeStatus.APPLIED
    assert outcome.change.before == 2
    assert "400 running and 400 waiting" in outcome.change.reason


async def test_retries_back_off_until_a_tick_succeeds():
    tried_s = []

    class Absent(World):
        def fleet(self) -> Fleet:
            tried_s.append(self.clock.now_s())
            if len(tried_s) < 9:
                raise Unavailable("nobody answers")
            return super().fleet()

    async with Absent(period_s=5.0).running():
        await asyncio.sleep(45.0)
    waited_s = [after - before for before, after in pairwise(tried_s)]
    assert waited_s == pytest.approx([0.5, 1, 2, 4, 5, 5, 5, 5, 5, 5, 5], abs=0.01)


async def test_wake_up_starts_a_tick_early_but_no_storm():
    world = World(period_s=60.0)
    async with world.running():
        await asyncio.sleep(1.0)
        for _ in range(100):
            world.woken.set()
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)
    assert 2 <= len(world.recorder.ticks) <= 12


async def test_wake_up_during_a_tick_is_not_missed():
    class Slow:
        async def sample(self, seen, objectives, deadline_s):
            await asyncio.sleep(1.0)
            return samples(seen, world.clock.now_s(), **world.load)

    world = World(period_s=60.0)
    world.sources[:] = [Slow()]
    async with world.running():
        await asyncio.sleep(0.5)
        world.woken.set()  # comes to lead, say, when the tick has already looked
        await asyncio.sleep(2.0)
    assert len(world.recorder.ticks) == 2


async def test_follower_ticks_less_often_and_at_once_when_it_leads():
    leadership = Following()
    world = World(leadership=leadership)
    async with world.running():
        await asyncio.sleep(46.0)
        leadership.leading = True
        world.woken.set()  # by the elector
        await asyncio.sleep(6.0)
    assert [round(tick.now_s - world.recorder.ticks[0].now_s) for tick in world.recorder.ticks] == [
        0,
        30,
        46,
        51,
    ]


@pytest.mark.parametrize(("period_s", "follower_s"), [(0.3, 1.8), (5.0, 30.0), (10.0, 30.0), (45.0, 45.0)])
async def test_follower_period_is_30_s_where_the_period_allows(period_s: float, follower_s: float):
    assert follower_period_s(period_s) == pytest.approx(follower_s)


class Orders:
    """A Sleeper that keeps the orders of each tick."""

    def __init__(self) -> None:
        self.ticks = []

    def order(self, orders, present) -> None:
        self.ticks.append((orders, present))


@pytest.mark.slow
@pytest.mark.parametrize("leads", [True, False])
async def test_leader_orders_engines_to_sleep_and_to_wake(leads: bool):
    """One of two idle pods may sleep; the other one is to serve."""
    sleeper = Orders()
    world = World(sleeper=sleeper, leadership=AlwaysLeading() if leads else Following())
    workload = Workload(WorkloadRef("ns", "w0"), overrides=(("sleep.replicas", "1"), ("sleep.level", "2")))
    world.cluster.state = replace(world.cluster.fleet(), workloads=(workload,))
    async with world.running():
        await asyncio.sleep(900)
    if not leads:
        assert sleeper.ticks == []
        return
    orders, present = sleeper.ticks[-1]
    assert [(order.ref, order.sleeps, order.level, order.is_asleep, order.is_ready) for order in orders] == [
        (workload.ref, True, 2, False, True)
    ]
    assert orders[0].pod in present and len(present) == 2


async def test_follower_decides_but_does_not_act():
    world = World(leadership=Following())
    world.load = {"running": 200.0, "waiting": 200.0}
    record = await world.loop.attempt()
    assert record.decision.replicas[0] > 2
    assert (record.outcomes, record.leading, world.replicas) == ((), False, 2)


async def test_dry_run_records_changes_without_applying_them():
    world = World(actuator=RecordingActuator())
    world.load = {"running": 200.0, "waiting": 200.0}
    record = await world.loop.attempt()
    assert [outcome.status for outcome in record.outcomes] == [ChangeStatus.RECORDED]
    assert world.replicas == 2


async def test_tick_is_retried_soon_when_the_cluster_is_unknown():
    world = World()
    state, world.cluster.state = world.cluster.state, None
    async with world.running():
        await asyncio.sleep(1.1)
        assert world.recorder.ticks == []
        assert [type(error) for error in world.recorder.failures] == [Unavailable] * 2
        world.cluster.state = state
        await asyncio.sleep(0.5)
        assert len(world.recorder.ticks) == 1


async def test_recovery_is_logged_only_after_an_earlier_success():
    world = World()
    state, world.cluster.state = world.cluster.state, None
    with structlog.testing.capture_logs() as logged:
        async with world.running():
            await asyncio.sleep(1.1)
            world.cluster.state = state
            await asyncio.sleep(5.0)
            world.cluster.state = None
            await asyncio.sleep(5.0)
            world.cluster.state = state
            await asyncio.sleep(5.0)
    told = [entry["event"] for entry in logged if "tick" in entry["event"]]
    assert told == ["waiting for the first tick", "first tick", "ticks are failing", "ticks have recovered"]


async def test_failed_tick_is_retried_after_a_period():
    world = World()
    async with world.running():
        await asyncio.sleep(1.0)
        world.cluster.state = None
        await asyncio.sleep(10.0)
    assert len(world.recorder.ticks) == 1
    assert len(world.recorder.failures) == 2


async def test_source_that_raises_loses_only_its_own_readings():
    class Broken:
        async def sample(self, seen, objectives, deadline_s):
            raise RuntimeError("the parser met something new")

    world = World()
    world.sources.insert(0, Broken())
    record = await world.loop.attempt()
    assert record.decision.observation.reporting[0] == 2
    (report,) = record.input.samples.reports
    assert report == SourceReport("Broken", 1, 1, ("RuntimeError: the parser met something new",))


async def test_sources_get_the_objectives_of_present_policies():
    told = []

    class Listening:
        async def sample(self, seen, objectives, deadline_s):
            told.append(objectives)
            return samples(seen, world.clock.now_s(), **world.load)

    world = World(sources=[Listening()])
    record = await world.loop.attempt()
    (objectives,) = told
    assert objectives.ttft_s.tolist() == record.input.spec.ttft_objective_s.tolist() == [1.0]
    assert objectives.itl_s.tolist() == record.input.spec.itl_objective_s.tolist() == [0.1]


async def test_hanging_tick_is_cancelled_at_its_deadline_and_counted():
    class Hanging:
        async def sample(self, seen, objectives, deadline_s):
            await asyncio.sleep(3600)

    world = World(sources=[Hanging()], deadline_s=3.0)
    assert await world.loop.attempt() is None
    assert [type(error) for error in world.recorder.failures] == [TimeoutError]
    assert world.clock.now_s() == pytest.approx(3.0)


async def test_changes_are_recorded_when_sources_use_their_whole_time():
    class Slow(MemorySamples):
        async def sample(self, seen, objectives, deadline_s):
            await asyncio.sleep(deadline_s)
            return await super().sample(seen, objectives, deadline_s)

    class Late:
        async def apply(self, changes, deadline_s):
            outcomes = await world.cluster.apply(changes, deadline_s)
            await asyncio.sleep(deadline_s)  # until the last of the others has failed
            await asyncio.sleep(0.1)  # and that is told
            return outcomes

    world = World(actuator=Late())
    world.sources[0] = Slow(world.read)
    world.load = {"running": 200.0, "waiting": 200.0}
    record = await world.loop.attempt()
    assert record is not None
    assert [outcome.status for outcome in record.outcomes] == [ChangeStatus.APPLIED]
    assert world.replicas == record.decision.replicas[0]


async def test_deleting_a_workload_during_a_tick_harms_no_other():
    world = World()
    gone = fleet([2, 2])
    world.cluster.state = gone
    world.load = {"running": 200.0, "waiting": 200.0}
    whole = world.cluster.fleet

    def without_the_first():
        state = whole()
        return replace(state, workloads=(replace_ref(state.workloads[0], "deleted"), state.workloads[1]))

    class Deleting:
        async def apply(self, changes, deadline_s):
            world.cluster.state = without_the_first()
            return await world.cluster.apply(changes, deadline_s)

    world.actuator = Deleting()
    record = await world.loop.attempt()
    assert [outcome.status for outcome in record.outcomes] == [ChangeStatus.FAILED, ChangeStatus.APPLIED]


def replace_ref(workload, name):
    return workload._replace(ref=workload.ref._replace(name=name))


@pytest.mark.slow
async def test_counts_are_held_when_all_sources_are_silent():
    world = World(sources=[MemorySamples(lambda seen: Samples.unknown(len(seen.workloads), len(seen.pods)))])
    async with world.running():
        await asyncio.sleep(3600.0)
    assert world.replicas == 2
    assert not world.recorder.ticks[-1].decision.trusted[0]


async def test_recorder_that_raises_loses_only_its_own_record():
    class Broken:
        def record(self, tick):
            raise RuntimeError("no colour has this name")

        def failed(self, wall_s, error):
            raise RuntimeError("nor has this")

    world = World(recorders=[Broken()])
    world.load = {"running": 200.0, "waiting": 200.0}
    with structlog.testing.capture_logs() as logged:
        async with world.running():
            await asyncio.sleep(11.0)
            world.cluster.state = None
            await asyncio.sleep(5.0)
    assert [tick.number for tick in world.recorder.ticks] == [1, 2, 3]
    assert world.recorder.failures
    assert world.recorder.ticks[0].outcomes[0].status is ChangeStatus.APPLIED
    told = [entry["recorder"] for entry in logged if entry["event"] == "recorder failed"]
    assert told == ["Broken"]  # once, however often it fails


@pytest.mark.parametrize("error", [BrokenPipeError(), Unwritable("standard output cannot be written: no space")])
async def test_loop_ends_when_its_output_has_no_reader(error: Exception):
    class Closed:
        def record(self, tick):
            raise error

    world = World(recorders=[Closed()])
    with pytest.raises(type(error)):
        await asyncio.wait_for(world.loop.run(), 1.0)


@pytest.mark.parametrize("passes", range(8))
async def test_cancellation_at_the_end_of_a_pause_is_not_swallowed(passes: int):
    world = World(period_s=5.0)
    task = asyncio.create_task(world.loop.run())
    await asyncio.sleep(1.0)
    world.woken.set()  # the pause ends now, in a few passes of the event loop
    for _ in range(passes):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(20.0)
    assert task.cancelled()


@pytest.mark.slow
async def test_a_shrink_names_the_pods_that_should_leave_first():
    world = World(actuator=RecordingActuator())
    world.cluster = MemoryCluster(fleet([3]))
    world.load = {"running": [2.0, 0.0, 1.0], "waiting": 0.0}
    async with world.running():
        await asyncio.sleep(1200.0)
    changes = [outcome.change for tick in world.recorder.ticks for outcome in tick.outcomes]
    shrinks = [change for change in changes if 0 < change.after < change.before]
    assert shrinks
    assert {tuple(pod.name for pod in change.victims) for change in shrinks} == {("p1", "p2", "p0")}
