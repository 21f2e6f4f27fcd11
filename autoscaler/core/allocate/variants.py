"""Workloads that serve one service together: grow the cheapest variant, shrink the dearest, move nothing.

A service's variants (a MIG slice, a full GPU, two GPUs) stand behind one router, so what counts is the capacity of all.
What one variant wants more may be given by another that costs less per request and finds GPUs, and what all want less
is taken where a request costs most. Replicas that serve are never exchanged for cheaper ones: that would cost a cold
start.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.spec import Spec
from autoscaler.core.model.variants import Variants
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


def choose(
    wanted: FloatColumn,
    current: FloatColumn,
    blocked: FloatColumn,
    vacant: FloatColumn,
    each: FloatColumn,
    steady: BoolColumn,
    variants: Variants,
    spec: Spec,
) -> FloatColumn:
    """Share what the variants of each service want among them, by cost.

    wanted, current: float64[W], replicas. blocked: float64[W], of the current ones, those that find no GPU: they serve
    nobody. vacant: float64[W], replicas more for which there are GPUs; infinity: not known. each: float64[W], requests
    a replica is planned for. steady: bool[W], may be moved to or from; others (no capacity known, inputs not trusted,
    not ours) keep what they want. What no variant has GPUs for is left to the cheapest: its pool may give it priority.
    Returns float64[W]: the same capacity as `wanted` or a little more, within each workload's bounds.
    """
    grouped = (variants.service >= 0) & steady & (each > 0) & ~np.isnan(wanted)
    rows = np.flatnonzero(grouped)
    if not len(rows):
        return wanted
    per_request = np.nan_to_num(variants.cost[rows] / each[rows], nan=np.inf)
    chosen = wanted.copy()
    group = np.unique(variants.service[rows], return_inverse=True)[1]
    # Zero and the way there and back belong to each workload's own idle stage.
    awake = (wanted[rows] > 0) & (current[rows] > 0)
    serving = current[rows] - blocked[rows]
    kept = np.where(awake, np.clip(serving, spec.min_replicas[rows], spec.max_replicas[rows]), wanted[rows])
    surplus = np.asarray(np.bincount(group, (wanted[rows] - kept) * each[rows]), dtype=np.float64)[group]

    room = np.where(awake, spec.max_replicas[rows] - kept, 0.0)
    cheapest = np.lexsort((per_request, group))
    added = _fill(surplus, np.fmin(room, vacant[rows]), each[rows], group, cheapest, np.ceil)
    left = surplus - np.asarray(np.bincount(group, added * each[rows]), dtype=np.float64)[group]
    added += _fill(left, room - added, each[rows], group, cheapest, np.ceil)
    spare = np.where(awake, kept - np.fmax(spec.min_replicas[rows], 1.0), 0.0)
    dearest = np.lexsort((-per_request, group))
    removed = _fill(-surplus, spare, each[rows], group, dearest, np.floor)
    chosen[rows] = kept + added - removed
    return chosen


def _fill(
    requests: FloatColumn, room: FloatColumn, each: FloatColumn, group: IntColumn, order: IntColumn, whole: np.ufunc
) -> FloatColumn:
    """Place each group's requests into its rows in order, as far as they have room; whole replicas."""
    placed = np.zeros(len(requests))
    space = np.fmax(room[order], 0.0) * each[order]
    before = np.cumsum(space) - space
    first = np.concatenate([[True], np.diff(group[order]) != 0])
    before -= np.maximum.accumulate(np.where(first, before, 0.0))
    share = np.clip(requests[order] - before, 0.0, space)
    placed[order] = np.minimum(
        whole(share / each[order] - np.copysign(1e-6, 1.0 if whole is np.ceil else -1.0)), room[order]
    )
    return np.fmax(placed, 0.0)
