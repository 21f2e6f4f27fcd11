"""Every metric the daemon exports: name, type, labels, meaning. `docs/reference/metrics.md` is printed from here.

    python -m autoscaler.adapters.web.exported_metrics > docs/reference/metrics.md

`metrics` keeps and renders the values.
"""

from __future__ import annotations

import sys

from autoscaler.adapters.web.metric_family import POOL_LABELS, PREFIX, WORKLOAD_LABELS, Family
from autoscaler.adapters.web.node_groups import LABELS
from autoscaler.adapters.web.quotas import LABELS as QUOTA_LABELS
from autoscaler.adapters.web.workload_metrics import WORKLOADS
from autoscaler.core.gpu_use import GpuState, IdleCause
from autoscaler.core.model.phases import Phase
from autoscaler.core.model.types import Signal

MAX_WORKLOADS = 10_000  # workloads with series of their own
MAX_SOURCES = 32
MAX_POOLS = 256


POOLS = (
    Family("pool_gpus", "gauge", "Allocatable GPUs of a pool; absent where unknown.", POOL_LABELS),
    Family(
        "pool_desired_gpus",
        "gauge",
        "GPUs of all replicas that the last tick decided on. Replicas that do not start, or whose count the daemon may "
        "not set, are among them, so it may exceed `pool_gpus`.",
        POOL_LABELS,
    ),
    Family(
        "pool_gpu_seconds_total",
        "counter",
        "GPU-seconds of a pool by state since the process began: as of `gpu_seconds_total` but for `ordered`, and "
        "`other` and `free`. Together they are those that its nodes offer, or that pods hold where these are more. "
        "Pools that share nodes are one; absent where the share of a GPU that a device is is not known, "
        "or how many devices there are.",
        (*POOL_LABELS, "state"),
    ),
)

NODE_GROUPS = (
    Family("node_group_gpus", "gauge", "Allocatable GPUs of a node group; absent where unknown.", LABELS),
    Family("node_group_used_gpus", "gauge", "GPUs held by pods of managed workloads; absent where unknown.", LABELS),
    Family(
        "node_group_others_gpus",
        "gauge",
        "GPUs held by other pods of the watched namespaces, without those of negative priority.",
        LABELS,
    ),
    Family(
        "node_group_addable_gpus",
        "gauge",
        "GPUs that an autoscaler of nodes may still add; absent where no limit is known.",
        LABELS,
    ),
)

QUOTAS = (
    Family("quota_gpus", "gauge", "Nominal GPUs of a quota, which its owner may use at any time.", QUOTA_LABELS),
    Family(
        "quota_borrowing_limit_gpus",
        "gauge",
        "GPUs that a quota may borrow in its cohort; absent where there is no limit.",
        QUOTA_LABELS,
    ),
    Family("quota_lending_limit_gpus", "gauge", "Nominal GPUs that a quota lends to its cohort.", QUOTA_LABELS),
    Family(
        "quota_used_gpus",
        "gauge",
        "GPUs of a quota charged for pods of managed workloads; absent where unknown.",
        QUOTA_LABELS,
    ),
    Family("quota_others_gpus", "gauge", "GPUs of a quota charged for other pods.", QUOTA_LABELS),
    Family("quota_borrowed_gpus", "gauge", "GPUs used beyond the nominal ones; absent where unknown.", QUOTA_LABELS),
    Family("quota_lent_gpus", "gauge", "GPUs lent to others of the cohort; absent where unknown.", QUOTA_LABELS),
)

WEIGHTS = (
    Family(
        "weights_nodes",
        "gauge",
        "Nodes of the weights of a model by state: `held`, `waiting`, `fetching`, `failed`, and `wished` by the plan.",
        ("source", "state"),
    ),
    Family(
        "weights_missing_replicas",
        "gauge",
        "Needed replicas without a place on a node that should hold their weights.",
        ("source",),
    ),
    Family("weights_wish_writes_total", "counter", "ConfigMaps with wishes of nodes that this process has written."),
)

