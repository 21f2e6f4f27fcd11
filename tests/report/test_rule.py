"""The column of the user's own rules: on fluid loads, and in the command on a real server."""

import json
import math
import time
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from autoscaler.adapters.prometheus.range.scaling_queries import MAX_QUERIES
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.app.report_rules import MOST_NOTES, bounded, past_of_queries
from autoscaler.config.rules.rule import Rule, RuleNote
from autoscaler.lab.baselines.own_rule import OpenSeries
from autoscaler.report.fluid import Course, follow
from autoscaler.report.history import FleetHistory
from autoscaler.report.outcome import gpus_by_hour, sum_up
from autoscaler.report.report import compute
from autoscaler.report.rule import RuleColumn, assign, settings_of
from autoscaler.report.table import print_report
from tests.lab.baselines.test_own_rule import prometheus, rule
from tests.report.generated import HOUR_S, Service, day, filled_prometheus, generate, merged
from tests.report.loads import START_S, STEP_S, facts_of, interactive, load_of, profiles_of
from tests.report.test_history import Server
from tests.report.test_report import run_report

WORK_S = 0.1
RATE = "sum(rate(vllm:num_incoming_requests_total[5m]))"


def follow_rules(rules: list[Rule | None], demand: np.ndarray, **changed: np.ndarray) -> Course:
    load = load_of(demand, np.full(demand.shape, 3.0), WORK_S, **changed)
    settings, _ = settings_of(rules, START_S, {})
    return follow(RuleColumn(settings, load, profiles_of(len(rules))), load, profiles_of(len(rules)))


def test_rate_per_replica_gives_the_count() -> None:
    """Demand 2.4 at 0.1 s a request is 24 requests per second: at 6 for each replica, four."""
    course = follow_rules([rule(prometheus(RATE, "6"), minReplicaCount=1)], np.full((60, 1), 2.4))
    assert course.wanted[10:, 0].tolist() == [4.0] * 50
    assert not course.waiting[10:].any()


def test_queue_belongs_to_the_counts_of_the_rule() -> None:
    """Real replicas had no queue; those of the rule, at most two, have one and then hold their maximum."""
    found = rule(prometheus("sum(vllm:num_requests_waiting)", "5"), minReplicaCount=1, maxReplicaCount=2)
    course = follow_rules([found], np.full((60, 1), 2.4))
    assert course.wanted[0, 0] == 2 and set(course.wanted[5:, 0].tolist()) == {2.0}
    assert (np.diff(course.waiting[5:, 0]) > 0).all()


def test_counts_are_the_same_when_each_service_keeps_its_past() -> None:
    """The numbers that are kept of all services are bounded, whatever one of them looks back to."""
    demand = np.random.default_rng(1).uniform(0.5, 3.5, (60, 2))
    queries = ("sum(rate(vllm:num_incoming_requests_total[30m]))", QUANTILE.format("time_to_first_token"))
    found = [rule(prometheus(query, "6"), minReplicaCount=1) for query in queries]
    load, (settings, _) = load_of(demand, np.full(demand.shape, 3.0), WORK_S), settings_of(found, START_S, {})
    columns = [RuleColumn(settings, load, profiles_of(2), most) for most in (0, 1_000, 10**9)]
    assert [[len(of) for of in column._readers.values()] for column in columns] == [[0, 0], [0, 1], [1, 1]]
    courses = [follow(column, load, profiles_of(2)).wanted for column in columns]
    assert len(np.unique(courses[0])) > 2
    for course in courses[1:]:
        np.testing.assert_array_equal(course, courses[0])


QUANTILE = "histogram_quantile(0.9, sum by (le) (rate(vllm:{}_seconds_bucket[2m])))"


