"""A large file that is read and written past the page cache (O_DIRECT), where its file system allows it.

A copy through the page cache takes several times the CPU time of the transfer, and evicts what engines on the node have
there. Blocks that O_DIRECT does not take, such as the end of a file, go through the page cache.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from errno import EINVAL, EIO, ENOENT, EOPNOTSUPP
from pathlib import Path

PIECE_BYTES = 1 << 20
BLOCK_BYTES = 4096
_REFUSED = (EINVAL, EOPNOTSUPP)


class LargeFile:
    """An open file. Its methods may be called from several threads, and raise OSError."""

    def __init__(self, path: Path, flags: int, mode: int = 0o644) -> None:
        """flags: of os.open. A link in place of the file is refused."""
        self.descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
        try:
            self._direct = _open_direct(self.descriptor, flags)
        except OSError:
            os.close(self.descriptor)
            raise

    def write(self, content: memoryview, at: int) -> None:
        """Store bytes from a position on. O_DIRECT takes only memory that begins with a page."""
        whole = len(content) - len(content) % BLOCK_BYTES if at % BLOCK_BYTES == 0 else 0
        if not whole or not self._write_direct(content[:whole], at):
            whole = 0
        _write(self.descriptor, content[whole:], at + whole)

    def read(self, at: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes between two positions in pieces; each is valid until the next one."""
        buffer = _buffer()
        while at < end:
            length = min(PIECE_BYTES, end - at)
            # A file may be shorter than its last block, so that fewer bytes than requested are no error.
            found = min(self._read_direct(buffer, at), length)
            if not found:
                found = os.preadv(self.descriptor, [buffer[:length]], at)
            if not found:
                raise OSError(EIO, "the file has become shorter")
            yield buffer[:found]
            at += found

    def sync(self) -> None:
        """Make the file last on its disk."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the file."""
        direct, self._direct = self._direct, -1
        if direct >= 0:
            os.close(direct)
        os.close(self.descriptor)

    def _write_direct(self, piece: memoryview, at: int) -> bool:
        try:
            if self._direct >= 0:
                _write(self._direct, piece, at)
                return True
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        return False

    def _read_direct(self, buffer: memoryview, at: int) -> int:
        try:
            if self._direct >= 0 and at % BLOCK_BYTES == 0:
                return os.preadv(self._direct, [buffer], at)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        return 0


def _open_direct(descriptor: int, flags: int) -> int:
    """Open the same file once more, without the page cache; -1: its file system does not allow it."""
    again = flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC) | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{descriptor}", again | os.O_DIRECT)
    except OSError as error:
        if error.errno not in (*_REFUSED, ENOENT):
            raise
        return -1


def _buffer() -> memoryview:
    """Return memory that begins with a page, as O_DIRECT requires."""
    return memoryview(mmap.mmap(-1, PIECE_BYTES))


def _write(descriptor: int, content: memoryview, at: int) -> None:
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], at + written)
