"""A clock faster than real time, so that a day fits into minutes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import structlog

from autoscaler.ports import TickRecord

log = structlog.get_logger(__name__)

DAY_S = 86_400.0
MONDAY_WALL_S = 1_780_272_000.0  # Monday 2026-06-01 00:00 UTC, fixed so that schedules and charts of one seed repeat
MORNING_S = 8.0 * 3600  # the start of a working day


class CompressedClock:
    """Implements `ports.Clock` at `speed` times real time, or slower while it is held.

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
        self._most_s = math.inf
        self.dropped_s = 0.0  # simulated seconds that passed while it was held

    def now_s(self) -> float:
        now_s = self._start_s + (self._real_s() - self._real_start_s) * self.speed
        if now_s > self._most_s:  # the time beyond it is dropped, not made up for
            self._real_start_s += (now_s - self._most_s) / self.speed
            self.dropped_s += now_s - self._most_s
            return self._most_s
        return now_s

    def hold_at(self, most_s: float) -> None:
        """Stand still at `most_s` until the next call, so that what cannot keep up is not left behind."""
        self._most_s = max(most_s, self.now_s())

    def wall_s(self) -> float:
        return MONDAY_WALL_S + self.now_s()

    async def sleep(self, duration_s: float) -> None:
        """Wait `duration_s` simulated seconds."""
        until_s = self.now_s() + max(duration_s, 0.0)
        await asyncio.sleep(max(duration_s, 0.0) / self.speed)
        while (left_s := until_s - self.now_s()) > 1e-6:  # noqa: ASYNC110 (it was held; no event tells when it goes on)
            await asyncio.sleep(max(left_s / self.speed, 0.01))


class Pace:
    """Holds the clock where simulation or decision loop cannot keep up, so that a slow machine sees a slower demo.

    A recorder: after each tick the clock goes on by at most `tick_s` simulated seconds until the next one.
    """

    AHEAD_S = 10.0  # of the simulation
    SLOW_S = 60.0  # dropped before it is logged

    def __init__(self, clock: CompressedClock, tick_s: float) -> None:
        self._clock = clock
        self._tick_s = tick_s
        self._simulated_s = self._ticked_s = math.inf
        self._told = False

    def simulated(self, to_s: float) -> None:
        """Take note that the simulation has reached `to_s`."""
        self._simulated_s = to_s
        self._hold()

    def record(self, tick: TickRecord) -> None:
        self._ticked_s = self._clock.now_s()
        self._hold()

    def failed(self, wall_s: float, error: BaseException) -> None:
        self._ticked_s = self._clock.now_s()
        self._hold()

    def _hold(self) -> None:
        self._clock.hold_at(min(self._simulated_s + self.AHEAD_S, self._ticked_s + self._tick_s))
        if not self._told and self._clock.dropped_s > self.SLOW_S:
            self._told = True
            log.warning(f"this machine is too slow for {self._clock.speed:g} times real time: the clock waits for it")
