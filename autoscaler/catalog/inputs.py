"""Which metrics are read, and what is lost without each. `docs/reference/inputs.md` is printed from here.

    python -m autoscaler.catalog.inputs > docs/reference/inputs.md

The names come from the tables of engines, gateways and GPUs; here is only what they are for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from autoscaler.catalog import gpus
from autoscaler.catalog.accelerators import ACCELERATORS, BY_CLASS
from autoscaler.catalog.engines import ENGINES, HISTOGRAMS, UNCOUNTED, Engine
from autoscaler.catalog.gateways import GATEWAY_NAMESPACES, GATEWAYS
from autoscaler.catalog.series import DISTINCT, POD_LABELS, Readings, names_of

_LONG_PROMPTS = "prompts too long for the TTFT objective are separated from queues by the load alone, which takes a day"
_NO_PLANNER = "no planner: it is unknown how busy a replica is"

# By column of `core.model.samples.PodSamples`: what is lost without a series for it.
LOST: Mapping[str, str] = MappingProxyType(
    {
        "running": "such a pod counts as silent, and its workload never shrinks",
        "waiting": "such a pod counts as silent, and its workload never shrinks",
        "deferred": "at a workload with a role, requests that wait for a KV transfer look like a queue for a slot",
        "asleep": "a sleeping engine looks awake and idle",
        "kv_usage": "the KV-cache signal has no opinion",
        "prompt_tokens": "no planner; the prefill signal has no opinion",
        "generation_tokens": "no planner; the decode signal has no opinion; the wait of a queue is unknown",
        "finished": "no planner; the length of answers is computed from first tokens instead of ended requests",
        "first_tokens": "no planner; TTFT is not weighted by requests",
        "ttft_met": UNCOUNTED["ttft_met"],
        "gap_s": _NO_PLANNER,
        "gaps": _NO_PLANNER,
        "itl_judged": UNCOUNTED["itl_met"],
        "itl_met": UNCOUNTED["itl_met"],
        "prefill_judged": _LONG_PROMPTS,
        "prefill_met": _LONG_PROMPTS,
        "steps": "for 30 min a stuck engine looks like one with a long answer",
        "preemptions": "preemptions by a full KV cache are not shown",
        "rejections": "requests refused by an admission limit do not count as demand",
        "max_running": "the slots of a replica are those of its command line, or must be learned",
        "ttft_s": "the TTFT signal has no opinion",
        "itl_s": "the ITL signal has no opinion",
    }
)


INTRODUCTION = """\
# Inputs

The metrics that are read from engines, gateways and GPUs, through Prometheus or directly, and from kube-state-metrics.
This page is printed from `autoscaler/catalog/{engines,gateways,gpus}.py` by `python -m autoscaler.catalog.inputs`. A
pipeline that drops metrics must keep these. Several names in one cell are those of other versions, or parts that are
added up, or subtracted where `less` stands before them. By what a name after `again`
exceeds the value, less is subtracted: vLLM up to 0.11.0 counts preempted requests as cache hits.

Names are recognized with `_` for `:`, and with the prefixes of KServe (`kserve_`) and Ray (`ray_`). `--metric-prefix`
states others. A name that ends like an engine's and has another prefix is reported if pods are silent and the
server can be queried for it (managed backends refuse this, and the source says so). NIM and release candidates of
TensorRT-LLM share names; `gpu_cache_usage_perc` and `kv_cache_utilization` distinguish them.

A missing value is unknown, never 0: a signal without its metric has no opinion. An engine does not report the columns
that its table leaves out. If requests end that cannot be compared with their objective, the source reports this in one
line. It also reports an engine whose statistics are off (`--disable-log-stats`), if its pods are known or its web
server counts completions, and one that counts requests but shows no running ones: Triton without the TensorRT-LLM
backend, TensorRT-LLM with histograms alone, or a pipeline that drops gauges.

