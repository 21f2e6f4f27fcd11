"""What pods hold and what fits, against a plain count."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.inventory.elastic import Elastic
from autoscaler.adapters.kubernetes.inventory.nodes import NodeStore
from autoscaler.adapters.kubernetes.inventory.pools import lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import count_usage
from autoscaler.adapters.kubernetes.pods.needs import NAME_FIELD, Needs, NodeExpression, PodToleration
from autoscaler.adapters.kubernetes.pods.template import NO_FACTS
from tests.adapters.keda.world import ManualClock
from tests.adapters.kubernetes.inventory.world import (
    GPU,
    MIG,
    PRODUCT,
    facts,
    hold,
    lay_out,
    node,
    nodes,
    placed_facts,
    pod,
)

L4 = {PRODUCT: "L4"}
CORDON = {"unschedulable": True}


def test_devices_are_counted_by_who_holds_them():
    store = nodes((L4, {GPU: "8"}), (L4, {GPU: "8"}))
    pods = [pod("ours-0.a", "n0", {GPU: "4"}), pod("theirs-x.a", "n0", {GPU: "3"}), pod("theirs-x.b", "n1", {})]
    seen = lay_out(store, [placed_facts(4.0)], pods)
    assert seen.groups.allocatable.tolist() == [16.0]
    assert seen.groups.used.tolist() == [4.0]
    assert seen.groups.used_by_others.tolist() == [3.0]
    assert seen.gpus == [13.0]
    assert seen.fits == [3.0]  # 5 and 8 devices are not theirs
    assert seen.room == [2.0]  # 1 and 8 devices are free


def test_placeholder_pods_of_others_yield():
    """Pods with a priority below 0 keep warm nodes, and the scheduler evicts them for any other pod."""
    balloon = pod("theirs-x.a", "n0", {GPU: "3"}, priority=-10)
    seen = lay_out(nodes((L4, {GPU: "8"})), [placed_facts()], [balloon])
    assert (seen.gpus, seen.fits) == ([8.0], [8.0])


def test_effective_request_of_a_pod_counts():
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}}
    start = {"name": "i", "resources": {"limits": {GPU: "4"}}}
    theirs = pod("theirs-x.a", "n0", {GPU: "2"}, initContainers=[sidecar, start], overhead={GPU: "1"})
    seen = lay_out(nodes((L4, {GPU: "8"})), [placed_facts()], [theirs])
    assert seen.groups.used_by_others.tolist() == [6.0]


def test_pods_that_have_ended_or_have_no_node_hold_nothing():
    done = pod("theirs-x.a", "n0", {GPU: "2"})
    waiting = pod("theirs-x.b", "", {GPU: "2"})
    seen = lay_out(
        nodes((L4, {GPU: "8"})),
        [placed_facts()],
        [type(done)(metadata=done.metadata, spec=done.spec, status=type(done.status)(phase="Succeeded")), waiting],
    )
    assert seen.groups.used_by_others.tolist() == [0.0]


@pytest.mark.parametrize(
    ("spec", "labels", "conditions", "word"),
    [
        (CORDON, {}, [], "cordoned"),
        ({}, {}, [{"type": "Ready", "status": "Unknown"}], "not ready"),
        ({}, {"nvidia.com/mig.config.state": "pending"}, [], "MIG layout pending"),
        ({}, {"nvidia.com/mig.config.state": "rebooting"}, [], "MIG layout rebooting"),
        ({}, {"nvidia.com/mig.config.state": "failed"}, [], "MIG layout failed"),
        (
            {"taints": [{"key": "karpenter.sh/disrupted", "value": "", "effect": "NoSchedule"}]},
            {},
            [],
            "being removed",
        ),
    ],
)
def test_closed_nodes_keep_their_pods_and_take_no_more(spec, labels, conditions, word):
    store = nodes((L4, {GPU: "8"}))
    closed = node("n1", L4 | labels, spec=spec, allocatable={GPU: "8"}, conditions=conditions)
    store.put(closed)
    seen = lay_out(store, [placed_facts()], [pod("ours-0.a", "n1", {GPU: "1"}), pod("ours-0.b", "n1", {GPU: "1"})])
    assert seen.groups.closed.tolist() == [False, True]
    assert seen.groups.groups[1].nodes == word
    assert (seen.gpus, seen.fits, seen.room) == ([10.0], [10.0], [8.0])


def test_devices_of_stray_pods_are_kept_and_counted_once():
    """A pod of team a's workload is on team b's node."""
    store = nodes((L4 | {"team": "a"}, {GPU: "4"}), (L4 | {"team": "b"}, {GPU: "8"}))
    workloads = [placed_facts(selector=(("team", name),)) for name in "ab"]
    seen = lay_out(store, workloads, [pod("ours-0.a", "n1", {GPU: "1"})])
    assert seen.gpus == [5.0, 7.0]
    assert seen.fits == [5.0, 7.0]
    assert seen.groups.closed.tolist() == [False, False, True]  # nothing else is promised its device
    assert seen.groups.of_node == {"n0": (0,), "n1": (1, 2)}
    assert (seen.groups.used.tolist(), seen.groups.admitted[:, 2].tolist()) == ([0.0, 0.0, 1.0], [True, False])


def test_nodes_have_one_order_in_all_columns():
    """Pods of the daemon's workloads are found on their nodes by it. Nodes of two groups take turns."""
    labels = [L4 | {"team": team} for team in "aba"]
    store = nodes(*((each, {GPU: "4"}) for each in labels))
    workloads = [placed_facts(selector=(("team", team),)) for team in "ab"]
    seen = lay_out(store, workloads, [pod("other", "n2", {GPU: "3"})])
    names = [[name for name, rows in seen.groups.of_node.items() if row in rows] for row in range(2)]
    assert names == [["n0", "n2"], ["n1"]]
    assert [each.tolist() for each in seen.groups.by_node] == [[4.0, 1.0], [4.0]]


