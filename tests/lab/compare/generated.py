"""Comparisons of the shipped policy with tuned baselines on generated traces, for a short proof with every change.

`bench/studies/policies.py` compares all baselines over more traces, seeds and settings.
"""

import math
from dataclasses import replace

from autoscaler.config.policy.parse import load
from autoscaler.lab.compare.compare import compare
from autoscaler.lab.compare.experiment import Experiment, goal_from_policy, with_start_replicas
from autoscaler.lab.compare.result import OURS, Comparison
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.inputs.transform import generate
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Shape

POLICY = load().policies["interactive"]


def make_case(name: str, profile: str, shape: Shape, hours: float, seed: int) -> tuple[Case, str]:
    """Return one seed of a shape with cold starts of a minute, and the name of its profile."""
    name_of_profile, replica_spec = find(profile)
    trace = generate(name, shape, hours * 3600, seed=seed)
    case = Case(
        trace,
        replica_spec.profile,
        goal_from_policy(POLICY),
        cold_start_s=60.0,
        gpus_per_replica=replica_spec.gpus,
        seed=seed,
    )
    return with_start_replicas(case), name_of_profile


def prove_generated(
    name: str, profile: str, shape: Shape, hours: float, seed: int, against: tuple[str, ...], learned: float = 0.0
) -> Comparison:
    """Compare policies on one seed of a shape. learned: fraction of the hours for learning."""
    case, name_of_profile = make_case(name, profile, shape, hours, seed)
    counted = replace(case, counted_from_s=learned * case.trace.duration_s)
    return compare(Experiment(name, name_of_profile, (counted,), POLICY), against, tuned=True, attainments=())


def gpu_hours(comparisons: list[Comparison], name: str = OURS) -> float:
    """Return the GPU-hours of the shipped policy; infinity if it misses the goal with any seed."""
    runs = [
        (next(r for r in comparison.runs if r.name == name and not r.tuned), comparison) for comparison in comparisons
    ]
    return sum(run.score.gpu_hours if comparison.meets_goal(run) else math.inf for run, comparison in runs)


def tuned_gpu_hours(comparisons: list[Comparison]) -> float:
    """Return the GPU-hours of the best baseline in hindsight for each seed."""
    best = [comparison.best_baseline() for comparison in comparisons]
    assert all(run is not None and run.tuned for run in best)
    return sum(run.score.gpu_hours for run in best if run is not None)
