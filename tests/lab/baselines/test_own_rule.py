"""A rule as its owner has written it, step by step: triggers, polls, fallback, formulas, the clock, open queries."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.config.rules.read import NONE, read_files, read_objects
from autoscaler.config.rules.rule import Fallback, Rule
from autoscaler.lab.baselines.own_rule import OpenSeries, OwnRule, RuleSetting
from tests.lab.replay.synthetic import FakeView

MONDAY_S = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
QUICK = {"scaleDown": {"stabilizationWindowSeconds": 0}}


def prometheus(query: str, threshold: str = "5", metric_type: str = "", name: str = "", **more: str) -> dict[str, Any]:
    metadata = {"serverAddress": "http://p:9090", "query": query, "threshold": threshold, **more}
    return {"type": "prometheus", "metadata": metadata, "metricType": metric_type, "name": name}


GAUGES = {"running", "waiting"}
WAITING = "sum(vllm:num_requests_waiting)"


def rule(
    *triggers: dict[str, Any],
    behavior: object = QUICK,
    advanced: object = None,
    recorded: Mapping[str, str] = NONE,
    **spec: Any,
) -> Rule:
    more = {"horizontalPodAutoscalerConfig": {"behavior": behavior}, **(advanced or {})}  # type: ignore[dict-item]
    whole = {"scaleTargetRef": {"name": "a"}, "triggers": list(triggers), "advanced": more, **spec}
    (found,), problems = read_objects([{"kind": "ScaledObject", "metadata": {"name": "a"}, "spec": whole}], recorded)
    assert not problems
    return found


def play(setting: RuleSetting | Rule, scrapes: list[dict[str, Any]], start: int = 1, step_s: float = 15.0) -> list[int]:
    """Return the count after each scrape. Gauges are totals; all replicas are ready at once."""
    if isinstance(setting, Rule):
        setting = RuleSetting(setting, MONDAY_S)
    view = FakeView(desired=start, ready=start)
    scaler, counts = OwnRule(setting, start), []
    for number, scrape in enumerate(scrapes, 1):
        totals = {"running": 0.0, **scrape}
        spread = {key: np.full(view.ready, totals.pop(key) / max(view.ready, 1)) for key in GAUGES & totals.keys()}
        view.scrape(number * step_s, **spread, **totals)
        view.desired = view.ready = scaler.step(view.now_s, view, view.desired)
        counts.append(view.desired)
    return counts


def queues(*sizes: float) -> list[dict[str, Any]]:
    return [{"waiting": size} for size in sizes]


def test_largest_of_several_triggers_wins() -> None:
    found = rule(prometheus(WAITING), prometheus("sum(vllm:num_requests_running)", "10"), minReplicaCount=1)
    assert play(found, [{"waiting": 12.0}, {"waiting": 2.0, "running": 45.0}]) == [3, 5]


def test_value_target_multiplies_the_ready_pods() -> None:
    found = rule(prometheus("max(vllm:num_requests_waiting)", "5", "Value"), minReplicaCount=1)
    assert play(found, [{"waiting": 40.0}], start=2) == [6]  # 20 / 5 = 4 times 2, and at most 4 more


def test_query_of_several_elements_fails_as_keda_does() -> None:
    found = rule(prometheus("vllm:num_requests_waiting"), minReplicaCount=1)
    assert play(found, queues(9.0, 9.0, 0.0)) == [2, 2, 2]  # with one pod it has one element


@pytest.mark.parametrize(("ignores", "counts"), [("true", [1, 1]), ("false", [3, 3])])
def test_no_result_is_zero_unless_nulls_are_not_ignored(ignores: str, counts: list[int]) -> None:
    query = "sum(vllm:num_requests_waiting) > 1000"
    found = rule(prometheus(query, ignoreNullValues=ignores), minReplicaCount=1)
    assert play(found, queues(3.0, 3.0), start=3) == counts


def test_fallback_takes_over_after_the_threshold() -> None:
    query = "sum(vllm:num_requests_waiting) > 1000"
    found = rule(
        prometheus(query, ignoreNullValues="false"), minReplicaCount=1, fallback={"failureThreshold": 2, "replicas": 6}
    )
    assert found.keda and found.keda.fallback == Fallback(2, 6)
    assert play(found, queues(*[0.0] * 5), start=3) == [3, 3, 6, 6, 6]


def test_polls_count_as_failures_when_zero_is_possible() -> None:
    query = "sum(vllm:num_requests_waiting) > 1000"
    found = rule(prometheus(query, ignoreNullValues="false"), fallback={"failureThreshold": 2, "replicas": 6})
    assert play(found, queues(*[0.0] * 3), start=3) == [3, 6, 6]


def test_activation_threshold_decides_on_zero_alone() -> None:
    found = rule(
        prometheus("inference_extension_flow_control_queue_size", activationThreshold="10"),
        cooldownPeriod=30,
        pollingInterval=15,
    )
    scrapes = [{"gateway_waiting": size} for size in (5.0, 10.0, 11.0, 11.0, 3.0, 3.0, 3.0)]
    assert play(found, scrapes, start=0) == [0, 0, 1, 3, 1, 0, 0]


def test_idle_count_is_taken_when_nothing_is_active() -> None:
    found = rule(
        prometheus("inference_extension_flow_control_queue_size"),
        minReplicaCount=2,
        idleReplicaCount=0,
        cooldownPeriod=30,
        pollingInterval=15,
    )
    scrapes = [{"gateway_waiting": size} for size in (0.0, 0.0, 0.0, 1.0, 0.0, 0.0)]
    assert play(found, scrapes, start=2) == [2, 0, 0, 2, 2, 0]


def test_polling_interval_delays_the_first_replica() -> None:
    found = rule(prometheus("inference_extension_flow_control_queue_size"), pollingInterval=60)
    scrapes = [{"gateway_waiting": 0.0}, *[{"gateway_waiting": 40.0}] * 6]
    assert play(found, scrapes, start=0) == [0, 0, 0, 0, 1, 5, 8]


def test_cached_metrics_are_those_of_the_last_poll() -> None:
    trigger = {**prometheus(WAITING), "useCachedMetrics": True}
    found = rule(trigger, minReplicaCount=1, pollingInterval=60)
    assert play(found, queues(5.0, 20.0, 20.0, 20.0, 20.0)) == [1, 1, 1, 1, 4]


@pytest.mark.parametrize(
    ("annotation", "counts"),
    [
        ({"autoscaling.keda.sh/paused": "true"}, [2, 2, 2]),
        ({"autoscaling.keda.sh/paused-replicas": "7"}, [7, 7, 7]),
        ({"autoscaling.keda.sh/paused-scale-in": "true"}, [4, 4, 4]),
        ({"autoscaling.keda.sh/paused-scale-out": "true"}, [2, 1, 1]),
    ],
)
def test_pauses_hold_the_count(annotation: dict[str, str], counts: list[int]) -> None:
    whole = {"scaleTargetRef": {"name": "a"}, "triggers": [prometheus(WAITING)], "minReplicaCount": 1}
    whole["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": QUICK}}
    (found,), _ = read_objects(
        [{"kind": "ScaledObject", "metadata": {"name": "a", "annotations": annotation}, "spec": whole}]
    )
    assert play(found, queues(20.0, 0.0, 0.0), start=2) == counts


def modified(formula: str, **more: Any) -> Rule:
    modifiers = {"formula": formula, "target": "1", **more.pop("modifiers", {})}
    return rule(
        prometheus(WAITING, name="queue", ignoreNullValues="false"),
        prometheus("sum(vllm:num_requests_running)", name="busy"),
        advanced={"scalingModifiers": modifiers},
        **{"minReplicaCount": 1, **more},
    )


def test_formula_replaces_the_triggers() -> None:
    found = modified("max([queue / 5, busy / 10])")
    assert play(found, [{"waiting": 12.0}, {"waiting": 0.0, "running": 45.0}]) == [3, 5]


def test_formula_reads_a_failed_trigger_as_nil_with_its_fallback() -> None:
    fallback = {"failureThreshold": 1, "replicas": 5, "behavior": "scalingModifiers"}
    found = modified("queue ?? (busy / 2)", fallback=fallback)
    scrapes = [{"waiting": 4.0}] + [{"waiting": math.nan, "running": 6.0}] * 2
    assert play(found, scrapes) == [4, 4, 3]


def test_fallback_of_a_formula_needs_a_whole_target() -> None:
    fallback = {"failureThreshold": 0, "replicas": 6}
    scrapes = [{"waiting": math.nan}] * 2
    assert play(modified("queue", fallback=fallback), scrapes, start=2)[-1] == 6
    assert play(modified("queue", fallback=fallback, modifiers={"target": "1.5"}), scrapes, start=2) == [2, 2]


def test_formula_decides_on_activity() -> None:
    found = modified("queue + busy", minReplicaCount=0, cooldownPeriod=0, pollingInterval=15)
    assert play(found, [{"waiting": 0.0, "running": 0.0}], start=2) == [0]
    held = modified("queue + busy", minReplicaCount=0, cooldownPeriod=0, modifiers={"activationTarget": "-1"})
    assert play(held, [{"waiting": 0.0, "running": 0.0}], start=2) == [1]


def test_cron_trigger_holds_its_count_by_the_clock() -> None:
    metadata = {"timezone": "Europe/Berlin", "start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "desiredReplicas": "3"}
    found = rule(prometheus(WAITING), {"type": "cron", "metadata": metadata}, minReplicaCount=1)
    counts = play(found, queues(*[0.0] * 24), step_s=3600.0)
    local = [1 + hour for hour in range(1, 25)]  # Berlin is an hour ahead
    assert counts == [3 if 8 <= hour < 18 else 1 for hour in local]


def test_open_query_has_the_values_of_the_past() -> None:
    query = "sum(rate(http_requests_total[1m]))"
    found = rule(prometheus(query, "10"), minReplicaCount=1)
    times_s = np.arange(0.0, 300.0, 15.0)
    values = np.where(times_s < 60, 35.0, np.nan)
    several = np.where(times_s < 60, 1, np.where(times_s < 120, 0, 2))
    setting = RuleSetting(found, MONDAY_S, {query: OpenSeries(times_s, values, several)})
    assert play(setting, queues(*[0.0] * 9)) == [4, 4, 4, 1, 1, 1, 1, 1, 1]
    assert "open loop" in " ".join(setting.lines())


def test_rule_without_anything_to_evaluate_is_refused() -> None:
    setting = RuleSetting(rule(prometheus("sum(other)")), MONDAY_S)
    with pytest.raises(ValueError, match="nothing of it can be evaluated: left out, as no history was read"):
        setting.check()


def test_autoscaler_counts_starting_pods_as_idle_when_it_grows(tmp_path: Path) -> None:
    pods = {"metric": {"name": "vllm_num_requests_waiting"}, "target": {"type": "AverageValue", "averageValue": "2"}}
    spec = {"scaleTargetRef": {"name": "a"}, "maxReplicas": 20, "metrics": [{"type": "Pods", "pods": pods}]}
    file = tmp_path / "hpa.json"
    file.write_text(json.dumps({"kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"}, "spec": spec}))
    (found,) = read_files([file])
    view = FakeView(desired=4, ready=2).scrape(15.0, running=np.zeros(2), waiting=np.array([6.0, 6.0]))
    assert OwnRule(RuleSetting(found, 0.0), 4).step(15.0, view, 4) == 6  # 12 over 4 pods is 3 of 2


def test_long_steps_sync_once_each() -> None:
    found = replace(rule(prometheus(WAITING), minReplicaCount=1), hpa=rule(prometheus(WAITING)).hpa)
    assert play(found, queues(40.0, 40.0, 0.0), step_s=60.0) == [5, 8, 1]


KNATIVE = {"kind": "Deployment", "metadata": {"name": "a"}}


def knative(**annotations: str) -> Rule:
    stated = {f"autoscaling.knative.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    (found,), problems = read_objects([{**KNATIVE, "metadata": {"name": "a", "annotations": stated}}])
    assert not problems
    return found


def test_knative_counts_requests_per_second() -> None:
    found = knative(metric="rps", target="10", target_utilization_percentage="100")
    scrapes = [{"arrivals": 25.0 * 15 * number} for number in range(1, 9)]
    assert play(found, scrapes)[-1] == 3


def test_knative_delays_the_way_down() -> None:
    view = FakeView(desired=4, ready=4, concurrency=0.0)
    counts = {}
    scaler = OwnRule(RuleSetting(knative(target="10", scale_down_delay="5m", min_scale="1"), 0.0), 1)
    for now in range(2, 400, 2):
        view.now_s, view.concurrency = float(now), 28.0 if now <= 60 else 0.0
        view.desired = view.ready = counts[now] = scaler.step(view.now_s, view, view.desired)
    assert counts[60] == 4 and counts[300] == 4
    assert counts[398] < 4
