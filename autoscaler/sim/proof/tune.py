"""Baselines at their best: for one case, the setting that hindsight would have chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoscaler.sim.proof.sweep import sweep
from autoscaler.sim.study.baselines import BASELINES, Params
from autoscaler.sim.study.case import Case
from autoscaler.sim.study.run import run
from autoscaler.sim.study.score import Row, summarize


@dataclass(frozen=True)
class Tuned:
    """The best of the settings that were tried: the cheapest that meets the goal, else the nearest to it."""

    name: str
    params: Params
    row: Row
    found: tuple[tuple[Params, Row], ...]  # every setting that was tried, with what it came to


def tune(
    case: Case,
    names: Sequence[str] = tuple(BASELINES),
    workers: int | None = None,
    ray: bool = False,
    told: Callable[[float], None] = lambda _share: None,
) -> list[Tuned]:
    """Run the grid of each baseline on `case`, then once more around the best setting of each.

    The best is the cheapest that meets the goal, else the one with the highest attainment. A baseline whose one setting
    is a count is searched by doubling and halving. told: called with the done part, 0..1; the second round counts a
    quarter. Raises ValueError for an unknown name.
    """
    for name in names:
        if name not in BASELINES:
            raise ValueError(f"baseline is {name!r}, allowed: {', '.join(BASELINES)}")
    found: dict[str, list[tuple[Params, Row]]] = {name: [] for name in names}

    def complete(jobs: list[tuple[str, Params | None]], start: float, share: float) -> None:
        for done, (place, results) in enumerate(sweep(_evaluate, case, jobs, workers, ray), 1):
            found[jobs[place][0]] += results
            told(start + share * done / len(jobs))

    first: list[tuple[str, Params | None]] = []
    for name in names:
        baseline = BASELINES[name]
        first += [(name, None)] if baseline.monotone else [(name, params) for params in baseline.grid(case)]
    complete(first, 0.0, 0.75)
    second: list[tuple[str, Params | None]] = []
    for name in names:
        baseline = BASELINES[name]
        if not baseline.monotone:
            second += [(name, params) for params in baseline.around(case, _best(case, found[name])[0])]
    complete(second, 0.75, 0.25)
    told(1.0)
    tuned = []
    for name in names:
        params, row = _best(case, found[name])
        tuned.append(Tuned(name, params, row, tuple(found[name])))
    return tuned


def _best(case: Case, found: list[tuple[Params, Row]]) -> tuple[Params, Row]:
    """Return the cheapest that meets the goal, else the nearest to it; of equals the first by its settings."""

    def order(entry: tuple[Params, Row]) -> tuple[bool, float, float, str]:
        params, row = entry
        meets = case.goal.met_by(row.attainment)
        shown = repr(sorted(params.items()))  # results come in any order
        return (not meets, row.gpu_hours if meets else -row.attainment, row.gpu_hours, shown)

    return min(found, key=order)


def _evaluate(case: Case, job: tuple[str, Params | None]) -> list[tuple[Params, Row]]:
    """Run one setting; or, without one, search the least count that meets the goal."""
    name, params = job
    if params is not None:
        return [(params, _run(case, name, params))]
    (axis,) = BASELINES[name].axes(case)
    found: list[tuple[Params, Row]] = []

    def meets(count: int) -> bool:
        found.append(({axis.name: float(count)}, _run(case, name, {axis.name: float(count)})))
        return case.goal.met_by(found[-1][1].attainment)

    enough = 1
    while not meets(enough) and enough < case.max_replicas:
        enough = min(2 * enough, case.max_replicas)
    least = enough // 2 + 1  # half of it was not enough
    while least < enough:
        middle = (least + enough) // 2
        least, enough = (least, middle) if meets(middle) else (middle + 1, enough)
    return found


def _run(case: Case, name: str, params: Params) -> Row:
    return summarize(case, run(case, BASELINES[name](case, params)))
