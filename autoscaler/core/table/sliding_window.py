"""Maximum and minimum over a sliding window, per row, in fixed memory.

A window is cut into slots, and each slot keeps the extremes of its values. So a window of five minutes costs the same
as one of five seconds, and rows may differ in length. A window covers at least its stated length, because stabilization
and rate limits promise a minimum, and at most 1/15 more. A slot stores the time at which it ends, so it stays valid
when a new policy changes the length; its value may then be kept for up to one window more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import Columns, FloatColumn, TimestampColumn, or_zero

SLOTS = 16


@dataclass(frozen=True)
class SlidingWindow(Columns):
    """The latest slots of each row: of its maximum and of its minimum, whose windows may differ in length."""

    value: FloatColumn  # float64[T, 2, W], maximum of the slot, and its negated minimum; NaN: no value
    until_s: TimestampColumn  # float64[T, 2, W], end of the slot; NaN: not used yet

    @classmethod
    def blank(cls, rows: int) -> SlidingWindow:
        unknown = np.full((SLOTS, 2, rows), np.nan)
        return cls(unknown, unknown)


def update(
    window: SlidingWindow, high: FloatColumn, low: FloatColumn, now_s: float, high_s: FloatColumn, low_s: FloatColumn
) -> tuple[SlidingWindow, FloatColumn, FloatColumn]:
    """Add values to each row, and also return the maximum and the minimum of its window; NaN if the window is empty.

    high, low: float64[W], values for the maximum and for the minimum; NaN adds none. high_s, low_s: float64[W],
    lengths of the windows in seconds. A row whose length is NaN has no extremes, and its values stay as they are.
    """
    # A window of length 0 still needs a slot: one microsecond keeps only the present value.
    slot_s = np.maximum(np.array([high_s, low_s]), 1e-6) / (SLOTS - 1)
    number = np.floor(now_s / slot_s)  # of the present slot, counted from time zero
    here = or_zero(number % SLOTS).astype(np.int64), np.array([[0], [1]]), np.arange(len(high))
    # The window holds slots that end within the last SLOTS slots; half a slot of margin absorbs rounding errors.
    inside = window.until_s > (number - SLOTS + 1.5) * slot_s
    value, until_s = window.value.copy(), window.until_s.copy()
    # The array entry holds the present slot, or one that has left the window, or one of another length. A slot of
    # another length passes its value on to the new slot.
    has_length = ~np.isnan(number)
    extremes = np.fmax(np.where(inside[here], value[here], np.nan), np.array([high, -low]))
    value[here] = np.where(has_length, extremes, value[here])
    until_s[here] = np.where(has_length, (number + 1) * slot_s, until_s[here])
    inside[here] = has_length
    highest, lowest = np.fmax.reduce(np.where(inside, value, np.nan), axis=0)
    return SlidingWindow(value, until_s), highest, -lowest


def expires_in_s(window: SlidingWindow, least: FloatColumn, now_s: float, high_s: FloatColumn) -> FloatColumn:
    """Return the seconds until all values of `least` or more have left the window of the maximum; NaN: none is in it.

    least: float64[W]. high_s: float64[W], length of the window in seconds.
    """
    reached = np.where(window.value[:, 0] >= least, window.until_s[:, 0], np.nan)
    left: FloatColumn = np.fmax.reduce(reached, axis=0) + np.maximum(high_s, 1e-6) - now_s
    return np.where(left > 0, left, np.nan)
