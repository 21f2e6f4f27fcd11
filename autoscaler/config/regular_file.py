"""Files that others name or write: read without waiting for a pipe or a device in their place."""

from __future__ import annotations

import os
import stat
from errno import EINVAL
from pathlib import Path


class NotRegularError(OSError):
    """A path is a folder, a pipe or a device."""

    def __init__(self) -> None:
        super().__init__(EINVAL, "not a regular file")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the first bytes of a regular file. Raises OSError, and ValueError for a path with a null character."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularError
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return opened.read(most_bytes)
    finally:
        os.close(descriptor)
