"""Comparisons of the shipped policy with baselines on generated traces, for a short proof with every change.

`bench/studies/policies.py` compares all baselines over more traces, seeds and settings.
"""

import math

from autoscaler.config.policy.parse import load
from autoscaler.lab.baselines import BASELINES, Params
from autoscaler.lab.compare.compare import compare
from autoscaler.lab.compare.experiment import Experiment, goal_from_policy, with_start_replicas
from autoscaler.lab.compare.result import OURS, Comparison
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.inputs.transform import generate
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import Score, compute_score
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Shape

POLICY = load().policies["interactive"]
Setting = tuple[str, Params]
"""A baseline with one of its settings. Tests state the best ones, which `compare(..., tuned=True)` found: the search
takes minutes, and its result changes only with the simulator and the baselines."""


def make_case(name: str, profile: str, shape: Shape, hours: float, seed: int) -> Case:
    """Return one seed of a shape, with cold starts of a minute."""
    _, replica_spec = find(profile)
    trace = generate(name, shape, hours * 3600, seed=seed)
    case = Case(
        trace,
        replica_spec.profile,
        goal_from_policy(POLICY),
        cold_start_s=60.0,
        gpus_per_replica=replica_spec.gpus,
        seed=seed,
    )
    return with_start_replicas(case)


def prove_generated(case: Case, profile: str, against: tuple[str, ...]) -> Comparison:
    """Compare the shipped policy with baselines at their defaults."""
    return compare(Experiment(case.trace.name, profile, (case,), POLICY), against, attainments=())


def run_setting(case: Case, setting: Setting) -> Score:
    """Run a baseline at a setting, from the fleet that it would begin with."""
    name, params = setting
    begun = BASELINES[name].starting_case(case, params)
    return compute_score(begun, run(begun, BASELINES[name](begun, params)))


def gpu_hours(comparisons: list[Comparison], name: str = OURS) -> float:
    """Return the GPU-hours of the shipped policy; infinity if it misses the goal with any seed."""
    runs = [
        (next(r for r in comparison.runs if r.name == name and not r.tuned), comparison) for comparison in comparisons
    ]
    return sum(run.score.gpu_hours if comparison.meets_goal(run) else math.inf for run, comparison in runs)
