"""Ranges of objects of a bucket, read from addresses that are signed here for an hour.

The library of object stores copies each byte three times before it is ours, and holds Python meanwhile. Half of the
CPU time of a transfer went there. So the library signs, and our own connections read straight into memory of ranges.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from yarl import URL

from autoscaler.config.weights.source import ModelSource
from autoscaler.weights.connections import ServerAnswer, ServerRequest
from autoscaler.weights.listing import RemoteFile
from autoscaler.weights.origins.http import EXPIRED, MOVED, Accepts, HttpReader, Stated
from autoscaler.weights.problems import WeightsCause

NOT_FOUND = 404

Sign = Callable[[str], Awaitable[str]]
"""Returns the address from which an object can be read for a while, by its key. Raises WeightsError."""


class SignedReader(HttpReader):
    """Reads each object from its signed address until the store refuses that, and signs once more then.

    `Cause.DENIED` tells that a store takes no such address. An address is as good as a key, so no error holds it.
    """

    stored_packed = True

    def __init__(self, source: ModelSource, sign: Sign, pace: float = 1.0) -> None:
        """pace: factor of the pauses after failures."""
        super().__init__(source, URL(), pace=pace)
        self._sign = sign

    async def _follow(
        self, method: str, file: RemoteFile, headers: Stated, length: int, accepts: Accepts
    ) -> tuple[URL, ServerAnswer]:
        """Sign an address, and return it with the answer from there. No redirect is followed."""
        url = URL(await self._sign(file.address or file.path), encoded=True)
        answer = await self._send(ServerRequest(method, url, headers, length, accepts))
        if answer.status != NOT_FOUND and answer.status in (*MOVED, *EXPIRED):
            raise self._problem(
                WeightsCause.DENIED, file.path, f"cannot be read by a signed address (HTTP {answer.status})"
            )
        self._check_status(answer.status, file.path)
        return url, answer
