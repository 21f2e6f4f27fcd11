"""Large files are read and written past the page cache, whole blocks and the rest alike."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from autoscaler.weights.large_file import BLOCK_BYTES, PIECE_BYTES, LargeFile


@pytest.fixture(params=["disk", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A path on a disk, and one on a file system in memory, which allows O_DIRECT in some kernels only."""
    if request.param == "disk":
        yield tmp_path / "file"
    else:
        with TemporaryDirectory(dir="/dev/shm") as folder:
            yield Path(folder) / "file"


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, PIECE_BYTES, 2 * PIECE_BYTES + BLOCK_BYTES + 7])
@pytest.mark.parametrize("at", [0, 3, BLOCK_BYTES])
def test_bytes_that_were_written_are_read(path: Path, size: int, at: int) -> None:
    content = random.Random(size).randbytes(size)
    with closing(LargeFile(path, os.O_RDWR | os.O_CREAT)) as opened:
        opened.write(memoryview(content), at)
        opened.sync()
        assert b"".join(bytes(piece) for piece in opened.read(at, at + size)) == content
    assert path.read_bytes()[at:] == content


def test_file_that_has_become_shorter_is_an_error(path: Path) -> None:
    path.write_bytes(b"x" * (BLOCK_BYTES + 5))
    with closing(LargeFile(path, os.O_RDONLY)) as opened, pytest.raises(OSError, match="has become shorter"):
        list(opened.read(0, 2 * BLOCK_BYTES))


def test_link_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    (tmp_path / "file").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        LargeFile(tmp_path / "file", os.O_RDWR)
