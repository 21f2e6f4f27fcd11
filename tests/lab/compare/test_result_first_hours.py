"""The first two hours of a service, which show the cost of knowing nothing: the shipped policy and tuned baselines."""

import math

import pytest

from autoscaler.lab.compare.result import Comparison
from autoscaler.lab.replay.case import Case
from autoscaler.lab.report.format import verdict
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape
from tests.lab.compare.generated import Setting, gpu_hours, make_case, prove_generated, run_setting

PROFILE = "8b-h100-3g"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# GPU-hours of the shipped policy over those of each seed's best baseline, tuned in hindsight on that trace. The shipped
# policy is not tuned. Lower this limit as the policy improves; raise it only for a new or better tuned baseline.
# Raised once from 1.30: what was recommended is now kept for a cold start (decision 61), which costs 1 to 2 % here.
MOST = 1.32  # measured: 1.315 in sum (1.54, 1.16)

BEST: dict[int, Setting] = {
    5: ("llmd-slo", {"high": 1.52422, "low_share": 0.5, "min_replicas": 1.0}),
    8: ("skyserve", {"target": 7.40153, "upscale_delay_s": 300.0, "downscale_delay_s": 300.0, "min_replicas": 1.0}),
}
"""The cheapest setting that meets the goal, by seed, among all of `llmd-slo` and `skyserve`. keda-queue, keda-rps,
hpa-inflight, aibrix-apa and static cost more or miss the goal. `llmd-slo` is also the cheapest at its default."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Two hours with a ramp from one to about four replicas and back, and bursts of two minutes at random times.

    Two of four measured seeds, which together have the ratio of all four.
    """
    day = (1.0, 1.5, 3.0) + (1.0,) * 21
    shape = Shape(10.0, Lengths(400, 0.8, 3000), Lengths(100, 0.7, 900), day, (Bursts(1.0, 120.0, 0.5, 2.0),))
    return [make_case("two-hours", PROFILE, shape, 2, seed) for seed in BEST]


@pytest.fixture(scope="module")
def first_hours(cases: list[Case]) -> list[Comparison]:
    return [prove_generated(case, PROFILE, ("llmd-slo", "skyserve")) for case in cases]


def test_ours_meets_the_goal_in_the_first_hours(first_hours: list[Comparison]) -> None:
    assert gpu_hours(first_hours) < math.inf, [verdict(comparison) for comparison in first_hours]


def test_ours_is_cheaper_than_default_baselines(first_hours: list[Comparison]) -> None:
    untuned = {run.name: gpu_hours(first_hours, run.name) for run in first_hours[0].baselines if run.default}
    assert sum(hours < math.inf for hours in untuned.values()) >= 2
    assert gpu_hours(first_hours) < 0.8 * min(untuned.values()), untuned


def test_excess_of_ours_in_the_first_hours_is_bounded(cases: list[Case], first_hours: list[Comparison]) -> None:
    said = [verdict(comparison) for comparison in first_hours]
    best = [run_setting(case, setting) for case, setting in zip(cases, BEST.values(), strict=True)]
    assert all(case.goal.is_met_by(score.attainment) for case, score in zip(cases, best, strict=True)), best
    assert gpu_hours(first_hours) <= MOST * sum(score.gpu_hours for score in best), said


def test_no_run_that_meets_the_goal_is_below_the_bound(first_hours: list[Comparison]) -> None:
    for comparison in first_hours:
        for run in comparison.runs:
            if comparison.meets_goal(run):
                assert run.score.gpu_hours >= comparison.lower_bound_gpu_hours, run.name
