"""Follow the rule that would have cost least: every rule of the family has a fleet of its own on paper.

Each has its cost and its misses on this very demand, and the cheapest that stays within the error budget is followed.
What they are judged by is in tables, one for each idea, beside the functions that bring it up to date.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.observe.rates import LONGEST_STEP_S
from autoscaler.core.planner import error_budget, miss_curve, step_time
from autoscaler.core.planner import load_history as levels
from autoscaler.core.planner import offered_load as traffic
from autoscaler.core.planner import replica_speed as engine
from autoscaler.core.planner import shadow_fleets as paper
from autoscaler.core.planner import strategies as family
from autoscaler.core.planner.error_budget import Budget
from autoscaler.core.planner.interval import Seen, Step
from autoscaler.core.planner.load_history import Levels, is_calm
from autoscaler.core.planner.miss_curve import Loads
from autoscaler.core.planner.offered_load import Traffic
from autoscaler.core.planner.pod_work import batch_room_s
from autoscaler.core.planner.replica_speed import Engine
from autoscaler.core.planner.shadow_fleets import Paper
from autoscaler.core.planner.step_time import Speed
from autoscaler.core.planner.strategies import PaperColumn
from autoscaler.core.table.columns import (
    PER_OBJECTIVE,
    BoolColumn,
    Columns,
    FloatColumn,
    PerObjective,
    PerStrategySet,
    TimestampColumn,
    Transient,
    or_zero,
    replace,
)

YOUNG_S = 1200.0
"""Until so much was watched only careful rules are followed: who has seen little follows it and gives nothing up."""

CALM_S = 7200.0
"""Until so much was watched no reserve is added to the fleet that was found, as long as traffic is calm."""

ROOM_S = 7200.0
"""Until so much was watched batches have no room on paper: it makes small fleets look safe before a surge was seen."""

DOUBT_S = 5280.0
"""Seconds of arrivals for which every rule is believed to miss `family.DOUBT`, less with its margin and its hold."""

ADVANCE_S = 440.0
"""Seconds of arrivals whose share of the error budget may be burnt in calm traffic before reserves are added."""

MISS_PRICE = 300.0
"""Of a request that is missed beyond the budget, in the work of a request. At 99 % a miss less costs 30 to 400; a price
far above that pays for what could not be avoided, such as a surge that was over before a replica could come."""

WORTH = 0.01
"""A rule is left only for one that saves so much of its cost, fines included, lest two equal ones take turns."""


@dataclass(frozen=True)
class Rules(Columns):
    """What the rules are judged by, and what they ask for; float64[W] but for the tables."""

    family: PerStrategySet[FloatColumn]  # `family.SIGNATURE` of the one that the paper is about
    last_judged_s: Transient[TimestampColumn]  # when this was brought up to date; NaN: never
    ttft_objective_s: PerObjective[FloatColumn]  # under which was counted what was missed; NaN: none, as in `Seen`
    itl_objective_s: PerObjective[FloatColumn]  # likewise

    engine: Engine  # how fast a replica is
    traffic: Traffic  # what comes
    levels: Transient[Levels]  # how that ran lately
    loads: PerObjective[Loads]  # what each load makes miss
    budget: Budget  # what was missed
    paper: Paper  # what each rule would have cost and missed

    found: Transient[PerObjective[FloatColumn]]  # replicas that served when demand was first known
    kept_s: PerStrategySet[
        FloatColumn
    ]  # to be watched before one of them is given up; once they were they do not change
    needed: Transient[FloatColumn]  # replicas that the load needs since; NaN: not known
    rule: Transient[FloatColumn]  # the one in force; NaN: none yet
    allowed: Transient[FloatColumn]  # share of requests that it may miss
    replicas: Transient[FloatColumn]  # what is asked for; NaN: the rules do not speak

    @classmethod
    def blank(cls, rows: int) -> Rules:
        return replace(super().blank(rows), family=np.full(rows, family.SIGNATURE))


def judge(rules: Rules, seen: Seen, now_s: float) -> Rules:
    """Bring all that the rules are judged by up to date, and say which is in force and what it asks for."""
    rules = _of_objective(rules, seen)
    step_s = now_s - rules.last_judged_s
    step_s = np.where(step_s > 0, step_s, 0.0)  # NaN: the first time
    learned, fitted = engine.learn(rules.engine, seen.tally, step_s)
    measured, arrivals = traffic.measure(rules.traffic, seen, fitted.idle_gap_s, learned.slots, step_s)
    demand = measured.demand
    # Without a policy there is no ceiling to live under on paper, nor an objective to miss: nothing is counted.
    nothing_counts = np.isnan(demand) | np.isnan(seen.ttft_objective_s) | (step_s > LONGEST_STEP_S)
    lived_s = np.where(nothing_counts, 0.0, step_s)
    loads, likely = miss_curve.watch(rules.loads, seen, measured, lived_s)
    stood = levels.stood(rules.levels, seen.cold_start_s)
    ran, predicted = levels.follow(rules.levels, demand, seen.cold_start_s, step_s, now_s)
    room_s = np.where(rules.paper.watched_s < ROOM_S, 0.0, _room_s(seen, learned, fitted, measured))
    step = Step(lived_s, demand, arrivals, likely, room_s)
    rules = replace(
        rules,
        last_judged_s=np.full(len(step_s), now_s),
        engine=learned,
        traffic=measured,
        levels=ran,
        loads=loads,
        budget=error_budget.count(rules.budget, seen, step),
        paper=paper.live(rules.paper, seen, step, stood),
    )
    return follow(_ask(rules, seen, predicted), seen)


def _room_s(seen: Seen, learned: Engine, fitted: Speed, measured: Traffic) -> FloatColumn:
    """Return the work of a surge that the batch of a replica takes up; float64[W], 0 where not known."""
    share, most = step_time.prompt_share(learned.steps), step_time.running_at(seen.itl_objective_s, fitted)
    return batch_room_s(seen.tally, traffic.request_s(measured), share, learned.slots, most)


def _of_objective(rules: Rules, seen: Seen) -> Rules:
    """Begin anew with all that was counted under other objectives than are in force now, here or before a restart.

    Where no policy is in force none are, and what was counted is kept for its return.
    """
    objectives = {name: getattr(seen, name) for name in ("ttft_objective_s", "itl_objective_s")}
    same = [_is_close(getattr(rules, name), now_s) for name, now_s in objectives.items()]
    anew = ~(same[0] & same[1]) & ~np.isnan(seen.may_miss)
    if not anew.any():
        return rules
    blank = replace(Rules.blank(len(anew)), **objectives).columns()
    columns, marks = rules.columns(), Rules.marks()
    return rules.with_columns({n: np.where(anew, blank[n], columns[n]) for n in columns if PER_OBJECTIVE in marks[n]})


def _is_close(then_s: FloatColumn, now_s: FloatColumn) -> BoolColumn:
    """Say where an objective is as it was, but for a rounding; bool[W]. None is as none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.abs(then_s / now_s - 1) <= 1e-6  # `np.isclose` takes ten times as long on few rows
    return np.asarray(near | (then_s == now_s) | (np.isnan(then_s) & np.isnan(now_s)))


