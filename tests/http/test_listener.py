"""A server on a real port: who connects and says nothing locks out nobody, and is gone when the server ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
from aiohttp import web

from autoscaler.http.accept import HANDSHAKE_S
from autoscaler.http.listener import Listener
from tests.harness.certificates import Certificates
from tests.harness.process import PATIENCE_S

MOST = 8
LONG_BYTES = 16 << 20  # more than the kernel keeps for a connection


async def _answer(_: web.Request) -> web.Response:
    return web.Response(text="works")


class Site:
    """A server for MOST connections that answers `works`, with TLS."""

    def __init__(self, directory: Path) -> None:
        certificates = Certificates(directory)
        pair = certificates.issue("127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        app = web.Application()
        app.router.add_get("/", _answer)
        app.router.add_get("/later", self._answer_later)
        self.late = asyncio.Event()
        self.listener = Listener(app, ("127.0.0.1", 0), MOST, context)
        self.trust = ssl.create_default_context(cafile=certificates.ca)

    async def _answer_later(self, request: web.Request) -> web.Response:
        await self.late.wait()
        return await _answer(request)

    async def connect(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.listener.port, **options)

    @asynccontextmanager
    async def browser(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(ssl=self.trust)
        async with aiohttp.ClientSession(f"https://127.0.0.1:{self.listener.port}", connector=connector) as browser:
            yield browser


class RudeClient:
    """Reads only the answer that it waits for, so it does not take part in the end of a connection."""

    def __init__(self, site: Site) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = site.trust.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self._address = "127.0.0.1", site.listener.port
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def __aenter__(self) -> Self:
        """Connect, up to the last step of the handshake, which is sent with the next bytes."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, self._address)
        while True:
            try:
                self._tls.do_handshake()
                return self
            except ssl.SSLWantReadError:
                await loop.sock_sendall(self._socket, self._outgoing.read())
                await self._receive()

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def send(self, sent: bytes) -> None:
        self._tls.write(sent)
        await asyncio.get_running_loop().sock_sendall(self._socket, self._outgoing.read())

    async def ask(self) -> None:
        """Send a request, and expect its answer."""
        await self.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"works"):
            try:
                part = self._tls.read()
                assert part, "the server has closed the connection"
                answer += part
            except ssl.SSLWantReadError:
                await self._receive()

    async def _receive(self) -> None:
        received = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        assert received, "the server has hung up"
        self._incoming.write(received)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "certificates")


async def works(browser: aiohttp.ClientSession) -> bool:
    async with browser.get("/") as response:
        return await response.text() == "works"


async def is_hung_up(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


@pytest.mark.parametrize("secured", [False, True])
async def test_connections_that_ask_nothing_are_bounded(site: Site, secured: bool) -> None:
    async with site.listener, site.browser() as browser:
        assert await works(browser)
        opened = [await site.connect(ssl=site.trust if secured else None) for _ in range(MOST + 3)]
        for reader, _ in opened[: 3 if secured else 4]:  # those that have agreed on TLS, as the browser's, stay longer
            assert await is_hung_up(reader)
        assert await works(browser)
        async with site.browser() as another:
            assert await works(another)
        assert not opened[-1][0].at_eof()
        for _, writer in opened:
            writer.close()


async def test_server_that_ends_closes_who_has_agreed_on_no_tls(site: Site) -> None:
    async with site.listener, site.browser() as browser:
        silent, writer = await site.connect()
        assert await works(browser)  # so the server has accepted the one before
    async with asyncio.timeout(HANDSHAKE_S - 1):
        assert await is_hung_up(silent)
    writer.close()


@pytest.mark.parametrize("turns", range(5))
async def test_server_that_ends_closes_whom_it_has_just_accepted(site: Site, turns: int) -> None:
    loop = asyncio.get_running_loop()
    async with site.listener:
        clients = [socket.create_connection(("127.0.0.1", site.listener.port)) for _ in range(3)]
        for _ in range(turns):  # of the event loop: accepted, then made known
            await asyncio.sleep(0)
    for client in clients:
        with client:
            client.setblocking(False)
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 70_000])
async def test_what_is_no_tls_is_hung_up(site: Site, sent: bytes) -> None:
    async with site.listener, site.browser() as browser:
        reader, writer = await site.connect()
        writer.write(sent)
        writer.write_eof()
        await reader.read()  # an alert, or nothing
        assert await works(browser)
        writer.close()


async def test_newcomers_do_not_close_one_another_when_others_are_idle(site: Site) -> None:
    async with site.listener, AsyncExitStack() as opened:
        for _ in range(MOST):
            await (await opened.enter_async_context(RudeClient(site))).ask()
        newcomers = [await opened.enter_async_context(RudeClient(site)) for _ in range(3)]
        for newcomer in newcomers:  # all have begun their handshake, and end it now
            await newcomer.ask()


async def test_who_ignores_the_end_of_tls_locks_out_nobody(site: Site) -> None:
    async with site.listener, AsyncExitStack() as opened:
        for _ in range(MOST):
            await (await opened.enter_async_context(RudeClient(site))).ask()
        for _ in range(3 * MOST):
            async with site.browser() as browser:
                assert await works(browser)


async def test_who_leaves_an_answer_unread_locks_out_nobody() -> None:
    asked = asyncio.Semaphore(0)

    async def answer_long(_: web.Request) -> web.Response:
        asked.release()
        return web.Response(body=bytes(LONG_BYTES))

    app = web.Application()
    app.router.add_get("/", _answer)
    app.router.add_get("/long", answer_long)
    async with Listener(app, ("127.0.0.1", 0), MOST) as listener, AsyncExitStack() as opened:
        for _ in range(MOST):
            deaf = opened.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            deaf.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(MOST):
            await asked.acquire()
        for _ in range(3 * MOST):
            async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as browser:
                assert await works(browser)


async def test_requests_with_the_end_of_tls_are_read_as_answered(site: Site) -> None:
    request = b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n"
    async with site.listener, RudeClient(site) as client:
        await client.send(request * 300)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                for _ in range(64):  # 16 MB
                    await client.send(request * 7_000)
        site.late.set()
