"""One HTTP server from its port to its last answer, for all servers of the project.

Whoever reaches a port can open connections and send nothing. At the limit the oldest connection without a request in
progress is closed, so that such a client locks out nobody.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from aiohttp import web

from autoscaler.ports import CannotServe

HANDSHAKE_S = 5.0
SHUTDOWN_S = 2.0  # for answers in progress when it ends


class Listener:
    """Serves an application while its context is open. Raises CannotServe on entering if the port cannot be used."""

    def __init__(
        self,
        app: web.Application,
        address: tuple[str, int],
        most: int,
        tls: ssl.SSLContext | None = None,
        connection: type[web.RequestHandler] = web.RequestHandler,
        **options: Any,
    ) -> None:
        """address: host and port; "": all hosts, 0: any port that is free. most: connections at once.

        connection, options: class of a connection, and what it is made with.
        """
        self._address = address
        self._tls = tls
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=SHUTDOWN_S)
        self._most = most
        self._connection = connection
        self._options = options
        self._answering: set[asyncio.BaseProtocol] = set()  # connections with a request in progress
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        loop, (host, port) = asyncio.get_running_loop(), self._address
        handshake_s = HANDSHAKE_S if self._tls is not None else None
        try:
            self._server = await loop.create_server(
                self._accept, host or None, port, ssl=self._tls, ssl_handshake_timeout=handshake_s, backlog=self._most
            )
        except OSError as error:
            await self._runner.cleanup()
            raise CannotServe(_cannot_listen(host, port, error)) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self._runner.cleanup()

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    @property
    def port(self) -> int:
        """The bound port; differs from the given one if that is 0."""
        if self._server is None:
            raise RuntimeError("the server is not listening yet")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @contextmanager
    def answering(self, request: web.Request) -> Iterator[None]:
        """Keep the connection of a request open at the limit, until its answer is complete."""
        self._answering.add(request.protocol)
        try:
            yield
        finally:
            self._answering.discard(request.protocol)

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is None:
            return _HangUp()
        connections = server.connections  # oldest first
        if len(connections) >= self._most:
            # Closed connections, without a transport, are still listed for a moment.
            idle = (each for each in connections if each.transport is not None and each not in self._answering)
            oldest = next(idle, None)
            if oldest is None:
                return _HangUp()
            oldest.force_close()
        loop = asyncio.get_running_loop()
        return self._connection(server, loop=loop, access_log=None, lingering_time=1.0, **self._options)  # type: ignore[arg-type]


class _HangUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    """Return why a port cannot be used, and what to do."""
    where = f" on {host}" if host else ""
    match error.errno:
        case errno.EADDRINUSE:
            return f"HTTP port {port}{where} is in use by another program; stop it or choose another port"
        case errno.EACCES:
            return f"HTTP port {port}{where} needs privileges; choose a port from 1024 to 65535"
        case _:
            return f"cannot listen for HTTP{where} port {port}: {error.strerror or error}"
