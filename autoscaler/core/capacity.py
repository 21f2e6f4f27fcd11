"""What one replica can do: stated by the policy, else learned from replicas that were busy.

Learning is plain here: the requests a saturated replica really runs, and the tokens it then writes. A replica counts
as saturated while requests wait in it; then its running requests are its slots, or what its KV cache has room for,
whichever binds (findings 5 and 12 of the recordings), and its token rate is its best.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.core.columns import BoolColumn, FloatColumn
from autoscaler.core.decision import Capacity, Observation, TickInput
from autoscaler.core.memory import Memory

PRIOR_CONCURRENCY = 32.0
"""Requests per replica assumed until something was learned: an 8B model on one modern GPU holds a 50 ms gap there."""

LEARNING_WINDOW_S = 60.0
"""Time constant with which saturated readings move the estimate."""

CONFIDENT_AFTER_S = 300.0
"""Seconds of load after which the estimate is trusted to two thirds."""


def learn(inp: TickInput, observation: Observation, memory: Memory) -> tuple[Capacity, Memory]:
    """Give the capacity of one replica of each workload, and what was learned on the way."""
    spec, workloads = inp.spec, memory.workloads
    elapsed_s = np.fmax(np.nan_to_num(inp.now_s - workloads.observed_s), 0.0)
    awake = observation.reporting - observation.asleep
    with np.errstate(divide="ignore", invalid="ignore"):
        running = np.where(awake > 0, observation.running / awake, np.nan)
        decoding = np.where(awake > 0, observation.generation_tokens_per_s / awake, np.nan)
        slow_by = np.fmax(observation.itl_s / spec.itl_objective_s, 1.0)

    saturated = observation.waiting >= awake  # at least one waits in each replica, on average
    slow = slow_by > 1.0
    roomy = ~saturated & ~slow & (running > _known(workloads.concurrency))

    gain = 1 - np.exp(-elapsed_s / LEARNING_WINDOW_S)
    concurrency = workloads.concurrency
    concurrency = _toward(concurrency, running, gain, saturated & (running > 0))
    # Too slow at this batch: the batch at which the objective holds is smaller by about as much.
    concurrency = _toward(concurrency, running / np.where(slow, slow_by, 1.0), gain, slow & (running >= 1))
    concurrency = np.where(roomy, running, concurrency)
    decode_tokens_per_s = _toward(workloads.decode_tokens_per_s, decoding, gain, saturated & (decoding > 0))
    learned_s = workloads.learned_s + np.where(saturated | slow, elapsed_s, 0.0)

    slots = _slots(inp, len(spec.concurrency))
    learned = np.where(np.isnan(workloads.concurrency) & ~saturated & ~slow, PRIOR_CONCURRENCY, concurrency)
    learned = np.fmin(np.fmax(learned, 1.0), slots)
    # Room seen below the prior says nothing yet: keep the prior until a replica was seen at its limit.
    learned = np.where(learned_s > 0, learned, np.fmin(np.fmax(PRIOR_CONCURRENCY, learned), slots))
    stated = ~np.isnan(spec.concurrency)
    capacity = Capacity(
        concurrency=np.where(stated, spec.concurrency, learned),
        prefill_tokens_per_s=spec.prefill_tokens_per_s,
        decode_tokens_per_s=np.where(
            np.isnan(spec.decode_tokens_per_s),
            np.where(learned_s >= CONFIDENT_AFTER_S, decode_tokens_per_s, np.nan),
            spec.decode_tokens_per_s,
        ),
        confidence=np.where(stated, 1.0, 1 - np.exp(-learned_s / CONFIDENT_AFTER_S)),
    )
    return capacity, replace(
        memory,
        workloads=replace(
            workloads, concurrency=concurrency, decode_tokens_per_s=decode_tokens_per_s, learned_s=learned_s
        ),
    )


def _known(values: FloatColumn) -> FloatColumn:
    return np.nan_to_num(values, nan=0.0)


def _toward(value: FloatColumn, sample: FloatColumn, gain: FloatColumn, where: BoolColumn) -> FloatColumn:
    moved = np.where(np.isnan(value), sample, value + gain * (sample - value))
    return np.where(where & ~np.isnan(sample), moved, value)


def _slots(inp: TickInput, rows: int) -> FloatColumn:
    """Largest known slot count of the workload's engines (max_num_seqs), float64[W]; infinite where unknown."""
    slots = inp.samples.pods.max_running
    known = ~np.isnan(slots)
    if not known.any():
        return np.full(rows, np.inf)
    most = np.zeros(rows)
    np.maximum.at(most, inp.fleet.pod_workload[known], slots[known])
    return np.where(most > 0, most, np.inf)
