"""The files of a model, as its origin lists them. Names and sizes are untrusted until they are validated here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from autoscaler.config.findings import shown
from autoscaler.config.weights.source import COMMIT, ModelSource
from autoscaler.weights.problems import WeightsCause, WeightsError

MAX_FILES = 20_000
VERSION_CHARS = 16
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255  # of Linux
MAX_PARTS = 16
MAX_FILE_BYTES = 1 << 44  # 16 TiB
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
"""Endings of files that may run code when an engine loads them."""

DUPLICATES = ("original/", "onnx/", "openvino/", "coreml/")
"""Folders in which repositories keep the same weights once more, for other engines."""

MODIFIED = "modified "
WEAK = (MODIFIED, "W/")
"""Versions that no answer can be made conditional on, such as weak ETags. Each answer states its own."""

DUPLICATE_ENDINGS = (".gguf", ".onnx", ".onnx_data", ".h5", ".msgpack", ".tflite", ".ot", ".mlmodel")
_PART = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff/\\]{1,255}")
_DIGESTS = re.compile(r"([0-9a-f]{64})?"), re.compile(r"([0-9a-f]{40})?")


class RemoteFile(NamedTuple):
    """One file of a model."""

    path: str  # relative, with "/" between its parts
    size: int  # bytes
    sha256: str = ""  # 64 hexadecimal digits; "": not stated
    git_sha1: str = ""  # 40 hexadecimal digits, of a Git blob; "": not stated
    version: str = ""  # ETag of an object, which must stay the same while it is fetched; "": not stated
    address: str = ""  # where the origin has it; "": at its path

    @property
    def digest(self) -> str:
        """Checksum that the origin states, in hexadecimal digits; "": none."""
        return self.sha256 or self.git_sha1

    def new_digest(self) -> Any:
        """Return a hash of the kind that the origin states, without the content of the file."""
        return hashlib.sha256() if self.sha256 else hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)

    @property
    def name(self) -> str:
        """Name of the file on the disk while it is fetched."""
        return hashlib.sha256(self.path.encode()).hexdigest()[:32]

    @property
    def identity(self) -> str:
        """A text that differs when the content of the file does."""
        return f"{self.size}:{self.digest or self.version}"

    @property
    def shared_as(self) -> str:
        """Checksum by which agents ask for the file: its own, or one of path, size and ETag; "": it is not shared."""
        if self.digest or not is_strong(self.version):
            return self.digest
        return shared_name(self.name, self.identity)


def is_strong(version: str) -> bool:
    """Tell whether a request can be made conditional on a version."""
    return bool(version) and not version.startswith(WEAK)


def shared_name(name: str, identity: str) -> str:
    """Return what stands for the checksum of a file whose origin states none."""
    return hashlib.sha256(f"{name} {identity}".encode()).hexdigest()


class Listing(NamedTuple):
    """All files of a model at one moment."""

    source: ModelSource
    files: tuple[RemoteFile, ...]
    commit: str = ""  # of a hub

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def version(self) -> str:
        """The version, which differs when a file does: the commit of a hub, or 16 hexadecimal digits."""
        if self.commit:
            return self.commit
        names = "".join(f"{file.name} {file.identity}\n" for file in self.files)
        return hashlib.sha256(names.encode()).hexdigest()[:VERSION_CHARS]


class Origin(Protocol):
    """Something that has the files of a model."""

    async def describe(self) -> Listing:
        """Return the files. Raises WeightsError."""
        ...

    async def begin(self, file: RemoteFile, starts: Sequence[int]) -> Collection[int]:
        """Note that these ranges are to be read. Return those to read first; for the others a peer may be awaited."""
        ...

    async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        """Return a range of a file, whole. Raises WeightsError."""
        ...

    def stored(self, file: RemoteFile, start: int, length: int, path: Path) -> None:
        """Note that a range that was read is on the disk now, in this file."""
        ...

    def reject(self, file: RemoteFile) -> None:
        """Note that what was read of a file is not what the file has to be."""
        ...

    async def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        ...


def check(source: ModelSource, files: Iterable[RemoteFile], commit: str = "", pickled: bool = False) -> Listing:
    """Validate the files of a model and select those that an engine loads. Raises WeightsError.

    Pickled weights are left out where there are safetensors, and refused otherwise unless `pickled` is set.
    """
    if source.scheme == "hf" and not COMMIT.fullmatch(commit):
        raise WeightsError(WeightsCause.INVALID, f"{source}: {shown(commit)} is no commit")
    found: dict[str, RemoteFile] = {}
    for file in files:
        if len(found) >= MAX_FILES:
            raise WeightsError(WeightsCause.NOT_ALLOWED, f"{source} has more than {MAX_FILES} files")
        check_path(source, file.path)
        if not 0 <= file.size <= MAX_FILE_BYTES:
            raise WeightsError(WeightsCause.INVALID, f"{source}: {shown(file.path)} has a size of {file.size} bytes")
        for digest, form in zip((file.sha256, file.git_sha1), _DIGESTS, strict=True):
            if not form.fullmatch(digest):
                raise WeightsError(
                    WeightsCause.INVALID, f"{source}: {shown(file.path)} has the checksum {shown(digest)}"
                )
        if source.scheme == "hf" and not file.digest:
            raise WeightsError(WeightsCause.INVALID, f"{source}: {shown(file.path)} has no checksum")
        found[file.path] = file
    for path in found:
        parents = path.split("/")[:-1]
        for end in range(1, len(parents) + 1):
            if (parent := "/".join(parents[:end])) in found:
                raise WeightsError(WeightsCause.INVALID, f"{source}: {shown(parent)} is a file and a folder")
    has_safetensors = any(path.endswith(".safetensors") for path in found)
    chosen = tuple(
        file
        for path, file in sorted(found.items())
        if not path.startswith(DUPLICATES)
        and not path.endswith(DUPLICATE_ENDINGS)
        and not (has_safetensors and path.endswith(PICKLED))
    )
    if not chosen:
        raise WeightsError(WeightsCause.NOT_FOUND, f"{source} has no files that an engine loads")
    unsafe = [file.path for file in chosen if file.path.endswith(PICKLED)]
    if unsafe and not pickled:
        text = f"{source}: {shown(unsafe[0])} is pickled and may run code when it is loaded; allowed: safetensors"
        raise WeightsError(WeightsCause.NOT_ALLOWED, text)
    return Listing(source, chosen, commit)


def check_path(source: ModelSource, path: str) -> None:
    """Raise WeightsError, unless a path is relative and each disk takes it."""
    parts = path.split("/")
    valid = len(parts) <= MAX_PARTS and len(path.encode(errors="replace")) <= MAX_PATH_BYTES
    if not valid or not all(_is_name(part) for part in parts):
        raise WeightsError(WeightsCause.INVALID, f"{source}: {shown(path)} is no valid path of a file")


def _is_name(part: str) -> bool:
    return part not in (".", "..") and _PART.fullmatch(part) is not None and len(part.encode()) <= MAX_NAME_BYTES
