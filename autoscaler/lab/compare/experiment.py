"""The subject of a comparison: the workloads of one trace, their initial replicas, and the scored part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoscaler.config.policy.schema import Policy
from autoscaler.core.model.money import Price
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.bounds.constant_count import find_fewest_replicas
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.lab.replay.check import UnreachableGoal, check_case
from autoscaler.lab.replay.inputs.transform import clip
from autoscaler.lab.replay.request_cost import attainable_share
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score

START_S = 600.0  # length of the beginning of a trace
MIN_RISE = 0.01  # rise of attainment for which twice as many replicas are tried


@dataclass(frozen=True)
class Experiment:
    """The workloads of one trace on one profile, under one policy."""

    trace: str
    profile: str
    cases: tuple[Case, ...]  # one per model of the trace, with the same goal, profile and seed
    policy: Policy
    scale: float = 1.0
    notes: tuple[str, ...] = ()
    gpus: float = math.inf  # GPUs shared by all replicas; infinity: no limit
    gpu_price: Price = Price(math.nan, "no price of a GPU is stated")  # noqa: RUF009 - a value

    @property
    def shared(self) -> bool:
        return math.isfinite(self.gpus)


def goal_from_policy(policy: Policy) -> Goal:
    """Return the objectives of a policy; NaN: not stated."""
    objective = policy.spec.objective
    ttft_s, itl_s = (math.nan if limit is None else limit for limit in (objective.ttft, objective.itl))
    return Goal(ttft_s, itl_s, objective.attainment)


def check_cases(*cases: Case) -> tuple[str, ...]:
    """Raise ValueError if a case cannot be run, UnreachableGoal if no request of any case can meet the objectives.

    Returns notes for the reader of the comparison.
    """
    shares = {}
    for case in cases:
        check_case(case)
        shares[case.trace.name] = attainable_share(case)
    if not any(shares.values()):
        raise UnreachableGoal(f"no request of {', '.join(shares)} can meet the objective, even alone on a replica")
    attainment = cases[0].goal.attainment
    return tuple(
        f"of {name} at most {share * 100:.4g}% of the requests can meet the objective, even alone on a replica: the "
        f"goal of {attainment * 100:g}% is out of reach"
        for name, share in shares.items()
        if share < attainment
    )


def with_start_replicas(case: Case) -> Case:
    """Return the case with the initial replicas of an established service: the fewest that meet the goal at the
    beginning.

    The beginning is the first ten minutes. If no count meets the goal there, it is the smallest that comes as close.
    Raises like `check_case`.
    """
    check_case(case)
    beginning = _part(case, 0.0, min(START_S, case.trace.duration_s))
    if not len(beginning.trace.arrival_s):
        return replace(case, start_replicas=1)

    def attained(count: int) -> float:
        constant = replace(beginning, start_replicas=count)
        return compute_score(constant, run(constant, Static(count))).attainment

    return replace(case, start_replicas=find_fewest_replicas(beginning, attained, MIN_RISE))


def split_learning(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Return the learning parts, empty without `counted_from_s`, and the scored parts, as cases of their own."""
    if not any(case.counted_from_s for case in cases):
        return [], list(cases)
    learned = [_part(case, 0.0, case.counted_from_s) for case in cases]
    return learned, [_part(case, case.counted_from_s, case.trace.duration_s) for case in cases]


def _part(case: Case, from_s: float, to_s: float) -> Case:
    return replace(case, trace=clip(case.trace, from_s, to_s), counted_from_s=0.0)
