"""The room of batches: the work of a surge that a replica takes in before a request waits."""

from __future__ import annotations

import numpy as np

from autoscaler.core.measure import step_time
from autoscaler.core.measure.interval import IntervalStats, WorkTotals
from autoscaler.core.measure.offered_load import OfferedLoad, compute_work_s
from autoscaler.core.measure.replica_speed import ReplicaSpeed
from autoscaler.core.measure.step_time import StepTime
from autoscaler.core.table.columns import FloatColumn, or_zero


def measure_batch_room_s(stats: IntervalStats, speed: ReplicaSpeed, fitted: StepTime, load: OfferedLoad) -> FloatColumn:
    """Return the batch room of a replica of each workload as it is measured now; float64[W], 0 where not known."""
    prompt_share = step_time.compute_prompt_share(speed.step_sums)
    max_running = step_time.compute_running_at(stats.itl_objective_s, fitted)
    work_s = compute_work_s(load)
    return compute_batch_room_s(stats.totals, work_s, prompt_share, speed.slots, max_running)


def compute_batch_room_s(
    totals: WorkTotals, work_s: FloatColumn, prompt_share: FloatColumn, slots: FloatColumn, max_running: FloatColumn
) -> FloatColumn:
    """Return the work of a surge that the batch of one replica takes in before a request waits; float64[W].

    In replica-seconds; 0 where it is not known. A growing batch runs more slowly: it takes in more than it works off,
    until the KV cache or the slots are full or the token gaps reach the ITL objective. A request in the batch has its
    prompt computed and half of its answer generated, on average. 300 requests of 0.12 s, a third of it for the prompt,
    are 12 s.

    work_s: float64[W], work of a request. prompt_share: float64[W], share of it for the prompt. slots: float64[W],
    requests that it can run at once; NaN: not known. max_running: float64[W], requests at which the gaps reach the ITL
    objective; NaN: none.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        fit_in_cache = np.where(totals.kv_usage > 0, totals.running / totals.kv_usage, np.nan)
        most = np.fmin(slots, fit_in_cache)
        most = np.where(np.isnan(max_running), most, np.minimum(most, max_running))
        return or_zero(np.maximum(most * work_s * (1 - prompt_share) / 2, 0.0))
