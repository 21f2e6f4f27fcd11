"""Other spellings of the same faults, and lookalikes: each makes its findings and no other."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.config.preflight.scene import (
    BUDGET,
    CHAT,
    ENGINE,
    LLAMA,
    MONITOR,
    POD,
    QUERY,
    SCALER,
    changed,
    ids,
    options,
)

TRIGGER = ("spec", "triggers", 0)
LABELS = '{namespace="web",model_name="chat"}'


def read(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def query(text: str) -> tuple[int, tuple[str | int, ...], object]:
    return SCALER, QUERY, text


def script(line: str, *, first: str = "-c", **env: str) -> list[tuple[int, tuple[str | int, ...], object]]:
    """Return changes that start the engine by a shell."""
    shell = ["/bin/bash", *first.split()]
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return [
        (CHAT, (*ENGINE, "command"), shell),
        (CHAT, (*ENGINE, "args"), [line]),
        (CHAT, (*ENGINE, "env"), variables),
    ]


SERVE = f"exec vllm serve {LLAMA} --served-model-name chat --max-model-len 16384 --dtype bfloat16 -tp 2"


def hpa(metric: str, least: int = 2) -> list[dict[str, Any]]:
    """Return an HPA on `chat` with one metric."""
    return read(f"""
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: chat, namespace: web}}
spec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: chat}}, minReplicas: {least}, maxReplicas: 4,
  metrics: [{metric}]}}
""")


def by_hpa(metric: str, least: int = 2) -> list[dict[str, Any]]:
    """Return the good manifests with an HPA in place of the ScaledObject."""
    documents = changed(more=hpa(metric, least))
    del documents[SCALER]
    return documents


def pods(name: str, target: str) -> str:
    return f"{{type: Pods, pods: {{metric: {{name: {name}}}, target: {{type: AverageValue, averageValue: {target}}}}}}}"


def ray(arguments: str) -> list[dict[str, Any]]:
    return read(f"""
apiVersion: ray.io/v1
kind: RayService
metadata: {{name: llm, namespace: ray}}
spec:
  serveConfigV2: |
    applications:
      - name: llm
        args:
          llm_configs:
            - model_loading_config: {{model_id: chat, model_source: {LLAMA}}}
              engine_kwargs: {{{arguments}}}
              deployment_config: {{autoscaling_config: {{min_replicas: 1, max_replicas: 2}}}}
  rayClusterConfig:
    workerGroupSpecs:
      - groupName: gpu
        minReplicas: 1
        maxReplicas: 2
        template: {{spec: {{containers: [{{name: ray-worker, image: "rayproject/ray-llm:2.49.0-py311-cu128",
          resources: {{limits: {{nvidia.com/gpu: "1"}}}}}}]}}}}
""")


def group(size: int, tensor: int) -> list[dict[str, Any]]:
    return read(f"""
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: big, namespace: web}}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: {size}
    workerTemplate: {{spec: {{terminationGracePeriodSeconds: 100,
      volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}],
      containers: [{{name: vllm, image: "vllm/vllm-openai:v0.32.0",
      command: [sh, -c, "vllm serve {LLAMA} -tp {tensor} --max-num-seqs 64 --shutdown-timeout 80"],
      lifecycle: {{preStop: {{exec: {{command: [sh, -c, sleep 10]}}}}}},
      volumeMounts: [{{name: shm, mountPath: /dev/shm/}}],
      resources: {{limits: {{nvidia.com/gpu: 2}}}}}}]}}}}
""")


CHATTY = changed(
    (CHAT, ("metadata",), {"name": "chatty", "namespace": "web"}), options("--served-model-name", "chatty")
)[CHAT]
BY_EXPRESSION = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["chat", "talk"]}]}
NOT_OURS = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["chat"]}]}
SECOND = {
    "type": "cron",
    "metadata": {"timezone": "UTC", "start": "0 8 * * *", "end": "0 18 * * *", "desiredReplicas": "2"},
}
BY_CPU = {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "60"}}
ZERO = (SCALER, ("spec", "minReplicaCount"), 0)
IN_GIT = (CHAT, ("spec", "replicas"), 2)
APPLICATION = read("""
{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: shop, namespace: argocd},
 spec: {destination: {namespace: web}, syncPolicy: {automated: {selfHeal: true}}}}
""")
SPOT = [{"matchExpressions": [{"key": "cloud.google.com/gke-spot", "operator": "Exists"}]}]
NOT_SPOT = [{"matchExpressions": [{"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"}]}]
AFFINITY = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
SPOT_NODE = (4, ("metadata", "labels", "cloud.google.com/gke-spot"), "true")
PLAIN_NODE = read("""
{apiVersion: v1, kind: Node, metadata: {name: gpu-2, labels: {nvidia.com/gpu.product: NVIDIA-L40S,
 nvidia.com/gpu.memory: "46068"}}, status: {allocatable: {nvidia.com/gpu: "8", cpu: "64", memory: 500Gi}}}
