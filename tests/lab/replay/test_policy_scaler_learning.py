"""Comparisons with a learning part, after which scores count."""

from dataclasses import replace

import pytest

from autoscaler.lab.baselines.static import Static
from autoscaler.lab.compare.compare import compare
from autoscaler.lab.compare.run_result import run_case
from autoscaler.lab.replay.inputs.transform import clip
from tests.lab.compare.experiments import experiment, rising


@pytest.mark.slow
def test_learned_setting_can_miss_where_hindsight_meets() -> None:
    case = rising()
    against = ("static", "keda-rps")
    comparison = compare(experiment(case), against, tuned=True, offline_plan=True, attainments=(), workers=1)
    assert (comparison.learned_s, comparison.duration_s) == (600.0, 600.0)
    assert comparison.requests == (case.trace.arrival_s >= 600).sum()
    by = {(run.name, "before" if run.before else "tuned" if run.tuned else ""): run for run in comparison.runs}
    before, tuned = by["static", "before"], by["static", "tuned"]
    assert before.before and comparison.goal.is_met_by(before.before.attainment)
    assert float(before.params["replicas"]) < float(tuned.params["replicas"])
    assert before.before.gpu_hours * 3600 >= float(before.params["replicas"]) * 600
    assert comparison.misses_goal(before) and comparison.meets_goal(tuned)
    first = replace(case, trace=clip(case.trace, 0.0, 600.0), counted_from_s=0)
    calm = compare(experiment(first), ("static",), workers=1)
    assert calm.runs[1].params == before.params
    assert calm.runs[1].score.gpu_hours == before.before.gpu_hours
    best = comparison.best_learned_baseline()
    assert best is not None and best.before is not None and comparison.goal.is_met_by(best.before.attainment)
    assert all(
        run.score.gpu_hours >= comparison.lower_bound_gpu_hours for run in comparison.rows if comparison.meets_goal(run)
    )
    assert comparison.offline_plan and comparison.meets_goal(comparison.offline_plan)
    assert all(0 <= run.timeline[0, 0] < 15 and run.timeline[-1, 0] >= 600 for run in comparison.rows)
    assert calm.learned_s == 0 and calm.best_learned_baseline() is None


@pytest.mark.slow
def test_ours_decides_the_same_in_the_learning_part() -> None:
    case = rising()
    whole = run_case(replace(case, counted_from_s=0), Static(3)).score
    counted = run_case(case, Static(3)).score
    first = run_case(replace(case, trace=clip(case.trace, 0.0, 600.0), counted_from_s=0), Static(3)).score
    count, late = len(case.trace.arrival_s), int((case.trace.arrival_s >= 600).sum())
    met = whole.attainment * count - counted.attainment * late
    assert met == pytest.approx(first.attainment * (count - late), abs=5)  # requests running at the cut
    assert whole.gpu_hours == pytest.approx(first.gpu_hours + counted.gpu_hours, rel=0.01)
    (ours,) = compare(experiment(case), (), workers=1).runs
    (all_along,) = compare(experiment(replace(case, counted_from_s=0)), (), workers=1).runs
    assert ours.timeline[:, 1:].tolist() == all_along.timeline[-len(ours.timeline) :, 1:].tolist()


@pytest.mark.slow
def test_bound_covers_the_scored_part_only() -> None:
    """Initial replicas are paid for before the scored part, so a constant count is not below the bound."""
    case = replace(rising(), cold_start_s=240.0)
    comparison = compare(experiment(case), ("static",), tuned=True, attainments=(), workers=1)
    (static,) = (run for run in comparison.runs if run.tuned)
    assert comparison.meets_goal(static)
    assert comparison.lower_bound_gpu_hours <= static.score.gpu_hours
    alone = replace(case, trace=clip(case.trace, 600.0, 1200.0), counted_from_s=0, start_replicas=1)
    assert comparison.lower_bound_gpu_hours == compare(experiment(alone), (), workers=1).lower_bound_gpu_hours


@pytest.mark.slow
def test_models_are_tuned_on_their_own_learning_part() -> None:
    late = rising("late")
    late = replace(late, trace=replace(late.trace, arrival_s=late.trace.arrival_s / 2 + 600))
    fleet = replace(experiment(rising("a", 1.0), late), gpus=8.0)
    comparison = compare(fleet, ("static", "keda-rps"), workers=1)
    assert comparison.requests == sum(int((case.trace.arrival_s >= 600).sum()) for case in fleet.cases)
    assert [run.name for run in comparison.runs if run.before] == ["static", "keda-rps"]
    assert any("tuned model by model" in note for note in comparison.notes)
    assert all(run.before.attainment > 0.9 for run in comparison.runs if run.before)