**Labels.** In Prometheus, a series names its pod by one of these pairs of labels; the first whose second label is set
decides, for each series alone: {labels}. A scrape
without `honor_labels` moves a series' own labels to the first pair, and OpenTelemetry promotes the third. Series
without any such label are left out, and the source says so. Dry-run without `--cluster` instead treats each of their
scrape targets (`job`, `instance`) as a pod.

A pod that several scrape jobs read counts once, by the largest of their readings, and so does a pod of one name in
several clusters; the source names the jobs or clusters. Within one job all processes of a pod are added up. Servers of
one pod with the same `process_start_time_seconds` and the same engines are one process at several ports, unless
`process_cpu_seconds_total` shows two. They count once.
Series of one pod that are equal in these labels repeat one number, of which the largest counts: {distinct}.
Without `honor_labels`, a label that the scrape target has as well gets the prefix `exported_`.
Other labels are those of ranks (`tp_rank`), processes (`pid`) or Prometheus replicas, here and in direct scraping.
Of several processes of one rank the one with the highest `pid` counts.
Replicas that Ray serves on one node (`WorkerId`, `ReplicaId`) are added up, and one at two ports counts once.
With SGLang's `--tokenizer-metrics-allowed-custom-labels` too few requests count. A GPU is identified by its UUID,
so that two exporters on one node do not count it twice.

**Age.** After federation, remote write or OpenTelemetry nothing marks the end of a series, which then counts for five
minutes. So a series of a pod is left out once its last sample is older than that of another series of the pod by two
scrapes, and by more than 10 s. How far apart scrapes are is measured. The source names one such series: it belongs to a
former process, an engine that is gone, or a Prometheus replica that lags. Percentiles cover their window, whatever
the age of a series. A sample older than the pod belongs to a former pod of the same name. A gateway's queue counts
without series that are more than a minute older than others of its job.

If one server has the metrics of several clusters, `--prometheus-selector 'cluster="prod"'` adds these label matchers
to every query: those of each tick, of dry-run's discovery, of history and `replay`, and of `wakeUp.query`.

Queries name series exactly, joined by `or`, since managed backends refuse regular expressions on `__name__`.
Amazon's backend requires requests signed with SigV4, Google's and Azure's require tokens of their own: run the
provider's proxy (aws-sigv4-proxy, the frontend of Google Managed Prometheus, aad-auth-proxy) and give its URL.

**A slow or busy server.** Running and waiting requests are queried first, and once more if the server refuses them
(HTTP 429, 502, 503, 504) or hangs up. What a tick has no time for comes earlier in the next one, and the source says
what its loss costs. After `Retry-After` no query is sent for that many seconds, at most 60.

**Impossible values** are unknown: negative ones, NaN, infinity, ratios above 1 and more than a million requests. If one
engine of a pod shows such a gauge, that of the pod is unknown. For a GPU, ratios up to 2 count as 1; larger ones are
unknown, and so is more framebuffer than any GPU has: DCGM writes 140737488355328 or 9223372036854775794 for values that
it could not read. Activity from Prometheus is then unknown for three minutes.

**Another model's metrics** do not count: series whose `model_name` is not a name that the pod's own command line gives
(vLLM and SGLang; `--served-model-name`, else the model that is loaded), nor the workload's annotation `model`. Case and
leading directories do not matter. The source names the pods and models. Names are unknown, and every series counts:

