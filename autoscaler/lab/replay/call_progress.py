"""How a long call reports the share of its work that is done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float], None]  # called with the share that is done, 0..1


def no_progress(_share: float) -> None:
    """Ignore progress."""


def part_progress(progress: Progress, number: int, count: int) -> Progress:
    """Return a callback for part `number` (from 0) of `count` equal parts, which reports to `progress`."""
    return lambda share: progress((number + share) / count)
