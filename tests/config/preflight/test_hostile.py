"""Whatever stands in a manifest, or comes from a server, `preflight` ends with findings or what it did not check."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.app.preflight import NOT_ASKED, next_questions, read_files
from autoscaler.app.preflight_output import MOST_LISTED, as_json, as_text
from autoscaler.config.preflight import promql
from autoscaler.config.preflight.command import read_command
from autoscaler.config.preflight.facts import Answer, QueryFacts, Question, Sample
from autoscaler.config.preflight.metrics_adapter import adapter_rules
from autoscaler.config.preflight.mounted import PodInputs
from autoscaler.config.preflight.objects import Manifest, Manifests, NotChecked, read_object
from autoscaler.config.preflight.patterns import fits
from autoscaler.config.preflight.run import run
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.yaml import Document, Loc
from tests.config.preflight.scene import BOOK, GOOD, QUERY, SCALER, changed, checked, ids
from tests.config.preflight.test_findings import HPA, IN_GIT, POOL, TRACKED, application, thing, vertical
from tests.harness.calls import counted_calls

MORE = list(
    yaml.safe_load_all("""
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: hr, namespace: web}
spec:
  model: {uri: "hf://Qwen/Qwen2.5-32B-Instruct", name: q}
  parallelism: {tensor: 2}
  scaling:
    maxReplicas: 5
    keda: {triggers: [{type: prometheus, metadata: {query: up, threshold: "5"}}]}
  template:
    containers:
      - name: main
        env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-num-seqs 64"}]
        resources: {limits: {nvidia.com/gpu: "2"}}
---
apiVersion: ray.io/v1
kind: RayService
metadata: {name: ray, namespace: web}
spec:
  serveConfigV2: "applications: [{args: {llm_configs: [{engine_kwargs: {tensor_parallel_size: 2}}]}}]"
  rayClusterConfig:
    workerGroupSpecs:
      - {maxReplicas: 2, template: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: "2"}}}]}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: chat-epp, namespace: web}
data: {config.yaml: "kind: EndpointPickerConfig\\nfeatureGates: [flowControl]"}
---
apiVersion: v1
kind: Pod
metadata: {name: chat-5d5f9c7d66-8wq2z, namespace: web}
spec: {nodeName: gpu-1, containers: [{resources: {limits: {nvidia.com/gpu: "2"}}}]}
status: {phase: Running}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: q}
spec: {cohortName: c, resourceGroups: [{flavors: [{resources: [{name: nvidia.com/gpu, nominalQuota: 6}]}]}]}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: rule, namespace: web}
spec: {groups: [{rules: [{expr: "sum(vllm_num_requests_waiting) > 4"}, {record: "a:b:c", expr: up}]}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: scraped, namespace: web}
spec:
  template:
    metadata:
      labels: {app: scraped}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "9000", prometheus.io/path: /metrics}
    spec:
      nodeSelector: {gpu: new}
      tolerations: [{key: gpu, operator: Equal, value: "true", effect: NoSchedule}]
      volumes: [{name: c, configMap: {name: engine, items: [{key: c.yaml, path: c.yaml}]}}]
      containers:
        - name: engine
          image: vllm/vllm-openai:v0.11.0
          args: [--model, "$(MODEL)", --quantization, fp8, --config, /etc/engine/c.yaml]
          env: [{name: MODEL, valueFrom: {configMapKeyRef: {name: engine, key: model}}}]
          envFrom: [{prefix: X_, configMapRef: {name: engine}}]
          volumeMounts: [{name: c, mountPath: /etc/engine}]
          resources: {limits: {nvidia.com/gpu: "1"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: engine, namespace: web}
data: {model: Qwen/Qwen2.5-7B-Instruct, c.yaml: "max-num-seqs: 64"}
---
apiVersion: v1
kind: Node
metadata: {name: new, labels: {gpu: new, nvidia.com/gpu.compute.major: "7", nvidia.com/gpu.compute.minor: "5"}}
spec: {taints: [{key: gpu, value: "true", effect: NoSchedule}]}
status: {allocatable: {nvidia.com/gpu: "8"}}
---
apiVersion: monitoring.coreos.com/v1alpha1
kind: ScrapeConfig
metadata: {name: pods, namespace: web}
spec:
  scrapeInterval: 5m
  kubernetesSDConfigs: [{role: Pod, namespaces: {names: [web]}}]
  relabelings: [{sourceLabels: [__meta_kubernetes_pod_label_app], action: keep, regex: scraped}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: prometheus, namespace: web}
data:
  prometheus.yml: |
    global: {scrape_interval: 1m}
    scrape_configs:
      - {job_name: p, kubernetes_sd_configs: [{role: pod}], relabel_configs: [{action: labeldrop, regex: pod}]}
  adapter.yml: |
    rules:
      - {seriesQuery: 'vllm:waiting{pod!=""}', name: {matches: "^(.*)$", as: "$1_now"}, metricsQuery: "<<.Series>>"}
---
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: p, namespace: web}
spec: {podMonitorSelector: {matchLabels: {team: a}}, podMonitorNamespaceSelector: {matchLabels: {x: y}}}
---
apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: set, namespace: argocd}
spec: {template: {metadata: {name: "{{name}}"}, spec: {destination: {namespace: web}, syncPolicy: {automated: {}}}}}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: is, namespace: web, annotations: {serving.kserve.io/deploymentMode: RawDeployment}}
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 4
    autoScaling:
      metrics: [{type: External, external: {metric: {backend: prometheus, query: up}, target: {value: "5"}}}]
    model: {modelFormat: {name: vllm}, storageUri: "hf://a/b", resources: {limits: {nvidia.com/gpu: "1"}}}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledJob
