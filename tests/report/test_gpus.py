"""What a report says of GPUs and teams, from loads whose truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.own_use import CAUSE, STATE, GpuUseRow
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.core.gpu_use import GpuState
from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.report.diagnosis import GpuHours, GpuStory
from autoscaler.report.document import to_json
from autoscaler.report.gpu_use import USE_ESTIMATED, USE_OF_DAEMON, by_namespace, estimate_use, of_services, say_use
from autoscaler.report.history import FleetHistory
from autoscaler.report.page import page
from autoscaler.report.report import compute
from autoscaler.report.teams import MOST_TEAMS, NO_TEAM, team_figures
from tests.report.loads import facts_of, interactive, load_of, profiles_of

pytestmark = pytest.mark.slow

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


def test_services_of_one_name_in_several_clusters_stay_apart():
    report = report_of(np.full((600, 2), 0.5), np.ones((600, 2)))
    report = replace(report, services=tuple(ServiceName(cluster, "web", "chat") for cluster in ("eu", "us")))
    rows = estimate_use(report)
    assert {row.namespace: round(row.gpu_s / 3600) for row in rows if row.kind == STATE} == {"eu/web": 20, "us/web": 20}
    assert of_services(rows, report.services[:1], whole_namespaces=True) == rows[:1]


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
        GpuUseRow("c", "v", STATE, "unknown", 3600.0, NAN),
        GpuUseRow("d", "v", STATE, "unknown", 3600.0, NAN),
        GpuUseRow("d", "v", STATE, "warming", 7200.0, 1.0),
    ]
    assert by_namespace(rows)["a"].total_h == 2
    first, partly, second, unknown = say_use(rows, USE_OF_DAEMON)
    assert first.startswith("GPUs of a: 2.0 GPU-hours, of which 2.0 idle, $4.00 for 1 workload; ")
    assert first.endswith("; kept by: floor by policy 1.0, not known 1.0")
    assert partly.startswith("GPUs of d: 3.0 GPU-hours, of which 2.0 idle, and of 1.0 it is not known, $1.00 for 1")
    assert second == "GPUs of b: 1.0 GPU-hours, of which 0.0 idle"
    assert unknown == "GPUs of c: 1.0 GPU-hours; how many were idle is not known"
    guessed, partly, *others = say_use(rows, USE_ESTIMATED)
    assert guessed.startswith("GPUs of a: 2.0 GPU-hours, of which at least 2.0 idle, $4.00")
    assert partly.startswith("GPUs of d: 3.0 GPU-hours, of which at least 2.0 idle, and of 1.0 it is not known")
    assert others == [f"GPUs of {name}: 1.0 GPU-hours; how many were idle is not known" for name in "bc"]
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
    alone = page(replace(report, teams=(teams[1],) * services))
    assert "<script" not in alone
    assert f"{services} services of team &lt;script&gt;" in alone
    assert team_figures(replace(report, teams=())) == ()


def test_team_is_told_first_what_keeps_its_objective():
    demand, counts = np.tile([0.5, 5.0], (240, 1)), np.tile([8.0, 2.0], (240, 1))
    missed = np.tile([0.0, 0.5], (240, 1))
    report = report_of(demand, counts, missed_share=missed.astype(np.float32))
    (team,) = team_figures(replace(report, teams=("one", "one")))
    late, wasteful = team.changes
    assert late.startswith("ns-1/s1: this policy, ")
    assert "in place of 50.0%" in late
    assert wasteful.startswith("ns-0/s0: this policy, ")
    assert "GPU-hours less" in wasteful
    (team,) = team_figures(replace(report, teams=("one", "one"), modelled=np.zeros(2, dtype=bool)))
    assert [each.partition(": ")[2] for each in team.changes] == ["not judged, so no saving is stated"] * 2
