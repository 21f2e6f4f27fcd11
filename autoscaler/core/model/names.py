"""Names under which decisions leave the process: in the HTTP API, in JSON lines, as labels of metrics.

They are an interface with a version of its own. A column that is renamed in the code keeps its published name here. A
test compares each table with the columns of the code, and the names with those published before.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autoscaler.core.model.chain import Cause, Link
from autoscaler.core.model.fleet import PendingClass
from autoscaler.core.model.phases import Phase
from autoscaler.core.model.types import Recommender, Signal, Stage
from autoscaler.core.model.weights import PodCache

VERSION = 1
"""Version of the names here and of the fields of the HTTP API. It changes when one of them is renamed or removed."""

SIGNALS: Mapping[Signal, str] = MappingProxyType(
    {
        Signal.CONCURRENCY: "concurrency",
        Signal.PREFILL: "prefill",
        Signal.DECODE: "decode",
        Signal.KV_CACHE: "kv_cache",
        Signal.TTFT: "ttft",
        Signal.ITL: "itl",
        Signal.REJECTIONS: "rejections",
        Signal.SCHEDULE: "schedule",
        Signal.WAKE: "wake",
        Signal.PLANNER: "forecast",
    }
)

RECOMMENDERS: Mapping[Recommender, str] = MappingProxyType(
    {
        Recommender.NO_POLICY: "no_policy",
        Recommender.STATED: "stated",
        Recommender.WARMING_UP: "warming_up",
        Recommender.REACTIVE: "reactive",
        Recommender.PLANNER: "planner",
        Recommender.OVERRULED_BY_QUEUE: "overruled_by_queue",
    }
)

STAGES: Mapping[Stage, str] = MappingProxyType(
    {
        Stage.DEMAND: "demand",
        Stage.UNKNOWN: "unknown",
        Stage.BURST: "burst",
        Stage.TOLERANCE: "tolerance",
        Stage.STABILIZATION: "stabilization",
        Stage.IDLE: "idle",
        Stage.RATE_LIMIT: "rate_limit",
        Stage.BOUNDS: "bounds",
        Stage.PAIR: "pair",
        Stage.VARIANT: "variant",
        Stage.EXCHANGE: "exchange",
        Stage.SLEEP: "sleep",
        Stage.ALLOCATION: "grant",
        Stage.PARTNER: "partner",
        Stage.OWNER: "owner",
    }
)

PENDING_CLASSES: Mapping[PendingClass, str] = MappingProxyType(
    {
        PendingClass.STARTING: "starting",
        PendingClass.NODE_COMING: "node_coming",
        PendingClass.QUEUED: "queued",
        PendingClass.NO_ROOM: "no_room",
        PendingClass.QUOTA: "quota",
        PendingClass.IMPOSSIBLE: "impossible",
        PendingClass.CRASHING: "crashing",
        PendingClass.STUCK_STARTING: "stuck_starting",
    }
)

CAUSES: Mapping[Cause, str] = MappingProxyType(
    {Cause.WINDOW: "window", Cause.DAY_AGO: "day_ago", Cause.WEEK_AGO: "week_ago"}
)

LINKS: Mapping[Link, str] = MappingProxyType(
    {
        Link.NODE: "node",
        Link.WEIGHTS: "weights",
        Link.REPLICA: "replica",
    }
)

PHASES: Mapping[Phase, str] = MappingProxyType(
    {
        Phase.NODE: "node",
        Phase.SCHEDULE: "schedule",
        Phase.IMAGE: "image",
        Phase.CONTAINER: "container",
        Phase.WEIGHTS: "weights",
        Phase.ENGINE: "engine",
        Phase.READY: "ready",
        Phase.FIRST_TOKEN: "first_token",
    }
)

CACHE_STATES: Mapping[PodCache, str] = MappingProxyType(
    {PodCache.UNKNOWN: "unknown", PodCache.ABSENT: "absent", PodCache.HELD: "held"}
)

OBSERVED: Mapping[str, str] = MappingProxyType(
    {
        "replicas": "replicas",
        "ready": "ready",
        "starting": "starting",
        "blocked": "pending",
        "missing": "missing_pods",
        "terminating": "terminating",
        "next_ready_s": "next_ready_s",
        "pledged_s": "starting_replica_s",
        "reporting": "reporting",
        "joining": "newly_ready",
        "asleep": "asleep",
        "wakeable": "wakeable",
        "wake_s": "wake_s",
        "stuck": "stuck",
        "stuck_requests": "stuck_requests",
        "stuck_s": "stuck_s",
        "replaced": "stuck_replaced",
        "stand_in": "stuck_min_replicas",
        "apart": "queue_outliers",
        "apart_requests": "queue_outlier_requests",
        "apart_s": "queue_outlier_s",
        "gateway_stuck": "gateway_stuck",
        "age_s": "age_s",
        "full": "saturated",
        "full_running": "saturated_running",
        "full_tokens_per_s": "saturated_tokens_per_s",
        "batch": "batch_size",
        "running": "running",
        "waiting": "waiting",
        "draining_requests": "draining_requests",
        "draining_ended": "draining_ended",
        "draining_prompt_tokens_per_s": "draining_prompt_tokens_per_s",
        "draining_generation_tokens_per_s": "draining_generation_tokens_per_s",
        "draining_kv_usage": "draining_kv_usage",
        "gateway_waiting": "gateway_waiting",
        "gateway_arrivals_per_s": "gateway_arrivals_per_s",
        "gateway_silent_s": "gateway_silent_s",
        "kv_usage": "kv_usage",
        "prompt_tokens_per_s": "prompt_tokens_per_s",
        "generation_tokens_per_s": "generation_tokens_per_s",
        "finished_per_s": "finished_per_s",
        "first_tokens_per_s": "first_tokens_per_s",
        "preemptions_per_s": "preemptions_per_s",
        "rejections_per_s": "rejections_per_s",
        "ended": "ended",
        "output_tokens": "output_tokens",
        "ttft_s": "ttft_s",
        "itl_s": "itl_s",
        "pod_tokens_per_s": "pod_tokens_per_s",
        "queue_wait_s": "queue_wait_s",
        "loaded": "gpu_loaded",
        "active": "gpu_active",
        "loaded_idle_s": "loaded_idle_s",
        "cold_start_s": "cold_start_s",
        "flaps": "flaps",
        "flap_age_s": "flap_age_s",
    }
)
"""Column of `Observation` by published name."""

CAPACITY: Mapping[str, str] = MappingProxyType(
    {
        "capacity_concurrency": "concurrency",
        "capacity_prefill_tokens_per_s": "prefill_tokens_per_s",
        "capacity_decode_tokens_per_s": "decode_tokens_per_s",
        "capacity_confidence": "confidence",
    }
)
"""Column of `Capacity` by published name."""

PLANNER: Mapping[str, str] = MappingProxyType(
    {
        "forecast_demand_replicas": "demand_replicas",
        "forecast_asked_replicas": "recommended_replicas",
        "forecast_headroom_replicas": "headroom_replicas",
        "forecast_rule_replicas": "strategy_replicas",
        "forecast_needed_replicas": "base_replicas",
        "forecast_requests_per_s": "requests_per_s",
        "forecast_idle_gap_s": "idle_gap_s",
        "forecast_prompt_tokens_per_s": "prompt_tokens_per_s",
        "forecast_generation_tokens_per_s": "generation_tokens_per_s",
        "forecast_readings": "readings",
        "forecast_watched_s": "observed_s",
        "forecast_kept_s": "warm_up_s",
        "forecast_level_s": "average_s",
        "forecast_held_cold_starts": "hold_cold_starts",
        "forecast_held_s": "peak_expires_in_s",
        "forecast_margin_fraction": "margin_fraction",
        "forecast_margin_roots": "margin_roots",
        "forecast_least_replicas": "constant_replicas",
        "forecast_promised_fraction": "budget_fraction",
        "forecast_window_s": "window_s",
        "forecast_allowed_fraction": "allowed_fraction",
        "forecast_paper_missed_fraction": "shadow_missed_fraction",
        "forecast_unavoidable_fraction": "unavoidable_fraction",
        "forecast_missed_fraction": "missed_fraction",
        "forecast_burnt_budgets": "used_budgets",
    }
)
"""Field of `planner_lines.Figures` by published name."""
