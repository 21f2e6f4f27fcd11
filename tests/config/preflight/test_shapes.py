"""Shapes of other authors: kinds, spellings and detours that were tried before the rules knew them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from autoscaler.config.preflight.facts import Answer, QueryFacts, Question
from tests.config.preflight.scene import CHAT, ENGINE, LLAMA, MONITOR, NIGHTLY, NODE, POD, SCALER, changed, checked
from tests.config.preflight.test_variants import by_hpa, group, query, read

PAIR = '{namespace="web",model_name="chat"}'
TRIGGER = ("spec", "triggers", 0)
METADATA = (*TRIGGER, "metadata")
ENDPOINT = ("spec", "podMetricsEndpoints", 0)
TEMPLATE = ("spec", "template", "metadata")
ZERO = (SCALER, ("spec", "minReplicaCount"), 0)
VALUE = (SCALER, (*TRIGGER, "metricType"), "Value")
RUNNING = f"sum(vllm:num_requests_running{PAIR})"
Change = tuple[int, tuple[str | int, ...], object]


def metadata(**values: object) -> list[Change]:
    return [(SCALER, (*METADATA, key), value) for key, value in values.items()]


def config(name: str, namespace: str = "web", **files: str) -> list[dict[str, Any]]:
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    return [{**head, "data": {key.replace("_", "."): text for key, text in files.items()}}]


def mounted(path: str) -> list[Change]:
    """Return changes that mount the ConfigMap `given` for the engine."""
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "given", "mountPath": path}]
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "given", "configMap": {"name": "given"}}]
    return [(CHAT, (*ENGINE, "volumeMounts"), mounts), (CHAT, (*POD, "volumes"), volumes)]


def shm(**empty: str) -> Change:
    return CHAT, (*POD, "volumes"), [{"name": "shm", "emptyDir": empty}]


def engine(image: str, command: str, *args: str) -> list[Change]:
    return [
        (CHAT, (*ENGINE, "image"), image),
        (CHAT, (*ENGINE, "command"), command.split()),
        (CHAT, (*ENGINE, "args"), list(args)),
    ]


def sglang(*more: str) -> list[Change]:
    words = ["--model-path", LLAMA, "--served-model-name", "chat", "--tp", "2", *more]
    return engine("lmsysorg/sglang:v0.5.5", "python3 -m sglang.launch_server", *words)


def rule(record: str, expression: str) -> list[dict[str, Any]]:
    return read(f"""
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {{name: r, namespace: web}}
spec: {{groups: [{{name: g, rules: [{{record: "{record}", expr: '{expression}'}}]}}]}}
""")


def prometheus(labels: str, spaces: str = "{}") -> list[dict[str, Any]]:
    return read(f"""
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {{name: k8s, namespace: monitoring}}
spec: {{podMonitorSelector: {{matchLabels: {labels}}}, podMonitorNamespaceSelector: {spaces}}}
""")


def scrape_config(interval: str, target: str = "pod", app: str = "chat") -> list[dict[str, Any]]:
    return read(f"""
apiVersion: monitoring.coreos.com/v1alpha1
kind: ScrapeConfig
metadata: {{name: engines, namespace: web}}
spec:
  scrapeInterval: {interval}
  kubernetesSDConfigs: [{{role: Pod}}]
  relabelings:
    - {{sourceLabels: [__meta_kubernetes_pod_label_app], regex: {app}, action: keep}}
    - {{sourceLabels: [__meta_kubernetes_pod_name], targetLabel: {target}}}
    - {{sourceLabels: [__meta_kubernetes_namespace], targetLabel: namespace}}
""")


def application_set(ignored: str = "[]", options: str = "[]") -> list[dict[str, Any]]:
    return read(f"""
apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {{name: all, namespace: argocd}}
spec:
  template:
    metadata: {{name: "web-{{{{env}}}}"}}
    spec:
      destination: {{namespace: web}}
      syncPolicy: {{automated: {{selfHeal: true}}, syncOptions: {options}}}
      ignoreDifferences: {ignored}
""")


IN_SET = [(CHAT, ("spec", "replicas"), 2), (CHAT, ("metadata", "labels"), {"app.kubernetes.io/instance": "web-prod"})]
REPLICAS = "[{kind: Deployment, jsonPointers: [/spec/replicas]}]"


def inference_service(args: str, more: str = "", kind: str = "none") -> list[dict[str, Any]]:
    return read(f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: qwen, namespace: web, annotations: {{serving.kserve.io/deploymentMode: Standard,
  serving.kserve.io/autoscalerClass: {kind}}}}}
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 4
    {more}
    model: {{modelFormat: {{name: huggingface}}, storageUri: "hf://Qwen/Qwen2.5-7B-Instruct",
      args: [--model_name=qwen, --max-num-seqs=64{args}], resources: {{limits: {{nvidia.com/gpu: "1"}}}}}}
""")


