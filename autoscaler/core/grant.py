"""From what each workload wants to what it gets: among the variants of its service, and from the pool of GPUs."""

from __future__ import annotations

import numpy as np

from autoscaler.core import arbitrate, variants
from autoscaler.core.columns import BoolColumn, FloatColumn
from autoscaler.core.decision import Capacity, Observation, TickInput

RESTING = 10
"""Cold starts without work after which a replica may serve others of its priority."""


def grant(
    inp: TickInput,
    observation: Observation,
    known_capacity: Capacity,
    wanted: FloatColumn,
    needed: FloatColumn,
    trusted: BoolColumn,
    informed: BoolColumn,
    ours: BoolColumn,
    idle_s: FloatColumn,
    arrivals_per_s: FloatColumn,
) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Share what is wanted among the variants of each service, and pools among all.

    needed: float64[W], what of it is no reserve. informed: bool[W], trusted, and the load is known. ours: bool[W], as
    of `tick.free`. Returns float64[W] each: what every variant is to have, what its pool gives, and what of it is no
    reserve. What the load needs and one pool does not give is asked of the other variants, once; a reserve is not.
    """
    governed = ours & ~np.isnan(inp.spec.max_replicas)  # where no policy is in force, nothing is decided
    planned_requests = known_capacity.concurrency * inp.spec.target_usage
    resting, holding = rests(inp, observation, idle_s), observation.ready + observation.starting > 0

    def share(
        wanted: FloatColumn, needed: FloatColumn, vacant: FloatColumn
    ) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
        """vacant: float64[W], replicas more for which there are GPUs; infinity: not known."""
        chosen, unreserved = wanted, needed
        if inp.variants is not None:
            chosen, unreserved = (
                variants.choose(
                    count,
                    inp.fleet.replicas,
                    observation.blocked,
                    vacant,
                    planned_requests,
                    informed & governed,
                    inp.variants,
                    inp.spec,
                )
                for count in (wanted, needed)
            )
        # What one variant takes over from another for the load is no reserve there either.
        unreserved = np.fmin(unreserved, chosen)
        given = arbitrate.share(
            chosen, unreserved, inp.fleet, inp.spec, trusted, governed, resting, holding, arrivals_per_s
        )
        return chosen, given, unreserved

    vacant = np.where(observation.blocked > 0, 0.0, np.inf)
    chosen, given, unreserved = share(wanted, needed, vacant)
    if inp.variants is None:
        return chosen, given, unreserved
    refused = (given < unreserved) & (inp.variants.service >= 0)
    if not refused.any():
        return chosen, given, unreserved
    serving = inp.fleet.replicas - observation.blocked
    vacant = np.where(refused, np.fmax(given - serving, 0.0), vacant)
    together = np.isin(inp.variants.service, inp.variants.service[refused])
    return share(np.where(together, np.fmax(given, unreserved), chosen), unreserved, vacant)


def rests(inp: TickInput, observation: Observation, idle_s: FloatColumn) -> BoolColumn:
    """Who had no work for many cold starts, may go to zero, and would be woken: its replica may serve others. bool[W].

    Whose policy rules zero out keeps its floor, however long it rests.
    """
    rested, woken = idle_s >= RESTING * observation.cold_start_s, ~np.isnan(observation.gateway_waiting)
    return np.asarray(rested & woken & ~np.isnan(inp.spec.idle_after_s))
