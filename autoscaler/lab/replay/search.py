"""Searches of a proof side by side: each asks for calls, is sent what they gave, and asks again until it has found.

All searches share one sweep, so that no core waits for the longest call of somebody else's round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.files import Told, untold
from autoscaler.lab.replay.sweep import sweep

Found = TypeVar("Found")

SCRAPE_COST = 40.0  # of one scrape of a run, and the decisions until the next; that of a request is 1, some 2 µs


class Call(NamedTuple):
    """A function of a module, called with what all searches share and then `given`. What it returns is picklable."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    cost: float  # about how long it takes, in requests of a run
    tells: bool = False  # it takes a `told`, last, and calls it with how much is done


class Search(NamedTuple, Generic[Found]):
    """One search: `steps` yields calls, never none, is sent what each returned, and returns what was found."""

    steps: Generator[list[Call], Any, Found]
    cost: float  # about, of all its calls


def run_cost(case: Case, scrape_cost: float = SCRAPE_COST) -> float:
    """Return about what one run of a case costs."""
    return len(case.trace.arrival_s) + scrape_cost * case.trace.duration_s / case.scrape_s


def side_by_side(
    searches: Sequence[Search[Any]],
    shared: Any,
    workers: int | None = None,
    ray: bool = False,
    told: Told = untold,
) -> list[Any]:
    """Make the calls of all searches, on all cores, and return what each found.

    told: called with the done part by cost, 0..1. workers, ray, errors: as in `sweep`.
    """
    found: list[Any] = [None] * len(searches)
    spent = [0.0] * len(searches)
    total = sum(search.cost for search in searches)
    rounds: list[list[Any]] = [[] for _ in searches]  # what the calls of the present round returned
    missing = [0] * len(searches)  # calls of it that have not returned
    asked: list[tuple[int, int, float]] = []  # of every call so far: search, place in its round, cost
    known: dict[int, float] = {}  # what each call has cost, as far as it has told

    def ask(number: int, results: list[Any] | None) -> list[Call]:
        try:
            calls = searches[number].steps.send(results)
        except StopIteration as end:
            found[number], spent[number] = end.value, searches[number].cost
            return []
        rounds[number], missing[number] = [None] * len(calls), len(calls)
        asked.extend((number, place, call.cost) for place, call in enumerate(calls))
        return calls

    def follow(at: int, result: Any) -> list[Call]:
        number, place, cost = asked[at]
        rounds[number][place] = result
        missing[number] -= 1
        spend(at, cost)
        return [] if missing[number] else ask(number, rounds[number])

    def spend(at: int, cost: float) -> None:
        number = asked[at][0]
        spent[number] = min(spent[number] + cost - known.get(at, 0.0), searches[number].cost)
        known[at] = cost

    def heard(at: int, share: float) -> None:
        spend(at, share * asked[at][2])
        told(sum(spent) / total)

    first = [call for number in range(len(searches)) for call in ask(number, None)]
    for _ in sweep(_make, shared, first, workers, ray, follow, heard):
        told(sum(spent) / total)
    return found


def _make(shared: Any, call: Call, told: Told) -> Any:
    return call.function(shared, *call.given, *((told,) if call.tells else ()))
