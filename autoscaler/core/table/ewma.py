"""Averages that follow a value through irregular time, in one number a row."""

from __future__ import annotations

import numpy as np

from autoscaler.core.table.columns import FloatColumn


def gain(elapsed_s: FloatColumn, window_s: FloatColumn | float) -> FloatColumn:
    """Return how far an average of time constant `window_s` moves in `elapsed_s`; 0..1, NaN where either is unknown.

    5 s of 60 s: 0.08; two steps of 5 s move as far as one of 10 s.
    """
    return np.asarray(1 - np.exp(-elapsed_s / window_s))


def follow(average: FloatColumn, value: FloatColumn, gain: FloatColumn) -> FloatColumn:
    """Move an average toward a value; begin with the first, and keep it while the value or the gain is unknown."""
    moved = np.where(np.isnan(average), value, average + gain * (value - average))
    return np.where(np.isnan(moved), average, moved)
