"""The planner's recommendation in words: the load, why it takes so many replicas, and the error budget."""

from __future__ import annotations

import math

import numpy as np

from autoscaler.core.explain.format import count, number, percent, seconds, window
from autoscaler.core.explain.planner_lines import Figures, since
from autoscaler.core.explain.row import TickRow
from autoscaler.core.measure.capacity import count_carrying
from autoscaler.core.planner.strategies import IS_SEASONAL, ROUNDING_TOLERANCE, find_highest_load

TOLERATED = 1.005
"""Misses over the error budget up to which it is called kept: percentages are printed with three digits."""


def reason(row: TickRow) -> str:
    """Word the recommendation, and what was missed of the error budget."""
    known = row.figures
    recommended = f"the planner recommends {number(known.recommended_replicas)}"
    if known.recommended_replicas == 0:
        return f"{recommended} because no request is in flight"
    load = f" for a load of {count(known.demand_replicas, 'busy replica')}"
    idle = known.recommended_replicas - row.planned("replicas")
    on_top = f", with {number(idle)} asleep or stuck" if idle > 0 else ""
    because = f", {why}" if (why := _why_so_many(row)) else ""
    # The prediction is for the replicas of the strategy. It says nothing about fewer.
    as_predicted = row.planned("replicas") >= known.strategy_replicas
    budget = error_budget(known, _predicted(known) if as_predicted else math.nan)
    return "; ".join(filter(None, (f"{recommended}{load}{on_top}{because}", budget)))


def error_budget(known: Figures, predicted: float) -> str:
    """Word how many requests missed their objective, how many are predicted to miss, and how many may.

    predicted: share of requests; NaN: not known. "Within the error budget" is said where both shares are known and
    within it. Returns "" where neither is known.
    """
    may, missed = known.budget_fraction, known.missed_fraction
    in_window = f"in {window(known.window_s)}"
    budget = f"the error budget of {percent(may)} {in_window}"
    missed_so_far = f"{percent(missed)} of requests missed {since(known)}"
    if missed > TOLERATED * may:
        return f"{missed_so_far}, more than {budget}{_countermeasure(known)}"
    if predicted > TOLERATED * may:
        over = f"its strategy is predicted to miss {percent(predicted)} of requests, more than {budget}"
        return f"{over}, and each miss beyond it is priced into the choice of strategy"
    if math.isnan(missed) and math.isnan(predicted):
        return ""
    if math.isnan(predicted):
        return f"{missed_so_far}, {percent(may)} may {in_window}, and nothing is predicted yet"
    if math.isnan(missed):
        expected = f"its strategy is predicted to miss {percent(predicted)} of requests"
        return f"{expected}, {percent(may)} may {in_window}, and no real misses are known yet"
    return f"{missed_so_far} and its strategy is predicted to miss {percent(predicted)}, within {budget}"


def _predicted(known: Figures) -> float:
    """Return the share of requests that the selected strategy would have missed; NaN: not known.

    Shadow fleets leave out what misses at any number of replicas.
    """
    return known.shadow_missed_fraction + max(known.unavoidable_fraction, 0.0)


def _countermeasure(known: Figures) -> str:
    """Word what the planner does about misses beyond the error budget."""
    anyway, allowed = max(known.unavoidable_fraction, 0.0), known.allowed_fraction
    if anyway > known.budget_fraction:
        return f", and {percent(anyway)} miss at any number of replicas"
    if math.isnan(allowed):
        return ""
    allows = "so it now allows" if allowed + anyway < known.budget_fraction else "and it still allows"
    return f", {allows} {percent(allowed + anyway)}"


def _why_so_many(row: TickRow) -> str:
    """Word why the planner recommends another count than the load alone would take; "" where nothing else counts."""
    known, replicas = row.figures, row.planned("replicas")
    load, least, most = max(known.demand_replicas, 0.0), max(row.spec("min_replicas"), 1.0), row.spec("max_replicas")
    if replicas > known.strategy_replicas:
        return "because no replica is removed while requests wait too long"
    if replicas < known.strategy_replicas:
        alone = f"the strategy alone would recommend {number(known.strategy_replicas)}"
        return f"because no more headroom is added in the first hours of steady traffic ({alone})"
    with_headroom = load * (1 + known.margin_fraction) + known.margin_roots * math.sqrt(load)
    with_headroom, enough = (count_carrying(np.array([with_headroom, load])) - ROUNDING_TOLERANCE).tolist()
    if most <= replicas < with_headroom:
        return "the maximum"
    if replicas < load:
        return f"because the load average over {seconds(known.average_s)} is lower"
    if not replicas - 1 >= with_headroom:
        return _headroom(known) if replicas - 1 >= enough else ""
    if replicas <= least:
        return "the minimum" if least > 1 else ""
    if replicas <= known.constant_replicas:
        return _constant_count(row, replicas)
    if season := _season(row):
        return season
    if known.peak_expires_in_s >= 0:
        return f"because a peak is held for {seconds(known.peak_expires_in_s)} more, in case the load returns"
    if known.observed_s < known.warm_up_s and replicas <= row.planned("initial_fleet"):
        left = seconds(known.warm_up_s - known.observed_s)
        return f"because the initial fleet is kept for {left} more, until the load is known"
    peak = f"because the load average over {seconds(known.average_s)} has just peaked"
    return f"{peak}, and peaks are held for {count(known.hold_cold_starts, 'cold start')}"


def _constant_count(row: TickRow, replicas: float) -> str:
    """Word that a constant count is the cheapest, and which surges it is kept for."""
    constant, surges, kept_s = row.figures.constant_replicas, row.planned("surges"), row.planned("surge_counts_s")
    is_cut = replicas >= row.spec("max_replicas") and replicas < constant
    many = f"{number(constant)}, more than the maximum," if is_cut else number(replicas)
    kept = f" (the only surge counts for {seconds(kept_s)} more)" if kept_s > 0 else ""
    kept = f" ({number(surges)} surges count)" if surges > 1 else kept
    return f"because a constant count of {many} is the cheapest now, misses included{kept}"


def _season(row: TickRow) -> str:
    """Word the load of a day or a week ago, if it alone takes as many replicas; "" if not."""
    strategy, replicas = int(row.planned("strategy")), row.planned("replicas")
    day_ago, week_ago = row.planned("day_ago_load"), row.planned("week_ago_load")
    load = float(np.fmax(day_ago, week_ago))
    enough_for = float(find_highest_load(np.array([strategy]), np.array([replicas - 1]))[0])
    if not (IS_SEASONAL[strategy] and load > enough_for):
        return ""
    ago = "a day ago" if day_ago >= load else "a week ago"
    return f"because the load was {count(load, 'busy replica')} around this time {ago}"


def _headroom(known: Figures) -> str:
    if known.margin_fraction > 0:
        return f"because its headroom is {percent(known.margin_fraction)}"
    roots = f"because its headroom is {number(known.margin_roots)} times the square root of the load"
    return roots if known.margin_roots > 0 else ""
