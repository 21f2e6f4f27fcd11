"""The dynamic programs compared with an exhaustive search on small cases."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.lab.bounds.dynamic_programs import TimeWindows, maximize, minimize_cost, minimize_cost_of_counts


def windows(work: list[int], slack: list[int], lost: list[list[float]] | None = None, quanta: int = 1) -> TimeWindows:
    return TimeWindows(
        window_s=10.0,
        quanta=quanta,
        work=np.array(work, np.int64),
        slack=np.array(slack, np.int64),
        lost_alone=np.zeros((len(work), 1)) if lost is None else np.array(lost, np.float64),
        most_replicas=9,
    )


def search_exhaustively(
    case: TimeWindows, start_s: float, quantum_price_s: float, request_price_s: float, highest: int
) -> float:
    """Try all counts up to `highest` in every window. Those of the first window are free."""
    best = math.inf
    for counts in itertools.product(range(highest + 1), repeat=len(case.work)):
        cost, backlog, before, off = -counts[0] * case.window_s, 0, counts[0], case.lost_alone.shape[1]
        for window, count in enumerate(counts):
            cost += count * case.window_s + max(count - before, 0) * start_s
            off = 0 if count else min(off + 1, case.lost_alone.shape[1])
            if not count:
                cost += request_price_s * case.lost_alone[window, off - 1]
            backlog = max(backlog + int(case.work[window]) - count * case.quanta, 0)
            over = max(backlog - int(case.slack[window]), 0)
            cost += over * quantum_price_s
            backlog -= over
            before = count
        best = min(best, cost)
    return best


@pytest.mark.slow
@given(st.data())
def test_minimum_cost_matches_an_exhaustive_search(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 6))
    counts = st.integers(0, 4)
    work = data.draw(st.lists(counts, min_size=length, max_size=length))
    slack = data.draw(st.lists(counts, min_size=length, max_size=length))
    memory = data.draw(st.integers(1, 3))
    rows = data.draw(
        st.lists(st.lists(st.integers(0, 3), min_size=memory, max_size=memory), min_size=length, max_size=length)
    )
    lost = [list(itertools.accumulate(map(float, row))) for row in rows]
    case = windows(work, slack, lost, data.draw(st.sampled_from([1, 2])))
    prices = data.draw(st.tuples(*(st.sampled_from([0.0, 3.0, 12.0, 40.0, 500.0]) for _ in range(2))))
    start_s = data.draw(st.sampled_from([0.0, 7.0, 45.0]))
    expected = search_exhaustively(case, start_s, *prices, highest=4)
    assert minimize_cost(case, start_s, *prices) == pytest.approx(expected)


def test_short_valley_is_bridged_and_a_long_one_is_not() -> None:
    quiet = [0] * 5  # too long to keep the initial replicas
    assert minimize_cost(windows([*quiet, 1, 0, 0, 0, 1], [0] * 10), 35.0, 1e6, 0.0) == 35 + 50
    assert minimize_cost(windows([*quiet, 1, 0, 0, 0, 0, 1], [0] * 11), 35.0, 1e6, 0.0) == 35 + 10 + 35 + 10


def test_initial_replicas_are_free_for_one_window() -> None:
    assert minimize_cost(windows([3, 0, 0], [0] * 3), 35.0, 1e6, 0.0) == 0
    assert minimize_cost(windows([0, 2, 0], [0] * 3), 35.0, 1e6, 0.0) == 2 * 10


def test_work_waits_within_its_slack() -> None:
    assert minimize_cost(windows([0, 0, 4, 0, 0, 0], [0] * 6), 5.0, 1e6, 0.0) == 4 * 15
    assert minimize_cost(windows([0, 0, 4, 0, 0, 0], [0, 0, 3, 2, 1, 0]), 5.0, 1e6, 0.0) == 5 + 40


def test_requests_are_missed_when_a_replica_costs_more() -> None:
    case = windows([1, 1, 5, 1], [0] * 4)
    assert (
        minimize_cost(case, 60.0, quantum_price_s=5.0, request_price_s=0.0) == 7 * 5
    )  # of eight, since the initial one is free
    assert minimize_cost(case, 60.0, quantum_price_s=80.0, request_price_s=0.0) == 30 + 4 * 20


def test_lone_request_is_lost_only_without_any_replica() -> None:
    """It arrives in the third window and expires in the fourth."""
    case = windows([0, 0, 0, 0], [0, 0, 0, 0], [[0, 0], [0, 0], [0, 0], [0, 1]])
    assert minimize_cost(case, 5.0, 1e6, request_price_s=100.0) == 15
    assert minimize_cost(case, 5.0, 1e6, request_price_s=9.0) == 9


def test_largest_count_serves_any_work_at_once() -> None:
    """More replicas must not be cheaper, or the result would be no bound."""
    assert minimize_cost(windows([0, 40], [0, 0]), 0.0, 1e6, 0.0) == 9 * 10


def test_negative_start_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="start_s is -1; it must be 0 or more"):
        minimize_cost(windows([1], [0]), -1.0, 1.0, 0.0)


@given(st.data())
def test_minimum_cost_of_counts_matches_an_exhaustive_search(data: st.DataObject) -> None:
    length, most = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    level = np.array(sorted(data.draw(st.lists(st.integers(0, 2), min_size=most + 1, max_size=most + 1))))
    row = st.lists(st.integers(0, 9), min_size=3, max_size=3)
    missed = np.array(data.draw(st.lists(row, min_size=length, max_size=length)), np.int64)
    start_s, price_s = data.draw(st.sampled_from([0.0, 7.0, 45.0])), data.draw(st.sampled_from([0.0, 3.0, 40.0]))

    def cost_s(counts: tuple[int, ...]) -> float:
        starts = sum(max(after - before, 0) for before, after in itertools.pairwise(counts))
        missing = sum(int(missed[window, level[count]]) for window, count in enumerate(counts))
        return 10.0 * sum(counts[1:]) + start_s * starts + price_s * missing  # the first window is free

    expected = min(cost_s(counts) for counts in itertools.product(range(most + 1), repeat=length))
    assert minimize_cost_of_counts(missed, level, 10.0, start_s, price_s) == pytest.approx(expected)


def test_negative_start_cost_of_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="start_s is -1; it must be 0 or more"):
        minimize_cost_of_counts(np.zeros((1, 1), np.int64), np.zeros(2, np.int64), 10.0, -1.0, 1.0)


@pytest.mark.parametrize("summit", [0.02, 1.0, 300.0])
def test_maximize_finds_the_maximum(summit: float) -> None:
    found = maximize(lambda price: -(math.log(price / summit) ** 2), 1e-3, 1e4)
    assert abs(math.log(found / summit)) < 0.25  # eleven prices over seven powers of ten
