"""Burst or noise: a queue that is gone before a new replica could serve is queued by design.

The queue is projected to the moment at which a replica ordered now would serve, with what arrives on average, what is
ready and what is loading. If the last in line then waits no longer than the tier tolerates, nothing is ordered for it.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.columns import BoolColumn, FloatColumn
from autoscaler.core.decision import Observation, TickInput
from autoscaler.core.memory import Memory
from autoscaler.core.readings import NOTHING_PER_S


def projected_wait_s(observation: Observation, memory: Memory) -> FloatColumn:
    """How long the last in line will wait one cold start from now, float64[W]; NaN: cannot be told.

    queue(t + C) = queue + (arrivals - service) x C - service of a replica x the time those loading will have had.
    With 30 waiting, 2 arriving and 3 served each second, a cold start of 60 s: 30 - 60 < 0, gone in time. A fluid
    model: arrivals are the mean over about one cold start, so a burst shorter than that weighs little. Replicas that
    were seen to write faster when they were full will do so again.
    """
    workloads = memory.workloads
    awake = observation.reporting - observation.asleep
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens_each_per_s = np.fmax(observation.generation_tokens_per_s / awake, workloads.decode_tokens_per_s)
        served_each_per_s = tokens_each_per_s / observation.output_tokens
        served_per_s = served_each_per_s * awake
        queue = observation.waiting + np.nan_to_num(observation.gateway_waiting)
        later = (
            queue
            + (np.fmax(workloads.arrivals_per_s, 0.0) - served_per_s) * observation.cold_start_s
            - served_each_per_s * observation.pledged_s
        )
        capacity_later = served_per_s + served_each_per_s * observation.starting
        return np.where(served_per_s > NOTHING_PER_S, np.fmax(later, 0.0) / capacity_later, np.nan)


def noise(inp: TickInput, observation: Observation, memory: Memory) -> BoolColumn:
    """Which queues need no replica: they are served in time by what there is. bool[W]."""
    queued = (observation.waiting > 0) | (observation.gateway_waiting > 0)
    return queued & (projected_wait_s(observation, memory) <= inp.spec.max_wait_s)


def absorb(wanted: FloatColumn, without_queue: FloatColumn, observation: Observation, quiet: BoolColumn) -> FloatColumn:
    """Where the queue is noise, want no more than there is, or than the load without the queue needs.

    wanted, without_queue: float64[W], replicas. quiet: bool[W], where the queue is noise.
    """
    enough = np.fmax(observation.replicas, without_queue)
    return np.where(quiet, np.fmin(wanted, enough), wanted)
