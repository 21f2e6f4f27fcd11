"""Burst or noise: a queue that is gone before a new replica could serve is queued by design.

The queue is projected to the moment at which a replica ordered now would serve. The projection knows the arrivals, and
the replicas that are ready or loading. If the last request then waits no longer than the policy tolerates, no replica
is ordered for the queue. Otherwise replicas are ordered for the queue that will be left then, not for the present one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import Capacity, TickInput
from autoscaler.core.observe.arrivals import Arrivals, queue_per_s
from autoscaler.core.observe.load import at_gateway, is_queued
from autoscaler.core.readings.rates import MIN_PER_S
from autoscaler.core.table.columns import BoolColumn, FloatColumn, or_zero, replace


class Projection(NamedTuple):
    """The queue one cold start from now; every field float64[W], NaN: unknown."""

    queue: FloatColumn  # requests waiting then, by the mean arrivals
    wait_s: FloatColumn  # how long the last of them will wait, by the arrivals since the queue began if they are more
    mean_per_s: FloatColumn  # requests that arrive, over about one cold start
    arrivals_per_s: FloatColumn  # those since the queue began, or the mean if that is more
    served_each_per_s: FloatColumn  # requests, by one replica


@dataclass(frozen=True)
class KnownSpeed:
    """The known speed of one replica, and the demand on all of them; float64[W], NaN: not known."""

    decode_tokens_per_s: FloatColumn  # learned from full replicas, from however few readings
    work_s: FloatColumn  # of a request, in busy replica-seconds, by the planner
    demand: FloatColumn  # replicas that the requests since the planner's last turn keep busy


def project(observation: Observation, capacity: Capacity, arrivals: Arrivals, speed: KnownSpeed) -> Projection:
    """Project the queue to the moment at which a replica ordered now would serve.

    queue(t + C) = queue + (arrivals - service) x C - service of a replica x the time those loading will have had.
    With 30 waiting, 2 arriving and 3 served each second, a cold start of 60 s: 30 - 60 < 0, gone in time. The model is
    fluid. Arrivals are the mean over about one cold start, or the present ones where the planner counts more of them.
    Whether the queue is gone in time is judged by those since it began, if they are more.

    A replica serves one request in the time of its work, as the planner measured it. Where that is not known, replicas
    are expected to generate as fast as the policy states, or as they did when they were full. One that has just become
    ready serves as well, although it has no reading yet.
    """
    awake = observation.reporting - or_zero(observation.stuck)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        tokens_per_s = observation.generation_tokens_per_s / awake
        measured_per_s = np.where(
            np.isnan(observation.pod_tokens_per_s), tokens_per_s, np.fmax(observation.pod_tokens_per_s, tokens_per_s)
        )
        tokens_each_per_s = np.fmax(measured_per_s, np.fmax(speed.decode_tokens_per_s, capacity.decode_tokens_per_s))
        by_tokens_per_s = tokens_each_per_s / observation.output_tokens
        served_each_per_s = np.where(np.isnan(speed.work_s), by_tokens_per_s, 1 / speed.work_s)
        served_per_s = served_each_per_s * (awake + observation.newly_ready)
        mean_per_s = np.fmax(np.maximum(arrivals.per_s, 0.0), speed.demand / speed.work_s)
        arrivals_per_s = np.fmax(mean_per_s, queue_per_s(arrivals))
        waiting = observation.waiting + at_gateway(observation)
        waiting = waiting - served_per_s * observation.cold_start_s - served_each_per_s * observation.starting_replica_s
        known = served_each_per_s > MIN_PER_S
        queue, longest = (
            np.where(known, np.maximum(waiting + per_s * observation.cold_start_s, 0.0), np.nan)
            for per_s in (mean_per_s, arrivals_per_s)
        )
        wait_s = longest / (served_per_s + served_each_per_s * observation.starting)
        # Pods do not share their queues: what is left then in the worst of them waits for it alone.
        wait_s = np.where(known, np.fmax(wait_s, observation.queue_wait_s - observation.cold_start_s), np.nan)
    return Projection(queue, wait_s, mean_per_s, arrivals_per_s, served_each_per_s)


def is_noise(inp: TickInput, observation: Observation, projection: Projection) -> BoolColumn:
    """Say which queues need no replica, because those that there are serve them in time. bool[W]."""
    return is_queued(observation) & (projection.wait_s <= inp.spec.max_wait_s)


def replicas_to_drain(inp: TickInput, observation: Observation, projection: Projection) -> FloatColumn:
    """Return the replicas that serve the arrivals and drain the queue left then; float64[W], NaN: unknown.

    It drains within half a cold start, but no faster than requests arrive, and within a whole cold start in any case.
    Only arrivals have the margin of `target_usage`. 4 arriving each second, 90 left after 60 s, 1.6 served each second
    by a replica used to 0.8: 4 / 1.28 + 3 / 1.6 = 5. A policy that tolerates longer waits drains it within these.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slow_per_s, fast_per_s = (
            projection.queue / np.fmax(share * observation.cold_start_s, inp.spec.max_wait_s) for share in (1.0, 0.5)
        )
        drained_per_s = np.maximum(slow_per_s, np.minimum(fast_per_s, projection.mean_per_s))
        # What arrives for longer than some readings is a level. Before, it is served, but no queue of it is drained.
        to_drain = projection.mean_per_s + inp.spec.target_usage * drained_per_s
        per_s = np.maximum(to_drain, projection.arrivals_per_s)
        return per_s / (projection.served_each_per_s * inp.spec.target_usage)


def wake(
    inp: TickInput,
    observation: Observation,
    capacity: Capacity,
    arrivals: Arrivals,
    speed: KnownSpeed,
    desired: FloatColumn,
    lasting: FloatColumn,
) -> FloatColumn:
    """Return the replicas to have with those that wake for the queue, float64[W]; NaN: none can be woken.

    They serve after a wake-up, not after a cold start, so the queue is projected to that moment. No more are woken
    than there are. desired, lasting: float64[W], as in `absorb`.
    """
    can_wake = observation.wakeable > 0
    if not can_wake.any():
        return np.full(len(can_wake), np.nan)
    sooner_s = np.fmax(observation.cold_start_s - observation.wake_s, 0.0)
    soon = replace(
        observation,
        cold_start_s=np.fmin(observation.wake_s, observation.cold_start_s),
        starting_replica_s=np.fmax(observation.starting_replica_s - sooner_s * observation.starting, 0.0),
    )
    projection = project(soon, capacity, arrivals, speed)
    to_drain = replicas_to_drain(inp, soon, projection)
    woken = absorb(desired, lasting, to_drain, soon, is_noise(inp, soon, projection))
    return np.where(can_wake, np.fmin(woken, observation.replicas), np.nan)


def absorb(
    desired: FloatColumn, lasting: FloatColumn, to_drain: FloatColumn, observation: Observation, noise: BoolColumn
) -> FloatColumn:
    """Order no more for a queue than its remainder needs; nothing for a queue that is noise.

    desired, lasting, to_drain: float64[W], replicas; `lasting` is for the load without its queue.
    noise: bool[W], where the queue is noise.
    """
    enough = np.fmax(observation.current, lasting)
    enough = np.where(noise, enough, np.where(np.isnan(to_drain), np.inf, np.fmax(enough, to_drain)))
    return np.where(is_queued(observation), np.fmin(desired, enough), desired)
