"""Guaranteed headroom in words: which workloads of a pool have it, and which pay for it with base replicas."""

from __future__ import annotations

import numpy as np

from autoscaler.core.explain.claims import NOTHING, Words, tell
from autoscaler.core.explain.format import Told, count, listed, percent
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.types import Stage
from autoscaler.core.table.columns import FloatColumn, IntColumn, or_zero

MOST_NAMED = 3
"""The sentence names at most this many workloads."""


def words(row: TickRow, after: float) -> Words:
    """Word that some of its headroom is guaranteed, or that its base replicas come after that of others.

    after: replicas that the pool allocates to it.
    """
    fleet, spec, base = row.inp.fleet, row.inp.spec, row.decision.base_replicas
    headroom, in_pool = count_headroom(row), fleet.pool == fleet.pool[row.row]
    has_some = in_pool & (spec.headroom_share > 0) & (headroom > 0)
    can_wait = spec.can_wait(row.decision.observation.cold_start_s)
    if after < min(base[row.row], row.before(Stage.ALLOCATION)):
        if not can_wait[row.row]:
            return NOTHING
        before_it = np.flatnonzero(has_some & (spec.priority > spec.priority[row.row]))
        if not len(before_it):
            return NOTHING
        return tell(", after the guaranteed headroom of {served_first}", served_first=_name(row, before_it))
    lacks = row.decision.stages[Stage.ALLOCATION] < np.fmin(base, row.decision.stages[Stage.SLEEP])
    paying = np.flatnonzero(in_pool & can_wait & lacks & (spec.priority < spec.priority[row.row]))
    if not has_some[row.row] or not len(paying):
        return NOTHING
    return tell(
        ", of which {headroom_replicas} more than its load needs, as {headroom_share} of the pool is guaranteed to "
        "headroom before base replicas of {paying}",
        headroom_replicas=count(headroom[row.row]),
        headroom_share=percent(float(spec.headroom_share[row.row])),
        paying=_name(row, paying),
    )


def count_headroom(row: TickRow) -> FloatColumn:
    """Return the replicas that each workload is allocated beyond its floor and its base replicas; float64[W]."""
    needed = np.fmax(row.decision.base_replicas, or_zero(row.inp.spec.min_replicas))
    headroom: FloatColumn = np.fmax(or_zero(row.decision.stages[Stage.ALLOCATION] - needed), 0.0)
    return headroom


def _name(row: TickRow, rows: IntColumn) -> Told:
    return listed([row.inp.fleet.workloads[index].ref.label for index in rows[:MOST_NAMED].tolist()], len(rows))
