"""Scaling rules from manifests: what is read, what is left out, and exact errors."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.findings import PolicyError
from autoscaler.config.rules.cron import CronWindow
from autoscaler.config.rules.knative import PREFIX
from autoscaler.config.rules.read import MAX_RULES, read_files, read_objects
from autoscaler.config.rules.rule import (
    ASLEEP,
    DOWN,
    UP,
    BehaviorPolicy,
    Closed,
    Direction,
    Fallback,
    HpaRule,
    Keda,
    Knative,
    Open,
    Rule,
)

SCALED_OBJECT = """\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: llama
  namespace: my-team
  annotations: {autoscaling.keda.sh/paused-scale-in: "true"}
spec:
  scaleTargetRef: {name: llama-server}
  minReplicaCount: 0
  maxReplicaCount: 12
  pollingInterval: 15
  cooldownPeriod: 120
  initialCooldownPeriod: 60
  fallback: {failureThreshold: 3, replicas: 4, behavior: currentReplicasIfHigher}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp: {stabilizationWindowSeconds: 30, tolerance: 50m, policies: [{type: Pods, value: 2, periodSeconds: 60}]}
        scaleDown: {selectPolicy: Min}
    scalingModifiers: {formula: "max([queue, kv * 10.0])", target: "2.5", activationTarget: "1", metricType: Value}
  triggers:
    - type: prometheus
      name: queue
      metricType: Value
      useCachedMetrics: true
      metadata:
        serverAddress: http://prometheus:9090
        query: sum(vllm:num_requests_waiting{namespace="my-team"})
        threshold: "5"
        activationThreshold: "0.5"
        ignoreNullValues: "false"
    - type: prometheus
      name: kv
      metadata: {serverAddress: "http://prometheus:9090", query: "avg(my_own_metric)", threshold: "1e1"}
    - type: cron
      metadata: {timezone: Europe/Berlin, start: 0 8 * * 1-5, end: 0 18 * * 1-5, desiredReplicas: "3"}
    - type: cpu
      metricType: Utilization
      metadata: {value: "60"}
    - type: kafka
      metadata: {topic: requests}
"""

AUTOSCALER = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: llama, namespace: my-team}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llama}
  minReplicas: 2
  maxReplicas: 8
  metrics:
    - {type: Pods, pods: {metric: {name: vllm_num_requests_waiting}, target: {type: AverageValue, averageValue: 500m}}}
    - {type: External, external: {metric: {name: vllm_request_success}, target: {type: Value, value: "20"}}}
    - type: Object
      object:
        metric: {name: inference_pool_average_queue_size}
        describedObject: {kind: Service, name: epp}
        target: {type: AverageValue, averageValue: "3"}
    - {type: Pods, pods: {metric: {name: queue_length}, target: {type: AverageValue, averageValue: "3"}}}
    - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}
"""

KNATIVE = """\
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: llama, namespace: my-team}
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/target: "20"
        autoscaling.knative.dev/target-utilization-percentage: "80"
        autoscaling.knative.dev/minScale: "1"
        autoscaling.knative.dev/max-scale: "9"
        autoscaling.knative.dev/window: 2m
        autoscaling.knative.dev/scale-down-delay: 15m
    spec: {containerConcurrency: 16}
"""


def read(text: str, tmp_path: Path, **recorded: str) -> tuple[Rule, ...]:
    file = tmp_path / "rule.yaml"
    file.write_text(text)
    return read_files([file], recorded)


