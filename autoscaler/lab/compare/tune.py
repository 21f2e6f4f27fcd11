"""Tuning of baselines: the best setting for each case in hindsight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoscaler.lab.baselines import BASELINES, Baseline, Params
from autoscaler.lab.baselines.base import MIN_REPLICAS, number
from autoscaler.lab.baselines.static import REPLICAS, STATIC
from autoscaler.lab.bounds.constant_count import find_fewest_replicas
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.parallel.search import Call, Search, run_cost
from autoscaler.lab.replay.request_cost import attainable_share
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import Score, compute_score

COUNT_RUNS = 10.0  # approximate runs to find the smallest constant count
STEPS = 8  # most steps beyond the ends of the grid
MIN_RISE = 0.001  # rise of attainment below which a step comes no closer to an unreachable goal
CONSTANT_REPLICA_COST = 1.05  # cost of one constant replica, which serves its last requests after the trace
RUNS_PER_GRID_POINT = 2.25  # approximate runs in all, as a multiple of the grid


_constant_counts: deque[tuple[Case, list[tuple[Params, Score]]]] = deque(maxlen=32)
"""Results of `_find_constant_count` in this process for the last cases, shared by all baselines."""


@dataclass(frozen=True)
class TunedBaseline:
    """The best of the tried settings: the cheapest that meets the goal, else the closest to it."""

    name: str
    params: Params
    score: Score
    found: tuple[tuple[Params, Score], ...]  # every tried setting, with its score


def search_best_settings(cases: Sequence[Case], name: str, first: int = 0) -> Search[list[TunedBaseline]]:
    """Search the best setting of a baseline on each case. Among the shared cases, they begin at place `first`.

    1. Run the grid.
    2. Extend the grid by up to `STEPS` steps, where the best setting lies at the end of an axis that has a range.
       While no setting meets the goal, extend it towards more replicas. If no setting can meet the goal, stop as soon
       as a step serves less than one request in a thousand more.
    3. Run the settings around the best one.
    4. Run the best setting with minimum replica counts, up to the count that meets the goal alone, and the settings
       around the result.

    The best setting is the cheapest that meets the goal, else the one with the highest attainment. `static` is
    searched as in `find_fewest_replicas`. Raises ValueError for an unknown name.
    """
    if name not in BASELINES:
        raise ValueError(f"baseline is {name!r}; allowed: {', '.join(BASELINES)}")
    baseline = BASELINES[name]
    runs = [COUNT_RUNS if baseline.monotone else RUNS_PER_GRID_POINT * len(baseline.grid(case)) for case in cases]
    return Search(
        _rounds(cases, name, first), sum(count * run_cost(case) for count, case in zip(runs, cases, strict=True))
    )


def _rounds(cases: Sequence[Case], name: str, first: int) -> Generator[list[Call], Any, list[TunedBaseline]]:
    tries = [_CaseTuning(BASELINES[name], case) for case in cases]
    counting = [
        Call(_find_constant_count, (place,), COUNT_RUNS * run_cost(case)) for place, case in enumerate(cases, first)
    ]

    def run_all(ask: Callable[[_CaseTuning], list[Params]], times: int = 1) -> Generator[list[Call], Any, None]:
        """Run the settings that `ask` returns for each case, up to `times` times, until there are none."""
        for _ in range(times):
            jobs = [(place, params) for place, one in enumerate(tries) for params in ask(one)]
            if not jobs:
                return
            rows = yield [
                Call(_evaluate, (first + place, name, params), run_cost(cases[place])) for place, params in jobs
            ]
            for (place, params), score in zip(jobs, rows, strict=True):
                tries[place].found.append((params, score))

    if BASELINES[name].monotone:
        for one, found in zip(tries, (yield counting), strict=True):
            one.found += found
    else:
        yield from run_all(_CaseTuning.grid)
        yield from run_all(_CaseTuning.beyond, STEPS)
        yield from run_all(_CaseTuning.around)
        for one, found in zip(tries, (yield counting), strict=True):
            one.enough = int(number(_CaseTuning(STATIC, one.case, found).best[0], REPLICAS))
        yield from run_all(_CaseTuning.with_min_replicas)
        yield from run_all(_CaseTuning.between, STEPS)
        yield from run_all(_CaseTuning.around_above)
    return [TunedBaseline(name, *one.best, tuple(one.found)) for one in tries]


@dataclass
class _CaseTuning:
    """The tried settings of one case, and the next ones to try."""

    baseline: Baseline
    case: Case
    found: list[tuple[Params, Score]] = field(default_factory=list)
    before: float = -math.inf  # best attainment before the last step
    enough: int = 1  # constant count that meets the goal

    @property
    def best(self) -> tuple[Params, Score]:
        """Return the cheapest setting that meets the goal, else the closest to it.

        Among equals, it is the highest setting of the grid, beyond which the cost may fall; else the first that ran.
        """
        ranged_axes, grid = self.ranged_axes, len(self.grid())

        def order(place: int) -> tuple[bool, float, float, bool, list[float]]:
            params, score = self.found[place]
            meets = self.case.goal.is_met_by(score.attainment)
            beyond = place >= grid
            downward = [] if beyond else [-float(params[name]) for name in ranged_axes]
            return (not meets, score.gpu_hours if meets else -score.attainment, score.gpu_hours, beyond, downward)

        return self.found[min(range(len(self.found)), key=order)]

    @property
    def tried(self) -> list[Params]:
        return [params for params, _ in self.found]

    @property
    def ranged_axes(self) -> list[str]:
        return self.baseline.ranged_axes(self.case)

    def grid(self) -> list[Params]:
        return self.baseline.grid(self.case)

    def beyond(self) -> list[Params]:
        """Return untried settings one step beyond the grid, as long as a step can improve the best one.

        Replica counts are whole, so a step without effect may be followed by one with effect, unless there is only one
        replica.
        """
        best, score = self.best
        if self.case.goal.is_met_by(score.attainment):
            from_here = self._find_laxest(score)
            if from_here != best and not self._may_cost_less(score):
                return []
        else:
            if not self._comes_nearer(score):
                return []
            from_here = {**best, **{name: min(float(each[name]) for each in self.tried) for name in self.ranged_axes}}
        return [params for params in self.baseline.beyond(self.case, from_here) if params not in self.tried]

    def around(self) -> list[Params]:
        return self.baseline.around(self.case, self.best[0], self.tried)

    def with_min_replicas(self) -> list[Params]:
        """Return the best setting with minimum replica counts."""
        return self.baseline.with_min_replicas(self.case, self.best[0], self.enough)

    def between(self) -> list[Params]:
        """Return the best setting with minimum replica counts between those tried."""
        return self.baseline.between(self.best[0], self.tried) if self._has_min_replicas else []

    def around_above(self) -> list[Params]:
        return self.around() if self._has_min_replicas else []

    @property
    def _has_min_replicas(self) -> bool:
        params, _ = self.best
        return MIN_REPLICAS in params and number(params, MIN_REPLICAS) > 1

    def _find_laxest(self, score: Score) -> Params:
        """Return the highest setting that meets the goal at the same cost."""
        met = self.case.goal.is_met_by
        equals = [
            params for params, other in self.found if met(other.attainment) and other.gpu_hours == score.gpu_hours
        ]
        return max(equals, key=lambda params: [float(params[name]) for name in self.ranged_axes])

    def _may_cost_less(self, score: Score) -> bool:
        """Return whether the cost exceeds that of one constant replica."""
        counted_s = self.case.trace.duration_s - self.case.counted_from_s
        return score.gpu_hours * 3600 > CONSTANT_REPLICA_COST * counted_s * self.case.gpus_per_replica

    def _comes_nearer(self, score: Score) -> bool:
        """Return whether the best attainment rose enough, or the goal is reachable.

        score: of the best setting.
        """
        before, self.before = self.before, score.attainment
        return score.attainment >= before + MIN_RISE or self.case.goal.is_met_by(attainable_share(self.case))


def _find_constant_count(cases: Sequence[Case], place: int) -> list[tuple[Params, Score]]:
    """Search the smallest constant count that meets the goal, else comes closest; return all runs."""
    case = cases[place]
    for known, counts in _constant_counts:
        if known is case:
            return counts
    found: list[tuple[Params, Score]] = []

    def attained(count: int) -> float:
        params = {REPLICAS: float(count)}
        found.append((params, _evaluate(cases, place, STATIC.name, params)))
        return found[-1][1].attainment

    find_fewest_replicas(case, attained, MIN_RISE)
    _constant_counts.append((case, found))
    return found


def _evaluate(cases: Sequence[Case], place: int, name: str, params: Params) -> Score:
    """Run one setting."""
    case = BASELINES[name].starting_case(cases[place], params)
    return compute_score(case, run(case, BASELINES[name](case, params)))
