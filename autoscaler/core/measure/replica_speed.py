"""The speed of a replica: its step time, and the number of requests that it can run at once.

The fit of the step time itself is in `step_time`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.measure import step_time
from autoscaler.core.measure.interval import WorkTotals
from autoscaler.core.measure.step_time import StepTime
from autoscaler.core.table.columns import Columns, FloatColumn

FULL_SHARE = 0.9
"""Share of the most requests ever run by a replica from which a replica with a queue is full."""

SLOTS_FADE_S = 50 * 86_400.0
"""Time constant with which the most requests ever run fade: an engine may restart with fewer slots."""

MIN_BUSY_S = 60.0
"""Busy seconds of prefill replicas from which it is known how many prompt tokens they compute per second."""

COMPUTE_BOUND_SHARE = 0.7
"""Busy share of its time from which a replica has a queue because it computes, not because it lacks slots."""


@dataclass(frozen=True)
class ReplicaSpeed(Columns):
    """Step time and slots of the replicas of each workload; float64[W] unless stated."""

    step_sums: FloatColumn  # float64[step_time.SUMS, W], sums of the fit of the step time, fading
    readings: FloatColumn  # readings of pods in them, not fading
    shortest_gap_s: FloatColumn  # between tokens, of any pod; NaN: none seen
    peak_running: FloatColumn  # requests, of the fullest pod ever, fading slowly
    slots: FloatColumn  # requests that a replica can run at once; NaN: never seen full
    prompt_tokens: FloatColumn  # prompt tokens computed, fading
    prompt_busy_s: FloatColumn  # busy replica-seconds in which they were computed, fading alike

    @classmethod
    def blank(cls, rows: int) -> ReplicaSpeed:
        none, unknown = np.zeros(rows), np.full(rows, np.nan)
        return cls(np.zeros((step_time.SUMS, rows)), none, unknown, none, unknown, none, none)

    @property
    def prompt_tokens_per_s(self) -> FloatColumn:
        """Prompt tokens that a busy replica computes per second, if it does nothing else; float64[W], NaN: unknown."""
        with np.errstate(divide="ignore", invalid="ignore"):
            per_s = self.prompt_tokens / self.prompt_busy_s
        return np.where((self.prompt_busy_s >= MIN_BUSY_S) & (per_s > 0), per_s, np.nan)


def update_replica_speed(
    speed: ReplicaSpeed, totals: WorkTotals, interval_s: FloatColumn
) -> tuple[ReplicaSpeed, StepTime]:
    """Add the readings of an interval; also return the step time that now fits best."""
    fade = np.exp(-interval_s / step_time.FADE_S)
    step_sums = speed.step_sums * fade + totals.step_sums
    readings = speed.readings + totals.step_sums[0]
    shortest_gap_s = step_time.update_shortest_gap(speed.shortest_gap_s, totals.shortest_gap_s, interval_s)
    fitted = step_time.fit_step_time(step_sums, readings, shortest_gap_s)
    peak_running = np.fmax(speed.peak_running * np.exp(-interval_s / SLOTS_FADE_S), totals.peak_running)
    slots = _estimate_slots(speed.slots, peak_running, totals, fitted.idle_gap_s)
    prompt_tokens = speed.prompt_tokens * fade + totals.prompt_tokens
    prompt_busy_s = speed.prompt_busy_s * fade + totals.prompt_busy_s
    updated = ReplicaSpeed(step_sums, readings, shortest_gap_s, peak_running, slots, prompt_tokens, prompt_busy_s)
    return updated, fitted


def fit_speed(speed: ReplicaSpeed) -> StepTime:
    """Return the step time that fits the readings so far."""
    return step_time.fit_step_time(speed.step_sums, speed.readings, speed.shortest_gap_s)


def _estimate_slots(
    slots: FloatColumn, peak_running: FloatColumn, totals: WorkTotals, idle_gap_s: FloatColumn
) -> FloatColumn:
    """Return the requests that a replica can run at once, where engines do not report it; float64[W].

    A replica shows its slots if it has a queue while it runs about as many requests as any replica ever did. A queue
    alone says little: a replica that computes all the time has one too, and a request may wait a moment for the token
    budget of a step.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spare = idle_gap_s / totals.gap_with_queue_s > 1 - COMPUTE_BOUND_SHARE
    slots = np.where(spare & (totals.running_with_queue >= FULL_SHARE * peak_running), peak_running, slots)
    # A replica that ran more requests without a queue shows that the estimate was too low.
    slots = np.where((slots < FULL_SHARE * peak_running) | (slots < 1), np.nan, slots)
    return np.where(np.isnan(totals.slots), slots, totals.slots)
