"""Weights in an object store or a directory, read by obstore: s3://, gs://, az://, file://.

Credentials come from the environment, as the tools of each cloud read them: static keys, files, workload identity.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import LocalStore, S3Store, from_url

from autoscaler.config.findings import shown
from autoscaler.config.weights.source import ModelSource
from autoscaler.weights.buffers import new_buffer
from autoscaler.weights.listing import MAX_FILES, MODIFIED, Listing, RemoteFile, check, is_strong
from autoscaler.weights.origins.signed import SignedReader
from autoscaler.weights.problems import WeightsCause, WeightsError

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

Answer = TypeVar("Answer")
CONNECT_S, SILENCE_S, REQUEST_S = 10, 30, 600
PIECE_BYTES = 1 << 20
SIGNED = timedelta(hours=1)
NOBODY = {"skip_signature": False, "access_key_id": "nobody", "secret_access_key": "nobody"}
"""Options of a store that forms addresses of objects without a key of anybody."""

_STATUS = re.compile(r"status code: (\d{3})")
RETRIES: RetryConfig = {
    "max_retries": 6,
    "retry_timeout": timedelta(minutes=3),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=20), "base": 2},
}


def client_config(http: bool = False) -> ClientConfig:
    """Return deadlines of a client. http: plain HTTP is allowed."""
    config: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=SILENCE_S),
        "timeout": timedelta(seconds=REQUEST_S),
    }
    if http or _is_set("AWS_ALLOW_HTTP"):
        config["allow_http"] = True
    return config


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true")


def version_of(meta: ObjectMeta) -> str:
    """Return what differs when the content of an object does: its ETag, or else its date to the second; "": neither."""
    if meta["e_tag"]:
        return meta["e_tag"]
    modified = meta["last_modified"]
    return f"{MODIFIED}{modified.isoformat(timespec='seconds')}" if modified.timestamp() > 0 else ""


class Objects:
    """An object store, or a directory."""

    def __init__(self, source: ModelSource, pickled: bool = False, options: dict[str, Any] | None = None) -> None:
        """pickled: weights that may run code are allowed. options: of obstore, such as an endpoint."""
        self._pickled = pickled
        self._prefix = ""
        self._source = source
        self._store = self._guard_setup(lambda: self._open(source, options or {}))
        self._by_library = source.scheme != "s3"
        self._signed = SignedReader(source, self._sign)
        self._is_anonymous = bool(options and options.get("skip_signature")) or _is_set("AWS_SKIP_SIGNATURE")
        named = {**(options or {}), **NOBODY} if self._is_anonymous else options or {}
        self._signer = self._store if self._by_library else self._guard_setup(lambda: self._open(source, named))

    def _open(self, source: ModelSource, options: dict[str, Any]) -> ObjectStore:
        if source.scheme == "file":
            return LocalStore(source.location, automatic_cleanup=False)
        bucket, _, self._prefix = source.location.partition("/")
        http = str(options.get("endpoint", "")).startswith("http://")
        return from_url(
            f"{source.scheme}://{bucket}", client_options=client_config(http=http), retry_config=RETRIES, **options
        )

    def _guard_setup(self, opened: Callable[[], ObjectStore]) -> ObjectStore:
        try:
            return opened()
        except (BaseError, OSError, ValueError) as error:
            raise WeightsError(WeightsCause.INVALID, f"the store cannot be opened ({type(error).__name__})") from error

    async def describe(self) -> Listing:
        """Return the files. Raises WeightsError."""
        prefix = f"{self._prefix}/" if self._prefix else ""
        files = await self._guard(self._prefix, asyncio.to_thread(self._walk, prefix))
        return check(self._source, files, pickled=self._pickled)

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

    async def begin(self, file: RemoteFile, starts: Sequence[int]) -> Collection[int]:
        """Return all ranges: nobody else fetches one for this reader."""
        return starts

    async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        """Return a range of a file, whole. Raises WeightsError."""
        if not self._by_library:
            try:
                return await self._signed.read(file, start, length)
            except WeightsError as error:
                if error.cause is not WeightsCause.DENIED:
                    raise
                self._by_library = True  # a policy may forbid signed addresses, or ask for further headers
        options: GetOptions = {"range": (start, start + length)}
        if is_strong(file.version):
            options["if_match"] = file.version
        return await self._guard(file.path, self._get(file, options, start, length))

    async def _sign(self, key: str) -> str:
        """Return the address of an object of a bucket. Raises WeightsError."""
        assert isinstance(self._signer, S3Store)
        address = await self._guard(key, obstore.sign_async(self._signer, "GET", key, SIGNED))
        return address.partition("?")[0] if self._is_anonymous else address

    async def _get(self, file: RemoteFile, options: GetOptions, start: int, length: int) -> memoryview:
        answer = await obstore.get_async(self._store, file.address or file.path, options=options)
        stated = version_of(answer.meta), answer.meta["size"]
        if file.version and not is_strong(file.version) and stated != (file.version, file.size):
            raise WeightsError(WeightsCause.CHANGED, f"{self._source}: {shown(file.path)} changed while it was fetched")
        buffer, received = new_buffer(length), 0
        async for chunk in answer.stream(min_chunk_size=PIECE_BYTES):
            piece = memoryview(chunk)
            if received + len(piece) > length:
                text = f"{self._source}: {shown(file.path)} has more bytes than the {length} asked for"
                raise WeightsError(WeightsCause.CORRUPT, text)
            buffer[received : received + len(piece)] = piece
            received += len(piece)
        if received < length:
            text = f"{self._source}: {shown(file.path)} ends after {start + received} of {file.size} bytes"
            raise WeightsError(WeightsCause.CORRUPT, text)
        return buffer

    def stored(self, file: RemoteFile, start: int, length: int, path: object) -> None:
        """Do nothing: nobody asks for the range."""

    def reject(self, file: RemoteFile) -> None:
        """Do nothing: there is no other place to read a file from."""

    async def close(self) -> None:
        """Close all connections but those of the library, which closes them itself."""
        await self._signed.close()

    async def _guard(self, path: str, request: Awaitable[Answer]) -> Answer:
        """Await a request. Raises WeightsError in place of the library's errors. Answers may hold secrets."""
        try:
            return await request
        except (BaseError, OSError, ValueError) as error:  # ValueError: a name that no URL can have
            cause, words = _explain(error)
            raise WeightsError(cause, f"{self._source}: {shown(path)} {words}") from error


def _explain(error: Exception) -> tuple[WeightsCause, str]:
    """Return what an error of the library means."""
    found = _STATUS.search(str(error))
    status = found[1] if found else ""
    if isinstance(error, PreconditionError) or status == "412":
        return WeightsCause.CHANGED, "changed while it was fetched"
    if isinstance(error, NotFoundError | FileNotFoundError) or status == "404":
        return WeightsCause.NOT_FOUND, "does not exist"
    if isinstance(error, ValueError):
        return WeightsCause.INVALID, "is no name of an object"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in ("401", "403"):
        return WeightsCause.DENIED, "may not be read with these credentials"
    return WeightsCause.UNREACHABLE, f"cannot be read ({f'HTTP {status}' if status else type(error).__name__})"
