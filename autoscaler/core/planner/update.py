"""The plan of each workload: its rules, judged a group of workloads at a time, and what the one in force asks for.

How a rule is judged is in `rules`; here is when, and what goes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import Observation, Plan, Recommendation, Signal, TickInput
from autoscaler.core.observe import draining, load
from autoscaler.core.observe.progress import Progress, stuck
from autoscaler.core.observe.rates import LONGEST_STEP_S
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.planner import scale_to_zero as zero
from autoscaler.core.planner.groups import GROUPS, PlannerState, Pressure
from autoscaler.core.planner.interval import Seen
from autoscaler.core.planner.load_history import held_until_s
from autoscaler.core.planner.offered_load import request_s
from autoscaler.core.planner.pod_work import PodWork, Tally, count
from autoscaler.core.planner.replica_speed import see_slots, speed_of
from autoscaler.core.planner.scale_to_zero import Zero
from autoscaler.core.planner.select import Rules, judge
from autoscaler.core.planner.strategies import BY_LEVEL, EVERY_S, LEAST, MARGINS, level_for
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, TimestampColumn, or_zero, replace


def recommend(inp: TickInput, observed: Observed, before: PlannerState) -> tuple[Recommendation, PlannerState]:
    """Bring the planner up to date, and return what it recommends."""
    observation = observed.observation
    state = replace(before, zero=zero.update(inp, observation, observed.arrivals, before.zero))
    state = update(inp, observed, state)
    return recommendation(inp, observation, state.plan), state


def recommendation(inp: TickInput, observation: Observation, planned: Plan) -> Recommendation:
    """Return the replicas that the rule in force asks for; none at all where nothing is in flight and one would do.

    Or where the policy's floor would do, if it allows zero: no rule asks for less. The planner recommends only where
    the load is measured now and no capacity is stated: what an operator states stands.
    """
    spec, requests = inp.spec, load.requests_in_flight(observation)
    least = np.where(np.isnan(spec.idle_after_s), 1.0, np.fmax(spec.min_replicas, 1.0))
    rests = (load.with_idle(observation, requests) == 0) & (planned.replicas <= least)
    replicas = np.where(rests, 0.0, planned.replicas)
    replicas = np.where(spec.has_stated_capacity | np.isnan(requests), np.nan, replicas)
    signals = np.full((len(Signal), len(replicas)), np.nan)
    signals[Signal.PLANNER] = load.with_idle(observation, replicas)
    return Recommendation(signals, base_replicas=load.with_idle(observation, planned.base_replicas))


def update(inp: TickInput, observed: Observed, state: PlannerState) -> PlannerState:
    """Judge the rules that are due, and bring the plan of their workloads up to date.

    A workload whose queue lasts longer than it may is judged with the reading that shows it, be it its turn or not, and
    with the one that shows how many slots it has, which is looked for in each. No oftener: the shorter the time, the
    higher the peaks of what came in it.
    What wake-ups cost of the error budget is not theirs to spend.
    """
    observation = observed.observation
    turns = [_turns(group, inp.now_s, rules) for group, rules in enumerate(state.rules)]
    pressing, last_pressed_s = observation.queue_wait_s > inp.spec.max_wait_s, state.pressure.last_pressed_s
    begins = pressing & ~(inp.now_s - last_pressed_s <= EVERY_S)
    state = replace(state, pressure=Pressure(np.where(pressing, inp.now_s, last_pressed_s)))
    if not any(turns) and not pressing.any():
        return state
    in_turn = (np.array(turns) > 0)[state.workload_id % GROUPS]
    looks = (begins | (pressing & np.isnan(state.plan.slots))) & ~in_turn
    serving = inp.fleet.pod_ready & ~inp.fleet.pod_terminating & ~(inp.samples.pods.asleep > 0)
    serving |= draining.are_lost(inp, serving, inp.samples.pods)
    serving &= ~stuck(observed.progress, inp.samples.pods)
    for group in np.flatnonzero(turns).tolist():
        some = _Some.of(inp, serving, state.group(group))
        if turns[group] > 1 or not len(some.pods) or _news(inp, observed, some.pods).any():
            state = _judge_group(inp, observed, state, some, group)
    if looks.any():
        state = _judge_out_of_turn(inp, observed, state, _Some.of(inp, serving, np.flatnonzero(looks)), begins)
    return state


@dataclass(frozen=True)
class _Some:
    """Some workloads, and their pods that serve."""

    rows: IntColumn  # int64[R]
    pods: IntColumn  # int64[n], ascending
    pod_row: IntColumn  # int64[n], 0..R-1, whose each is

    @classmethod
    def of(cls, inp: TickInput, serving: BoolColumn, rows: IntColumn) -> _Some:
        """Find the pods of these rows. serving: bool[P], those that count."""
        place = np.full(len(inp.fleet.workloads), -1)
        place[rows] = np.arange(len(rows))
        pods = np.flatnonzero(serving & (place >= 0)[inp.fleet.pod_workload])
        return cls(rows, pods, place[inp.fleet.pod_workload[pods]])

    def only(self, chosen: BoolColumn) -> _Some:
        """Return those that are chosen; bool[R]."""
        pods, place = chosen[self.pod_row], np.cumsum(chosen) - 1
        return _Some(self.rows[chosen], self.pods[pods], place[self.pod_row[pods]])


def _judge_group(inp: TickInput, observed: Observed, state: PlannerState, some: _Some, group: int) -> PlannerState:
    """Judge all workloads of a group."""
    before, counted = state.rules_of_group(group), state.work[group].of(inp.fleet.pod_id[some.pods])
    stands = _stands(counted, observed.progress, some.pods)
    stays = _unread(inp, counted, some, before.last_judged_s, stands)
    if stays.all():
        return state
    tally, after = _count(inp, counted, some, stands)
    judged = judge(before, _seen(inp, observed.observation, state.zero, tally, some, before.last_judged_s), inp.now_s)
    judged = _stay(before, judged, stays) if stays.any() else judged
    return _told(observed.observation, state.with_group(group, judged, after), some.rows, judged)


def _judge_out_of_turn(
    inp: TickInput, observed: Observed, state: PlannerState, some: _Some, begins: BoolColumn
) -> PlannerState:
    """Judge those of these workloads whose queue begins, or whose slots this reading shows. begins: bool[W].

    Those of all groups at once, since few take nearly as long as one. Of the others nothing is kept: what a workload
    learns does not depend on its neighbours.
    """
    news = np.bincount(some.pod_row[_news(inp, observed, some.pods)], minlength=len(some.rows)) > 0
    some = some.only(news | (np.bincount(some.pod_row, minlength=len(some.rows)) == 0))
    counted = state.work_of(inp.fleet.pod_id[some.pods])
    stands = _stands(counted, observed.progress, some.pods)
    stays = _unread(inp, counted, some, state.plan.last_updated_s[some.rows], stands)
    if stays.all():
        return state
    tally, after = _count(inp, counted, some, stands)
    engine = state.engine_of(some.rows)
    known = see_slots(engine, tally)
    shows = ~stays & (begins[some.rows] | (np.isnan(engine.slots) & ~np.isnan(known.slots)))
    if not shows.any():
        return state
    chosen, after = np.flatnonzero(shows), after.take(np.flatnonzero(shows[some.pod_row]))
    some, tally = some.only(shows), tally.take(chosen)
    before = replace(state.rules_of(some.rows), engine=known.take(chosen))
    judged = judge(before, _seen(inp, observed.observation, state.zero, tally, some, before.last_judged_s), inp.now_s)
    return _told(observed.observation, state.with_early(some.rows, judged, after), some.rows, judged)


def _told(observation: Observation, state: PlannerState, rows: IntColumn, judged: Rules) -> PlannerState:
    """Return it with the plan of the rows that were judged."""
    told = _plan(judged, state.zero, rows, observation.cold_start_s[rows])
    return replace(state, plan=state.plan.with_rows(rows, told))


def _turns(group: int, now_s: float, rules: Rules) -> int:
    """Return how many turns of a group came since it was judged; 0 for one without workloads.

    Each has its own phase, so that with ticks of 5 s they take turns. One that was never judged has missed some, at
    whatever time: the past is learned from at times below zero.
    """
    if not len(rules.rule):
        return 0
    last_judged_s = float(np.fmax.reduce(rules.last_judged_s))
    if math.isnan(last_judged_s):
        return 2
    now, then = (math.floor((time_s + group * EVERY_S / GROUPS) / EVERY_S + 1e-9) for time_s in (now_s, last_judged_s))
    return now - then


def _news(inp: TickInput, observed: Observed, pods: IntColumn) -> BoolColumn:
    """Say which of these pods were read since the last tick; bool[n]. A group waits for one, but at most a turn."""
    read_s, last_tick_s = inp.samples.pods.time_s[pods], observed.last_tick_s[inp.fleet.pod_workload[pods]]
    return np.asarray(~np.isnan(read_s) & ~(read_s <= last_tick_s))


def _stands(counted: PodWork, pace: Progress, pods: IntColumn) -> BoolColumn:
    """Say which pods hold requests and have made no progress since they were counted; bool[n].

    Gauges that stand still say nothing of what arrives. If they move again, all that came meanwhile is counted then.
    """
    return np.asarray((pace.unchanged_readings[pods] > 0) & (pace.last_moved_s[pods] <= counted.time_s))


def _count(inp: TickInput, counted: PodWork, some: _Some, stands: BoolColumn) -> tuple[Tally, PodWork]:
    pod_id, pod_row, rows = inp.fleet.pod_id[some.pods], some.pod_row, len(some.rows)
    return count(counted, inp.samples.pods, inp.now_s, some.pods, pod_id, pod_row, rows, stands)


def _unread(
    inp: TickInput, counted: PodWork, some: _Some, last_judged_s: TimestampColumn, stands: BoolColumn
) -> BoolColumn:
    """Say of whom nothing was read since they were counted, as where others are scraped more often; bool[R].

    They are judged once something is, or after the longest time over which counters are compared. counted: what these
    pods showed then. Whose pods were never read waits for nothing.
    """
    known = ~np.isnan(counted.time_s)
    anew = ~np.isnan(inp.samples.pods.time_s[some.pods])
    anew &= ~(inp.samples.pods.time_s[some.pods] <= counted.time_s)
    anew &= ~stands
    was_read, is_read = (
        np.bincount(some.pod_row, weights=each, minlength=len(some.rows)) > 0 for each in (known, anew)
    )
    return np.asarray(was_read & ~is_read & (inp.now_s - last_judged_s < LONGEST_STEP_S))


def _stay(before: Rules, after: Rules, stays: BoolColumn) -> Rules:
    """Return the rules after, but as before where they stay; bool[R]."""
    columns, old = after.columns(), before.columns()
    return after.with_columns({name: np.where(stays, old[name], column) for name, column in columns.items()})


def _served(inp: TickInput, pods: IntColumn, pod_row: IntColumn, last_judged_s: TimestampColumn) -> FloatColumn:
    """Return how many of these pods served in the mean since then; float64[R], R rows judged. All, if since never.

    Who became ready only half way has had half a pod's share of the load.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        missing_s = np.fmax(inp.fleet.pod_ready_s[pods] - last_judged_s[pod_row], 0.0)
        share = 1 - or_zero(np.minimum(missing_s / (inp.now_s - last_judged_s[pod_row]), 1.0))
    return np.bincount(pod_row, share, len(last_judged_s)).astype(np.float64)