def test_scaled_object_is_read_whole(tmp_path: Path) -> None:
    (rule,) = read(SCALED_OBJECT, tmp_path)
    assert (rule.title, rule.target, rule.place) == (
        "ScaledObject my-team/llama",
        "llama-server",
        f"{tmp_path}/rule.yaml:1",
    )
    assert rule.hpa == HpaRule(
        1,
        12,
        Direction(30.0, (BehaviorPolicy("Pods", 2, 60.0),), tolerance=0.05),
        Direction(300.0, DOWN.policies, "Disabled"),
    )
    keda = rule.keda
    assert keda and keda.modifiers
    assert keda == Keda(
        15.0,
        120.0,
        60.0,
        0,
        None,
        Fallback(3, 4, "currentReplicasIfHigher"),
        keda.modifiers,
        paused_in=True,
    )
    assert (keda.modifiers.target, keda.modifiers.activation, keda.modifiers.is_average) == (2.5, 1.0, False)
    queue, kv, cron = rule.metrics
    assert isinstance(queue.source, Closed) and isinstance(kv.source, Open) and isinstance(cron.source, CronWindow)
    assert (queue.target, queue.activation, queue.is_average, queue.ignores_null, queue.cached) == (
        5.0,
        0.5,
        False,
        False,
        True,
    )
    assert (kv.target, kv.ignores_null, kv.name) == (10.0, True, "kv")
    assert [(each.place, each.kind) for each in rule.left_out] == [
        ("spec.triggers[3]", "cpu"),
        ("spec.triggers[4]", "kafka"),
    ]


def test_description_names_every_trigger(tmp_path: Path) -> None:
    (rule,) = read(SCALED_OBJECT, tmp_path)
    assert rule.describe(rule.queries) == [
        "closed loop, on the simulated signals: spec.triggers[0]",
        "by the clock: spec.triggers[2]",
        "open loop, on the history as it was: spec.triggers[1]: my_own_metric is no metric whose meaning is known: "
        "avg(my_own_metric)",
        "left out: spec.triggers[3] (cpu): CPU use is not simulated",
        "left out: spec.triggers[4] (kafka): only prometheus and cron triggers are evaluated",
    ]
    assert rule.describe()[2].startswith("left out, as no history was read: spec.triggers[1]")


def test_description_has_no_control_characters(tmp_path: Path) -> None:
    text = SCALED_OBJECT.replace('"avg(my_own_metric)"', '"avg(my_own_metric{a=\\"\\e[31m\\"})"')
    (rule,) = read(text, tmp_path)
    assert "\x1b" in rule.queries[0]
    assert all(line.isprintable() for line in rule.describe())


def test_defaults_are_those_of_keda_and_the_hpa(tmp_path: Path) -> None:
    triggers = [{"type": "prometheus", "metadata": {"query": "sum(tgi_queue_size)", "threshold": "5"}}]
    value = {"kind": "ScaledObject", "spec": {"scaleTargetRef": {"name": "a"}, "triggers": triggers}}
    (rule,) = read(json.dumps(value), tmp_path)
    assert rule.keda == Keda()
    assert rule.hpa == HpaRule(1, 100, stated=False)
    assert rule.describe()[-1] == ASLEEP


def test_autoscaler_reads_names_as_an_adapter_serves_them(tmp_path: Path) -> None:
    (rule,) = read(AUTOSCALER, tmp_path)
    assert rule.hpa == HpaRule(2, 8, stated=False) and rule.keda is None
    assert [
        (metric.target, metric.is_average, metric.per_pod, sorted(metric.source.node.columns()))
        for metric in rule.metrics
        if isinstance(metric.source, Closed)
    ] == [(0.5, True, True, ["waiting"]), (20.0, False, False, ["finished"]), (3.0, True, False, ["waiting"])]
    assert [(each.place, each.kind) for each in rule.left_out] == [
        ("spec.metrics[3]", "Pods"),
        ("spec.metrics[4]", "cpu"),
    ]


def test_behavior_of_an_autoscaler_has_the_defaults_of_the_api(tmp_path: Path) -> None:
    (rule,) = read(AUTOSCALER + "  behavior: {scaleDown: {stabilizationWindowSeconds: 60}}\n", tmp_path)
    assert rule.hpa == HpaRule(2, 8, UP, Direction(60.0, DOWN.policies))


