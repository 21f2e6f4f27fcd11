"""Load and replicas of an observation, as several stages read them: requests in flight, queues, awake replicas."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.model.types import TickInput
from autoscaler.core.table.columns import BoolColumn, FloatColumn, fill_unknown, or_zero, replace

QUEUED_PER_RUNNING = 0.25
"""A pod has a queue if it has more waiting requests than this per running request. Fewer may wait for one step only."""


def requests(observation: Observation) -> FloatColumn:
    """Return the requests in the engines, with those of silent pods and of pods that drain; float64[W].

    NaN: no pod reports. Requests at the gateway are not among them.
    """
    return add_draining(observation, scale_up(observation, observation.running + observation.waiting))


def requests_in_flight(observation: Observation) -> FloatColumn:
    """Return the requests that replicas are needed for: in the engines and at the gateway. float64[W], NaN: unknown."""
    return requests(observation) + at_gateway(observation)


def scale_up(observation: Observation, value: FloatColumn) -> FloatColumn:
    """Scale a sum over reporting pods to all pods: a sum over 3 of 4 pods is multiplied by 4 / 3.

    Pods that became ready just now and were never read are left out, because their load is still to come. If they
    counted, each growth would call for another.
    """
    stuck = or_zero(observation.stuck)
    heard = np.where(observation.reporting > stuck, observation.reporting - stuck, np.nan)
    share = (observation.ready - observation.newly_ready - stuck) / heard
    # All that report are stuck, or all replicas sleep: nothing to add.
    complete = (stuck > 0) | ((observation.ready == 0) & (observation.asleep > 0))
    return value * np.where(np.isnan(share) & complete, 1.0, share)


def add_draining(observation: Observation, requests: FloatColumn) -> FloatColumn:
    """Add the requests of draining pods to those of serving pods; float64[W], NaN: unknown."""
    draining = or_zero(observation.draining_requests)
    return np.where((observation.ready == 0) & (draining > 0), 0.0, requests) + draining


def has_queue(running: FloatColumn, waiting: FloatColumn) -> BoolColumn:
    """Say which pods, or workloads, have more waiting requests than those that wait for one step only."""
    return np.asarray(waiting > QUEUED_PER_RUNNING * running)


def is_queued(observation: Observation) -> BoolColumn:
    """Return where requests wait. bool[W]."""
    return np.asarray((observation.waiting > 0) | (at_gateway(observation) > 0))


def has_lasting_queue(observation: Observation) -> BoolColumn:
    """Return where requests wait for more than the next step, also at a gateway. bool[W].

    A wait that is unknown may last.
    """
    in_engines = (observation.waiting > 0) & (observation.queue_wait_s != 0)
    return np.asarray(in_engines | (at_gateway(observation) > 0))


def has_late_queue(inp: TickInput, observation: Observation) -> BoolColumn:
    """Return where the last request in the longest queue waits for longer than the policy allows. bool[W]."""
    return np.asarray(observation.queue_wait_s > inp.spec.max_wait_s)  # False for NaN


def at_gateway(observation: Observation) -> FloatColumn:
    """Return the requests at the gateway that wait for more replicas; float64[W], 0 where their queue does not move."""
    return np.where(observation.gateway_stuck > 0, 0.0, or_zero(observation.gateway_waiting))


def is_gateway_silent(inp: TickInput, observation: Observation) -> BoolColumn:
    """Return where a gateway has reported within the last day, but not lately: requests may wait there unseen. bool[W].

    Such a workload does not go to zero, because no request could wake it.
    """
    return np.asarray(observation.gateway_silent_s > inp.spec.max_input_age_s)  # False for NaN


def is_abandoned(observation: Observation) -> BoolColumn:
    """Return where no replica serves and the gateway reports that no request waits or arrives. bool[W].

    The replicas may be starting for ever, or never start: no request would miss them.
    """
    nothing_comes = (observation.gateway_waiting == 0) & ~(observation.gateway_arrivals_per_s > 0)
    return np.asarray((observation.ready == 0) & (observation.replicas > 0) & nothing_comes)


def awake(observation: Observation) -> FloatColumn:
    """Return the replicas that serve: ready ones less those that are stuck. float64[W]."""
    return observation.ready - or_zero(observation.stuck)


def with_idle(observation: Observation, serving: FloatColumn) -> FloatColumn:
    """Return how many replicas there must be for this many to serve; float64[..., W].

    Replicas asleep that the daemon cannot wake count on top where more are needed than are awake. Stuck ones that are
    replaced count on top as well, with at least one that serves: they are the oldest, and the last to go when the
    fleet shrinks.
    """
    replaced = or_zero(observation.stuck_replaced)
    least = np.where(replaced > 0, np.maximum(serving, 1.0), serving)
    return least + np.where(serving > awake(observation), stays_asleep(observation), 0.0) + replaced


def stays_asleep(observation: Observation) -> FloatColumn:
    """Return the sleeping replicas that the daemon cannot wake; float64[W]."""
    return observation.asleep - or_zero(observation.wakeable)


def with_stated_slots(fleet: Fleet, samples: PodSamples) -> PodSamples:
    """Return the readings with the slots that command lines state, where the engines do not report them.

    A pod that runs more requests was started by another command line than the one that was read.
    """
    if fleet.pod_slots is None:
        return samples
    stated = np.where(samples.running > fleet.pod_slots, np.nan, fleet.pod_slots)
    return replace(samples, max_running=fill_unknown(samples.max_running, stated))


def slots(fleet: Fleet, samples: PodSamples) -> FloatColumn:
    """Return the largest known slot count of the workload's engines (max_num_seqs), float64[W]; infinity: unknown."""
    count, rows = samples.max_running, len(fleet.workloads)
    known = ~np.isnan(count)
    if not known.any():
        return np.full(rows, np.inf)
    most = np.zeros(rows)
    np.maximum.at(most, fleet.pod_workload[known], count[known])
    return np.where(most >= 1, most, np.inf)
