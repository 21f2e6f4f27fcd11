"""Baselines at their best: for each case, the setting that hindsight would have chosen."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from autoscaler.sim.proof.counts import fewest
from autoscaler.sim.proof.search import Call, Search, run_cost
from autoscaler.sim.study.baselines import BASELINES, Baseline, Params
from autoscaler.sim.study.case import Case
from autoscaler.sim.study.run import run
from autoscaler.sim.study.score import Row, summarize
from autoscaler.sim.study.work import attainable

COUNTS = 10.0  # about, that are run to find the least that meets the goal
STEPS = 8  # at the most, beyond the ends of the grid
MORE = 0.001  # of the requests: where none meets the goal, a step that serves fewer more comes no nearer to it
BEYOND = 1.75  # times the runs of the grid, with those beyond its ends and around its best


@dataclass(frozen=True)
class Tuned:
    """The best of the settings that were tried: the cheapest that meets the goal, else the nearest to it."""

    name: str
    params: Params
    row: Row
    found: tuple[tuple[Params, Row], ...]  # every setting that was tried, with what it came to


def tuning(cases: Sequence[Case], name: str, first: int = 0) -> Search[list[Tuned]]:
    """Search the best setting of a baseline on each case. What the calls share has them from place `first` on.

    The grid is run. It is extended, by `STEPS` steps at the most: where the best setting lies at an end of an axis that
    has a range, and downward, to more replicas, as long as none meets the goal; if nobody can meet it, only while each
    step serves one request in a thousand more. Then what lies around the best is run. The best is the cheapest that
    meets the goal, else the one with the highest attainment. A baseline whose one setting is a count is searched as in
    `fewest`. Raises ValueError for an unknown name.
    """
    if name not in BASELINES:
        raise ValueError(f"baseline is {name!r}; allowed: {', '.join(BASELINES)}")
    baseline = BASELINES[name]
    runs = [COUNTS if baseline.monotone else BEYOND * len(baseline.grid(case)) for case in cases]
    return Search(
        _rounds(cases, name, first), sum(count * run_cost(case) for count, case in zip(runs, cases, strict=True))
    )


def _rounds(cases: Sequence[Case], name: str, first: int) -> Generator[list[Call], Any, list[Tuned]]:
    baseline = BASELINES[name]
    found: list[list[tuple[Params, Row]]] = [[] for _ in cases]

    def run_all(settings: Sequence[Sequence[Params]]) -> Generator[list[Call], Any, None]:
        jobs = [(place, params) for place, each in enumerate(settings) for params in each]
        rows = yield [Call(_evaluate, (first + place, name, params), run_cost(cases[place])) for place, params in jobs]
        for (place, params), row in zip(jobs, rows, strict=True):
            found[place].append((params, row))

    if baseline.monotone:
        found = yield [Call(_least, (place, name), COUNTS * run_cost(case)) for place, case in enumerate(cases, first)]
    else:
        yield from run_all([baseline.grid(case) for case in cases])
        before = [-math.inf for _ in cases]  # the best attainment before the last step
        for _ in range(STEPS):
            beyond = [_beyond(baseline, *each) for each in zip(cases, found, before, strict=True)]
            if not any(beyond):
                break
            before = [max(row.attainment for _, row in each) for each in found]
            yield from run_all(beyond)
        around = [
            baseline.around(case, _best(baseline, case, each)[0], [params for params, _ in each])
            for case, each in zip(cases, found, strict=True)
        ]
        if any(around):
            yield from run_all(around)
    best = [_best(baseline, case, each) for case, each in zip(cases, found, strict=True)]
    return [Tuned(name, *setting, tuple(each)) for setting, each in zip(best, found, strict=True)]


def _beyond(baseline: Baseline, case: Case, found: Sequence[tuple[Params, Row]], before: float) -> list[Params]:
    """Return what lies one step beyond the grid and was not run; nothing, where that was and is not better.

    before: the best attainment before the last step.
    """
    from_here, row = _best(baseline, case, found)
    tried = [params for params, _ in found]
    if not case.goal.met_by(row.attainment):
        if row.attainment < before + MORE and not case.goal.met_by(attainable(case)):
            return []
        lowest = {name: min(float(each[name]) for each in tried) for name in baseline.ranged(case)}
        from_here = {**from_here, **lowest}
    return [params for params in baseline.beyond(case, from_here) if params not in tried]


def _best(baseline: Baseline, case: Case, found: Sequence[tuple[Params, Row]]) -> tuple[Params, Row]:
    """Return the cheapest that meets the goal, else the nearest to it.

    Of equals it is the highest setting of the grid, beyond which it may get cheaper; a step beyond that changes nothing
    is the last. Else it is the first that was run.
    """
    ranged, grid = baseline.ranged(case), len(baseline.grid(case))

    def order(place: int) -> tuple[bool, float, float, bool, list[float]]:
        params, row = found[place]
        meets = case.goal.met_by(row.attainment)
        beyond = place >= grid
        downward = [] if beyond else [-float(params[name]) for name in ranged]
        return (not meets, row.gpu_hours if meets else -row.attainment, row.gpu_hours, beyond, downward)

    return found[min(range(len(found)), key=order)]


def _least(cases: Sequence[Case], place: int, name: str) -> list[tuple[Params, Row]]:
    """Search the least count that meets the goal, else comes nearest; return all that were run."""
    case = cases[place]
    (axis,) = BASELINES[name].axes(case)
    found: list[tuple[Params, Row]] = []

    def attained(count: int) -> float:
        params = {axis.name: float(count)}
        found.append((params, _evaluate(cases, place, name, params)))
        return found[-1][1].attainment

    fewest(case, attained, MORE)
    return found


def _evaluate(cases: Sequence[Case], place: int, name: str, params: Params) -> Row:
    """Run one setting."""
    case = BASELINES[name].begun(cases[place], params)
    return summarize(case, run(case, BASELINES[name](case, params)))
