"""Quantiles, fractions and windows of cumulative buckets, compared with a slow version in plain Python."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.table.histogram import (
    Histogram,
    HistogramWindow,
    LimitPosition,
    bound_above,
    count_within,
    find_limit,
    fraction_within,
    increase,
    merge,
    pooled_quantile,
    quantile,
)

INF = math.inf


@st.composite
def histograms(draw: st.DrawFn, rows: int = 1) -> tuple[list[float], list[list[float]]]:
    finite = draw(st.lists(st.integers(1, 10_000), min_size=1, max_size=8, unique=True))
    bounds = [bound / 100 for bound in sorted(finite)] + [INF]
    increments = st.lists(st.integers(0, 50), min_size=len(bounds), max_size=len(bounds))
    counts = [list(np.cumsum(draw(increments)).astype(float)) for _ in range(rows)]
    return bounds, counts


def plain_quantile(q: float, bounds: list[float], counts: list[float]) -> float:
    """Source: the description of histogram_quantile in Prometheus' documentation, one bucket after the other."""
    if counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    start, below = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= rank:
            if bound == INF:
                return bounds[-2]
            if start == 0.0 and below == 0.0 and bound <= 0:
                return bound
            return start + (bound - start) * (rank - below) / (count - below)
        start, below = bound, count
    raise AssertionError("the last bucket holds every rank")


def plain_share(limit: float, bounds: list[float], counts: list[float]) -> float:
    if counts[-1] == 0:
        return math.nan
    start, below = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if limit == bound:
            return count / counts[-1]
        if limit < bound:
            inside = 0.0 if bound == INF or limit <= start else (limit - start) / (bound - start)
            return (below + (count - below) * inside) / counts[-1]
        start, below = bound, count
    raise AssertionError("the last bound is above every limit")


@given(histograms(rows=4), st.floats(0.01, 1.0))
def test_quantile_equals_the_plain_version_in_every_row(given: tuple[list[float], list[list[float]]], q: float) -> None:
    bounds, counts = given
    expected = [plain_quantile(q, bounds, row) for row in counts]
    np.testing.assert_allclose(quantile(q, np.array(bounds), np.array(counts)), expected, rtol=1e-12)


@given(histograms(rows=4), st.floats(0.0, 150.0))
def test_fraction_within_equals_the_plain_version_in_every_row(
    given: tuple[list[float], list[list[float]]], limit: float
) -> None:
    bounds, counts = given
    expected = [plain_share(limit, bounds, row) for row in counts]
    share = fraction_within(limit, np.array(bounds), np.array(counts))
    np.testing.assert_allclose(share, expected, rtol=1e-12, atol=1e-300)  # below it floats have few digits


