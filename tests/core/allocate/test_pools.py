"""Sharing a pool: floors, priority, weight, whole replicas, and never more than there is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate import pools
from autoscaler.core.model.fleet import PoolOverlap
from autoscaler.core.observe.pending import Claims
from tests.core.world import fleet, spec


def shared(
    wanted,
    gpus,
    needed=None,
    trusted=None,
    current=None,
    gpus_each=1.0,
    free=None,
    rests=None,
    standing=None,
    arrivals=None,
    claimed=None,
    scarce=None,
    fits=None,
    halted=None,
    staying=None,
    **columns,
):
    rows = len(wanted)
    wanted = np.array(wanted, float)
    needed = wanted if needed is None else np.array(needed, float)
    cluster = fleet(
        [0] * rows,
        replicas=current or [0] * rows,
        gpus_per_replica=np.broadcast_to(np.asarray(gpus_each, float), rows).copy(),
        pool_gpus=np.array([float(gpus)]),
    )
    known = np.ones(rows, dtype=bool) if trusted is None else np.array(trusted)
    rules = spec(rows, **{"min_replicas": 0.0, **columns})
    unbound = np.ones(rows, dtype=bool) if free is None else np.array(free)
    idle = np.zeros(rows, dtype=bool) if rests is None else np.array(rests)
    placed = np.array((current or [0] * rows) if standing is None else standing, float)
    coming = np.full(rows, np.nan) if arrivals is None else np.array(arrivals, float)
    claimed, scarce, fits = (np.array(given or [np.inf] * rows, float) for given in (claimed, scarce, fits))
    never = np.zeros(rows, dtype=bool)
    claims = Claims(claimed, scarce, fits, never, never if halted is None else np.array(halted))
    stay = np.zeros(rows) if staying is None else np.array(staying, float)
    return pools.share(wanted, needed, cluster, rules, claims, known, unbound, idle, placed, coming, stay).tolist()


def test_others_get_what_is_free_when_replicas_stay():
    """The first wants one replica and its six stay all the same: of eight GPUs two are free."""
    assert shared([1, 4], gpus=8, current=[6, 1], staying=[6, 0]) == [1, 2]
    assert shared([7, 4], gpus=8, current=[6, 1], staying=[6, 0]) == [7, 1]
    assert shared([1, 4], gpus=8, current=[6, 1], staying=[6, 0], standing=[2, 1]) == [1, 4]  # four of six have no GPU


def test_a_pool_that_suffices_grants_everything():
    assert shared([3, 5], gpus=8) == [3, 5]


def test_a_pool_of_unknown_size_is_not_shared_out():
    assert shared([300, 500], gpus=np.nan) == [300, 500]


def test_higher_priority_is_served_first():
    assert shared([6, 6], gpus=8, priority=[10.0, 1000.0]) == [2, 6]


def test_floors_come_before_priority():
    assert shared([6, 6], gpus=8, priority=[10.0, 1000.0], min_replicas=[3.0, 1.0]) == [3, 5]


def test_equals_share_by_weight_and_nobody_gets_more_than_asked():
    assert shared([10, 10], gpus=9, weight=[1.0, 2.0]) == [3, 6]
    assert shared([10, 2], gpus=9, weight=[1.0, 2.0]) == [7, 2]


def test_replicas_that_do_not_come_take_no_gpu_when_a_pool_is_short():
    """The first wants seven, of which a quota allows two; the second has the GPUs that the first may not use."""
    ranks = {"priority": [900.0, 100.0]}
    assert shared([7, 6], gpus=8, claimed=[2, np.inf], **ranks) == [7, 6]
    assert shared([7, 9], gpus=8, claimed=[2, np.inf], **ranks) == [7, 6]
    assert shared([30, 9], gpus=8, claimed=[2, np.inf], **ranks) == [8, 6]  # no more than the whole pool could hold


def test_no_more_are_ordered_than_come_where_the_pool_is_of_known_size():
    """Of three that were ordered one has no pod: a fourth would make more than the pool can hold."""
    stalled = {"claimed": [2, np.inf], "halted": [True, False], "current": [3, 1]}
    assert shared([4, 1], gpus=4, **stalled) == [3, 1]
    assert shared([4, 1], gpus=np.nan, **stalled) == [4, 1]
    assert shared([2, 1], gpus=4, **stalled) == [2, 1]


def test_replicas_that_crash_give_their_gpus_up_only_when_a_pool_is_short():
    ranks = {"priority": [900.0, 100.0]}
    assert shared([4, 4], gpus=8, scarce=[1, np.inf], **ranks) == [4, 4]
    assert shared([4, 6], gpus=8, scarce=[1, np.inf], **ranks) == [1, 6]


def test_nothing_grows_beyond_what_its_nodes_hold_and_what_stands_stays():
    assert shared([7, 3], gpus=np.nan, fits=[4, np.inf]) == [4, 3]
    assert shared([7, 3], gpus=np.nan, fits=[4, np.inf], current=[6, 3]) == [6, 3]
    assert shared([7], gpus=np.nan, fits=[4], current=[6], standing=[2]) == [4]
    assert shared([7], gpus=np.nan, fits=[4], current=[6], standing=[2], trusted=[False]) == [6]


def test_pools_that_overlap_share_what_they_have_together():
    """The first may use two nodes of four GPUs, the second only one of them."""
    wanted, ranks = np.array([6.0, 4.0]), spec(2, min_replicas=0.0, priority=[900.0, 100.0])
    cluster = fleet(
        [0, 0],
        replicas=[0, 0],
        pool=np.array([0, 1]),
        pools=fleet([1]).pools * 2,
        pool_gpus=np.array([8.0, 4.0]),
        pool_overlaps=(PoolOverlap((0, 1), 8.0),),
    )
    none, many, yes = np.zeros(2), np.full(2, np.inf), np.ones(2, dtype=bool)
    claims = Claims(many, many, many, ~yes, ~yes)
    given = pools.share(wanted, wanted, cluster, ranks, claims, yes, yes, ~yes, none, none, none)
    assert given.tolist() == [6, 2]


def test_no_reserve_is_held_for_anybody_before_all_have_what_their_load_needs():
    ranks = {"priority": [1000.0, 10.0]}
    assert shared([10, 6], gpus=12, needed=[4, 6], **ranks) == [6, 6]
    assert shared([10, 6], gpus=8, needed=[4, 6], **ranks) == [4, 4]
    assert shared([10, 6], gpus=8, needed=[9, 6], **ranks) == [8, 0]


@pytest.mark.slow
@given(st.lists(st.tuples(claim := st.integers(0, 9), claim, claim, claim), min_size=1, max_size=8), st.integers(0, 60))
def test_nobody_gets_less_for_what_others_hold_in_reserve(rows, gpus):
    floor, needed, wanted = (np.cumsum([row[:3] for row in rows], axis=1)[:, place].tolist() for place in range(3))
    ranks = {"priority": [float(row[3]) for row in rows], "min_replicas": floor}
    without = shared(needed, gpus, **ranks)
    assert all(given >= alone for given, alone in zip(shared(wanted, gpus, needed, **ranks), without, strict=True))


def test_replicas_are_granted_whole():
    assert shared([2, 2], gpus=6, gpus_each=4.0) in ([1, 0], [0, 1])
    assert shared([2, 3], gpus=7, gpus_each=[4.0, 1.0]) == [1, 3]


def test_what_is_not_trusted_keeps_what_it_has():
    assert shared([5, 8], gpus=8, priority=[0.0, 1000.0], trusted=[False, True], current=[5, 0]) == [5, 3]


def test_what_is_kept_without_trust_counts_towards_what_its_load_needs():
    ranks = {"priority": [1000.0, 10.0], "current": [5, 0]}
    assert shared([8, 6], gpus=10, needed=[5, 6], trusted=[False, True], **ranks) == [5, 5]


def test_who_is_under_no_policy_takes_nothing_from_the_shares_of_others():
    ranks = {"priority": [np.nan, 0.0, 0.0], "weight": [np.nan, 1.0, 2.0], "min_replicas": [np.nan, 0.0, 0.0]}
    assert shared([2, 8, 8], gpus=8, free=[False, True, True], current=[2, 0, 0], **ranks) == [2, 2, 4]


def test_arrivals_below_zero_are_none():
    assert shared([1, 1], gpus=1, arrivals=[-1.0, 0.0], standing=[1, 0], min_replicas=1.0) == [1, 0]


def test_a_floor_that_does_not_fit_is_cut_by_priority():
    assert shared([4, 4], gpus=6, min_replicas=4.0, priority=[1.0, 2.0]) == [2, 4]


claims = st.lists(
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


@given(claims, st.integers(0, 100))
def test_grants_are_whole_within_the_pool_within_the_wish_and_waste_little(rows, gpus):
    wanted, each, priority, weight, floor = (list(map(float, c)) for c in zip(*rows, strict=True))
    granted = np.array(shared(wanted, gpus, gpus_each=each, priority=priority, weight=weight, min_replicas=floor))
    used = granted @ np.array(each)
    assert (granted == np.floor(granted)).all()
    assert (granted <= wanted).all()
    assert (granted >= 0).all()
    assert used <= gpus or used == 0
    if (granted < wanted).any():  # nobody goes without while one more replica of the smallest cut claim would fit
        lowest_cut = min(p for p, g, w in zip(priority, granted, wanted, strict=True) if g < w)
        cut_each = [e for e, g, w, p in zip(each, granted, wanted, priority, strict=True) if g < w and p == lowest_cut]
        assert gpus - used < min(cut_each)


@given(claims, st.integers(0, 100), st.data())
def test_gpus_of_replicas_that_stay_are_given_to_nobody(rows, gpus, data):
    wanted, each, priority, weight, floor = (list(map(float, c)) for c in zip(*rows, strict=True))
    staying = [float(data.draw(st.integers(0, 12))) for _ in rows]
    ranks = {"priority": priority, "weight": weight, "min_replicas": floor, "gpus_each": each}
    granted = np.array(shared(wanted, gpus, current=staying, staying=staying, **ranks))
    taken = np.fmax(granted, staying) @ np.array(each)
    assert (granted <= wanted).all()
    assert taken <= max(gpus, np.array(staying) @ np.array(each)) + 1e-9


@given(claims, st.integers(0, 100))
def test_more_gpus_never_give_anybody_of_the_top_priority_less(rows, gpus):
    wanted, each, _, weight, _ = (list(map(float, c)) for c in zip(*rows, strict=True))
    ones = [1.0] * len(each)  # with unequal sizes whole replicas can trade places
    less = np.array(shared(wanted, gpus, gpus_each=ones, weight=weight))
    more = np.array(shared(wanted, gpus + 1, gpus_each=ones, weight=weight))
    assert more.sum() >= less.sum()


def test_what_is_not_free_holds_what_it_has_and_is_granted_nothing():
    assert shared([9, 9], gpus=8, current=[3, 1], free=[False, True]) == [
        9,
        5,
    ]  # its wish passes by, 3 GPUs are its own
    assert shared([0, 9], gpus=8, current=[3, 1], free=[False, True], priority=[0.0, 9.0]) == [0, 5]


def test_what_is_kept_beyond_the_pool_leaves_nothing_for_others():
    assert shared([9, 2], gpus=4, current=[6, 2], free=[False, True], min_replicas=1.0) == [9, 0]


def test_a_count_that_somebody_else_set_takes_from_others_only_what_it_has():
    """Paused at nine with GPUs for two: the six beside it are no less for the seven that will not come."""
    assert shared([9, 6], gpus=8, current=[9, 6], free=[False, True], standing=[2, 6]) == [9, 6]
    assert shared([9, 8], gpus=8, current=[9, 6], free=[False, True], standing=[2, 6]) == [9, 6]
    assert shared([9, 8], gpus=8, current=[9, 6], free=[False, True], standing=[0, 6]) == [9, 8]


def test_what_is_not_trusted_takes_from_others_only_what_has_gpus_and_competes_for_the_rest():
    """Six, of which two have GPUs since a node is gone: whoever ranks higher serves on, and who ranks lower waits."""
    story = {"gpus": 4, "current": [6, 2], "trusted": [False, True], "standing": [2, 2]}
    assert shared([6, 2], **story, priority=[10.0, 1000.0]) == [6, 2]
    assert shared([6, 2], **story, priority=[1000.0, 10.0]) == [6, 0]


def test_a_claim_that_cannot_fit_does_not_block_the_small_ones_behind_it():
    assert shared([1, 2], gpus=2, gpus_each=[4.0, 1.0], weight=[2.0, 1.0]) == [0, 2]


def test_a_workload_without_gpus_or_a_known_pool_is_granted_what_it_wants():
    assert shared([5, 5, 5], gpus=4, gpus_each=[0.0, np.nan, 1.0]) == [5, 5, 4]
    assert shared([5, 5], gpus=4, gpus_each=[np.inf, 1.0]) == [5, 4]


@given(claims, st.integers(0, 60), st.data())
def test_sharing_never_takes_what_is_not_trusted_or_not_free(rows, gpus, data):
    wanted, each, priority, weight, floor = (list(map(float, c)) for c in zip(*rows, strict=True))
    flags = st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))
    trusted, free, current = data.draw(flags), data.draw(flags), [float(data.draw(st.integers(0, 20))) for _ in rows]
    granted = shared(
        wanted,
        gpus,
        trusted=trusted,
        free=free,
        current=current,
        gpus_each=each,
        priority=priority,
        weight=weight,
        min_replicas=floor,
    )
    for got, wish, has, known, ours in zip(granted, wanted, current, trusted, free, strict=True):
        assert got <= wish
        assert ours or got == wish
        assert known or got >= min(has, wish)


def test_who_rests_gives_way_to_its_equals_that_have_work():
    two = {"min_replicas": [1.0, 1.0]}
    assert shared([1, 3], gpus=3, rests=[True, False], **two) == [0, 3]
    assert shared([1, 3], gpus=3, **two) == [1, 2]


def test_what_those_with_work_leave_stays_with_who_rests():
    assert shared([1, 2, 1], gpus=3, rests=[True, False, True], min_replicas=1.0) == [1, 2, 0]


def test_who_rests_gives_way_to_no_lower_priority():
    priority = [100.0, 1.0]
    assert shared([1, 3], gpus=3, rests=[True, False], priority=priority, min_replicas=1.0) == [1, 2]
    assert shared([1, 3], gpus=1, rests=[True, False], priority=priority, min_replicas=1.0) == [1, 0]


def test_of_equals_with_one_replica_each_to_give_those_come_first_to_whom_most_requests_come():
    assert shared([1, 1, 1], gpus=2, arrivals=[0.1, 3.0, 2.0], standing=[0] * 3, min_replicas=1.0) == [0, 1, 1]


def test_who_has_a_replica_keeps_it_unless_far_more_requests_come_to_another():
    standing = [1, 0]
    assert shared([1, 1], gpus=1, arrivals=[1.0, pools.HELD * 0.9], standing=standing, min_replicas=1.0) == [1, 0]
    assert shared([1, 1], gpus=1, arrivals=[1.0, pools.HELD * 1.1], standing=standing, min_replicas=1.0) == [0, 1]


def test_beyond_the_floor_what_comes_now_hands_no_replica_to_another():
    for arrivals in ([1.0, 100.0], [100.0, 1.0]):
        assert shared([3, 3], gpus=5, arrivals=arrivals, standing=[1, 1], min_replicas=1.0) == [3, 2]


def test_who_is_not_heard_and_keeps_its_replicas_gets_no_other_before_its_equals():
    silent = {"current": [2, 2], "trusted": [True, False], "standing": [2, 2], "min_replicas": 1.0}
    for arrivals in ([1.0, 100.0], [100.0, 1.0]):
        assert shared([3, 3], gpus=4, arrivals=arrivals, **silent) == [2, 2]


def test_requests_are_weighed_by_the_gpus_they_take():
    two = {"gpus_each": [4.0, 1.0], "standing": [0] * 2, "min_replicas": 1.0}
    assert shared([1, 1], gpus=4, arrivals=[2.0, 1.0], **two) == [0, 1]
    assert shared([1, 1], gpus=4, arrivals=[8.0, 1.0], **two) == [1, 0]


@pytest.mark.parametrize("floor", [0.0, 1.0])
@pytest.mark.parametrize("how", [{"gpus_each": [4.0, 1.0]}, {"gpus_each": 4.0, "weight": [1.0, 2.0]}])
def test_a_large_replica_at_work_is_not_taken_away_for_one_request_to_a_small_or_weighty_equal(floor, how):
    one = {"current": [1, 0], "arrivals": [1000.0, 0.01], "min_replicas": floor, **how}
    assert shared([1, 1], gpus=4, **one) == [1, 0]
    assert shared([2, 1], gpus=8, **one) == [1, 1]


def test_the_first_replica_of_each_comes_before_the_second_of_anybody():
    assert shared([1, 3], gpus=5, gpus_each=[4.0, 1.0]) == [1, 1]
    assert shared([4, 4], gpus=5, weight=[1.0, 30.0]) == [1, 4]
    assert shared([4, 4, 4], gpus=2, arrivals=[1.0, 9.0, 5.0], standing=[0] * 3) == [0, 1, 1]


def test_what_a_first_replica_takes_counts_towards_the_share_of_its_weight():
    assert shared([10, 10], gpus=10, weight=[1.0, 9.0]) == [1, 9]
    assert shared([10, 10, 10], gpus=12, weight=[1.0, 2.0, 3.0]) == [2, 4, 6]


def test_who_rests_keeps_its_floor_before_anybody_holds_a_reserve():
    assert shared([1, 3], gpus=3, needed=[1, 1], rests=[True, False], min_replicas=1.0) == [1, 2]
    assert shared([2, 5], gpus=5, needed=[2, 3], rests=[True, False], min_replicas=[2.0, 1.0]) == [2, 3]
    assert shared([2, 5], gpus=5, needed=[2, 5], rests=[True, False], min_replicas=[2.0, 1.0]) == [0, 5]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from([0.0, 1.0]), st.booleans()), min_size=1),
    st.integers(0, 20),
)
def test_rest_changes_nothing_of_what_each_priority_gets(rows, gpus):
    wanted, floors, priority, rests = map(list, zip(*rows, strict=True))
    rules = {"priority": priority, "min_replicas": [float(floor) for floor in floors]}
    before, after = shared(wanted, gpus, **rules), shared(wanted, gpus, rests=rests, **rules)
    for level in (0.0, 1.0):
        assert sum(b for b, p in zip(before, priority, strict=True) if p == level) == sum(
            a for a, p in zip(after, priority, strict=True) if p == level
        )
    assert all(given <= want for given, want in zip(after, wanted, strict=True))
