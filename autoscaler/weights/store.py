"""The folder of a node that holds weights: what is there, what is used, and one process that changes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from autoscaler.config.findings import UNREADABLE, shown
from autoscaler.config.weights import report
from autoscaler.config.weights.report import Report
from autoscaler.config.weights.source import parse
from autoscaler.weights import layout
from autoscaler.weights.budget import HeldItem, Limits, RoomPlan, Space, make_room
from autoscaler.weights.disk import read_small, remove_tree, within, write_small
from autoscaler.weights.fetch import Progress, Transfer, check_safetensors, digest_of, fetch
from autoscaler.weights.listing import Listing, Origin, RemoteFile, check
from autoscaler.weights.problems import WeightsCause, WeightsError, disk_error
from autoscaler.weights.threads import to_end

OWN = ".vllm-autoscaler"
RECORDS, PARTS, LOCK, AGENT_LOCK, REPORT = "records", "parts", "lock", "agent.lock", "report.json"
MAX_RECORD_BYTES = 32 << 20
CORRUPT, ASIDE = ".corrupt", ".aside"


class PublishedModel(NamedTuple):
    """A model that is published."""

    listing: Listing
    path: Path  # for engines to load
    used_s: float  # moment at which it was last asked for, Unix time
    is_former: bool = False  # its name leads to another one; engines that load it keep it until its room is needed

    @property
    def key(self) -> str:
        """Name of its record. A former commit is a source of its own, and a former version of a folder is none."""
        source = self.listing.source
        return f"{source.key}.{self.listing.version}" if self.is_former and source.scheme != "hf" else source.key


class _FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a published model, as JSON."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""
    version: str = ""
    address: str = ""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a published model, as JSON."""

    source: str
    commit: str
    files: list[_FileEntry]
    former: bool = False


_RECORD = msgspec.json.Decoder(_Record)
"""Made here, because msgspec must not look at a type for the first time in two threads at once."""


class Owner(NamedTuple):
    """The hold of an agent on a folder."""

    path: Path
    descriptor: int

    def check(self) -> None:
        """Raise WeightsError if the folder is not there any more, or is another one: its disk has gone.

        It returns after the disk has answered a read and a write. A write that fails does no harm to readers.
        """
        try:
            sum(1 for _ in self.path.parent.iterdir())
            with suppress(OSError):
                os.utime(self.descriptor)
            same = os.path.samestat(self.path.lstat(), os.fstat(self.descriptor))
        except OSError as error:
            raise disk_error(error, f"cannot read {shown(str(self.path.parent))}") from error
        if not same:
            raise WeightsError(WeightsCause.DISK, f"{shown(str(self.path.parent))} is another folder than before")


