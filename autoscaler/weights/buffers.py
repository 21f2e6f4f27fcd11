"""Memory for ranges of files, used again for the next range: fresh pages cost a third of the CPU time of a transfer."""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress

RANGE_BYTES = 8 << 20
_free: list[mmap.mmap] = []


def new_buffer(length: int) -> memoryview:
    """Return memory that begins with a page, as direct writes to a disk require.

    It is given back with this view; no slice of it may live longer.
    """
    if not RANGE_BYTES // 2 < length <= RANGE_BYTES:
        return memoryview(mmap.mmap(-1, max(length, 1)))[:length]
    try:
        memory = _free.pop()
    except IndexError:
        memory = mmap.mmap(-1, RANGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # of a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)[:length]
    weakref.finalize(view, _free.append, memory).atexit = False
    return view


def free_buffers() -> None:
    """Give the memory that no range uses back to the system."""
    _free.clear()
