"""The plan of each workload: what the planner recommends and by what, from the state of its strategies."""

from __future__ import annotations

import numpy as np

from autoscaler.core.measure.interval import IntervalStats
from autoscaler.core.measure.offered_load import compute_work_s
from autoscaler.core.measure.replica_speed import fit_speed
from autoscaler.core.model.forecast import Forecast
from autoscaler.core.model.types import Plan
from autoscaler.core.planner.load_history import find_peak_expiry
from autoscaler.core.planner.scale_to_zero import IdleTimeouts
from autoscaler.core.planner.season import expect_load, find_past_loads
from autoscaler.core.planner.select import StrategyState
from autoscaler.core.planner.strategies import PREDICTION, compute_replicas_of, find_highest_load
from autoscaler.core.planner.surges import compute_kept_s
from autoscaler.core.table.columns import FloatColumn, IntColumn, or_zero


def make_plan(state: StrategyState, timeouts: IdleTimeouts, rows: IntColumn, stats: IntervalStats) -> Plan:
    """Make the plan of some workloads.

    timeouts: of all workloads. rows: int64[R], those that `state` and `stats` are about.
    Engines report nothing about requests that arrive at zero, so these are added to the missed requests.
    """
    selected = or_zero(state.strategy).astype(np.int64), np.arange(len(state.strategy))
    shadow, budget, fitted = state.shadow, state.budget, fit_speed(state.speed)
    count = shadow.counts[selected]
    day_ago, week_ago = find_past_loads(state.season, stats.cold_start_s, state.last_updated_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        shadow_missed = np.minimum(shadow.missed[selected] / shadow.arrived, 1.0)
        missed = (budget.missed + timeouts.late_arrivals[rows]) / (budget.counted + timeouts.arrivals_at_zero[rows])
        # The forecast has the margin of the selected strategy, as no replica would ever go to places beyond. Whether it
        # knows the season is not asked: shadow fleets do not tell what a start on a new node costs.
        expected_load, is_weekly = expect_load(state.season)
        forecast = np.where(np.isnan(state.replicas), np.nan, compute_replicas_of(selected[0], count, expected_load))
        return Plan(
            idle_gap_s=fitted.idle_gap_s,
            prompt_token_s=np.where(stats.prefill, 1 / state.speed.prompt_tokens_per_s, fitted.prompt_token_s),
            output_token_s=fitted.output_token_s,
            slots=state.speed.slots,
            readings=state.speed.readings,
            last_updated_s=state.last_updated_s,
            demand=state.offered_load.demand,
            work_s=compute_work_s(state.offered_load),
            strategy=state.strategy,
            constant_count=np.where(np.isnan(state.strategy), np.nan, count.astype(np.float64)),
            observed_s=shadow.observed_s,
            warm_up_s=state.warm_up_s,
            initial_fleet=state.initial_fleet,
            allowed_fraction=state.allowed_share,
            shadow_missed_fraction=np.where(shadow.arrived > 0, shadow_missed, np.nan),
            unavoidable_fraction=state.miss_counts.unavoidable,
            missed_fraction=np.where(budget.counted > 0, missed, np.nan),
            itl_counted_requests=state.miss_counts.counted[1].sum(axis=0),
            strategy_replicas=shadow.requested[selected].astype(np.float64),
            replicas=state.replicas,
            base_replicas=state.base_replicas,
            peak_expires_in_s=compute_peak_expiry(state, stats.cold_start_s),
            day_ago_load=day_ago.astype(np.float64),
            week_ago_load=week_ago.astype(np.float64),
            surges=state.surges.count,
            surge_counts_s=compute_kept_s(state.surges, shadow.observed_s, stats.cold_start_s),
            forecast=Forecast(forecast, is_weekly, state.season.bin_since_s),
        )


def compute_peak_expiry(state: StrategyState, cold_start_s: FloatColumn) -> FloatColumn:
    """Return the seconds until the held peak behind the recommendation expires; float64[R], NaN: none decides."""
    selected = or_zero(state.strategy).astype(np.int64)
    is_by_load = state.replicas > state.shadow.counts[selected, np.arange(len(selected))]
    load = find_highest_load(selected, or_zero(state.replicas) - 1)
    expires_s = find_peak_expiry(state.history, PREDICTION[selected], load, cold_start_s)
    return np.where((state.replicas >= 1) & is_by_load, expires_s - state.last_updated_s, np.nan)