def _seen(
    inp: TickInput,
    observation: Observation,
    known: Zero,
    tally: Tally,
    some: _Some,
    last_judged_s: TimestampColumn,
) -> Seen:
    """Say what the tally of some workloads shows. last_judged_s: float64[R]."""
    spec, rows = inp.spec, some.rows
    ceiling = np.fmax(spec.max_replicas[rows], 1.0)
    budget = 1 - spec.attainment - zero.spent(known, spec.attainment)
    return Seen(
        tally=tally,
        replicas=(observation.ready - observation.newly_ready - observation.asleep - observation.stuck)[rows],
        served=_served(inp, some.pods, some.pod_row, last_judged_s),
        waiting=or_zero(observation.waiting[rows]),
        cold_start_s=observation.cold_start_s[rows],
        ttft_objective_s=spec.first_token_limit_s[rows],
        itl_objective_s=spec.itl_objective_s[rows],
        may_miss=budget[rows],
        floor=np.fmin(np.fmax(spec.min_replicas[rows], 1.0), ceiling),
        ceiling=ceiling,
    )


def _held_s(known: Rules, cold_start_s: FloatColumn) -> FloatColumn:
    """Return for how long the peak is held that asks for so many; float64[R], NaN: it is that of now, or none is."""
    in_force = or_zero(known.rule).astype(np.int64)
    rule, asks_for_more = BY_LEVEL[in_force], known.replicas > LEAST[in_force]
    above = level_for(rule, or_zero(known.replicas) - 1)
    until_s = held_until_s(known.levels, rule // MARGINS, above, cold_start_s)
    return np.where((known.replicas >= 1) & asks_for_more, until_s - known.last_judged_s, np.nan)


def _plan(known: Rules, zero: Zero, rows: IntColumn, cold_start_s: FloatColumn) -> Plan:
    """Say what the rules of these rows go by; of requests that came while nobody served no engine tells.

    zero: of all workloads. cold_start_s: float64[R].
    """
    in_force = or_zero(known.rule).astype(np.int64), np.arange(len(known.rule))
    paper, counted, on_paper = known.paper, known.budget, known.paper.missed[in_force]
    learned = speed_of(known.engine)
    with np.errstate(divide="ignore", invalid="ignore"):
        missed = (counted.burnt + zero.late[rows]) / (counted.counted + zero.knocked[rows])
        return Plan(
            idle_gap_s=learned.idle_gap_s,
            prompt_token_s=learned.prompt_token_s,
            output_token_s=learned.output_token_s,
            slots=known.engine.slots,
            readings=known.engine.readings,
            last_updated_s=known.last_judged_s,
            demand=known.traffic.demand,
            work_s=request_s(known.traffic),
            strategy=known.rule,
            observed_s=paper.watched_s,
            warm_up_s=known.kept_s,
            allowed_fraction=known.allowed,
            shadow_missed_fraction=np.where(paper.arrived > 0, np.minimum(on_paper / paper.arrived, 1.0), np.nan),
            unavoidable_fraction=known.loads.unavoidable,
            missed_fraction=np.where(counted.counted > 0, missed, np.nan),
            itl_counted_requests=known.loads.seen[1].sum(axis=0),
            strategy_replicas=paper.asked[in_force].astype(np.float64),
            replicas=known.replicas,
            base_replicas=known.needed,
            peak_expires_in_s=_held_s(known, cold_start_s),
        )
