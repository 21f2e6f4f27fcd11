"""Files of lines, plain or packed with gzip, and how far they were read."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

Told = Callable[[float], None]  # how much is done, 0..1

MOST_BYTES = 4_000_000_000  # of one file, after decompression


def untold(_share: float) -> None:
    """Tell nobody."""


def part_of(told: Told, number: int, count: int) -> Told:
    """Return what tells how much of part `number` (from 0) of `count` equal ones is done."""
    return lambda share: told((number + share) / count)


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], float]]]:
    """Open a file; also gives what says which share of its bytes was read: all, of a pipe. Raises OSError."""
    with path.open("rb") as plain:
        packed = plain.peek(2)[:2] == b"\x1f\x8b"
        size = os.fstat(plain.fileno()).st_size
        file = cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if packed else plain
        yield file, lambda: plain.tell() / size if size else 1.0
