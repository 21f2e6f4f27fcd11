"""Pools and quotas of GPUs that are too small for all their workloads: floors first, base replicas, then headroom.

Within each of these, workloads of a higher priority come first, and weights share what is left among equals. So the
headroom of one workload never takes the GPUs that another needs for its present load, whatever their priorities.

At equal priority, workloads with work come before idle ones, and every first replica comes before any second. If the
GPUs do not suffice for all first replicas, the workloads with the most requests get one: they would miss the most.
A replica is allocated whole or not at all. A pool of unknown size allocates every replica that quotas allow. Quotas
do not limit a workload if the GPUs of its replicas are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoscaler.core.allocate.placing import Limit, take
from autoscaler.core.allocate.slots import Requests, Slots, order
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.nodes import Places, list_places
from autoscaler.core.model.placement import ROUNDING_GPUS
from autoscaler.core.model.running import Running, count_confined, list_running, sum_gpus
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.tenants import Nominal, TenantLimit, fit_replicas, nominal_gpus, place_tenants
from autoscaler.core.observe.pending import Claims, has_gpus
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero

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
    tenants = place_tenants(fleet.quotas)
    within_quotas = np.fmax(fit_replicas(tenants, gpus_each), np.where(trusted, kept, fleet.replicas))
    # No node and no quota holds a replica beyond.
    allocated = np.minimum(np.minimum(desired, np.fmax(claims.fits, present)), within_quotas)
    sized = (fleet.pool >= 0) & ~np.isnan(np.append(fleet.pool_gpus, np.nan)[fleet.pool])
    # Counts that grew while replicas do not start could exceed the pool together, and all could start at once.
    allocated = np.where(claims.must_not_grow & sized, np.minimum(allocated, fleet.replicas), allocated)
    claimed = np.where(ours, np.fmax(np.minimum(allocated, claims.replicas), kept), np.fmin(fleet.replicas, scheduled))
    counted = (gpus_each > 0) & np.isfinite(gpus_each) & np.isfinite(claimed)
    limited = sized & counted
    confined = np.fmin(count_confined(fleet), scheduled)
    running = list_running(fleet, has_gpus(fleet))
    places = list_places(fleet) if limited.any() else ()
    in_short_pool = limited & _is_short(fleet, running, claimed, limited, places)
    charged_gpus = np.where(counted, claimed, 0.0) * np.where(counted, gpus_each, 0.0)
    is_short = in_short_pool | (counted & np.any([limit.copy_with(charged_gpus)[1] for limit in tenants], axis=0))
    if is_short.any():
        # Replicas of other workloads of a tenant count as well: they decide which of its replicas borrow.
        rows = np.flatnonzero(is_short | (counted & np.any([limit.row >= 0 for limit in tenants], axis=0)))
        untouched = np.fmin(fleet.replicas, np.where(ours, allocated, claimed))
        least = np.where(ours & trusted, kept, untouched)
        reserved = np.fmin(least, scheduled)
        requested = np.fmax(np.where(ours, np.fmin(claimed, claims.replicas_when_short), reserved), reserved)
        limits = [limit._replace(row=limit.row[rows]) for limit in tenants]
        requests = Requests(
            id=fleet.workload_id[rows],
            pool=np.where(in_short_pool, fleet.pool, -1)[rows],
            gpus_each=gpus_each[rows],
            reserved=reserved[rows],
            floor=or_zero(spec.min_replicas[rows]),
            base=base[rows],
            most=np.fmin(requested[rows], reserved[rows] + MOST_REPLICAS),
            scheduled=scheduled[rows],
            confined=confined[rows],
            priority=or_zero(spec.priority[rows]),
            weight=np.where(spec.weight[rows] > 0, spec.weight[rows], 1.0),
            urgency=_urgency(arrivals_per_s[rows], gpus_each[rows], scheduled[rows] > 0),
            idle=idle[rows],
            nominal=_count_left(fleet, rows, reserved[rows] * gpus_each[rows]),
            running=running.of_rows(rows),
        )
        own_places = [each._replace(smallest=each.smallest[rows]) for each in places]
        shared = np.fmin(_fill(requests, own_places, limits), requested[rows])
        # Replicas that do not start take no GPU, so they stay in the count, as far as an empty pool could hold them.
        pool_gpus = np.where(sized, np.append(fleet.pool_gpus, np.inf)[fleet.pool], np.inf)[rows]
        whole_pool = np.floor(pool_gpus / gpus_each[rows] + ROUNDING_GPUS)
        with_pending = np.fmin(allocated[rows], np.fmax(whole_pool, shared))
        has_pending = (allocated[rows] > claimed[rows]) & (shared >= claimed[rows])
        given = np.fmax(np.where(has_pending, with_pending, shared), least[rows])
        allocated[rows] = np.where(is_short[rows], given, allocated[rows])
    return np.where(ours, np.fmin(allocated, desired), desired)


def _is_short(
    fleet: Fleet, running: Running, replicas: FloatColumn, limited: BoolColumn, limits: Sequence[Places]
) -> BoolColumn:
    """Return the workloads with replicas in pools or on nodes that have too few GPUs together; bool[W]."""
    is_short = np.zeros(len(limited), dtype=bool)
    for places in limits:
        short = places.placement.copy().place(sum_gpus(fleet, running, replicas, limited, places))
        if short.any():
            is_short |= short[places.rows.of_pool(places.smallest, np.fmax(fleet.pool, 0))] & (fleet.pool >= 0)
            counted = running.number < replicas[running.row]
            row, number = running.row[counted], running.number[counted]
            is_short[row[np.append(short, False)[running.find_rows(places, fleet.pool, row, number)]]] = True
    return is_short


def _fill(requests: Requests, places: Sequence[Places], tenants: Sequence[TenantLimit]) -> FloatColumn:
    """Return the replicas that get GPUs: the reserved ones, and others in order as long as all have a place.

    If one that runs has none, its workload has to shrink first. So those that it requests elsewhere wait.
    tenants: limits of the same workloads. Replicas on nodes that accept no new pod need no place, but count there.
    """
    slots, running = order(requests), requests.running
    reserved_gpus = requests.reserved * requests.gpus_each
    of_tenants = [limit.copy_with(reserved_gpus)[0] for limit in tenants]
    limits = [Limit(limit.row[slots.row], requests.gpus_each[slots.row], limit.placement) for limit in of_tenants]
    taken = take([*limits, *(_limit_by_places(requests, slots, each) for each in places)])
    runs = slots.number < running.total[slots.row]
    yields = np.bincount(slots.row[runs & ~taken], minlength=len(running.total)) > 0
    taken &= runs | ~yields[slots.row]
    return requests.reserved + np.bincount(slots.row[taken], minlength=len(running.total))


def _limit_by_places(requests: Requests, slots: Slots, places: Places) -> Limit:
    """Return what limits the slots beside reserved replicas: the groups of their pools, or the node where they run."""
    reserved = np.repeat(np.arange(len(requests.pool)), requests.reserved.astype(np.int64))
    number = np.arange(len(reserved)) - np.searchsorted(reserved, reserved)
    gpus = np.where(number < requests.confined[reserved], 0.0, requests.gpus_each[reserved])
    row = requests.running.find_rows(places, requests.pool, reserved, number)
    placement = places.placement.copy()
    placement.place(np.bincount(1 + row, gpus, 1 + placement.pools)[1:].astype(np.float64))
    return Limit(requests.running.find_rows(places, requests.pool, slots.row, slots.number), slots.gpus, placement)


def _count_left(fleet: Fleet, rows: IntColumn, reserved_gpus: FloatColumn) -> tuple[Nominal, ...]:
    """Return the nominal GPUs of the owners of some workloads, beyond those that their reserved replicas use."""
    found = [nominal for quotas in fleet.quotas for nominal in nominal_gpus(quotas)]
    left = []
    for owner, gpus in ((nominal.owner[rows], nominal.gpus) for nominal in found):
        used = np.bincount(owner + 1, reserved_gpus, 1 + len(gpus))[1:]
        left.append(Nominal(owner, np.fmax(gpus - used, 0.0)))
    return tuple(left)


def _urgency(arrivals_per_s: FloatColumn, gpus_each: FloatColumn, runs: BoolColumn) -> FloatColumn:
    """Return the order of first replicas among equals: requests/s per GPU, weighed up for a row that runs a replica.

    Moving a replica takes a drain on one side and a cold start on the other, so the difference must be clear.
    """
    per_gpu = np.fmax(or_zero(arrivals_per_s), 0.0) / gpus_each
    return np.where(runs, RECLAIM_RATIO * per_gpu, per_gpu)
