"""What autoscalers may still add, from their own status in the forms in which they write it."""

import math

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api.node_objects import NodePool
from autoscaler.adapters.kubernetes.api.objects import ConfigMap
from autoscaler.adapters.kubernetes.inventory.elastic import STATUS_OBJECT, Elastic
from autoscaler.adapters.kubernetes.inventory.nodes import Node
from tests.adapters.kubernetes.inventory.world import GPU, PRODUCT, lay_out, nodes, placed_facts, pod

KARPENTER, GKE_POOL = "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool"
EKS_POOL, AKS_POOL = "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool"
UUID = "2c1f9d3b-a8e2-4f11-9c3e-8b7a6d5e4f30"
URL = "https://www.googleapis.com/compute/v1/projects/p/zones/z/instanceGroups"
YAML = """time: 2026-02-01 08:19:44.09 +0000 UTC
autoscalerStatus: Running
clusterWide:
  health:
    status: Healthy
  scaleUp:
    status: InProgress
nodeGroups:
- name: {name}
  health:
    status: Healthy
    nodeCounts:
      registered:
        total: 1
        ready: 1
    cloudProviderTarget: 3
    minSize: 0
    maxSize: 5
  scaleUp:
    status: NoActivity
- name: other
  health:
    maxSize: 9
"""
TEXT = """Cluster-autoscaler status at 2021-10-06 20:30:11.009 +0000 UTC:
Cluster-wide:
  Health:      Healthy (ready=3 unready=0 notStarted=0 registered=3)
  ScaleUp:     NoActivity (ready=3 registered=3)

NodeGroups:
  Name:        {name}
  Health:      Healthy (ready=1 unready=0 registered=1 longUnregistered=0 cloudProviderTarget=1 (minSize=0, maxSize=5))
               LastProbeTime:      2021-10-06 20:30:11 +0000 UTC m=+571.77
  ScaleUp:     NoActivity (ready=1 cloudProviderTarget=1)

  Name:        other
  Health:      Healthy (ready=1 cloudProviderTarget=1 (minSize=1, maxSize=9))
"""


STATUS_NAMESPACE, STATUS_NAME = STATUS_OBJECT


def status(text: str, namespace: str = STATUS_NAMESPACE) -> ConfigMap:
    return msgspec.convert(
        {"metadata": {"name": STATUS_NAME, "namespace": namespace}, "data": {"status": text}}, ConfigMap
    )


def node_pool(limits: dict | None, used: dict, nodes: int | None = None) -> NodePool:
    spec = {"limits": limits} if limits is not None else {}
    seen = {"metadata": {"name": "gpu"}, "spec": spec, "status": {"resources": used, "nodes": nodes}}
    return msgspec.convert(seen, NodePool)


def members(count: int = 2, name: str = "n{}", label: str = f"{KARPENTER}=gpu", gpus: int = 8) -> dict[str, Node]:
    key, _, value = label.partition("=")
    return {name.format(index): Node({GPU: gpus}, {key: value}, cpu=96.0) for index in range(count)}


@pytest.mark.parametrize(
    ("limits", "used", "left"),
    [
        ({GPU: "64"}, {GPU: "16"}, 48.0),
        ({GPU: "16"}, {GPU: "16"}, 0.0),
        ({GPU: "8"}, {GPU: "16"}, 0.0),
        ({GPU: "24"}, {GPU: "24"}, 8.0),  # a node is on its way
        ({GPU: "24"}, {}, 8.0),
        ({"cpu": "1k"}, {"cpu": "192", GPU: "16"}, 64.0),  # eight more nodes of 96 cores
        ({"cpu": "1k", GPU: "32"}, {"cpu": "192", GPU: "16"}, 16.0),
        ({"memory": "1Ti"}, {GPU: "16"}, math.inf),  # the memory of a node is not known
        ({"nodes": "5"}, {GPU: "16"}, 24.0),
        ({GPU: "-1"}, {GPU: "16"}, math.inf),  # not a limit
        ({}, {GPU: "16"}, math.inf),
        (None, {}, math.inf),
    ],
)
def test_limits_of_a_node_pool_leave_devices_to_add(limits, used, left):
    elastic = Elastic()
    elastic.node_pools.put(node_pool(limits, used, nodes=2))
    assert elastic.can_add(f"{KARPENTER}=gpu", members(), GPU) == left


