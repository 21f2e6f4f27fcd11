from dataclasses import replace

import numpy as np
import pytest

from autoscaler.config.policy import load
from autoscaler.core.family import EVERY_S
from autoscaler.sim.proof.prove import (
    OURS_ATTAINMENTS,
    START_MANY,
    Subject,
    add_up,
    check_goal,
    goal_of,
    play,
    prove,
    started,
    with_attainment,
)
from autoscaler.sim.study.case import Case, Goal, View
from autoscaler.sim.study.check import Unreachable
from autoscaler.sim.study.trace import between
from autoscaler.sim.study.work import request_work_s
from tests.sim.study import small

INTERACTIVE = load().policies["interactive"]


class Constant:
    name = "constant"
    period_s = 15.0

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def decide(self, view: View) -> int:
        return self.replicas


def busy(name: str = "busy", per_s: float = 2.0, duration_s: float = 600.0, seed: int = 1) -> Case:
    arrival_s = np.random.default_rng(seed).uniform(0, duration_s, int(per_s * duration_s))
    trace = replace(small.trace(arrival_s, duration_s=duration_s), name=name)
    return Case(trace, small.llama(), goal_of(INTERACTIVE), cold_start_s=30.0)


def subject(*cases: Case) -> Subject:
    return Subject("made-up", "8b-h100", cases or (busy(),), INTERACTIVE)


def test_the_goal_is_what_the_policy_promises() -> None:
    assert goal_of(INTERACTIVE) == Goal(1.0, 0.1, 0.99)
    assert np.isnan(goal_of(load().policies["batch"]).itl_s)


def test_an_itl_below_the_step_time_is_refused_before_the_run() -> None:
    case = replace(busy(), goal=Goal(1.0, 0.005, 0.99))
    with pytest.raises(Unreachable, match=r"^ITL 5 ms is below the step time of this profile \(7\.92 ms\)$"):
        check_goal(case)
    with pytest.raises(Unreachable):
        prove(subject(case), ())


def test_a_ttft_below_one_step_is_refused() -> None:
    with pytest.raises(Unreachable, match=r"^TTFT 2 ms is below the time this profile takes for one token"):
        check_goal(replace(busy(), goal=Goal(0.002, 0.1, 0.99)))


