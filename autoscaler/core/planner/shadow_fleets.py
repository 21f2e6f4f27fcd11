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
from autoscaler.core.measure.interval import Interval, IntervalStats, WorkTotals
from autoscaler.core.planner import strategies
from autoscaler.core.planner.strategies import Float32Column
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    PerObjective,
    PerStrategySet,
    Transient,
    or_zero,
    replace,
)

FADE_S = 2 * 86_400.0
"""Time constant with which cost and misses fade: a few days."""

REAL_FLEET_S = 600.0
"""Seconds of demand for which a shadow fleet has at least as many replicas as really serve."""

REMAINING_ANSWER = 0.5
"""Share of its answer that a request in a batch has still to get, on average."""


@dataclass(frozen=True)
class ShadowFleets(Columns):
    """Cost and misses of each strategy; float32[M, W] unless stated. M strategies."""

    observed_s: PerStrategySet[FloatColumn]  # float64[W], seconds of demand that they served, not fading
    requested: Transient[Float32Column]  # replicas that each strategy requests since the last update
    backlog: Transient[Float32Column]  # replica-seconds of waiting work
    cost: PerStrategySet[Float32Column]  # replica-seconds, fading
    queue_missed: PerStrategySet[Float32Column]  # requests that missed in a queue, or before this process began, fading
    queue_sum: Transient[PerObjective[Float32Column]]  # mean queue that the other requests met, summed, fading alike
    missed: PerStrategySet[Float32Column]  # requests that missed, by the present miss curve
    arrived: PerStrategySet[FloatColumn]  # float64[W], all requests, fading alike

    @classmethod
    def blank(cls, rows: int) -> ShadowFleets:
        none, by_strategy = np.zeros(rows), np.zeros((strategies.STRATEGY_COUNT, rows), np.float32)
        unknown = np.full_like(by_strategy, np.nan)
        return cls(none, unknown, by_strategy, by_strategy, by_strategy, by_strategy, by_strategy, none)


def update_shadow_fleets(
    fleets: ShadowFleets,
    stats: IntervalStats,
    interval: Interval,
    ready_peaks: Float32Column,
    woken_peaks: Float32Column | None = None,
) -> ShadowFleets:
    """Let every shadow fleet serve the demand of an interval.

    ready_peaks, woken_peaks: float32[J, W], of `load_history.compute_ready_peaks` and `compute_woken_peaks`; the latter
    is None where no workload keeps replicas asleep.

    A pre-warm window adds its replicas to every strategy: they cost from its lead on, and serve once they really do.

    A surge first fills the batches of the replicas, in which no request waits; only the work beyond them queues.
    Misses by load are computed again with each update, so that the first hour is judged by the curve known now.
    """
    observed = (interval.observed_s > 0) & ~np.isnan(fleets.requested[0])
    interval_s = np.where(observed, interval.observed_s, 0.0)
    fade = np.exp(-interval_s / FADE_S)
    arrived = np.where(observed, interval.arrivals, 0.0)
    demand = np.where(observed, interval.demand, 0.0)
    max_queue_s = np.where(np.isnan(stats.max_queue_s), np.inf, stats.max_queue_s)
    fade32, arrived32, interval32_s = _to_float32(fade, arrived, interval_s)

    floor = np.fmax(stats.floor, np.minimum(stats.window_floor, stats.replicas))
    floor = np.where(fleets.observed_s < REAL_FLEET_S, np.maximum(floor, stats.replicas), floor)
    ready = strategies.compute_replicas(ready_peaks, floor, stats.ceiling)
    if woken_peaks is not None:
        ready = _wake(ready, strategies.compute_replicas(woken_peaks, floor, stats.ceiling), stats.kept_asleep)
    work_s, max_queue32_s, batch_room_s, demand32 = _to_float32(
        demand * interval_s, max_queue_s, interval.batch_room_s, demand
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
        requested=fleets.requested,
        backlog=_drop_unobserved(backlog, observed),
        cost=cost,
        queue_missed=queue_missed,
        queue_sum=queue_sum,
        missed=queue_missed + queue_sum * interval.steepness.astype(np.float32),
        arrived=fleets.arrived * fade + arrived,
    )


def inherit_record(fleets: ShadowFleets, strategy: IntColumn, asleep: BoolColumn) -> ShadowFleets:
    """Give strategies that cannot predict yet the cost and misses of the selected one (sleeping experts).

    strategy: int64[W], the selected one. asleep: bool[M, W].
    """
    if not asleep.any():
        return fleets
    rows = np.arange(len(strategy))
    names = ("cost", "queue_missed", "queue_sum", "missed")
    columns = {name: getattr(fleets, name) for name in names}
    return replace(fleets, **{name: np.where(asleep, each[strategy, rows], each) for name, each in columns.items()})


def compute_batch_room_s(
    totals: WorkTotals, work_s: FloatColumn, prompt_share: FloatColumn, slots: FloatColumn, max_running: FloatColumn
) -> FloatColumn:
    """Return the work of a surge that the batch of one replica takes in before a request waits; float64[W].

    In replica-seconds; 0 where it is not known. A growing batch runs more slowly: it takes in more than it works off,
    until the KV cache or the slots are full or the token gaps reach the ITL objective. A request in the batch has its
    prompt computed and half of its answer generated, on average. 300 requests of 0.12 s, a third of it for the prompt,
    are 12 s.

    work_s: float64[W], work of a request. prompt_share: float64[W], share of it for the prompt. slots: float64[W],
    requests that it can run at once; NaN: not known. max_running: float64[W], requests at which the gaps reach the ITL
    objective; NaN: none.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        fit_in_cache = np.where(totals.kv_usage > 0, totals.running / totals.kv_usage, np.nan)
        most = np.fmin(slots, fit_in_cache)
        most = np.where(np.isnan(max_running), most, np.minimum(most, max_running))
        return or_zero(np.maximum(REMAINING_ANSWER * most * work_s * (1 - prompt_share), 0.0))


def _wake(ready: Float32Column, requested: Float32Column, kept_asleep: FloatColumn) -> Float32Column:
    """Return the replicas that serve once sleeping ones are awake; float32[M, W].

    ready: float32[M, W], requested a cold start ago. requested: float32[M, W], a wake-up ago.
    With 2 asleep and 4 ready, 6 of 9 requested replicas serve.
    """
    return np.maximum(ready, np.minimum(requested, ready + kept_asleep.astype(np.float32)))


def _to_float32(*columns: FloatColumn) -> list[Float32Column]:
    return [column.astype(np.float32) for column in columns]


def _drop_unobserved(backlog: Float32Column, observed: BoolColumn) -> Float32Column:
    """Return the backlog, 0 where demand was not known: nothing is known of a queue after such a gap."""
    return backlog if observed.all() else np.where(observed, backlog, np.float32(0))
