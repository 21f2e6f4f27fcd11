"""Quotas on the real API server: ResourceQuotas, which its admission enforces, and Kueue's kinds, by discovery.

No controller runs, so tests write the status of quotas as kube-controller-manager and Kueue would.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.quotas.kueue import QUEUE_LABEL
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.quotas import StatedQuota
from autoscaler.config.settings import Mode
from autoscaler.core.allocate.further import limit_by_quotas
from autoscaler.core.model.fleet import Fleet
from tests.adapters.kubernetes.conftest import Connect, in_namespace
from tests.adapters.kubernetes.node_world import FAST
from tests.adapters.kubernetes.quotas.world import GPU, groups
from tests.adapters.kubernetes.world import (
    READY_STATUS,
    World,
    kueue_role,
    running,
    shipped_roles,
    synced,
    until,
)
from tests.core.world import spec
from tests.harness.kube_api import ApiError, KubeApi

pytestmark = pytest.mark.integration

HARD = f"requests.{GPU}"
KUEUE = "kueue.x-k8s.io/v1beta2"


async def resource_quota(api: KubeApi, world: World, hard: str, used: str, **spec: Any) -> None:
    """Create a ResourceQuota of GPUs, with the status that kube-controller-manager would write."""
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
    await api.apply(body | {"spec": {"hard": {HARD: hard}, **spec}}, namespace=world.namespace)
    status = {"hard": {HARD: hard}, "used": {HARD: used}}
    await api.set_status("v1", "ResourceQuota", world.namespace, "gpus", status)


def quotas_of(view: Fleet, name: str = "llama") -> dict[str, tuple[float, ...]]:
    """Return nominal devices, and those used by ours and by others, of the quotas that charge a workload."""
    row = [workload.ref.name for workload in view.workloads].index(name)
    return {
        " ".join(filter(None, (quota.source, quota.flavor))): tuple(
            float(column[place]) for column in (each.nominal, each.used, each.used_by_others) if column is not None
        )
        for each in view.quotas
        if each.tenant[row] >= 0
        for place, quota in enumerate(each.quotas)
        if each.charged[each.tenant[row], place]
    }


def watching(kube: Kube, clock: SystemClock, world: World, **options: Any) -> KubeFleet:
    return KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace], times=FAST, **options))


async def test_resource_quota_caps_what_its_namespace_may_request(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    await world.deployment("llama", replicas=3)
    await resource_quota(kube_api, world, "3", "0")
    for name in ("a", "b"):
        await world.pod("llama", name, READY_STATUS)
    await world.owned_pod("other", "Job/train", {}, READY_STATUS)
    with pytest.raises(ApiError, match="exceeded quota"):
        await world.pod("llama", "c")
    quota = await kube_api.get("v1", "ResourceQuota", world.namespace, "gpus")
    assert quota["status"]["used"] == {HARD: "3"}, "admission counts, without a controller"
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        name = f"ResourceQuota {world.namespace}/gpus"
        assert quotas_of(view) == {name: (3.0, 2.0, 1.0)}
        await kube_api.set_status(
            "v1", "ResourceQuota", world.namespace, "gpus", {"hard": {HARD: "3"}, "used": {HARD: "2"}}
        )
        await until(fleet, "the other pod has ended", lambda view: quotas_of(view) == {name: (3.0, 2.0, 0.0)})
        await kube_api.delete("v1", "ResourceQuota", world.namespace, "gpus")
        await until(fleet, "the quota is gone", lambda view: view.quotas == ())
    assert fleet.quota_problems() == []


@pytest.mark.parametrize(
    ("resource", "used", "allowed"), [(HARD, "0", 6), ("pods", "1", 5), ("requests.memory", "0", 3)]
)
async def test_nothing_is_requested_ahead_beyond_a_quota(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World, resource: str, used: str, allowed: int
):
    """Five workloads of a namespace want a hundred replicas each."""
    for name in "abcde":
        await world.deployment(name, replicas=0, resources={"requests": {"memory": "2Gi"}})
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {resource: "6"}}}
    if resource == "requests.memory":
        quota["spec"] = {"hard": {resource: "7Gi"}}
    await kube_api.apply(quota, namespace=world.namespace)
    status = {"hard": quota["spec"]["hard"], "used": {resource: used}}
    await kube_api.set_status("v1", "ResourceQuota", world.namespace, "q", status)
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    none, many = np.zeros(5), np.full(5, 100.0)
    assert limit_by_quotas(view, spec(5), none, many).sum() == allowed


async def test_scopes_of_a_resource_quota_are_honoured(kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World):
    """The priority class must exist where pods are created; a template may name any."""
    await world.deployment("llama", priorityClassName="high")
    await world.deployment("gemma")
    expression = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
    await resource_quota(kube_api, world, "4", "1", scopeSelector={"matchExpressions": [expression]})
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    assert quotas_of(view) == {f"ResourceQuota {world.namespace}/gpus": (4.0, 0.0, 1.0)}
    assert quotas_of(view, "gemma") == {}


async def test_absurd_quota_is_named_and_serves_everyone(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    await world.deployment("llama")
    await resource_quota(kube_api, world, "9223372036854775807", "0")
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
    assert view.quotas == ()
    (problem,) = fleet.quota_problems()
    assert problem == (
        f"ResourceQuota {world.namespace}/gpus: {HARD}: '9223372036854775807' devices are no limit; "
        "allowed: up to 10,000,000"
    )


async def test_without_the_right_to_read_quotas_nothing_breaks(
    kube_api: KubeApi, connect: Connect, clock: SystemClock, world: World
):
    await world.deployment("llama")
    await resource_quota(kube_api, world, "3", "0")
    roles = in_namespace(shipped_roles("direct"), world.namespace)
    less = [
        role | {"rules": [rule for rule in role["rules"] if rule["resources"] != ["resourcequotas"]]} for role in roles
    ]
    less[0] = less[0] | {"metadata": {"name": f"less-{world.namespace}"}}
    fleet = watching(await connect(await kube_api.service_account(world.namespace, "less", *less)), clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert (len(view.workloads), view.quotas) == (1, ())
        view = await until(fleet, "it is said", lambda _: fleet.quota_problems())
    (problem,) = fleet.quota_problems()
    assert problem.startswith("resourcequotas are not read, so they are no limit: ")
    assert "forbidden" in problem


async def test_file_charges_workloads_without_a_quota_of_the_cluster(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World
):
    await world.deployment("llama")
    await world.pod("llama", "a", READY_STATUS)
    resources = [{"name": GPU, "nominal": 8, "lendingLimit": 2}]
    stated = {"name": "team", "namespaces": [f"{world.namespace[:6]}*"], "cohort": "all", "resources": resources}
    fleet = watching(kube, clock, world, stated_quotas=lambda: (StatedQuota.model_validate(stated),))
    async with running(fleet):
        view = await synced(fleet)
        assert quotas_of(view) == {"quota team": (8.0, 1.0, 0.0)}
        (quotas,) = view.quotas
        assert (quotas.borrowing_limit.tolist(), quotas.lending_limit.tolist()) == ([math.inf], [2.0])
        await resource_quota(kube_api, world, "3", "1")
        name = f"ResourceQuota {world.namespace}/gpus"
        await until(fleet, "the cluster's quota counts", lambda view: quotas_of(view) == {name: (3.0, 1.0, 0.0)})


class Kueue:
    """Kueue's objects of one test, with the status that Kueue would write."""

    def __init__(self, api: KubeApi, world: World) -> None:
        self._api = api
        self._world = world
        self._made: list[tuple[str, str]] = []

    def name(self, name: str) -> str:
        """Return the name of an object in no namespace, which other tests do not use."""
        return f"{name}-{self._world.namespace}"

    async def put(self, kind: str, name: str, spec: Mapping[str, Any], api_version: str = KUEUE) -> None:
        body = {"apiVersion": api_version, "kind": kind, "metadata": {"name": self.name(name)}, "spec": dict(spec)}
        await self._api.apply(body)
        self._made.append((kind, self.name(name)))

    async def queue(
        self, name: str, flavors: dict[str, dict[str, Any]], used: Mapping[str, int] | None = None, **spec: Any
    ) -> None:
        """Create a ClusterQueue and a LocalQueue of the same name. flavors: the quota of GPUs of each."""
        await self.put("ClusterQueue", name, {"resourceGroups": groups(flavors), **spec})
        await self.use(name, used or {})
        local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": name}}
        await self._api.apply(local | {"spec": {"clusterQueue": self.name(name)}}, namespace=self._world.namespace)

    async def use(self, name: str, used: Mapping[str, int]) -> None:
        reserved = [
            {"name": flavor, "resources": [{"name": GPU, "total": str(total)}]} for flavor, total in used.items()
        ]
        status = {"flavorsReservation": reserved, "flavorsUsage": reserved}
        await self._api.set_status(KUEUE, "ClusterQueue", None, self.name(name), status)

    async def remove(self) -> None:
        for kind, name in self._made:
            await self._api.delete(KUEUE, kind, None, name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(shared_kube_api: KubeApi) -> AsyncIterator[None]:
    """A cluster with the kinds of Kueue."""
    await shared_kube_api.install_crds("quotas/kueue")
    yield
    await shared_kube_api.remove_crds("quotas/kueue")


@pytest_asyncio.fixture
async def kueue(kube_api: KubeApi, world: World, served: None) -> AsyncIterator[Kueue]:
    made = Kueue(kube_api, world)
    yield made
    await made.remove()


@pytest_asyncio.fixture
async def reader(kube_api: KubeApi, world: World, connect: Connect, served: None) -> AsyncIterator[Kube]:
    """The daemon's connection, with exactly the shipped rights, which suffice."""
    roles = [*in_namespace(shipped_roles("direct"), world.namespace), kueue_role()]
    user = await kube_api.service_account(world.namespace, "kueue", *roles)
    yield await connect(user)
    assert kube_api.refused(user) == set()


async def queued(world: World, name: str, queue: str, **spec: Any) -> None:
    """Create a Deployment of a queue."""
    await world.deployment(name, **spec)
    await world.patch("Deployment", name, {"metadata": {"labels": {QUEUE_LABEL: queue}}}, "apps/v1")


async def test_cluster_queues_of_a_cohort_are_read(reader: Kube, clock: SystemClock, world: World, kueue: Kueue):
    cohort = kueue.name("all")
    await kueue.queue("research", {"any": {"nominalQuota": 4, "borrowingLimit": 2}}, {"any": 3}, cohortName=cohort)
    await kueue.queue("prod", {"any": {"nominalQuota": "8", "lendingLimit": "6"}}, {"any": 2}, cohortName=cohort)
    await queued(world, "llama", "research")
    await world.pod("llama", "a", READY_STATUS)
    fleet = watching(reader, clock, world)
    async with running(fleet):
        await synced(fleet)
        source = f"ClusterQueue/{kueue.name('research')} any"
        view = await until(fleet, "the queue is known", lambda view: source in quotas_of(view))
        view = await until(fleet, "both queues are known", lambda view: len(view.quotas[0].quotas) == 2)
        assert quotas_of(view) == {source: (4.0, 1.0, 2.0)}
        (quotas,) = view.quotas
        assert {quota.cohort for quota in quotas.quotas} == {cohort}
        prod = [quota.source for quota in quotas.quotas].index(f"ClusterQueue/{kueue.name('prod')}")
        assert [column[prod] for column in (quotas.nominal, quotas.lending_limit, quotas.used_by_others)] == [8, 6, 2]
        await kueue.use("prod", {"any": 0})
        await until(fleet, "prod is idle", lambda view: view.quotas[0].used_by_others[prod] == 0.0)
    assert (fleet.problems(), fleet.quota_problems(), fleet.unlisted_kinds()) == ({}, [], {})


async def test_flavor_and_nested_cohort_decide_who_may_borrow(
    reader: Kube, clock: SystemClock, world: World, kueue: Kueue
):
    h100, l4, root = kueue.name("h100"), kueue.name("l4"), kueue.name("root")
    await kueue.put("ResourceFlavor", "h100", {"nodeLabels": {"product": "h100"}})
    await kueue.put("ResourceFlavor", "l4", {"nodeLabels": {"product": "l4"}})
    await kueue.put("Cohort", "team", {"parentName": root})
    both = {h100: {"nominalQuota": 4}, l4: {"nominalQuota": 16}}
    await kueue.queue("research", both, cohortName=kueue.name("team"))
    await kueue.queue("prod", {h100: {"nominalQuota": 8}}, cohortName=root)
    await queued(world, "llama", "research", nodeSelector={"product": "h100"})
    await queued(world, "gemma", "research")
    fleet = watching(reader, clock, world)
    async with running(fleet):
        await synced(fleet)
        view = await until(
            fleet,
            "all quotas are known",
            lambda view: view.quotas and len(view.quotas[0].quotas) == 3 and len(quotas_of(view)) == 1,
        )
        assert list(quotas_of(view)) == [f"ClusterQueue/{kueue.name('research')} {h100}"]
        assert len(quotas_of(view, "gemma")) == 2
        assert {quota.cohort for quota in view.quotas[0].quotas} == {root}


async def test_stopped_queue_keeps_its_pods_and_gets_no_more(
    reader: Kube, clock: SystemClock, world: World, kueue: Kueue
):
    await kueue.queue("research", {"any": {"nominalQuota": 4}}, {"any": 1}, stopPolicy="Hold")
    await queued(world, "llama", "research")
    await world.pod("llama", "a", READY_STATUS)
    fleet = watching(reader, clock, world)
    async with running(fleet):
        await synced(fleet)
        source = f"ClusterQueue/{kueue.name('research')} (stopPolicy Hold)"
        await until(fleet, "it is stopped", lambda view: quotas_of(view) == {source: (1.0, 1.0, 0.0)})
    (problem,) = fleet.problems().values()
    assert problem == "its queue is stopped (stopPolicy Hold), so Kueue admits no pod"


async def test_without_rights_to_kueue_its_quotas_are_no_limit(
    kube: Kube, clock: SystemClock, world: World, kueue: Kueue
):
    await kueue.queue("research", {"any": {"nominalQuota": 4}})
    await queued(world, "llama", "research")
    fleet = watching(kube, clock, world)
    async with running(fleet):
        view = await synced(fleet)
        assert (len(view.workloads), view.quotas) == (1, ())
        await until(fleet, "it is said", lambda _: len(fleet.unlisted_kinds()) == 4)
    assert set(fleet.unlisted_kinds()) == {
        f"{plural}.kueue.x-k8s.io" for plural in ("clusterqueues", "localqueues", "cohorts", "resourceflavors")
    }