EXTERNAL = (
    "autoScaling: {metrics: [{type: External, external: {metric: {backend: prometheus, serverAddress: 'http://p',"
    " query: 'sum(vllm:num_requests_running)'}, target: {type: Value, value: '5'}}}]}"
)
TO_QWEN = read(f"""
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{name: qwen, namespace: web}}
spec:
  scaleTargetRef: {{name: qwen-predictor}}
  minReplicaCount: 1
  maxReplicaCount: 4
  triggers: [{{type: prometheus, metadata: {{serverAddress: "http://p", threshold: "40",
    query: '{RUNNING.replace("chat", "qwen")}'}}}}]
""")
SCALED_JOB = read("""
apiVersion: keda.sh/v1alpha1
kind: ScaledJob
metadata: {name: eval, namespace: jobs}
spec:
  jobTargetRef: {template: {spec: {containers: [{name: vllm, image: "vllm/vllm-openai:v0.32.0",
    args: [--model, Qwen/Qwen2.5-7B-Instruct, --gpu-memory-utilization, "0.98"],
    resources: {limits: {nvidia.com/gpu: 1}}}]}}}
  triggers: [{type: rabbitmq, metadata: {queueName: q}}]
""")
SERVICE = read("""
apiVersion: v1
kind: Service
metadata: {name: chat, namespace: web, labels: {app: chat}}
spec: {selector: {app: chat}, ports: [{name: http, port: 80}]}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: chat, namespace: web}
spec: {selector: {matchLabels: {app: chat}}, endpoints: [{port: http, interval: 15s}]}
""")
TAINTED = (NODE, ("spec",), {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]})
TOLERATED = (CHAT, (*POD, "tolerations"), [{"key": "team", "operator": "Equal", "value": "a"}])
NOT_IN = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def except_for(*kinds: str) -> Change:
    term = {"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": list(kinds)}
    return CHAT, (*POD, *NOT_IN), [{"matchExpressions": [term]}]


def scraped_by(**annotations: str) -> Change:
    marks = {f"prometheus.io/{key}": value for key, value in annotations.items()}
    return CHAT, (*TEMPLATE, "annotations"), {"karpenter.sh/do-not-disrupt": "true", **marks}


PROMETHEUS_YML = """
global: {scrape_interval: 5m}
scrape_configs:
  - job_name: engines
    kubernetes_sd_configs: [{role: pod}]
    relabel_configs: [{source_labels: [__meta_kubernetes_namespace], target_label: namespace}]
    metric_relabel_configs: [{regex: model_name, action: labeldrop}]
"""

