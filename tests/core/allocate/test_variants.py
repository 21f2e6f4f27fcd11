"""Variants of one service: cheapest grows, dearest shrinks, nothing migrates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate.variants import choose
from autoscaler.core.model.variants import Variants
from tests.core.world import spec

FULL, SLICE = 0, 1  # a full GPU that holds 40 requests for 7, a slice that holds 10 for 3


def chosen(
    wanted,
    current,
    *,
    blocked=(0, 0),
    vacant=(np.inf, np.inf),
    service=(0, 0),
    cost=(7.0, 3.0),
    each=(40.0, 10.0),
    steady=(True, True),
    **columns,
):
    rows = len(wanted)
    return choose(
        np.array(wanted, float),
        np.array(current, float),
        np.array(blocked, float),
        np.array(vacant, float),
        np.array(each, float),
        np.array(steady),
        Variants(np.array(service), np.array(cost, float)),
        spec(rows, **columns),
    ).tolist()


def test_growth_goes_to_the_variant_that_costs_less_per_request():
    # a request costs 3 / 10 on the slice and 7 / 40 on the full GPU
    assert chosen([2, 6], [2, 4]) == [3, 4]


def test_growth_goes_elsewhere_once_the_cheapest_is_at_its_maximum():
    assert chosen([2, 6], [2, 4], max_replicas=[2.0, 10.0]) == [2, 6]


def test_growth_goes_elsewhere_where_no_gpu_is_free_for_the_cheapest_and_back_to_it_where_none_is_free_at_all():
    assert chosen([2, 9], [2, 4], vacant=(1.0, np.inf)) == [3, 5]
    assert chosen([2, 6], [2, 4], vacant=(0.0, 0.0)) == [3, 4]


def test_replicas_that_find_no_gpu_carry_nothing_and_are_given_up_where_another_variant_can_take_over():
    assert chosen([2, 8], [2, 8], blocked=(0, 4), vacant=(np.inf, 0.0)) == [3, 4]
    assert chosen([1, 8], [2, 8], blocked=(0, 4), vacant=(np.inf, 0.0)) == [2, 4]
    assert chosen([3, 4], [3, 4], blocked=(1, 0), vacant=(0.0, np.inf)) == [2, 8]


def test_shrinking_is_taken_where_a_request_costs_most():
    assert chosen([1, 4], [2, 4]) == [2, 1]  # 40 requests less: three slices go, the floor of one stays


def test_what_serves_is_not_moved_to_a_cheaper_variant():
    assert chosen([2, 4], [2, 4]) == [2, 4]


def test_workloads_alone_or_not_trusted_keep_what_they_want():
    assert chosen([2, 6], [2, 4], service=(-1, -1)) == [2, 6]
    assert chosen([2, 6], [2, 4], steady=(True, False)) == [2, 6]


def test_a_variant_at_zero_or_on_its_way_is_left_to_its_own_stages():
    assert chosen([0, 6], [1, 6]) == [0, 6]
    assert chosen([1, 6], [0, 6]) == [1, 6]
    assert chosen([2, 4], [2, 0], min_replicas=0.0) == [2, 4]


def test_what_is_less_takes_no_variant_to_zero():
    assert chosen([1, 2], [2, 4], min_replicas=0.0) == [2, 1]


def test_a_variant_of_unknown_size_or_wish_takes_no_part():
    assert chosen([2, 6], [2, 4], each=(np.nan, 10.0)) == [2, 6]
    np.testing.assert_array_equal(chosen([np.nan, 6], [2, 4]), [np.nan, 6])


def test_an_unknown_price_is_filled_last():
    assert chosen([2, 6], [2, 4], cost=(np.nan, 3.0)) == [2, 6]


rows = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.integers(0, 8),
        st.integers(-1, 2),
        st.sampled_from([5.0, 10.0, 40.0]),
        st.floats(0.5, 9),
        st.integers(0, 8),
        st.sampled_from([0.0, 1.0, 3.0, np.inf]),
    ),
    min_size=1,
    max_size=10,
)


@given(rows)
def test_each_service_keeps_its_capacity_and_every_workload_its_bounds(table):
    columns = (np.array(column, float) for column in zip(*table, strict=True))
    wanted, current, service, each, cost, blocked, vacant = columns
    wanted = np.where(current > 0, np.maximum(wanted, 1), wanted)  # the idle stage's own business is not tried here
    rules = spec(len(wanted), min_replicas=1.0, max_replicas=8.0)
    everybody, variants = np.ones(len(wanted), bool), Variants(service.astype(int), cost)
    blocked = np.minimum(blocked, current)
    result = choose(wanted, current, blocked, vacant, each, everybody, variants, rules)
    assert (result == np.floor(result)).all()
    assert (result <= 8).all()
    assert (result[wanted > 0] >= 1).all()
    for number in np.unique(service):
        members = service == number
        assert result[members] @ each[members] >= wanted[members] @ each[members] - 1e-6
        if number == -1:
            assert (result[members] == wanted[members]).all()
