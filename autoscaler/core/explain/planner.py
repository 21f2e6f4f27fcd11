"""The planner's recommendation in words: the load, why it takes so many replicas, and the error budget."""

from __future__ import annotations

import math

import numpy as np

from autoscaler.core.explain.claims import NOTHING, Words, join, tell
from autoscaler.core.explain.format import count, number, percent, seconds, window
from autoscaler.core.explain.planner_lines import Figures, since
from autoscaler.core.explain.row import TickRow
from autoscaler.core.measure.capacity import count_carrying
from autoscaler.core.planner.strategies import AVERAGES_S, IS_SEASONAL, ROUNDING_TOLERANCE, find_highest_load

TOLERATED = 1.005
"""Misses over the error budget up to which it is called kept: percentages are printed with three digits."""


def reason(row: TickRow) -> Words:
    """Word the recommendation, and what was missed of the error budget."""
    known = row.figures
    recommended = tell(
        "{signal} recommends {recommended}", signal="the planner", recommended=number(known.recommended_replicas)
    )
    if known.recommended_replicas == 0:
        return recommended + tell(" because {idle:no request is in flight}")
    idle, why = known.recommended_replicas - row.planned("replicas"), _why_so_many(row)
    recommended += tell(
        " for a load of {demand}{on_top}{because}",
        demand=count(known.demand_replicas, "busy replica"),
        on_top=tell(", with {idle_replicas} asleep or stuck", idle_replicas=number(idle)) if idle > 0 else NOTHING,
        because=Words(", ") + why if why else NOTHING,
    )
    # The prediction is for the replicas of the strategy. It says nothing about fewer.
    as_predicted = row.planned("replicas") >= known.strategy_replicas
    budget = error_budget(known, _predicted(known) if as_predicted else math.nan)
    return join("; ", (recommended, budget))


def error_budget(known: Figures, predicted: float) -> Words:
    """Word how many requests missed their objective, how many are predicted to miss, and how many may.

    predicted: share of requests; NaN: not known. "Within the error budget" is said where both shares are known and
    within it. Returns nothing where neither is known.
    """
    may, missed = known.budget_fraction, known.missed_fraction
    told = {"budget_fraction": percent(may), "budget_window_s": window(known.window_s)}
    budget = tell("the error budget of {budget_fraction} in {budget_window_s}", **told)
    may_miss = tell(", {budget_fraction} may in {budget_window_s}, and ", **told)
    so_far = tell("{missed_fraction} of requests missed {since}", missed_fraction=percent(missed), since=since(known))
    expected = tell("its strategy is predicted to miss {predicted_fraction}", predicted_fraction=percent(predicted))
    if missed > TOLERATED * may:
        return so_far + tell(", {missed_so_far:more than} ") + budget + _countermeasure(known)
    if predicted > TOLERATED * may:
        over = expected + tell(" of requests, {predicted_to_miss:more than} ") + budget
        return over + ", and each miss beyond it is priced into the choice of strategy"
    if math.isnan(missed) and math.isnan(predicted):
        return NOTHING
    if math.isnan(predicted):
        return so_far + may_miss + tell("{no_prediction:nothing is predicted yet}")
    if math.isnan(missed):
        return expected + " of requests" + may_miss + tell("{none_counted:no real misses are known yet}")
    return so_far + " and " + expected + tell(", {both:within} ") + budget


def _predicted(known: Figures) -> float:
    """Return the share of requests that the selected strategy would have missed; NaN: not known.

    Shadow fleets leave out what misses at any number of replicas.
    """
    return known.shadow_missed_fraction + max(known.unavoidable_fraction, 0.0)


def _countermeasure(known: Figures) -> Words:
    """Word what the planner does about misses beyond the error budget."""
    anyway, allowed = max(known.unavoidable_fraction, 0.0), known.allowed_fraction
    if anyway > known.budget_fraction:
        return tell(", and {unavoidable_fraction} miss at any number of replicas", unavoidable_fraction=percent(anyway))
    if math.isnan(allowed):
        return NOTHING
    allows = "so it now allows" if allowed + anyway < known.budget_fraction else "and it still allows"
    return tell(", {allows} {allowed_fraction}", allows=allows, allowed_fraction=percent(allowed + anyway))


