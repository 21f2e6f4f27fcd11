"""The log says each change of state once."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog
from structlog.testing import LogCapture

from autoscaler.adapters.in_memory import AlwaysLeading, RecordingActuator
from autoscaler.config.policy.parse import load
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.samples import Samples, SourceReport
from autoscaler.daemon.log import LogRecorder
from autoscaler.daemon.loop import Loop, Parts
from tests.core.world import fleet, samples
from tests.harness.in_memory import LoopClock, MemoryCluster, MemorySamples

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
BOOK = load(())


@pytest.fixture
def written() -> Iterator[LogCapture]:
    capture = LogCapture()
    structlog.configure(processors=[capture], cache_logger_on_first_use=False)
    yield capture
    structlog.reset_defaults()


class World:
    """A loop of which only the log is looked at."""

    def __init__(self, actuator=None):
        clock = LoopClock()
        self.cluster = MemoryCluster(fleet([2]))
        self.load: dict[str, float] = {}
        self.problems: tuple[str, ...] = ()
        self.leadership = AlwaysLeading()
        self.loop = Loop(
            Parts(
                clock=clock,
                workloads=self.cluster,
                sources=[MemorySamples(lambda seen: self.read(seen, clock.now_s()))],
                actuator=actuator or self.cluster,
                recorders=[LogRecorder()],
                leadership=self.leadership,
            ),
            policies=lambda: BOOK,
            period_s=5.0,
            deadline_s=30.0,
        )

    def read(self, seen, now_s) -> Samples:
        self.cluster.state = replace(self.cluster.state, time_s=now_s)
        return replace(samples(seen, now_s, **self.load), reports=(SourceReport("scrape", problems=self.problems),))

    async def ticks(self, count: int) -> None:
        for _ in range(count):
            assert await self.loop.attempt()


def events(written: LogCapture, name: str) -> list[dict]:
    return [entry for entry in written.entries if entry["event"] == name]


async def test_unapplied_recommendation_is_logged_once(written):
    world = World(RecordingActuator())
    world.load = {"running": 200.0, "waiting": 200.0}
    await world.ticks(5)
    (entry,) = events(written, "would scale")
    assert (entry["workload"], entry["before"], entry["outcome"]) == ("ns/w0", 2, "recorded")
    assert "running" in entry["reason"]


async def test_source_problem_and_recovery_are_logged_once_each(written):
    world = World()
    await world.ticks(2)
    world.problems = ("pod ns/a: connection refused",)
    await world.ticks(3)
    world.problems = ()
    await world.ticks(2)
    assert [entry["problems"] for entry in events(written, "source has problems")] == [
        ("pod ns/a: connection refused",)
    ]
    assert len(events(written, "source recovered")) == 1


async def test_other_owner_is_logged_when_it_comes_and_goes(written):
    world = World()
    world.cluster.state = replace(world.cluster.state, other_owner=("HorizontalPodAutoscaler/x",))
    await world.ticks(3)
    world.cluster.state = replace(world.cluster.state, other_owner=("",))
    await world.ticks(2)
    (entry,) = events(written, "another owner sets the replica count; not scaling")
    assert entry["other_owner"] == "HorizontalPodAutoscaler/x"
    assert len(events(written, "the replica count is ours again")) == 1


async def test_owners_are_logged_for_each_kind_when_names_are_equal(written):
    world = World()
    workloads = tuple(Workload(WorkloadRef("ns", "llama", kind)) for kind in ("Deployment", "StatefulSet"))
    world.cluster.state = replace(
        fleet([1, 1], workloads=workloads), other_owner=("HorizontalPodAutoscaler/x", "kubectl")
    )
    await world.ticks(2)
    told = events(written, "another owner sets the replica count; not scaling")
    assert {entry["other_owner"] for entry in told} == {"HorizontalPodAutoscaler/x", "kubectl"}


async def test_missing_inputs_are_logged_once_until_fresh_again(written):
    world = World()
    world.load = {"running": float("nan")}
    await world.ticks(3)
    world.load = {}
    await world.ticks(2)
    assert [entry["first"] for entry in events(written, "inputs are missing or stale")] == ["ns/w0"]
    assert len(events(written, "all inputs are fresh again")) == 1


async def test_policy_problem_is_logged_when_it_begins_and_ends(written):
    world = World()
    members = world.cluster.state.workloads
    stray = tuple(member._replace(policy="no-such-policy") for member in members)
    for workloads in (members, stray, stray, members):
        world.cluster.state = replace(world.cluster.state, workloads=workloads)
        await world.ticks(1)
    (came,) = events(written, "policy of a workload has a problem")
    assert came["workload"] == str(members[0].ref)
    assert came["problem"].startswith(
        "policy 'no-such-policy' does not exist, so the workload is not scaled; allowed: "
    )
    (went,) = events(written, "policy of a workload has no problem any more")
    assert went["workload"] == str(members[0].ref)
