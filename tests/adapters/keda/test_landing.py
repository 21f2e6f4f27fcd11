"""The whole way: decisions in, calls as KEDA makes them over a connection, doubles of KEDA and the HPA, counts out."""

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerStub
from autoscaler.adapters.keda.server import KedaServer
from autoscaler.config.settings import KedaSettings
from tests.adapters.keda.world import METADATA, Row, World, scaled_object
from tests.hpa import EXACT, SYNC_PERIOD_S, Direction, Executor, Hpa, Policy
from tests.operator import Backoff, Fallback, Fixed, Operator, Scaler, Trigger


class Plant:
    """One workload behind KEDA: the count stands in the cluster, and each step of 15 s polls, then syncs the HPA."""

    def __init__(self, world: World, scaler: Scaler) -> None:
        self.world, self.scaler = world, scaler
        self.serving = True  # whether the daemon listens
        scaler.reachable = lambda: self.serving
        self.keda = self.operator()

    def operator(self, *others: Trigger, **changes: object) -> Operator:
        """Return a KEDA that has just seen the ScaledObject, with other triggers beside ours."""
        hpa = Hpa(max_replicas=200, up=EXACT, down=EXACT)
        self.keda = Operator([self.scaler, *others], hpa, Executor(cooldown_s=30), **changes)
        return self.keda

    @property
    def hpa(self) -> Hpa:
        return self.keda.hpa

    async def step(self, wanted: int | None) -> int:
        """Decide (None: the daemon decides nothing any more), let KEDA and the HPA act; return the count."""
        self.world.clock.time_s += SYNC_PERIOD_S
        now_s = self.world.clock.time_s
        if wanted is not None:
            standing = self.hpa.replicas
            self.world.decide(Row("llama", wanted, current=standing, pods=standing + self.hpa.surge))
        if not self.keda.written:
            await self.keda.write_hpa()
        await self.keda.poll(now_s)
        return await self.keda.sync(now_s)


