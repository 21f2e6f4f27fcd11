"""The replicas that hold what the engines hold now. A shrink below them would preempt running requests.

The planner sizes a fleet for the requests that arrive. When traffic stops, long generations still run, and they need
slots and KV cache until they end.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.observation import Observation
from autoscaler.core.observe.load import add_draining, awake, scale_up
from autoscaler.core.table.columns import FloatColumn, ceil_replicas, or_zero


def replicas_in_use(observation: Observation, slots: FloatColumn) -> FloatColumn:
    """Return the replicas that the present KV cache and running requests fill, float64[W]; 0 without a request.

    Requests on pods that leave count too. slots: float64[W], requests that a replica runs at once; infinity: unknown.
    """
    running = or_zero(add_draining(observation, scale_up(observation, observation.running)))
    kv_cache = or_zero(awake(observation) * observation.kv_usage) + or_zero(observation.draining_kv_usage)
    return np.where(running > 0, ceil_replicas(np.fmax(kv_cache, running / slots)), 0.0)


def keep(desired: FloatColumn, current: FloatColumn, in_use: FloatColumn) -> FloatColumn:
    """Shrink no further than to the replicas in use."""
    return np.where(desired < current, np.fmax(desired, np.fmin(current, in_use)), desired)