def test_stray_pods_give_no_limit_to_a_pool_without_nodes():
    seen = lay_out(nodes((L4, {GPU: "4"})), [placed_facts(8.0)], [pod("ours-0.a", "n0", {GPU: "4"})])
    assert math.isnan(seen.gpus[0])
    assert seen.fits == [math.inf]


def test_cpu_and_memory_limit_what_fits():
    store = nodes((L4, {GPU: "8", "cpu": "30", "memory": "64Gi"}))
    theirs = [pod("theirs-x.a", "n0", {"cpu": "1500m", "memory": "8Gi"})]
    assert lay_out(store, [placed_facts(cpu=8.0)], theirs).fits == [3.0]
    assert lay_out(store, [placed_facts(memory=28.0 * 2**30)], theirs).fits == [2.0]
    assert lay_out(store, [placed_facts(cpu=64.0)], theirs).fits == [0.0]


def test_devices_of_others_and_strays_are_left_out_by_node():
    store = nodes((L4 | {"team": "a"}, {GPU: "4"}), (L4 | {"team": "b"}, {GPU: "8"}), (L4 | {"team": "b"}, {GPU: "8"}))
    pods = [pod("ours-0.a", "n1", {GPU: "1"}), pod("ours-1.a", "n1", {GPU: "1"}), pod("theirs-x.a", "n2", {GPU: "3"})]
    seen = lay_out(store, [placed_facts(selector=(("team", name),)) for name in "ab"], pods)
    assert [each.tolist() for each in seen.groups.by_node] == [[4.0], [7.0, 5.0], []]


@pytest.mark.parametrize(
    ("needs", "size"),
    [
        (Needs(GPU, largest=4.0, smallest=4.0, total=8.0), 4.0),
        (Needs(GPU, largest=4.0, smallest=2.0, total=6.0), 2.0),
        (Needs(GPU, largest=3.0, smallest=2.0, total=5.0), math.nan),
        (Needs(GPU), math.nan),
        (Needs(GPU, largest=0.0, smallest=0.0, total=0.0), math.nan),
    ],
)
def test_pods_of_a_replica_have_a_common_size(needs, size):
    layout = lay_out(nodes((L4, {GPU: "8"})), [facts()._replace(needs=needs), NO_FACTS]).layout
    found = count_usage(layout, hold(), np.arange(2)).gpus_per_pod
    assert np.array_equal(found, [size, math.nan], equal_nan=True)


def test_node_named_by_a_template_makes_two_groups():
    store = nodes(*[(L4, {GPU: "4"})] * 9)
    named = placed_facts(terms=((NodeExpression(NAME_FIELD, "In", ("n3",)),),))
    seen = lay_out(store, [placed_facts(), named])
    assert sorted(seen.groups.allocatable.tolist()) == [4.0, 32.0]
    assert (seen.gpus, seen.fits) == ([36.0, 4.0], [36.0, 4.0])


def test_zones_and_capacity_types_are_groups_of_one_pool():
    store = nodes(
        *(
            (L4 | {"topology.kubernetes.io/zone": zone, "karpenter.sh/capacity-type": kind}, {GPU: "4"})
            for zone, kind in (("a", "spot"), ("a", "on-demand"), ("b", "spot"))
        )
    )
    seen = lay_out(store, [placed_facts()])
    found = [(group.zone, group.capacity_type) for group in seen.groups.groups]
    assert found == [("a", "spot"), ("a", "on-demand"), ("b", "spot")]
    assert seen.gpus == [12.0]


