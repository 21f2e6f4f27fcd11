"""Rules that people write for LLM servers, with the defaults of KEDA, the HPA and Knative: baselines to compare with.

They are rules like any that an owner states, evaluated by `own_rule`. Sources of the settings are in
`docs/reference/baselines.md`.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.config.rules.query import recognize
from autoscaler.config.rules.rule import DOWN, UP, Closed, HpaRule, Keda, Knative, Metric, Rule
from autoscaler.lab.baselines.base import (
    MIN_REPLICAS,
    POSITIVE,
    Axis,
    Baseline,
    Params,
    concurrencies_to_try,
    min_replicas_to_try,
    number,
    request_rates_to_try,
)
from autoscaler.lab.baselines.load_test import tested_rps
from autoscaler.lab.baselines.own_rule import OwnRule, RuleSetting
from autoscaler.lab.replay.case import Case, Scaler

COOLDOWN_S = Keda().cooldown_s
# Defect fixed: a metric of pods wakes nothing without pods, so requests held by the gateway count as well.
HELD = "inference_extension_flow_control_queue_size"
WAITING = f"(sum(vllm:num_requests_waiting) or vector(0)) + {HELD}"
INFLIGHT = f"(sum(vllm:num_requests_running + vllm:num_requests_waiting) or vector(0)) + {HELD}"
RATE = "sum(rate(vllm:num_incoming_requests_total[1m]))"
NEVER_BINDS = 1e9  # target of a trigger that only activates


def _metric(query: str, target: float, place: str) -> Metric:
    return Metric(place, Closed(recognize(query)), target, query)


_QUEUE, _RATE, _HELD, _INFLIGHT = (
    _metric(query, target, place)
    for query, target, place in (
        (WAITING, 1.0, "waiting"),
        (RATE, 1.0, "rate"),
        (HELD, NEVER_BINDS, "held"),
        (INFLIGHT, 1.0, "inflight"),
    )
)


def rule_of(
    name: str, case: Case, metrics: tuple[Metric, ...], stabilization_s: float, keda: Keda | None, least: int = 1
) -> Rule:
    """Return a rule with the behavior of an HPA that states one stabilization window."""
    hpa = HpaRule(max(least, 1), case.max_replicas, UP, replace(DOWN, stabilization_s=stabilization_s))
    return Rule("baseline", name, "", "", "", metrics, hpa, keda)


def scaler_of(rule: Rule, case: Case) -> Scaler:
    return OwnRule(RuleSetting(rule, 0.0), case.start_replicas, rule.name)


def _keda(name: str, case: Case, params: Params, first: Metric, *others: Metric) -> Scaler:
    least = int(number(params, MIN_REPLICAS))
    metrics = (replace(first, target=number(params, "target")), *others)
    return scaler_of(rule_of(name, case, metrics, number(params, "stabilization_s"), Keda(least=least), least), case)


def _queue(case: Case, params: Params) -> Scaler:
    return _keda("keda-queue", case, params, _QUEUE)


def _requests(case: Case, params: Params) -> Scaler:
    return _keda("keda-rps", case, params, _RATE, _HELD)


def _inflight(case: Case, params: Params) -> Scaler:
    metrics = (replace(_INFLIGHT, target=number(params, "target")),)
    least = int(number(params, MIN_REPLICAS))
    return scaler_of(rule_of("hpa-inflight", case, metrics, number(params, "stabilization_s"), None, least), case)


def _knative(case: Case, params: Params) -> Scaler:
    least, window_s = int(number(params, MIN_REPLICAS)), number(params, "stable_s")
    settings = Knative(number(params, "limit"), window_s=window_s, least=least, most=case.max_replicas)
    return scaler_of(Rule("baseline", "knative-kpa", "", "", "", knative=settings), case)


def _queue_axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", (2.0, 5.0, 12.5), within=POSITIVE),
        Axis("stabilization_s", (300.0, 900.0)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, COOLDOWN_S)),
    )


def _request_axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", request_rates_to_try(case), within=POSITIVE),
        Axis("stabilization_s", (60.0, 300.0, 900.0)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, COOLDOWN_S)),
    )


def _inflight_axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("target", concurrencies_to_try(case), within=POSITIVE),
        Axis("stabilization_s", (60.0, 300.0, 900.0)),
        Axis(MIN_REPLICAS, (1.0,)),
    )


def _knative_axes(case: Case) -> tuple[Axis, ...]:
    window_s = Knative().window_s
    return (
        Axis("limit", concurrencies_to_try(case), within=POSITIVE),
        Axis("stable_s", (window_s, 300.0)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, window_s)),
    )


def _queue_default(case: Case) -> Params:
    """As in the guide of vLLM's production stack (docs/source/use_cases/autoscaling-keda.rst)."""
    return {"target": 5.0, "stabilization_s": DOWN.stabilization_s, MIN_REPLICAS: 1.0}


def _request_default(case: Case) -> Params:
    """With KEDA's own minimum, `minReplicaCount` 0."""
    return {"target": float(f"{tested_rps(case):.6g}"), "stabilization_s": DOWN.stabilization_s, MIN_REPLICAS: 0.0}


def _inflight_default(case: Case) -> Params:
    """As in llm-d's guide (guides/workload-autoscaling/keda-epp): 16 running requests per replica."""
    return {"target": 16.0, "stabilization_s": DOWN.stabilization_s, MIN_REPLICAS: 1.0}


def _knative_default(case: Case) -> Params:
    """As in config-autoscaler: `container-concurrency-target-default`, `stable-window`, `enable-scale-to-zero`."""
    return {"limit": Knative().target, "stable_s": Knative().window_s, MIN_REPLICAS: 0.0}


KEDA_QUEUE = Baseline(
    "keda-queue", "KEDA 2.21, sum(waiting), AverageValue, threshold 5", _queue, _queue_axes, _queue_default
)
KEDA_RPS = Baseline(
    "keda-rps",
    "KEDA 2.21, requests per second per replica",
    _requests,
    _request_axes,
    _request_default,
    derived="target: requests per second that one replica takes within the objectives, as a load test would find",
)
HPA_INFLIGHT = Baseline(
    "hpa-inflight",
    "Kubernetes 1.36 HPA, AverageValue of running + waiting",
    _inflight,
    _inflight_axes,
    _inflight_default,
)
KNATIVE_KPA = Baseline(
    "knative-kpa", "Knative Serving, autoscaler.go, concurrency", _knative, _knative_axes, _knative_default
)