metadata: {name: job, namespace: web}
spec:
  jobTargetRef: {template: {spec: {containers: [{name: j, resources: {limits: {nvidia.com/gpu: "1"}}}]}}}
  triggers: [{type: prometheus, metadata: {query: up, threshold: "5"}}]
""")
)
ALL: list[dict[str, Any]] = [*GOOD, *MORE, HPA, POOL, vertical("Auto"), application()]
NUMBERS = [True, False, 0, -1, 2**70, 1e308, float("nan"), float("inf"), "0", "-5", "5Gi", "9" * 5000, "1e9", "100%"]
DIGITS = ["²", "٣"]  # of Unicode, of which `int` takes the second alone
TEXTS = [
    "",
    " ",
    "\x00\x1b[31m",
    "☃",
    "$(X)",
    "${X}",
    "a" * 10_000,
    "(" * 5000,
    "vllm serve 'x",
    "--x",
    "{",
    "Infinity",
]
PATTERNS = ["*", ".*(a+)+b", "sum(", 'x{y="z"}[1m]']
OTHERS = [None, [], {}, [[]], [None], {"": None}, ["x"] * 2000, {"a": {"b": {"c": []}}}, [{"name": 1}], [0], {"x": 1}]
ODD: list[object] = [*NUMBERS, *DIGITS, *TEXTS, *PATTERNS, *OTHERS]


def places(value: object, loc: Loc = ()) -> Iterator[Loc]:
    """Yield the place of each value."""
    if loc:
        yield loc
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(each, (*loc, key))


PLACES = [(index, loc) for index, document in enumerate(ALL) for loc in places(document)]


class EveryAnswer(dict[Question, Answer]):
    """Answers each question with the same series."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: Question) -> Answer:
        return self._answer


def run_on(documents: list[Any], facts: QueryFacts) -> None:
    things = [thing for value in documents if (thing := read_object(Document("x.yaml", 1, value))) is not None]
    outcome = run(Manifests.of(things), facts, BOOK)
    for each in outcome.findings:
        assert each.path.isprintable()
        assert each.line >= 0


