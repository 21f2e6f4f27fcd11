"""The probes and metrics of the webhook, over plain HTTP: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web

from autoscaler.adapters.webhook.metrics import CONTENT_TYPE, WebhookMetrics
from autoscaler.http.listener import Listener

MAX_CONNECTIONS = 64


@asynccontextmanager
async def serving_probes(
    host: str, port: int, problem: Callable[[], str], metrics: WebhookMetrics
) -> AsyncIterator[None]:
    """Serve within the block. Raises CannotServe if the port is in use.

    problem: why the webhook is not ready; "": it is.
    """

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        found = problem()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return web.json_response({"ready": not found, "problem": found}, status=status)

    async def render(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(client_max_size=1)
    for path, handler in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", render)):
        app.router.add_get(path, handler)
    async with Listener(app, (host, port), MAX_CONNECTIONS):
        yield
