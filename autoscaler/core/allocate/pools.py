"""Pools of GPUs that are too small for all their workloads: floors first, then base replicas, then headroom.

Within each of these, workloads of a higher priority come first, and weights share what is left among equals. So the
headroom of one workload never takes the GPUs that another needs for its present load, whatever their priorities.

At equal priority, workloads with work come before idle ones, and every first replica comes before any second. If the
GPUs do not suffice for all first replicas, the workloads with the most requests get one: they would miss the most.
A replica is allocated whole or not at all. A pool of unknown size allocates every replica.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.spec import Spec
from autoscaler.core.observe.pending import Claims
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero

RECLAIM_RATIO = 30.0
"""A peer of equal priority takes over a running replica only if it receives so many times the requests per GPU."""

FILL_STEPS = 60
"""Bisections to the fill level at which the GPUs of a pool are spent; more would be below the resolution of float64."""

ROUNDING_GPUS = 1e-9


def share(
    desired: FloatColumn,
    base: FloatColumn,
    fleet: Fleet,
    spec: Spec,
    claims: Claims,
    trusted: BoolColumn,
    ours: BoolColumn,
    idle: BoolColumn,
    scheduled: FloatColumn,
    arrivals_per_s: FloatColumn,
    kept: FloatColumn,
) -> FloatColumn:
    """Allocate replicas to each workload; float64[W], at most `desired`.

    desired: float64[W], replicas. base: float64[W], those of them that the present load needs; the rest is headroom.
    claims: replicas that count against the pool. Replicas beyond stay in the count and take no GPU.
    trusted: bool[W]; a workload whose inputs are not trusted keeps its replicas.
    ours: bool[W]; a workload whose count the daemon does not set keeps its GPUs and is allocated what it desires.
    idle: bool[W]; these have no work and can be woken.
    scheduled: float64[W], replicas that have GPUs. A replica that stays without GPUs takes none from others.
    arrivals_per_s: float64[W], requests; NaN: not known.
    kept: float64[W], replicas that stay even where fewer are desired, so that their GPUs are not free.

    Kept replicas are subtracted from the pool first. Then floors, base replicas and desired replicas are filled in
    turn, each by priority. Weights decide where the GPUs do not suffice for all of one priority.
    """
    gpus_each = fleet.gpus_per_replica
    kept = np.fmin(kept, scheduled)
    present = np.where(trusted, np.fmin(fleet.replicas, scheduled), fleet.replicas)
    allocated = np.minimum(desired, np.fmax(claims.fits, present))  # no node holds a replica beyond
    if len(fleet.pools) and claims.must_not_grow.any():
        # Counts that grew while replicas do not start could exceed the pool together, and all could start at once.
        sized = (fleet.pool >= 0) & ~np.isnan(fleet.pool_gpus[fleet.pool])
        allocated = np.where(claims.must_not_grow & sized, np.minimum(allocated, fleet.replicas), allocated)
    for members, size in _pools(fleet):
        claimed = np.where(
            ours, np.fmax(np.minimum(allocated, claims.replicas), kept), np.fmin(fleet.replicas, scheduled)
        )
        known = members & (gpus_each > 0) & np.isfinite(gpus_each) & np.isfinite(claimed)
        if not float(np.sum((claimed * gpus_each)[known])) > size:  # an unknown size compares False: nothing is cut
            continue
        rows = np.flatnonzero(known)
        untouched = np.fmin(fleet.replicas, np.where(ours, allocated, claimed))[rows]
        least = np.where(ours[rows] & trusted[rows], kept[rows], untouched)
        reserved = np.fmin(least, scheduled[rows])
        requested = np.fmax(
            np.fmin(claimed[rows], np.where(ours[rows], claims.replicas_when_short[rows], np.inf)), reserved
        )
        shared = reserved + _share_pool(
            np.where(ours[rows], requested - reserved, 0.0),
            or_zero(spec.min_replicas[rows]) - reserved,
            base[rows] - reserved,
            gpus_each[rows],
            or_zero(spec.priority[rows]),
            np.where(spec.weight[rows] > 0, spec.weight[rows], 1.0),
            idle[rows],
            np.where(reserved > 0, np.nan, _urgency(arrivals_per_s[rows], gpus_each[rows], scheduled[rows] > 0)),
            max(size - float(np.sum(reserved * gpus_each[rows])), 0.0),
        )
        # Replicas that do not start take no GPU, so they stay in the count, as far as an empty pool could hold them.
        with_pending = np.fmin(allocated[rows], np.fmax(np.floor(size / gpus_each[rows] + ROUNDING_GPUS), shared))
        has_pending = (allocated[rows] > claimed[rows]) & (shared >= claimed[rows])
        allocated[rows] = np.fmax(np.where(has_pending, with_pending, shared), least)
    return np.where(ours, np.fmin(allocated, desired), desired)


def _pools(fleet: Fleet) -> Iterator[tuple[BoolColumn, float]]:
    """Yield the workloads and the GPUs of each pool, and then of each set of pools that overlap."""
    sizes = fleet.pool_gpus.tolist()
    for pool in np.unique(fleet.pool[fleet.pool >= 0]).tolist():
        if not np.isnan(sizes[pool]):
            yield fleet.pool == pool, sizes[pool]
    for joint in fleet.groups.overlaps:
        yield np.isin(fleet.pool, joint.pools), joint.gpus


def _share_pool(
    desired: FloatColumn,
    floor: FloatColumn,
    base: FloatColumn,
    gpus_each: FloatColumn,
    priority: FloatColumn,
    weight: FloatColumn,
    idle: BoolColumn,
    urgency: FloatColumn,
    gpus: float,
) -> FloatColumn:
    """Allocate the GPUs of one pool to its rows: up to `floor`, then up to `base`, then up to `desired`.

    urgency: of a first replica; NaN: the row has one already.
    """
    levels = [np.flatnonzero(priority == level) for level in np.unique(priority)[::-1]]
    goals = [np.fmin(floor, desired), np.fmin(base, desired), desired]

    def fill(goals: list[FloatColumn], levels: list[IntColumn], gpus: float) -> FloatColumn:
        allocated = np.zeros(len(desired))
        for goal in goals:
            for rows in levels:
                more = np.fmax(goal[rows] - allocated[rows], 0.0)
                # Urgency changes with every tick. It decides on first replicas only, or others would move to and fro.
                without = (more > 0) & (allocated[rows] == 0) & ~np.isnan(urgency[rows])
                first = _share_first(without, gpus_each[rows], weight[rows], urgency[rows], gpus)
                more = np.where(without & (first == 0), 0.0, more)
                added = _share_by_weight(more, first, gpus_each[rows], weight[rows], gpus)
                allocated[rows] += added
                gpus = max(gpus - float(np.sum(added * gpus_each[rows])), 0.0)
        return allocated

    allocated = fill(goals, levels, gpus)
    without_idle = [np.where(idle, 0.0, goal) for goal in goals[:-1]]  # the floor of an idle row comes before headroom
    for rows in levels:  # an idle row yields to rows of its own priority only
        if (idle[rows] & (allocated[rows] > 0)).any() and (allocated[rows] < desired[rows]).any():
            of_level = float(np.sum(allocated[rows] * gpus_each[rows]))
            allocated[rows] = fill([*without_idle, *goals], [rows], of_level)[rows]
    return allocated


def _urgency(arrivals_per_s: FloatColumn, gpus_each: FloatColumn, runs: BoolColumn) -> FloatColumn:
    """Return the order of first replicas among equals: requests/s per GPU, weighed up for a row that runs a replica.

    Moving a replica takes a drain on one side and a cold start on the other, so the difference must be clear.
    """
    per_gpu = np.fmax(or_zero(arrivals_per_s), 0.0) / gpus_each
    return np.where(runs, RECLAIM_RATIO * per_gpu, per_gpu)


def _share_first(
    without: BoolColumn, gpus_each: FloatColumn, weight: FloatColumn, urgency: FloatColumn, gpus: float
) -> FloatColumn:
    """Allocate one replica to each row `without` one, by urgency and weight, as far as it fits."""
    if float(gpus_each[without].sum()) <= gpus:
        return without.astype(np.float64)
    allocated, left, smallest = np.zeros(len(without)), gpus, float(gpus_each.min())
    order = np.lexsort((gpus_each, -weight, -urgency * weight))
    for row in order[without[order]]:
        if gpus_each[row] <= left + ROUNDING_GPUS:
            allocated[row] = 1.0
            left -= gpus_each[row]
        if left < smallest - ROUNDING_GPUS:
            break
    return allocated


def _share_by_weight(
    replicas: FloatColumn, first: FloatColumn, gpus_each: FloatColumn, weight: FloatColumn, gpus: float
) -> FloatColumn:
    """Allocate up to `replicas` in proportion to weight: weighted max-min fairness.

    first: replicas that each row gets whatever its weight. A fill level rises until the GPUs are spent, and the whole
    replicas below it are allocated. The GPUs left by rounding go to the rows that rounding cut the most: one replica
    each, and then as many as still fit.
    """
    need, least = replicas * gpus_each, first * gpus_each
    if need.sum() <= gpus:
        return replicas
    low, high = 0.0, float((need / weight).max())
    for _ in range(FILL_STEPS):
        level = (low + high) / 2
        low, high = (low, level) if np.clip(weight * level, least, need).sum() > gpus else (level, high)
    share_gpus = np.clip(weight * high, least, need)
    allocated: FloatColumn = np.maximum(np.floor(share_gpus / gpus_each + ROUNDING_GPUS), first)
    left = gpus - float(np.sum(allocated * gpus_each))
    lost = share_gpus - allocated * gpus_each
    cut = np.argsort(-np.round(lost, 9), kind="stable")
    cut = cut[allocated[cut] + 1 <= replicas[cut]]
    taken = np.cumsum(gpus_each[cut])
    count = int(np.searchsorted(taken, left + ROUNDING_GPUS, side="right"))
    allocated[cut[:count]] += 1
    left -= float(taken[count - 1]) if count else 0.0
    smallest = float(gpus_each.min())
    for at_most, rows in ((1.0, cut[count:]), (np.inf, cut)):
        for row in rows:
            if left < smallest - ROUNDING_GPUS:
                return allocated
            more = min(at_most, np.floor(left / gpus_each[row] + ROUNDING_GPUS), replicas[row] - allocated[row])
            allocated[row] += more
            left -= more * gpus_each[row]
    return allocated
