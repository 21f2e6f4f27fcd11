"""The recent history of demand: its load averages, how steady it was, and the predictions of strategies.

Which load averages and holds there are is in `strategies`. Peaks are stored by span, a quarter of a cold start each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.planner.strategies import (
    AVERAGES_S,
    BASE_PEAK_HOLD,
    LONGEST_HOLD,
    PEAK_HOLDS,
    SEASONAL,
    UPDATE_INTERVAL_S,
    Float32Column,
)
from autoscaler.core.readings.pod_deltas import MAX_INTERVAL_S
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, TimestampColumn, or_zero

STEADY_DEVIATION = 0.4
"""Root-mean-square deviation from the load average, as a share of it, below which traffic is steady.
In its first minutes smooth traffic deviates by a tenth to a third, bursty traffic by two thirds and more."""

UNKNOWN_PEAK = 1e9
"""Replicas, stands in for a peak before demand was known: more than any fleet has."""

SPANS_PER_COLD_START = 4

_AVERAGE_OF, _HOLD_OF = np.array([*PEAK_HOLDS, BASE_PEAK_HOLD]).T
"""Load average, and cold starts of hold, of each peak hold; that of base replicas comes last."""


@dataclass(frozen=True)
class LoadHistory(Columns):
    """Load averages and their peaks by span. L averages, J peak holds, H spans in the longest, S in a cold start."""

    averages: FloatColumn  # float64[L, W], of demand over AVERAGES_S
    observed_s: FloatColumn  # float64[W], seconds of demand in them
    squared_deviation: FloatColumn  # float64[W], squared relative deviation from the average, times seconds
    span_since_s: TimestampColumn  # float64[W], beginning of the present span
    peaks: Float32Column  # float32[L, H, W], highest load average by span, the present span first
    lows: Float32Column  # float32[J, S, W], lowest prediction by span

    @classmethod
    def blank(cls, rows: int) -> LoadHistory:
        none, averages = np.zeros(rows), np.full((len(AVERAGES_S), rows), np.nan)
        peaks = np.zeros((len(AVERAGES_S), LONGEST_HOLD * SPANS_PER_COLD_START + 1, rows), np.float32)
        lows = np.full((len(PEAK_HOLDS), SPANS_PER_COLD_START + 2, rows), UNKNOWN_PEAK, np.float32)
        return cls(averages, none, none, averages[0], peaks, lows)


def update_load_history(
    history: LoadHistory,
    demand: FloatColumn,
    season_load: Float32Column,
    cold_start_s: FloatColumn,
    interval_s: FloatColumn,
    now_s: float,
) -> tuple[LoadHistory, Float32Column]:
    """Update load averages and peaks; also return the predictions, that of base replicas last, float32[J + 1, W].

    season_load: float32[W], of `season.predict_load`. Unknown demand changes nothing but the spans.
    """
    weight_s = np.where(np.isnan(demand), 0.0, np.minimum(interval_s, MAX_INTERVAL_S))
    averages = update_averages(history.averages, history.observed_s, demand, weight_s)
    deviation = np.where(weight_s > 0, compute_deviation(averages, demand), 0.0)
    span_s = compute_span_s(cold_start_s)
    is_new_span = ~(now_s - history.span_since_s < span_s - 1e-6)
    # The next span begins where this one should have ended, since updates come with ticks and not at that moment.
    # After a longer gap it begins now.
    next_since_s = np.where(now_s - history.span_since_s < 2 * span_s, history.span_since_s + span_s, now_s)
    averages32 = averages.astype(np.float32)
    peaks = push_span(history.peaks, or_zero(averages32), is_new_span, np.maximum)
    predicted = hold_peaks(averages32, peaks, count_spans(cold_start_s))
    highest = np.maximum(predicted[SEASONAL], season_load)
    predicted[SEASONAL] = np.where(np.isnan(season_load), predicted[SEASONAL], highest)
    low = np.where(np.isnan(predicted[:-1]), np.float32(UNKNOWN_PEAK), predicted[:-1])
    after = LoadHistory(
        averages=averages,
        observed_s=history.observed_s + weight_s,
        squared_deviation=history.squared_deviation + deviation**2 * weight_s,
        span_since_s=np.where(is_new_span, next_since_s, history.span_since_s),
        peaks=peaks,
        lows=push_span(history.lows, low, is_new_span, np.minimum),
    )
    return after, predicted


def compute_ready_peaks(history: LoadHistory, lead_s: FloatColumn, cold_start_s: FloatColumn) -> Float32Column:
    """Return the lowest prediction of the last lead time; float32[J, W]. Replicas for it serve by now.

    lead_s: float64[W], a cold start, or a wake-up if that is less.
    """
    spans = np.fmax(np.ceil(lead_s / compute_span_s(cold_start_s) - 1e-9), 1.0)
    spans = np.fmin(spans, count_spans(cold_start_s)).astype(np.int64)
    lowest = np.minimum.accumulate(history.lows, axis=1)  # of the last n spans
    return lowest[:, spans, np.arange(len(spans))]


def is_steady(history: LoadHistory) -> BoolColumn:
    """Return whether demand stayed close to its average, and was not zero; bool[W]."""
    tolerated = STEADY_DEVIATION**2 * history.observed_s
    return np.asarray((history.averages[-1] > 0) & (history.squared_deviation < tolerated))


def update_averages(
    averages: FloatColumn, observed_s: FloatColumn, demand: FloatColumn, weight_s: FloatColumn
) -> FloatColumn:
    """Return the load averages with one more value of demand; float64[L, W].

    averages: float64[L, W]; NaN: none yet. observed_s: float64[W], seconds in them. weight_s: float64[W], seconds of
    this value; 0: demand is unknown. Until its time constant has passed an average is the plain mean. Thus the first
    reading, of engines that are still filling, does not count for a whole time constant.
    """
    known = weight_s > 0
    after_s = np.where(known, observed_s + weight_s, 1.0)
    gain = np.expm1(-weight_s / AVERAGES_S[:, None]) / np.expm1(-after_s / AVERAGES_S[:, None])
    before = or_zero(averages)
    return np.asarray(np.where(known, before + gain * (np.where(known, demand, 0.0) - before), averages))


def compute_deviation(averages: FloatColumn, demand: FloatColumn) -> FloatColumn:
    """Return the relative deviation of demand from its slowest average; float64[W], 0 where the average is 0.

    averages: float64[L, W]. It is relative to the load and not to its root, as bursts of similar clients add up.
    """
    average = averages[-1]
    return np.asarray(np.abs(demand - average) / np.where(average > 0, average, np.inf))


def hold_peaks(averages: Float32Column, peaks: Float32Column, cold_start_spans: IntColumn) -> Float32Column:
    """Return the held peak of each peak hold, that of base replicas last; float32[J + 1, W], NaN: not known.

    averages: float32[L, W]. peaks: float32[L, H, W]. cold_start_spans: int64[W], spans in a cold start.
    """
    highest = np.maximum.accumulate(peaks, axis=1)  # of the last n spans
    held = highest[_AVERAGE_OF[:, None], _HOLD_OF[:, None] * cold_start_spans, np.arange(len(cold_start_spans))]
    return np.where(np.isnan(averages[_AVERAGE_OF]), np.float32(np.nan), held)


def find_peak_expiry(
    history: LoadHistory, peak_hold: IntColumn, load: FloatColumn, cold_start_s: FloatColumn
) -> FloatColumn:
    """Return the moment from which no held peak is above this load; float64[W].

    peak_hold: int64[W], row of `PEAK_HOLDS`. load: float64[W]. NaN where the present span is above it, or none is.
    """
    peaks = history.peaks[_AVERAGE_OF[peak_hold], :, np.arange(len(peak_hold))]  # [W, H]
    held_spans = _HOLD_OF[peak_hold] * count_spans(cold_start_s)
    is_above = (peaks > load[:, None]) & (np.arange(peaks.shape[1]) <= held_spans[:, None])
    newest = is_above.argmax(axis=1)
    expires_s = history.span_since_s + (held_spans - newest + 1) * compute_span_s(cold_start_s)
    return np.where(newest > 0, expires_s, np.nan)


def compute_span_s(cold_start_s: FloatColumn) -> FloatColumn:
    """Return the length of a span; float64[W]."""
    return np.maximum(cold_start_s / SPANS_PER_COLD_START, UPDATE_INTERVAL_S)


def count_spans(cold_start_s: FloatColumn) -> IntColumn:
    """Return the number of spans in a cold start; int64[W], 1..SPANS_PER_COLD_START, 1 if it is not known."""
    count = np.ceil(cold_start_s / compute_span_s(cold_start_s) - 1e-9)
    return np.fmin(np.fmax(count, 1.0), SPANS_PER_COLD_START).astype(np.int64)


def push_span(past: Float32Column, value: Float32Column, is_new_span: BoolColumn, extreme: np.ufunc) -> Float32Column:
    """Return the values by span with one more value, which is put into the present span or begins a new one.

    past: float32[N, spans, W], the present span first. value: float32[N, W]. is_new_span: bool[W]. extreme: np.maximum
    or np.minimum, combines values within a span.
    """
    pushed = np.empty_like(past)
    pushed[:, 0] = np.where(is_new_span, value, extreme(past[:, 0], value))
    pushed[:, 1:] = np.where(is_new_span, past[:, :-1], past[:, 1:])
    return pushed
