"""Workloads together: share pools that are too small. Floors first, then priority, then weights.

All in GPUs; a replica is granted whole or not at all. A pool whose size is unknown grants everything.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.fleet import Fleet
from autoscaler.core.spec import Spec


def share(wanted: FloatColumn, fleet: Fleet, spec: Spec, trusted: BoolColumn) -> FloatColumn:
    """Grant each workload what its pool can give.

    wanted: float64[W], replicas. trusted: bool[W]; what is not trusted keeps what it has, as nothing is known of it.
    Returns float64[W], at most `wanted`. Floors (the policy's minimum) are served first, by priority; then, priority
    by priority, what is left, by weight where it does not suffice for all of one priority.
    """
    granted = wanted.copy()
    known = (fleet.pool >= 0) & ~np.isnan(fleet.gpus_per_replica) & ~np.isnan(wanted) & (fleet.gpus_per_replica > 0)
    gpus = np.where(known, wanted * fleet.gpus_per_replica, 0.0)
    asked = np.bincount(fleet.pool[known], gpus[known], len(fleet.pools))
    for pool in np.flatnonzero(asked > fleet.pool_gpus):  # only pools that are short; NaN sizes compare False
        rows = np.flatnonzero(known & (fleet.pool == pool))
        kept = np.where(trusted[rows], spec.min_replicas[rows], fleet.replicas[rows])
        granted[rows] = _share_pool(
            wanted[rows],
            np.fmin(np.nan_to_num(kept), wanted[rows]),
            fleet.gpus_per_replica[rows],
            np.nan_to_num(spec.priority[rows]),
            np.where(spec.weight[rows] > 0, spec.weight[rows], 1.0),
            float(fleet.pool_gpus[pool]),
        )
    return granted


def _share_pool(
    wanted: FloatColumn,
    floor: FloatColumn,
    gpus_each: FloatColumn,
    priority: FloatColumn,
    weight: FloatColumn,
    gpus: float,
) -> FloatColumn:
    granted = np.zeros(len(wanted))
    for goal in (floor, wanted):
        for level in np.unique(priority)[::-1]:
            rows = np.flatnonzero(priority == level)
            given = _fill(goal[rows] - granted[rows], gpus_each[rows], weight[rows], gpus)
            granted[rows] += given
            gpus -= float(np.sum(given * gpus_each[rows]))
    return granted


def _fill(replicas: FloatColumn, gpus_each: FloatColumn, weight: FloatColumn, gpus: float) -> FloatColumn:
    """Give replicas out of `gpus`, in proportion to weight, nobody more than asked: weighted max-min fairness.

    The water level rises until the GPUs are spent; whole replicas below it are given, and what rounding leaves goes to
    those cut the most, in order of what they lost.
    """
    need = np.fmax(replicas, 0.0) * gpus_each
    if need.sum() <= gpus:
        return np.fmax(replicas, 0.0)
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
    for row in _by_loss(lost):
        if gpus_each[row] <= left + 1e-9 and given[row] < replicas[row]:
            given[row] += 1
            left -= gpus_each[row]
    return given


def _by_loss(lost: FloatColumn) -> IntColumn:
    return np.asarray(np.argsort(-lost, kind="stable"))
