"""Events written to a real API server, with the rights that ship."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.events import MISSING_AFTER_S, NOTE_LIMIT_BYTES, QUEUE_LIMIT, EventRecorder
from autoscaler.core.model.fleet import Fleet, ForeignCounts, NodeGroups, Obstacles, PendingCause, Workload, WorkloadRef
from autoscaler.core.model.samples import Samples
from autoscaler.core.model.spec import Schedule
from autoscaler.core.model.types import TickInput
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from autoscaler.ports import Change, ChangeStatus, Outcome, TickRecord
from tests.adapters.kubernetes.world import World, running
from tests.core.world import Story, fleet, spec
from tests.harness.kube_api import KubeApi
from tests.harness.process import eventually

pytestmark = pytest.mark.integration


def fleet_of(*workloads: Workload, other_owner: str = "") -> Fleet:
    rows = len(workloads)
    no_floats, no_ints, no_flags = np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    return Fleet(
        time_s=0.0,
        workloads=workloads,
        workload_id=np.arange(rows),
        replicas=np.ones(rows),
        paused=np.zeros(rows, dtype=bool),
        other_owner=(other_owner,) * rows,
        gpus_per_replica=np.ones(rows),
        pool=np.full(rows, -1),
        obstacles=Obstacles.none(rows),
        pods=(),
        pod_id=no_ints,
        pod_workload=no_ints,
        pod_ready=no_flags,
        pod_terminating=no_flags,
        pod_pending=no_ints,
        pod_created_s=no_floats,
        pod_scheduled_s=no_floats,
        pod_started_s=no_floats,
        pod_ready_s=no_floats,
        pools=(),
        groups=NodeGroups.of_pools((), no_floats),
    )


def record(
    fleet: Fleet, *outcomes: Outcome, leading: bool = True, story: Story | None = None, now_s: float = 0.0
) -> TickRecord:
    """Return the record of a tick. story: the memory between ticks."""
    rows = len(fleet.workloads)
    nothing = Schedule(*(np.empty((rows, 0)) for _ in range(4)))
    given = TickInput(now_s, fleet, spec(rows), nothing, Samples.unknown(rows, len(fleet.pods)))
    decision, memory = tick(given, story.memory if story else Memory.empty())
    if story:
        story.memory = memory
    return TickRecord(1, now_s, 1767323045.5, 0.1, given, decision, ("",) * rows, outcomes, leading)


async def events(api: KubeApi, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await api.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"))[
        "items"
    ]
    return sorted(items, key=lambda event: event["metadata"]["creationTimestamp"])


async def written(api: KubeApi, namespace: str, count: int) -> list[dict[str, Any]]:
    async def enough() -> list[dict[str, Any]]:
        found = await events(api, namespace)
        return found if len(found) >= count else []

    return await eventually(enough, f"{count} events")


@pytest.fixture
async def workload(world: World) -> Workload:
    created = await world.deployment("llama")
    return Workload(WorkloadRef(world.namespace, "llama"), created["metadata"]["uid"])


def outcome(
    workload: Workload, status: ChangeStatus, reason: str = "because", detail: str = "", after: int = 4
) -> Outcome:
    return Outcome(Change(workload.ref, workload.uid, 2, after, reason), status, detail)


async def test_change_is_an_event_with_the_explanation(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder = EventRecorder(kube, clock)
    sentence = "Scales up from 2 to 4 replicas: 12 requests wait."
    async with running(recorder):
        recorder.record(record(fleet_of(workload), outcome(workload, ChangeStatus.APPLIED, sentence)))
        (event,) = await written(kube_api, workload.ref.namespace, 1)
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "Scaled", "Scale")
    assert event["note"] == "Scales up from 2 to 4 replicas: 12 requests wait."
    assert event["eventTime"] == "2026-01-02T03:04:05.500000Z"
    assert event["reportingController"] == "vllm-autoscaler.io/autoscaler"
    regarding = event["regarding"]
    assert (regarding["kind"], regarding["name"], regarding["uid"]) == ("Deployment", "llama", workload.uid)


async def test_repeated_failure_is_one_event_with_a_count(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder = EventRecorder(kube, clock)
    async with running(recorder):
        for tick in range(4):
            failed = outcome(workload, ChangeStatus.FAILED, f"sentence {tick}", f"not sent within {tick} s")
            recorder.record(record(fleet_of(workload), failed))

        async def repeated() -> bool:
            found = await events(kube_api, workload.ref.namespace)
            return bool(found) and found[0].get("series", {}).get("count", 0) >= 2

        await eventually(repeated, "the series is written")
        await asyncio.sleep(0.2)
        (event,) = await events(kube_api, workload.ref.namespace)
    assert (event["type"], event["reason"], event["note"]) == (
        "Warning",
        "ScaleFailed",
        "2 to 4 replicas: not sent within 0 s",
    )


async def test_other_owner_is_reported_when_it_comes_and_goes(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder = EventRecorder(kube, clock)
    async with running(recorder):
        for owner in ("", "HorizontalPodAutoscaler/x", "HorizontalPodAutoscaler/x", ""):
            recorder.record(record(fleet_of(workload, other_owner=owner)))
        found = await written(kube_api, workload.ref.namespace, 2)
    assert {event["reason"] for event in found} == {"OtherOwnerDetected", "OtherOwnerGone"}
    assert "HorizontalPodAutoscaler/x owns the replica count; it is left alone." in {event["note"] for event in found}


async def test_zero_by_somebody_is_reported_with_its_end(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder = EventRecorder(kube, clock)
    zero = ForeignCounts(np.full(1, np.nan), ("",), np.array([False]), np.array([np.inf]))
    async with running(recorder):
        recorder.record(record(replace(fleet_of(workload, other_owner="a manual change by x"), foreign=zero)))
        (event,) = await written(kube_api, workload.ref.namespace, 1)
    assert event["note"].endswith("it is left alone until somebody raises it from zero.")


async def test_problem_is_reported_when_it_changes(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder = EventRecorder(kube, clock)
    refused = "KEDA is refused: metadata policy: 'gold'; allowed: batch"
    async with running(recorder):
        for problem, leading in (
            ("", True),
            (refused, False),
            (refused, True),
            (refused, True),
            ("other", True),
            ("", 1),
        ):
            tick = record(fleet_of(workload), leading=bool(leading))
            recorder.record(replace(tick, problems={0: problem} if problem else {}))
        found = await written(kube_api, workload.ref.namespace, 3)
        await asyncio.sleep(0.2)
        assert len(await events(kube_api, workload.ref.namespace)) == 3
    reported = {(event["type"], event["reason"], event["note"]) for event in found}
    assert ("Warning", "ProblemDetected", refused) in reported
    assert {reason for _, reason, _ in reported} == {"ProblemDetected", "ProblemGone"}


async def test_published_count_is_reported_when_it_changes(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder = EventRecorder(kube, clock)
    async with running(recorder):
        for _ in range(3):
            recorder.record(record(fleet_of(workload), outcome(workload, ChangeStatus.PUBLISHED)))
        (event,) = await written(kube_api, workload.ref.namespace, 1)
        await asyncio.sleep(0.2)
        assert len(await events(kube_api, workload.ref.namespace)) == 1
    assert event["reason"] == "Recommended"


async def test_missing_replicas_are_reported_once(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder, story = EventRecorder(kube, clock), Story(spec())
    words = "FailedCreate: exceeded quota: gpus, used: {}, limited: 2"

    def at(now_s: float, said: str = "", absent: bool = True) -> TickRecord:
        obstacles = replace(Obstacles.none(1), creation_failed=np.array([absent]), messages=(said,))
        return record(replace(fleet_of(workload), obstacles=obstacles), story=story, now_s=now_s)

    async with running(recorder):
        for now_s in range(0, 60, 5):
            recorder.record(at(now_s, words.format(now_s)))  # a changed number is no new event
        (event,) = await written(kube_api, workload.ref.namespace, 1)
        await asyncio.sleep(0.2)
        assert len(await events(kube_api, workload.ref.namespace)) == 1
        there = replace(fleet_of(workload), replicas=np.zeros(1))
        recorder.record(record(there, story=story, now_s=60))
        found = await written(kube_api, workload.ref.namespace, 2)
    assert (event["type"], event["reason"]) == ("Warning", "ReplicasMissing")
    assert event["note"].startswith("1 replica has no pod: FailedCreate: exceeded quota: gpus")
    assert {event["reason"] for event in found} == {"ReplicasMissing", "ReplicasComplete"}


async def test_unschedulable_pod_is_reported_after_a_delay(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder, story = EventRecorder(kube, clock), Story(spec())
    waits = fleet([0], [1], workloads=(workload,), pod_pending=np.array([PendingCause.UNSCHEDULABLE]))
    waits = replace(waits, obstacles=replace(Obstacles.none(1), messages=("0/3 nodes are available",)))
    async with running(recorder):
        for now_s in (0.0, 15.0):
            recorder.record(record(waits, story=story, now_s=now_s))
        await asyncio.sleep(0.2)
        assert await events(kube_api, workload.ref.namespace) == []
        recorder.record(record(waits, story=story, now_s=MISSING_AFTER_S))
        (event,) = await written(kube_api, workload.ref.namespace, 1)
    assert event["note"] == "1 pod is pending (unschedulable): 0/3 nodes are available"


async def test_follower_reports_nothing(kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload):
    recorder = EventRecorder(kube, clock)
    async with running(recorder):
        recorder.record(record(fleet_of(workload, other_owner="HorizontalPodAutoscaler/x"), leading=False))
        recorder.record(record(fleet_of(workload, other_owner="HorizontalPodAutoscaler/x")))
        await asyncio.sleep(0.3)
        assert await events(kube_api, workload.ref.namespace) == []


async def test_note_is_cut_to_the_limit_of_an_event(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder = EventRecorder(kube, clock)
    async with running(recorder):
        recorder.record(record(fleet_of(workload), outcome(workload, ChangeStatus.APPLIED, "ä" * 2000)))
        (event,) = await written(kube_api, workload.ref.namespace, 1)
    assert len(event["note"].encode()) <= NOTE_LIMIT_BYTES
    assert event["note"].endswith("ä...")


async def test_event_has_a_valid_name_for_the_longest_workload(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    name = f"{'x' * 198}-.{'y' * 53}"
    workload = Workload(WorkloadRef(world.namespace, name, "Deployment", "apps/v1"), uid="1")
    recorder = EventRecorder(kube, clock)
    async with running(recorder):
        recorder.record(record(fleet_of(workload), outcome(workload, ChangeStatus.APPLIED)))
        (event,) = await written(kube_api, world.namespace, 1)
    assert event["regarding"]["name"] == name


async def test_oldest_events_are_dropped_while_the_server_is_away(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, workload: Workload
):
    recorder = EventRecorder(kube, clock)
    async with running(recorder):
        async with kube_api.frozen():
            decided = record(fleet_of(workload))
            for number in range(QUEUE_LIMIT + 500):
                outcomes = (outcome(workload, ChangeStatus.APPLIED, f"{number}", after=number),)
                recorder.record(replace(decided, outcomes=outcomes))
            assert recorder.dropped == 500
        found = await written(kube_api, workload.ref.namespace, 5)
    assert all(int(event["note"]) >= 500 for event in found)