def test_an_objective_that_some_requests_cannot_meet_even_alone_is_told() -> None:
    case = busy()
    case.trace.prompt_tokens[: len(case.trace.prompt_tokens) // 4] = 7000
    (note,) = check_goal(replace(case, goal=Goal(0.1, 0.1, 0.99)))
    assert "at most 75 % of the requests can meet the objective" in note


def test_an_objective_that_no_request_can_meet_is_refused() -> None:
    with pytest.raises(Unreachable, match="no request of busy can meet the objective"):
        check_goal(replace(busy(), goal=Goal(0.03, 0.1, 0.99)))


def test_a_model_of_which_no_request_can_meet_the_objective_is_told_and_the_others_are_proved() -> None:
    short, long = (replace(busy(name, per_s=0.5), goal=Goal(0.2, 0.1, 0.99)) for name in ("short", "long"))
    long.trace.prompt_tokens[:] = 7000  # 0.3 s alone
    fleet = subject(short, started(long))
    proof = prove(fleet, ("keda-rps",), workers=1)
    assert any("of long at most 0 % of the requests can meet the objective" in note for note in proof.notes)
    count = len(fleet.cases[0].trace.arrival_s)
    assert 0.9 * count < proof.runs[0].row.attainment * proof.requests <= count
    with pytest.raises(Unreachable, match="no request of long, longer can meet the objective"):
        prove(subject(long, replace(long, trace=replace(long.trace, name="longer"))), (), workers=1)


def test_an_objective_that_is_not_promised_is_never_out_of_reach() -> None:
    assert check_goal(replace(busy(), goal=Goal(float("nan"), float("nan"), 0.99))) == ()


def test_a_proof_holds_ours_the_baselines_and_a_bound_below_who_met_the_goal() -> None:
    shares: list[float] = []
    proof = prove(subject(), ("keda-queue", "static"), workers=1, told=shares.append)
    assert [(run.name, run.tuned) for run in proof.runs] == [("ours", False), ("keda-queue", False), ("static", True)]
    assert proof.runs[2].params == {"replicas": float(int(proof.runs[2].params["replicas"]))}
    assert proof.clairvoyant_gpu_hours > 0
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


def test_the_same_seed_gives_the_same_proof_on_one_core_and_on_two() -> None:
    one, two = (prove(subject(), ("keda-queue",), workers=workers) for workers in (1, 2))
    assert [run.row for run in one.runs] == [run.row for run in two.runs]
    assert one.clairvoyant_gpu_hours == two.clairvoyant_gpu_hours


def test_an_unknown_baseline_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no baseline kedda; allowed: keda-queue, .*static"):
        prove(subject(), ("kedda",))


def test_several_workloads_add_up_to_all_their_requests() -> None:
    cases = busy("a", per_s=2.0), busy("b", per_s=0.5, seed=2)
    played = [play(case, Constant(1), keep_ttft=True) for case in cases]
    row, timeline = add_up(cases, played)
    counts = np.array([len(case.trace.arrival_s) for case in cases])
    all_ttft = np.concatenate([each.ttft_s for each in played])
    assert row.attainment == pytest.approx(np.average([each.row.attainment for each in played], weights=counts))
    assert row.gpu_hours == pytest.approx(sum(each.row.gpu_hours for each in played))
    assert row.ttft_p95_s == pytest.approx(float(np.sort(all_ttft)[int(np.ceil(0.95 * len(all_ttft))) - 1]))
    assert timeline[3, 2] == 2.0  # one replica each


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
    assert any(note.startswith("planned: each model as if it had all GPUs") for note in shared.notes)


def test_on_too_few_gpus_every_policy_stays_within_them() -> None:
    fleet = replace(subject(*(busy(name, per_s=30.0, seed=seed) for seed, name in enumerate("abc"))), gpus=2.0)
    proof = prove(fleet, ("keda-rps", "static"), tuned=True, workers=1)
    most_s = 600.0 + 3600.0  # whoever is not served by then never will be
    for run in proof.runs:
        assert run.row.gpu_hours <= 2.0 * most_s / 3600
        assert run.timeline[:40, 2].max() <= 2.0
        assert not proof.attains(run)
    assert len(proof.frontier["ours"]) == 1 + len(OURS_ATTAINMENTS)


def attained(case: Case, count: int, until_s: float) -> float:
    """Share of the requests before `until_s` that so many replicas serve by the goal, none of which come or go."""
    beginning = replace(case, trace=between(case.trace, 0.0, until_s), start_replicas=count)
    return play(beginning, Constant(count)).row.attainment


@pytest.mark.parametrize(("duration_s", "until_s"), [(50.0, 50.0), (900.0, 600.0)])
def test_a_study_begins_with_the_fewest_that_serve_its_beginning_by_the_goal(duration_s: float, until_s: float) -> None:
    """Its first ten minutes; what comes after them is not looked at."""
    case = replace(busy(per_s=40.0, duration_s=duration_s), goal=Goal(0.4, 0.02, 0.99))
    later = case.trace.arrival_s >= until_s
    case.trace.output_tokens[later] = 4000
    count = started(case).start_replicas
    assert count > 1
    assert attained(case, count, until_s) >= case.goal.attainment > attained(case, count - 1, until_s)


def test_a_study_whose_beginning_is_empty_begins_with_one() -> None:
    case = busy()
    trace = replace(case.trace, arrival_s=600.0 + case.trace.arrival_s, duration_s=1200.0)
    assert started(replace(case, trace=trace, start_replicas=7)).start_replicas == 1


def test_a_study_begins_with_what_a_burst_needs_however_idle_it_is_before() -> None:
    """Twenty seconds of sixty requests a second in ten minutes: their mean keeps two replicas busy, ten are too few."""
    case = replace(busy(per_s=60.0, duration_s=20.0), goal=Goal(0.4, 0.02, 0.99))
    trace = replace(case.trace, arrival_s=500.0 + case.trace.arrival_s, duration_s=600.0)
    burst = replace(case, trace=trace)
    count = started(burst).start_replicas
    prefill_s, decode_s = request_work_s(burst)
    assert count > START_MANY * (prefill_s + decode_s).sum() / 600.0
    assert attained(burst, count, 600.0) >= 0.99 > attained(burst, count - 1, 600.0)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_study_whose_goal_is_out_of_reach_begins_with_no_more_than_there_may_be(most: int) -> None:
    few = replace(busy(per_s=60.0), max_replicas=most)
    count = started(few).start_replicas
    assert 1 <= count <= most
    assert attained(few, count, 600.0) == attained(few, most, 600.0) < few.goal.attainment


def test_a_study_begins_with_what_its_first_minutes_need() -> None:
    assert started(busy(per_s=0.01)).start_replicas == 1
    one, two = (started(busy(per_s=per_s)).start_replicas for per_s in (80.0, 160.0))
    assert one > 2
    assert 1.5 * one <= two <= 2 * one  # many wait for each other less than few do


def test_another_attainment_changes_nothing_else_of_a_policy() -> None:
    changed = with_attainment(INTERACTIVE, 0.9)
    assert changed.spec.objective.attainment == 0.9
    assert changed.spec.objective.ttft == INTERACTIVE.spec.objective.ttft
    assert changed.spec.replicas == INTERACTIVE.spec.replicas


def rising(name: str = "rising", per_s: float = 4.0, seed: int = 1) -> Case:
    """Twenty minutes of traffic, the second half five times as heavy; figures count from there on."""
    drawn = np.random.default_rng(seed)
    arrival_s = np.concatenate(
        [drawn.uniform(0, 600, int(per_s * 600)), drawn.uniform(600, 1200, int(5 * per_s * 600))]
    )
    trace = replace(small.trace(arrival_s, duration_s=1200.0), name=name)
    return replace(busy(), trace=trace, counted_from_s=600.0)


def test_who_knows_only_what_came_before_may_miss_what_hindsight_meets() -> None:
    case = rising()
    proof = prove(subject(case), ("static", "keda-rps"), tuned=True, planned=True, workers=1)
    assert (proof.learned_s, proof.duration_s) == (600.0, 600.0)
    assert proof.requests == (case.trace.arrival_s >= 600).sum()
    by = {(run.name, "before" if run.before else "tuned" if run.tuned else ""): run for run in proof.runs}
    before, tuned = by["static", "before"], by["static", "tuned"]
    assert before.before and proof.goal.met_by(before.before.attainment)
    assert float(before.params["replicas"]) < float(tuned.params["replicas"])
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


def test_ours_learns_before_figures_count_and_decides_as_if_they_did() -> None:
    case = rising()
    whole = play(replace(case, counted_from_s=0), Constant(3)).row
    counted = play(case, Constant(3)).row
    first = play(replace(case, trace=between(case.trace, 0.0, 600.0), counted_from_s=0), Constant(3)).row
    count, late = len(case.trace.arrival_s), int((case.trace.arrival_s >= 600).sum())
    met = whole.attainment * count - counted.attainment * late
    assert met == pytest.approx(first.attainment * (count - late), abs=5)  # who was under way at the cut
    assert whole.gpu_hours == pytest.approx(first.gpu_hours + counted.gpu_hours, rel=0.01)
    (ours,) = prove(subject(case), (), workers=1).runs
    (all_along,) = prove(subject(replace(case, counted_from_s=0)), (), workers=1).runs
    assert ours.timeline[:, 1:].tolist() == all_along.timeline[-len(ours.timeline) :, 1:].tolist()


def test_of_a_bound_that_counts_from_a_moment_any_number_of_replicas_may_be_there() -> None:
    """They were paid for before. Without one start to pay, even ten from the first moment on are not below it."""
    case = replace(rising(), cold_start_s=240.0)
    proof = prove(subject(case), ("static",), tuned=True, workers=1)
    (static,) = (run for run in proof.runs if run.tuned)
    assert proof.attains(static)
    assert proof.clairvoyant_gpu_hours <= static.row.gpu_hours
    alone = replace(case, trace=between(case.trace, 600.0, 1200.0), counted_from_s=0, start_replicas=1)
    assert proof.clairvoyant_gpu_hours < prove(subject(alone), (), workers=1).clairvoyant_gpu_hours


def test_models_of_a_fleet_are_tuned_on_what_each_had_before_if_only_one_had_anything() -> None:
    late = rising("late")
    late = replace(late, trace=replace(late.trace, arrival_s=late.trace.arrival_s / 2 + 600))
    fleet = replace(subject(rising("a", 1.0), late), gpus=8.0)
    proof = prove(fleet, ("static", "keda-rps"), workers=1)
    assert proof.requests == sum(int((case.trace.arrival_s >= 600).sum()) for case in fleet.cases)
    assert [run.name for run in proof.runs if run.before] == ["static", "keda-rps"]
    assert all(run.before.attainment > 0.9 for run in proof.runs if run.before)
