"""What baselines read from a view: totals, rates and quantiles over windows, as their queries would."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

import numpy as np

from autoscaler.core.table.histogram import quantile
from autoscaler.lab.replay.case import Totals, View
from autoscaler.sim.engine.metrics import TOKEN_GAP_BOUNDS_S, TTFT_BOUNDS_S

TTFT = np.array([*TTFT_BOUNDS_S, np.inf])
GAPS = np.array([*TOKEN_GAP_BOUNDS_S, np.inf])
Counter = Literal["arrivals", "finished", "first_tokens", "prompt_tokens", "generation_tokens", "itl_sum_s"]


def waiting(totals: Totals) -> float:
    """Return the requests that no engine runs: waiting in engines, and in front while nobody serves."""
    return float(totals.waiting.sum()) + totals.gateway_waiting


def inflight(totals: Totals) -> float:
    """Return the requests that run or wait."""
    return float(totals.running.sum()) + waiting(totals)


def rate(view: View, counter: Counter, window_s: float) -> float:
    """Return how fast a counter grew over the window, per second; 0 before two scrapes."""
    before, now = view.totals_ago(window_s), view.totals
    passed_s = now.time_s - before.time_s
    return (getattr(now, counter) - getattr(before, counter)) / passed_s if passed_s > 0 else 0.0


def mean_lengths(view: View, window_s: float) -> tuple[float, float]:
    """Return the mean prompt and output tokens of the requests of the window; NaN if none began, or ended."""
    before, now = view.totals_ago(window_s), view.totals
    starting_case, ended = now.first_tokens - before.first_tokens, now.finished - before.finished
    prompt = (now.prompt_tokens - before.prompt_tokens) / starting_case if starting_case > 0 else math.nan
    output = (now.generation_tokens - before.generation_tokens) / ended if ended > 0 else math.nan
    return prompt, output


def mean_itl_s(view: View, window_s: float) -> float:
    """Return the mean gap between two tokens in the window; NaN without any."""
    before, now = view.totals_ago(window_s), view.totals
    gaps = float(now.itl_buckets[-1] - before.itl_buckets[-1])
    return (now.itl_sum_s - before.itl_sum_s) / gaps if gaps > 0 else math.nan


def ttft_quantile_s(view: View, q: float, window_s: float) -> float:
    """Return a quantile of the TTFTs of the window; NaN without any."""
    return float(quantile(q, TTFT, view.totals.ttft_buckets - view.totals_ago(window_s).ttft_buckets))


def itl_quantile_s(view: View, q: float, window_s: float) -> float:
    """Return a quantile of the gaps between tokens in the window; NaN without any."""
    return float(quantile(q, GAPS, view.totals.itl_buckets - view.totals_ago(window_s).itl_buckets))


class MovingMean:
    """The mean of what was added within the last `window_s`."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now_s: float, value: float) -> float:
        """Add a value and return the mean."""
        self._values.append((now_s, value))
        self._sum += value
        while now_s - self._values[0][0] >= self._window_s:
            self._sum -= self._values.popleft()[1]
        return self._sum / len(self._values)


class Highest:
    """The highest of what was added within the last `window_s`; of the last alone if that is 0."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, int]] = deque()  # descending: whatever is older and lower never counts again

    def add(self, now_s: float, value: int) -> int:
        """Add a value and return the highest."""
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now_s, value))
        while now_s - self._values[0][0] > self._window_s:
            self._values.popleft()
        return self._values[0][1]
