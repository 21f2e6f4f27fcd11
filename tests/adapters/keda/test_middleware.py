"""Deadlines, statuses, counts and the clean end, over a real connection."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from autoscaler.adapters.keda.metrics import Calls
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerServicer, ExternalScalerStub
from autoscaler.adapters.keda.server import KedaServer
from autoscaler.config.settings import KedaSettings
from tests.adapters.keda.world import Lease
from tests.harness.process import PATIENCE_S

Code = grpc.StatusCode
REF = pb.ScaledObjectRef(namespace="prod", name="llama")


class Stuck(ExternalScalerServicer):
    """Hangs in every unary call, idles in one stream and floods the other."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def _hang(self, request: Any, context: Any) -> Any:
        try:
            await asyncio.sleep(3600)
        finally:
            self.left.set()

    IsActive = GetMetricSpec = GetMetrics = _hang

    async def StreamIsActive(self, request: Any, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        try:
            # On a busy machine a client may read this before the write of the server has returned.
            yield pb.IsActiveResponse(result=True)
            await asyncio.Event().wait()
        finally:
            self.left.set()

    async def StreamMetricSpec(self, request: Any, context: Any) -> AsyncIterator[pb.GetMetricSpecResponse]:
        try:
            while True:
                yield pb.GetMetricSpecResponse(metricSpecs=[pb.MetricSpec(metricName="x" * 500_000)])
        finally:
            self.left.set()


class Slow(Stuck):
    """Answers calls when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.may_answer = asyncio.Semaphore(0), asyncio.Event()

    async def IsActive(self, request: Any, context: Any) -> pb.IsActiveResponse:
        self.came.release()
        await self.may_answer.wait()
        return pb.IsActiveResponse(result=True)


class Herald(Stuck):
    """Sends one message to all its streams when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_tell = asyncio.Event()

    async def StreamIsActive(self, request: Any, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        yield pb.IsActiveResponse(result=False)
        await self.may_tell.wait()
        yield pb.IsActiveResponse(result=True)


@asynccontextmanager
async def serving(
    service: ExternalScalerServicer, calls: Calls | None = None, deadline_s: float = 0.1, grace_s: float = 0.2
):
    settings = KedaSettings(host="127.0.0.1", port=0, deadline_s=deadline_s)
    async with (
        KedaServer(settings, service, Lease(), calls, grace_s=grace_s) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield server, ExternalScalerStub(channel)


@pytest.mark.parametrize(
    ("method", "request_"),
    [("IsActive", REF), ("GetMetricSpec", REF), ("GetMetrics", pb.GetMetricsRequest(scaledObjectRef=REF))],
)
async def test_call_that_hangs_ends_at_the_deadline(method: str, request_: Any):
    service, calls = Stuck(), Calls()
    async with serving(service, calls) as (_, stub):
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(stub, method)(request_)  # without a deadline, as KEDA
        assert caught.value.code() == Code.DEADLINE_EXCEEDED
        assert caught.value.details() == "no answer within 0.1 s"
        assert loop.time() - started_s >= 0.1
        assert service.left.is_set()
    assert calls.counts == {(method, "DEADLINE_EXCEEDED"): 1}


@pytest.mark.slow
async def test_stream_ends_when_the_client_does_not_read():
    service = Stuck()
    async with serving(service) as (_, stub):
        stream = stub.StreamMetricSpec(REF)
        await stream.read()
        async with asyncio.timeout(PATIENCE_S):
            await service.left.wait()  # its window is full, and a write waited longer than the deadline
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert caught.value.code() == Code.DEADLINE_EXCEEDED
        assert caught.value.details() == "not read for 3 s"


def be_busy(duration_s: float) -> None:
    """Block the event loop."""
    time.sleep(duration_s)


async def test_stream_stays_when_the_server_was_busy():
    """As if a tick of thousands of workloads, or their messages, took longer than the deadline of a call."""
    service, calls = Herald(), Calls()
    async with serving(service, calls) as (_, stub):
        streams = [stub.StreamIsActive(REF) for _ in range(100)]
        for stream in streams:
            await stream.read()
        service.may_tell.set()
        await asyncio.sleep(0)  # the messages are on their way
        be_busy(0.3)
        assert [(await stream.read()).result for stream in streams] == [True] * 100
        assert [await stream.read() for stream in streams] == [grpc.aio.EOF] * 100
    assert calls.counts == {("StreamIsActive", "OK"): 100}


async def test_streams_end_with_ok_when_the_server_stops():
    service, calls = Stuck(), Calls()
    async with serving(service, calls, grace_s=PATIENCE_S) as (server, stub):
        stream = stub.StreamIsActive(REF)
        await stream.read()
        ending = asyncio.create_task(server.__aexit__(None, None, None))
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == Code.OK
        await ending
        assert service.left.is_set()
    assert calls.counts == {("StreamIsActive", "OK"): 1}


async def test_open_calls_are_answered_when_the_server_stops():
    service = Slow()
    async with serving(service, deadline_s=10, grace_s=10) as (server, stub):
        calls = [asyncio.ensure_future(_answer(stub)) for _ in range(50)]
        for _ in calls:
            await service.came.acquire()
        stopping = asyncio.ensure_future(server.__aexit__(None, None, None))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        service.may_answer.set()
        await stopping
        assert [response.result for response in await asyncio.gather(*calls)] == [True] * 50


async def test_new_calls_are_answered_while_the_server_stops():
    service = Slow()
    async with serving(service, deadline_s=10, grace_s=10) as (server, stub):
        first = asyncio.ensure_future(_answer(stub))
        await service.came.acquire()
        stopping = asyncio.ensure_future(server.__aexit__(None, None, None))
        await asyncio.sleep(0.05)
        second, stream = asyncio.ensure_future(_answer(stub)), stub.StreamIsActive(REF)
        await service.came.acquire()
        assert await stream.code() == Code.OK  # at once, where KEDA would wait for its next message
        assert not stopping.done()
        service.may_answer.set()
        assert (await first).result and (await second).result
        await stopping


async def _answer(stub: Any) -> pb.IsActiveResponse:
    return await stub.IsActive(REF)
