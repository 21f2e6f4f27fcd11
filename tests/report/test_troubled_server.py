"""The whole command on a real Prometheus behind a server that refuses, or is slow, as gateways in front of it are."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.harness.process import free_port
from tests.report.generated import HOUR_S, Service, day, filled_prometheus, generate, merged
from tests.report.test_report import invoke

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KEPT_H = 8
MOST_URL = 4096
Trouble = Callable[[int, web.Request], web.Response | float | None]


class Gateway:
    """Hands requests to a server, and gives some of them another answer."""

    def __init__(self, url: str, trouble: Trouble) -> None:
        """trouble: by the number of a range query, and the query: what to answer, seconds to wait before, or None."""
        self._url, self._trouble = url, trouble
        self.queries: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.path.endswith("query_range"):
            form = request.query if request.method == "GET" else await request.post()
            self.queries.append(str(form["query"]))
            trouble = self._trouble(len(self.queries), request)
            if isinstance(trouble, web.Response):
                return trouble
            await asyncio.sleep(trouble or 0.0)
        headers = {"Content-Type": request.headers.get("Content-Type", "")}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, f"{self._url}{request.path_qs}", data=body, headers=headers) as answer,
        ):
            return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, max_line_size=1 << 16, shutdown_timeout=0.1)  # nobody waits for the late answer
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


def every_fifth(status: int) -> Trouble:
    """Refuse some queries, and ask to come back in an hour."""
    return lambda number, _: (
        web.json_response({"status": "error"}, status=status, headers={"Retry-After": "3600"})
        if not number % 5
        else None
    )


def slow_once(number: int, request: web.Request) -> web.Response | float | None:
    """Answer one query late, and refuse long URLs, as proxies do beyond some kilobytes."""
    if len(request.raw_path) > MOST_URL:
        return web.Response(status=414)
    return 30.0 if number == 9 else None


def only_get(number: int, request: web.Request) -> web.Response | None:
    """Refuse what may change something, as proxies for reading do, and some other queries for a while."""
    return web.Response(status=405) if request.method == "POST" else every_fifth(503)(number, request)


@pytest.mark.parametrize(
    ("trouble", "most_s"),
    [(every_fifth(429), 60), (only_get, 60), (slow_once, 3)],
    ids=["too-many-requests", "only-get-and-unavailable", "answer-after-30-s-and-short-urls"],
)
async def test_figures_are_true_when_the_server_is_troubled(trouble, most_s: int, tmp_path: Path):
    """The server keeps less than was asked for, so the first days are not seen; another namespace is not asked for."""
    end_s = time.time() // 60 * 60
    start_s = end_s - KEPT_H * HOUR_S
    services = (
        Service("generous", day(0.5, 12), lambda _: 4),
        Service("other", day(1, 5), lambda _: 1, namespace="neighbours"),
    )
    made = [generate(service, start_s, end_s, 60.0) for service in services]
    file = tmp_path / "report.json"
    async with filled_prometheus(tmp_path, merged(lines for _, lines in made)) as server:
        gateway = Gateway(server.url, trouble)
        async with gateway.serving() as url:
            result = await invoke(
                *("--prometheus", url, "--since", "2d", "--namespace", "team", "--prometheus-timeout", f"{most_s}s"),
                *("--json", file, "--html", tmp_path / "report.html", "--no-cache"),
            )
    assert result.exit_code == 0, result.output
    found, truth = json.loads(file.read_text()), made[0][0]
    (row,) = found["services"]
    was = row["columns"]["actual"]
    assert (row["namespace"], row["name"]) == ("team", "generous")
    assert was["gpu_hours"] == pytest.approx(truth.replica_h, rel=0.02)
    assert was["requests"] == pytest.approx(truth.requests, rel=0.02)
    assert row["seen_share"] > 0.95 and row["judged"]
    assert found["sentence"].startswith("In 8 of 48 hours seen, 1 of 1 service ran on more than twice")
    assert any(note.startswith("8 of 48 hours seen: no engine reported before") for note in found["notes"])
    assert not any("was not replayed" in note for note in found["notes"]), found["notes"]
    of_services = [query for query in gateway.queries if query.startswith("sum by (namespace, cluster")]
    assert len(of_services) > 5
    assert [query for query in of_services if 'namespace=~"team"' not in query] == []
