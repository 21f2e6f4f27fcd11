"""Follow the rule that would have cost least: every rule of the family has a fleet of its own on paper.

What a rule asks for comes one cold start later on paper as in truth, demand it cannot carry queues, and requests miss
their objective in that queue or because replicas are too busy. So each rule has its cost and its misses on this very
demand, and the cheapest that stays within the error budget is followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.core import error_budget, family, misses, speed
from autoscaler.core.columns import BoolColumn, Columns, FloatColumn, MomentColumn, or_zero
from autoscaler.core.family import MOST_BUSY, PaperColumn
from autoscaler.core.work import LONGEST_STEP_S, Tally, busy_share

TOLERATED = 0.8
"""Share of the TTFT objective that a wait may take; the prompt takes the rest."""

FULL = 0.9
"""Of the most requests that were ever seen in a replica: with a queue behind it so many fill it."""

SLOTS_FADE_S = 50 * 86_400.0
"""Time constant with which the most requests are forgotten: an engine may be started again with fewer slots."""

COMPUTING = 0.7
"""Share of its time: who computes more has a queue for that reason, not for want of slots."""

WORK_WINDOW_S = 600.0
"""Time constant of the work of a request: lengths drift over tens of minutes."""

FEWEST_REQUESTS = 5.0
"""Before their work is believed."""

FADE_S = 2 * 86_400.0
"""Time constant with which cost and misses of the past are forgotten: a few days."""

SETTLED_S = 600.0
"""Until so much was watched a fleet on paper has at least what really serves, whatever rule sized it."""

YOUNG_S, YOUNG_CALM_S = 1200.0, 2400.0
"""Until so much was watched only careful rules are followed: who has seen little follows it and gives nothing up. For
longer where traffic is calm: that it was so for half an hour says little of the surge that is to come."""

FOUND_S = 1200.0
"""For at least so long all of the fleet that was found is kept."""

CALM = 0.4
"""Share of its level that demand may be off it, as a root mean square, where the young keep to the fleet they found.
Within its first minutes it is a tenth to a third in traffic that stays smooth, two thirds and more in bursty."""

DOUBT_S = 440.0
"""Seconds of arrivals for which every rule is believed to miss `family.DOUBT`, less with its margin and its hold."""

MISS_PRICE = 1000.0
"""Of a request that is missed beyond the budget, in the work of a request. At 99 % a miss less costs 30 to 400; who
pays much more pays for what could not be avoided, such as a burst that was over before a replica could come."""

WORTH = 0.01
"""A rule is left only for one that saves so much of its cost, fines included, lest two equal ones take turns."""

QUEUED_S = 0.5
"""With more work in the queue than each replica does in so long, misses are those of the queue, not of the load."""


@dataclass(frozen=True)
class Rules(Columns):
    """The fleets on paper, and what became of them; rows on the last axis. J predictors, M rules, B bins."""

    family: FloatColumn  # `family.SIGNATURE` of the one that the paper is about
    judged_s: MomentColumn  # float64[W], when this was brought up to date; NaN: never
    ttft_objective_s: FloatColumn  # under which was counted what was missed; NaN: none, as in `Seen`
    itl_objective_s: FloatColumn  # likewise
    watched_s: FloatColumn  # seconds of demand seen, not fading
    found: FloatColumn  # replicas that served when demand was first known
    kept_s: FloatColumn  # seconds to be watched before one of them is given up; once they were they do not change
    steps: FloatColumn  # float64[speed.SUMS, W], what readings taught, fading
    readings: FloatColumn  # of pods, that taught them, not fading
    shortest_gap_s: FloatColumn  # between tokens, of any pod; NaN: none seen
    most_running: FloatColumn  # requests, of the fullest pod ever, fading slowly
    slots: FloatColumn  # requests that a replica can run; NaN: never seen full
    work_s: FloatColumn  # busy replica-seconds, fading
    requests: FloatColumn  # that they served, fading alike
    demand: FloatColumn  # replicas kept busy by what comes; NaN: not known now
    level: FloatColumn  # float64[L, W], its level over LEVELS_S
    level_s: FloatColumn  # seconds of demand that it is of
    unrest: FloatColumn  # squared share of its level that demand was off it, times seconds
    span_s: MomentColumn  # when the present span of the past began
    peaks: PaperColumn  # float32[L, PEAKS, W], highest level by span, the present one first
    lows: PaperColumn  # float32[J, LOWS, W], lowest prediction by span
    asked: PaperColumn  # float32[M, W], replicas that each rule asks for since
    needed: FloatColumn  # float64[W], replicas that the load needs since; NaN: not known
    backlog: PaperColumn  # float32[M, W], replica-seconds of work that wait
    cost: PaperColumn  # float32[M, W], replica-seconds, fading
    queued: PaperColumn  # float32[M, W], requests that missed in a queue, or before this process began, fading
    loaded: PaperColumn  # float32[M, B, W], the others, by how busy their replicas were, fading alike
    missed: PaperColumn  # float32[M, W], requests that missed, by what is known of loads now
    arrived: FloatColumn  # float64[W], all requests, fading alike
    real_backlog: FloatColumn  # replica-seconds that wait before as many replicas as really served, on paper
    promised: FloatColumn  # requests that miss there, over the error budget's time
    burnt: FloatColumn  # requests that really missed, over the same
    counted: FloatColumn  # all of which it is known whether they missed, over the same
    served: FloatColumn  # all requests, over the same
    served_s: FloatColumn  # seconds of that
    bin_missed: FloatColumn  # float64[KINDS, B, W], see `misses`
    bin_seen: FloatColumn
    prefill_judged: FloatColumn  # requests served at such loads of which it was told how long their prompt took
    prefill_late: FloatColumn  # those whose prompt alone took longer than TTFT may be
    unavoidable: FloatColumn  # float64[W], share that misses on any number of replicas
    rule: FloatColumn  # float64[W], the rule in force; NaN: none yet
    budget: FloatColumn  # share of requests that it may miss
    replicas: FloatColumn  # float64[W], what is asked for; NaN: the rules do not speak

    @classmethod
    def blank(cls, rows: int) -> Rules:
        known = {name: np.zeros(rows) for name in cls.__dataclass_fields__}
        known |= {name: np.full(rows, np.nan) for name in _UNKNOWN_AT_FIRST}
        known["family"] = np.full(rows, family.SIGNATURE)
        known["steps"] = np.zeros((speed.SUMS, rows))
        known["level"] = np.full((len(family.LEVELS_S), rows), np.nan)
        known |= {name: np.zeros((misses.KINDS, misses.BINS, rows)) for name in ("bin_missed", "bin_seen")}
        paper = {name: np.zeros((family.RULES, rows), np.float32) for name in ("backlog", "cost", "queued", "missed")}
        paper["loaded"] = np.zeros((family.RULES, misses.BINS, rows), np.float32)
        paper["asked"] = np.full((family.RULES, rows), np.nan, np.float32)
        paper["peaks"] = np.zeros((len(family.LEVELS_S), family.PEAKS, rows), np.float32)
        paper["lows"] = np.full((len(family.PREDICTORS), family.LOWS, rows), family.ENDLESS, np.float32)
        return cls(**{**known, **paper})  # type: ignore[arg-type]


_UNKNOWN_AT_FIRST = frozenset(("judged_s", "found", "kept_s", "shortest_gap_s", "slots", "demand", "span_s"))
_UNKNOWN_AT_FIRST |= frozenset(("needed", "rule", "budget", "replicas", "ttft_objective_s", "itl_objective_s"))

RULES_PRESENT = frozenset(("judged_s", "found", "demand", "level", "level_s", "unrest", "span_s", "peaks", "lows"))
RULES_PRESENT |= frozenset(("asked", "needed", "backlog", "loaded", "real_backlog", "rule", "replicas"))
"""Fields of `Rules` that follow the present within minutes and begin anew with a process; see `core.kept`."""

RULES_OF_FAMILY = frozenset(("watched_s", "kept_s", "cost", "queued", "missed", "arrived"))
"""Fields of `Rules` that mean something only together, and only with the family they are about."""

RULES_OF_OBJECTIVE = RULES_OF_FAMILY | frozenset(("found", "loaded", "promised", "burnt", "counted", "unavoidable"))
RULES_OF_OBJECTIVE |= frozenset(("bin_missed", "bin_seen", "prefill_judged", "prefill_late"))
"""Fields of `Rules` that mean something only with the objectives they were counted under."""


@dataclass(frozen=True)
class Seen(Columns):
    """What was seen since the rules were judged last; every field but the first float64[W]."""

    tally: Tally
    replicas: FloatColumn  # that serve
    served: FloatColumn  # that served in the mean since then: who came half way counts half
    waiting: FloatColumn  # requests that wait in them
    cold_start_s: FloatColumn
    ttft_objective_s: FloatColumn  # or as long as a request may wait; NaN: no promise, and no rule speaks
    itl_objective_s: FloatColumn  # NaN: no promise
    budget: FloatColumn  # share of requests that may miss
    floor: FloatColumn  # replicas
    ceiling: FloatColumn


def judge(rules: Rules, seen: Seen, now_s: float) -> Rules:
    """Bring the fleets on paper up to date and say which rule is in force and what it asks for."""
    rules = _of_objective(rules, seen)
    step_s = now_s - rules.judged_s
    step_s = np.where(step_s > 0, step_s, 0.0)  # NaN: the first time
    rules, arrivals = _measure(rules, seen, step_s)
    lived = ~np.isnan(rules.demand) & (step_s > 0) & (step_s <= LONGEST_STEP_S)
    rules, likely = _learn_misses(rules, seen, arrivals, np.where(lived, step_s, 0.0))
    lived &= ~np.isnan(rules.asked[0])
    rules = _account(rules, seen, arrivals, likely, np.where(lived, step_s, 0.0))
    rules = _predict(rules, seen, step_s, now_s)
    return replace(_follow(rules, seen), judged_s=np.full(len(step_s), now_s))


def _of_objective(rules: Rules, seen: Seen) -> Rules:
    """Begin anew with all that was counted under other objectives than are in force now, here or before a restart.

    Where no policy is in force none are, and what was counted is kept for its return.
    """
    objectives = "ttft_objective_s", "itl_objective_s"
    then, now = (np.stack([getattr(table, name) for name in objectives]) for table in (rules, seen))
    anew = ~np.isclose(then, now, rtol=1e-6, atol=0.0, equal_nan=True).all(axis=0) & ~np.isnan(seen.budget)
    if not anew.any():
        return rules
    blank = Rules.blank(len(anew))
    fresh = {name: getattr(blank, name) for name in RULES_OF_OBJECTIVE} | dict(zip(objectives, now, strict=True))
    return replace(rules, **{name: np.where(anew, column, getattr(rules, name)) for name, column in fresh.items()})


def learned_speed(rules: Rules) -> speed.Speed:
    """Return how fast replicas are, as far as it is known."""
    return speed.fit(rules.steps, rules.readings, rules.shortest_gap_s)


def _measure(rules: Rules, seen: Seen, step_s: FloatColumn) -> tuple[Rules, FloatColumn]:
    """Turn what was counted into demand; also returns the requests that came on all replicas.

    Two estimates, each wrong where the other is right, are averaged: arrivals times the work of a request, which a
    queue does not hide but longer answers do at first; and how busy replicas are, with what was added to their queues
    and, as far as they are full, to their batches.
    """
    tally = seen.tally
    rules = replace(
        rules,
        steps=rules.steps * np.exp(-step_s / speed.FADE_S) + tally.lessons,
        readings=rules.readings + tally.readings,
        shortest_gap_s=speed.shortest(rules.shortest_gap_s, tally.shortest_gap_s, step_s),
    )
    idle_gap_s = learned_speed(rules).idle_gap_s
    rules = _count_slots(rules, tally, idle_gap_s, step_s)
    busy = busy_share(tally, idle_gap_s, rules.slots)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.where(tally.covered_s > 0, seen.served * step_s / tally.covered_s, np.nan)  # of those counted
        served = ~np.isnan(busy) & (tally.began > 0) & (whole > 0)
        fade = np.where(served, np.exp(-step_s / WORK_WINDOW_S), 1.0)
        work_s = rules.work_s * fade + np.where(served, busy * seen.served * step_s, 0.0)
        requests = rules.requests * fade + np.where(served, tally.began * whole, 0.0)
        each_s = np.where(requests >= FEWEST_REQUESTS, work_s / requests, np.nan)
        arrivals = tally.arrived * whole
        grown = (tally.queue_grown + busy**2 * tally.batch_grown) * whole
        offered = np.fmax(busy * seen.served + grown * each_s / step_s, 0.0)
        brought = arrivals * each_s / step_s
        demand = np.where(np.isnan(busy), brought, (brought + offered) / 2)
    rules = replace(rules, work_s=work_s, requests=requests, demand=np.where(step_s > 0, demand, np.nan))
    return rules, or_zero(arrivals)


def _count_slots(rules: Rules, tally: Tally, idle_gap_s: FloatColumn, step_s: FloatColumn) -> Rules:
    """Learn how many requests a replica can run, from those that had a queue and ran as many as any ever did.

    A queue alone says little: who computes all the time has one, too, and for a moment one waits for the token budget
    of a step.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spare = idle_gap_s * tally.gaps / tally.gap_s > 1 - COMPUTING
    most_running = np.fmax(rules.most_running * np.exp(-step_s / SLOTS_FADE_S), tally.most_running)
    slots = np.where(spare & (tally.full_running >= FULL * most_running), most_running, rules.slots)
    slots = np.where((slots < FULL * most_running) | (slots < 1), np.nan, slots)  # it ran more without a queue
    return replace(rules, most_running=most_running, slots=np.where(np.isnan(tally.slots), slots, tally.slots))


