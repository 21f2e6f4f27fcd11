"""Makes a proof: the policies to compare, over the workloads of one trace, on all cores. Files and options are not
known here, nor how a proof is shown.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from autoscaler.config.model import Policy
from autoscaler.core.columns import FloatColumn
from autoscaler.sim.proof.clairvoyant import bound
from autoscaler.sim.proof.planned import Planned, Schedule, planning
from autoscaler.sim.proof.result import OURS, PLANNED, Before, Params, Point, Proof, Run
from autoscaler.sim.proof.search import SCRAPE_COST, Call, Search, run_cost, side_by_side
from autoscaler.sim.proof.tune import tuning
from autoscaler.sim.study.baselines import BASELINES
from autoscaler.sim.study.baselines.static import Static
from autoscaler.sim.study.case import Case, FleetScaler, Goal, Outcome, Scaler
from autoscaler.sim.study.check import Unreachable, check
from autoscaler.sim.study.gpus import NODE_GPUS, GpuPool
from autoscaler.sim.study.ours import Ours, OursTogether
from autoscaler.sim.study.run import run, run_fleet
from autoscaler.sim.study.score import Row, summarize, thin
from autoscaler.sim.study.trace import between
from autoscaler.sim.study.work import request_work_s, servable

OURS_ATTAINMENTS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)  # the knob of the shipped policy's own curve
Told = Callable[[float], None]  # how much is done, 0..1

TIMELINE_ROWS = 1500  # kept of each run
START_S = 600.0  # the beginning of a trace
START_MANY = 4.0  # times what its work keeps busy
START_MORE = 0.01  # of its requests: for so many twice as many replicas are tried
OURS_SCRAPE_COST = 1200.0  # as `search.SCRAPE_COST`: a tick takes some 2 ms
BOUND_RUNS = 4.0  # about, that a bound takes as long as


@dataclass(frozen=True)
class Subject:
    """What a proof is about: the workloads of one trace on one profile, under one policy."""

    trace: str
    profile: str
    cases: tuple[Case, ...]  # one per model of the trace; same goal, profile and seed
    policy: Policy
    scale: float = 1.0
    notes: tuple[str, ...] = ()
    gpus: float = math.inf  # that all replicas of a run share; infinity: every model has as many as it asks for

    @property
    def shared(self) -> bool:
        return math.isfinite(self.gpus)


@dataclass(frozen=True)
class Entry:
    """A policy by name: `ours` as the policy says, a baseline at one setting for each case."""

    name: str
    policy: Policy
    settings: tuple[Params, ...] = ()

    def scaler(self, cases: Sequence[Case], place: int) -> Scaler:
        case = cases[place]
        return Ours(case, self.policy) if self.name == OURS else BASELINES[self.name](case, self.settings[place])

    def scalers(self, cases: Sequence[Case], gpus: float) -> Sequence[Scaler] | FleetScaler:
        """Return what decides for cases that share GPUs: ours for all in one tick, a baseline for each on its own."""
        if self.name == OURS:
            return OursTogether(cases, [self.policy] * len(cases), gpus)
        return [self.scaler(cases, place) for place in range(len(cases))]


@dataclass(frozen=True)
class Played:
    """What is kept of one run."""

    row: Row
    timeline: FloatColumn
    ttft_s: npt.NDArray[np.float32]  # float32[N]; empty where the trace has one model, whose row has the quantiles


def goal_of(policy: Policy) -> Goal:
    """Return what a policy promises; NaN: nothing."""
    objective = policy.spec.objective
    ttft_s, itl_s = (math.nan if limit is None else limit for limit in (objective.ttft, objective.itl))
    return Goal(ttft_s, itl_s, objective.attainment)


def check_goal(*cases: Case) -> tuple[str, ...]:
    """Raise ValueError for what cannot be run, Unreachable if no request of any case can meet the goal even alone.

    Returns what else is to be said.
    """
    shares = {}
    for case in cases:
        check(case)
        shares[case.trace.name] = float(servable(case).mean()) if len(case.trace.arrival_s) else 1.0
    if not any(shares.values()):
        raise Unreachable(f"no request of {', '.join(shares)} can meet the objective, even alone on a replica")
    attainment = cases[0].goal.attainment
    return tuple(
        f"of {name} at most {share * 100:.4g} % of the requests can meet the objective, even alone on a replica: the "
        f"goal of {attainment * 100:g} % is out of reach"
        for name, share in shares.items()
        if share < attainment
    )


def started(case: Case) -> Case:
    """Return the case begun like a service that ran before: with the fewest replicas whose beginning meets the goal.

    The beginning is its first ten minutes. Four times what its work keeps busy are tried, and twice as many for as long
    as that serves one request in a hundred more: bursts need many times their mean. Where no such number meets the
    goal, it is the fewest that come as near. Raises like `check`.
    """
    check(case)
    window_s = min(START_S, case.trace.duration_s)
    beginning = _part(case, 0.0, window_s)
    if not len(beginning.trace.arrival_s):
        return replace(case, start_replicas=1)

    @cache
    def attained(count: int) -> float:
        begun = replace(beginning, start_replicas=count)
        return summarize(begun, run(begun, Static(count))).attainment

    prefill_s, decode_s = request_work_s(beginning)
    busy = float((prefill_s + decode_s).sum()) / window_s
    many = min(math.ceil(START_MANY * max(busy, 1.0)), case.max_replicas)
    while many < case.max_replicas and not case.goal.met_by(attained(many)):
        twice = min(2 * many, case.max_replicas)
        if attained(twice) < attained(many) + START_MORE:
            break
        many = twice
    enough = min(case.goal.attainment, attained(many))
    counts = range(1, many + 1)
    return replace(case, start_replicas=counts[bisect_left(counts, True, key=lambda count: attained(count) >= enough)])


def prove(
    subject: Subject,
    against: Sequence[str],
    *,
    tuned: bool = False,
    planned: bool = False,
    workers: int | None = None,
    ray: bool = False,
    told: Told = lambda _share: None,
) -> Proof:
    """Run the policy and the baselines named in `against` over every workload of `subject`, and sum them up.

    tuned: each baseline also at its best setting with hindsight, and the whole frontier of every policy. planned: also
    a schedule made with the whole trace in hand. Where figures count only from a moment on, each baseline also runs at
    the setting that was the best until then, and bound and plan are of what counts alone. Where GPUs are shared, the
    bound is still the sum over the workloads: who shares them can only do worse than who has them alone. So is the
    plan, which may want more than there are.
    Raises like `check_goal` before anything runs; ValueError for an unknown baseline, naming what is allowed.
    """
    unknown = [name for name in against if name not in BASELINES]
    if unknown:
        raise ValueError(f"no baseline {', '.join(unknown)}; allowed: {', '.join(BASELINES)}")
    notes = [*check_goal(*subject.cases)]
    documented = [name for name in against if BASELINES[name].default]  # a count has none: tuning chooses it
    notes += [f"{name} (default): {BASELINES[name].derived}" for name in documented if BASELINES[name].derived]
    learned, counted = _parts(subject.cases)
    search = against if tuned else [name for name in against if not (BASELINES[name].default or learned)]
    usual = [Entry(name, subject.policy, tuple(_default(name, case) for case in subject.cases)) for name in documented]
    knob = OURS_ATTAINMENTS if tuned else ()
    promises = dict.fromkeys([subject.policy.spec.objective.attainment, *knob])  # what is promised is run once
    shared = (*subject.cases, *counted, *learned)
    places = range(len(subject.cases), len(subject.cases) + len(counted))  # of what counts
    counts_first = sorted(against, key=lambda name: not BASELINES[name].monotone)
    stages: list[list[Search[Any]]] = [  # the longest first
        [_bounding(shared, place, began=not learned) for place in places],
        [_running(subject, Entry(OURS, with_attainment(subject.policy, promise))) for promise in promises],
        [_planning(subject, shared, place) for place in places if planned],
        [_tuning(subject, name) for name in counts_first if name in search],
        [_tuning_before(subject, name, learned, places.stop) for name in counts_first if learned],
        [_running(subject, entry) for entry in usual],
    ]
    found = iter(side_by_side([each for stage in stages for each in stage], shared, workers, ray, told))
    bounds, ours, plans, best, before, others = ([next(found) for _ in stage] for stage in stages)
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
    if subject.shared and search and len(subject.cases) > 1:
        notes.append("baselines are tuned model by model, each as if it had all GPUs, and then run together")
    if subject.shared and planned and len(subject.cases) > 1:
        notes.append("planned: each model as if it had all GPUs; together they may want more than there are")
    return Proof(
        trace=subject.trace,
        profile=subject.profile,
        seed=subject.cases[0].seed,
        goal=subject.cases[0].goal,
        cold_start_s=subject.cases[0].cold_start_s,
        cold_start_uncached_s=subject.cases[0].cold_start_uncached_s,
        cold_start_spread=subject.cases[0].cold_start_spread,
        crash_every_s=subject.cases[0].hours_between_crashes * 3600,
        router=subject.cases[0].router,
        patience_s=subject.cases[0].patience_s,
        scale=subject.scale,
        requests=sum(len(case.trace.arrival_s) for case in counted),
        duration_s=max(case.trace.duration_s for case in counted),
        learned_s=max((case.trace.duration_s for case in learned), default=0.0),
        models=len(subject.cases),
        gpus=subject.gpus,
        clairvoyant_gpu_hours=sum(bounds),
        runs=tuple(runs),
        frontier={name: tuple(points) for name, points in frontier.items()},
        planned=Run(PLANNED, False, {}, *add_up(counted, plans)) if planned else None,
        notes=(*subject.notes, *notes),
    )


def _parts(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Return what comes before figures count, empty where all count, and what counts: each as cases of their own."""
    if not any(case.counted_from_s for case in cases):
        return [], list(cases)
    learned = [_part(case, 0.0, case.counted_from_s) for case in cases]
    return learned, [started(_part(case, case.counted_from_s, case.trace.duration_s)) for case in cases]


