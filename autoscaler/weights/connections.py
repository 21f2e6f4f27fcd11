"""HTTP requests whose bodies go straight into memory of a fixed size: what a server sends beyond it ends the request.

Threads read the bodies, and Python copies no byte. A body that was not asked for, such as the text of an error, is not
read at all.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from email.message import Message
from typing import NamedTuple
from urllib.request import getproxies_environment, proxy_bypass

from yarl import URL

from autoscaler.weights.buffers import new_buffer

MAX_THREADS = 64
PIECE_BYTES = 1 << 20
MAX_IDLE = 16  # connections to one server
READ_ERRORS = (http.client.HTTPException, OSError, ValueError)
"""What a request raises if a server refuses, does not answer in time, or speaks no HTTP."""

_threads = ThreadPoolExecutor(MAX_THREADS, "http")


class TooLongError(Exception):
    """A body has more bytes than were asked for."""


class ServerAnswer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Message
    content: memoryview  # of as many bytes as arrived; empty for an answer that was not accepted
    rest: bytes = b""  # what follows the content, if it was asked for


class ServerRequest(NamedTuple):
    """What to ask for, and which answer to read."""

    method: str
    url: URL
    headers: Mapping[str, str]
    length: int  # bytes of the body, at most
    accepts: Callable[[int, Message], bool]  # tells by status and headers whether to read the body
    rest: int = 0  # bytes that follow


class _Call:
    """A request under way. Its task may hang up while a thread waits for the server."""

    def __init__(self) -> None:
        self.stopped = False
        self.socket: socket.socket | None = None

    def hang_up(self) -> None:
        self.stopped = True
        if self.socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class Connections:
    """Connections to servers, which are kept for the next request."""

    def __init__(
        self, connect_s: float, silence_s: float, tls: ssl.SSLContext | None = None, proxied: bool = True
    ) -> None:
        """tls: None: servers need a certificate that the system trusts. proxied: by what the environment names."""
        self._proxied = proxied
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._tls = tls
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}

    async def send(self, request: ServerRequest, limit_s: float) -> ServerAnswer:
        """Send a request and return its answer. Raises TooLongError, and one of READ_ERRORS."""
        call = _Call()
        asked = asyncio.get_running_loop().run_in_executor(_threads, self._exchange, request, call)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(asked)
        finally:
            if not asked.done():
                call.hang_up()
                asked.add_done_callback(lambda done: done.cancelled() or done.exception())

    def close(self) -> None:
        """Close the connections that are not in use."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _exchange(self, request: ServerRequest, call: _Call) -> ServerAnswer:
        idle = self._idle.setdefault(str(request.url.origin()), [])
        while True:
            try:
                connection, is_new = idle.pop(), False
            except IndexError:
                connection, is_new = self._connect(request.url), True
            answer = None
            try:
                answer, is_whole = self._ask(connection, request, call)
            except ConnectionError:
                if is_new or call.stopped:
                    raise
                continue  # the server has closed a connection that was idle
            finally:
                if answer is None:
                    connection.close()
            if is_whole and len(idle) < MAX_IDLE and not call.stopped:
                idle.append(connection)
            else:
                connection.close()
            return answer

    def _ask(
        self, connection: http.client.HTTPConnection, request: ServerRequest, call: _Call
    ) -> tuple[ServerAnswer, bool]:
        """Send a request, and return the answer and whether the connection can be used again."""
        call.socket = connection.sock
        if call.stopped:
            raise TimeoutError
        url, tunnelled = request.url, isinstance(connection, http.client.HTTPSConnection)
        target = url.raw_path_qs if tunnelled or connection.host == url.host else str(url)
        connection.request(request.method, target, headers=dict(request.headers))
        with closing(connection.getresponse()) as response:
            return self._read(response, request)

    def _read(self, response: http.client.HTTPResponse, request: ServerRequest) -> tuple[ServerAnswer, bool]:
        if not request.accepts(response.status, response.headers) or request.method == "HEAD":
            return ServerAnswer(response.status, response.headers, memoryview(b"")), request.method == "HEAD"
        buffer, received = new_buffer(request.length), 0
        while received < request.length and (count := response.readinto(buffer[received : received + PIECE_BYTES])):
            received += count
        rest = response.read(request.rest + 1) if received == request.length else b""
        if len(rest) > request.rest:
            raise TooLongError
        content = buffer if received == request.length else buffer[:received]
        return ServerAnswer(response.status, response.headers, content, rest), response.isclosed()

    def _connect(self, url: URL) -> http.client.HTTPConnection:
        host, port = url.host or "", url.port or 0
        proxy = _proxy(url) if self._proxied else None
        via = (host, port) if proxy is None else (proxy.host or "", proxy.port or 80)
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            context = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(*via, timeout=self._connect_s, context=context)
            if proxy is not None:
                connection.set_tunnel(host, port, _credentials(proxy))
        else:
            connection = http.client.HTTPConnection(*via, timeout=self._connect_s)
        connection.connect()
        connection.sock.settimeout(self._silence_s)
        return connection


def _proxy(url: URL) -> URL | None:
    """Return the proxy that the environment names for a URL, as curl reads it."""
    if not url.host or proxy_bypass(f"{url.host}:{url.port}"):
        return None
    proxies = getproxies_environment()
    named = proxies.get(url.scheme) or proxies.get("all")
    return URL(named if "://" in named else f"http://{named}") if named else None


def _credentials(proxy: URL) -> dict[str, str]:
    if proxy.user is None:
        return {}
    coded = base64.b64encode(f"{proxy.user}:{proxy.password or ''}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {coded}"}
