"""Readings of a real server that no busy machine has disturbed."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.harness.promql import PromqlServer

Found = TypeVar("Found")
FAILED = "min_over_time(up[5s]) == 0"


async def undisturbed(server: PromqlServer, read: Callable[[], Awaitable[Found]]) -> Found:
    """Return what was read while no scrape failed.

    A scrape has a second, and all series of its target end if it takes longer.
    """
    while True:
        found = await read()
        await server.flush()
        if not await server.query(FAILED):
            return found
        await server.wait_for(f"absent({FAILED})")
