"""What a report says of GPUs and teams, from loads whose truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.own_use import CAUSE, STATE, GpuUseRow
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.core.gpu_use import GpuState
from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.report.diagnosis import NO_SAVING, NOT_TO_ZERO, GpuHours, GpuStory, tell
from autoscaler.report.document import to_json
from autoscaler.report.gpu_use import by_namespace, estimate_use, of_services, say_use
from autoscaler.report.history import FleetHistory
from autoscaler.report.page import page
from autoscaler.report.report import compute
from autoscaler.report.teams import MOST_TEAMS, NO_TEAM, team_figures
from tests.report.loads import facts_of, interactive, load_of, profiles_of

NAN = math.nan


def report_of(demand, counts, spec=None, **changed):
    load = load_of(demand, counts, **changed)
    services = load.shape[1]
    names = tuple(ServiceName("", f"ns-{row % 2}", f"s{row}") for row in range(services))
    history = FleetHistory(load.span, names, {})
    facts, used = facts_of(gpus=2.0, services=services), spec or interactive(services)
    return compute("here", history, load, profiles_of(services), facts, used, ("interactive",) * services)


def hours_of(report, diagnosis, idle_share=0.0, judged=1.0):
    """GPUs that did one thing for all of the time."""
    total = report.load.pods.sum(axis=0) / 60
    by_diagnosis = np.zeros((len(Diagnosis), len(total)))
    by_diagnosis[diagnosis] = total
    none = np.zeros(len(total))
    return GpuHours(by_diagnosis, none, total, none, idle_share * total, judged * total)


def told(report, hours):
    ours = report.entry("policy").outcome
    return tell(hours, 300.0, report.load, report.profiles, report.facts, report.spec, ours)


def test_zero_is_proposed_when_its_replay_keeps_the_promise():
    promised = np.array([0.8, 0.999])
    spec = interactive(2).with_columns({"attainment": promised, "idle_after_s": np.full(2, NAN)})
    demand = np.where(np.arange(1440) // 60 == 12, 2.0, 0.0)[:, None] * np.ones(2)  # an hour of work
    report = report_of(demand, np.full((1440, 2), 3.0), spec)
    rests, stays = told(report, hours_of(report, Diagnosis.IDLE_AND_LOADED)).proposals
    assert "idleAfter" in rests.change
    assert 0.8 * 2 * 22 < rests.saved_gpu_hours < report.entry("policy").outcome.gpu_hours[0]
    assert rests.attainment >= promised[0]
    assert f"{rests.saved_gpu_hours:,.1f} GPU-hours less than this policy" in rests.words
    assert (stays.change, stays.effect) == (NOT_TO_ZERO, NO_SAVING)


DIAGNOSES = {
    Diagnosis.MEMORY_BOUND_DECODE: "a larger batch",
    Diagnosis.COMPUTE_BOUND_PREFILL: "a pair of prefill and decode",
    Diagnosis.COMMUNICATION_BOUND: "fewer GPUs",
    Diagnosis.STARVED: "more CPU",
    Diagnosis.STUCK: "a restart",
    Diagnosis.FEW_REQUESTS: "",
    Diagnosis.BUSY: "",
    Diagnosis.NO_ACTIVITY: "",
}


def test_saving_is_said_to_be_unmeasured_unless_replayed():
    shape = (120, len(DIAGNOSES))
    report = report_of(np.full(shape, 1.0), np.full(shape, 3.0), waiting=np.full(shape, 3.0))
    hours = hours_of(report, Diagnosis.BUSY)
    by_diagnosis = np.zeros_like(hours.by_diagnosis)
    by_diagnosis[list(DIAGNOSES), range(len(DIAGNOSES))] = 6.0
    story = told(report, replace(hours, by_diagnosis=by_diagnosis))
    for row, (diagnosis, says) in enumerate(DIAGNOSES.items()):
        proposal = story.proposals[row]
        assert says in proposal.change
        assert math.isnan(proposal.saved_gpu_hours)
        assert proposal.words == (f"Consider {proposal.change}; {NO_SAVING}" if proposal.change else "")
        known = f"{diagnosis.title} in 100% of 6.0 replica-hours"
        assert story.sentence(row) == (known if diagnosis.known else f"not known, because {diagnosis.title}")


@pytest.mark.parametrize(("seed", "with_dcgm"), [(1, False), (2, True)])
def test_estimated_states_add_up_to_the_gpu_hours(seed, with_dcgm):
    draw = np.random.default_rng(seed)
    counts = draw.integers(0, 5, (120, 3)).astype(float)
    ordered = counts + draw.integers(0, 2, (120, 3))
    seen = draw.random((120, 3)) < 0.9
    report = report_of(counts / 4, counts, ordered=ordered.astype(np.float32), seen=seen)
    if with_dcgm:
        hours = hours_of(report, Diagnosis.BUSY, idle_share=draw.random(), judged=draw.choice([0.5, 1.0]))
        report = replace(report, gpus=GpuStory(hours, 300.0))
    rows = estimate_use(report)
    states = [row for row in rows if row.kind == STATE]
    assert sum(row.gpu_s for row in states) / 3600 == pytest.approx(np.nansum(report.entry("actual").outcome.gpu_hours))
    assert sum(row.usd for row in states) == pytest.approx(np.nansum(report.entry("actual").outcome.usd))
    assert all(row.gpu_s > 0 for row in rows)
    assert {row.name for row in rows if row.kind == CAUSE} <= {"cold_start"}
    assert any(row.name == GpuState.UNKNOWN.published for row in rows) != with_dcgm


def test_idle_hours_without_a_named_decision_are_said_to_be_unknown():
    rows = [
        GpuUseRow("a", "w", STATE, "floor", 7200.0, 4.0),
        GpuUseRow("a", "w", STATE, "ordered", 3600.0, 0.0),
        GpuUseRow("a", "w", CAUSE, "floor", 3600.0, NAN),
        GpuUseRow("b", "v", STATE, "serving", 3600.0, NAN),
    ]
    assert by_namespace(rows)["a"].total_h == 2
    first, second = say_use(rows)
    assert first.startswith("GPUs of a: 2.0 GPU-hours, of which 2.0 idle, $4.00 for 1 workload; ")
    assert first.endswith("; kept by: floor by policy 1.0, not known 1.0")
    assert second == "GPUs of b: 1.0 GPU-hours, of which 0.0 idle"
    names = [ServiceName("", "a", "other")]
    assert of_services(rows, names, whole_namespaces=True) == tuple(rows[:3])
    assert of_services(rows, names, whole_namespaces=False) == ()


def test_figures_of_teams_add_up_and_hostile_names_are_bounded():
    services = 3 * MOST_TEAMS
    report = report_of(np.full((60, services), 0.5), np.full((60, services), 2.0))
    teams = ("", "<script>alert(1)</script>", *(f"team-{row}" for row in range(services - 2)))
    report = replace(report, teams=teams)
    found = team_figures(report)
    was = report.entry("actual").outcome
    assert len(found) == MOST_TEAMS + 1
    assert found[-1].team == f"{services - MOST_TEAMS} more teams"
    assert sum(each.gpu_hours for each in found) == pytest.approx(was.gpu_hours.sum())
    assert sum(each.cost.usd for each in found) == pytest.approx(was.usd.sum())
    assert sum(each.services for each in found) == services
    assert {NO_TEAM, teams[1]} <= {each.team for each in found}
    text = page(report)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert '"team": "<script>' in to_json(report)
    assert team_figures(replace(report, teams=())) == ()


def test_team_is_told_first_what_keeps_its_objective():
    demand, counts = np.tile([0.5, 5.0], (240, 1)), np.tile([8.0, 2.0], (240, 1))
    missed = np.tile([0.0, 0.5], (240, 1))
    report = report_of(demand, counts, missed_share=missed.astype(np.float32))
    (team,) = team_figures(replace(report, teams=("one", "one")))
    late, wasteful = team.changes
    assert late.startswith("s1: this policy, ")
    assert "in place of 50.0%" in late
    assert wasteful.startswith("s0: this policy, ")
    assert "GPU-hours less" in wasteful