@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(ODD)), min_size=1, max_size=4))
def test_odd_values_at_any_place_are_no_traceback(changes: list[tuple[tuple[int, Loc], object]]):
    documents = copy.deepcopy(ALL)
    for (index, loc), value in changes:
        inside: Any = documents[index]
        try:
            for key in loc[:-1]:
                inside = inside[key]
            inside[loc[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed the place
    run_on(documents, QueryFacts(server=False))


@pytest.mark.long
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_each_odd_value_at_each_place_is_no_traceback(value: object):
    for index, loc in PLACES:
        document = copy.deepcopy(ALL[index])
        inside: Any = document
        for key in loc[:-1]:
            inside = inside[key]
        inside[loc[-1]] = value
        run_on(
            [*ALL[:index], document, *ALL[index + 1 :]] if len(loc) < 3 else [document, *GOOD[:2]],
            QueryFacts(server=False),
        )


LABELS = st.dictionaries(
    st.sampled_from(
        ["__name__", "namespace", "pod", "model_name", "le", "server", "cluster", "deployment", "container"]
    ),
    st.sampled_from(["", "web", "chat", "chat-5d5f9c7d66-8wq2z", "+Inf", "nan", "x" * 500, "\n", "0.5"]),
    max_size=6,
)
SAMPLES = st.lists(st.builds(Sample, LABELS, st.floats()), max_size=6).map(tuple)


@given(
    st.builds(
        Answer,
        SAMPLES,
        st.frozensets(st.sampled_from(["", "vllm:num_requests_running", "DCGM_FI_DEV_FB_USED", "kube_pod_owner"])),
        st.sampled_from(["", "no answer"]),
        st.booleans(),
    )
)
def test_odd_answers_of_a_server_are_no_traceback(answer: Answer):
    run_on(ALL, QueryFacts(server=True, answers=EveryAnswer(answer)))


@given(st.text(st.sampled_from("sumrate(){}[]=~!\"',.:5mx+-/*\\ \n#@by"), max_size=60))
def test_any_text_is_parsed_or_not_understood(text: str):
    try:
        promql.parse(text)
    except promql.Unparsed as error:
        assert str(error)


@pytest.mark.parametrize("text", ["(" * 9000, "x" * 9000, "sum(" * 101 + "x" + ")" * 101, "[" * 200, "\x00"])
def test_deep_and_long_queries_are_not_understood(text: str):
    with pytest.raises(promql.Unparsed):
        promql.parse(text)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "a*a*a*b", "(?=x)", r"(a)\1", "(" * 300, "x" * 500, "["])
def test_patterns_that_could_take_long_are_unknown(pattern: str):
    assert fits(pattern, "a" * 200) is None


@pytest.mark.parametrize(
    "part", ["a?", "(a|a)?", "(a{2}|a)", "a{1,3}", "a{0,}", "(?:a|[ab)]|a)", "[?*]?", "a??", "(|a)"]
)
def test_many_choices_in_a_row_are_unknown(part: str):
    assert fits(part * 30 + "b", "a" * 60) is None


@given(
    st.lists(
        st.sampled_from(["a", "a?", "(a|aa)", "a*", "(?:a|b|ab)?", "[ab]{1,2}", "|", "a{2}", ".+", "b"]), max_size=60
    )
)
def test_any_pattern_is_compared_at_once_or_unknown(parts: list[str]):
    with counted_calls() as calls:
        assert fits("".join(parts), "a" * 255 + "c") in (True, False, None)
    assert calls.made < 1_000_000


@pytest.mark.parametrize(
    "pattern",
    [
        "(llama|qwen|phi)-.*-[a-z0-9]+",
        "vllm[:_].*",
        "llama-[a-z0-9]+-[a-z0-9]{5}",
        "|".join(f"kube_{n}_.*" for n in range(30)),
    ],
)
def test_usual_patterns_are_compared(pattern: str):
    assert fits(pattern, "a") is False


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x]\nb: &b [*a, *a, *a]\n"
        + "".join(f"{chr(99 + i)}: &{chr(99 + i)} [{', '.join([f'*{chr(98 + i)}'] * 9)}]\n" for i in range(9)),
        "a: " + "[" * 200,
        "kind: x\nkind: y\n",
        "!!python/object/apply:os.system [ls]",
        "x" * (17 << 20),
        "\xff\xfe",
        "kind: Deployment\n\tmetadata: {}",
    ],
    ids=["bomb", "deep", "twice", "tag", "large", "bytes", "tab"],
)
def test_a_document_that_cannot_be_read_is_a_finding(tmp_path: Path, text: str):
    file = tmp_path / "x.yaml"
    file.write_bytes(text.encode("latin-1"))
    objects, findings, _ = read_files([file])
    assert objects == []
    assert [each.id for each in findings] == ["VA1101"]


