"""Answers the specs of KEDA's metrics while no replica of the daemon can be reached.

KEDA asks for the specs whenever it writes an HPA. If nobody answers, it writes the HPA without our metric, and another
trigger alone decides the count. So a small process without any right stands behind the same Service. While a replica is
ready, it sends KEDA's connections on, as a follower does. Otherwise it answers the specs and refuses all other calls,
so that KEDA keeps the replicas and counts towards its fallback. Its port is also what KEDA's client connects to
meanwhile: after refused connections it would wait up to two minutes before it finds the next leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import grpc
import structlog

from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.service import Context, RefusedCall, SpecService

LOOK_S = 1.0  # between two looks for a ready replica
TIMEOUT_S = 2.0  # for its answer
MISSES = 3  # in a row before no replica counts as ready: a busy one may be late
NOBODY = "no replica of the daemon is ready; the next one answers"

log = structlog.get_logger(__name__)


class StandIn(SpecService):
    """Answers the specs alone."""

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        raise RefusedCall(grpc.StatusCode.UNAVAILABLE, NOBODY)

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        raise RefusedCall(grpc.StatusCode.UNAVAILABLE, NOBODY)

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Context) -> AsyncIterator[pb.IsActiveResponse]:
        """Send nothing and end with OK: KEDA opens the stream again in 2 s, when a replica may be ready."""
        nothing: tuple[pb.IsActiveResponse, ...] = ()
        for message in nothing:
            yield message


class StandInLeadership:
    """Leadership as a stand-in sees it: a replica that is ready leads, or knows who does. `run` it in a task."""

    leading = False

    def __init__(self, url: str, look_s: float = LOOK_S) -> None:
        """url: of the HTTP Service of the daemon, which has only ready replicas."""
        self.has_other_leader = False
        self._url = f"{url.rstrip('/')}/healthz"
        self._look_s = look_s
        self._misses = MISSES

    async def look(self) -> None:
        """Ask once whether a replica is ready."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(self._url) as response:
                ready = response.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            ready = False
        self._misses = 0 if ready else self._misses + 1
        found = self._misses < MISSES
        if found != self.has_other_leader:
            log.info("a replica is ready" if found else "no replica is ready", url=self._url)
        self.has_other_leader = found

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._look_s)
