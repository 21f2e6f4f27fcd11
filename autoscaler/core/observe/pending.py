"""Replicas that cannot come: which those are, and what they may still claim of a pool.

A replica that no node has room for, that a quota or an admission policy refuses, whose image cannot be pulled or whose
engine crashes serves nobody. It keeps its place in the count, because only its controller can try again. After a short
time it holds no GPU back from others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import Fleet, PendingClass
from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, Transient, or_zero

MISSING_S = 10.0
"""A replica that does not exist for so long, while no other starts, is not on its way: controllers create pods within
a second or two."""

STUCK_S = 30.0
"""A pod that has been blocked for so long gives up its claim: image pulls are tried again within less, and so is the
placing of a pod after another has left."""

FIRST_SETBACK_S, LONGEST_SETBACK_S = 300.0, 3600.0
"""How long a workload claims no GPUs again after its replicas were blocked; doubles each time that they are again."""


@dataclass(frozen=True)
class Struggle(Columns):
    """How long each workload has had replicas that do not come; float64[W]."""

    pods: Transient[FloatColumn]  # at the last tick
    ready: Transient[FloatColumn]  # at the last tick
    missing_since_s: Transient[TimestampColumn]  # NaN: all replicas exist, or others are starting
    stuck_since_s: Transient[TimestampColumn]  # NaN: no replica is blocked
    setback_s: Transient[FloatColumn]  # length of the last setback; NaN: none since a replica last became ready
    setback_since_s: Transient[TimestampColumn]  # last moment at which replicas were stuck


@dataclass(frozen=True)
class Claims:
    """How far each workload may take GPUs from a pool."""

    replicas: FloatColumn  # float64[W], replicas that count against the pool; infinity: as many as are wanted
    scarce: FloatColumn  # float64[W], likewise while the pool is short of GPUs: replicas that crash give theirs up
    fits: FloatColumn  # float64[W], replicas that the nodes can hold at all; infinity: not known
    stuck: BoolColumn  # bool[W], more replicas would not come either
    halted: BoolColumn  # bool[W], likewise, and nothing is found out by asking for more


def follow(
    inp: TickInput, observation: Observation, before: Struggle, room: BoolColumn
) -> tuple[FloatColumn, Claims, Struggle]:
    """Say how many replicas do not exist although they should, float64[W], and what the workloads may claim.

    room: bool[W], of `roomy`.
    """
    now_s, fleet, told = inp.now_s, inp.fleet, inp.fleet.obstacles
    unplaced, hopeless = waiting(fleet)
    pods = observation.ready + observation.starting + observation.pending
    working = observation.ready + observation.starting
    absent = np.where(told.listed, np.fmax(observation.replicas - pods, 0.0), 0.0)

    quiet = (absent > 0) & (observation.starting == 0) & ~(pods > before.pods)
    missing_since_s = np.where(quiet, np.fmin(before.missing_since_s, now_s), np.nan)
    missing = np.where(told.creation_failed | (now_s - missing_since_s >= MISSING_S), absent, 0.0)

    lack = lacking(observation)
    blocked = (lack > 0) & ((observation.pending > unplaced) | room | (hopeless > 0))
    stuck_since_s = np.where(
        blocked & ~(observation.ready > before.ready), np.fmin(before.stuck_since_s, now_s), np.nan
    )
    stuck = now_s - stuck_since_s >= STUCK_S

    recovered = (observation.ready > before.ready) & ~stuck
    setback_s = np.where(recovered, np.nan, before.setback_s)
    afresh = stuck & ~(now_s - before.setback_since_s <= or_zero(setback_s))
    longer = np.where(np.isnan(setback_s), FIRST_SETBACK_S, np.minimum(2 * setback_s, LONGEST_SETBACK_S))
    setback_s = np.where(afresh, longer, setback_s)
    setback_since_s = np.where(stuck, now_s, before.setback_since_s)
    set_back = stuck | (now_s - setback_since_s <= or_zero(setback_s))

    refused = told.refused_replicas > observation.replicas
    placed = pods - unplaced
    claim = np.where(missing > 0, pods, np.inf)
    claim = np.where(refused, np.fmin(claim, observation.replicas), claim)
    scarce = np.where(set_back, np.fmax(working, 1.0), np.inf)
    nowhere = stuck & (unplaced > 0) & (room | (hopeless > 0))
    claim = np.where(nowhere, np.fmin(claim, placed), claim)
    claims = Claims(claim, scarce, told.fits, stuck | (missing > 0) | refused, nowhere | (missing > 0))
    return (
        missing,
        claims,
        Struggle(pods, observation.ready, missing_since_s, stuck_since_s, setback_s, setback_since_s),
    )


def lacking(observation: Observation) -> FloatColumn:
    """Return how many of the replicas that there are to be are blocked; float64[W].

    While a new version is rolled out there are more pods than these: one of those that is blocked is nobody's lack.
    """
    pods = observation.ready + observation.starting + observation.pending
    return np.fmax(observation.pending - np.fmax(pods - observation.replicas, 0.0), 0.0)


def waiting(fleet: Fleet) -> tuple[FloatColumn, FloatColumn]:
    """Return how many pods of each workload are on no node, and how many of those are held by a gate; float64[W]."""
    gated = ~fleet.pod_terminating & ~fleet.pod_ready & (fleet.pod_pending == PendingClass.SCHEDULING_GATED)
    unplaced = gated | (~fleet.pod_terminating & ~fleet.pod_ready & (fleet.pod_pending == PendingClass.UNSCHEDULABLE))
    rows = len(fleet.workloads)
    counts = (np.bincount(fleet.pod_workload[of], minlength=rows).astype(np.float64) for of in (unplaced, gated))
    return next(counts), next(counts)


def roomy(fleet: Fleet) -> BoolColumn:
    """Say where the pool has GPUs for one replica more, as far as the pods of our workloads tell. bool[W].

    A pod that is on no node although there is room waits for something else: memory, another pod's leaving a single
    node, GPUs that strangers hold. Pods that are leaving still hold theirs. False where the pool's size is not known.
    """
    on_node = (fleet.pod_pending != PendingClass.UNSCHEDULABLE) & (fleet.pod_pending != PendingClass.SCHEDULING_GATED)
    placed = np.bincount(fleet.pod_workload[on_node], minlength=len(fleet.workloads))
    known = (fleet.pool >= 0) & np.isfinite(fleet.gpus_per_replica)
    if not known.any():
        return known
    held = np.bincount(fleet.pool[known], (placed * fleet.gpus_per_replica)[known], len(fleet.pools))
    together = held.copy()
    for joint in fleet.pool_overlaps:  # pods of all these may be on the nodes of any of them
        together[list(joint.pools)] = np.maximum(together[list(joint.pools)], held[list(joint.pools)].sum())
    left = (fleet.pool_gpus - together)[np.where(known, fleet.pool, 0)]
    return np.asarray(known & (left >= fleet.gpus_per_replica))