class WeightStore:
    """Weights below one root. Readers need no lock; every change is made with `changing`."""

    def __init__(self, root: Path, limits: Limits | None = None, makes_root: bool = True) -> None:
        """makes_root: False: the root must exist. Without its disk it would be made on another one."""
        self.root = root
        self._makes_root = makes_root
        self._limits = limits or Limits()
        self._own = root / OWN

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the folder alone for a change. Raises WeightsError, also while another process holds it."""
        text = f"another process changes {shown(str(self.root))}; allowed: one at a time"
        with self._locked(LOCK, text):
            yield

    @contextmanager
    def owning(self) -> Iterator[Owner]:
        """Be the only agent of the folder. Other processes may still change it in between. Raises WeightsError."""
        text = f"another agent holds {shown(str(self.root))}; this one only waits"
        with self._locked(AGENT_LOCK, text) as descriptor:
            yield Owner(self._own / AGENT_LOCK, descriptor)

    @contextmanager
    def _locked(self, name: str, busy: str) -> Iterator[int]:
        self._require_root()
        try:
            for folder in (RECORDS, PARTS):
                within(self.root, self._own / folder).mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._own / name, flags, 0o644)
        except OSError as error:
            raise disk_error(error, f"cannot write {shown(str(self.root))}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        except BlockingIOError as error:
            raise WeightsError(WeightsCause.BUSY, busy) from error
        finally:
            os.close(descriptor)

    def _require_root(self) -> None:
        if not self._makes_root and not self.root.is_dir():
            raise WeightsError(WeightsCause.DISK, f"{shown(str(self.root))} is no folder; is its disk mounted?")

    def models(self) -> list[PublishedModel]:
        """Return the published models, the least recently used first. Records that cannot be read are left out."""
        records = self._own / RECORDS
        try:
            paths = sorted(records.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk_error(error, f"cannot read {shown(str(self.root))}") from error
        found = [self._read(path) for path in paths if path.suffix == ".json"]
        return sorted((model for model in found if model), key=lambda model: model.used_s)

    def find(self, key: str) -> PublishedModel | None:
        """Return a published model by its key."""
        return self._read(self._own / RECORDS / f"{key}.json")

    def find_whole(self, listing: Listing) -> PublishedModel | None:
        """Return a published model that has these files, whole, and note its use. A read-only disk does no harm."""
        model = self.find(listing.source.key)
        if model is None or model.listing != listing or self.find_incomplete(model):
            return None
        with suppress(WeightsError):
            self._record(model._replace(is_former=False)) if model.is_former else self.use(listing.source.key)
        return model

    def _find_former(self, listing: Listing) -> PublishedModel | None:
        """Return a former version of a folder that has these files, whole."""
        model = self.find(PublishedModel(listing, Path(), 0.0, is_former=True).key)
        return model if model is not None and model.listing == listing and not self.find_incomplete(model) else None

    async def pull(self, origin: Origin, transfer: Transfer, progress: Progress, listing: Listing) -> PublishedModel:
        """Fetch, verify and publish a model, unless it is there. Needs `changing`. Raises WeightsError."""
        if whole := await to_end(self.find_whole, listing):
            progress(listing.size)
            return whole
        present = await to_end(self.find, listing.source.key)
        if await to_end(self._find_former, listing):
            progress(listing.size)
            return await to_end(self._publish, listing, None, present)
        parts = await to_end(self._begin, listing)

        def on_disk(file: RemoteFile) -> Path | None:
            aside = parts / f"{file.digest}{ASIDE}"
            return aside if aside.exists() else layout.blob(self.root, listing.source, file)

        fetched = await fetch(origin, listing, parts, transfer, progress, on_disk)
        return await to_end(self._publish, listing, fetched, present)

    def _begin(self, listing: Listing) -> Path:
        """Return the folder for the parts of a model, if there is room for it. Raises WeightsError."""
        parts = self._own / PARTS / listing.source.key
        try:
            within(self.root, parts).mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(error, f"cannot write {shown(str(self.root))}") from error
        for each in self.make_room(listing, self.space()).evicted:
            if former := self.find(each.name):
                self.remove(former)
        return parts

    def _publish(self, listing: Listing, fetched: list[Path] | None, present: PublishedModel | None) -> PublishedModel:
        """Publish a model, and keep the version that it replaces if it fits. Raises WeightsError.

        fetched: None: it is a former version, which is there.
        """
        self._require_root()
        former = self._keep_former(present.listing, listing) if present else None
        path = layout.publish(self.root, listing, fetched)
        model = PublishedModel(listing, path, time.time())
        self._record(model)
        self._forget(model._replace(is_former=True).key, besides=model.key)
        layout.remove_unrecorded(self.root, listing.source, {each.path for each in self.models()})
        space = self.space()
        if former and (space.held_bytes > space.max_bytes or space.free_bytes < 0):
            self.remove(former)
        self.discard(listing.source.key)
        return model

    def _keep_former(self, present: Listing, following: Listing) -> PublishedModel | None:
        """Record what a branch or a folder is about to leave, under its own name. Raises WeightsError."""
        path = layout.adopt(self.root, present)
        if path == layout.place(self.root, following):
            return None
        if present.commit:
            present = present._replace(source=present.source._replace(revision=present.commit))
        former = PublishedModel(present, path, time.time(), is_former=True)
        if self.find(former.key) is None:
            self._record(former)
        kept = self.find(former.key)
        return kept if kept and kept.is_former else None

    def use(self, key: str) -> None:
        """Record the present moment as the last use of a model."""
        try:
            os.utime(within(self.root, self._own / RECORDS) / f"{key}.json", follow_symlinks=False)
        except OSError as error:
            raise disk_error(error, f"cannot write the record {key}") from error

    def remove(self, model: PublishedModel) -> None:
        """Remove a model and what is left of its transfers. Needs `changing`. Raises WeightsError."""
        self._unpublish(model)
        self.discard(model.key)

    def _unpublish(self, model: PublishedModel) -> None:
        if not self._is_used(model.path, besides=model.key):
            layout.remove(self.root, model.listing)
        self._forget(model.key)

    def _forget(self, key: str, besides: str = "") -> None:
        """Remove a record, unless it is another one. Raises WeightsError."""
        try:
            if key != besides:
                (within(self.root, self._own / RECORDS) / f"{key}.json").unlink(missing_ok=True)
        except OSError as error:
            raise disk_error(error, f"cannot remove the record {key}") from error

    def set_aside(self, model: PublishedModel) -> None:
        """Remove a damaged model, but keep its files for the next transfer: it takes those whose checksum is right.

        Needs `changing`. Raises WeightsError.
        """
        parts = self._own / PARTS / model.listing.source.key
        try:
            within(self.root, parts).mkdir(exist_ok=True)
            for file in model.listing.files:
                aside = parts / f"{file.digest}{ASIDE}"
                aside.unlink(missing_ok=True)
                if file.digest:
                    with suppress(FileNotFoundError):
                        aside.hardlink_to(within(self.root, model.path / file.path).resolve())
        except OSError as error:
            raise disk_error(error, f"cannot write {shown(str(self.root))}") from error
        self._unpublish(model)

    def is_begun(self, key: str) -> bool:
        """Tell whether transfers have left parts of a source that is not published."""
        return self.find(key) is None and (self._own / PARTS / key).is_dir()

    def trace(self, key: str) -> tuple[int, int]:
        """Return a value that changes while parts of a source arrive. It needs no right to change the folder."""
        with suppress(OSError):
            stats = [entry.stat(follow_symlinks=False) for entry in os.scandir(self._own / PARTS / key)]
            return sum(each.st_blocks for each in stats), max((each.st_mtime_ns for each in stats), default=0)
        return 0, 0

    def discard(self, key: str) -> None:
        """Remove what is left of the transfers of a source. Needs `changing`."""
        with suppress(WeightsError):  # it is no folder of ours
            remove_tree(within(self.root, self._own / PARTS) / key)

    def _is_used(self, path: Path, besides: str = "") -> bool:
        """Tell whether a model is at this path. Several revisions of one hub may name the same commit.

        besides: key of a model that does not count.
        """
        return any(model.path == path and model.key != besides for model in self.models())

    def find_incomplete(self, model: PublishedModel) -> str:
        """Return which file of a model is absent or has a wrong size; "": none. No file is read."""
        root = self.root.resolve()
        for file in model.listing.files:
            try:
                problem = _verify_size(file, model.path / file.path, root)[1]
            except OSError as error:
                problem = error.strerror or type(error).__name__
            if problem:
                return f"{file.path!r}: {problem}"
        return ""

    def write_report(self, text: str) -> None:
        """Keep what the agent reports, for other commands. Raises WeightsError."""
        self._require_root()
        try:
            write_small(within(self.root, self._own) / REPORT, text.encode())
        except OSError as error:
            raise disk_error(error, f"cannot write {REPORT}") from error

    def read_report(self) -> Report | None:
        """Return what the agent has reported last; None: nothing that can be read."""
        try:
            return report.decode(read_small(self._own / REPORT, report.MAX_BYTES + 1)[0].decode())
        except (OSError, ValueError):
            return None

    def verify(self, model: PublishedModel, progress: Progress) -> list[str]:
        """Read a model whole, and return what is wrong with its files; []: nothing is."""
        wrong = []
        for file in model.listing.files:
            try:
                problem = _verify_file(file, model.path / file.path, self.root, progress)
            except OSError as error:
                problem = error.strerror or type(error).__name__
            if problem:
                wrong.append(f"{file.path!r}: {problem}")
        return wrong

    def space(self) -> Space:
        """Return what is there, and what else has room. Raises WeightsError."""
        held = [self.held(each)._replace(used_s=each.used_s, kept=not each.is_former) for each in self.models()]
        published = {each.name for each in held}
        try:
            parts = self._own / PARTS
            for folder in sorted(parts.iterdir()) if parts.is_dir() else ():
                if folder.name in published:
                    continue
                name = f"{PARTS}/{folder.name}"
                with suppress(FileNotFoundError, NotADirectoryError):  # a transfer that ended just now
                    held.append(HeldItem(name, {name: _allocated(folder)}, folder.stat().st_mtime))
            disk = shutil.disk_usage(self.root)
        except OSError as error:
            raise disk_error(error, f"cannot read {shown(str(self.root))}") from error
        return Space(tuple(held), disk.free - self._limits.free_floor(disk.total), self._limits.max_bytes)

    def held(self, model: PublishedModel) -> HeldItem:
        """Return what a model takes of the disk while it is in use."""
        return HeldItem(model.key, self._files(model.listing), time.time())

    def make_room(self, listing: Listing, space: Space) -> RoomPlan:
        """Return what to evict for a model. Raises WeightsError if it is too large, before its first byte."""
        key = listing.source.key
        own = {f"{PARTS}/{key}", key}  # an older version of the model goes when the new one is published
        files = self._files(listing)
        older = next((each.files for each in space.held if each.name == key), {})
        there = sum(size for name, size in files.items() if name in older)
        try:
            parts = self._own / PARTS / key
            there += _allocated(parts, besides=CORRUPT) if parts.is_dir() else 0
        except OSError as error:
            raise disk_error(error, f"cannot read {shown(str(self.root))}") from error
        others = space._replace(held=tuple(each for each in space.held if each.name not in own))
        plan = make_room(files, there, others)
        if plan.missing_bytes > 0:
            room = listing.size - plan.missing_bytes
            text = f"{listing.source} has {listing.size} bytes; allowed: {max(room, 0.0):.0f}, for the rest must stay"
            raise WeightsError(WeightsCause.NO_SPACE, text)
        return plan

    def _files(self, listing: Listing) -> dict[str, int]:
        """Return the bytes of a model's files by their places on the disk: models of a hub share files."""
        folder = str(layout.place(self.root, listing))
        blobs = [layout.blob(self.root, listing.source, file) for file in listing.files]
        return {
            str(blob or f"{folder}/{file.path}"): file.size for blob, file in zip(blobs, listing.files, strict=True)
        }

    def _record(self, model: PublishedModel) -> None:
        files = [_FileEntry(*file) for file in model.listing.files]
        record = _Record(str(model.listing.source), model.listing.commit, files, model.is_former)
        path = self._own / RECORDS / f"{model.key}.json"
        try:
            within(self.root, path.parent)
            write_small(path, msgspec.json.encode(record))
        except OSError as error:
            raise disk_error(error, f"cannot write {shown(path.name)}") from error

    def _read(self, path: Path) -> PublishedModel | None:
        """Return the model of a record; None: there is none, it is not valid, or its files are gone."""
        try:
            content, used_s = read_small(path, MAX_RECORD_BYTES + 1)
            record = _RECORD.decode(content) if len(content) <= MAX_RECORD_BYTES else None
            if record is None:
                return None
            files = [RemoteFile(*msgspec.structs.astuple(file)) for file in record.files]
            listing = check(parse(record.source), files, record.commit, pickled=True)
        except (*UNREADABLE, OSError, WeightsError):
            return None
        folder = layout.find(self.root, listing)
        model = PublishedModel(listing, folder or self.root, used_s, record.former)
        return model if folder and model.key == path.stem else None


