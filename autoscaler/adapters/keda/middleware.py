"""Around every call: a deadline, a status for what is refused, a count, and a clean end when the server stops.

KEDA sets no deadline, and a call that hangs holds the lock of its ScaledObject, activation included: so the server
sets one, whatever the service behind it does.
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
from autoscaler.adapters.keda.service import Context, Refused

SWEEPS_PER_DEADLINE = 10  # a call is ended at most a tenth late
UNREAD_DEADLINES = 30  # a stream waits so much longer to be read: 10,000 messages at once are seconds of our own work
MAX_DETAILS_CHARS = 2000  # a status travels in headers of at most 8 KiB, and a caller drops larger ones

log = structlog.get_logger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")


class Guard(ExternalScalerServicer):
    """Passes calls on to a service and bounds them. At the end, `end_streams` and then `finished`."""

    def __init__(self, service: ExternalScalerServicer, deadline_s: float, calls: Calls) -> None:
        self._service = service
        self._deadline_s = deadline_s
        self._calls = calls
        self._under_way: dict[asyncio.Task[Any], float] = {}  # when each call's time is up, the earliest first
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
        """End all streams with status OK: KEDA opens them again after 2 s, where an error would make it back off."""
        self._ending = True
        for task in self._streams:
            task.cancel()

    async def finished(self, within_s: float) -> None:
        """Wait until the calls and streams that are under way have been answered, at most this long [s]."""
        if tasks := [*self._under_way, *self._streams]:
            await asyncio.wait(tasks, timeout=within_s)

    async def _call(
        self,
        method: str,
        answer: Callable[[Request, Context], Awaitable[Response]],
        request: Request,
        context: Context,
    ) -> Response:
        task = _current_task()
        self._under_way[task] = task.get_loop().time() + self._deadline_s
        if not self._sweeping:
            self._sweep(task.get_loop())
        try:
            response = await answer(request, context)
        except asyncio.CancelledError:
            if task in self._under_way:
                raise  # the client went away
            task.uncancel()
            await self._abort(method, TimeoutError(), context)
        except Exception as error:
            await self._abort(method, error, context)
        finally:
            self._under_way.pop(task, None)
        self._calls.count(method, "OK")
        return response

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel calls whose time is up, and look again soon while there are any.

        One look at all calls instead of a timer for each: a timer costs as much as the answer itself.
        """
        self._sweeping = bool(self._under_way)
        for task, end_s in list(self._under_way.items()):
            if end_s > loop.time():
                break
            del self._under_way[task]
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
        if self._ending:  # opened since the others were ended
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
                raise  # the client went away
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
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"not read for {unread_s:g} s") from error

    async def _abort(self, method: str, error: Exception, context: Context) -> NoReturn:
        if isinstance(error, Refused):
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
