"""Time that passes in the event loop of a test at once, so that no test waits for a deadline."""

import asyncio


def pass_time(seconds: float) -> None:
    """Let this many seconds pass in the running loop: all its timers that end within them end now."""
    loop = asyncio.get_running_loop()
    now_s = loop.time
    loop.time = lambda: now_s() + seconds  # type: ignore[method-assign]
