"""Compare the checksums of a model slowly: engines of the node read from the same disk."""

from __future__ import annotations

import threading
import time

from autoscaler.weights.store import PublishedModel, WeightStore


class _Stopped(Exception):
    """The process ends while a checksum is computed."""


def verify_slowly(store: WeightStore, model: PublishedModel, bytes_per_s: float, stop: threading.Event) -> list[str]:
    """Read a model whole, and return what is wrong with its files; []: nothing is, or `stop` was set meanwhile."""
    begun_s, read = time.monotonic(), 0

    def progress(count: int) -> None:
        nonlocal read
        read += count
        ahead_s = begun_s + read / bytes_per_s - time.monotonic()
        if stop.wait(max(ahead_s, 0.0)):
            raise _Stopped

    try:
        return store.verify(model, progress)
    except _Stopped:
        return []