PAID = "karpenter.sh/capacity-type"


@pytest.mark.parametrize(
    ("present", "selector", "kind", "spot"),
    [
        (({PAID: "spot"}, {PAID: "on-demand"}), ((PAID, "spot"),), "spot", True),
        (({PAID: "spot"}, {PAID: "on-demand"}), (), "on-demand or spot", True),
        (({PAID: "on-demand"}, {PAID: "reserved"}), (), "on-demand or reserved", False),
        (({PAID: "spot"}, {}), (), "spot or unknown", True),  # one node says nothing
        (({}, {}), (), "", False),
        ((), ((PAID, "spot"),), "spot", True),  # all its nodes were taken away
        ((), (("cloud.google.com/gke-nodepool", "gpu"),), "", False),  # nothing tells how new ones are paid for
        (({PAID: "on-demand"},), ((PAID, "spot"),), "spot", True),
    ],
)
def test_a_pool_is_paid_for_as_its_nodes_or_its_selector(present, selector, kind, spot):
    store = nodes(*((L4 | labels, {GPU: "4"}) for labels in present))
    (pool,) = lay_out_pools(store.nodes, [placed_facts(selector=selector)]).pools
    assert (pool.capacity_type, pool.may_be_spot) == (kind, spot)


def test_mixed_mig_node_has_a_group_for_each_resource():
    labels = {PRODUCT: "H100", "nvidia.com/mig.strategy": "mixed"}
    store = nodes((labels, {GPU: "4", MIG: "2", "nvidia.com/mig-1g.10gb": "7", "example.com/nic": "3"}))
    seen = lay_out(store, [placed_facts(resource=MIG), placed_facts(resource="nvidia.com/mig-1g.10gb")])
    assert [group.resource for group in seen.groups.groups] == [GPU, "nvidia.com/mig-1g.10gb", MIG]
    assert seen.gpus == [2.0, 7.0]


def test_group_that_vanishes_leaves_its_pods_nowhere():
    store = nodes((L4, {GPU: "4"}), ({PRODUCT: "H100"}, {GPU: "8"}))
    layout_before = lay_out(store, [placed_facts()])
    store.remove("", "n1")
    seen = lay_out(store, [placed_facts()], [pod("ours-0.a", "n1", {GPU: "8"})])
    assert layout_before.gpus == [12.0]
    assert (seen.gpus, seen.fits) == ([4.0], [4.0])


def test_nodes_to_come_fit_whole_replicas():
    label = "cloud.google.com/gke-nodepool"
    store = nodes((L4 | {label: "gpu"}, {GPU: "8"}))
    seen = lay_out(store, [placed_facts(3.0)], elastic=Elastic({f"{label}=gpu": 3}))
    assert (seen.gpus, seen.fits, seen.room) == ([24.0], [6.0], [2.0])


words = st.sampled_from(["a", "b"])
labels = st.dictionaries(st.sampled_from(["team", "zone"]), words)
machines = st.tuples(labels, st.integers(0, 8), st.integers(0, 16), st.booleans(), st.booleans())
held_pods = st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))


