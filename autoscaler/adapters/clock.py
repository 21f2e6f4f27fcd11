"""Real time."""

from __future__ import annotations

import asyncio
import time

# CLOCK_BOOTTIME, where available, also counts while the machine is suspended, when leases expire and readings age.
_MONOTONIC: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clocks of the operating system."""

    def now_s(self) -> float:
        return time.clock_gettime(_MONOTONIC)

    def wall_s(self) -> float:
        return time.time()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)
