"""Disks that hang for real, so that threads wait in the kernel and no signal ends the wait; and disks that are full."""

from __future__ import annotations

import os
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

FUSE_INIT = 26
DISK_BYTES = 64 << 20


@contextmanager
def freezable(folder: Path, image: Path) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Mount a file system of its own. Yield a function that freezes it for a block: reads go on, and writes wait."""
    folder.mkdir(exist_ok=True)
    with image.open("wb") as opened:
        opened.truncate(DISK_BYTES)
    _run("mkfs.ext4", "-q", "-E", "nodiscard", str(image))
    _run("mount", "-o", "loop", str(image), str(folder))

    @contextmanager
    def freeze() -> Iterator[None]:
        _run("fsfreeze", "-f", str(folder))
        try:
            yield
        finally:
            _run("fsfreeze", "-u", str(folder))

    try:
        yield freeze
    finally:
        _run("umount", "-l", str(folder))


@contextmanager
def hung(folder: Path) -> Iterator[None]:
    """Mount a file system over a folder that answers nothing. What waits for it gets an error at the end."""
    connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={connection},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    try:
        subprocess.run(
            ["mount", "-i", "-t", "fuse", "-o", options, "hung", str(folder)],
            check=True,
            capture_output=True,
            pass_fds=[connection],
        )
        answer = threading.Thread(target=_begin, args=(connection,))
        answer.start()
        answer.join()
        yield
    finally:
        os.close(connection)  # ends all requests with an error
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def _begin(connection: int) -> None:
    """Answer the first request of the kernel, which opens the connection."""
    request = os.read(connection, 1 << 20)
    _, operation, unique = struct.unpack_from("<IIQ", request)
    assert operation == FUSE_INIT
    body = struct.pack("<IIIIHHIIHH8I", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, *[0] * 8)
    os.write(connection, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a file system with room for this many bytes. Raises CalledProcessError if this process may not."""
    folder.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield
    finally:
        _run("umount", "-l", str(folder))


def may_freeze() -> bool:
    """Tell whether this process may make such disks: not in most containers."""
    try:
        with TemporaryDirectory() as name, freezable(Path(name) / "disk", Path(name) / "image") as freeze, freeze():
            pass
        with TemporaryDirectory() as name, hung(Path(name)):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
