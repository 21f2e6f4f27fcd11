"""Scarce GPUs end to end: the whole daemon on a real API server, with nodes, pods and metrics of a small cluster."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from autoscaler.core.model.fleet import PendingClass
from tests.harness.kube_api import KubeApi
from tests.integration.cluster import GPU, PRODUCT, Cluster, Daemon, Engines, LeapingClock
from tests.integration.site import POLICY, site

pytestmark = pytest.mark.integration

L4, H100 = {PRODUCT: "NVIDIA-L4"}, {PRODUCT: "NVIDIA-H100-80GB-HBM3"}
Run = Callable[..., AbstractAsyncContextManager[Daemon]]


@pytest_asyncio.fixture
async def cluster(kube_api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    clock = LeapingClock()
    engines = Engines(clock)
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(site(kube_api, tmp_path))
        await stack.enter_async_context(engines.serving())
        made = Cluster(here, engines, clock)
        yield made
        for name in list(made.nodes):
            await made.remove_node(name)


@pytest.fixture
def run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Run the daemon within a block."""
    return lambda **settings: cluster.daemon(monkeypatch.setenv, **settings)


MIG_3G, MIG_1G = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"
SATURATED = 34  # requests in flight, for which a policy with 10 requests per replica needs four


async def pressed(cluster: Cluster, name: str, priority: int = 100, **options: Any) -> None:
    """Create a workload that needs four replicas."""
    await cluster.workload(name, **{"override.priority": str(priority)}, **options)
    cluster.load[name,] = SATURATED


