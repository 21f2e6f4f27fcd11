import math

import pytest

from autoscaler.adapters.kubernetes.inventory.nodes import SHRINK_DELAY_S, NodeStore
from autoscaler.adapters.kubernetes.pods.needs import PodToleration
from tests.adapters.keda.world import ManualClock
from tests.adapters.kubernetes.inventory.world import GPU, MIG, PRODUCT, facts, lay_out, node, nodes, placed_facts

TRAINING = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}


def test_pool_shrinks_when_a_node_is_deleted():
    store = nodes(({PRODUCT: "H100"}, {GPU: "8"}), ({PRODUCT: "H100"}, {GPU: "4"}))
    version = store.update()
    store.remove("", "n1")
    assert store.update() > version
    assert lay_out(store, [facts()]).gpus == [8.0]


@pytest.mark.parametrize(
    ("labels", "status"),
    [
        ({PRODUCT: "H100"}, {"allocatable": {GPU: "0"}, "capacity": {GPU: "8"}}),
        ({PRODUCT: "H100"}, {"allocatable": {GPU: "6"}}),
        ({}, {"allocatable": {}}),
    ],
    ids=["device plugin", "two fail", "operator"],
)
def test_pool_shrinks_late_and_grows_at_once(labels, status):
    clock = ManualClock()
    store = nodes(({PRODUCT: "H100"}, {GPU: "8"}), ({PRODUCT: "H100"}, {GPU: "8"}), clock=clock)
    store.put(node("n1", labels, **status))
    version = store.update()
    clock.time_s += SHRINK_DELAY_S - 1
    store.put(node("n1", labels, **status))  # a heartbeat does not restart the delay
    assert (store.update(), lay_out(store, [facts()]).gpus) == (version, [16.0])
    clock.time_s += 1
    assert store.update() > version
    assert lay_out(store, [facts()]).gpus == [8.0 + int(status["allocatable"].get(GPU, "0"))]
    store.put(node("n1", {PRODUCT: "H100"}, allocatable={GPU: "8"}))
    assert lay_out(store, [facts()]).gpus == [16.0]


def test_pool_stays_when_a_node_recovers_in_time():
    clock = ManualClock()
    store = nodes(({PRODUCT: "H100"}, {GPU: "8"}), clock=clock)
    store.put(node("n0", {PRODUCT: "H100"}, allocatable={GPU: "0"}))
    clock.time_s += SHRINK_DELAY_S / 2
    store.put(node("n0", {PRODUCT: "H100"}, allocatable={GPU: "8"}))
    clock.time_s += SHRINK_DELAY_S
    store.update()
    assert lay_out(store, [facts()]).gpus == [8.0]


def test_deleted_node_stays_deleted_after_the_delay():
    clock = ManualClock()
    store = nodes(({}, {GPU: "8"}), ({}, {GPU: "8"}), clock=clock)
    store.put(node("n0", {}, allocatable={GPU: "4"}))
    store.remove("", "n0")
    clock.time_s += SHRINK_DELAY_S
    store.update()
    assert lay_out(store, [facts()]).gpus == [8.0]


def test_last_offer_counts_when_a_node_shrinks_twice():
    clock = ManualClock()
    store = nodes(({}, {GPU: "8"}), clock=clock)
    for left in ("4", "2"):
        store.put(node("n0", {}, allocatable={GPU: left}))
    clock.time_s += SHRINK_DELAY_S
    store.update()
    assert lay_out(store, [facts()]).gpus == [2.0]


def test_new_node_counts_its_capacity_until_the_delay():
    clock = ManualClock()
    store = NodeStore(clock)
    store.put(node("n0", {PRODUCT: "H100"}, allocatable={GPU: "2"}, capacity={GPU: "8"}))
    assert lay_out(store, [facts()]).gpus == [8.0]
    clock.time_s += SHRINK_DELAY_S
    store.update()
    assert lay_out(store, [facts()]).gpus == [2.0]


