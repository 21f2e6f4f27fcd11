"""Requests to other agents. Whatever a peer answers, a request ends in time and in bounded memory."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable

import aiohttp

from autoscaler.weights.peers.server import PREFIX
from autoscaler.weights.peers.state import MAX_STATE_BYTES, InvalidStateError, PeerState, decode
from autoscaler.weights.peers.token import ClusterToken

CONNECT_S = 2.0
STATE_S = 5.0
SILENCE_S = 5.0
MIN_BYTES_PER_S = 2e6  # a slower peer is left out
LEFT_OUT_S = 60.0  # at first; twice as long after every failure within the longest time
ABSENT_S = 2.0  # likewise, if no connection is made: the agent may be starting
MAX_LEFT_OUT_S = 3600.0
BUSY_S = 0.2
CLOSE_S = 0.1  # TLS connections close in the background; the event loop may end right after `close`
MAX_REMEMBERED = 4096  # peers that failed


class PeerError(Exception):
    """A peer does not give what it should."""


class AbsentError(PeerError):
    """No connection to a peer can be made."""


class BusyError(Exception):
    """A peer serves as many others as it may."""


class PeerClient:
    """Asks other agents, and leaves out for a while those that fail. Use it as a context."""

    def __init__(self, token: ClusterToken, clock_s: Callable[[], float], tls: ssl.SSLContext | None = None) -> None:
        self._token = token
        self._clock_s = clock_s
        self._tls = tls
        self._scheme = "https" if tls else "http"
        self._failures: dict[str, tuple[int, float]] = {}  # number, and until when the peer is left out
        self._busy_until_s: dict[str, float] = {}
        self._session: aiohttp.ClientSession | None = None

    def is_left_out(self, address: str) -> bool:
        """Tell whether a peer failed a short time ago."""
        return self._failures.get(address, (0, 0.0))[1] > self._clock_s()

    def is_busy(self, address: str) -> bool:
        """Tell whether a peer was busy a moment ago."""
        return self._busy_until_s.get(address, 0.0) > self._clock_s()

    def leave_out(self, address: str, first_s: float = LEFT_OUT_S) -> None:
        """Do not ask a peer for a while. first_s: at the first failure."""
        if len(self._failures) >= MAX_REMEMBERED:
            self._failures.pop(next(iter(self._failures)))
        count, until_s = self._failures.pop(address, (0, 0.0))
        now_s = self._clock_s()
        count = 1 if now_s - until_s > MAX_LEFT_OUT_S else count + 1
        self._failures[address] = count, now_s + min(first_s * 2.0 ** (min(count, 16) - 1), MAX_LEFT_OUT_S)

    async def state(self, address: str, key: str, port: int) -> PeerState:
        """Return what a peer has of a model. port: under which this agent serves. Raises PeerError and BusyError."""
        content = await self._get(address, f"{PREFIX}{key}?port={port}", "", 200, MAX_STATE_BYTES, STATE_S)
        try:
            return decode(content)
        except InvalidStateError as error:
            self.leave_out(address)
            raise PeerError(f"the answer of {address} is no state: {error}") from error

    async def read(self, address: str, key: str, digest: str, start: int, length: int) -> memoryview:
        """Return a range of a file, whole. Raises PeerError and BusyError."""
        limit_s = SILENCE_S + length / MIN_BYTES_PER_S
        range_ = f"bytes={start}-{start + length - 1}"
        content = await self._get(address, f"{PREFIX}{key}/{digest}", range_, 206, length, limit_s)
        if len(content) != length:
            self.leave_out(address)
            raise PeerError(f"{address} sent {len(content)} of {length} bytes")
        return memoryview(content)

    async def _get(self, address: str, target: str, range_: str, status: int, most_bytes: int, limit_s: float) -> bytes:
        headers = {"Authorization": self._token.sign("GET", target, range_, time.time())}
        if range_:
            headers["Range"] = range_
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        try:
            async with self._opened().get(
                f"{self._scheme}://{address}{target}",
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=self._tls or True,
            ) as response:
                if response.status == 503:
                    self._busy_until_s[address] = self._clock_s() + BUSY_S
                    raise BusyError(f"{address} is busy")
                if response.status != status or (response.content_length or 0) > most_bytes:
                    raise PeerError(f"{address} answered {response.status} with {response.content_length} bytes")
                pieces, received = [], 0
                async for piece in response.content.iter_any():
                    pieces.append(piece)
                    received += len(piece)
                    if received > most_bytes:
                        raise PeerError(f"{address} sent more than {most_bytes} bytes")
        except (PeerError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            absent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            self.leave_out(address, ABSENT_S if absent else LEFT_OUT_S)
            if isinstance(error, PeerError):
                raise
            kind = AbsentError if absent else PeerError
            raise kind(f"{address} cannot be read ({type(error).__name__})") from error
        return b"".join(pieces)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=64, limit_per_host=8)
            headers = {"Accept-Encoding": "identity"}
            self._session = aiohttp.ClientSession(connector=connector, headers=headers, auto_decompress=False)
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(CLOSE_S if self._tls else 0.0)
