import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.planner.strategies import EVERY_S
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.compare.compare import OURS_ATTAINMENTS, prove, with_attainment
from autoscaler.lab.compare.run_result import add_up, play
from autoscaler.lab.compare.workload_trace import check_goal, started
from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.check import Unreachable
from tests.lab.compare.made import INTERACTIVE, busy, subject


def test_an_itl_below_the_step_time_is_refused_before_the_run() -> None:
    case = replace(busy(), goal=Goal(1.0, 0.005, 0.99))
    with pytest.raises(Unreachable, match=r"^ITL 5 ms is below the step time of this profile \(7\.92 ms\)$"):
        check_goal(case)
    with pytest.raises(Unreachable):
        prove(subject(case), ())


def test_a_model_of_which_no_request_can_meet_the_objective_is_told_and_the_others_are_proved() -> None:
    short, long = (replace(busy(name, per_s=0.5), goal=Goal(0.2, 0.1, 0.99)) for name in ("short", "long"))
    long.trace.prompt_tokens[:] = 7000  # 0.3 s alone
    fleet = subject(short, started(long))
    proof = prove(fleet, ("keda-rps",), workers=1)
    assert any("of long at most 0% of the requests can meet the objective" in note for note in proof.notes)
    count = len(fleet.cases[0].trace.arrival_s)
    assert 0.9 * count < proof.runs[0].row.attainment * proof.requests <= count
    with pytest.raises(Unreachable, match="no request of long, longer can meet the objective"):
        prove(subject(long, replace(long, trace=replace(long.trace, name="longer"))), (), workers=1)


def test_a_proof_holds_ours_the_baselines_and_a_bound_below_who_met_the_goal() -> None:
    shares: list[float] = []
    proof = prove(subject(), ("keda-queue", "static"), workers=1, told=shares.append)
    assert [(run.name, run.tuned) for run in proof.runs] == [("ours", False), ("keda-queue", False), ("static", True)]
    assert proof.runs[2].params == {"replicas": float(int(proof.runs[2].params["replicas"]))}
    assert 0 < proof.clairvoyant_gpu_hours <= proof.estimate_gpu_hours
    assert all(run.row.gpu_hours >= proof.clairvoyant_gpu_hours for run in proof.runs if proof.attains(run))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert all(len(run.timeline) for run in proof.runs)
    assert [run.default for run in proof.runs] == [False, True, False]
    assert proof.runs[1].params == {"target": 5.0, "stabilization_s": 300.0, "min_replicas": 1.0}


def test_what_no_documentation_states_is_told() -> None:
    notes = prove(subject(), ("keda-queue", "skyserve"), workers=1).notes
    assert [note for note in notes if "(default)" in note] == [
        "skyserve (default): target: one over the time that one request takes alone in a replica, as its documentation "
        "advises"
    ]


def test_settings_of_a_fleet_are_shown_where_all_models_have_the_same() -> None:
    long = replace(busy("b"), trace=replace(busy("b").trace, output_tokens=busy("b").trace.output_tokens * 3))
    (_, skyserve) = prove(subject(busy("a"), long), ("skyserve",), workers=1).runs
    assert skyserve.params == {"upscale_delay_s": 300.0, "downscale_delay_s": 1200.0, "min_replicas": 1.0}


@pytest.mark.slow
def test_a_tuned_proof_has_the_whole_frontier_and_no_worse_baseline() -> None:
    proof = prove(subject(), ("keda-rps",), tuned=True, workers=1)
    usual, best = (run for run in proof.runs if run.name == "keda-rps")
    assert (usual.tuned, best.tuned) == (False, True)
    if proof.attains(usual):
        assert proof.attains(best)
        assert best.row.gpu_hours <= usual.row.gpu_hours + 1e-9
    else:
        assert best.row.attainment >= usual.row.attainment - 1e-9
    assert len(proof.frontier["keda-rps"]) > 10
    assert len(proof.frontier["ours"]) == 1 + len(OURS_ATTAINMENTS)
    assert any(point.gpu_hours == best.row.gpu_hours for point in proof.frontier["keda-rps"])


@pytest.mark.slow
def test_a_plan_is_a_row_of_its_own_that_meets_the_goal_and_is_not_below_the_bound() -> None:
    shares: list[float] = []
    proof = prove(subject(), ("keda-queue",), planned=True, workers=1, told=shares.append)
    assert proof.planned is not None
    assert [run.name for run in proof.rows] == ["ours", "keda-queue", "planned"]
    assert [run.name for run in proof.runs] == ["ours", "keda-queue"]
    assert proof.attains(proof.planned)
    assert proof.planned.row.gpu_hours >= proof.clairvoyant_gpu_hours
    assert len(proof.planned.timeline)
    assert proof.best_baseline() in (None, proof.runs[1])
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert prove(subject(), (), workers=1).planned is None


@pytest.mark.slow
def test_the_same_seed_gives_the_same_proof_on_one_core_and_on_two() -> None:
    one, two = (prove(subject(), ("keda-queue",), workers=workers) for workers in (1, 2))
    assert [run.row for run in one.runs] == [run.row for run in two.runs]
    assert one.clairvoyant_gpu_hours == two.clairvoyant_gpu_hours


