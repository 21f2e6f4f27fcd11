"""The server of the webhook: POST /pods over TLS, for the API server alone.

Its manifest states `failurePolicy: Ignore` and a time limit, so a pod is created whatever happens here. The limits
below end sooner than that one: an answer without a patch costs a pod nothing, and a timeout costs it seconds.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from http import HTTPStatus
from typing import Self

import structlog
from aiohttp import web

from autoscaler.adapters.webhook.metrics import WebhookMetrics
from autoscaler.adapters.webhook.patch import Folder
from autoscaler.adapters.webhook.review import Reader, answer
from autoscaler.config.weights.allowed import EVERY_SOURCE, SourceRules
from autoscaler.http.listener import Listener

PATH = "/pods"
MAX_BODY_BYTES = 8 << 20  # the API server sends 3 MiB of an object at most, as JSON in JSON
MAX_CONNECTIONS = 256
MAX_REVIEWS = 64  # in progress; others are refused at once, and their pods stay as they are
DEADLINE_S = 1.0  # for a request to arrive; the manifest allows 2 s in all
IDLE_S = 90.0
LOG_S = 60.0  # at least this long between two log lines about unreadable reviews

log = structlog.get_logger(__name__)


class WebhookServer:
    """Serves while its context is open. Raises CannotServe on entering if the port is in use."""

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        read: Reader,
        folder: Folder | None,
        metrics: WebhookMetrics,
        deadline_s: float = DEADLINE_S,
        rules: SourceRules = EVERY_SOURCE,
    ) -> None:
        self._read = read
        self._folder = folder
        self._metrics = metrics
        self._deadline_s = deadline_s
        self._rules = rules
        self._in_progress = 0
        self._logged_s = -LOG_S
        app = web.Application()
        app.router.add_post(PATH, self._review)
        self._listener = Listener(app, (host, port), MAX_CONNECTIONS, context, keepalive_timeout=IDLE_S)

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._listener.__aexit__(*failure)

    @property
    def port(self) -> int:
        """The bound port; differs from the given one if that is 0."""
        return self._listener.port

    async def _review(self, request: web.Request) -> web.Response:
        if self._in_progress >= MAX_REVIEWS:
            self._metrics.count("busy", 0.0)
            raise web.HTTPServiceUnavailable(text=f"{MAX_REVIEWS} reviews are in progress; no more are allowed")
        began_s = time.perf_counter()
        self._in_progress += 1
        try:
            with self._listener.answering(request):
                async with asyncio.timeout(self._deadline_s):
                    text = await _body(request)
        except TimeoutError:
            self._metrics.count("late", time.perf_counter() - began_s)
            raise web.HTTPRequestTimeout(text=f"the review did not arrive within {self._deadline_s:g} s") from None
        finally:
            self._in_progress -= 1
        try:
            body, result = answer(text, self._read, self._folder, self._rules)
        except Exception as error:  # a fault of ours must not keep a pod from its creation
            self._log("a review failed", exc_info=error)
            self._metrics.count("failed", time.perf_counter() - began_s)
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR)
        if result == "unreadable":
            self._log("a review cannot be read; its pod stays as it is", bytes=len(text))
        self._metrics.count(result, time.perf_counter() - began_s)
        return web.Response(body=body, content_type="application/json")

    def _log(self, event: str, **details: object) -> None:
        """Log at most one line per LOG_S: any pod of the network may send reviews."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= LOG_S:
            self._logged_s = now_s
            log.warning(event, **details)


async def _body(request: web.Request) -> bytes:
    """Return the body of a request. One that is too large is cut, so that it cannot be read."""
    parts, size = [], 0
    async for part in request.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            break
    return b"".join(parts)[:MAX_BODY_BYTES]
