"""A task that is cancelled ends after its thread, so that no thread works on what its task has closed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from autoscaler.weights.threads import to_end


async def test_result_and_error_come_through() -> None:
    assert await to_end(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await to_end(divmod, 7, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_cancelled_task_waits_for_its_thread(fails: bool) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)
        ended.set()
        if fails:
            raise OSError("too late")

    task = asyncio.ensure_future(to_end(work))
    await asyncio.to_thread(begun.wait, 30)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