def _ask(rules: Rules, seen: Seen, predicted: PaperColumn) -> Rules:
    """Say what every rule asks for, and what the load needs. predicted: as of `levels.held`."""
    found = np.where(np.isnan(rules.found) & ~np.isnan(rules.levels.level[0]), seen.replicas, rules.found)
    watched_s = rules.paper.watched_s
    # Or one slow start, hours later, would bring back the fleet of another day.
    until_s = np.where(watched_s >= rules.kept_s, rules.kept_s, kept_s(seen.cold_start_s))
    floor = np.fmax(seen.floor, np.where(watched_s < until_s, found, np.nan))
    by_load = family.fleets(predicted[-1:], floor, seen.ceiling)[0]
    return replace(
        rules,
        found=found,
        kept_s=until_s,
        paper=replace(rules.paper, asked=family.asked(predicted[:-1], floor, seen.ceiling)),
        needed=by_load[family.ONE_ROOT].astype(np.float64),
    )


def follow(rules: Rules, seen: Seen) -> Rules:
    """Take the cheapest rule, where each request that is missed beyond the budget has a price as well.

    While requests wait for too long nothing is given up, least of all what still loads: another rule that asks for less
    was chosen by what came before, and clients who leave take what they asked for out of all counts.
    """
    rows, lived = np.arange(len(rules.rule)), rules.paper
    allowed = error_budget.steered(rules.budget, seen.may_miss, rules.loads.unavoidable)
    came_per_s = or_zero(error_budget.served_per_s(rules.budget))
    # Belief saves nothing: a rule that is believed to miss less than it may has no more left for what really comes.
    beyond = np.maximum(family.doubted(rules.levels.level[-1]) - allowed, 0.0)
    believed = (came_per_s * DOUBT_S * beyond).astype(np.float32)
    missed = lived.missed + believed
    fine = MISS_PRICE * or_zero(traffic.request_s(rules.traffic))
    missed -= (allowed * lived.arrived).astype(np.float32)
    np.maximum(missed, np.float32(0), out=missed)
    missed *= fine.astype(np.float32)
    price = missed + lived.cost
    np.copyto(price, np.inf, where=~family.CAREFUL[:, None] & (lived.watched_s < YOUNG_S))
    cheapest = price.argmin(axis=0)
    before = or_zero(rules.rule).astype(np.int64)
    gain = price[before, rows] - price[cheapest, rows]
    stays = ~np.isnan(rules.rule) & (gain <= WORTH * lived.cost[before, rows])
    rule = np.where(stays, before, cheapest)
    replicas = np.fmin(lived.asked[rule, rows], _enough(rules, seen, came_per_s))
    late = traffic.queued_s(rules.traffic, seen, seen.waiting) > seen.patience_s
    replicas = np.where(late, np.fmax(replicas, np.minimum(rules.replicas, seen.ceiling)), replicas)
    speaks = ~np.isnan(rules.traffic.demand) & ~np.isnan(seen.ttft_objective_s)
    return replace(
        rules,
        rule=np.where(speaks, rule.astype(np.float64), rules.rule),
        allowed=allowed,
        replicas=np.where(speaks, replicas, np.nan),
    )


