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
from typing import NamedTuple

import numpy as np

from autoscaler.core.allocate.slots import Requests, Slots, order
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.spec import Spec
from autoscaler.core.observe.pending import Claims, has_gpus
from autoscaler.core.supply.nodes import Places, list_places
from autoscaler.core.supply.placement import ROUNDING_GPUS
from autoscaler.core.supply.placing import Limit, OnNodes, take
from autoscaler.core.supply.running import PartsOnRows, Running, count_confined, list_running, sum_gpus
from autoscaler.core.supply.tenants import Nominal, TenantLimit, fit_replicas, nominal_gpus, place_tenants
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero

RECLAIM_RATIO = 30.0
"""A peer of equal priority takes over a running replica only if it receives this many times the requests per GPU."""

MOST_TRIES = 20
"""For at most this many kinds of new replicas without a node it goes on with others. It bounds the time."""

MOST_REPLICAS = 10_000.0
"""A workload gets at most this many replicas beyond the reserved ones while its pool is short."""


class GpuDemands(NamedTuple):
    """What workloads desire of pools and quotas, and what they have; every column [W]."""

    desired: FloatColumn  # float64, replicas
    base: FloatColumn  # float64, those of them that the present load needs; the rest is headroom
    kept: FloatColumn  # float64, replicas that stay even where fewer are desired, so that their GPUs are not free
    scheduled: FloatColumn  # float64, replicas that have GPUs; a replica that stays without any takes none from others
    trusted: BoolColumn  # inputs are trusted; otherwise a workload keeps its replicas
    ours: BoolColumn  # the daemon sets the count; otherwise a workload keeps its GPUs and gets what it desires
    idle: BoolColumn  # has no work and can be woken
    can_wait: BoolColumn  # pays for guaranteed headroom of higher priorities
    arrivals_per_s: FloatColumn  # float64, requests; NaN: not known


def share(fleet: Fleet, spec: Spec, claims: Claims, demands: GpuDemands) -> FloatColumn:
    """Allocate replicas to each workload; float64[W], at most those that it desires.

    claims: replicas that count against the pool. Replicas beyond stay in the count and take no GPU.

    Kept replicas are subtracted from the pool first. Then floors, base replicas and desired replicas are filled in
    turn, each by priority. Weights decide where the GPUs do not suffice for all of one priority.
    """
    contest = _Contest.of(fleet, spec, claims, demands._replace(kept=np.fmin(demands.kept, demands.scheduled)))
    is_short, in_short_pool = contest.find_short()
    allocated = contest.settle(is_short, in_short_pool) if is_short.any() else contest.allocated
    return np.where(demands.ours, np.fmin(allocated, demands.desired), demands.desired)