@pytest.mark.parametrize(
    ("query", "threshold", "grows"),
    [
        (QUANTILE.format("time_to_first_token"), "0.5", True),
        (QUANTILE.format("request_queue_time"), "0.5", True),
        (QUANTILE.format("e2e_request_latency"), "5", True),
        (QUANTILE.format("request_prefill_time"), "5", False),
    ],
)
def test_latency_grows_with_the_queue(query: str, threshold: str, grows: bool) -> None:
    found = rule(prometheus(query, threshold, "Value"), minReplicaCount=1, maxReplicaCount=8)
    course = follow_rules([found], np.full((120, 1), 3.5))
    assert (course.wanted[:, 0].max() > 4) == grows
    assert any("each latency is one mean per step" in note.text for note in settings_of([found], START_S, {})[1])


def test_mean_of_each_time_adds_up_to_the_latency() -> None:
    """Queue, prefill and decode are the parts of the time of a request."""
    parts = ("request_queue_time", "request_prefill_time", "request_decode_time")
    means = [f"sum(rate(vllm:{name}_seconds_sum[2m])) / sum(rate(vllm:{name}_seconds_count[2m]))" for name in parts]
    whole = means[0].replace(parts[0], "e2e_request_latency")
    found = rule(prometheus(f"{whole} / ({' + '.join(means)}) * 3", "1", "Value"), minReplicaCount=1, maxReplicaCount=3)
    course = follow_rules([found], np.full((60, 1), 0.5))
    assert set(course.wanted[10:, 0].tolist()) == {3.0}


def test_service_without_a_rule_has_no_figures() -> None:
    demand = np.full((60, 2), 2.4)
    course = follow_rules([None, rule(prometheus(RATE, "6"), minReplicaCount=1)], demand)
    load, profiles = load_of(demand, np.full(demand.shape, 3.0), WORK_S), profiles_of(2)
    outcome = sum_up(course, load, profiles, facts_of(services=2), interactive(2))
    _, gpus = gpus_by_hour(course, load, facts_of(services=2))
    assert gpus[-1] == 4.0  # those of the service with a rule
    assert math.isnan(outcome.gpu_hours[0])
    assert outcome.gpu_hours[1] == pytest.approx(4.0, rel=0.05)


def test_services_without_a_rule_are_told_in_the_table() -> None:
    load, profiles = load_of(np.full((60, 2), 2.4), np.full((60, 2), 3.0), WORK_S), profiles_of(2)
    settings, _ = settings_of([None, rule(prometheus(RATE, "6"))], START_S, {})
    history = FleetHistory(load.span, (ServiceName("", "team", "a"), ServiceName("", "team", "b")), {})
    columns = [RuleColumn(settings, load, profiles)]
    facts, names = facts_of(services=2), ("interactive",) * 2
    report = compute("", history, load, profiles, facts, interactive(2), names, columns=columns)
    console = Console(file=StringIO(), width=200)
    print_report(report, console)
    assert "your rule: 1 service without a rule left out" in console.file.getvalue()


def test_count_stays_while_nothing_was_seen() -> None:
    demand = np.full((60, 1), 2.4)
    demand[20:40] = 0.0
    seen = np.ones(demand.shape, bool)
    seen[20:40] = False
    course = follow_rules([rule(prometheus(RATE, "6"), minReplicaCount=1)], demand, seen=seen)
    assert set(course.wanted[10:40, 0].tolist()) == {4.0}


def test_rule_that_takes_the_time_of_others_is_left_out() -> None:
    """Each tenant writes its own rule: this one computes a maximum over six hours, in each of 64 triggers."""
    greedy = [
        prometheus("max_over_time(sum(vllm:num_requests_waiting)[6h:1m])", str(number)) for number in range(1, 65)
    ]
    rules = [rule(prometheus(RATE, "6")), rule(*greedy), None]
    settings, notes = settings_of(rules, START_S, {}, steps=20_000)
    assert settings[0] is not None and settings[1:] == [None, None]
    assert any("is left out: its triggers and formula take" in note.text for note in notes)
    assert None not in settings_of([rules[0]] * 200, START_S, {}, steps=20_000)[0]


