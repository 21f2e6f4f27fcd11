import math

import msgspec
import pytest

from autoscaler.adapters.kube.objects import Node
from autoscaler.adapters.kube.pools import HELD_S, NodeTable
from autoscaler.adapters.kube.template import NO_FACTS, Facts
from autoscaler.core.fleet import Pool
from tests.adapters.keda.world import HandClock

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
PRODUCT, GKE = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"


def node(name: str, labels: dict[str, str], **status: dict[str, str]) -> Node:
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "status": status}, Node)


def nodes(*given: tuple[dict[str, str], dict[str, str]], clock: HandClock | None = None) -> NodeTable:
    table = NodeTable(clock or HandClock())
    for index, (labels, allocatable) in enumerate(given):
        table.put(node(f"n{index}", labels, allocatable=allocatable))
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


@pytest.mark.parametrize(
    ("resource", "label"),
    [
        ("amd.com/gpu", "amd.com/gpu.product-name"),
        ("google.com/tpu", "cloud.google.com/gke-tpu-accelerator"),
        ("aws.amazon.com/neuron", "karpenter.k8s.aws/instance-accelerator-name"),
        ("gpu.intel.com/xe", ""),
    ],
)
def test_devices_of_any_vendor_are_a_pool(resource: str, label: str):
    labels = {label: "X"} if label else {}
    rows, pools, gpus = nodes((labels, {resource: "4", "example.com/nic": "2"})).pools([wants(resource)])
    assert (rows, pools, gpus) == ([0], (Pool(resource, "X" if label else ""),), [4.0])


def test_nodes_that_name_no_product_are_shared_out_as_one_pool():
    rows, pools, gpus = nodes(({}, {GPU: "8"}), ({}, {GPU: "4"})).pools([wants()])
    assert (rows, pools, gpus) == ([0], (Pool(GPU, ""),), [12.0])


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
    version = table.settle()
    table.remove("", "n1")
    assert table.settle() > version
    assert table.pools([wants()])[2] == [8.0]


@pytest.mark.parametrize(
    ("labels", "status"),
    [
        ({PRODUCT: "H100"}, {"allocatable": {GPU: "0"}, "capacity": {GPU: "8"}}),
        ({PRODUCT: "H100"}, {"allocatable": {GPU: "6"}}),
        ({}, {"allocatable": {}}),
    ],
    ids=["device plugin", "two fail", "operator"],
)
def test_a_node_that_offers_less_is_believed_after_a_while_and_one_that_offers_more_at_once(labels, status):
    clock = HandClock()
    table = nodes(({PRODUCT: "H100"}, {GPU: "8"}), ({PRODUCT: "H100"}, {GPU: "8"}), clock=clock)
    table.put(node("n1", labels, **status))
    version = table.settle()
    clock.time_s += HELD_S - 1
    table.put(node("n1", labels, **status))  # a heartbeat does not begin the wait anew
    assert (table.settle(), table.pools([wants()])[2]) == (version, [16.0])
    clock.time_s += 1
    assert table.settle() > version
    assert table.pools([wants()])[2] == [8.0 + int(status["allocatable"].get(GPU, "0"))]
    table.put(node("n1", {PRODUCT: "H100"}, allocatable={GPU: "8"}))
    assert table.pools([wants()])[2] == [16.0]


def test_a_node_that_offers_all_again_in_time_was_never_less():
    clock = HandClock()
    table = nodes(({PRODUCT: "H100"}, {GPU: "8"}), clock=clock)
    table.put(node("n0", {PRODUCT: "H100"}, allocatable={GPU: "0"}))
    clock.time_s += HELD_S / 2
    table.put(node("n0", {PRODUCT: "H100"}, allocatable={GPU: "8"}))
    clock.time_s += HELD_S
    table.settle()
    assert table.pools([wants()])[2] == [8.0]


def test_a_node_that_goes_while_it_offers_less_does_not_come_back():
    clock = HandClock()
    table = nodes(({}, {GPU: "8"}), ({}, {GPU: "8"}), clock=clock)
    table.put(node("n0", {}, allocatable={GPU: "4"}))
    table.remove("", "n0")
    clock.time_s += HELD_S
    table.settle()
    assert table.pools([wants()])[2] == [8.0]


def test_of_a_node_that_offers_less_and_less_the_last_is_believed():
    clock = HandClock()
    table = nodes(({}, {GPU: "8"}), clock=clock)
    for left in ("4", "2"):
        table.put(node("n0", {}, allocatable={GPU: left}))
    clock.time_s += HELD_S
    table.settle()
    assert table.pools([wants()])[2] == [2.0]


def test_a_node_first_seen_while_its_devices_are_not_offered_has_its_capacity_for_a_while():
    clock = HandClock()
    table = NodeTable(clock)
    table.put(node("n0", {PRODUCT: "H100"}, allocatable={GPU: "2"}, capacity={GPU: "8"}))
    assert table.pools([wants()])[2] == [8.0]
    clock.time_s += HELD_S
    table.settle()
    assert table.pools([wants()])[2] == [2.0]
