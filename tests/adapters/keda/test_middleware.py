"""Deadlines, statuses, counts and the clean end, over a real connection and whatever the service does."""

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
        yield pb.IsActiveResponse(result=True)
        await self._hang(request, context)

    async def StreamMetricSpec(self, request: Any, context: Any) -> AsyncIterator[pb.GetMetricSpecResponse]:
        try:
            while True:
                yield pb.GetMetricSpecResponse(metricSpecs=[pb.MetricSpec(metricName="x" * 500_000)])
        finally:
            self.left.set()


class Slow(Stuck):
    """Answers calls when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.may_answer = asyncio.Semaphore(0), asyncio.Event()

    async def IsActive(self, request: Any, context: Any) -> pb.IsActiveResponse:
        self.came.release()
        await self.may_answer.wait()
        return pb.IsActiveResponse(result=True)


class Herald(Stuck):
    """Has one message for all its streams, when it is told to."""

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
async def test_a_call_that_hangs_ends_at_the_deadline_of_the_server(method: str, request_: Any):
    service, calls = Stuck(), Calls()
    async with serving(service, calls) as (_, stub):
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(stub, method)(request_)  # without a deadline, as KEDA
        assert caught.value.code() == Code.DEADLINE_EXCEEDED
        assert caught.value.details() == "no answer within 0.1 s"
        assert 0.1 <= loop.time() - started_s < 1.0
        assert service.left.is_set()
    assert calls.counts == {(method, "DEADLINE_EXCEEDED"): 1}


async def test_a_client_that_does_not_read_its_stream_is_let_go():
    service = Stuck()
    async with serving(service) as (_, stub):
        stream = stub.StreamMetricSpec(REF)
        await stream.read()
        async with asyncio.timeout(10):
            await service.left.wait()  # its window is full, and a write waited longer than the deadline
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert caught.value.code() == Code.DEADLINE_EXCEEDED
        assert caught.value.details() == "not read for 3 s"


def be_busy(duration_s: float) -> None:
    """Keep the loop from running."""
    time.sleep(duration_s)


async def test_a_client_is_not_let_go_for_what_the_server_itself_was_busy_with():
    """As when a tick of thousands of workloads, or their thousands of messages, take longer than a call may."""
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


async def test_when_the_server_stops_streams_end_cleanly_so_that_keda_comes_back_after_2_s_and_not_after_60():
    service, calls = Stuck(), Calls()
    async with serving(service, calls) as (server, stub):
        stream = stub.StreamIsActive(REF)
        await stream.read()
        ending = asyncio.create_task(server.__aexit__(None, None, None))
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == Code.OK
        await ending
        assert service.left.is_set()
    assert calls.counts == {("StreamIsActive", "OK"): 1}


async def test_calls_under_way_when_the_server_stops_are_answered():
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


async def test_a_call_or_stream_that_comes_while_the_server_stops_is_answered_too():
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
