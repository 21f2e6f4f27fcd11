"""The state of each workload, as one tick sees it: small tables, each filled by one module, which one table joins.

Every column is float64[W]. NaN: unknown, or no pod reports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from autoscaler.core.table.columns import Columns, FloatColumn, or_zero


@dataclass(frozen=True)
class PodCounts(Columns):
    """Pods by class."""

    ready: FloatColumn  # ready pods that are not terminating, and whose engine is awake
    starting: FloatColumn  # pods that are not ready yet, and can become ready with time
    pending: FloatColumn  # pods that do not become ready with time: with a PendingCause, or starting for too long
    terminating: FloatColumn  # terminating pods; they still hold their GPUs
    reporting: FloatColumn  # those ready pods with a reading that is recent enough to trust
    newly_ready: FloatColumn  # pods that have just become ready and have no reading yet; they hardly have load


@dataclass(frozen=True)
class StartTimes(Columns):
    """How long replicas take to start, and what is to come of those that start."""

    next_ready_s: FloatColumn  # seconds until the first starting pod is expected to serve; NaN: none is starting
    starting_replica_s: FloatColumn  # replica-seconds that starting pods will have served one cold start from now
    cold_start_s: FloatColumn  # seconds from the request for a replica until it serves: learned, or else stated


@dataclass(frozen=True)
class SleepingPods(Columns):
    """Pods whose engine sleeps."""

    asleep: FloatColumn  # they hold their GPUs, and are neither ready nor starting
    wakeable: FloatColumn  # those of them that the daemon can wake; others stay asleep
    wake_s: FloatColumn  # seconds from the order until a sleeping replica serves: learned, or a guess


@dataclass(frozen=True)
class StuckPods(Columns):
    """Load that does not move."""

    stuck: FloatColumn  # reporting pods whose requests make no progress; load and latency leave them out
    stuck_requests: FloatColumn  # requests that these pods report
    stuck_s: FloatColumn  # seconds for which all of them have been stuck; NaN: none is stuck
    stuck_replaced: FloatColumn  # stuck pods that are replaced by further replicas
    stuck_min_replicas: FloatColumn  # least replicas for a while, so that one serves beside stuck ones; NaN: none
    gateway_stuck: FloatColumn  # 1 if requests wait at the gateway and no engine works, else 0


@dataclass(frozen=True)
class OutlierCounts(Columns):
    """Queues that are no load."""

    queue_outliers: FloatColumn  # pods whose queue does not shrink while most others have none
    queue_outlier_requests: FloatColumn  # requests in these queues; load and latency leave them out
    queue_outlier_s: FloatColumn  # seconds for which all of these queues have not shrunk; NaN: there are none


@dataclass(frozen=True)
class ObservedLoad(Columns):
    """Requests and their rates over the rate window, summed over reporting pods. Rates are in the order of `RATED`."""

    running: FloatColumn  # requests
    waiting: FloatColumn  # requests; includes hidden queues of sleeping engines if known
    prompt_tokens_per_s: FloatColumn
    generation_tokens_per_s: FloatColumn
    finished_per_s: FloatColumn
    first_tokens_per_s: FloatColumn
    preemptions_per_s: FloatColumn
    rejections_per_s: FloatColumn

    def without_motion(self, stuck: FloatColumn) -> Self:
        """Return no requests where all pods that report are stuck. stuck: float64[W], pods."""
        columns = vars(self)
        for name in ("running", "waiting"):
            columns = columns | {name: np.where((stuck > 0) & np.isnan(self.running), 0.0, columns[name])}
        return type(self)(**columns)


@dataclass(frozen=True)
class DrainingLoad(Columns):
    """Load of pods that no longer serve, summed; 0 if there are none."""

    draining_requests: FloatColumn  # running and waiting
    draining_ended: FloatColumn  # requests that ended or were refused there since the last tick
    draining_prompt_tokens_per_s: FloatColumn
    draining_generation_tokens_per_s: FloatColumn
    draining_kv_usage: FloatColumn  # of each pod 0..1


@dataclass(frozen=True)
class GatewayCounts(Columns):
    """Requests at the gateway."""

    gateway_waiting: FloatColumn  # requests held by the gateway; NaN: no gateway
    gateway_arrivals_per_s: FloatColumn
    gateway_silent_s: FloatColumn  # seconds since the last reading of its gateway; NaN: none within a day


@dataclass(frozen=True)
class Latency(Columns):
    """Queues, latencies and full pods, averaged over the pods that make progress."""

    saturated: FloatColumn  # pods with a lasting queue that made progress at their last reading
    queue_wait_s: FloatColumn  # wait of the last request in the longest queue, from its length and token rate
    kv_usage: FloatColumn  # mean over reporting pods that are awake
    ttft_s: FloatColumn  # quantile over the requests of all pods; NaN: no requests
    itl_s: FloatColumn  # quantile over the gaps between tokens of all pods
    batch_size: FloatColumn  # running requests of an awake pod, averaged by the tokens that each pod generates
    pod_tokens_per_s: FloatColumn  # generated by a pod since its work began, mean of pods with work; NaN: none
    saturated_running: FloatColumn  # running requests of a saturated pod, on average
    saturated_tokens_per_s: FloatColumn  # generated by a saturated pod, on average


@dataclass(frozen=True)
class GpuActivity(Columns):
    """What the GPUs show of themselves."""

    gpu_loaded: FloatColumn  # pods whose framebuffer is in use; NaN: no fresh GPU metrics
    gpu_active: FloatColumn  # pods whose GPU computes; NaN: no fresh GPU metrics
    loaded_idle_s: FloatColumn  # replica-seconds with a loaded but idle GPU, since the workload is known; NaN: unknown


@dataclass(frozen=True)
class Observation(
    GpuActivity,  # the columns of the last of these are the first of an observation
    Latency,
    GatewayCounts,
    DrainingLoad,
    ObservedLoad,
    OutlierCounts,
    StuckPods,
    SleepingPods,
    StartTimes,
    PodCounts,
):
    """State of each workload, derived from its samples."""

    replicas: FloatColumn  # spec.replicas now
    missing_pods: FloatColumn  # replicas without a pod, for which no pod is being created
    age_s: FloatColumn  # age of the oldest trusted engine reading; NaN: none
    ended: FloatColumn  # requests that ended or were refused since the last tick
    output_tokens: FloatColumn  # generated tokens per request
    flaps: FloatColumn  # changes of `replicas` undone within one cold start, since the workload is known
    flap_age_s: FloatColumn  # seconds since the last of them; NaN: none

    @classmethod
    def join(cls, *tables: Columns, **columns: FloatColumn) -> Observation:
        """Return the observation that has the columns of these tables, and further ones by name."""
        joined: dict[str, Any] = dict(columns)
        for table in tables:
            joined |= vars(table)
        return cls(**joined)

    @property
    def pods(self) -> FloatColumn:
        """Pods that are not leaving, whatever their state; float64[W]. A roll-out adds some for a while."""
        return self.ready + self.asleep + self.starting + self.pending

    @property
    def current(self) -> FloatColumn:
        """spec.replicas, less those asleep that the daemon can wake: the count that stages compare with. float64[W]."""
        return np.fmax(self.replicas - or_zero(self.wakeable), 0.0)
