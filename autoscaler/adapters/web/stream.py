"""Server-sent events: after each tick one message with what changed, the same bytes for every browser.

    event: hello   data: {"tick": 41}           on connecting; the browser then loads the list
    event: tick    data: {"tick": 42, "wall_s": ..., "leading": true, "changed": [{"id": 7, "waiting": 3}], "gone": []}
    : alive                                     after `heartbeat_s` without a message

A browser that does not keep up is disconnected; it connects again and reloads the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from autoscaler.adapters.web.dashboard import Dashboard
from autoscaler.adapters.web.table import Table

MAX_CLIENTS = 32
BACKLOG = 8  # messages a browser may lag behind
CLOSED = b""


class Stream:
    """Sends each tick to all connected browsers. Without browsers it computes nothing.

    on_clients: called with the number of connected browsers whenever it changes.
    """

    def __init__(
        self, dashboard: Dashboard, on_clients: Callable[[int], None], heartbeat_s: float, write_deadline_s: float
    ) -> None:
        self._dashboard = dashboard
        self._on_clients = on_clients
        self._heartbeat_s = heartbeat_s
        self._write_deadline_s = write_deadline_s
        self._clients: set[asyncio.Queue[bytes]] = set()
        self._before: Table | None = None
        self._closed = False
        self._stop_listening = dashboard.listen(self._publish)

    def close(self) -> None:
        """Disconnect all browsers and refuse new ones."""
        self._closed = True
        self._stop_listening()
        for client in list(self._clients):
            self._drop(client)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one browser until it leaves, lags, or the daemon ends. 503 if MAX_CLIENTS are connected."""
        if self._closed or len(self._clients) >= MAX_CLIENTS:
            raise web.HTTPServiceUnavailable(
                text=f"{MAX_CLIENTS} clients are connected already; no more are allowed", headers={"Retry-After": "10"}
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        client: asyncio.Queue[bytes] = asyncio.Queue(BACKLOG)
        self._clients.add(client)
        self._on_clients(len(self._clients))
        try:
            await response.prepare(request)
            table = self._dashboard.table()
            self._before = self._before or table
            hello = _event("hello", {"tick": table.number if table else None})
            await write(request, response, hello, self._write_deadline_s)
            while message := await self._next(client):
                await write(request, response, message, self._write_deadline_s)
        except ConnectionError:
            pass  # the browser left, or does not read
        finally:
            self._drop(client)
        return response

    async def _next(self, client: asyncio.Queue[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._heartbeat_s):
                return await client.get()
        except TimeoutError:
            return b": alive\n\n"

    def _publish(self) -> None:
        if not self._clients:
            self._before = None
            return
        table = self._dashboard.table()
        if table is None:
            return
        tick: dict[str, Any] = {"tick": table.number, "wall_s": table.wall_s, "leading": table.leading}
        if self._before is None:  # the browsers connected before the first tick: every row is new
            tick["changed"], tick["gone"] = table.rows(np.arange(len(table))), []
        else:
            tick["changed"], tick["gone"] = table.changes(self._before)
        tick["cost_per_hour"] = table.money
        self._before = table
        message = _event("tick", tick)
        for client in list(self._clients):
            try:
                client.put_nowait(message)
            except asyncio.QueueFull:
                self._drop(client)

    def _drop(self, client: asyncio.Queue[bytes]) -> None:
        if client in self._clients:
            self._clients.discard(client)
            self._on_clients(len(self._clients))
        while not client.empty():
            client.get_nowait()
        with suppress(asyncio.QueueFull):
            client.put_nowait(CLOSED)


async def write(request: web.Request, response: web.StreamResponse, part: bytes, deadline_s: float) -> None:
    """Send a part of an answer. Aborts a client that does not read it in time; raises ConnectionResetError."""
    try:
        async with asyncio.timeout(deadline_s):
            await response.write(part)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()  # a graceful close would wait for the client too
        raise ConnectionResetError(f"the client read nothing for {deadline_s:g} s") from None


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
