"""The planning recommender: which workloads are updated with a tick, by which statistics, and what is recommended.

How a strategy is selected is in `select`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoscaler.core.measure.interval import IntervalStats, WorkTotals, count_serving, count_work, find_new_readings
from autoscaler.core.model.chain import Link
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.phases import NOT_STARTING
from autoscaler.core.model.types import Plan, Recommendation, Signal, TickInput
from autoscaler.core.observe import draining, load
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.planner.plan import make_plan
from autoscaler.core.planner.scale_to_zero import IdleTimeouts, compute_wake_up_share, update_idle_timeouts
from autoscaler.core.planner.select import update_strategies
from autoscaler.core.planner.state import PHASES, PlannerState, find_phase
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from autoscaler.core.readings.pod_deltas import MAX_INTERVAL_S, PodReadings
from autoscaler.core.starts.wake_ups import is_managed
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, TimestampColumn, moved, or_zero, replace
from autoscaler.core.table.groupby import GroupBy


def recommend(inp: TickInput, observed: Observed, before: PlannerState) -> tuple[Recommendation, PlannerState]:
    """Update the planner, and return its recommendation."""
    observation = observed.observation
    idle_timeouts = update_idle_timeouts(inp, observation, observed.arrivals, before.idle_timeouts)
    # The planner counts with the mean start on any node, in place of that of the next replica alone.
    observed = replace(observed, observation=replace(observation, cold_start_s=observed.starts.mean_s))
    state = update_due_workloads(inp, observed, replace(before, idle_timeouts=idle_timeouts))
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
    """Update the workloads whose turn it is, and plan again for those with a late queue. Both wait for a reading.

    A late queue is judged with every reading that shows it, by what has arrived since the last turn. Of that only the
    slots of a replica are stored, because the shorter an interval, the higher the peaks of demand in it.
    """
    fleet, observation = inp.fleet, observed.observation
    last_updated_s = state.by_phase.column(lambda strategies: strategies.last_updated_s)
    has_turn = _has_turn(fleet.workload_id, inp.now_s, last_updated_s)
    is_candidate = has_turn | load.has_late_queue(inp, observation)
    if not is_candidate.any():
        return state
    counted = moved(state.counted, state.counted_id, fleet.pod_id)
    rows = state.by_phase.by_block(np.flatnonzero(is_candidate))
    some = _Subset.of(inp, observed, counted, rows)
    some = some.filter(~some.find_unread(inp.now_s - last_updated_s[rows]))
    turn, late = some.filter(has_turn[some.rows]), some.filter(~has_turn[some.rows])
    if len(turn.rows):
        state, readings = _update(inp, observed, state, turn)
        state = replace(state, counted_id=fleet.pod_id, counted=_store_readings(inp, counted, turn, readings))
    if len(late.rows):
        state, _ = _update(inp, observed, state, late, learned=("speed.peak_running", "speed.slots"))
    return state


def _update(
    inp: TickInput, observed: Observed, state: PlannerState, some: _Subset, learned: tuple[str, ...] | None = None
) -> tuple[PlannerState, PodReadings]:
    """Plan for some workloads by all since their last turn; also return the readings of their pods, [n].

    learned: the columns of their strategies that are stored; None: all.
    """
    before = state.by_phase.take(some.rows)
    decode = None if inp.pairs is None else inp.pairs.decode[some.rows][some.pod_row]
    counted = some.counted.take(some.pods)
    totals, readings = count_work(observed.pods, counted, some.pods, some.has_new, some.by_workload, decode)
    stats = _make_stats(inp, observed, state.idle_timeouts, totals, some, before.last_updated_s)
    after = update_strategies(before, stats, inp.now_s)
    plan = make_plan(after, state.idle_timeouts, some.rows, stats)
    columns = after.columns()
    by_phase = state.by_phase.with_rows(some.rows, {path: columns[path] for path in learned or columns})
    return replace(state, by_phase=by_phase, plan=state.plan.with_rows(some.rows, plan)), readings


def _store_readings(inp: TickInput, counted: PodReadings, some: _Subset, readings: PodReadings) -> PodReadings:
    """Return the counted readings with those of some workloads. Pods of these that do not serve now are forgotten."""
    is_stored = np.zeros(len(inp.fleet.workloads), dtype=bool)
    is_stored[some.rows] = True
    pods = np.flatnonzero(is_stored[inp.fleet.pod_workload])
    return counted.with_rows(pods, PodReadings.blank(len(pods)).with_rows(pods.searchsorted(some.pods), readings))


@dataclass(frozen=True)
class _Subset:
    """Some workloads, and their serving pods."""

    rows: IntColumn  # int64[R], workloads
    pods: IntColumn  # int64[n], ascending
    pod_row: IntColumn  # int64[n], 0..R-1, the workload of each pod
    counted: PodReadings  # of all pods, as they were counted last
    has_new: BoolColumn  # bool[n], pods with a newer reading

    @cached_property
    def by_workload(self) -> GroupBy:
        """Groups the pods."""
        return GroupBy(self.pod_row, len(self.rows))

    @classmethod
    def of(cls, inp: TickInput, observed: Observed, counted: PodReadings, rows: IntColumn) -> _Subset:
        """Return these workloads."""
        place = np.full(len(inp.fleet.workloads), -1)
        place[rows] = np.arange(len(rows))
        pods = np.flatnonzero(_find_serving_pods(inp, observed) & (place >= 0)[inp.fleet.pod_workload])
        has_new = find_new_readings(observed.pods, counted.time_s[pods], pods)
        return cls(rows, pods, place[inp.fleet.pod_workload[pods]], counted, has_new)

    def filter(self, chosen: BoolColumn) -> _Subset:
        """Return the chosen workloads; bool[R]."""
        if chosen.all():
            return self
        pods, place = chosen[self.pod_row], np.cumsum(chosen) - 1
        return _Subset(self.rows[chosen], self.pods[pods], place[self.pod_row[pods]], self.counted, self.has_new[pods])

    def find_unread(self, since_update_s: FloatColumn) -> BoolColumn:
        """Return which workloads have no pod with a new reading; bool[R]. since_update_s: float64[R].

        This happens where pods are scraped less often than the daemon ticks. The update waits for a reading, at most
        as long as counters are compared. A workload whose pods were never read does not wait.
        """
        read, new = self.by_workload.count([~np.isnan(self.counted.time_s[self.pods]), self.has_new])
        return np.asarray((read > 0) & (new == 0) & (since_update_s < MAX_INTERVAL_S))


def _has_turn(workload_id: IntColumn, now_s: float, last_updated_s: TimestampColumn) -> BoolColumn:
    """Return the workloads whose turn has come since their last update, or that were never updated; bool[W].

    A workload has a turn in every interval. Its phase depends on its id, so with ticks of 5 s no tick has to update
    more than a few of them.
    """
    phase_s = find_phase(workload_id) * UPDATE_INTERVAL_S / PHASES
    now, last = (np.floor((time_s + phase_s) / UPDATE_INTERVAL_S + 1e-9) for time_s in (now_s, last_updated_s))
    return np.asarray(~(now <= last))


def _find_serving_pods(inp: TickInput, observed: Observed) -> BoolColumn:
    """Return which pods serve, or have left and still count; bool[P]. Sleeping and stuck pods do not.

    A pod that starts may serve before its readiness is known: its counters show the requests that reached it.
    """
    fleet, samples = inp.fleet, observed.pods.samples
    serving = fleet.pod_ready & ~fleet.pod_terminating & ~(samples.asleep > 0)
    serving |= draining.is_lost(inp, serving, samples)
    is_starting = (observed.starts.pod_phase != NOT_STARTING) & ~fleet.pod_terminating & ~fleet.pod_ready
    serving |= is_starting & (samples.first_tokens > 0)
    return serving & ~observed.pods.is_stuck


def _make_stats(
    inp: TickInput, observed: Observed, timeouts: IdleTimeouts, totals: WorkTotals, some: _Subset, since_s: FloatColumn
) -> IntervalStats:
    """Make the interval statistics of some workloads. since_s: float64[R], time of their last turn.

    Strategies may not spend the part of the error budget that wake-ups from zero use.
    """
    spec, rows, observation = inp.spec, some.rows, observed.observation
    window_floor = inp.schedule.find_floor(inp.now_s, observed.link_s[Link.REPLICA])
    ceiling = np.fmax(spec.max_replicas[rows], 1.0)
    budget_share = 1 - spec.attainment - compute_wake_up_share(timeouts, spec.attainment)
    return IntervalStats(
        totals=totals,
        replicas=(observation.ready - observation.newly_ready - observation.stuck)[rows],
        ordered=np.fmax(observation.replicas - or_zero(observation.asleep), 0.0)[rows],
        mean_replicas=count_serving(inp.fleet.pod_ready_s[some.pods], some.pod_row, since_s, inp.now_s),
        waiting=or_zero(observation.waiting[rows]),
        cold_start_s=observation.cold_start_s[rows],
        kept_asleep=np.where(is_managed(inp), spec.sleep_replicas, 0.0)[rows],
        wake_s=observation.wake_s[rows],
        first_token_limit_s=spec.first_token_limit_s[rows],
        itl_objective_s=spec.itl_objective_s[rows],
        budget_share=budget_share[rows],
        window_s=spec.budget_window_s[rows],
        prefill=np.zeros(len(rows), dtype=bool) if inp.pairs is None else inp.pairs.prefill[rows],
        floor=np.fmin(np.fmax(spec.min_replicas[rows], 1.0), ceiling),
        window_floor=np.minimum(window_floor[rows], ceiling),
        ceiling=ceiling,
    )