def test_new_taint_counts_late_and_a_removed_one_at_once():
    clock = ManualClock()
    store = nodes(({PRODUCT: "L4"}, {GPU: "4"}), ({PRODUCT: "L4"}, {GPU: "8"}), clock=clock)
    store.put(node("n1", {PRODUCT: "L4"}, [TRAINING], allocatable={GPU: "8"}))
    assert lay_out(store, [placed_facts()]).gpus == [12.0]
    clock.time_s += SHRINK_DELAY_S
    store.update()
    assert lay_out(store, [placed_facts()]).gpus == [4.0]
    assert lay_out(store, [placed_facts(tolerations=(PodToleration("dedicated", "Exists"),))]).gpus == [12.0]
    store.put(node("n1", {PRODUCT: "L4"}, allocatable={GPU: "8"}))
    assert lay_out(store, [placed_facts()]).gpus == [12.0]


def test_volatile_label_changes_nothing():
    store = nodes(({PRODUCT: "L4", "nvidia.com/gfd.timestamp": "1"}, {GPU: "4"}), ({}, {"cpu": "4"}))
    version = store.update()
    store.put(node("n0", {PRODUCT: "L4", "nvidia.com/gfd.timestamp": "2"}, allocatable={GPU: "4"}))
    store.put(node("n1", {"any": "label"}, allocatable={"cpu": "4"}))
    assert store.update() == version


@pytest.mark.parametrize(
    "taint",
    [
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/unreachable",
        "karpenter.sh/unregistered",
        "node.cilium.io/agent-not-ready",
        "startup-taint.cluster-autoscaler.kubernetes.io/gpu",
    ],
)
def test_taints_that_pass_exclude_no_pod(taint):
    store = NodeStore(ManualClock())
    store.put(node("n0", {PRODUCT: "L4"}, [{"key": taint, "effect": "NoSchedule"}], allocatable={GPU: "4"}))
    assert lay_out(store, [placed_facts()]).gpus == [4.0]


@pytest.mark.parametrize("taint", ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"])
def test_node_that_is_removed_is_closed_at_once(taint):
    store = nodes(({PRODUCT: "L4"}, {GPU: "4"}), ({PRODUCT: "L4"}, {GPU: "8"}))
    store.put(node("n1", {PRODUCT: "L4"}, [{"key": taint, "effect": "NoSchedule"}], allocatable={GPU: "8"}))
    assert lay_out(store, [placed_facts()]).gpus == [4.0]


def test_old_slices_are_gone_when_the_layout_is_new():
    state = "nvidia.com/mig.config.state"
    store = nodes(({state: "success"}, {MIG: "2"}))
    store.put(node("n0", {state: "pending"}, allocatable={MIG: "0"}))
    assert lay_out(store, [placed_facts(resource=MIG)]).gpus == [0.0]
    store.put(node("n0", {state: "success"}, allocatable={MIG: "0", "nvidia.com/mig-1g.10gb": "7"}))
    seen = lay_out(store, [placed_facts(resource=MIG), placed_facts(resource="nvidia.com/mig-1g.10gb")])
    assert (math.isnan(seen.gpus[0]), seen.gpus[1]) == (True, 7.0)


@pytest.mark.parametrize("count", ["-4", "1.5", "1e9", "many", "999999999999999999999"])
def test_impossible_numbers_of_devices_are_told_and_not_believed(count):
    store = NodeStore(ManualClock())
    store.put(node("bad", {}, allocatable={GPU: count, MIG: "2"}))
    store.put(node("good", {}, allocatable={GPU: "4"}))
    assert lay_out(store, [placed_facts(), placed_facts(resource=MIG)]).gpus == [4.0, 2.0]
    assert store.problems == {"bad": f"{GPU}: '{count}' devices are not believed; allowed: up to 65536"}
    store.put(node("bad", {}, allocatable={GPU: "1k"}))
    assert store.problems == {}
    store.remove("", "bad")
    assert lay_out(store, [placed_facts()]).gpus == [4.0]
