"""Dynamic resource allocation on the real API server: tests write what drivers, scheduler and users write."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.core.model.fleet import Fleet
from tests.adapters.kubernetes.conftest import Connect
from tests.adapters.kubernetes.inventory.devices import world as dra
from tests.adapters.kubernetes.node_world import everywhere, row_of
from tests.adapters.kubernetes.test_inventory import groups_of, pool_of
from tests.adapters.kubernetes.world import LWS, World, annotated, running, shipped_roles, synced, until
from tests.harness.kube_api import KubeApi, granted
from tests.harness.process import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

GROUP = "resource.k8s.io"
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
PROFILE = dra.attribute("profile")


class Devices:
    """Devices of one test. Its driver has a name of its own, so that others' devices are in no pool of it."""

    def __init__(self, api: KubeApi, world: World, version: str = "v1") -> None:
        self._api = api
        self._version = f"{GROUP}/{version}"
        self._is_flat = version == "v1beta1"
        self._world = world
        self.driver = f"gpu.{world.namespace}.example.com"
        self.full = f"{self.driver}/gpu"
        self._made: list[tuple[str, str, str]] = []

    async def add_class(self, name: str, kind: str, **spec: Any) -> str:
        full = f"{name}.{self._world.namespace}"
        selector = dra.OF_TYPE.format(self.driver, kind)
        await self._create(self._version, "DeviceClass", dra.device_class(full, selector, **spec))
        return full

    async def add_node(self, name: str) -> str:
        full = f"{name}-{self._world.namespace}"
        await self._create("v1", "Node", {"metadata": {"name": full}, "spec": {}})
        await self._api.set_status("v1", "Node", None, full, {"allocatable": {"cpu": "64"}, **READY})
        return full

    async def publish(self, node: str, devices: Sequence[Mapping[str, Any]], name: str = "", **more: Any) -> None:
        if self._is_flat:  # a device has its fields in `basic`
            basic = [{key: value for key, value in each.items() if key != "name"} for each in devices]
            devices = [{"name": each["name"], "basic": rest} for each, rest in zip(devices, basic, strict=True)]
        value = dra.slice_of(name or node, devices, node, self.driver, pool=node, **more)
        await self._create(self._version, "ResourceSlice", value)

    async def template(self, name: str, *requests: Mapping[str, Any]) -> None:
        value = dra.claim_template(name, *requests, is_flat=self._is_flat)
        value["metadata"]["namespace"] = self._world.namespace
        await self._api.apply({"apiVersion": self._version, "kind": "ResourceClaimTemplate", **value})

    async def allocate(
        self, name: str, device_class: str, devices: Sequence[tuple[str, str]], pods: Sequence[str], **metadata: Any
    ) -> None:
        """Create a claim, and allocate devices to it as the scheduler does. devices: with their pools."""
        value = dra.claim(name, devices, pods, self.driver)
        asked = dra.request(device_class, count=len(devices))
        spec = dra.claim_template(name, asked, is_flat=self._is_flat)["spec"]["spec"]
        claim = {"metadata": {"name": name, **metadata}, "spec": spec}
        namespace = self._world.namespace
        await self._api.apply({"apiVersion": self._version, "kind": "ResourceClaim", **claim}, namespace=namespace)
        await self._api.set_status(self._version, "ResourceClaim", namespace, name, value["status"])

    async def release(self, name: str) -> None:
        """Take the devices of a claim back, as its controller does when its last pod is gone."""
        status = {"allocation": None, "reservedFor": None}
        await self._api.set_status(self._version, "ResourceClaim", self._world.namespace, name, status)

    async def remove(self) -> None:
        for api_version, kind, name in self._made:
            await self._api.delete(api_version, kind, None, name)

    async def _create(self, api_version: str, kind: str, value: Mapping[str, Any]) -> None:
        await self._api.apply({"apiVersion": api_version, "kind": kind, **value})
        made = api_version, kind, value["metadata"]["name"]
        if made not in self._made:
            self._made.append(made)


@pytest_asyncio.fixture
async def devices(kube_api: KubeApi, world: World) -> AsyncIterator[Devices]:
    made = Devices(kube_api, world)
    yield made
    await made.remove()


def gpus(driver: str, count: int, product: str = dra.H100) -> list[dict[str, Any]]:
    return [dra.gpu(f"gpu-{place}", product) for place in range(count)]


async def claiming(world: World, name: str, template: str, limits: Mapping[str, str] | None = None) -> None:
    """Create a Deployment whose pods have a claim each."""
    await world.deployment(name, gpus=0)
    spec = dra.pod_spec(*([template] if template else []), limits=limits)
    spec["containers"][0]["image"] = "vllm"
    containers = [{"name": "proxy", "image": "proxy"}, *spec["containers"]]
    patch = {"spec": {"template": {"spec": {**spec, "containers": containers}}}}
    await world.patch("Deployment", name, patch, api_version="apps/v1")


def gpus_of(world: World, view: Fleet, name: str) -> float:
    return float(view.gpus_per_replica[row_of(world, view, name)])


