"""The fleets on paper: each rule has one, which lives through the demand that there is, and what became of them.

What a rule asks for comes one cold start later on paper as in truth, demand it cannot carry queues, and requests miss
their objective in that queue or because replicas are too busy. So each has its cost and its misses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.planner import miss_curve, strategies
from autoscaler.core.planner.interval import Seen, Step
from autoscaler.core.planner.strategies import MOST_BUSY, PaperColumn
from autoscaler.core.table.columns import Columns, FloatColumn, PerObjective, PerStrategySet, Transient

FADE_S = 2 * 86_400.0
"""Time constant with which cost and misses of the past are forgotten: a few days."""

SETTLED_S = 600.0
"""Until so much was watched a fleet on paper has at least what really serves, whatever rule sized it."""


@dataclass(frozen=True)
class Paper(Columns):
    """What became of each rule; float32[M, W] unless stated. M rules, B bins of the load."""

    watched_s: PerStrategySet[FloatColumn]  # float64[W], seconds of demand that they lived through, not fading
    asked: Transient[PaperColumn]  # replicas that each asks for since
    backlog: Transient[PaperColumn]  # replica-seconds of work that wait
    cost: PerStrategySet[PaperColumn]  # replica-seconds, fading
    queued: PerStrategySet[PaperColumn]  # requests that missed in a queue, or before this process began, fading
    loaded: Transient[
        PerObjective[PaperColumn]
    ]  # float32[M, B, W], the others, by how busy replicas were, fading alike
    missed: PerStrategySet[PaperColumn]  # requests that missed, by what is known of loads now
    arrived: PerStrategySet[FloatColumn]  # float64[W], all requests, fading alike

    @classmethod
    def blank(cls, rows: int) -> Paper:
        none, by_rule = np.zeros(rows), np.zeros((strategies.RULES, rows), np.float32)
        loaded = np.zeros((strategies.RULES, miss_curve.BINS, rows), np.float32)
        return cls(none, np.full_like(by_rule, np.nan), by_rule, by_rule, by_rule, loaded, by_rule, none)


def live(paper: Paper, seen: Seen, step: Step, stood: PaperColumn) -> Paper:
    """Let every fleet live through the step with what it had asked for.

    stood: float32[J, W], what each predictor said for a whole cold start.

    A surge fills the batches of the replicas first, in which nobody waits; what is beyond these queues.

    What a load makes miss is judged anew each time: the first hour was lived through with little more than a belief.
    """
    lived = (step.lived_s > 0) & ~np.isnan(paper.asked[0])
    step_s = np.where(lived, step.lived_s, 0.0)
    fade = np.exp(-step_s / FADE_S)
    arrived = np.where(lived, step.arrivals, 0.0)
    demand = np.where(lived, step.demand, 0.0)
    column, rules = np.arange(len(step_s)), np.arange(strategies.RULES)[:, None]
    last_bin = np.float32(miss_curve.BINS - 1)
    patience_s = np.where(np.isnan(seen.patience_s), np.inf, seen.patience_s)
    came, most, binned, patience, paper_fade, paper_arrived, paper_step_s = (
        values.astype(np.float32)
        for values in (
            demand * step_s,
            MOST_BUSY * step_s,
            demand / miss_curve.WIDTH,
            patience_s * MOST_BUSY + step.room_s,
            fade,
            arrived,
            step_s,
        )
    )
    floor = np.where(paper.watched_s < SETTLED_S, np.maximum(seen.floor, seen.replicas), seen.floor)
    cost, queued, loaded = paper.cost * paper_fade, paper.queued * paper_fade, paper.loaded * paper_fade
    ready = strategies.asked(stood, floor, seen.ceiling)
    backlog = np.maximum(paper.backlog + (came - most * ready), np.float32(0))
    place = np.minimum(binned / ready, last_bin).astype(np.int32)
    late = np.where(backlog > patience * ready, paper_arrived, np.float32(0))
    queued += late
    loaded[rules, place, column] += paper_arrived - late
    cost += np.where(lived, paper.asked, np.float32(0)) * paper_step_s
    if not lived.all():
        backlog = np.where(lived, backlog, np.float32(0))  # after a hole nobody knows what waits
    missed = queued.copy()
    for place, share in enumerate(
        step.likely.astype(np.float32)
    ):  # by hand, as in `misses`: alike for any number of rows
        missed += loaded[:, place] * share
    return Paper(
        watched_s=paper.watched_s + step_s,
        asked=paper.asked,
        backlog=backlog,
        cost=cost,
        queued=queued,
        loaded=loaded,
        missed=missed,
        arrived=paper.arrived * fade + arrived,
    )
