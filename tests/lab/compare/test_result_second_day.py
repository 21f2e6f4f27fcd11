"""A day like the one before: the shipped policy and baselines that were tuned on the first day, or in hindsight."""

import pytest

from autoscaler.lab.compare.result import Comparison
from autoscaler.lab.report.format import verdict
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape
from tests.lab.compare.generated import gpu_hours, prove_generated, tuned_gpu_hours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# GPU-hours of the shipped policy over those of a tuned baseline. The shipped policy is not tuned. Lower these limits as
# the policy improves; raise them only for a new or better tuned baseline.
MOST = 1.07  # measured: 1.066; over the best baseline in hindsight
MOST_BESIDE_YESTERDAYS_BEST = 1.02  # measured: 1.007; over the baseline that was best on the first day


@pytest.fixture(scope="module")
def second_days() -> list[Comparison]:
    """Two office days with bursts of two minutes every other hour; the first day is for learning.

    The worse of two measured seeds. Of the baselines, `keda-rps` is the best in hindsight, and `skyserve` is the one
    chosen on the first day; hpa-inflight and static cost more in both ways, so they need not be tuned here.
    """
    morning, noon = (0.5, 0.4, 0.35, 0.3, 0.3, 0.35, 0.5, 0.7, 1.0, 1.3, 1.5, 1.6), (1.5, 1.5, 1.6, 1.6, 1.5, 1.4)
    office = (*morning, *noon, 1.3, 1.0, 1.0, 1.0, 1.0, 0.8)
    shape = Shape(1.0, Lengths(900, 0.5, 2500), Lengths(200, 0.7, 1200), office, (Bursts(0.5, 120.0, 0.5, 2.0),))
    against = ("keda-rps", "skyserve")
    return [prove_generated("office", "8b-w4-h100-1g", shape, 48, 6, against, learned=0.5)]


def test_ours_is_near_tuned_baselines_on_the_second_day(
    second_days: list[Comparison],
) -> None:
    said = [verdict(comparison) for comparison in second_days]
    assert gpu_hours(second_days) <= MOST * tuned_gpu_hours(second_days), said


def test_ours_keeps_up_with_learned_baselines_on_day_two(second_days: list[Comparison]) -> None:
    """If the learned setting still meets the goal."""
    chosen = [(comparison, comparison.best_learned_baseline()) for comparison in second_days]
    again = [(comparison, run) for comparison, run in chosen if run is not None and comparison.meets_goal(run)]
    assert again, chosen
    yesterdays = sum(run.score.gpu_hours for _, run in again)
    assert gpu_hours([comparison for comparison, _ in again]) <= MOST_BESIDE_YESTERDAYS_BEST * yesterdays, chosen