def problem_of(world: World, fleet: KubeFleet, name: str) -> str:
    found = {(ref.namespace, ref.name): problem for ref, problem in fleet.problems().items()}
    return found.get((world.namespace, name), "")


async def test_claims_count_from_templates_slices_and_allocations(
    kube: Kube, clock: SystemClock, world: World, devices: Devices
):
    one, two = [await devices.add_node(name) for name in ("a", "b")]
    device_class = await devices.add_class("full", "gpu")
    for node in (one, two):
        await devices.publish(node, gpus(devices.driver, 4))
    await devices.template("pair", dra.request(device_class, count=2))
    await claiming(world, "llama", "pair")
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        assert pool_of(world, view, "llama") == (8.0, 4.0)
        assert gpus_of(world, view, "llama") == 2.0
        pool = view.pools[view.pool[row_of(world, view, "llama")]]
        assert (pool.resource, pool.product) == (devices.full, "NVIDIA-H100-80GB-HBM3")
        assert problem_of(world, fleet, "llama") == ""
        await world.pod("llama", "llama-a", node=one)
        await devices.allocate("llama-a-pair", device_class, [(one, "gpu-0"), (one, "gpu-1")], ["llama-a"])
        await devices.allocate("job", device_class, [(two, "gpu-0"), (two, "gpu-1"), (two, "gpu-2")], ["job"])
        await until(fleet, "ours counts", lambda view: sum(groups_of(world, view, "llama", "used")) == 2.0)
        view = await until(
            fleet, "others count", lambda view: sum(groups_of(world, view, "llama", "used_by_others")) == 3.0
        )
        assert pool_of(world, view, "llama") == (5.0, 2.0)
        await devices.release("job")
        await until(fleet, "they are free again", lambda view: pool_of(world, view, "llama") == (8.0, 4.0))


async def test_claim_that_pods_share_counts_once(kube: Kube, clock: SystemClock, world: World, devices: Devices):
    node = await devices.add_node("a")
    device_class = await devices.add_class("full", "gpu")
    await devices.publish(node, gpus(devices.driver, 4))
    await devices.template("one", dra.request(device_class))
    await claiming(world, "llama", "one")
    await world.pod("llama", "llama-a", node=node)
    await world.pod("llama", "llama-b", node=node)
    await devices.allocate("shared", device_class, [(node, "gpu-0"), (node, "gpu-1")], ["llama-a", "llama-b"])
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await until_known(fleet, lambda view: sum(groups_of(world, view, "llama", "used")) > 0)
        assert groups_of(world, view, "llama", "used") == [2.0]


async def until_known(fleet: KubeFleet, holds: Any) -> Fleet:
    await synced(fleet)
    return await until(fleet, "it counts", holds)


async def test_gpus_that_can_be_cut_are_counted_for_what_is_asked(
    kube: Kube, clock: SystemClock, world: World, devices: Devices
):
    node = await devices.add_node("a")
    small = await devices.add_class("slice", "mig")
    cut = dra.cuttable("gpu-0")
    await devices.publish(node, cut, "devices-" + node, slices=2)
    await devices.publish(node, [], "counters-" + node, slices=2, sharedCounters=[dra.whole("gpu-0")])
    selector = f"{dra.attribute('profile', devices.driver)} == '3g.40gb'"
    await devices.template("large", dra.request(small, selector))
    await claiming(world, "llama", "large")
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        assert pool_of(world, view, "llama") == (2.0, 2.0)
        assert view.pools[view.pool[row_of(world, view, "llama")]].resource == f"{devices.driver}/mig-3g.40gb"
        await devices.allocate("theirs", small, [(node, "gpu-0-1g-0")], ["job"])
        await until(fleet, "half of the GPU is gone", lambda view: pool_of(world, view, "llama") == (1.0, 1.0))
        await devices.publish(
            node,
            [{**each, "taints": [{"key": "broken", "effect": "NoSchedule"}]} for each in cut],
            "devices-" + node,
            generation=2,
            slices=2,
        )
        counters = [dra.whole("gpu-0")]
        await devices.publish(node, [], "counters-" + node, generation=2, slices=2, sharedCounters=counters)
        await until(fleet, "tainted devices are gone", lambda view: pool_of(world, view, "llama") == (0.0, 0.0))


async def test_extended_resource_of_a_class_is_counted(kube: Kube, clock: SystemClock, world: World, devices: Devices):
    """`deviceclass.resource.kubernetes.io/NAME`, and the name that a DeviceClass states."""
    node = await devices.add_node("a")
    name = f"example.com/{world.namespace}"
    device_class = await devices.add_class("full", "gpu", extendedResourceName=name)
    await devices.publish(node, gpus(devices.driver, 4))
    await claiming(world, "named", "", {name: "2"})
    await claiming(world, "implicit", "", {f"deviceclass.resource.kubernetes.io/{device_class}": "2"})
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        for workload in ("named", "implicit"):
            assert gpus_of(world, view, workload) == 2.0
            assert pool_of(world, view, workload) == (4.0, 2.0)
            assert view.pools[view.pool[row_of(world, view, workload)]].resource == name