* if they come from a variable that the pod does not state or that a script sets;
* with `--config`, LoRA adapters and speculators;
* if the command line names neither of the two engines (an image's own entrypoint) nor `--served-model-name`;
* in dry-run without `--cluster`.

Prometheus is queried for models every 30 s and when pods are new. If a pod reports its own model besides another, its
requests within objectives are unknown.

**Counters that fall** mean a restarted process if `process_start_time_seconds` of the same target changed or is
missing. If it stands still, the counters that fell are unknown in that reading, as are the gauges of the pod, and TTFT
and ITL of the whole workload for the window of rates; the source reports this for five minutes. A counter that is back
in the next reading continues from its old value; otherwise counting restarts there. The same holds for gateways that
are scraped directly. Prometheus' own rates of gateways' counters treat every fall as a restart.

**Direct scraping** (`--scrape`) reads each pod at its address. Port, scheme and path are those of the annotations
`vllm-autoscaler.io/metrics-port`, `metrics-scheme` and `metrics-path`. Without them they are those of
`prometheus.io/port`, `scheme` and `path` on the pod template or the workload, else the engine's `--port` or its usual
one, `http`, and the path of the engine's table. Over https, `--scrape-ca` names the CA, and `--scrape-verify` says
which certificates are accepted: with `full` those for the pod's address, with `ca` all that are signed by the CA, with
`none` all. `--scrape-token NAMESPACE=FILE` is sent only to the pods of that namespace, only over https, and never with
`none`; `--gateway-token-file` likewise to gateways.

**Scrapes** must be at most half as far apart as the policy's `inputs.maxAge` allows a reading to be old, and at most
a quarter of `--rate-window`. The source names a job that breaks a limit, for the eight strictest ones: it is counted
over 20 such scrapes, every five minutes. Readings that are older than `inputs.maxAge` show in the explanation of their
workload.

**Latencies** (`ttft_s`, `itl_s`) are the 95th percentile of a workload's requests (TTFT) or of the gaps between its
tokens (ITL), over the window of rates (`--rate-window`, 2 minutes by default). It is taken after the histogram buckets
of all its pods are added up. Prometheus adds up pods of one namespace, job and cluster whose names differ only in what
a Deployment, StatefulSet or ReplicaSet appends. If names do not show which pods serve together, or pods of
another workload have similar names, each pod, or group of pods, has a percentile of its own. Their mean is taken,
weighted by first tokens (TTFT) or generated tokens (ITL) per second, and the source reports it.

**Requests within an objective** (`ttft_met`, `itl_met`) are counted from the histogram buckets around it, with linear
interpolation. Beyond the highest bound only requests that are certainly within it count. A bound equal to the objective
(vLLM has 0.1, 0.25, 0.5, 1 s and more for TTFT) makes the count exact. `prefill_met` uses the next bound above the TTFT
objective: a prompt beyond it is certainly too long, and more replicas would not help. Prometheus gets one query for
each different objective, which returns one number per pod: at most 12 objectives of each kind, fewer from 26,000
pods on. The rarest objectives stay uncounted, and the source reports it.

**Native histograms**, as `convert_classic_histograms_to_nhcb` makes them of all others, are read if the server has
any: counts and sums by `histogram_count` and `histogram_sum`, quantiles, and requests within an objective by
`histogram_fraction`. `prefill_met` needs the bounds of buckets and stays unknown. Prometheus 2.42 cannot add native
histograms by names, so each pod has a percentile of its own there. The warm start from history, and `replay`, read
buckets alone.
"""


IN_FRONT = """
# In front of the workloads

Gateways and routers run while a workload has no pod, so requests that arrive there wake it from zero. Only those
that report how many requests they *hold* while there is no pod also let `scaleToZero.idleAfter: auto` send a workload
to zero: others may refuse the requests that arrive meanwhile. llm-d's endpoint picker holds requests with its feature
gate `flowControl`. In Prometheus a counter that begins with the first request for a workload (Istio, ingress-nginx)
shows no rate before the second one: that one wakes it. LiteLLM and Envoy AI Gateway count a request when it has ended.

Istio's reporters `source`, `waypoint` and `destination` may each report the same request: the largest count is taken.

In Prometheus a gateway's series counts for workloads of the namespace in which it was scraped. For workloads of other
namespaces it counts only if that namespace is one of the usual ones for gateways ({homes}) or is named
by `--gateway-namespace`; the source reports series that do not count. The label `namespace` says where a
series was scraped, so give tenants no `honorLabels`. A series without a namespace belongs to a target that the operator
listed, and counts for all. A gateway's pod counts once, however many jobs scrape it.

| gateway | requests held | requests that arrive |
|---|---|---|
"""

GPUS = """
# GPUs

From DCGM exporter, for `gpu_loaded`, `gpu_active` and `gpu_diagnosis`; never a reason to grow or to shrink: {names}.

GPU_UTIL and the traffic of links are those of a whole GPU, so they are unknown for a pod with a MIG instance. GPU_UTIL
counts only where no profiling counter is there, as zero or more: a weak sign. `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` is
not read, because no source states its unit. For NVLink add `DCGM_FI_PROF_NVLINK_TX_BYTES` and
`DCGM_FI_PROF_NVLINK_RX_BYTES` to the counters file.
[What is told apart by which counters](../explanation/demand.md#loaded-is-not-active).
"""

KUBE_STATE = """
# Pods, in dry-run without `--cluster`

From kube-state-metrics, which is optional; every other mode reads the Kubernetes API.

| what | metric | without it |
|---|---|---|
| workload of a pod | `kube_pod_owner`, `kube_replicaset_owner` | inferred from the pod's name, else from the model; a Deployment's name is known up to 58 characters. Workers of a LeaderWorkerSet (`ds-0-1` beside `ds-0`) are recognized by their names alone, and are one replica with their leader |
| requested replicas | `kube_deployment_spec_replicas`, `kube_statefulset_replicas` | assumed to be the ready ones, and zero once no engine reports any more; the source `discovery` says so |
| whether a pod serves | `kube_pod_status_ready`, `kube_pod_status_phase`, `kube_pod_deletion_timestamp` | a pod whose engine reports counts as ready; others are unknown |
| cold starts | `kube_pod_created`, `kube_pod_status_scheduled_time`, `kube_pod_container_state_started`, `kube_pod_status_ready_time`, `kube_pod_container_status_restarts_total` | not learned; the policy's `coldStart` is used |
| why a pod does not start | `kube_pod_status_unschedulable`, `kube_pod_container_status_waiting_reason` | a blocked pod looks as if it were starting |
| GPUs of a replica | `kube_pod_container_resource_requests`, `kube_pod_init_container_resource_requests` | counted from DCGM, else stated by `dry-run --gpus-per-replica`, else unknown |

# Prices, teams and use

`report` and `demand` read them where the server has them.

| what | metric | without it |
|---|---|---|
| price of a GPU on a node | `node_gpu_hourly_cost` of OpenCost or Kubecost, with the labels `node` and `instance_type`. The product is that of the instance type, else that which DCGM names on the node. The mean of a product's nodes counts, for the services of their cluster. Zero is a node without GPUs; other values below 0.001 or above 1,000 USD, and NaN, are not believed and named. Where sources (`job` and namespace of the scrape) differ by more than a hundredth, none of them is believed | prices that are stated, else list prices |
| how nodes are paid for | the labels of nodes in `kube_node_labels` with `kube_pod_info`, where `--metric-labels-allowlist` of kube-state-metrics names them, else `kubecost_node_is_spot`. A node of which series differ is unknown | unknown: one price for all nodes of a product |
| the team of a service | `kube_deployment_labels`, `kube_statefulset_labels`, `kube_pod_labels`, `kube_namespace_labels` with the label of `--team-label`, where `--metric-labels-allowlist` names it | no team |
| what the daemon counted | `vllm_autoscaler_gpu_seconds_total`, `vllm_autoscaler_idle_gpu_seconds_total`, `vllm_autoscaler_gpu_cost_dollars_total` | states are estimated from engines and DCGM, and decisions are not known |

OpenCost splits the price of a node into CPU, memory and GPU, so its price of a GPU is lower than the list prices here, which are those of
instances over their GPUs.
"""  # noqa: E501

TEMPLATES = """
# Pod templates

Every other mode reads them from the Kubernetes API.

**The engine's container** is the one that requests accelerators. Without any it is the container with a probe or with a
port named `metrics` or `http`, then the one whose command line names a model. Options of other containers are
ignored.

**Model and port** are those of the annotations, else of the engine's command line. Scripts of `sh -c` are read, with
variables whose value the template states. Without a readable `--port`, the port named `metrics` counts, then the
probed one, then the one named `http`, then the engine's own: {ports}. Programs
that are an engine by their name (`vllm`, `sglang`, `text-generation-launcher`, `trtllm-serve`, `tritonserver`) need no
annotation `engine`. What a pod states itself counts before its template, so the old pods of a rollout stay readable.

**Slots**, the requests that a replica runs at once, are those that the engine reports, else `--max-num-seqs` of vLLM,
for each data-parallel rank, or `--max-running-requests` of SGLang. Each pod's own command line counts. If options
spread ranks over pods, or a configuration file has the number, they are learned.

**Accelerators of a replica** are Kubernetes' effective request: containers and native sidecars together, or an init
container that needs more, and the overhead. Requests that are not stated are the limits. Known are those of
{domains} (`autoscaler/catalog/accelerators.py`).
Devices that pods get by `resourceClaims`, by `{by_class}/...` or by an extended resource of a DeviceClass
count as [dra.md](dra.md) says. Their number is unknown (`gpus_per_replica` is null, and `/readyz` says why) if that
page says so, or if the pod has no known accelerator but an extended resource of another domain. A workload whose number
is unknown is in no pool.
"""


def markdown() -> str:
    """Print the reference of all metrics that are read."""
    pairs = ", ".join(f"`{namespace}`/`{pod}`" for namespace, pod in POD_LABELS)
    distinct = ", ".join(f"`{label}`" for label in DISTINCT)
    parts = [INTRODUCTION.rstrip().replace("{labels}", pairs).replace("{distinct}", distinct)]
    for engine in ENGINES.values():
        parts += ["", f"## {engine.name}", "", "| column | metric | without it |", "|---|---|---|"]
        parts += [
            f"| `{column}` | {', '.join(_of_engine(engine, column))} | {LOST[column]} |" for column in engine.readings
        ]
    parts.append(IN_FRONT.rstrip().replace("{homes}", ", ".join(f"`{home}`" for home in GATEWAY_NAMESPACES)))
    for gateway in GATEWAYS.values():
        held, arrivals = (", ".join(_names(readings)) for readings in (gateway.waiting, gateway.arrivals))
        held += " (for pods that serve; without one it refuses)" if gateway.refuses_unserved else ""
        parts.append(f"| {gateway.name} | {held or '-'} | {arrivals} |")
    parts.append(GPUS.rstrip().format(names=", ".join(f"`{name}`" for name in gpus.metric_names())))
    parts.append(KUBE_STATE.rstrip())
    domains = ", ".join(f"`{domain}`" for domain in ACCELERATORS)
    ports = ", ".join(f"{engine.port} ({engine.name})" for engine in ENGINES.values())
    parts.append(TEMPLATES.rstrip().format(domains=domains, by_class=BY_CLASS, ports=ports))
    return "\n".join(parts) + "\n"


def _of_engine(engine: Engine, column: str) -> Iterable[str]:
    return _names(engine.readings[column], "_bucket" if column in HISTOGRAMS else "")


def _names(readings: Readings, suffix: str = "") -> Iterable[str]:
    """Return the names of all metrics that the readings take, each once, those marked that are not added."""
    marks = {name: "less " for row in readings for less in row.minus for name in names_of(less)}
    marks |= {name: "again " for row in readings for name in names_of(row.again)}
    return (f"{marks.get(name, '')}`{name}{suffix}`" for name in names_of(readings))


if __name__ == "__main__":
    sys.stdout.write(markdown())
