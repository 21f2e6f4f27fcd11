"""A day like the one before: the shipped policy and baselines that were tuned on the first day, or in hindsight."""

from dataclasses import replace

import pytest

from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import Score, compute_score
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape
from tests.lab.compare.generated import POLICY, Setting, make_case, run_setting

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DAY_S = 86_400.0
MOST = {"in hindsight": 1.01, "of yesterday": 0.97}  # measured: 1.001, 0.961
"""GPU-hours of the shipped policy, which is not tuned, over those of the best baseline. Lower these limits as the
policy improves; raise them only for a new or better tuned baseline."""

BEST: dict[str, Setting] = {
    "in hindsight": (
        "skyserve",
        {"target": 0.407778, "upscale_delay_s": 20.0, "downscale_delay_s": 1200.0, "min_replicas": 1.0},
    ),
    "of yesterday": (
        "skyserve",
        {"target": 0.296341, "upscale_delay_s": 300.0, "downscale_delay_s": 300.0, "min_replicas": 1.0},
    ),
}
"""The cheapest settings that met the goal on the second day, and on the first, among all of
`keda-rps`, `skyserve` and `hpa-inflight`; `static` costs more in both ways."""


@pytest.fixture(scope="module")
def second_day() -> Case:
    """Two office days with bursts of two minutes every other hour, of which the second counts.

    The worse of two measured seeds. Scrapes are 30 s apart, which takes half as many ticks as the default.
    """
    morning, noon = (0.5, 0.4, 0.35, 0.3, 0.3, 0.35, 0.5, 0.7, 1.0, 1.3, 1.5, 1.6), (1.5, 1.5, 1.6, 1.6, 1.5, 1.4)
    office = (*morning, *noon, 1.3, 1.0, 1.0, 1.0, 1.0, 0.8)
    shape = Shape(1.0, Lengths(900, 0.5, 2500), Lengths(200, 0.7, 1200), office, (Bursts(0.5, 120.0, 0.5, 2.0),))
    return replace(make_case("office", "8b-w4-h100-1g", shape, 48, 6), counted_from_s=DAY_S, scrape_s=30.0)


@pytest.fixture(scope="module")
def ours(second_day: Case) -> Score:
    return compute_score(second_day, run(second_day, PolicyScaler(second_day, POLICY)))


def test_ours_meets_the_goal_on_the_second_day(second_day: Case, ours: Score) -> None:
    assert second_day.goal.is_met_by(ours.attainment), ours


@pytest.mark.parametrize("best", BEST)
def test_ours_is_near_the_best_baseline(second_day: Case, ours: Score, best: str) -> None:
    score = run_setting(second_day, BEST[best])
    assert second_day.goal.is_met_by(score.attainment), score
    assert ours.gpu_hours <= MOST[best] * score.gpu_hours, (ours, score)
