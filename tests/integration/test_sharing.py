"""Scarce GPUs end to end: the whole daemon on a real API server, beside a small cluster."""

import pytest

from autoscaler.core.model.fleet import PendingClass
from tests.integration.cluster import GPU, H100, L4, PRODUCT, SATURATED, Cluster, Run

pytestmark = pytest.mark.integration

MIG_3G, MIG_1G = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"


async def test_mig_slices_and_gpus_are_shared_apart(cluster: Cluster, run: Run):
    """One node has MIG strategy single, one mixed, one no MIG: no workload gets devices of another kind."""
    single = {PRODUCT: "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}
    mixed = {PRODUCT: "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
    await cluster.node("single", {GPU: 3}, single)
    await cluster.node("mixed", {MIG_3G: 2, MIG_1G: 4, GPU: 0}, mixed)
    await cluster.node("full", {GPU: 2}, H100)
    await cluster.pressed("sliced", selector=single)
    await cluster.pressed("large", resource=MIG_3G)
    await cluster.pressed("small", resource=MIG_1G)
    await cluster.pressed("full", selector=H100)
    async with run():
        await cluster.settle()
        assert await cluster.counts("sliced", "large", "small", "full") == [3, 2, 4, 2]
        assert cluster.pending() == []


async def test_selectors_and_taints_keep_workloads_apart(cluster: Cluster, run: Run):
    taint = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    await cluster.node("a", {GPU: 3}, {**L4, "team": "a"})
    await cluster.node("b", {GPU: 2}, {**L4, "team": "b"})
    await cluster.node("training", {GPU: 8}, {**L4, "team": "b"}, taints=[taint])
    await cluster.pressed("first", 900, selector={"team": "a"})
    await cluster.pressed("second", selector={"team": "b"})
    async with run():
        await cluster.settle()
        assert await cluster.counts("first", "second") == [3, 2]
        tolerations = [{"key": "dedicated", "operator": "Exists"}]
        await cluster.pressed("third", 900, selector={"team": "b"}, spec={"tolerations": tolerations})
        await cluster.settle()
        assert await cluster.counts("first", "second", "third") == [3, 2, 4]
        assert cluster.pending() == []


VENDORS = ("amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron")


async def test_devices_of_each_vendor_are_shared_by_priority(cluster: Cluster, run: Run):
    for number, resource in enumerate(VENDORS):
        await cluster.node(f"n{number}", {resource: 4})
        await cluster.pressed(f"first{number}", 900, resource=resource)
        await cluster.pressed(f"second{number}", 100, resource=resource)
    async with run():
        await cluster.settle()
        for number in range(len(VENDORS)):
            assert await cluster.counts(f"first{number}", f"second{number}") == [3, 1]


async def test_tiers_get_scarce_gpus_by_priority(cluster: Cluster, run: Run):
    """Three tiers need four GPUs each, and there are eight. The lowest tier was there first."""
    await cluster.node("a", {GPU: 8}, L4)
    await cluster.pressed("bronze", 100)
    async with run() as daemon:
        await cluster.settle()
        assert await cluster.counts("bronze") == [4]
        await cluster.pressed("gold", 900)
        await cluster.pressed("silver", 500)
        await cluster.settle()
        assert await cluster.counts("gold", "silver", "bronze") == [4, 3, 1]
        assert cluster.pending() == []
        assert "the pool of 8 NVIDIA-L4 allocates 1 of 4" in daemon.sentence("bronze")
        cluster.load["gold",] = 4
        await cluster.settle()
        assert await cluster.counts("gold", "silver", "bronze") == [1, 4, 3]


async def test_gpus_move_with_the_load_and_never_exceed_the_pool(cluster: Cluster, run: Run):
    await cluster.node("a", {GPU: 4}, L4)
    await cluster.workload("first", replicas=2)
    await cluster.workload("second", replicas=2)
    cluster.load = {("first",): 18, ("second",): 18}
    async with run():
        await cluster.turn(3)
        assert await cluster.counts("first", "second") == [2, 2]
        cluster.load = {("first",): 0, ("second",): 60}
        for _ in range(12):
            await cluster.turn()
            assert sum(await cluster.counts("first", "second")) <= 4
        assert await cluster.counts("first", "second") == [1, 3]


async def test_the_replica_leaves_whose_node_then_holds_a_larger_one(cluster: Cluster, run: Run):
    """Three GPUs of the second node are free. One of four replicas leaves, and only the one there is of use."""
    await cluster.node("a", {GPU: 4}, L4)
    await cluster.node("b", {GPU: 4}, L4)
    await cluster.workload("silver", **{"override.priority": "500"})
    cluster.load["silver",] = 4
    await cluster.pressed("bronze", 100)
    async with run(shrink=True):
        await cluster.settle()
        assert await cluster.counts("silver", "bronze") == [1, 4]
        await cluster.workload("gold", devices=4, **{"override.priority": "900"})
        cluster.load["gold",] = 4
        for _ in range(20):
            await cluster.turn()
            assert (await cluster.counts("silver", "bronze"))[1] >= 3
        assert await cluster.counts("gold", "silver", "bronze") == [1, 1, 3]
        assert cluster.pending() == []


async def test_no_replica_leaves_for_one_that_fits_on_no_node(cluster: Cluster, run: Run):
    """Each node of four GPUs holds a replica of a higher priority than silver's, which needs a whole node."""
    await cluster.node("a", {GPU: 4}, L4)
    await cluster.node("b", {GPU: 4}, L4)
    await cluster.workload("gold", **{"override.priority": "900"})
    cluster.load = {("gold",): 4, ("platinum",): 4, ("silver",): 4}
    await cluster.pressed("bronze", 100)
    async with run() as daemon:
        await cluster.settle()
        await cluster.workload("platinum", **{"override.priority": "900"})
        await cluster.settle()
        await cluster.workload("silver", devices=4, **{"override.priority": "500"})
        for _ in range(20):
            await cluster.turn()
            assert await cluster.counts("gold", "platinum", "bronze") == [1, 1, 4]
        cluster.load["bronze",] = 4
        await cluster.settle()
        assert await cluster.counts("silver", "bronze") == [0, 1]
        assert "allocates 0 of 1, because no node has 4 GPUs left" in daemon.sentence("silver")


async def test_groups_of_pods_hold_the_nodes_of_all_their_pods(cluster: Cluster, run: Run):
    """Two replicas leave the first node for the worker of a group. Its pods leave no node for three GPUs."""
    await cluster.node("a", {GPU: 4}, L4)
    await cluster.node("b", {GPU: 4}, L4)
    await cluster.pressed("bronze", 100)
    async with run(shrink=True) as daemon:
        await cluster.settle()
        assert await cluster.counts("bronze") == [4]
        await cluster.groups("gold", [3, 2], **{"override.priority": "900"})
        cluster.load["gold",] = 4
        await cluster.settle()
        assert await cluster.counts("gold", "bronze") == [1, 3]
        await cluster.workload("silver", devices=3, **{"override.priority": "500"})
        cluster.load["silver",] = 4
        for _ in range(20):
            await cluster.turn()
            assert await cluster.counts("gold", "bronze") == [1, 3]
        assert "allocates 0 of 1" in daemon.sentence("silver")


CLOUDS = (
    {"cloud.google.com/gke-nodepool": "gpu", "cloud.google.com/gke-accelerator": "nvidia-l4"},
    {"eks.amazonaws.com/nodegroup": "gpu", "eks.amazonaws.com/capacityType": "SPOT"},
    {"kubernetes.azure.com/agentpool": "gpu"},
)


async def test_growth_of_a_node_pool_is_stated_or_its_cap_is_named(cluster: Cluster, run: Run):
    for number, labels in enumerate(CLOUDS):
        await cluster.node(f"n{number}", {GPU: 1}, labels)
        await cluster.pressed(f"w{number}", selector=labels)
    names = [f"w{number}" for number in range(len(CLOUDS))]
    labels = [next(f"{key}={value}" for key, value in each.items()) for each in CLOUDS]
    async with run() as daemon:
        await cluster.turn(3)
        assert await cluster.counts(*names) == [1, 1, 1]
        for name, label in zip(names, labels, strict=True):
            assert f"by today's nodes, although {label} may get more" in daemon.sentence(name)
    async with run(node_group_max=tuple((label, 4) for label in labels)):
        await cluster.turn(3)
        assert await cluster.counts(*names) == [4, 4, 4]


async def test_workload_grows_without_the_right_to_list_nodes(cluster: Cluster, run: Run):
    await cluster.node("a", {GPU: 1}, L4)
    await cluster.pressed("llama")
    async with run(nodes=False):
        await cluster.turn(3)
        assert await cluster.counts("llama") == [4]


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


async def test_variants_of_other_models_take_no_load_from_each_other(cluster: Cluster, run: Run):
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
