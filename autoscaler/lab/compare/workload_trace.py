"""What a proof is about: the workloads of one trace, how they begin, and which part of them counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoscaler.config.policy.schema import Policy
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.bounds.constant_count import fewest
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.lab.replay.check import Unreachable, check
from autoscaler.lab.replay.request_cost import attainable
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import summarize
from autoscaler.lab.replay.trace import between

START_S = 600.0  # the beginning of a trace
START_MORE = 0.01  # of its requests: for so many twice as many replicas are tried


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
        shares[case.trace.name] = attainable(case)
    if not any(shares.values()):
        raise Unreachable(f"no request of {', '.join(shares)} can meet the objective, even alone on a replica")
    attainment = cases[0].goal.attainment
    return tuple(
        f"of {name} at most {share * 100:.4g}% of the requests can meet the objective, even alone on a replica: the "
        f"goal of {attainment * 100:g}% is out of reach"
        for name, share in shares.items()
        if share < attainment
    )


def started(case: Case) -> Case:
    """Return the case begun like a service that ran before: with the fewest replicas whose beginning meets the goal.

    The beginning is its first ten minutes. Where no number meets the goal there, it is the fewest that come as near.
    Raises like `check`.
    """
    check(case)
    beginning = _part(case, 0.0, min(START_S, case.trace.duration_s))
    if not len(beginning.trace.arrival_s):
        return replace(case, start_replicas=1)

    def attained(count: int) -> float:
        begun = replace(beginning, start_replicas=count)
        return summarize(begun, run(begun, Static(count))).attainment

    return replace(case, start_replicas=fewest(beginning, attained, START_MORE))


def parts(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Return what comes before figures count, empty where all count, and what counts: each as cases of their own."""
    if not any(case.counted_from_s for case in cases):
        return [], list(cases)
    learned = [_part(case, 0.0, case.counted_from_s) for case in cases]
    return learned, [_part(case, case.counted_from_s, case.trace.duration_s) for case in cases]


def _part(case: Case, from_s: float, to_s: float) -> Case:
    return replace(case, trace=between(case.trace, from_s, to_s), counted_from_s=0.0)