async def test_mig_slices_and_gpus_are_shared_apart(cluster: Cluster, run: Run):
    """One node has MIG strategy single, one mixed, one no MIG: no workload gets devices of another kind."""
    single = {PRODUCT: "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}
    mixed = {PRODUCT: "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
    await cluster.node("single", {GPU: 3}, single)
    await cluster.node("mixed", {MIG_3G: 2, MIG_1G: 4, GPU: 0}, mixed)
    await cluster.node("full", {GPU: 2}, H100)
    await pressed(cluster, "sliced", selector=single)
    await pressed(cluster, "large", resource=MIG_3G)
    await pressed(cluster, "small", resource=MIG_1G)
    await pressed(cluster, "full", selector=H100)
    async with run():
        await cluster.settle()
        assert await cluster.counts("sliced", "large", "small", "full") == [3, 2, 4, 2]
        assert cluster.pending() == []


async def test_selectors_and_taints_keep_workloads_apart(cluster: Cluster, run: Run):
    taint = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    await cluster.node("a", {GPU: 3}, {**L4, "team": "a"})
    await cluster.node("b", {GPU: 2}, {**L4, "team": "b"})
    await cluster.node("training", {GPU: 8}, {**L4, "team": "b"}, taints=[taint])
    await pressed(cluster, "first", 900, selector={"team": "a"})
    await pressed(cluster, "second", selector={"team": "b"})
    async with run():
        await cluster.settle()
        assert await cluster.counts("first", "second") == [3, 2]
        tolerations = [{"key": "dedicated", "operator": "Exists"}]
        await pressed(cluster, "third", 900, selector={"team": "b"}, spec={"tolerations": tolerations})
        await cluster.settle()
        assert await cluster.counts("first", "second", "third") == [3, 2, 4]
        assert cluster.pending() == []


async def test_tiers_get_scarce_gpus_by_priority(cluster: Cluster, run: Run):
    """Three tiers need four GPUs each, and there are eight. The lowest tier was there first."""
    await cluster.node("a", {GPU: 8}, L4)
    await pressed(cluster, "bronze", 100)
    async with run() as daemon:
        await cluster.settle()
        assert await cluster.counts("bronze") == [4]
        await pressed(cluster, "gold", 900)
        await pressed(cluster, "silver", 500)
        await cluster.settle()
        assert await cluster.counts("gold", "silver", "bronze") == [4, 3, 1]
        assert cluster.pending() == []
        assert "the pool of 8 NVIDIA-L4 allocates 1 of 4" in daemon.sentence("bronze")
        cluster.load["gold",] = 4
        await cluster.settle()
        assert await cluster.counts("gold", "silver", "bronze") == [1, 4, 3]


async def variants(cluster: Cluster, cheap_devices: int = 1, requests: float = SATURATED) -> None:
    """Create a service of a cheap variant on L4 and a dear one on H100; a replica of either holds ten requests."""
    await cluster.workload("cheap", devices=cheap_devices, selector=L4, service="chat")
    await cluster.workload("dear", selector=H100, service="chat")
    cluster.load["cheap", "dear"] = requests


async def test_dear_variant_grows_when_the_cheap_one_is_full(cluster: Cluster, run: Run):
    await cluster.node("l4", {GPU: 2}, L4)
    await cluster.node("h100", {GPU: 8}, H100)
    await variants(cluster)
    async with run():
        await cluster.settle()
        assert await cluster.counts("cheap", "dear") == [2, 2]
        assert cluster.pending() == []


async def test_dear_variant_grows_when_the_cheap_one_fits_no_node(cluster: Cluster, run: Run):
    """The cheap variant needs two GPUs for a replica, and the second node has one left."""
    await cluster.node("l4", {GPU: 2}, L4)
    await cluster.node("l4-2", {GPU: 1}, L4)
    await cluster.node("h100", {GPU: 8}, H100)
    await variants(cluster, cheap_devices=2)
    async with run():
        await cluster.settle()
        assert await cluster.counts("cheap", "dear") == [1, 3]
        assert cluster.pending() == []


async def test_variants_of_different_models_take_no_load_from_each_other(cluster: Cluster, run: Run):
    await cluster.node("l4", {GPU: 2}, L4)
    await cluster.node("h100", {GPU: 8}, H100)
    await cluster.workload("cheap", selector=L4, service="chat", model="llama")
    await cluster.workload("dear", selector=H100, service="chat", model="mistral")
    cluster.load = {("cheap",): SATURATED, ("dear",): 4}
    async with run() as daemon:
        await cluster.settle()
        assert await cluster.counts("cheap", "dear") == [2, 1]
        for name in ("cheap", "dear"):
            assert "variants of service 'chat' serve different models ('llama', 'mistral')" in daemon.sentence(name)


async def test_dear_variant_waits_while_a_node_is_coming(cluster: Cluster, run: Run):
    pool = {**L4, "karpenter.sh/nodepool": "l4", "karpenter.sh/capacity-type": "on-demand"}
    await cluster.node("l4", {GPU: 1}, pool)
    await cluster.node("h100", {GPU: 8}, H100)
    await variants(cluster)
    async with run() as daemon:
        await cluster.turn(2)
        assert await cluster.counts("cheap", "dear") == [3, 1]
        await cluster.turn()
        for pod in cluster.pending():
            await cluster.report(pod, "karpenter", "Nominated")
        await cluster.turn(12)
        assert await cluster.counts("cheap", "dear") == [3, 1]
        assert daemon.classes("cheap") == {PendingClass.NODE_COMING: 2}
        await cluster.node("l4-2", {GPU: 4}, pool)
        await cluster.settle()
        assert await cluster.counts("cheap", "dear") == [3, 1]
        assert cluster.pending() == []


async def test_dear_variant_grows_when_no_node_is_coming(cluster: Cluster, run: Run):
    pool = {**L4, "karpenter.sh/nodepool": "l4"}
    await cluster.node("l4", {GPU: 1}, pool)
    await cluster.node("h100", {GPU: 8}, H100)
    await variants(cluster)
    async with run():
        await cluster.turn(3)
        assert await cluster.counts("cheap", "dear") == [3, 1]
        for pod in cluster.pending():
            await cluster.report(pod, "karpenter", "FailedScheduling")
        await cluster.settle()
        assert await cluster.counts("cheap", "dear") == [1, 3]


async def test_refused_replicas_leave_their_gpus_to_others(cluster: Cluster, run: Run):
    """The API server enforces a ResourceQuota of two GPUs on the pods of one namespace of a pool of eight."""
    await cluster.node("a", {GPU: 8}, L4)
    limited = await cluster.quota({f"requests.{GPU}": "2"})
    await pressed(cluster, "first", 900, spec={"priorityClassName": limited})
    await pressed(cluster, "second", 100)
    cluster.load["second",] = 64
    async with run() as daemon:
        await cluster.settle()
        assert await cluster.counts("second") == [6]
        assert len(await cluster.pods("first")) == 2
        assert daemon.classes("first") == {PendingClass.QUOTA: 2}
        assert "exceeded quota" in daemon.sentence("first")


async def test_gated_replicas_leave_their_gpus_to_others(cluster: Cluster, run: Run):
    """Kueue holds the pods of the first workload back, and 49 other gates, in a pool of five GPUs."""
    await cluster.node("a", {GPU: 5}, L4)
    await pressed(cluster, "first", 900)
    await pressed(cluster, "second", 100)
    async with run() as daemon:
        await cluster.turn()
        others = [{"name": f"example.com/{number}"} for number in range(49)]
        gate = {"schedulingGates": [*others, {"name": "kueue.x-k8s.io/admission"}]}
        await cluster.site.patch("Deployment", "first", {"spec": {"template": {"spec": gate}}}, "apps/v1")
        await cluster.settle()
        assert daemon.classes("first") == {PendingClass.QUEUED: 3}
        assert await cluster.counts("second") == [4]


async def test_crashing_replicas_leave_their_gpus_to_others(cluster: Cluster, run: Run):
    await cluster.node("a", {GPU: 5}, L4)
    await pressed(cluster, "first", 900)
    await pressed(cluster, "second", 100)
    async with run() as daemon:
        await cluster.turn()
        cluster.crashing.add("first")
        await cluster.turn(3)
        assert daemon.classes("first") == {PendingClass.CRASHING: 3}
        assert await cluster.counts("first", "second") == [4, 1]
        await cluster.settle()
        assert await cluster.counts("first", "second") == [1, 4]
        assert cluster.pending() == []


async def test_load_moves_to_other_gpus_when_spot_is_lost(cluster: Cluster, run: Run):
    await cluster.node("spot", {GPU: 4}, {**L4, "karpenter.sh/capacity-type": "spot"})
    await cluster.node("h100", {GPU: 8}, H100)
    await variants(cluster)
    async with run():
        await cluster.settle()
        assert await cluster.counts("cheap", "dear") == [3, 1]
        await cluster.remove_node("spot")
        await cluster.settle()
        assert await cluster.counts("dear") == [4]


async def test_replica_that_fits_no_node_takes_none_that_serves(cluster: Cluster, run: Run):
    """A replica of eight GPUs has priority, and each node has four."""
    await cluster.node("a", {GPU: 4}, L4)
    await cluster.node("b", {GPU: 4}, L4)
    await cluster.workload("large", devices=8, **{"override.priority": "900"})
    await pressed(cluster, "small", 100)
    async with run() as daemon:
        await cluster.settle()
        assert await cluster.counts("large", "small") == [1, 4]
        assert daemon.classes("large") == {PendingClass.IMPOSSIBLE: 1}


async def test_group_that_vanishes_in_mid_tick_stops_no_decision(cluster: Cluster, run: Run):
    await cluster.node("a", {GPU: 4}, {**L4, "team": "a"})
    await cluster.node("b", {GPU: 4}, {**L4, "team": "b"})
    await pressed(cluster, "first", selector={"team": "a"})
    await pressed(cluster, "second", selector={"team": "b"})
    async with run() as daemon:
        cluster.engines.before_answer = lambda: cluster.remove_node("a")
        ticks = daemon.last.number
        await cluster.turn()
        assert daemon.last.number > ticks
        await cluster.settle()
        assert await cluster.counts("second") == [4]


async def test_idle_replica_is_named_before_the_shrink_and_leaves(cluster: Cluster, run: Run):
    """Three replicas are busy and one is idle. Among equals the ReplicaSet would remove another one."""
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.workload("llama", replicas=4)
    async with run(shrink=True):
        await cluster.turn()
        *busy, idle = [pod["metadata"]["name"] for pod in await cluster.pods()]
        cluster.load_of_pods = {idle: 0.0, **dict.fromkeys(busy, 9.0)}
        await cluster.settle()
        assert [pod["metadata"]["name"] for pod in await cluster.pods()] == busy
        assert await cluster.counts("llama") == [3]
    patched = [
        (event.permission.resource, event.name)
        for event in cluster.api.audit()
        if (event.namespace, event.permission.verb) == (cluster.namespace, "patch")
        and event.user.startswith("system:serviceaccount:")
    ]
    assert patched == [("pods", idle), ("deployments/scale", "llama")]


async def test_installations_leave_a_workload_to_one_of_them(cluster: Cluster, run: Run):
    small = cluster.site.directory / "small.yaml"
    small.write_text(POLICY.replace("max: 8", "max: 2"))
    await cluster.node("a", {GPU: 8}, L4)
    await pressed(cluster, "llama")
    async with run(installation="team-a") as first, run(installation="team-b", policy=small) as second:
        await cluster.turn(12)
        assert await cluster.counts("llama") == [4]
        assert "another installation, vllm-autoscaler/team-a/vllm-autoscaler owns the count" in second.sentence("llama")
        assert "owns the count" not in first.sentence("llama")
