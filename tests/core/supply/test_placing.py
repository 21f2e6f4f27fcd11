"""Replicas that several limits restrict at once, against taking them one by one with another maximum flow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from autoscaler.core.supply.nodes import NodePlacement, Nodes
from autoscaler.core.supply.placement import Placement
from autoscaler.core.supply.placing import AT_ONCE, Limit, take

pytestmark = pytest.mark.slow


@st.composite
def limited(draw, sizes=(1, 2, 4), most=20):
    """Return the GPUs of each replica; and by limit the buckets, those of each row, and the row of each replica."""
    gpus = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=most))
    limits = []
    for _ in range(draw(st.integers(1, 3))):
        buckets = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
        admitted = draw(st.lists(st.lists(st.integers(0, len(buckets) - 1), unique=True), min_size=1, max_size=4))
        row = draw(st.lists(st.integers(-1, len(admitted) - 1), min_size=len(gpus), max_size=len(gpus)))
        limits.append((buckets, admitted, row))
    return gpus, limits


def has_place(limit, gpus, taken):
    """Return whether the taken replicas have a place within one limit, by SciPy's maximum flow."""
    buckets, admitted, row = limit
    needed = np.zeros(len(admitted), dtype=np.int32)
    for place, each, is_taken in zip(row, gpus, taken, strict=True):
        if is_taken and place >= 0:
            needed[place] += each
    size = 2 + len(admitted) + len(buckets)
    edges = np.zeros((size, size), dtype=np.int32)
    edges[0, 2 : 2 + len(admitted)] = needed
    for place, allowed in enumerate(admitted):
        edges[2 + place, [2 + len(admitted) + bucket for bucket in allowed]] = needed[place]
    edges[2 + len(admitted) :, 1] = buckets
    return maximum_flow(csr_array(edges), 0, 1).flow_value == needed.sum()


def take_one_by_one(gpus, limits):
    taken = np.zeros(len(gpus), dtype=bool)
    for replica in range(len(gpus)):
        taken[replica] = True
        taken[replica] = all(has_place(limit, gpus, taken) for limit in limits)
    return taken


def take_all(gpus, limits, at_once=AT_ONCE):
    return take(
        [
            Limit(np.array(row), np.array(gpus, float), Placement(np.array([buckets], float), admitted))
            for buckets, admitted, row in limits
        ],
        at_once,
    )


@pytest.mark.parametrize("at_once", [1, 3, AT_ONCE])
@given(case=limited())
def test_replicas_are_those_that_are_taken_one_by_one(at_once, case):
    assert take_all(*case, at_once).tolist() == take_one_by_one(*case).tolist()


@given(limited(), st.data())
def test_more_room_loses_a_replica_only_to_one_before_it(case, data):
    gpus, limits = case
    more = [
        ([each + data.draw(st.integers(0, 3)) for each in buckets], admitted, row) for buckets, admitted, row in limits
    ]
    changed = np.flatnonzero(take_all(gpus, limits) != take_all(gpus, more))
    assert not len(changed) or take_all(gpus, more)[changed[0]]


def test_a_replica_that_no_limit_concerns_is_taken():
    assert take_all([4, 1], [([1], [[0]], [-1, 0]), ([0], [[0]], [-1, -1])]).tolist() == [True, True]


def test_replica_uses_no_limit_when_another_leaves_it_out():
    """The first has no place in the first limit, so the second gets the GPU of the second limit."""
    assert take_all([1, 1], [([0], [[0]], [0, -1]), ([1], [[0]], [0, 0])]).tolist() == [False, True]


@st.composite
def on_nodes(draw):
    """Return limits on the same replicas: the nodes of some groups, and maybe quotas."""
    group = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    gpus = draw(st.lists(st.integers(0, 9), min_size=len(group), max_size=len(group)))
    apart = draw(st.lists(st.integers(0, 4), min_size=3, max_size=3))
    nodes = Nodes(np.array(group), np.array(gpus, float), np.array(apart, float), np.array([0.0, 2.0, 4.0]))
    own = st.lists(st.integers(0, 2), unique=True, max_size=3)
    levels = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    placement = NodePlacement(nodes, [draw(own) for _ in levels], levels)
    left, row, sizes = list(gpus), [], []
    for _ in range(draw(st.integers(1, 20))):
        which, size = draw(st.integers(-1, len(levels) + len(group) - 1)), draw(st.sampled_from([1, 2, 4]))
        if 0 <= which < len(levels):
            size = max(size, [1, 2, 4][levels[which]])
        elif which >= len(levels):  # what runs on a node is there
            if left[which - len(levels)] < size:
                continue
            left[which - len(levels)] -= size
        row.append(which)
        sizes.append(float(size))
    limits = [Limit(np.array(row, dtype=np.int64), np.array(sizes), placement)]
    for _ in range(draw(st.integers(0, 2)) if row else 0):
        buckets = draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
        admitted = draw(st.lists(st.lists(st.integers(0, len(buckets) - 1), unique=True), min_size=1, max_size=3))
        tenant = draw(st.lists(st.integers(-1, len(admitted) - 1), min_size=len(row), max_size=len(row)))
        limits.append(Limit(np.array(tenant), np.array(sizes), Placement(np.array([buckets], float), admitted)))
    return limits


@pytest.mark.parametrize("at_once", [1, 3, AT_ONCE])
@given(limits=on_nodes())
def test_replicas_on_nodes_are_those_that_are_taken_one_by_one(at_once, limits):
    count = len(limits[0].row)
    taken = np.zeros(count, dtype=bool)
    for replica in range(count):
        taken[replica] = True
        taken[replica] = not any(limit.copy_with(np.flatnonzero(taken))[1].any() for limit in limits)
    assert take(limits, at_once).tolist() == taken.tolist()


def test_replica_stays_when_one_on_its_node_leaves_for_a_quota():
    """Of two replicas on a node of 5 GPUs one has to go for a new one of 4. The quota of the first has no GPUs."""
    nodes = Nodes(np.array([0]), np.array([5.0]), np.array([0.0]), np.array([0.0, 4.0]))
    on_node = Limit(np.array([0, 0, 1, 1]), np.array([4.0, 4.0, 1.0, 1.0]), NodePlacement(nodes, [[0]], [1]))
    quota = Limit(np.array([-1, -1, 0, -1]), on_node.gpus, Placement(np.array([[0.0]]), [[0]]))
    assert take([on_node]).tolist() == [True, False, True, False]
    assert take([quota, on_node]).tolist() == [True, False, False, True]
