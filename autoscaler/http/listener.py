"""One listening HTTP port with a bounded number of connections, for all servers of the project.

Whoever reaches a port can open connections and send nothing. At the limit the oldest connection without a request in
progress is closed, so that such a client locks out nobody.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aiohttp import web

HANDSHAKE_S = 5.0


class Listener:
    """Accepts connections for an application whose runner was set up."""

    def __init__(
        self,
        runner: web.AppRunner,
        most: int,
        connection: type[web.RequestHandler] = web.RequestHandler,
        **options: Any,
    ) -> None:
        """most: connections at once. connection, options: class of a connection, and what it is made with."""
        self.answering: set[asyncio.BaseProtocol] = set()  # connections with a request in progress
        self._runner = runner
        self._most = most
        self._connection = connection
        self._options = options
        self._server: asyncio.Server | None = None

    async def listen(self, host: str | None, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Bind the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        handshake_s = HANDSHAKE_S if tls is not None else None
        self._server = await loop.create_server(
            self._accept, host, port, ssl=tls, ssl_handshake_timeout=handshake_s, backlog=self._most
        )

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

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is None:
            return _HangUp()
        connections = server.connections  # oldest first
        if len(connections) >= self._most:
            # Closed connections, without a transport, are still listed for a moment.
            idle = (each for each in connections if each.transport is not None and each not in self.answering)
            oldest = next(idle, None)
            if oldest is None:
                return _HangUp()
            oldest.force_close()
        loop = asyncio.get_running_loop()
        return self._connection(server, loop=loop, access_log=None, lingering_time=1.0, **self._options)  # type: ignore[arg-type]


class _HangUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
