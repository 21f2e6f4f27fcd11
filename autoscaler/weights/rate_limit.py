"""A limit on bytes per second, shared by all transfers: a token bucket that lends one range at a time."""

from __future__ import annotations

import asyncio


class RateLimit:
    """At most so many bytes per second on average. A range may start as soon as those before it are paid for."""

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"bytes_per_s is {bytes_per_s}; allowed: above 0")
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, length: int) -> None:
        """Wait until a range of this many bytes may start."""
        now_s = asyncio.get_running_loop().time()
        start_s = max(now_s, self._free_at_s)
        self._free_at_s = start_s + length / self._bytes_per_s
        await asyncio.sleep(start_s - now_s)