async def test_unknown_claims_stay_unknown_until_their_objects_come(
    kube: Kube, clock: SystemClock, world: World, devices: Devices
):
    node = await devices.add_node("a")
    await claiming(world, "llama", "one-h100")
    await world.deployment("other", gpus=0)
    workers = {"spec": {**dra.pod_spec("one-h100"), "containers": [{"name": "w", "image": "w"}]}}
    leader = {"spec": {"containers": [{"name": "l", "image": "l", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": leader, "workerTemplate": workers}}
    metadata = {"name": "group", "annotations": annotated(policy="realtime")}
    group = {"apiVersion": LWS, "kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec}
    await world.api.apply(group, namespace=world.namespace)
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        for name in ("llama", "group"):
            assert math.isnan(gpus_of(world, view, name))
            assert "ResourceClaimTemplate 'one-h100' does not exist" in problem_of(world, fleet, name)
        device_class = await devices.add_class("full", "gpu")
        await devices.template("one-h100", dra.request(device_class))
        await until(fleet, "the template counts", lambda view: gpus_of(world, view, "llama") == 1.0)
        assert gpus_of(world, fleet.fleet(), "group") == 11.0
        await devices.publish(node, gpus(devices.driver, 2))
        await until(fleet, "the devices count", lambda view: pool_of(world, view, "llama") == (2.0, 2.0))


async def test_claims_are_unknown_and_all_else_served_without_rights(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, world: World, devices: Devices
):
    await claiming(world, "llama", "one")
    await world.deployment("plain")
    (role,) = [each for each in shipped_roles("direct") if each["kind"] == "ClusterRole"]
    rules = [rule for rule in role["rules"] if rule["apiGroups"] != ["resource.k8s.io"]]
    less = role | {"metadata": {"name": f"less-{world.namespace}"}, "rules": rules}
    user = await kube_api.service_account(world.namespace, "less", less)
    fleet = everywhere(await connect(user), clock)
    async with running(fleet):
        view = await synced(fleet)
        assert "may not be listed" in problem_of(world, fleet, "llama")
        assert gpus_of(world, view, "plain") == 1.0

        async def named() -> bool:
            return "resourceclaims.resource.k8s.io" in fleet.unlisted_kinds()

        await eventually(named, "the kinds are named")
    assert granted(less).isdisjoint({each for each in kube_api.used(user) if each.group == "resource.k8s.io"})


@pytest.mark.parametrize("version", ["v1beta1", pytest.param("v1beta2", marks=pytest.mark.long)])
async def test_older_versions_count_the_same(tmp_path: Path, clock: SystemClock, version: str):
    """The API server of an older Kubernetes serves only a beta version of the objects."""
    others = [each for each in ("v1", "v1beta1", "v1beta2") if each != version]
    served = ",".join([f"{GROUP}/{version}=true", *(f"{GROUP}/{each}=false" for each in others)])
    async with KubeApi.running(tmp_path, served) as api, Kube.using(api.configuration(), PATIENCE_S) as kube:
        await api.install_crds()
        world = World(api, await api.namespace())
        devices = Devices(api, world, version)
        node = await devices.add_node("a")
        device_class = await devices.add_class("full", "gpu")
        await devices.publish(node, gpus(devices.driver, 4))
        await devices.template("pair", dra.request(device_class, count=2))
        await devices.allocate("job", device_class, [(node, "gpu-0")], ["job"])
        await claiming(world, "llama", "pair")
        fleet = everywhere(kube, clock)
        async with running(fleet):
            view = await synced(fleet)
            assert gpus_of(world, view, "llama") == 2.0
            assert pool_of(world, view, "llama") == (3.0, 1.0)


async def test_costly_claims_of_a_tenant_leave_a_neighbour_known(
    kube: Kube, clock: SystemClock, world: World, devices: Devices
):
    """All that the API server accepts: as many requests, selectors and devices as it allows, as long as it allows."""
    whole = await devices.add_class("whole", "gpu")
    node = await devices.add_node("node")
    await devices.publish(node, gpus(devices.driver, 8))
    await devices.template("plain", dra.request(whole, count=2))
    await claiming(world, "neighbour", "plain")
    long = " && ".join(["true"] * 1000)
    costly = {
        "many": ([dra.request(whole, count=1)] * 32, ""),
        "absurd": ([dra.request(whole, count=2**63 - 1)], "it asks for 9223372036854775807 devices"),
        "long": ([dra.request(whole, *[long] * 16)], "it has more than 400 words and signs"),
        "pattern": ([dra.request(whole, f"'{'a' * 900}'.matches('.*.*.*b')")], "is not evaluated: unexpected"),
    }
    for name, (requests, _) in costly.items():
        await devices.template(name, *requests)
        await claiming(world, name, name)
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await until_known(fleet, lambda view: gpus_of(world, view, "neighbour") == 2)
        assert {name: gpus_of(world, view, name) for name in costly if costly[name][1] == ""} == {"many": 32}
        for name, (_, problem) in costly.items():
            assert problem in problem_of(world, fleet, name)
