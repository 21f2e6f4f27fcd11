"""Knative's pod autoscaler (KPA): a mean over a stable window, and over a short window in panic mode.

Source: knative/serving at 15413ab, pkg/autoscaler/scaling/autoscaler.go, and config-autoscaler. Tick 2 s. Up at most
1000-fold, down at most by half. Scale to zero after the stable window and at most 30 s of grace.
"""

from __future__ import annotations

import math
from collections import deque

from autoscaler.config.rules.rule import Knative
from autoscaler.lab.baselines.past import ScrapedPast
from autoscaler.lab.baselines.signals import MovingMean

TICK_S = 2.0
MAX_UP_RATE = 1000.0
MAX_DOWN_RATE = 2.0
GRACE_S = 30.0


class KnativeAutoscaler:
    """Counts requests as its proxies do, without a scrape; requests per second as they are scraped."""

    period_s = TICK_S

    def __init__(self, settings: Knative, start_replicas: int) -> None:
        self._settings, self._target = settings, settings.target * settings.utilization
        self._stable = MovingMean(settings.window_s)
        self._panic = MovingMean(max(settings.window_s * settings.panic_share, TICK_S))
        # its autoscaler starts in panic mode with several replicas
        self._panic_s: float | None = 0.0 if start_replicas > 1 else None
        self._panic_replicas = start_replicas if start_replicas > 1 else 0
        self._idle_since_s: float | None = None
        self._delayed: deque[tuple[float, int]] = deque()

    def step(self, now_s: float, past: ScrapedPast, current: int) -> int:
        """Return the wanted count. current: spec.replicas."""
        value = _request_rate(past) if self._settings.counts_rate else past.live_concurrency()
        stable, panic = self._stable.add(now_s, value), self._panic.add(now_s, value)
        return self._bound(now_s, current, self._delay(now_s, self.scale(now_s, past.ready, stable, panic)))

    def scale(self, now_s: float, ready: int, stable: float, panic: float) -> int:
        """Return the count for the mean in both windows."""
        ready, settings = max(ready, 1), self._settings
        highest, lowest = math.ceil(MAX_UP_RATE * ready), math.floor(ready / MAX_DOWN_RATE)
        for_stable, for_panic = math.ceil(stable / self._target), math.ceil(panic / self._target)
        desired = min(max(for_stable, lowest, settings.activation if for_stable else 0), highest)
        if for_panic / ready >= settings.panic_threshold:
            self._panic_s = now_s
        elif self._panic_s is not None and now_s - self._panic_s > settings.window_s:
            self._panic_s, self._panic_replicas = None, 0
        if self._panic_s is None:
            return desired
        panicking = min(max(for_panic, lowest, settings.activation if for_panic else 0), highest)
        self._panic_replicas = max(self._panic_replicas, desired, panicking)
        return self._panic_replicas  # no scale-down in panic mode

    def _delay(self, now_s: float, desired: int) -> int:
        """Return the largest count within the scale-down delay."""
        self._delayed.append((now_s, desired))
        while now_s - self._delayed[0][0] >= max(self._settings.down_delay_s, TICK_S / 2):
            self._delayed.popleft()
        return max(count for _, count in self._delayed)

    def _bound(self, now_s: float, current: int, desired: int) -> int:
        """Keep the last replica through the grace period, and clamp the count."""
        settings = self._settings
        if desired > 0:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        kept_s = max(GRACE_S, settings.retention_s)
        graced = self._idle_since_s is not None and now_s - self._idle_since_s < kept_s
        graced |= now_s < settings.window_s  # part of the window lies before the run
        least = max(settings.least, 1 if graced and current > 0 else 0)
        return int(min(max(desired, least), settings.most))


def _request_rate(past: ScrapedPast) -> float:
    """Return the requests per second between the last two scrapes; 0 before two."""
    now = past.totals
    before = past.totals_ago(past.now_s - now.time_s + 1e-3)
    passed_s = now.time_s - before.time_s
    return (now.arrivals - before.arrivals) / passed_s if passed_s > 0 else 0.0
