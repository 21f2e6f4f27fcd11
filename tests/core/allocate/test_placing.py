"""Replicas that several limits restrict at once, against taking them one by one with another maximum flow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from autoscaler.core.allocate.placing import AT_ONCE, Limit, take
from autoscaler.core.model.placement import Placement

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
            Limit(np.array(row), np.array(gpus, float), Placement([float(each) for each in buckets], admitted))
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


def test_a_replica_that_one_limit_leaves_out_uses_nothing_of_another():
    """The first has no place in the first limit, so the second gets the GPU of the second limit."""
    assert take_all([1, 1], [([0], [[0]], [0, -1]), ([1], [[0]], [0, 0])]).tolist() == [False, True]
