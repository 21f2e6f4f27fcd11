"""Bodies of query API responses."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.harness.exposition import Answer
from tests.harness.process import free_port

PATH = "/api/v1/query"
NOW_UNIX_S = 1_800_000_000.5


def vector(*series: tuple[dict[str, str], object], time_s: float = NOW_UNIX_S, **more: Any) -> str:
    """The answer to an instant query: labels and value of each series; `more` adds top-level keys."""
    result = [{"metric": labels, "value": [time_s, str(value)]} for labels, value in series]
    body = {"status": "success", "data": {"resultType": "vector", "result": result}, **more}
    return json.dumps(body, separators=(",", ":"))


def pod(name: str, namespace: str = "llm") -> dict[str, str]:
    return {"namespace": namespace, "pod": name}


def html(status: int) -> Answer:
    page = "<html><head><title>Oops</title></head><body><h1>Bad gateway</h1>nginx\x00</body></html>"
    return Answer(page, status=status, headers={"Content-Type": "text/html"})


@asynccontextmanager
async def serving(handler: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """Run a local server with one handler; yields its URL."""
    application = web.Application()
    application.router.add_post(PATH, handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
