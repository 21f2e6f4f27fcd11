"""The port of a follower: it answers each connection with GOAWAY, so that the client connects to the leader.

A gRPC client waits longer after each failed connection, up to two minutes. With a closed port KEDA would find a new
leader late. Here the connection succeeds, which ends that wait, and then ends with GOAWAY, so that gRPC connects again.

SETTINGS are sent after a short delay. Meanwhile gRPC counts the connection as connecting: calls use a connection to
the leader if there is one, and otherwise they wait instead of failing. The SETTINGS allow no stream, so the calls go on
waiting while the connection is open. GOAWAY follows once the client has acknowledged them: gRPC's C core, if it reads
both at once, may keep the connection as ready for good, and its calls wait on it until their deadline.
Source: grpc-go `clientconn.go` (resetTransport, createTransport), `http2_client.go` (NewStream), RFC 9113.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from autoscaler.http.accept import HANDSHAKE_S, Handshake, HangUp, stop_accepting

DELAY_S = 0.5  # before SETTINGS; each connection costs both sides a handshake
ACKNOWLEDGE_S = 1.0  # for the peer to acknowledge SETTINGS
CLOSE_S = 1.0  # for the peer to close the connection, so that it reads GOAWAY and no reset
RELEASE_S = 0.1  # for the next server to bind the port: after a refused connection gRPC waits for a second
MAX_CONNECTIONS = 1024  # KEDA has one for each address and TLS setting; more are closed at once
WILDCARDS = ("0.0.0.0", "::")
READ_BYTES = 1 << 16

SETTINGS = b"\0\0\x06" + b"\x04" + b"\0" + b"\0\0\0\0" + b"\0\x03" + b"\0\0\0\0"  # MAX_CONCURRENT_STREAMS is 0
ACKNOWLEDGEMENT = b"\0\0\0" + b"\x04" + b"\x01" + b"\0\0\0\0"  # length, type, flags, stream
GOAWAY = b"\0\0\x08" + b"\x07" + b"\0" + b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\0"  # no stream was processed; no error


class GoAwayServer:
    """One listening port, from binding it to closing it."""

    def __init__(self, tls: ssl.SSLContext | None, delay_s: float, acknowledge_s: float, handshake_s: float) -> None:
        self._tls = tls
        self._handshake_s = handshake_s
        self._delay_s, self._acknowledge_s = delay_s, acknowledge_s
        self._stopping = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._handshakes: dict[Handshake, None] = {}  # oldest first
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(
        cls,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        delay_s: float = DELAY_S,
        acknowledge_s: float = ACKNOWLEDGE_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> GoAwayServer:
        """Bind and listen. Raises OSError."""
        server = cls(tls, delay_s, acknowledge_s, handshake_s)
        server._server = await asyncio.get_running_loop().create_server(server._accept, sock=_listener(host, port))
        return server

    async def stop(self, grace_s: float) -> None:
        """Free the port at once. End the open connections shortly after, when another server may have bound it."""
        if self._server:
            stop_accepting(self._server)
            await asyncio.sleep(0)
            self._server.close()
        await asyncio.sleep(min(grace_s, RELEASE_S))
        self._stopping.set()
        for handshake in [*self._handshakes]:
            await handshake.abort()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self._connections) + len(self._handshakes) >= MAX_CONNECTIONS:
            if not self._handshakes:
                return HangUp()
            next(iter(self._handshakes)).close()
        connection = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._connected)
        if self._tls is None:
            return connection
        return Handshake(self._tls, connection, self._handshakes, self._handshake_s)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._send_goaway(reader, writer), name="keda-goaway")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _send_goaway(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The peer's bytes are read and dropped, because closing with unread bytes would reset the connection.
        acknowledged = asyncio.Event()
        drained = asyncio.create_task(_drain(reader, acknowledged))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((drained, stopping), timeout=self._delay_s, return_when=asyncio.FIRST_COMPLETED)
            writer.write(SETTINGS)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._acknowledge_s):
                    await acknowledged.wait()
            writer.write(GOAWAY)
            await asyncio.wait((drained,), timeout=CLOSE_S)
        finally:
            for task in (drained, stopping):
                task.cancel()
            writer.transport.abort()
            await asyncio.wait((drained, stopping))


def _listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. A wildcard address includes IPv6, as for gRPC."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if host in WILDCARDS and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be disabled
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(address[:2], family=family)


async def _drain(reader: asyncio.StreamReader, acknowledged: asyncio.Event) -> None:
    """Read to the end; say when SETTINGS are acknowledged, or will not be."""
    read = b""
    with suppress(OSError):  # the peer closed the connection, or TLS failed
        while more := await reader.read(READ_BYTES):
            read += more
            if ACKNOWLEDGEMENT in read:
                acknowledged.set()
            read = read[-len(ACKNOWLEDGEMENT) :]
    acknowledged.set()
