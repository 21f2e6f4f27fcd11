"""Connections to a follower: bytes on the wire, plain and with TLS."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import timedelta

import pytest

from autoscaler.adapters.keda.goaway import ACKNOWLEDGE_S, DELAY_S, MAX_CONNECTIONS, GoAwayServer
from autoscaler.adapters.keda.tls import RotatingCertificates
from autoscaler.config.settings import TlsFiles
from autoscaler.http.accept import HANDSHAKE_S
from tests.harness.certificates import Certificates
from tests.harness.process import PATIENCE_S, free_port

HERE = "127.0.0.1"
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # and SETTINGS
ACKNOWLEDGEMENT = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"
SETTINGS, GOAWAY = 0x4, 0x7


def context(certificates: Certificates) -> ssl.SSLContext:
    pair = certificates.issue("localhost")
    return RotatingCertificates(TlsFiles(cert=pair.certificate, key=pair.key)).context()


@asynccontextmanager
async def opened(
    tls: ssl.SSLContext | None = None,
    delay_s: float = DELAY_S,
    acknowledge_s: float = ACKNOWLEDGE_S,
    handshake_s: float = HANDSHAKE_S,
) -> AsyncIterator[tuple[GoAwayServer, int]]:
    port = free_port()
    server = await GoAwayServer.start(HERE, port, tls, delay_s, acknowledge_s, handshake_s)
    try:
        yield server, port
    finally:
        await server.stop(0)


async def sent_away(reader: asyncio.StreamReader) -> bool:
    """Return whether the next frames are SETTINGS, which completes gRPC's connection, and GOAWAY."""
    found = []
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            header = await reader.readexactly(9)
            found.append(header[3])
            await reader.readexactly(int.from_bytes(header[:3]))
    return found == [SETTINGS, GOAWAY]


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_connection_gets_goaway_after_a_delay():
    async with opened() as (_, port):
        began_s = now_s()
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(HELLO)
        assert await sent_away(reader)
        assert now_s() - began_s >= 0.4
        writer.close()


async def test_goaway_follows_when_the_settings_are_acknowledged():
    """gRPC's C core that reads both at once may keep the connection, and its calls wait on it until their deadline."""
    async with opened(delay_s=0, acknowledge_s=PATIENCE_S) as (_, port):
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(HELLO)
        settings = await reader.readexactly(15)
        assert (settings[3], settings[9:]) == (SETTINGS, b"\x00\x03\x00\x00\x00\x00"), "no stream is allowed"
        goaway = asyncio.ensure_future(reader.readexactly(17))
        await asyncio.sleep(0.05)
        assert not goaway.done()
        half = len(ACKNOWLEDGEMENT) // 2
        for part in (ACKNOWLEDGEMENT[:half], ACKNOWLEDGEMENT[half:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await goaway)[3] == GOAWAY
        writer.close()


async def test_open_connections_end_when_the_server_stops():
    async with opened(delay_s=2 * PATIENCE_S) as (server, port):
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(HELLO)
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(server.stop(0))
        assert await sent_away(reader)
        writer.close()
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HERE, port)


async def test_connection_is_closed_when_the_peer_ignores_goaway():
    async with opened() as (_, port):
        reader, writer = await asyncio.open_connection(HERE, port)
        while not reader.at_eof() and not reader.exception():  # the peer goes on sending whatever it hears
            writer.write(HELLO * 1000)
            await asyncio.sleep(0.05)
        writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("secured", [False, True])
async def test_connections_beyond_the_limit_are_closed_at_once(certificates: Certificates, secured: bool):
    tls, long_s = context(certificates) if secured else None, 2 * PATIENCE_S
    async with opened(tls, delay_s=long_s, handshake_s=long_s) as (_, port):
        with ExitStack() as stack:
            silent = []
            for _ in range(MAX_CONNECTIONS + 1):
                silent.append(stack.enter_context(socket.socket()))
                silent[-1].setblocking(False)
                await asyncio.get_running_loop().sock_connect(silent[-1], (HERE, port))
            gives_way = silent[0 if secured else -1]  # whoever says nothing in TLS locks out nobody
            async with asyncio.timeout(PATIENCE_S):
                assert await asyncio.get_running_loop().sock_recv(gives_way, 1) == b""


@pytest.mark.parametrize("turns", range(5))
async def test_silent_connections_end_when_the_server_stops(certificates: Certificates, turns: int):
    """Also those that were accepted just before: asyncio forgets them."""
    async with opened(context(certificates), handshake_s=2 * PATIENCE_S) as (_, port):
        clients = [socket.create_connection((HERE, port)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
    for client in clients:
        with client, suppress(ConnectionResetError):
            client.setblocking(False)
            async with asyncio.timeout(PATIENCE_S):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_tls_client_gets_goaway_and_new_certificates(certificates: Certificates):
    trust = ssl.create_default_context(cafile=certificates.ca)
    trust.set_alpn_protocols(["h2"])
    async with opened(context(certificates)) as (_, port):
        ends = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection(HERE, port, ssl=trust, server_hostname="localhost")
            connection = writer.get_extra_info("ssl_object")
            assert connection.selected_alpn_protocol() == "h2"
            ends.append(connection.getpeercert()["notAfter"])
            writer.write(HELLO)
            assert await sent_away(reader)
            writer.close()
            certificates.issue("localhost", valid_for=timedelta(days=9))
    assert ends[0] != ends[1]


async def test_peer_without_tls_does_not_affect_others(certificates: Certificates):
    trust = ssl.create_default_context(cafile=certificates.ca)
    async with opened(context(certificates)) as (_, port):
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(HELLO)
        assert SETTINGS not in await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection(HERE, port, ssl=trust, server_hostname="localhost")
        assert await sent_away(reader)
        writer.close()
