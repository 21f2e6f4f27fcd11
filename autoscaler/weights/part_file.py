"""A file that is being fetched: its bytes, and a journal of the ranges that are there, which survives a crash.

Data that a process has written outlives the process, but not the node. So a journal from before the last boot is void.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from autoscaler.weights.large_file import LargeFile
from autoscaler.weights.listing import RemoteFile
from autoscaler.weights.problems import disk_error

_DONE = b"1"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PartFile:
    """The part of one file that has been fetched. Its methods may be called from several threads."""

    def __init__(self, file: RemoteFile, data: Path, range_bytes: int, held: threading.Semaphore) -> None:
        """data: path of the file; its journal is beside it. Raises WeightsError.

        held: ranges of all files that wait in memory for those before them in the checksum. Others are read again.
        """
        self.file = file
        self.data = data
        self._journal = data.with_name(f"{data.name}.ranges")
        self._range_bytes = range_bytes
        self._ranges = -(-file.size // range_bytes)
        self._lock = threading.Lock()
        self._hashing = threading.Lock()
        self._may_hold = held
        self._held: dict[int, memoryview] = {}
        self._next: tuple[int, memoryview] | None = None  # the range that the checksum needs now: it waits for none
        self._digest = file.new_digest()
        self._digested = 0  # ranges in the digest, from the first on
        try:
            self._done = self._open()
        except OSError as error:
            raise disk_error(error, f"cannot open {data.name}") from error

    def _open(self) -> bytearray:
        header = f"{self.file.identity} {self._range_bytes} {_boot_id()}\n".encode()
        done = bytearray(self._ranges)
        flags = os.O_RDWR | os.O_CREAT
        for path in (self.data, self._journal):
            if path.exists() and path.stat().st_nlink > 1:
                path.unlink()  # its content has another name, such as that of a published file, and must not change
        self._data = LargeFile(self.data, flags)
        self._journal_fd = os.open(self._journal, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        found = os.pread(self._journal_fd, len(header) + self._ranges, 0)
        if found.startswith(header) and os.fstat(self._data.descriptor).st_size == self.file.size:
            for number, mark in enumerate(found[len(header) :]):
                done[number] = mark == _DONE[0]
        else:
            os.ftruncate(self._journal_fd, 0)
            os.ftruncate(self._data.descriptor, 0)
            if self.file.size:
                os.posix_fallocate(self._data.descriptor, 0, self.file.size)
            os.pwrite(self._journal_fd, header, 0)
        self._marks_at = len(header)
        return done

    @property
    def fetched_bytes(self) -> int:
        """Bytes of the file that are there."""
        return sum(self.length(number) for number in range(self._ranges) if self._done[number])

    def missing(self) -> list[int]:
        """Return the ranges that are not there yet, by number."""
        return [number for number in range(self._ranges) if not self._done[number]]

    def start(self, number: int) -> int:
        """Return the first byte of a range."""
        return number * self._range_bytes

    def length(self, number: int) -> int:
        """Return the bytes of a range."""
        return min(self._range_bytes, self.file.size - self.start(number))

    def write(self, number: int, content: memoryview) -> None:
        """Store a range, and add to the checksum what it completes. Raises WeightsError."""
        try:
            self._data.write(content, self.start(number))
            os.pwrite(self._journal_fd, _DONE, self._marks_at + number)
        except OSError as error:
            raise disk_error(error, f"cannot write {self.file.path!r}") from error
        with self._lock:
            self._done[number] = 1
            if self.file.digest and number == self._digested:
                self._next = number, content
            elif self.file.digest and self._may_hold.acquire(blocking=False):
                self._held[number] = content
        # A thread that hashes already adds this range too, or `digest` does.
        if self.file.digest and self._hashing.acquire(blocking=False):
            try:
                self._digest_ranges()
            finally:
                self._hashing.release()

    def digest(self) -> str:
        """Return the checksum of the whole file in hexadecimal digits, once all ranges are there."""
        with self._hashing:
            self._digest_ranges()
            return str(self._digest.hexdigest())

    def sync(self) -> None:
        """Make the file last on its disk. Raises WeightsError."""
        try:
            self._data.sync()
        except OSError as error:
            raise disk_error(error, f"cannot write {self.file.path!r}") from error

    def close(self) -> None:
        """Close the file and its journal. Both stay on the disk."""
        for number in list(self._held):
            self._take(number)
        self._data.close()
        os.close(self._journal_fd)

    def discard_journal(self) -> None:
        """Forget which ranges are there: the file is complete, or wrong."""
        self._journal.unlink(missing_ok=True)

    def _take(self, number: int) -> memoryview | None:
        """Return a range from memory, and let another one stay there; None: it has to be read again."""
        with self._lock:
            if self._next is not None and self._next[0] == number:
                content, self._next = self._next[1], None
                return content
            if number not in self._held:
                return None
            content = self._held.pop(number)
        self._may_hold.release()
        return content

    def _digest_ranges(self) -> None:
        try:
            while self._digested < self._ranges and self._done[self._digested]:
                content = self._take(self._digested)
                start = self.start(self._digested)
                end = start + self.length(self._digested)
                for piece in self._data.read(start, end) if content is None else [content]:
                    self._digest.update(piece)
                self._digested += 1
        except OSError as error:
            raise disk_error(error, f"cannot read {self.file.path!r}") from error


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
