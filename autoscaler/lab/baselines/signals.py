"""Signals of baselines: totals, rates and quantiles over windows, as their queries compute them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import quantile
from autoscaler.lab.baselines.past import ScrapedPast
from autoscaler.lab.replay.case import Totals
from autoscaler.sim.engine.metrics import REQUEST_BOUNDS_S, TOKEN_GAP_BOUNDS_S, TTFT_BOUNDS_S

TTFT = np.array([*TTFT_BOUNDS_S, np.inf])
GAPS = np.array([*TOKEN_GAP_BOUNDS_S, np.inf])
REQUEST = np.array([*REQUEST_BOUNDS_S, np.inf])
BOUNDS: Mapping[str, FloatColumn] = MappingProxyType(
    {
        "ttft": TTFT,
        "itl": GAPS,
        "tpot": GAPS,
        **dict.fromkeys(("e2e", "queue", "inference", "prefill", "decode"), REQUEST),
    }
)
"""Bounds of the buckets of each latency of `Totals`."""

Counter = Literal["arrivals", "finished", "first_tokens", "prompt_tokens", "generation_tokens"]


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
    return _quantile_s(view, "ttft", q, window_s)


def itl_quantile_s(view: ScrapedPast, q: float, window_s: float) -> float:
    """Return a quantile of the gaps between tokens in the window, in seconds; NaN without gaps."""
    return _quantile_s(view, "itl", q, window_s)


def _quantile_s(view: ScrapedPast, latency: str, q: float, window_s: float) -> float:
    before, now = (totals.latencies[latency].counts for totals in (view.totals_ago(window_s), view.totals))
    return float(quantile(q, BOUNDS[latency], now - before))


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