def _part(case: Case, from_s: float, to_s: float) -> Case:
    return replace(case, trace=between(case.trace, from_s, to_s), counted_from_s=0.0)


def _bounding(cases: Sequence[Case], place: int, began: bool) -> Search[float]:
    """Compute the bound of one of the cases that the calls share. began: with the replicas of the case, else any."""
    call = Call(_bound, (place, began), BOUND_RUNS * run_cost(cases[place]))

    def steps() -> Generator[list[Call], Any, float]:
        (gpu_hours,) = yield [call]
        return float(gpu_hours)

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

    Where a trace has several models, each is tuned on its own: no baseline is worse off for it. The best settings are
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
        return [Call(_play_together, (count, entry, subject.gpus), sum(each))]
    return [Call(_play, (place, entry, count > 1), cost) for place, cost in enumerate(each)]


def _together(subject: Subject, results: Sequence[list[Played]]) -> tuple[Row, FloatColumn]:
    return add_up(subject.cases, [played for result in results for played in result])


# What workers do. They share the cases of the subject, first, and parts of these.


def _bound(cases: Sequence[Case], place: int, began: bool) -> float:
    case = cases[place]
    return bound(case if began else replace(case, start_replicas=case.max_replicas)).gpu_hours


def _play(cases: Sequence[Case], place: int, entry: Entry, keep_ttft: bool) -> list[Played]:
    return [play(cases[place], entry.scaler(cases, place), keep_ttft=keep_ttft)]


