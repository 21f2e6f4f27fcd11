"""Real time."""

from __future__ import annotations

import asyncio
import time

# Where there is one, a clock that goes on while the machine is suspended: a lease runs out and readings age meanwhile.
_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clocks of the operating system."""

    def now_s(self) -> float:
        return time.clock_gettime(_STEADY)

    def wall_s(self) -> float:
        return time.time()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)
