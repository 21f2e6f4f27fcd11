"""One HTTP server from its port to its last answer, for all servers of the project.

Whoever reaches a port can open connections and send nothing. At the limit one is closed for each that comes: the oldest
without a request in progress, or the oldest that has not agreed on TLS if there are more of those. So such a client
locks out nobody, and new connections do not close one another while others are idle. A closed connection whose client
does not take its last bytes is cut off at the limit.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from aiohttp import web

from autoscaler.http.accept import Handshake, HangUp, stop_accepting
from autoscaler.ports import CannotServe

SHUTDOWN_S = 2.0  # for answers in progress when it ends


class Listener:
    """Serves an application while its context is open. Raises CannotServe on entering if the port cannot be used."""

    def __init__(
        self,
        app: web.Application,
        address: tuple[str, int],
        most: int,
        tls: ssl.SSLContext | None = None,
        connection: type[ClientConnection] | None = None,
        **options: Any,
    ) -> None:
        """address: host and port; "": all hosts, 0: any port that is free. most: connections at once.

        connection, options: class of a connection, and what it is made with.
        """
        self._address = address
        self._tls = tls
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=SHUTDOWN_S)
        self._most = most
        self._connection = connection or ClientConnection
        self._options = options
        self._answering: set[asyncio.BaseProtocol] = set()  # connections with a request in progress
        self._handshakes: dict[Handshake, None] = {}  # oldest first
        self._server: asyncio.Server | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        loop, (host, port) = asyncio.get_running_loop(), self._address
        try:
            self._server = await loop.create_server(self._accept, host or None, port, backlog=self._most)
        except OSError as error:
            await self._runner.cleanup()
            raise CannotServe(_cannot_listen(host, port, error)) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.sleep(0)  # so that connections accepted before are known
        if self._server is not None:
            self._server.close()  # not sooner: asyncio forgets connections that it accepted just before
        for handshake in [*self._handshakes]:
            await handshake.abort()
        await self._runner.cleanup()

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is None or self._is_closed:
            return
        self._is_closed = True
        stop_accepting(self._server)

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
        if server is None or self._is_closed or not self._has_room(server):
            return HangUp()
        loop = asyncio.get_running_loop()
        connection = self._connection(server, loop=loop, access_log=None, lingering_time=1.0, **self._options)
        return connection if self._tls is None else Handshake(self._tls, connection, self._handshakes)

    def _has_room(self, server: web.Server) -> bool:
        """Return whether one more connection may stay. At the limit, close another for it if one may be closed."""
        # Oldest first. Connections that were cut off are still listed for a moment.
        connections = [
            each for each in server.connections if isinstance(each, ClientConnection) and not each.is_cut_off
        ]
        if len(connections) + len(self._handshakes) < self._most:
            return True
        waiting = [each for each in connections if each not in self._answering]
        idle = [each for each in waiting if each.transport is not None]
        closed = [each for each in waiting if each.transport is None]  # their clients have not yet read to the end
        for each in closed:
            each.cut_off()
        if len(connections) - len(closed) + len(self._handshakes) < self._most:
            return True
        if len(self._handshakes) > len(idle):
            next(iter(self._handshakes)).close()
        elif idle:
            idle[0].force_close()
        else:
            return False
        return True


class ClientConnection(web.RequestHandler):
    """A connection that can be closed without its client's help."""

    __slots__ = ("_kept_transport", "is_cut_off")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept_transport: asyncio.Transport | None = None  # `transport` is None once closing has begun
        self.is_cut_off = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._kept_transport = transport
        super().connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self._kept_transport = None
        super().connection_lost(error)

    def cut_off(self) -> None:
        """Close at once, even if the client has not read everything."""
        self.is_cut_off = True
        if self._kept_transport is not None:
            self._kept_transport.abort()


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
