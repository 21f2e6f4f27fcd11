"""A fake API server with answers that a real one gives only when it is overloaded or behind a broken proxy."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes_asyncio.client import Configuration

from autoscaler.adapters.kubernetes.api.client import Kube
from tests.harness.process import PATIENCE_S

CLIENT_TIMEOUT_S = 1.0  # of a client that must not wait, except for lists and watches

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def pod(name: str, version: int = 1, uid: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}


def event(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


EXPIRED = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})


def page(*items: dict[str, Any], version: int = 10, more: str = "") -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)})


def refusal(status: int, **headers: str) -> web.Response:
    body = {"kind": "Status", "message": "refused", "code": status}
    return web.json_response(body, status=status, headers={key.replace("_", "-"): headers[key] for key in headers})


def stream(*lines: bytes, then_s: float = 0.0) -> Answer:
    """Answer a watch with these bytes, keep it open for a while, and end it normally."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        await asyncio.sleep(then_s)
        return response

    return answer


def always(make: Callable[[], web.Response]) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return make()

    return answer


class FakeApiServer:
    """Answers lists and watches from a queue; the last answer of each repeats."""

    def __init__(self) -> None:
        self.lists: list[Answer] = [always(page)]
        self.watches: list[Answer] = [stream(then_s=60)]
        self.queries: list[dict[str, str]] = []  # parameters of every list and watch
        self.version = 1000  # what it says when only its version is asked for
        self.timeout_s = PATIENCE_S  # of its client

    @property
    def list_count(self) -> int:
        return sum("watch" not in query for query in self.queries)

    @property
    def watch_versions(self) -> list[str]:
        return [query["resourceVersion"] for query in self.queries if "watch" in query]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "PartialObjectMetadataList" in request.headers["Accept"]:
            return page(version=self.version)
        self.queries.append(dict(request.query))
        queue = self.watches if "watch" in request.query else self.lists
        return await (queue.pop(0) if len(queue) > 1 else queue[0])(request)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Kube]:
        """Serve on loopback and connect to it."""
        application = web.Application()
        application.router.add_get("/api/v1/pods", self.answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with Kube.using(Configuration(host=f"http://127.0.0.1:{port}"), self.timeout_s) as kube:
                yield kube
        finally:
            await runner.cleanup()
