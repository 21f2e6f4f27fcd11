"""Replicas that do not become ready, and the GPUs that their workload may still claim of a pool.

A replica may be unschedulable, refused by a quota or an admission policy, without its image, or in a crash loop. It
stays in the replica count, because only its controller can try again. After a short time its GPUs go to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.fleet import CRASHING, QUEUED, WITHOUT_ROOM, Fleet, PendingCause, PendingClass
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import TickInput
from autoscaler.core.supply.nodes import Places, list_places
from autoscaler.core.supply.running import list_running, sum_gpus
from autoscaler.core.supply.tenants import place_tenants
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, Transient, or_zero

MISSING_S = 10.0
"""A replica without a pod for this long, while no other starts, is missing: controllers create pods within 2 s."""

PENDING_S = 30.0
"""After this long a pending pod has no claim to GPUs. A retried image pull takes less time, and so does the scheduling
of a pod after another one has left its node."""

AWAITED_S = PENDING_S
"""Autoscalers of nodes look every ten seconds for pods that need a node, and say so within this time."""

FIRST_BACKOFF_S, MAX_BACKOFF_S = 300.0, 3600.0
"""How long a workload has no claim to further GPUs after its replicas were pending; it doubles each time."""

WITHOUT_GPUS = (*QUEUED, *WITHOUT_ROOM, PendingCause.NOT_SCHEDULED)
"""Causes for which a pod is not scheduled, and none of the GPUs will be its own soon."""


@dataclass(frozen=True)
class PendingHistory(Columns):
    """How long replicas of each workload have been missing or pending; float64[W]."""

    pods: Transient[FloatColumn]  # at the last tick
    ready: Transient[FloatColumn]  # at the last tick, without those that must be expected to restart soon
    missing_since_s: Transient[TimestampColumn]  # NaN: all replicas have a pod, or some are starting
    pending_since_s: Transient[TimestampColumn]  # NaN: no replica is pending
    backoff_s: Transient[FloatColumn]  # length of the last backoff; NaN: none since a replica last became ready
    last_pending_s: Transient[TimestampColumn]  # last time at which replicas had been pending for PENDING_S


@dataclass(frozen=True)
class Claims:
    """GPUs that each workload may claim of its pool, in replicas."""

    replicas: FloatColumn  # float64[W], most replicas that count against the pool; infinity: the desired ones
    replicas_when_short: FloatColumn  # float64[W], likewise in a pool that is short of GPUs: without pending replicas
    fits: FloatColumn  # float64[W], replicas that may be requested, by what fits and what crashes; infinity: any number
    cannot_grow: BoolColumn  # bool[W], further replicas would not become ready either
    must_not_grow: BoolColumn  # bool[W], likewise, and a further replica would not even show whether that has changed


def update(
    inp: TickInput, observation: Observation, before: PendingHistory, room: BoolColumn
) -> tuple[FloatColumn, Claims, PendingHistory]:
    """Return how many replicas have no pod, float64[W], and what the workloads may claim.

    room: bool[W], result of `has_free_gpus`.
    """
    now_s, fleet, obstacles = inp.now_s, inp.fleet, inp.fleet.obstacles
    gated = count_pods(fleet, *QUEUED)
    unscheduled = gated + count_pods(fleet, *WITHOUT_ROOM)
    unanswered = count_pods(fleet, PendingCause.NOT_SCHEDULED)
    pods = observation.pods
    doubted = _count(fleet, fleet.pod_ready & ~fleet.pod_terminating & (fleet.pod_pending != PendingCause.NONE))
    ready = observation.ready - np.fmin(doubted, observation.ready)
    working = observation.ready + observation.asleep + observation.starting
    absent = np.where(obstacles.listed, np.fmax(observation.replicas - pods, 0.0), 0.0)

    not_created = (absent > 0) & (observation.starting == 0) & ~(pods > before.pods)
    missing_since_s = np.where(not_created, np.fmin(before.missing_since_s, now_s), np.nan)
    missing = np.where(obstacles.creation_failed | (now_s - missing_since_s >= MISSING_S), absent, 0.0)

    # Unschedulable pods of a pool without free GPUs only wait for GPUs. Pods that a queue holds and missing ones only
    # wait for their quota if other pods use it up: those of a borrower drain when the owner needs its GPUs.
    full = has_full_quota(fleet, (gated > 0) | (missing > 0))
    obstructed = (room & (unscheduled > gated)) | ((gated > 0) & ~full)
    is_pending = count_pending_replicas(observation) > 0
    nowhere = fits_nowhere(fleet)
    is_pending &= (observation.pending > unscheduled) | obstructed | nowhere
    is_pending |= doubted > 0
    # Between two pods of a replica that end before they are ready there may be none at a tick.
    is_pending |= ~np.isnan(before.pending_since_s) & (absent > 0) & (missing == 0)
    pending_since_s = np.where(is_pending & ~(ready > before.ready), np.fmin(before.pending_since_s, now_s), np.nan)
    stuck = now_s - pending_since_s >= PENDING_S

    recovered = (ready > before.ready) & ~stuck
    backoff_s = np.where(recovered, np.nan, before.backoff_s)
    again = stuck & ~(now_s - before.last_pending_s <= or_zero(backoff_s))
    longer = np.where(np.isnan(backoff_s), FIRST_BACKOFF_S, np.minimum(2 * backoff_s, MAX_BACKOFF_S))
    backoff_s = np.where(again, longer, backoff_s)
    last_pending_s = np.where(stuck, now_s, before.last_pending_s)
    backs_off = stuck | (now_s - last_pending_s <= or_zero(backoff_s))

    refused = obstacles.refused_replicas > observation.replicas
    unclaimed = (missing > 0) & ~full
    replicas = np.where(unclaimed, pods, np.inf)
    replicas = np.where(refused, np.fmin(replicas, observation.replicas), replicas)
    when_short = np.where(backs_off, np.fmax(working, 1.0), np.inf)
    # Further replicas would crash too, unless most of them serve: then a node or a single pod may be at fault.
    crashing = count_pods(fleet, *CRASHING)
    crashes = stuck & (crashing > 0) & (crashing >= observation.ready + observation.asleep)
    fits = np.where(crashes, np.fmin(obstacles.fits, observation.replicas), obstacles.fits)
    # One pod stays, so that the daemon and autoscalers of nodes see when it fits.
    fits = np.where(stuck & nowhere & (unscheduled > 0), np.fmin(fits, working + 1), fits)
    unschedulable = stuck & (((unscheduled > 0) & obstructed) | (unanswered > 0))
    replicas = np.where(unschedulable, np.fmin(replicas, pods - unscheduled - unanswered), replicas)
    claims = Claims(
        replicas,
        when_short,
        fits,
        cannot_grow=stuck | (missing > 0) | refused,
        must_not_grow=unschedulable | unclaimed,
    )
    history = PendingHistory(pods, ready, missing_since_s, pending_since_s, backoff_s, last_pending_s)
    return missing, claims, history


def count_pending_replicas(observation: Observation) -> FloatColumn:
    """Return how many of spec.replicas are pending; float64[W].

    During a rolling update there are more pods than spec.replicas. Pending pods beyond that number do not count.
    """
    pods = observation.pods
    return np.fmax(observation.pending - np.fmax(pods - observation.replicas, 0.0), 0.0)


def count_pods(fleet: Fleet, *causes: PendingCause) -> FloatColumn:
    """Return the pods of each workload that are not ready, for one of these causes; float64[W]."""
    return _count(fleet, ~fleet.pod_terminating & ~fleet.pod_ready & _is_pending_for(fleet, causes))


def _count(fleet: Fleet, pods: BoolColumn) -> FloatColumn:
    return np.bincount(fleet.pod_workload[pods], minlength=len(fleet.workloads)).astype(np.float64)


def _is_pending_for(fleet: Fleet, causes: Sequence[PendingCause]) -> BoolColumn:
    """Return the pods with one of these causes; bool[P]. `np.isin` takes thirty times as long on few pods."""
    is_one = np.zeros(len(PendingCause), dtype=bool)
    is_one[list(causes)] = True
    return is_one[fleet.pod_pending]


def count_undecided(fleet: Fleet, now_s: float) -> FloatColumn:
    """Return the pods of each workload for which an autoscaler may still create a node, or refuse to; float64[W]."""
    grows = (fleet.groups.admitted & (fleet.groups.can_add > 0)).any(axis=1)
    found = ~fleet.pod_terminating & ~fleet.pod_ready & (fleet.pod_pending == PendingCause.UNSCHEDULABLE)
    found &= (now_s - fleet.pod_created_s < AWAITED_S) & np.append(grows, False)[fleet.pool][fleet.pod_workload]
    return _count(fleet, found)


def has_gpus(fleet: Fleet) -> BoolColumn:
    """Return the pods that have GPUs, or are about to get them, and are not terminating; bool[P]."""
    return np.asarray(~fleet.pod_terminating & ~_is_pending_for(fleet, WITHOUT_GPUS))


def fits_nowhere(fleet: Fleet) -> BoolColumn:
    """Return the workloads of which no known node can hold a replica, while none is expected to be created; bool[W].

    Any autoscaler of nodes may still create one, unless it has said that it does not.
    """
    groups = fleet.groups
    if not groups.groups:
        return np.zeros(len(fleet.workloads), dtype=bool)
    has_nodes = np.append(groups.admitted.any(axis=1), True)[fleet.pool]
    creates_none = (count_pods(fleet, PendingCause.NO_NODE) > 0) | ~(groups.can_add > 0).any()
    return np.asarray(~has_nodes & creates_none)


def count_by_class(fleet: Fleet, observation: Observation, desired: FloatColumn) -> FloatColumn:
    """Return the replicas of each workload that are not ready, by class; float64[C, W].

    desired: float64[W], replicas before the allocation. Those of them that no node can hold are not requested, and
    those that the API server refused have no pod; they count all the same.
    """
    obstacles, wanted = fleet.obstacles, or_zero(desired)
    fits = np.where(fits_nowhere(fleet), 0.0, obstacles.fits)
    node_coming, queued, crashing = (
        np.fmin(count_pods(fleet, *causes), most)
        for causes, most in (
            ((PendingCause.NODE_COMING,), observation.starting),
            (QUEUED, observation.pending),
            (CRASHING, observation.pending),
        )
    )
    without_room = np.fmin(count_pods(fleet, *WITHOUT_ROOM), observation.pending)
    pods = observation.pods
    impossible = np.clip(pods - fits, 0.0, without_room)
    refused = np.minimum(obstacles.refused_replicas, wanted) - observation.replicas
    absent = np.where(obstacles.listed, np.fmax(observation.replicas - pods, 0.0), 0.0)
    counts = np.zeros((len(PendingClass), len(fleet.workloads)))
    counts[PendingClass.STARTING] = observation.starting - node_coming + absent - observation.missing_pods
    counts[PendingClass.NODE_COMING] = node_coming
    counts[PendingClass.QUEUED] = queued
    counts[PendingClass.NO_ROOM] = without_room - impossible
    counts[PendingClass.QUOTA] = observation.missing_pods + np.fmax(or_zero(refused), 0.0)
    counts[PendingClass.IMPOSSIBLE] = impossible + np.fmax(wanted - np.fmax(fits, observation.replicas), 0.0)
    counts[PendingClass.CRASHING] = crashing
    counts[PendingClass.STUCK_STARTING] = np.fmax(observation.pending - queued - without_room - crashing, 0.0)
    return counts


def has_free_gpus(fleet: Fleet) -> BoolColumn:
    """Return the workloads with unscheduled pods whose pool has free GPUs for one more replica; bool[W].

    Such a pod waits for something else: memory, GPUs on one single node, GPUs of other pods. Terminating pods still
    hold their GPUs. False if the size of the pool is unknown.
    """
    has_free, groups = np.zeros(len(fleet.workloads), dtype=bool), fleet.groups
    sized = (fleet.pool >= 0) & (fleet.gpus_per_replica > 0) & np.isfinite(fleet.gpus_per_replica)
    sized &= ~np.isnan(np.append(groups.pool_gpus, np.nan)[fleet.pool])
    waiting = np.flatnonzero(sized & (count_pods(fleet, *WITHOUT_GPUS) > 0))
    if not len(waiting):
        return has_free
    hold = has_gpus(fleet) | fleet.pod_terminating
    running = list_running(fleet, hold)
    running, to_place = running.without_rest(~hold)
    has_free[waiting] = True
    places = list_places(fleet)
    gpus, pods = sum_gpus(fleet, running, running.total.astype(np.float64), sized, places)
    places.placement.place(gpus)
    unplaced = places.pack(places.placement, pods)
    rows = places.rows.of_pool(places.smallest, fleet.pool)
    found: dict[tuple[bytes, ...], bool] = {}  # by what one more replica needs
    for row in waiting.tolist():
        if row in to_place:
            own, each = places.rows_of(fleet.pool[row], to_place[row]), to_place[row]
            more = places.count_single(own, each)
        else:
            own, each = rows[[row]], fleet.gpus_per_replica[[row]]
            more = places.count_pods(np.array([row]), own, np.ones(1))
        key = own.tobytes(), each.tobytes(), more.tobytes()
        if key not in found:
            one_more = np.bincount(own, each, places.placement.pools).astype(np.float64)
            found[key] = _has_place(places, pods + more, one_more, unplaced)
        has_free[row] = found[key]
    return has_free


def _has_place(places: Places, pods: FloatColumn, gpus: FloatColumn, unplaced: BoolColumn) -> bool:
    """Return whether further GPUs have a place. pods: with theirs. unplaced: those that have no node without them."""
    trial = places.placement.copy()
    return not trial.place(gpus).any() and not (places.pack(trial, pods) & ~unplaced).any()


def has_full_quota(fleet: Fleet, waiting: BoolColumn) -> BoolColumn:
    """Return which of the waiting workloads have a quota without room for one more replica beside all pods; bool[W].

    Terminating pods still count, and pods that wait for admission do not. waiting: bool[W].
    """
    is_full, gpus = np.zeros(len(waiting), dtype=bool), fleet.gpus_per_replica
    known = (gpus > 0) & np.isfinite(gpus)
    rows = np.flatnonzero(waiting & known)
    if not len(rows) or not fleet.quotas:
        return is_full
    admitted = np.bincount(fleet.pod_workload[~_is_pending_for(fleet, QUEUED)], minlength=len(waiting))
    held = admitted.astype(np.float64) * np.where(known, gpus, 0.0)
    for limit in place_tenants(fleet.quotas):
        limit.placement.place(limit.sum_gpus(held))
        found: dict[tuple[int, float], bool] = {}
        for row in rows[limit.row[rows] >= 0].tolist():
            tenant, each = int(limit.row[row]), float(gpus[row])
            if (tenant, each) not in found:
                one_more = np.where(np.arange(limit.placement.pools) == tenant, each, 0.0)
                found[tenant, each] = bool(limit.placement.copy().place(one_more).any())
            is_full[row] |= found[tenant, each]
    return is_full
