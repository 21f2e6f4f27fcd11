"""Signals of baselines: totals, rates and quantiles over windows, as their queries compute them."""

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
    """Return the waiting requests: in engines, and at the gateway."""
    return float(totals.waiting.sum()) + totals.gateway_waiting


def inflight(totals: Totals) -> float:
    """Return the running and waiting requests."""
    return float(totals.running.sum()) + waiting(totals)


def rate(view: View, counter: Counter, window_s: float) -> float:
    """Return the rate of a counter over the window, per second; 0 before two scrapes."""
    before, now = view.totals_ago(window_s), view.totals
    passed_s = now.time_s - before.time_s
    return (getattr(now, counter) - getattr(before, counter)) / passed_s if passed_s > 0 else 0.0


def mean_lengths(view: View, window_s: float) -> tuple[float, float]:
    """Return mean prompt and output tokens of the requests in the window; NaN without first tokens, or finished
    requests.
    """
    before, now = view.totals_ago(window_s), view.totals
    began, ended = now.first_tokens - before.first_tokens, now.finished - before.finished
    prompt = (now.prompt_tokens - before.prompt_tokens) / began if began > 0 else math.nan
    output = (now.generation_tokens - before.generation_tokens) / ended if ended > 0 else math.nan
    return prompt, output


def mean_itl_s(view: View, window_s: float) -> float:
    """Return the mean gap between tokens in the window, in seconds; NaN without gaps."""
    before, now = view.totals_ago(window_s), view.totals
    gaps = float(now.itl_buckets[-1] - before.itl_buckets[-1])
    return (now.itl_sum_s - before.itl_sum_s) / gaps if gaps > 0 else math.nan


def ttft_quantile_s(view: View, q: float, window_s: float) -> float:
    """Return a quantile of TTFT in the window, in seconds; NaN without requests."""
    return float(quantile(q, TTFT, view.totals.ttft_buckets - view.totals_ago(window_s).ttft_buckets))


def itl_quantile_s(view: View, q: float, window_s: float) -> float:
    """Return a quantile of the gaps between tokens in the window, in seconds; NaN without gaps."""
    return float(quantile(q, GAPS, view.totals.itl_buckets - view.totals_ago(window_s).itl_buckets))


class MovingMean:
    """The mean of the values added within the last `window_s`."""

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


class MovingMax:
    """The maximum of the values added within the last `window_s`; with 0, the last value."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, int]] = deque()  # descending; older and lower values never count again

    def add(self, now_s: float, value: int) -> int:
        """Add a value and return the maximum."""
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now_s, value))
        while now_s - self._values[0][0] > self._window_s:
            self._values.popleft()
        return self._values[0][1]
