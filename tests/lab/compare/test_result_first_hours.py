"""The first two hours of a service, which show the cost of knowing nothing: the shipped policy and tuned baselines."""

import math

import pytest

from autoscaler.lab.compare.result import Comparison
from autoscaler.lab.report.format import verdict
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape
from tests.lab.compare.generated import gpu_hours, prove_generated, tuned_gpu_hours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# GPU-hours of the shipped policy over those of each seed's best baseline, tuned in hindsight on that trace. The shipped
# policy is not tuned. Lower this limit as the policy improves; raise it only for a new or better tuned baseline.
# Raised once from 1.30: what was recommended is now kept for a cold start (decision 61), which costs 1 to 2 % here.
MOST = 1.32  # measured: 1.315 in sum (1.54, 1.16)


@pytest.fixture(scope="module")
def first_hours() -> list[Comparison]:
    """Two hours with a ramp from one to about four replicas and back, and bursts of two minutes at random times.

    Two of four measured seeds, which together have the ratio of all four. Of the baselines, `llmd-slo` is the best in
    hindsight with the first seed and the cheapest default, and `skyserve` is the best with the second; keda-queue,
    keda-rps, hpa-inflight, aibrix-apa and static cost more or miss the goal, so they need not be tuned here.
    """
    day = (1.0, 1.5, 3.0) + (1.0,) * 21
    shape = Shape(10.0, Lengths(400, 0.8, 3000), Lengths(100, 0.7, 900), day, (Bursts(1.0, 120.0, 0.5, 2.0),))
    against = ("llmd-slo", "skyserve")
    return [prove_generated("two-hours", "8b-h100-3g", shape, 2, seed, against) for seed in (5, 8)]


def test_ours_meets_the_goal_in_the_first_hours(first_hours: list[Comparison]) -> None:
    assert gpu_hours(first_hours) < math.inf, [verdict(comparison) for comparison in first_hours]


def test_ours_is_cheaper_than_default_baselines(first_hours: list[Comparison]) -> None:
    untuned = {run.name: gpu_hours(first_hours, run.name) for run in first_hours[0].baselines if run.default}
    assert sum(hours < math.inf for hours in untuned.values()) >= 2
    assert gpu_hours(first_hours) < 0.8 * min(untuned.values()), untuned


def test_excess_of_ours_in_the_first_hours_is_bounded(first_hours: list[Comparison]) -> None:
    said = [verdict(comparison) for comparison in first_hours]
    assert gpu_hours(first_hours) <= MOST * tuned_gpu_hours(first_hours), said


def test_no_run_that_meets_the_goal_is_below_the_bound(first_hours: list[Comparison]) -> None:
    for comparison in first_hours:
        for run in comparison.runs:
            if comparison.meets_goal(run):
                assert run.score.gpu_hours >= comparison.lower_bound_gpu_hours, run.name
