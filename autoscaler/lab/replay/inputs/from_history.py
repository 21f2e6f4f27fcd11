"""A trace, and the actual outcome, reconstructed from a workload's recorded metrics.

Metrics hold no single requests. Arrivals are spread evenly within the step that counted them, and lengths are drawn
around the mean of their time. So the trace shows no bursts shorter than a step, and only the mean of lengths is real.
"""

from __future__ import annotations

import math

import numpy as np

from autoscaler.adapters.prometheus.range.resample import LatencyHistograms, WorkloadHistory
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.core.table.histogram import fraction_within, quantile
from autoscaler.lab.replay.case import Goal, Trace, View
from autoscaler.lab.replay.inputs.trace_file import MOST_TOKENS
from autoscaler.lab.replay.score import Score, count_changes

MOST_REQUESTS = 50_000_000
LENGTH_SIGMA = 0.8  # sigma of the logarithm of a length; chats and code completion lie between 0.6 and 1.1
LENGTH_WINDOW_S = 600.0  # window of a mean length; long answers end long after their arrival


class NoRequests(ValueError):
    """History without requests."""


def to_trace(past: WorkloadHistory, name: str, seed: int) -> Trace:
    """Return a trace with the counted requests. Raises NoRequests, or ValueError for too many requests."""
    rng = np.random.default_rng((seed, 3))
    came = np.nan_to_num(past.arrivals)
    # Whole requests per step; the sum up to any step is exact within half a request.
    counted = np.floor(np.cumsum(came) + 0.5)
    if counted[-1] > MOST_REQUESTS:
        raise ValueError(f"{name}: {counted[-1]:,.10g} requests are more than {MOST_REQUESTS:,}, the limit")
    counts = np.diff(counted, prepend=0.0).astype(np.int64)
    total = int(counts.sum())
    if total < 1:
        raise NoRequests(f"{name}: no request came between start and end")
    step = np.repeat(np.arange(len(counts)), counts)
    arrival_s = np.sort((step + rng.random(total)) * past.step_s)
    began = np.nan_to_num(past.first_tokens)
    prompt = _lengths(past, past.prompt_tokens, began, step, rng)
    output = _lengths(past, past.generation_tokens, began, step, rng)
    return Trace(name, arrival_s, prompt, output, past.duration_s, past.start_s)


def _lengths(
    past: WorkloadHistory, tokens: FloatColumn, requests: FloatColumn, step: IntColumn, rng: np.random.Generator
) -> IntColumn:
    """Draw a length in tokens for each request, int64[N], whose mean follows the tokens per request over time."""
    window = max(round(LENGTH_WINDOW_S / past.step_s), 1)
    tokens = np.nan_to_num(tokens)
    overall = tokens.sum() / max(requests.sum(), 1.0)
    near_tokens, near_requests = _windowed_sum(tokens, window), _windowed_sum(requests, window)
    # The mean of few requests is uncertain, so some of the overall mean is mixed in.
    mean = (near_tokens + 5.0 * overall) / (near_requests + 5.0)
    drawn = np.exp(rng.normal(-(LENGTH_SIGMA**2) / 2, LENGTH_SIGMA, len(step)))
    lengths = mean[step] * drawn
    lengths *= overall / max(float(lengths.mean()), 1e-9)
    return np.asarray(np.clip(np.round(lengths), 1, MOST_TOKENS), np.int64)


