"""Patches of the scale subresource of a real API server, with the shipped permissions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import FIELD_MANAGER, Kube
from autoscaler.adapters.kubernetes.api.library import Configuration
from autoscaler.adapters.kubernetes.api.target_objects import TargetObject
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.scale import ScaleActuator
from autoscaler.adapters.kubernetes.workloads.targets import DEPLOYMENT, STATEFUL_SET, read_target
from autoscaler.catalog.scale_targets import SCALED
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Change, ChangeStatus, Outcome
from tests.adapters.keda.world import ManualClock
from tests.adapters.kubernetes.api.test_client import serving
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.world import LWS, World, patient_actuator, shipped_roles
from tests.harness.kube_api import KubeApi
from tests.harness.process import PATIENCE_S, eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def actuator(kube: Kube, clock: SystemClock) -> ScaleActuator:
    return patient_actuator(kube, OwnWrites(clock))


def change(created: dict, before: int, after: int) -> Change:
    metadata = created["metadata"]
    ref = WorkloadRef(metadata["namespace"], metadata["name"], created["kind"], created["apiVersion"])
    return Change(ref, metadata["uid"], before, after, "because")


async def apply(actuator: ScaleActuator, *changes: Change) -> list[Outcome]:
    return await actuator.apply(changes, PATIENCE_S)


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
    actuator = patient_actuator(await connect(unprivileged), OwnWrites(clock))
    (outcome,) = await apply(actuator, change(created, 1, 2))
    assert outcome.status is ChangeStatus.FAILED
    assert 'cannot patch resource "deployments/scale"' in outcome.detail


async def test_busy_server_is_reported_with_its_retry_time(clock: SystemClock):
    """A fake client, because a real server answers so only under heavy load."""

    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"message": "too many requests"}, status=429, headers={"Retry-After": "3"})

    ref = WorkloadRef("ns", "llama")
    async with serving(busy) as url, Kube.using(Configuration(host=url), PATIENCE_S) as kube:
        (outcome,) = await apply(patient_actuator(kube, OwnWrites(clock)), Change(ref, "uid", 1, 2, ""))
    assert outcome.status is ChangeStatus.FAILED
    assert outcome.detail == "the API server is busy, retry after 3 s: too many requests"


async def test_namespace_with_many_changes_delays_no_other(clock: SystemClock):
    """A fake server, because the audit log of a real one is in the order of its answers."""
    asked: list[str] = []

    async def note(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({})

    refs = [*(WorkloadRef("many", f"w{number}") for number in range(200)), WorkloadRef("one", "last")]
    async with serving(note) as url, Kube.using(Configuration(host=url), PATIENCE_S) as kube:
        await apply(patient_actuator(kube, OwnWrites(clock)), *(Change(ref, "uid", 1, 2, "") for ref in refs))
    (place,) = [place for place, path in enumerate(asked) if "/namespaces/one/" in path]
    assert place < 32


async def test_patch_is_remembered_first_and_ends_before_the_lease(
    clock: SystemClock,
):
    writes, known = OwnWrites(clock), []

    async def silent(request: web.Request) -> web.Response:
        known.append(writes.has_written("uid", 2))
        await asyncio.sleep(2 * PATIENCE_S)
        return web.json_response({})

    change = Change(WorkloadRef("ns", "llama"), "uid", 1, 2, "")
    async with serving(silent) as url, Kube.using(Configuration(host=url), PATIENCE_S) as kube:
        (outcome,) = await ScaleActuator(kube, writes).apply([change], PATIENCE_S)
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
        outcomes = await actuator.apply([change(each, 1, 2) for each in created], 2)
    assert [outcome.status for outcome in outcomes] == [ChangeStatus.FAILED] * 20
    details = {outcome.detail for outcome in outcomes}
    assert details == {
        "sent, but not answered in time; it may have been applied",
        "not sent within 2 s, 20 changes were due",
    }


async def test_server_that_hangs_scales_nothing_down_later(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, actuator: ScaleActuator, world: World
):
    """A patch that waits in its socket would be applied after the load has returned."""
    created = [await world.deployment(f"d{index}", replicas=4) for index in range(3)]
    async with kube_api.frozen():
        outcomes = await apply(ScaleActuator(kube, OwnWrites(clock)), *(change(each, 4, 1) for each in created))
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

    (outcome,) = await apply(patient_actuator(cast(Kube, Slow()), OwnWrites(clock)), change(created, 4, 1))
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
    denied = patient_actuator(await connect(unprivileged), writes)
    for wait_s in (5.0, 10.0, 20.0):
        await apply(denied, change(created, 1, 4))
        refusal = writes.refusals()[created["metadata"]["uid"]]
        assert (refusal.replicas, refusal.retry_s) == (4, clock.now_s() + wait_s)
        assert "cannot patch resource" in refusal.message
    user = await kube_api.service_account(namespace, "daemon", *in_namespace(shipped_roles("direct"), namespace))
    await apply(patient_actuator(await connect(user), writes), change(created, 1, 4))
    assert writes.refusals() == {}


async def test_zero_is_named_except_that_of_a_custom_resource(kube_api: KubeApi, actuator: ScaleActuator, world: World):
    created = [await world.deployment("a", 2), await world.stateful_set("b", 2), await world.leader_worker_set("c", 2)]
    await apply(actuator, *(change(each, 2, 0) for each in created))
    writers = []
    for each, kind in zip(created, (DEPLOYMENT, STATEFUL_SET), strict=False):
        seen = await kube_api.get("apps/v1", each["kind"], world.namespace, each["metadata"]["name"])
        target = read_target(kind, msgspec.json.decode(msgspec.json.encode(seen), type=TargetObject))
        writers.append((target.replicas, target.writer.manager))
    assert writers == [(0, FIELD_MANAGER)] * 2
    assert await world.replicas("c", "LeaderWorkerSet", LWS) == 0


@pytest.mark.parametrize(
    ("before", "after", "policy", "stored"), [(1, 5, "> 2", 2), (4, 1, "< 3", 3), (4, 0, "< 3", 3)]
)
async def test_count_that_is_stored_otherwise_is_reported_and_delayed(
    kube_api: KubeApi, kube: Kube, world: World, before: int, after: int, policy: str, stored: int
):
    created, clock = await world.deployment("llama", before), ManualClock()
    writes = OwnWrites(clock)
    actuator = patient_actuator(kube, writes)
    async with mutated(kube_api, world, policy, stored):
        (outcome,) = await apply(actuator, change(created, before, after))
    assert outcome.status is ChangeStatus.FAILED
    assert f"the API server stored {stored} instead of {after}" in outcome.detail
    assert await world.replicas("llama") == stored
    uid = created["metadata"]["uid"]
    refusal = writes.refusals()[uid]
    assert (refusal.replicas, refusal.stored, refusal.retry_s) == (after, stored, clock.now_s() + 5.0)
    writes.clear_refusal(uid, except_stored=stored)  # the watch shows the stored count
    assert uid in writes.refusals()
    writes.clear_refusal(uid, except_stored=stored + 1)  # somebody changed it
    assert writes.refusals() == {}


@asynccontextmanager
async def mutated(api: KubeApi, world: World, condition: str, stored: int) -> AsyncIterator[None]:
    """Store another count where this condition holds, by an admission policy, which is enforced within the block."""
    group, name = "admissionregistration.k8s.io/v1", f"cap-{world.namespace}"
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments/scale"]}
    count = "(has(object.spec.replicas) ? object.spec.replicas : 0)"
    replaced = f"[JSONPatch{{op: 'add', path: '/spec/replicas', value: {stored}}}]"
    here = f"request.namespace == '{world.namespace}'"
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "here", "expression": f"{here} && {count} {condition}"}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": replaced}}],
    }
    about = {"apiVersion": group, "metadata": {"name": name}}
    await api.apply(
        {**about, "kind": "MutatingAdmissionPolicy", "spec": spec},
        {**about, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": name}},
    )
    await world.deployment("probe")
    asked = 9 if condition.startswith(">") else 0

    async def is_enforced() -> bool:
        await world.scale("probe", asked, by="tests")
        return await world.replicas("probe") == stored

    await eventually(is_enforced, "the policy is enforced")
    try:
        yield
    finally:
        for kind in ("MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"):
            await api.delete(group, kind, None, name)


async def test_former_leader_writes_nothing(kube: Kube, clock: SystemClock, world: World):
    class FormerLeader:
        leading = False

    created = await world.deployment("llama")
    (outcome,) = await apply(patient_actuator(kube, OwnWrites(clock), FormerLeader()), change(created, 1, 2))
    assert (outcome.status, outcome.detail) == (ChangeStatus.FAILED, "this replica is no longer the leader")
    assert await world.replicas("llama") == 1


async def test_hundred_workloads_are_scaled_within_seconds(actuator: ScaleActuator, world: World):
    created = [await world.deployment(f"d{index}") for index in range(100)]
    outcomes = await apply(actuator, *(change(each, 1, 2) for each in created))
    assert {outcome.status for outcome in outcomes} == {ChangeStatus.APPLIED}
