from collections.abc import Generator
from typing import Any

import pytest

from autoscaler.lab.replay.call_progress import Progress
from autoscaler.lab.replay.parallel.search import Call, Search, run_searches


def multiply(factor: int, number: int) -> int:
    return factor * number


def fail(_shared: int) -> int:
    raise ValueError("no")


def grow(start: int, rounds: int) -> Search[list[int]]:
    """Request two products of the previous results, for several rounds."""

    def steps() -> Generator[list[Call], Any, list[int]]:
        numbers = [start, start + 1]
        for _ in range(rounds):
            numbers = yield [Call(multiply, (number,), 1.0) for number in numbers]
        return numbers

    return Search(steps(), 2.0 * rounds)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_search_continues_with_its_own_results_in_order(workers: int) -> None:
    progress: list[float] = []
    found = run_searches([grow(1, 3), grow(5, 1), grow(7, 2)], 3, workers, progress=progress.append)
    assert found == [[27, 54], [15, 18], [63, 72]]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def test_progress_is_complete_when_the_cost_was_misjudged() -> None:
    progress: list[float] = []
    searches = [grow(1, 3)._replace(cost=1.0), grow(1, 3)._replace(cost=99.0)]
    run_searches(searches, 3, 1, progress=progress.append)
    assert progress == sorted(progress)
    assert progress[5] == pytest.approx(0.01)
    assert progress[-1] == 1.0


def tell(_shared: int, progress: Progress) -> None:
    progress(0.25)
    progress(0.75)


def test_progress_of_a_running_call_counts() -> None:
    def steps() -> Generator[list[Call], Any, None]:
        yield [Call(tell, (), 6.0, reports_progress=True)]
        yield [Call(tell, (), 2.0, reports_progress=True)]

    shares: list[float] = []
    run_searches([Search(steps(), 7.0), grow(1, 1)], 3, 1, progress=shares.append, progress_period_s=0.0)
    assert [share * 9.0 for share in shares] == pytest.approx([1.5, 4.5, 6.0, 6.5, 7.0, 7.0, 8.0, 9.0])


def test_search_without_calls_ends_at_once() -> None:
    assert run_searches([grow(4, 0), grow(1, 1)], 3, 1) == [[4, 5], [3, 6]]


def test_error_of_a_call_ends_all_searches() -> None:
    def steps() -> Generator[list[Call], Any, None]:
        yield [Call(fail, (), 1.0)]

    with pytest.raises(ValueError, match="no"):
        run_searches([grow(1, 2), Search(steps(), 1.0)], 3, 1)
