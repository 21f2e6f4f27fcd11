"""Ranges of files over HTTP. Whatever a server answers, no more bytes are read than were asked for, in bounded time.

A hub answers with a redirect to a store, whose address is signed for an hour or so. It limits requests to itself, so
each file is resolved once, and its ranges are read from the store until that refuses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from email.message import Message
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from yarl import URL

from autoscaler.config.findings import shown
from autoscaler.config.weights.source import ModelSource
from autoscaler.weights.connections import READ_ERRORS, Connections, ServerAnswer, ServerRequest, TooLongError
from autoscaler.weights.listing import MODIFIED, RemoteFile, is_strong
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.rate_limit import RequestLimit

CONNECT_S, SILENCE_S, REQUEST_S = 10.0, 30.0, 600.0
MAX_REDIRECTS = 5
MAX_FAILURES = 7  # of one range
MAX_RESOLVED = 3  # times for one range
FIRST_PAUSE_S, MOST_PAUSE_S = 0.2, 20.0
MAX_HOSTS = 256
MOVED = (301, 302, 303, 307, 308)
EXPIRED = (400, 401, 403, 404, 410)  # of a store whose address has been signed
PASSING = (408, 425, 429, 500, 502, 503, 504)

Stated = Mapping[str, str]
Accepts = Callable[[int, Message], bool]
_limits: dict[str, RequestLimit] = {}


class _PassingError(Exception):
    """A request may succeed if it is repeated. Its text tells why it failed."""


class _ExpiredError(Exception):
    """The store does not take the address to which the hub redirected."""


class HttpReader:
    """Reads ranges of one source's files from below one URL."""

    stored_packed = False  # Content-Encoding tells how a file is stored, and not that it is packed on its way

    def __init__(self, source: ModelSource, base: URL, token: str = "", pace: float = 1.0) -> None:
        """token: sent to the host of the URL alone. pace: factor of the pauses after failures."""
        self._source = source
        self._base = base
        self._token = token
        self._pace = pace
        self._resolved: dict[str, URL] = {}  # by address of the file
        self._resolving: dict[str, asyncio.Lock] = {}
        self._connections = Connections(CONNECT_S, SILENCE_S)

    async def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        self._connections.close()

    async def begin(self, file: RemoteFile, starts: Sequence[int]) -> Collection[int]:
        """Return all ranges: nobody else fetches one for this reader."""
        return starts

    def stored(self, file: RemoteFile, start: int, length: int, path: object) -> None:
        """Do nothing: nobody asks for the range."""

    def reject(self, file: RemoteFile) -> None:
        """Do nothing: there is no other place to read a file from."""

    async def read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        """Return a range of a file, whole. Raises WeightsError."""
        failures = expired = 0
        while True:
            try:
                return await self._read(file, start, length)
            except _ExpiredError as error:
                expired += 1
                if expired >= MAX_RESOLVED:
                    raise self._problem(WeightsCause.DENIED, file.path, "is refused by the store of the hub") from error
            except _PassingError as error:
                failures += 1
                if failures >= MAX_FAILURES:
                    raise self._problem(WeightsCause.UNREACHABLE, file.path, f"cannot be read ({error})") from error
                await self._pause(failures - 1)

    async def _read(self, file: RemoteFile, start: int, length: int) -> memoryview:
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        if is_strong(file.version):
            headers["If-Match"] = file.version

        def accepts(status: int, stated: Message) -> bool:
            if status not in (200, 206):
                return False
            self._check_headers(status, stated, file, start, length)
            return True

        try:
            content = await self._find("GET", file, headers, length, accepts)
        except TooLongError as error:
            raise self._problem(
                WeightsCause.CORRUPT, file.path, f"has more bytes than the {length} asked for"
            ) from error
        if len(content) < length:
            raise _PassingError("the answer ends too early")
        return content

    def _check_headers(self, status: int, stated: Message, file: RemoteFile, start: int, length: int) -> None:
        """Raise WeightsError, unless the headers of an answer promise exactly the range."""
        if not self.stored_packed and stated.get("Content-Encoding", "identity") != "identity":
            raise self._problem(WeightsCause.UNREACHABLE, file.path, "is answered packed, which was not asked for")
        if file.version and not is_strong(file.version) and version_of(stated) != file.version:
            raise self._problem(WeightsCause.CHANGED, file.path, "changed while it was fetched")
        asked = f"bytes {start}-{start + length - 1}/"
        if status == 206 and not stated.get("Content-Range", asked).startswith(asked):
            text = f"is answered with {shown(stated['Content-Range'])} in place of {asked}{file.size}"
            raise self._problem(WeightsCause.CORRUPT, file.path, text)
        if status == 200 and length != file.size:
            raise self._problem(
                WeightsCause.UNREACHABLE, file.path, "cannot be read in ranges: the server sends it whole"
            )
        if stated.get("Content-Length", str(length)) != str(length):
            text = f"is answered with {shown(stated['Content-Length'])} bytes in place of {length}"
            raise self._problem(WeightsCause.CORRUPT, file.path, text)

    async def head(self, path: str) -> Message:
        """Return the headers that describe a file. Raises WeightsError."""
        file = RemoteFile(path, 0)
        for failures in range(MAX_FAILURES):
            try:
                return (await self._follow("HEAD", file, {}, 0, lambda status, _: status == 200))[1].headers
            except (_PassingError, _ExpiredError) as error:
                last = str(error)
                await self._pause(failures)
        raise self._problem(WeightsCause.UNREACHABLE, path, f"cannot be read ({last})")

    async def _pause(self, failures: int) -> None:
        pause_s = min(FIRST_PAUSE_S * 2.0**failures, MOST_PAUSE_S) * self._pace
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _find(self, method: str, file: RemoteFile, headers: Stated, length: int, accepts: Accepts) -> memoryview:
        """Read a range where its file was found last, or else find it: once, also if several ranges are asked for."""
        address = file.address or file.path
        if address not in self._resolved:
            async with self._resolving.setdefault(address, asyncio.Lock()):
                if address not in self._resolved:
                    self._resolved[address], answer = await self._follow(method, file, headers, length, accepts)
                    return answer.content
        url = self._resolved[address]
        answer = await self._send(ServerRequest(method, url, headers, length, accepts))
        if answer.status in (*MOVED, *EXPIRED) and url != self._url(file):
            if self._resolved.get(address) == url:
                del self._resolved[address]
            raise _ExpiredError
        self._check_status(answer.status, file.path)
        return answer.content

    async def _follow(
        self, method: str, file: RemoteFile, headers: Stated, length: int, accepts: Accepts
    ) -> tuple[URL, ServerAnswer]:
        """Ask the source for a file, and follow its redirects. Return where the file is, and the answer from there."""
        first = url = self._url(file)
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._send(ServerRequest(method, url, headers, length, accepts))
            if answer.status in EXPIRED and url.origin() != first.origin():
                raise _ExpiredError(f"HTTP {answer.status}")
            if answer.status not in MOVED:
                self._check_status(answer.status, file.path)
                return url, answer
            url = self._redirected(url, answer.headers.get("Location", ""), file.path)
        raise self._problem(WeightsCause.UNREACHABLE, file.path, f"is redirected more than {MAX_REDIRECTS} times")

    def _url(self, file: RemoteFile) -> URL:
        return URL(f"{str(self._base).rstrip('/')}/{quote(file.address or file.path)}", encoded=True)

    def _redirected(self, url: URL, location: str, path: str) -> URL:
        """Return where a redirect leads. No redirect leaves TLS."""
        with suppress(ValueError):
            found = url.join(URL(location, encoded=True)) if location else url
            schemes = ("https",) if url.scheme == "https" else ("http", "https")
            if found != url and found.scheme in schemes and found.host and found.user is None:
                return found
        raise self._problem(WeightsCause.UNREACHABLE, path, "is redirected to an address that is not allowed")

    async def _send(self, request: ServerRequest) -> ServerAnswer:
        """Send one request when its host allows it. The answer may be a refusal."""
        limit = limit_of(request.url)
        await limit.take()
        if self._token and request.url.origin() == self._base.origin():
            request = request._replace(headers={**request.headers, "Authorization": f"Bearer {self._token}"})
        try:
            answer = await self._connections.send(request, REQUEST_S)
        except READ_ERRORS as error:
            raise _PassingError(type(error).__name__) from error
        limit.note(answer.status, answer.headers)
        return answer

    def _check_status(self, status: int, path: str) -> None:
        """Raise what the status of an answer without content means."""
        if status in (200, 206):
            return
        if status in PASSING:
            raise _PassingError(f"HTTP {status}")
        if status == 412:
            raise self._problem(WeightsCause.CHANGED, path, "changed while it was fetched")
        if status == 404:
            raise self._problem(WeightsCause.NOT_FOUND, path, "does not exist")
        if status in (401, 403):
            raise self._problem(WeightsCause.DENIED, path, "may not be read with these credentials")
        raise self._problem(WeightsCause.UNREACHABLE, path, f"cannot be read (HTTP {status})")

    def _problem(self, cause: WeightsCause, path: str, words: str) -> WeightsError:
        return WeightsError(cause, f"{self._source}: {shown(path)} {words}")


def version_of(headers: Message) -> str:
    """Return what differs when the content of a file does: its ETag, or else its date to the second; "": neither."""
    if headers.get("ETag"):
        return headers["ETag"]
    with suppress(ValueError, TypeError, OverflowError):
        return f"{MODIFIED}{parsedate_to_datetime(headers.get('Last-Modified', '')).isoformat(timespec='seconds')}"
    return ""


def limit_of(url: URL, kind: str = "") -> RequestLimit:
    """Return the limit that all requests of this process to one host share. kind: of requests that it counts apart."""
    name = f"{url.origin()} {kind}"
    if name not in _limits:
        while len(_limits) >= MAX_HOSTS:
            _limits.pop(next(iter(_limits)))
        _limits[name] = RequestLimit()
    return _limits[name]
