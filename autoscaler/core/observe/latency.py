"""Queues, latencies and full pods of each workload, averaged over the pods that make progress."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.observation import Latency
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.pods import GroupedPods
from autoscaler.core.readings import progress
from autoscaler.core.readings.progress import Progress
from autoscaler.core.readings.rates import MIN_PER_S
from autoscaler.core.table.columns import BoolColumn, FloatColumn

LASTING_WAIT_S = 1.0
"""A queue that ends sooner waits for prefill, not for a slot."""

STEP_QUEUE = 8.0
"""Requests that may wait for one step at the moment of a reading, as a step takes in several prompts. So few are a
queue only if some waited at the reading before, too, or if the engine is full."""


def average(
    pods: GroupedPods, queued_readings: FloatColumn, output_tokens: FloatColumn, waiting: FloatColumn
) -> Latency:
    """Return the averages over the pods that make progress.

    queued_readings: float64[P], readings in a row with a queue. output_tokens: float64[W], tokens of an answer.
    waiting: float64[W], requests.
    """
    samples, by_workload, counts = pods.samples, pods.by_workload, pods.classes.counts
    tokens_per_s = np.where(counts, progress.tokens_per_s(pods.progress, pods.deltas.now), np.nan)
    waits_for_step = (samples.waiting <= STEP_QUEUE) & (queued_readings < 2)
    wait_s = _find_wait_s(samples.waiting, waits_for_step, output_tokens[by_workload.pod_workload], tokens_per_s)
    is_saturated = _is_saturated(samples, pods.progress, counts & ~waits_for_step, wait_s)
    alike, by_tokens = np.ones(len(counts)), _by_rate(pods.rates["generation_tokens"])
    # All pods of a workload have the same quantile, unless a source does not know that they belong together.
    averages = by_workload.mean(
        [
            samples.kv_usage,
            samples.ttft_s,
            samples.itl_s,
            samples.running,
            tokens_per_s,
            np.where(is_saturated, samples.running, np.nan),
            np.where(is_saturated, tokens_per_s, np.nan),
        ],
        [alike, _by_rate(pods.rates["first_tokens"]), by_tokens, by_tokens, alike, alike, alike],
        counts,
    )
    (saturated,) = by_workload.count([is_saturated])
    queue_wait_s = np.where(waiting > 0, by_workload.max(wait_s), waiting)  # no queue: 0; NaN stays
    return Latency(saturated, queue_wait_s, *averages)


def _find_wait_s(
    waiting: FloatColumn, waits_for_step: BoolColumn, output_tokens: FloatColumn, tokens_per_s: FloatColumn
) -> FloatColumn:
    """Return the wait of the last request in the queue of each pod; float64[P], NaN: unknown, or there is no queue.

    A full pod takes in a request when another ends. waits_for_step: bool[P], requests wait for the next step only.
    """
    writes = (waiting > 0) & (tokens_per_s > MIN_PER_S)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wait_s = np.where(writes, waiting * output_tokens / tokens_per_s, np.nan)
    return np.where(writes & waits_for_step, 0.0, wait_s)


def _is_saturated(samples: PodSamples, pace: Progress, can_be: BoolColumn, wait_s: FloatColumn) -> BoolColumn:
    """Return the pods that have more requests than they can run, and made progress at the last reading; bool[P].

    can_be: bool[P], pods that are awake, and whose requests do not wait for a step only. wait_s: float64[P], wait of
    the last request in the queue; NaN: unknown.
    """
    moves = ((pace.unchanged_readings == 0) & (pace.worked_s > 0)) | np.isnan(samples.gaps)
    return np.asarray(can_be & moves & (samples.waiting >= 1) & ~(wait_s < LASTING_WAIT_S))


def _by_rate(per_s: FloatColumn) -> FloatColumn:
    """Return the weight of each pod's latency: its rate, float64[P].

    Before the second reading no pod has a rate, and all pods have the same weight.
    """
    return np.where(np.isnan(per_s), 1e-9, np.fmax(per_s, 1e-9))
