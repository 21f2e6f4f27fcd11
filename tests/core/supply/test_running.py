"""Replicas that run stay where they are: what others are promised, which replica leaves, and that it comes to rest."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from autoscaler.core.allocate import pools
from autoscaler.core.allocate.victims import find_victims
from autoscaler.core.model.fleet import Pod
from autoscaler.core.observe.pending import has_gpus
from autoscaler.core.supply.running import list_running
from tests.core.world import claims, demands, fleet, node_groups, spec, world

X, Y = 0, 1


def cluster(gpus, admitted, pool, runs, **columns):
    """Return workloads whose replicas run on these node groups. admitted: groups of each pool. runs: by workload."""
    names = [f"node-{group}" for group in range(len(gpus))]
    seen = fleet(
        [len(groups) for groups in runs],
        pool=np.array(pool),
        pools=fleet([1]).pools * len(admitted),
        groups=replace(node_groups(gpus, *admitted), of_node={name: (group,) for group, name in enumerate(names)}),
        **columns,
    )
    nodes = [names[group] for groups in runs for group in groups]
    return replace(seen, pods=tuple(Pod("ns", f"p{place}", node=node) for place, node in enumerate(nodes)))


def share(seen, desired, base=None, **ranks):
    rows = len(desired)
    scheduled = np.bincount(seen.pod_workload[has_gpus(seen)], minlength=rows)
    rules = spec(rows, **{"min_replicas": 0.0, **ranks})
    return pools.share(seen, rules, claims(rows), demands(desired, base=base, scheduled=scheduled)).tolist()


RANKS = {"priority": [900.0, 500.0, 100.0]}


def test_no_replica_is_promised_gpus_that_only_a_move_would_free():
    """The first runs on the only group of the second, and could run on that of the third, which serves there."""
    seen = cluster([1, 1], [[X, Y], [X], [Y]], [0, 1, 2], [[X], [], [Y]])
    assert share(seen, [1, 1, 1], **RANKS) == [1, 0, 1]


def test_running_replica_has_no_place_on_free_gpus_elsewhere():
    seen = cluster([1, 1], [[X, Y], [X]], [0, 1], [[X], []])
    assert share(seen, [1, 1], priority=[900.0, 500.0]) == [1, 0]


def test_a_higher_priority_takes_gpus_where_it_fits():
    """The last has a replica on each group. It keeps the one on the group that the first cannot use."""
    for groups in ([X, Y], [Y, X]):
        seen = cluster([1, 1], [[X], [X, Y]], [0, 1], [[], groups])
        assert share(seen, [1, 2], priority=[900.0, 500.0]) == [1, 1]


def test_a_workload_shrinks_before_it_grows_elsewhere():
    """The first takes the GPU of one of two replicas. Both groups of the second have room for a third."""
    seen = cluster([1, 3], [[X], [X, Y]], [0, 1], [[], [X, Y]])
    assert share(seen, [1, 4], priority=[900.0, 500.0]) == [1, 1]
    assert share(cluster([1, 3], [[X], [X, Y]], [0, 1], [[], [Y]]), [1, 4], priority=[900.0, 500.0]) == [1, 3]


def test_the_youngest_replica_is_the_second_one():
    """The first replica of a workload comes before the second of another, and a replica leaves where it is."""
    assert share(cluster([1, 1], [[X], [X, Y]], [0, 1], [[], [Y, X]]), [1, 2]) == [1, 1]
    assert share(cluster([1, 1], [[X], [X, Y]], [0, 1], [[], [X, Y]]), [1, 2]) == [0, 2]


def test_replicas_may_be_anywhere_when_more_run_than_gpus_exist():
    """The nodes offer fewer GPUs than before, and no replica is stopped for that while another group has room."""
    seen = cluster([1, 3], [[X, Y], [X]], [0, 1], [[X, X], []])
    assert share(seen, [2, 1], priority=[500.0, 900.0]) == [2, 1]


def test_replicas_that_are_not_ready_leave_first():
    seen = cluster([2, 2], [[X, Y]], [0], [[X, Y, X]])
    seen.pod_ready[:] = [False, True, True]
    assert list_running(seen, has_gpus(seen)).group.tolist() == [Y, X, X]


class World:
    """A cluster that does what is decided: pods leave one tick later, and start where there is room.

    Like Kubernetes between nodes of equal score, it takes any group at random. If it always took the same one, a pod
    could get the only group of another in every tick.

    named: the named victims leave. Otherwise the youngest do, as where pods may not be patched.
    """

    def __init__(self, gpus, admitted, pool, runs, named=True):
        self.gpus, self.admitted, self.pool, self.named = gpus, admitted, pool, named
        self.runs = [list(groups) for groups in runs]
        self.leaving = [0] * len(gpus)
        self.given, self.kept = [], self.runs
        self.random = random.Random(0)

    def free(self, group):
        return self.gpus[group] - self.leaving[group] - sum(groups.count(group) for groups in self.runs)

    def step(self, desired, **ranks):
        """Decide once, and let pods leave and start. Return the replicas that run."""
        seen = cluster(self.gpus, self.admitted, self.pool, self.runs)
        counts = share(seen, desired, **ranks)
        replicas = np.array([len(groups) for groups in self.runs])
        shrunk = [row for row, count in enumerate(counts) if count < replicas[row]]
        inp = world(1000.0, replace(seen, replicas=replicas.astype(float)), spec(len(desired)))
        victims = find_victims(inp, np.ones(len(self.gpus)), shrunk, np.array(counts))
        self.leaving = [0] * len(self.gpus)
        node = {pod.name: int(pod.node.rpartition("-")[2]) for pod in seen.pods}
        for row in shrunk:
            count = int(replicas[row] - counts[row])
            groups = [node[pod.name] for pod in victims[row][:count]] if self.named else self.runs[row][-count:]
            for group in groups:
                self.runs[row].reverse()
                self.runs[row].remove(group)
                self.runs[row].reverse()
                self.leaving[group] += 1
        self.given, self.kept = counts, [list(groups) for groups in self.runs]
        for row, count in enumerate(counts):
            for _ in range(int(count) - len(self.runs[row])):
                with_room = [group for group in self.admitted[self.pool[row]] if self.free(group) > 0]
                self.runs[row] += self.random.sample(with_room, min(1, len(with_room)))
        return [len(groups) for groups in self.runs]


def test_move_takes_one_replica_for_two_ticks_and_rests():
    """The first takes the GPU of one replica of the second, which comes back on the other group."""
    loop = World([1, 3], [[X], [X, Y]], [0, 1], [[], [X, Y]])
    seen = [loop.step([1, 3], priority=[900.0, 500.0]) for _ in range(6)]
    assert seen == [[0, 1], [1, 3], [1, 3], [1, 3], [1, 3], [1, 3]]
    assert loop.runs == [[X], [Y, Y, Y]]


@st.composite
def worlds(draw):
    """Workloads with replicas of one GPU, as many on each group as it has."""
    groups = draw(st.integers(1, 3))
    gpus = draw(st.lists(st.integers(0, 4), min_size=groups, max_size=groups))
    some = st.lists(st.integers(0, groups - 1), min_size=1, unique=True).map(sorted)
    admitted = draw(st.lists(some, min_size=1, max_size=3))
    rows = draw(st.integers(1, 4))
    pool = draw(st.lists(st.integers(0, len(admitted) - 1), min_size=rows, max_size=rows))
    runs, free = [[] for _ in range(rows)], list(gpus)
    for row in draw(st.lists(st.integers(0, rows - 1), max_size=8)):
        group = draw(st.sampled_from(admitted[pool[row]]))
        if free[group] > 0:
            runs[row].append(group)
            free[group] -= 1
    return World(gpus, admitted, pool, runs)


def column(data, rows, values):
    return data.draw(st.lists(values, min_size=rows, max_size=rows))


@pytest.mark.slow
@given(worlds(), st.data())
def test_counts_come_to_rest_when_nothing_changes(loop, data):
    rows, loop.named = len(loop.runs), data.draw(st.booleans())
    desired = column(data, rows, st.integers(0, 5))
    ranks = {"priority": column(data, rows, st.sampled_from([0.0, 9.0]))}
    floors = column(data, rows, st.integers(0, 2))
    ranks["min_replicas"] = [float(min(floor, want)) for floor, want in zip(floors, desired, strict=True)]
    seen = [loop.step(desired, **ranks) for _ in range(24)]
    assert seen[-1] == seen[-2] == seen[-3]
    assert all(count <= want for count, want in zip(seen[-1], desired, strict=True))


@pytest.mark.slow
@given(worlds(), st.data())
def test_replicas_that_are_promised_gpus_find_them_free(loop, data):
    """After those have left that should, no pod has to move for them."""
    rows = len(loop.runs)
    desired = column(data, rows, st.integers(0, 5))
    loop.step(desired, priority=column(data, rows, st.sampled_from([0.0, 9.0])))
    new = np.array(loop.given) - [len(groups) for groups in loop.kept]
    left = np.array(loop.gpus) - [sum(groups.count(group) for groups in loop.kept) for group in range(len(loop.gpus))]
    assert (left >= 0).all()
    assert have_place(loop, np.fmax(new, 0), left)


def have_place(loop, new, left):
    """Return whether new replicas have a place on what is left of the groups, by SciPy's maximum flow."""
    rows, groups = len(new), len(left)
    edges = np.zeros((2 + rows + groups,) * 2, dtype=np.int32)
    edges[0, 2 : 2 + rows] = new
    for row in range(rows):
        for group in loop.admitted[loop.pool[row]]:
            edges[2 + row, 2 + rows + group] = new[row]
    edges[2 + rows :, 1] = left
    return maximum_flow(csr_array(edges), 0, 1).flow_value == new.sum()


