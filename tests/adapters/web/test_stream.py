"""Server-sent events, read by a client over loopback."""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from autoscaler.adapters.web.stream import MAX_CLIENTS
from autoscaler.http.listener import SHUTDOWN_S
from tests.adapters.web.conftest import Daemon
from tests.adapters.web.records import World
from tests.harness.process import PATIENCE_S, eventually

STREAM = "/api/v1/stream"


class Events:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> tuple[str, Any]:
        """Return the next event's name and data; a comment is named ":"; ("", None) at the end."""
        async with asyncio.timeout(PATIENCE_S):
            lines = [line async for line in self._until_blank()]
        if not lines:
            return "", None
        if lines[0].startswith(":"):
            return ":", lines[0][1:].strip()
        fields = dict(line.split(": ", 1) for line in lines)
        return fields["event"], json.loads(fields["data"])

    async def _until_blank(self) -> AsyncIterator[str]:
        while line := (await self._response.content.readline()).decode().rstrip("\n"):
            yield line


@asynccontextmanager
async def following(url: str) -> AsyncIterator[Events]:
    async with aiohttp.ClientSession() as client, client.get(url + STREAM) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield Events(response)


def stream_clients(daemon: Daemon) -> float | None:
    return daemon.metrics.registry.get_sample_value("vllm_autoscaler_stream_clients")


async def eventually_clients(daemon: Daemon, count: int) -> None:
    async def reached() -> bool:
        return stream_clients(daemon) == count

    await eventually(reached, f"{count} clients follow", every_s=0.01)


async def test_each_tick_is_one_message_with_what_changed(daemon: Daemon) -> None:
    world = World(50)
    daemon.record(world.tick())
    async with following(daemon.url) as events:
        assert await events.next() == ("hello", {"tick": 0})
        tick = world.tick()
        daemon.record(tick)
        name, message = await events.next()
        assert (name, message["tick"], message["wall_s"], message["leading"]) == ("tick", 1, tick.wall_s, True)
        assert message["changed"]
        assert all("name" not in cells for cells in message["changed"])
        daemon.record(tick)
        assert (await events.next())[1]["changed"] == []


async def test_early_client_gets_all_rows_with_the_first_tick(daemon: Daemon) -> None:
    async with following(daemon.url) as events:
        assert await events.next() == ("hello", {"tick": None})
        daemon.record(World(3).tick())
        _, message = await events.next()
        assert len(message["changed"]) == 3
        assert all("name" in row for row in message["changed"])


async def test_a_second_client_hears_the_same(daemon: Daemon) -> None:
    world = World(5)
    daemon.record(world.tick())
    async with following(daemon.url) as one, following(daemon.url) as two:
        await one.next()
        await two.next()
        daemon.record(world.tick())
        assert await one.next() == await two.next()


async def test_silence_is_filled_with_heartbeats(daemon: Daemon) -> None:
    async with daemon.another(0, heartbeat_s=0.05) as server, following(f"http://127.0.0.1:{server.port}") as events:
        assert (await events.next())[0] == "hello"
        assert await events.next() == (":", "alive")
        assert await events.next() == (":", "alive")


async def test_clients_beyond_the_limit_get_503_until_one_leaves(daemon: Daemon) -> None:
    world = World(1)
    async with AsyncExitStack() as stack:
        for _ in range(MAX_CLIENTS):
            await (await stack.enter_async_context(following(daemon.url))).next()
        assert stream_clients(daemon) == MAX_CLIENTS
        async with aiohttp.ClientSession() as client, client.get(daemon.url + STREAM) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "10"
            assert "32 clients" in (await response.json())["error"]
    for tick in world.ticks(3):  # writing to them shows that they left
        daemon.record(tick)
        await asyncio.sleep(0.02)
    await eventually_clients(daemon, 0)
    async with following(daemon.url) as events:
        assert (await events.next())[0] == "hello"


@pytest.mark.slow
async def test_client_that_does_not_read_is_dropped_and_others_stay(daemon: Daemon) -> None:
    world = World(2000)
    daemon.record(world.tick())
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", daemon.server.port))
    await asyncio.get_running_loop().sock_sendall(slow, f"GET {STREAM} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with following(daemon.url) as events:
        await events.next()
        await eventually_clients(daemon, 2)
        for number in range(1, 61):
            daemon.record(world.tick())
            assert (await events.next())[1]["tick"] == number
        await eventually_clients(daemon, 1)
    slow.close()


@pytest.mark.slow
async def test_server_closes_at_once_when_clients_never_read(daemon: Daemon) -> None:
    await closes_at_once(lambda: close_before_the_deaf(daemon))


async def closes_at_once(close: Callable[[], Awaitable[float]]) -> None:
    """Try thrice, because a busy machine may stand still for a while. close: returns the seconds that it took."""
    took_s = math.inf
    for _ in range(3):
        took_s = min(took_s, await close())
        if took_s < SHUTDOWN_S:
            return
    raise AssertionError(f"it waited for a client: {took_s:.1f} s")


async def close_before_the_deaf(daemon: Daemon) -> float:
    daemon.record(World(2000).tick())
    loop = asyncio.get_running_loop()
    async with daemon.another(0, write_deadline_s=0.1) as server:
        deaf = [socket.socket() for _ in range(2)]
        for connection, path in zip(deaf, ("/metrics", STREAM), strict=True):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            await loop.sock_connect(connection, ("127.0.0.1", server.port))
            await loop.sock_sendall(connection, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await eventually_clients(daemon, 1)
        for tick in World(2000, seed=2).ticks(40):  # more than the buffers of the system take
            daemon.record(tick)
            await asyncio.sleep(0.01)
        await eventually_clients(daemon, 0)
        began = loop.time()
    took_s = loop.time() - began
    for connection in deaf:
        with connection:
            tail = b""
            while got := await loop.sock_recv(connection, 1 << 20):
                tail = got
            assert not tail.endswith(b"0\r\n\r\n"), "the answer was cut, not ended"
    return took_s


async def test_closing_the_server_ends_the_streams_at_once(daemon: Daemon) -> None:
    await closes_at_once(lambda: close_before_a_follower(daemon))


async def close_before_a_follower(daemon: Daemon) -> float:
    async with AsyncExitStack() as stack:
        async with daemon.another(0) as server:
            events = await stack.enter_async_context(following(f"http://127.0.0.1:{server.port}"))
            await events.next()
            began = asyncio.get_running_loop().time()
        took_s = asyncio.get_running_loop().time() - began
        assert await events.next() == ("", None)
    return took_s