class _Contest(NamedTuple):
    """Replicas that claim GPUs, and what limits them; every column [W]."""

    fleet: Fleet
    spec: Spec
    claims: Claims
    demands: GpuDemands
    allocated: FloatColumn  # float64, replicas, as long as no other workload claims the same GPUs
    claimed: FloatColumn  # float64, those of them that count against the GPUs
    pool_gpus: FloatColumn  # float64, of its pool; NaN: not known
    counted: BoolColumn  # the GPUs of its replicas are known
    running: Running
    places: Places | None  # None: no pool limits replicas
    tenants: tuple[TenantLimit, ...]

    @classmethod
    def of(cls, fleet: Fleet, spec: Spec, claims: Claims, demands: GpuDemands) -> _Contest:
        gpus_each, tenants = fleet.gpus_per_replica, place_tenants(fleet.quotas)
        pool_gpus = np.append(fleet.pool_gpus, np.nan)[fleet.pool]
        allocated = _bound(fleet, claims, demands, tenants)
        # Counts that grew while replicas do not start could exceed the pool together, and all could start at once.
        halted = claims.must_not_grow & ~np.isnan(pool_gpus)
        allocated = np.where(halted, np.minimum(allocated, fleet.replicas), allocated)
        claimed = np.fmax(np.minimum(allocated, claims.replicas), demands.kept)
        claimed = np.where(demands.ours, claimed, np.fmin(fleet.replicas, demands.scheduled))
        counted = (gpus_each > 0) & np.isfinite(gpus_each) & np.isfinite(claimed)
        limited, running = counted & ~np.isnan(pool_gpus), list_running(fleet, has_gpus(fleet))
        places = list_places(fleet) if limited.any() else None
        if places is not None and len(running.parts.place):
            # A replica that waits without a claim may have pods that hold GPUs all the same.
            row, claim = running.row, np.fmin(claimed, claims.replicas_when_short)
            waits = ~has_gpus(fleet)[running.pod] & (running.number >= claim[row]) & (running.number < allocated[row])
            places.placement.place(running.sum_held(places, waits & limited[row]))
        columns = allocated, claimed, pool_gpus, counted
        return cls(fleet, spec, claims, demands, *columns, running, places, tenants)

    @property
    def limited(self) -> BoolColumn:
        """Workloads that a pool of known size limits; bool[W]."""
        return self.counted & ~np.isnan(self.pool_gpus)

    def find_short(self) -> tuple[BoolColumn, BoolColumn]:
        """Return the workloads of pools or quotas that are short, and those of them in such pools; bool[W] each."""
        in_short_pool = np.zeros_like(self.counted)
        if self.places is not None:
            in_short_pool = _is_short(self.fleet, self.running, self.claimed, self.limited, self.places)
        gpus = np.where(self.counted, self.claimed, 0.0) * np.where(self.counted, self.fleet.gpus_per_replica, 0.0)
        in_short_quota = self.counted & np.any([limit.copy_with(gpus)[1] for limit in self.tenants], axis=0)
        return in_short_pool | in_short_quota, in_short_pool

    def settle(self, is_short: BoolColumn, in_pool: BoolColumn) -> FloatColumn:
        """Allocate what is short, in order; float64[W]. is_short, in_pool: bool[W], as `find_short` returns them."""
        fleet, demands, allocated, claimed = self.fleet, self.demands, self.allocated.copy(), self.claimed
        untouched = np.fmin(fleet.replicas, np.where(demands.ours, allocated, claimed))
        least = np.where(demands.ours & demands.trusted, demands.kept, untouched)
        reserved = np.fmin(least, demands.scheduled)
        # Replicas of other workloads of a tenant count as well: they decide which of its replicas borrow.
        of_tenants = self.counted & np.any([limit.row >= 0 for limit in self.tenants], axis=0)
        shared = None
        while shared is None:
            rows = np.flatnonzero(in_pool | of_tenants)
            most = np.where(in_pool & ~is_short, np.inf, self.claims.replicas_when_short)
            requested = np.fmax(np.where(demands.ours, np.fmin(claimed, most), reserved), reserved)
            requests = self._request(rows, in_pool, reserved, requested)
            limits = [limit._replace(row=limit.row[rows]) for limit in self.tenants]
            beside, others = None, self.limited & ~in_pool
            if self.places is not None and len(self.places.sizes) and others.any():
                beside = sum_gpus(fleet, self.running, claimed, others, self.places)
            shared = _fill(requests, None if self.places is None else self.places.of_rows(rows), limits, beside)
            in_pool = self.limited if shared is None else in_pool
        shared = np.fmin(shared, requested[rows])
        # Replicas that do not start take no GPU, so they stay in the count, as far as an empty pool could hold them.
        pool_gpus = np.where(np.isnan(self.pool_gpus), np.inf, self.pool_gpus)[rows]
        whole_pool = np.floor(pool_gpus / fleet.gpus_per_replica[rows] + ROUNDING_GPUS)
        with_pending = np.fmin(allocated[rows], np.fmax(whole_pool, shared))
        has_pending = (allocated[rows] > claimed[rows]) & (shared >= claimed[rows])
        given = np.fmax(np.where(has_pending, with_pending, shared), least[rows])
        is_cut = is_short[rows] | (in_pool[rows] & (shared < requested[rows]))
        allocated[rows] = np.where(is_cut, given, allocated[rows])
        return allocated

    def _request(self, rows: IntColumn, in_pool: BoolColumn, reserved: FloatColumn, requested: FloatColumn) -> Requests:
        """Return what some workloads request. in_pool: bool[W]. reserved, requested: float64[W], replicas."""
        fleet, spec, demands, gpus_each = self.fleet, self.spec, self.demands, self.fleet.gpus_per_replica
        arrivals_per_s, scheduled = demands.arrivals_per_s[rows], demands.scheduled[rows]
        return Requests(
            id=fleet.workload_id[rows],
            pool=np.where(in_pool, fleet.pool, -1)[rows],
            gpus_each=gpus_each[rows],
            reserved=reserved[rows],
            floor=or_zero(spec.min_replicas[rows]),
            base=demands.base[rows],
            most=np.fmin(requested[rows], reserved[rows] + MOST_REPLICAS),
            scheduled=scheduled,
            confined=np.fmin(count_confined(fleet), demands.scheduled)[rows],
            priority=or_zero(spec.priority[rows]),
            weight=np.where(spec.weight[rows] > 0, spec.weight[rows], 1.0),
            urgency=_urgency(arrivals_per_s, gpus_each[rows], scheduled > 0),
            idle=demands.idle[rows],
            can_wait=demands.can_wait[rows],
            guaranteed_gpus=np.where(in_pool, or_zero(spec.headroom_share * self.pool_gpus), 0.0)[rows],
            nominal=_count_left(fleet, rows, reserved[rows] * gpus_each[rows]),
            running=self.running.of_rows(rows),
        )


def _bound(fleet: Fleet, claims: Claims, demands: GpuDemands, tenants: Sequence[TenantLimit]) -> FloatColumn:
    """Return the desired replicas, without those that no node and no quota could hold; float64[W]."""
    present = np.where(demands.trusted, np.fmin(fleet.replicas, demands.scheduled), fleet.replicas)
    stays = np.where(demands.trusted, demands.kept, fleet.replicas)
    within_quotas = np.fmax(fit_replicas(tenants, fleet.gpus_per_replica), stays)
    return np.minimum(np.minimum(demands.desired, np.fmax(claims.fits, present)), within_quotas)


