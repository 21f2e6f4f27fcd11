"""What is promised has nodes: replicas of one and of several pods, of any sizes, on pools that partly overlap.

An exact search over all packings of the nodes says what has a place. It tries every node for every pod.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate import pools
from autoscaler.core.allocate.victims import find_victims
from autoscaler.core.model.fleet import PendingCause, Pod, PodPart
from autoscaler.core.supply.nodes import list_places
from autoscaler.core.supply.running import Running, sum_gpus
from tests.core.supply.test_running import share
from tests.core.world import claims, demands, fleet, node_groups, spec, world


@dataclass(frozen=True)
class Replicas:
    """A workload: the GPUs of each pod of its replicas, the node groups that admit it, and where pods are."""

    pods: tuple[float, ...]
    groups: tuple[int, ...]
    runs: tuple[tuple[int | None, ...], ...] = ()  # by replica, the node of each pod; None: it is on none yet


def cluster(nodes, workloads):
    """Return a fleet on these nodes. nodes: by node group, the GPUs of each."""
    names = [f"{group}-{place}" for group, own in enumerate(nodes) for place in range(len(own))]
    pools = list(dict.fromkeys(each.groups for each in workloads))
    groups = replace(
        node_groups([float(sum(own)) for own in nodes], *map(list, pools)),
        of_node={name: (int(name.partition("-")[0]),) for name in names},
        by_node=tuple(np.array(own, float) for own in nodes),
    )
    total = [sum(each.pods) for each in workloads]
    runs = [(row, run) for row, each in enumerate(workloads) for run in each.runs]
    seen = fleet(
        [len(each.runs) for each in workloads],
        pool=np.array([pools.index(each.groups) for each in workloads]),
        pools=fleet([1]).pools * len(pools),
        groups=groups,
        gpus_per_replica=np.array(total),
        gpus_per_pod=np.array([min(each.pods) if divides(each.pods) else np.nan for each in workloads]),
        pods_of_replica={row: each.pods for row, each in enumerate(workloads) if len(set(each.pods)) > 1},
        parts=tuple(
            PodPart(pod, names[node], gpus)
            for pod, (row, run) in enumerate(runs)
            for node, gpus in zip(run, workloads[row].pods, strict=True)
            if node is not None and len(run) > 1
        ),
    )
    waits = np.array([None in run for _, run in runs], dtype=bool)
    return replace(
        seen,
        pods=tuple(
            Pod("ns", f"p{pod}", node="" if run[0] is None else names[run[0]]) for pod, (_, run) in enumerate(runs)
        ),
        pod_ready=~waits,
        pod_pending=np.where(waits, PendingCause.UNSCHEDULABLE, PendingCause.NONE),
    )


def divides(pods):
    return all(each % min(pods) == 0 for each in pods)


def victims(seen, counts):
    """Return the places of the replicas that leave, by workload."""
    replicas, counts = seen.replicas, np.array(counts, float)
    shrunk = np.flatnonzero((counts < replicas) & (counts > 0)).tolist()
    inp = world(1000.0, seen, spec(len(replicas)))
    found = find_victims(inp, np.ones(len(seen.groups.gpus)), shrunk, counts)
    leaving = {}
    for row in range(len(replicas)):
        own = np.flatnonzero(seen.pod_workload == row)
        waiting = own[~seen.pod_ready[own]][::-1]
        order = [*waiting.tolist(), *(int(pod.name[1:]) for pod in found.get(row, ()))]
        order += [pod for pod in own.tolist() if pod not in order]
        leaving[row] = [int(pod - own[0]) for pod in order[: max(int(replicas[row] - counts[row]), 0)]]
    return leaving


def has_packing(nodes, pods):
    """Return whether nodes hold pods, by trying all. nodes: (group, GPUs) each. pods: (GPUs, groups) each."""
    pods = sorted(pods, key=lambda pod: (-pod[0], pod[1]))

    @cache
    def search(place, left):
        if place == len(pods):
            return True
        gpus, groups = pods[place]
        for node in dict.fromkeys((group, free) for group, free in left if group in groups and free >= gpus):
            after = list(left)
            after[after.index(node)] = node[0], node[1] - gpus
            if search(place + 1, tuple(sorted(after))):
                return True
        return False

    return search(0, tuple(sorted(nodes)))


def find_packing(nodes, workloads, counts, leaving):
    """Return whether all replicas that are promised GPUs have nodes, beside those that stay where they are."""
    left = [[group, free] for group, own in enumerate(nodes) for free in own]
    pods = []
    for row, (each, count) in enumerate(zip(workloads, counts, strict=True)):
        staying = [run for place, run in enumerate(each.runs) if place not in leaving[row]]
        for run in [*staying, *([(None,) * len(each.pods)] * int(max(count - len(each.runs), 0)))]:
            for node, gpus in zip(run, each.pods, strict=True):
                if node is None:
                    pods.append((gpus, each.groups))
                else:
                    left[node][1] -= gpus
    assert all(free >= 0 for _, free in left)
    return has_packing(list(map(tuple, left)), pods)


KINDS = ((1.0,), (2.0,), (4.0,), (3.0,), (2.0, 2.0), (4.0, 4.0), (1.0, 2.0), (4.0, 2.0, 2.0), (3.0, 3.0), (3.0, 2.0))


@st.composite
def worlds(draw, kinds=KINDS, most_groups=3, waiting=True):
    """waiting: one replica of each workload may wait for some of its nodes. The owner of pods chooses among several."""
    nodes = draw(st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=3), min_size=1, max_size=most_groups))
    some = st.lists(st.integers(0, len(nodes) - 1), min_size=1, unique=True).map(lambda own: tuple(sorted(own)))
    found = [Replicas(draw(st.sampled_from(kinds)), draw(some)) for _ in range(draw(st.integers(1, 4)))]
    left = [[group, free] for group, own in enumerate(nodes) for free in own]
    for row in draw(st.lists(st.integers(0, len(found) - 1), max_size=6)):
        each, run = found[row], []
        for gpus in each.pods:
            hosts = [node for node, (group, free) in enumerate(left) if group in each.groups and free >= gpus]
            may_wait = waiting and run and not any(None in other for other in each.runs)
            if hosts and not (may_wait and draw(st.integers(0, 5)) == 0):
                run.append(draw(st.sampled_from(hosts)))
                left[run[-1]][1] -= gpus
            elif may_wait:
                run.append(None)
            else:
                break
        if len(run) == len(each.pods):
            found[row] = replace(each, runs=(*each.runs, tuple(run)))
    desired = draw(st.lists(st.integers(0, 4), min_size=len(found), max_size=len(found)))
    return nodes, found, desired, {"priority": [float(len(found) - row) for row in range(len(found))]}


def test_a_leader_and_its_workers_get_whole_nodes():
    """A replica of the first has two pods of 4 GPUs. Each node has 3 free, so one replica leaves each."""
    group = Replicas((4.0, 4.0), (0,))
    small = Replicas((1.0,), (0,), ((0,), (1,)))
    seen = cluster([[4, 4]], [group, small])
    assert share(seen, [1, 2], priority=[9.0, 0.0]) == [1, 0]
    seen = cluster([[4, 4, 4]], [group, small])
    counts = share(seen, [1, 2], priority=[9.0, 0.0])
    assert counts == [1, 1]
    assert victims(seen, counts)[1] in ([0], [1])


def test_running_groups_hold_the_nodes_of_their_workers():
    """The group has 4 GPUs of two nodes. A replica of 4 GPUs has none, though 4 GPUs are free."""
    seen = cluster([[6, 6]], [Replicas((4.0, 4.0), (0,), ((0, 1),)), Replicas((4.0,), (0,))])
    assert share(seen, [1, 1], priority=[9.0, 0.0]) == [1, 0]
    assert share(seen, [1, 1], priority=[0.0, 9.0]) == [0, 1]


def test_no_replica_leaves_for_a_group_without_nodes_for_workers():
    """One replica on the second node would have to leave, and a worker of 4 GPUs would still lack a node."""
    seen = cluster([[4, 3]], [Replicas((4.0, 4.0), (0,)), Replicas((1.0,), (0,), ((0,), (1,), (1,)))])
    assert share(seen, [1, 3], priority=[9.0, 0.0]) == [0, 3]


def test_partly_placed_group_keeps_its_node_and_gets_the_rest():
    """Its leader is on the first node. A replica on the second leaves for the worker, and none gets the first."""
    started = Replicas((4.0, 4.0), (0,), ((0, None),))
    seen = cluster([[4, 4]], [started, Replicas((1.0,), (0,), ((1,),))])
    assert share(seen, [1, 4], priority=[9.0, 0.0]) == [1, 0]


def test_group_without_a_claim_holds_what_its_pods_have():
    group, small = Replicas((4.0, 4.0), (0,), ((0, None),)), Replicas((1.0,), (0,), ((1,),))
    seen = cluster([[4, 4]], [group, small, Replicas((4.0,), (0,))])
    limits = claims(3, replicas=[0.0, np.inf, np.inf])
    ranks = spec(3, min_replicas=0.0, priority=[9.0, 9.0, 0.0])
    found = pools.share(seen, ranks, limits, demands([1, 1, 1], scheduled=[0, 1, 0]))
    assert found.tolist() == [1, 1, 0]


def test_pods_of_different_sizes_each_need_a_node():
    seen = cluster([[4, 4]], [Replicas((2.0, 6.0), (0,)), Replicas((1.0,), (0,), ((0,),))])
    assert share(seen, [1, 1], priority=[9.0, 0.0]) == [0, 1]
    seen = cluster([[4, 6]], [Replicas((2.0, 6.0), (0,)), Replicas((1.0,), (0,), ((1,),))])
    assert share(seen, [1, 1], priority=[9.0, 0.0]) == [1, 0]


def test_no_gpu_is_given_twice_when_sizes_do_not_divide():
    """Six GPUs on two nodes hold a replica of 3 and one of 2 GPUs, and no second one of 2."""
    seen = cluster([[3, 3]], [Replicas((3.0,), (0,)), Replicas((2.0,), (0,)), Replicas((1.0,), (0,), ((0,), (1,)))])
    assert share(seen, [1, 2, 2], priority=[9.0, 5.0, 0.0]) == [1, 1, 1]


def test_enough_gpus_are_not_promised_where_no_node_has_them():
    """Three GPUs are left for the first, on two nodes. Only the pool of the second has too few."""
    seen = cluster([[3], [2]], [Replicas((3.0,), (0, 1)), Replicas((2.0,), (0,))])
    assert share(seen, [1, 2], priority=[0.0, 9.0]) == [0, 1]
    assert share(seen, [1, 2], priority=[9.0, 0.0]) == [1, 0]


def test_new_replica_is_not_split_between_shared_groups():
    """Each of the first two leaves 2 GPUs of its own group, where the third needs 4 of either."""
    own = [Replicas((2.0,), (0,)), Replicas((2.0,), (1,))]
    seen = cluster([[4], [4]], [*own, Replicas((4.0,), (0, 1)), Replicas((1.0,), (0,), ((0,), (0,)))])
    assert share(seen, [1, 1, 1, 2], priority=[9.0, 8.0, 7.0, 0.0]) == [1, 1, 0, 2]


pytestmark = pytest.mark.slow


@given(worlds())
def test_promises_have_nodes_after_the_named_replicas_left(case):
    nodes, workloads, desired, ranks = case
    seen = cluster(nodes, workloads)
    counts = share(seen, desired, **ranks)
    assert find_packing(nodes, workloads, counts, victims(seen, counts))


@given(worlds(waiting=False))
def test_a_replica_leaves_only_for_one_before_it(case):
    """All that run and are desired stay if no workload is to grow."""
    nodes, workloads, desired, ranks = case
    desired = [min(want, len(each.runs)) for want, each in zip(desired, workloads, strict=True)]
    assert share(cluster(nodes, workloads), desired, **ranks) == desired


def place(seen, desired):
    """Return whether a node is found for each pod of new replicas, and whether a flow finds GPUs for them."""
    places = list_places(seen)
    rows = len(desired)
    gpus, pods = sum_gpus(seen, Running.none(rows), np.array(desired, float), np.ones(rows, dtype=bool), places)
    has_gpus = not places.placement.place(gpus).any()
    return has_gpus, has_gpus and not places.pack(places.placement, pods).any()


@given(worlds())
def test_pods_are_packed_only_where_a_packing_exists(case):
    nodes, workloads, desired, _ = case
    workloads = [replace(each, runs=()) for each in workloads]
    has_gpus, packed = place(cluster(nodes, workloads), desired)
    exists = find_packing(nodes, workloads, desired, [()] * len(workloads))
    assert packed <= exists <= has_gpus
