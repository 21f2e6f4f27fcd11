"""From what each workload wants to what it gets: among the variants of its service, and from the pool of GPUs."""

from __future__ import annotations

import numpy as np

from autoscaler.core.allocate import pools, variants
from autoscaler.core.model.fleet import Fleet, PendingClass
from autoscaler.core.model.types import Capacity, Observation, Stage, TickInput
from autoscaler.core.observe import arrivals
from autoscaler.core.observe.pending import lacking
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.stabilize.pipeline import Target
from autoscaler.core.table.columns import BoolColumn, FloatColumn

RESTING = 10
"""Cold starts without work after which a replica may serve others of its priority."""


def share(
    inp: TickInput, observed: Observed, known_capacity: Capacity, target: Target
) -> tuple[FloatColumn, FloatColumn]:
    """Share what each workload alone is to have among the variants of its service, and pools among all.

    Returns all stages, float64[G, W]: after those of `target` what every variant is to have, what its pool gives, and
    what stands where the count is not ours to set. And what of it is no reserve, float64[W]. What the load needs and
    one pool does not give is asked of the other variants, once; a reserve is not.
    """
    observation, claims = observed.observation, observed.claims
    ours = free(inp)
    governed = ours & ~np.isnan(inp.spec.max_replicas)  # where no policy is in force, nothing is decided
    planned_requests = known_capacity.concurrency * inp.spec.target_usage
    resting, standing = rests(inp, observation, target.idle_s), placed(inp.fleet)
    arrivals_per_s = arrivals.recent_per_s(observed.arrivals, observation.cold_start_s)
    lack = lacking(observation) + observation.missing_pods

    def among(
        wanted: FloatColumn, needed: FloatColumn, vacant: FloatColumn
    ) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
        """vacant: float64[W], replicas more for which there are GPUs; infinity: not known."""
        chosen, unreserved = wanted, needed
        if inp.variants is not None:
            chosen, unreserved = (
                variants.choose(
                    count,
                    inp.fleet.replicas,
                    lack,
                    vacant,
                    planned_requests,
                    target.informed & governed,
                    inp.variants,
                    inp.spec,
                )
                for count in (wanted, needed)
            )
        # What one variant takes over from another for the load is no reserve there either.
        unreserved = np.fmin(unreserved, chosen)
        given = pools.share(
            hold(chosen, inp.fleet),
            unreserved,
            inp.fleet,
            inp.spec,
            claims,
            observed.trusted,
            governed,
            resting,
            standing,
            arrivals_per_s,
            kept(chosen, inp.fleet),
        )
        return chosen, given, unreserved

    vacant = np.where((observation.pending > 0) | claims.stuck, 0.0, np.inf)
    chosen, given, unreserved = among(target.stages[Stage.BOUNDS], target.base_replicas, vacant)
    if inp.variants is not None and (refused := (given < unreserved) & (inp.variants.service >= 0)).any():
        vacant = np.where(refused, np.fmax(given - (inp.fleet.replicas - lack), 0.0), vacant)
        together = np.isin(inp.variants.service, inp.variants.service[refused])
        chosen, given, unreserved = among(np.where(together, np.fmax(given, unreserved), chosen), unreserved, vacant)
    stages = target.stages.copy()
    pooled = given < hold(chosen, inp.fleet)
    stages[Stage.VARIANT], stages[Stage.ALLOCATION] = chosen, np.where(pooled, given, chosen)
    stages[Stage.OWNER] = np.where(ours & ~put_off(inp, given), given, observation.replicas)
    return stages, unreserved


def free(inp: TickInput) -> BoolColumn:
    """Whose count is ours to set: not paused, and owned by nobody else. bool[W]."""
    return np.asarray(~inp.fleet.paused & np.array([not owner for owner in inp.fleet.other_owner], dtype=bool))


def hold(wanted: FloatColumn, fleet: Fleet) -> FloatColumn:
    """Return what `wanted` comes to where the owner of a count holds it in one direction; float64[W]."""
    held = fleet.hpa_limits
    if held is None:
        return wanted
    return np.where(held.to_zero & (wanted == 0), wanted, np.clip(wanted, held.min_replicas, held.max_replicas))


def kept(wanted: FloatColumn, fleet: Fleet) -> FloatColumn:
    """Return how many of its replicas each workload keeps even where `wanted` is less; float64[W].

    Where something else decides as well, all that stand may stay: pools count them until they are gone.
    """
    held = fleet.hpa_limits
    if held is None:
        return np.zeros(len(fleet.workloads))
    least = np.where(held.to_zero & (wanted == 0), 0.0, held.min_replicas)
    return np.where(held.shared, fleet.replicas, np.fmin(least, fleet.replicas))


def put_off(inp: TickInput, given: FloatColumn) -> BoolColumn:
    """Say where the API server refused such a count lately, and it is too early to ask again. bool[W].

    given: float64[W], replicas. A count nearer to the one that stands is another question.
    """
    current, told = inp.fleet.replicas, inp.fleet.obstacles
    as_far = np.where(told.refused_replicas > current, given >= told.refused_replicas, given <= told.refused_replicas)
    return np.asarray(as_far & (given != current) & (inp.now_s < told.retry_at_s))


def placed(fleet: Fleet) -> FloatColumn:
    """Return how many replicas have GPUs, or will have them in a moment; float64[W]."""
    waits = (fleet.pod_pending == PendingClass.UNSCHEDULABLE) | (fleet.pod_pending == PendingClass.SCHEDULING_GATED)
    has = ~fleet.pod_terminating & ~waits
    return np.bincount(fleet.pod_workload[has], minlength=len(fleet.workloads)).astype(np.float64)


def rests(inp: TickInput, observation: Observation, idle_s: FloatColumn) -> BoolColumn:
    """Who had no work for many cold starts, may go to zero, and would be woken: its replica may serve others. bool[W].

    Whose policy rules zero out keeps its floor, however long it rests.
    """
    rested, woken = idle_s >= RESTING * observation.cold_start_s, ~np.isnan(observation.gateway_waiting)
    return np.asarray(rested & woken & ~np.isnan(inp.spec.idle_after_s))
