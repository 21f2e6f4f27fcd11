"""Connections between their accept and their first byte, of which asyncio's servers tell nobody."""

from __future__ import annotations

import asyncio
import ssl

HANDSHAKE_S = 5.0


def stop_accepting(server: asyncio.Server) -> None:
    """Accept no more. Close the server one turn of the loop later, because it forgets those accepted just before."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening)


class Handshake(asyncio.Protocol):
    """A connection until both sides have agreed on TLS. asyncio's own servers tell nobody of these."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        connection: asyncio.Protocol,
        underway: dict[Handshake, None],
        longest_s: float = HANDSHAKE_S,
    ) -> None:
        """connection: gets the transport afterwards. underway: holds this object for as long as it may be closed."""
        self._tls = tls
        self._connection = connection
        self._underway = underway
        self._longest_s = longest_s
        self._early: list[bytes] = []  # what came together with the end of the handshake
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # until TLS reads
        self._transport = transport
        self._underway[self] = None
        self._task = asyncio.create_task(self._agree())

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    async def _agree(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._transport.is_closing():
                return
            secured = await loop.start_tls(
                self._transport, self, self._tls, server_side=True, ssl_handshake_timeout=self._longest_s
            )
        except OSError:  # among them the errors of TLS
            return
        finally:
            self._underway.pop(self, None)
        if secured is not None:  # the other side has not hung up
            secured.set_protocol(self._connection)
            self._connection.connection_made(secured)
            if self._early:  # a connection that knows its transport reads no faster than it answers
                self._connection.data_received(b"".join(self._early))

    def close(self) -> None:
        """Hang up at once."""
        self._underway.pop(self, None)
        self._transport.abort()

    async def abort(self) -> None:
        """Hang up, and return when the connection is closed."""
        self.close()
        await self._task


class HangUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
