"""Node groups on the real API server: nodes, pods and autoscalers' objects that tests write as their owners would."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.settings import Mode
from autoscaler.core.model.fleet import Fleet
from tests.adapters.kubernetes.node_world import FAST, GPU, Nodes, bind, everywhere, row_of
from tests.adapters.kubernetes.world import READY_STATUS, World, running, synced, until
from tests.harness.kube_api import KubeApi

pytestmark = pytest.mark.integration

PRODUCT = "nvidia.com/gpu.product"
MIG_3G, MIG_1G = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"


def pool_of(world: World, view: Fleet, workload: str) -> tuple[float, float]:
    """Return the devices of the pool of a workload, and the replicas that fit."""
    place = row_of(world, view, workload)
    return float(view.pool_gpus[view.pool[place]]), float(view.obstacles.fits[place])


def groups_of(world: World, view: Fleet, workload: str, column: str) -> list[float]:
    """Return a column of the node groups of the pool of a workload."""
    admitted = view.groups.admitted[view.pool[row_of(world, view, workload)]]
    return np.asarray(getattr(view.groups, column))[admitted].tolist()


def held_by(world: World, view: Fleet, workload: str) -> list[tuple[str, str, float]]:
    """Return the pods of a workload, how their nodes are paid, and the devices that they hold."""
    held, row = view.held, row_of(world, view, workload)
    assert held is not None
    kinds = [view.groups.groups[group].capacity_type for group in held.group.tolist()]
    each = zip(held.workload.tolist(), held.pod.tolist(), kinds, held.devices.tolist(), strict=True)
    return [(view.pods[pod].name, kind, devices) for own, pod, kind, devices in each if own == row]


async def slices(world: World, name: str, resource: str, selector: Mapping[str, str]) -> None:
    """Create a Deployment whose pods need one device of a resource."""
    await world.deployment(name, gpus=0, nodeSelector=dict(selector))
    limits = {"limits": {resource: "1"}}
    containers = [{"name": "proxy", "image": "proxy"}, {"name": "vllm", "image": "vllm", "resources": limits}]
    template = {"spec": {"template": {"spec": {"containers": containers}}}}
    await world.patch("Deployment", name, template, api_version="apps/v1")


async def test_mig_single_and_mixed_are_groups_of_their_own(kube: Kube, clock: SystemClock, world: World, nodes: Nodes):
    single = {PRODUCT: "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}
    mixed = {PRODUCT: "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
    await nodes.add("single", {GPU: 7}, single)
    await nodes.add("mixed", {MIG_3G: 2, MIG_1G: 4, GPU: 0}, mixed)
    await slices(world, "large", MIG_3G, nodes.mark)
    await slices(world, "small", MIG_1G, nodes.mark)
    await world.deployment("sliced", nodeSelector={**nodes.mark, PRODUCT: single[PRODUCT]})
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
    assert pool_of(world, view, "large") == (2.0, 2.0)
    assert pool_of(world, view, "small") == (4.0, 4.0)
    assert pool_of(world, view, "sliced") == (7.0, 7.0)
    assert view.pools[view.pool[row_of(world, view, "sliced")]].product == single[PRODUCT]


async def test_new_mig_layout_closes_the_node_until_it_is_cut(
    kube: Kube, clock: SystemClock, world: World, nodes: Nodes
):
    labels = {"nvidia.com/mig.config": "all-3g.40gb", "nvidia.com/mig.config.state": "success"}
    node = await nodes.add("cut", {MIG_3G: 2}, labels)
    await slices(world, "large", MIG_3G, nodes.mark)
    await slices(world, "small", MIG_1G, nodes.mark)
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        assert pool_of(world, view, "large") == (2.0, 2.0)
        state = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "pending"}
        await nodes.change(node, {"metadata": {"labels": state}})
        view = await until(fleet, "the node is closed", lambda view: pool_of(world, view, "large")[0] == 0.0)
        assert groups_of(world, view, "large", "closed") == [True]
        await nodes.offer(node, {MIG_3G: 0, MIG_1G: 7})
        await nodes.change(node, {"metadata": {"labels": {"nvidia.com/mig.config.state": "success"}}})
        view = await until(fleet, "the new slices count", lambda view: pool_of(world, view, "small") == (7.0, 7.0))
        assert math.isnan(pool_of(world, view, "large")[0])  # no node offers its slices now


async def test_groups_apart_by_selector_and_taint_count_who_holds_them(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World, nodes: Nodes
):
    taint = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    first = await nodes.add("a", {GPU: 4}, {"team": "a"})
    other = await nodes.add("b", {GPU: 8}, {"team": "b"})
    await nodes.add("c", {GPU: 8}, {"team": "a"}, taints=[taint])
    await world.deployment("only-a", nodeSelector={**nodes.mark, "team": "a"})
    await world.deployment("any", nodeSelector=nodes.mark)
    tolerations = [{"key": "dedicated", "operator": "Exists"}]
    await world.deployment("training", nodeSelector=nodes.mark, tolerations=tolerations)
    await bind(kube_api, world, "job", other, GPU, 5)
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        assert pool_of(world, view, "only-a") == (4.0, 4.0)
        assert pool_of(world, view, "any") == (7.0, 7.0)
        assert pool_of(world, view, "training") == (15.0, 15.0)
        assert sorted(groups_of(world, view, "any", "used_by_others")) == [0.0, 5.0]
        await bind(kube_api, world, "job-2", first, GPU, 1)
        await until(fleet, "the second job counts", lambda view: pool_of(world, view, "only-a") == (3.0, 3.0))
        await kube_api.delete("v1", "Pod", world.namespace, "job")
        await until(fleet, "the first job is gone", lambda view: pool_of(world, view, "any") == (11.0, 11.0))


async def test_spot_loss_leaves_the_rest_and_pods_that_still_run(
    kube: Kube, clock: SystemClock, world: World, nodes: Nodes
):
    """The node of a spot group is tainted, then deleted with its pod, while the on-demand group stays."""
    spot = await nodes.add("spot", {GPU: 4}, {"karpenter.sh/capacity-type": "spot"})
    await nodes.add("fixed", {GPU: 2}, {"karpenter.sh/capacity-type": "on-demand"})
    await world.deployment("llama", replicas=3, nodeSelector=nodes.mark)
    await world.pod("llama", "llama-a", READY_STATUS, node=spot)
    fleet = everywhere(kube, clock)
    async with running(fleet):
        await synced(fleet)
        view = await until(fleet, "its pod counts", lambda view: sum(groups_of(world, view, "llama", "used")) == 1.0)
        assert pool_of(world, view, "llama") == (6.0, 6.0)
        assert {group.capacity_type for group in view.groups.groups} >= {"spot", "on-demand"}
        taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
        await nodes.change(spot, {"spec": {"taints": [taint]}})
        view = await until(fleet, "only its pod counts there", lambda view: pool_of(world, view, "llama") == (3.0, 3.0))
        assert held_by(world, view, "llama") == [("llama-a", "spot", 1.0)]
        await nodes.remove(spot)
        view = await until(fleet, "the group is gone", lambda view: pool_of(world, view, "llama") == (2.0, 2.0))
        assert len(view.pods) >= 1  # the pod of the vanished node is still listed
        assert held_by(world, view, "llama") == []


async def test_limits_of_autoscalers_are_read_from_their_objects(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World, nodes: Nodes
):
    pool = f"gpu-{world.namespace}"
    await nodes.add("karpenter", {GPU: 8}, {"karpenter.sh/nodepool": pool, "kind": "karpenter"})
    vmss = f"aks-gpu-{world.namespace}-vmss"
    await kube_api.apply(
        {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": pool}, "spec": {"limits": {GPU: 24}}}
    )
    labels = {**nodes.mark, "kubernetes.azure.com/agentpool": "gpu", "kind": "aks"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{vmss}000000", "labels": labels}}
    await kube_api.apply(node)
    await nodes.offer(f"{vmss}000000", {GPU: 4})
    stated = f"nodeGroups:\n- name: {vmss}\n  health:\n    cloudProviderTarget: 1\n    minSize: 0\n    maxSize: 3\n"
    status = {"metadata": {"name": "cluster-autoscaler-status"}, "data": {"status": stated}}
    await kube_api.apply({"apiVersion": "v1", "kind": "ConfigMap", **status}, namespace="kube-system")
    for kind in ("karpenter", "aks"):
        await world.deployment(kind, nodeSelector={**nodes.mark, "kind": kind})
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        assert pool_of(world, view, "karpenter") == (24.0, 24.0)
        assert pool_of(world, view, "aks") == (12.0, 12.0)
        told = "\n".join(fleet.limits())
        assert f"karpenter.sh/nodepool={pool} may get 16 more GPUs, within the limits of its NodePool" in told
        assert "agentpool=gpu may get 8 more GPUs, by the status of cluster-autoscaler" in told
        await kube_api.delete("v1", "ConfigMap", "kube-system", "cluster-autoscaler-status")
        view = await until(fleet, "today's nodes are the limit", lambda view: pool_of(world, view, "aks") == (4.0, 4.0))
        assert any("--node-group-max kubernetes.azure.com/agentpool=gpu:NODES" in line for line in fleet.limits())
    await kube_api.delete("karpenter.sh/v1", "NodePool", None, pool)


async def test_absurd_labels_and_numbers_of_one_node_harm_no_other(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World, nodes: Nodes
):
    await nodes.add("fine", {GPU: 4})
    absurd = {PRODUCT: "x" * 63, "nvidia.com/gpu.memory": "1.0", "nvidia.com/mig.strategy": "many", "k" * 63: ""}
    await nodes.add("absurd", {GPU: 10**15, MIG_1G: 2, "nvidia.com/mig-9g.1gb": 3}, absurd)
    await world.deployment("llama", nodeSelector=nodes.mark)
    fleet = everywhere(kube, clock)
    async with running(fleet):
        view = await synced(fleet)
        assert pool_of(world, view, "llama") == (4.0, 4.0)
        problems = "\n".join(fleet.watch_problems())
    assert f"node absurd-{world.namespace}: nvidia.com/gpu: '1P' devices are not believed" in problems


async def test_pods_of_the_watched_namespaces_hold_devices(
    kube_api: KubeApi, kube: Kube, clock: SystemClock, world: World, nodes: Nodes
):
    node = await nodes.add("a", {GPU: 4})
    await world.deployment("llama", nodeSelector=nodes.mark)
    await bind(kube_api, world, "job", node, GPU, 3)
    fleet = KubeFleet(kube, clock, Scope(Mode.DIRECT, [world.namespace], times=FAST, node_group_max={"a=b": 3}))
    async with running(fleet):
        view = await synced(fleet)
        assert pool_of(world, view, "llama") == (1.0, 1.0)  # the job is of the same namespace
        assert groups_of(world, view, "llama", "used_by_others") == [3.0]
        assert any("pods of other namespaces are not known" in line for line in fleet.limits())