def kept_s(cold_start_s: FloatColumn) -> FloatColumn:
    """Return for how long all of the fleet that was found is kept, where that is not over yet; float64[W].

    Whoever sized it had a reason. As long as any peak is held, and as long as only careful rules are followed: what was
    given up before the second surge was seen is missing in it.
    """
    return np.asarray(np.maximum(YOUNG_S, family.LONGEST_HOLD * cold_start_s))


def _enough(rules: Rules, seen: Seen, came_per_s: FloatColumn) -> FloatColumn:
    """Return the most that may be asked for in a workload's first time, float64[W]; NaN: no limit.

    Whoever sized the fleet that was found had a reason, and in traffic that is calm nothing was seen yet that speaks
    against it: so no reserve is added to it, unless too many missed. came_per_s: float64[W], requests.
    """
    watched_s = rules.paper.watched_s
    enough = is_calm(rules.levels) & (watched_s < CALM_S)
    enough &= rules.levels.level_s >= watched_s  # or there was a restart, and before it may have been no calm
    enough &= rules.budget.burnt <= seen.may_miss * (rules.budget.counted + came_per_s * ADVANCE_S)
    most = np.fmax(np.minimum(rules.found, seen.ceiling), rules.paper.asked[family.ENOUGH])
    return np.where(enough, most, np.nan)
