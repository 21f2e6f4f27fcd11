"""Requests that arrive at each workload from tick to tick, and the times of its last queue and refusal.

vLLM counts no arrivals. Requests that arrived are those that ended or were refused, plus the change of those in flight.
`pod_deltas` counts the arrivals at a single pod, between two of its readings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.observation import Observation
from autoscaler.core.observe import load
from autoscaler.core.readings.pod_deltas import MAX_INTERVAL_S
from autoscaler.core.table import ewma
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, Transient, clip, or_zero

SHORTEST_AVERAGE_S = 15.0
"""Averages over a cold start are at least this long: two scrapes."""

RECENT_S = 600.0
"""Time constant of the recent requests."""

MOST_REQUESTS = 1e6
"""No workload has more requests in flight, and no more arrive between two ticks; a larger count is broken."""


@dataclass(frozen=True)
class Arrivals(Columns):
    """Arrivals of each workload; float64[W]. `arrived`, `counted_s` and `rested_s` are about the last tick alone."""

    in_flight: Transient[FloatColumn]  # requests, those of silent pods estimated, at the last tick; NaN: unknown
    per_s: Transient[FloatColumn]  # requests, averaged over about one cold start; noise may take it below zero
    averaged_s: Transient[FloatColumn]  # seconds that this average covers, since a request was in flight

    counted_in_flight: Transient[FloatColumn]  # requests, when all that hold some reported; NaN: they never did
    arrived: Transient[FloatColumn]  # requests that arrived since then; 0 while it is unknown
    counted_s: Transient[FloatColumn]  # seconds in which they arrived; 0 while it is unknown
    quiet_s: Transient[FloatColumn]  # seconds without requests
    rested_s: Transient[FloatColumn]  # seconds without requests, up to the tick before
    recent: Transient[FloatColumn]  # requests, fading within minutes
    recent_s: Transient[FloatColumn]  # seconds in which they arrived, fading alike
    queue_arrived: Transient[FloatColumn]  # requests since the last reading without a queue that lasts; 0: no queue
    queue_s: Transient[FloatColumn]  # seconds since that reading

    last_queued_s: Transient[TimestampColumn]  # last moment with a queue that lasts; the first tick counts as one
    last_refused_s: Transient[TimestampColumn]  # last moment at which a pod had refused requests; NaN: never
    last_worked_s: Transient[TimestampColumn]  # last moment at which a pod had done something; NaN: never

    @classmethod
    def blank(cls, rows: int) -> Arrivals:
        zero = ("arrived", "counted_s", "quiet_s", "rested_s", "recent", "recent_s", "queue_arrived", "queue_s")
        return super().blank(rows).with_columns(dict.fromkeys(zero, np.zeros(rows)))


def update(
    before: Arrivals,
    observation: Observation,
    elapsed_s: FloatColumn,
    now_s: float,
    refusing: BoolColumn,
    working: BoolColumn,
) -> Arrivals:
    """Count what arrived since the last tick.

    elapsed_s: float64[W], since that tick; NaN: there was none. refusing, working: bool[W], a pod has refused requests,
    or has done something, since it was read before.
    """
    average = _update_average(before, observation, elapsed_s)
    counts = _update_counts(before, observation, elapsed_s)
    is_queued = load.has_lasting_queue(observation)
    queued = is_queued | np.isnan(before.last_queued_s)
    # Where pods are read less often than the daemon ticks, what a reading brings has arrived since the one before.
    is_over = ~is_queued & (counts["arrived"] > 0)
    return Arrivals(
        **average,
        **counts,
        rested_s=before.quiet_s,
        queue_arrived=np.where(is_queued, before.queue_arrived + counts["arrived"], 0.0),
        queue_s=np.where(is_over, 0.0, before.queue_s + counts["counted_s"]),
        last_queued_s=np.where(queued, now_s, before.last_queued_s),
        last_refused_s=np.where(refusing, now_s, before.last_refused_s),
        last_worked_s=np.where(working, now_s, before.last_worked_s),
    )


def recent_per_s(arrivals: Arrivals, cold_start_s: FloatColumn) -> FloatColumn:
    """Return the rate at which requests arrived in the last minutes; float64[W].

    One more request within one more cold start is assumed, because little is known of a workload that was hardly
    watched. 4 in 2 min, with a cold start of 1 min: 5 in 3 min.
    """
    return (arrivals.recent + 1) / (arrivals.recent_s + cold_start_s)


def queue_per_s(arrivals: Arrivals) -> FloatColumn:
    """Return the rate at which requests surely arrived since the queue began; float64[W], NaN: not known.

    Arrivals are random, and a queue begins where many come at once, so their standard error is deducted. 100 in 10 s
    are 9 each second, 4 in 10 s are 0.2.
    """
    arrived = np.where(arrivals.queue_s > 0, arrivals.queue_arrived, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(arrived > 0, (arrived - np.sqrt(arrived)) / arrivals.queue_s, np.nan)


def averaging_s(observation: Observation) -> FloatColumn:
    """Return the time constant of averages over about one cold start; float64[W]."""
    return np.fmax(observation.cold_start_s / 2, SHORTEST_AVERAGE_S)


def _update_average(before: Arrivals, observation: Observation, elapsed_s: FloatColumn) -> dict[str, FloatColumn]:
    """Average arrivals over about one cold start.

    A single sample may be below zero: what ends now has been in flight before. After as long without any arrival the
    average starts over, because the quiet time before says nothing about what arrives now.
    """
    in_flight = load.requests(observation) + _stuck_requests(observation) + or_zero(observation.gateway_waiting)
    arrived = observation.ended + or_zero(observation.draining_ended) + in_flight - before.in_flight
    gone_per_s = observation.finished_per_s + or_zero(observation.rejections_per_s)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        arrived_per_s = np.where(elapsed_s > 0, arrived / elapsed_s, np.nan)
    # A first sample is as noisy as it is short, so the average begins with those that ended.
    arrivals_per_s = np.where(np.isnan(before.per_s), gone_per_s, arrived_per_s)
    window_s, averaged_s = averaging_s(observation), or_zero(before.averaged_s)
    quiet = before.quiet_s >= np.fmin(2 * window_s, averaged_s)  # for a cold start, or since it is watched
    averaged_s = np.where(quiet, 0.0, averaged_s)
    averaged_s = np.where(before.in_flight >= 0, averaged_s + or_zero(elapsed_s), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = ewma.smoothing_factor(elapsed_s, window_s) / ewma.smoothing_factor(averaged_s, window_s)
    return {
        "in_flight": in_flight,
        "per_s": ewma.update(before.per_s, arrivals_per_s, gain),
        "averaged_s": averaged_s,
    }


def _update_counts(before: Arrivals, observation: Observation, elapsed_s: FloatColumn) -> dict[str, FloatColumn]:
    """Count single arrivals, and the time without any. While it is unknown what is in flight nothing changes."""
    none_serves = (observation.ready == 0) & ~(observation.asleep > 0)
    served = np.where(none_serves, 0.0, observation.running + observation.waiting)
    moving = served + or_zero(observation.gateway_waiting)
    in_flight = moving + _stuck_requests(observation)
    known = (in_flight >= 0) & (in_flight <= MOST_REQUESTS) & _all_report(observation)
    counted_s = np.where(known, clip(or_zero(elapsed_s), 0.0, MAX_INTERVAL_S), 0.0)
    ended = np.where(known, or_zero(observation.ended), 0)
    arrived = np.fmax(or_zero(in_flight - before.counted_in_flight) + ended, 0)
    arrived = np.where((counted_s > 0) & (arrived <= MOST_REQUESTS), arrived, 0.0)
    quiet = known & (moving == 0) & (arrived == 0) & ~(observation.draining_requests > 0)
    fade = np.exp(-counted_s / RECENT_S)
    return {
        "counted_in_flight": np.where(known, in_flight, before.counted_in_flight),
        "arrived": arrived,
        "counted_s": counted_s,
        "quiet_s": np.where(quiet, before.quiet_s + counted_s, np.where(known, 0.0, before.quiet_s)),
        "recent": before.recent * fade + arrived,
        "recent_s": before.recent_s * fade + counted_s,
    }


def _stuck_requests(observation: Observation) -> FloatColumn:
    """Return the requests that are no load: of stuck pods, and in queues of outliers. float64[W]."""
    return or_zero(observation.stuck_requests) + or_zero(observation.queue_outlier_requests)


def _all_report(observation: Observation) -> BoolColumn:
    """Return where all pods that hold requests report. bool[W].

    A pod that reports again would bring what it held before as new arrivals, and so would a gateway, where there has
    been one.
    """
    silent = observation.reporting < observation.ready - observation.newly_ready
    return np.asarray(~silent & ~(observation.gateway_silent_s > 0))
