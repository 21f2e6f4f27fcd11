"""Exponentially weighted moving averages over irregular intervals; one number per row."""

from __future__ import annotations

import numpy as np

from autoscaler.core.table.columns import FloatColumn


def smoothing_factor(elapsed_s: FloatColumn, window_s: FloatColumn | float) -> FloatColumn:
    """Return the weight, 0..1, of a value that held for `elapsed_s` in an average of time constant `window_s`.

    NaN if either is unknown. 5 s of 60 s give 0.08; two updates of 5 s give the same average as one of 10 s.
    """
    return np.asarray(1 - np.exp(-elapsed_s / window_s))


def update(average: FloatColumn, value: FloatColumn, factor: FloatColumn) -> FloatColumn:
    """Move the average toward the value by `factor`. The first value starts it; NaN leaves it as it is."""
    moved = np.where(np.isnan(average), value, average + factor * (value - average))
    return np.where(np.isnan(moved), average, moved)
