"""Requests for nodes on a real API server, with the shipped permissions."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube
from autoscaler.adapters.kubernetes.node_requests.objects import PlaceRequest, object_name
from autoscaler.adapters.kubernetes.node_requests.reconciler import CHECK_S, DISCOVERY_S, REFUSED_S, NodeRequester
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.config.settings import LeaseSettings, NodeRequestKind, NodeRequests
from autoscaler.core.chain.links import ChainState, Leads, plan_links
from autoscaler.core.model.chain import Link
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.core.model.forecast import Forecast
from autoscaler.ports import TickRecord
from tests.adapters.keda.world import Lease, ManualClock
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.world import MANIFESTS
from tests.adapters.web.records import World as Records
from tests.adapters.web.records import with_window
from tests.core.chain.clusters import cluster, look, windows
from tests.harness.kube_api import KubeApi, User, load_manifests
from tests.harness.process import eventually

pytestmark = pytest.mark.integration

NEEDS = Needs(resource="nvidia.com/gpu", largest=1.0, smallest=1.0, total=1.0, cpu=4.0, memory=2.0**34)
LLAMA, QWEN = WorkloadRef("team-a", "llama"), WorkloadRef("team-b", "qwen")
BUFFERS = "autoscaling.x-k8s.io/v1beta1"


@pytest.fixture
async def user(kube_api: KubeApi, namespace: str) -> User:
    role, _, priority_class, *_ = load_manifests(MANIFESTS / "prewarm" / "prewarm.yaml")
    await kube_api.apply(priority_class)
    return await kube_api.service_account(namespace, "prewarming", *in_namespace([role], namespace))


@pytest.fixture
async def kube(connect: Connect, user: User) -> Kube:
    return await connect(user)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Requester:
    """Makes requesters of one installation, as processes that follow each other."""

    def __init__(self, kube: Kube, clock: ManualClock, namespace: str) -> None:
        self.kube, self.clock, self.namespace, self.lease = kube, clock, namespace, Lease()

    def start(
        self, by: NodeRequestKind = NodeRequestKind.PLACEHOLDER, installation: str = "", needs: Needs | None = NEEDS
    ) -> NodeRequester:
        manager = f"vllm-autoscaler/{installation or self.namespace}"
        settings = NodeRequests(by=by)
        return NodeRequester(
            self.kube,
            self.clock,
            settings,
            LeaseSettings(namespace=self.namespace),
            manager,
            lambda ref: needs,
            self.lease,
        )


@pytest.fixture
def requester(kube: Kube, clock: ManualClock, namespace: str) -> Requester:
    return Requester(kube, clock, namespace)


def due(*places: int) -> tuple[PlaceRequest, ...]:
    return tuple(PlaceRequest(ref, count, NEEDS) for ref, count in zip((LLAMA, QWEN), places, strict=False) if count)


async def listed(
    api: KubeApi, namespace: str, root: str = "apis/apps/v1", plural: str = "deployments"
) -> dict[str, dict]:
    found = await api.request("GET", f"/{root}/namespaces/{namespace}/{plural}")
    return {each["metadata"]["annotations"]["vllm-autoscaler.io/workload"]: each for each in found["items"]}


async def counts(api: KubeApi, namespace: str) -> dict[str, int]:
    return {name: each["spec"]["replicas"] for name, each in (await listed(api, namespace)).items()}


async def test_placeholders_follow_the_places_and_vanish(requester: Requester, kube_api: KubeApi, namespace: str):
    process = requester.start()
    await process.reconcile(due(2, 1))
    assert await counts(kube_api, namespace) == {"team-a/llama": 2, "team-b/qwen": 1}
    await process.reconcile(due(1, 3))
    assert await counts(kube_api, namespace) == {"team-a/llama": 1, "team-b/qwen": 3}
    await process.reconcile(due(0, 3))
    assert await counts(kube_api, namespace) == {"team-b/qwen": 3}
    await process.reconcile(())
    assert await counts(kube_api, namespace) == {}


async def test_a_placeholder_pod_is_admitted_with_a_low_priority(
    requester: Requester, kube_api: KubeApi, namespace: str
):
    await requester.start().reconcile(due(1))
    template = (await listed(kube_api, namespace))["team-a/llama"]["spec"]["template"]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}
    pod = await kube_api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    assert (pod["spec"]["priority"], pod["spec"]["priorityClassName"]) == (-10, "vllm-autoscaler-placeholder")
    assert pod["spec"]["preemptionPolicy"] == "Never"


async def test_nothing_is_written_while_nothing_changes(
    requester: Requester, kube_api: KubeApi, namespace: str, user: User, clock: ManualClock
):
    process = requester.start()
    await process.reconcile(due(2))
    before = len(kube_api.audit(user))
    for _ in range(5):
        clock.time_s += 5
        await process.reconcile(due(2))
    assert len(kube_api.audit(user)) == before


async def test_a_new_process_orders_nothing_twice(requester: Requester, kube_api: KubeApi, namespace: str):
    await requester.start().reconcile(due(2, 1))
    first = await listed(kube_api, namespace)
    await requester.start().reconcile(due(2))  # in the middle of the chain, and one need has gone away meanwhile
    second = await listed(kube_api, namespace)
    assert second.keys() == {"team-a/llama"}
    for field in ("uid", "generation"):
        assert second["team-a/llama"]["metadata"][field] == first["team-a/llama"]["metadata"][field]


async def test_a_new_process_removes_what_is_not_needed(requester: Requester, kube_api: KubeApi, namespace: str):
    await requester.start().reconcile(due(2, 1))
    await requester.start().reconcile(())
    assert await counts(kube_api, namespace) == {}


async def test_requests_belong_to_the_role_that_allows_them(requester: Requester, kube_api: KubeApi, namespace: str):
    """The cluster deletes them with it: when the setting is turned off, and with the installation."""
    role, *_ = load_manifests(MANIFESTS / "prewarm" / "prewarm.yaml")
    (made,) = in_namespace([role], namespace)
    await kube_api.apply(made)
    await requester.start().reconcile(due(1))
    owner = await kube_api.get(made["apiVersion"], "Role", namespace, made["metadata"]["name"])
    (found,) = (await listed(kube_api, namespace)).values()
    (reference,) = found["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == ("Role", owner["metadata"]["uid"])


async def test_without_the_setting_former_requests_are_removed(requester: Requester, kube_api: KubeApi, namespace: str):
    await requester.start().reconcile(due(2, 1))
    await requester.start(installation="other").reconcile(due(1))
    await requester.start().remove_leftovers()
    assert await counts(kube_api, namespace) == {"team-a/llama": 1}


async def test_only_the_right_is_asked_for_without_setting_and_right(
    kube_api: KubeApi, connect: Connect, clock: ManualClock, namespace: str
):
    user = await kube_api.service_account(namespace, "nobody")
    await Requester(await connect(user), clock, namespace).start().remove_leftovers()
    assert (kube_api.used(user), kube_api.refused(user)) == (set(), set())


async def test_objects_of_another_installation_are_left_alone(requester: Requester, kube_api: KubeApi, namespace: str):
    await requester.start(installation="other").reconcile(due(2))
    ours = requester.start()
    await ours.reconcile(due(1))
    found = (await kube_api.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments"))["items"]
    assert sorted(each["spec"]["replicas"] for each in found) == [1, 2]
    await ours.reconcile(())
    assert await counts(kube_api, namespace) == {"team-a/llama": 2}


async def test_a_change_by_hand_is_undone_at_the_next_check(
    requester: Requester, kube_api: KubeApi, namespace: str, clock: ManualClock
):
    process = requester.start()
    await process.reconcile(due(2))
    name = object_name(LLAMA, f"vllm-autoscaler/{namespace}")
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    await kube_api.request("DELETE", path)
    clock.time_s += CHECK_S
    await process.reconcile(due(2))
    assert await counts(kube_api, namespace) == {"team-a/llama": 2}


async def test_a_follower_writes_nothing(requester: Requester, kube_api: KubeApi, namespace: str):
    requester.lease.leading = False
    await requester.start().reconcile(due(2))
    assert await counts(kube_api, namespace) == {}


async def test_buffers_take_the_place_of_placeholders(
    requester: Requester, kube_api: KubeApi, namespace: str, clock: ManualClock
):
    process = requester.start(NodeRequestKind.AUTO)
    await process.reconcile(due(2))
    assert await counts(kube_api, namespace) == {"team-a/llama": 2}
    await kube_api.install_crds("nodes/capacitybuffers")

    async def is_replaced() -> bool:  # the API server lists a new group some time after it serves it
        clock.time_s += DISCOVERY_S
        await process.reconcile(due(2, 1))
        return not await counts(kube_api, namespace)

    await eventually(is_replaced, "placeholders are gone")
    found = await listed(kube_api, namespace, f"apis/{BUFFERS}", "capacitybuffers")
    assert {name: each["spec"]["replicas"] for name, each in found.items()} == {"team-a/llama": 2, "team-b/qwen": 1}
    templates = await listed(kube_api, namespace, "api/v1", "podtemplates")
    for name, each in found.items():
        assert each["spec"]["podTemplateRef"]["name"] == templates[name]["metadata"]["name"]
    # The operator prefers placeholders now, and the buffers go with the next process.
    await requester.start().reconcile(due(2))
    assert await counts(kube_api, namespace) == {"team-a/llama": 2}
    assert await listed(kube_api, namespace, f"apis/{BUFFERS}", "capacitybuffers") == {}
    assert await listed(kube_api, namespace, "api/v1", "podtemplates") == {}


@pytest.mark.parametrize("answered", [False, True])
async def test_placeholders_are_made_when_nothing_answers_buffers(
    requester: Requester, kube_api: KubeApi, namespace: str, clock: ManualClock, answered: bool
):
    """Some clouds install the kind alone."""
    await kube_api.install_crds("nodes/capacitybuffers")
    process = requester.start(NodeRequestKind.AUTO)

    async def is_requested() -> bool:
        clock.time_s += DISCOVERY_S
        await process.reconcile(())
        await process.reconcile(due(2))
        return bool(await listed(kube_api, namespace, f"apis/{BUFFERS}", "capacitybuffers"))

    await eventually(is_requested, "the API server lists the kind")
    (buffer,) = (await listed(kube_api, namespace, f"apis/{BUFFERS}", "capacitybuffers")).values()
    if answered:
        status = {"conditions": [{"type": "ReadyForProvisioning", "status": "True"}]}
        await kube_api.set_status(BUFFERS, "CapacityBuffer", namespace, buffer["metadata"]["name"], status)
    clock.time_s += CHECK_S
    await process.reconcile(due(2))
    buffers = await listed(kube_api, namespace, f"apis/{BUFFERS}", "capacitybuffers")
    assert (await counts(kube_api, namespace), len(buffers)) == (({}, 1) if answered else ({"team-a/llama": 2}, 0))


async def test_missing_buffers_are_a_problem_only_if_demanded(requester: Requester):
    process = requester.start(NodeRequestKind.CAPACITY_BUFFER)
    with pytest.raises(ApiError, match=r"the cluster has no capacitybuffers\.autoscaling\.x-k8s\.io"):
        await process.reconcile(due(1))


async def test_a_missing_right_is_an_error_that_names_it(
    kube_api: KubeApi, connect: Connect, clock: ManualClock, namespace: str
):
    user = await kube_api.service_account(namespace, "nobody")
    process = Requester(await connect(user), clock, namespace).start()
    with pytest.raises(ApiError, match="deployments"):
        await process.reconcile(due(1))


async def test_nodes_of_no_workload_can_be_requested_after_a_refusal(
    kube_api: KubeApi, connect: Connect, clock: ManualClock, namespace: str
):
    """Their replicas are then ordered a whole cold start before the window."""
    user = await kube_api.service_account(namespace, "nobody")
    process = Requester(await connect(user), clock, namespace).start()
    tick = with_window(Records(1).tick())
    assert process.can_request(tick.input.fleet).tolist() == [True]
    process.record(tick)
    running = asyncio.create_task(process.run())
    try:
        await eventually(lambda: _is(process.problem), "the refusal is known")
        assert "deployments" in process.problem
        assert process.can_request(tick.input.fleet).tolist() == [False]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    clock.time_s += REFUSED_S
    assert process.can_request(tick.input.fleet).tolist() == [True]


async def _is(value: object) -> bool:
    return bool(value)


async def test_devices_of_claims_are_not_requested(requester: Requester):
    fleet = Records(1).tick().input.fleet
    process = requester.start(needs=None)
    assert process.can_request(fleet).tolist() == [False]


def test_places_of_a_tick_are_due_if_this_process_leads(requester: Requester):
    process = requester.start()
    tick = with_window(Records(1).tick())
    process.record(replace(tick, leading=False))
    assert process.due is None
    process.record(tick)
    assert process.due is not None and [(request.ref, request.places) for request in process.due] == [
        (tick.input.fleet.workloads[0].ref, 2)
    ]


async def test_places_for_a_forecast_are_requested_and_given_back(
    requester: Requester, kube_api: KubeApi, namespace: str
):
    """A day ago four replicas were needed in the fourth bin, and today the load stays away."""
    since_s, forecast = 9000.0, Forecast.blank(1)
    forecast = replace(forecast, replicas=np.array([[1.0]] * 3 + [[4.0]] + [[1.0]] * 5), since_s=np.array([since_s]))
    fleet, state = cluster([1], free=0), ChainState.blank(1)
    leads = Leads(*np.full((2, len(Link), 1), 300.0), np.full(1, 300.0))
    process, placed = requester.start(), []
    for bins in range(6):
        inp = look(since_s + 900 * bins, fleet, windows([]))
        chain, state = plan_links(inp, fleet.replicas, forecast, leads, state)
        tick = Records(1).tick()
        process.record(replace(tick, decision=replace(tick.decision, chain=chain)))
        assert process.due is not None
        await process.reconcile(process.due)
        placed.append(sum((await counts(kube_api, namespace)).values()))
    # They are due a bin before, and their links start 900 s earlier.
    assert placed == [0, 3, 3, 3, 0, 0]


def test_earliest_windows_come_first_up_to_a_bound(requester: Requester):
    rows = 200
    tick: TickRecord = Records(rows).tick()
    chain = replace(tick.decision.chain, due_s=tick.now_s + np.arange(rows)[::-1], places=np.ones(rows))
    process = requester.start()
    process.record(replace(tick, decision=replace(tick.decision, chain=chain)))
    assert process.due is not None and len(process.due) == 64
    assert process.due[0].ref == tick.input.fleet.workloads[-1].ref


def test_namespaces_take_turns_when_many_windows_are_due(requester: Requester):
    """One tenant with a hundred windows keeps nobody else from a node."""
    tick: TickRecord = Records(101).tick()
    workloads = tick.input.fleet.workloads
    namespaces = ["crowd"] * 100 + ["calm"]
    moved = [
        each._replace(ref=each.ref._replace(namespace=its)) for each, its in zip(workloads, namespaces, strict=True)
    ]
    fleet = replace(tick.input.fleet, workloads=tuple(moved))
    chain = replace(tick.decision.chain, due_s=tick.now_s + np.arange(101), places=np.ones(101))
    process = requester.start()
    process.record(replace(tick, input=replace(tick.input, fleet=fleet), decision=replace(tick.decision, chain=chain)))
    assert process.due is not None and len(process.due) == 64
    assert [request.ref.namespace for request in process.due[:3]] == ["crowd", "calm", "crowd"]


async def test_images_are_pulled_by_pods_even_where_buffers_are_served(
    kube: Kube, kube_api: KubeApi, namespace: str, clock: ManualClock
):
    """A CapacityBuffer makes no pod, so nothing would pull."""
    await kube_api.install_crds("nodes/capacitybuffers")
    tick = with_window(Records(1).tick())
    process = NodeRequester(
        kube,
        clock,
        NodeRequests(pull_images=True),
        LeaseSettings(namespace=namespace),
        f"vllm-autoscaler/{namespace}",
        lambda ref: NEEDS,
        Lease(),
        lambda ref: f"registry.example/{ref.name}:1",
    )
    process.record(tick)
    assert process.due is not None
    await process.reconcile(process.due)
    (made,) = (await listed(kube_api, namespace)).values()
    (volume,) = made["spec"]["template"]["spec"]["volumes"]
    assert volume["image"]["reference"] == f"registry.example/{tick.input.fleet.workloads[0].ref.name}:1"


@pytest.mark.parametrize("pull_images", [True, False])
async def test_images_are_pulled_to_nodes_that_get_weights(
    kube: Kube, kube_api: KubeApi, namespace: str, clock: ManualClock, pull_images: bool
):
    """No kubelet runs here: what is tried is that the API server takes the pods, and which of them there are."""
    warmed: dict[WorkloadRef, tuple[str, ...]] = {LLAMA: ("n1", "n2"), QWEN: ("n2",)}
    process = NodeRequester(
        kube,
        clock,
        NodeRequests(pull_images=pull_images),
        LeaseSettings(namespace=namespace),
        f"vllm-autoscaler/{namespace}",
        lambda ref: NEEDS,
        Lease(),
        lambda ref: f"registry.example/{ref.name}:1",
        warmed=lambda: warmed,
    )
    await process.reconcile(())
    assert await counts(kube_api, namespace) == ({"team-a/llama": 2, "team-b/qwen": 1} if pull_images else {})
    if pull_images:
        spec = (await listed(kube_api, namespace))["team-a/llama"]["spec"]["template"]["spec"]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
        pod = await kube_api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        assert pod["spec"]["volumes"][0]["image"]["reference"] == "registry.example/llama:1"
    del warmed[LLAMA]
    await process.reconcile(())
    assert await counts(kube_api, namespace) == ({"team-b/qwen": 1} if pull_images else {})
