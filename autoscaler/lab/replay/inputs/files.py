"""Files of lines, plain or compressed with gzip."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

MOST_BYTES = 4_000_000_000  # of one file, after decompression


@contextmanager
def open_decompressed(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], float]]]:
    """Open a file and decompress gzip. Raises OSError.

    Yields the file, and a function that returns the fraction of its bytes read so far, 0..1; for a pipe always 1.
    """
    with path.open("rb") as plain:
        compressed = plain.peek(2)[:2] == b"\x1f\x8b"
        size = os.fstat(plain.fileno()).st_size
        file = cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if compressed else plain
        yield file, lambda: plain.tell() / size if size else 1.0
