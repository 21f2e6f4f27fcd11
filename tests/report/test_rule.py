"""The column of the user's own rules: on fluid loads, and in the command on a real server."""

import json
import math
import time

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.config.rules.rule import Rule
from autoscaler.lab.baselines.own_rule import OpenSeries
from autoscaler.report.fluid import Course, follow
from autoscaler.report.outcome import sum_up
from autoscaler.report.rule import RuleColumn, assign, settings_of
from tests.lab.baselines.test_own_rule import prometheus, rule
from tests.report.generated import HOUR_S, Service, day, filled_prometheus, generate, merged
from tests.report.loads import START_S, STEP_S, facts_of, interactive, load_of, profiles_of
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


def test_latency_grows_with_the_queue() -> None:
    query = "histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[2m])))"
    found = rule(prometheus(query, "0.5", "Value"), minReplicaCount=1, maxReplicaCount=8)
    course = follow_rules([found], np.full((120, 1), 3.5))
    assert course.wanted[:, 0].max() > 4


def test_service_without_a_rule_has_no_figures() -> None:
    demand = np.full((60, 2), 2.4)
    course = follow_rules([None, rule(prometheus(RATE, "6"), minReplicaCount=1)], demand)
    load, profiles = load_of(demand, np.full(demand.shape, 3.0), WORK_S), profiles_of(2)
    outcome = sum_up(course, load, profiles, facts_of(services=2), interactive(2))
    assert math.isnan(outcome.gpu_hours[0])
    assert outcome.gpu_hours[1] == pytest.approx(4.0, rel=0.05)


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
    assert any("is left out: its queries take" in note for note in notes)
    assert None not in settings_of([rules[0]] * 200, START_S, {}, steps=20_000)[0]


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
    assert any("open loop" in note for note in notes)


def test_rules_find_their_services_and_others_are_named() -> None:
    one, other = rule(prometheus(RATE, "6")), rule(prometheus(RATE, "6"))
    services = [ServiceName("", "team", "a"), ServiceName("", "team", "b")]
    chosen, notes = assign([one, other], services)
    assert chosen == [one, None]
    assert notes == ["team/a: ScaledObject a is evaluated; other rules that name it: 1"]
    chosen, notes = assign([one], services[1:])
    assert chosen == [None] and notes == ["no service in the history for ScaledObject a"]


def test_query_that_selects_every_workload_is_told() -> None:
    one, other = rule(prometheus(RATE, "6")), rule(prometheus('sum(vllm:num_requests_waiting{namespace="a"})'))
    assert any("no label selects the workload" in note for note in settings_of([one, None], START_S, {})[1])
    for rules in ([one], [other, None]):
        assert not any("no label selects" in note for note in settings_of(rules, START_S, {})[1])


def test_rule_that_cannot_be_evaluated_is_told() -> None:
    settings, notes = settings_of([rule(prometheus("sum(other)"))], START_S, {})
    assert settings == [None]
    assert any("nothing of it can be evaluated" in note for note in notes)


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
        result = await run_report(server.url, "--against", str(file), "--no-cache", "--json", str(out))
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert [column["name"] for column in written["columns"]][-1] == "rule"
    (service,) = written["services"]
    assert service["columns"]["rule"]["gpu_hours"] >= 0.9 * service["columns"]["actual"]["gpu_hours"]
    notes = " ".join(written["notes"])
    assert "ScaledObject team/mine: closed loop, on the simulated signals: spec.triggers[0]" in notes
    assert "ScaledObject team/mine: open loop, on the history as it was: spec.triggers[1]" in notes
