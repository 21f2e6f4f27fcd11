"""Workloads together: share pools that are too small. Floors first, then priority, then weights.

Before a reserve is held for anybody, everybody has what it needs for the load that is there: GPUs that one holds for
what may come are of more use to whoever has the work, whatever its priority.

What the workloads of one priority get goes to those that have work before those that rest. Everybody's first replica
comes before anybody's second, and where not all can have one, to those to whom most requests come: they would miss
most. All in GPUs; a replica is granted whole or not at all. A pool whose size is unknown grants everything.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.spec import Spec
from autoscaler.core.observe.pending import Claims
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero

HELD = 30.0
"""Who has no replica gets that of an equal only where so many times as many requests come to it."""

LEVEL_STEPS = 60
"""Halvings to the level at which the GPUs of a pool are spent: beyond what a float64 tells apart."""


def share(
    wanted: FloatColumn,
    needed: FloatColumn,
    fleet: Fleet,
    spec: Spec,
    claims: Claims,
    trusted: BoolColumn,
    free: BoolColumn,
    rests: BoolColumn,
    standing: FloatColumn,
    arrivals_per_s: FloatColumn,
    staying: FloatColumn,
) -> FloatColumn:
    """Grant each workload what its pool can give.

    wanted: float64[W], replicas. needed: float64[W], how many of them are no reserve. claims: how many may take GPUs
    from the pool; what is wanted beyond that stays in the count and takes none. trusted: bool[W];
    of what is not trusted nothing is known, so it keeps what it has. free: bool[W]; what is not free to change holds
    what it has, whatever it wants, and is not granted anything. rests: bool[W]; these have no work, and can be woken.
    standing: float64[W], replicas that have GPUs: of what is kept only these take any from others.
    arrivals_per_s: float64[W], requests; NaN: not known.
    staying: float64[W], replicas that stay even where fewer are wanted, so that nobody else gets their GPUs.
    Returns float64[W], at most `wanted`. What is kept is taken off the pool first; then floors (the policy's minimum),
    then what is needed, then what is wanted are each served priority by priority, by weight where what is left does not
    suffice for all of one priority.
    """
    gpus_each = fleet.gpus_per_replica
    staying = np.fmin(staying, standing)
    stays = np.where(trusted, np.fmin(fleet.replicas, standing), fleet.replicas)
    granted = np.minimum(wanted, np.fmax(claims.fits, stays))  # beyond these no node holds another
    if len(fleet.pools) and claims.halted.any():
        # More than come would be counts that together exceed the pool, and all could come at once.
        sized = (fleet.pool >= 0) & ~np.isnan(fleet.pool_gpus[fleet.pool])
        granted = np.where(claims.halted & sized, np.minimum(granted, fleet.replicas), granted)
    for group, size in _sets(fleet):
        claiming = np.fmax(np.minimum(granted, claims.replicas), staying)
        held = np.where(free, claiming, np.fmin(fleet.replicas, standing))
        known = group & (gpus_each > 0) & np.isfinite(gpus_each) & np.isfinite(held)
        if not float(np.sum((held * gpus_each)[known])) > size:  # only what is short is shared; NaN compares False
            continue
        rows = np.flatnonzero(known)
        keeps = np.fmin(fleet.replicas, np.where(free, granted, held))[rows]
        least = np.where(free[rows] & trusted[rows], staying[rows], keeps)
        kept = np.fmin(least, standing[rows])
        claimed = np.fmax(np.fmin(held[rows], np.where(free[rows], claims.scarce[rows], np.inf)), kept)
        shared = kept + _share_pool(
            np.where(free[rows], claimed - kept, 0.0),
            or_zero(spec.min_replicas[rows]) - kept,
            needed[rows] - kept,
            gpus_each[rows],
            or_zero(spec.priority[rows]),
            np.where(spec.weight[rows] > 0, spec.weight[rows], 1.0),
            rests[rows],
            np.where(kept > 0, np.nan, _urgency(arrivals_per_s[rows], gpus_each[rows], standing[rows] > 0)),
            max(size - float(np.sum(kept * gpus_each[rows])), 0.0),
        )
        # Replicas that do not come take no GPU, so they stay wanted, as far as an empty pool could hold them.
        beside = np.fmin(granted[rows], np.fmax(np.floor(size / gpus_each[rows] + 1e-9), shared))
        unclaimed = (granted[rows] > held[rows]) & (shared >= held[rows])
        granted[rows] = np.fmax(np.where(unclaimed, beside, shared), least)
    return np.where(free, np.fmin(granted, wanted), wanted)


def _sets(fleet: Fleet) -> Iterator[tuple[BoolColumn, float]]:
    """Return which workloads share what number of GPUs: those of each pool, then those of pools that overlap."""
    sizes = fleet.pool_gpus.tolist()
    for pool in np.unique(fleet.pool[fleet.pool >= 0]).tolist():
        if not np.isnan(sizes[pool]):
            yield fleet.pool == pool, sizes[pool]
    for joint in fleet.pool_overlaps:
        yield np.isin(fleet.pool, joint.pools), joint.gpus


def _share_pool(
    wanted: FloatColumn,
    floor: FloatColumn,
    needed: FloatColumn,
    gpus_each: FloatColumn,
    priority: FloatColumn,
    weight: FloatColumn,
    rests: BoolColumn,
    urgency: FloatColumn,
    gpus: float,
) -> FloatColumn:
    """Share `gpus` among rows of one pool; what is granted is at most `wanted`, and reaches `floor`, then `needed`.

    urgency: of a first replica; NaN: there is one, whatever is granted.
    """
    levels = [np.flatnonzero(priority == level) for level in np.unique(priority)[::-1]]
    goals = [np.fmin(floor, wanted), np.fmin(needed, wanted), wanted]

    def fill(goals: list[FloatColumn], levels: list[IntColumn], gpus: float) -> FloatColumn:
        granted = np.zeros(len(wanted))
        for goal in goals:
            for rows in levels:
                more = np.fmax(goal[rows] - granted[rows], 0.0)
                # Beyond the first what comes now says nothing: it changes with every tick, and would hand replicas
                # back and forth.
                without = (more > 0) & (granted[rows] == 0) & ~np.isnan(urgency[rows])
                first = _first(without, gpus_each[rows], weight[rows], urgency[rows], gpus)
                more = np.where(without & (first == 0), 0.0, more)
                given = _fill(more, first, gpus_each[rows], weight[rows], gpus)
                granted[rows] += given
                gpus = max(gpus - float(np.sum(given * gpus_each[rows])), 0.0)
        return granted

    granted = fill(goals, levels, gpus)
    working = [np.where(rests, 0.0, goal) for goal in goals[:-1]]  # a floor comes before reserves, whoever rests
    for rows in levels:  # who rests gives way to its equals, and to nobody else
        if (rests[rows] & (granted[rows] > 0)).any() and (granted[rows] < wanted[rows]).any():
            held = float(np.sum(granted[rows] * gpus_each[rows]))
            granted[rows] = fill([*working, *goals], [rows], held)[rows]
    return granted


def _urgency(arrivals_per_s: FloatColumn, gpus_each: FloatColumn, holds: BoolColumn) -> FloatColumn:
    """Return who comes first among equals: by requests that come for each GPU, and who has a replica already.

    To hand one over takes a drained replica on one side and a cold start on the other, so the reason must be clear.
    """
    per_gpu = np.fmax(or_zero(arrivals_per_s), 0.0) / gpus_each
    return np.where(holds, HELD * per_gpu, per_gpu)


def _first(
    without: BoolColumn, gpus_each: FloatColumn, weight: FloatColumn, urgency: FloatColumn, gpus: float
) -> FloatColumn:
    """Give one replica to each of those `without`, the urgent first, by weight; to whom it does not fit, none."""
    if float(gpus_each[without].sum()) <= gpus:
        return without.astype(np.float64)
    given, left, smallest = np.zeros(len(without)), gpus, float(gpus_each.min())
    order = np.lexsort((gpus_each, -weight, -urgency * weight))
    for row in order[without[order]]:
        if gpus_each[row] <= left + 1e-9:
            given[row] = 1.0
            left -= gpus_each[row]
        if left < smallest - 1e-9:
            break
    return given


def _fill(
    replicas: FloatColumn, first: FloatColumn, gpus_each: FloatColumn, weight: FloatColumn, gpus: float
) -> FloatColumn:
    """Give replicas out of `gpus`, in proportion to weight, nobody more than asked: weighted max-min fairness.

    first: replicas that each gets whatever its weight. The water level rises until the GPUs are spent; whole replicas
    below it are given, and what rounding leaves goes to those cut the most, in order of what they lost: one replica
    each, and then whatever still fits.
    """
    need, least = replicas * gpus_each, first * gpus_each
    if need.sum() <= gpus:
        return replicas
    low, high = 0.0, float((need / weight).max())
    for _ in range(LEVEL_STEPS):
        level = (low + high) / 2
        low, high = (low, level) if np.clip(weight * level, least, need).sum() > gpus else (level, high)
    share_gpus = np.clip(weight * high, least, need)
    given: FloatColumn = np.maximum(np.floor(share_gpus / gpus_each + 1e-9), first)
    left = gpus - float(np.sum(given * gpus_each))
    lost = share_gpus - given * gpus_each
    hungry = np.argsort(-np.round(lost, 9), kind="stable")
    hungry = hungry[given[hungry] + 1 <= replicas[hungry]]
    # One replica each as long as all of them fit, which is nearly all there is to give; then whatever still does.
    taken = np.cumsum(gpus_each[hungry])
    count = int(np.searchsorted(taken, left + 1e-9, side="right"))
    given[hungry[:count]] += 1
    left -= float(taken[count - 1]) if count else 0.0
    smallest = float(gpus_each.min())
    for at_most, rows in ((1.0, hungry[count:]), (np.inf, hungry)):
        for row in rows:
            if left < smallest - 1e-9:
                return given
            more = min(at_most, np.floor(left / gpus_each[row] + 1e-9), replicas[row] - given[row])
            given[row] += more
            left -= more * gpus_each[row]
    return given