@pytest_asyncio.fixture
async def plant() -> AsyncIterator[Plant]:
    world = World()
    async with (
        KedaServer(KedaSettings(host="127.0.0.1", port=0), world.service, world.lease, grace_s=0.1) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        reference = pb.ScaledObjectRef(namespace="prod", name="llama", scalerMetadata=METADATA)
        yield Plant(world, Scaler(ExternalScalerStub(channel), reference))


async def test_with_the_shipped_behaviour_every_decision_is_the_count_one_sync_later(plant: Plant):
    decisions = [7, 8, 20, 21, 22, 40, 39, 38, 10, 11, 10, 3, 200, 1]
    assert [await plant.step(wanted) for wanted in decisions] == decisions


async def test_to_zero_after_the_cooldown_and_from_zero_over_one_to_the_wanted_count(plant: Plant):
    assert await plant.step(5) == 5
    assert [await plant.step(0) for _ in range(3)] == [1, 0, 0]
    assert await plant.step(4) == 4  # KEDA makes 1, the HPA's next sync makes 4
    assert await plant.step(0) == 1


async def test_when_the_daemon_falls_silent_the_count_stays_for_ever(plant: Plant):
    await plant.step(9)
    assert [await plant.step(None) for _ in range(20)] == [9] * 20
    assert await plant.step(3) == 3


async def test_a_restarted_daemon_that_trusts_nothing_yet_moves_nothing(plant: Plant):
    plant.hpa.replicas = 6
    plant.world.decide(Row("llama", 0, current=6, trusted=False))
    assert [await plant.step(None) for _ in range(3)] == [6, 6, 6]


@pytest.mark.parametrize(
    ("start", "wanted", "lands"),
    [(10, 12, 12), (10, 11, 10), (11, 10, 10), (19, 18, 18), (20, 19, 20), (20, 18, 18)],
)
async def test_under_the_default_tolerance_the_count_is_reached_or_reported_as_swallowed(
    plant: Plant, start: int, wanted: int, lands: int
):
    plant.world.cluster.add(scaled_object("llama", tolerance_up=None, tolerance_down=None))
    free = (Policy("Pods", 1000),)
    plant.keda.hpa = Hpa(max_replicas=200, up=Direction(0, free), down=Direction(0, free), replicas=start)
    assert await plant.step(wanted) == lands
    assert plant.world.answers.swallowed(scaled_object("llama").target) == (lands != wanted)
    assert await plant.step(wanted) == lands  # and it stays there


@pytest.mark.parametrize(("wanted", "surge"), [(4, 1), (12, 1), (20, 2), (30, 3), (40, 10)])
async def test_a_roll_out_that_keeps_more_pods_leaves_the_count_where_it_is(plant: Plant, wanted: int, surge: int):
    plant.world.cluster.add(scaled_object("llama", tolerance_up=None, tolerance_down=None))
    plant.keda.hpa = Hpa(max_replicas=200, replicas=wanted, surge=surge)
    assert [await plant.step(wanted) for _ in range(4)] == [wanted] * 4
    assert not plant.world.answers.swallowed(scaled_object("llama").target)


async def test_the_spec_is_asked_before_the_value_and_the_activity(plant: Plant):
    await plant.step(4)
    round_of = ["GetMetricSpec", "GetMetrics", "IsActive"]
    assert plant.scaler.calls == ["GetMetricSpec", *round_of, *round_of]  # the HPA is written, a poll, a query
    assert plant.keda.metrics == ["s0-replicas"]


async def test_the_fallback_sets_in_when_the_value_is_refused(plant: Plant):
    """A ScaledObject that is wrong from the start gets its HPA, its fallback and the reason."""
    plant.world.cluster.add(scaled_object("llama", problem="metricType: multiplies our count, found 'Value'"))
    keda = plant.operator(fallback=Fallback(replicas=6, failure_threshold=3))
    assert [await plant.step(2) for _ in range(3)] == [1, 6, 6]  # a poll and a query fail every 15 s
    assert keda.metrics == ["s0-replicas"]
    assert "INVALID_ARGUMENT: ScaledObject prod/llama: metricType: multiplies our count, found 'Value'" in keda.events
    plant.world.cluster.add(scaled_object("llama"))
    assert await plant.step(2) == 2


async def test_count_is_held_beside_a_trigger_when_value_is_refused(plant: Plant):
    keda = plant.operator(Fixed("cron", 0))
    assert await plant.step(4) == 4
    plant.world.clock.time_s += 300  # the daemon's inputs are too old for its policy
    assert await keda.write_hpa(), "the ScaledObject is edited meanwhile"
    assert keda.metrics == ["s0-replicas", "s1-cron"]
    assert [await plant.step(None) for _ in range(4)] == [4, 4, 4, 4]
    assert await plant.step(3) == 3


async def test_a_scaler_that_fails_the_spec_loses_the_hpa_and_the_fallback(plant: Plant):
    """What KEDA does to a scaler that cannot be reached: the daemon must never bring this about by refusing."""
    plant.serving = False
    keda = plant.operator(fallback=Fallback(replicas=6))
    assert not await keda.write_hpa()
    assert [await plant.step(4) for _ in range(6)] == [1] * 6
    assert (keda.metrics, keda.failures, set(keda.events)) == (
        [],
        {},
        {"got empty metric spec", "no metric specs returned from scalers"},
    )
    keda = plant.operator(Fixed("cron", 0), fallback=Fallback(replicas=6))
    keda.hpa.replicas = 4
    assert [await plant.step(4) for _ in range(3)] == [1, 1, 1]  # cron alone decides
    assert keda.metrics == ["s1-cron"]
    plant.serving = True
    assert await plant.step(4) == 1, "and goes on to, until the HPA is written anew"
    await keda.write_hpa()
    assert await plant.step(4) == 4


async def test_the_count_stays_when_the_daemon_is_gone_and_the_hpa_stands(plant: Plant):
    keda = plant.operator(fallback=Fallback(replicas=1))
    assert await plant.step(5) == 5
    plant.serving = False
    assert [await plant.step(None) for _ in range(20)] == [5] * 20  # no fallback: only specs fail
    assert keda.failures[0, "replicas"] == 0


async def test_a_client_that_backed_off_finds_the_daemon_late(plant: Plant):
    """After 130 s of refused connections KEDA's next try may be most of two minutes away."""
    client, down_s, tries = Backoff(connected=True), 130.0, []
    for second in range(400):
        if client.reach(second, serving=second >= down_s):
            tries.append(second - down_s)
            break
    assert 1 <= tries[0] <= 120


async def test_a_floor_is_left_for_zero_when_the_idle_count_says_so(plant: Plant):
    plant.keda.executor = Executor(min_replicas=2, idle_replicas=0, cooldown_s=30)
    plant.hpa.min_replicas = 2
    assert await plant.step(1) == 2
    assert [await plant.step(0) for _ in range(3)] == [2, 0, 0]
    assert await plant.step(1) == 2


@pytest.mark.parametrize(
    ("annotation", "counts"),
    [("paused", [4, 4, 4]), ("paused_in", [4, 5, 5]), ("paused_out", [3, 3, 0]), ("forced", [3, 5, 1])],
)
async def test_an_annotation_of_keda_holds_the_count(plant: Plant, annotation: str, counts: list[int]):
    """As KEDA does it: the annotation binds its own loop, and a pause of one direction the HPA as well."""
    plant.keda.executor = Executor(cooldown_s=0, **{annotation: True})
    off = Direction(0, EXACT.policies, tolerance=0, disabled=True)
    plant.hpa.replicas = 4
    if annotation == "paused":
        plant.keda.written = [(0, "replicas")]
        plant.keda.sync = lambda now_s: still(plant.hpa.replicas)  # the HPA is deleted
    elif annotation == "paused_in":
        plant.hpa.down = off
    elif annotation == "paused_out":
        plant.hpa.up = off
    assert [await plant.step(wanted) for wanted in (3, 5, 0)] == counts


async def still(replicas: int) -> int:
    return replicas


async def test_a_metric_of_type_value_multiplies_the_count_at_each_sync(plant: Plant):
    """So that the daemon refuses it: 4 replicas are asked for."""
    plant.hpa.metric_type, plant.hpa.max_replicas = "Value", 50
    assert [await plant.step(4) for _ in range(4)] == [4, 16, 50, 50]
