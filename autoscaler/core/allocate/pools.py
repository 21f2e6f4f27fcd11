"""Pools of GPUs that are too small for all their workloads: floors first, then base replicas, then headroom.

Within each of these, workloads of a higher priority come first, and weights share what is left among equals. So the
headroom of one workload never takes the GPUs that another needs for its present load, whatever their priorities.

At equal priority, workloads with work come before idle ones, and every first replica comes before any second. If the
GPUs do not suffice for all first replicas, the workloads with the most requests get one: they would miss the most.
A replica is allocated whole or not at all. A pool of unknown size allocates every replica.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.allocate.placing import Limit, take
from autoscaler.core.allocate.slots import Requests, order
from autoscaler.core.model.fleet import Fleet, NodeGroups
from autoscaler.core.model.placement import ROUNDING_GPUS, count_confined, place_pools
from autoscaler.core.model.spec import Spec
from autoscaler.core.observe.pending import Claims
from autoscaler.core.table.columns import BoolColumn, FloatColumn, or_zero

RECLAIM_RATIO = 30.0
"""A peer of equal priority takes over a running replica only if it receives so many times the requests per GPU."""

MOST_REPLICAS = 10_000.0
"""A workload gets at most so many replicas beyond the reserved ones while its pool is short."""


def share(
    desired: FloatColumn,
    base: FloatColumn,
    fleet: Fleet,
    spec: Spec,
    claims: Claims,
    trusted: BoolColumn,
    ours: BoolColumn,
    idle: BoolColumn,
    scheduled: FloatColumn,
    arrivals_per_s: FloatColumn,
    kept: FloatColumn,
) -> FloatColumn:
    """Allocate replicas to each workload; float64[W], at most `desired`.

    desired: float64[W], replicas. base: float64[W], those of them that the present load needs; the rest is headroom.
    claims: replicas that count against the pool. Replicas beyond stay in the count and take no GPU.
    trusted: bool[W]; a workload whose inputs are not trusted keeps its replicas.
    ours: bool[W]; a workload whose count the daemon does not set keeps its GPUs and is allocated what it desires.
    idle: bool[W]; these have no work and can be woken.
    scheduled: float64[W], replicas that have GPUs. A replica that stays without GPUs takes none from others.
    arrivals_per_s: float64[W], requests; NaN: not known.
    kept: float64[W], replicas that stay even where fewer are desired, so that their GPUs are not free.

    Kept replicas are subtracted from the pool first. Then floors, base replicas and desired replicas are filled in
    turn, each by priority. Weights decide where the GPUs do not suffice for all of one priority.
    """
    gpus_each = fleet.gpus_per_replica
    kept = np.fmin(kept, scheduled)
    present = np.where(trusted, np.fmin(fleet.replicas, scheduled), fleet.replicas)
    allocated = np.minimum(desired, np.fmax(claims.fits, present))  # no node holds a replica beyond
    sized = (fleet.pool >= 0) & ~np.isnan(np.append(fleet.pool_gpus, np.nan)[fleet.pool])
    # Counts that grew while replicas do not start could exceed the pool together, and all could start at once.
    allocated = np.where(claims.must_not_grow & sized, np.minimum(allocated, fleet.replicas), allocated)
    claimed = np.where(ours, np.fmax(np.minimum(allocated, claims.replicas), kept), np.fmin(fleet.replicas, scheduled))
    limited = sized & (gpus_each > 0) & np.isfinite(gpus_each) & np.isfinite(claimed)
    confined = np.fmin(count_confined(fleet), scheduled)
    to_place = np.where(limited, np.fmax(claimed - confined, 0.0) * gpus_each, 0.0)
    claimed_gpus = np.bincount(fleet.pool[limited], to_place[limited], len(fleet.pools)).astype(np.float64)
    short = np.flatnonzero(limited & np.append(_short_pools(fleet.groups, claimed_gpus), False)[fleet.pool])
    if len(short):
        untouched = np.fmin(fleet.replicas, np.where(ours, allocated, claimed))
        least = np.where(ours & trusted, kept, untouched)
        reserved = np.fmin(least, scheduled)
        requested = np.fmax(np.where(ours, np.fmin(claimed, claims.replicas_when_short), reserved), reserved)
        # Replicas that do not start take no GPU, so they stay in the count, as far as an empty pool could hold them.
        whole_pool = np.floor(fleet.pool_gpus[fleet.pool[short]] / gpus_each[short] + ROUNDING_GPUS)
        requests = Requests(
            id=fleet.workload_id[short],
            pool=fleet.pool[short],
            gpus_each=gpus_each[short],
            reserved=reserved[short],
            floor=or_zero(spec.min_replicas[short]),
            base=base[short],
            most=np.fmin(requested[short], reserved[short] + MOST_REPLICAS),
            scheduled=scheduled[short],
            confined=confined[short],
            priority=or_zero(spec.priority[short]),
            weight=np.where(spec.weight[short] > 0, spec.weight[short], 1.0),
            urgency=_urgency(arrivals_per_s[short], gpus_each[short], scheduled[short] > 0),
            idle=idle[short],
        )
        shared = np.fmin(_fill(requests, fleet.groups), requested[short])
        with_pending = np.fmin(allocated[short], np.fmax(whole_pool, shared))
        has_pending = (allocated[short] > claimed[short]) & (shared >= claimed[short])
        allocated[short] = np.fmax(np.where(has_pending, with_pending, shared), least[short])
    return np.where(ours, np.fmin(allocated, desired), desired)


def _short_pools(groups: NodeGroups, gpus: FloatColumn) -> BoolColumn:
    """Return the pools that request more GPUs together than their node groups have; bool[N]. gpus: float64[N]."""
    gpus = np.where(np.isnan(groups.pool_gpus), 0.0, gpus)
    return place_pools(groups, range(len(gpus))).place(gpus.tolist())


def _fill(requests: Requests, groups: NodeGroups) -> FloatColumn:
    """Return the replicas that get GPUs: the reserved ones, and others in order as long as all have a place."""
    slots = order(requests)
    pools = np.unique(requests.pool)
    given = requests.reserved.copy()
    slot_pool = np.searchsorted(pools, requests.pool)[slots.row]
    to_place = np.fmax(requests.reserved - requests.confined, 0.0) * requests.gpus_each
    reserved = np.bincount(np.searchsorted(pools, requests.pool), to_place, len(pools))
    placement = place_pools(groups, pools.tolist())
    placement.place(reserved.tolist())
    taken = take([Limit(slot_pool, slots.gpus, placement)])
    given += np.bincount(slots.row[taken], minlength=len(given))
    return given


def _urgency(arrivals_per_s: FloatColumn, gpus_each: FloatColumn, runs: BoolColumn) -> FloatColumn:
    """Return the order of first replicas among equals: requests/s per GPU, weighed up for a row that runs a replica.

    Moving a replica takes a drain on one side and a cold start on the other, so the difference must be clear.
    """
    per_gpu = np.fmax(or_zero(arrivals_per_s), 0.0) / gpus_each
    return np.where(runs, RECLAIM_RATIO * per_gpu, per_gpu)
