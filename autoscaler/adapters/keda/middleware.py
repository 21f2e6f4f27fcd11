"""Wraps every call: a deadline, a status for errors, a count, and a clean end when the server stops.

KEDA sets no deadline, and a call that hangs keeps KEDA's lock of the ScaledObject, which also blocks its activation. So
the server sets a deadline for every call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar

import grpc
import structlog

from autoscaler.adapters.keda.metrics import Calls
from autoscaler.adapters.keda.proto import externalscaler_pb2 as pb
from autoscaler.adapters.keda.proto.externalscaler_pb2_grpc import ExternalScalerServicer
from autoscaler.adapters.keda.service import Context, RefusedCall

SWEEPS_PER_DEADLINE = 10  # a call ends at most a tenth of its deadline late
UNREAD_DEADLINES = 30  # a stream may stay unread for this many deadlines: 10,000 messages at once take seconds
MAX_DETAILS_CHARS = 2000  # a status is sent in headers, and clients drop headers above 8 KiB

log = structlog.get_logger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")


class Middleware(ExternalScalerServicer):
    """Passes calls to a service, with limits. `end_streams` and then `wait_finished` end it."""

    def __init__(self, service: ExternalScalerServicer, deadline_s: float, calls: Calls) -> None:
        self._service = service
        self._deadline_s = deadline_s
        self._calls = calls
        self._calls_until: dict[asyncio.Task[Any], float] = {}  # deadline of each open call, the earliest first
        self._sweeping = False
        self._streams: set[asyncio.Task[Any]] = set()
        self._ending = False

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        return await self._call("IsActive", self._service.IsActive, request, context)

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        return await self._call("GetMetricSpec", self._service.GetMetricSpec, request, context)

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        return await self._call("GetMetrics", self._service.GetMetrics, request, context)

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Context) -> None:
        await self._stream("StreamIsActive", self._service.StreamIsActive, request, context)

    async def StreamMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> None:
        await self._stream("StreamMetricSpec", self._service.StreamMetricSpec, request, context)

    def end_streams(self) -> None:
        """End all streams with status OK. KEDA then opens them again in 2 s; after an error it would back off."""
        self._ending = True
        for task in self._streams:
            task.cancel()

    async def wait_finished(self, within_s: float) -> None:
        """Wait until the open calls and streams have been answered, at most `within_s` seconds."""
        if tasks := [*self._calls_until, *self._streams]:
            await asyncio.wait(tasks, timeout=within_s)

    async def _call(
        self,
        method: str,
        answer: Callable[[Request, Context], Awaitable[Response]],
        request: Request,
        context: Context,
    ) -> Response:
        task = _current_task()
        self._calls_until[task] = task.get_loop().time() + self._deadline_s
        if not self._sweeping:
            self._sweep(task.get_loop())
        try:
            response = await answer(request, context)
        except asyncio.CancelledError:
            if task in self._calls_until:
                raise  # the client cancelled
            task.uncancel()
            await self._abort(method, TimeoutError(), context)
        except Exception as error:
            await self._abort(method, error, context)
        finally:
            self._calls_until.pop(task, None)
        self._calls.count(method, "OK")
        return response

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel calls after their deadline, and repeat while there are open calls.

        A timer for each call would cost as much as the answer itself.
        """
        self._sweeping = bool(self._calls_until)
        for task, end_s in list(self._calls_until.items()):
            if end_s > loop.time():
                break
            del self._calls_until[task]
            task.cancel()
        if self._sweeping:
            loop.call_later(self._deadline_s / SWEEPS_PER_DEADLINE, self._sweep, loop)

    async def _stream(
        self,
        method: str,
        messages: Callable[[Request, Context], AsyncIterator[Any]],
        request: Request,
        context: Context,
    ) -> None:
        if self._ending:  # opened after `end_streams`
            self._calls.count(method, "OK")
            return
        task = _current_task()
        self._streams.add(task)
        try:
            async with aclosing(messages(request, context)) as stream:  # type: ignore[type-var]
                async for message in stream:
                    await self._write(message, context)
        except asyncio.CancelledError:
            if not self._ending:
                raise  # the client cancelled
            task.uncancel()
        except Exception as error:
            await self._abort(method, error, context)
        finally:
            self._streams.discard(task)
        self._calls.count(method, "OK")

    async def _write(self, message: Any, context: Context) -> None:
        unread_s = UNREAD_DEADLINES * self._deadline_s
        try:
            async with asyncio.timeout(unread_s):
                await context.write(message)
        except TimeoutError as error:
            raise RefusedCall(grpc.StatusCode.DEADLINE_EXCEEDED, f"not read for {unread_s:g} s") from error

    async def _abort(self, method: str, error: Exception, context: Context) -> NoReturn:
        if isinstance(error, RefusedCall):
            code, text = error.code, str(error).encode("ascii", "backslashreplace").decode()[:MAX_DETAILS_CHARS]
        elif isinstance(error, TimeoutError):
            code, text = grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {self._deadline_s:g} s"
        else:
            code, text = grpc.StatusCode.INTERNAL, "internal error; the log of the scaler has it"
            log.error("call failed", method=method, exc_info=error)
        self._calls.count(method, code.name)
        await context.abort(code, text)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # a coroutine runs in one
    return task