def test_several_workloads_add_up_to_all_their_requests() -> None:
    cases = busy("a", per_s=2.0), busy("b", per_s=0.5, seed=2)
    played = [play(case, Static(1), keep_ttft=True) for case in cases]
    row, timeline = add_up(cases, played)
    counts = np.array([len(case.trace.arrival_s) for case in cases])
    all_ttft = np.concatenate([each.ttft_s for each in played])
    assert row.attainment == pytest.approx(np.average([each.row.attainment for each in played], weights=counts))
    assert row.gpu_hours == pytest.approx(sum(each.row.gpu_hours for each in played))
    assert row.ttft_p95_s == pytest.approx(float(np.sort(all_ttft)[int(np.ceil(0.95 * len(all_ttft))) - 1]))
    assert timeline[3, 2] == 2.0  # one replica each


def test_who_meets_the_goal_over_all_requests_without_one_model_may_be_below_the_bound_and_it_is_told() -> None:
    """Fifteen of 1,800 requests go to a model for which there is no GPU left."""
    light, heavy = busy("light", per_s=3.0), busy("heavy", per_s=0.025, seed=2)
    together = prove(replace(subject(light, heavy), gpus=1.0), ("static",), workers=1)
    apart = prove(subject(light, heavy), ("static",), workers=1)
    said = (
        "the bound is what all models take to meet the goal, each by itself; over all requests it was met for less by "
    )
    below = [run for run in together.runs if together.attains(run) and together.ratio(run.row.gpu_hours) < 1]
    assert below and [note for note in together.notes if note.startswith(said)]
    assert all(run.name in " ".join(together.notes) for run in below)
    assert not [note for note in apart.notes if note.startswith(said)]


def test_a_fleet_is_proved_model_by_model() -> None:
    fleet = subject(busy("a"), busy("b", per_s=0.5, seed=2))
    proof = prove(fleet, ("static",), planned=True, workers=1)
    alone = [prove(subject(case), ("static",), planned=True, workers=1) for case in fleet.cases]
    assert proof.models == 2
    assert proof.requests == sum(each.requests for each in alone)
    assert proof.clairvoyant_gpu_hours == pytest.approx(sum(each.clairvoyant_gpu_hours for each in alone))
    plans = [each.planned.row for each in (proof, *alone) if each.planned is not None]
    assert plans[0].gpu_hours == pytest.approx(plans[1].gpu_hours + plans[2].gpu_hours)
    for place, run in enumerate(proof.runs):
        assert run.row.gpu_hours == pytest.approx(sum(each.runs[place].row.gpu_hours for each in alone))


def test_a_fleet_with_plenty_of_gpus_is_proved_as_one_without_a_limit() -> None:
    fleet = subject(busy("a"), busy("b", per_s=0.5, seed=2))
    apart = prove(fleet, ("keda-rps", "static"), workers=1)
    shared = prove(replace(fleet, gpus=500.0), ("keda-rps", "static"), planned=True, workers=1)
    (ours, *others), (alone, *expected) = shared.runs, apart.runs
    assert [run.row for run in others] == [run.row for run in expected]
    assert all(np.array_equal(one.timeline, two.timeline) for one, two in zip(others, expected, strict=True))
    # Of several workloads each has its own turn to be judged, seconds after it would have had it alone.
    later_s = (ours.row.scale_ups + ours.row.scale_downs) * EVERY_S
    assert ours.row.gpu_hours == pytest.approx(alone.row.gpu_hours, abs=later_s / 3600)
    assert ours.row.attainment == pytest.approx(alone.row.attainment, abs=0.005)
    assert shared.clairvoyant_gpu_hours == apart.clairvoyant_gpu_hours
    assert shared.gpus == 500.0
    assert any("tuned model by model" in note for note in shared.notes)
    assert any(note.startswith("planned: each model is planned as if it had all GPUs") for note in shared.notes)


def test_on_too_few_gpus_every_policy_stays_within_them() -> None:
    fleet = replace(subject(*(busy(name, per_s=30.0, seed=seed) for seed, name in enumerate("abc"))), gpus=2.0)
    proof = prove(fleet, ("keda-rps", "static"), tuned=True, workers=1)
    most_s = 600.0 + 3600.0  # whoever is not served by then never will be
    for run in proof.runs:
        assert run.row.gpu_hours <= 2.0 * most_s / 3600
        assert run.timeline[:40, 2].max() <= 2.0
        assert not proof.attains(run)
    assert len(proof.frontier["ours"]) == 1 + len(OURS_ATTAINMENTS)


def test_another_attainment_changes_nothing_else_of_a_policy() -> None:
    changed = with_attainment(INTERACTIVE, 0.9)
    assert changed.spec.objective.attainment == 0.9
    assert changed.spec.objective.ttft == INTERACTIVE.spec.objective.ttft
    assert changed.spec.replicas == INTERACTIVE.spec.replicas


def test_a_constant_count_is_there_from_the_start_alone_and_on_shared_gpus() -> None:
    fleet = subject(replace(busy("a", per_s=30.0), cold_start_s=240.0), busy("b", per_s=0.5, seed=2))
    for gpus in (math.inf, 500.0):
        (static,) = (run for run in prove(replace(fleet, gpus=gpus), ("static",), workers=1).runs if run.tuned)
        assert (static.row.scale_ups, static.row.scale_downs) == (0, 0)
        assert static.timeline[0, 2] == static.timeline[-1, 2] > len(fleet.cases)
