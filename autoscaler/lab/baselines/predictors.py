"""Load predictors of NVIDIA Dynamo's planner.

Source: ai-dynamo/dynamo, planner/core/load/predictors.py at 260b6ae, config/defaults.py at 1ca6015: constant, arima,
kalman, prophet. Leading zeros are skipped, and with fewer than five points the last one is the answer.

Two of them are libraries and replaced by their effect at this interval. `arima` (pmdarima's automatic choice) is an
autoregression of order three on differences. `prophet` (50 points, two and a half hours) is the line that it fits to so
little history. `seasonal` is what prophet would add with days of history: the same time yesterday, at today's level.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from autoscaler.core.table.columns import FloatColumn

LEAST_POINTS = 5
ORDER = 3
FITTED_POINTS = 200  # points used by the autoregression
LINE_POINTS = 50
KALMAN_LEVEL, KALMAN_TREND, KALMAN_NOISE = 1.0, 0.1, 10.0
DAY_S = 86_400.0


class Predictor(Protocol):
    def next(self, values: FloatColumn, interval_s: float) -> float:
        """Return the next value after `values`, float64[n] with n of at least 1, one per interval."""
        ...


class Constant:
    def next(self, values: FloatColumn, interval_s: float) -> float:
        return float(values[-1])


class Autoregression:
    """Least-squares autoregression of differences on the last three; clamped to twice the recent maximum."""

    def next(self, values: FloatColumn, interval_s: float) -> float:
        recent = values[-FITTED_POINTS:]
        steps = np.diff(recent)
        if len(steps) < LEAST_POINTS + ORDER or not steps.any():
            return float(values[-1])
        lagged = np.lib.stride_tricks.sliding_window_view(steps, ORDER)
        design = np.column_stack([np.ones(len(lagged) - 1), lagged[:-1]])
        weights = np.linalg.lstsq(design, steps[ORDER:], rcond=None)[0]
        forecast = values[-1] + weights[0] + lagged[-1] @ weights[1:]
        return float(min(max(forecast, 0.0), 2 * recent.max()))


class Kalman:
    """A local linear trend, with the noise figures of the planner."""

    def __init__(self) -> None:
        self._state = np.zeros(2)
        self._spread = 1000.0 * np.eye(2)
        self._known = 0

    def next(self, values: FloatColumn, interval_s: float) -> float:
        step = np.array([[1.0, 1.0], [0.0, 1.0]])
        for value in values[self._known :]:
            if not self._known:
                self._state = np.array([value, 0.0])
            else:
                self._state = step @ self._state
                self._spread = step @ self._spread @ step.T + np.diag([KALMAN_LEVEL, KALMAN_TREND])
                gain = self._spread[:, 0] / (self._spread[0, 0] + KALMAN_NOISE)
                self._state = self._state + gain * (value - self._state[0])
                self._spread = self._spread - np.outer(gain, self._spread[0])
            self._known += 1
        return max(float(self._state.sum()), 0.0) if self._known >= LEAST_POINTS else float(values[-1])


class Line:
    def next(self, values: FloatColumn, interval_s: float) -> float:
        recent = values[-LINE_POINTS:]
        if len(recent) < LEAST_POINTS:
            return float(values[-1])
        slope, start = np.polyfit(np.arange(len(recent)), recent, 1)
        return max(float(start + slope * len(recent)), 0.0)


class Seasonal:
    """The value at the same time yesterday, scaled by the last hour today over the same hour yesterday."""

    def next(self, values: FloatColumn, interval_s: float) -> float:
        day, hour = round(DAY_S / interval_s), max(round(3600 / interval_s), 1)
        if len(values) < day + hour:
            return Line().next(values, interval_s)
        before = float(values[len(values) - day - hour : len(values) - day].mean())
        level = float(values[-hour:].mean()) / before if before > 0 else 1.0
        return float(values[len(values) - day]) * level


PREDICTORS: dict[str, type[Constant | Autoregression | Kalman | Line | Seasonal]] = {
    "constant": Constant,
    "arima": Autoregression,
    "kalman": Kalman,
    "prophet": Line,
    "seasonal": Seasonal,
}


class Series:
    """Values of past intervals. Leading zeros are skipped; values that are not finite count as zero."""

    def __init__(self, predictor: str) -> None:
        if predictor not in PREDICTORS:
            raise ValueError(f"predictor is {predictor!r}; allowed: {', '.join(PREDICTORS)}")
        self._predictor: Predictor = PREDICTORS[predictor]()
        self._values: list[float] = []

    def add(self, value: float) -> None:
        value = value if math.isfinite(value) else 0.0
        if value or self._values:
            self._values.append(value)

    def next(self, interval_s: float) -> float:
        """Return the predicted next value; 0 without values."""
        return self._predictor.next(np.array(self._values), interval_s) if self._values else 0.0