def on_nodes(nodes, each, pool=None, admitted=((X,),), runs=None, **columns):
    """Return workloads on groups with nodes of this many GPUs."""
    rows, gpus = len(each), [float(sum(group)) for group in nodes]
    seen = cluster(gpus, admitted, pool or [0] * rows, runs or [[]] * rows, gpus_per_replica=np.array(each), **columns)
    by_node = tuple(np.array(group, dtype=float) for group in nodes)
    return replace(seen, groups=replace(seen.groups, by_node=by_node), gpus_per_pod=np.array(each))


def test_no_replica_is_promised_to_two_when_no_node_holds_it():
    """Three nodes of 7 GPUs hold three replicas of 4, and nine of 1 beside them."""
    assert share(on_nodes([[7, 7, 7]], [4.0, 4.0]), [2, 2], priority=[9.0, 0.0]) == [2, 1]
    assert share(on_nodes([[7, 7, 7]], [4.0, 4.0, 1.0]), [2, 2, 12], priority=[9.0, 5.0, 0.0]) == [2, 1, 9]
    assert share(on_nodes([[7, 7, 7]], [4.0, 2.0, 1.0]), [3, 4, 12], priority=[9.0, 5.0, 0.0]) == [3, 3, 3]


def test_replicas_of_one_gpu_use_every_gpu():
    assert share(on_nodes([[7, 7, 7]], [1.0, 1.0]), [20, 20], priority=[9.0, 0.0]) == [20, 1]


