"""An HTTP server whose answers a test sets, path by path: metrics endpoints, good and bad."""

import asyncio
import gzip
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from ssl import SSLContext

from aiohttp import web

START_S = 30.0
TEXT = "text/plain; version=1.0.0; charset=utf-8"  # what vLLM says


@dataclass(frozen=True)
class Answer:
    """The answer of a path. The faults may be combined; none is set by default."""

    body: str | bytes = ""
    status: int = HTTPStatus.OK
    delay_s: float = 0
    gzip: bool = False  # sent compressed, whatever the client accepts
    truncate_at: int | None = None  # announce the whole length, send this many bytes, close
    drop: bool = False  # close the connection without an answer
    headers: Mapping[str, str] = field(default_factory=dict)


class ExpositionServer:
    """`serve` sets what a path answers from now on; `requests` is what was asked, in order."""

    def __init__(self, port: int, scheme: str) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"{scheme}://{self.address}"
        self.requests: list[web.Request] = []
        self._answers: dict[str, Callable[[], Answer]] = {}

    def serve(self, path: str, answer: Answer | str | bytes | Callable[[], str]) -> str:
        """Set the answer of a path and return its URL. A plain text is answered as it is; a function returns it."""

        def current() -> Answer:
            found = answer() if callable(answer) else answer
            return found if isinstance(found, Answer) else Answer(found)

        self._answers[path] = current
        return self.url + path

    def forget(self, path: str) -> None:
        """Answer 404 from now on."""
        del self._answers[path]

    def asked(self, path: str) -> int:
        """Return how often a path was asked for."""
        return sum(request.path == path for request in self.requests)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        current = self._answers.get(request.path)
        answer = current() if current is not None else Answer("no such path\n", HTTPStatus.NOT_FOUND)
        await asyncio.sleep(answer.delay_s)
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        headers = {"Content-Type": TEXT, **answer.headers}
        if answer.gzip:
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        if answer.drop:
            _close(request)
            return web.Response()
        response = web.StreamResponse(status=answer.status, headers=headers)
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: answer.truncate_at])
        if answer.truncate_at is not None:
            _close(request)
        return response


@asynccontextmanager
async def exposition_server(ssl_context: SSLContext | None = None) -> AsyncIterator[ExpositionServer]:
    """Run such a server on a free loopback port, with TLS if a context is given.

    It has a thread of its own, so that a test that computes for a second breaks no scrape of a server beside it.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    server = ExpositionServer(listener.getsockname()[1], "https" if ssl_context else "http")
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    loop = asyncio.SelectorEventLoop()
    thread = threading.Thread(target=loop.run_forever, name="exposition")
    thread.start()

    async def start() -> None:
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=ssl_context).start()

    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(START_S)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(START_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _close(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()
