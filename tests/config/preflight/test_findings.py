"""Each change of good manifests makes the finding that it deserves, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.config.preflight.scene import (
    BUDGET,
    CHAT,
    ENGINE,
    GONE,
    GOOD,
    MONITOR,
    NIGHTLY,
    NODE,
    PATIENT,
    POD,
    QUERY,
    QUOTA,
    SCALER,
    URGENT,
    changed,
    checked,
    ids,
    options,
)

TRIGGER = ("spec", "triggers", 0)
ENDPOINT = ("spec", "podMetricsEndpoints", 0)
LABELS = ("metadata", "labels")
PAIR = '{namespace="web",model_name="chat"}'
WAITING, RUNNING = f"vllm:num_requests_waiting{PAIR}", f"vllm:num_requests_running{PAIR}"


def query(text: str) -> tuple[int, tuple[str | int, ...], object]:
    return SCALER, QUERY, text


def thing(kind: str, name: str, version: str = "v1", namespace: str = "web", **rest: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **rest}


HPA = thing(
    "HorizontalPodAutoscaler",
    "other",
    "autoscaling/v2",
    spec={
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
        "maxReplicas": 4,
        "metrics": [
            {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "AverageValue"}}}
        ],
    },
)
POOL = thing(
    "NodePool",
    "spot",
    "karpenter.sh/v1",
    spec={
        "template": {
            "spec": {"requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]}
        },
        "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "1m"},
        "limits": {"nvidia.com/gpu": "6"},
    },
)
ON_POOL = (CHAT, (*POD, "nodeSelector"), {"karpenter.sh/nodepool": "spot"})
ON_SPOT = (CHAT, (*POD, "nodeSelector"), {"karpenter.sh/nodepool": "spot"})


def vertical(mode: str) -> dict[str, Any]:
    target = {"kind": "Deployment", "name": "chat"}
    return thing("VerticalPodAutoscaler", "chat", spec={"targetRef": target, "updatePolicy": {"updateMode": mode}})


def application(**spec: Any) -> dict[str, Any]:
    automated = {"automated": {"selfHeal": True}, **spec.pop("sync", {})}
    return thing("Application", "shop", "argoproj.io/v1alpha1", "argocd", spec={"syncPolicy": automated, **spec})


IN_GIT = (CHAT, ("spec", "replicas"), 2)
TRACKED = (CHAT, ("metadata", "annotations", "argocd.argoproj.io/tracking-id"), "shop:apps/Deployment:web/chat")
IGNORED = [{"group": "apps", "kind": "Deployment", "jqPathExpressions": [".spec.replicas"]}]

CASES: dict[str, tuple[set[str], list[dict[str, Any]]]] = {
    # Queries.
    "another served name": (
        {"VA1203"},
        changed(query('sum(vllm:num_requests_running{model_name="meta-llama/Llama"})')),
    ),
    "a series per pod": ({"VA1204"}, changed(query(WAITING))),
    "a series per model": ({"VA1204"}, changed(query("sum by (pod) (" + WAITING + ")"))),
    "by a label that is fixed": (set(), changed(query("sum by (model_name) (" + WAITING + ")"))),
    "no selector": ({"VA1205"}, changed(query("sum(vllm:num_requests_waiting)"))),
    "a selector that takes all": ({"VA1205"}, changed(query('sum(vllm:num_requests_waiting{model_name=~".+"})'))),
    "by pods": (set(), changed(query('sum(vllm:num_requests_waiting{pod=~"chat-.*"})'))),
    "another engine without selector": ({"VA1205"}, changed(query("sum(sglang:num_queue_reqs)"))),
    "dies at zero": ({"VA1206"}, changed((SCALER, ("spec", "minReplicaCount"), 0))),
    "dies at zero by default": ({"VA1206"}, changed((SCALER, ("spec", "minReplicaCount"), GONE))),
    "zero for nothing does not wake": (
        {"VA1206"},
        changed((SCALER, ("spec", "minReplicaCount"), 0), query(f"sum({WAITING}) or vector(0)")),
    ),
    "a gateway's queue wakes": (
        set(),
        changed(
            (SCALER, ("spec", "minReplicaCount"), 0),
            query('sum(llm_d_epp_flow_control_queue_size{inference_pool="chat"})'),
        ),
    ),
    "the router's counter wakes": (
        set(),
        changed(
            (SCALER, ("spec", "minReplicaCount"), 0),
            query('sum(rate(vllm:num_incoming_requests_total{model="chat"}[2m]))'),
        ),
    ),
    "a mean": ({"VA1207"}, changed(query(f"avg({WAITING})"))),
    "a maximum": ({"VA1207"}, changed(query(f"max({WAITING})"))),
    "a quotient": ({"VA1207"}, changed(query(f"sum({WAITING}) / count({RUNNING})"))),
    "a share of a sum": (set(), changed(query(f"sum({WAITING}) / 2"))),
    "a latency with AverageValue": (
        {"VA1207"},
        changed(
            query(f"histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{PAIR}[5m])))")
        ),
    ),
    "a latency with Value": (
        set(),
        changed(
            query(f"histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{PAIR}[5m])))"),
            (SCALER, (*TRIGGER, "metricType"), "Value"),
        ),
    ),
    "a ratio with Value": (
        set(),
        changed(
            query(f"avg(vllm:kv_cache_usage_perc{PAIR})"),
            (SCALER, (*TRIGGER, "metricType"), "Value"),
            (SCALER, (*TRIGGER, "metadata", "threshold"), "0.7"),
        ),
    ),
    "a sum with Value": ({"VA1208"}, changed((SCALER, (*TRIGGER, "metricType"), "Value"))),
    "a threshold within the tolerance": ({"VA1209"}, changed((SCALER, (*TRIGGER, "metadata", "threshold"), "60"))),
    "a cache threshold that is never passed": (
        {"VA1209"},
        changed(
            query(f"avg(vllm:kv_cache_usage_perc{PAIR})"),
            (SCALER, (*TRIGGER, "metricType"), "Value"),
            (SCALER, (*TRIGGER, "metadata", "threshold"), "0.95"),
        ),
    ),
    "a fallback to zero": ({"VA1210"}, changed((SCALER, ("spec", "fallback"), {"failureThreshold": 3, "replicas": 0}))),
    "GPU memory": ({"VA1212"}, changed(query('avg(DCGM_FI_DEV_FB_USED{pod=~"chat-.*"})'))),
    "GPU utilisation": ({"VA1213"}, changed(query('avg(DCGM_FI_DEV_GPU_UTIL{pod=~"chat-.*"})'))),
    "the cache of an old vLLM is no GPU memory": (
        {"VA1207"},
        changed(query(f"avg(vllm:gpu_cache_usage_perc{PAIR})"), (SCALER, (*TRIGGER, "metadata", "threshold"), "0.7")),
    ),
    "no threshold": ({"VA1230"}, changed((SCALER, (*TRIGGER, "metadata", "threshold"), GONE))),
    # Autoscalers.
    "two autoscalers": ({"VA1214"}, changed(more=[HPA])),
    "an HPA that KEDA takes over": (
        set(),
        changed(
            (SCALER, ("metadata", "annotations"), {"scaledobject.keda.sh/transfer-hpa-ownership": "true"}),
            (SCALER, ("spec", "advanced"), {"horizontalPodAutoscalerConfig": {"name": "other"}}),
            more=[HPA],
        ),
    ),
    "two ScaledObjects": (
        {"VA1214"},
        changed(more=[{**GOOD[SCALER], "metadata": {"name": "again", "namespace": "web"}}]),
    ),
    "a kind without scale": (
        {"VA1215"},
        changed(
            (SCALER, ("spec", "scaleTargetRef"), {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "chat"})
        ),
    ),
    "polled each five minutes": (
        {"VA1221", "VA1206"},
        changed((SCALER, ("spec", "minReplicaCount"), 0), (SCALER, ("spec", "pollingInterval"), 300)),
    ),
    "idle not below the minimum": (
        {"VA1222", "VA1206"},
        changed((SCALER, ("spec", "idleReplicaCount"), 2), (SCALER, ("spec", "minReplicaCount"), 0)),
    ),
    "activation above the threshold": (
        {"VA1223", "VA1206"},
        changed(
            (SCALER, ("spec", "minReplicaCount"), 0), (SCALER, (*TRIGGER, "metadata", "activationThreshold"), "50")
        ),
    ),
    "minimum above maximum": ({"VA1224"}, changed((SCALER, ("spec", "minReplicaCount"), 5))),
    "never up": (
        {"VA1224"},
        changed(
            (
                SCALER,
                ("spec", "advanced"),
                {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": {"selectPolicy": "Disabled"}}}},
            )
        ),
    ),
    "a wide tolerance": (
        {"VA1227"},
        changed(
            (
                SCALER,
                ("spec", "advanced"),
                {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": {"tolerance": "0.5"}}}},
            )
        ),
    ),
    "a vertical autoscaler": ({"VA1225"}, changed(more=[vertical("Recreate")])),
    "a vertical autoscaler that recommends": (set(), changed(more=[vertical("Off")])),
    "CPU": (
        {"VA1226"},
        changed((SCALER, TRIGGER, {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "60"}})),
    ),
    "replicas in Git": ({"VA1231"}, changed(IN_GIT)),
    # The engine.
    "utilisation": ({"VA1301"}, changed(options("--gpu-memory-utilization=0.97"))),
    "a long context": ({"VA1302"}, changed(options("--max-model-len", "1000000"))),
    "a long context in thousands": ({"VA1302"}, changed(options("--max-model-len", "1000k"))),
    "a context that is chosen": (set(), changed(options("--max-model-len", "auto"))),
    "weights": ({"VA1303"}, changed(options("--model", "Qwen/Qwen2.5-72B-Instruct"))),
    "weights of a quantized model": (set(), changed(options("--model", "Qwen/Qwen2.5-72B-Instruct-AWQ"))),
    "parallel": ({"VA1304"}, changed(options("-tp", "4"))),
    "data parallel": ({"VA1304"}, changed(options("--data-parallel-size=4"))),
    "no statistics": ({"VA1305"}, changed(options("--disable-log-stats"))),
    "eager": ({"VA1307"}, changed(options("--enforce-eager"))),
    "bfloat16 on a V100": (
        {"VA1308"},
        changed(
            (CHAT, (*POD, "nodeSelector"), {"a": "b"}),
            (NODE, LABELS, {"a": "b", "nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}),
        ),
    ),
    "fp8 on a V100": (
        {"VA1309"},
        changed(
            options("--dtype=half", "--quantization", "fp8"),
            (NODE, (*LABELS, "nvidia.com/gpu.compute.major"), "7"),
            (NODE, (*LABELS, "nvidia.com/gpu.compute.minor"), "0"),
        ),
    ),
    "slices": (
        {"VA1310"},
        changed(
            (CHAT, (*ENGINE, "resources", "limits"), {"nvidia.com/mig-3g.40gb": "2"}),
            (CHAT, (*POD, "nodeSelector"), GONE),
            (NODE, ("status", "allocatable", "nvidia.com/mig-3g.40gb"), "8"),
        ),
    ),
    # The pod.
    "aborted": ({"VA1402"}, changed((CHAT, (*ENGINE, "lifecycle"), GONE), options("--shutdown-timeout", "0"))),
    "grace before the drain": ({"VA1403"}, changed((CHAT, (*POD, "terminationGracePeriodSeconds"), 60))),
    "liveness asks the model": (
        {"VA1407"},
        changed((CHAT, (*ENGINE, "livenessProbe", "httpGet", "path"), "/v1/completions")),
    ),
    "liveness gives up": ({"VA1407"}, changed((CHAT, (*ENGINE, "livenessProbe", "failureThreshold"), 1))),
    "latest": ({"VA1408"}, changed((CHAT, (*ENGINE, "image"), "registry:5000/vllm/vllm-openai"))),
    "a digest": (set(), changed((CHAT, (*ENGINE, "image"), f"vllm/vllm-openai@sha256:{'0' * 64}"))),
    "no shared memory": ({"VA1409"}, changed((CHAT, (*ENGINE, "volumeMounts"), []))),
    "the host's shared memory": (
        set(),
        changed((CHAT, (*ENGINE, "volumeMounts"), []), (CHAT, (*POD, "hostIPC"), True)),
    ),
    "a rollout without room": (
        {"VA1410"},
        changed((CHAT, ("spec", "strategy"), GONE), (NODE, ("status", "allocatable", "nvidia.com/gpu"), "4")),
    ),
    "a rollout that replaces": (set(), changed((CHAT, ("spec", "strategy"), {"type": "Recreate"}))),
    "a budget of all": (
        {"VA1411"},
        changed((BUDGET, ("spec", "minAvailable"), "100%"), (BUDGET, ("spec", "maxUnavailable"), GONE)),
    ),
    "a budget of none": ({"VA1411"}, changed((BUDGET, ("spec", "maxUnavailable"), 0))),
    "a host port": ({"VA1412"}, changed((CHAT, (*ENGINE, "ports", 0, "hostPort"), 8000))),
    "weights in the image": ({"VA1413"}, changed(options("--model", "/opt/model"))),
    "weights on a volume": (
        set(),
        changed(
            options("--model", "/models/chat"),
            (CHAT, (*ENGINE, "volumeMounts", 1), {"name": "m", "mountPath": "/models"}),
        ),
    ),
    # The cluster.
    "a shared device": (
        {"VA1501", "VA1502"},
        changed(
            (NODE, (*LABELS, "nvidia.com/gpu.sharing-strategy"), "time-slicing"),
            (NODE, (*LABELS, "nvidia.com/gpu.replicas"), "4"),
        ),
    ),
    "MPS": (
        {"VA1501"},
        changed(
            (NODE, (*LABELS, "nvidia.com/gpu.sharing-strategy"), "mps"),
            (NODE, (*LABELS, "nvidia.com/gpu.replicas"), "4"),
        ),
    ),
    "shared by its name": (
        {"VA1501"},
        changed(
            (CHAT, (*ENGINE, "resources", "limits"), {"nvidia.com/gpu.shared": "2"}),
            (NODE, ("status", "allocatable", "nvidia.com/gpu.shared"), "8"),
        ),
    ),
    "spot": ({"VA1503", "VA1515"}, changed(ON_SPOT, more=[POOL])),
    "batch on spot": (
        set(),
        changed((NIGHTLY, (*POD, "nodeSelector"), {"karpenter.sh/nodepool": "spot"}), more=[POOL]),
    ),
    "consolidation": (
        {"VA1504"},
        changed(
            (CHAT, ("spec", "template", "metadata", "annotations"), GONE),
            (BUDGET, ("spec", "selector", "matchLabels"), {"app": "x"}),
            more=[
                {
                    **POOL,
                    "spec": {
                        **POOL["spec"],
                        "template": {
                            "spec": {
                                "requirements": [
                                    {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L40S"]}
                                ]
                            }
                        },
                        "limits": {},
                    },
                }
            ],
        ),
    ),
    "a quota": ({"VA1505"}, changed((QUOTA, ("spec", "hard", "requests.nvidia.com/gpu"), "6"))),
    "a quota of memory": ({"VA1505"}, changed((QUOTA, ("spec", "hard", "requests.memory"), "100Gi"))),
    "no such node": ({"VA1507"}, changed((CHAT, (*POD, "nodeSelector"), {"nvidia.com/gpu.product": "NVIDIA-H100"}))),
    "no node so large": (
        {"VA1507"},
        changed((CHAT, (*ENGINE, "resources", "requests", "memory"), "900Gi"), (QUOTA, ("spec", "hard"), {})),
    ),
    "cannot preempt": ({"VA1508"}, changed((URGENT, ("preemptionPolicy",), "Never"))),
    "must not preempt": (
        {"VA1508", "VA1509"},
        changed(
            (PATIENT, ("value",), 5000),
            (PATIENT, ("preemptionPolicy",), "PreemptLowerPriority"),
            (URGENT, ("preemptionPolicy",), "Never"),
        ),
    ),
    "batch above": ({"VA1509"}, changed((PATIENT, ("value",), 5000), (PATIENT, ("preemptionPolicy",), GONE))),
    # GitOps.
    "Argo CD": ({"VA1510"}, changed(IN_GIT, TRACKED, more=[application()])),
    "Argo CD that forgets": ({"VA1511"}, changed(IN_GIT, TRACKED, more=[application(ignoreDifferences=IGNORED)])),
    "Argo CD that respects": (
        set(),
        changed(
            IN_GIT,
            TRACKED,
            more=[application(ignoreDifferences=IGNORED, sync={"syncOptions": ["RespectIgnoreDifferences=true"]})],
        ),
    ),
    "Argo CD without replicas": (set(), changed(TRACKED, more=[application()])),
    "Flux": (
        {"VA1512"},
        changed(
            IN_GIT,
            (
                CHAT,
                LABELS,
                {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"},
            ),
        ),
    ),
    "a grace on spot": (
        {"VA1503", "VA1514", "VA1515"},
        changed(ON_SPOT, (CHAT, (*POD, "terminationGracePeriodSeconds"), 300), more=[POOL]),
    ),
    # Metrics.
    "scraped rarely": ({"VA1601"}, changed((MONITOR, (*ENDPOINT, "interval"), "1m"))),
    "without pod": (
        {"VA1602"},
        changed((MONITOR, (*ENDPOINT, "metricRelabelings", 0), {"action": "labeldrop", "regex": "pod|container"})),
    ),
    "keeps some labels": (
        {"VA1602"},
        changed(
            (MONITOR, (*ENDPOINT, "metricRelabelings", 0), {"action": "labelkeep", "regex": "__name__|model_name"})
        ),
    ),
    "without buckets": (
        {"VA1603"},
        changed(
            (
                MONITOR,
                (*ENDPOINT, "metricRelabelings", 0),
                {"action": "drop", "sourceLabels": ["__name__"], "regex": ".*_bucket"},
            )
        ),
    ),
    "without load": (
        {"VA1605"},
        changed(
            (
                MONITOR,
                (*ENDPOINT, "metricRelabelings", 0),
                {"action": "keep", "sourceLabels": ["__name__"], "regex": "vllm:.*_total"},
            )
        ),
    ),
    "another port": ({"VA1610"}, changed((MONITOR, (*ENDPOINT, "port"), "metrics"))),
    "a scrape that may not end": ({"VA1611"}, changed((MONITOR, (*ENDPOINT, "scrapeTimeout"), "20s"))),
    "a rate of two scrapes": ({"VA1218"}, changed(query(f"sum(rate(vllm:prompt_tokens_total{PAIR}[20s]))"))),
}


STATE = thing(
    "Deployment",
    "kube-state-metrics",
    "apps/v1",
    spec={
        "template": {
            "spec": {
                "containers": [
                    {"name": "ksm", "image": "registry.k8s.io/kube-state-metrics/kube-state-metrics:v2.20.0"}
                ]
            }
        }
    },
)


def state_with(*arguments: str) -> dict[str, Any]:
    container = {**STATE["spec"]["template"]["spec"]["containers"][0], "args": list(arguments)}
    return {**STATE, "spec": {"template": {"spec": {"containers": [container]}}}}


def state_monitor(*, honor: bool) -> dict[str, Any]:
    selector = {"matchLabels": {"app.kubernetes.io/name": "kube-state-metrics"}}
    return thing(
        "ServiceMonitor", "ksm", spec={"selector": selector, "endpoints": [{"port": "http", "honorLabels": honor}]}
    )


def small_pool(*counts: str) -> dict[str, Any]:
    asked = [{"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "In", "values": list(counts)}]
    return {**POOL, "spec": {**POOL["spec"], "template": {"spec": {"requirements": asked}}, "limits": {}}}


def counters(*names: str) -> dict[str, Any]:
    return thing("ConfigMap", "dcgm", data={"dcgm-metrics.csv": "\n".join(f"{name}, gauge, text" for name in names)})


SCRAPE = thing(
    "VMPodScrape",
    "chat",
    "operator.victoriametrics.com/v1beta1",
    spec={
        "selector": {"matchLabels": {"app": "chat"}},
        "podMetricsEndpoints": [{"port": "http", "scrape_interval": "15s"}],
    },
)
FORMULA = {"scalingModifiers": {"formula": "a * 2", "target": "5"}}

CASES |= {
    "a recording rule": (set(), changed(query("vllm:num_requests_waiting:sum"))),
    "the highest sum of some minutes": (set(), changed(query(f"max(max_over_time(sum({WAITING})[5m:15s]))"))),
    "another program of such a name": (
        set(),
        changed(
            (
                CHAT,
                (*POD, "containers", 1),
                {"name": "helper", "image": "ghcr.io/x/vllm-helper:1", "args": ["--port=1"]},
            )
        ),
    ),
    "a formula replaces the metric types": (
        set(),
        changed(
            (SCALER, (*TRIGGER, "metricType"), "Value"),
            (SCALER, (*TRIGGER, "name"), "a"),
            (SCALER, ("spec", "advanced"), FORMULA),
        ),
    ),
    "a pool of small instances": ({"VA1507"}, changed(ON_POOL, more=[small_pool("1")])),
    "a pool of instances that hold a replica": (set(), changed(ON_POOL, more=[small_pool("1", "4")])),
    "an allow list": ({"VA1606"}, changed(more=[state_with("--metric-allowlist=kube_pod_owner,kube_pod_info")])),
    "an allow list that is wide": (set(), changed(more=[state_with("--metric-allowlist=kube_.*")])),
    "a deny list": ({"VA1606"}, changed(more=[state_with("--metric-denylist=kube_pod_status_.*")])),
    "state without honorLabels": ({"VA1609"}, changed(more=[state_monitor(honor=False)])),
    "state with honorLabels": (set(), changed(more=[state_monitor(honor=True)])),
    "a VMPodScrape that drops pods": (
        {"VA1602"},
        changed(
            more=[
                {
                    **SCRAPE,
                    "spec": {
                        **SCRAPE["spec"],
                        "podMetricsEndpoints": [
                            {"port": "http", "metricRelabelConfigs": [{"action": "labeldrop", "regex": "pod"}]}
                        ],
                    },
                }
            ]
        ),
    ),
}


def test_dcgm_without_profiling_fields_is_a_note():
    outcome = checked(changed(more=[counters("DCGM_FI_DEV_FB_USED", "# DCGM_FI_PROF_GR_ENGINE_ACTIVE")]))
    assert [(each.id, each.severity) for each in outcome.findings] == [("VA1607", "note")]
    assert checked(changed(more=[counters("DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_DRAM_ACTIVE")])).findings == ()


def test_good_manifests_have_no_finding():
    outcome = checked(changed())
    assert [(each.id, each.message) for each in outcome.findings] == []


@pytest.mark.parametrize("name", CASES)
def test_a_change_makes_its_finding_and_no_other(name: str):
    wanted, documents = CASES[name]
    assert ids(documents) == wanted


def test_a_finding_is_left_out_with_a_reason_alone():
    annotation = ("metadata", "annotations", "preflight.vllm-autoscaler.io/VA1301")
    loud = options("--gpu-memory-utilization=0.97")
    kept = checked(changed(loud, (CHAT, annotation, "")))
    assert {each.id for each in kept.findings} == {"VA1301", "VA1102"}
    left_out = checked(changed(loud, (CHAT, annotation, "measured")))
    assert (left_out.findings, left_out.suppressed) == ((), 1)


def test_what_needs_a_server_is_listed_when_there_is_none():
    places = {(each.object, each.what) for each in checked(changed()).not_checked}
    assert ("ScaledObject/web/chat", "names, labels and answer of the query") in places
    assert ("Deployment/web/chat", "startup probe, liveness and delays against the starts") in places


def test_an_unknown_kind_and_query_are_listed_with_the_reason():
    odd = thing("Mystery", "x", "example.com/v1")
    outcome = checked(changed(query('sum(default_rollup(vllm:num_requests_waiting{model_name="chat"}))'), more=[odd]))
    reasons = {each.object: each.reason for each in outcome.not_checked if each.what in ("object", "query")}
    assert reasons["Mystery/web/x"] == "unknown kind"
    assert "unknown function" in reasons["ScaledObject/web/chat"]
