import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.lab.compare.result import LearningResult, PolicyRun
from autoscaler.lab.replay.case import Goal
from autoscaler.lab.report import format as words
from tests.lab.report.comparisons import UNTOLD, comparison, run


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.0, "100%"), (0.99996, "99.996%"), (0.9999999, "99.999%"), (0.98999, "98.99%"), (0.5, "50.0%")],
)
def test_fraction_is_never_rounded_up_over_its_goal(value: float, written: str) -> None:
    assert words.share(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (0.0004, "0.4 ms"),
        (0.0071, "7 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (840.0, "14 min"),
        (36_000, "10.0 h"),
        (math.inf, "never"),
    ],
)
def test_durations_are_formatted_in_a_natural_unit(value: float, written: str) -> None:
    assert words.seconds(value) == written


def test_setting_is_formatted_without_exponents() -> None:
    rate = run("keda-rps", params={"target": 0.340019, "stabilization_s": 1200.0})
    assert words.setting(rate) == "target 0.34, stabilization_s 1,200"


def test_unknown_is_a_dash() -> None:
    assert [words.ratio(value) for value in (1.0, 99.5, 2335.14, 32912003.67)] == [
        "1.00×",
        "99.50×",
        "2,335×",
        "32,912,004×",
    ]
    assert words.share(math.nan) == words.seconds(math.nan) == words.ratio(math.nan) == words.UNKNOWN


def test_goal_names_only_stated_objectives() -> None:
    assert words.objective(Goal(1.0, 0.1, 0.99)) == "99% within TTFT 1 s and ITL 100 ms"
    assert words.objective(Goal(30.0, math.nan, 0.9)) == "90% within TTFT 30 s"
    assert words.objective(Goal(math.nan, math.nan, 0.99)) == "no objective"


@pytest.mark.parametrize(
    ("models", "gpus", "written"),
    [
        (1, np.inf, ""),
        (27, np.inf, ", 27 models"),
        (1, 8.0, ", on 8 GPUs"),
        (1, 1.0, ", on 1 GPU"),
        (27, 3.5, ", 27 models on 3.5 GPUs"),
    ],
)
def test_fleet_shows_its_shared_gpus(models: int, gpus: float, written: str) -> None:
    assert words.fleet(comparison(models=models, gpus=gpus)) == written


def test_verdict_compares_with_the_best_baseline() -> None:
    said = words.verdict(
        comparison(
            run(),
            run("cheap", attainment=0.9, gpu_hours=11.0),
            run("static", tuned=True, gpu_hours=20.0),
            run("hpa", gpu_hours=16.0),
        )
    )
    assert "Best baseline that met the goal: hpa, 99.50% at 16 GPU-hours" in said
    assert "0.20 against 0.60" in said


def test_verdict_states_a_miss() -> None:
    said = words.verdict(comparison(run(attainment=0.91), run("hpa", attainment=0.95)))
    assert "which misses the goal of 99.00%" in said
    assert "No baseline met the goal" in said


@pytest.mark.parametrize(
    ("actual", "recorded"),
    [
        ({"ttft_p50_s": 0.5}, {"ttft_p50_s": 0.01}),
        ({"ttft_p50_s": 0.1}, {"ttft_p50_s": math.inf}),
        ({"attainment": 0.93}, {"attainment": 0.99}),
    ],
)
def test_no_verdict_when_the_simulation_contradicts_the_history(
    actual: dict[str, float], recorded: dict[str, float]
) -> None:
    learned = before("hpa", LearningResult(0.995, 9.0))
    for one, other in ((actual, recorded), (recorded, actual)):
        made = comparison(run(), learned, run("actual", **one), run("recorded", **other))
        said = words.verdict(made)
        assert "this profile does not describe your replicas" in said
        assert "simulate fit" in said
        assert words.learned_verdict(made) == ""


@pytest.mark.parametrize("values", [{}, {"ttft_p50_s": 0.25}, {"attainment": 0.96}, {"ttft_p50_s": math.nan}])
def test_a_verdict_needs_a_simulation_near_the_history(values: dict[str, float]) -> None:
    made = comparison(run(), run("hpa"), run("actual"), run("recorded", **values))
    assert words.verdict(made).startswith("ours: ")
    assert words.verdict(replace(made, runs=(run(), UNTOLD, run("recorded")))).startswith("ours: ")


def before(name: str, there: LearningResult, **values: float) -> PolicyRun:
    return replace(run(name, params={"target": 3.0}, **values), before=there)


def test_learned_verdict_names_the_learned_choice() -> None:
    dear = before("hpa", LearningResult(0.995, 9.0), gpu_hours=8.0)
    cheap = before("keda-rps", LearningResult(0.992, 7.0), attainment=0.9, gpu_hours=6.0)
    tuned = run("static", tuned=True, gpu_hours=5.0)
    both = comparison(run(), dear, tuned, cheap, learned_s=21_600.0)
    assert both.best_learned_baseline() == cheap
    assert words.learned_verdict(both) == (
        "Judged by the first 6.0 h, the best was keda-rps (target 3): 99.20% at 7 GPU-hours there, 90.00% at 6 "
        "from then on, which misses the goal of 99.00%."
    )
    near, far = before("hpa", LearningResult(0.98, 99.0)), before("keda-rps", LearningResult(0.97, 1.0))
    assert comparison(run(), far, near, learned_s=60.0).best_learned_baseline() == near
    assert "misses" not in words.learned_verdict(comparison(run(), dear, learned_s=60.0))
    assert words.learned_verdict(comparison()) == ""
    assert [words.label(each) for each in (cheap, tuned)] == ["keda-rps (tuned before)", "static (tuned)"]
    assert words.length(both) == "2.0 h after 6.0 h to learn from" and words.length(comparison()) == "2.0 h"


def test_verdict_ignores_actual_and_recorded_runs() -> None:
    history = run("actual", attainment=math.nan, gpu_hours=9.0), run("recorded", gpu_hours=9.0)
    assert words.verdict(comparison(run(), *history)) == "ours: 99.50% at 12 GPU-hours."
    assert "Best baseline that met the goal: hpa," in words.verdict(
        comparison(run(), *history, run("hpa", gpu_hours=16.0))
    )
    assert "No baseline met the goal." in words.verdict(comparison(run(), *history, run("hpa", attainment=0.5)))


def test_runs_that_met_the_goal_come_first() -> None:
    ordered = words.sorted_runs(
        comparison(UNTOLD, run("cheap", attainment=0.5, gpu_hours=1.0), run("static", gpu_hours=30.0), run())
    )
    # its distance to the goal is unknown
    assert [each.name for each in ordered] == ["ours", "static", "cheap", "actual"]


def test_ratio_is_unknown_without_a_bound() -> None:
    assert math.isnan(comparison(lower_bound_gpu_hours=0.0).ratio(12.0))
