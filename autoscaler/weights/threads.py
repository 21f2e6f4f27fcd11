"""Work on the disk in threads. A thread cannot be cancelled, so a cancelled task waits for the end of its thread.

A disk that does not answer holds threads of this pool only. Others, such as those that look names up, go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")

MAX_THREADS = 64
_disk = ThreadPoolExecutor(MAX_THREADS, "disk")


def in_thread(work: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs) -> asyncio.Future[Result]:
    """Run work in a thread. If the task that awaits it is cancelled, the work goes on alone."""
    return asyncio.get_running_loop().run_in_executor(_disk, partial(work, *args, **kwargs))


async def to_end(work: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Run work in a thread. If the task is cancelled meanwhile, the work still ends before this returns."""
    task = in_thread(work, *args, **kwargs)
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


@asynccontextmanager
async def entered(context: AbstractContextManager[Result]) -> AsyncIterator[Result]:
    """Enter and leave a context in threads. It does not see errors of the block."""
    with_exit = ExitStack()
    try:
        yield await to_end(with_exit.enter_context, context)
    finally:
        await to_end(with_exit.close)
