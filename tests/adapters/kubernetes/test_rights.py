"""The shipped Roles are exactly enough: the daemon's requests in each mode against its permissions."""

import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.in_memory import RecordingActuator
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.events import EventRecorder
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.leader_election import Elector
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.settings import LeaseSettings, Mode
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.ports import Change, ChangeStatus
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.test_events import fleet_of, outcome, record
from tests.adapters.kubernetes.world import LWS, World, patient_actuator, running, shipped_roles, synced
from tests.harness.kube_api import KubeApi, Permission, User, granted
from tests.harness.process import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

READING = {"list", "watch"}


async def use_everything(
    api: KubeApi, kube: Kube, clock: SystemClock, world: World, user: User, roles: list, mode: Mode
) -> None:
    """Send all requests of a mode once: watch, lead, scale each kind, fail with a conflict, write an Event."""
    writes = OwnWrites(clock)
    fleet = KubeFleet(kube, clock, Scope(mode), writes=writes)
    elector = Elector(kube, LeaseSettings(namespace=world.namespace, retry_s=0.2), clock)
    recorder = EventRecorder(kube, clock)
    created = [await world.deployment("a"), await world.stateful_set("b"), await world.leader_worker_set("c")]

    async def watched() -> bool:
        return _watches(granted(*roles)) <= api.used(user)

    async def renewed() -> bool:
        return any(used.resource == "leases" and used.verb == "update" for used in api.used(user))

    async with running(fleet, elector, recorder):
        await synced(fleet)
        await eventually(watched, "everything is watched")
        actuator = patient_actuator(kube, writes, elector)
        await eventually(lambda: _leads(elector), "it leads")
        for before, status in ((1, ChangeStatus.APPLIED), (9, ChangeStatus.CONFLICT)) if mode is Mode.DIRECT else ():
            outcomes = await actuator.apply([_change(each, before) for each in created], PATIENCE_S)
            assert [outcome.status for outcome in outcomes] == [status] * 3
        workload = Workload(_change(created[0], 1).ref, created[0]["metadata"]["uid"])
        for _ in range(2):
            recorder.record(record(fleet_of(workload), outcome(workload, ChangeStatus.FAILED, detail="again")))
        await eventually(lambda: _told(api, user), "a series of events is written")
        await eventually(renewed, "the lease is renewed")


def _watches(permissions: set[Permission]) -> set[Permission]:
    return {permission for permission in permissions if permission.verb == "watch"}


async def _leads(elector: Elector) -> bool:
    return elector.leading


async def _told(api: KubeApi, user: User) -> bool:
    return any(used.resource == "events" and used.verb == "patch" for used in api.used(user))


def _change(created: dict, before: int) -> Change:
    metadata = created["metadata"]
    ref = WorkloadRef(metadata["namespace"], metadata["name"], created["kind"], created["apiVersion"])
    return Change(ref, metadata["uid"], before, 3, "because")


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.KEDA])
async def test_each_mode_uses_exactly_what_its_role_grants(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, world: World, mode: Mode
):
    roles = in_namespace(shipped_roles(mode.value), world.namespace)
    user = await kube_api.service_account(world.namespace, "exact", *roles)
    await use_everything(kube_api, await connect(user), clock, world, user, roles, mode)
    assert kube_api.refused(user) == set()
    assert kube_api.used(user) == granted(*roles)


async def test_missing_verb_of_a_role_is_detected(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, world: World
):
    """The test above can fail: without one verb the daemon names it."""
    roles = in_namespace(shipped_roles("direct"), world.namespace)
    cluster_role = next(role for role in roles if role["kind"] == "ClusterRole")
    rules = [rule for rule in cluster_role["rules"] if rule["resources"] != ["deployments/scale", "statefulsets/scale"]]
    less = cluster_role | {"metadata": {"name": f"less-{world.namespace}"}, "rules": rules}
    user = await kube_api.service_account(world.namespace, "less", less)
    created = await world.deployment("a")
    actuator = patient_actuator(await connect(user), OwnWrites(clock))
    (outcome,) = await actuator.apply([_change(created, 1)], PATIENCE_S)
    assert outcome.status is ChangeStatus.FAILED
    assert {used.resource for used in kube_api.refused(user)} == {"deployments/scale"}


async def test_dry_run_needs_only_a_read_only_role(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, world: World
):
    roles = shipped_roles("dry-run")
    assert {permission.verb for permission in granted(*roles)} == READING
    user = await kube_api.service_account(world.namespace, "reader", *roles)
    fleet = KubeFleet(await connect(user), clock, Scope(Mode.DRY_RUN))
    created = [
        await world.deployment("a", replicas=2),
        await world.stateful_set("b"),
        await world.leader_worker_set("c"),
    ]
    await world.hpa("theirs", "a")

    async def watched() -> bool:
        return _watches(granted(*roles)) <= kube_api.used(user)

    async with running(fleet):
        view = await synced(fleet)
        await eventually(watched, "everything is watched")
        outcomes = await RecordingActuator().apply([_change(each, 1) for each in created], PATIENCE_S)
    ours = [workload.ref for workload in view.workloads if workload.ref.namespace == world.namespace]
    assert len(ours) == 3
    assert {outcome.status for outcome in outcomes} == {ChangeStatus.RECORDED}
    assert "HorizontalPodAutoscaler/theirs" not in view.other_owner  # dry-run compares with it
    assert kube_api.refused(user) == set()
    assert kube_api.used(user) == granted(*roles)
    assert await world.replicas("a") == 2
    assert await world.replicas("c", "LeaderWorkerSet", LWS) == 1