PROCESS = (
    Family("info", "gauge", "Always 1; version and mode of the daemon.", ("version", "mode")),
    Family(
        "leader",
        "gauge",
        "1 while this process may act; `installation` is its lease.",
        ("installation",),
    ),
    Family("ticks_total", "counter", "Ticks by result: ok, failed.", ("result",)),
    Family("record_lost_ticks_total", "counter", "Ticks that could not be recorded: the disk is full or too slow."),
    Family("late_ticks_total", "counter", "Successful ticks that took longer than the period."),
    Family("tick_duration_seconds", "histogram", "Time that one successful tick took, including sampling and acting."),
    Family("last_tick_timestamp_seconds", "gauge", "Unix time of the last successful tick."),
    Family("workloads", "gauge", "Workloads in the last tick."),
    Family(
        "unlisted_workloads", "gauge", "Workloads without series of their own: beyond the limit, or a duplicate name."
    ),
    Family("untrusted_workloads", "gauge", "Workloads whose inputs are missing or stale: they hold or grow."),
    Family("pods", "gauge", "Pods in the last tick."),
    Family("source_queries_total", "counter", "Requests sent to a source of metrics.", ("source",)),
    Family("source_failures_total", "counter", "Requests to a source that failed.", ("source",)),
    Family("source_duration_seconds", "histogram", "Time that one sampling of a source took.", ("source",)),
    Family("source_problems", "gauge", "Problems a source reported in the last tick.", ("source",)),
    Family("changes_total", "counter", "Scale changes by outcome and direction.", ("outcome", "direction")),
    Family(
        "deletion_cost_patches_total",
        "counter",
        "Patches of pods before a shrink by outcome: written, failed, forbidden.",
        ("outcome",),
    ),
    Family(
        "policy_problems", "gauge", "Problems in changed policy files, which are not in force until fixed; 0: none."
    ),
    Family(
        "state_saved_timestamp_seconds", "gauge", "Unix time up to which the learned state is saved; absent: never."
    ),
    Family("stream_clients", "gauge", "Clients that follow the stream of the page."),
)

FAMILIES = PROCESS + POOLS + NODE_GROUPS + QUOTAS + WEIGHTS + WORKLOADS

# Exported by adapters/keda and only listed here; a test compares the two.
KEDA = (
    Family("keda_calls_total", "counter", "Calls from KEDA by method and gRPC status.", ("method", "code")),
    Family("keda_streams", "gauge", "Open StreamIsActive calls."),
    Family(
        "keda_unknown_scaled_objects",
        "gauge",
        "ScaledObjects that KEDA's calls name and that are not known; `keda_refused` of /readyz names them.",
    ),
    Family(
        "keda_swallowed_workloads",
        "gauge",
        "Workloads whose desired count the HPA's tolerance hides from it.",
    ),
    Family(
        "keda_swallowed",
        "gauge",
        "1 while the HPA's tolerance hides the desired count of a workload; absent otherwise. At most 1,000 are named.",
        WORKLOAD_LABELS,
    ),
)

# Exported by the webhook, a process of its own, from its own address.
WEBHOOK = (
    Family(
        "webhook_reviews_total",
        "counter",
        "Pods that the API server asked about: patched, unchanged, unreadable, busy, late, failed.",
        ("result",),
    ),
    Family("webhook_review_seconds", "histogram", "Time from the first byte of a review to its answer."),
    Family(
        "webhook_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate that is served expires; 0 without one.",
    ),
)

