"""Fetch the files of a model in parallel ranges, resume what an earlier process began, and verify every file."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from autoscaler.config.findings import UNREADABLE, shown
from autoscaler.weights.buffers import RANGE_BYTES, free_buffers
from autoscaler.weights.disk import read_small, write_small
from autoscaler.weights.large_file import LargeFile
from autoscaler.weights.listing import Listing, Origin, RemoteFile
from autoscaler.weights.part_file import PartFile
from autoscaler.weights.problems import WeightsCause, WeightsError, disk_error
from autoscaler.weights.rate_limit import RateLimit
from autoscaler.weights.threads import to_end

MAX_HEADER_BYTES = 100 << 20
"""Longest header of a file of safetensors."""

MAX_DECODED_BYTES = 16 << 20
"""Longest header that is decoded: one of 100 MB would take most of the memory of an agent.

That of 50,000 tensors has 6 MB."""

MAX_MARK_BYTES = 64 << 10
VERIFIED = ".verified"
"""Ending of the mark beside a file whose checksum was right. The mark holds the file's identity."""


Progress = Callable[[int], None]
"""Called with further bytes that are there, fetched or found."""

Present = Callable[[RemoteFile], Path | None]
"""Returns where the disk may have a file already. It is called in a thread."""


class Transfer(NamedTuple):
    """How files are fetched."""

    workers: int = 8  # ranges at a time; a third as many from peers, and a quarter as many wait for their checksum
    range_bytes: int = RANGE_BYTES
    rate: RateLimit | None = None  # None: as fast as it goes


class _Work(NamedTuple):
    """What the files of one transfer share. The three limits bound the ranges in memory."""

    origin: Origin
    transfer: Transfer
    own: asyncio.Semaphore  # of ranges that are read now
    awaited: asyncio.Semaphore  # of those that may have to wait for a peer: they never hold up the others
    held: threading.Semaphore  # of ranges that wait for their checksum
    progress: Progress
    present: Present


async def fetch(
    origin: Origin, listing: Listing, folder: Path, transfer: Transfer, progress: Progress, present: Present
) -> list[Path]:
    """Fetch all files into a folder, and return their paths there, in the order of the listing. Raises WeightsError.

    The folder holds nothing else. A file whose checksum is wrong is kept aside, and fetched once more. A file that the
    disk has already is not fetched, if it has the checksum that the origin states.
    """
    third, quarter = -(-transfer.workers // 3), -(-transfer.workers // 4)
    limits = asyncio.Semaphore(transfer.workers), asyncio.Semaphore(third), threading.Semaphore(quarter)
    work = _Work(origin, transfer, *limits, progress, present)
    paths = {file: folder / file.name for file in listing.files}
    files = asyncio.Semaphore(transfer.workers)
    try:
        absent = await _absent(work, paths, files)
        async with asyncio.TaskGroup() as group:
            for file in absent:
                await files.acquire()
                task = group.create_task(_fetch_verified(work, file, paths[file]))
                task.add_done_callback(lambda _: files.release())
    except* WeightsError as errors:
        raise _first(errors) from None
    finally:
        await origin.close()
        free_buffers()
    return list(paths.values())


def _first(errors: BaseExceptionGroup[WeightsError]) -> WeightsError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _absent(work: _Work, paths: Mapping[RemoteFile, Path], files: asyncio.Semaphore) -> list[RemoteFile]:
    """Return the files that are not on the disk, verified."""
    absent: list[RemoteFile] = []

    async def look(file: RemoteFile, path: Path) -> None:
        async with files:
            mark = _mark(path)
            if await to_end(lambda: _is_verified(mark, file, path) or _adopt(work.present(file), file, path, mark)):
                work.progress(file.size)
            else:
                absent.append(file)

    async with asyncio.TaskGroup() as group:
        for file, path in paths.items():
            group.create_task(look(file, path))
    return sorted(absent)


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}{VERIFIED}")


async def _fetch_verified(work: _Work, file: RemoteFile, path: Path) -> None:
    for attempt in range(2):
        wrong = await _fetch_once(work, file, path)
        if not wrong:
            return
        work.origin.reject(file)
        if attempt == 0:
            work.progress(-file.size)
    raise WeightsError(WeightsCause.CORRUPT, f"{file.path!r} was fetched twice, and {wrong}")


async def _fetch_once(work: _Work, file: RemoteFile, path: Path) -> str:
    """Fetch what is missing of a file; return what is wrong with the result, "" if nothing is.

    The journal goes last. Before that, a process that is killed leaves a file that is verified, or can be again.
    """
    opened = ExitStack()
    try:
        part = await to_end(_open, opened, file, path, work.transfer.range_bytes, work.held)
        work.progress(part.fetched_bytes)
        await _fetch_ranges(work, part)
        wrong = await to_end(_find_wrong, part)
        if wrong:
            await to_end(_set_aside, path)
        else:
            await to_end(part.sync)
            await to_end(_write_mark, _mark(path), file)
        await to_end(part.discard_journal)
        return wrong
    finally:
        await to_end(opened.close)


async def _fetch_ranges(work: _Work, part: PartFile) -> None:
    """Fetch the ranges of a file that are missing: first those that nobody else fetches."""

    async def fetch_range(number: int, limit: asyncio.Semaphore) -> None:
        start, length = part.start(number), part.length(number)
        try:
            if work.transfer.rate is not None:
                await work.transfer.rate.take(length)
            content = await work.origin.read(part.file, start, length)
            await to_end(part.write, number, content)
            work.origin.stored(part.file, start, length, part.data)
            work.progress(length)
        finally:
            limit.release()

    async def begin(numbers: list[int], limit: asyncio.Semaphore) -> None:
        for number in numbers:
            await limit.acquire()
            group.create_task(fetch_range(number, limit))

    missing = part.missing()
    first = set(await work.origin.begin(part.file, [part.start(number) for number in missing]))
    own = [number for number in missing if part.start(number) in first]
    awaited = [number for number in missing if part.start(number) not in first]
    async with asyncio.TaskGroup() as group:
        group.create_task(begin(own, work.own))
        group.create_task(begin(awaited, work.awaited))


def _open(opened: ExitStack, file: RemoteFile, path: Path, range_bytes: int, held: threading.Semaphore) -> PartFile:
    """Open a part that is closed with `opened`, even if the task is cancelled meanwhile."""
    return opened.enter_context(closing(PartFile(file, path, range_bytes, held)))


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
            if length > MAX_DECODED_BYTES:
                return ""
            header = msgspec.json.decode(opened.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        raise disk_error(error, f"cannot read {path.name}") from error
    except (*UNREADABLE, TypeError, KeyError, IndexError, AttributeError, OverflowError):
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