def test_sizes_that_divide_no_other_have_a_place_anywhere():
    assert share(on_nodes([[7, 7]], [2.0, 3.0]), [2, 9], priority=[9.0, 0.0]) == [2, 3]


def test_groups_that_may_grow_hold_whole_replicas_there():
    seen = on_nodes([[7, 7]], [4.0, 4.0])
    seen = replace(seen, groups=replace(seen.groups, can_add=np.array([8.0])))
    assert share(seen, [3, 3], priority=[9.0, 0.0]) == [3, 1]


def test_pods_of_one_replica_may_be_on_several_nodes():
    """A replica has two pods of 4 GPUs."""
    seen = replace(on_nodes([[7, 7, 7, 7]], [8.0, 8.0]), gpus_per_pod=np.full(2, 4.0))
    assert share(seen, [1, 2], priority=[9.0, 0.0]) == [1, 1]


def pack(nodes, counts):
    """Return whether nodes hold this many replicas of each size, the largest first: exact if each divides the next."""
    left = list(nodes)
    for size, count in sorted(counts.items(), reverse=True):
        for _ in range(int(count)):
            place = next((place for place, free in enumerate(left) if free >= size), None)
            if place is None:
                return False
            left[place] -= size
    return True


@pytest.mark.slow
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.data())
def test_replicas_get_gpus_one_by_one_as_long_as_nodes_hold_them(nodes, data):
    """Against the packing of nodes with decreasing sizes."""
    sizes = data.draw(st.lists(st.sampled_from([1.0, 2.0, 4.0, 8.0]), min_size=1, max_size=4))
    desired = column(data, len(sizes), st.integers(0, 4))
    ranks = {"priority": [float(len(sizes) - row) for row in range(len(sizes))]}
    given = [0.0] * len(sizes)
    for row in range(len(sizes)):
        for _ in range(desired[row]):
            given[row] += 1
            counts = Counter()
            for other, count in zip(sizes, given, strict=True):
                counts[other] += count
            given[row] -= not pack(nodes, counts)
    assert share(on_nodes([nodes], sizes), desired, **ranks) == given
