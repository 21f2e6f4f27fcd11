"""The HTTP server for other agents: the state of a model, and ranges of its verified files.

/weights/KEY           what this agent has of a model: `state.PeerState` as JSON. ?port= names the asker to others.
                       ?refused tells that what was sent of it is wrong
/weights/KEY/DIGEST    one range of a file, which the header Range states

Every request is signed with the cluster's token. Requests, answers and their time are bounded.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EIO
from pathlib import Path
from typing import Self

from aiohttp import web

from autoscaler.http.listener import Listener
from autoscaler.weights.peers.activity import PeerActivity
from autoscaler.weights.peers.shared import Shared
from autoscaler.weights.peers.state import MAX_NAMED_PEERS, PeerState, encode
from autoscaler.weights.peers.token import SEAL_BYTES, ClusterToken
from autoscaler.weights.rate_limit import RateLimit
from autoscaler.weights.threads import entered, in_thread

PREFIX = "/weights/"
MAX_RANGE_BYTES = 64 << 20
PIECE_BYTES = 1 << 18
MAX_TRANSFERS = 32  # ranges at once
MAX_REQUESTS = 256  # at once
MAX_CONNECTIONS = 512
ANSWER_S = 60.0
IDLE_S = 75.0
WAIT_S = 10.0  # for a range that this agent is fetching itself
SEALED = "sealed=1"  # query of a request whose answer ends with a seal by the token
_RANGE = re.compile(r"bytes=([0-9]{1,15})-([0-9]{1,15})")
_PORT = re.compile(r"[0-9]{1,5}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Transfers:
    """Ranges that are sent to peers."""

    running: int = 0
    sent_bytes: int = 0


class PeerServer:
    """Serves while its context is open. Raises CannotServe on entering if the address cannot be bound."""

    def __init__(
        self,
        shared: Shared,
        activity: PeerActivity,
        token: ClusterToken,
        host: str = "",
        port: int = 0,
        bytes_per_s: float = 0.0,
        tls: ssl.SSLContext | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        """host: "": all addresses. port: 0: any that is free. bytes_per_s: to all others together; 0: no limit.

        wait_s: most for a range that this agent is fetching itself.
        """
        self._wait_s = wait_s
        self.transfers = Transfers()
        self.on_refused: Callable[[str], None] = lambda key: None  # a peer got wrong bytes of a model
        self._shared = shared
        self._activity = activity
        self._token = token
        self._rate = RateLimit(bytes_per_s) if bytes_per_s else None
        self._requests = 0
        app = web.Application(middlewares=[self._admit], client_max_size=0)
        app.router.add_get(f"{PREFIX}{{key:[0-9a-f]{{16}}}}", self._state, allow_head=False)
        app.router.add_get(f"{PREFIX}{{key:[0-9a-f]{{16}}}}/{{digest:[0-9a-f]{{40,64}}}}", self._file, allow_head=False)
        self._listener = Listener(app, (host, port), MAX_CONNECTIONS, tls, keepalive_timeout=IDLE_S, max_line_size=1024)

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._listener.__aexit__(*failure)

    @property
    def port(self) -> int:
        """The bound port."""
        return self._listener.port

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests that are not signed, and those beyond what may run at once."""
        header, range_ = request.headers.get("Authorization", ""), request.headers.get("Range", "")
        if not self._token.is_signed(header, request.method, request.path_qs, range_, time.time()):
            return _refuse(401, close=True)
        if self._requests >= MAX_REQUESTS:
            return _refuse(503, close=True)
        self._requests += 1
        try:
            with self._listener.answering(request):  # only those with a signature keep their connections at the limit
                async with asyncio.timeout(ANSWER_S):
                    return await handler(request)
        except TimeoutError:
            return _refuse(503, close=True)
        finally:
            self._requests -= 1

    async def _state(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        port = request.query.get("port", "")
        if "refused" in request.query:
            self.on_refused(key)
        others = self._activity.askers(key)
        if _PORT.fullmatch(port) and request.remote:
            host = f"[{request.remote}]" if ":" in request.remote else request.remote
            asker = f"{host}:{port}"
            others = tuple(each for each in others if each != asker)
            self._activity.note_asker(key, asker)
        try:
            files = tuple(await in_thread(self._shared.files, key))
        except OSError:
            files = ()
        fetching, received, claimed = self._activity.fetch(key)
        state = PeerState(self._activity.id, files, fetching, received, claimed, others[:MAX_NAMED_PEERS])
        return web.Response(body=encode(state), content_type="application/json")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        found = _RANGE.fullmatch(request.headers.get("Range", ""))
        if found is None or not 0 <= int(found[2]) - int(found[1]) < MAX_RANGE_BYTES:
            return _refuse(416)
        if self.transfers.running >= MAX_TRANSFERS:
            return _refuse(503)
        length = int(found[2]) - int(found[1]) + 1
        key, digest = request.match_info["key"], request.match_info["digest"]
        try:
            path = await in_thread(self._shared.find, key, digest)
            path = path or await self._activity.find(key, digest, int(found[1]), length, self._wait_s)
        except OSError as error:  # TimeoutError, while the range does not come
            return _refuse(503 if isinstance(error, TimeoutError) else 404)
        if path is None:
            return _refuse(404)
        if self.transfers.running >= MAX_TRANSFERS:
            return _refuse(503)
        if self._rate is not None:
            await self._rate.take(length)
        self.transfers.running += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._send(request, path, int(found[1]), length)
        except (OSError, TimeoutError):  # the peer reads too slowly, or the disk
            if request.transport is not None:
                request.transport.abort()
            return _refuse(503, close=True)
        finally:
            self.transfers.running -= 1

    async def _send(self, request: web.Request, path: Path, start: int, length: int) -> web.StreamResponse:
        """Send a range. Threads read it: with `sendfile`, a disk that hangs would stop all of this process."""
        async with entered(_opened(path)) as descriptor:
            size = (await in_thread(os.fstat, descriptor)).st_size
            if start + length > size:
                return _refuse(416)
            response = web.StreamResponse(status=206)
            response.headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{size}"
            seal = self._token.sealing(request.path_qs, request.headers["Range"])
            is_sealed = request.query_string == SEALED
            response.content_length = length + (SEAL_BYTES if is_sealed else 0)
            await response.prepare(request)
            for at in range(start, start + length, PIECE_BYTES):
                most = min(PIECE_BYTES, start + length - at)
                piece = await in_thread(os.pread, descriptor, most, at)
                if len(piece) < most:
                    raise OSError(EIO, "the file has become shorter")
                if is_sealed:
                    await in_thread(seal.update, piece)
                await response.write(piece)
            if is_sealed:
                await response.write(seal.digest())
            await response.write_eof()
        self.transfers.sent_bytes += length
        return response


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse(status: int, close: bool = False) -> web.Response:
    response = web.Response(status=status)
    if close:
        response.force_close()
    return response
