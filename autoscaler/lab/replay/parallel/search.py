"""Concurrent searches: each yields calls, receives their results, and continues until it has found its result.

All searches share one sweep, so no core idles while one search waits for its longest call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from autoscaler.lab.replay.call_progress import Progress, no_progress
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.parallel.sweep import PROGRESS_PERIOD_S, sweep

Found = TypeVar("Found")

SCRAPE_COST = 40.0  # cost of one scrape and the decisions until the next; one request costs 1, about 2 µs


class Call(NamedTuple):
    """A call of a module-level function with the shared value and `args`. Its result must be picklable."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    cost: float  # approximate cost, in requests of a run
    reports_progress: bool = False  # its last parameter is a Progress


class Search(NamedTuple, Generic[Found]):
    """One search. `steps` yields non-empty lists of calls, receives their results, and returns what was found."""

    steps: Generator[list[Call], Any, Found]
    cost: float  # approximate cost of all its calls


def run_cost(case: Case, scrape_cost: float = SCRAPE_COST) -> float:
    """Return the approximate cost of one run of a case, in requests."""
    return len(case.trace.arrival_s) + scrape_cost * case.trace.duration_s / case.scrape_s


def run_searches(
    searches: Sequence[Search[Any]],
    shared: Any,
    workers: int | None = None,
    ray: bool = False,
    progress: Progress = no_progress,
    progress_period_s: float = PROGRESS_PERIOD_S,
) -> list[Any]:
    """Run the calls of all searches on all cores, and return the result of each search.

    progress: called with the completed fraction by cost, 0..1. workers, ray, progress_period_s, errors: as in `sweep`.
    """
    found: list[Any] = [None] * len(searches)
    spent = [0.0] * len(searches)
    total = sum(search.cost for search in searches)
    rounds: list[list[Any]] = [[] for _ in searches]  # results of the present round
    missing = [0] * len(searches)  # outstanding calls of the round
    calls_made: list[tuple[int, int, float]] = []  # search, position in its round, and cost of every call so far
    reported_cost: dict[int, float] = {}  # cost reported so far, by call

    def next_calls(number: int, results: list[Any] | None) -> list[Call]:
        try:
            calls = searches[number].steps.send(results)
        except StopIteration as end:
            found[number], spent[number] = end.value, searches[number].cost
            return []
        rounds[number], missing[number] = [None] * len(calls), len(calls)
        calls_made.extend((number, place, call.cost) for place, call in enumerate(calls))
        return calls

    def next_items(at: int, result: Any) -> list[Call]:
        number, place, cost = calls_made[at]
        rounds[number][place] = result
        missing[number] -= 1
        add_cost(at, cost)
        return [] if missing[number] else next_calls(number, rounds[number])

    def add_cost(at: int, cost: float) -> None:
        number = calls_made[at][0]
        spent[number] = min(spent[number] + cost - reported_cost.get(at, 0.0), searches[number].cost)
        reported_cost[at] = cost

    def on_progress(at: int, share: float) -> None:
        add_cost(at, share * calls_made[at][2])
        progress(sum(spent) / total)

    first = [call for number in range(len(searches)) for call in next_calls(number, None)]
    for _ in sweep(_make, shared, first, workers, ray, next_items, on_progress, progress_period_s):
        progress(sum(spent) / total)
    return found


def _make(shared: Any, call: Call, progress: Progress) -> Any:
    return call.function(shared, *call.args, *((progress,) if call.reports_progress else ()))
