import pytest

from autoscaler.catalog.node_labels import (
    capacity_type,
    is_startup_taint,
    mig_problem,
    node_pool,
    product,
    sharing,
    zone,
)

GKE, AKS = {"cloud.google.com/gke-nodepool": "l4"}, {"kubernetes.azure.com/agentpool": "gpu"}


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({"karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"karpenter.sh/capacity-type": "on-demand"}, "on-demand"),
        ({"karpenter.sh/capacity-type": "reserved"}, "reserved"),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on-demand"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "reserved"),
        (GKE | {"cloud.google.com/gke-spot": "true"}, "spot"),
        (GKE | {"cloud.google.com/gke-preemptible": "true"}, "spot"),
        (GKE, "on-demand"),
        (AKS | {"kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        (AKS, "on-demand"),
        ({"karpenter.sh/capacity-type": "?" * 99}, ""),
        ({}, ""),
    ],
)
def test_capacity_type_is_known_by_each_providers_labels(labels, kind):
    assert capacity_type(labels) == kind


@pytest.mark.parametrize(
    ("labels", "resource", "shared"),
    [
        ({"nvidia.com/gpu.sharing-strategy": "none"}, "nvidia.com/gpu", ""),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing"}, "nvidia.com/gpu", "time-slicing"),
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, "nvidia.com/gpu.shared", "mps"),
        ({"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}, "nvidia.com/gpu", "time-slicing"),
        ({"nvidia.com/mig-1g.10gb.sharing-strategy": "time-slicing"}, "nvidia.com/mig-1g.10gb.shared", "time-slicing"),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "nvidia.com/gpu", "time-slicing"),
        ({}, "nvidia.com/gpu.shared", "time-slicing"),
        ({}, "nvidia.com/gpu", ""),
    ],
)
def test_sharing_is_known_by_labels_and_names(labels, resource, shared):
    assert sharing(labels, resource) == shared


def test_vendors_labels_name_the_product_before_a_clouds():
    assert (
        product({"nvidia.com/gpu.product": "NVIDIA-L4", "cloud.google.com/gke-accelerator": "nvidia-l4"}) == "NVIDIA-L4"
    )
    assert zone({"failure-domain.beta.kubernetes.io/zone": "a"}) == "a"


def test_node_pools_are_named_by_their_label():
    assert node_pool(GKE) == "cloud.google.com/gke-nodepool=l4"
    assert node_pool(AKS | {"karpenter.sh/nodepool": "x"}) == "karpenter.sh/nodepool=x"
    assert node_pool({"karpenter.sh/nodepool": ""}) == ""


def test_mig_layout_that_changes_is_a_problem():
    assert mig_problem({"nvidia.com/mig.config.state": "rebooting"}) == "MIG layout rebooting"
    assert mig_problem({"nvidia.com/mig.config.state": "success"}) == ""


def test_taints_of_new_nodes_pass():
    assert is_startup_taint("node.cilium.io/agent-not-ready")
    assert is_startup_taint("startup-taint.cluster-autoscaler.kubernetes.io/gpu")
    assert not is_startup_taint("dedicated")
