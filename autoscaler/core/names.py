"""Names under which decisions leave the process: in the HTTP API, in JSON lines, as labels of metrics.

They are an interface with a version of its own. A column that is renamed in the code keeps its name here; a test holds
each table against the columns that there are, and the names against those that were published.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autoscaler.core.decision import Signal, Stage

VERSION = 2
"""Of all names here and of the fields of the HTTP API: changed when one of them is renamed or removed."""

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
        Signal.WAKE: "wake_up",
        Signal.FORECAST: "planner",
    }
)

STAGES: Mapping[Stage, str] = MappingProxyType(
    {
        Stage.DEMAND: "recommendation",
        Stage.UNKNOWN: "unknown_inputs",
        Stage.BURST: "burst",
        Stage.TOLERANCE: "tolerance",
        Stage.STABILIZATION: "stabilization",
        Stage.IDLE: "scale_to_zero",
        Stage.RATE_LIMIT: "rate_limit",
        Stage.BOUNDS: "bounds",
        Stage.VARIANT: "variant",
        Stage.GRANT: "allocation",
        Stage.OWNER: "owner",
    }
)

OBSERVED: Mapping[str, str] = MappingProxyType(
    {
        "current_replicas": "replicas",
        "ready_replicas": "ready",
        "starting_replicas": "starting",
        "blocked_replicas": "blocked",
        "missing_replicas": "missing",
        "terminating_replicas": "terminating",
        "next_ready_s": "next_ready_s",
        "pledged_replica_s": "pledged_s",
        "reporting_replicas": "reporting",
        "joining_replicas": "joining",
        "sleeping_replicas": "asleep",
        "stuck_replicas": "stuck",
        "stuck_requests": "stuck_requests",
        "stuck_s": "stuck_s",
        "replaced_replicas": "replaced",
        "stand_in_replicas": "stand_in",
        "unshared_queue_replicas": "apart",
        "unshared_queue_requests": "apart_requests",
        "unshared_queue_s": "apart_s",
        "gateway_stuck": "gateway_stuck",
        "oldest_reading_age_s": "age_s",
        "full_replicas": "full",
        "full_replica_running_requests": "full_running",
        "full_replica_tokens_per_s": "full_tokens_per_s",
        "running_requests_per_replica": "batch",
        "running_requests": "running",
        "waiting_requests": "waiting",
        "draining_requests": "draining_requests",
        "draining_ended_requests": "draining_ended",
        "draining_prompt_tokens_per_s": "draining_prompt_tokens_per_s",
        "draining_generation_tokens_per_s": "draining_generation_tokens_per_s",
        "draining_kv_usage": "draining_kv_usage",
        "gateway_waiting_requests": "gateway_waiting",
        "gateway_arrivals_per_s": "gateway_arrivals_per_s",
        "gateway_silent_s": "gateway_silent_s",
        "kv_usage": "kv_usage",
        "prompt_tokens_per_s": "prompt_tokens_per_s",
        "generation_tokens_per_s": "generation_tokens_per_s",
        "finished_requests_per_s": "finished_per_s",
        "first_tokens_per_s": "first_tokens_per_s",
        "preemptions_per_s": "preemptions_per_s",
        "rejections_per_s": "rejections_per_s",
        "ended_requests": "ended",
        "output_tokens_per_request": "output_tokens",
        "ttft_s": "ttft_s",
        "itl_s": "itl_s",
        "replica_tokens_per_s": "pod_tokens_per_s",
        "queue_wait_s": "queue_wait_s",
        "gpu_loaded_replicas": "loaded",
        "gpu_active_replicas": "active",
        "gpu_loaded_idle_replica_s": "loaded_idle_s",
        "cold_start_s": "cold_start_s",
    }
)
"""Name of each column of `Observation`."""

CAPACITY: Mapping[str, str] = MappingProxyType(
    {
        "capacity_requests_per_replica": "concurrency",
        "capacity_prefill_tokens_per_s": "prefill_tokens_per_s",
        "capacity_decode_tokens_per_s": "decode_tokens_per_s",
        "capacity_confidence": "confidence",
    }
)
"""Name of each column of `Capacity`."""

PLANNER: Mapping[str, str] = MappingProxyType(
    {
        "planner_load_replicas": "demand_replicas",
        "planner_recommended_replicas": "asked_replicas",
        "planner_headroom_replicas": "headroom_replicas",
        "planner_strategy_replicas": "rule_replicas",
        "planner_base_replicas": "needed_replicas",
        "planner_replica_requests_per_s": "requests_per_s",
        "planner_replica_token_gap_s": "idle_gap_s",
        "planner_replica_prompt_tokens_per_s": "prompt_tokens_per_s",
        "planner_replica_generation_tokens_per_s": "generation_tokens_per_s",
        "planner_readings": "readings",
        "planner_observed_s": "watched_s",
        "planner_warm_up_s": "kept_s",
        "planner_load_average_s": "level_s",
        "planner_peak_hold_cold_starts": "held_cold_starts",
        "planner_peak_hold_s": "held_s",
        "planner_safety_margin_fraction": "margin_fraction",
        "planner_safety_margin_roots": "margin_roots",
        "planner_constant_replicas": "least_replicas",
        "planner_error_budget_fraction": "promised_fraction",
        "planner_allowed_fraction": "allowed_fraction",
        "planner_shadow_missed_fraction": "paper_missed_fraction",
        "planner_unavoidable_fraction": "unavoidable_fraction",
        "planner_missed_fraction": "missed_fraction",
        "planner_error_budget_used": "burnt_budgets",
    }
)
"""Name of each figure of the planner, a field of `outlook.Figures`."""
