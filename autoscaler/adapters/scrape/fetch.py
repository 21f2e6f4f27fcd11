"""Fetch many small bodies at once from servers that may be slow, broken or hostile.

Connections are kept and used again; every request has a deadline and every body a bound, before and after
decompression. Redirects are not followed and proxies of the environment are not used: what is asked is what answers.
Trouble is data: a short reason instead of a body.
"""

from __future__ import annotations

import asyncio
import os
import resource
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Self, TypeVar

import aiohttp
from yarl import URL

Item = TypeVar("Item")

_HEADERS = {
    "Accept": "text/plain;version=0.0.4, application/json;q=0.5, */*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": "vllm-autoscaler",
}
_IDLE_S = 60.0  # how long an unused connection is kept


class Answer(NamedTuple):
    """What came back."""

    body: bytes | None
    problem: str = ""  # a few words, safe to log; "": there is a body


class Fetcher:
    """GET requests under the bounds of one scraper. An async context manager: connections live as long as it does."""

    def __init__(self, *, concurrency: int, timeout_s: float, max_body_bytes: int) -> None:
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None
        self._keep_alive = True

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._concurrency, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            headers=_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # aiohttp would unpack without our bound
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def each(
        self, items: Iterable[Item], visit: Callable[[Item], Awaitable[None]], deadline_s: float
    ) -> list[Item]:
        """Call `visit` on every item, a bounded number at once; return the items not done by the deadline.

        Items are begun in their order. What a visit raises ends all of them.
        """
        pending = list(items)
        # An idle connection per server must not use up the files that this process may open.
        self._keep_alive = len(pending) <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        todo = iter(enumerate(pending))
        done = [False] * len(pending)

        async def work() -> None:
            for index, item in todo:
                await visit(item)
                done[index] = True

        try:
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
                for _ in range(min(self._concurrency, len(pending))):
                    group.create_task(work(), name="scrape")
        except TimeoutError:
            pass
        return [item for index, item in enumerate(pending) if not done[index]]

    async def get(self, url: URL) -> Answer:
        """Fetch one body. Never raises for what the other side does."""
        if self._session is None:
            raise RuntimeError("Fetcher is not open: use `async with`")
        headers = None if self._keep_alive else {"Connection": "close"}
        try:
            async with self._session.get(url, allow_redirects=False, headers=headers) as response:
                if 300 <= response.status < 400:
                    return Answer(None, f"redirects are not followed (HTTP {response.status})")
                if response.status != 200:
                    return Answer(None, f"HTTP {response.status}, not 200")
                return self._unpack(await self._read(response), response.headers.get("Content-Encoding", ""))
        except _Refused as error:
            return Answer(None, str(error))
        except TimeoutError:
            return Answer(None, f"no answer within {self._timeout_s:g} s")
        except aiohttp.ServerDisconnectedError:
            return Answer(None, "connection closed without an answer")
        except aiohttp.ClientPayloadError:
            return Answer(None, "connection closed inside the body")
        except aiohttp.ClientSSLError:
            return Answer(None, "TLS failed: certificate or protocol not accepted")
        except aiohttp.ClientConnectorDNSError:
            return Answer(None, "host name not found")
        except aiohttp.ClientConnectorError as error:
            return Answer(None, _os_reason(error.os_error))
        except aiohttp.ClientResponseError:
            return Answer(None, "not an HTTP answer")
        except (aiohttp.ClientError, ValueError) as error:
            return Answer(None, type(error).__name__)  # its text may quote the other side
        except OSError as error:
            return Answer(None, _os_reason(error))

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while chunk := await response.content.readany():
            size += len(chunk)
            if size > self._max_body_bytes:
                raise _Refused(f"body larger than {self._max_body_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)

    def _unpack(self, raw: bytes, encoding: str) -> Answer:
        if encoding.lower() in {"", "identity"}:
            return Answer(raw)
        if encoding.lower() not in {"gzip", "x-gzip"}:
            raise _Refused(f"content encoding {encoding[:20]!r}; only gzip is supported")
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            body = unpacker.decompress(raw, self._max_body_bytes + 1)
        except zlib.error:
            raise _Refused("broken gzip") from None
        if len(body) > self._max_body_bytes:
            raise _Refused(f"body larger than {self._max_body_bytes} bytes when unpacked")
        if not unpacker.eof or unpacker.unused_data:
            raise _Refused("broken gzip")
        return Answer(body)


class _Refused(Exception):
    """The answer is not one that will be read; the message is the reason."""


def _os_reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else "cannot connect"
