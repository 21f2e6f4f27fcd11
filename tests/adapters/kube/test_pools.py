import math

import msgspec

from autoscaler.adapters.kube.objects import Node
from autoscaler.adapters.kube.pools import NodeTable
from autoscaler.adapters.kube.targets import NO_FACTS, Facts
from autoscaler.core.fleet import Pool

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
PRODUCT, GKE = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"


def nodes(*given: tuple[dict[str, str], dict[str, str]]) -> NodeTable:
    table = NodeTable()
    for index, (labels, allocatable) in enumerate(given):
        node = {"metadata": {"name": f"n{index}", "labels": labels}, "status": {"allocatable": allocatable}}
        table.put(msgspec.convert(node, Node))
    return table


def wants(resource: str = GPU, product: tuple[str, str] | None = None) -> Facts:
    return NO_FACTS._replace(resource=resource, product=product)


def test_devices_are_summed_by_resource_and_product():
    table = nodes(
        ({PRODUCT: "H100"}, {GPU: "8", "cpu": "4"}),
        ({PRODUCT: "H100"}, {GPU: "4"}),
        ({PRODUCT: "L4"}, {GPU: "2"}),
        ({PRODUCT: "H100-MIG"}, {MIG: "2"}),
    )
    rows, pools, gpus = table.pools([wants(product=(PRODUCT, "H100")), wants(MIG), wants(product=(PRODUCT, "L4"))])
    assert rows == [0, 1, 2]
    assert pools == (Pool(GPU, "H100"), Pool(MIG, "H100-MIG"), Pool(GPU, "L4"))
    assert gpus == [12.0, 2.0, 2.0]


def test_a_template_without_a_product_takes_the_only_one_there_is():
    rows, pools, gpus = nodes(({PRODUCT: "H100"}, {GPU: "8"})).pools([wants(), wants(product=(PRODUCT, "H100"))])
    assert rows == [0, 0]
    assert (pools, gpus) == ((Pool(GPU, "H100"),), [8.0])


def test_where_a_template_may_run_on_several_products_nothing_of_that_resource_is_shared_out():
    table = nodes(({PRODUCT: "H100"}, {GPU: "8"}), ({PRODUCT: "L4"}, {GPU: "2"}))
    _, pools, gpus = table.pools([wants(), wants(product=(PRODUCT, "H100"))])
    assert pools == (Pool(GPU, ""), Pool(GPU, "H100"))
    assert all(math.isnan(count) for count in gpus)


def test_two_labels_for_one_product_name_one_pool():
    table = nodes(({PRODUCT: "NVIDIA-L4", GKE: "nvidia-l4"}, {GPU: "2"}))
    rows, pools, _ = table.pools([wants(product=(GKE, "nvidia-l4")), wants(product=(PRODUCT, "NVIDIA-L4"))])
    assert rows == [0, 0]
    assert pools == (Pool(GPU, "NVIDIA-L4"),)


def test_nodes_made_on_demand_are_no_limit():
    karpenter = {PRODUCT: "H100", "karpenter.sh/nodepool": "gpu"}
    _, _, gpus = nodes((karpenter, {GPU: "8"}), ({PRODUCT: "H100"}, {GPU: "8"})).pools([wants()])
    assert math.isnan(gpus[0])


def test_a_product_without_a_node_yet_is_no_limit_and_a_template_without_gpus_has_no_pool():
    rows, pools, gpus = nodes().pools([wants(product=(PRODUCT, "B200")), NO_FACTS])
    assert rows == [0, -1]
    assert pools == (Pool(GPU, "B200"),)
    assert math.isnan(gpus[0])


def test_a_node_that_goes_takes_its_devices_along():
    table = nodes(({PRODUCT: "H100"}, {GPU: "8"}), ({PRODUCT: "H100"}, {GPU: "4"}))
    version = table.version
    table.remove("", "n1")
    assert table.version > version
    assert table.pools([wants()])[2] == [8.0]
