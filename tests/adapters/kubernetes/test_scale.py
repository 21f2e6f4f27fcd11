"""Patches of the scale subresource of a real API server, with the shipped permissions."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.scale import WRITE_TIMEOUT_S, ScaleActuator
from autoscaler.catalog.scale_targets import SCALED
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Change, ChangeStatus, Outcome
from tests.adapters.keda.world import ManualClock
from tests.adapters.kubernetes.api.test_client import serving
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.world import LWS, World, shipped_roles
from tests.harness.kube_api import KubeApi

pytestmark = pytest.mark.integration


@pytest.fixture
def actuator(kube: Kube, clock: SystemClock) -> ScaleActuator:
    return ScaleActuator(kube, OwnWrites(clock))


def change(created: dict, before: int, after: int) -> Change:
    metadata = created["metadata"]
    ref = WorkloadRef(metadata["namespace"], metadata["name"], created["kind"], created["apiVersion"])
    return Change(ref, metadata["uid"], before, after, "because")


async def apply(actuator: ScaleActuator, *changes: Change) -> list[Outcome]:
    return await actuator.apply(changes, 10)


async def test_each_kind_is_scaled_up_to_zero_and_back(actuator: ScaleActuator, world: World):
    created = [await world.deployment("a"), await world.stateful_set("b"), await world.leader_worker_set("c")]
    for before, after in ((1, 3), (3, 0), (0, 2)):
        outcomes = await apply(actuator, *(change(each, before, after) for each in created))
        assert [outcome.status for outcome in outcomes] == [ChangeStatus.APPLIED] * 3
        counts = [
            await world.replicas("a"),
            await world.replicas("b", "StatefulSet"),
            await world.replicas("c", "LeaderWorkerSet", LWS),
        ]
        assert counts == [after] * 3


@pytest.mark.parametrize("before", [2, 0])
async def test_count_stays_when_it_was_changed_meanwhile(actuator: ScaleActuator, world: World, before: int):
    created = await world.deployment("llama", replicas=before)
    await world.scale("llama", 6, by="hand")
    (outcome,) = await apply(actuator, change(created, before, 4))
    assert (outcome.status, outcome.detail) == (ChangeStatus.CONFLICT, f"it has 6 replicas now, not {before}")
    assert await world.replicas("llama") == 6


async def test_others_are_scaled_when_a_workload_is_deleted(actuator: ScaleActuator, world: World):
    gone, stays = await world.deployment("gone"), await world.deployment("stays")
    await world.delete("Deployment", "gone")
    first, second = await apply(actuator, change(gone, 1, 2), change(stays, 1, 2))
    assert (first.status, first.detail) == (ChangeStatus.FAILED, "it is gone")
    assert second.status is ChangeStatus.APPLIED


async def test_recreated_workload_is_not_scaled(actuator: ScaleActuator, world: World):
    old = await world.deployment("llama")
    await world.delete("Deployment", "llama")
    await world.deployment("llama")
    (outcome,) = await apply(actuator, change(old, 1, 5))
    assert (outcome.status, outcome.detail) == (ChangeStatus.CONFLICT, "it was deleted and created again")
    assert await world.replicas("llama") == 1


async def test_missing_permission_is_reported_in_the_servers_words(
    kube_api: KubeApi, namespace: str, connect: Connect, clock: SystemClock, world: World
):
    unprivileged = await kube_api.service_account(namespace, "unprivileged")
    created = await world.deployment("llama")
    actuator = ScaleActuator(await connect(unprivileged), OwnWrites(clock))
    (outcome,) = await apply(actuator, change(created, 1, 2))
    assert outcome.status is ChangeStatus.FAILED
    assert 'cannot patch resource "deployments/scale"' in outcome.detail


async def test_busy_server_is_reported_with_its_retry_time(clock: SystemClock):
    """A fake client, because a real server answers so only under heavy load."""

    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"message": "too many requests"}, status=429, headers={"Retry-After": "3"})

    ref = WorkloadRef("ns", "llama")
    async with serving(busy) as url, Kube.using(Configuration(host=url), 2.0) as kube:
        (outcome,) = await apply(ScaleActuator(kube, OwnWrites(clock)), Change(ref, "uid", 1, 2, ""))
    assert outcome.status is ChangeStatus.FAILED
    assert outcome.detail == "the API server is busy, retry after 3 s: too many requests"


async def test_patch_is_remembered_first_and_ends_before_the_lease(
    clock: SystemClock,
):
    writes, known = OwnWrites(clock), []

    async def silent(request: web.Request) -> web.Response:
        known.append(writes.has_written("uid", 2))
        await asyncio.sleep(WRITE_TIMEOUT_S + 4)
        return web.json_response({})

    change = Change(WorkloadRef("ns", "llama"), "uid", 1, 2, "")
    async with serving(silent) as url, Kube.using(Configuration(host=url), 60.0) as kube:
        (outcome,) = await ScaleActuator(kube, writes).apply([change], WRITE_TIMEOUT_S + 2)
    assert known == [True]
    assert outcome.status is ChangeStatus.FAILED
    assert "not answered in time" not in outcome.detail  # ended by its own time-out, not by the deadline of all changes


async def test_unknown_kind_is_refused_by_name(actuator: ScaleActuator):
    ref = WorkloadRef("ns", "x", "InferenceService", "serving.kserve.io/v1")
    (outcome,) = await apply(actuator, Change(ref, "uid", 1, 2, ""))
    assert outcome.status is ChangeStatus.FAILED
    assert outcome.detail == (f"InferenceService cannot be scaled; allowed: {', '.join(SCALED)}")


async def test_changes_after_the_deadline_have_failed(kube_api: KubeApi, actuator: ScaleActuator, world: World):
    created = [await world.deployment(f"d{index}") for index in range(20)]
    async with kube_api.frozen():
        outcomes = await actuator.apply([change(each, 1, 2) for each in created], 0.3)
    assert [outcome.status for outcome in outcomes] == [ChangeStatus.FAILED] * 20
    details = {outcome.detail for outcome in outcomes}
    assert details == {
        "sent, but not answered in time; it may have been applied",
        "not sent within 0.3 s, 20 changes were due",
    }


async def test_server_that_hangs_scales_nothing_down_later(kube_api: KubeApi, actuator: ScaleActuator, world: World):
    """A patch that waits in its socket would be applied after the load has returned."""
    created = [await world.deployment(f"d{index}", replicas=4) for index in range(3)]
    async with kube_api.frozen():
        outcomes = await actuator.apply([change(each, 4, 1) for each in created], 10.0)
    assert {outcome.status for outcome in outcomes} == {ChangeStatus.FAILED}
    assert not [outcome for outcome in outcomes if "it may have been applied" in outcome.detail]  # no patch was sent
    await asyncio.sleep(1.0)  # all requests are answered by now
    assert [await world.replicas(f"d{index}") for index in range(3)] == [4, 4, 4]
    assert [outcome.status for outcome in await apply(actuator, change(created[0], 4, 1))] == [ChangeStatus.APPLIED]


async def test_scale_down_is_not_sent_when_inputs_are_too_old(
    actuator: ScaleActuator, clock: SystemClock, world: World
):
    created = await world.deployment("llama", replicas=4)
    late = replace(change(created, 4, 1), scale_down_until_s=clock.now_s())
    (outcome,) = await apply(actuator, late)
    assert outcome.status is ChangeStatus.FAILED
    assert "too old by now to scale down" in outcome.detail
    (outcome,) = await apply(actuator, replace(late, after=6))
    assert outcome.status is ChangeStatus.APPLIED  # scaling up is always sent


async def test_scale_down_applies_only_to_the_version_read(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    """The count is the same, but another client wrote meanwhile, so the decision may be wrong."""
    created = await world.deployment("llama", replicas=4)

    class Slow:
        async def request(self, method: str, path: str, *arguments: Any, **options: Any) -> bytes:
            if method == "PATCH":
                await world.scale("llama", 5, by="hand")
                await world.scale("llama", 4, by="hand")
            return await kube.request(method, path, *arguments, **options)

    (outcome,) = await apply(ScaleActuator(cast(Kube, Slow()), OwnWrites(clock)), change(created, 4, 1))
    assert (outcome.status, outcome.detail) == (
        ChangeStatus.CONFLICT,
        "it changed just before it was scaled down",
    )
    assert await world.replicas("llama") == 4


async def test_refused_count_is_delayed_longer_each_time(
    kube_api: KubeApi, namespace: str, connect: Connect, world: World
):
    unprivileged = await kube_api.service_account(namespace, "unprivileged")
    created, clock = await world.deployment("llama"), ManualClock()
    writes = OwnWrites(clock)
    denied = ScaleActuator(await connect(unprivileged), writes)
    for wait_s in (5.0, 10.0, 20.0):
        await apply(denied, change(created, 1, 4))
        refusal = writes.refusals()[created["metadata"]["uid"]]
        assert (refusal.replicas, refusal.retry_s) == (4, clock.now_s() + wait_s)
        assert "cannot patch resource" in refusal.message
    user = await kube_api.service_account(namespace, "daemon", *in_namespace(shipped_roles("direct"), namespace))
    await apply(ScaleActuator(await connect(user), writes), change(created, 1, 4))
    assert writes.refusals() == {}


async def test_former_leader_writes_nothing(kube: Kube, clock: SystemClock, world: World):
    class FormerLeader:
        leading = False

    created = await world.deployment("llama")
    (outcome,) = await apply(ScaleActuator(kube, OwnWrites(clock), FormerLeader()), change(created, 1, 2))
    assert (outcome.status, outcome.detail) == (ChangeStatus.FAILED, "this replica is no longer the leader")
    assert await world.replicas("llama") == 1


async def test_hundred_workloads_are_scaled_within_seconds(actuator: ScaleActuator, world: World):
    created = [await world.deployment(f"d{index}") for index in range(100)]
    outcomes = await apply(actuator, *(change(each, 1, 2) for each in created))
    assert {outcome.status for outcome in outcomes} == {ChangeStatus.APPLIED}
