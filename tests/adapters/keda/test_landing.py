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
from tests.hpa import EXACT, SYNC_PERIOD_S, Direction, Executor, Hpa, Policy, keda_value


class Plant:
    """One workload behind KEDA: the count stands in the cluster, and each step of 15 s polls, then syncs the HPA."""

    def __init__(self, world: World, stub: ExternalScalerStub, hpa: Hpa, executor: Executor) -> None:
        self.world, self.stub, self.hpa, self.executor = world, stub, hpa, executor

    async def step(self, wanted: int | None) -> int:
        """Decide (None: the daemon decides nothing any more), let KEDA and the HPA act; return the count."""
        self.world.clock.time_s += SYNC_PERIOD_S
        now_s = self.world.clock.time_s
        if wanted is not None:
            standing = self.hpa.replicas
            self.world.decide(Row("llama", wanted, current=standing, pods=standing + self.hpa.surge))
        reference = pb.ScaledObjectRef(namespace="prod", name="llama", scalerMetadata=METADATA)
        try:
            (spec,) = (await self.stub.GetMetricSpec(reference)).metricSpecs
            request = pb.GetMetricsRequest(scaledObjectRef=reference, metricName=spec.metricName)
            values = (await self.stub.GetMetrics(request)).metricValues
            value = sum(keda_value(value.metricValueFloat, value.metricValue) for value in values)
            active = (await self.stub.IsActive(reference)).result
        except grpc.aio.AioRpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            value = active = None
        self.hpa.replicas = self.executor.poll(now_s, active, self.hpa.replicas)
        return self.hpa.sync(now_s, value)


@pytest_asyncio.fixture
async def plant() -> AsyncIterator[Plant]:
    world = World()
    async with (
        KedaServer(KedaSettings(host="127.0.0.1", port=0), world.service, world.lease, grace_s=0.1) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        hpa = Hpa(max_replicas=200, up=EXACT, down=EXACT)
        yield Plant(world, ExternalScalerStub(channel), hpa, Executor(cooldown_s=30))


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
    plant.hpa = Hpa(max_replicas=200, up=Direction(0, free), down=Direction(0, free), replicas=start)
    assert await plant.step(wanted) == lands
    assert plant.world.answers.swallowed(scaled_object("llama").target) == (lands != wanted)
    assert await plant.step(wanted) == lands  # and it stays there


@pytest.mark.parametrize(("wanted", "surge"), [(4, 1), (12, 1), (20, 2), (30, 3), (40, 10)])
async def test_a_roll_out_that_keeps_more_pods_leaves_the_count_where_it_is(plant: Plant, wanted: int, surge: int):
    plant.world.cluster.add(scaled_object("llama", tolerance_up=None, tolerance_down=None))
    plant.hpa = Hpa(max_replicas=200, replicas=wanted, surge=surge)
    assert [await plant.step(wanted) for _ in range(4)] == [wanted] * 4
    assert not plant.world.answers.swallowed(scaled_object("llama").target)
