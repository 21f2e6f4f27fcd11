"""Proofs of which only a part counts: what came before is learned from."""

from dataclasses import replace

import pytest

from autoscaler.lab.baselines.static import Static
from autoscaler.lab.compare.compare import prove
from autoscaler.lab.compare.run_result import play
from autoscaler.lab.replay.trace import between
from tests.lab.compare.made import rising, subject


@pytest.mark.slow
def test_who_knows_only_what_came_before_may_miss_what_hindsight_meets() -> None:
    case = rising()
    proof = prove(subject(case), ("static", "keda-rps"), tuned=True, planned=True, workers=1)
    assert (proof.learned_s, proof.duration_s) == (600.0, 600.0)
    assert proof.requests == (case.trace.arrival_s >= 600).sum()
    by = {(run.name, "before" if run.before else "tuned" if run.tuned else ""): run for run in proof.runs}
    before, tuned = by["static", "before"], by["static", "tuned"]
    assert before.before and proof.goal.met_by(before.before.attainment)
    assert float(before.params["replicas"]) < float(tuned.params["replicas"])
    assert before.before.gpu_hours * 3600 >= float(before.params["replicas"]) * 600
    assert proof.misses(before) and proof.attains(tuned)
    first = replace(case, trace=between(case.trace, 0.0, 600.0), counted_from_s=0)
    calm = prove(subject(first), ("static",), workers=1)
    assert calm.runs[1].params == before.params
    assert calm.runs[1].row.gpu_hours == before.before.gpu_hours
    best = proof.best_before()
    assert best is not None and best.before is not None and proof.goal.met_by(best.before.attainment)
    assert all(run.row.gpu_hours >= proof.clairvoyant_gpu_hours for run in proof.rows if proof.attains(run))
    assert proof.planned and proof.attains(proof.planned)
    assert all(0 <= run.timeline[0, 0] < 15 and run.timeline[-1, 0] >= 600 for run in proof.rows)
    assert calm.learned_s == 0 and calm.best_before() is None


@pytest.mark.slow
def test_ours_learns_before_figures_count_and_decides_as_if_they_did() -> None:
    case = rising()
    whole = play(replace(case, counted_from_s=0), Static(3)).row
    counted = play(case, Static(3)).row
    first = play(replace(case, trace=between(case.trace, 0.0, 600.0), counted_from_s=0), Static(3)).row
    count, late = len(case.trace.arrival_s), int((case.trace.arrival_s >= 600).sum())
    met = whole.attainment * count - counted.attainment * late
    assert met == pytest.approx(first.attainment * (count - late), abs=5)  # who was under way at the cut
    assert whole.gpu_hours == pytest.approx(first.gpu_hours + counted.gpu_hours, rel=0.01)
    (ours,) = prove(subject(case), (), workers=1).runs
    (all_along,) = prove(subject(replace(case, counted_from_s=0)), (), workers=1).runs
    assert ours.timeline[:, 1:].tolist() == all_along.timeline[-len(ours.timeline) :, 1:].tolist()


def test_a_bound_that_counts_from_a_moment_is_that_of_what_comes_from_then_on() -> None:
    """Any number of replicas may be there, paid for before: a count that never starts one is not below it."""
    case = replace(rising(), cold_start_s=240.0)
    proof = prove(subject(case), ("static",), tuned=True, workers=1)
    (static,) = (run for run in proof.runs if run.tuned)
    assert proof.attains(static)
    assert proof.clairvoyant_gpu_hours <= static.row.gpu_hours
    alone = replace(case, trace=between(case.trace, 600.0, 1200.0), counted_from_s=0, start_replicas=1)
    assert proof.clairvoyant_gpu_hours == prove(subject(alone), (), workers=1).clairvoyant_gpu_hours


def test_models_of_a_fleet_are_tuned_on_what_each_had_before_if_only_one_had_anything() -> None:
    late = rising("late")
    late = replace(late, trace=replace(late.trace, arrival_s=late.trace.arrival_s / 2 + 600))
    fleet = replace(subject(rising("a", 1.0), late), gpus=8.0)
    proof = prove(fleet, ("static", "keda-rps"), workers=1)
    assert proof.requests == sum(int((case.trace.arrival_s >= 600).sum()) for case in fleet.cases)
    assert [run.name for run in proof.runs if run.before] == ["static", "keda-rps"]
    assert any("tuned model by model" in note for note in proof.notes)
    assert all(run.before.attainment > 0.9 for run in proof.runs if run.before)
