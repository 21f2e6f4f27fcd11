"""How much work code does, counted in calls: the same on every machine and however busy it is, unlike seconds."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Calls:
    """`made`: calls of functions, Python's and C's, until the block that counts them ends."""

    made: int = 0


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count the calls of this thread inside the block, and none of what others left to the garbage collector."""
    calls = Calls()

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            calls.made += 1

    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
