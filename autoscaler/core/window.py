"""Extremes over a sliding window, per row, in fixed memory.

A window is cut into slots; each slot keeps the extreme of what fell into it, so a window of five minutes costs the
same as one of five seconds and rows may differ in length. A window covers at least its stated length and at most
1/15 more: never less, since both stabilization and rate limits promise a minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.columns import Columns, FloatColumn, IntColumn

SLOTS = 16


@dataclass(frozen=True)
class Window(Columns):
    """The last slots of each row; `number` counts slots since time zero, so that a slot knows its age."""

    value: FloatColumn  # float64[T, W], extreme of the slot; NaN: nothing fell into it
    number: FloatColumn  # float64[T, W], which slot it is; NaN: none yet

    @classmethod
    def blank(cls, rows: int) -> Window:
        return cls(np.full((SLOTS, rows), np.nan), np.full((SLOTS, rows), np.nan))


def push(window: Window, value: FloatColumn, now_s: float, length_s: FloatColumn, sign: int) -> Window:
    """Add one value per row; keep the largest of a slot for sign = 1, the smallest for sign = -1.

    value, length_s: float64[W]. A NaN value adds nothing.
    """
    number, slot, rows = _slot(now_s, length_s)
    here = window.number[slot, rows] == number
    kept = np.where(here, window.value[slot, rows], np.nan)
    extreme = np.fmax(kept, value) if sign > 0 else np.fmin(kept, value)
    values, numbers = window.value.copy(), window.number.copy()
    values[slot, rows] = extreme
    numbers[slot, rows] = number
    return Window(values, numbers)


def extreme(window: Window, now_s: float, length_s: FloatColumn, sign: int) -> FloatColumn:
    """Return the largest (sign = 1) or smallest (sign = -1) value of the window, float64[W]; NaN: it is empty."""
    number, _, _ = _slot(now_s, length_s)
    inside = window.number > number - SLOTS
    values = np.where(inside, window.value, np.nan)
    return np.asarray(np.fmax.reduce(values, axis=0) if sign > 0 else np.fmin.reduce(values, axis=0))


def _slot(now_s: float, length_s: FloatColumn) -> tuple[FloatColumn, IntColumn, IntColumn]:
    # A window of length 0 still needs a slot: one of a microsecond remembers nothing but the present.
    slot_s = np.fmax(length_s, 1e-6) / (SLOTS - 1)
    number = np.floor(now_s / slot_s)
    return number, np.asarray(number % SLOTS, dtype=np.int64), np.arange(len(length_s))