def _why_so_many(row: TickRow) -> Words:
    """Word why the planner recommends another count than the load alone would take; nothing: nothing else counts."""
    known, replicas = row.figures, row.planned("replicas")
    load, least, most = max(known.demand_replicas, 0.0), max(row.spec("min_replicas"), 1.0), row.spec("max_replicas")
    if replicas > known.strategy_replicas:
        if row.decision.starts.mean_s[row.row] >= AVERAGES_S[-1]:  # in `select_strategy`
            return tell(
                "{too_late:because the load of 20 s counts while requests wait too long, and nothing is removed}"
            )
        return tell("{too_late:because no replica is removed while requests wait too long}")
    if replicas < known.strategy_replicas:
        return tell(
            "because no more headroom is added in the first hours of steady traffic "
            "(the strategy alone would recommend {strategy_replicas})",
            strategy_replicas=number(known.strategy_replicas),
        )
    with_headroom = load * (1 + known.margin_fraction) + known.margin_roots * math.sqrt(load)
    with_headroom, enough = (count_carrying(np.array([with_headroom, load])) - ROUNDING_TOLERANCE).tolist()
    if most <= replicas < with_headroom:
        return tell("{most:the maximum}")
    if replicas < load:
        return tell("because the load average over {lower_over_s} is lower", lower_over_s=seconds(known.average_s))
    if not replicas - 1 >= with_headroom:
        return _headroom(known) if replicas - 1 >= enough else NOTHING
    if replicas <= least:
        return tell("{least:the minimum}") if least > 1 else NOTHING
    if replicas <= known.constant_replicas:
        return _constant_count(row, replicas)
    return _season(row) or _peak(row, replicas)


def _peak(row: TickRow, replicas: float) -> Words:
    """Word for how long a peak or the initial fleet is held."""
    known = row.figures
    if known.peak_expires_in_s >= 0:
        return tell(
            "because a peak is held for {peak_expires_in_s} more, in case the load returns",
            peak_expires_in_s=seconds(known.peak_expires_in_s),
        )
    if known.observed_s < known.warm_up_s and replicas <= row.planned("initial_fleet"):
        return tell(
            "because the initial fleet is kept for {warm_up_left_s} more, until the load is known",
            warm_up_left_s=seconds(known.warm_up_s - known.observed_s),
        )
    return tell(
        "because the load average over {peaked_over_s} has just peaked, and peaks are held for {hold_cold_starts}",
        peaked_over_s=seconds(known.average_s),
        hold_cold_starts=count(known.hold_cold_starts, "cold start"),
    )


def _constant_count(row: TickRow, replicas: float) -> Words:
    """Word that a constant count is the cheapest, and which surges it is kept for."""
    constant, surges = row.figures.constant_replicas, row.planned("surges")
    is_cut = replicas >= row.spec("max_replicas") and replicas < constant
    several = tell(" ({surges} surges count)", surges=number(surges))
    return tell(
        "because a constant count of {constant_replicas}{beyond} is the cheapest now, misses included{kept}",
        constant_replicas=number(constant if is_cut else replicas),
        beyond=tell("{beyond:, more than the maximum,}") if is_cut else NOTHING,
        kept=several if surges > 1 else _only_surge(row),
    )


def _only_surge(row: TickRow) -> Words:
    """Word until when the only surge counts; nothing: there is none that does.

    That is as long after its end as had been observed by then, which grows for as long as the surge lasts.
    """
    kept_s, observed_s = row.planned("surge_counts_s"), row.figures.observed_s
    if not kept_s > 0:
        return NOTHING
    if kept_s < observed_s:
        return tell(" (the only surge counts for {surge_counts_s} more)", surge_counts_s=seconds(kept_s))
    at_least = seconds(observed_s)
    return tell(" (the only surge counts for at least {surge_lasts_s} after its end)", surge_lasts_s=at_least)


def _season(row: TickRow) -> Words:
    """Word the load of a day or a week ago, if it alone takes as many replicas; nothing if not."""
    strategy, replicas = int(row.planned("strategy")), row.planned("replicas")
    day_ago, week_ago = row.planned("day_ago_load"), row.planned("week_ago_load")
    load = float(np.fmax(day_ago, week_ago))
    enough_for = float(find_highest_load(np.array([strategy]), np.array([replicas - 1]))[0])
    if not (IS_SEASONAL[strategy] and load > enough_for):
        return NOTHING
    return tell(
        "because the load was {seasonal_load} around this time {ago} ago",
        seasonal_load=count(load, "busy replica"),
        ago="a day" if day_ago >= load else "a week",
    )


def _headroom(known: Figures) -> Words:
    if known.margin_fraction > 0:
        return tell("because its headroom is {margin_fraction}", margin_fraction=percent(known.margin_fraction))
    roots = number(known.margin_roots)
    times = tell("because its headroom is {margin_roots} times the square root of the load", margin_roots=roots)
    return times if known.margin_roots > 0 else NOTHING
