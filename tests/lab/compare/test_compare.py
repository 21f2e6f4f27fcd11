import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.compare.compare import OURS_ATTAINMENTS, compare, with_attainment
from autoscaler.lab.compare.experiment import check_cases, with_start_replicas
from autoscaler.lab.compare.run_result import run_case, sum_results
from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.check import UnreachableGoal
from tests.lab.compare.experiments import INTERACTIVE, busy, experiment

pytestmark = pytest.mark.slow


def test_itl_below_the_step_time_is_refused_before_the_run() -> None:
    case = replace(busy(), goal=Goal(1.0, 0.005, 0.99))
    with pytest.raises(UnreachableGoal, match=r"^ITL 5 ms is below the step time of this profile \(7\.92 ms\)$"):
        check_cases(case)
    with pytest.raises(UnreachableGoal):
        compare(experiment(case), ())


def test_model_without_servable_requests_is_noted() -> None:
    short, long = (replace(busy(name, per_s=0.5), goal=Goal(0.2, 0.1, 0.99)) for name in ("short", "long"))
    long.trace.prompt_tokens[:] = 7000  # 0.3 s alone
    fleet = experiment(short, with_start_replicas(long))
    comparison = compare(fleet, ("keda-rps",), workers=1)
    assert any("of long at most 0% of the requests can meet the objective" in note for note in comparison.notes)
    count = len(fleet.cases[0].trace.arrival_s)
    assert 0.9 * count < comparison.runs[0].score.attainment * comparison.requests <= count
    with pytest.raises(UnreachableGoal, match="no request of long, longer can meet the objective"):
        compare(experiment(long, replace(long, trace=replace(long.trace, name="longer"))), (), workers=1)


def test_comparison_holds_ours_baselines_and_a_lower_bound() -> None:
    shares: list[float] = []
    comparison = compare(experiment(), ("keda-queue", "static"), workers=1, progress=shares.append)
    assert [(run.name, run.tuned) for run in comparison.runs] == [
        ("ours", False),
        ("keda-queue", False),
        ("static", True),
    ]
    assert comparison.runs[2].params == {"replicas": float(int(comparison.runs[2].params["replicas"]))}
    assert 0 < comparison.lower_bound_gpu_hours <= comparison.estimate_gpu_hours
    assert all(
        run.score.gpu_hours >= comparison.lower_bound_gpu_hours for run in comparison.runs if comparison.meets_goal(run)
    )
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert all(len(run.timeline) for run in comparison.runs)
    assert [run.default for run in comparison.runs] == [False, True, False]
    assert comparison.runs[1].params == {"target": 5.0, "stabilization_s": 300.0, "min_replicas": 1.0}


def test_undocumented_settings_are_noted() -> None:
    notes = compare(experiment(), ("keda-queue", "keda-rps"), workers=1).notes
    assert [note for note in notes if "(default)" in note] == [
        "keda-rps (default): target: requests per second that one replica takes within the objectives, as a load test "
        "would find"
    ]


def test_common_settings_of_a_fleet_are_shown() -> None:
    long = replace(busy("b"), trace=replace(busy("b").trace, output_tokens=busy("b").trace.output_tokens * 3))
    (_, rate) = compare(experiment(busy("a"), long), ("keda-rps",), workers=1).runs
    assert rate.params == {"stabilization_s": 300.0, "min_replicas": 0.0}


def test_tuned_comparison_has_a_frontier_and_no_worse_baseline() -> None:
    comparison = compare(experiment(), ("keda-rps",), tuned=True, workers=1)
    default, best = (run for run in comparison.runs if run.name == "keda-rps")
    assert (default.tuned, best.tuned) == (False, True)
    if comparison.meets_goal(default):
        assert comparison.meets_goal(best)
        assert best.score.gpu_hours <= default.score.gpu_hours + 1e-9
    else:
        assert best.score.attainment >= default.score.attainment - 1e-9
    assert len(comparison.frontier["keda-rps"]) > 10
    assert len(comparison.frontier["ours"]) == 1 + len(OURS_ATTAINMENTS)
    assert any(point.gpu_hours == best.score.gpu_hours for point in comparison.frontier["keda-rps"])


def test_offline_plan_is_a_row_above_the_bound() -> None:
    shares: list[float] = []
    comparison = compare(experiment(), ("keda-queue",), offline_plan=True, workers=1, progress=shares.append)
    assert comparison.offline_plan is not None
    assert [run.name for run in comparison.rows] == ["ours", "keda-queue", "offline-plan"]
    assert [run.name for run in comparison.runs] == ["ours", "keda-queue"]
    assert comparison.meets_goal(comparison.offline_plan)
    assert comparison.offline_plan.score.gpu_hours >= comparison.lower_bound_gpu_hours
    assert len(comparison.offline_plan.timeline)
    assert comparison.best_baseline() in (None, comparison.runs[1])
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert compare(experiment(), (), workers=1).offline_plan is None


def test_seed_gives_the_same_comparison_on_one_core_and_two() -> None:
    one, two = (compare(experiment(), ("keda-queue",), workers=workers) for workers in (1, 2))
    assert [run.score for run in one.runs] == [run.score for run in two.runs]
    assert one.lower_bound_gpu_hours == two.lower_bound_gpu_hours


