"""Shadow fleets: one computed fleet for each strategy, which serves the demand that was measured.

A replica of a shadow fleet is ready one cold start after the strategy requested it. As many as the policy keeps asleep
are ready one wake-up after it. Demand beyond the fleet's capacity queues. Requests miss their objective in that queue,
or because the replicas are too busy. So each strategy has a cost and misses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.measure import miss_curve
from autoscaler.core.measure.capacity import compute_carried_load
from autoscaler.core.measure.interval import Interval, IntervalStats
from autoscaler.core.planner import strategies
from autoscaler.core.planner.load_history import LoadHistory, compute_ready_peaks
from autoscaler.core.planner.strategies import CONSTANTS, COUNTS_BELOW, LADDER, STRATEGIES, Float32Column
from autoscaler.core.table.columns import Columns, FloatColumn, PerObjective, PerStrategySet, Transient, or_zero

FADE_S = 2 * 86_400.0
"""Time constant with which cost and misses fade: a few days."""

REAL_FLEET_S = 600.0
"""Seconds of demand for which a shadow fleet has at least as many replicas as really serve."""


@dataclass(frozen=True)
class ShadowFleets(Columns):
    """Cost and misses of each strategy; float32[M, W] unless stated. M strategies."""

    observed_s: PerStrategySet[FloatColumn]  # float64[W], seconds of demand that they served, not fading
    counts: PerStrategySet[Float32Column]  # constant counts; 0: the strategy has none
    requested: Transient[Float32Column]  # replicas that each strategy requests since the last update
    backlog: Transient[Float32Column]  # replica-seconds of waiting work
    cost: PerStrategySet[Float32Column]  # replica-seconds, fading
    queue_missed: PerStrategySet[Float32Column]  # requests that missed in a queue, or before this process began, fading
    queue_sum: Transient[PerObjective[Float32Column]]  # mean queue that the other requests met, summed, fading alike
    missed: PerStrategySet[Float32Column]  # requests that missed, by the present miss curve
    arrived: PerStrategySet[FloatColumn]  # float64[W], all requests, fading alike

    @classmethod
    def blank(cls, rows: int) -> ShadowFleets:
        none, by_strategy = np.zeros(rows), np.zeros((len(STRATEGIES), rows), np.float32)
        unknown, counts = np.full_like(by_strategy, np.nan), by_strategy + strategies.MIN_REPLICAS
        return cls(none, counts, unknown, by_strategy, by_strategy, by_strategy, by_strategy, by_strategy, none)


def update_shadow_fleets(
    fleets: ShadowFleets, stats: IntervalStats, interval: Interval, history: LoadHistory
) -> ShadowFleets:
    """Let every shadow fleet serve the demand of an interval. history: before it.

    With 2 replicas asleep and 4 ready, 6 serve of 9 that were requested a wake-up ago. A pre-warm window adds its
    replicas to every strategy: they cost from its lead on, and serve once they really do. A surge first fills the
    batches of the replicas, in which no request waits; only the work beyond them queues. Misses by load are
    computed again with each update, so that the first hour is judged by the curve known now.
    """
    observed = (interval.observed_s > 0) & ~np.isnan(fleets.requested[0])
    interval_s = np.where(observed, interval.observed_s, 0.0)
    fade = np.exp(-interval_s / FADE_S)
    arrived, demand = (np.where(observed, each, 0.0) for each in (interval.arrivals, interval.demand))
    max_queue_s = np.where(np.isnan(stats.max_queue_s), np.inf, stats.max_queue_s)
    floor = np.fmax(stats.floor, np.minimum(stats.window_floor, stats.replicas))
    floor = np.where(fleets.observed_s < REAL_FLEET_S, np.maximum(floor, stats.replicas), floor)
    peaks = compute_ready_peaks(history, stats.cold_start_s, stats.cold_start_s)
    ready = strategies.compute_replicas(peaks, fleets.counts, floor, stats.ceiling)
    if (stats.kept_asleep > 0).any():
        peaks = compute_ready_peaks(history, stats.wake_s, stats.cold_start_s)
        woken = strategies.compute_replicas(peaks, fleets.counts, floor, stats.ceiling)
        ready = np.maximum(ready, np.minimum(woken, ready + stats.kept_asleep.astype(np.float32)))
    fade32, arrived32, interval32_s, work_s, max_queue32_s, batch_room_s, demand32 = np.array(
        [fade, arrived, interval_s, demand * interval_s, max_queue_s, interval.batch_room_s, demand], np.float32
    )
    carried = compute_carried_load(ready)
    backlog = np.maximum(fleets.backlog + (work_s - interval32_s * carried), np.float32(0))
    newly_missed = np.where(backlog > max_queue32_s * carried + batch_room_s * ready, arrived32, np.float32(0))
    queue_missed = fleets.queue_missed * fade32
    queue_missed += newly_missed
    queue_sum = fleets.queue_sum * fade32
    queue_sum += (arrived32 - newly_missed) * miss_curve.compute_mean_queue(demand32 / ready)
    cost = fleets.cost * fade32
    paid = np.maximum(fleets.requested, or_zero(stats.window_floor).astype(np.float32))
    cost += np.where(observed, paid, np.float32(0)) * interval32_s
    return ShadowFleets(
        observed_s=fleets.observed_s + interval_s,
        counts=fleets.counts,
        requested=fleets.requested,
        backlog=np.where(observed, backlog, np.float32(0)),  # nothing is known of a queue after a gap
        cost=cost,
        queue_missed=queue_missed,
        queue_sum=queue_sum,
        missed=queue_missed + queue_sum * interval.steepness.astype(np.float32),
        arrived=fleets.arrived * fade + arrived,
    )


def follow_mean_load(fleets: ShadowFleets, work_s: FloatColumn) -> ShadowFleets:
    """Choose the constant counts about the mean load. work_s: float64[W], of a request.

    A new count has the misses of the nearest one that there was, and the cost of as many replicas all the time.
    """
    seconds, first, place = -FADE_S * np.expm1(-fleets.observed_s / FADE_S), -CONSTANTS, np.arange(CONSTANTS)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = LADDER.searchsorted(or_zero(fleets.arrived * work_s / seconds), side="right") - 1 - COUNTS_BELOW
    wanted, rung = np.clip([wanted, LADDER.searchsorted(fleets.counts[first])], 0, len(LADDER) - CONSTANTS)
    steps = wanted - rung
    steps = np.where(np.abs(steps) > 1, steps, 0)
    if not steps.any():
        return fleets
    nearest, counts, after = np.clip(place + steps, 0, CONSTANTS - 1), LADDER[rung + steps + place], fleets.columns()
    for name in ("backlog", "cost", "queue_missed", "queue_sum", "missed", "counts"):
        after[name] = after[name].copy()
        after[name][first:] = np.take_along_axis(after[name][first:], nearest, axis=0)
    after["cost"][first:] += np.maximum(counts - fleets.counts[-1], 0.0) * seconds
    after["counts"][first:] = counts
    return ShadowFleets(**after)
