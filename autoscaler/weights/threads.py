"""Work on the disk in threads. A thread cannot be cancelled, so a cancelled task waits for the end of its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")


async def to_end(work: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Run work in a thread. If the task is cancelled meanwhile, the work still ends before this returns."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        if not task.cancelled():
            task.exception()  # nobody else asks for it
        raise
