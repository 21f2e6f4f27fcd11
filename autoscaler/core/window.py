"""Extremes over a sliding window, per row, in fixed memory.

A window is cut into slots; each slot keeps the extreme of what fell into it, so a window of five minutes costs the
same as one of five seconds and rows may differ in length. A window covers at least its stated length and at most
1/15 more: never less, since both stabilization and rate limits promise a minimum. A slot knows the time at which it
ends, so that what it remembers stays true when a new policy changes the length; it may then be remembered for up to one
window more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.columns import BoolColumn, Columns, FloatColumn, MomentColumn, or_zero

SLOTS = 16


@dataclass(frozen=True)
class Window(Columns):
    """The last slots of each row."""

    value: FloatColumn  # float64[T, W], extreme of the slot; NaN: nothing fell into it
    until_s: MomentColumn  # float64[T, W], when the slot ends; NaN: none yet

    @classmethod
    def blank(cls, rows: int) -> Window:
        return cls(np.full((SLOTS, rows), np.nan), np.full((SLOTS, rows), np.nan))


def push(window: Window, value: FloatColumn, now_s: float, length_s: FloatColumn, sign: int) -> Window:
    """Add one value per row; keep the largest of a slot for sign = 1, the smallest for sign = -1.

    value, length_s: float64[W]. A NaN value adds nothing.
    """
    slot_s, number = _slot(now_s, length_s)
    place, rows = np.asarray(or_zero(number) % SLOTS, dtype=np.int64), np.arange(len(length_s))
    # What lies in its place is this very slot, or one that has left the window, or one of another length: then its
    # value goes on in the new slot.
    held = np.where(_inside(window.until_s[place, rows], slot_s, number), window.value[place, rows], np.nan)
    extreme = np.fmax(held, value) if sign > 0 else np.fmin(held, value)
    values, untils = window.value.copy(), window.until_s.copy()
    values[place, rows] = extreme
    untils[place, rows] = (number + 1) * slot_s
    return Window(values, untils)


def extreme(window: Window, now_s: float, length_s: FloatColumn, sign: int) -> FloatColumn:
    """Return the largest (sign = 1) or smallest (sign = -1) value of the window, float64[W]; NaN: it is empty."""
    values = np.where(_inside(window.until_s, *_slot(now_s, length_s)), window.value, np.nan)
    return np.asarray(np.fmax.reduce(values, axis=0) if sign > 0 else np.fmin.reduce(values, axis=0))


def _slot(now_s: float, length_s: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """Return the length of a slot and the number, since time zero, of the one that is now; float64[W] each."""
    # A window of length 0 still needs a slot: one of a microsecond remembers nothing but the present.
    slot_s = np.maximum(length_s, 1e-6) / (SLOTS - 1)
    return slot_s, np.floor(now_s / slot_s)


def _inside(until_s: FloatColumn, slot_s: FloatColumn, number: FloatColumn) -> BoolColumn:
    """Say which slots end within the last SLOTS slots; half a slot of margin keeps rounding out of it."""
    return np.asarray(until_s > (number - SLOTS + 1.5) * slot_s)
