"""From decisions to counts: KEDA's calls over a connection, and models of KEDA and the HPA."""

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
    """One workload scaled by KEDA; each step of 15 s polls, then syncs the HPA."""

    def __init__(self, world: World, scaler: Scaler) -> None:
        self.world, self.scaler = world, scaler
        self.serving = True  # whether the daemon listens
        scaler.reachable = lambda: self.serving
        self.keda = self.operator()

    def operator(self, *others: Trigger, **changes: object) -> Operator:
        """Return a KEDA that has just read the ScaledObject, with other triggers in addition to ours."""
        hpa = Hpa(max_replicas=200, up=EXACT, down=EXACT)
        self.keda = Operator([self.scaler, *others], hpa, Executor(cooldown_s=30), **changes)
        return self.keda

    @property
    def hpa(self) -> Hpa:
        return self.keda.hpa

    async def step(self, desired: int | None) -> int:
        """Record a decision (None: the daemon decides no more), run KEDA and the HPA, and return the count."""
        self.world.clock.time_s += SYNC_PERIOD_S
        now_s = self.world.clock.time_s
        if desired is not None:
            present = self.hpa.replicas
            self.world.decide(Row("llama", desired, current=present, pods=present + self.hpa.surge))
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


async def test_count_is_reached_in_one_sync_with_shipped_behavior(plant: Plant):
    decisions = [7, 8, 20, 21, 22, 40, 39, 38, 10, 11, 10, 3, 200, 1]
    assert [await plant.step(desired) for desired in decisions] == decisions


async def test_scaling_to_zero_and_back(plant: Plant):
    assert await plant.step(5) == 5
    assert [await plant.step(0) for _ in range(3)] == [1, 0, 0]
    assert await plant.step(4) == 4  # KEDA makes 1, the HPA's next sync makes 4
    assert await plant.step(0) == 1


async def test_count_stays_when_the_daemon_does_not_answer(plant: Plant):
    await plant.step(9)
    assert [await plant.step(None) for _ in range(20)] == [9] * 20
    assert await plant.step(3) == 3


async def test_count_stays_after_a_restart_without_trust(plant: Plant):
    plant.hpa.replicas = 6
    plant.world.decide(Row("llama", 0, current=6, trusted=False))
    assert [await plant.step(None) for _ in range(3)] == [6, 6, 6]


@pytest.mark.parametrize(
    ("start", "desired", "lands"),
    [(10, 12, 12), (10, 11, 10), (11, 10, 10), (19, 18, 18), (20, 19, 20), (20, 18, 18)],
)
async def test_default_tolerance_hides_only_reported_steps(plant: Plant, start: int, desired: int, lands: int):
    plant.world.cluster.add(scaled_object("llama", tolerance_up=None, tolerance_down=None))
    free = (Policy("Pods", 1000),)
    plant.keda.hpa = Hpa(max_replicas=200, up=Direction(0, free), down=Direction(0, free), replicas=start)
    assert await plant.step(desired) == lands
    assert plant.world.answers.is_swallowed(scaled_object("llama").target) == (lands != desired)
    assert await plant.step(desired) == lands  # and it stays there


@pytest.mark.parametrize(("desired", "surge"), [(4, 1), (12, 1), (20, 2), (30, 3), (40, 10)])
async def test_count_stays_when_a_roll_out_adds_pods(plant: Plant, desired: int, surge: int):
    plant.world.cluster.add(scaled_object("llama", tolerance_up=None, tolerance_down=None))
    plant.keda.hpa = Hpa(max_replicas=200, replicas=desired, surge=surge)
    assert [await plant.step(desired) for _ in range(4)] == [desired] * 4
    assert not plant.world.answers.is_swallowed(scaled_object("llama").target)


async def test_keda_calls_the_spec_first(plant: Plant):
    await plant.step(4)
    round_of = ["GetMetricSpec", "GetMetrics", "IsActive"]
    assert plant.scaler.calls == ["GetMetricSpec", *round_of, *round_of]  # the HPA is written, a poll, a query
    assert plant.keda.metrics == ["s0-replicas"]


async def test_fallback_starts_when_the_value_is_refused(plant: Plant):
    """An invalid ScaledObject gets its HPA, its fallback and the reason."""
    plant.world.cluster.add(scaled_object("llama", problem="metricType: multiplies our count, found 'Value'"))
    keda = plant.operator(fallback=Fallback(replicas=6, failure_threshold=3))
    assert [await plant.step(2) for _ in range(3)] == [1, 6, 6]  # a poll and a query fail every 15 s
    assert keda.metrics == ["s0-replicas"]
    assert "INVALID_ARGUMENT: ScaledObject prod/llama: metricType: multiplies our count, found 'Value'" in keda.events
    plant.world.cluster.add(scaled_object("llama"))
    assert await plant.step(2) == 2


async def test_count_stays_with_a_second_trigger_when_refused(plant: Plant):
    keda = plant.operator(Fixed("cron", 0))
    assert await plant.step(4) == 4
    plant.world.clock.time_s += 300  # the daemon's inputs are too old for its policy
    assert await keda.write_hpa(), "the ScaledObject is edited meanwhile"
    assert keda.metrics == ["s0-replicas", "s1-cron"]
    assert [await plant.step(None) for _ in range(4)] == [4, 4, 4, 4]
    assert await plant.step(3) == 3


async def test_no_metric_and_no_fallback_when_the_spec_fails(plant: Plant):
    """KEDA's reaction to an unreachable scaler, which a refusal of the daemon must never cause."""
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
    assert await plant.step(4) == 1, "and goes on to, until the HPA is written again"
    await keda.write_hpa()
    assert await plant.step(4) == 4


async def test_count_stays_when_the_daemon_is_gone(plant: Plant):
    keda = plant.operator(fallback=Fallback(replicas=1))
    assert await plant.step(5) == 5
    plant.serving = False
    assert [await plant.step(None) for _ in range(20)] == [5] * 20  # no fallback: only specs fail
    assert keda.failures[0, "replicas"] == 0


async def test_client_finds_the_daemon_late_after_backing_off(plant: Plant):
    """After 130 s of refused connections KEDA's next attempt may be almost two minutes away."""
    client, down_s, tries = Backoff(connected=True), 130.0, []
    for second in range(400):
        if client.reach(second, serving=second >= down_s):
            tries.append(second - down_s)
            break
    assert 1 <= tries[0] <= 120


async def test_idle_count_allows_zero_below_the_minimum(plant: Plant):
    plant.keda.executor = Executor(min_replicas=2, idle_replicas=0, cooldown_s=30)
    plant.hpa.min_replicas = 2
    assert await plant.step(1) == 2
    assert [await plant.step(0) for _ in range(3)] == [2, 0, 0]
    assert await plant.step(1) == 2


@pytest.mark.parametrize(
    ("annotation", "counts"),
    [("paused", [4, 4, 4]), ("paused_in", [4, 5, 5]), ("paused_out", [3, 3, 0]), ("forced", [3, 5, 1])],
)
async def test_count_is_limited_by_keda_annotations(plant: Plant, annotation: str, counts: list[int]):
    """The annotation applies to KEDA's own loop, and a pause of one direction to the HPA as well."""
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
    assert [await plant.step(desired) for desired in (3, 5, 0)] == counts


async def still(replicas: int) -> int:
    return replicas


async def test_metric_of_type_value_multiplies_the_count(plant: Plant):
    """This is why the daemon refuses it: 4 replicas are desired."""
    plant.hpa.metric_type, plant.hpa.max_replicas = "Value", 50
    assert [await plant.step(4) for _ in range(4)] == [4, 16, 50, 50]
