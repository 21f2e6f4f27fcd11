"""The mix of variants of each service, as far as there are GPUs for it.

`variants` chooses counts by cost. It needs from here which replicas run or soon will, and which variants may get
further ones. Base replicas that a pool does not allocate are requested from the other variants, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from autoscaler.core.allocate import retries, variants
from autoscaler.core.allocate.retries import Failures
from autoscaler.core.model.fleet import WITHOUT_ROOM, Fleet
from autoscaler.core.model.types import TickInput
from autoscaler.core.model.variants import Variants
from autoscaler.core.observe.pending import count_pending_replicas, count_pods, count_undecided
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.supply.tenants import fit_replicas, place_tenants
from autoscaler.core.table.columns import BoolColumn, FloatColumn

MAX_INTERVAL_S = 60.0
"""A mix of variants is known to have been too dear for at most this long between two ticks."""


class Mixed(NamedTuple):
    """Counts by variant; float64[W], replicas."""

    required: FloatColumn  # before they were shared among variants; where a pool was short, what it left
    chosen: FloatColumn
    base: FloatColumn  # those of the chosen ones that the present load needs
    allocated: FloatColumn  # those of the chosen ones that get GPUs
    vacant: FloatColumn  # further replicas for which there are GPUs; infinity: not known


class Mixes(NamedTuple):
    """The facts by which load is shared among the variants of services; every column [W]."""

    inp: TickInput
    observed: Observed
    requests_each: FloatColumn  # requests that one replica is planned for
    movable: BoolColumn  # load may move to or from it
    running: variants.VariantReplicas
    paused: BoolColumn  # its replicas did not run lately, so it gets no load of others

    @classmethod
    def of(
        cls,
        inp: TickInput,
        observed: Observed,
        requests_each: FloatColumn,
        movable: BoolColumn,
        failures: Failures,
    ) -> tuple[Mixes, Failures]:
        """Gather the facts, and return them with the failures up to this tick.

        requests_each, movable: as the fields. failures: those up to the last tick.
        """
        observation, cannot_grow = observed.observation, observed.claims.cannot_grow
        waiting = count_pending_replicas(observation)
        # A load moves to a dearer variant only once no node comes for the cheaper one.
        undecided = np.fmin(count_undecided(inp.fleet, inp.now_s), waiting)
        sized = ~np.isnan(np.append(inp.fleet.pool_gpus, np.nan)[inp.fleet.pool])
        without_room = np.where(sized, count_pods(inp.fleet, *WITHOUT_ROOM), 0.0)  # free GPUs tell when to try again
        failed = (waiting - undecided > without_room) | cannot_grow
        paused, failures = retries.update(inp.now_s, failed, observation.ready, failures)
        running = variants.VariantReplicas(
            current=observation.current,
            not_running=waiting - undecided + observation.missing_pods,
            starting=observation.starting + undecided,
            vacant=np.where((observation.pending > undecided) | cannot_grow | paused, 0.0, np.inf),
        )
        return cls(inp, observed, requests_each, movable, running, paused), failures

    def choose(
        self, required: FloatColumn, base: FloatColumn, share: Callable[[FloatColumn, FloatColumn], FloatColumn]
    ) -> Mixed:
        """Share the load of each service among its variants, and its GPUs by `share`.

        required: float64[W], replicas. base: float64[W], those of them that the present load needs.
        share: returns the allocation of such counts, float64[W].
        """
        mixed = self._choose(required, base, self.running.vacant, share)
        if self.inp.variants is None:
            return mixed
        service = self.inp.variants.service
        short = (mixed.allocated < mixed.base) & (service >= 0)
        if not short.any():
            return mixed
        left = np.fmax(mixed.allocated - (self.running.current - self.running.not_running), 0.0)
        of_service = np.isin(service, service[short])
        return self._choose(
            np.where(of_service, np.fmax(mixed.allocated, mixed.base), mixed.chosen),
            mixed.base,
            np.where(short & ~self.paused, left, mixed.vacant),
            share,
        )

    def _choose(
        self,
        required: FloatColumn,
        base: FloatColumn,
        vacant: FloatColumn,
        share: Callable[[FloatColumn, FloatColumn], FloatColumn],
    ) -> Mixed:
        chosen = required
        if self.inp.variants is not None:
            fleet = self._fleet(self.inp.variants, vacant, self.movable)
            chosen, base = variants.choose(required, fleet), variants.choose(base, fleet)
        # Load that moves from one variant to another takes base replicas there too.
        base = np.fmin(base, chosen)
        return Mixed(required, chosen, base, share(chosen, base), vacant)

    def exchange(self, mixed: Mixed, taking: FloatColumn, overpaid: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Return the chosen counts with exchanges that pay, and what services have overpaid so far; float64[W].

        taking: float64[W], replicas that take GPUs. overpaid: float64[W], until the last tick.
        """
        if self.inp.variants is None:
            return mixed.chosen, overpaid
        vacant = np.fmin(mixed.vacant, _count_free(self.inp.fleet, taking))
        fleet = self._fleet(self.inp.variants, vacant, self.movable & (mixed.allocated >= mixed.chosen))
        elapsed_s = np.minimum(self.observed.elapsed_s(self.inp.now_s), MAX_INTERVAL_S)
        cold_start_s = self.observed.observation.cold_start_s
        return variants.exchange(mixed.required, mixed.chosen, fleet, cold_start_s, elapsed_s, overpaid)

    def _fleet(self, rows: Variants, vacant: FloatColumn, movable: BoolColumn) -> variants.VariantFleet:
        running = self.running._replace(vacant=vacant)
        return variants.VariantFleet(running, self.requests_each, movable, rows, self.inp.spec)


def _count_free(fleet: Fleet, taken: FloatColumn) -> FloatColumn:
    """Return the further replicas for which each workload's pool and quotas have free GPUs; float64[W].

    Infinity: not known. taken: float64[W], replicas that take GPUs.
    """
    known = (fleet.gpus_per_replica > 0) & np.isfinite(fleet.gpus_per_replica)
    if not known.any():
        return np.full(len(taken), np.inf)
    gpus = np.where(known, np.fmax(taken, fleet.replicas) * fleet.gpus_per_replica, 0.0)
    in_quotas = fit_replicas(
        [limit.copy_with(gpus)[0] for limit in place_tenants(fleet.quotas)], fleet.gpus_per_replica
    )
    known &= fleet.pool >= 0
    left = fleet.pool_gpus - np.bincount(fleet.pool[known], gpus[known], len(fleet.pools))
    free = np.floor(np.fmax(left, 0.0)[np.fmax(fleet.pool, 0)] / np.where(known, fleet.gpus_per_replica, 1.0))
    return np.fmin(in_quotas, np.where(known & ~np.isnan(free), free, np.inf))
