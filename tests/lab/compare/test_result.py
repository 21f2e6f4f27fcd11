"""A short comparison for every change: the shipped policy on generated traces, against tuned baselines.

It covers the first two hours of a service, which shows the cost of knowing nothing, and a day like the one before.
"""

import math
from dataclasses import replace

import pytest

from autoscaler.config.policy.parse import load
from autoscaler.lab.compare.compare import compare
from autoscaler.lab.compare.experiment import Experiment, goal_from_policy, with_start_replicas
from autoscaler.lab.compare.result import OURS, Comparison
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.inputs.transform import generate
from autoscaler.lab.report.format import verdict
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape

pytestmark = pytest.mark.slow

POLICY = load().policies["interactive"]

# GPU-hours of the shipped policy over those of each seed's best baseline, tuned in hindsight on that trace. The shipped
# policy is not tuned. Lower these limits as the policy improves; raise them only for a new or better tuned baseline.
MOST_IN_FIRST_HOURS = 1.30  # measured: 1.297 in sum (1.49, 1.16); with the seeds 6 and 7 as well 1.290
MOST_ON_SECOND_DAY = 1.07  # measured: 1.050
MOST_BESIDE_YESTERDAYS_BEST = 1.02  # measured: 0.992; over the baseline that was best on the first day


def prove_generated(
    name: str, profile: str, shape: Shape, hours: float, seed: int, against: tuple[str, ...], learned: float = 0.0
) -> Comparison:
    """Compare policies on one seed of a shape. learned: fraction of the hours for learning."""
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
    counted = replace(with_start_replicas(case), counted_from_s=learned * trace.duration_s)
    return compare(Experiment(name, name_of_profile, (counted,), POLICY), against, tuned=True)


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


@pytest.fixture(scope="module")
def first_hours() -> list[Comparison]:
    """Two hours with a ramp from one to about four replicas and back, and bursts of two minutes at random times.

    Two of four measured seeds, which together have the ratio of all four; each takes half a minute of two cores.
    """
    day = (1.0, 1.5, 3.0) + (1.0,) * 21
    shape = Shape(10.0, Lengths(400, 0.8, 3000), Lengths(100, 0.7, 900), day, (Bursts(1.0, 120.0, 0.5, 2.0),))
    against = ("keda-queue", "keda-rps", "hpa-inflight", "llmd-slo", "aibrix-apa", "skyserve", "static")
    return [prove_generated("two-hours", "8b-h100-3g", shape, 2, seed, against) for seed in (5, 8)]


@pytest.fixture(scope="module")
def second_days() -> list[Comparison]:
    """Two office days with bursts of two minutes every other hour; the first day is for learning.

    The worse of two measured seeds; each takes some minutes of two cores.
    """
    morning, noon = (0.5, 0.4, 0.35, 0.3, 0.3, 0.35, 0.5, 0.7, 1.0, 1.3, 1.5, 1.6), (1.5, 1.5, 1.6, 1.6, 1.5, 1.4)
    office = (*morning, *noon, 1.3, 1.0, 1.0, 1.0, 1.0, 0.8)
    shape = Shape(1.0, Lengths(900, 0.5, 2500), Lengths(200, 0.7, 1200), office, (Bursts(0.5, 120.0, 0.5, 2.0),))
    against = ("keda-rps", "hpa-inflight", "skyserve", "static")
    return [prove_generated("office", "8b-w4-h100-1g", shape, 48, 6, against, learned=0.5)]


@pytest.mark.timeout(600)
def test_ours_meets_the_goal_in_the_first_hours(first_hours: list[Comparison]) -> None:
    assert gpu_hours(first_hours) < math.inf, [verdict(comparison) for comparison in first_hours]


@pytest.mark.timeout(600)
def test_ours_is_cheaper_than_default_baselines(first_hours: list[Comparison]) -> None:
    untuned = {run.name: gpu_hours(first_hours, run.name) for run in first_hours[0].baselines if run.default}
    assert sum(hours < math.inf for hours in untuned.values()) >= 2
    assert gpu_hours(first_hours) < 0.8 * min(untuned.values()), untuned


@pytest.mark.timeout(600)
def test_excess_of_ours_in_the_first_hours_is_bounded(first_hours: list[Comparison]) -> None:
    said = [verdict(comparison) for comparison in first_hours]
    assert gpu_hours(first_hours) <= MOST_IN_FIRST_HOURS * tuned_gpu_hours(first_hours), said


@pytest.mark.timeout(600)
def test_no_run_that_meets_the_goal_is_below_the_bound(first_hours: list[Comparison]) -> None:
    for comparison in first_hours:
        for run in comparison.runs:
            if comparison.meets_goal(run):
                assert run.score.gpu_hours >= comparison.lower_bound_gpu_hours, run.name


@pytest.mark.timeout(1500)
def test_ours_is_near_tuned_baselines_on_the_second_day(
    second_days: list[Comparison],
) -> None:
    said = [verdict(comparison) for comparison in second_days]
    assert gpu_hours(second_days) <= MOST_ON_SECOND_DAY * tuned_gpu_hours(second_days), said


@pytest.mark.timeout(1500)
def test_ours_keeps_up_with_learned_baselines_on_day_two(second_days: list[Comparison]) -> None:
    """If the learned setting still meets the goal."""
    chosen = [(comparison, comparison.best_learned_baseline()) for comparison in second_days]
    again = [(comparison, run) for comparison, run in chosen if run is not None and comparison.meets_goal(run)]
    assert again, chosen
    yesterdays = sum(run.score.gpu_hours for _, run in again)
    assert gpu_hours([comparison for comparison, _ in again]) <= MOST_BESIDE_YESTERDAYS_BEST * yesterdays, chosen
