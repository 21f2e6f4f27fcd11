"""Queues, latencies and full pods of each workload, averaged over the pods that make progress."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.readings import progress
from autoscaler.core.readings.pod_deltas import PodDeltas, PodReadings
from autoscaler.core.readings.progress import Progress
from autoscaler.core.readings.rates import MIN_PER_S
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.core.table.groupby import GroupBy

LASTING_WAIT_S = 1.0
"""A queue that ends sooner waits for prefill, not for a slot."""

STEP_QUEUE = 8.0
"""Requests that may wait for one step at the moment of a reading, as a step takes in several prompts. So few are a
queue only if some waited at the reading before, too, or if the engine is full."""

FULL_KV_CACHE = 0.9
"""KV-cache usage from which an engine takes in no request: the next prompt needs blocks of its own."""


class Latency(NamedTuple):
    """Columns of `Observation`; float64[W]."""

    saturated: FloatColumn
    queue_wait_s: FloatColumn
    kv_usage: FloatColumn
    ttft_s: FloatColumn
    itl_s: FloatColumn
    batch_size: FloatColumn
    pod_tokens_per_s: FloatColumn
    saturated_running: FloatColumn
    saturated_tokens_per_s: FloatColumn


def average(
    samples: PodSamples,
    readings: PodReadings,
    pace: Progress,
    queued_readings: FloatColumn,
    generated_per_s: FloatColumn,
    first_tokens_per_s: FloatColumn,
    output_tokens: FloatColumn,
    waiting: FloatColumn,
    counts: BoolColumn,
    by_workload: GroupBy,
) -> Latency:
    """Return the averages over the pods in `counts`, bool[P].

    queued_readings: float64[P], readings in a row with a queue. generated_per_s, first_tokens_per_s: float64[P].
    output_tokens: float64[W], tokens of an answer. waiting: float64[W], requests.
    """
    tokens_per_s = np.where(counts, progress.tokens_per_s(pace, readings), np.nan)
    waits_for_step = (samples.waiting <= STEP_QUEUE) & (queued_readings < 2)
    wait_s = _find_wait_s(samples.waiting, waits_for_step, output_tokens[by_workload.pod_workload], tokens_per_s)
    is_saturated = _is_saturated(samples, pace, counts & ~waits_for_step, wait_s)
    alike, by_tokens = np.ones(len(counts)), _by_rate(generated_per_s)
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
        [alike, _by_rate(first_tokens_per_s), by_tokens, by_tokens, alike, alike, alike],
        counts,
    )
    (saturated,) = by_workload.count([is_saturated])
    queue_wait_s = np.where(waiting > 0, by_workload.max(wait_s), waiting)  # no queue: 0; NaN stays
    return Latency(saturated, queue_wait_s, *averages)


def count_queued_readings(samples: PodSamples, deltas: PodDeltas, before: FloatColumn) -> FloatColumn:
    """Return the readings in a row that show waiting requests; float64[P]. One of a full engine counts as two.

    The next step takes in no request if the slots or the KV cache are full. Where slots are not known, an engine shows
    that they are full if it took in requests since its reading before, and still more wait than run.
    """
    took_in = deltas.now.running > deltas.before.running
    has_no_room = (samples.running >= samples.max_running) | (samples.kv_usage >= FULL_KV_CACHE)
    is_full = has_no_room | (took_in & (samples.waiting > samples.running))
    counted = before + deltas.is_new * np.where(is_full, 2.0, 1.0)
    return np.where(deltas.now.waiting >= 1, counted, 0.0)


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
