"""Replicas of several GPUs need them on one node: what is promised, which replica leaves, and that it comes to rest.

A slow allocation takes one replica after the other, and packs nodes with decreasing sizes. That is exact where each
size divides the next.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate.victims import find_victims
from autoscaler.core.model.fleet import Pod
from tests.core.supply.test_running import on_nodes, pack, share
from tests.core.world import spec, world

RANKS = {"priority": [900.0, 100.0]}


def cluster(nodes, each, runs, **columns):
    """Return workloads of one node group. nodes: GPUs of each. runs: by workload, the nodes on which replicas run."""
    seen = on_nodes([nodes], each, runs=[[0] * len(own) for own in runs], **columns)
    names = [f"node-{node}" for node in range(len(nodes))]
    pods = [names[node] for own in runs for node in own]
    return replace(
        seen,
        groups=replace(seen.groups, of_node=dict.fromkeys(names, (0,))),
        pods=tuple(Pod("ns", f"p{place}", node=node) for place, node in enumerate(pods)),
    )


def victims(seen, counts, running=0.0):
    """Return the nodes of the replicas that leave, by workload."""
    replicas, counts = seen.replicas, np.array(counts, float)
    shrunk = np.flatnonzero((counts < replicas) & (counts > 0)).tolist()
    inp = world(1000.0, seen, spec(len(replicas)), running=running)
    found = find_victims(inp, np.ones(len(seen.groups.gpus)), shrunk, counts)
    return {row: [int(pod.node[5:]) for pod in found[row][: int(replicas[row] - counts[row])]] for row in shrunk}


def test_no_replica_leaves_for_one_with_gpus_on_several_nodes():
    """A replica of the second leaves both nodes with GPUs of the third, which comes first."""
    seen = cluster([4, 4], [4.0, 1.0, 1.0], [[], [0, 1], [0, 0, 1]])
    assert share(seen, [1, 2, 3], priority=[500.0, 900.0, 900.0]) == [0, 2, 3]


def test_replicas_on_one_node_leave_for_a_higher_priority():
    """Three GPUs are free, and one more would suffice for the pool. Both replicas on the second node have to go."""
    seen = cluster([4, 4], [4.0, 1.0], [[], [0, 0, 0, 1, 1]])
    assert share(seen, [1, 5], **RANKS) == [1, 3]
    assert victims(seen, [1, 3]) == {1: [1, 1]}


def test_replicas_leave_although_enough_gpus_are_free_elsewhere():
    seen = cluster([4, 4], [4.0, 1.0], [[], [0, 0, 1]])
    assert share(seen, [1, 3], **RANKS) == [1, 2]
    assert victims(seen, [1, 2]) == {1: [1]}


def test_replica_that_completes_a_place_leaves_despite_requests():
    """The youngest replicas are on the first node, and so are those with the fewest requests."""
    seen = cluster([4, 4], [4.0, 1.0], [[], [1, 0, 0, 0]])
    assert share(seen, [1, 4], **RANKS) == [1, 1]
    seen = cluster([4, 4], [4.0, 1.0], [[], [0, 0, 0, 1]])
    assert share(seen, [1, 4], **RANKS) == [1, 3]
    assert victims(seen, [1, 3], running=[1, 2, 3, 9]) == {1: [1]}


def test_requests_decide_where_any_node_would_do():
    seen = cluster([2, 2], [2.0, 1.0], [[], [0, 0, 1, 1]])
    assert share(seen, [1, 4], **RANKS) == [1, 2]
    assert victims(seen, [1, 2], running=[1, 1, 9, 9]) == {1: [0, 0]}
    assert victims(seen, [1, 2], running=[9, 9, 1, 1]) == {1: [1, 1]}


def test_replicas_of_the_same_size_leave_no_fragments():
    seen = cluster([8, 8], [4.0, 4.0], [[0, 1], [0]])
    assert share(seen, [3, 1], **RANKS) == [3, 1]
    assert share(seen, [4, 1], **RANKS) == [4, 0]


def test_sizes_that_divide_no_other_are_placed_on_nodes_too():
    """A replica of 3 GPUs fits on no node beside the two of 2 GPUs, though three GPUs are free."""
    seen = cluster([4, 4], [3.0, 2.0, 1.0], [[], [0, 1], [0]])
    assert share(seen, [1, 2, 1], priority=[500.0, 900.0, 900.0]) == [0, 2, 1]
    assert share(seen, [1, 2, 1], priority=[900.0, 500.0, 500.0]) == [1, 1, 1]


def test_replicas_of_several_pods_count_by_group():
    seen = cluster([4, 4], [8.0, 1.0], [[], [0, 1]])
    seen = replace(seen, gpus_per_pod=np.array([4.0, 1.0]))
    assert share(seen, [1, 2], **RANKS) == [1, 0]


def test_a_node_that_offers_fewer_gpus_than_pods_hold_stops_none():
    seen = cluster([1, 4], [2.0, 1.0], [[], [0, 0, 1]])
    assert share(seen, [1, 3], **RANKS) == [1, 3]


@dataclass(frozen=True)
class Case:
    """Workloads of distinct priorities, the highest first, on nodes of one group."""

    nodes: tuple[int, ...]
    each: tuple[float, ...]
    runs: tuple[tuple[int, ...], ...]  # by workload, nodes
    desired: tuple[int, ...]

    def seen(self):
        return cluster(self.nodes, list(self.each), self.runs)

    def ranks(self):
        return {"priority": [float(len(self.each) - row) for row in range(len(self.each))]}

    def share(self):
        return share(self.seen(), self.desired, **self.ranks())

    def count_one_by_one(self):
        """Return the counts of a slow allocation: one replica after the other, as long as nodes hold them all."""
        left, new, counts = list(self.nodes), Counter(), []
        for each, own, want in zip(self.each, self.runs, self.desired, strict=True):
            kept = 0
            for node in own[:want]:
                left[node] -= int(each)
                fits = pack(left, new) and left[node] >= 0
                left[node] += 0 if fits else int(each)
                kept += fits
            more = 0
            while more < want - len(own):
                new[each] += 1
                if not pack(left, new):
                    new[each] -= 1
                    break
                more += 1
            counts.append(float(kept if kept < len(own[:want]) else kept + more))  # one that yields grows later
        return counts


@st.composite
def cases(draw, sizes=(1.0, 2.0, 4.0, 8.0), most=8):
    nodes = draw(st.lists(st.integers(0, most), min_size=1, max_size=4))
    each = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=4))
    runs, left = [[] for _ in each], list(nodes)
    for row in draw(st.lists(st.integers(0, len(each) - 1), max_size=10)):
        if hosts := [node for node, free in enumerate(left) if free >= each[row]]:
            node = draw(st.sampled_from(hosts))
            runs[row].append(node)
            left[node] -= int(each[row])
    desired = draw(st.lists(st.integers(0, 6), min_size=len(each), max_size=len(each)))
    return Case(tuple(nodes), tuple(each), tuple(map(tuple, runs)), tuple(desired))


pytestmark = pytest.mark.slow


@given(cases())
def test_replicas_are_those_of_a_slow_allocation_on_nodes(case):
    assert case.share() == case.count_one_by_one()


@given(cases())
def test_no_replica_is_traded_for_one_that_cannot_be_placed(case):
    """After the named replicas left, all that were promised GPUs find them on nodes as they are."""
    counts, left = case.share(), list(case.nodes)
    leaving = victims(case.seen(), counts)
    new = Counter()
    for row, (each, own) in enumerate(zip(case.each, case.runs, strict=True)):
        staying = Counter(own) - Counter(leaving.get(row, own if counts[row] == 0 else ()))
        for node, count in staying.items():
            left[node] -= int(each) * count
        new[each] += max(counts[row] - len(own), 0)
    assert pack(left, new)


@given(cases(sizes=(4.0,), most=12), st.data())
def test_more_nodes_take_no_replica_away(case, data):
    more = tuple(gpus + data.draw(st.integers(0, 5)) for gpus in case.nodes)
    more += tuple(data.draw(st.lists(st.integers(0, 9), max_size=2)))
    after = replace(case, nodes=more).share()
    assert all(count >= before for count, before in zip(after, case.share(), strict=True))


@given(cases(), st.data())
def test_more_nodes_take_replicas_only_for_earlier_ones(case, data):
    """The order is by priority, so the first workload that changes gains."""
    more = tuple(gpus + data.draw(st.integers(0, 5)) for gpus in case.nodes)
    pairs = zip(replace(case, nodes=more).share(), case.share(), strict=True)
    assert next((after > before for after, before in pairs if after != before), True)


@given(cases(sizes=(1.0, 2.0, 3.0, 4.0, 6.0)), st.randoms(use_true_random=False))
def test_order_of_nodes_does_not_matter(case, random):
    place = list(range(len(case.nodes)))
    random.shuffle(place)
    moved = [0] * len(place)
    for node, to in enumerate(place):
        moved[to] = case.nodes[node]
    runs = tuple(tuple(place[node] for node in own) for own in case.runs)
    assert replace(case, nodes=tuple(moved), runs=runs).share() == case.share()


@given(cases(sizes=(1.0, 2.0, 3.0, 4.0)), st.booleans(), st.data())
def test_counts_on_nodes_come_to_rest(case, named, data):
    """Pods leave one tick later, and start on any node that has room. named: the named ones leave, or the youngest."""
    runs, draining = [list(own) for own in case.runs], list(case.runs)
    seen = []
    draining = []
    for _ in range(14):
        now = replace(case, runs=tuple(map(tuple, runs)))
        counts = now.share()
        leaving = victims(now.seen(), counts)
        left = list(case.nodes)
        for row, node in draining:
            left[node] -= int(case.each[row])
        draining = []
        for row, own in enumerate(runs):
            gone = leaving.get(row, ()) if named else own[len(own) - max(len(own) - int(counts[row]), 0) :]
            for node in list(own if counts[row] == 0 else gone):
                own.reverse()
                own.remove(node)
                own.reverse()
                draining.append((row, node))
        for row, node in [*draining, *((row, node) for row, own in enumerate(runs) for node in own)]:
            left[node] -= int(case.each[row])
        for row in range(len(runs)):
            while len(runs[row]) < counts[row]:
                hosts = [node for node, free in enumerate(left) if free >= case.each[row]]
                if not hosts:
                    break
                node = data.draw(st.sampled_from(hosts))
                runs[row].append(node)
                left[node] -= int(case.each[row])
        seen.append([len(own) for own in runs])
    assert seen[-1] == seen[-2] == seen[-3]
