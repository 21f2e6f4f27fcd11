"""Small files on a disk on which others may write too: a link or a pipe in place of a file is never followed."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from contextlib import suppress
from errno import EINVAL
from pathlib import Path

from autoscaler.config.findings import shown
from autoscaler.weights.problems import WeightsCause, WeightsError


def read_small(path: Path, most_bytes: int) -> tuple[bytes, float]:
    """Return the first bytes of a file, and when it was last changed, Unix time. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(EINVAL, "it is no file")
        return opened.read(most_bytes), found.st_mtime


def write_small(path: Path, content: bytes) -> None:
    """Write a file as a whole, and make it last. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    with aside.open("xb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    aside.rename(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Make the names in a folder last. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def within(root: Path, path: Path) -> Path:
    """Return a path, unless links lead out of the root. Raises WeightsError and OSError.

    Ask before each change: `mkdir`, `unlink` and `utime` follow the links in place of folders.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise WeightsError(WeightsCause.DISK, f"{shown(str(path))} leads out of {shown(str(root))}")
    return path


def remove_tree(folder: Path) -> None:
    """Remove a folder, however deep it is. What cannot be removed stays."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        with suppress(OSError):
            _make_flat(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _make_flat(top: Path) -> None:
    """Move all folders below one directly into it. No link is followed. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    root = os.open(top, flags)
    try:
        waiting = _folders(root)
        while waiting:
            with suppress(OSError):
                folder = os.open(waiting.pop(), flags, dir_fd=root)
                try:
                    for name in _folders(folder):
                        moved = secrets.token_hex(16)
                        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=root)
                        waiting.append(moved)
                finally:
                    os.close(folder)
    finally:
        os.close(root)


def _folders(descriptor: int) -> list[str]:
    with os.scandir(descriptor) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