@given(histograms(), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_higher_quantiles_are_never_smaller(
    given: tuple[list[float], list[list[float]]], one: float, other: float
) -> None:
    bounds, counts = np.array(given[0]), np.array(given[1][0])
    low, high = quantile(min(one, other), bounds, counts), quantile(max(one, other), bounds, counts)
    assert not high < low - 1e-9


@given(histograms(), st.floats(0.05, 0.95))
def test_fraction_within_a_quantile_is_that_quantile(given: tuple[list[float], list[list[float]]], q: float) -> None:
    bounds, counts = np.array(given[0]), np.array(given[1][0])
    value = float(quantile(q, bounds, counts))
    if math.isnan(value) or value >= bounds[-2]:
        return  # nothing observed, or in the bucket without an end
    assert float(fraction_within(value, bounds, counts)) == pytest.approx(q, abs=1e-9)


@given(histograms(rows=4), st.floats(0.0, 150.0))
def test_count_within_equals_its_fraction_and_grows_with_limits(
    given: tuple[list[float], list[list[float]]], limit: float
) -> None:
    bounds, counts = np.array(given[0]), np.array(given[1])
    count = count_within(limit, bounds, counts)
    expected = [plain_share(limit, given[0], row) * row[-1] if row[-1] else 0.0 for row in given[1]]
    np.testing.assert_allclose(count, expected, rtol=1e-12, atol=1e-300)  # below it floats have few digits
    assert (count <= count_within(limit * 1.5, bounds, counts) + 1e-9).all()


def test_limit_includes_whole_buckets_and_part_of_the_last() -> None:
    bounds = np.array([1.0, 2.0, 4.0, INF])
    assert find_limit(3.0, bounds) == LimitPosition(2.0, 4.0, 0.5)
    assert find_limit(0.25, bounds) == LimitPosition(0.0, 1.0, 0.25)
    assert find_limit(2.0, bounds) == LimitPosition(2.0, 2.0, 0.0)
    assert find_limit(60.0, bounds) == LimitPosition(4.0, 4.0, 0.0)
    assert bound_above(3.0, bounds) == bound_above(4.0, bounds) == 4.0
    assert math.isnan(bound_above(60.0, bounds)) and math.isnan(bound_above(math.nan, bounds))
    assert find_limit(math.nan, bounds) is find_limit(1.0, np.array([INF])) is None


def test_count_is_nan_without_a_limit_or_finite_bound() -> None:
    assert np.isnan(count_within(math.nan, np.array([1.0, INF]), np.array([3.0, 5.0])))
    assert np.isnan(count_within(1.0, np.array([INF]), np.array([5.0])))


def test_quantile_and_fraction_are_nan_without_observations() -> None:
    bounds, counts = np.array([1.0, 2.0, INF]), np.zeros((3, 3))
    assert np.isnan(quantile(0.95, bounds, counts)).all()
    assert np.isnan(fraction_within(1.0, bounds, counts)).all()


def test_quantile_is_the_highest_finite_bound_when_beyond_it() -> None:
    bounds, counts = np.array([1.0, 2.0, INF]), np.array([0.0, 0.0, 7.0])
    assert quantile(0.5, bounds, counts) == 2.0
    assert fraction_within(100.0, bounds, counts) == 0.0


def test_quantile_matches_the_example_of_its_docstring() -> None:
    assert quantile(0.5, np.array([1.0, 2.0, INF]), np.array([4.0, 8.0, 10.0])) == 1.25


def test_quantile_is_nan_without_a_finite_bound_or_infinity() -> None:
    assert np.isnan(quantile(0.5, np.array([INF]), np.array([5.0])))
    assert np.isnan(quantile(0.5, np.array([1.0, 2.0]), np.array([1.0, 5.0])))


def test_quantile_outside_0_to_1_is_rejected_with_its_value() -> None:
    with pytest.raises(ValueError, match=r"quantile 1\.5"):
        quantile(1.5, np.array([1.0, INF]), np.array([1.0, 1.0]))


def test_increase_counts_from_zero_after_a_reset_and_keeps_nan() -> None:
    before, after = np.array([5.0, 5.0, np.nan, 1.0]), np.array([8.0, 2.0, 3.0, np.nan])
    np.testing.assert_array_equal(increase(before, after), [3.0, 2.0, np.nan, np.nan])


@given(st.lists(st.integers(0, 100), min_size=2, max_size=20))
def test_increases_sum_to_the_total_across_resets(values: list[int]) -> None:
    column = np.array(values, dtype=float)
    total = 0.0
    for before, after in itertools.pairwise(values):
        total += after if after < before else after - before
    assert increase(column[:-1], column[1:]).sum() == total


def test_merge_adds_histograms_of_equal_bounds() -> None:
    bounds = np.array([1.0, INF])
    folded = merge([Histogram(bounds, np.array([1.0, 2.0])), Histogram(bounds, np.array([3.0, 5.0]))])
    assert folded is not None
    np.testing.assert_array_equal(folded.counts, [4.0, 7.0])


def test_merge_keeps_only_common_bounds() -> None:
    fine = Histogram(np.array([1.0, 2.0, 4.0, INF]), np.array([1.0, 2.0, 3.0, 4.0]))
    coarse = Histogram(np.array([2.0, 8.0, INF]), np.array([10.0, 20.0, 30.0]))
    folded = merge([fine, coarse])
    assert folded is not None
    np.testing.assert_array_equal(folded.bounds, [2.0, INF])
    np.testing.assert_array_equal(folded.counts, [12.0, 34.0])
    assert merge([fine, Histogram(np.array([3.0, INF]), np.array([1.0, 1.0]))]) is None
    assert merge([]) is None


def push_all(
    window: HistogramWindow, readings: list[tuple[float, Histogram]], window_s: float = 60.0
) -> HistogramWindow:
    for now_s, reading in readings:
        window = window.push(now_s, reading, window_s)
    return window


def reading(*counts: float, bounds: tuple[float, ...] = (1.0, 2.0, INF)) -> Histogram:
    return Histogram(np.array(bounds), np.array(counts))


def test_window_counts_only_observations_within_it() -> None:
    window = push_all(HistogramWindow(), [(0.0, reading(100, 100, 100)), (10.0, reading(100, 104, 104))])
    assert pooled_quantile(0.5, [window]) == 1.5  # the first 100 came before the window
    window = push_all(window, [(100.0, reading(100, 104, 104)), (150.0, reading(100, 104, 104))])
    assert math.isnan(pooled_quantile(0.5, [window]))  # no request came for a minute
    window = push_all(window, [(155.0, reading(101, 105, 105)), (210.0, reading(102, 107, 107))])
    assert window.times_s == (150.0, 155.0, 210.0)  # the first is as old as the window is long


def test_window_has_no_quantile_with_one_reading() -> None:
    assert math.isnan(pooled_quantile(0.95, [HistogramWindow().push(0.0, reading(5, 5, 5), 60.0)]))


def test_window_restarts_when_counts_fall() -> None:
    window = push_all(HistogramWindow(), [(0.0, reading(900, 1000, 1000)), (5.0, reading(0, 1, 1))])
    assert math.isnan(pooled_quantile(0.95, [window]))
    assert pooled_quantile(0.5, [window.push(10.0, reading(10, 11, 11), 60.0)]) == 0.5


def test_window_restarts_when_bounds_change() -> None:
    window = push_all(HistogramWindow(), [(0.0, reading(0, 0, 0)), (5.0, reading(5, 9, 9))])
    window = window.push(10.0, reading(5, 9, 20, bounds=(1.0, 3.0, INF)), 60.0)
    assert math.isnan(pooled_quantile(0.95, [window]))
    assert pooled_quantile(0.5, [window.push(15.0, reading(15, 19, 30, bounds=(1.0, 3.0, INF)), 60.0)]) == 0.5


def test_window_restarts_after_a_long_gap() -> None:
    window = push_all(HistogramWindow(), [(0.0, reading(0, 0, 0)), (5.0, reading(0, 4, 4))])
    assert math.isnan(pooled_quantile(0.5, [window.push(500.0, reading(50, 54, 54), 60.0)]))


def test_window_restarts_when_the_clock_does_not_advance() -> None:
    window = push_all(HistogramWindow(), [(5.0, reading(0, 0, 0)), (5.0, reading(0, 4, 4))])
    assert math.isnan(pooled_quantile(0.5, [window]))


@given(st.lists(st.tuples(st.floats(0.05, 30.0), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=200))
def test_window_stays_small_and_covers_its_length(steps: list[tuple[float, int, int]]) -> None:
    window, now_s, counts = HistogramWindow(), 0.0, np.zeros(3)
    history: list[tuple[float, np.ndarray]] = []
    for pause_s, low, high in steps:
        now_s += pause_s
        counts = counts + np.array([low, low + high, low + high], dtype=float)
        history.append((now_s, counts))
        window = window.push(now_s, Histogram(np.array([1.0, 2.0, INF]), counts), 60.0)
    assert len(window.times_s) <= 15
    assert window.times_s[-1] == now_s
    np.testing.assert_array_equal(window.counts[-1], counts)
    if (
        history[0][0] <= now_s - 60.0
    ):  # read for longer than the window: it begins before it, by less than a pause and a slot
        assert now_s - 60.0 - 30.0 - 60.0 / 12 <= window.times_s[0] <= now_s - 60.0 + 60.0 / 12
    else:
        assert window.times_s[0] == history[0][0]


def observed(bounds: list[float], values: list[float]) -> Histogram:
    """The histogram of some values."""
    return Histogram(np.array(bounds), np.array([sum(value <= bound for value in values) for bound in bounds], float))


@given(
    st.lists(st.lists(st.floats(0.0, 12.0), max_size=12), min_size=1, max_size=5),
    st.lists(st.floats(0.0, 12.0), max_size=9),
    st.floats(0.01, 1.0),
)
def test_pooled_quantile_equals_that_of_all_values_together(
    values: list[list[float]], before: list[float], q: float
) -> None:
    bounds = [0.5, 1.0, 2.0, 4.0, 8.0, INF]
    windows = [
        push_all(HistogramWindow(), [(0.0, observed(bounds, before)), (20.0, observed(bounds, before + of_pod))])
        for of_pod in values
    ]
    whole = observed(bounds, [value for of_pod in values for value in of_pod])
    expected = float(quantile(q, *whole))
    assert pooled_quantile(q, windows) == pytest.approx(expected, nan_ok=True)
    own = [pooled_quantile(q, [window]) for window in windows]
    if not math.isnan(expected):
        assert np.nanmin(own) - 1e-9 <= expected <= np.nanmax(own) + 1e-9


def test_pooled_quantile_ignores_bounds_of_idle_windows() -> None:
    busy = push_all(HistogramWindow(), [(0.0, reading(0, 0, 0)), (5.0, reading(0, 4, 4))])
    idle = reading(9, 9, 9, bounds=(3.0, 5.0, INF))
    assert pooled_quantile(0.5, [busy, push_all(HistogramWindow(), [(0.0, idle), (5.0, idle)])]) == 1.5
    assert math.isnan(pooled_quantile(0.5, []))
