"""The two sides of a pair: the ratio is kept by raising, zero is reached together, and a cut leaves no side alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate.pairs import PairRows
from autoscaler.core.model.fleet import Pool
from autoscaler.core.model.pairs import Pairs
from tests.core.world import fleet, spec, world

NAN, NO_LIMIT = math.nan, 1e9
PAIRS = Pairs(np.array([True, False]), np.array([False, True]), np.array([1, 0]))


def rows(least=NAN, most=NAN, ceilings=(100.0, 100.0), pairs=PAIRS, ours=(True, True)):
    rules = spec(2, min_decode_per_prefill=least, max_decode_per_prefill=most, max_replicas=list(ceilings))
    return PairRows.of(world(0.0, fleet([1, 1]), rules, pairs=pairs), np.array(ours))


def raised(prefill, decode, **limits):
    return rows(**limits).raise_smaller(np.array([prefill, decode], float)).tolist()


def cut(desired, gpus, *, least=NAN, most=NAN, pools=(0, 0), each=(1.0, 1.0), trusted=(True, True), first=0):
    """Cut a pair whose replicas get GPUs in order, those of side `first` before the others."""
    cluster = fleet(
        [0, 0],
        pools=tuple(Pool("nvidia.com/gpu", f"p{number}") for number in range(len(gpus))),
        pool=np.array(pools),
        gpus_per_replica=np.array(each),
        pool_gpus=list(gpus),
    )

    def share(counts):
        left, got = list(gpus), np.zeros(2)
        for side in (first, 1 - first):
            got[side] = min(counts[side], left[pools[side]] // each[side])
            left[pools[side]] -= got[side] * each[side]
        return got

    wanted = np.array(desired, float)
    both = rows(least, most)
    return both.cut_together(wanted, share(wanted), np.array(trusted), cluster, share).tolist()


def test_each_side_keeps_its_own_count_within_the_ratio():
    assert raised(2, 5, least=1, most=4) == [2, 5]
    assert raised(7, 2) == [7, 2]  # no ratio is stated


def test_the_smaller_side_is_raised_when_the_ratio_needs_it():
    assert raised(3, 2, least=2) == [3, 6]
    assert raised(1, 9, most=4) == [3, 9]
    assert raised(3, 4, least=1.5) == [3, 5]


def test_a_ratio_between_whole_replicas_rounds_decode_up():
    assert raised(1, 1, least=1.5, most=1.5) == [1, 2]
    assert raised(1, 4, least=1.5, most=1.5) == [3, 5]


def test_the_ceiling_limits_the_raised_side():
    assert raised(4, 1, least=2, ceilings=(10.0, 5.0)) == [4, 5]
    assert raised(1, 12, most=2, ceilings=(3.0, 20.0)) == [3, 12]
    assert raised(7, 1, least=1, ceilings=(5.0, 20.0)) == [7, 7]  # a count above its ceiling is not lowered here


def test_both_sides_are_awake_or_neither():
    assert raised(0, 0, least=2) == [0, 0]
    assert raised(0, 1) == [1, 1]
    assert raised(1, 0, least=3) == [1, 3]


def test_the_stricter_of_two_policies_holds():
    assert raised(2, 2, least=[1.0, 3.0]) == [2, 6]
    assert raised(1, 8, most=[NAN, 4.0]) == [2, 8]
    assert raised(2, 2, least=[3.0, NAN], most=[NAN, 1.0]) == [2, 6]  # they contradict: the least number is kept


def test_a_side_that_the_daemon_does_not_set_is_no_pair():
    assert rows(ours=(True, False)) is None
    assert rows(pairs=Pairs.none(2)) is None
    assert rows(pairs=None) is None


def test_both_sides_are_cut_when_their_pool_is_short():
    assert cut((3, 3), [3]) == [1, 2]  # not 3:0
    assert cut((3, 3), [3], first=1) == [1, 2]
    assert cut((2, 8), [5], least=4) == [1, 4]
    assert cut((3, 3), [4], each=(2.0, 1.0)) == [1, 2]
    assert cut((31, 5), [10], each=(3.0, 2.0), first=1) == [2, 2]  # a third prefill replica leaves one GPU for decode


def test_no_side_stands_without_the_other():
    assert cut((3, 3), [1]) == [0, 0]
    assert cut((3, 3), [3, 0], pools=(0, 1)) == [0, 0]
    assert cut((3, 3), [0, 3], pools=(0, 1)) == [0, 0]


def test_a_cut_keeps_the_ratio():
    assert cut((3, 6), [9, 4], pools=(0, 1), least=2) == [2, 4]
    assert cut((4, 8), [1, 9], pools=(0, 1), most=2) == [1, 2]
    assert cut((1, 2), [9, 1], pools=(0, 1), least=2) == [1, 1]  # one pair serves, though it is small


def test_a_pair_that_gets_all_it_desires_is_not_cut():
    assert cut((1, 9), [10]) == [1, 9]
    assert cut((4, 1), [5], least=2) == [4, 1]  # its ceiling keeps decode below the ratio


def test_a_side_without_trusted_inputs_is_not_cut():
    assert cut((3, 3), [3, 0], pools=(0, 1), trusted=(False, True)) == [3, 0]


RATIO = st.one_of(
    st.just((0.0, NO_LIMIT)), st.tuples(st.floats(0.1, 4), st.floats(1, 4)).map(lambda x: (x[0], x[0] * x[1]))
)


@given(st.integers(0, 40), st.integers(0, 40), RATIO, st.integers(1, 60), st.integers(1, 60))
def test_ratio_holds_wherever_ceilings_allow(prefill, decode, ratio, most_prefill, most_decode):
    least, most = ratio
    before = np.array([prefill, decode], float)
    limits = {"least": least or NAN, "most": most if most < NO_LIMIT else NAN}
    after = raised(prefill, decode, ceilings=(most_prefill, most_decode), **limits)
    assert (np.array(after) >= before).all()
    assert (after[0] > 0) == (after[1] > 0)
    assert after == raised(*after, ceilings=(most_prefill, most_decode), **limits)
    fewest = math.ceil(after[0] * least - 1e-6)
    if after[1] < max(most_decode, decode):
        assert after[1] >= fewest
    if after[0] < max(most_prefill, prefill):
        assert after[1] <= max(after[0] * most + 1e-6, fewest)


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    RATIO,
    st.lists(st.integers(0, 12), min_size=2, max_size=2),
    st.booleans(),
    st.tuples(st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 2.0])),
    st.sampled_from([0, 1]),
)
def test_scarce_pair_is_whole_and_within_its_gpus(prefill, decode, ratio, gpus, one_pool, each, first):
    least, most = ratio
    limits = {"least": least or NAN, "most": most if most < NO_LIMIT else NAN}
    desired = raised(prefill, decode, **limits)
    pools = (0, 0) if one_pool else (0, 1)
    after = cut(desired, gpus, pools=pools, each=each, first=first, **limits)
    assert (after[0] > 0) == (after[1] > 0)
    assert (np.array(after) <= desired).all()
    used = np.zeros(2)
    np.add.at(used, list(pools), np.array(after) * each)
    assert (used <= gpus).all()
    if one_pool and gpus[0] >= sum(each):
        assert after[0] >= 1
    if after[0] > 1:
        assert after[1] >= math.ceil(after[0] * least - 1e-6)
    assert after[1] <= max(after[0] * most + 1e-6, math.ceil(after[0] * least - 1e-6), 1)


@pytest.mark.parametrize("column", [[900.0, 5.0], [NAN, 5.0]])
def test_a_pair_is_idle_when_both_sides_are(column):
    assert rows().least_of_both(np.array(column)).tolist() == [5.0, 5.0]
