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

from autoscaler.core.table.columns import Columns, FloatColumn, MomentColumn, or_zero

SLOTS = 16


@dataclass(frozen=True)
class Window(Columns):
    """The last slots of each row, for its highest value and for its lowest, which may have windows of other lengths."""

    value: FloatColumn  # float64[T, 2, W], highest of the slot, and the lowest negated; NaN: nothing fell into it
    until_s: MomentColumn  # float64[T, 2, W], when the slot ends; NaN: none yet

    @classmethod
    def blank(cls, rows: int) -> Window:
        unknown = np.full((SLOTS, 2, rows), np.nan)
        return cls(unknown, unknown)


def follow(
    window: Window, high: FloatColumn, low: FloatColumn, now_s: float, high_s: FloatColumn, low_s: FloatColumn
) -> tuple[Window, FloatColumn, FloatColumn]:
    """Add a value to each row, and return the highest and the lowest of its window too; NaN: it is empty.

    high, low: float64[W], what may be the highest, and the lowest; NaN adds nothing. high_s, low_s: float64[W], how
    long the windows are.
    """
    # A window of length 0 still needs a slot: one of a microsecond remembers nothing but the present.
    slot_s = np.maximum(np.array([high_s, low_s]), 1e-6) / (SLOTS - 1)
    number = np.floor(now_s / slot_s)  # since time zero, of the slot that is now
    here = or_zero(number % SLOTS).astype(np.int64), np.array([[0], [1]]), np.arange(len(high))
    # Slots that end within the last SLOTS slots; half a slot of margin keeps rounding out of it.
    inside = window.until_s > (number - SLOTS + 1.5) * slot_s
    value, until_s = window.value.copy(), window.until_s.copy()
    # What lies in its place is this very slot, or one that has left the window, or one of another length: then its
    # value goes on in the new slot.
    value[here] = np.fmax(np.where(inside[here], value[here], np.nan), np.array([high, -low]))
    until_s[here] = (number + 1) * slot_s
    inside[here] = ~np.isnan(number)
    highest, lowest = np.fmax.reduce(np.where(inside, value, np.nan), axis=0)
    return Window(value, until_s), highest, -lowest


def left_s(window: Window, least: FloatColumn, now_s: float, high_s: FloatColumn) -> FloatColumn:
    """Return how long until no value of `least` or more is in the window for the highest; NaN: none is.

    least: float64[W]. high_s: float64[W], how long the window is.
    """
    reached = np.where(window.value[:, 0] >= least, window.until_s[:, 0], np.nan)
    left: FloatColumn = np.fmax.reduce(reached, axis=0) + np.maximum(high_s, 1e-6) - now_s
    return np.where(left > 0, left, np.nan)