@given(
    st.lists(machines, min_size=1, max_size=5),
    st.lists(held_pods, max_size=6),
    st.integers(1, 4),
    st.integers(0, 5),
    labels,
    st.booleans(),
)
def test_fitting_replicas_equal_a_plain_count(given_nodes, given_pods, size, cpu, selector, tolerates):
    """Replicas of one pod each, on nodes that differ in labels, devices, cores, taints and cordons."""
    store = NodeStore(ManualClock())
    for index, (has, gpus, cores, tainted, cordoned) in enumerate(given_nodes):
        taints = [{"key": "t", "value": "", "effect": "NoSchedule"}] * tainted
        spec = {"unschedulable": cordoned, "taints": taints}
        store.put(node(f"n{index}", has, spec=spec, allocatable={GPU: str(gpus), "cpu": str(cores)}))
    pods = [
        pod(f"{'ours-0' if ours else 'theirs-x'}.{index}", f"n{place}", {GPU: str(gpus), "cpu": str(cores)})
        for index, (ours, place, gpus, cores) in enumerate(given_pods)
    ]
    tolerations = (PodToleration("t", "Exists"),) * tolerates
    template = placed_facts(
        float(size), cpu=float(cpu), selector=tuple(sorted(selector.items())), tolerations=tolerations
    )
    seen = lay_out(store, [template], pods)

    fits, room, kept, is_known = 0, 0, 0.0, False
    for index, (has, gpus, cores, tainted, cordoned) in enumerate(given_nodes):
        here = [(ours, devices, used) for ours, place, devices, used in given_pods if place == index]
        admits = all(has.get(key) == value for key, value in selector.items()) and (tolerates or not tainted)
        is_known |= admits and gpus >= size
        former = [ours and devices not in (0, size) for ours, devices, _ in here]  # of another template
        kept += size * sum(former) if gpus else 0
        here = [(ours and not other, *rest) for (ours, *rest), other in zip(here, former, strict=True)]
        if admits and gpus >= size and not cordoned:
            free = [gpus - sum(d for ours, d, _ in here if not ours), cores - sum(c for ours, _, c in here if not ours)]
            now = [gpus - sum(d for _, d, _ in here), cores - sum(c for _, _, c in here)]
            fits += max(min(free[0] // size, free[1] // cpu if cpu else 99), 0)
            room += max(min(now[0] // size, now[1] // cpu if cpu else 99), 0)
        elif gpus:
            kept += sum(devices for ours, devices, _ in here if ours)
    assert seen.room == [room]
    assert seen.fits == [fits + kept // size if is_known else math.inf]


@pytest.mark.parametrize(
    ("resource", "each", "pods", "fits", "free"),
    [
        (GPU, 2.0, [{GPU: "1"}] * 4, 4.0, 0.0),  # nothing new fits beside what serves, and what serves stays
        (GPU, 2.0, [{GPU: "1"}] * 2 + [{GPU: "2"}], 3.0, 2.0),  # half way through a rollout
        (GPU, 1.0, [{GPU: "2"}] * 2, 2.0, 0.0),
        (GPU, 16.0, [{GPU: "1"}] * 4, math.inf, 4.0),  # a node for the new ones may still be created
        (MIG, 1.0, [{GPU: "1"}] * 4, 6.0, 2.0),  # from full GPUs to slices
        (GPU, 1.0, [{GPU: "1"}] * 3, 4.0, 4.0),  # the same template
    ],
)
def test_pods_of_an_earlier_template_stay_as_they_are(resource, each, pods, fits, free):
    """free: devices that replicas of the new template may share."""
    store = nodes((L4, {GPU: "4", MIG: "2"}))
    old = [pod(f"ours-0.{number}", "n0", limits) for number, limits in enumerate(pods)]
    layout = lay_out_pools(store.nodes, [placed_facts(each, resource)])
    usage = count_usage(layout, hold(*old), np.array([0]))
    assert usage.fits.tolist() == [fits]
    open_ = ~usage.groups.closed & np.array([group.resource == resource for group in usage.groups.groups])
    assert usage.groups.gpus[open_].sum() == free
    assert usage.former.tolist() == [sum(limits != {resource: f"{each:g}"} for limits in pods)]


def test_replicas_of_several_pods_stay_when_a_template_changes():
    """Two groups of two pods with 4 GPUs each; the new template states 8 for each pod."""
    store = nodes(*[(L4, {GPU: "8"})] * 2)
    pair = facts()._replace(gpus=16.0, needs=Needs(GPU, 8.0, 8.0, 16.0))
    old = [pod(f"ours-0.{number}", f"n{number % 2}", {GPU: "4"}) for number in range(4)]
    usage = count_usage(lay_out_pools(store.nodes, [pair]), hold(*old), np.array([0]))
    assert (usage.fits.tolist(), usage.former.tolist()) == ([2.0], [2.0])


@pytest.mark.parametrize(
    ("preempts", "fits", "gpus"),
    [
        ([100_000.0], [4.0], [4.0]),
        ([-math.inf], [1.0], [1.0]),  # preemptionPolicy: Never
        ([50.0], [2.0], [2.0]),  # as one of the others does, so it takes only the one below
        ([-20.0], [1.0], [1.0]),
        ([100_000.0, 0.0], [4.0, 1.0], [1.0]),  # one pool: what both of them can get is shared
    ],
)
def test_pods_of_a_lower_priority_yield(preempts, fits, gpus):
    theirs = [pod(f"theirs-x.{each}", "n0", {GPU: "1"}, priority=each) for each in (10, 50, 60)]
    layout = lay_out_pools(nodes((L4, {GPU: "4"})).nodes, [placed_facts()] * len(fits))
    usage = count_usage(layout, hold(*theirs), np.arange(len(fits)), np.array(preempts))
    assert usage.fits.tolist() == fits
    assert usage.groups.pool_gpus.tolist() == gpus
