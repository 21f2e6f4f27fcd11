"""The port of a replica that does not lead: it sends connections on to the leader and takes no call.

gRPC waits longer after each connection that fails, up to two minutes, and KEDA's client is no exception: behind a
closed port it finds a new leader late. Here its connection succeeds, which ends that wait, and is given up at once
with GOAWAY, so that gRPC connects again. The connection is held for a moment before that. Meanwhile gRPC counts it as
connecting: calls go to a leader that is connected already, and where there is none they wait instead of failing.
Source: grpc-go `clientconn.go` (resetTransport, createTransport), RFC 9113.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

HOLD_S = 0.5  # a connection costs both sides a handshake that often
GONE_S = 1.0  # for the peer to close, so that it reads the GOAWAY and no reset
RELEASE_S = 0.1  # for another to bind the port: a connection that is refused makes gRPC wait for a second
MAX_HELD = 1024  # KEDA has one connection for each address and TLS setting; more are closed at once
TLS_S = 5.0  # for the TLS handshake
WILDCARDS = ("0.0.0.0", "::")
READ_BYTES = 1 << 16

SETTINGS = b"\0\0\0" + b"\x04" + b"\0" + b"\0\0\0\0"  # length, type, flags, stream
GOAWAY = b"\0\0\x08" + b"\x07" + b"\0" + b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\0"  # no stream was processed; no error


class Door:
    """One listening port, from binding it to closing it."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._released = asyncio.Event()
        self._held: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(cls, host: str, port: int, tls: ssl.SSLContext | None) -> Door:
        """Bind and listen. Raises OSError."""
        door = cls()
        door._server = await asyncio.start_server(
            door._take, sock=_listener(host, port), ssl=tls, ssl_handshake_timeout=TLS_S if tls else None
        )
        return door

    async def stop(self, grace_s: float) -> None:
        """Free the port at once. Send away the held connections a little later, when it may be served again."""
        if self._server:
            self._server.close()
        await asyncio.sleep(min(grace_s, RELEASE_S))
        self._released.set()
        if self._held:
            await asyncio.wait(self._held)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._held) >= MAX_HELD:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._send_away(reader, writer), name="keda-door")
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    async def _send_away(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Bytes of the peer are read and dropped all the while: closing over unread bytes would reset the connection.
        drained = asyncio.create_task(_drain(reader))
        released = asyncio.create_task(self._released.wait())
        try:
            await asyncio.wait((drained, released), timeout=self._hold_s, return_when=asyncio.FIRST_COMPLETED)
            writer.write(SETTINGS + GOAWAY)
            await asyncio.wait((drained,), timeout=GONE_S)
        finally:
            for task in (drained, released):
                task.cancel()
            writer.transport.abort()
            await asyncio.wait((drained, released))


def _listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; an address that means all addresses means those of IPv6 too, as for gRPC."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if host in WILDCARDS and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be switched off
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(address[:2], family=family)


async def _drain(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):  # the peer went away, or TLS failed
        while await reader.read(READ_BYTES):
            pass