@pytest.mark.parametrize(
    "query",
    [
        'count by (__name__) ({__name__=~".+"})',
        'sum({namespace=~".+"})',
        'sum({__name__=~".*requests.*"})',
        "max_over_time(sum(vllm:num_requests_waiting)[30d:10s])",
        "sum(rate(vllm:generation_tokens_total[30d]))",
        "max_over_time(max_over_time(up[1d])[1d:10s])",
        "sum_over_time(vllm:num_requests_waiting[1y])",
        'sum(vllm:x{a="b"}) keep_metric_names default rollup(y[30d])',
        'count({__name__=~".+"}) default 0',
        'sum(rate({job!=""}[5m])) keep_metric_names',
        'sum({ "__name__" =~ ".*"}) default 0',
        'sum({__name__="vllm:x" or job="a"}) default 0',
        "max_over_time(vllm:num_requests_waiting[1d:1i]) default 0",
        "max_over_time(rate(vllm:generation_tokens_total[1d])[1d:1m]) default 0",
    ],
)
def test_a_query_that_reads_too_much_is_not_asked(query: str):
    facts = QueryFacts(server=True)
    outcome = checked(changed((SCALER, QUERY, query)), facts)
    assert Question("query", query) not in facts.wanted
    assert any("not run: it " in each.reason for each in outcome.not_checked if each.object == "ScaledObject/web/chat")


@pytest.mark.parametrize(
    "query",
    [
        'sum({__name__=~"vllm:num_requests_(waiting|running)",namespace="web"})',
        'max_over_time(sum(vllm:num_requests_waiting{namespace="web"})[1h:30s])',
        'sum(vllm:num_requests_waiting {namespace="web"}) by (pod) default 0',
        'sum({__name__="vllm:num_requests_waiting"}) default 0',
        'sum({"vllm:num_requests_waiting", namespace="web"}) default 0',
        'sum(vllm:num_requests_waiting{pod=~"chat-[a-z0-9]+-.*"}) default 0',
        "max_over_time(sum(vllm:num_requests_waiting)[1h:30s]) default 0",
    ],
)
def test_a_usual_query_is_asked(query: str):
    facts = QueryFacts(server=True)
    checked(changed((SCALER, QUERY, query)), facts)
    assert Question("query", query) in facts.wanted


def test_a_recorded_name_of_a_tenant_does_not_hide_an_engine_metric():
    rule = thing(
        "PrometheusRule",
        "mine",
        "monitoring.coreos.com/v1",
        "other",
        spec={"groups": [{"name": "g", "rules": [{"record": "vllm:num_requests_waiting", "expr": "vector(0)"}]}]},
    )
    assert "VA1205" in ids(changed((SCALER, QUERY, "sum(vllm:num_requests_waiting)"), more=[rule]))


def test_recorded_names_within_each_other_stay_small():
    rules = [{"record": f"a:b:{n}", "expr": f"a:b:{n + 1} + a:b:{n + 1}"} for n in range(60)]
    rule = thing("PrometheusRule", "r", "monitoring.coreos.com/v1", spec={"groups": [{"name": "g", "rules": rules}]})
    checked(changed((SCALER, QUERY, " + ".join(f"a:b:{n}" for n in range(60))), more=[rule]))


def test_values_within_a_command_line_stay_small():
    """A kilobyte of references would make megabytes of a value, and several of them gigabytes."""
    inputs = PodInputs(Manifests.of(()), Manifest("Pod", "n", "p", Document("", 1, None)), ())
    many = [{"name": "A", "value": "a" * 20_000}]
    for words in (["--model", "$(A)" * 500], ["-c", "vllm serve --model " + "${A}" * 500]):
        container = {"image": "vllm/vllm-openai:v1", "args": words, "env": many}
        made = read_command(container, (), inputs)
        assert made is not None and not made.understood
        assert sum(len(each.value) for each in made.options.values()) < 1 << 17


@pytest.mark.parametrize(
    ("kind", "listed", "is_known"),
    [
        ("Deployment", {"Deployment"}, True),
        ("Rollout", {"Deployment"}, False),  # it may well be there
        ("Deployment", {"StatefulSet"}, False),
        ("Deployment", set(), False),
    ],
)
def test_a_target_is_missed_only_when_its_kind_was_listed(kind: str, listed: set[str], is_known: bool):
    target = {"apiVersion": "argoproj.io/v1alpha1" if kind == "Rollout" else "apps/v1", "kind": kind, "name": "other"}
    document = copy.deepcopy(GOOD[SCALER])
    document["spec"]["scaleTargetRef"] = target
    things = [read_object(Document("x.yaml", 1, document))]
    objects = Manifests.of([each for each in things if each is not None], listed=frozenset(listed))
    outcome = run(objects, QueryFacts(server=False), BOOK)
    assert ("VA1216" in {each.id for each in outcome.findings}) == is_known
    assert any(each.what == "target and its engine" for each in outcome.not_checked) != is_known


