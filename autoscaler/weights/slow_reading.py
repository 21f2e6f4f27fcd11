"""Read a model slowly, to compare its checksums: engines read the same disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from autoscaler.weights.fetch import Progress
from autoscaler.weights.store import Model
from autoscaler.weights.threads import in_thread


class _Stopped(Exception):
    """The task has ended while its thread reads."""


async def read_slowly(verify: Callable[[Model, Progress], list[str]], model: Model, bytes_per_s: float) -> list[str]:
    """Return what `verify` finds wrong with a model, which it reads at most so fast."""
    begun_s, read, stop = time.monotonic(), 0, threading.Event()

    def progress(count: int) -> None:
        nonlocal read
        read += count
        if stop.wait(max(begun_s + read / bytes_per_s - time.monotonic(), 0.0)):
            raise _Stopped

    def work() -> list[str]:
        try:
            return verify(model, progress)
        except _Stopped:
            return []

    try:
        return await in_thread(work)
    finally:
        stop.set()  # the thread only reads, so nothing waits for its end
