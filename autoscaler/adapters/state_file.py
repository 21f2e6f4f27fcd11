"""The state file: learned state on disk, for the next process. Each process has its own file.

The container is that of `numpy.savez`, not compressed. It has one array for each column, with its name in
`snapshot.SCHEMA`, and the member `about`: JSON with the workloads of the rows and the format. The file contains
no code, reading it takes no more memory than its size, and checksums detect damage.

Each save writes a new file in the same directory and then renames it, so the state file is always complete. Two saves
at once use two files: the daemon may be stopped during a save.
"""

from __future__ import annotations

import asyncio
import glob
import io
import math
import os
import secrets
import stat
import struct
import tokenize
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscaler.core.snapshot import Column, Key, ManualOverride, Snapshot, blank
from autoscaler.ports import Unavailable

MAX_BYTES = 256 << 20
MAX_ABOUT_BYTES = 32 << 20
MAX_HEADER_BYTES = 4096  # of a member
MAX_WORKLOADS = 50_000
FORMAT = 2
ABOUT = "about"
SUFFIX = ".npy"  # of each member of the archive, added by numpy

_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, struct.error, msgspec.MsgspecError),
    *(tokenize.TokenError, SyntaxError, TypeError),  # numpy parses the header of a member as Python
)
"""Exceptions of zipfile, numpy and msgspec for files of another type, and for truncated or damaged ones."""


class _About(msgspec.Struct):
    format: int
    wall_s: float
    workloads: list[Key]
    holds: list[ManualOverride] = []


class StateFile:
    """A StateStore in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def load(self) -> Snapshot | None:
        """Return the content of the file, or None if there is no file. Columns of another shape or type are left out.

        Raises Unavailable, naming the file and the reason, if the file cannot be used.
        """
        return await asyncio.to_thread(self._load)

    async def save(self, snapshot: Snapshot) -> None:
        """Replace the file. Raises Unavailable; the previous file then stays."""
        await asyncio.to_thread(self._save, snapshot)

    def _load(self) -> Snapshot | None:
        try:
            with open(self._path, "rb", opener=_open_without_blocking) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ValueError("not a file")
                if status.st_size > MAX_BYTES:
                    raise ValueError(f"{status.st_size:,} bytes; allowed: at most {MAX_BYTES:,}")
                with zipfile.ZipFile(file) as archive:
                    return _read(archive)
        except FileNotFoundError:
            return None
        except _DAMAGE as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise Unavailable(f"{self._path}: {reason[:300] or type(error).__name__}") from error

    def _save(self, snapshot: Snapshot) -> None:
        about = msgspec.json.encode(
            _About(FORMAT, snapshot.wall_s, list(snapshot.workloads), list(snapshot.manual_overrides))
        )
        members: dict[str, Any] = {ABOUT: np.frombuffer(about, np.uint8), **snapshot.columns}
        size = len(about) + sum(column.nbytes for column in snapshot.columns.values())
        if size > MAX_BYTES or len(about) > MAX_ABOUT_BYTES or len(snapshot.workloads) > MAX_WORKLOADS:
            raise Unavailable(
                f"{self._path}: not written: {len(snapshot.workloads):,} workloads in {size:,} bytes; "
                f"allowed: at most {MAX_WORKLOADS:,} in {MAX_BYTES:,}"
            )
        name = self._path.name
        new = self._path.with_name(f"{name}.{secrets.token_hex(4)}.new")
        try:
            # Remove files of killed processes. A save in another thread then fails at its last step.
            for other in self._path.parent.glob(f"{glob.escape(name)}.{'?' * 8}.new"):
                other.unlink(missing_ok=True)
            try:
                with open(new, "xb", opener=_open_private) as file:
                    np.savez(file, allow_pickle=False, **members)
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(self._path)
            finally:
                new.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"{self._path}: not written: {error.strerror or error}") from error


def _open_without_blocking(path: str, flags: int) -> int:
    """Open without blocking, which a named pipe in place of the file would do."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _read(archive: zipfile.ZipFile) -> Snapshot:
    """Raises the exceptions in `_DAMAGE`."""
    about = _array(archive, archive.getinfo(ABOUT + SUFFIX), np.empty(0, np.uint8), None)
    if about is None:
        raise ValueError("it does not name the workloads of its rows")
    header = msgspec.json.decode(about.tobytes(), type=_About)
    if header.format != FORMAT:
        raise ValueError(f"format {header.format}; this version reads {FORMAT}")
    if len(header.workloads) > MAX_WORKLOADS:
        raise ValueError(f"{len(header.workloads):,} workloads; allowed: at most {MAX_WORKLOADS:,}")
    if not math.isfinite(header.wall_s):
        raise ValueError(f"it was written at {header.wall_s}, which is not a time")
    columns = _columns(archive, len(header.workloads))
    return Snapshot(tuple(header.workloads), header.wall_s, columns, tuple(header.holds))


def _columns(archive: zipfile.ZipFile, rows: int) -> dict[str, Column]:
    members = {info.filename.removesuffix(SUFFIX): info for info in archive.infolist()}
    columns: dict[str, Column] = {}
    for name, empty in blank().items():
        column = _array(archive, members[name], empty, rows) if name in members else None
        # No stored number is negative. A negative sum would make this tick and all later ones fail.
        if column is not None and not (np.isinf(column) | (column < 0)).any():
            columns[name] = column
    return columns


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, like: Any, rows: int | None) -> Any:
    """Return a member with the type and shape of `like`, except for its last axis; None: it has another type or shape.

    rows: length of the last axis; None: any. The whole member is read, so its checksum is verified.
    """
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename[:100]!r} is compressed")
    allowed = MAX_ABOUT_BYTES if rows is None else rows * like.itemsize * math.prod(like.shape[:-1])
    if member.file_size > allowed + MAX_HEADER_BYTES:
        return None
    body = io.BytesIO(archive.read(member))
    if np.lib.format.read_magic(body) != (1, 0):
        return None
    shape, by_column, dtype = np.lib.format.read_array_header_1_0(body)
    if dtype != like.dtype or len(shape) != like.ndim or shape[:-1] != like.shape[:-1]:
        return None
    if rows is not None and shape[-1] != rows:
        return None
    values = np.frombuffer(body.getbuffer()[body.tell() :], dtype)
    if values.size != math.prod(shape):
        raise ValueError(f"{member.filename[:100]!r} does not have the size in its header")
    return values.reshape(shape, order="F" if by_column else "C")
