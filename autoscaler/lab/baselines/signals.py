"""Signals of baselines: totals, rates and quantiles over windows, as their queries compute them."""

from __future__ import annotations

from collections import deque
from typing import Literal

import numpy as np

from autoscaler.core.table.histogram import quantile
from autoscaler.lab.baselines.past import ScrapedPast
from autoscaler.lab.replay.case import Totals
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


def rate(view: ScrapedPast, counter: Counter, window_s: float) -> float:
    """Return the rate of a counter over the window, per second; 0 before two scrapes."""
    before, now = view.totals_ago(window_s), view.totals
    passed_s = now.time_s - before.time_s
    return (getattr(now, counter) - getattr(before, counter)) / passed_s if passed_s > 0 else 0.0


def ttft_quantile_s(view: ScrapedPast, q: float, window_s: float) -> float:
    """Return a quantile of TTFT in the window, in seconds; NaN without requests."""
    return float(quantile(q, TTFT, view.totals.ttft_buckets - view.totals_ago(window_s).ttft_buckets))


def itl_quantile_s(view: ScrapedPast, q: float, window_s: float) -> float:
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
