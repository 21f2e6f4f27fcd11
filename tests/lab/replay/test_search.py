from collections.abc import Generator
from typing import Any

import pytest

from autoscaler.lab.replay import sweep
from autoscaler.lab.replay.files import Told
from autoscaler.lab.replay.search import Call, Search, side_by_side


def multiply(factor: int, number: int) -> int:
    return factor * number


def fail(_shared: int) -> int:
    raise ValueError("no")


def grow(start: int, rounds: int) -> Search[list[int]]:
    """Ask for two products of what the round before gave, so many times."""

    def steps() -> Generator[list[Call], Any, list[int]]:
        numbers = [start, start + 1]
        for _ in range(rounds):
            numbers = yield [Call(multiply, (number,), 1.0) for number in numbers]
        return numbers

    return Search(steps(), 2.0 * rounds)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_search_goes_on_with_what_its_own_calls_gave_in_their_order(workers: int) -> None:
    told: list[float] = []
    found = side_by_side([grow(1, 3), grow(5, 1), grow(7, 2)], 3, workers, told=told.append)
    assert found == [[27, 54], [15, 18], [63, 72]]
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_a_search_that_costs_more_or_less_than_was_thought_is_done_when_it_has_found() -> None:
    told: list[float] = []
    searches = [grow(1, 3)._replace(cost=1.0), grow(1, 3)._replace(cost=99.0)]
    side_by_side(searches, 3, 1, told=told.append)
    assert told == sorted(told)
    assert told[5] == pytest.approx(0.01)
    assert told[-1] == 1.0


def tell(_shared: int, told: Told) -> None:
    told(0.25)
    told(0.75)


def test_what_a_call_tells_of_itself_counts_before_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> Generator[list[Call], Any, None]:
        yield [Call(tell, (), 6.0, tells=True)]
        yield [Call(tell, (), 2.0, tells=True)]

    monkeypatch.setattr(sweep, "BEAT_S", 0.0)
    shares: list[float] = []
    side_by_side([Search(steps(), 7.0), grow(1, 1)], 3, 1, told=shares.append)
    assert [share * 9.0 for share in shares] == pytest.approx([1.5, 4.5, 6.0, 6.5, 7.0, 7.0, 8.0, 9.0])


def test_a_search_that_asks_for_nothing_has_found_at_once() -> None:
    assert side_by_side([grow(4, 0), grow(1, 1)], 3, 1) == [[4, 5], [3, 6]]


def test_the_error_of_a_call_ends_all_searches() -> None:
    def steps() -> Generator[list[Call], Any, None]:
        yield [Call(fail, (), 1.0)]

    with pytest.raises(ValueError, match="no"):
        side_by_side([grow(1, 2), Search(steps(), 1.0)], 3, 1)
