"""The share of requests that miss, by the load of the replicas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.planner.miss_curve import (
    BINS,
    FADE_S,
    MIN_PROMPTS,
    OBJECTIVES,
    PRIOR_CURVES,
    PRIOR_REQUESTS,
    add_requests,
    combine_objectives,
    compute_prior_curve,
    estimate_unavoidable,
    find_bin,
    fit_curve,
)
from tests.core.planner.interval_stats import make_stats, run, update

PRIOR = PRIOR_CURVES.mean(axis=0)
NOTHING = np.zeros((OBJECTIVES, BINS, 1))
TTFT, ITL = range(OBJECTIVES)
LOADS = (np.arange(BINS) + 0.5) / BINS


def add(load, missed, counted, *, objective=TTFT, interval_s=0.0, before=(NOTHING, NOTHING)):
    """Return missed and counted requests after these requests of one workload, for one objective."""
    new_missed, new_counted = np.zeros((OBJECTIVES, 1)), np.zeros((OBJECTIVES, 1))
    new_missed[objective], new_counted[objective] = missed, counted
    return add_requests(*before, np.array([load]), new_missed, new_counted, np.array([interval_s]))


def fit(missed, counted, unavoidable_share=(0.0, 0.0)):
    """Return the miss curve, given the unavoidable share of each objective."""
    return fit_curve(missed, counted, np.broadcast_to(np.array(unavoidable_share)[:, None], counted[:, 0].shape))


def unavoidable(*counts):
    """Return the unavoidable share of both objectives together."""
    return combine_objectives(estimate_unavoidable(*counts))


def bin_of(load):
    return int(find_bin(np.array([load]))[0])


def misses_at(load, after):
    """Return the share that misses at a load, after requests of (load, missed, counted) for both objectives."""
    counts = NOTHING, NOTHING
    for requests in after:
        for objective in range(OBJECTIVES):
            counts = add(*requests, objective=objective, before=counts)
    return fit(*counts)[bin_of(load), 0]


# --- the curve


def test_curve_is_the_prior_when_nothing_was_counted():
    np.testing.assert_allclose(fit(NOTHING, NOTHING)[:, 0], combine_objectives(np.stack([PRIOR, PRIOR])))
    assert PRIOR[bin_of(0.1)] < 0.002
    assert PRIOR[bin_of(0.3)] < 0.02
    assert PRIOR[-1] > 0.5
    assert (np.diff(PRIOR) > 0).all()


def test_loads_without_requests_do_not_lower_those_with_requests():
    share = misses_at(0.4, after=[(0.2, 2e4, 1e6), (0.4, 1e5, 1e6)])
    assert share == pytest.approx(combine_objectives(np.array([0.1, 0.1])), rel=0.01)


@pytest.mark.parametrize("objective", range(OBJECTIVES))
def test_objective_counts_as_met_when_it_is_not_reported(objective):
    curve = fit(*add(0.6, 30.0, 1e6, objective=objective))[:, 0]
    assert curve[bin_of(0.6)] == pytest.approx(3e-5, rel=0.2)


def test_prior_is_flatter_when_a_high_load_misses_nothing():
    assert misses_at(0.97, after=[(0.78, 0.0, 2000.0)]) < 0.9 * misses_at(0.97, after=[])
    assert misses_at(0.9, after=[(0.78, 0.0, 2000.0)]) < 0.5 * misses_at(0.9, after=[])
    low_load = [(0.03, 0.0, 1e6)]  # where hardly any request misses
    assert misses_at(0.97, after=low_load) == pytest.approx(misses_at(0.97, after=[]))


def test_prior_is_steeper_when_a_lower_load_misses():
    assert misses_at(0.9, after=[(0.72, 40.0, 2000.0)]) > 1.5 * misses_at(0.9, after=[(0.72, 4.0, 2000.0)])


def test_unavoidable_misses_do_not_make_the_prior_steeper():
    counts = NOTHING, NOTHING
    for load in (0.1, 0.3, 0.5):
        counts = add(load, 60.0, 3000.0, before=counts)
    steep, flat = (fit(*counts, (share, 0.0))[bin_of(0.9), 0] for share in (0.0, 0.02))
    assert 0.02 <= flat < 0.1
    assert steep > 0.2


def test_prior_hardly_changes_after_one_cluster_of_misses():
    """Three requests that missed together say less than one that missed alone."""
    assert misses_at(0.9, after=[(0.3, 3.0, 100.0)]) == pytest.approx(misses_at(0.9, after=[]), rel=0.2)


@pytest.mark.parametrize("objective", range(OBJECTIVES))
def test_many_requests_outweigh_the_prior(objective):
    """The other objective is met at all loads."""
    counts = add(0.97, 9_000.0, 10_000.0, objective=objective)
    for load in LOADS:
        counts = add(load, 0.0, 10_000.0, objective=1 - objective, before=counts)
    assert fit(*counts)[-1, 0] == pytest.approx(0.9, abs=0.01)


def test_overload_is_in_the_last_bin():
    missed, counted = add(7.0, 40.0, 50.0)
    assert (missed[TTFT, -1, 0], counted[TTFT, -1, 0]) == (40, 50)
    assert bin_of(1e300) == BINS - 1
    assert bin_of(0.0) == 0


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_bins_out_of_order_are_pooled_by_their_requests(weight):
    load_bin = bin_of(0.82)
    counts = NOTHING, NOTHING
    for objective in range(OBJECTIVES):
        counts = add(0.75, 1e5, 1e6, objective=objective, before=counts)
        counts = add(0.82, 0.0, weight * 1e6, objective=objective, before=counts)
    curve = fit(*counts)[:, 0]
    share = combine_objectives(np.array([0.1, 0.1])) / (1 + weight)
    assert curve[load_bin - 1] == curve[load_bin] == pytest.approx(share, rel=0.01)


def test_combined_share_is_between_the_larger_and_the_sum():
    assert combine_objectives(np.array([[0.1], [0.04]]))[0] == pytest.approx(0.12)
    assert combine_objectives(np.array([[0.0], [0.3]]))[0] == pytest.approx(0.3)


def test_combined_share_is_at_most_one():
    assert combine_objectives(np.array([[1.0], [1.0]]))[0] == 1
    assert fit(NOTHING, NOTHING).max() <= 1


def test_nothing_is_counted_when_the_load_is_unknown():
    missed, counted = add(np.nan, 5.0, 10.0)
    assert missed.sum() == counted.sum() == 0


def test_counts_fade_within_a_day():
    before = add(0.9, 50.0, 100.0)
    missed, counted = add(np.nan, 0.0, 0.0, interval_s=FADE_S, before=before)
    assert counted.sum() == pytest.approx(100 / np.e)
    assert missed.sum() == pytest.approx(50 / np.e)


def test_workloads_are_counted_separately_and_inputs_not_changed():
    nothing = np.zeros((OBJECTIVES, BINS, 3))
    load, missed, counted = np.array([0.97, np.nan, 0.3]), np.full((OBJECTIVES, 3), 5.0), np.full((OBJECTIVES, 3), 10.0)
    counts = add_requests(nothing, nothing, load, missed, counted, np.zeros(3))
    assert counts[1].sum(axis=(0, 1)).tolist() == [20, 0, 20]
    assert nothing.sum() == 0
    alone = add_requests(NOTHING, NOTHING, load[:1], missed[:, :1], counted[:, :1], np.zeros(1))
    np.testing.assert_array_equal(fit(*counts)[:, :1], fit(*alone))


any_requests = st.lists(
    st.tuples(st.integers(0, OBJECTIVES - 1), st.floats(0, 1e9), st.floats(0, 1), st.floats(1, 1e9)), max_size=12
)


def add_all(requests):
    counts = (NOTHING, NOTHING)
    for objective, load, share, counted in requests:
        counts = add(load, share * counted, counted, objective=objective, interval_s=30.0, before=counts)
    return counts


@given(any_requests)
def test_curve_is_a_share_and_never_falls(requests):
    curve = fit(*add_all(requests))[:, 0]
    assert (np.diff(curve) >= -1e-12).all()
    assert ((curve >= 0) & (curve <= 1)).all()


def pool(missed, counted):
    """Pool bins out of order: the second source merges one pair of neighbours at a time."""
    pools = [(m, n, 1) for m, n in zip(missed, counted, strict=True)]
    place = 0
    while place < len(pools) - 1:
        (m, n, bins), (next_m, next_n, next_bins) = pools[place : place + 2]
        if m * next_n > next_m * n:
            pools[place : place + 2] = [(m + next_m, n + next_n, bins + next_bins)]
            place = max(place - 1, 0)
        else:
            place += 1
    return np.concatenate([[m / n] * bins for m, n, bins in pools])


@given(any_requests)
def test_curve_equals_the_pooling_of_adjacent_violators(requests):
    missed, counted = add_all(requests)
    prior = compute_prior_curve(missed, counted, np.zeros((OBJECTIVES, 1)))
    total, weight = (missed + PRIOR_REQUESTS * prior)[:, :, 0], (counted + PRIOR_REQUESTS)[:, :, 0]
    is_counted = counted[:, :, 0].any(axis=1) if counted.any() else np.ones(OBJECTIVES)
    pooled = np.stack([pool(*of_objective) for of_objective in zip(total, weight, strict=True)])
    expected = combine_objectives(pooled * is_counted[:, None])
    np.testing.assert_allclose(fit(missed, counted)[:, 0], expected, rtol=1e-6, atol=1e-9)


# --- unavoidable misses

NO_PROMPTS = np.zeros(1), np.zeros(1)

FIRST_HOUR = {2.5 / BINS: 700.0, 3.5 / BINS: 20_000.0, 4.5 / BINS: 30_000.0, 5.5 / BINS: 30_000.0}
"""Requests by load: 25 requests/s that keep 2.5 replicas busy, on 7 to 11 replicas."""


def itl_counts(share, requests=1e5):
    """Return counts after as many requests at each load, of which a share missed ITL; a number, or one by load."""
    counted = np.full((OBJECTIVES, BINS, 1), requests)
    missed = np.zeros_like(counted)
    missed[ITL, :, 0] = np.asarray(share) * requests
    return missed, counted


def ttft_counts(requests, share):
    """Return counts after {load: requests}, of which a share missed TTFT; a number, or a function of the load."""
    counts = NOTHING, NOTHING
    for load, counted in requests.items():
        counts = add(load, (share(load) if callable(share) else share) * counted, counted, before=counts)
    return counts


def prompts(late, counted):
    return np.array([late]), np.array([counted])


def test_misses_that_do_not_grow_with_the_load_are_unavoidable():
    assert unavoidable(*itl_counts(0.02), *NO_PROMPTS)[0] == pytest.approx(0.02, rel=0.02)
    assert unavoidable(*itl_counts(0.1 * LOADS), *NO_PROMPTS)[0] == pytest.approx(0.0, abs=1e-3)
    assert unavoidable(*itl_counts(0.02 + 0.1 * LOADS), *NO_PROMPTS)[0] == pytest.approx(0.02, rel=0.1)


def test_unavoidable_share_is_near_zero_after_few_requests():
    assert unavoidable(*itl_counts(0.02, requests=5.0), *NO_PROMPTS)[0] < 0.002
    assert unavoidable(NOTHING, NOTHING, *NO_PROMPTS)[0] == 0


def test_unavoidable_share_is_zero_when_only_one_load_was_seen():
    missed, counted = itl_counts(0.02)
    one_bin = np.zeros_like(counted)
    one_bin[:, 4] = 1.0
    assert unavoidable(missed * one_bin, counted * one_bin, *NO_PROMPTS)[0] == pytest.approx(0.0, abs=1e-9)


def test_burst_within_a_calm_reading_is_not_unavoidable():
    """None of 170,000 requests at loads of 0.1 to 0.3 missed. Then one in twenty misses for seconds, at 0.22."""
    missed, counted = np.zeros((2, OBJECTIVES, BINS, 1))
    counted[TTFT, :6, 0] = [30_000, 40_000, 20_000, 70_000, 30_000, 50_000]
    missed[TTFT, 3] = 3500
    assert unavoidable(missed, counted, *NO_PROMPTS)[0] < 0.001


@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_most_of_a_large_unavoidable_share_is_known_in_an_hour(share):
    """The rest of it would be blamed on the load, and replicas would be added against it."""
    assert unavoidable(*ttft_counts(FIRST_HOUR, share), *NO_PROMPTS)[0] == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize("share", [lambda load: 0.9 * load, lambda load: load**2 / (1 - load)])
def test_misses_that_grow_with_the_load_are_avoidable(share):
    assert unavoidable(*ttft_counts(FIRST_HOUR, share), *NO_PROMPTS)[0] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("load", [0.28, 0.47])
def test_surge_in_which_all_requests_miss_is_not_unavoidable(load):
    """The same with some misses before it, as an engine compiles, and beside a lower load without misses."""
    surge = {load: 4500.0, 0.6: 5000.0, 0.97: 15_000.0}
    assert unavoidable(*ttft_counts(surge, 1.0), *NO_PROMPTS)[0] == pytest.approx(0.0, abs=1e-9)
    assert unavoidable(*ttft_counts({0.22: 60.0} | surge, 1.0), *NO_PROMPTS)[0] < 0.02
    assert unavoidable(*ttft_counts({0.22: 2000.0} | surge, lambda at: float(at > 0.25)), *NO_PROMPTS)[0] < 0.01


@pytest.mark.parametrize(("minutes", "share"), [(1, 0.3), (5, 0.1), (10, 0.03)])
def test_small_unavoidable_share_takes_longer_to_be_believed(minutes, share):
    requests = {load: requests * minutes / 60 for load, requests in FIRST_HOUR.items()}
    assert unavoidable(*ttft_counts(requests, share), *NO_PROMPTS)[0] < share / 3


def test_long_prompts_are_unavoidable_once_enough_were_counted():
    assert unavoidable(NOTHING, NOTHING, *prompts(9.0, 300.0))[0] == pytest.approx(0.03)
    assert unavoidable(NOTHING, NOTHING, *prompts(3.0, MIN_PROMPTS - 1))[0] == 0


def test_itl_misses_add_to_those_of_long_prompts():
    """3 % of prompts are too long, and 2 % miss ITL at any load. Half of the latter are assumed to miss both."""
    assert unavoidable(*itl_counts(0.02), *prompts(30.0, 1000.0))[0] == pytest.approx(0.04, rel=0.02)


@given(any_requests, st.floats(0, 1), st.floats(0, 1e6))
def test_unavoidable_share_is_between_zero_and_one(requests, late, counted):
    assert 0 <= unavoidable(*add_all(requests), *prompts(late * counted, counted))[0] <= 1


# --- which intervals are counted


def test_misses_are_counted_at_their_load_unless_a_queue_stands():
    before = run([3.0] * 200, replicas=4, late=0.2)
    counts = before.miss_counts
    assert counts.missed[0, bin_of(0.75), 0] / counts.counted[0].sum() == pytest.approx(0.2, rel=0.05)
    # TTFT is reported after the wait, so an interval that drains a queue does not count either.
    for columns in ({"waiting": 40.0}, {"totals": {"queue_growth": -40.0}}):
        after = update(before, make_stats(3.0, replicas=4, late=1.0, **columns))
        np.testing.assert_allclose(after.miss_counts.missed, counts.missed, rtol=0.01, err_msg=str(columns))
        assert after.budget.missed[0] > before.budget.missed[0] + 40


@pytest.mark.parametrize(("waiting", "is_counted"), [(0.6, True), (1.4, False)])
def test_misses_are_counted_when_a_queue_is_very_short(waiting, is_counted):
    """Four replicas work for 0.3 and 0.7 s at these requests."""
    before = run([3.0] * 20, replicas=4)
    after = update(before, make_stats(3.0, replicas=4, late=1.0, waiting=waiting))
    assert (after.miss_counts.missed.sum() > before.miss_counts.missed.sum() + 40) == is_counted


@pytest.mark.parametrize(("demand", "is_counted"), [(4.4, True), (7.6, False)])
def test_misses_are_not_counted_far_beyond_full_load(demand, is_counted):
    before = run([3.0] * 20, replicas=4)
    after = update(before, make_stats(demand, replicas=4, late=1.0, totals={"queue_growth": 0.0}))
    assert (after.miss_counts.missed.sum() > before.miss_counts.missed.sum() + 40) == is_counted
