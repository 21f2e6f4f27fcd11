"""Real time."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """The clocks of the operating system."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)
