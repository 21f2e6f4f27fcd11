"""Variants of one service: grow the cheapest, shrink the dearest, move no running replica.

The variants of a service (a MIG slice, a full GPU, two GPUs) stand behind one router, so only their total capacity
counts. A cheaper variant with free GPUs takes over what another one would add. Capacity that the service no longer
needs is removed where a request costs the most. A running replica is never exchanged for a cheaper one, for that would
take a cold start.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.spec import Spec
from autoscaler.core.model.variants import Variants
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


def choose(
    desired: FloatColumn,
    current: FloatColumn,
    not_running: FloatColumn,
    vacant: FloatColumn,
    requests_each: FloatColumn,
    movable: BoolColumn,
    variants: Variants,
    spec: Spec,
) -> FloatColumn:
    """Share the load of each service among its variants, by cost.

    desired, current: float64[W], replicas. not_running: float64[W], current ones without a pod that can start.
    vacant: float64[W], further replicas for which there are GPUs; infinity: not known.
    requests_each: float64[W], requests that one replica is planned for.
    movable: bool[W], load may move to or from it. Others keep the desired count: those whose capacity is unknown, whose
    inputs are not trusted, or whose count the daemon does not set.
    Load for which no variant has GPUs stays with the cheapest, whose pool may give it priority.
    Returns float64[W]: at least the capacity of `desired`, rounded up to whole replicas, within each workload's bounds.
    """
    shared = (variants.service >= 0) & movable & (requests_each > 0) & ~np.isnan(desired)
    rows = np.flatnonzero(shared)
    if not len(rows):
        return desired
    each = requests_each[rows]
    cost = np.nan_to_num(variants.cost[rows] / each, nan=np.inf)
    chosen = desired.copy()
    service = np.unique(variants.service[rows], return_inverse=True)[1]
    # Each workload goes to zero and wakes up by its own idle stage.
    awake = (desired[rows] > 0) & (current[rows] > 0)
    serving = current[rows] - not_running[rows]
    kept = np.where(awake, np.clip(serving, spec.min_replicas[rows], spec.max_replicas[rows]), desired[rows])
    surplus = np.asarray(np.bincount(service, (desired[rows] - kept) * each), dtype=np.float64)[service]

    room = np.where(awake, spec.max_replicas[rows] - kept, 0.0)
    cheapest = np.lexsort((cost, service))
    added = _fill(surplus, np.fmin(room, vacant[rows]), each, service, cheapest, np.ceil)
    left = surplus - np.asarray(np.bincount(service, added * each), dtype=np.float64)[service]
    added += _fill(left, room - added, each, service, cheapest, np.ceil)
    spare = np.where(awake, kept - np.fmax(spec.min_replicas[rows], 1.0), 0.0)
    dearest = np.lexsort((-cost, service))
    removed = _fill(-surplus, spare, each, service, dearest, np.floor)
    chosen[rows] = kept + added - removed
    return chosen


def _fill(
    requests: FloatColumn, room: FloatColumn, each: FloatColumn, service: IntColumn, order: IntColumn, rounds: np.ufunc
) -> FloatColumn:
    """Place the requests of each service on its rows in order, as far as they have room; whole replicas.

    rounds: `np.ceil` or `np.floor`.
    """
    placed = np.zeros(len(requests))
    space = np.fmax(room[order], 0.0) * each[order]
    before = np.cumsum(space) - space
    first = np.concatenate([[True], np.diff(service[order]) != 0])
    before -= np.maximum.accumulate(np.where(first, before, 0.0))
    share = np.clip(requests[order] - before, 0.0, space)
    placed[order] = np.minimum(
        rounds(share / each[order] - np.copysign(1e-6, 1.0 if rounds is np.ceil else -1.0)), room[order]
    )
    return np.fmax(placed, 0.0)