def _play_together(cases: Sequence[Case], count: int, entry: Entry, gpus: float) -> list[Played]:
    return play_together(cases[:count], entry.scalers(cases[:count], gpus), gpus)


def _follow(cases: Sequence[Case], place: int, schedule: Schedule, keep_ttft: bool) -> Played:
    return play(cases[place], Planned(schedule), keep_ttft=keep_ttft)


def play(case: Case, scaler: Scaler, *, keep_ttft: bool = False) -> Played:
    """Make one run and keep what a proof needs of it."""
    return _played(case, run(case, scaler), keep_ttft)


def play_together(cases: Sequence[Case], scalers: Sequence[Scaler] | FleetScaler, gpus: float) -> list[Played]:
    """Make one run of several cases that share GPUs, and keep what a proof needs of each."""
    node_gpus = max(NODE_GPUS, *(case.gpus_per_replica for case in cases))
    outcomes = run_fleet(cases, scalers, GpuPool(gpus, node_gpus))
    return [_played(case, outcome, len(cases) > 1) for case, outcome in zip(cases, outcomes, strict=True)]


def _played(case: Case, outcome: Outcome, keep_ttft: bool) -> Played:
    from_s = case.counted_from_s
    ttft_s = outcome.ttft_s[case.trace.arrival_s >= from_s] if keep_ttft else np.empty(0)
    timeline = outcome.timeline[outcome.timeline[:, 0] >= from_s] - (from_s, 0.0, 0.0, 0.0, 0.0)
    return Played(summarize(case, outcome), thin(timeline, TIMELINE_ROWS), ttft_s.astype(np.float32))


def add_up(cases: Sequence[Case], played: Sequence[Played]) -> tuple[Row, FloatColumn]:
    """Return several workloads as one: shares weighted by requests, quantiles over all requests, sums of the rest."""
    if len(played) == 1:
        return played[0].row, played[0].timeline
    rows = [each.row for each in played]
    counts = np.array([(case.trace.arrival_s >= case.counted_from_s).sum() for case in cases], np.float64)
    ttft_s = np.concatenate([each.ttft_s for each in played]).astype(np.float64)
    p50_s, p95_s, p99_s = (float(np.quantile(ttft_s, q, method="inverted_cdf")) for q in (0.5, 0.95, 0.99))

    def mean(name: str) -> float:
        return float(np.average([getattr(row, name) for row in rows], weights=counts))

    def total(name: str) -> Any:
        return sum(getattr(row, name) for row in rows)

    row = Row(
        attainment=mean("attainment"),
        attainment_ttft=mean("attainment_ttft"),
        attainment_itl=mean("attainment_itl"),
        goodput_rps=total("goodput_rps"),
        goodput_tokens_per_s=total("goodput_tokens_per_s"),
        gpu_hours=total("gpu_hours"),
        breach_s=total("breach_s"),
        scale_ups=total("scale_ups"),
        scale_downs=total("scale_downs"),
        flaps=total("flaps"),
        unfinished=total("unfinished"),
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s,
    )
    return row, _added([each.timeline for each in played])


def _added(timelines: Sequence[FloatColumn]) -> FloatColumn:
    """Add timelines up on the times of the longest; each stays at its last values."""
    longest = max(timelines, key=lambda timeline: float(timeline[-1, 0]))
    total = longest.copy()
    total[:, 1:] = 0.0
    for timeline in timelines:
        place = np.searchsorted(timeline[:, 0], longest[:, 0], side="right") - 1
        total[:, 1:] += timeline[np.maximum(place, 0), 1:]
    return total


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