""")
ENDPOINT = ("spec", "podMetricsEndpoints", 0)

CASES: dict[str, tuple[set[str], list[dict[str, Any]]]] = {
    # Rules of others.
    "a pattern of names, without selector": (
        {"VA1205"},
        changed(query('sum({__name__=~"vllm:num_requests_(waiting|running)"})')),
    ),
    "a pattern of names at zero": (
        {"VA1206"},
        changed(ZERO, query('sum({__name__=~"vllm:num_requests_.+",model_name="chat"}) or vector(0)')),
    ),
    "names of NIM at zero": ({"VA1206"}, changed(ZERO, query('sum(num_requests_waiting{model_name="chat"})'))),
    "names of LMDeploy at zero": (
        {"VA1206"},
        changed(ZERO, query('sum(lmdeploy:num_requests_waiting{pod=~"chat-.+"})')),
    ),
    "a frontend of Dynamo wakes": (
        set(),
        changed(ZERO, query('sum(dynamo_frontend_queued_requests{model="chat"})')),
    ),
    "a pattern of models that has another": (
        {"VA1205"},
        changed(
            query('sum(vllm:num_requests_running{namespace="web",model_name=~"chat.*"})'),
            more=[CHATTY],
        ),
    ),
    "two triggers, one by the clock, at zero": (set(), changed(ZERO, (SCALER, ("spec", "triggers", 1), SECOND))),
    "a trigger on CPU beside, at zero": (
        {"VA1206", "VA1226"},
        changed(ZERO, (SCALER, ("spec", "triggers", 1), BY_CPU)),
    ),
    "a floor of one instead of zero": (
        set(),
        changed(ZERO, query(f"clamp_min(sum(vllm:num_requests_waiting{LABELS}) or vector(0), 1)")),
    ),
    "paused": ({"VA1224"}, changed((SCALER, ("metadata", "annotations"), {"autoscaling.keda.sh/paused": "true"}))),
    "not paused": (set(), changed((SCALER, ("metadata", "annotations"), {"autoscaling.keda.sh/paused": "false"}))),
    "authModes without authentication": (
        {"VA1230"},
        changed((SCALER, (*TRIGGER, "metadata", "authModes"), "bearer")),
    ),
    "authModes with authentication": (
        set(),
        changed(
            (SCALER, (*TRIGGER, "metadata", "authModes"), "bearer"),
            (SCALER, (*TRIGGER, "authenticationRef"), {"name": "prometheus"}),
        ),
    ),
    "an HPA by running requests beyond the slots": ({"VA1209"}, by_hpa(pods("vllm_num_requests_running", "100"))),
    "an HPA by running requests": (set(), by_hpa(pods("vllm_num_requests_running", "40"))),
    "an HPA by use of a GPU": ({"VA1213"}, by_hpa(pods("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "700m"))),
    "an HPA of Pods from zero": ({"VA1224"}, by_hpa(pods("vllm_num_requests_running", "40"), 0)),
    "a tolerance as a quantity": (
        {"VA1227"},
        changed(
            (
                SCALER,
                ("spec", "advanced"),
                {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": {"tolerance": "500m"}}}},
            )
        ),
    ),
    "one rank of two": (
        {"VA1233"},
        changed(
            options("--data-parallel-size", "2", "--tensor-parallel-size", "1"),
            query('sum(vllm:num_requests_running{namespace="web",model_name="chat",engine="0"})'),
        ),
    ),
    "a pattern of names at Google": (
        {"VA1228"},
        changed(
            (SCALER, (*TRIGGER, "metadata", "serverAddress"), "https://monitoring.googleapis.com/v1/projects/p"),
            query('sum({__name__=~"vllm:num_requests_(waiting|running)",model_name="chat"})'),
        ),
    ),
    # Arguments.
    "in a script": ({"VA1301"}, changed(*script(f"{SERVE} --gpu-memory-utilization .97 --shutdown-timeout 80"))),
    "by a variable of the script": (
        {"VA1301"},
        changed(*script(f"{SERVE} --gpu-memory-utilization=${{SHARE}} --shutdown-timeout 80", SHARE="0.98")),
    ),
    "behind two hyphens": (
        {"VA1305"},
        changed(*script(f"{SERVE} --disable_log_stats --shutdown-timeout 80", first="-lc --")),
    ),
    "arguments by a variable": (
        {"VA1304"},
        changed(
            *script(
                f"vllm serve {LLAMA} --served-model-name chat $VLLM_ARGS",
                VLLM_ARGS="-tp=4 --max-num-seqs 64 --shutdown-timeout=80",
            )
        ),
    ),
    "a human length": ({"VA1302"}, changed(options("--max-model-len", "1M"))),
    "a human length that fits": (set(), changed(options("--max-model-len", "32k"))),
    "Ray, above 0.95": ({"VA1301"}, changed(more=ray("gpu_memory_utilization: 0.98"))),
    "Ray, without metrics": ({"VA1305"}, changed(more=ray("disable_log_stats: true"))),
    "Ray, usual": (set(), changed(more=ray("gpu_memory_utilization: 0.9, disable_log_stats: false"))),
    "a group with too few devices": ({"VA1304"}, changed(more=group(2, 8))),
    # Pods.
    "a budget by expressions": (
        {"VA1411"},
        changed((BUDGET, ("spec",), {"maxUnavailable": 0, "selector": BY_EXPRESSION})),
    ),
    "a budget for all pods": ({"VA1411"}, changed((BUDGET, ("spec",), {"maxUnavailable": "0%", "selector": {}}))),
    "a budget for others": (set(), changed((BUDGET, ("spec",), {"maxUnavailable": 0, "selector": NOT_OURS}))),
    "a sleep in a shell": (
        {"VA1403"},
        changed((CHAT, (*ENGINE, "lifecycle"), {"preStop": {"exec": {"command": ["/bin/sh", "-c", "sleep 60"]}}})),
    ),
    "no tag at a registry with a port": (
        {"VA1408"},
        changed((CHAT, (*ENGINE, "image"), "reg:5000/vllm/vllm-openai")),
    ),
    "a tag at a registry with a port": (
        set(),
        changed((CHAT, (*ENGINE, "image"), "reg.local:5000/vllm/vllm-openai:v0.32.0")),
    ),
    "a liveness probe by curl": (
        {"VA1407"},
        changed(
            (
                CHAT,
                (*ENGINE, "livenessProbe"),
                {"exec": {"command": ["curl", "-f", "http://localhost:8000/v1/completions", "-d", "{}"]}},
            )
        ),
    ),
    # The cluster.
    "spot by a label that exists": (
        {"VA1503"},
        changed(SPOT_NODE, (CHAT, (*POD, *AFFINITY), SPOT), more=PLAIN_NODE),
    ),
    "not spot": (set(), changed(SPOT_NODE, (CHAT, (*POD, *AFFINITY), NOT_SPOT), more=PLAIN_NODE)),
    "a quota below two groups": (
        {"VA1505"},
        [
            each
            for each in changed((5, ("spec", "hard"), {"requests.nvidia.com/gpu": "7"}), more=group(2, 4))
            if each["metadata"]["name"] not in ("chat",)
        ],
    ),
    "Argo CD's own label": (
        {"VA1510"},
        changed(IN_GIT, (CHAT, ("metadata", "labels"), {"argocd.argoproj.io/instance": "shop"}), more=APPLICATION),
    ),
    "Argo CD without a count in Git": (
        set(),
        changed((CHAT, ("metadata", "labels"), {"argocd.argoproj.io/instance": "shop"}), more=APPLICATION),
    ),
    # Observability.
    "a monitor by expressions": (
        {"VA1610"},
        changed((MONITOR, ("spec", "selector"), BY_EXPRESSION), (MONITOR, (*ENDPOINT, "port"), "metrics")),
    ),
    "a monitor of others": (
        set(),
        changed((MONITOR, ("spec", "selector"), NOT_OURS), (MONITOR, (*ENDPOINT, "port"), "metrics")),
    ),
    "a fixed value for the label pod": (
        {"VA1602"},
        changed((MONITOR, (*ENDPOINT, "relabelings"), [{"targetLabel": "pod", "replacement": "engine"}])),
    ),
    "the label pod from its usual source": (
        set(),
        changed(
            (
                MONITOR,
                (*ENDPOINT, "relabelings"),
                [{"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "pod"}],
            )
        ),
    ),
    "histograms with custom buckets": (
        {"VA1603"},
        changed((MONITOR, ("spec", "convertClassicHistogramsToNHCB"), True)),
    ),
    "histograms of both kinds": (
        set(),
        changed(
            (MONITOR, ("spec", "convertClassicHistogramsToNHCB"), True),
            (MONITOR, ("spec", "scrapeClassicHistograms"), True),
        ),
    ),
    "an engine with TLS scraped without": ({"VA1604"}, changed(options("--ssl-certfile", "/tls/tls.crt"))),
    "an engine with TLS scraped with it": (
        set(),
        changed(options("--ssl-certfile", "/tls/tls.crt"), (MONITOR, (*ENDPOINT, "scheme"), "https")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_another_spelling_makes_the_same_finding(name: str):
    wanted, documents = CASES[name]
    assert ids(documents) == wanted
