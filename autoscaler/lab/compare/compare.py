"""Makes a proof: the policies to compare, over the workloads of one trace, on all cores. Files and options are not
known here, nor how a proof is shown.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from autoscaler.config.policy.schema import Policy
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.bounds.estimate import served
from autoscaler.lab.bounds.lower_bound import bound
from autoscaler.lab.bounds.offline_plan import Planned, Timetable, planning
from autoscaler.lab.compare.result import OURS, PLANNED, Before, Params, Point, Proof, Run
from autoscaler.lab.compare.run_result import Played, add_up, play, play_together
from autoscaler.lab.compare.tune import tuning
from autoscaler.lab.compare.workload_trace import Subject, check_goal, parts, started
from autoscaler.lab.replay.case import Case, FleetScaler, Scaler
from autoscaler.lab.replay.files import Told, untold
from autoscaler.lab.replay.product import Ours, OursTogether
from autoscaler.lab.replay.score import Row
from autoscaler.lab.replay.search import SCRAPE_COST, Call, Search, run_cost, side_by_side

OURS_ATTAINMENTS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)  # the knob of the shipped policy's own curve

OURS_SCRAPE_COST = 1200.0  # as `search.SCRAPE_COST`: a tick takes some 2 ms
BOUND_RUNS = 15.0  # about, that a bound and its estimate take as long as


@dataclass(frozen=True)
class Entry:
    """A policy by name: `ours` as the policy says, a baseline at one setting for each case."""

    name: str
    policy: Policy
    settings: tuple[Params, ...] = ()

    def begun(self, cases: Sequence[Case], place: int) -> Case:
        """Return one of the cases as it begins under this policy."""
        case = cases[place]
        return case if self.name == OURS else BASELINES[self.name].begun(case, self.settings[place])

    def scaler(self, case: Case, place: int) -> Scaler:
        return Ours(case, self.policy) if self.name == OURS else BASELINES[self.name](case, self.settings[place])

    def scalers(self, cases: Sequence[Case], gpus: float) -> Sequence[Scaler] | FleetScaler:
        """Return what decides for cases that share GPUs: ours for all in one tick, a baseline for each on its own."""
        if self.name == OURS:
            return OursTogether(cases, [self.policy] * len(cases), gpus)
        return [self.scaler(case, place) for place, case in enumerate(cases)]


def prove(
    subject: Subject,
    against: Sequence[str],
    *,
    tuned: bool = False,
    planned: bool = False,
    workers: int | None = None,
    ray: bool = False,
    told: Told = untold,
) -> Proof:
    """Run the policy and the baselines named in `against` over every workload of `subject`, and sum them up.

    against: keys of `BASELINES`. tuned: each baseline also at its best setting with hindsight, and the whole frontier
    of every policy. planned: also a schedule made with the whole trace in hand. Where figures count only from a moment
    on, each baseline also runs at the setting that was the best until then, and bound and plan are of what counts
    alone. The bound of several workloads is the sum of what each takes to meet the goal by itself. Who shares GPUs can
    only do worse than who has them alone, but who misses with one may cost less and meet it over all. The plan is such
    a sum, too, and may want more than there are.
    Raises like `check_goal` before anything runs.
    """
    notes = [*check_goal(*subject.cases)]
    documented = [name for name in against if BASELINES[name].default]  # a count has none: tuning chooses it
    notes += [f"{name} (default): {BASELINES[name].derived}" for name in documented if BASELINES[name].derived]
    learned, counted = parts(subject.cases)
    if learned and planned:  # only a plan begins there
        counted = [started(case) for case in counted]
    search = against if tuned else [name for name in against if not (BASELINES[name].default or learned)]
    usual = [Entry(name, subject.policy, tuple(_default(name, case) for case in subject.cases)) for name in documented]
    knob = OURS_ATTAINMENTS if tuned else ()
    promises = dict.fromkeys([subject.policy.spec.objective.attainment, *knob])  # what is promised is run once
    shared = (*subject.cases, *counted, *learned)
    places = range(len(subject.cases), len(subject.cases) + len(counted))  # of what counts
    counts_first = sorted(against, key=lambda name: not BASELINES[name].monotone)
    stages: list[list[Search[Any]]] = [  # the longest first
        [_bounding(shared, place) for place in places],
        [_running(subject, Entry(OURS, with_attainment(subject.policy, promise))) for promise in promises],
        [_planning(subject, shared, place) for place in places if planned],
        [_tuning(subject, name) for name in counts_first if name in search],
        [_tuning_before(subject, name, learned, places.stop) for name in counts_first if learned],
        [_running(subject, entry) for entry in usual],
    ]
    found = iter(side_by_side([each for stage in stages for each in stage], shared, workers, ray, told))
    bounds, ours, plans, best, before, others = ([next(found) for _ in stage] for stage in stages)
    if math.isnan(subject.cases[0].goal.ttft_s):
        notes.append("without a TTFT objective a request may wait for as long as it likes: the bound is 0")
    runs = [Run(OURS, False, {}, *ours[0])]
    for entry, (row, timeline) in zip(usual, others, strict=True):
        runs.append(Run(entry.name, False, _shared(entry.settings), row, timeline, default=True))
    frontier = {
        name: [_point(each.params, each.row) for each in runs if each.name == name] for name in (OURS, *against)
    }
    curve = {promise: row for promise, (row, _) in zip(promises, ours, strict=True)}
    frontier[OURS] += [_point({"attainment": promise}, curve[promise]) for promise in knob]
    for tuned_run, points in sorted(best, key=lambda each: against.index(each[0].name)):
        frontier[tuned_run.name] += points
        runs.append(tuned_run)
    runs += sorted(before, key=lambda run: against.index(run.name))
    if subject.shared and (search or learned) and len(subject.cases) > 1:
        notes.append("baselines are tuned model by model, each as if it had all GPUs, and then run together")
    if subject.shared and planned and len(subject.cases) > 1:
        notes.append("planned: each model is planned as if it had all GPUs; together they may need more than there are")
    least, goal = sum(bound for bound, _ in bounds), subject.cases[0].goal
    below = {run.name for run in runs if goal.met_by(run.row.attainment) and run.row.gpu_hours < least}
    if below and len(subject.cases) > 1:
        notes.append(
            "the bound is what all models take to meet the goal, each by itself; over all requests it was met for less "
            f"by {', '.join(sorted(below))}"
        )
    return Proof(
        trace=subject.trace,
        profile=subject.profile,
        seed=subject.cases[0].seed,
        goal=goal,
        cold_start_s=subject.cases[0].cold_start_s,
        cold_start_uncached_s=subject.cases[0].cold_start_uncached_s,
        cold_start_spread=subject.cases[0].cold_start_spread,
        crash_every_s=subject.cases[0].crash_every_s,
        router=subject.cases[0].router,
        patience_s=subject.cases[0].patience_s,
        drain_s=subject.cases[0].drain_s,
        scrape_s=subject.cases[0].scrape_s,
        scale=subject.scale,
        requests=sum(len(case.trace.arrival_s) for case in counted),
        duration_s=max(case.trace.duration_s for case in counted),
        learned_s=max((case.trace.duration_s for case in learned), default=0.0),
        models=len(subject.cases),
        gpus=subject.gpus,
        clairvoyant_gpu_hours=least,
        estimate_gpu_hours=sum(estimate for _, estimate in bounds),
        runs=tuple(runs),
        frontier={name: tuple(points) for name, points in frontier.items()},
        planned=Run(PLANNED, False, {}, *add_up(counted, plans)) if planned else None,
        notes=(*subject.notes, *notes),
    )


def _bounding(cases: Sequence[Case], place: int) -> Search[tuple[float, float]]:
    """Compute the bound of one of the cases that the calls share, and the estimate above it, in GPU-hours."""
    call = Call(_bound, (place,), BOUND_RUNS * run_cost(cases[place]))

    def steps() -> Generator[list[Call], Any, tuple[float, float]]:
        (found,) = yield [call]
        return cast(tuple[float, float], found)

    return Search(steps(), call.cost)


def _running(subject: Subject, entry: Entry) -> Search[tuple[Row, FloatColumn]]:
    """Run one policy over all cases; return its row and timeline."""
    calls = _calls(subject, entry)

    def steps() -> Generator[list[Call], Any, tuple[Row, FloatColumn]]:
        return _together(subject, (yield calls))

    return Search(steps(), sum(call.cost for call in calls))


def _planning(subject: Subject, cases: Sequence[Case], place: int) -> Search[Played]:
    """Plan one of the cases that the calls share with its whole trace in hand.

    The plan is run once more, for what a proof needs of it.
    """
    search, cost = planning(cases, place), run_cost(cases[place])

    def steps() -> Generator[list[Call], Any, Played]:
        plan = yield from search.steps
        (played,) = yield [Call(_follow, (place, plan.schedule, len(subject.cases) > 1), cost)]
        return cast(Played, played)

    return Search(steps(), search.cost + cost)


def _tuning(subject: Subject, name: str) -> Search[tuple[Run, list[Point]]]:
    """Return a baseline at its best setting on each case and, where there is one case, all that was tried.

    Where a trace has several models, each is tuned on its own, to meet the goal by itself. The best settings are
    run once more, for their timelines, and on shared GPUs for what becomes of them there.
    """
    search = tuning(subject.cases, name)

    def steps() -> Generator[list[Call], Any, tuple[Run, list[Point]]]:
        best = yield from search.steps
        entry = Entry(name, subject.policy, tuple(each.params for each in best))
        points = [_point(params, row) for params, row in best[0].found] if len(best) == 1 else []
        played = yield _calls(subject, entry)
        return Run(name, True, _shared(entry.settings), *_together(subject, played)), points

    return Search(steps(), search.cost + sum(run_cost(case) for case in subject.cases))


def _tuning_before(subject: Subject, name: str, learned: Sequence[Case], first: int) -> Search[Run]:
    """Return a baseline at the setting that was best before figures count.

    learned: each case until then. first: its place among the cases that the calls share.
    """
    search = tuning(learned, name, first)

    def steps() -> Generator[list[Call], Any, Run]:
        best = yield from search.steps
        entry = Entry(name, subject.policy, tuple(each.params for each in best))
        weights = [len(case.trace.arrival_s) for case in learned]
        before = Before(
            float(np.average([each.row.attainment for each in best], weights=weights)),
            sum(each.row.gpu_hours for each in best),
        )
        played = yield _calls(subject, entry)
        return Run(name, False, _shared(entry.settings), *_together(subject, played), before=before)

    return Search(steps(), search.cost + sum(run_cost(case) for case in subject.cases))


def _calls(subject: Subject, entry: Entry) -> list[Call]:
    """Return the runs of all cases under one policy: one for each, or one where they share GPUs."""
    scrape_cost = OURS_SCRAPE_COST if entry.name == OURS else SCRAPE_COST
    each = [run_cost(case, scrape_cost) for case in subject.cases]
    count = len(subject.cases)
    if subject.shared:
        return [Call(_play_together, (count, entry, subject.gpus), sum(each), tells=True)]
    return [Call(_play, (place, entry, count > 1), cost, tells=True) for place, cost in enumerate(each)]


def _together(subject: Subject, results: Sequence[list[Played]]) -> tuple[Row, FloatColumn]:
    return add_up(subject.cases, [played for result in results for played in result])


# What workers do. They share the cases of the subject, first, and parts of these.


def _bound(cases: Sequence[Case], place: int) -> tuple[float, float]:
    case, least = cases[place], bound(cases[place])
    return least.gpu_hours, max(least.gpu_hours, served(case) * case.gpus_per_replica / 3600)


def _play(cases: Sequence[Case], place: int, entry: Entry, keep_ttft: bool, told: Told) -> list[Played]:
    case = entry.begun(cases, place)
    return [play(case, entry.scaler(case, place), keep_ttft=keep_ttft, told=told)]


def _play_together(cases: Sequence[Case], count: int, entry: Entry, gpus: float, told: Told) -> list[Played]:
    begun = [entry.begun(cases, place) for place in range(count)]
    return play_together(begun, entry.scalers(begun, gpus), gpus, told)


def _follow(cases: Sequence[Case], place: int, schedule: Timetable, keep_ttft: bool) -> Played:
    return play(cases[place], Planned(schedule), keep_ttft=keep_ttft)


def with_attainment(policy: Policy, attainment: float) -> Policy:
    """Return the policy with another attainment promised."""
    objective = policy.spec.objective.model_copy(update={"attainment": attainment})
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"objective": objective})})


def _default(name: str, case: Case) -> Params:
    """Return the documented setting of a baseline, where one would begin without hindsight."""
    default = BASELINES[name].default
    if default is None:
        raise ValueError(f"baseline {name} has no documented default")
    return default(case)


def _shared(params: Sequence[Params]) -> Params:
    """Return what is the same in the settings of all workloads."""
    return {key: value for key, value in params[0].items() if all(each[key] == value for each in params)}


def _point(params: Params, row: Row) -> Point:
    return Point(params, row.attainment, row.gpu_hours)
