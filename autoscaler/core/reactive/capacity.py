"""The capacity of one replica: stated by the policy, else learned from replicas that were busy.

A replica holds at least as many requests as it runs at the pace of the objective. It holds no more than it runs while
others wait for it: then its slots or its KV cache are full, and its token rate is its best. Only pods that were full
themselves teach the latter, because the mean of a full pod and an idle one is the capacity of neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import Capacity, TickInput
from autoscaler.core.observe.load import slots
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.readings.rates import MIN_PER_S
from autoscaler.core.table import ewma
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, Transient, or_zero, replace

PRIOR_CONCURRENCY = 32.0
"""Requests per replica before any was learned: an 8B model on one modern GPU holds a gap of 50 ms there."""

LEARNING_WINDOW_S = 60.0
"""Time constant with which readings of busy replicas move the estimate."""

FIRST_WINDOW_S = 10.0
"""The same, until this many seconds were learned from: short, but long enough that no single reading decides."""

BATCH_WINDOW_S = 75.0
"""Time constant of the usual batch, to which ITL quantiles belong: half of a usual histogram window."""

CONFIDENT_AFTER_S = 300.0
"""Seconds of load after which the estimate is trusted to two thirds."""


@dataclass(frozen=True)
class LearnedCapacity(Columns):
    """The learned capacity of a replica of each workload; float64[W]."""

    batch: Transient[FloatColumn]  # running requests of an awake replica, averaged over as long as ITL reaches back
    concurrency: FloatColumn  # requests at once; begins at the prior
    decode_tokens_per_s: FloatColumn  # NaN: never seen saturated
    learned_s: FloatColumn  # seconds of load that this was learned from

    @classmethod
    def blank(cls, rows: int) -> LearnedCapacity:
        return replace(super().blank(rows), learned_s=np.zeros(rows))


def learn(inp: TickInput, observed: Observed, before: LearnedCapacity) -> tuple[Capacity, LearnedCapacity]:
    """Return the capacity of one replica of each workload, and the updated table."""
    spec, observation = inp.spec, observed.observation
    elapsed_s = np.fmax(or_zero(observed.elapsed_s(inp.now_s)), 0.0)
    running = observation.batch_size
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slow_by = np.fmax(observation.itl_s / spec.itl_objective_s, 1.0)
    saturated = observation.saturated > 0
    # The quantile still reflects a large batch when few requests run. Those few are not too many.
    batch = ewma.update(before.batch, running, ewma.smoothing_factor(elapsed_s, BATCH_WINDOW_S))
    slow = (slow_by > 1.0) & (running >= 1) & (running >= 0.9 * batch)

    learning = before.learned_s < LEARNING_WINDOW_S
    gain = ewma.smoothing_factor(elapsed_s, np.where(learning, FIRST_WINDOW_S, LEARNING_WINDOW_S))
    most_running = slots(inp.fleet, observed.pods.samples)
    concurrency = np.where(np.isnan(before.concurrency), PRIOR_CONCURRENCY, before.concurrency)
    concurrency = np.where(~(slow_by > 1.0) & (running > concurrency), running, concurrency)
    concurrency = _toward(concurrency, observation.saturated_running, gain, saturated & ~slow)
    # Too slow at this batch: the batch at which the objective holds is smaller by about as much.
    concurrency = _toward(concurrency, np.fmin(running / slow_by, concurrency), gain, slow)
    concurrency = np.fmin(np.fmax(concurrency, 1.0), most_running)

    decode = before.decode_tokens_per_s
    decoding = observation.saturated_tokens_per_s
    # The rate of a hung engine fades, and is no capacity.
    writing = saturated & (observed.arrivals.last_worked_s == inp.now_s) & (decoding > MIN_PER_S)
    decode = np.where(writing & (decoding > decode), decoding, _toward(decode, decoding, gain, writing))
    learned_s = before.learned_s + np.where(saturated | slow, elapsed_s, 0.0)

    stated = ~np.isnan(spec.concurrency)
    capacity = Capacity(
        concurrency=np.where(stated, spec.concurrency, concurrency),
        prefill_tokens_per_s=spec.prefill_tokens_per_s,
        decode_tokens_per_s=np.where(
            np.isnan(spec.decode_tokens_per_s),
            np.where(learned_s >= CONFIDENT_AFTER_S, decode, np.nan),
            spec.decode_tokens_per_s,
        ),
        confidence=np.where(stated, 1.0, 1 - np.exp(-learned_s / CONFIDENT_AFTER_S)),
    )
    return capacity, LearnedCapacity(batch, concurrency, decode, learned_s)


def _toward(value: FloatColumn, sample: FloatColumn, gain: FloatColumn, where: BoolColumn) -> FloatColumn:
    return np.where(where, ewma.update(value, sample, gain), value)
