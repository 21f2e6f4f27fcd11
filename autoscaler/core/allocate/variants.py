"""Variants of one service: the needed capacity at least cost, without moving replicas for a small saving.

The variants of a service (a MIG slice, a full GPU, two GPUs) stand behind one router, so only their total capacity
counts. Capacity that its running replicas lack is added at least cost, within floors, ceilings and free GPUs. Capacity
that it no longer needs is removed where that saves the most.

A policy may prefer spot nodes (`on_demand_floor`). Then the first replicas that the load needs are on variants whose
nodes no provider takes away, and all further ones on spot variants as far as these get replicas to run.

Running replicas are exchanged for cheaper ones only after the dearer mix has cost as much as the cold starts of the
exchange would: the rule of ski rental (Karlin et al., "Competitive snoopy caching", 1988), which costs at most twice as
much as knowing the future. The old replicas leave when the new ones serve.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.allocate.least_cost import cover, shed, take
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.variants import Variants
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

SECONDS_PER_HOUR = 3600.0
UNKNOWN_COST = 1e6
"""A request on a variant of unknown cost counts this many times the dearest known one: such a variant grows last."""

AFTER_SPOT = 1e3
"""Where spot nodes are preferred, a request on other nodes counts this many times one of unknown cost in addition."""


class VariantReplicas(NamedTuple):
    """Replicas of each workload; float64[W]."""

    current: FloatColumn  # spec.replicas
    not_running: FloatColumn  # those of them without a pod that can start
    starting: FloatColumn  # those of them that will serve soon
    vacant: FloatColumn  # further replicas for which there are GPUs; infinity: not known


class VariantFleet(NamedTuple):
    """The workloads between which the load of a service may move; every column [W].

    Workloads that are not movable keep the desired count: those whose capacity is unknown, whose inputs are not
    trusted, or whose count the daemon does not set.
    """

    running: VariantReplicas
    requests_each: FloatColumn  # float64, requests that one replica is planned for
    movable: BoolColumn  # load may move to or from it
    variants: Variants
    spec: Spec


def choose(desired: FloatColumn, fleet: VariantFleet) -> FloatColumn:
    """Share the load of each service among its variants, by cost; float64[W]. desired: float64[W], replicas.

    Load for which no variant has GPUs stays with the cheapest, whose pool may give it priority.
    The result has at least the capacity of `desired`, in whole replicas, within each workload's bounds.
    """
    services = _Services.of(desired, fleet)
    return desired if services is None else services.write(desired, services.chosen())


def exchange(
    desired: FloatColumn,
    chosen: FloatColumn,
    fleet: VariantFleet,
    cold_start_s: FloatColumn,
    elapsed_s: FloatColumn,
    overpaid: FloatColumn,
) -> tuple[FloatColumn, FloatColumn]:
    """Return `chosen` with the replicas of cheaper mixes that pay, and what the present mixes have overpaid so far.

    chosen: float64[W], result of `choose`. cold_start_s: float64[W]. elapsed_s: float64[W], since the last tick.
    overpaid: float64[W], by service, in the currency of `variants`; NaN: nothing. An exchange begins when the service
    has overpaid the cold starts that it takes.
    """
    services = _Services.of(desired, fleet)
    if services is None:
        return chosen, np.full(len(chosen), np.nan)
    present, ideal, cost = services.matrix(chosen), services.ideal(), services.cost
    saved_per_hour = np.where(services.is_carried(ideal), np.sum((present - ideal) * cost, axis=1), 0.0)
    joining = np.where(services.room > 0, np.fmax(ideal - present, 0.0), 0.0)
    start_cost = np.sum(joining * cost * services.matrix(cold_start_s) / SECONDS_PER_HOUR, axis=1)
    before = np.fmax(np.nan_to_num(services.matrix(overpaid)).max(axis=1), 0.0)
    hours = np.nan_to_num(services.matrix(elapsed_s)).max(axis=1) / SECONDS_PER_HOUR
    total = np.where(saved_per_hour > 0, before + saved_per_hour * hours, 0.0)
    pays = (saved_per_hour > 0) & (total >= start_cost)
    exchanged = present + np.where(pays[:, None], joining, 0.0)
    return services.write(chosen, exchanged), services.write(np.full(len(chosen), np.nan), total[:, None] + 0 * ideal)


class _Services(NamedTuple):
    """The services with movable load: matrices with a row per service (S) and a column per variant (V)."""

    rows: IntColumn  # int64[N], workloads, by service
    place: tuple[IntColumn, IntColumn]  # row and column of each in the matrices
    needed: FloatColumn  # float64[S], requests
    kept: FloatColumn  # float64[S, V], running replicas within bounds; those that the load cannot use stay as desired
    starting: FloatColumn  # float64[S, V], those of them that do not serve yet
    floor: FloatColumn  # float64[S, V], replicas that stay
    room: FloatColumn  # float64[S, V], replicas that may be added to `kept`
    vacant: FloatColumn  # float64[S, V], those of them for which there are GPUs
    each: FloatColumn  # float64[S, V], requests of one replica
    cost: FloatColumn  # float64[S, V], of one replica
    rank: (
        FloatColumn  # float64[S, V], that cost, by which variants grow and shrink; higher on nodes that come after spot
    )

    @classmethod
    def of(cls, desired: FloatColumn, fleet: VariantFleet) -> _Services | None:
        """Return None if no service has movable load."""
        running, requests_each, movable, variants, spec = fleet
        shared = (variants.service >= 0) & movable & (requests_each > 0) & ~np.isnan(desired)
        rows = np.flatnonzero(shared)
        if not len(rows):
            return None
        rows = rows[np.argsort(variants.service[rows], kind="stable")]
        _, service, counts = np.unique(variants.service[rows], return_inverse=True, return_counts=True)
        place = service, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)

        def matrix(column: FloatColumn, missing: float = 0.0) -> FloatColumn:
            laid_out = np.full((len(counts), counts.max()), missing)
            laid_out[place] = column
            return laid_out

        each, current, wanted = requests_each[rows], running.current[rows], desired[rows]
        known = variants.cost[rows] / each
        unknown = UNKNOWN_COST * max(float(known[np.isfinite(known)].max(initial=0.0)), 1.0)
        cost = np.where(np.isfinite(known), variants.cost[rows], unknown * each)
        awake = (wanted > 0) & (current > 0)  # each workload goes to zero and wakes up by its own idle stage
        most = spec.max_replicas[rows]
        kept = np.where(awake, np.clip(current - running.not_running[rows], spec.min_replicas[rows], most), wanted)
        room = np.where(awake, np.fmax(most - kept, 0.0), 0.0)
        services = cls(
            rows=rows,
            place=place,
            needed=np.asarray(np.bincount(service, wanted * each), dtype=np.float64),
            kept=matrix(kept),
            starting=matrix(np.where(awake, np.clip(running.starting[rows], 0.0, kept), 0.0)),
            floor=matrix(np.where(awake, np.fmin(np.fmax(spec.min_replicas[rows], 1.0), kept), kept)),
            room=matrix(room),
            vacant=matrix(np.fmin(room, np.fmax(running.vacant[rows], 0.0))),
            each=matrix(each, 1.0),
            cost=matrix(cost, 1.0),
            rank=matrix(cost, 1.0),
        )
        stated = ~np.isnan(spec.on_demand_floor[rows])
        if variants.may_be_spot is None or not stated.any():
            return services
        first = services.matrix(np.nan_to_num(spec.on_demand_floor, nan=-1.0)).max(axis=1)
        first = np.where(np.bincount(service, stated) > 0, first, -1.0)
        return services._prefer_spot(
            first, matrix((~variants.may_be_spot[rows]).astype(np.float64)) > 0, AFTER_SPOT * unknown
        )

    def _prefer_spot(self, first: FloatColumn, firm: BoolColumn, penalty: float) -> _Services:
        """Return the services with their first replicas on firm variants, and all others on spot variants if possible.

        first: float64[S], replicas; negative: the service has no preference. firm: bool[S, V], not on spot nodes.
        penalty: that of a request on a firm variant. The first replicas carry no more than the service needs.
        """

        def choose_first(present: FloatColumn, room: FloatColumn) -> FloatColumn:
            kept, room = np.where(firm, present, 0.0), np.where(firm, room, 0.0)
            missing = np.fmax(self.needed - self.requests(kept), 0.0)
            more = cover(missing, room, self.each, self.cost)
            return take(np.fmax(first - kept.sum(axis=1), 0.0), more, self.each, self.cost)

        added = choose_first(self.kept, self.vacant)
        kept = self.kept + added
        return self._replace(
            kept=kept,
            starting=self.starting + added,
            floor=self.floor + choose_first(self.floor, kept - self.floor),
            room=self.room - added,
            vacant=self.vacant - added,
            rank=np.where(firm & (first >= 0)[:, None], self.cost + penalty * self.each, self.cost),
        )

    def matrix(self, column: FloatColumn) -> FloatColumn:
        laid_out = np.zeros_like(self.kept)
        laid_out[self.place] = column[self.rows]
        return laid_out

    def write(self, column: FloatColumn, values: FloatColumn) -> FloatColumn:
        """Return the column with the values of these services."""
        written = column.copy()
        written[self.rows] = values[self.place]
        return written

    def requests(self, replicas: FloatColumn) -> FloatColumn:
        """Return the requests that these replicas are planned for, float64[S]."""
        return np.asarray(np.sum(replicas * self.each, axis=1))

    def is_carried(self, replicas: FloatColumn) -> BoolColumn:
        return np.asarray(self.requests(replicas) >= self.needed * (1 - 1e-9))

    def ideal(self) -> FloatColumn:
        """Return the mix of lowest rank if every replica could be exchanged at once; float64[S, V]."""
        most = self.kept + self.vacant - self.floor
        return self.floor + cover(np.fmax(self.needed - self.requests(self.floor), 0.0), most, self.each, self.rank)

    def chosen(self) -> FloatColumn:
        """Return the counts without any exchange; float64[S, V]."""
        missing = np.fmax(self.needed - self.requests(self.kept), 0.0)
        added = cover(missing, self.vacant, self.each, self.rank)
        left = np.fmax(missing - self.requests(added), 0.0)
        added += cover(left, self.room - added, self.each, self.rank)

        # Replicas that start are cancelled only where the ideal mix has no use for them, and those that serve leave
        # only as far as the others carry the load by themselves. A controller removes its unready replicas first.
        surplus = np.fmax(self.requests(self.kept) - self.needed, 0.0)
        unused = np.fmax(self.kept - np.fmax(self.ideal(), self.floor), 0.0)
        cancelled = shed(surplus, np.fmin(self.starting, unused), self.each, self.rank)
        serving = self.kept - self.starting
        surplus = np.fmin(surplus - self.requests(cancelled), np.fmax(self.requests(serving) - self.needed, 0.0))
        spare = np.where(self.starting > cancelled, 0.0, np.fmin(serving, self.kept - cancelled - self.floor))
        return self.kept + added - cancelled - shed(surplus, np.fmax(spare, 0.0), self.each, self.rank)