# Exported by the agent of weights on each node, from its own address.
AGENT = (
    Family("weights_agent_info", "gauge", "Always 1; version of the agent.", ("version",)),
    Family(
        "weights_agent_models", "gauge", "Models of the node by state: waiting, fetching, ready, failed.", ("state",)
    ),
    Family(
        "weights_agent_model",
        "gauge",
        "Always 1; state of one model, and the cause if it failed. `key` is that of the node label.",
        ("key", "source", "state", "cause"),
    ),
    Family("weights_agent_model_size_bytes", "gauge", "Bytes of a model; absent while unknown.", ("key",)),
    Family("weights_agent_model_present_bytes", "gauge", "Bytes of a ready or fetching model that are here.", ("key",)),
    Family("weights_agent_budget_bytes", "gauge", "Most bytes that weights may take on this disk."),
    Family("weights_agent_free_bytes", "gauge", "Bytes for further models, without an eviction."),
    Family("weights_agent_compile_cache_bytes", "gauge", "Bytes of all compile caches of engines."),
    Family(
        "weights_agent_problem",
        "gauge",
        "1 while the folder as a whole, the wishes or the API server have a problem; absent otherwise.",
        ("cause",),
    ),
    Family("weights_agent_fetched_bytes_total", "counter", "Bytes fetched or found by transfers."),
    Family("weights_agent_fetched_models_total", "counter", "Models that became ready."),
    Family("weights_agent_failures_total", "counter", "Failed attempts to fetch a model by cause.", ("cause",)),
    Family(
        "weights_agent_evictions_total",
        "counter",
        "Models, compile caches and remains removed to make room.",
    ),
    Family(
        "weights_agent_checked_models_total",
        "counter",
        "Models whose checksums were compared after the start: right, wrong.",
        ("result",),
    ),
    Family("weights_agent_peer_received_bytes_total", "counter", "Bytes that came from other agents; part of fetched."),
    Family("weights_agent_peer_sent_bytes_total", "counter", "Bytes sent to other agents."),
    Family("weights_agent_peer_failures_total", "counter", "Requests to other agents that failed."),
    Family(
        "weights_agent_peer_rejected_files_total",
        "counter",
        "Files with bytes of other agents that had a wrong checksum.",
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}


def markdown() -> str:
    """Print the reference of all metrics."""
    series = f"{sum(1 for family in WORKLOADS if family.labels == WORKLOAD_LABELS)}"
    parts = [
        "# Metrics",
        "",
        "The metrics that `/metrics` exports; names, types and labels are stable. This page is generated from",
        "`autoscaler/adapters/web/exported_metrics.py` by `python -m autoscaler.adapters.web.exported_metrics`.",
        "",
        "An unknown value is absent, never 0. Label values from outside are cut at 253 characters, unprintable ones",
        "are replaced.",
        "",
        f"**Number of series.** A workload has at most {series} series, one more for each signal with an opinion (at",
        f"most {len(Signal)}), one for each class of replicas that are not ready, and one each for its policy, its",
        "recommender, the diagnosis of its GPUs, the stage that changed its count and another owner; in practice",
        f"about 30. What its GPUs were used for takes at most {2 * GpuState.OTHER + len(IdleCause)} more, in practice",
        f"about 8. A workload whose starts were seen has {2 * len(Phase)} more, one for each phase with starting pods,",
        "and two where nodes tell which weights they hold. The first",
        f"{MAX_WORKLOADS:,} workloads have them; `{PREFIX}unlisted_workloads` counts the rest. At most {MAX_SOURCES}",
        f"sources, and {MAX_POOLS} pools, node groups, quotas and models each, have their own series. The Prometheus",
        "client adds `process_*` and, with every counter and histogram of the daemon itself, a `_created` time.",
    ]
    chapters = (
        ("Daemon", PROCESS),
        ("GPU pools", POOLS),
        ("Node groups", NODE_GROUPS),
        ("Quotas", QUOTAS),
        ("Weights", WEIGHTS),
        ("Workloads", WORKLOADS),
        ("KEDA mode only", KEDA),
        ("Agent of weights", AGENT),
        ("Webhook of weights", WEBHOOK),
    )
    for title, families in chapters:
        parts += ["", f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        for family in families:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            parts.append(f"| `{family.full_name}` | {family.type} | {labels} | {family.meaning} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
