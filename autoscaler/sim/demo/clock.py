"""A clock faster than real time, so that a day fits into minutes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

DAY_S = 86_400.0
MONDAY_WALL_S = 1_780_272_000.0  # Monday 2026-06-01 00:00 UTC, fixed so that schedules and charts of one seed repeat
MORNING_S = 8.0 * 3600  # the start of a working day


class CompressedClock:
    """Implements `ports.Clock` at `speed` times real time.

    `now_s` counts seconds since midnight of the first simulated day and starts at `start_s`, so its remainder by
    `DAY_S` is the time of day. `real_s` returns the real time in seconds; it must not decrease.
    """

    def __init__(
        self,
        speed: float = 60.0,
        start_s: float = MORNING_S,
        real_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError(f"speed is {speed:g}; it must be a finite number above 0")
        if not (math.isfinite(start_s) and start_s >= 0):
            raise ValueError(f"start_s is {start_s:g}; it must be a finite number of seconds, 0 or more")
        self.speed = speed
        self._start_s = start_s
        self._real_s = real_s
        self._real_start_s = real_s()

    def now_s(self) -> float:
        return self._start_s + (self._real_s() - self._real_start_s) * self.speed

    def wall_s(self) -> float:
        return MONDAY_WALL_S + self.now_s()

    async def sleep(self, duration_s: float) -> None:
        """Wait `duration_s` simulated seconds."""
        await asyncio.sleep(max(duration_s, 0.0) / self.speed)