def _windowed_sum(values: FloatColumn, window: int) -> FloatColumn:
    """Return the sum over about `window` steps around each step."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    low, high = np.maximum(place - window // 2, 0), np.minimum(place + window // 2 + 1, len(values))
    return np.asarray(total[high] - total[low])


def to_score(past: WorkloadHistory, goal: Goal, gpus_per_replica: float, cold_start_s: float) -> Score:
    """Return the actual score, as far as metrics show it; NaN where they do not.

    Two histograms do not show how many requests met both objectives, so attainment is known only if one objective is
    stated. A pod is paid for from one cold start before its first metrics.
    """
    ttft, itl = _overall(past.ttft), _overall(past.itl)
    met_ttft, met_itl = _fraction_met(past.ttft, goal.ttft_s, ttft), _fraction_met(past.itl, goal.itl_s, itl)
    both = met_itl if math.isnan(goal.ttft_s) else met_ttft if math.isnan(goal.itl_s) else math.nan
    pods = _pods(past)
    steps = np.diff(count_replicas(past))
    changed = np.flatnonzero(steps)
    ups, downs, flaps = count_changes(steps[changed], np.asarray((changed + 1) * past.step_s), cold_start_s)
    rate = np.nansum(past.finished) / past.duration_s
    replica_s = float(pods.sum()) * past.step_s + float(past.pods_added.sum()) * cold_start_s
    return Score(
        attainment=both,
        attainment_ttft=met_ttft,
        attainment_itl=met_itl,
        goodput_rps=float(rate) * both,
        goodput_tokens_per_s=float(np.nansum(past.generation_tokens)) / past.duration_s * both,
        gpu_hours=replica_s * gpus_per_replica / 3600,
        ttft_p50_s=_quantile(0.5, past.ttft, ttft),
        ttft_p95_s=_quantile(0.95, past.ttft, ttft),
        ttft_p99_s=_quantile(0.99, past.ttft, ttft),
        scale_ups=ups,
        scale_downs=downs,
        flaps=flaps,
        answered=float(np.nansum(past.finished)),
        output_tokens=float(np.nansum(past.generation_tokens)),
        breach_s=_breach_s(past, goal),
        unfinished=math.nan,
    )


def count_replicas(past: WorkloadHistory) -> IntColumn:
    """Return the number of replicas in each step, int64[T]."""
    return np.round(_pods(past)).astype(np.int64)


def _pods(past: WorkloadHistory) -> FloatColumn:
    """Return the number of replicas, float64[T]. A gap in the metrics keeps the number before it.

    A step belongs to a gap if no pod reported while counters grew, and so do its neighbours, which scrapes cover in
    part only. If no pod reported and no counter grew, there was no replica.
    """
    hole = np.isnan(past.pods) & ~np.isnan(past.arrivals)
    hole[1:-1] |= hole[:-2] | hole[2:]
    return np.nan_to_num(past.pods[np.maximum.accumulate(np.where(hole, 0, np.arange(len(hole))))])


def to_timeline(past: WorkloadHistory) -> FloatColumn:
    """Return time, desired, ready, running and waiting, float64[T, 5]. The ready count replaces the desired one."""
    time_s = np.arange(len(past.pods)) * past.step_s
    ready = count_replicas(past).astype(np.float64)
    return np.column_stack([time_s, ready, ready, np.nan_to_num(past.running), np.nan_to_num(past.waiting)])


class RecordedScaler:
    """A scaler that repeats the actual replica counts. Compared with `actual`, it shows the error of the simulator."""

    name = "recorded"
    period_s = 15.0

    def __init__(self, past: WorkloadHistory, cold_start_s: float) -> None:
        """Replicas are requested one cold start ahead, so that they are ready when they were."""
        self._desired = count_replicas(past)
        self._step_s = past.step_s
        self._ahead_s = cold_start_s

    def decide(self, view: View) -> int:
        now, ahead = (
            int(self._desired[min(int(at_s / self._step_s), len(self._desired) - 1)])
            for at_s in (view.now_s, view.now_s + self._ahead_s)
        )
        return max(now, ahead)


def _overall(latencies: LatencyHistograms) -> FloatColumn:
    return np.asarray(np.nansum(latencies.counts, axis=0))


def _fraction_met(latencies: LatencyHistograms, limit_s: float, counts: FloatColumn) -> float:
    return math.nan if math.isnan(limit_s) else float(fraction_within(limit_s, latencies.bounds, counts))


def _quantile(q: float, latencies: LatencyHistograms, counts: FloatColumn) -> float:
    # A single bound tells how many were within it, and nothing of the others.
    return float(quantile(q, latencies.bounds, counts)) if len(latencies.bounds) > 2 else math.nan


def _breach_s(past: WorkloadHistory, goal: Goal) -> float:
    """Return the seconds of windows that missed the attainment of an objective; NaN without histograms."""
    both = ((past.ttft, goal.ttft_s), (past.itl, goal.itl_s))
    promised = [(latencies, limit_s) for latencies, limit_s in both if not math.isnan(limit_s)]
    if not all(len(latencies.counts) for latencies, _ in promised):
        return math.nan
    missed = np.zeros(max((len(latencies.counts) for latencies, _ in promised), default=0), np.bool_)
    for latencies, limit_s in promised:
        share = fraction_within(limit_s, latencies.bounds, latencies.counts)
        missed[: len(share)] |= share < goal.attainment - 1e-9
    return float(missed.sum()) * past.window_s
