"""Variants of one service: least cost, within bounds and GPUs, and exchanges only where they pay."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate.variants import VariantFleet, VariantReplicas, choose, exchange
from autoscaler.core.model.variants import Variants
from tests.core.world import spec

FULL, SLICE = 0, 1  # a full GPU that holds 40 requests for 7, a slice that holds 10 for 3


def chosen(
    desired,
    current,
    *,
    not_running=(0, 0),
    starting=(0, 0),
    vacant=(np.inf, np.inf),
    service=(0, 0),
    cost=(7.0, 3.0),
    each=(40.0, 10.0),
    movable=(True, True),
    spot=None,
    **columns,
):
    rows = len(desired)
    fleet = VariantFleet(
        VariantReplicas(*(np.array(column, float) for column in (current, not_running, starting, vacant))),
        np.array(each, float),
        np.array(movable),
        Variants(np.array(service), np.array(cost, float), None if spot is None else np.array(spot)),
        spec(rows, **columns),
    )
    return choose(np.array(desired, float), fleet).tolist()


def test_the_variants_grow_at_least_cost():
    # a request costs 3 / 10 on the slice and 7 / 40 on the full GPU
    assert chosen([2, 8], [2, 4]) == [3, 4]
    assert chosen([2, 6], [2, 4]) == [2, 6]  # two slices cost less than half of a full GPU would


def test_another_variant_grows_when_the_cheapest_is_at_maximum():
    assert chosen([2, 8], [2, 4], max_replicas=[2.0, 10.0]) == [2, 8]


def test_another_variant_grows_when_the_cheapest_has_no_gpu():
    assert chosen([2, 13], [2, 4], vacant=(1.0, np.inf)) == [3, 9]
    assert chosen([2, 8], [2, 4], vacant=(0.0, 0.0)) == [3, 4]


def test_pending_replicas_move_to_a_variant_with_gpus():
    assert chosen([2, 8], [2, 8], not_running=(0, 4), vacant=(np.inf, 0.0)) == [3, 4]
    assert chosen([1, 8], [2, 8], not_running=(0, 4), vacant=(np.inf, 0.0)) == [2, 4]
    assert chosen([3, 4], [3, 4], not_running=(1, 0), vacant=(0.0, np.inf)) == [2, 8]


def test_the_variant_with_the_dearest_request_shrinks():
    assert chosen([1, 4], [2, 4]) == [2, 1]  # 40 fewer requests: three slices go, the floor of one stays


def test_running_replicas_do_not_move_to_a_cheaper_variant():
    assert chosen([2, 4], [2, 4]) == [2, 4]


def test_serving_replicas_stay_until_others_serve():
    assert chosen([2, 4], [3, 4], starting=(1, 0)) == [3, 4]  # the new full GPU will replace three slices
    assert chosen([2, 4], [3, 4]) == [3, 1]


def test_a_starting_replica_without_a_use_is_cancelled():
    assert chosen([2, 2], [3, 2], starting=(1, 0)) == [2, 2]


def exchanged(
    desired,
    current,
    overpaid,
    elapsed_s=3600.0,
    *,
    starting=(0, 0),
    vacant=(np.inf, np.inf),
    cost=(7.0, 3.0),
    spot=None,
    requests_each=(40.0, 10.0),
    **columns,
):
    """Return the counts, and what the service has overpaid, with cold starts of six minutes."""
    rows = len(desired)
    running = VariantReplicas(
        np.array(current, float), np.zeros(rows), np.array(starting, float), np.array(vacant, float)
    )
    each, movable, rules = np.array(requests_each), np.ones(rows, bool), spec(rows, **columns)
    variants = Variants(np.zeros(rows, int), np.array(cost), None if spot is None else np.array(spot))
    wanted = np.array(desired, float)
    fleet = VariantFleet(running, each, movable, variants, rules)
    picked = choose(wanted, fleet)
    cold_start_s, elapsed = np.full(rows, 360.0), np.full(rows, elapsed_s)
    counts, paid = exchange(wanted, picked, fleet, cold_start_s, elapsed, np.full(rows, overpaid))
    return counts.tolist(), paid.tolist()


def test_an_exchange_waits_until_its_cold_starts_are_overpaid():
    counts, paid = exchanged([1, 5], [1, 5], np.nan, elapsed_s=60.0)
    assert counts == [1, 5]
    assert paid == pytest.approx([5 / 60, 5 / 60])  # a full GPU in the place of four slices saves 5 per hour
    assert exchanged([1, 5], [1, 5], 0.7, elapsed_s=60.0)[0] == [2, 5]


def test_an_exchange_goes_on_until_the_new_replicas_serve():
    assert exchanged([1, 5], [2, 5], 0.8, starting=(1, 0))[0] == [2, 5]
    assert exchanged([1, 5], [2, 5], 0.8) == ([2, 1], [0.0, 0.0])


def test_an_exchange_needs_free_gpus():
    assert exchanged([1, 5], [1, 5], 100.0, vacant=(0.0, np.inf))[0] == [1, 5]
    assert exchanged([1, 5], [1, 5], 100.0, max_replicas=[1.0, 8.0])[0] == [1, 5]


def test_the_best_mix_overpays_nothing():
    assert exchanged([2, 1], [2, 1], 0.5) == ([2, 1], [0.0, 0.0])


def test_a_workload_without_variants_or_trust_keeps_its_count():
    assert chosen([2, 6], [2, 4], service=(-1, -1)) == [2, 6]
    assert chosen([2, 6], [2, 4], movable=(True, False)) == [2, 6]


def test_a_variant_at_zero_or_waking_up_takes_no_load():
    assert chosen([0, 6], [1, 6]) == [0, 6]
    assert chosen([1, 6], [0, 6]) == [1, 6]
    assert chosen([2, 4], [2, 0], min_replicas=0.0) == [2, 4]


def test_less_load_takes_no_variant_to_zero():
    assert chosen([1, 2], [2, 4], min_replicas=0.0) == [1, 2]
    assert chosen([1, 1], [2, 4], min_replicas=0.0) == [1, 1]


def test_a_variant_of_unknown_capacity_takes_no_load():
    assert chosen([2, 6], [2, 4], each=(np.nan, 10.0)) == [2, 6]
    np.testing.assert_array_equal(chosen([np.nan, 6], [2, 4]), [np.nan, 6])


def test_a_variant_of_unknown_cost_grows_last():
    assert chosen([2, 6], [2, 4], cost=(np.nan, 3.0)) == [2, 6]


def test_variants_that_cost_nothing_grow_first():
    assert chosen([2, 8], [2, 4], cost=(0.0, 3.0)) == [3, 4]
    assert chosen([2, 8], [2, 4], cost=(7.0, 0.0)) == [2, 8]
    assert chosen([2, 8], [2, 4], cost=(0.0, 0.0)) in ([3, 4], [2, 8])
    assert exchanged([1, 5], [1, 5], np.nan, elapsed_s=60.0, cost=(0.0, 0.0))[0] == [1, 5]


# One model on nodes on demand and on spot nodes, one replica of which holds 10 requests.
EQUAL = {"each": (10.0, 10.0), "cost": (1.0, 1.0), "spot": (False, True)}


def test_spot_grows_first_beyond_the_floor_on_demand():
    assert chosen([1, 5], [1, 1], on_demand_floor=2, **EQUAL) == [2, 4]
    assert chosen([1, 5], [1, 1], on_demand_floor=[np.nan, 0], **EQUAL) == [1, 5]
    assert chosen([1, 5], [1, 1], on_demand_floor=9, **EQUAL) == [6, 1]  # no more than the load needs
    assert chosen([1, 5], [1, 1], on_demand_floor=0, **EQUAL | {"cost": (1.0, np.nan)}) == [1, 5]
    assert chosen([5, 1], [1, 1], on_demand_floor=0, **EQUAL | {"cost": (1.0, 9.0)}) == [1, 5]
    assert chosen([5, 1], [1, 1], **EQUAL | {"cost": (1.0, 9.0)}) == [5, 1]


def test_nodes_on_demand_take_over_what_spot_cannot_run():
    assert chosen([2, 4], [2, 4], not_running=(0, 3), vacant=(np.inf, 0), on_demand_floor=2, **EQUAL) == [5, 1]
    assert chosen([2, 4], [2, 4], not_running=(0, 3), vacant=(np.inf, np.inf), on_demand_floor=2, **EQUAL) == [2, 4]
    assert chosen([2, 4], [2, 1], vacant=(np.inf, 1), on_demand_floor=2, **EQUAL) == [4, 2]


def test_nodes_on_demand_leave_first_down_to_their_floor():
    assert chosen([5, 1], [5, 3], on_demand_floor=2, **EQUAL) == [3, 3]
    assert chosen([1, 2], [5, 3], on_demand_floor=2, **EQUAL) == [2, 1]
    assert chosen([2, 3], [2, 3], on_demand_floor=3, **EQUAL) == [3, 3]  # what serves on spot waits for the third


def test_nodes_on_demand_are_exchanged_for_spot_where_it_pays():
    cheap, dear = EQUAL | {"cost": (1.0, 0.4)}, EQUAL | {"cost": (1.0, 2.0)}
    del cheap["each"], dear["each"]
    spot = {"on_demand_floor": 1, "requests_each": (10.0, 10.0)}
    assert exchanged([4, 1], [4, 1], 0.5, **cheap, **spot)[0] == [4, 4]
    assert exchanged([4, 1], [4, 4], 0.5, **cheap, **spot)[0] == [1, 4]
    assert exchanged([4, 1], [4, 1], 99.0, **dear, **spot)[0] == [4, 1]


rows = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.integers(0, 8),
        st.integers(-1, 2),
        st.sampled_from([5.0, 10.0, 40.0]),
        st.one_of(st.just(0.0), st.floats(0.5, 9)),
        st.integers(0, 8),
        st.sampled_from([0.0, 1.0, 3.0, np.inf]),
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.slow
@given(
    rows, st.lists(st.tuples(st.booleans(), st.sampled_from([np.nan, 0.0, 1.0, 3.0, 9.0])), min_size=10, max_size=10)
)
def test_a_floor_on_demand_is_kept_and_spot_comes_first(table, preferences):
    desired, current, service, each, cost, _, vacant = (np.array(column, float) for column in zip(*table, strict=True))
    spot, first = (np.array(column) for column in list(zip(*preferences[: len(table)], strict=True)))
    current, desired = np.maximum(current, 1), np.maximum(desired, 1)
    rules = spec(len(desired), min_replicas=1.0, max_replicas=8.0, on_demand_floor=first.tolist())
    running = VariantReplicas(current, np.zeros(len(desired)), np.zeros(len(desired)), vacant)
    variants, all_rows = Variants(service.astype(int), cost, spot), np.ones(len(desired), bool)
    result = choose(desired, VariantFleet(running, each, all_rows, variants, rules))
    plain = choose(desired, VariantFleet(running, each, all_rows, replace(variants, may_be_spot=None), rules))
    room = np.minimum(np.fmax(8 - np.fmin(current, 8), 0), vacant)
    for number in np.unique(service[service >= 0]):
        members = service == number
        assert result[members] @ each[members] >= desired[members] @ each[members] - 1e-6
        firm, wanted = members & ~spot, np.nanmax([-1.0, *first[members]])
        if wanted < 0:
            assert (result[members] == plain[members]).all()
            continue
        enough = result[firm] @ each[firm] >= desired[members] @ each[members] - 1e-6
        most = (np.fmin(current, 8) + room)[firm].sum()
        assert enough or result[firm].sum() >= min(wanted, most)
        grown = firm & (result > np.fmin(current, 8))
        if grown.any() and result[firm].sum() > max(wanted, np.fmin(current, 8)[firm].sum()):
            left = np.where(members & spot, np.fmin(current, 8) + room - result, 0.0)  # they could still have come
            without = (result + left)[members] @ each[members] - each[grown].max()
            assert without < desired[members] @ each[members] - 1e-6


@pytest.mark.slow
@given(rows)
def test_services_keep_capacity_and_workloads_their_bounds(table):
    columns = (np.array(column, float) for column in zip(*table, strict=True))
    desired, current, service, each, cost, not_running, vacant = columns
    desired = np.where(current > 0, np.maximum(desired, 1), desired)  # zero is the business of the idle stage
    rules = spec(len(desired), min_replicas=1.0, max_replicas=8.0)
    all_rows, variants = np.ones(len(desired), bool), Variants(service.astype(int), cost)
    not_running = np.minimum(not_running, current)
    running = VariantReplicas(current, not_running, np.zeros(len(desired)), vacant)
    result = choose(desired, VariantFleet(running, each, all_rows, variants, rules))
    assert (result == np.floor(result)).all()
    assert (result <= 8).all()
    assert (result[desired > 0] >= 1).all()
    for number in np.unique(service):
        members = service == number
        assert result[members] @ each[members] >= desired[members] @ each[members] - 1e-6
        if number == -1:
            assert (result[members] == desired[members]).all()
