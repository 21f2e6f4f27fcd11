"""The policy of each workload, as columns: its objectives and limits.

`autoscaler.config.policy` parses YAML into one row per workload. A parameter that a workload does not use is NaN; its
signal or stage then has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.samples import Objectives
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn

DEFAULT_WINDOW_S = 86_400.0
"""Misses fade over a day while a workload has no policy, and where the policy states no other time."""


@dataclass(frozen=True)
class Spec(Columns):
    """One row per workload; every field float64[W]. The comment behind a field gives unit, range and what NaN means."""

    ttft_objective_s: FloatColumn  # most seconds to the first token; NaN: no objective
    itl_objective_s: FloatColumn  # most seconds between two tokens; NaN: no objective
    attainment: FloatColumn  # 0..1, share of requests that must meet the objectives
    window_s: FloatColumn  # seconds over which that share is kept; > 0

    priority: FloatColumn  # a higher priority gets GPUs first when a pool is short
    weight: FloatColumn  # share among workloads of one priority, > 0
    headroom_share: FloatColumn  # 0..1 of its pool, before base replicas of lower priorities that can wait; NaN: none

    min_replicas: FloatColumn  # floor, unless scaled to zero; >= 0
    max_replicas: FloatColumn  # ceiling, >= min_replicas
    on_demand_floor: FloatColumn  # replicas of its service that come first and not on spot nodes; NaN: no preference

    max_wait_s: FloatColumn  # most seconds that a request may queue

    up_step_fraction: FloatColumn  # growth per period, as a fraction of the count at its start; NaN: not stated
    up_step_replicas: FloatColumn  # growth per period in replicas; NaN: not stated. The larger of both applies
    up_period_s: FloatColumn  # length of that period
    up_stabilization_s: FloatColumn  # grow to the least that was desired within this window; 0: at once
    down_step_fraction: FloatColumn  # shrinkage per period, likewise
    down_step_replicas: FloatColumn
    down_period_s: FloatColumn
    down_stabilization_s: FloatColumn  # shrink to the most that was desired within this window

    tolerance: FloatColumn  # 0..1, smaller relative changes are ignored
    idle_after_s: FloatColumn  # seconds without work until it goes to zero; NaN: never, inf: by the error budget

    concurrency: FloatColumn  # stated requests that a replica can run within the objective; NaN: learned
    prefill_tokens_per_s: FloatColumn  # stated prompt tokens per second of a replica; NaN: unknown, never learned
    decode_tokens_per_s: FloatColumn  # stated generated tokens per second of a replica; NaN: learned
    target_usage: FloatColumn  # 0..1, share of a replica's capacity to plan for
    kv_target_usage: FloatColumn  # 0..1, KV-cache usage to plan for

    min_decode_per_prefill: FloatColumn  # fewest decode replicas per prefill replica of a pair; NaN: no limit
    max_decode_per_prefill: FloatColumn  # most decode replicas per prefill replica; NaN: no limit

    sleep_replicas: FloatColumn  # replicas to keep asleep beside those that serve; NaN: none
    sleep_level: FloatColumn  # 1: their weights are in host memory, 2: dropped

    cold_start_s: FloatColumn  # seconds until a new replica serves; used until it is learned
    max_input_age_s: FloatColumn  # older readings are not trusted

    @property
    def objectives(self) -> Objectives:
        """The objectives and limits of age that sources are asked for."""
        return Objectives(self.ttft_objective_s, self.itl_objective_s, self.max_input_age_s)

    @property
    def first_token_limit_s(self) -> FloatColumn:
        """Most seconds to the first token, float64[W]: the TTFT objective, or else the time that a request may queue.

        NaN: neither is stated.
        """
        return np.where(np.isnan(self.ttft_objective_s), self.max_wait_s, self.ttft_objective_s)

    def can_wait(self, cold_start_s: FloatColumn) -> BoolColumn:
        """Return the workloads whose requests may wait for a new replica, bool[W]; False where no limit is stated.

        cold_start_s: float64[W], until a new replica serves.
        """
        return np.asarray(self.first_token_limit_s > cold_start_s)

    @property
    def error_budget(self) -> FloatColumn:
        """Fraction of requests that may miss their objective, float64[W]; rounded: 0.1, not 0.09999999999999998."""
        return np.round(1 - self.attainment, 12)

    @property
    def budget_window_s(self) -> FloatColumn:
        """Seconds over which the error budget is kept, float64[W]; `DEFAULT_WINDOW_S` without a policy."""
        return np.where(np.isnan(self.window_s), DEFAULT_WINDOW_S, self.window_s)

    @property
    def has_stated_capacity(self) -> BoolColumn:
        """Workloads whose policy states the capacity of a replica, bool[W]. The planner does not run for them."""
        unstated = np.isnan(self.concurrency) & np.isnan(self.prefill_tokens_per_s) & np.isnan(self.decode_tokens_per_s)
        return np.asarray(~unstated)


@dataclass(frozen=True)
class Schedule:
    """Pre-warm windows that are open now or open next, per workload; times on the clock of the tick.

    `autoscaler.config.policy.schedule` resolves cron expressions and time zones to seconds.
    """

    start_s: FloatColumn  # float64[W, K], begin of the window; NaN: no window in this slot
    until_s: FloatColumn  # float64[W, K], end of the window
    replicas: FloatColumn  # float64[W, K], replicas that must be ready inside the window
    lead_s: FloatColumn  # float64[W, K], replicas start this long before the begin; NaN: one cold start (lead: auto)
    name: IntColumn | None = None  # int64[W, K], index into `names`; -1: no window; None: no window has a name
    names: tuple[str, ...] = ()  # of windows; "": a window without a name

    def find_floor(self, now_s: float, lead_s: FloatColumn) -> FloatColumn:
        """Return the replicas of windows that are open, or open within their lead; float64[W], NaN: none.

        lead_s: float64[W], of replicas whose window states none: what of a cold start nothing else does before.
        """
        lead_s = np.where(np.isnan(self.lead_s), lead_s[:, None], self.lead_s)
        is_due = (self.start_s - lead_s <= now_s) & (now_s < self.until_s)
        return np.asarray(np.fmax.reduce(np.where(is_due, self.replicas, np.nan), axis=1, initial=np.nan))
