"""Requests to many pods and exporters at once, which may be slow, broken or hostile.

Connections are reused. Each request has a deadline, and each body a limit before and after decompression. Redirects are
not followed and proxies of the environment are not used, so only the requested server can answer.
A failure is returned as a short reason instead of a body.
"""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Self, TypeVar

import aiohttp
from yarl import URL

from autoscaler.http.credentials import CredentialError

Item = TypeVar("Item")

_HEADERS = {
    "Accept": "text/plain;version=0.0.4, application/json;q=0.5, */*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": "vllm-autoscaler",
}
_IDLE_S = 60.0  # before an idle connection is closed
_HANDSHAKE_S = 1.0  # timeout of the TLS probe
_PLAIN_TTL_S, _MAX_PLAIN = 300.0, 10_000  # cache of servers without TLS: lifetime and size
SPEAKS_TLS = "the server speaks TLS, and was asked in plain HTTP"
TO_TLS = ", to https"  # part of the reason for a redirect
SPEAKS_HTTP = "the server speaks plain HTTP, and was asked over TLS"


class FetchAnswer(NamedTuple):
    """The result of one request."""

    body: bytes | None
    problem: str = ""  # a short reason, safe to log; "" if there is a body


class Fetcher:
    """Sends requests within the limits of one caller. An async context manager that owns the connections."""

    def __init__(
        self,
        *,
        concurrency: int,
        timeout_s: float,
        max_body_bytes: int,
        context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        """context: returns the TLS context for https; may raise CredentialError."""
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self._context = context
        self._session: aiohttp.ClientSession | None = None
        self._keep_alive = True
        self._plain: dict[tuple[str | None, int | None], float] = {}  # expiry time, by server without TLS

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._concurrency, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            headers=_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # aiohttp has no limit for it
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
        """Call `visit` for every item, with bounded concurrency; return the items not finished by the deadline.

        Items start in order. An exception in `visit` cancels all others.
        """
        pending = list(items)
        # One idle connection per server must not use up the open files of this process.
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

    async def get(self, url: URL, token: str = "") -> FetchAnswer:
        """Fetch one body. No behaviour of the server raises an exception.

        token: bearer token, only sent over https.
        """
        answer = await self._request("GET", url, token)
        perhaps_tls = answer.problem in _PERHAPS_TLS and url.scheme == "http"
        return FetchAnswer(None, SPEAKS_TLS) if perhaps_tls and await self._speaks_tls(url) else answer

    async def post(self, url: URL, token: str = "", content: Mapping[str, object] | None = None) -> FetchAnswer:
        """Send a request that changes something, with JSON if there is some; otherwise like `get`."""
        return await self._request("POST", url, token, content)

    async def _request(
        self, method: str, url: URL, token: str, content: Mapping[str, object] | None = None
    ) -> FetchAnswer:
        if self._session is None:
            raise RuntimeError("Fetcher is not open: use `async with`")
        headers = {} if self._keep_alive else {"Connection": "close"}
        secure = url.scheme == "https"
        if token and secure and not url.user:
            headers["Authorization"] = f"Bearer {token}"
        try:
            context = self._context() if secure else True
            async with self._session.request(
                method, url, json=content, allow_redirects=False, headers=headers, ssl=context
            ) as response:
                if 300 <= response.status < 400:
                    moved = not secure and response.headers.get("Location", "").startswith("https:")
                    where = TO_TLS if moved else ""
                    return FetchAnswer(None, f"redirects are not followed (HTTP {response.status}{where})")
                if response.status != 200:
                    return FetchAnswer(None, _refusal(response.status))
                return self._unpack(await self._read(response), response.headers.get("Content-Encoding", ""))
        except (_RefusedResponse, CredentialError) as error:
            return FetchAnswer(None, str(error))
        except TimeoutError:
            return FetchAnswer(None, f"no answer within {self._timeout_s:g} s")
        except aiohttp.ServerDisconnectedError:
            return FetchAnswer(None, _CLOSED)
        except aiohttp.ClientPayloadError:
            return FetchAnswer(None, "connection closed inside the body")
        except aiohttp.ClientConnectorCertificateError as error:
            reason = getattr(error.certificate_error, "verify_message", "") or "not accepted"
            return FetchAnswer(None, f"the server's certificate: {reason}")
        except aiohttp.ClientSSLError as error:
            plain = getattr(error.os_error, "reason", "") in _PLAIN_HTTP
            return FetchAnswer(None, SPEAKS_HTTP if plain else "TLS failed: certificate or protocol not accepted")
        except aiohttp.ClientConnectorDNSError:
            return FetchAnswer(None, "host name not found")
        except aiohttp.ClientConnectorError as error:
            return FetchAnswer(None, _os_reason(error.os_error))
        except aiohttp.ClientResponseError:
            return FetchAnswer(None, _NO_HTTP)
        except aiohttp.ClientOSError as error:
            return FetchAnswer(None, _os_reason(error))
        except (aiohttp.ClientError, ValueError) as error:
            return FetchAnswer(None, type(error).__name__)  # its text may quote the server
        except OSError as error:
            return FetchAnswer(None, _os_reason(error))

    async def _speaks_tls(self, url: URL) -> bool:
        """Return whether a server answers a TLS handshake. No data is sent."""
        server, now_s = (url.host, url.port), asyncio.get_running_loop().time()
        if self._plain.get(server, 0.0) > now_s:
            return False
        if len(self._plain) >= _MAX_PLAIN:
            self._plain.clear()
        self._plain[server] = now_s + _PLAIN_TTL_S
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            async with asyncio.timeout(min(self._timeout_s, _HANDSHAKE_S)):
                _, writer = await asyncio.open_connection(url.host, url.port, ssl=context)
        except ssl.SSLError as error:
            if "ALERT" not in (error.reason or ""):  # an alert means another version or a client certificate
                return False
        except (OSError, TimeoutError):
            return False
        else:
            writer.transport.abort()
        del self._plain[server]
        return True

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while chunk := await response.content.readany():
            size += len(chunk)
            if size > self._max_body_bytes:
                raise _RefusedResponse(f"body larger than {self._max_body_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)

    def _unpack(self, raw: bytes, encoding: str) -> FetchAnswer:
        if encoding.lower() in {"", "identity"}:
            return FetchAnswer(raw)
        if encoding.lower() not in {"gzip", "x-gzip"}:
            raise _RefusedResponse(f"content encoding {encoding[:20]!r}; only gzip is supported")
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            body = unpacker.decompress(raw, self._max_body_bytes + 1)
        except zlib.error:
            raise _RefusedResponse("broken gzip") from None
        if len(body) > self._max_body_bytes:
            raise _RefusedResponse(f"body larger than {self._max_body_bytes} bytes when unpacked")
        if not unpacker.eof or unpacker.unused_data:
            raise _RefusedResponse("broken gzip")
        return FetchAnswer(body)


class _RefusedResponse(Exception):
    """The response is not read; the message is the reason."""


def _refusal(status: int) -> str:
    return f"HTTP {status}, not 200"


# Answers of TLS servers to plain HTTP; others send the status 400.
_CLOSED, _RESET, _NO_HTTP = "connection closed without an answer", "connection reset by peer", "not an HTTP answer"
_PERHAPS_TLS = frozenset({_CLOSED, _RESET, _NO_HTTP, _refusal(400)})
_PLAIN_HTTP = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"})


def _os_reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else "cannot connect"