def test_nodes_of_karpenter_have_no_limit_when_it_cannot_be_read():
    assert Elastic().can_add(f"{KARPENTER}=gpu", members(), GPU) == math.inf


@pytest.mark.parametrize("form", [YAML, TEXT], ids=["yaml", "text"])
@pytest.mark.parametrize(
    ("group", "node_name", "label", "left"),
    [
        (f"{URL}/gke-prod-l4-5018659c-grp", "gke-prod-l4-5018659c-{}x1z", f"{GKE_POOL}=l4", 24.0),
        (f"{URL}/gke-prod-l4-5018659c-grp", "gke-prod-l4-99999999-{}x1z", f"{GKE_POOL}=l4", math.nan),
        ("aks-gpu-12345678-vmss", "aks-gpu-12345678-vmss00000{}", f"{AKS_POOL}=gpu", 24.0),
        ("aks-gpu-12345678-vmss", "aks-gpu-87654321-vmss00000{}", f"{AKS_POOL}=gpu", math.nan),
        ("gpu", "aks-gpu-12345678-{}", "agentpool=gpu", 24.0),
        (f"eks-gpu-{UUID}", "ip-10-0-0-{}.ec2.internal", f"{EKS_POOL}=gpu", 24.0),
        (f"eks-gpu-spot-{UUID}", "ip-10-0-0-{}.ec2.internal", f"{EKS_POOL}=gpu", math.nan),
    ],
)
def test_status_of_cluster_autoscaler_limits_node_groups(form, group, node_name, label, left):
    elastic = Elastic()
    elastic.status.put(status(form.format(name=group)))
    assert elastic.status.max_nodes == {group: 5, "other": 9}
    found = elastic.can_add(label, members(2, node_name, label), GPU)
    assert math.isnan(found) if math.isnan(left) else found == left


@pytest.mark.parametrize(
    "text", ["", "Name:", "- name: a\n", "- name: a\n  maxSize: many", "{" * 9999, "Name: a\n" * 99]
)
def test_absurd_status_limits_nothing(text):
    elastic = Elastic()
    elastic.status.put(status(text))
    assert elastic.status.max_nodes == {}


def test_only_the_status_in_its_namespace_counts():
    elastic = Elastic()
    elastic.status.put(status(YAML, namespace="default"))
    assert elastic.status.max_nodes == {}
    elastic.status.put(status(YAML))
    version = elastic.version
    elastic.status.put(status(YAML.replace("08:19:44", "08:19:54")))
    assert elastic.version == version
    elastic.status.remove(STATUS_NAMESPACE, STATUS_NAME)
    assert (elastic.status.max_nodes, elastic.version == version) == ({}, False)


def test_stated_size_precedes_what_an_autoscaler_says():
    elastic = Elastic({f"{KARPENTER}=gpu": 5})
    elastic.node_pools.put(node_pool({GPU: "64"}, {}))
    assert elastic.can_add(f"{KARPENTER}=gpu", members(), GPU) == 24.0
    assert elastic.can_add(f"{KARPENTER}=gpu", members(9), GPU) == 0.0


def test_groups_of_a_node_pool_share_what_may_come():
    zones = ({PRODUCT: "L4", KARPENTER: "gpu", "topology.kubernetes.io/zone": zone} for zone in "ab")
    store = nodes(*((labels, {GPU: "4"}) for labels in zones))
    elastic = Elastic()
    elastic.node_pools.put(node_pool({GPU: "20"}, {}))
    zone_a = placed_facts(selector=(("topology.kubernetes.io/zone", "a"),))
    seen = lay_out(store, [placed_facts(), zone_a], [pod("theirs-x.a", "n0", {GPU: "1"})], elastic)
    assert seen.groups.can_add.tolist() == [0.0, 0.0, 12.0]
    assert seen.gpus == [19.0, 15.0]
    assert seen.fits == [19.0, 15.0]
    assert elastic.describe(seen.groups) == [
        "L4: karpenter.sh/nodepool=gpu may get 12 more GPUs, within the limits of its NodePool"
    ]
