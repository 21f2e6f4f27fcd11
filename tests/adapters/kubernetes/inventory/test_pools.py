import math

import pytest

from autoscaler.adapters.kubernetes.pods.template import NO_FACTS
from autoscaler.core.model.fleet import Pool
from tests.adapters.kubernetes.inventory.world import GKE, GPU, MIG, PRODUCT, facts, lay_out, nodes, placed_facts


def test_devices_are_summed_by_resource_and_product():
    store = nodes(
        ({PRODUCT: "H100"}, {GPU: "8", "cpu": "4"}),
        ({PRODUCT: "H100"}, {GPU: "4"}),
        ({PRODUCT: "L4"}, {GPU: "2"}),
        ({PRODUCT: "H100-MIG"}, {MIG: "2"}),
    )
    layout = lay_out(store, [facts(product=(PRODUCT, "H100")), facts(MIG), facts(product=(PRODUCT, "L4"))])
    assert layout.rows == [0, 1, 2]
    assert layout.pools == (Pool(GPU, "H100"), Pool(MIG, "H100-MIG"), Pool(GPU, "L4"))
    assert layout.gpus == [12.0, 2.0, 2.0]


def test_template_without_product_has_the_only_product():
    layout = lay_out(nodes(({PRODUCT: "H100"}, {GPU: "8"})), [facts(), facts(product=(PRODUCT, "H100"))])
    assert layout.rows == [0, 0]
    assert (layout.pools, layout.gpus) == ((Pool(GPU, "H100"),), [8.0])


@pytest.mark.parametrize(
    ("resource", "label"),
    [
        ("amd.com/gpu", "amd.com/gpu.product-name"),
        ("google.com/tpu", "cloud.google.com/gke-tpu-accelerator"),
        ("aws.amazon.com/neuron", "karpenter.k8s.aws/instance-accelerator-name"),
        ("gpu.intel.com/xe", ""),
    ],
)
def test_devices_of_every_vendor_form_a_pool(resource: str, label: str):
    labels = {label: "X"} if label else {}
    layout = lay_out(nodes((labels, {resource: "4", "example.com/nic": "2"})), [facts(resource)])
    assert (layout.rows, layout.pools, layout.gpus) == ([0], (Pool(resource, "X" if label else ""),), [4.0])


def test_nodes_without_product_form_one_pool():
    layout = lay_out(nodes(({}, {GPU: "8"}), ({}, {GPU: "4"})), [facts()])
    assert (layout.rows, layout.pools, layout.gpus) == ([0], (Pool(GPU, ""),), [12.0])


def test_template_of_any_product_shares_the_groups_of_all():
    store = nodes(({PRODUCT: "H100"}, {GPU: "8"}), ({PRODUCT: "L4"}, {GPU: "2"}))
    layout = lay_out(store, [facts(), facts(product=(PRODUCT, "H100"))])
    assert layout.pools == (Pool(GPU, ""), Pool(GPU, "H100"))
    assert layout.gpus == [10.0, 8.0]
    assert layout.groups.admitted.tolist() == [[True, True], [True, False]]


def test_two_labels_of_one_product_form_one_pool():
    store = nodes(({PRODUCT: "NVIDIA-L4", GKE: "nvidia-l4"}, {GPU: "2"}))
    layout = lay_out(store, [facts(product=(GKE, "nvidia-l4")), facts(product=(PRODUCT, "NVIDIA-L4"))])
    assert layout.rows == [0, 0]
    assert layout.pools == (Pool(GPU, "NVIDIA-L4"),)


def test_nodes_created_on_demand_are_no_limit():
    karpenter = {PRODUCT: "H100", "karpenter.sh/nodepool": "gpu"}
    layout = lay_out(nodes((karpenter, {GPU: "8"}), ({PRODUCT: "H100"}, {GPU: "8"})), [facts()])
    assert math.isnan(layout.gpus[0])


def test_pool_without_nodes_has_no_limit():
    layout = lay_out(nodes(), [facts(product=(PRODUCT, "B200")), NO_FACTS])
    assert layout.rows == [0, -1]
    assert layout.pools == (Pool(GPU, "B200"),)
    assert math.isnan(layout.gpus[0])


TEAMS = (({PRODUCT: "L4", "team": "a"}, {GPU: "4"}), ({PRODUCT: "L4", "team": "b"}, {GPU: "8"}))


def test_node_pools_of_one_product_are_separate_pools():
    layout = lay_out(nodes(*TEAMS), [placed_facts(selector=(("team", name),)) for name in "ab"])
    assert layout.rows == [0, 1]
    assert layout.pools == (Pool(GPU, "L4", "team=a"), Pool(GPU, "L4", "team=b"))
    assert (layout.gpus, layout.fits) == ([4.0, 8.0], [4.0, 8.0])


def test_pool_inside_another_is_joined_with_it():
    layout = lay_out(nodes(*TEAMS), [placed_facts(), placed_facts(selector=(("team", "a"),))])
    assert (layout.gpus, layout.fits) == ([12.0, 4.0], [12.0, 4.0])
    assert layout.groups.admitted.tolist() == [[True, True], [True, False]]


def test_pool_has_no_limit_when_a_replica_fits_no_node():
    """Its node may still be created. Until then it uses no GPU of the replicas that fit."""
    layout = lay_out(nodes(*TEAMS), [placed_facts(16.0), placed_facts()])
    assert layout.rows == [0, 1]
    assert [math.isnan(size) for size in layout.gpus] == [True, False]
    assert layout.fits == [math.inf, 12.0]


def test_only_whole_replicas_on_one_node_fit():
    layout = lay_out(nodes(*TEAMS, ({PRODUCT: "L4"}, {GPU: "2"})), [placed_facts(3.0)])
    assert (layout.gpus, layout.fits) == ([12.0], [3.0])


@pytest.mark.parametrize(
    "label",
    ["cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool"],
)
def test_growing_pool_names_its_label(label):
    layout = lay_out(nodes(({PRODUCT: "L4", label: "gpu"}, {GPU: "1"})), [placed_facts()])
    assert (layout.pools[0].grows, layout.gpus) == (f"{label}=gpu", [1.0])
    karpenter = lay_out(
        nodes(({PRODUCT: "L4", label: "gpu", "karpenter.sh/nodepool": "x"}, {GPU: "1"})), [placed_facts()]
    )
    assert (karpenter.pools[0].grows, math.isnan(karpenter.gpus[0])) == ("", True)