def _is_short(fleet: Fleet, running: Running, replicas: FloatColumn, limited: BoolColumn, places: Places) -> BoolColumn:
    """Return the workloads with replicas in pools or on nodes that have too few GPUs together; bool[W].

    If the GPUs suffice and a pod finds no node all the same, they are those of all pools on which such a pod may be.
    """
    is_short = np.zeros(len(limited), dtype=bool)
    gpus, pods = sum_gpus(fleet, running, replicas, limited, places)
    placement = places.placement.copy()
    short = placement.place(gpus)
    if short.any():
        is_short |= short[places.rows.of_pool(places.smallest, np.fmax(fleet.pool, 0))] & (fleet.pool >= 0)
        counted = running.number < replicas[running.row]
        row, number = running.row[counted], running.number[counted]
        is_short[row[np.append(short, False)[running.find_rows(places, fleet.pool, row, number)]]] = True
        parts = running.find_parts(places, fleet.pool, row, number)
        is_short[row[parts.replica[short[parts.row]]]] = True
    elif (unplaced := places.pack(placement, pods)).any():
        is_short = np.append(places.find_unplaced(unplaced, fleet.groups.admitted), False)[fleet.pool]
    return limited & is_short


def _fill(
    requests: Requests,
    places: Places | None,
    tenants: Sequence[TenantLimit],
    beside: tuple[FloatColumn, FloatColumn] | None,
) -> FloatColumn | None:
    """Return the replicas that get GPUs: the reserved ones, and others in order as long as all have a place.

    If one that runs has none, its workload has to shrink first. So those that it requests elsewhere wait, and those
    that are not ready leave before it.
    tenants: limits of the same workloads. Replicas on nodes that accept no new pod need no place, but count there.
    beside: GPUs and pods of other workloads, for which all node groups have enough; None: there are no others.
    Returns None if single nodes do not have enough for all. No node is sought for workloads without `places`.
    """
    slots, running = order(requests), requests.running
    reserved_gpus = requests.reserved * requests.gpus_each
    of_tenants = [limit.copy_with(reserved_gpus)[0] for limit in tenants]
    limits = [Limit(limit.row[slots.row], requests.gpus_each[slots.row], limit.placement) for limit in of_tenants]
    runs = slots.number < running.total[slots.row]
    on_nodes = None if places is None else _limit_by_places(requests, places, slots)
    limits += [] if on_nodes is None else [on_nodes.limit]
    allowed, tries = np.ones(len(runs), dtype=bool), 0
    while True:
        taken = take(limits, allowed=allowed)
        taken &= slots.number < _count_until_one_leaves(running, slots, runs & ~taken)[slots.row]
        if on_nodes is not None and beside is not None and not on_nodes.beside(*beside).hold(np.flatnonzero(taken)):
            return None
        refused = None if on_nodes is None or beside else on_nodes.find_first_without_node(np.flatnonzero(taken))
        if refused is None or on_nodes is None:
            return requests.reserved + np.bincount(slots.row[taken], minlength=len(running.total))
        allowed[refused] = False
        if not runs[refused]:  # nor is there one for any like it that comes later
            tries += 1
            alike = (slots.gpus == slots.gpus[refused]) & (on_nodes.limit.row == on_nodes.limit.row[refused])
            pods = on_nodes.places.pods[slots.row]
            alike &= (pods == pods[refused]).all(axis=1)
            allowed &= runs | (np.arange(len(runs)) < refused) | (~alike & (tries < MOST_TRIES))


def _count_until_one_leaves(running: Running, slots: Slots, leaves: BoolColumn) -> FloatColumn:
    """Return how many of the replicas of each workload may be taken, by their numbers; float64[W].

    leaves: bool[L], those that run and have no place. Replicas that are not ready leave before ready ones.
    """
    most = np.full(len(running.total), np.inf)
    np.minimum.at(most, slots.row[leaves], np.fmax(slots.number, running.ready[slots.row])[leaves])
    return most


def _limit_by_places(requests: Requests, places: Places, slots: Slots) -> OnNodes:
    """Return what limits slots beside reserved replicas: the groups of their pools, or the nodes where they run."""
    row = np.repeat(np.arange(len(requests.pool)), requests.reserved.astype(np.int64))
    number = np.arange(len(row)) - np.searchsorted(row, row)
    reserved = Slots(row, number, np.where(number < requests.confined[row], 0.0, requests.gpus_each[row]))
    limits = []
    for each in (reserved, slots):
        own = places, requests.pool, each.row, each.number
        parts = requests.running.find_parts(*own)
        is_counted = each.gpus[parts.replica] > 0
        parts = PartsOnRows(parts.replica[is_counted], parts.row[is_counted], parts.gpus[is_counted])
        limits.append(Limit(requests.running.find_rows(*own), each.gpus, places.placement.copy(), parts))
    before = OnNodes.of(places, row, limits[0], np.zeros((len(places.sizes), places.rows.pools + places.rows.groups)))
    everything = np.arange(len(row))
    limit = limits[1]._replace(placement=limits[0].copy_with(everything)[0].placement)
    return OnNodes.of(places, slots.row, limit, before.count_pods(everything))


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