def test_annotations_of_knative_are_read(tmp_path: Path) -> None:
    (rule,) = read(KNATIVE, tmp_path)
    assert rule.knative == Knative(target=16.0, utilization=0.8, window_s=120.0, least=1, most=9.0, down_delay_s=900.0)
    assert rule.is_for("my-team", "llama-00001-deployment") and not rule.is_for("other", "llama")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"metric": "rps"}, Knative(200.0, counts_rate=True)),
        ({"metric": "rps", "target": "30"}, Knative(30.0, counts_rate=True)),
        ({"panic-window-percentage": "20", "activation-scale": "3"}, Knative(panic_share=0.2, activation=3)),
        (
            {"scaleDownDelay": "5m", "scaleToZeroPodRetentionPeriod": "1m"},
            Knative(down_delay_s=300.0, retention_s=60.0),
        ),
        ({"max-scale": "0", "initial-scale": "0"}, Knative(most=math.inf, initial=0)),
        ({"class": "hpa.autoscaling.knative.dev", "metric": "cpu"}, None),
    ],
)
def test_annotations_of_a_deployment_are_read(
    annotations: dict[str, str], expected: Knative | None, tmp_path: Path
) -> None:
    stated = {f"autoscaling.knative.dev/{key}": value for key, value in annotations.items()}
    (rule,) = read(json.dumps({"kind": "Deployment", "metadata": {"name": "a", "annotations": stated}}), tmp_path)
    assert rule.knative == expected
    assert bool(rule.left_out) == (expected is None)


@pytest.mark.parametrize(
    ("annotations", "left_out"),
    [
        ({"class": "keda.autoscaling.knative.dev", "metric": "prometheus"}, "only kpa.autoscaling.knative.dev is"),
        ({"metric": "latency"}, "kpa.autoscaling.knative.dev has concurrency and rps"),
        ({"metric-aggregation-algorithm": "weightedExponential"}, "a linear mean is taken"),
        ({"colour": "red"}, "Knative has no such annotation"),
    ],
)
def test_annotation_that_is_not_evaluated_is_named(annotations: dict[str, str], left_out: str, tmp_path: Path) -> None:
    stated = {f"autoscaling.knative.dev/{key}": value for key, value in annotations.items()}
    (rule,) = read(json.dumps({"kind": "Deployment", "metadata": {"name": "a", "annotations": stated}}), tmp_path)
    (each,) = rule.left_out
    assert each.reason.startswith(left_out) and each.place.startswith("autoscaling.knative.dev/")


def test_field_that_nobody_reads_is_named(tmp_path: Path) -> None:
    (scaled,) = read(SCALED_OBJECT + "  region: eu\n", tmp_path)
    assert ("spec.region", "KEDA has no such field") in [(each.place, each.reason) for each in scaled.left_out]
    (hpa,) = read(AUTOSCALER.replace("minReplicas: 2", "minReplicas: 0") + "  region: eu\n", tmp_path)
    assert [(each.place, each.reason[:17]) for each in hpa.left_out[2:]] == [
        ("spec.region", "an HPA has no suc"),
        ("spec.minReplicas", "needs the feature"),
    ]


@pytest.mark.parametrize("kind", ["gauge", "unknown"])
def test_names_of_the_adapter_of_gke_are_known(kind: str, tmp_path: Path) -> None:
    stated = f"{{name: 'prometheus.googleapis.com|vllm:num_requests_waiting|{kind}'}}"
    (rule,) = read(AUTOSCALER.replace("{name: vllm_num_requests_waiting}", stated), tmp_path)
    first = rule.metrics[0].source
    assert isinstance(first, Closed) and first.node.columns() == {"waiting"}
    counter = "{name: 'prometheus.googleapis.com|vllm:request_success_total|counter'}"
    (rule,) = read(AUTOSCALER.replace("{name: vllm_request_success}", counter), tmp_path)
    second = rule.metrics[1].source
    assert isinstance(second, Closed) and second.node.parts[0].window_s == 60.0


def test_inference_service_states_its_scale(tmp_path: Path) -> None:
    predictor = {"minReplicas": 1, "maxReplicas": 4, "scaleTarget": 7, "scaleMetric": "concurrency"}
    value = {
        "kind": "InferenceService",
        "metadata": {"name": "a", "annotations": {"autoscaling.knative.dev/window": "90s"}},
        "spec": {"predictor": predictor},
    }
    (rule,) = read(json.dumps(value), tmp_path)
    assert rule.knative == Knative(7.0, least=1, most=4.0, window_s=90.0)


