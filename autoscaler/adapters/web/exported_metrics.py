"""Every metric the daemon exports: name, type, labels, meaning. `docs/reference/metrics.md` is printed from here.

    python -m autoscaler.adapters.web.exported_metrics > docs/reference/metrics.md

`metrics` keeps and renders the values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autoscaler.adapters.web.node_groups import LABELS
from autoscaler.adapters.web.quotas import LABELS as QUOTA_LABELS
from autoscaler.core.gpu_use import GpuState, IdleCause
from autoscaler.core.model.chain import Cause
from autoscaler.core.model.phases import Phase
from autoscaler.core.model.types import Decision, Signal, Stage
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.ports import TickRecord

Column = Callable[[TickRecord], FloatColumn | BoolColumn]
PREFIX = "vllm_autoscaler_"
WORKLOAD_LABELS = ("namespace", "workload", "kind")
POOL_LABELS = ("resource", "product", "nodes")
MAX_WORKLOADS = 10_000  # workloads with series of their own
MAX_SOURCES = 32
MAX_POOLS = 256


@dataclass(frozen=True)
class Family:
    """One metric. `column` returns its values if it has one value per workload and no further labels."""

    name: str  # without PREFIX
    type: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    column: Column | None = None

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


def _of(table: str, field: str) -> Callable[[TickRecord], FloatColumn]:
    """Return a function that reads one column of a table of the decision."""

    def column(tick: TickRecord) -> FloatColumn:
        values: FloatColumn = getattr(getattr(tick.decision, table), field)
        return values

    return column


def _coverage(tick: TickRecord) -> FloatColumn:
    """Return the share of ready replicas whose engine answered; NaN without a ready replica."""
    seen = tick.decision.observation
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(seen.ready > 0, seen.reporting / seen.ready, np.nan)


def _wall(tick: TickRecord, moment_s: FloatColumn) -> FloatColumn:
    """Convert times on the clock of the tick to Unix time, in whole seconds."""
    return np.asarray(np.round(moment_s - tick.now_s + tick.wall_s))


def _windows(tick: TickRecord) -> FloatColumn:
    """Return when the next pre-warm window begins; NaN where a forecast rise comes first."""
    chain = tick.decision.chain
    return _wall(tick, np.where(chain.cause == Cause.WINDOW, chain.due_s, np.nan))


def _problem(tick: TickRecord) -> FloatColumn:
    """Return 1 for workloads with a problem, else NaN."""
    column = np.full(len(tick.policies), np.nan)
    column[list(tick.problems)] = 1.0
    return column


def _demand(decision: Decision) -> FloatColumn:
    demand: FloatColumn = decision.stages[Stage.DEMAND]
    return demand


def _named(kind: type[GpuState] | type[IdleCause], end: int | None = None) -> str:
    return ", ".join(f"`{member.published}`" for member in [*kind][:end])


def _gauge(name: str, meaning: str, column: Column | None, *labels: str) -> Family:
    return Family(name, "gauge", meaning, WORKLOAD_LABELS + labels, column)


WORKLOADS = (
    _gauge("workload_info", "Always 1; the policy in force and the service.", None, "policy", "service"),
    _gauge("desired_replicas", "Replicas the daemon decided on.", lambda tick: tick.decision.replicas),
    _gauge("current_replicas", "spec.replicas in the cluster.", _of("observation", "replicas")),
    _gauge("ready_replicas", "Ready pods that are not leaving, and are awake.", _of("observation", "ready")),
    _gauge(
        "asleep_replicas",
        "Pods whose engine sleeps: they hold their GPUs, and are neither ready nor starting.",
        _of("observation", "asleep"),
    ),
    _gauge("starting_replicas", "Pods that are starting and can still become ready.", _of("observation", "starting")),
    _gauge(
        "blocked_replicas",
        "Pods that cannot become ready without a change: no room, no image, crashing.",
        _of("observation", "pending"),
    ),
    _gauge(
        "missing_replicas",
        "Replicas that should exist, have no pod, and are not being created: a quota, a webhook.",
        _of("observation", "missing_pods"),
    ),
    _gauge(
        "pending_replicas",
        "Replicas that are not ready, by class: `starting`, `node_coming`, `queued`, `no_room`, `quota`, `impossible`, "
        "`crashing` or `stuck_starting`, as in api.md; absent without one.",
        None,
        "class",
    ),
    _gauge(
        "stuck_replicas",
        "Ready pods that show requests and no progress: stuck, or their gauges are stale. Their load does not count.",
        _of("observation", "stuck"),
    ),
    _gauge(
        "recommended_replicas",
        "Replicas that the strongest signal recommends, before any limit.",
        lambda tick: _demand(tick.decision),
    ),
    _gauge(
        "signal_recommended_replicas",
        "Replicas that each signal recommends, unrounded; absent without an opinion.",
        None,
        "signal",
    ),
    _gauge(
        "recommender",
        "1 for the recommender that the count comes from: `planner`, `reactive`, `stated`, `overruled_by_queue`, "
        "`warming_up` or `no_policy`, as in api.md.",
        None,
        "recommender",
    ),
    _gauge("limited_by", "1 for the last stage that changed the count; absent where none did.", None, "stage"),
    _gauge("inputs_trusted", "1 while inputs are known and fresh enough to shrink on.", lambda t: t.decision.trusted),
    _gauge(
        "input_age_seconds",
        "Age of the oldest trusted engine reading; absent without one.",
        _of("observation", "age_s"),
    ),
    _gauge("input_coverage_ratio", "Share of ready replicas whose engine answered, 0 to 1.", _coverage),
    _gauge("running_requests", "Requests in the engines' running batches.", _of("observation", "running")),
    _gauge("waiting_requests", "Requests the engines hold but do not run.", _of("observation", "waiting")),
    _gauge(
        "gateway_waiting_requests",
        "Requests held by a gateway in front of the workload.",
        _of("observation", "gateway_waiting"),
    ),
    _gauge(
        "queue_wait_seconds",
        "Expected wait of the last request in the queue of the worst replica.",
        _of("observation", "queue_wait_s"),
    ),
    _gauge(
        "ttft_seconds",
        "Time to first token: p95 of the requests of all pods; absent without requests.",
        _of("observation", "ttft_s"),
    ),
    _gauge("ttft_objective_seconds", "The policy's TTFT objective.", lambda tick: tick.input.spec.ttft_objective_s),
    _gauge(
        "itl_seconds",
        "Inter-token latency: p95 of the gaps between tokens of all pods; absent without requests.",
        _of("observation", "itl_s"),
    ),
    _gauge("itl_objective_seconds", "The policy's ITL objective.", lambda tick: tick.input.spec.itl_objective_s),
    _gauge(
        "kv_cache_usage_ratio", "KV-cache usage, mean over reporting replicas, 0 to 1.", _of("observation", "kv_usage")
    ),
    _gauge(
        "capacity_requests",
        "Requests one replica can run at once within the objective.",
        _of("capacity", "concurrency"),
    ),
    _gauge(
        "capacity_prefill_tokens_per_second",
        "Prompt tokens one replica can compute per second.",
        _of("capacity", "prefill_tokens_per_s"),
    ),
    _gauge(
        "capacity_decode_tokens_per_second",
        "Tokens one replica can generate per second.",
        _of("capacity", "decode_tokens_per_s"),
    ),
    _gauge(
        "capacity_confidence_ratio",
        "Confidence in the capacity, 0 (a guess) to 1 (stated by the policy).",
        _of("capacity", "confidence"),
    ),
    _gauge(
        "planner_load_replicas",
        "Replicas that the requests arriving now keep busy, as measured.",
        _of("plan", "demand"),
    ),
    _gauge(
        "error_budget_ratio",
        "Error budget of the policy: share of requests that may miss their objective.",
        lambda tick: tick.input.spec.error_budget,
    ),
    _gauge(
        "error_budget_allowed_ratio",
        "Share of requests that the planner's strategy may miss now, after what was used or saved of it.",
        _of("plan", "allowed_fraction"),
    ),
    _gauge(
        "missed_requests_ratio",
        "Share of requests that missed TTFT or ITL within about the window of the policy, including those that came "
        "while no replica served; absent where they are not counted.",
        _of("plan", "missed_fraction"),
    ),
    _gauge(
        "cold_start_seconds",
        "Time from requesting a replica until it serves: learned or stated.",
        _of("observation", "cold_start_s"),
    ),
    _gauge(
        "cold_start_phase_seconds",
        "Quantile of a phase of the start that the next replica would have: `node`, `schedule`, `image`, `container`, "
        "`weights`, `engine`, `ready`, `first_token`; absent before a start was seen.",
        None,
        "phase",
        "quantile",
    ),
    _gauge(
        "cold_start_by_weights_seconds",
        "90th percentile of a start on a node that exists, by whether it holds the weights: `held`, `absent`; absent "
        "where nodes do not tell.",
        None,
        "weights",
    ),
    _gauge(
        "starting_pods",
        "Pods that are starting, by the phase they are in; absent if there are none.",
        None,
        "phase",
    ),
    _gauge(
        "prewarm_window_timestamp_seconds",
        "Unix time at which the next pre-warm window begins for which replicas are missing; absent: none begins soon.",
        _windows,
    ),
    _gauge(
        "prewarm_forecast_timestamp_seconds",
        "Unix time from which the load of a day or a week ago, `day_ago` or `week_ago`, needs more replicas, where "
        "nodes or weights are prepared for it; absent: none is needed soon.",
        None,
        "load",
    ),
    _gauge(
        "prewarm_link_timestamp_seconds",
        "Unix time at which a link of the earlier of these starts: `node`, `weights` or `replica`; absent if it is not "
        "needed, and `replica` before a forecast, where the planner recommends them.",
        None,
        "link",
    ),
    _gauge(
        "prewarm_requested_places",
        "Replicas for which places on nodes are requested before a pre-warm window, or a rise that is forecast.",
        _of("chain", "places"),
    ),
    _gauge(
        "gpu_loaded_replicas",
        "Pods whose framebuffer is in use; absent without GPU metrics.",
        _of("observation", "gpu_loaded"),
    ),
    _gauge(
        "gpu_active_replicas",
        "Pods whose tensor cores are active; absent without GPU metrics.",
        _of("observation", "gpu_active"),
    ),
    _gauge(
        "gpu_diagnosis_replicas",
        "Serving replicas of which the most frequent diagnosis of their GPUs is true: `busy`, `memory_bound_decode`, "
        "`compute_bound_prefill`, `communication_bound`, `starved`, `idle_and_loaded` or `stuck`. `witness` is "
        "`counters`, or `gpu_util` where that weak sign alone tells. Absent while it is unknown.",
        None,
        "diagnosis",
        "witness",
    ),
    Family(
        "gpu_loaded_idle_replica_seconds_total",
        "counter",
        "Replica-seconds loaded and idle since the workload was first seen.",
        WORKLOAD_LABELS,
        _of("observation", "loaded_idle_s"),
    ),
    Family(
        "gpu_seconds_total",
        "counter",
        "GPU-seconds of pods by state since the process began, a slice or a share of a GPU as its part: "
        f"{_named(GpuState, GpuState.OTHER)}. `ordered` has no GPU yet. Absent where never, and for unknown GPUs.",
        (*WORKLOAD_LABELS, "state"),
    ),
    Family(
        "idle_gpu_seconds_total",
        "counter",
        f"Those of the states `loaded_idle` to `failing` by what keeps them: {_named(IdleCause)}. Absent where never.",
        (*WORKLOAD_LABELS, "cause"),
    ),
    Family(
        "gpu_cost_dollars_total",
        "counter",
        "What `gpu_seconds_total` cost by state, in USD at the stated prices, else at list prices. Absent without a "
        "price.",
        (*WORKLOAD_LABELS, "state"),
    ),
    Family(
        "needed_gpu_seconds_total",
        "counter",
        "GPUs that the load needs, times seconds in which that was known, since the process began.",
        (*WORKLOAD_LABELS, *POOL_LABELS),
    ),
    Family(
        "lacking_gpu_seconds_total",
        "counter",
        "GPUs of replicas that are wanted and not there, because none is free for them, or a quota allows none. Absent "
        "where never.",
        (*WORKLOAD_LABELS, *POOL_LABELS),
    ),
    Family(
        "lacking_gpus_duration_seconds_total",
        "counter",
        "Seconds in which such GPUs were lacking. Absent where never.",
        (*WORKLOAD_LABELS, *POOL_LABELS),
    ),
    Family(
        "beyond_ceiling_gpu_seconds_total",
        "counter",
        "GPUs of replicas that are wanted beyond the highest count that policy or annotation allows. Absent where "
        "never.",
        (*WORKLOAD_LABELS, *POOL_LABELS),
    ),
    Family(
        "ceiling_duration_seconds_total",
        "counter",
        "Seconds in which replicas were wanted beyond that count. Absent where never.",
        (*WORKLOAD_LABELS, *POOL_LABELS),
    ),
    Family(
        "flaps_total",
        "counter",
        "Changes of spec.replicas undone within one cold start, since the workload was first seen.",
        WORKLOAD_LABELS,
        _of("observation", "flaps"),
    ),
    _gauge("paused", "1 while the operator has paused the workload.", lambda tick: tick.input.fleet.paused),
    _gauge(
        "problem",
        "1 while annotations or trigger of a workload are wrong, or KEDA's calls for it are refused; absent otherwise. "
        "`explain` says what it is.",
        _problem,
    ),
    _gauge("other_owner", "1 while another owner sets the replica count; the label `owner` names it.", None, "owner"),
)

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
