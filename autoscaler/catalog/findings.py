"""The table of what `preflight` and `check` find: identifier, severity, symptom, cause, cure and sources.

The pages in docs/reference/findings/ are made of it: `python -m autoscaler.catalog.findings docs/reference/findings`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)  # worst first
PAGES = "docs/reference/findings"


class FindingKind(NamedTuple):
    """One kind of finding."""

    id: str
    severity: str  # the usual one; a finding may be one step milder where less is at stake
    subject: str
    symptom: str  # what is seen
    cause: str
    cure: str
    sources: str

    @property
    def page(self) -> str:
        return f"{PAGES}/{_FILES[self.id[:4]]}.md#{self.id.lower()}"


_FILES: Mapping[str, str] = MappingProxyType(
    {"VA11": "reading", "VA12": "autoscaling", "VA13": "engine", "VA14": "pod", "VA15": "cluster", "VA16": "metrics"}
)
_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "VA11": "Findings about files",
        "VA12": "Findings about autoscalers and their queries",
        "VA13": "Findings about the engine's arguments",
        "VA14": "Findings about the pod",
        "VA15": "Findings about the cluster",
        "VA16": "Findings about metrics",
    }
)
_KEDA_EMPTY = "KEDA pkg/scalers/prometheus_scaler.go (an empty answer is 0 while ignoreNullValues is true)"
_HPA = "Kubernetes pkg/controller/podautoscaler/replica_calculator.go"
_SPEC = "KEDA documentation, ScaledObject specification"
_VLLM_METRICS = "vLLM vllm/v1/metrics/loggers.py"
_PROBES = "Kubernetes pkg/kubelet/prober/worker.go"


def _row(id: str, severity: str, subject: str, symptom: str, cause: str, cure: str, sources: str) -> FindingKind:
    return FindingKind(id, severity, subject, symptom, cause, cure, sources)


FINDINGS: tuple[FindingKind, ...] = (
    _row(
        "VA1101",
        ERROR,
        "document cannot be read",
        "Nothing in the document is checked.",
        "It is not valid YAML, or larger or deeper than what is read, or it has merge keys or custom tags.",
        "Write plain YAML; render templates first (`helm template`, `kustomize build`).",
        "docs/reference/limits.md",
    ),
    _row(
        "VA1102",
        NOTE,
        "finding suppressed without a reason",
        "The annotation has no effect.",
        "An annotation `preflight.vllm-autoscaler.io/VA1203` is empty.",
        "State the reason as its value.",
        "this page",
    ),
    _row(
        "VA1201",
        ERROR,
        "metric name does not exist",
        "KEDA reports 0 without an error, and the workload stays at its minimum whatever waits.",
        "No series has the name: an underscore for vLLM's colon, a name of another version, a prefix that the"
        " platform adds (`ray_vllm_`, `kserve_vllm:`).",
        "Use the name that the server has; the finding names the nearest.",
        f"{_KEDA_EMPTY}; {_VLLM_METRICS}",
    ),
    _row(
        "VA1202",
        ERROR,
        "label does not exist on the series",
        "The query returns nothing, which KEDA takes for 0.",
        "The engine writes `model_name` and `engine`, the scrape adds `namespace`, `pod`, `container`; no series of"
        " the metric has the label of the matcher.",
        "Select by labels that the series have.",
        f"{_KEDA_EMPTY}; {_VLLM_METRICS}",
    ),
    _row(
        "VA1203",
        ERROR,
        "no series has the value of a matcher",
        "The query returns nothing, which KEDA takes for 0.",
        "The label exists, but with other values: vLLM's `model_name` is the first `--served-model-name`, else the "
        "model as it is given to the engine.",
        "Use the value that the series have.",
        f"{_KEDA_EMPTY}; {_VLLM_METRICS}",
    ),
    _row(
        "VA1204",
        ERROR,
        "several series where one is meant",
        "With the second replica KEDA answers `returned multiple elements`; the HPA gets no value and the count"
        " stands.",
        "The query returns a series for each pod.",
        "Put `sum(...)` around it.",
        "KEDA pkg/scalers/prometheus_scaler.go (more than one element is an error)",
    ),
    _row(
        "VA1205",
        ERROR,
        "no model or workload selector",
        "The workload grows with the queues of others.",
        "The query adds up all engines that the server sees, or a pattern fits the pods of another workload too.",
        "Select by `namespace` and `model_name`, or by the pods of the workload.",
        _VLLM_METRICS,
    ),
    _row(
        "VA1206",
        ERROR,
        "the query dies at zero",
        "At zero replicas the workload never wakes.",
        "Only the engine's own pods write the metric. Without a pod there is no series, KEDA takes the empty answer"
        " for 0, and 0 is not above the activation threshold.",
        "Add a trigger on something that counts before the pods (a gateway's queue), or keep one replica.",
        "KEDA documentation, Scaling Deployments (activation phase); KEDA pkg/scalers/prometheus_scaler.go",
    ),
    _row(
        "VA1207",
        ERROR,
        "a mean per pod where the sum is meant",
        "The workload shrinks while each of its pods has a queue.",
        "With AverageValue the HPA divides the value by the target to get the count; a mean, a maximum or a ratio"
        " does not grow with the pods.",
        "Use `sum(...)`, or `metricType: Value` for a ratio.",
        f"{_SPEC} (metricType); {_HPA}",
    ),
    _row(
        "VA1208",
        ERROR,
        "metricType Value on a sum over the pods",
        "The count runs to its maximum.",
        "With Value the HPA multiplies the ratio by the ready pods, and a sum grows with the pods already.",
        "`metricType: AverageValue`.",
        f"{_SPEC} (metricType); {_HPA}; kedacore/keda issue 3855",
    ),
    _row(
        "VA1209",
        ERROR,
        "threshold larger than a replica can hold",
        "The trigger never adds a replica, even when every slot is taken.",
        "A replica runs at most `--max-num-seqs` requests (times its ranks), or fewer where its KV cache is the"
        " limit. The ratio must exceed the HPA's tolerance of 10 % for a change.",
        "A threshold of about 75 % of what a replica holds.",
        f"vLLM vllm/config/scheduler.py (max_num_seqs); {_HPA} (tolerance)",
    ),
    _row(
        "VA1210",
        ERROR,
        "fallback below the load",
        "When the metrics server fails, replicas that are needed are removed.",
        "`behavior` is `static` unless stated: after `failureThreshold` failures KEDA reports the target times "
        "`replicas`.",
        "`behavior: currentReplicasIfHigher`.",
        f"{_SPEC} (fallback); KEDA pkg/fallback/fallback.go",
    ),
    _row(
        "VA1211",
        ERROR,
        "cooldown shorter than the cold start",
        "A replica is removed before it is ready.",
        "KEDA goes to zero `cooldownPeriod` after the trigger was last active; a trigger that sees finished work only"
        " is not active while the first replica starts.",
        "A cooldown of at least twice the longest start.",
        "KEDA pkg/scaling/executor/scale_scaledobjects.go",
    ),
    _row(
        "VA1212",
        ERROR,
        "scaling on GPU memory",
        "The workload grows to its maximum without a request and never shrinks, or it never grows.",
        "vLLM takes `--gpu-memory-utilization` of the memory when it starts and gives nothing back.",
        "Scale on requests: running and waiting.",
        "vLLM vllm/config/cache.py (gpu_memory_utilization), vllm/v1/worker/gpu_worker.py",
    ),
    _row(
        "VA1213",
        WARNING,
        "scaling on GPU utilisation",
        "One long answer looks like a full replica; a queue does not show.",
        "Utilisation says that some kernel ran. It is near 100 % with one request, and absent under MIG.",
        "Scale on requests: running and waiting.",
        "NVIDIA DCGM field reference (DCGM_FI_DEV_GPU_UTIL)",
    ),
    _row(
        "VA1214",
        ERROR,
        "two autoscalers on one workload",
        "The count swings between two wishes.",
        "Two HPAs, or an HPA and a ScaledObject (KEDA makes an HPA of its own), write the same count at each sync. "
        "KEDA's webhook refuses only some of the orders, and its failure policy is Ignore.",
        "Keep one of them.",
        "KEDA apis/keda/v1alpha1/scaledobject_webhook.go",
    ),
    _row(
        "VA1215",
        ERROR,
        "the target cannot be scaled",
        "The autoscaler is never ready and nothing happens.",
        "The kind has no scale subresource.",
        "Scale what the platform itself names; the finding says what that is.",
        f"{_SPEC} (scaleTargetRef); the CustomResourceDefinition of the kind",
    ),
    _row(
        "VA1216",
        ERROR,
        "the target does not exist",
        "The autoscaler is never ready.",
        "No object in the cluster has the kind, namespace and name of the target.",
        "Name the object as it is.",
        _SPEC,
    ),
    _row(
        "VA1217",
        WARNING,
        "the router's copy of the series counts too",
        "The queue looks twice as long.",
        "production-stack's router exports the engines' metrics under their names, with the label `server`.",
        'Select by `model_name`, or add `server=""`.',
        "vLLM production-stack src/vllm_router/services/metrics_service",
    ),
    _row(
        "VA1218",
        ERROR,
        "rate over a window shorter than two scrapes",
        "The query returns nothing, which KEDA takes for 0.",
        "A rate needs two samples in its window.",
        "A window of at least four scrape intervals, or a shorter interval.",
        "Prometheus documentation, Query functions, rate",
    ),
    _row(
        "VA1219",
        NOTE,
        "metricName has no effect",
        "Readers believe that it selects something.",
        "KEDA removed `metadata.metricName` in 2.12.",
        "Remove the line.",
        "KEDA CHANGELOG.md, v2.12.0",
    ),
    _row(
        "VA1220",
        NOTE,
        "cooldownPeriod has no effect",
        "Readers believe that it delays each scale-in.",
        "It counts only for the step to zero, or to `idleReplicaCount`.",
        "Remove the line; `stabilizationWindowSeconds` of the HPA delays the other steps.",
        "KEDA apis/keda/v1alpha1/scaledobject_webhook.go",
    ),
    _row(
        "VA1221",
        WARNING,
        "polled too rarely to wake in time",
        "The first request after an idle time waits for the next poll.",
        "At zero only KEDA looks at the trigger, every `pollingInterval`; the HPA does not run.",
        "`pollingInterval: 15`.",
        f"{_SPEC} (pollingInterval)",
    ),
    _row(
        "VA1222",
        ERROR,
        "idleReplicaCount is not below minReplicaCount",
        "KEDA refuses the object.",
        "The idle count must be below the minimum; 0 is the one value that works.",
        "`idleReplicaCount: 0`, or remove it.",
        f"{_SPEC} (idleReplicaCount)",
    ),
    _row(
        "VA1223",
        WARNING,
        "activation threshold above the load of one replica",
        "Up to a whole replica's work waits at zero and nothing wakes.",
        "Below the activation threshold the trigger is inactive, whatever the threshold says.",
        "An activation threshold of 0.",
        "KEDA documentation, Scaling Deployments (activating and scaling thresholds)",
    ),
    _row(
        "VA1224",
        ERROR,
        "an autoscaler that cannot scale",
        "The count never changes.",
        "Its bounds are equal or reversed, it has no usable metric, a direction is disabled, or it is paused.",
        "See the finding.",
        "Kubernetes documentation, Horizontal Pod Autoscaling",
    ),
    _row(
        "VA1225",
        WARNING,
        "a VerticalPodAutoscaler evicts engines",
        "Engines restart, each with a cold start, when their requests are changed.",
        "In the modes Auto and Recreate the updater evicts pods; CPU and memory of the host say little about an"
        " engine.",
        '`updateMode: "Off"`.',
        "Kubernetes autoscaler, vertical-pod-autoscaler documentation",
    ),
    _row(
        "VA1226",
        WARNING,
        "scaling an engine on CPU or memory of the host",
        "The workload does not follow its load.",
        "An engine polls the GPU: its CPU is busy at any load, and its host memory stays.",
        "Scale on requests: running and waiting.",
        "vLLM documentation, Metrics",
    ),
    _row(
        "VA1227",
        WARNING,
        "tolerance swallows the steps",
        "The HPA does not react to loads that need another replica.",
        "A change within the tolerance is ignored.",
        'A tolerance of at most "0.1".',
        f"{_HPA} (tolerance)",
    ),
    _row(
        "VA1228",
        ERROR,
        "the server refuses the query",
        "KEDA counts a failure at each poll.",
        "The expression is not valid for this server.",
        "Correct the expression.",
        "Prometheus documentation, HTTP API",
    ),
    _row(
        "VA1230",
        ERROR,
        "a required key of the trigger is missing",
        "KEDA refuses the trigger.",
        "`serverAddress`, `query`, `threshold` are required, with `authModes` also `authenticationRef`; all are text.",
        "Add the key.",
        "KEDA documentation, Prometheus scaler",
    ),
    _row(
        "VA1231",
        WARNING,
        "replicas in the manifest beside an autoscaler",
        "Each apply sets the count back.",
        "Whoever applies the file again writes its count over the autoscaler's.",
        "Remove the line.",
        "Kubernetes documentation, Horizontal Pod Autoscaling (migrating Deployments)",
    ),
    _row(
        "VA1232",
        ERROR,
        "held requests time out before the first replica is ready",
        "Requests that woke the workload fail.",
        "The endpoint picker holds requests for an empty pool for `noEndpointRequestTTL`, 60 s unless stated, and"
        " only with the feature gate `flowControl`.",
        "A `noEndpointRequestTTL` above the longest start, with `featureGates: [flowControl]`.",
        "llm-d-router docs/operations.md",
    ),
    _row(
        "VA1233",
        WARNING,
        "the query counts one of several ranks",
        "The count follows a part of the load.",
        "With data parallel vLLM writes a series for each rank, and the selector takes one by its label `engine`.",
        "Sum over the ranks: no matcher on `engine`.",
        "vLLM documentation, Data Parallel Deployment",
    ),
    _row(
        "VA1301",
        WARNING,
        "utilisation above 0.95",
        "The start fails if less is free, or the engine runs out of memory under load.",
        "CUDA context, graphs and fragments need room beyond what the profile sees.",
        "`--gpu-memory-utilization=0.92`, vLLM's default.",
        "vLLM vllm/config/cache.py, vllm/v1/worker/utils.py",
    ),
    _row(
        "VA1302",
        ERROR,
        "context longer than the KV cache can hold",
        "vLLM refuses to start.",
        "One request of the stated length needs more KV cache than the device has beside the weights.",
        "A shorter `--max-model-len`, an fp8 cache, or more devices.",
        "vLLM vllm/v1/core/kv_cache_utils.py",
    ),
    _row(
        "VA1303",
        ERROR,
        "weights do not fit the device",
        "Loading ends with out of memory, and the pod restarts for ever.",
        "The weights are larger than what the engine may use of its devices.",
        "A larger slice, more devices, or a quantized model.",
        "NVIDIA MIG User Guide, supported profiles; the model's card",
    ),
    _row(
        "VA1304",
        ERROR,
        "tensor parallel over more GPUs than requested",
        "vLLM ends with `World size is larger than the number of available GPUs`.",
        "The container sees the GPUs of its request.",
        "Request as many GPUs as the product of the parallel sizes.",
        "vLLM vllm/config/parallel.py",
    ),
    _row(
        "VA1305",
        ERROR,
        "--disable-log-stats: the engine exports none of its metrics",
        "Whatever reads the engine's metrics reads nothing.",
        "The statistics logger writes the series, and the option removes it.",
        "Remove `--disable-log-stats`.",
        "vLLM vllm/v1/engine/async_llm.py",
    ),
    _row(
        "VA1306",
        NOTE,
        "no --max-num-seqs",
        "What a replica holds differs by version and device, and so does every threshold on it.",
        "vLLM's default depends on its version, the device's memory and how it is used.",
        "State `--max-num-seqs`.",
        "vLLM vllm/engine/arg_utils.py",
    ),
    _row(
        "VA1307",
        WARNING,
        "--enforce-eager on a hot path",
        "Each token takes longer.",
        "Without CUDA graphs each step pays the launch of each kernel.",
        "Remove `--enforce-eager`.",
        "vLLM vllm/config/model.py (enforce_eager)",
    ),
    _row(
        "VA1308",
        ERROR,
        "number format that the device does not have",
        "vLLM refuses to start.",
        "bfloat16 needs compute capability 8.0; a T4 has 7.5, a V100 7.0.",
        "`--dtype half`.",
        "vLLM vllm/platforms/cuda.py",
    ),
    _row(
        "VA1309",
        ERROR,
        "quantization that the device does not support",
        "vLLM refuses to start.",
        "The kernels of the quantization need a newer compute capability.",
        "Another quantization, or another device.",
        "vLLM documentation, Quantization, Supported Hardware",
    ),
    _row(
        "VA1310",
        ERROR,
        "tensor parallel over slices of a GPU",
        "The engine does not start.",
        "Slices have no link, and a container sees one of them.",
        "One slice with `--tensor-parallel-size 1`, or whole GPUs.",
        "NVIDIA MIG User Guide",
    ),
    _row(
        "VA1401",
        ERROR,
        "grace shorter than the longest answers",
        "Each scale-in, rollout and drain cuts answers off.",
        "The kubelet kills the pod after `terminationGracePeriodSeconds`, 30 s unless stated.",
        "A grace period above the longest answer, with `--shutdown-timeout` below it.",
        "Kubernetes documentation, Pod Lifecycle, Termination of Pods",
    ),
    _row(
        "VA1402",
        WARNING,
        "requests are aborted at SIGTERM",
        "Running requests fail at each scale-in.",
        "vLLM's `--shutdown-timeout` is 0 unless stated, and no preStop hook delays the SIGTERM.",
        "`--shutdown-timeout N` below the grace period, and a preStop sleep of some seconds.",
        "vLLM vllm/config/vllm.py (shutdown_timeout)",
    ),
    _row(
        "VA1403",
        WARNING,
        "grace ends before preStop and --shutdown-timeout do",
        "Requests that the engine would still finish are killed.",
        "The grace period covers the preStop hook and the shutdown together.",
        "A grace period of preStop + `--shutdown-timeout` + 10 s.",
        "Kubernetes documentation, Container Lifecycle Hooks",
    ),
    _row(
        "VA1404",
        ERROR,
        "startup probe shorter than the starts",
        "The kubelet kills the container before it is ready, each time.",
        "`failureThreshold` x `periodSeconds` is below what a start takes here.",
        "A larger `failureThreshold`.",
        "Kubernetes documentation, Configure Liveness, Readiness and Startup Probes",
    ),
    _row(
        "VA1405",
        WARNING,
        "initialDelaySeconds adds to each start",
        "Each new replica serves later than it could.",
        "No probe runs before the delay is over, counted from the start of the container, also beside a startup probe.",
        "A startup probe with a short period, and no `initialDelaySeconds`.",
        _PROBES,
    ),
    _row(
        "VA1406",
        ERROR,
        "liveness probe kills the engine while it starts",
        "The container restarts for ever.",
        "Without a startup probe the liveness probe begins at once, and vLLM opens its port only when the model is "
        "loaded.",
        "A startup probe that allows the longest start.",
        _PROBES,
    ),
    _row(
        "VA1407",
        WARNING,
        "liveness probe kills a busy engine",
        "Engines restart under load.",
        "The probe asks for an answer of the model, or gives up within seconds.",
        "`/health`, with at least `failureThreshold: 3` of `periodSeconds: 10`.",
        "vLLM documentation, Using Kubernetes",
    ),
    _row(
        "VA1408",
        WARNING,
        "image by latest",
        "Replicas of one workload run different versions, whose metrics and defaults differ.",
        "The tag moves, and imagePullPolicy is Always for it.",
        "A version, or a digest.",
        "Kubernetes documentation, Images",
    ),
    _row(
        "VA1409",
        WARNING,
        "no shared memory for tensor parallel",
        "NCCL or the engine's queues between ranks fail or are slow.",
        "A container gets 64 MiB at /dev/shm unless an emptyDir in memory is mounted there.",
        "`volumes: [{name: shm, emptyDir: {medium: Memory}}]`, mounted at /dev/shm.",
        "vLLM documentation, Using Kubernetes",
    ),
    _row(
        "VA1410",
        ERROR,
        "a rollout needs a free GPU",
        "A rollout stands until its deadline, and after it.",
        "The new pod needs a GPU, all are taken, nothing can add a node, and maxUnavailable (rounded down) lets no"
        " old pod go.",
        "`rollingUpdate: {maxSurge: 0, maxUnavailable: 1}`.",
        "Kubernetes documentation, Deployments (max surge, max unavailable)",
    ),
    _row(
        "VA1411",
        ERROR,
        "the disruption budget blocks every eviction",
        "No drain of a node gets through.",
        "As many pods must be available as there are.",
        "`maxUnavailable: 1`.",
        "Kubernetes documentation, Specifying a Disruption Budget",
    ),
    _row(
        "VA1412",
        WARNING,
        "host port",
        "A second replica finds no place on the same node.",
        "A port of the node can be bound once.",
        "A container port and a Service.",
        "Kubernetes documentation, Configuration Best Practices",
    ),
    _row(
        "VA1413",
        WARNING,
        "weights in the container's layer",
        "Each start on a new node pulls the weights with the image, or loses what it downloaded.",
        "The model is at a path that no volume covers.",
        "A volume, a PersistentVolumeClaim or an image volume for the weights.",
        "vLLM documentation, Using Kubernetes",
    ),
    _row(
        "VA1414",
        ERROR,
        "the engine ends before the longest answers do",
        "Each scale-in, rollout and drain cuts answers off although the grace would suffice.",
        "After preStop the engine aborts what runs longer than `--shutdown-timeout`.",
        "A `--shutdown-timeout` of the longest answer.",
        "vLLM vllm/config/vllm.py (shutdown_timeout)",
    ),
    _row(
        "VA1501",
        ERROR,
        "realtime tier on a shared GPU",
        "A token takes up to as many times as long as pods share the card.",
        "Time-slicing gives turns; MPS divides threads and memory. Neither isolates.",
        "Nodes without sharing, or MIG slices.",
        "NVIDIA k8s-device-plugin README, Shared Access to GPUs",
    ),
    _row(
        "VA1502",
        ERROR,
        "utilisation claims more than its share of a shared GPU",
        "The second engine on the card does not find its memory and ends at its start.",
        "`--gpu-memory-utilization` is a share of the physical card, and time-slicing divides no memory.",
        "At most 1 / (pods that share the card).",
        "vLLM vllm/config/cache.py, vllm/v1/worker/utils.py",
    ),
    _row(
        "VA1503",
        ERROR,
        "spot without a floor on other nodes",
        "One reclaim leaves no replica for a whole cold start.",
        "Every replica is on spot capacity.",
        "A floor of replicas on on-demand nodes.",
        "Karpenter documentation, Disruption (interruption)",
    ),
    _row(
        "VA1504",
        ERROR,
        "consolidation may take a serving node",
        "Karpenter drains a node although it serves.",
        "consolidationPolicy WhenEmptyOrUnderutilized removes nodes whose pods fit elsewhere.",
        'The annotation `karpenter.sh/do-not-disrupt: "true"` on the pod template, or WhenEmpty.',
        "Karpenter documentation, Disruption; kubernetes-sigs/karpenter pkg/apis/v1/nodepool.go",
    ),
    _row(
        "VA1505",
        ERROR,
        "quota below the maximum",
        "Pods above the quota are refused at their creation, while the autoscaler keeps asking.",
        "The namespace's ResourceQuota admits fewer replicas than the maximum.",
        "A lower maximum, or a larger quota.",
        "Kubernetes documentation, Resource Quotas",
    ),
    _row(
        "VA1506",
        ERROR,
        "ClusterQueue below the maximum",
        "Pods above the quota stay gated.",
        "The queue's nominal quota and what it may borrow are below the maximum.",
        "A lower maximum, a larger quota, or a cohort with room to borrow.",
        "Kueue documentation, ClusterQueue; Run Deployments",
    ),
    _row(
        "VA1507",
        ERROR,
        "no node can hold one replica",
        "Every replica stays Pending.",
        "No node that the pod selects has as many devices, CPU or memory as one replica needs.",
        "Other nodes, or a smaller request.",
        "Kubernetes documentation, Assigning Pods to Nodes",
    ),
    _row(
        "VA1508",
        WARNING,
        "a PriorityClass cannot preempt what it should",
        "A realtime replica waits behind batch work.",
        "Its class has the preemption policy Never, or a value no higher than that of batch work.",
        "A higher value with PreemptLowerPriority.",
        "Kubernetes documentation, Pod Priority and Preemption",
    ),
    _row(
        "VA1509",
        ERROR,
        "a PriorityClass may preempt what it must not",
        "Batch work removes realtime replicas.",
        "The class of the batch workload has a higher value and may preempt.",
        "A lower value, or `preemptionPolicy: Never`.",
        "Kubernetes documentation, Pod Priority and Preemption",
    ),
    _row(
        "VA1510",
        ERROR,
        "Argo CD writes spec.replicas back",
        "Pods start and end in turn, each with a cold start.",
        "Git states replicas, and selfHeal (or each sync) undoes the autoscaler's count.",
        "No replicas in Git; or ignoreDifferences of /spec/replicas with RespectIgnoreDifferences=true.",
        "Argo CD docs/user-guide/best_practices.md, diffing.md",
    ),
    _row(
        "VA1511",
        WARNING,
        "ignoreDifferences without RespectIgnoreDifferences",
        "Each sync still writes the count of Git.",
        "Alone it only hides the difference from the comparison.",
        "`syncOptions: [RespectIgnoreDifferences=true]`.",
        "Argo CD docs/user-guide/sync-options.md",
    ),
    _row(
        "VA1512",
        ERROR,
        "Flux writes spec.replicas back",
        "At each reconciliation the count of Git replaces the autoscaler's.",
        "The manifest states replicas, so Flux owns the field by server-side apply (or Helm by its upgrade).",
        "No replicas in Git.",
        "Flux documentation, Kustomization; HelmRelease, drift detection",
    ),
    _row(
        "VA1513",
        WARNING,
        "more replicas than the worker groups can hold",
        "The replicas above never start.",
        "maxReplicas of the worker groups times their GPUs is below what the application may ask for.",
        "A larger `maxReplicas` of the worker group.",
        "Ray documentation, KubeRay Autoscaling",
    ),
    _row(
        "VA1514",
        WARNING,
        "grace longer than the notice of spot nodes",
        "Answers are cut off when the node is taken.",
        "A spot node is taken two minutes after its notice on AWS, 30 s on GKE and Azure.",
        "Shorter answers on spot, or other nodes.",
        "Karpenter documentation, Disruption; documentation of the clouds on spot nodes",
    ),
    _row(
        "VA1515",
        WARNING,
        "the pool's limit is below the maximum",
        "Replicas above it stay Pending.",
        "`limits` of the NodePool bound what Karpenter creates.",
        "A larger limit, or a lower maximum.",
        "Karpenter documentation, NodePools",
    ),
    _row(
        "VA1601",
        ERROR,
        "scrape interval too long for the policy",
        "Readings are too old, so signals are unknown and the workload never shrinks.",
        "The policy takes readings up to `inputs.maxAge`, and scrapes may be at most half of that apart.",
        "`interval: 15s`.",
        "docs/reference/inputs.md",
    ),
    _row(
        "VA1602",
        ERROR,
        "relabelling drops the label pod or namespace",
        "The series belong to no workload.",
        "A `labeldrop` or `labelkeep` removes the label.",
        "Keep `namespace` and `pod`.",
        "Prometheus documentation, Configuration, relabel_config",
    ),
    _row(
        "VA1603",
        WARNING,
        "histogram buckets of the engine are dropped",
        "Latencies are unknown.",
        "A relabelling drops the series from which they are computed, or histograms become native ones.",
        "Keep the buckets of time to first token, inter-token latency and prefill time.",
        "docs/reference/inputs.md",
    ),
    _row(
        "VA1604",
        ERROR,
        "an engine without metrics",
        "The server has no series of an engine that runs.",
        "Nothing scrapes its pods, what is scraped is dropped, or an engine with TLS is asked without.",
        "A PodMonitor that selects the pods and names their port.",
        "docs/reference/inputs.md",
    ),
    _row(
        "VA1605",
        ERROR,
        "relabelling drops the engine's load",
        "Running and waiting requests are unknown.",
        "A relabelling drops or does not keep the series.",
        "Keep `vllm:num_requests_running` and `vllm:num_requests_waiting`.",
        "Prometheus documentation, Configuration, relabel_config",
    ),
    _row(
        "VA1606",
        NOTE,
        "kube-state-metrics without series that are needed",
        "Owners and readiness of pods are unknown without access to the cluster.",
        "An allow list leaves them out, or kube-state-metrics is not scraped.",
        "Allow kube_pod_owner, kube_replicaset_owner, kube_pod_status_ready.",
        "docs/reference/inputs.md",
    ),
    _row(
        "VA1607",
        NOTE,
        "DCGM without profiling fields",
        "Activity of GPUs under MIG is unknown.",
        "DCGM_FI_PROF_* are off: not in the list of counters, or the exporter lacks SYS_ADMIN.",
        "Enable DCGM_FI_PROF_GR_ENGINE_ACTIVE, PIPE_TENSOR_ACTIVE, DRAM_ACTIVE.",
        "dcgm-exporter etc/default-counters.csv",
    ),
    _row(
        "VA1608",
        WARNING,
        "an engine is scraped twice",
        "Sums count its requests twice.",
        "Two scrape jobs, two ports of one pod, or two Prometheus replicas give the same series with other labels.",
        "One job and one port per pod.",
        "kubernetes-sigs/inference-perf issue 249",
    ),
    _row(
        "VA1609",
        NOTE,
        "the label pod names the exporter",
        "Series are joined with the wrong pod.",
        "Without honorLabels Prometheus renames the labels of the exporter to exported_*.",
        "`honorLabels: true` where the exporter's labels name the workload.",
        "Prometheus documentation, Configuration, honor_labels",
    ),
    _row(
        "VA1610",
        ERROR,
        "a monitor names a port that the pods do not have",
        "Nothing is scraped.",
        "The endpoint's port is the name of a port of the container (PodMonitor) or of the Service (ServiceMonitor).",
        "Name the port as it is.",
        "prometheus-operator Documentation/api-reference/api.md",
    ),
    _row(
        "VA1611",
        ERROR,
        "scrapeTimeout longer than the interval",
        "Prometheus refuses the configuration, or the operator leaves the monitor out.",
        "A scrape must end before the next begins.",
        "A `scrapeTimeout` of at most the interval.",
        "prometheus-operator Documentation/api-reference/api.md",
    ),
    _row(
        "VA1612",
        WARNING,
        "one query over several clusters",
        "The workload scales with another cluster's load.",
        "The backend has series of several clusters with the same namespace and model.",
        "A matcher on the cluster's label.",
        "kiali/kiali issue 6990",
    ),
)
BY_ID: Mapping[str, FindingKind] = MappingProxyType({row.id: row for row in FINDINGS})


def pages() -> dict[str, str]:
    """Return the pages by file name: one section for each finding, and the index."""
    made: dict[str, str] = {}
    index = [
        "# Findings",
        "",
        (
            "What [`vllm-autoscaler preflight`](../../how-to/preflight.md) and `check` find. The severity is the"
            " usual one. An object is left out of a finding by the annotation `preflight.vllm-autoscaler.io/VA1203`"
            " with the reason as its value. The table is `autoscaler/catalog/findings.py`, of which these pages are"
            " made."
        ),
        "",
        "| finding | severity | subject |",
        "|---|---|---|",
    ]
    for group, rows in groupby(FINDINGS, lambda row: row.id[:4]):
        file = f"{_FILES[group]}.md"
        lines = [f"# {_TITLES[group]}", ""]
        for row in rows:
            index.append(f"| [{row.id}]({file}#{row.id.lower()}) | {row.severity} | {row.subject} |")
            lines += [
                f"## {row.id}",
                "",
                f"**{row.subject[:1].upper()}{row.subject[1:]}** ({row.severity})",
                "",
                f"* Symptom: {row.symptom}",
                f"* Cause: {row.cause}",
                f"* Cure: {row.cure}",
                f"* Sources: {row.sources}",
                "",
            ]
        made[file] = "\n".join(lines)
    made["README.md"] = "\n".join(index) + "\n"
    return made


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")
