"""Workloads together: share pools that are too small. Floors first, then priority, then weights.

All in GPUs; a replica is granted whole or not at all. A pool whose size is unknown grants everything.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.fleet import Fleet
from autoscaler.core.spec import Spec


def share(wanted: FloatColumn, fleet: Fleet, spec: Spec, trusted: BoolColumn, free: BoolColumn) -> FloatColumn:
    """Grant each workload what its pool can give.

    wanted: float64[W], replicas. trusted: bool[W]; of what is not trusted nothing is known, so it keeps what it has.
    free: bool[W]; what is not free to change holds what it has, whatever it wants, and is not granted anything.
    Returns float64[W], at most `wanted`. What is kept is taken off the pool first; then floors (the policy's minimum)
    are served by priority; then, priority by priority, what is left, by weight where it does not suffice for all of one
    priority.
    """
    granted = wanted.copy()
    gpus_each = fleet.gpus_per_replica
    held = np.where(free, wanted, fleet.replicas)
    known = (fleet.pool >= 0) & (gpus_each > 0) & np.isfinite(gpus_each) & np.isfinite(held)
    gpus = np.where(known, held * gpus_each, 0.0)
    asked = np.bincount(fleet.pool[known], gpus[known], len(fleet.pools))
    for pool in np.flatnonzero(asked > fleet.pool_gpus):  # only pools that are short; NaN sizes compare False
        rows = np.flatnonzero(known & (fleet.pool == pool))
        kept = np.where(free[rows] & trusted[rows], 0.0, np.fmin(fleet.replicas[rows], held[rows]))
        granted[rows] = kept + _share_pool(
            np.where(free[rows], wanted[rows] - kept, 0.0),
            np.nan_to_num(spec.min_replicas[rows]) - kept,
            gpus_each[rows],
            np.nan_to_num(spec.priority[rows]),
            np.where(spec.weight[rows] > 0, spec.weight[rows], 1.0),
            max(float(fleet.pool_gpus[pool] - np.sum(kept * gpus_each[rows])), 0.0),
        )
    return np.where(free, granted, wanted)


def _share_pool(
    wanted: FloatColumn,
    floor: FloatColumn,
    gpus_each: FloatColumn,
    priority: FloatColumn,
    weight: FloatColumn,
    gpus: float,
) -> FloatColumn:
    """Share `gpus` among rows of one pool; what is granted is at most `wanted`, and reaches `floor` first."""
    granted = np.zeros(len(wanted))
    for goal in (np.fmin(floor, wanted), wanted):
        for level in np.unique(priority)[::-1]:
            rows = np.flatnonzero(priority == level)
            given = _fill(goal[rows] - granted[rows], gpus_each[rows], weight[rows], gpus)
            granted[rows] += given
            gpus = max(gpus - float(np.sum(given * gpus_each[rows])), 0.0)
    return granted


def _fill(replicas: FloatColumn, gpus_each: FloatColumn, weight: FloatColumn, gpus: float) -> FloatColumn:
    """Give replicas out of `gpus`, in proportion to weight, nobody more than asked: weighted max-min fairness.

    The water level rises until the GPUs are spent; whole replicas below it are given, and what rounding leaves goes to
    those cut the most, in order of what they lost: one replica each, and then whatever still fits.
    """
    replicas = np.fmax(replicas, 0.0)
    need = replicas * gpus_each
    if need.sum() <= gpus:
        return replicas
    order = np.argsort(need / weight, kind="stable")
    sorted_need, sorted_weight = need[order], weight[order]
    # After the first k are satisfied, the rest share what is left at one level.
    before = np.concatenate([[0.0], np.cumsum(sorted_need)[:-1]])
    behind = np.cumsum(sorted_weight[::-1])[::-1]
    level = (gpus - before) / behind
    full = sorted_need / sorted_weight <= level
    first_cut = int(np.argmin(full))
    share_gpus = np.fmin(need, weight * level[first_cut])
    given: FloatColumn = np.floor(share_gpus / gpus_each + 1e-9)
    left = gpus - float(np.sum(given * gpus_each))
    lost = share_gpus - given * gpus_each
    for at_most in (1.0, np.inf):
        for row in _by_loss(lost):
            more = min(at_most, np.floor(left / gpus_each[row] + 1e-9), replicas[row] - given[row])
            given[row] += more
            left -= more * gpus_each[row]
    return given


def _by_loss(lost: FloatColumn) -> IntColumn:
    return np.asarray(np.argsort(-lost, kind="stable"))
