"""Select the sizing strategy that would have cost least within the error budget (follow-the-leader).

Every strategy has a shadow fleet, which has a cost and misses on the demand that was measured. The state that decides
is in one table for each idea, beside the functions that update it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.measure import miss_curve, offered_load, replica_speed
from autoscaler.core.measure.batch_room import measure_batch_room_s
from autoscaler.core.measure.interval import Interval, IntervalStats
from autoscaler.core.measure.offered_load import OfferedLoad
from autoscaler.core.planner import error_budget, load_history, season, shadow_fleets, strategies
from autoscaler.core.planner.season import Season
from autoscaler.core.planner.shadow_fleets import ShadowFleets
from autoscaler.core.planner.strategies import Float32Column
from autoscaler.core.planner.surges import PRIOR_S, Surges, compute_unseen_share, forget_queues, update_surges
from autoscaler.core.readings.pod_deltas import MAX_INTERVAL_S
from autoscaler.core.table.columns import (
    PER_OBJECTIVE,
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    PerObjective,
    PerStrategySet,
    TimestampColumn,
    Transient,
    clip,
    or_zero,
    replace,
)

STEADY_S = 7200.0
"""Seconds of demand for which no headroom is added to the initial fleet, as long as traffic is steady."""

BUDGET_ADVANCE_S = 440.0
"""Seconds of arrivals whose error budget may be used in steady traffic before headroom is added."""

MISS_PRICE = 300.0
"""Price of a miss beyond the budget, in the work of a request. At 99 % one miss less costs 30 to 400. A far higher
price would pay for misses that cannot be avoided, such as those of a surge that ends before a replica is ready."""

MIN_SAVING = 0.01
"""Share of its cost that leaving the selected strategy must save; otherwise two equal ones would alternate."""


@dataclass(frozen=True)
class StrategyState(Columns):
    """The state that decides on the strategy, and the selected one; float64[W] but for the tables."""

    signature: PerStrategySet[FloatColumn]  # `strategies.SIGNATURE` of the set that the shadow fleets belong to
    last_updated_s: Transient[TimestampColumn]  # NaN: never
    first_token_limit_s: PerObjective[FloatColumn]  # limit that misses were counted against; NaN: none
    itl_objective_s: PerObjective[FloatColumn]  # likewise

    speed: replica_speed.ReplicaSpeed
    offered_load: OfferedLoad
    history: Transient[load_history.LoadHistory]
    season: Season
    miss_counts: PerObjective[miss_curve.MissCounts]
    budget: error_budget.ErrorBudget
    shadow: ShadowFleets
    surges: PerObjective[Surges]

    initial_fleet: Transient[PerObjective[FloatColumn]]  # the count when it was first seen: its owner's
    warm_up_s: PerStrategySet[FloatColumn]  # seconds of demand for which they are kept; fixed once these are over
    base_replicas: Transient[FloatColumn]  # replicas that the present load needs; NaN: not known
    strategy: Transient[FloatColumn]  # the selected one, its row; NaN: none yet
    allowed_share: Transient[FloatColumn]  # of requests that it may miss
    replicas: Transient[FloatColumn]  # that are recommended; NaN: the planner has no opinion

    @classmethod
    def blank(cls, rows: int) -> StrategyState:
        return replace(super().blank(rows), signature=np.full(rows, strategies.SIGNATURE))


def update_strategies(before: StrategyState, stats: IntervalStats, now_s: float) -> StrategyState:
    """Let all shadow fleets serve the interval since the last update, and select a strategy."""
    before = _reset_changed_objectives(before, stats)
    interval_s = or_zero(np.maximum(now_s - before.last_updated_s, 0.0))  # NaN: there was no update before
    speed, fitted = replica_speed.update_replica_speed(before.speed, stats.totals, interval_s)
    load, arrivals = offered_load.update_offered_load(before.offered_load, stats, fitted.idle_gap_s, speed, interval_s)
    # Nothing is counted without a policy: there is no ceiling for a shadow fleet, and no objective to miss.
    is_unobserved = np.isnan(load.demand) | np.isnan(stats.first_token_limit_s) | (interval_s > MAX_INTERVAL_S)
    observed_s = np.where(is_unobserved, 0.0, interval_s)
    miss_counts, steepness = miss_curve.update_miss_counts(before.miss_counts, stats, load, observed_s)
    batch_room_s = measure_batch_room_s(stats, speed, fitted, load)
    measured = replace(before, speed=speed, offered_load=load, miss_counts=miss_counts)
    return serve_interval(measured, stats, Interval(observed_s, load.demand, arrivals, steepness, batch_room_s), now_s)


def serve_interval(before: StrategyState, stats: IntervalStats, interval: Interval, now_s: float) -> StrategyState:
    """Let all shadow fleets serve an interval that ends now, and select a strategy. before: with its measurements."""
    interval_s, load = or_zero(np.maximum(now_s - before.last_updated_s, 0.0)), before.offered_load
    past_week = season.update_season(before.season, load.demand, interval.observed_s, now_s)
    season_load = np.fmax(*season.find_past_loads(past_week, stats.cold_start_s, now_s))
    history, predicted = load_history.update_load_history(
        before.history, load.demand, season_load, stats.cold_start_s, interval_s, now_s
    )
    shadow = shadow_fleets.update_shadow_fleets(before.shadow, stats, interval, before.history)
    budget, missed = error_budget.update_error_budget(before.budget, stats, interval)
    missed = np.where(offered_load.queue_misses_limit(load, stats), missed, 0.0)
    surges, is_single = update_surges(
        before.surges, before.shadow, shadow, interval.arrivals, missed, budget.served, history.averages[1], stats
    )
    state = replace(
        before,
        last_updated_s=np.full(len(interval_s), now_s),
        history=history,
        season=past_week,
        budget=budget,
        shadow=shadow_fleets.follow_mean_load(forget_queues(shadow, is_single), offered_load.compute_work_s(load)),
        surges=surges,
    )
    return select_strategy(_size_fleets(state, stats, predicted), stats)


def _reset_changed_objectives(state: StrategyState, stats: IntervalStats) -> StrategyState:
    """Start over with all that was counted under other objectives, also before a restart; keep it without a policy."""
    objectives = {name: getattr(stats, name) for name in ("first_token_limit_s", "itl_objective_s")}
    before_s, now_s = np.array([getattr(state, name) for name in objectives]), np.array([*objectives.values()])
    with np.errstate(divide="ignore", invalid="ignore"):
        is_near = np.abs(before_s / now_s - 1) <= 1e-6  # `np.isclose` takes ten times as long on few rows
    is_same = is_near | (before_s == now_s) | (np.isnan(before_s) & np.isnan(now_s))
    has_changed = ~is_same.all(axis=0) & ~np.isnan(stats.budget_share)
    if not has_changed.any():
        return state
    blank = replace(StrategyState.blank(len(has_changed)), **objectives).columns()
    columns, marks = state.columns(), StrategyState.marks()
    names = [name for name in columns if PER_OBJECTIVE in marks[name]]
    return state.with_columns({name: np.where(has_changed, blank[name], columns[name]) for name in names})


def _size_fleets(state: StrategyState, stats: IntervalStats, predicted: Float32Column) -> StrategyState:
    """Compute what every strategy requests, and the base replicas. predicted: of `load_history.update_load_history`."""
    initial_fleet = np.where(np.isnan(state.initial_fleet), stats.ordered, state.initial_fleet)
    observed_s = state.shadow.observed_s
    # The initial fleet was presumably sized on purpose. It is kept as a peak that was seen just before. Replicas that
    # the first queue adds before demand is known are not part of it.
    # Its time is fixed once it is over. Otherwise one slow start, hours later, would bring the initial fleet back.
    is_over = observed_s >= state.warm_up_s
    warm_up_s = np.where(is_over, state.warm_up_s, strategies.LONGEST_HOLD * stats.cold_start_s)
    floor = np.fmax(stats.floor, np.where(observed_s < warm_up_s, initial_fleet, np.nan))
    base = clip(strategies.add_margin(predicted[-1], 0.0, 1.0).astype(np.float64), floor, stats.ceiling)
    requested = strategies.compute_replicas(predicted[:-1], state.shadow.counts, floor, stats.ceiling)
    return replace(
        state,
        initial_fleet=initial_fleet,
        warm_up_s=warm_up_s,
        shadow=replace(state.shadow, requested=requested),
        base_replicas=base,
    )


def select_strategy(state: StrategyState, stats: IntervalStats) -> StrategyState:
    """Select the cheapest strategy, where each miss beyond the budget has a price, and recommend its replicas.

    Strategies that cannot predict yet are not selected, and have the record of the selected one (sleeping experts). No
    replica is given up while requests wait for too long, least of all one that still loads. Another strategy that
    requests fewer was chosen by the demand before, and clients that leave the queue are in no count.
    """
    rows, shadow = np.arange(len(state.strategy)), state.shadow
    allowed_share = error_budget.compute_allowed_share(
        state.budget, stats.budget_share, stats.window_s, state.miss_counts.unavoidable
    )
    requests_per_s = or_zero(error_budget.compute_requests_per_s(state.budget))
    asleep = strategies.IS_SEASONAL[:, None] & season.is_unknown(state.season)
    prior_requests = requests_per_s * PRIOR_S * compute_unseen_share(state.surges, requests_per_s, stats.cold_start_s)
    price = np.where(asleep, np.float32(np.inf), _compute_prices(state, allowed_share, prior_requests))
    cheapest = price.argmin(axis=0)
    before = or_zero(state.strategy).astype(np.int64)
    saving = price[before, rows] - price[cheapest, rows]
    stays = ~np.isnan(state.strategy) & (saving <= MIN_SAVING * shadow.cost[before, rows])
    strategy = np.where(stays, before, cheapest)
    replicas = np.fmin(shadow.requested[strategy, rows], _limit_in_steady_traffic(state, stats, requests_per_s))
    misses_limit = offered_load.queue_misses_limit_now(state.offered_load, stats)
    # The average that the strategy follows may take longer than a cold start to show the rise; the shortest shows it.
    follows_slowly = misses_limit & (stats.cold_start_s >= strategies.AVERAGES_S[-1])
    shortest = state.history.averages[:1].astype(np.float32)
    at_once = strategies.compute_replicas_of(strategy, shadow.counts[strategy, rows], shortest)[0]
    replicas = np.where(follows_slowly, np.fmax(replicas, np.minimum(at_once, stats.ceiling)), replicas)
    replicas = np.where(misses_limit, np.fmax(replicas, np.minimum(state.replicas, stats.ceiling)), replicas)
    has_opinion = ~np.isnan(state.offered_load.demand) & ~np.isnan(stats.first_token_limit_s)
    return replace(
        state,
        shadow=inherit_record(shadow, strategy, asleep),
        strategy=np.where(has_opinion, strategy.astype(np.float64), state.strategy),
        allowed_share=allowed_share,
        replicas=np.where(has_opinion, replicas, np.nan),
    )


def inherit_record(fleets: ShadowFleets, strategy: IntColumn, asleep: BoolColumn) -> ShadowFleets:
    """Give strategies that are asleep, bool[M, W], the cost and misses of the selected one, int64[W]."""
    if not asleep.any():
        return fleets
    record = {name: getattr(fleets, name) for name in ("cost", "queue_missed", "queue_sum", "missed")}
    rows = np.arange(len(strategy))
    return replace(fleets, **{name: np.where(asleep, each[strategy, rows], each) for name, each in record.items()})


def _compute_prices(state: StrategyState, allowed_share: FloatColumn, prior_requests: FloatColumn) -> Float32Column:
    """Return the cost of each strategy plus the price of its misses beyond the budget; float32[M, W].

    prior_requests: float64[W], requests of the surge that the prior assumes, as far as none was seen. The prior only
    adds misses. It never frees budget, even for a strategy with a prior below what it may miss.
    """
    shadow = state.shadow
    prior = strategies.compute_prior_misses(state.history.averages[-1], shadow.counts)
    excess = np.maximum(prior - allowed_share, 0.0)
    missed = shadow.missed + (prior_requests * excess).astype(np.float32)
    missed -= (allowed_share * shadow.arrived).astype(np.float32)
    np.maximum(missed, np.float32(0), out=missed)
    miss_price = MISS_PRICE * or_zero(offered_load.compute_work_s(state.offered_load))
    missed *= miss_price.astype(np.float32)
    return missed + shadow.cost


def _limit_in_steady_traffic(state: StrategyState, stats: IntervalStats, requests_per_s: FloatColumn) -> FloatColumn:
    """Return the most that is recommended in steady traffic in the first hours; float64[W], NaN: no limit.

    The initial fleet was presumably sized on purpose, and steady traffic shows no reason to add headroom to it, unless
    too many requests missed. After a restart the limit is gone, as traffic before it may not have been steady.
    """
    observed_s = state.shadow.observed_s
    is_limited = load_history.is_steady(state.history) & (observed_s < STEADY_S)
    is_limited &= state.history.observed_s >= observed_s  # False after a restart
    counted = state.budget.counted + requests_per_s * BUDGET_ADVANCE_S
    is_limited &= state.budget.missed <= stats.budget_share * counted
    most = np.fmax(np.minimum(state.initial_fleet, stats.ceiling), state.shadow.requested[strategies.STEADY_LIMIT])
    return np.where(is_limited, most, np.nan)
