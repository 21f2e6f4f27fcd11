"""Bodies of answers: each is made once for a tick and shared by all clients that ask for it.

A list or the metrics of ten thousand workloads take the event loop tens of milliseconds, which many clients together
would take from the tick and from the renewal of the lease. So one body is made at a time, the loop is left alone
for as long as that took, and requests beyond a bound are refused.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from dataclasses import dataclass

MAX_KEPT = 64
MAX_COMING = 64  # bodies that are to be made
WAIT_S = 5.0  # of a request for its body
MAX_AGE_S = 5.0
PIECE_BYTES = 16 << 10
GZIP = 16 + zlib.MAX_WBITS  # of zlib, for a header and a checksum as gzip has them


class Busy(Exception):
    """More answers are asked for than are made."""


@dataclass(frozen=True)
class Body:
    """One body, compressed with gzip."""

    zipped: bytes
    unzipped_bytes: int

    def pieces(self, *, unzipped: bool) -> Iterator[bytes]:
        """Return the body in pieces that a client takes one after the other."""
        unzip = zlib.decompressobj(GZIP)
        for start in range(0, len(self.zipped), PIECE_BYTES):
            piece = self.zipped[start : start + PIECE_BYTES]
            if piece := unzip.decompress(piece) if unzipped else piece:
                yield piece


@dataclass(frozen=True)
class _Kept:
    body: Body
    version: Hashable
    made_s: float


class Answers:
    """Makes bodies and keeps the last of them."""

    def __init__(self, max_age_s: float = MAX_AGE_S) -> None:
        """max_age_s: how old a body may become while ticks do not come."""
        self._max_age_s = max_age_s
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._coming: dict[Hashable, asyncio.Task[Body]] = {}
        self._turn = asyncio.Lock()
        self._rest_until_s = 0.0

    def close(self) -> None:
        """Give up the bodies that are being made."""
        for task in self._coming.values():
            task.cancel()

    async def body(self, key: Hashable, version: Hashable, make: Callable[[], AsyncIterator[bytes]]) -> Body:
        """Return the body for `key`; `make` is called where none of this version is kept.

        version: what the content depends on, such as the number of the tick. Raises Busy, and what `make` raises.
        """
        kept = self._kept.get(key)
        if kept is not None and kept.version == version and _now_s() - kept.made_s <= self._max_age_s:
            return kept.body
        coming = self._coming.get((key, version))
        if coming is None:
            if len(self._coming) >= MAX_COMING:
                raise Busy(f"{MAX_COMING} other answers are to be made first; no more are allowed")
            coming = asyncio.create_task(self._make(key, version, make), name="http answer")
            self._coming[key, version] = coming
            coming.add_done_callback(lambda task: self._came((key, version), task))
        try:
            async with asyncio.timeout(WAIT_S):
                return await asyncio.shield(coming)
        except TimeoutError:
            raise Busy(f"no answer could be made within {WAIT_S:g} s") from None

    async def _make(self, key: Hashable, version: Hashable, make: Callable[[], AsyncIterator[bytes]]) -> Body:
        async with self._turn:
            await asyncio.sleep(self._rest_until_s - _now_s())
            began_s = _now_s()
            zipper = zlib.compressobj(wbits=GZIP)
            pieces, unzipped_bytes = [], 0
            async for part in make():
                unzipped_bytes += len(part)
                pieces.append(await asyncio.to_thread(zipper.compress, part))
            body = Body(b"".join([*pieces, zipper.flush()]), unzipped_bytes)
            ended_s = _now_s()
            self._rest_until_s = 2 * ended_s - began_s
            self._kept[key] = _Kept(body, version, ended_s)
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return body

    def _came(self, key: Hashable, task: asyncio.Task[Body]) -> None:
        self._coming.pop(key, None)
        if not task.cancelled():
            task.exception()  # every request for it may have ended before


def _now_s() -> float:
    return asyncio.get_running_loop().time()
