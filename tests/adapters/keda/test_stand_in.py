"""The stand-in, with a real server of its own and an HTTP server in the place of the daemon's Service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from aiohttp import web

from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerStub
from autoscaler.adapters.keda.server import KedaServer
from autoscaler.adapters.keda.stand_in import MISSES, StandIn, StandInLeadership
from autoscaler.config.settings import KedaSettings
from tests.adapters.keda.test_server import sends_away
from tests.harness.process import PATIENCE_S, eventually

REFERENCE = pb.ScaledObjectRef(namespace="prod", name="llama")


@asynccontextmanager
async def daemon_service(statuses: list[int]) -> AsyncIterator[str]:
    """Answer with the first status; 0: close the connection."""

    async def answer(request: web.Request) -> web.Response:
        if not statuses[0] and request.transport is not None:
            request.transport.abort()
        return web.Response(status=statuses[0] or 500)

    application = web.Application()
    application.router.add_get("/healthz", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.slow
async def test_specs_are_answered_while_no_replica_is_ready():
    statuses = [0]
    async with daemon_service(statuses) as url:
        replicas = StandInLeadership(url, look_s=0.05)
        await replicas.look()
        looking = asyncio.create_task(replicas.run())
        settings = KedaSettings(host="127.0.0.1", port=0)
        async with KedaServer(settings, StandIn(), replicas, check_s=0.05) as server:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                stub = ExternalScalerStub(channel)
                (spec,) = (await stub.GetMetricSpec(REFERENCE, timeout=PATIENCE_S)).metricSpecs
                assert (spec.metricName, spec.targetSizeFloat) == ("replicas", 1.0)
                assert [message async for message in stub.StreamIsActive(REFERENCE, timeout=PATIENCE_S)] == []
                for call in (
                    stub.IsActive(REFERENCE, timeout=PATIENCE_S),
                    stub.GetMetrics(
                        pb.GetMetricsRequest(scaledObjectRef=REFERENCE, metricName="replicas"), timeout=PATIENCE_S
                    ),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call
                    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            statuses[0] = 200
            await eventually(lambda: sends_away(server.port), "it sends connections on to the ready replica")
        looking.cancel()


async def test_replica_counts_as_ready_until_it_misses_several_looks():
    """A busy replica may be late once, and a call that the stand-in answers meanwhile would be refused."""
    statuses = [200]
    async with daemon_service(statuses) as url:
        replicas = StandInLeadership(url)
        await replicas.look()
        statuses[0] = 0
        seen = []
        for _ in range(MISSES):
            await replicas.look()
            seen.append(replicas.has_other_leader)
    assert seen == [True] * (MISSES - 1) + [False]
