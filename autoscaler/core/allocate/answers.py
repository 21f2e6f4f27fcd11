"""Whether KEDA and its HPA follow an answer, and which counts they hold. Present replicas take GPUs, not the answer.

In KEDA mode a decision is an answer to an HPA, which moves the count in its own time: it waits for its stabilization
window and for the period of its policies, and KEDA for its cooldown before zero. A count that has not moved towards
the answer for longer is not about to move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, Transient

SYNC_S = 15.0
"""Seconds between two syncs of an HPA, by default."""

PATIENCE_S = 4 * SYNC_S
"""Beyond the delays of the HPA, an answer may go unfollowed for four syncs: a query of its metric may fail."""


@dataclass(frozen=True)
class AnswerState(Columns):
    """The last answer to each HPA, and whether the count moves towards it; every field [W]."""

    replicas: Transient[FloatColumn]  # the answer; NaN: none
    standing: Transient[FloatColumn]  # replicas that there were then
    direction: Transient[FloatColumn]  # from there to the answer before: 1 up, -1 down, 0 reached; NaN: no answer
    standing_since_s: Transient[TimestampColumn]  # since when the count has not moved in this direction; NaN: it has


@dataclass(frozen=True)
class Standing:
    """Counts that stand still, although the answer is another one; every field [W]."""

    for_s: FloatColumn  # float64[W], seconds since the count last moved towards the answer; NaN: it follows
    direction: FloatColumn  # float64[W], of the answer: 1 above the count, -1 below

    def lasts(self, desired: FloatColumn, fleet: Fleet) -> BoolColumn:
        """Return where the count is still on the same side of what is desired now; bool[W]."""
        return np.asarray(~np.isnan(self.for_s) & (np.sign(desired - fleet.replicas) == self.direction))


def judge(fleet: Fleet, now_s: float, before: AnswerState) -> tuple[Standing, AnswerState]:
    """Compare the counts with the last answers.

    Moving towards an answer is following it. So is an answer on the other side of the count: then time starts over.
    """
    direction = np.sign(before.replicas - fleet.replicas)
    apart = np.abs(direction) == 1  # not if there is no answer
    moves = (fleet.replicas - before.standing) * direction > 0
    stays = apart & ~moves & (direction == before.direction)
    since_s = np.where(apart, np.where(stays, np.fmin(before.standing_since_s, now_s), now_s), np.nan)
    delay_s = _delay_s(fleet, before.replicas, direction)
    for_s = np.where(now_s - since_s >= delay_s + PATIENCE_S, now_s - since_s, np.nan)
    return Standing(for_s, direction), AnswerState(before.replicas, fleet.replicas, direction, since_s)


def _delay_s(fleet: Fleet, answer: FloatColumn, direction: FloatColumn) -> FloatColumn:
    """Return how long KEDA and its HPA may take to begin to follow; float64[W], NaN: not known."""
    delays = fleet.hpa_limits.delays if fleet.hpa_limits is not None else None
    if delays is None:
        return np.full(len(fleet.workloads), np.nan)
    grow_s = np.where(fleet.replicas == 0, delays.wake_s, delays.grow_s)
    shrink_s = np.where(answer == 0, delays.zero_s, delays.shrink_s)
    return np.where(direction > 0, grow_s, shrink_s)


def count_taking(decided: FloatColumn, unfollowed_s: FloatColumn, fleet: Fleet) -> FloatColumn:
    """Return the replicas that take GPUs, which are not those decided where something else decides; float64[W].

    unfollowed_s: float64[W], seconds for which the HPA has not followed; NaN: it follows.
    """
    held = fleet.hpa_limits
    if held is None:
        return decided
    decided = np.where(held.shared, np.fmax(decided, fleet.replicas), decided)
    return np.where(np.isnan(unfollowed_s), decided, fleet.replicas)


def apply_holds(desired: FloatColumn, fleet: Fleet) -> FloatColumn:
    """Return the counts that follow where KEDA or its HPA holds a count in one direction; float64[W]."""
    held = fleet.hpa_limits
    if held is None:
        return desired
    return np.where(held.to_zero & (desired == 0), desired, np.clip(desired, held.min_replicas, held.max_replicas))


def count_kept(desired: FloatColumn, fleet: Fleet) -> FloatColumn:
    """Return how many of its replicas each workload keeps even where `desired` is less; float64[W].

    All present replicas may stay where another trigger decides as well, so pools count them until they are gone.
    """
    held = fleet.hpa_limits
    if held is None:
        return np.zeros(len(fleet.workloads))
    least = np.where(held.to_zero & (desired == 0), 0.0, held.min_replicas)
    return np.where(held.shared, fleet.replicas, np.fmin(least, fleet.replicas))
