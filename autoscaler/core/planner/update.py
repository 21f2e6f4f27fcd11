"""The planning recommender: which workloads are updated with a tick, by which statistics, and what is recommended.

How a strategy is selected is in `select`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.chain import Link
from autoscaler.core.model.types import Observation, Plan, Recommendation, Signal, TickInput
from autoscaler.core.observe import draining, load
from autoscaler.core.observe.pod_deltas import MAX_INTERVAL_S, PodReadings
from autoscaler.core.observe.wake_ups import is_managed
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.planner.groups import GROUPS, CountedReadings, LateQueues, PlannerState
from autoscaler.core.planner.interval import IntervalStats, WorkTotals, count_work, find_new_readings
from autoscaler.core.planner.plan import make_plan
from autoscaler.core.planner.replica_speed import update_slots
from autoscaler.core.planner.scale_to_zero import IdleTimeouts, compute_wake_up_share, update_idle_timeouts
from autoscaler.core.planner.select import StrategyState, update_strategies
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, TimestampColumn, or_zero, replace
from autoscaler.core.table.groupby import GroupBy


def recommend(inp: TickInput, observed: Observed, before: PlannerState) -> tuple[Recommendation, PlannerState]:
    """Update the planner, and return its recommendation."""
    observation = observed.observation
    idle_timeouts = update_idle_timeouts(inp, observation, observed.arrivals, before.idle_timeouts)
    state = update_due_workloads(inp, _with_mean_start(observed), replace(before, idle_timeouts=idle_timeouts))
    return make_recommendation(inp, observation, state.plan), state


def make_recommendation(inp: TickInput, observation: Observation, plan: Plan) -> Recommendation:
    """Return the replicas of the plan; 0 where nothing is in flight and one replica would be enough.

    It is 0 also where the floor of a policy that allows zero would be enough, as no strategy requests less. The planner
    has no opinion where the load is not known now, or where the policy states a capacity, which is used instead.
    """
    spec, requests = inp.spec, load.requests_in_flight(observation)
    least = np.where(np.isnan(spec.idle_after_s), 1.0, np.fmax(spec.min_replicas, 1.0))
    is_idle = (load.with_idle(observation, requests) == 0) & (plan.replicas <= least)
    replicas = np.where(is_idle, 0.0, plan.replicas)
    replicas = np.where(spec.has_stated_capacity | np.isnan(requests), np.nan, replicas)
    signals = np.full((len(Signal), len(replicas)), np.nan)
    signals[Signal.PLANNER] = load.with_idle(observation, replicas)
    return Recommendation(signals, base_replicas=load.with_idle(observation, plan.base_replicas))


def update_due_workloads(inp: TickInput, observed: Observed, state: PlannerState) -> PlannerState:
    """Update the strategies of the workloads that are due, and their plans.

    Each group has its turn. A workload with a late queue is updated out of turn: with the reading that first shows the
    queue, and with the one that shows how many slots a replica has. It is updated no more often than that, because the
    shorter an interval, the higher the peaks of demand in it.
    """
    observation = observed.observation
    turns = [_count_turns(group, inp.now_s, strategies) for group, strategies in enumerate(state.strategies)]
    is_late, last_late_s = load.has_late_queue(inp, observation), state.late_queues.last_late_s
    begins = is_late & ~(inp.now_s - last_late_s <= UPDATE_INTERVAL_S)
    state = replace(state, late_queues=LateQueues(np.where(is_late, inp.now_s, last_late_s)))
    if not any(turns) and not is_late.any():
        return state
    has_turn = (np.array(turns) > 0)[state.workload_id % GROUPS]
    is_candidate = (begins | (is_late & np.isnan(state.plan.slots))) & ~has_turn
    serving = _find_serving_pods(inp, observed)
    for group in np.flatnonzero(turns).tolist():
        some = _Subset.of(inp, serving, state.group_rows(group))
        # A group waits for a reading of its pods, but for at most one turn.
        if turns[group] > 1 or not len(some.pods) or _has_new_reading(inp, observed, some.pods).any():
            state = _update_group(inp, observed, state, some, group)
    if is_candidate.any():
        some = _Subset.of(inp, serving, np.flatnonzero(is_candidate))
        state = _update_out_of_turn(inp, observed, state, some, begins)
    return state


@dataclass(frozen=True)
class _Subset:
    """Some workloads, and their serving pods."""

    rows: IntColumn  # int64[R], workloads
    pods: IntColumn  # int64[n], ascending
    pod_row: IntColumn  # int64[n], 0..R-1, the workload of each pod

    @classmethod
    def of(cls, inp: TickInput, serving: BoolColumn, rows: IntColumn) -> _Subset:
        """Return these workloads. serving: bool[P]."""
        place = np.full(len(inp.fleet.workloads), -1)
        place[rows] = np.arange(len(rows))
        pods = np.flatnonzero(serving & (place >= 0)[inp.fleet.pod_workload])
        return cls(rows, pods, place[inp.fleet.pod_workload[pods]])

    def filter(self, chosen: BoolColumn) -> _Subset:
        """Return the chosen workloads; bool[R]."""
        pods, place = chosen[self.pod_row], np.cumsum(chosen) - 1
        return _Subset(self.rows[chosen], self.pods[pods], place[self.pod_row[pods]])


def _with_mean_start(observed: Observed) -> Observed:
    """Return the observation with the mean start on any node, in place of that of the next replica alone."""
    return replace(observed, observation=replace(observed.observation, cold_start_s=observed.starts.mean_s))


def _count_turns(group: int, now_s: float, strategies: StrategyState) -> int:
    """Return the number of turns of a group since its last update; 0 without workloads.

    Each group has its own phase, so with ticks of 5 s the groups take turns. A group that was never updated has missed
    some turns at any time, also at times below zero, at which history is replayed.
    """
    if not len(strategies.strategy):
        return 0
    last_updated_s = float(np.fmax.reduce(strategies.last_updated_s))
    if math.isnan(last_updated_s):
        return 2
    phase_s = group * UPDATE_INTERVAL_S / GROUPS
    now, last = (math.floor((time_s + phase_s) / UPDATE_INTERVAL_S + 1e-9) for time_s in (now_s, last_updated_s))
    return now - last


def _find_serving_pods(inp: TickInput, observed: Observed) -> BoolColumn:
    """Return which pods serve, or have left and still count; bool[P]. Sleeping and stuck pods do not."""
    serving = inp.fleet.pod_ready & ~inp.fleet.pod_terminating & ~(observed.pods.samples.asleep > 0)
    serving |= draining.is_lost(inp, serving, observed.pods.samples)
    return serving & ~observed.pods.is_stuck


def _update_group(inp: TickInput, observed: Observed, state: PlannerState, some: _Subset, group: int) -> PlannerState:
    """Update all workloads of a group, but for those without a new reading."""
    before, counted = state.strategies_of_group(group), state.counted[group].find(inp.fleet.pod_id[some.pods])
    is_new = find_new_readings(observed.pods, counted.readings, some.pods)
    is_unread = _find_unread_workloads(inp, counted.readings, some, before.last_updated_s, is_new)
    if is_unread.all():
        return state
    totals, counted = _count_work(inp, observed, counted, some, is_new)
    stats = _make_stats(inp, observed, state.idle_timeouts, totals, some, before.last_updated_s)
    after = update_strategies(before, stats, inp.now_s)
    after = _keep_rows(before, after, is_unread) if is_unread.any() else after
    return _with_plan(inp, observed.observation, state.with_group(group, after, counted), some.rows, after)


def _update_out_of_turn(
    inp: TickInput, observed: Observed, state: PlannerState, some: _Subset, begins: BoolColumn
) -> PlannerState:
    """Update those of these workloads whose late queue begins, or whose slots become known. begins: bool[W].

    The workloads of all groups are updated at once, which takes little longer than those of one. Nothing is stored of
    the others, because what a workload learns must not depend on its neighbours.
    """
    has_new = np.bincount(some.pod_row[_has_new_reading(inp, observed, some.pods)], minlength=len(some.rows)) > 0
    some = some.filter(has_new | (np.bincount(some.pod_row, minlength=len(some.rows)) == 0))
    counted = state.counted_of(inp.fleet.pod_id[some.pods])
    is_new = find_new_readings(observed.pods, counted.readings, some.pods)
    is_unread = _find_unread_workloads(inp, counted.readings, some, state.plan.last_updated_s[some.rows], is_new)
    if is_unread.all():
        return state
    totals, counted = _count_work(inp, observed, counted, some, is_new)
    speed = state.replica_speed_of(some.rows)
    with_slots = update_slots(speed, totals)
    has_new_slots = np.isnan(speed.slots) & ~np.isnan(with_slots.slots)
    is_due = ~is_unread & (begins[some.rows] | has_new_slots)
    if not is_due.any():
        return state
    due, counted = np.flatnonzero(is_due), counted.take(np.flatnonzero(is_due[some.pod_row]))
    some, totals = some.filter(is_due), totals.take(due)
    before = replace(state.strategies_of(some.rows), speed=with_slots.take(due))
    stats = _make_stats(inp, observed, state.idle_timeouts, totals, some, before.last_updated_s)
    after = update_strategies(before, stats, inp.now_s)
    return _with_plan(inp, observed.observation, state.with_out_of_turn(some.rows, after, counted), some.rows, after)


def _with_plan(
    inp: TickInput, observation: Observation, state: PlannerState, rows: IntColumn, strategies: StrategyState
) -> PlannerState:
    """Return the state with new plans of these workloads."""
    prefill = _is_prefill(inp)[rows]
    plan = make_plan(strategies, state.idle_timeouts, rows, observation.cold_start_s[rows], prefill)
    return replace(state, plan=state.plan.with_rows(rows, plan))


def _is_prefill(inp: TickInput) -> BoolColumn:
    """Return the prefill workloads; bool[W]."""
    return inp.pairs.prefill if inp.pairs is not None else np.zeros(len(inp.fleet.workloads), dtype=bool)


def _keep_rows(before: StrategyState, after: StrategyState, kept: BoolColumn) -> StrategyState:
    """Return the strategies after an update, but those before it for some rows. kept: bool[R]."""
    columns_before = before.columns()
    return after.with_columns(
        {name: np.where(kept, columns_before[name], column) for name, column in after.columns().items()}
    )


# --- interval statistics


def _has_new_reading(inp: TickInput, observed: Observed, pods: IntColumn) -> BoolColumn:
    """Return which of these pods were read since the last tick; bool[n]."""
    read_s, last_tick_s = observed.pods.samples.time_s[pods], observed.last_tick_s[inp.fleet.pod_workload[pods]]
    return np.asarray(~np.isnan(read_s) & ~(read_s <= last_tick_s))


def _find_unread_workloads(
    inp: TickInput, counted: PodReadings, some: _Subset, last_updated_s: TimestampColumn, is_new: BoolColumn
) -> BoolColumn:
    """Return which workloads have no pod with a new reading; bool[R]. is_new: bool[n].

    This happens where other workloads are scraped more often. The update waits for a reading, at most as long as
    counters are compared. A workload whose pods were never read does not wait.
    """
    was_read = ~np.isnan(counted.time_s)
    has_reading, has_new = (
        np.bincount(some.pod_row, weights=pods, minlength=len(some.rows)) > 0 for pods in (was_read, is_new)
    )
    return np.asarray(has_reading & ~has_new & (inp.now_s - last_updated_s < MAX_INTERVAL_S))


def _count_work(
    inp: TickInput, observed: Observed, counted: CountedReadings, some: _Subset, is_new: BoolColumn
) -> tuple[WorkTotals, CountedReadings]:
    """Add up the work of some workloads since it was last counted; also return the readings that count now."""
    by_workload = GroupBy(some.pod_row, len(some.rows))
    decode = None if inp.pairs is None else inp.pairs.decode[some.rows][some.pod_row]
    totals, readings = count_work(observed.pods, counted.readings, some.pods, is_new, by_workload, decode)
    return totals, CountedReadings(counted.pod_id, readings)


def _make_stats(
    inp: TickInput,
    observed: Observed,
    idle_timeouts: IdleTimeouts,
    totals: WorkTotals,
    some: _Subset,
    last_updated_s: TimestampColumn,
) -> IntervalStats:
    """Make the interval statistics of some workloads. last_updated_s: float64[R].

    Strategies may not spend the part of the error budget that wake-ups from zero use.
    """
    spec, rows, observation = inp.spec, some.rows, observed.observation
    window_floor = inp.schedule.find_floor(inp.now_s, observed.link_s[Link.REPLICA])
    ceiling = np.fmax(spec.max_replicas[rows], 1.0)
    budget_share = 1 - spec.attainment - compute_wake_up_share(idle_timeouts, spec.attainment)
    return IntervalStats(
        totals=totals,
        replicas=(observation.ready - observation.newly_ready - observation.stuck)[rows],
        mean_replicas=_compute_mean_replicas(inp, some.pods, some.pod_row, last_updated_s),
        waiting=or_zero(observation.waiting[rows]),
        cold_start_s=observation.cold_start_s[rows],
        kept_asleep=np.where(is_managed(inp), spec.sleep_replicas, 0.0)[rows],
        wake_s=observation.wake_s[rows],
        ttft_objective_s=spec.first_token_limit_s[rows],
        itl_objective_s=spec.itl_objective_s[rows],
        budget_share=budget_share[rows],
        prefill=_is_prefill(inp)[rows],
        floor=np.fmin(np.fmax(spec.min_replicas[rows], 1.0), ceiling),
        window_floor=np.minimum(window_floor[rows], ceiling),
        ceiling=ceiling,
    )


def _compute_mean_replicas(
    inp: TickInput, pods: IntColumn, pod_row: IntColumn, last_updated_s: TimestampColumn
) -> FloatColumn:
    """Return how many of these pods served on average since the last update; float64[R]. All if there was none.

    A pod that became ready half-way has had half of a pod's share of the load.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        missing_s = np.fmax(inp.fleet.pod_ready_s[pods] - last_updated_s[pod_row], 0.0)
        share = 1 - or_zero(np.minimum(missing_s / (inp.now_s - last_updated_s[pod_row]), 1.0))
    return np.bincount(pod_row, share, len(last_updated_s)).astype(np.float64)
