"""How demand ran lately: its level over some times, how far it was off it, and the peaks that rules hold.

Which levels and holds there are is in `family`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.observe.rates import LONGEST_STEP_S
from autoscaler.core.planner.strategies import EVERY_S, LEVELS_S, LONGEST_HOLD, OF_LOAD, PREDICTORS, PaperColumn
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, TimestampColumn, or_zero

STEADY = 2
"""Of the levels, the one whose level tells how far demand is off it: long beside a reading, short beside a trend."""

CALM = 0.4
"""Share of its level that demand may be off it, as a root mean square, where the young keep to the fleet they found.
Within its first minutes it is a tenth to a third in traffic that stays smooth, two thirds and more in bursty."""

ENDLESS = 1e9
"""Replicas, where nothing was predicted yet: more than any fleet has."""

SPANS_A_COLD_START = 4
LOWS = SPANS_A_COLD_START + 2
PEAKS = LONGEST_HOLD * SPANS_A_COLD_START + 1

_LEVEL_OF, _HOLD_OF = np.array([*PREDICTORS, OF_LOAD]).T
"""Of each predictor, and of `OF_LOAD`: its level, and for how many cold starts the peak of it is held."""


@dataclass(frozen=True)
class Levels(Columns):
    """Levels and what was predicted, by spans of the past, a quarter of a cold start each. L levels, J predictors."""

    level: FloatColumn  # float64[L, W], of demand over LEVELS_S
    level_s: FloatColumn  # float64[W], seconds of demand that it is of
    unrest: FloatColumn  # float64[W], squared share of its level that demand was off it, times seconds
    span_since_s: TimestampColumn  # float64[W], when the present span of the past began
    peaks: PaperColumn  # float32[L, PEAKS, W], highest level by span, the present one first
    lows: PaperColumn  # float32[J, LOWS, W], lowest prediction by span

    @classmethod
    def blank(cls, rows: int) -> Levels:
        return cls(
            level=np.full((len(LEVELS_S), rows), np.nan),
            level_s=np.zeros(rows),
            unrest=np.zeros(rows),
            span_since_s=np.full(rows, np.nan),
            peaks=np.zeros((len(LEVELS_S), PEAKS, rows), np.float32),
            lows=np.full((len(PREDICTORS), LOWS, rows), ENDLESS, np.float32),
        )


def follow(
    levels: Levels, demand: FloatColumn, cold_start_s: FloatColumn, step_s: FloatColumn, now_s: float
) -> tuple[Levels, PaperColumn]:
    """Follow the levels, hold their peaks, and note what is predicted; unknown demand changes nothing.

    Also returns what each predictor says now, as `held` does.
    """
    weight_s = np.where(np.isnan(demand), 0.0, np.minimum(step_s, LONGEST_STEP_S))
    level = averaged(levels.level, levels.level_s, demand, weight_s)
    off = np.where(weight_s > 0, off_level(level, demand), 0.0)
    long_s = span_s(cold_start_s)
    turned = ~(now_s - levels.span_since_s < long_s - 1e-6)
    # The next span begins where this one should have ended: workloads are judged when a tick comes, not at that moment.
    # After a longer hole it begins now.
    ended_s = np.where(now_s - levels.span_since_s < 2 * long_s, levels.span_since_s + long_s, now_s)
    said = level.astype(np.float32)
    peaks = push(levels.peaks, or_zero(said), turned, np.maximum)
    predicted = held(said, peaks, spans(cold_start_s))
    lowest = predicted[: len(PREDICTORS)]
    lowest = np.where(np.isnan(lowest), np.float32(ENDLESS), lowest)
    after = Levels(
        level=level,
        level_s=levels.level_s + weight_s,
        unrest=levels.unrest + off**2 * weight_s,
        span_since_s=np.where(turned, ended_s, levels.span_since_s),
        peaks=peaks,
        lows=push(levels.lows, lowest, turned, np.minimum),
    )
    return after, predicted


def stood(levels: Levels, cold_start_s: FloatColumn) -> PaperColumn:
    """Return what each predictor said at least for a whole cold start, and so is ready by now; float32[J, W]."""
    lowest = np.minimum.accumulate(levels.lows, axis=1)  # of so many spans
    return lowest[:, spans(cold_start_s), np.arange(len(cold_start_s))]


def is_calm(levels: Levels) -> BoolColumn:
    """Say where demand has hardly been off its level, and was not nothing; bool[W]."""
    return np.asarray((levels.level[STEADY] > 0) & (levels.unrest < CALM**2 * levels.level_s))


def averaged(level: FloatColumn, level_s: FloatColumn, demand: FloatColumn, step_s: FloatColumn) -> FloatColumn:
    """Follow demand with each time constant; float64[L, W]. One that has seen less than that is the plain mean so far.

    level: float64[L, W]; NaN: nothing yet. level_s: float64[W], what it has seen. step_s: float64[W]; 0: not known.
    So the first reading, of engines that have yet to fill, does not stand for a whole time constant.
    """
    known = step_s > 0
    seen_s = np.where(known, level_s + step_s, 1.0)
    gain = np.expm1(-step_s / LEVELS_S[:, None]) / np.expm1(-seen_s / LEVELS_S[:, None])
    before = or_zero(level)
    return np.asarray(np.where(known, before + gain * (np.where(known, demand, 0.0) - before), level))


def off_level(level: FloatColumn, demand: FloatColumn) -> FloatColumn:
    """Return by which share of its steady level demand is off it; float64[W], 0 where there is none.

    level: float64[L, W]. A share, not a root: bursts of many like callers grow with their number.
    """
    steady = level[STEADY]
    return np.asarray(np.abs(demand - steady) / np.where(steady > 0, steady, np.inf))


def held(level: PaperColumn, peaks: PaperColumn, reach: IntColumn) -> PaperColumn:
    """Return what each predictor says, a level, held, and after them `OF_LOAD`; float32[J + 1, W], NaN: not known.

    level: float32[L, W]. peaks: float32[L, PEAKS, W], highest level by span. reach: int64[W], spans in a cold start.
    """
    highest = np.maximum.accumulate(peaks, axis=1)  # of so many spans
    said = highest[_LEVEL_OF[:, None], _HOLD_OF[:, None] * reach, np.arange(len(reach))]
    return np.where(np.isnan(level[_LEVEL_OF]), np.float32(np.nan), said)


def held_until_s(levels: Levels, predictor: IntColumn, above: FloatColumn, cold_start_s: FloatColumn) -> FloatColumn:
    """Return when the last span leaves in which the level was higher than that; float64[W], a moment.

    predictor, above: [W], the one that holds it, and that level. NaN where the present one is, or none is.
    """
    peaks = levels.peaks[_LEVEL_OF[predictor], :, np.arange(len(predictor))]  # [W, PEAKS]
    reach = _HOLD_OF[predictor] * spans(cold_start_s)
    higher = (peaks > above[:, None]) & (np.arange(PEAKS) <= reach[:, None])
    newest = higher.argmax(axis=1)
    leaves_s = levels.span_since_s + (reach - newest + 1) * span_s(cold_start_s)
    return np.where(newest > 0, leaves_s, np.nan)


def span_s(cold_start_s: FloatColumn) -> FloatColumn:
    """Return how long a span of the past is; float64[W]."""
    return np.maximum(cold_start_s / SPANS_A_COLD_START, EVERY_S)


def spans(cold_start_s: FloatColumn) -> IntColumn:
    """Return how many spans a cold start takes; int64[W], 1..SPANS_A_COLD_START."""
    count = np.ceil(cold_start_s / span_s(cold_start_s) - 1e-9)
    return np.fmin(np.fmax(count, 1.0), SPANS_A_COLD_START).astype(np.int64)  # of an unknown one: 1


def push(past: PaperColumn, value: PaperColumn, turned: BoolColumn, extreme: np.ufunc) -> PaperColumn:
    """Put a value into the present span, or into a new one where the time of the span is over.

    past: float32[N, spans, W], the present one first. value: float32[N, W]. turned: bool[W], where it is over.
    """
    pushed = np.empty_like(past)
    pushed[:, 0] = np.where(turned, value, extreme(past[:, 0], value))
    pushed[:, 1:] = np.where(turned, past[:, :-1], past[:, 1:])
    return pushed