CASES: dict[str, tuple[set[str], list[dict[str, Any]]]] = {
    # Queries.
    "growth of a gauge": ({"VA1234"}, changed(query(f"sum(increase(vllm:num_requests_waiting{PAIR}[2m]))"))),
    "a counter as it stands": ({"VA1234"}, changed(query(f"sum(vllm:generation_tokens_total{PAIR})"))),
    "a gauge that is named a count": (set(), changed(query('sum(nv_inference_pending_request_count{pod=~"chat-.*"})'))),
    "a rate of a sum": (set(), changed(query(f"sum(rate(vllm:generation_tokens_total{PAIR}[2m]))"))),
    "a counter less itself before": (
        set(),
        changed(query(f"sum(vllm:request_success_total{PAIR} - vllm:request_success_total{PAIR} offset 2m)")),
    ),
    "a quantile without le": (
        {"VA1235"},
        changed(query(f"histogram_quantile(0.9, sum(rate(vllm:time_to_first_token_seconds_bucket{PAIR}[5m])))"), VALUE),
    ),
    "a quantile that drops le": (
        {"VA1235"},
        changed(
            query(
                f"histogram_quantile(0.9, sum without (le) (rate(vllm:e2e_request_latency_seconds_bucket{PAIR}[5m])))"
            ),
            VALUE,
        ),
    ),
    "the number of replicas": ({"VA1238"}, changed(query(f"count(vllm:num_requests_running{PAIR})"))),
    "the past": ({"VA1237"}, changed(query(f"sum(vllm:num_requests_running{PAIR} offset 1d)"))),
    "absence that wakes": ({"VA1236"}, changed(ZERO, query(f"{RUNNING} or absent(vllm:num_requests_running{PAIR})"))),
    "memory of the host": ({"VA1226"}, changed(query('sum(container_memory_working_set_bytes{pod=~"chat-.*"})'))),
    "processors of the host": (
        {"VA1226"},
        changed(query('sum(rate(container_cpu_usage_seconds_total{pod=~"chat-.*"}[2m]))')),
    ),
    "memory of an AMD GPU": ({"VA1212"}, changed(query('avg(amd_gpu_used_vram{pod=~"chat-.*"})'))),
    "a recorded sum over all": (
        {"VA1205"},
        changed(query("engine:queue:sum"), more=rule("engine:queue:sum", "sum(vllm:num_requests_waiting)")),
    ),
    "a recorded sum at zero": (
        {"VA1206"},
        changed(
            ZERO,
            query('engine:queue:sum{model_name="chat"}'),
            more=rule("engine:queue:sum", "sum by (model_name) (vllm:num_requests_waiting)"),
        ),
    ),
    "a recorded sum of the model": (
        set(),
        changed(
            query('engine:queue:sum{model_name="chat"}'),
            more=rule("engine:queue:sum", "sum by (model_name) (vllm:num_requests_waiting)"),
        ),
    ),
    # Triggers.
    "a threshold without quotes": ({"VA1230"}, changed(*metadata(threshold=40))),
    "a boolean without quotes": ({"VA1230"}, changed(*metadata(ignoreNullValues=False))),
    "a boolean in quotes": (set(), changed(*metadata(ignoreNullValues="false"))),
    "a threshold of nothing": ({"VA1230"}, changed(*metadata(threshold="0"))),
    "a formula of another name": (
        {"VA1224"},
        changed(
            (SCALER, (*TRIGGER, "name"), "running"),
            (SCALER, ("spec", "advanced"), {"scalingModifiers": {"formula": "max(running, queue)", "target": "5"}}),
        ),
    ),
    "a formula without target": (
        {"VA1224"},
        changed(
            (SCALER, (*TRIGGER, "name"), "running"),
            (SCALER, ("spec", "advanced"), {"scalingModifiers": {"formula": "running * 1.5e0"}}),
        ),
    ),
    "a job of KEDA": ({"VA1301"}, changed(more=SCALED_JOB)),
    # Arguments.
    "options in a mounted file": (
        {"VA1301", "VA1305"},
        changed(
            *mounted("/etc/vllm"),
            (CHAT, (*ENGINE, "args"), ["--config", "/etc/vllm/vllm.yaml", "--shutdown-timeout", "80"]),
            more=config(
                "given",
                vllm_yaml=f"model: {LLAMA}\nserved-model-name: [chat]\ngpu_memory_utilization: 0.98\n"
                "disable-log-stats: true\ndtype: half\n",
            ),
        ),
    ),
    "a mounted script": (
        {"VA1305"},
        changed(
            *mounted("/scripts"),
            (CHAT, (*ENGINE, "command"), ["bash", "/scripts/start.sh"]),
            (CHAT, (*ENGINE, "args"), []),
            more=config(
                "given",
                start_sh=f"set -e\nexec vllm serve {LLAMA} --served-model-name chat \\\n  --disable-log-stats"
                " --shutdown-timeout 80\n",
            ),
        ),
    ),
    "a variable of a ConfigMap": (
        {"VA1301"},
        changed(
            (CHAT, (*ENGINE, "envFrom"), [{"configMapRef": {"name": "given"}}]),
            (CHAT, (*ENGINE, "args"), ["--model", LLAMA, "--gpu-memory-utilization=$(USE)", "--shutdown-timeout=80"]),
            *metadata(query='sum(vllm:num_requests_running{pod=~"chat-.*"})'),
            more=config("given", USE="0.99"),
        ),
    ),
    "an image of one's own": (
        {"VA1301"},
        changed(
            (CHAT, (*ENGINE, "image"), "registry.local/team/llm:7"),
            (CHAT, (*ENGINE, "args"), [f"--model={LLAMA}", "--gpu_memory_utilization=0.98", "--shutdown-timeout=80"]),
            query('sum(vllm:num_requests_running{namespace="web",pod=~"chat-.+"})'),
        ),
    ),
    "SGLang without metrics": ({"VA1604"}, changed(*sglang())),
    "SGLang over too few": ({"VA1304"}, changed(*sglang("--enable-metrics", "--tp-size", "4"))),
    "SGLang above 0.95": ({"VA1301"}, changed(*sglang("--enable-metrics", "--mem-fraction-static=0.97"))),
    "SGLang": (set(), changed(*sglang("--enable-metrics"))),
    "TGI over too few": (
        {"VA1304"},
        changed(
            *engine("ghcr.io/huggingface/text-generation-inference:3.3", "", "--model-id", LLAMA, "--num-shard", "4"),
            query('sum(tgi_queue_size{pod=~"chat-.*"})'),
        ),
    ),
    # Platforms.
    "KServe above 0.95": ({"VA1301"}, changed(more=inference_service(", --gpu-memory-utilization=0.98"))),
    "KServe over too few": ({"VA1304"}, changed(more=inference_service(", --tensor-parallel-size=2"))),
    "KServe by CPU unless stated": ({"VA1226"}, changed(more=inference_service("", kind="hpa"))),
    "KServe by everybody's queue": ({"VA1205"}, changed(more=inference_service("", EXTERNAL, "keda"))),
    "KServe's own autoscaler and another": (
        {"VA1214", "VA1226"},
        changed(more=[*inference_service("", kind="hpa"), *TO_QWEN]),
    ),
    "KServe with an autoscaler of its own": (set(), changed(more=[*inference_service("", kind="external"), *TO_QWEN])),
    "a group without shared memory": (
        {"VA1409"},
        [
            *changed(),
            *(
                {**each, "spec": yaml.safe_load(yaml.safe_dump(each["spec"]).replace("/dev/shm/", "/data"))}
                for each in group(2, 4)
            ),
        ],
    ),
    # Pods.
    "a tag that moves": ({"VA1408"}, changed((CHAT, (*ENGINE, "image"), "ghcr.io/a/vllm-openai:main"))),
    "a nightly that moves": ({"VA1408"}, changed((CHAT, (*ENGINE, "image"), "lmcache/vllm-openai:latest-nightly"))),
    "a build of main": (set(), changed((CHAT, (*ENGINE, "image"), "ghcr.io/a/vllm-openai:main-3f2a9c1"))),
    "a dated nightly": (set(), changed((CHAT, (*ENGINE, "image"), "vllm/vllm-openai:nightly-20260801"))),
    "little shared memory": ({"VA1409"}, changed(shm(medium="Memory", sizeLimit="64Mi"))),
    "shared memory on disk": ({"VA1409"}, changed(shm(sizeLimit="8Gi"))),
    "enough shared memory": (set(), changed(shm(medium="Memory", sizeLimit="8Gi"))),
    "a host port of a sidecar": (
        {"VA1412"},
        changed((CHAT, (*POD, "containers", 1), {"name": "p", "image": "e:1", "ports": [{"hostPort": 80}]})),
    ),
    # The cluster.
    "a taint": ({"VA1507"}, changed(TAINTED)),
    "a taint that is tolerated": (set(), changed(TAINTED, TOLERATED, (NIGHTLY, *TOLERATED[1:]))),
    "the taint of the device": (
        set(),
        changed((NODE, ("spec",), {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]})),
    ),
    "all but on-demand": (
        {"VA1503"},
        changed(
            except_for("on-demand", "reserved"),
            (NODE, ("metadata", "labels", "karpenter.sh/capacity-type"), "spot"),
        ),
    ),
    "all but spot": (
        set(),
        changed(except_for("spot"), (NODE, ("metadata", "labels", "karpenter.sh/capacity-type"), "on-demand")),
    ),
    "a set of applications": ({"VA1510"}, changed(*IN_SET, more=application_set())),
    "a set that forgets": ({"VA1511"}, changed(*IN_SET, more=application_set(REPLICAS))),
    "a set that respects": (
        set(),
        changed(*IN_SET, more=application_set(REPLICAS, "[RespectIgnoreDifferences=true]")),
    ),
    # Observability.
    "a monitor that nobody reads": ({"VA1604"}, changed(more=prometheus("{release: kps}"))),
    "a monitor that is read": (
        set(),
        changed((MONITOR, ("metadata", "labels"), {"release": "kps"}), more=prometheus("{release: kps}")),
    ),
    "a monitor of another namespace": (
        {"VA1604"},
        changed(more=prometheus("{}", "{matchLabels: {kubernetes.io/metadata.name: shop}}")),
    ),
    "a slow ScrapeConfig": ({"VA1601"}, changed(more=scrape_config("2m"))),
    "a ScrapeConfig of others": (set(), changed(more=scrape_config("2m", app="shop"))),
    "a ScrapeConfig without pods": ({"VA1602"}, changed(more=scrape_config("15s", "instance"))),
    "a prometheus.yml": (
        {"VA1601", "VA1602"},
        changed(more=config("server", "monitoring", prometheus_yml=PROMETHEUS_YML)),
    ),
    "annotations of another port": ({"VA1610"}, changed(scraped_by(scrape="true", port="9090"))),
    "annotations of the port": (set(), changed(scraped_by(scrape="true", port="8000"))),
    "a plain engine by TLS": ({"VA1604"}, changed((MONITOR, (*ENDPOINT, "scheme"), "https"))),
    "another path": ({"VA1604"}, changed((MONITOR, (*ENDPOINT, "path"), "/vllm/metrics"))),
    "a number that no container states": (
        {"VA1610"},
        changed((MONITOR, ENDPOINT, {"portNumber": 9400, "interval": "15s"})),
    ),
    "a number that one states": (set(), changed((MONITOR, ENDPOINT, {"portNumber": 8000, "interval": "15s"}))),
    "few samples": ({"VA1604"}, changed((MONITOR, ("spec", "sampleLimit"), 50))),
    "a dropped model": (
        {"VA1602"},
        changed((MONITOR, (*ENDPOINT, "metricRelabelings"), [{"action": "labeldrop", "regex": "model_name|engine"}])),
    ),
    "a namespace that is a team": (
        {"VA1602"},
        changed((MONITOR, (*ENDPOINT, "relabelings"), [{"sourceLabels": ["team"], "targetLabel": "namespace"}])),
    ),
    "two monitors of one engine": ({"VA1608"}, changed(more=SERVICE)),
}


