"""Deletion costs of pods on a real API server, written before the scale, with the shipped permissions."""

import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.in_memory import RecordingActuator
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.library import Configuration
from autoscaler.adapters.kubernetes.deletion_costs import (
    FORBIDDEN_PAUSE_S,
    MAX_PATCHES,
    PAUSE_S,
    REPEAT_S,
    CostsBefore,
    DeletionCosts,
    costs_to_write,
)
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.status import DELETION_COST
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.settings import Mode
from autoscaler.core.model.fleet import Pod, WorkloadRef
from autoscaler.ports import Change, ChangeStatus
from tests.adapters.keda.world import Lease, ManualClock
from tests.adapters.kubernetes.api.test_client import serving
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.world import (
    MANIFESTS,
    READY_STATUS,
    World,
    patient_actuator,
    running,
    shipped_roles,
    synced,
    until,
)
from tests.harness.kube_api import KubeApi, User, granted, load_manifests
from tests.harness.process import PATIENCE_S


def shrink_role() -> dict:
    return load_manifests(MANIFESTS / "shrink" / "rbac.yaml")[0]


@pytest.fixture
async def user(kube_api: KubeApi, namespace: str) -> User:
    roles = [*in_namespace(shipped_roles("direct"), namespace), shrink_role()]
    return await kube_api.service_account(namespace, "shrinking", *roles)


def change(created: dict, before: int, after: int, *victims: str) -> Change:
    metadata = created["metadata"]
    ref = WorkloadRef(metadata["namespace"], metadata["name"], created["kind"], created["apiVersion"])
    pods = tuple(Pod(ref.namespace, name) for name in victims)
    return Change(ref, metadata["uid"], before, after, "because", victims=pods)


async def annotate(world: World, pod: str, cost: str) -> None:
    await world.patch("Pod", pod, {"metadata": {"annotations": {DELETION_COST: cost}}}, "v1")


async def costs_of(world: World, *pods: str) -> list[str | None]:
    found = [await world.api.get("v1", "Pod", world.namespace, pod) for pod in pods]
    return [(pod["metadata"].get("annotations") or {}).get(DELETION_COST) for pod in found]


def writes(api: KubeApi, user: User) -> list[tuple[str, str]]:
    return [
        (event.permission.resource, event.name)
        for event in api.audit(user)
        if event.permission.verb == "patch" and event.permission.resource in ("pods", "deployments/scale")
    ]


async def workload(world: World, *pods: str, costs: dict[str, str] | None = None) -> dict:
    created = await world.deployment("llama", replicas=len(pods))
    for pod in pods:
        await world.pod("llama", pod, READY_STATUS)
        if pod in (costs or {}):
            await annotate(world, pod, costs[pod])
    return created


def all_seen(costs: dict[str, float]):
    return lambda pods: all(pods.get(name) == cost for name, cost in costs.items())


@pytest.mark.integration
async def test_pods_that_differ_are_annotated_before_the_scale(
    kube_api: KubeApi, connect: Connect, user: User, clock: SystemClock, world: World
):
    stated = {"kept": "100", "stale": "-7", "second": "-1"}
    created = await workload(world, "first", "second", "stale", "kept", "plain", costs=stated)
    kube = await connect(user)
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace]))
    counted: list[str] = []
    costs = DeletionCosts(kube, clock, fleet.deletion_cost, count=counted.append, deadline_s=PATIENCE_S)
    actuator = patient_actuator(kube, OwnWrites(clock), deletion_costs=costs)
    shrink = change(created, 5, 3, "first", "second", "stale", "kept", "plain")
    async with running(fleet):
        await synced(fleet)
        seen = until(fleet, "the costs are seen", lambda _: fleet.deletion_cost((world.namespace, "stale")) == -7)
        await seen
        (outcome,) = await actuator.apply([shrink], PATIENCE_S)
        assert outcome.status is ChangeStatus.APPLIED
        assert await costs_of(world, "first", "second", "stale", "kept", "plain") == ["-2", "-1", None, "100", None]
        assert sorted(writes(kube_api, user)[:-1]) == [("pods", "first"), ("pods", "stale")]
        assert writes(kube_api, user)[-1] == ("deployments/scale", "llama")
        assert counted == ["written", "written"]
        await costs.write(shrink)  # even before the watch shows the patches
        assert len(writes(kube_api, user)) == 3
    assert kube_api.used(user) >= granted(shrink_role())
    assert kube_api.refused(user) == set()


@pytest.mark.integration
async def test_a_missing_permission_is_said_once_and_scaling_goes_on(
    kube_api: KubeApi, kube: Kube, daemon: User, world: World
):
    created, clock = await workload(world, "first", "second"), ManualClock()
    counted: list[str] = []
    costs = DeletionCosts(kube, clock, lambda key: 0.0, count=counted.append, deadline_s=PATIENCE_S)
    actuator = patient_actuator(kube, OwnWrites(clock), deletion_costs=costs)
    shrink = change(created, 2, 1, "first", "second")
    with structlog.testing.capture_logs() as lines:
        (outcome,) = await actuator.apply([shrink], PATIENCE_S)
        await costs.write(shrink)
        assert counted == ["forbidden"]  # and not tried again for a while
        clock.time_s += FORBIDDEN_PAUSE_S
        await costs.write(shrink)
    assert (outcome.status, await world.replicas("llama")) == (ChangeStatus.APPLIED, 1)
    assert counted == ["forbidden", "forbidden"]
    (line,) = lines
    assert "manifests/shrink/rbac.yaml" in line["event"]
    assert 'cannot patch resource "pods"' in line["error"]


