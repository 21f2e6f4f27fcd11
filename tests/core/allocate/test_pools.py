"""Sharing a pool: floors, priority, weight, whole replicas, and never more GPUs than it has."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate import pools
from tests.core.world import claims, demands, fleet, node_groups, spec


def shared(
    desired,
    gpus,
    base=None,
    trusted=None,
    current=None,
    gpus_each=1.0,
    ours=None,
    idle=None,
    scheduled=None,
    arrivals=None,
    claimed=None,
    scarce=None,
    fits=None,
    halted=None,
    kept=None,
    **columns,
):
    rows = len(desired)
    cluster = fleet(
        [0] * rows,
        replicas=current or [0] * rows,
        gpus_per_replica=np.broadcast_to(np.asarray(gpus_each, float), rows).copy(),
        pool_gpus=np.array([float(gpus)]),
    )
    asked = demands(
        desired,
        base=base,
        kept=kept,
        scheduled=current if scheduled is None else scheduled,
        trusted=trusted,
        ours=ours,
        idle=idle,
        arrivals_per_s=[np.nan] * rows if arrivals is None else arrivals,
    )
    rules = spec(rows, **{"min_replicas": 0.0, **columns})
    limits = claims(rows, replicas=claimed, replicas_when_short=scarce, fits=fits, must_not_grow=halted)
    return pools.share(cluster, rules, limits, asked).tolist()


def test_replicas_that_stay_take_gpus_from_others():
    """The first desires one replica and its six stay all the same, so two of eight GPUs are free."""
    assert shared([1, 4], gpus=8, current=[6, 1], kept=[6, 0]) == [1, 2]
    assert shared([7, 4], gpus=8, current=[6, 1], kept=[6, 0]) == [6, 2]  # the second has fewer
    assert shared([1, 4], gpus=8, current=[6, 1], kept=[6, 0], scheduled=[2, 1]) == [1, 4]  # four of six have no GPU


def test_a_pool_allocates_everything_when_it_suffices():
    assert shared([3, 5], gpus=8) == [3, 5]


def test_a_pool_allocates_everything_when_its_size_is_unknown():
    assert shared([300, 500], gpus=np.nan) == [300, 500]


def test_higher_priority_is_served_first():
    assert shared([6, 6], gpus=8, priority=[10.0, 1000.0]) == [2, 6]


def test_floors_come_before_priority():
    assert shared([6, 6], gpus=8, priority=[10.0, 1000.0], min_replicas=[3.0, 1.0]) == [3, 5]


def test_equals_share_by_weight_up_to_what_they_desire():
    assert shared([10, 10], gpus=9, weight=[1.0, 2.0]) == [3, 6]
    assert shared([10, 2], gpus=9, weight=[1.0, 2.0]) == [7, 2]


def test_replicas_without_pods_take_no_gpu_when_a_pool_is_short():
    """The first desires seven, of which a quota allows two. The second gets the GPUs that the first may not use."""
    ranks = {"priority": [900.0, 100.0]}
    assert shared([7, 6], gpus=8, claimed=[2, np.inf], **ranks) == [7, 6]
    assert shared([7, 9], gpus=8, claimed=[2, np.inf], **ranks) == [7, 6]
    assert shared([30, 9], gpus=8, claimed=[2, np.inf], **ranks) == [8, 6]  # no more than the whole pool could hold


def test_the_count_stays_when_pods_are_missing_in_a_sized_pool():
    """One of three replicas has no pod. A fourth would make more than the pool can hold."""
    stalled = {"claimed": [2, np.inf], "halted": [True, False], "current": [3, 1]}
    assert shared([4, 1], gpus=4, **stalled) == [3, 1]
    assert shared([4, 1], gpus=np.nan, **stalled) == [4, 1]
    assert shared([2, 1], gpus=4, **stalled) == [2, 1]


def test_crashing_replicas_yield_gpus_when_a_pool_is_short():
    ranks = {"priority": [900.0, 100.0]}
    assert shared([4, 4], gpus=8, scarce=[1, np.inf], **ranks) == [4, 4]
    assert shared([4, 6], gpus=8, scarce=[1, np.inf], **ranks) == [1, 6]


def test_a_count_does_not_grow_beyond_what_its_nodes_hold():
    assert shared([7, 3], gpus=np.nan, fits=[4, np.inf]) == [4, 3]
    assert shared([7, 3], gpus=np.nan, fits=[4, np.inf], current=[6, 3]) == [6, 3]
    assert shared([7], gpus=np.nan, fits=[4], current=[6], scheduled=[2]) == [4]
    assert shared([7], gpus=np.nan, fits=[4], current=[6], scheduled=[2], trusted=[False]) == [6]


def test_pools_that_overlap_share_their_gpus():
    """The first may use two nodes of four GPUs, the second only one of them."""
    ranks = spec(2, min_replicas=0.0, priority=[900.0, 100.0])
    cluster = fleet(
        [0, 0],
        replicas=[0, 0],
        pool=np.array([0, 1]),
        pools=fleet([1]).pools * 2,
        groups=node_groups([4.0, 4.0], [0, 1], [1]),
    )
    assert pools.share(cluster, ranks, claims(2), demands([6, 4])).tolist() == [6, 2]


def test_replicas_on_a_cordoned_node_stay_and_free_no_gpu():
    """Two replicas of the second run on a cordoned node. The first may not use their GPUs, whatever its priority."""
    ranks = spec(2, min_replicas=0.0, priority=[900.0, 100.0])
    cluster = fleet([1, 3], groups=replace(node_groups([4.0, 4.0], [0, 1]), of_node={"open": (0,), "cordoned": (1,)}))
    nodes = ["open", "open", "cordoned", "cordoned"]
    groups = replace(cluster.groups, closed=np.array([False, True]), used=np.array([2.0, 2.0]))
    pods = tuple(pod._replace(node=node) for pod, node in zip(cluster.pods, nodes, strict=True))
    cluster = replace(cluster, pods=pods, groups=groups)
    assert pools.share(cluster, ranks, claims(2), demands([6, 3], scheduled=[1, 3])).tolist() == [4, 2]


def test_base_replicas_come_before_headroom_of_any_priority():
    ranks = {"priority": [1000.0, 10.0]}
    assert shared([10, 6], gpus=12, base=[4, 6], **ranks) == [6, 6]
    assert shared([10, 6], gpus=8, base=[4, 6], **ranks) == [4, 4]
    assert shared([10, 6], gpus=8, base=[9, 6], **ranks) == [8, 0]


@pytest.mark.slow
@given(st.lists(st.tuples(claim := st.integers(0, 9), claim, claim, claim), min_size=1, max_size=8), st.integers(0, 60))
def test_headroom_of_others_takes_no_base_replica(rows, gpus):
    floor, base, desired = (np.cumsum([row[:3] for row in rows], axis=1)[:, place].tolist() for place in range(3))
    ranks = {"priority": [float(row[3]) for row in rows], "min_replicas": floor}
    without = shared(base, gpus, **ranks)
    assert all(given >= alone for given, alone in zip(shared(desired, gpus, base, **ranks), without, strict=True))


def test_replicas_are_allocated_whole():
    assert shared([2, 2], gpus=6, gpus_each=4.0) in ([1, 0], [0, 1])
    assert shared([2, 3], gpus=7, gpus_each=[4.0, 1.0]) == [1, 3]


def test_replicas_stay_when_inputs_are_not_trusted():
    assert shared([5, 8], gpus=8, priority=[0.0, 1000.0], trusted=[False, True], current=[5, 0]) == [5, 3]


def test_replicas_kept_without_trust_count_as_base_replicas():
    ranks = {"priority": [1000.0, 10.0], "current": [5, 0]}
    assert shared([8, 6], gpus=10, base=[5, 6], trusted=[False, True], **ranks) == [5, 5]


def test_a_workload_without_policy_takes_no_share_of_others():
    ranks = {"priority": [np.nan, 0.0, 0.0], "weight": [np.nan, 1.0, 2.0], "min_replicas": [np.nan, 0.0, 0.0]}
    assert shared([2, 8, 8], gpus=8, ours=[False, True, True], current=[2, 0, 0], **ranks) == [2, 2, 4]


def test_arrivals_below_zero_count_as_none():
    assert shared([1, 1], gpus=1, arrivals=[-1.0, 0.0], scheduled=[1, 0], min_replicas=1.0) == [1, 0]


def test_floors_are_cut_by_priority_when_they_do_not_fit():
    assert shared([4, 4], gpus=6, min_replicas=4.0, priority=[1.0, 2.0]) == [2, 4]


workloads = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from([1.0, 2.0, 4.0, 8.0]),
        st.integers(0, 3),
        st.floats(0.1, 10),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=12,
)


@given(workloads, st.integers(0, 100))
def test_allocations_are_whole_bounded_and_waste_little(rows, gpus):
    desired, each, priority, weight, floor = (list(map(float, c)) for c in zip(*rows, strict=True))
    allocated = np.array(shared(desired, gpus, gpus_each=each, priority=priority, weight=weight, min_replicas=floor))
    used = allocated @ np.array(each)
    assert (allocated == np.floor(allocated)).all()
    assert (allocated <= desired).all()
    assert (allocated >= 0).all()
    assert used <= gpus or used == 0
    if (allocated < desired).any():  # one more replica of the smallest cut request would not fit
        lowest_cut = min(p for p, g, w in zip(priority, allocated, desired, strict=True) if g < w)
        cut_each = [
            e for e, g, w, p in zip(each, allocated, desired, priority, strict=True) if g < w and p == lowest_cut
        ]
        assert gpus - used < min(cut_each)


@given(workloads, st.integers(0, 100), st.data())
def test_gpus_of_replicas_that_stay_are_not_allocated(rows, gpus, data):
    desired, each, priority, weight, floor = (list(map(float, c)) for c in zip(*rows, strict=True))
    kept = [float(data.draw(st.integers(0, 12))) for _ in rows]
    ranks = {"priority": priority, "weight": weight, "min_replicas": floor, "gpus_each": each}
    allocated = np.array(shared(desired, gpus, current=kept, kept=kept, **ranks))
    taken = np.fmax(allocated, kept) @ np.array(each)
    assert (allocated <= desired).all()
    assert taken <= max(gpus, np.array(kept) @ np.array(each)) + 1e-9


@given(workloads, st.integers(0, 100))
def test_more_gpus_never_allocate_fewer_replicas(rows, gpus):
    desired, each, _, weight, _ = (list(map(float, c)) for c in zip(*rows, strict=True))
    ones = [1.0] * len(each)  # with unequal sizes whole replicas can trade places
    less = np.array(shared(desired, gpus, gpus_each=ones, weight=weight))
    more = np.array(shared(desired, gpus + 1, gpus_each=ones, weight=weight))
    assert more.sum() >= less.sum()


def test_a_count_of_another_owner_keeps_its_gpus():
    assert shared([9, 9], gpus=8, current=[3, 1], ours=[False, True]) == [
        9,
        5,
    ]  # its count is not changed, and 3 GPUs are its own
    assert shared([0, 9], gpus=8, current=[3, 1], ours=[False, True], priority=[0.0, 9.0]) == [0, 5]


def test_no_gpu_is_left_when_kept_replicas_exceed_the_pool():
    assert shared([9, 2], gpus=4, current=[6, 2], ours=[False, True], min_replicas=1.0) == [9, 0]


def test_a_paused_count_takes_only_the_gpus_it_has():
    """Paused at nine with GPUs for two: the seven others take no GPU from the six beside it."""
    assert shared([9, 6], gpus=8, current=[9, 6], ours=[False, True], scheduled=[2, 6]) == [9, 6]
    assert shared([9, 8], gpus=8, current=[9, 6], ours=[False, True], scheduled=[2, 6]) == [9, 6]
    assert shared([9, 8], gpus=8, current=[9, 6], ours=[False, True], scheduled=[0, 6]) == [9, 8]


def test_an_untrusted_count_competes_for_gpus_it_lost():
    """A node is gone, so two of six replicas have GPUs: the higher priority serves on, the lower one waits."""
    story = {"gpus": 4, "current": [6, 2], "trusted": [False, True], "scheduled": [2, 2]}
    assert shared([6, 2], **story, priority=[10.0, 1000.0]) == [6, 2]
    assert shared([6, 2], **story, priority=[1000.0, 10.0]) == [6, 0]


def test_a_large_replica_that_cannot_fit_blocks_no_small_one():
    assert shared([1, 2], gpus=2, gpus_each=[4.0, 1.0], weight=[2.0, 1.0]) == [0, 2]


def test_a_workload_of_unknown_size_gets_what_it_desires():
    assert shared([5, 5, 5], gpus=4, gpus_each=[0.0, np.nan, 1.0]) == [5, 5, 4]
    assert shared([5, 5], gpus=4, gpus_each=[np.inf, 1.0]) == [5, 4]


@given(workloads, st.integers(0, 60), st.data())
def test_sharing_takes_no_untrusted_or_foreign_replica(rows, gpus, data):
    desired, each, priority, weight, floor = (list(map(float, c)) for c in zip(*rows, strict=True))
    flags = st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))
    trusted, ours, current = data.draw(flags), data.draw(flags), [float(data.draw(st.integers(0, 20))) for _ in rows]
    allocated = shared(
        desired,
        gpus,
        trusted=trusted,
        ours=ours,
        current=current,
        gpus_each=each,
        priority=priority,
        weight=weight,
        min_replicas=floor,
    )
    for got, most, has, known, is_ours in zip(allocated, desired, current, trusted, ours, strict=True):
        assert got <= most
        assert is_ours or got == most
        assert known or got >= min(has, most)


def test_an_idle_workload_yields_to_equals_with_work():
    two = {"min_replicas": [1.0, 1.0]}
    assert shared([1, 3], gpus=3, idle=[True, False], **two) == [0, 3]
    assert shared([1, 3], gpus=3, **two) == [1, 2]


def test_an_idle_workload_keeps_what_equals_with_work_leave():
    assert shared([1, 2, 1], gpus=3, idle=[True, False, True], min_replicas=1.0) == [1, 2, 0]


def test_an_idle_workload_does_not_yield_to_a_lower_priority():
    priority = [100.0, 1.0]
    assert shared([1, 3], gpus=3, idle=[True, False], priority=priority, min_replicas=1.0) == [1, 2]
    assert shared([1, 3], gpus=1, idle=[True, False], priority=priority, min_replicas=1.0) == [1, 0]


def test_first_replicas_go_to_the_equals_with_most_requests():
    assert shared([1, 1, 1], gpus=2, arrivals=[0.1, 3.0, 2.0], scheduled=[0] * 3, min_replicas=1.0) == [0, 1, 1]


def test_a_replica_moves_only_for_far_more_requests():
    scheduled = [1, 0]
    assert shared([1, 1], gpus=1, arrivals=[1.0, pools.RECLAIM_RATIO * 0.9], scheduled=scheduled, min_replicas=1.0) == [
        1,
        0,
    ]
    assert shared([1, 1], gpus=1, arrivals=[1.0, pools.RECLAIM_RATIO * 1.1], scheduled=scheduled, min_replicas=1.0) == [
        0,
        1,
    ]


def test_requests_move_no_second_replica():
    for arrivals in ([1.0, 100.0], [100.0, 1.0]):
        assert shared([3, 3], gpus=5, arrivals=arrivals, scheduled=[1, 1], min_replicas=1.0) == [3, 2]


def test_untrusted_replicas_leave_the_free_gpus_to_equals():
    silent = {"current": [2, 2], "trusted": [True, False], "scheduled": [2, 2], "min_replicas": 1.0}
    for arrivals in ([1.0, 100.0], [100.0, 1.0]):
        assert shared([3, 3], gpus=4, arrivals=arrivals, **silent) == [2, 2]


def test_requests_are_compared_per_gpu():
    two = {"gpus_each": [4.0, 1.0], "scheduled": [0] * 2, "min_replicas": 1.0}
    assert shared([1, 1], gpus=4, arrivals=[2.0, 1.0], **two) == [0, 1]
    assert shared([1, 1], gpus=4, arrivals=[8.0, 1.0], **two) == [1, 0]


@pytest.mark.parametrize("floor", [0.0, 1.0])
@pytest.mark.parametrize("how", [{"gpus_each": [4.0, 1.0]}, {"gpus_each": 4.0, "weight": [1.0, 2.0]}])
def test_a_busy_large_replica_stays_for_one_request_elsewhere(floor, how):
    one = {"current": [1, 0], "arrivals": [1000.0, 0.01], "min_replicas": floor, **how}
    assert shared([1, 1], gpus=4, **one) == [1, 0]
    assert shared([2, 1], gpus=8, **one) == [1, 1]


def test_first_replicas_come_before_second_ones():
    assert shared([1, 3], gpus=5, gpus_each=[4.0, 1.0]) == [1, 1]
    assert shared([4, 4], gpus=5, weight=[1.0, 30.0]) == [1, 4]
    assert shared([4, 4, 4], gpus=2, arrivals=[1.0, 9.0, 5.0], scheduled=[0] * 3) == [0, 1, 1]


def test_a_first_replica_counts_towards_its_weighted_share():
    assert shared([10, 10], gpus=10, weight=[1.0, 9.0]) == [1, 9]
    assert shared([10, 10, 10], gpus=12, weight=[1.0, 2.0, 3.0]) == [2, 4, 6]


def test_the_floor_of_an_idle_workload_comes_before_headroom():
    assert shared([1, 3], gpus=3, base=[1, 1], idle=[True, False], min_replicas=1.0) == [1, 2]
    assert shared([2, 5], gpus=5, base=[2, 3], idle=[True, False], min_replicas=[2.0, 1.0]) == [2, 3]
    assert shared([2, 5], gpus=5, base=[2, 5], idle=[True, False], min_replicas=[2.0, 1.0]) == [0, 5]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from([0.0, 1.0]), st.booleans()), min_size=1),
    st.integers(0, 20),
)
def test_idleness_moves_no_gpu_between_priorities(rows, gpus):
    desired, floors, priority, idle = map(list, zip(*rows, strict=True))
    rules = {"priority": priority, "min_replicas": [float(floor) for floor in floors]}
    before, after = shared(desired, gpus, **rules), shared(desired, gpus, idle=idle, **rules)
    for level in (0.0, 1.0):
        assert sum(b for b, p in zip(before, priority, strict=True) if p == level) == sum(
            a for a, p in zip(after, priority, strict=True) if p == level
        )
    assert all(given <= want for given, want in zip(after, desired, strict=True))
