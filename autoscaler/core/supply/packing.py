"""Pack pods on single nodes: whole ones, the largest first, near to where a flow of GPUs has placed them.

A flow of GPUs tells quickly what has no place. It may still split a pod between node groups, or between nodes where no
size divides the other. This finds a node for each pod. It may miss a packing that exists, and never finds a false one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoscaler.core.supply.placement import ROUNDING_GPUS, Placement
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


def pack(
    left: FloatColumn,
    group: IntColumn,
    sizes: FloatColumn,
    pods: FloatColumn,
    groups: Sequence[Sequence[int]],
    near: FloatColumn,
    level: IntColumn,
) -> BoolColumn:
    """Return for which rows of pods some find no node; bool[S, N].

    left: float64[nodes], GPUs; group: int64[nodes], node group of each node. sizes: float64[S], GPUs of a pod,
    ascending. pods: float64[S, N], of each size and row. groups: those that admit each row. near: float64[B, N, G],
    GPUs of each row that a flow has placed on groups, by level. level: int64[S], of each size; its pods are placed
    there, or on lower levels.
    """
    count, is_short = near.shape[2], np.zeros(pods.shape, dtype=bool)
    order = np.argsort(group, kind="stable")
    left, group, near = left[order], group[order], near.copy()
    for place in reversed(range(len(sizes))):
        rows, size = np.flatnonzero(pods[place] > 0), float(sizes[place])
        if not len(rows):
            continue
        fit = np.floor(left / size + ROUNDING_GPUS)
        most = np.bincount(group, fit, count)
        placed = np.zeros((len(rows), count))
        for gpus in near[level[place] :: -1]:
            more = np.floor(gpus[rows] / size + ROUNDING_GPUS)
            more = _keep(more, pods[place, rows][:, None] - placed.sum(axis=1, keepdims=True), 1)
            more = _keep(more, most - placed.sum(axis=0), 0)
            gpus[rows] -= more * size
            placed += more
        missing = pods[place, rows] - placed.sum(axis=1)
        if missing.any():
            promised = near.sum(axis=(0, 1))
            slack = np.bincount(group, left, count).astype(np.float64) - placed.sum(axis=0) * size - promised
            own = [groups[row] for row in rows.tolist()]
            is_short[place, rows] = _place_missing(placed, missing, most.astype(np.float64), slack / size, own)
        smaller = sizes[:place][(pods[:place] > 0).any(axis=1)]
        _fill_nodes(left, group, fit, size, placed.sum(axis=0), smaller)
    return is_short


def _keep(amounts: FloatColumn, most: FloatColumn, axis: int) -> FloatColumn:
    """Return the first amounts along an axis, up to this many together."""
    before = np.cumsum(amounts, axis=axis) - amounts
    return np.clip(most - before, 0.0, amounts)


def _place_missing(
    placed: FloatColumn, missing: FloatColumn, most: FloatColumn, slack: FloatColumn, groups: Sequence[Sequence[int]]
) -> BoolColumn:
    """Place pods for which there was no hint, and return the rows that lack a node for some; bool[R].

    placed: float64[R, G], changed here. missing: float64[R], pods. most: float64[G], of these pods. slack: float64[G],
    pods for which a group has GPUs that nothing else counts on.
    """
    free = most - placed.sum(axis=0)
    for row in sorted(np.flatnonzero(missing).tolist(), key=lambda row: len(groups[row])):
        for place in sorted(groups[row], key=lambda place: -slack[place]):
            pods = min(missing[row], free[place])
            if pods > 0:
                placed[row, place] += pods
                free[place] -= pods
                slack[place] -= pods
                missing[row] -= pods
    if not missing.any():
        return np.zeros(len(missing), dtype=bool)
    flow = Placement(most[None], groups, placed=placed)
    short = flow.place(missing)
    placed[:] = flow.to_array()
    return short


def _fill_nodes(
    left: FloatColumn, group: IntColumn, fit: FloatColumn, size: float, pods: FloatColumn, smaller: FloatColumn
) -> None:
    """Take the GPUs of pods of one size from nodes, where smaller ones lose the fewest places.

    left: float64[nodes], changed here; by group, which is ascending. fit: float64[nodes], pods that each node holds.
    pods: float64[G]. smaller: sizes that come next.
    """
    at_once = not (size % smaller).any()  # then any node is as good as another
    needed = pods.copy()
    while needed.any():
        lost = np.zeros(len(left))
        for other in smaller[size % smaller > 0]:
            lost += np.floor(left / other) - np.floor((left - size) / other)
        order = np.lexsort((left, lost, group)) if not at_once else np.arange(len(left))
        each = fit[order] if at_once else np.fmin(fit[order], 1.0)
        ends = np.cumsum(each)
        own = group[order]
        before = ends - each - np.append(0.0, ends)[np.searchsorted(own, own)]
        taken = np.clip(needed[own] - before, 0.0, each)
        left[order] -= taken * size
        fit[order] -= taken
        needed -= np.bincount(own, taken, len(needed))
