"""Fetch the files of a model in parallel ranges, resume what an earlier process began, and verify every file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from autoscaler.config.findings import shown
from autoscaler.weights.disk import read_small, write_small
from autoscaler.weights.large_file import LargeFile
from autoscaler.weights.listing import Listing, Origin, RemoteFile
from autoscaler.weights.part_file import RANGE_BYTES, PartFile
from autoscaler.weights.problems import Cause, WeightsError, disk_error
from autoscaler.weights.rate_limit import RateLimit

MAX_HEADER_BYTES = 100 << 20
"""Longest header of a file of safetensors."""

MAX_MARK_BYTES = 64 << 10

Progress = Callable[[int], None]
"""Called with further bytes that are there, fetched or found."""

Present = Callable[[RemoteFile], Path | None]
"""Returns where the disk may have a file already."""


class Transfer(NamedTuple):
    """How files are fetched."""

    workers: int = 8  # ranges at a time; their bytes are in memory, and as many that wait for their checksum
    range_bytes: int = RANGE_BYTES
    rate: RateLimit | None = None  # None: as fast as it goes


class _Work(NamedTuple):
    """What the files of one transfer share."""

    origin: Origin
    transfer: Transfer
    waiting: asyncio.Semaphore  # of ranges
    most_held: int  # ranges of a file that wait in memory for their checksum
    progress: Progress
    present: Present


async def fetch(
    origin: Origin, listing: Listing, folder: Path, transfer: Transfer, progress: Progress, present: Present
) -> list[Path]:
    """Fetch all files into a folder, and return their paths there, in the order of the listing. Raises WeightsError.

    The folder holds nothing else. A file whose checksum is wrong is kept aside, and fetched once more. A file that the
    disk has already is not fetched, if it has the checksum that the origin states.
    """
    most_held = -(-transfer.workers // max(min(transfer.workers, len(listing.files)), 1))
    work = _Work(origin, transfer, asyncio.Semaphore(transfer.workers), most_held, progress, present)
    paths = [folder / hashlib.sha256(file.path.encode()).hexdigest()[:32] for file in listing.files]
    try:
        async with asyncio.TaskGroup() as group:
            files = asyncio.Semaphore(transfer.workers)
            for file, path in zip(listing.files, paths, strict=True):
                await files.acquire()
                task = group.create_task(_fetch_verified(work, file, path))
                task.add_done_callback(lambda _: files.release())
    except* WeightsError as errors:
        raise _first(errors) from None
    return paths


def _first(errors: BaseExceptionGroup[WeightsError]) -> WeightsError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _fetch_verified(work: _Work, file: RemoteFile, path: Path) -> None:
    verified = path.with_name(f"{path.name}.verified")
    if await asyncio.to_thread(_is_verified, verified, file, path) or await asyncio.to_thread(
        _adopt, work.present(file), file, path, verified
    ):
        work.progress(file.size)
        return
    for attempt in range(2):
        wrong = await _fetch_once(work, file, path)
        if not wrong:
            await asyncio.to_thread(_write_mark, verified, file)
            return
        await asyncio.to_thread(_set_aside, path)
        if attempt == 0:
            work.progress(-file.size)
    raise WeightsError(Cause.CORRUPT, f"{file.path!r} was fetched twice, and {wrong}")


async def _fetch_once(work: _Work, file: RemoteFile, path: Path) -> str:
    """Fetch what is missing of a file; return what is wrong with the result, "" if nothing is."""
    part = await asyncio.to_thread(PartFile, file, path, work.transfer.range_bytes, work.most_held)
    with closing(part):
        work.progress(part.fetched_bytes)

        async def fetch_range(number: int) -> None:
            try:
                if work.transfer.rate is not None:
                    await work.transfer.rate.take(part.length(number))
                content = await work.origin.read(file, part.start(number), part.length(number))
                await asyncio.to_thread(part.write, number, content)
                work.progress(part.length(number))
            finally:
                work.waiting.release()

        async with asyncio.TaskGroup() as group:
            for number in part.missing():
                await work.waiting.acquire()
                group.create_task(fetch_range(number))
        wrong = await asyncio.to_thread(_find_wrong, part)
        if not wrong:
            await asyncio.to_thread(part.sync)
        part.discard_journal()
        return wrong


def _find_wrong(part: PartFile) -> str:
    """Return what is wrong with a complete file; "": nothing is."""
    file = part.file
    if file.digest and (found := part.digest()) != file.digest:
        return f"its checksum is {found}, but the origin states {file.digest}"
    return check_safetensors(part.data, file.size) if file.path.endswith(".safetensors") else ""


def check_safetensors(path: Path, size: int) -> str:
    """Return what is wrong with the length of a file of safetensors, as its own header states it; "": nothing is."""
    try:
        with path.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
                return f"its header states {length} bytes, but the file has {size}"
            header = msgspec.json.decode(opened.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        raise disk_error(error, f"cannot read {path.name}") from error
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return "its header is not one of safetensors"
    end = 8 + length + max(ends, default=0)
    return "" if end == size else f"its tensors end at byte {end}, but the file has {size} bytes"


def _is_verified(mark: Path, file: RemoteFile, path: Path) -> bool:
    """Tell whether an earlier process has verified this very file."""
    try:
        found, _ = read_small(mark, MAX_MARK_BYTES)
        return found == file.identity.encode() and _is_file(path) and path.lstat().st_size == file.size
    except OSError:
        return False


def _adopt(present: Path | None, file: RemoteFile, path: Path, mark: Path) -> bool:
    """Take over a file that the disk has already, if it has the checksum that the origin states."""
    if present is None or not file.digest:
        return False
    try:
        if not _is_file(present) or digest_of(present, file, lambda _: None) != file.digest:
            return False
        path.unlink(missing_ok=True)
        path.hardlink_to(present)
    except OSError:
        return False
    _write_mark(mark, file)
    return True


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def digest_of(path: Path, file: RemoteFile, progress: Progress) -> str:
    """Return the checksum of a file on the disk, of the kind that its origin states. Raises OSError."""
    digest = file.new_digest()
    with closing(LargeFile(path, os.O_RDONLY)) as opened:
        for piece in opened.read(0, os.fstat(opened.descriptor).st_size):
            digest.update(piece)
            progress(len(piece))
    return str(digest.hexdigest())


def _set_aside(path: Path) -> None:
    try:
        path.replace(path.with_name(f"{path.name}.corrupt"))
    except OSError as error:
        raise disk_error(error, f"cannot rename {path.name}") from error


def _write_mark(mark: Path, file: RemoteFile) -> None:
    try:
        write_small(mark, file.identity.encode())
    except OSError as error:
        raise disk_error(error, f"cannot write {shown(mark.name)}") from error