def test_names_that_a_rule_of_the_adapter_makes_stay_few_and_short():
    series = " ".join(f"vllm:x{number:05d}" for number in range(900))
    text = f"rules: [{{seriesQuery: '{series}', name: {{matches: '^(.*)$', as: '{'$1' * 2000}'}}, metricsQuery: x}}]"
    things = [read_object(Document("x.yaml", 1, thing("ConfigMap", "adapter", data={"rules": text})))]
    (rule,) = adapter_rules(Scene.of(Manifests.of([each for each in things if each is not None])))
    assert sum(map(len, rule.made)) < 1 << 20
    assert rule.makes("vllm:x00000" * 150)
    assert not rule.makes("vllm:x00000")


def test_settings_of_argo_count_in_its_own_namespace_alone():
    ignoring = {"resource.customizations.ignoreDifferences.all": "jsonPointers: [/spec/replicas]"}
    settings = [thing("ConfigMap", "argocd-cm", namespace=name, data=ignoring) for name in ("web", "argocd")]
    more = [application(sync={"syncOptions": ["RespectIgnoreDifferences=true"]})]
    assert "VA1510" in ids(changed(IN_GIT, TRACKED, more=[*more, settings[0]]))
    assert "VA1510" not in ids(changed(IN_GIT, TRACKED, more=[*more, settings[1]]))


def test_an_object_that_is_given_twice_hides_nothing():
    silent = copy.deepcopy(GOOD[SCALER])
    silent["metadata"]["annotations"] = {"preflight.vllm-autoscaler.io/VA1205": "because"}
    outcome = checked([silent, *changed((SCALER, QUERY, "sum(vllm:num_requests_waiting)"))])
    assert any("twice" in each.reason for each in outcome.not_checked if each.object == "ScaledObject/web/chat")


def test_no_namespace_takes_all_questions_when_it_has_many() -> None:
    """Its questions are asked in turns with those of others, also with those that follow from an answer."""
    crowd = copy.deepcopy(GOOD[SCALER])
    crowd["metadata"] |= {"name": "crowd", "namespace": "abuse"}
    (trigger,) = crowd["spec"]["triggers"][:1]
    crowd["spec"]["triggers"] = [
        {**trigger, "metadata": {**trigger["metadata"], "query": f'sum(vllm:num_requests_waiting{{x="{number}"}})'}}
        for number in range(30)
    ]
    facts = QueryFacts(server=True)
    for _ in range(2):
        checked([crowd, *GOOD], facts)
        asked = next_questions(facts, 20)
        facts.answers |= dict.fromkeys(facts.wanted.keys() - facts.answers.keys(), NOT_ASKED)
        facts.answers |= dict.fromkeys(asked, Answer())
    kept = [by for question, by in facts.wanted.items() if facts.answers[question] is not NOT_ASKED]
    assert kept.count("abuse") == 10
    assert facts.wanted[Question("query", GOOD[SCALER]["spec"]["triggers"][0]["metadata"]["query"])] == "web"
    assert [
        question for question, by in facts.wanted.items() if by == "web" and facts.answers[question] is NOT_ASKED
    ] == []


def test_namespaces_take_turns_in_what_was_not_checked():
    crowd = [thing("Oddity", f"o-{number}", namespace="crowd") for number in range(2 * MOST_LISTED)]
    objects = [read_object(Document("x.yaml", 1, each)) for each in (*crowd, thing("Oddity", "last", namespace="web"))]
    outcome = run(Manifests.of([each for each in objects if each is not None]), QueryFacts(server=False), BOOK)
    told = as_json(outcome)["not_checked"]
    assert [each["object"] for each in told[:2]] == ["Oddity/crowd/o-0", "Oddity/web/last"]
    assert len(told) == MOST_LISTED + 1
    assert told[-1]["what"] == f"{MOST_LISTED + 1:,} more"
    *_, summary = as_text(outcome)
    assert summary.endswith(f"; {2 * MOST_LISTED + 1} not checked")


def test_reasons_of_all_namespaces_are_shown():
    crowd = [NotChecked(f"ScaledObject/crowd/{number}", "", "query", f"{number} is odd") for number in range(300)]
    outcome = replace(checked(GOOD), not_checked=(*crowd, NotChecked("ScaledObject/team/last", "", "query", "odd")))
    assert any("ScaledObject/team/last" in line for line in as_text(outcome))