def test_namespaces_share_the_time_whatever_their_rules() -> None:
    """Formulas and cron triggers have their cost, too: sums in sums, and a begin with each minute."""
    queue = prometheus("sum(vllm:num_requests_waiting)", name="a")
    bomb = "let x = [a,a,a,a,a,a,a,a,a,a]; sum(x, {sum(x, {sum(x, {#})})})"
    usual, costly = (
        rule(queue, advanced={"scalingModifiers": {"formula": formula, "target": "5"}}) for formula in ("a * 2", bomb)
    )
    window = {"timezone": "Asia/Kolkata", "start": "* * * * *", "end": "*/2 * * * *", "desiredReplicas": "2"}
    crons = rule(*[{"type": "cron", "metadata": window}] * 64)
    one = replace(usual, namespace="one")
    greedy = [replace(each, namespace="greedy", name=str(number)) for number in range(40) for each in (costly, crons)]
    settings, notes = settings_of([one, *greedy], START_S, {}, steps=20_000)
    assert settings[0] is not None and settings[1:] == [None] * len(greedy)
    assert {note.namespace for note in notes if "is left out" in note.text} == {"greedy"}


def test_notes_of_one_namespace_hide_none_of_others() -> None:
    notes = [RuleNote("greedy", f"rule {number}") for number in range(100)] + [
        RuleNote("team", "mine"),
        RuleNote("", "all"),
    ]
    told = bounded(notes)
    assert {"mine", "all", "rule 0"} <= {*told}
    assert len(told) == MOST_NOTES + 1
    assert told[-1].startswith("not shown: 62 more notes about scaling rules of 1 namespace;")


def test_queries_of_one_namespace_hide_none_of_others() -> None:
    """More queries than are run; each is of a metric that nobody knows."""
    server = Server(lambda query, points, number: 5)
    greedy = [replace(rule(prometheus(f"sum(other_{number})")), namespace="greedy") for number in range(MAX_QUERIES)]
    team = replace(rule(prometheus("sum(mine)")), namespace="team")
    load = load_of(np.full((60, 1), 1.0), np.full((60, 1), 3.0), WORK_S)
    found, notes = server.ask(lambda reader: past_of_queries([*greedy, team], reader, load))
    assert len(found) == MAX_QUERIES and "sum(mine)" in found
    assert [note.text for note in notes] == [
        "201 queries of scaling rules; only 200 are run, of each namespace in turn"
    ]


def test_slow_queries_of_one_namespace_take_no_time_of_others() -> None:
    server = Server(lambda query, points, number: 5)
    rules = [replace(rule(prometheus(f"sum(a_{number})")), namespace="slow") for number in range(3)]
    rules.append(replace(rule(prometheus("sum(mine)")), namespace="team"))
    load = load_of(np.full((60, 1), 1.0), np.full((60, 1), 3.0), WORK_S)
    found, notes = server.ask(lambda reader: past_of_queries(rules, reader, load, most_s=0.0))
    assert {*found} == {"sum(a_0)", "sum(mine)"}  # the first one of each: any time is more than none
    assert [note.namespace for note in notes] == ["slow"]
    assert notes[0].text.startswith("2 of the queries of scaling rules of namespace 'slow' are not run: those before")


def test_one_rule_that_looks_far_back_keeps_no_past_of_others() -> None:
    queries = ("sum(rate(vllm:num_incoming_requests_total[6h]))", *[RATE] * 199)
    found = [rule(prometheus(query, "6"), minReplicaCount=1) for query in queries]
    load = load_of(np.full((60, 200), 1.0), np.full((60, 200), 3.0), WORK_S)
    column = RuleColumn(settings_of(found, START_S, {})[0], load, profiles_of(200))
    assert column._past.keeps_s == 300 and column._pasts[0].keeps_s == 6 * HOUR_S


