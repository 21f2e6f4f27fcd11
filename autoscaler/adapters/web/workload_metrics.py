"""The metrics of workloads: a row for each, with the column of the tick that it shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoscaler.adapters.web.metric_family import POOL_LABELS, WORKLOAD_LABELS, Column, Family
from autoscaler.core.gpu_use import GpuState, IdleCause
from autoscaler.core.model.chain import Cause
from autoscaler.core.model.types import Decision, Stage
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import TickRecord


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
