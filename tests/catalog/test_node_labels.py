import pytest

from autoscaler.catalog.node_labels import (
    capacity_type,
    is_startup_taint,
    mig_problem,
    node_pool,
    product,
    sharers,
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
        (GKE | {"cloud.google.com/gke-provisioning": "spot"}, "spot"),
        (GKE | {"cloud.google.com/gke-provisioning": "standard"}, "on-demand"),
        (GKE | {"cloud.google.com/reservation-name": "h100-2026"}, "reserved"),
        (GKE | {"cloud.google.com/reservation-name": ""}, "on-demand"),
        ({"oci.oraclecloud.com/oke-is-preemptible": "true"}, "spot"),
        ({"scheduling.cast.ai/spot": "true"}, "spot"),
        ({"scheduling.cast.ai/on-demand": "true"}, "on-demand"),
        ({"spotinst.io/node-lifecycle": "spot"}, "spot"),
        ({"spotinst.io/node-lifecycle": "od"}, "on-demand"),
        ({"machine.openshift.io/interruptible-instance": ""}, "spot"),
        ({"cluster.x-k8s.io/interruptible": ""}, "spot"),
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


@pytest.mark.parametrize(
    ("labels", "resource", "pods"),
    [
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}, "nvidia.com/gpu", 4),
        ({"nvidia.com/gpu.replicas": "4"}, "nvidia.com/gpu.shared", 4),
        (
            {
                "cloud.google.com/gke-gpu-sharing-strategy": "mps",
                "cloud.google.com/gke-max-shared-clients-per-gpu": "8",
            },
            "nvidia.com/gpu",
            8,
        ),
        ({"nvidia.com/mig-1g.10gb.replicas": "2"}, "nvidia.com/mig-1g.10gb.shared", 2),
        ({"nvidia.com/gpu.replicas": "2"}, "nvidia.com/mig-1g.10gb.shared", 0),
        ({"nvidia.com/gpu.replicas": "1"}, "nvidia.com/gpu", 1),
        ({}, "nvidia.com/gpu", 1),
        ({}, "nvidia.com/gpu.shared", 0),
        ({"nvidia.com/gpu.replicas": "-4"}, "nvidia.com/gpu.shared", 0),
        ({"nvidia.com/gpu.replicas": "9" * 99}, "nvidia.com/gpu.shared", 0),
        ({"nvidia.com/gpu.replicas": "4097"}, "nvidia.com/gpu.shared", 0),
    ],
)
def test_the_pods_that_share_a_device_are_known_by_labels(labels, resource, pods):
    assert sharers(labels, resource) == pods


def test_an_instance_type_names_the_product_where_no_label_does():
    assert product({"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"}) == "A100-80GB"
    assert product({"node.kubernetes.io/instance-type": "m5.large"}) == ""
    assert (
        product(
            {
                "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
                "cloud.google.com/gke-gpu-partition-size": "3g.40gb",
            }
        )
        == "nvidia-h100-80gb-MIG-3g.40gb"
    )


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