def test_rule_from_zero_is_woken_by_the_gateway() -> None:
    demand = np.zeros((60, 1))
    demand[30:] = 1.2
    queue = prometheus("inference_extension_flow_control_queue_size", "5")
    found = rule(queue, prometheus(RATE, "6"), cooldownPeriod=60)
    course = follow_rules([found], demand)
    assert course.wanted[20, 0] == 0 and course.wanted[-1, 0] == 2


def test_open_query_is_taken_from_the_past() -> None:
    query = "sum(other)"
    series = OpenSeries(np.arange(60) * STEP_S, np.where(np.arange(60) < 30, 45.0, 5.0), np.ones(60, np.int64))
    load, profiles = load_of(np.full((60, 1), 1.0), np.full((60, 1), 3.0), WORK_S), profiles_of(1)
    settings, notes = settings_of([rule(prometheus(query, "10"), minReplicaCount=1)], START_S, {query: series})
    course = follow(RuleColumn(settings, load, profiles), load, profiles)
    assert (course.wanted[20, 0], course.wanted[-1, 0]) == (5.0, 1.0)
    assert any("open loop" in note.text for note in notes)


def test_rules_find_their_services_and_others_are_named() -> None:
    one, other = rule(prometheus(RATE, "6")), rule(prometheus(RATE, "6"))
    services = [ServiceName("", "team", "a"), ServiceName("", "team", "b")]
    chosen, notes = assign([one, other], services)
    assert chosen == [one, None]
    assert notes == [RuleNote("team", "team/a: ScaledObject a is evaluated; other rules that name it: 1")]
    chosen, notes = assign([one], services[1:])
    assert chosen == [None] and notes == [RuleNote("", "no service in the history for ScaledObject a")]


def test_query_that_selects_every_workload_is_told() -> None:
    one, other = rule(prometheus(RATE, "6")), rule(prometheus('sum(vllm:num_requests_waiting{namespace="a"})'))
    assert any("no label selects the workload" in note.text for note in settings_of([one, None], START_S, {})[1])
    for rules in ([one], [other, None]):
        assert not any("no label selects" in note.text for note in settings_of(rules, START_S, {})[1])


def test_rule_that_cannot_be_evaluated_is_told() -> None:
    settings, notes = settings_of([rule(prometheus("sum(other)"))], START_S, {})
    assert settings == [None]
    assert any("nothing of it can be evaluated" in note.text for note in notes)


RULE = """\
kind: ScaledObject
metadata: {name: mine, namespace: team}
spec:
  scaleTargetRef: {name: office}
  minReplicaCount: 1
  triggers:
    - {type: prometheus, metadata: {query: sum(vllm:num_requests_running), threshold: "20"}}
    - {type: prometheus, metadata: {query: count(vllm:num_requests_running or something), threshold: "1"}}
"""


@pytest.mark.integration
@pytest.mark.slow
async def test_command_shows_the_column_of_a_rule(tmp_path) -> None:
    end_s = time.time() // 60 * 60
    _, text = generate(Service("office", day(1, 24), lambda _: 2), end_s - 30 * HOUR_S, end_s, 60.0)
    file, out = tmp_path / "rule.yaml", tmp_path / "report.json"
    file.write_text(RULE)
    async with filled_prometheus(tmp_path, merged([text])) as server:
        result = await run_report(
            server.url,
            "--against",
            str(file),
            "--no-cache",
            "--json",
            str(out),
            "--html",
            str(tmp_path / "report.html"),
        )
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert [column["name"] for column in written["columns"]][-1] == "rule"
    (service,) = written["services"]
    assert service["columns"]["rule"]["gpu_hours"] >= 0.9 * service["columns"]["actual"]["gpu_hours"]
    notes = " ".join(written["notes"])
    assert "ScaledObject team/mine: closed loop, on the simulated signals: spec.triggers[0]" in notes
    assert "ScaledObject team/mine: open loop, on the history as it was: spec.triggers[1]" in notes
