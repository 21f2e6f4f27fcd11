"""Compares policies over the workloads of one trace, on all cores. Files, options and presentation are elsewhere."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from autoscaler.config.policy.schema import Policy
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.baselines.own_rule import OwnRule, RuleSetting
from autoscaler.lab.bounds.estimate import estimate_replica_s
from autoscaler.lab.bounds.lower_bound import compute_lower_bound
from autoscaler.lab.bounds.offline_plan import OfflinePlanScaler, PlannedCounts, search_offline_plan
from autoscaler.lab.compare.experiment import Experiment, check_cases, split_learning, with_start_replicas
from autoscaler.lab.compare.result import OFFLINE_PLAN, OURS, Comparison, LearningResult, Params, Point, PolicyRun
from autoscaler.lab.compare.run_result import RunResult, run_case, run_cases_together, sum_results
from autoscaler.lab.compare.tune import search_best_settings
from autoscaler.lab.replay.call_progress import Progress, no_progress
from autoscaler.lab.replay.case import Case, FleetScaler, Scaler
from autoscaler.lab.replay.parallel.search import SCRAPE_COST, Call, Search, run_cost, run_searches
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler, PolicyScaler
from autoscaler.lab.replay.score import Score

OURS_ATTAINMENTS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)  # attainment goals on the frontier of the shipped policy

OURS_SCRAPE_COST = 1200.0  # as `search.SCRAPE_COST`; a tick takes about 2 ms
OF_CASES = (  # columns of a comparison that all its cases share
    *("seed", "goal", "cold_start_s", "cold_start_uncached_s", "weights_on", "cold_start_spread"),
    *("crash_every_s", "router", "patience_s", "drain_s", "scrape_s"),
)

BOUND_RUNS = 15.0  # cost of a bound and its estimate, in runs


@dataclass(frozen=True)
class Candidate:
    """A policy to compare: `ours` with its policy, or a baseline with one setting per case."""

    name: str
    policy: Policy
    settings: tuple[Params, ...] = ()
    rule: RuleSetting | None = None  # a rule that its owner has written

    def starting_case(self, cases: Sequence[Case], place: int) -> Case:
        """Return the case at `place` with the initial replicas of this policy."""
        case = cases[place]
        if self.rule is not None:
            return replace(case, start_replicas=self.rule.start_replicas(case.start_replicas))
        return case if self.name == OURS else BASELINES[self.name].starting_case(case, self.settings[place])

    def scaler(self, case: Case, place: int) -> Scaler:
        if self.rule is not None:
            return OwnRule(self.rule, case.start_replicas)
        return (
            PolicyScaler(case, self.policy) if self.name == OURS else BASELINES[self.name](case, self.settings[place])
        )

    def scalers(self, cases: Sequence[Case], gpus: float) -> Sequence[Scaler] | FleetScaler:
        """Return the scalers of cases that share GPUs: one for all for `ours`, one per case for a baseline."""
        if self.name == OURS:
            return PolicyFleetScaler(cases, [self.policy] * len(cases), gpus)
        return [self.scaler(case, place) for place, case in enumerate(cases)]


def compare(
    experiment: Experiment,
    against: Sequence[str],
    *,
    rules: Sequence[RuleSetting] = (),
    tuned: bool = False,
    offline_plan: bool = False,
    attainments: Sequence[float] = OURS_ATTAINMENTS,
    workers: int | None = None,
    ray: bool = False,
    progress: Progress = no_progress,
) -> Comparison:
    """Run the policy and the baselines named in `against` over every workload of `experiment`, and sum up the results.

    against: keys of `BASELINES`. rules: run in addition, as they are. tuned: also run each baseline at its best setting
    in hindsight, and compute the frontier of every policy. offline_plan: also search a schedule with the whole trace
    known. attainments: goals of `ours` on its frontier.

    With a learning part, scores, bound and offline plan cover the part after it. Each baseline then also runs at the
    setting that was best in the learning part.

    The bound of several workloads is the sum of their bounds, each for meeting the goal by itself. Sharing GPUs can
    only cost more. However, a policy that misses the goal for one workload may meet it over all for less. The offline
    plan is such a sum, too, and may need more GPUs than there are.
    Raises like `check_cases` before any run.
    """
    notes = check_cases(*experiment.cases)
    learned, counted = split_learning(experiment.cases)
    if learned and offline_plan:  # only an offline plan starts at the scored part
        counted = [with_start_replicas(case) for case in counted]
    goals = tuple(attainments) if tuned else ()
    study = _Study(experiment, tuple(against), tuple(rules), tuned, goals, tuple(learned), tuple(counted))
    stages = study.searches(offline_plan)
    results = iter(run_searches([each for stage in stages for each in stage], study.shared, workers, ray, progress))
    bounds, ours, plans, best, before, others, own = ([next(results) for _ in stage] for stage in stages)
    found = _Found(
        bounds=bounds,
        ours=dict(zip(study.goals, ours, strict=True)),
        defaults=[
            PolicyRun(each.name, False, _shared(each.settings), score, timeline, default=True)
            for each, (score, timeline) in zip(study.documented, others, strict=True)
        ],
        own=[
            PolicyRun(each.name, False, {}, score, timeline, own=True)
            for each, (score, timeline) in zip(study.own, own, strict=True)
        ],
        tuned=sorted(best, key=lambda each: study.against.index(each[0].name)),
        learned=sorted(before, key=lambda run: study.against.index(run.name)),
    )
    first = experiment.cases[0]
    return Comparison(
        trace=experiment.trace,
        profile=experiment.profile,
        **{name: getattr(first, name) for name in OF_CASES},
        scale=experiment.scale,
        requests=sum(len(case.trace.arrival_s) for case in counted),
        duration_s=max(case.trace.duration_s for case in counted),
        learned_s=max((case.trace.duration_s for case in learned), default=0.0),
        models=len(experiment.cases),
        gpus=experiment.gpus,
        gpu_price=experiment.gpu_price,
        lower_bound_gpu_hours=found.least_gpu_hours,
        estimate_gpu_hours=sum(estimate for _, estimate in bounds),
        runs=tuple(found.runs),
        frontier=found.frontier(study),
        offline_plan=PolicyRun(OFFLINE_PLAN, False, {}, *sum_results(counted, plans)) if offline_plan else None,
        notes=(*experiment.notes, *notes, *study.notes(offline_plan), *found.notes(study)),
    )


@dataclass(frozen=True)
class _Study:
    """What is run: an experiment with its parts, and the baselines to compare."""

    experiment: Experiment
    against: tuple[str, ...]
    rules: tuple[RuleSetting, ...]  # that owners have written
    tuned: bool
    attainments: tuple[float, ...]  # goals on the frontier of `ours`
    learned: tuple[Case, ...]  # learning part of each case, if there is one
    counted: tuple[Case, ...]  # scored part

    @property
    def shared(self) -> tuple[Case, ...]:
        """All cases that workers know, by index."""
        return *self.experiment.cases, *self.counted, *self.learned

    @property
    def goals(self) -> list[float]:
        """Attainment goals of `ours`, that of the policy first; each runs once."""
        return list(dict.fromkeys([self.experiment.policy.spec.objective.attainment, *self.attainments]))

    @property
    def documented(self) -> list[Candidate]:
        """The baselines at their documented settings. `static` has none; tuning chooses its count."""
        policy, cases = self.experiment.policy, self.experiment.cases
        names = [name for name in self.against if BASELINES[name].default]
        return [Candidate(name, policy, tuple(_default(name, case) for case in cases)) for name in names]

    @property
    def own(self) -> list[Candidate]:
        """The rules of owners."""
        return [Candidate(each.rule.title, self.experiment.policy, rule=each) for each in self.rules]

    @property
    def searched(self) -> list[str]:
        """The baselines whose best setting is searched on the whole trace."""
        return [name for name in self.against if self.tuned or not (BASELINES[name].default or self.learned)]

    def searches(self, offline_plan: bool) -> list[list[Search[Any]]]:
        """Return what workers have to find, the longest searches first."""
        experiment, shared = self.experiment, self.shared
        places = range(len(experiment.cases), len(experiment.cases) + len(self.counted))
        counts_first = sorted(self.against, key=lambda name: not BASELINES[name].monotone)
        ours = [Candidate(OURS, with_attainment(experiment.policy, goal)) for goal in self.goals]
        return [
            [_bound_search(shared, place) for place in places],
            [_run_search(experiment, candidate) for candidate in ours],
            [_plan_search(experiment, shared, place) for place in places if offline_plan],
            [_tuning_search(experiment, name) for name in counts_first if name in self.searched],
            [_learning_search(experiment, name, self.learned, places.stop) for name in counts_first if self.learned],
            [_run_search(experiment, candidate) for candidate in self.documented],
            [_run_search(experiment, candidate) for candidate in self.own],
        ]

    def notes(self, offline_plan: bool) -> list[str]:
        """Return what a reader should know of these runs."""
        names = [each.name for each in self.documented]
        notes = [line for rule in self.rules for line in rule.lines()]
        notes += [f"{name} (default): {BASELINES[name].derived}" for name in names if BASELINES[name].derived]
        if math.isnan(self.experiment.cases[0].goal.ttft_s):
            notes.append("without a TTFT objective a request may wait for as long as it likes: the bound is 0")
        if not self.experiment.shared or len(self.experiment.cases) == 1:
            return notes
        if self.searched or self.learned:
            notes.append("baselines are tuned model by model, each as if it had all GPUs, and then run together")
        if offline_plan:
            notes.append(
                "offline plan: each model is planned as if it had all GPUs; together they may need more than there are"
            )
        return notes


@dataclass(frozen=True)
class _Found:
    """The results of all searches."""

    bounds: list[tuple[float, float]]  # lower bound and estimate of each case, in GPU-hours
    ours: dict[float, tuple[Score, FloatColumn]]  # by attainment goal, that of the policy first
    defaults: list[PolicyRun]  # baselines at their documented settings
    own: list[PolicyRun]  # rules of owners
    tuned: list[tuple[PolicyRun, list[Point]]]  # baselines at their best settings, and the tried ones
    learned: list[PolicyRun]  # baselines at the setting that was best in the learning part

    @property
    def least_gpu_hours(self) -> float:
        return sum(bound for bound, _ in self.bounds)

    @property
    def untuned(self) -> list[PolicyRun]:
        return [PolicyRun(OURS, False, {}, *next(iter(self.ours.values()))), *self.defaults, *self.own]

    @property
    def runs(self) -> list[PolicyRun]:
        return [*self.untuned, *(run for run, _ in self.tuned), *self.learned]

    def frontier(self, study: _Study) -> dict[str, tuple[Point, ...]]:
        """Return every tried setting, by policy."""
        names = (OURS, *study.against, *(each.name for each in self.own))
        points: dict[str, list[Point]] = {name: [] for name in names}
        for run in self.untuned:
            points[run.name].append(_point(run.params, run.score))
        points[OURS] += [_point({"attainment": goal}, self.ours[goal][0]) for goal in study.attainments]
        for run, tried in self.tuned:
            points[run.name] += tried
        return {name: tuple(tried) for name, tried in points.items()}

    def notes(self, study: _Study) -> list[str]:
        """Say which runs met the goal below the bound of several models."""
        goal, least = study.experiment.cases[0].goal, self.least_gpu_hours
        below = {run.name for run in self.runs if goal.is_met_by(run.score.attainment) and run.score.gpu_hours < least}
        if not below or len(study.experiment.cases) == 1:
            return []
        return [
            "the bound is what all models take to meet the goal, each by itself; over all requests it was met for less "
            f"by {', '.join(sorted(below))}"
        ]


def _bound_search(cases: Sequence[Case], place: int) -> Search[tuple[float, float]]:
    """Compute lower bound and estimate of the case at `place`, in GPU-hours."""
    call = Call(_compute_bounds, (place,), BOUND_RUNS * run_cost(cases[place]))

    def steps() -> Generator[list[Call], Any, tuple[float, float]]:
        (found,) = yield [call]
        return cast(tuple[float, float], found)

    return Search(steps(), call.cost)


def _run_search(experiment: Experiment, candidate: Candidate) -> Search[tuple[Score, FloatColumn]]:
    """Run one policy over all cases; return score and timeline."""
    calls = _calls(experiment, candidate)

    def steps() -> Generator[list[Call], Any, tuple[Score, FloatColumn]]:
        return _sum_calls(experiment, (yield calls))

    return Search(steps(), sum(call.cost for call in calls))


def _plan_search(experiment: Experiment, cases: Sequence[Case], place: int) -> Search[RunResult]:
    """Search the offline plan of the case at `place`, and run it once more for the comparison."""
    search, cost = search_offline_plan(cases, place), run_cost(cases[place])

    def steps() -> Generator[list[Call], Any, RunResult]:
        plan = yield from search.steps
        (played,) = yield [Call(_run_schedule, (place, plan.schedule, len(experiment.cases) > 1), cost)]
        return cast(RunResult, played)

    return Search(steps(), search.cost + cost)


def _tuning_search(experiment: Experiment, name: str) -> Search[tuple[PolicyRun, list[Point]]]:
    """Find the best setting of a baseline for each case, and run it. With one case, also return all tried settings.

    Models are tuned separately, each to meet the goal by itself. The final run gives their timelines and, on shared
    GPUs, their joint result.
    """
    search = search_best_settings(experiment.cases, name)

    def steps() -> Generator[list[Call], Any, tuple[PolicyRun, list[Point]]]:
        best = yield from search.steps
        candidate = Candidate(name, experiment.policy, tuple(each.params for each in best))
        points = [_point(params, score) for params, score in best[0].found] if len(best) == 1 else []
        played = yield _calls(experiment, candidate)
        return PolicyRun(name, True, _shared(candidate.settings), *_sum_calls(experiment, played)), points

    return Search(steps(), search.cost + sum(run_cost(case) for case in experiment.cases))


def _learning_search(experiment: Experiment, name: str, learned: Sequence[Case], first: int) -> Search[PolicyRun]:
    """Find the best setting of a baseline in the learning part, and run it over the whole trace.

    learned: the learning part of each case. first: their position in the shared cases.
    """
    search = search_best_settings(learned, name, first)

    def steps() -> Generator[list[Call], Any, PolicyRun]:
        best = yield from search.steps
        candidate = Candidate(name, experiment.policy, tuple(each.params for each in best))
        weights = [len(case.trace.arrival_s) for case in learned]
        before = LearningResult(
            float(np.average([each.score.attainment for each in best], weights=weights)),
            sum(each.score.gpu_hours for each in best),
        )
        played = yield _calls(experiment, candidate)
        return PolicyRun(name, False, _shared(candidate.settings), *_sum_calls(experiment, played), before=before)

    return Search(steps(), search.cost + sum(run_cost(case) for case in experiment.cases))


def _calls(experiment: Experiment, candidate: Candidate) -> list[Call]:
    """Return the runs of all cases under one policy: one per case, or one in all if they share GPUs."""
    scrape_cost = OURS_SCRAPE_COST if candidate.name == OURS else SCRAPE_COST
    each = [run_cost(case, scrape_cost) for case in experiment.cases]
    count = len(experiment.cases)
    if experiment.shared:
        return [Call(_run_candidate_together, (count, candidate, experiment.gpus), sum(each), reports_progress=True)]
    return [
        Call(_run_candidate, (place, candidate, count > 1), cost, reports_progress=True)
        for place, cost in enumerate(each)
    ]


def _sum_calls(experiment: Experiment, results: Sequence[list[RunResult]]) -> tuple[Score, FloatColumn]:
    return sum_results(experiment.cases, [played for result in results for played in result])


# Tasks of workers. The shared value begins with the cases of the experiment, followed by parts of them.


def _compute_bounds(cases: Sequence[Case], place: int) -> tuple[float, float]:
    case, least = cases[place], compute_lower_bound(cases[place])
    return least.gpu_hours, max(least.gpu_hours, estimate_replica_s(case) * case.gpus_per_replica / 3600)


def _run_candidate(
    cases: Sequence[Case], place: int, candidate: Candidate, keep_ttft: bool, progress: Progress
) -> list[RunResult]:
    case = candidate.starting_case(cases, place)
    return [run_case(case, candidate.scaler(case, place), keep_ttft=keep_ttft, progress=progress)]


def _run_candidate_together(
    cases: Sequence[Case], count: int, candidate: Candidate, gpus: float, progress: Progress
) -> list[RunResult]:
    starting = [candidate.starting_case(cases, place) for place in range(count)]
    return run_cases_together(starting, candidate.scalers(starting, gpus), gpus, progress)


def _run_schedule(cases: Sequence[Case], place: int, schedule: PlannedCounts, keep_ttft: bool) -> RunResult:
    return run_case(cases[place], OfflinePlanScaler(schedule), keep_ttft=keep_ttft)


def with_attainment(policy: Policy, attainment: float) -> Policy:
    """Return the policy with another attainment goal."""
    objective = policy.spec.objective.model_copy(update={"attainment": attainment})
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"objective": objective})})


def _default(name: str, case: Case) -> Params:
    """Return the documented setting of a baseline."""
    default = BASELINES[name].default
    if default is None:
        raise ValueError(f"baseline {name} has no documented default")
    return default(case)


def _shared(params: Sequence[Params]) -> Params:
    """Return the parameters that all workloads have in common."""
    return {key: value for key, value in params[0].items() if all(each[key] == value for each in params)}


def _point(params: Params, score: Score) -> Point:
    return Point(params, score.attainment, score.gpu_hours)
