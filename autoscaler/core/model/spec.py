"""What each workload is promised and allowed: a policy, read into columns.

`autoscaler.config.policy` parses YAML into one row; rows are stacked into one table for all workloads. A parameter a
workload does not use is NaN, so the signal or stage it belongs to has no opinion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn


@dataclass(frozen=True)
class Spec(Columns):
    """One row per workload; every field float64[W]. The comment behind a field gives unit, range and what NaN means."""

    ttft_objective_s: FloatColumn  # seconds to the first token that a request may take; NaN: no objective
    itl_objective_s: FloatColumn  # seconds between two tokens; NaN: no objective
    attainment: FloatColumn  # 0..1, share of requests that must meet the objectives

    priority: FloatColumn  # higher is served first when a pool is short
    weight: FloatColumn  # share among equals of one priority, > 0

    min_replicas: FloatColumn  # floor while not at zero by scale-to-zero, >= 0
    max_replicas: FloatColumn  # ceiling, >= min_replicas

    max_wait_s: FloatColumn  # seconds that a request may queue by design

    up_step_fraction: FloatColumn  # growth allowed per period as a fraction of the count at its start; NaN: none stated
    up_step_replicas: FloatColumn  # growth allowed per period in replicas; NaN: none stated. The larger of both holds
    up_period_s: FloatColumn  # length of that period
    up_stabilization_s: FloatColumn  # grow only to what every moment of this window asked for; 0: at once
    down_step_fraction: FloatColumn  # shrinkage allowed per period, as above
    down_step_replicas: FloatColumn
    down_period_s: FloatColumn
    down_stabilization_s: FloatColumn  # shrink only to the most that any moment of this window asked for

    tolerance: FloatColumn  # 0..1, relative change too small to act on
    idle_after_s: FloatColumn  # seconds without work until it goes to zero; NaN: never, inf: as the budget bears

    concurrency: FloatColumn  # stated requests a replica can run at once within the objective; NaN: learned
    prefill_tokens_per_s: FloatColumn  # stated prompt tokens per second of a replica; NaN: not known, and never learned
    decode_tokens_per_s: FloatColumn  # stated generated tokens per second of a replica; NaN: learned
    target_usage: FloatColumn  # 0..1, share of a replica's capacity to plan for
    kv_target_usage: FloatColumn  # 0..1, KV-cache usage to plan for

    cold_start_s: FloatColumn  # seconds from asking for a replica until it serves, until it has been learned
    max_input_age_s: FloatColumn  # readings older than this are not trusted

    @property
    def promised_wait_s(self) -> FloatColumn:
        """Seconds to the first token by which rules are judged: as long as a request may queue, where no TTFT is
        promised. float64[W]; NaN: neither is stated."""
        return np.where(np.isnan(self.ttft_objective_s), self.max_wait_s, self.ttft_objective_s)

    @property
    def error_budget(self) -> FloatColumn:
        """Share of requests that may miss their objective, to be shown: 0.1, not 0.09999999999999998. float64[W]."""
        return np.round(1 - self.attainment, 12)

    @property
    def states_capacity(self) -> BoolColumn:
        """Where the policy states what a replica can do: that stands, and no forecast speaks. bool[W]."""
        unstated = np.isnan(self.concurrency) & np.isnan(self.prefill_tokens_per_s) & np.isnan(self.decode_tokens_per_s)
        return np.asarray(~unstated)


@dataclass(frozen=True)
class Schedule:
    """Pre-warm windows that are open now or open next, per workload; times on the clock of the tick.

    Cron expressions and time zones are resolved by `autoscaler.config.policy.schedule`; here they are plain seconds.
    """

    start_s: FloatColumn  # float64[W, K], begin of the window; NaN: no window in this slot
    until_s: FloatColumn  # float64[W, K], end of the window
    replicas: FloatColumn  # float64[W, K], replicas that must be ready inside the window
    lead_s: FloatColumn  # float64[W, K], ask this long before the begin; NaN: one cold start (lead: auto)
