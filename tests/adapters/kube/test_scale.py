"""Patching the scale subresource of a real API server, with the rights that ship."""

import asyncio

import pytest
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kube.client import Kube
from autoscaler.adapters.kube.history import OwnWrites
from autoscaler.adapters.kube.scale import WRITE_TIMEOUT_S, ScaleActuator
from autoscaler.core.fleet import WorkloadRef
from autoscaler.ports import Change, Fate, Outcome
from tests.adapters.kube.conftest import Connect
from tests.adapters.kube.test_client import serving
from tests.adapters.kube.world import LWS, World
from tests.harness.kube_api import KubeApi

pytestmark = pytest.mark.integration


@pytest.fixture
def actuator(kube: Kube, clock: SystemClock) -> ScaleActuator:
    return ScaleActuator(kube, OwnWrites(clock))


def change(made: dict, before: int, after: int) -> Change:
    metadata = made["metadata"]
    ref = WorkloadRef(metadata["namespace"], metadata["name"], made["kind"], made["apiVersion"])
    return Change(ref, metadata["uid"], before, after, "because")


async def apply(actuator: ScaleActuator, *changes: Change) -> list[Outcome]:
    return await actuator.apply(changes, 10)


async def test_deployment_stateful_set_and_leader_worker_set_are_scaled_up_to_zero_and_back(
    actuator: ScaleActuator, world: World
):
    made = [await world.deployment("a"), await world.stateful_set("b"), await world.leader_worker_set("c")]
    for before, after in ((1, 3), (3, 0), (0, 2)):
        outcomes = await apply(actuator, *(change(each, before, after) for each in made))
        assert [outcome.fate for outcome in outcomes] == [Fate.APPLIED] * 3
        counts = [
            await world.replicas("a"),
            await world.replicas("b", "StatefulSet"),
            await world.replicas("c", "LeaderWorkerSet", LWS),
        ]
        assert counts == [after] * 3


@pytest.mark.parametrize("before", [2, 0])
async def test_a_count_that_somebody_changed_meanwhile_stays(actuator: ScaleActuator, world: World, before: int):
    made = await world.deployment("llama", replicas=before)
    await world.scale("llama", 6, by="hand")
    (outcome,) = await apply(actuator, change(made, before, 4))
    assert (outcome.fate, outcome.detail) == (Fate.CONFLICT, f"it has 6 replicas now, not {before}")
    assert await world.replicas("llama") == 6


async def test_a_workload_deleted_mid_tick_is_gone_and_the_others_are_scaled(actuator: ScaleActuator, world: World):
    gone, stays = await world.deployment("gone"), await world.deployment("stays")
    await world.delete("Deployment", "gone")
    first, second = await apply(actuator, change(gone, 1, 2), change(stays, 1, 2))
    assert (first.fate, first.detail) == (Fate.FAILED, "it is gone")
    assert second.fate is Fate.APPLIED


async def test_a_workload_made_again_under_the_same_name_is_not_touched(actuator: ScaleActuator, world: World):
    old = await world.deployment("llama")
    await world.delete("Deployment", "llama")
    await world.deployment("llama")
    (outcome,) = await apply(actuator, change(old, 1, 5))
    assert (outcome.fate, outcome.detail) == (Fate.CONFLICT, "it was deleted and created again")
    assert await world.replicas("llama") == 1


async def test_a_missing_right_is_told_with_the_servers_own_words(
    kube_api: KubeApi, namespace: str, connect: Connect, clock: SystemClock, world: World
):
    nobody = await kube_api.service_account(namespace, "nobody")
    made = await world.deployment("llama")
    actuator = ScaleActuator(await connect(nobody), OwnWrites(clock))
    (outcome,) = await apply(actuator, change(made, 1, 2))
    assert outcome.fate is Fate.FAILED
    assert 'cannot patch resource "deployments/scale"' in outcome.detail


async def test_a_busy_api_server_is_told_with_how_long_it_asks_to_wait(clock: SystemClock):
    """A double: the real server does so only under a load that tests should not make."""

    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"message": "too many requests"}, status=429, headers={"Retry-After": "3"})

    ref = WorkloadRef("ns", "llama")
    async with serving(busy) as url, Kube.using(Configuration(host=url), 2.0) as kube:
        (outcome,) = await apply(ScaleActuator(kube, OwnWrites(clock)), Change(ref, "uid", 1, 2, ""))
    assert outcome.fate is Fate.FAILED
    assert outcome.detail == "the API server is busy, it asks to wait 3 s: too many requests"


async def test_a_patch_is_known_to_be_ours_before_the_server_has_it_and_given_up_before_another_may_lead(
    clock: SystemClock,
):
    writes, known = OwnWrites(clock), []

    async def silent(request: web.Request) -> web.Response:
        known.append(writes.explain("uid", 2))
        await asyncio.sleep(WRITE_TIMEOUT_S + 4)
        return web.json_response({})

    change = Change(WorkloadRef("ns", "llama"), "uid", 1, 2, "")
    async with serving(silent) as url, Kube.using(Configuration(host=url), 60.0) as kube:
        (outcome,) = await ScaleActuator(kube, writes).apply([change], WRITE_TIMEOUT_S + 2)
    assert known == [True]
    assert outcome.fate is Fate.FAILED
    assert "not answered in time" not in outcome.detail  # by its own limit, not by that of all changes


async def test_a_kind_without_a_known_scale_is_refused_by_name(actuator: ScaleActuator):
    ref = WorkloadRef("ns", "x", "InferenceService", "serving.kserve.io/v1")
    (outcome,) = await apply(actuator, Change(ref, "uid", 1, 2, ""))
    assert outcome.fate is Fate.FAILED
    assert outcome.detail == ("InferenceService cannot be scaled; allowed: Deployment, StatefulSet, LeaderWorkerSet")


async def test_what_is_not_done_by_the_deadline_has_failed_and_says_so(
    kube_api: KubeApi, actuator: ScaleActuator, world: World
):
    made = [await world.deployment(f"d{index}") for index in range(20)]
    async with kube_api.frozen():
        outcomes = await actuator.apply([change(each, 1, 2) for each in made], 0.3)
    assert [outcome.fate for outcome in outcomes] == [Fate.FAILED] * 20
    details = {outcome.detail for outcome in outcomes}
    assert details == {
        "sent, but not answered in time; it may have been applied",
        "not sent within 0.3 s, 20 changes were due",
    }


async def test_who_does_not_lead_any_more_writes_nothing(kube: Kube, clock: SystemClock, world: World):
    class Deposed:
        leading = False

    made = await world.deployment("llama")
    (outcome,) = await apply(ScaleActuator(kube, OwnWrites(clock), Deposed()), change(made, 1, 2))
    assert (outcome.fate, outcome.detail) == (Fate.FAILED, "this replica is no longer the leader")
    assert await world.replicas("llama") == 1


async def test_a_hundred_workloads_are_scaled_within_seconds(actuator: ScaleActuator, world: World):
    made = [await world.deployment(f"d{index}") for index in range(100)]
    outcomes = await apply(actuator, *(change(each, 1, 2) for each in made))
    assert {outcome.fate for outcome in outcomes} == {Fate.APPLIED}
