"""The folder of a record: its files, who may write, and what is removed when it is full."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from autoscaler.adapters.record.file import SUFFIX
from autoscaler.ports import Unavailable

LOCK, HISTORY = "lock", "history.db"
NAME = re.compile(rf"\d{{12}}_\d{{4}}-\d\d-\d\d{re.escape(SUFFIX)}", re.ASCII)
FILES_MOST = 10_000


def prepare(folder: Path) -> None:
    """Create the folder, if its parent exists, or check that it is safe to write to.

    Raises Unavailable, which names the folder, what is wrong, and what is allowed.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise Unavailable(f"--record {folder}: cannot be created: {error.strerror}") from error
    state = folder.lstat()
    allowed = "allowed: a folder of its own that other users cannot write to, or a name that is free"
    if stat.S_ISLNK(state.st_mode):
        raise Unavailable(f"--record {folder}: is a symbolic link; {allowed}")
    if not stat.S_ISDIR(state.st_mode):
        raise Unavailable(f"--record {folder}: is not a folder; {allowed}")
    if state.st_uid not in (0, os.getuid()):
        raise Unavailable(f"--record {folder}: belongs to another user, {state.st_uid}; {allowed}")
    if state.st_mode & stat.S_IWOTH:
        raise Unavailable(f"--record {folder}: every user can write to it; {allowed}, such as {folder / 'record'}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Unavailable(f"--record {folder}: is not writable; {allowed}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only writer of a folder. Raises Unavailable if another process writes to it."""
    try:
        lock = os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"--record {folder}: {LOCK} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Unavailable(f"--record {folder}: another process writes to it; each process needs its own") from None
    finally:
        os.close(lock)


def files(folder: Path) -> list[Path]:
    """Return the files of a record, oldest first. Raises Unavailable."""
    return [path for path in _databases(folder) if NAME.fullmatch(path.name)]


def foreign_files(folder: Path) -> list[Path]:
    """Return other databases in the folder. They are neither read nor removed. Raises Unavailable."""
    return [path for path in _databases(folder) if not NAME.fullmatch(path.name)]


def _databases(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, 2 * FILES_MOST) if entry.name.endswith(SUFFIX)]
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror or error}") from error
    if len(names) > FILES_MOST:
        raise Unavailable(f"{folder}: more than {FILES_MOST:,} files")
    return [folder / name for name in sorted(names)]


def name_of(first: int, at_s: float) -> str:
    """Return the name of the file that begins with this tick. Names are in the order of ticks."""
    return f"{first:012d}_{day_of(at_s)}{SUFFIX}"


def day_of(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def remove(path: Path) -> bool:
    """Remove a file; False: it is gone or cannot be removed."""
    with suppress(OSError):
        path.unlink()
        return True
    return False


def first_of(path: Path) -> int:
    """Return the number of the tick with which a file begins, by its name."""
    return int(path.name.partition("_")[0])


def day_of_name(path: Path) -> str:
    return path.stem.partition("_")[2]


def total_bytes(folder: Path) -> int:
    """Return the size of all files of a record, with the journals of writes under way."""
    total = 0
    for path in (*files(folder), folder / HISTORY):
        for each in (path, path.with_name(f"{path.name}-journal")):
            with suppress(FileNotFoundError):
                total += each.lstat().st_size
    return total
