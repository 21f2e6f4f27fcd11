"""The share of requests that miss, by the load of the replicas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.measure.miss_curve import (
    BINS,
    FADE_S,
    MAX_UTILIZATION,
    MIN_PROMPTS,
    OBJECTIVES,
    PRIOR_STEEPNESS,
    combine_objectives,
    compute_mean_queue,
    estimate_unavoidable,
    fit_steepness,
)
from tests.core.planner.interval_stats import make_stats, run, update

NOTHING = np.zeros((OBJECTIVES, BINS, 1))
TTFT, ITL = range(OBJECTIVES)
LOADS = (np.arange(BINS) + 0.5) / BINS


def bin_of(load):
    return min(int(load * BINS), BINS - 1)


def add(load, missed, counted, *, objective=TTFT, before=(NOTHING, NOTHING)):
    """Return missed and counted requests after these requests of one workload, for one objective."""
    after = tuple(counts.copy() for counts in before)
    for counts, new in zip(after, (missed, counted), strict=True):
        counts[objective, bin_of(load)] += new
    return after


def fit(missed, counted, unavoidable_share=(0.0, 0.0)):
    """Return the steepness, given the unavoidable share of each objective."""
    return fit_steepness(missed, counted, np.array(unavoidable_share)[:, None])[0]


def unavoidable(*counts):
    """Return the unavoidable share of both objectives together."""
    return combine_objectives(estimate_unavoidable(*counts))


# --- the curve


def test_steepness_is_that_of_the_prior_when_nothing_was_counted():
    assert fit(NOTHING, NOTHING) == pytest.approx(1.5 * PRIOR_STEEPNESS)


@pytest.mark.parametrize(("load", "waiting"), [(0.0, 0.0), (0.5, 0.5), (0.8, 3.2)])
def test_mean_queue_is_that_of_one_server(load, waiting):
    """The share of time with more than n requests in an M/M/1 is load^(n + 1); all but the one in service wait."""
    assert compute_mean_queue(np.array([load]))[0] == pytest.approx(waiting)
    assert sum(load ** (others + 1) for others in range(1, 400)) == pytest.approx(waiting)


def test_mean_queue_stays_the_same_where_work_queues_anyway():
    overload = compute_mean_queue(np.array([MAX_UTILIZATION, 1.0, 7.0, 1e300]))
    assert (overload == overload[0]).all()


@pytest.mark.parametrize("objective", range(OBJECTIVES))
def test_objective_counts_as_met_when_it_is_not_reported(objective):
    load = LOADS[bin_of(0.6)]
    steepness = fit(*add(load, 30.0, 1e6, objective=objective))
    assert steepness * compute_mean_queue(load) == pytest.approx(5e-5, rel=0.01)  # with those of the prior


@pytest.mark.parametrize("objective", range(OBJECTIVES))
def test_steepness_is_that_of_many_requests_at_all_loads(objective):
    """The other objective is met."""
    counts = NOTHING, NOTHING
    for load in LOADS:
        missed = 0.02 * compute_mean_queue(load) * 1e5
        counts = add(load, missed, 1e5, objective=objective, before=counts)
        counts = add(load, 0.0, 1e7, objective=1 - objective, before=counts)
    assert fit(*counts) == pytest.approx(0.02, rel=0.01)


def test_load_that_was_never_tried_is_judged_by_the_others():
    prior = fit(NOTHING, NOTHING)
    low_load, high_load = (fit(*add(load, 0.0, 2000.0)) for load in (0.03, 0.78))
    assert high_load < 0.05 * prior
    assert low_load > 0.6 * prior  # where hardly any request misses
    assert fit(*add(0.72, 200.0, 2000.0)) > 5 * fit(*add(0.72, 4.0, 2000.0))


def test_steepness_hardly_changes_after_one_cluster_of_misses():
    """Three requests that missed together say less than one that missed alone."""
    assert fit(*add(0.3, 3.0, 100.0)) == pytest.approx(PRIOR_STEEPNESS, rel=0.2)


def test_unavoidable_misses_do_not_make_the_curve_steeper():
    counts = NOTHING, NOTHING
    for load in (0.1, 0.3, 0.5):
        counts = add(load, 60.0, 3000.0, before=counts)
    assert fit(*counts, (0.02, 0.0)) < 0.2 * fit(*counts)


def test_combined_share_is_between_the_larger_and_the_sum():
    assert combine_objectives(np.array([[0.1], [0.04]]))[0] == pytest.approx(0.12)
    assert combine_objectives(np.array([[0.0], [0.3]]))[0] == pytest.approx(0.3)


def test_combined_share_is_at_most_one():
    assert combine_objectives(np.array([[1.0], [1.0]]))[0] == 1


any_requests = st.lists(
    st.tuples(st.integers(0, OBJECTIVES - 1), st.floats(0, 1e9), st.floats(0, 1), st.floats(1, 1e9)), max_size=12
)


def add_all(requests):
    counts = (NOTHING, NOTHING)
    for objective, load, share, counted in requests:
        counts = add(load, share * counted, counted, objective=objective, before=counts)
    return counts


@given(any_requests)
def test_steepness_is_positive_and_grows_with_misses(requests):
    missed, counted = add_all(requests)
    fewer, more = fit(0.5 * missed, counted), fit(missed, counted)
    assert 0 < fewer <= more <= 1
    assert np.isfinite(more)


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
    assert unavoidable(NOTHING, NOTHING, *prompts(3.0, MIN_PROMPTS))[0] == pytest.approx(0.03)
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


@pytest.mark.parametrize(("waiting", "is_counted"), [(0.6, True), (2.0, False)])
def test_misses_are_counted_when_a_queue_is_very_short(waiting, is_counted):
    """Four replicas work for 0.3 and 1 s at these requests."""
    before = run([3.0] * 20, replicas=4)
    after = update(before, make_stats(3.0, replicas=4, late=1.0, waiting=waiting))
    assert (after.miss_counts.missed.sum() > before.miss_counts.missed.sum() + 40) == is_counted


def test_counts_fade_by_their_time_constant():
    state = run([3.0] * 200, replicas=4, late=0.2)
    missed = state.miss_counts.missed.sum()
    for _ in range(180):  # of two minutes, without a request: six hours
        state = update(state, make_stats(0.0, replicas=4), 120.0)
    assert state.miss_counts.missed.sum() == pytest.approx(missed * np.exp(-21_600 / FADE_S), rel=0.01)


def test_load_far_beyond_one_is_in_the_last_bin():
    before = run([3.0] * 20, replicas=4)
    after = update(before, make_stats(40.0, replicas=4, late=1.0, totals={"queue_growth": 0.0}))
    assert after.miss_counts.missed[TTFT, -1, 0] > before.miss_counts.missed[TTFT, -1, 0] + 40
