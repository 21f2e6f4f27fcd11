"""Weights in an object store or a directory, read by obstore: s3://, gs://, az://, https://, file://.

Credentials come from the environment, as the tools of each cloud read them: static keys, files, workload identity.
An https source is one file, or a folder with the index that sharded safetensors have.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import obstore
from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import HTTPStore, LocalStore, from_url

from autoscaler.config.findings import UNREADABLE, shown
from autoscaler.config.weights.source import ModelSource
from autoscaler.weights.listing import MAX_FILES, Listing, RemoteFile, check
from autoscaler.weights.problems import Cause, WeightsError

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

Answer = TypeVar("Answer")
CONNECT_S, SILENCE_S, REQUEST_S = 10, 30, 600
_STATUS = re.compile(r"status code: (\d{3})")
MODIFIED = "modified "
COMPARED = (MODIFIED, "W/")
"""Versions that no answer can be made conditional on, such as weak ETags. Each answer states its own."""

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
BESIDE_WEIGHTS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
)
"""Files that an https folder may have beside its weights: it cannot be listed."""

RETRIES: RetryConfig = {
    "max_retries": 6,
    "retry_timeout": timedelta(minutes=3),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=20), "base": 2},
}


def client_config(headers: dict[str, str] | None = None, http: bool = False) -> ClientConfig:
    """Return deadlines and headers of a client. http: plain HTTP is allowed."""
    config: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=SILENCE_S),
        "timeout": timedelta(seconds=REQUEST_S),
    }
    if http or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):
        config["allow_http"] = True
    if headers:
        config["default_headers"] = headers
    return config


def version_of(meta: ObjectMeta) -> str:
    """Return what differs when the content of an object does: its ETag, or else its date to the second; "": neither."""
    if meta["e_tag"]:
        return meta["e_tag"]
    modified = meta["last_modified"]
    return f"{MODIFIED}{modified.isoformat(timespec='seconds')}" if modified.timestamp() > 0 else ""


class ObjectReader:
    """Reads ranges of objects, and says what an error means."""

    def __init__(self, source: ModelSource, store: ObjectStore) -> None:
        self._source = source
        self._store = store

    async def choose(self, files: Sequence[RemoteFile]) -> RemoteFile:
        """Return the first file."""
        return files[0]

    def reject(self, file: RemoteFile) -> None:
        """Do nothing: there is no other place to read a file from."""

    async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        """Return a range of a file, whole. Raises WeightsError."""
        options: GetOptions = {"range": (start, start + length)}
        if file.version and not file.version.startswith(COMPARED):
            options["if_match"] = file.version
        found = await self._guard(file.path, self._get(file, options))
        if len(found) != length:
            text = f"{self._source}: {shown(file.path)} ends after {start + len(found)} of {file.size} bytes"
            raise WeightsError(Cause.CORRUPT, text)
        return found

    async def _get(self, file: RemoteFile, options: GetOptions) -> memoryview:
        answer = await obstore.get_async(self._store, file.address or file.path, options=options)
        if file.version.startswith(COMPARED) and (version_of(answer.meta), answer.meta["size"]) != (
            file.version,
            file.size,
        ):
            raise WeightsError(Cause.CHANGED, f"{self._source}: {shown(file.path)} changed while it was fetched")
        return memoryview(await answer.bytes_async())

    async def _guard(self, path: str, request: Awaitable[Answer]) -> Answer:
        """Await a request. Raises WeightsError in place of the library's errors. Answers may hold secrets."""
        try:
            return await request
        except (BaseError, OSError, ValueError) as error:  # ValueError: a name that no URL can have
            cause, words = _explain(error)
            raise WeightsError(cause, f"{self._source}: {shown(path)} {words}") from error


def _explain(error: Exception) -> tuple[Cause, str]:
    """Return what an error of the library means."""
    found = _STATUS.search(str(error))
    status = found[1] if found else ""
    if isinstance(error, PreconditionError) or status == "412":
        return Cause.CHANGED, "changed while it was fetched"
    if isinstance(error, NotFoundError | FileNotFoundError) or status == "404":
        return Cause.NOT_FOUND, "does not exist"
    if isinstance(error, ValueError):
        return Cause.INVALID, "is no name of an object"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in ("401", "403"):
        return Cause.DENIED, "may not be read with these credentials"
    return Cause.UNREACHABLE, f"cannot be read ({f'HTTP {status}' if status else type(error).__name__})"


