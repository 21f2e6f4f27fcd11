import math

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api.objects import Node
from autoscaler.adapters.kubernetes.gpu_pools import HELD_S, NodeTable
from autoscaler.adapters.kubernetes.pods.template import NO_FACTS, Facts
from autoscaler.adapters.kubernetes.scheduling import Needs, Toleration
from autoscaler.core.model.fleet import Joint, Pool
from tests.adapters.keda.world import HandClock

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
PRODUCT, GKE = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"


def node(
    name: str, labels: dict[str, str], taints: list[dict[str, str]] | None = None, **status: dict[str, str]
) -> Node:
    spec = {"taints": taints or []}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}, Node)


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
    rows, pools, gpus, *_ = table.pools([wants(product=(PRODUCT, "H100")), wants(MIG), wants(product=(PRODUCT, "L4"))])
    assert rows == [0, 1, 2]
    assert pools == (Pool(GPU, "H100"), Pool(MIG, "H100-MIG"), Pool(GPU, "L4"))
    assert gpus == [12.0, 2.0, 2.0]


def test_a_template_without_a_product_takes_the_only_one_there_is():
    rows, pools, gpus, *_ = nodes(({PRODUCT: "H100"}, {GPU: "8"})).pools([wants(), wants(product=(PRODUCT, "H100"))])
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
    rows, pools, gpus, *_ = nodes((labels, {resource: "4", "example.com/nic": "2"})).pools([wants(resource)])
    assert (rows, pools, gpus) == ([0], (Pool(resource, "X" if label else ""),), [4.0])


def test_nodes_that_name_no_product_are_shared_out_as_one_pool():
    rows, pools, gpus, *_ = nodes(({}, {GPU: "8"}), ({}, {GPU: "4"})).pools([wants()])
    assert (rows, pools, gpus) == ([0], (Pool(GPU, ""),), [12.0])


def test_where_a_template_may_run_on_several_products_nothing_of_that_resource_is_shared_out():
    table = nodes(({PRODUCT: "H100"}, {GPU: "8"}), ({PRODUCT: "L4"}, {GPU: "2"}))
    _, pools, gpus, *_ = table.pools([wants(), wants(product=(PRODUCT, "H100"))])
    assert pools == (Pool(GPU, ""), Pool(GPU, "H100"))
    assert all(math.isnan(count) for count in gpus)


def test_two_labels_for_one_product_name_one_pool():
    table = nodes(({PRODUCT: "NVIDIA-L4", GKE: "nvidia-l4"}, {GPU: "2"}))
    rows, pools, *_ = table.pools([wants(product=(GKE, "nvidia-l4")), wants(product=(PRODUCT, "NVIDIA-L4"))])
    assert rows == [0, 0]
    assert pools == (Pool(GPU, "NVIDIA-L4"),)


def test_nodes_made_on_demand_are_no_limit():
    karpenter = {PRODUCT: "H100", "karpenter.sh/nodepool": "gpu"}
    _, _, gpus, *_ = nodes((karpenter, {GPU: "8"}), ({PRODUCT: "H100"}, {GPU: "8"})).pools([wants()])
    assert math.isnan(gpus[0])


def test_a_product_without_a_node_yet_is_no_limit_and_a_template_without_gpus_has_no_pool():
    rows, pools, gpus, *_ = nodes().pools([wants(product=(PRODUCT, "B200")), NO_FACTS])
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


TEAMS = (({PRODUCT: "L4", "team": "a"}, {GPU: "4"}), ({PRODUCT: "L4", "team": "b"}, {GPU: "8"}))
TRAINING = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}


def placed(gpus: float = 1.0, **needs) -> Facts:
    return wants()._replace(gpus=gpus, needs=Needs(GPU, gpus, gpus, gpus, **needs))


def test_node_pools_of_one_product_are_pools_of_their_own():
    layout = nodes(*TEAMS).pools([placed(selector=(("team", name),)) for name in "ab"])
    assert layout.rows == [0, 1]
    assert layout.pools == (Pool(GPU, "L4", "team=a"), Pool(GPU, "L4", "team=b"))
    assert (layout.gpus, layout.fits, layout.joint) == ([4.0, 8.0], [4.0, 8.0], ())


def test_a_pool_within_another_draws_on_the_same_nodes():
    layout = nodes(*TEAMS).pools([placed(), placed(selector=(("team", "a"),))])
    assert (layout.gpus, layout.fits) == ([12.0, 4.0], [12.0, 4.0])
    assert layout.joint == (Joint((0, 1), 12.0),)


def test_a_replica_that_no_node_can_hold_has_no_pool_of_known_size():
    """Its node may still have to be made; until then it takes nothing from the replicas that nodes can hold."""
    layout = nodes(*TEAMS).pools([placed(16.0), placed()])
    assert layout.rows == [0, 1]
    assert [math.isnan(size) for size in layout.gpus] == [True, False]
    assert layout.fits == [math.inf, 12.0]


def test_only_whole_replicas_of_single_nodes_fit():
    layout = nodes(*TEAMS, ({PRODUCT: "L4"}, {GPU: "2"})).pools([placed(3.0)])
    assert (layout.gpus, layout.fits) == ([12.0], [3.0])


def test_a_taint_counts_after_a_while_and_one_less_at_once():
    clock = HandClock()
    table = nodes(({PRODUCT: "L4"}, {GPU: "4"}), ({PRODUCT: "L4"}, {GPU: "8"}), clock=clock)
    table.put(node("n1", {PRODUCT: "L4"}, [TRAINING], allocatable={GPU: "8"}))
    assert table.pools([placed()]).gpus == [12.0]
    clock.time_s += HELD_S
    table.settle()
    assert table.pools([placed()]).gpus == [4.0]
    assert table.pools([placed(tolerations=(Toleration("dedicated", "Exists"),))]).gpus == [12.0]
    table.put(node("n1", {PRODUCT: "L4"}, allocatable={GPU: "8"}))
    assert table.pools([placed()]).gpus == [12.0]


def test_a_label_that_is_written_every_minute_changes_nothing():
    table = nodes(({PRODUCT: "L4", "nvidia.com/gfd.timestamp": "1"}, {GPU: "4"}), ({}, {"cpu": "4"}))
    version = table.settle()
    table.put(node("n0", {PRODUCT: "L4", "nvidia.com/gfd.timestamp": "2"}, allocatable={GPU: "4"}))
    table.put(node("n1", {"any": "label"}, allocatable={"cpu": "4"}))
    assert table.settle() == version


@pytest.mark.parametrize(
    "label",
    ["cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool"],
)
def test_a_pool_that_may_grow_says_by_which_label(label):
    layout = nodes(({PRODUCT: "L4", label: "gpu"}, {GPU: "1"})).pools([placed()])
    assert (layout.pools[0].grows, layout.gpus) == (f"{label}=gpu", [1.0])
    karpenter = nodes(({PRODUCT: "L4", label: "gpu", "karpenter.sh/nodepool": "x"}, {GPU: "1"})).pools([placed()])
    assert (karpenter.pools[0].grows, math.isnan(karpenter.gpus[0])) == ("", True)