def test_results_of_workloads_are_weighted_by_requests() -> None:
    cases = busy("a", per_s=2.0), busy("b", per_s=0.5, seed=2)
    played = [run_case(case, Static(1), keep_ttft=True) for case in cases]
    score, timeline = sum_results(cases, played)
    counts = np.array([len(case.trace.arrival_s) for case in cases])
    all_ttft = np.concatenate([each.ttft_s for each in played])
    assert score.attainment == pytest.approx(np.average([each.score.attainment for each in played], weights=counts))
    assert score.gpu_hours == pytest.approx(sum(each.score.gpu_hours for each in played))
    assert score.ttft_p95_s == pytest.approx(float(np.sort(all_ttft)[int(np.ceil(0.95 * len(all_ttft))) - 1]))
    assert timeline[3, 2] == 2.0  # one replica each


def test_run_below_the_bound_of_all_models_is_noted() -> None:
    """Fifteen of 1,800 requests go to a model without a free GPU."""
    light, heavy = busy("light", per_s=3.0), busy("heavy", per_s=0.025, seed=2)
    together = compare(replace(experiment(light, heavy), gpus=1.0), ("static",), workers=1)
    apart = compare(experiment(light, heavy), ("static",), workers=1)
    said = (
        "the bound is what all models take to meet the goal, each by itself; over all requests it was met for less by "
    )
    below = [run for run in together.runs if together.meets_goal(run) and together.ratio(run.score.gpu_hours) < 1]
    assert below and [note for note in together.notes if note.startswith(said)]
    assert all(run.name in " ".join(together.notes) for run in below)
    assert not [note for note in apart.notes if note.startswith(said)]


def test_fleet_is_compared_model_by_model() -> None:
    fleet = experiment(busy("a"), busy("b", per_s=0.5, seed=2))
    comparison = compare(fleet, ("static",), offline_plan=True, workers=1)
    alone = [compare(experiment(case), ("static",), offline_plan=True, workers=1) for case in fleet.cases]
    assert comparison.models == 2
    assert comparison.requests == sum(each.requests for each in alone)
    assert comparison.lower_bound_gpu_hours == pytest.approx(sum(each.lower_bound_gpu_hours for each in alone))
    plans = [each.offline_plan.score for each in (comparison, *alone) if each.offline_plan is not None]
    assert plans[0].gpu_hours == pytest.approx(plans[1].gpu_hours + plans[2].gpu_hours)
    for place, run in enumerate(comparison.runs):
        assert run.score.gpu_hours == pytest.approx(sum(each.runs[place].score.gpu_hours for each in alone))


def test_fleet_with_plenty_of_gpus_runs_as_without_a_limit() -> None:
    fleet = experiment(busy("a"), busy("b", per_s=0.5, seed=2))
    apart = compare(fleet, ("keda-rps", "static"), workers=1)
    shared = compare(replace(fleet, gpus=500.0), ("keda-rps", "static"), offline_plan=True, workers=1)
    (ours, *others), (alone, *expected) = shared.runs, apart.runs
    assert [run.score for run in others] == [run.score for run in expected]
    assert all(np.array_equal(one.timeline, two.timeline) for one, two in zip(others, expected, strict=True))
    # The strategies of several workloads are evaluated in turn, some seconds later than alone.
    later_s = (ours.score.scale_ups + ours.score.scale_downs) * UPDATE_INTERVAL_S
    assert ours.score.gpu_hours == pytest.approx(alone.score.gpu_hours, abs=later_s / 3600)
    assert ours.score.attainment == pytest.approx(alone.score.attainment, abs=0.005)
    assert shared.lower_bound_gpu_hours == apart.lower_bound_gpu_hours
    assert shared.gpus == 500.0
    assert any("tuned model by model" in note for note in shared.notes)
    assert any(note.startswith("offline plan: each model is planned as if it had all GPUs") for note in shared.notes)


@pytest.mark.long
def test_every_policy_stays_within_too_few_gpus() -> None:
    fleet = replace(experiment(*(busy(name, per_s=30.0, seed=seed) for seed, name in enumerate("abc"))), gpus=2.0)
    comparison = compare(fleet, ("keda-rps", "static"), tuned=True, attainments=(0.9,), workers=1)
    most_s = 600.0 + 3600.0  # requests not served by then are never served
    for run in comparison.runs:
        assert run.score.gpu_hours <= 2.0 * most_s / 3600
        assert run.timeline[:40, 2].max() <= 2.0
        assert not comparison.meets_goal(run)
    assert len(comparison.frontier["ours"]) == 2


def test_with_attainment_changes_nothing_else() -> None:
    changed = with_attainment(INTERACTIVE, 0.9)
    assert changed.spec.objective.attainment == 0.9
    assert changed.spec.objective.ttft == INTERACTIVE.spec.objective.ttft
    assert changed.spec.replicas == INTERACTIVE.spec.replicas


def test_constant_count_serves_from_the_start() -> None:
    fleet = experiment(replace(busy("a", per_s=30.0), cold_start_s=240.0), busy("b", per_s=0.5, seed=2))
    for gpus in (math.inf, 500.0):
        (static,) = (run for run in compare(replace(fleet, gpus=gpus), ("static",), workers=1).runs if run.tuned)
        assert (static.score.scale_ups, static.score.scale_downs) == (0, 0)
        assert static.timeline[0, 2] == static.timeline[-1, 2] > len(fleet.cases)