def test_recording_rules_make_a_query_known(tmp_path: Path) -> None:
    text = SCALED_OBJECT.replace("avg(my_own_metric)", "my:queue")
    (rule,) = read(text, tmp_path, **{"my:queue": "sum(vllm:num_requests_waiting)"})
    assert not rule.queries


def test_lists_and_several_documents_are_read(tmp_path: Path) -> None:
    other = "---\nkind: Deployment\nmetadata: {name: a}\n"
    rules = read(f"{SCALED_OBJECT}{other}---\n{AUTOSCALER}", tmp_path)
    assert [rule.kind for rule in rules] == ["ScaledObject", "HorizontalPodAutoscaler"]


def test_autoscaler_that_keda_keeps_is_passed_over() -> None:
    owned = {"kind": "HorizontalPodAutoscaler", "metadata": {"ownerReferences": [{"kind": "ScaledObject"}]}}
    assert read_objects([owned]) == ((), ())


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ('threshold: "5"', "threshold: 5", "29: error: spec.triggers[0].metadata.threshold: not text"),
        ('threshold: "5"', 'threshold: "five"', "29: error: spec.triggers[0].metadata.threshold: not a number"),
        ('threshold: "5"', 'threshold: "0"', "29: error: spec.triggers[0].metadata.threshold: too small"),
        ('        threshold: "5"\n', "", "26: error: spec.triggers[0].metadata.threshold: missing"),
        ('"false"', '"maybe"', "31: error: spec.triggers[0].metadata.ignoreNullValues: neither true nor false"),
        ("Europe/Berlin", "Europe/Berlim", "36: error: spec.triggers[2].metadata.timezone: "),
        ("0 18 * * 1-5", "0 8 * * 1-5", "36: error: spec.triggers[2].metadata.end: the same as start"),
        ("0 18 * * 1-5", "0 25 * * *", "36: error: spec.triggers[2].metadata.end: '25' in the field hour"),
        ('"3"}', '"0"}', "36: error: spec.triggers[2].metadata.desiredReplicas: not a count"),
        ("{name: llama-server}", "{}", "8: error: spec.scaleTargetRef.name: missing"),
        ("maxReplicaCount: 12", "maxReplicaCount: 0", "10: error: spec.maxReplicaCount: too small"),
        ("selectPolicy: Min", "selectPolicy: Least", "selectPolicy: "),
        ("IfHigher", "Higher", "14: error: spec.fallback.behavior: unknown"),
        ("kv * 10.0", "gpu * 10.0", "20: error: spec.advanced.scalingModifiers.formula: 'gpu' is not understood"),
        ("max([queue, kv * 10.0])", "queue > 1", "scalingModifiers.formula: False is not a number"),
        ('"2.5"', '"-1"', "20: error: spec.advanced.scalingModifiers.target: not a number above 0"),
        ("  triggers:", "  triggerz:", "spec.triggers: missing"),
        ("activationTarget", "activationtarget", "scalingModifiers.activationtarget: did you mean activationTarget?"),
        ("maxReplicaCount", "maxReplicas", "10: error: spec.maxReplicas: did you mean maxReplicaCount? unknown key"),
        ("name: kv", "name: queue", "spec.triggers[1].name: the name of another trigger, found 'queue'"),
        (
            'scale-in: "true"',
            "scale-in: true",
            "autoscaling.keda.sh/paused-scale-in: not text, which Kubernetes requires",
        ),
        ('paused-scale-in: "true"', 'paused-replicas: "-1"', "autoscaling.keda.sh/paused-replicas: not a count"),
        ("  name: llama\n", '  name: "ll\\e[31mama"\n', "4: error: metadata.name: not a name"),
        ("my-team\n", "My Team\n", "5: error: metadata.namespace: not a name"),
    ],
)
def test_error_names_the_place_and_what_is_allowed(old: str, new: str, finding: str, tmp_path: Path) -> None:
    assert old in SCALED_OBJECT
    with pytest.raises(PolicyError) as raised:
        read(SCALED_OBJECT.replace(old, new, 1), tmp_path)
    assert finding in str(raised.value)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("kind: Deployment\n", "no scaling rule in this file"),
        ("", "no scaling rule in this file"),
        ("a: [", "not valid YAML"),
        (AUTOSCALER.replace("500m", "-1"), "spec.metrics[0].pods.target.averageValue: not a quantity of at least 1m"),
        (AUTOSCALER.replace("maxReplicas: 8", "maxReplicas: 1"), "spec.minReplicas: above maxReplicas"),
        (AUTOSCALER.replace("  maxReplicas: 8\n", ""), "spec.maxReplicas: missing"),
        (
            AUTOSCALER.replace("type: Value, ", "type: Value, averageValue: 1, "),
            "value: given together with averageValue",
        ),
        (AUTOSCALER + "  behaviour: {}\n", "spec.behaviour: did you mean behavior? unknown key"),
        (AUTOSCALER + "  behavior: {scaledown: {}}\n", "spec.behavior.scaledown: did you mean scaleDown?"),
        (KNATIVE.replace("minScale", "min-scal"), "autoscaling.knative.dev/min-scal: did you mean min-scale?"),
        (KNATIVE.replace('"1"', '"10"'), "minScale: above the largest scale, found '10'; allowed: at most 9"),
        (KNATIVE.replace('"9"', '"2.5"'), "max-scale: not such a number, found '2.5'; allowed: a whole number"),
        (KNATIVE.replace("2m", "5s"), "window: too small, found '5s'; allowed: a duration with a unit"),
        (AUTOSCALER.replace("type: Resource", "type: Rezource"), "spec.metrics[4].type: unknown"),
        (KNATIVE.replace('"20"', "20"), "metadata.annotations.autoscaling.knative.dev/target: not such a number"),
        (KNATIVE.replace("2m", "2 minutes"), "autoscaling.knative.dev/window: not a duration"),
    ],
)
def test_file_that_is_no_rule_is_named(text: str, finding: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as raised:
        read(text, tmp_path)
    assert finding in str(raised.value)


def test_object_of_the_cluster_that_cannot_be_read_is_named() -> None:
    broken = {"kind": "ScaledObject", "metadata": {"namespace": "a", "name": "b"}, "spec": {"triggers": "x"}}
    rules, problems = read_objects([broken, {"kind": "Pod"}])
    assert not rules
    assert all(problem.text.startswith("ScaledObject a/b: error: spec") for problem in problems) and len(problems) == 2


def test_objects_that_are_no_rules_take_the_place_of_none() -> None:
    plain = {"kind": "Deployment", "metadata": {"namespace": "a", "name": "b"}}
    scaled = {"kind": "Deployment", "metadata": {**plain["metadata"], "annotations": {f"{PREFIX}target": "20"}}}
    rules, problems = read_objects([*[plain] * (MAX_RULES + 1), *[scaled] * (MAX_RULES + 1)])
    assert len(rules) == MAX_RULES
    (told,) = problems
    assert told.text == "only 500 scaling rules are read, of each namespace in turn; --namespace reads others"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "metadata", "name", "query", "threshold", "target", "metric", "value", "policies"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
PARTS = ["triggers", "metrics", "scaleTargetRef", "fallback", "advanced", "behavior", "maxReplicas", "minReplicaCount"]


@given(
    st.sampled_from(["ScaledObject", "HorizontalPodAutoscaler", "Service", "InferenceService"]),
    st.dictionaries(st.sampled_from(PARTS), JSON, max_size=6),
    JSON,
)
def test_any_object_is_a_rule_or_a_problem(kind: str, spec: dict[str, object], annotations: object) -> None:
    value = {
        "kind": kind,
        "apiVersion": "serving.knative.dev/v1",
        "metadata": {"annotations": annotations},
        "spec": spec,
    }
    rules, problems = read_objects([value])
    assert rules or problems or kind == "InferenceService"