def _learn_misses(rules: Rules, seen: Seen, arrivals: FloatColumn, step_s: FloatColumn) -> tuple[Rules, FloatColumn]:
    """Learn how the load makes requests miss, and how far paper is from truth. step_s: 0 where nothing is known.

    Also returns the share that misses by bin of the load, float64[B, W].
    """
    tally = seen.tally
    with np.errstate(divide="ignore", invalid="ignore"):
        load = rules.demand / np.maximum(seen.served, 1.0)
        waited = seen.waiting - np.minimum(tally.queue_grown, 0.0)  # now or then: TTFT is told once a wait is over
    plain = (step_s > 0) & (load < 1.2) & ~(_queued_s(rules, seen, waited) > QUEUED_S)  # a queue is modelled on its own
    judged = np.stack([tally.ttft_judged, tally.itl_judged])
    missed = np.stack([tally.ttft_missed, tally.itl_missed])
    bin_missed, bin_seen = misses.learn(
        rules.bin_missed, rules.bin_seen, np.where(plain, load, np.nan), missed, judged, step_s
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        share = misses.either(np.where(judged > 0, missed / judged, 0.0))
    known = (step_s > 0) & (judged.max(axis=0) > 0)
    fade = np.exp(-step_s / error_budget.BUDGET_S)
    ready = np.maximum(seen.served, 0.5)
    demand = np.where(step_s > 0, rules.demand, 0.0)
    backlog = np.where(step_s > 0, np.maximum(rules.real_backlog + (demand - MOST_BUSY * ready) * step_s, 0.0), 0.0)
    faded = np.exp(-step_s / misses.FADE_S)
    prefill_judged = rules.prefill_judged * faded + np.where(plain, tally.prefill_judged, 0.0)
    prefill_late = rules.prefill_late * faded + np.where(plain, tally.prefill_late, 0.0)
    likely, unavoidable = misses.by_load(bin_missed, bin_seen, prefill_late, prefill_judged)
    place = misses.bin_of(demand / ready).astype(np.int64)
    promised = np.where(
        backlog > TOLERATED * seen.ttft_objective_s * MOST_BUSY * ready, 1.0, likely[place, np.arange(len(place))]
    )
    rules = replace(
        rules,
        bin_missed=bin_missed,
        bin_seen=bin_seen,
        prefill_judged=prefill_judged,
        prefill_late=prefill_late,
        unavoidable=unavoidable,
        real_backlog=backlog,
        promised=rules.promised * fade + np.where(known, promised * arrivals, 0.0),
        burnt=rules.burnt * fade + np.where(known, share * arrivals, 0.0),
        counted=rules.counted * fade + np.where(known, arrivals, 0.0),
        served=rules.served * fade + np.where(step_s > 0, arrivals, 0.0),
        served_s=rules.served_s * fade + step_s,
    )
    return rules, likely


def _account(rules: Rules, seen: Seen, arrivals: FloatColumn, likely: FloatColumn, step_s: FloatColumn) -> Rules:
    """Let every fleet on paper live through the step with what it had asked for. step_s: 0 where none can.

    What a load makes miss is judged anew each time: the first hour was lived through with little more than a belief.
    """
    lived = step_s > 0
    fade = np.exp(-step_s / FADE_S)
    arrived = np.where(lived, arrivals, 0.0)
    demand = np.where(lived, rules.demand, 0.0)
    column, margins = np.arange(len(step_s)), np.arange(family.MARGINS)[:, None]
    last_bin = np.float32(misses.BINS - 1)
    patience_s = TOLERATED * np.nan_to_num(seen.ttft_objective_s, nan=np.inf)
    came, most, binned, patience, paper_fade, paper_arrived, paper_step_s = (
        values.astype(np.float32)
        for values in (
            demand * step_s,
            MOST_BUSY * step_s,
            demand / misses.WIDTH,
            patience_s * MOST_BUSY,
            fade,
            arrived,
            step_s,
        )
    )
    ready_then, reach = rules.lows[:, 0], family.spans(seen.cold_start_s)
    for span in range(1, family.LOWS):  # what stood for a whole cold start is ready by now
        ready_then = np.where(span <= reach, np.minimum(ready_then, rules.lows[:, span]), ready_then)
    floor = np.where(rules.watched_s < SETTLED_S, np.maximum(seen.floor, seen.replicas), seen.floor)
    backlog, cost = np.empty_like(rules.backlog), np.empty_like(rules.cost)
    queued, loaded = rules.queued * paper_fade, rules.loaded * paper_fade
    for predictor in range(len(family.PREDICTORS)):  # one at a time fits the processor's cache
        at = family.rows_of(predictor)
        ready = family.fleets(ready_then[predictor], floor, seen.ceiling)
        queue = np.maximum(rules.backlog[at] + (came - most * ready), np.float32(0))
        place = np.minimum(binned / ready, last_bin).astype(np.int32)
        late = np.where(queue > patience * ready, paper_arrived, np.float32(0))
        backlog[at] = queue
        queued[at] += late
        loaded[at][margins, place, column] += paper_arrived - late
        cost[at] = rules.cost[at] * paper_fade + np.where(lived, rules.asked[at], np.float32(0)) * paper_step_s
    if not lived.all():
        backlog = np.where(lived, backlog, np.float32(0))  # after a hole nobody knows what waits
    missed = queued.copy()
    for place, share in enumerate(likely.astype(np.float32)):  # by hand, as in `misses`: alike for any number of rows
        missed += loaded[:, place] * share
    return replace(
        rules,
        watched_s=rules.watched_s + step_s,
        backlog=backlog,
        cost=cost,
        queued=queued,
        loaded=loaded,
        missed=missed,
        arrived=rules.arrived * fade + arrived,
    )


def _predict(rules: Rules, seen: Seen, step_s: FloatColumn, now_s: float) -> Rules:
    """Follow the levels, hold their peaks, and note what is predicted; unknown demand changes nothing."""
    lived_s = np.where(np.isnan(rules.demand), 0.0, np.minimum(step_s, LONGEST_STEP_S))
    level = family.levels(rules.level, rules.level_s, rules.demand, lived_s)
    off = np.where(lived_s > 0, family.off_level(level, rules.demand), 0.0)
    turned = ~(now_s - rules.span_s < family.span_s(seen.cold_start_s) - 1e-6)
    said = level.astype(np.float32)
    peaks = family.push(rules.peaks, or_zero(said), turned, np.maximum)
    *held, of_load = family.held(said, peaks, family.spans(seen.cold_start_s))
    lowest = np.nan_to_num(held, nan=family.ENDLESS)
    lows = family.push(rules.lows, lowest, turned, np.minimum)
    found = np.where(np.isnan(rules.found) & ~np.isnan(level[0]), seen.replicas, rules.found)
    # Or one slow start, hours later, would bring back the fleet of another day.
    until_s = np.where(rules.watched_s >= rules.kept_s, rules.kept_s, kept_s(seen.cold_start_s))
    floor = np.fmax(seen.floor, np.where(rules.watched_s < until_s, found, np.nan))
    return replace(
        rules,
        found=found,
        kept_s=until_s,
        level=level,
        level_s=rules.level_s + lived_s,
        unrest=rules.unrest + off**2 * lived_s,
        span_s=np.where(turned, now_s, rules.span_s),
        peaks=peaks,
        lows=lows,
        asked=np.concatenate([family.fleets(predicted, floor, seen.ceiling) for predicted in held]),
        needed=family.fleets(of_load, floor, seen.ceiling)[family.ONE_ROOT].astype(np.float64),
    )


def _follow(rules: Rules, seen: Seen) -> Rules:
    """Take the cheapest rule, where each request that is missed beyond the budget has a price as well.

    While requests wait for too long nothing is given up, least of all what still loads: another rule that asks for less
    was chosen by what came before, and clients who leave take what they asked for out of all counts.
    """
    rows = np.arange(len(rules.rule))
    with np.errstate(divide="ignore", invalid="ignore"):
        served_per_s = np.where(rules.served_s > 0, rules.served / rules.served_s, np.nan)
    budget = error_budget.steered(seen.budget, rules.burnt, rules.counted, served_per_s, rules.unavoidable)
    doubt = or_zero(served_per_s) * DOUBT_S
    believed = (doubt * family.doubted(rules.level[-1])).astype(np.float32)
    missed = rules.missed * wrongness(rules, seen.budget).astype(np.float32) + believed.reshape(family.RULES, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        fine = MISS_PRICE * or_zero(rules.work_s / rules.requests)
    missed -= (budget * (rules.arrived + doubt)).astype(np.float32)
    np.maximum(missed, np.float32(0), out=missed)
    missed *= fine.astype(np.float32)
    price = missed + rules.cost
    price[np.ix_(~family.CAREFUL, rules.watched_s < young_s(rules))] = np.inf
    cheapest = price.argmin(axis=0)
    before = or_zero(rules.rule).astype(np.int64)
    gain = price[before, rows] - price[cheapest, rows]
    stays = ~np.isnan(rules.rule) & (gain <= WORTH * rules.cost[before, rows])
    rule = np.where(stays, before, cheapest)
    replicas = np.fmin(rules.asked[rule, rows], _enough(rules, seen, doubt))
    late = _queued_s(rules, seen, seen.waiting) > TOLERATED * seen.ttft_objective_s
    replicas = np.where(late, np.fmax(replicas, np.fmin(rules.replicas, seen.ceiling)), replicas)
    speaks = ~np.isnan(rules.demand) & ~np.isnan(seen.ttft_objective_s)
    return replace(
        rules,
        rule=np.where(speaks, rule.astype(np.float64), rules.rule),
        budget=budget,
        replicas=np.where(speaks, replicas, np.nan),
    )


def _queued_s(rules: Rules, seen: Seen, waiting: FloatColumn) -> FloatColumn:
    """Return how long those that serve work at so many waiting requests; float64[W], NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(waiting * rules.work_s / rules.requests / np.maximum(seen.served, 1.0))


def young_s(rules: Rules) -> FloatColumn:
    """Return how much must have been watched of a workload that is no longer young; float64[W]."""
    return np.where(_is_calm(rules), YOUNG_CALM_S, YOUNG_S)


def kept_s(cold_start_s: FloatColumn) -> FloatColumn:
    """Return for how long all of the fleet that was found is kept, where that is not over yet; float64[W].

    Whoever sized it had a reason. As long as any peak is held, and as long as only careful rules are followed: what was
    given up before the second surge was seen is missing in it.
    """
    return np.asarray(np.maximum(FOUND_S, family.LONGEST_HOLD * cold_start_s))


def _is_calm(rules: Rules) -> BoolColumn:
    return np.asarray((rules.level[family.STEADY] > 0) & (rules.unrest < CALM**2 * rules.level_s))


def _enough(rules: Rules, seen: Seen, doubt: FloatColumn) -> FloatColumn:
    """Return the most that the young may ask for, float64[W]; NaN: no limit.

    Whoever sized the fleet that was found had a reason, and in traffic that is calm nothing was seen yet that speaks
    against it: so no reserve is added to it, unless too many missed. doubt: float64[W], requests whose share of the
    budget counts as had in advance.
    """
    enough = _is_calm(rules) & (rules.watched_s < YOUNG_CALM_S)
    enough &= rules.burnt <= seen.budget * (rules.counted + doubt)
    most = np.fmax(np.fmin(rules.found, seen.ceiling), rules.asked[family.ENOUGH])
    return np.where(enough, most, np.nan)


def wrongness(rules: Rules, promised: FloatColumn) -> FloatColumn:
    """Return how many requests really missed for each that was to miss on paper; see `error_budget.wrongness`."""
    return error_budget.wrongness(promised, rules.burnt, rules.counted, rules.promised, rules.unavoidable)