@pytest.mark.parametrize("name", CASES)
def test_another_shape_makes_the_same_finding(name: str):
    wanted, documents = CASES[name]
    found = checked(documents).findings
    assert {each.id for each in found if each.severity != "note"} == wanted


def known(*series: str) -> QueryFacts:
    """Return what is known of a server that has some names of metrics."""
    return QueryFacts(server=True, answers={Question("names"): Answer(names=frozenset(series))})


ADAPTER = """
rules:
- seriesQuery: '{__name__=~"^vllm_num_requests_waiting$"}'
  name: {matches: "^vllm_num_(.*)$", as: "engine_${1}"}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
"""


def test_a_rule_of_the_adapter_on_a_name_that_is_not_is_found():
    metric = (
        "{type: Pods, pods: {metric: {name: engine_requests_waiting}, target: {type: AverageValue, averageValue: 8}}}"
    )
    documents = [*by_hpa(metric), *config("adapter", "monitoring", config_yaml=ADAPTER)]
    found = checked(documents, known("vllm:num_requests_waiting")).findings
    assert [(each.object.key, each.id) for each in found if "VA120" in each.id] == [
        ("ConfigMap/monitoring/adapter", "VA1201")
    ]
    assert not [each for each in checked(documents, known("vllm_num_requests_waiting")).findings if each.id == "VA1201"]


def test_an_authentication_that_is_not_there_is_found():
    documents = changed((SCALER, (*TRIGGER, "authenticationRef"), {"name": "token"}), *metadata(authModes="bearer"))
    outcome = checked(documents)
    assert any(each.what == "authentication of the trigger" for each in outcome.not_checked)
    there = {"apiVersion": "keda.sh/v1alpha1", "kind": "TriggerAuthentication"}
    there["metadata"] = {"name": "token", "namespace": "web"}  # type: ignore[assignment]
    outcome = checked([*documents, there])
    assert not any(each.what == "authentication of the trigger" for each in outcome.not_checked)


def test_replicas_beside_scaling_of_kserve_are_found():
    text = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: hr, namespace: web}
spec:
  model: {uri: "hf://Qwen/Qwen2.5-7B-Instruct", name: hr}
  replicas: 2
  scaling: {maxReplicas: 4, keda: {triggers: [{type: prometheus, metadata: {serverAddress: "http://p",
    query: 'sum(vllm:num_requests_running{namespace="web",model_name="hr"})', threshold: "40"}}]}}
  template: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}}]}
"""
    assert {each.id for each in checked(changed(more=read(text))).findings if each.severity == "error"} == {"VA1231"}