def _allocated(folder: Path, besides: str = "\n") -> int:
    """Return the bytes that the files of a folder take. Raises OSError. besides: ending of files that do not count."""
    blocks = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(besides):
                with suppress(FileNotFoundError):  # it was moved since
                    blocks += entry.stat(follow_symlinks=False).st_blocks
    return blocks * 512


def _verify_file(file: RemoteFile, path: Path, root: Path, progress: Progress) -> str:
    """Return what is wrong with a published file; "": nothing is. Raises OSError."""
    real, problem = _verify_size(file, path, root.resolve())
    if problem:
        return problem
    if not file.digest:
        progress(file.size)
        return check_safetensors(real, file.size) if file.path.endswith(".safetensors") else ""
    found = digest_of(real, file, progress)
    return "" if found == file.digest else f"its checksum is {found}; expected: {file.digest}"


def _verify_size(file: RemoteFile, path: Path, root: Path) -> tuple[Path, str]:
    """Return where a published file really is, and what is wrong with that or with its size. Raises OSError.

    root: without links.
    """
    real = path.resolve(strict=True)
    if not real.is_relative_to(root):
        return real, "it leads out of the folder"
    if not real.is_file():
        return real, "it is no file"
    size = real.stat().st_size
    return real, "" if size == file.size else f"it has {size} bytes; expected: {file.size}"