class Objects(ObjectReader):
    """An object store, or a directory."""

    def __init__(self, source: ModelSource, pickled: bool = False, options: dict[str, Any] | None = None) -> None:
        """pickled: weights that may run code are allowed. options: of obstore, such as an endpoint."""
        self._pickled = pickled
        self._prefix = ""
        super().__init__(source, self._guard_setup(lambda: self._open(source, options or {})))

    def _open(self, source: ModelSource, options: dict[str, Any]) -> ObjectStore:
        if source.scheme == "file":
            return LocalStore(source.location, automatic_cleanup=False)
        if source.scheme == "https":
            host, _, path = source.location.partition("/")
            self._prefix = path
            return HTTPStore.from_url(f"https://{host}", client_options=client_config(), retry_config=RETRIES)
        bucket, _, self._prefix = source.location.partition("/")
        http = str(options.get("endpoint", "")).startswith("http://")
        return from_url(
            f"{source.scheme}://{bucket}", client_options=client_config(http=http), retry_config=RETRIES, **options
        )

    def _guard_setup(self, opened: Callable[[], ObjectStore]) -> ObjectStore:
        try:
            return opened()
        except (BaseError, OSError, ValueError) as error:
            raise WeightsError(Cause.INVALID, f"the store cannot be opened ({type(error).__name__})") from error

    async def describe(self) -> Listing:
        """Return the files. Raises WeightsError."""
        files = await (self._list_https() if self._source.scheme == "https" else self._list_store())
        return check(self._source, files, pickled=self._pickled)

    async def _list_store(self) -> list[RemoteFile]:
        prefix = f"{self._prefix}/" if self._prefix else ""
        return await self._guard(self._prefix, asyncio.to_thread(self._walk, prefix))

    def _walk(self, prefix: str) -> list[RemoteFile]:
        files: list[RemoteFile] = []
        for chunk in obstore.list(self._store, self._prefix or None, chunk_size=1000):
            for meta in chunk:
                path = meta["path"]
                if not path.startswith(prefix) or path.endswith("/"):
                    continue
                version = version_of(meta)  # ETag of a local file: its inode, size and time of change
                files.append(RemoteFile(path.removeprefix(prefix), meta["size"], version=version, address=path))
            if len(files) > MAX_FILES:
                break
        if not files:
            raise FileNotFoundError(self._prefix)
        return files

    async def _list_https(self) -> list[RemoteFile]:
        if self._prefix.endswith((".safetensors", ".gguf")):
            return [await self._head(self._prefix.rpartition("/")[2], self._prefix)]
        index = await self._head(INDEX, f"{self._prefix}/{INDEX}")
        if index.size > MAX_INDEX_BYTES:
            raise WeightsError(Cause.INVALID, f"{self._source}: {INDEX} has more than {MAX_INDEX_BYTES} bytes")
        try:
            decoded = msgspec.json.decode(await self.read(index, 0, index.size))
            shards = set(decoded["weight_map"].values())
        except (*UNREADABLE, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(Cause.INVALID, f"{self._source}: {INDEX} is no index of safetensors") from error
        if len(shards) > MAX_FILES or not all(isinstance(name, str) for name in shards):
            raise WeightsError(Cause.INVALID, f"{self._source}: {INDEX} names no valid files")
        files = [index, *[await self._head(name, f"{self._prefix}/{name}") for name in sorted(shards)]]
        for name in BESIDE_WEIGHTS:
            try:
                files.append(await self._head(name, f"{self._prefix}/{name}"))
            except WeightsError as error:
                if error.cause is not Cause.NOT_FOUND:
                    raise
        return files

    async def _head(self, name: str, address: str) -> RemoteFile:
        meta = await self._guard(name, self._ask(address))
        version = version_of(meta)
        if not version:
            text = f"{self._source}: {shown(name)} states neither an ETag nor a date, so a change could go unnoticed"
            raise WeightsError(Cause.NOT_ALLOWED, f"{text}; allowed: a server that states one of them")
        return RemoteFile(name, meta["size"], version=version, address=address)

    async def _ask(self, address: str) -> ObjectMeta:
        return await obstore.head_async(self._store, address)