@pytest.mark.integration
async def test_pods_of_other_controllers_are_left_alone(connect: Connect, user: User, clock: SystemClock, world: World):
    await world.stateful_set("b")
    await world.pod("b", "b-0", READY_STATUS, kind="StatefulSet")
    await workload(world, "first")
    kube = await connect(user)
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace]))
    async with running(fleet):
        await synced(fleet)
        assert fleet.deletion_cost((world.namespace, "b-0")) is None
        assert fleet.deletion_cost((world.namespace, "first")) == 0.0
        assert fleet.deletion_cost((world.namespace, "gone")) is None


@pytest.mark.integration
@pytest.mark.parametrize("status", [500, 0])
async def test_a_failing_server_delays_one_shrink_and_is_logged_once(status: int):
    """A fake server, because a real one fails only when it is broken."""
    requests, counted, clock = [], [], ManualClock()

    async def fail(request: web.Request) -> web.Response:
        requests.append(request.path)
        if not status:
            assert request.transport is not None
            request.transport.close()
        return web.json_response({"message": "broken"}, status=500)

    shrink = Change(WorkloadRef("ns", "llama"), "uid", 2, 1, "", victims=(Pod("ns", "a"), Pod("ns", "b")))
    async with serving(fail) as url, Kube.using(Configuration(host=url), PATIENCE_S) as kube:
        costs = DeletionCosts(kube, clock, lambda key: 0.0, count=counted.append, deadline_s=PATIENCE_S)
        with structlog.testing.capture_logs() as lines:
            await costs.write(shrink)
            await costs.write(shrink)
        assert (len(lines), counted) == (1, ["failed"])
        clock.time_s += PAUSE_S
        await costs.write(shrink)
        assert counted == ["failed", "failed"]


@pytest.mark.integration
async def test_a_former_leader_annotates_nothing(connect: Connect, user: User, kube_api: KubeApi, world: World):
    created = await workload(world, "first", "second")
    costs = DeletionCosts(await connect(user), ManualClock(), lambda key: 0.0, Lease(leading=False))
    await costs.write(change(created, 2, 1, "first", "second"))
    assert writes(kube_api, user) == []


@pytest.mark.integration
async def test_patches_of_one_shrink_are_bounded():
    patched = []

    async def accept(request: web.Request) -> web.Response:
        patched.append(request.path.rpartition("/")[2])
        return web.json_response({})

    pods = tuple(Pod("ns", str(number)) for number in range(200))
    async with serving(accept) as url, Kube.using(Configuration(host=url), PATIENCE_S) as kube:
        costs = DeletionCosts(kube, ManualClock(), lambda key: 0.0, deadline_s=PATIENCE_S)
        await costs.write(Change(WorkloadRef("ns", "llama"), "uid", 200, 50, "", victims=pods))
    assert sorted(patched, key=int) == [str(number) for number in range(MAX_PATCHES)]


@pytest.mark.integration
async def test_in_keda_mode_costs_follow_a_falling_count():
    """The HPA shrinks later, so the costs are renewed at its period, and not in each tick."""
    patched, clock = [], ManualClock()

    async def accept(request: web.Request) -> web.Response:
        patched.append(request.path.rpartition("/")[2])
        return web.json_response({})

    ref = WorkloadRef("ns", "llama")
    async with serving(accept) as url, Kube.using(Configuration(host=url), PATIENCE_S) as kube:
        inner = RecordingActuator()
        actuator = CostsBefore(inner, DeletionCosts(kube, clock, lambda key: 0.0, deadline_s=PATIENCE_S), clock)

        async def tick(after: int, *victims: str) -> list[str]:
            patched.clear()
            pods = tuple(Pod("ns", name) for name in victims)
            (outcome,) = await actuator.apply([Change(ref, "uid", 3, after, "", victims=pods)], PATIENCE_S)
            assert outcome.status is ChangeStatus.RECORDED
            clock.time_s += REPEAT_S / 3
            return list(patched)

        assert await tick(2, "a", "b", "c") == ["a"]
        assert await tick(2, "b", "a", "c") == []
        assert await tick(1, "b", "c", "a") == ["b", "c", "a"]  # "a" loses the cost of the first patch
        assert await tick(1, "c", "b", "a") == []
        assert await tick(4) == []


KEYS = [("ns", str(number)) for number in range(6)]


@given(
    st.permutations(KEYS),
    st.integers(0, 6),
    st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(-9, 9).map(float))),
)
def test_the_first_victims_cost_least_after_the_patches(victims, leaving, present):
    due = costs_to_write(victims, leaving, lambda key: present.get(key, 0.0))
    assert all(due[key] != present.get(key, 0.0) for key in due)
    after = {key: float(due.get(key, present.get(key, 0.0) or 0.0)) for key in victims}
    ours = [key for key in victims if present.get(key, 0.0) is not None and present.get(key, 0.0) <= 0]
    for place, key in enumerate(victims):
        if key in ours:
            assert after[key] == min(place - leaving, 0)
        else:
            assert key not in due
