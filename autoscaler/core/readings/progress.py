"""Progress of the requests on each pod, and the token rate of the pod since its work began.

Gauges do not change while an engine hangs, and in some engines not even after clients have left. A pod that holds
requests while no counter moves is stuck, or its gauges are stale. Its load then says nothing about needed replicas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.readings.pod_deltas import PodDeltas, PodReadings
from autoscaler.core.readings.rates import RATE_WINDOW_S
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, or_zero, replace

PROGRESS_COUNTERS = ("gaps", "generation_tokens", "steps", "first_tokens", "finished", "prompt_tokens", "rejections")
"""Counters of `PodSamples`; an increase of any of them is progress."""

STUCK_S, STUCK_READINGS = 30.0, 2
"""After this long without progress, over these many readings, a pod is stuck. The prefill of a request that runs
alone may take longer: some 10 s for 30,000 tokens, and minutes for a million tokens."""

UNTRUSTED_S = 180.0
"""A workload does not shrink before a pod has been stuck for this long: the prefill of a million tokens takes 125 s at
8,000 tokens/s."""

LONGEST_ANSWER_S = 1800.0
"""For engines without counters between the first token and the end of a request: the time of the longest answer, which
is 32,000 tokens at 50 ms per token."""

REPLACEMENT_S = 1800.0
"""A replacement without use for this long is given up. The time covers two cold starts of the slowest models."""

GROWING_S = 120.0
"""A stuck pod whose requests increased within this long still receives requests."""


@dataclass(frozen=True)
class Progress(Columns):
    """The last progress of each pod, and its token rate; float64[P]."""

    counter_sum: FloatColumn  # sum of the counters at the last reading; NaN: none
    unchanged_readings: FloatColumn  # readings in a row without progress
    last_moved_s: TimestampColumn  # the last reading with progress, or without requests; NaN: none
    last_grown_s: TimestampColumn  # the last reading without progress at which requests increased; NaN: none
    generated: FloatColumn  # tokens since work began, weighted less the older they are
    worked_s: FloatColumn  # seconds in which these were generated, weighted likewise
    began: FloatColumn  # 1 if work began between the two readings before and after these seconds

    @classmethod
    def blank(cls, rows: int) -> Progress:
        none = np.zeros(rows)
        return replace(super().blank(rows), unchanged_readings=none, generated=none, worked_s=none, began=none)


def update(before: Progress, samples: PodSamples, deltas: PodDeltas) -> Progress:
    """Compare each pod with its last reading. deltas: of `pod_deltas.read`.

    A counter that falls is progress too: the engine has restarted. A sleeping engine holds requests without a fault.
    """
    is_new = deltas.is_new
    if not is_new.any():  # as in most ticks
        return before
    counter_sum, requests = np.zeros(len(is_new)), deltas.now.requests
    for name in PROGRESS_COUNTERS:
        counter_sum += or_zero(getattr(samples, name))
    unchanged = (requests > 0) & (counter_sum == before.counter_sum) & ~(samples.asleep > 0)
    grew = unchanged & (before.unchanged_readings > 0) & (requests > deltas.before.requests)
    generated, worked_s, began = _update_generated(before, deltas)
    after = {
        "counter_sum": counter_sum,
        "unchanged_readings": np.where(unchanged, before.unchanged_readings + 1, 0.0),
        "last_moved_s": np.where(unchanged, before.last_moved_s, samples.time_s),
        "last_grown_s": np.where(grew, samples.time_s, np.where(unchanged, before.last_grown_s, np.nan)),
        "generated": generated,
        "worked_s": worked_s,
        "began": began,
    }
    return Progress(**{name: np.where(is_new, column, getattr(before, name)) for name, column in after.items()})


def is_stuck(progress: Progress, readings: PodReadings, samples: PodSamples) -> BoolColumn:
    """Return the pods whose requests make no progress; bool[P].

    If an engine counts neither gaps nor steps, its answer may just be long. An engine without any counter is never
    stuck.
    """
    counts_late = np.isnan(samples.gaps) & np.isnan(samples.steps)
    counts_nothing = np.all([np.isnan(getattr(samples, name)) for name in PROGRESS_COUNTERS], axis=0)
    stuck_after_s = np.where(counts_late, LONGEST_ANSWER_S, STUCK_S)
    long = readings.time_s - progress.last_moved_s >= stuck_after_s
    return np.asarray(long & (progress.unchanged_readings >= STUCK_READINGS) & ~counts_nothing)


def tokens_per_s(progress: Progress, readings: PodReadings) -> FloatColumn:
    """Return the rate of generated tokens since each pod has had work; float64[P], NaN: no work or no progress now.

    350 tokens/s in the 5 s since work began are 350, however long the pod was idle before.
    """
    working = (progress.worked_s > 0) & (readings.requests > 0) & (progress.unchanged_readings == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(working, progress.generated / progress.worked_s, np.nan)


def _update_generated(before: Progress, deltas: PodDeltas) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Add the tokens generated since the last reading, and their time; float64[P] each.

    Work that began between two readings may have begun at any time between them, so these tokens give a lower bound of
    the rate only. They are dropped as soon as the next reading gives a better value.
    """
    step_s, grown, requests = deltas.interval_s, deltas.growth("generation_tokens"), deltas.now.requests
    known = (step_s > 0) & (grown >= 0)
    begins = ~(deltas.before.requests > 0)
    fade = np.where(known & ~begins & (before.began == 0), np.exp(-np.fmin(or_zero(step_s), 1e3) / RATE_WINDOW_S), 0.0)
    weight_s = np.where(known, RATE_WINDOW_S * -np.expm1(-step_s / RATE_WINDOW_S), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        generated = before.generated * fade + np.where(known, grown * weight_s / step_s, 0.0)
    worked_s = before.worked_s * fade + weight_s
    at_work = known & ((requests > 0) | (grown > 0))
    return np.where(at_work, generated, 0.0), np.where(at_work, worked_s, 0.0), (begins & at_work).astype(np.float64)
