"""Response bodies, built once per tick and shared by all clients.

The list or the metrics of ten thousand workloads block the event loop for tens of milliseconds. Many clients would
take that time from ticks and lease renewals. Therefore one body is built at a time, the loop is left idle for as long
as the build took, and requests beyond a bound are refused.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from dataclasses import dataclass

MAX_KEPT = 64
MAX_PENDING = 64  # bodies waiting to be built
WAIT_S = 5.0  # a request waits this long for its body
MAX_AGE_S = 5.0
PIECE_BYTES = 16 << 10
GZIP = 16 + zlib.MAX_WBITS  # zlib window bits for a gzip header and checksum


class Busy(Exception):
    """Too many bodies are waiting to be built."""


@dataclass(frozen=True)
class Body:
    """One body, compressed with gzip."""

    zipped: bytes
    unzipped_bytes: int

    def pieces(self, *, unzipped: bool) -> Iterator[bytes]:
        """Yield the body in pieces, to be sent one after the other."""
        unzip = zlib.decompressobj(GZIP)
        for start in range(0, len(self.zipped), PIECE_BYTES):
            piece = self.zipped[start : start + PIECE_BYTES]
            if piece := unzip.decompress(piece) if unzipped else piece:
                yield piece


@dataclass(frozen=True)
class _KeptBody:
    body: Body
    version: Hashable
    made_s: float


class ResponseCache:
    """Builds bodies and keeps the latest of each key."""

    def __init__(self, max_age_s: float = MAX_AGE_S) -> None:
        """max_age_s: age after which a body is rebuilt even without a new tick."""
        self._max_age_s = max_age_s
        self._kept: OrderedDict[Hashable, _KeptBody] = OrderedDict()
        self._pending: dict[Hashable, asyncio.Task[Body]] = {}
        self._building = asyncio.Lock()
        self._pause_until_s = 0.0

    def close(self) -> None:
        """Cancel the builds in progress."""
        for task in self._pending.values():
            task.cancel()

    async def body(self, key: Hashable, version: Hashable, make: Callable[[], AsyncIterator[bytes]]) -> Body:
        """Return the body for `key`, built by `make` unless a body of this version is cached.

        version: whatever the content depends on, such as the tick number. Raises Busy, and errors of `make`.
        """
        kept = self._kept.get(key)
        if kept is not None and kept.version == version and _now_s() - kept.made_s <= self._max_age_s:
            return kept.body
        pending = self._pending.get((key, version))
        if pending is None:
            if len(self._pending) >= MAX_PENDING:
                raise Busy(f"{MAX_PENDING} other answers are waiting to be built; no more are allowed")
            pending = asyncio.create_task(self._make(key, version, make), name="build HTTP response")
            self._pending[key, version] = pending
            pending.add_done_callback(lambda task: self._finished((key, version), task))
        try:
            async with asyncio.timeout(WAIT_S):
                return await asyncio.shield(pending)
        except TimeoutError:
            raise Busy(f"no answer could be built within {WAIT_S:g} s") from None

    async def _make(self, key: Hashable, version: Hashable, make: Callable[[], AsyncIterator[bytes]]) -> Body:
        async with self._building:
            await asyncio.sleep(self._pause_until_s - _now_s())
            began_s = _now_s()
            zipper = zlib.compressobj(wbits=GZIP)
            pieces, unzipped_bytes = [], 0
            async for part in make():
                unzipped_bytes += len(part)
                pieces.append(await asyncio.to_thread(zipper.compress, part))
            body = Body(b"".join([*pieces, zipper.flush()]), unzipped_bytes)
            ended_s = _now_s()
            self._pause_until_s = 2 * ended_s - began_s
            self._kept[key] = _KeptBody(body, version, ended_s)
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return body

    def _finished(self, key: Hashable, task: asyncio.Task[Body]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieve the error: every request for the body may have ended


def _now_s() -> float:
    return asyncio.get_running_loop().time()
