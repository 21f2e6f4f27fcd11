"""Cold starts: how long a replica takes from created to ready, learned from the pods that became ready.

All starts of a workload count together here. `starts` knows them by phase and by the state of the node, and goes before
where both are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.types import TickInput
from autoscaler.core.starts import starts
from autoscaler.core.starts.ledger import Ledger
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, clip, or_zero
from autoscaler.core.table.groupby import GroupBy

LONGEST_COLD_START_S = 3600.0
"""A pod that took longer was repaired, not started: nothing is learned from it."""

OVERDUE = 0.9
"""Share of a usual cold start after which a pod that has not become ready is overdue."""

SHORT_S = 60.0
"""Least usual start in that comparison, so that a quick engine does not cut an ordinary one short."""

LONGEST_WHEN_LEARNED_S = 1800.0
"""The same for a pod of a workload whose cold start is known: a new node may still have to load image and model."""

LONGEST_OF_USUAL = 3.0
"""A cold start counts for at most this many usual ones: a single long one may be a probe that failed for a while."""


@dataclass(frozen=True)
class ColdStarts(Columns):
    """Cold starts of each workload; float64[W]."""

    mean_s: FloatColumn  # NaN: none seen
    deviation_s: FloatColumn  # mean absolute deviation
    node_wait_s: FloatColumn  # mean time until a node that was created for a pod took it; NaN: none seen


def usual_s(inp: TickInput, known: ColdStarts) -> FloatColumn:
    """Return the cold start to count on: as learned, with room for its spread, or as stated before any was seen."""
    return np.where(np.isnan(known.mean_s), inp.spec.cold_start_s, known.mean_s + 2 * known.deviation_s)


def is_endless(inp: TickInput, known: ColdStarts) -> BoolColumn:
    """Say which pods exist for longer than any cold start takes; bool[P]."""
    least_s = np.where(np.isnan(known.mean_s), LONGEST_COLD_START_S, LONGEST_WHEN_LEARNED_S)
    longest_s = np.fmax(LONGEST_OF_USUAL * usual_s(inp, known), least_s)[inp.fleet.pod_workload]
    return np.asarray(inp.now_s - inp.fleet.pod_created_s > longest_s)


def learn(
    inp: TickInput,
    before: ColdStarts,
    ledger: Ledger,
    fresh: BoolColumn,
    by_workload: GroupBy,
    awaited_node: BoolColumn,
) -> tuple[ColdStarts, Ledger]:
    """Learn the time from created to ready from pods that became ready since the last tick, and enter its phases.

    fresh: bool[P], those pods. Mean and mean absolute deviation are kept as TCP keeps its round-trip time (RFC 6298).
    The gain of the mean is 1/4 instead of 1/8, because cold starts are few, and the first deviation is half as large.
    Readiness that flapped can only look slower, so the quickest of several new pods counts. The wait to be scheduled
    counts for no more than the rest of the start took: a node that is created for a pod is there in minutes, but a GPU
    that other pods hold may take any time. An engine that was restarted in its pod has shown no such start.
    awaited_node: bool[P], pods for which a node was created. How long they waited for it is learned as well.
    """
    fleet = inp.fleet
    took_s = np.fmin(fleet.pod_ready_s - fleet.pod_created_s, 2 * (fleet.pod_ready_s - fleet.pod_scheduled_s))
    fresh = fresh & ~np.isnan(fleet.pod_started_s) & (took_s > 0) & (took_s <= LONGEST_COLD_START_S)
    if not fresh.any():  # as in most ticks
        return before, ledger
    sample = by_workload.min(np.where(fresh, took_s, np.nan))
    first = np.isnan(before.mean_s)
    most_s = LONGEST_OF_USUAL * np.maximum(usual_s(inp, before), SHORT_S)
    sample = np.where(sample > most_s, most_s, sample)
    error = sample - before.mean_s
    mean_s = np.where(first, sample, before.mean_s + error / 4)
    deviation_s = np.where(first, sample / 4, before.deviation_s + (np.abs(error) - before.deviation_s) / 4)
    nothing = np.isnan(sample)
    node_wait_s = by_workload.min(np.where(fresh & awaited_node, fleet.pod_scheduled_s - fleet.pod_created_s, np.nan))
    node_wait_s = np.where(
        np.isnan(before.node_wait_s), node_wait_s, before.node_wait_s + or_zero(node_wait_s - before.node_wait_s) / 4
    )
    after = ColdStarts(
        mean_s=np.where(nothing, before.mean_s, mean_s),
        deviation_s=np.where(nothing, before.deviation_s, deviation_s),
        node_wait_s=node_wait_s,
    )
    return after, starts.learn(inp, ledger, fresh, took_s, awaited_node)


def promise(
    inp: TickInput, known: ColdStarts, cold_start_s: FloatColumn, found: Starts
) -> tuple[FloatColumn, FloatColumn]:
    """Return two columns about each pod, if it is starting; float64[P] each.

    The first has the seconds that it will have served one cold start from now, the second those until it is ready.
    Where its phases are known, they tell what is left.

    Otherwise its age counts; its wait to be scheduled counts for half a cold start at most, as in `learn`. A pod that
    is overdue is expected after another tenth of a cold start: it may still come, but nothing counts on it now. A pod
    whose node is being created has its whole cold start before it. It grows older only after several usual waits for a
    node, so that a node that never comes keeps no workload above zero.
    """
    fleet = inp.fleet
    usual_s, wait_s = cold_start_s[fleet.pod_workload], _usual_wait_s(inp, known, cold_start_s)
    is_coming = fleet.pod_pending == PendingCause.NODE_COMING
    total_age_s = inp.now_s - fleet.pod_created_s
    age_s = np.fmin(total_age_s, inp.now_s - fleet.pod_scheduled_s + usual_s / 2)
    age_s = np.where(is_coming, total_age_s - LONGEST_OF_USUAL * wait_s, age_s)
    served_s = np.minimum(np.maximum(age_s, 0.0), OVERDUE * usual_s)
    left_s = usual_s - served_s + np.where(is_coming, np.fmax(wait_s - total_age_s, 0.0), 0.0)
    by_phase = found.known[fleet.pod_workload] & ~np.isnan(found.pod_left_s)
    served_s = np.where(by_phase, clip(usual_s - found.pod_left_s, 0.0, OVERDUE * usual_s), served_s)
    return served_s, np.where(by_phase, found.pod_left_s, left_s)


def _usual_wait_s(inp: TickInput, known: ColdStarts, cold_start_s: FloatColumn) -> FloatColumn:
    """Return how long a pod usually waits for a new node; float64[P]. Before one was seen: as long as a cold start."""
    return np.where(np.isnan(known.node_wait_s), cold_start_s, known.node_wait_s)[inp.fleet.pod_workload]
