"""Further shapes of other authors: other autoscalers, targets, rollouts, pools of nodes, and what a fix says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.config.preflight.scene import CHAT, ENGINE, MONITOR, NODE, POD, SCALER, changed, checked, options
from tests.config.preflight.test_shapes import (
    ENDPOINT,
    PAIR,
    TOLERATED,
    VALUE,
    Change,
    application_set,
    config,
    inference_service,
    metadata,
    mounted,
    prometheus,
    sglang,
)
from tests.config.preflight.test_variants import by_hpa, query, read

TARGET = ("spec", "scaleTargetRef")
CACHE = f"avg(vllm:kv_cache_usage_perc{PAIR})"


def other(kind: str, group: str, spec: str, annotations: str = "{}") -> list[dict[str, Any]]:
    return read(f"""
apiVersion: {group}
kind: {kind}
metadata: {{name: other, namespace: web, annotations: {annotations}}}
spec: {spec}
""")


HTTP = "{hosts: [a.example], scaleTargetRef: {name: chat}, replicas: {min: 1, max: 4}}"
DATADOG = "{targetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}, constraints: {maxReplicas: 4}}"
MAKES_NONE = '{httpscaledobject.keda.sh/skip-scaledobject-creation: "true"}'


def pool(requirement: str, taints: str = "[]") -> list[dict[str, Any]]:
    spec = f"{{template: {{spec: {{requirements: [{requirement}], taints: {taints}}}}}}}"
    return [{**each, "metadata": {"name": "gpus"}} for each in other("NodePool", "karpenter.sh/v1", spec)]


def types(*kinds: str) -> str:
    return f"{{key: node.kubernetes.io/instance-type, operator: In, values: [{', '.join(kinds)}]}}"


def blue_green(**strategy: object) -> list[Change]:
    return [
        (CHAT, ("kind",), "Rollout"),
        (CHAT, ("apiVersion",), "argoproj.io/v1alpha1"),
        (CHAT, ("spec", "strategy"), strategy),
        (SCALER, TARGET, {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "chat"}),
    ]


STATED = (CHAT, ("spec", "replicas"), 2)
LEAVES = (CHAT, ("metadata", "annotations", "kustomize.toolkit.fluxcd.io/ssa"), "IfNotPresent")
OSS = "openai/gpt-oss-120b"


def argo(namespace: str, name: str = "a") -> list[dict[str, Any]]:
    spec = f"{{destination: {{namespace: {namespace}}}, syncPolicy: {{automated: {{selfHeal: true}}}}}}"
    made = other("Application", "argoproj.io/v1alpha1", spec)
    return [{**each, "metadata": {"name": name, "namespace": "argocd"}} for each in made]


def flux(patches: str = "[]") -> list[dict[str, Any]]:
    return other("Kustomization", "kustomize.toolkit.fluxcd.io/v1", f"{{targetNamespace: web, patches: {patches}}}")


IN_POOL = (CHAT, (*POD, "nodeSelector"), {"karpenter.sh/nodepool": "gpus"})
TAINTS = "[{key: team, value: a, effect: NoSchedule}]"
VICTORIA = [(MONITOR, ("kind",), "VMPodScrape"), (MONITOR, ("apiVersion",), "operator.victoriametrics.com/v1beta1")]
SHARED = [
    (NODE, ("metadata", "labels", "nvidia.com/gpu.product"), "NVIDIA-L40S-SHARED"),
    (NODE, ("metadata", "labels", "nvidia.com/gpu.count"), "2"),
    (CHAT, (*POD, "nodeSelector"), {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED"}),
]

CASES: dict[str, tuple[set[str], list[dict[str, Any]]]] = {
    # Who else scales it, and what it names.
    "KEDA by requests": ({"VA1214"}, changed(more=other("HTTPScaledObject", "http.keda.sh/v1alpha1", HTTP))),
    "KEDA by requests, making none": (
        set(),
        changed(more=other("HTTPScaledObject", "http.keda.sh/v1alpha1", HTTP, MAKES_NONE)),
    ),
    "Datadog": ({"VA1214"}, changed(more=other("DatadogPodAutoscaler", "datadoghq.com/v1alpha2", DATADOG))),
    "a DaemonSet": ({"VA1215"}, changed((SCALER, TARGET, {"kind": "DaemonSet", "name": "chat"}))),
    "another kind of this name": ({"VA1216"}, changed((SCALER, TARGET, {"kind": "StatefulSet", "name": "chat"}))),
    "a name that is in no file": ({"VA1216"}, changed((SCALER, TARGET, {"name": "chat-vllm"}))),
    "no trigger": ({"VA1224"}, changed((SCALER, ("spec", "triggers"), []))),
    "memory of another container": (
        {"VA1224", "VA1226"},
        by_hpa("{type: ContainerResource, containerResource: {name: memory, container: app, target: {}}}"),
    ),
    "an application without marks": ({"VA1510"}, changed(STATED, more=argo("web"))),
    "two applications without marks": ({"VA1231"}, changed(STATED, more=[*argo("web"), *argo("web", "b")])),
    "a set of applications without marks": ({"VA1510"}, changed(STATED, more=application_set())),
    "the application of this name": ({"VA1510"}, changed(STATED, more=[*argo("web"), *argo("web", "chat")])),
    "Flux without marks": ({"VA1512"}, changed(STATED, more=flux())),
    "Flux that takes replicas out": (
        set(),
        changed(STATED, more=flux("[{patch: '[{op: remove, path: /spec/replicas}]'}]")),
    ),
    "Flux that leaves what is there": (set(), changed(STATED, LEAVES, more=flux())),
    # Queries.
    "a maximum for each pod": ({"VA1204"}, changed(query(f"max by (pod) (vllm:num_requests_running{PAIR})"))),
    "its own replicas": ({"VA1238"}, changed(query('sum(kube_deployment_status_replicas{deployment="chat"})'))),
    "its own pods that answer": ({"VA1238"}, changed(query('count(up{pod=~"chat-.*"} == 1)'))),
    "the replicas of another": (set(), changed(query('sum(kube_deployment_status_replicas{deployment="web"})'))),
    "a percentage of a share": ({"VA1209"}, changed(query(CACHE), VALUE, *metadata(threshold="80"))),
    "a percentage": (set(), changed(query(f"{CACHE} * 100"), VALUE, *metadata(threshold="80"))),
    # Platforms and rollouts.
    "KServe's name of the model": (
        {"VA1303"},
        changed(more=inference_service(", --model_id=meta-llama/Llama-3.1-70B-Instruct")),
    ),
    "both colours": ({"VA1410"}, changed(*blue_green(blueGreen={"activeService": "chat"}))),
    "a canary in place": (set(), changed(*blue_green(canary={"maxSurge": 0, "maxUnavailable": 1}))),
    # Weights.
    "loaded into the layer": ({"VA1413"}, changed(options("--download-dir", "/models"))),
    "loaded onto a volume": (set(), changed(options("--download-dir", "/dev/shm/models"))),
    "four bits that do not fit": ({"VA1303"}, changed(options("--model", OSS, "--tensor-parallel-size", "1"))),
    "four bits that fit": (set(), changed(options("--model", OSS))),
    "eight bits that do not fit": ({"VA1303"}, changed(options("--model", "deepseek-ai/DeepSeek-R1-0528"))),
    "a tag of an architecture": ({"VA1408"}, changed((CHAT, (*ENGINE, "image"), "vllm/vllm-openai:latest-x86_64"))),
    # Nodes.
    "turns by the count of devices": ({"VA1501", "VA1502"}, changed(*SHARED)),
    "instances of one device": ({"VA1507"}, changed(IN_POOL, more=pool(types("g5.xlarge", "g5.2xlarge")))),
    "instances of several": (set(), changed(IN_POOL, more=pool(types("g5.12xlarge")))),
    "instances of an old device": ({"VA1308"}, changed(IN_POOL, more=pool(types("p3.16xlarge")))),
    "a taint of the pool": ({"VA1507"}, changed(IN_POOL, more=pool(types("g5.12xlarge"), TAINTS))),
    "a taint that is tolerated": (set(), changed(IN_POOL, TOLERATED, more=pool(types("g5.12xlarge"), TAINTS))),
    # Observability.
    "VictoriaMetrics' word": (
        {"VA1601"},
        changed(*VICTORIA, (MONITOR, ENDPOINT, {"port": "http", "scrape_interval": "3m"})),
    ),
    "the interval of the server": (
        {"VA1601"},
        changed(
            (MONITOR, ENDPOINT, {"port": "http"}),
            more=[{**each, "spec": {**each["spec"], "scrapeInterval": "3m"}} for each in prometheus("{}")],
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fresh_shape_makes_the_finding(name: str):
    wanted, documents = CASES[name]
    found = checked(documents).findings
    assert {each.id for each in found if each.severity != "note"} == wanted


SHARE = "--gpu-memory-utilization"
BY_FILE = [*mounted("/etc/vllm"), (CHAT, (*ENGINE, "args"), ["--config", "/etc/vllm/v.yaml"])]
BY_VARIABLE = [
    (CHAT, (*ENGINE, "env"), [{"name": "USE", "value": "0.98"}]),
    (CHAT, (*ENGINE, "args"), [f"{SHARE}=$(USE)", "--max-num-seqs=64"]),
]


@pytest.mark.parametrize(
    ("id", "fix", "documents"),
    [
        ("VA1301", f"{SHARE}=0.92", changed(*BY_FILE, more=config("given", v_yaml="gpu-memory-utilization: 0.98"))),
        ("VA1301", f"{SHARE}=0.92", changed(*BY_VARIABLE)),
        ("VA1301", f"{SHARE}=0.92", changed((CHAT, (*ENGINE, "args"), [f"{SHARE}=0.98", "--max-num-seqs=64"]))),
        ("VA1307", "remove --disable-cuda-graph", changed(*sglang("--enable-metrics", "--disable-cuda-graph"))),
        (
            "VA1216",
            "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}",
            changed((SCALER, TARGET, {"kind": "StatefulSet", "name": "chat"})),
        ),
    ],
)
def test_a_fix_states_what_to_write(id: str, fix: str, documents: list[dict[str, Any]]):
    assert [each.fix for each in checked(documents).findings if each.id == id] == [fix]
