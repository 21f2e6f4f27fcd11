"""Servers that refuse, stall or return garbage for history: one sentence without secrets."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from autoscaler.adapters.prometheus.range.reader import MAX_BYTES
from autoscaler.adapters.prometheus.range.workload_history import PrometheusHistory
from autoscaler.config.settings import PrometheusSettings, TlsFiles
from autoscaler.ports import Unavailable
from tests.harness.process import PATIENCE_S, free_port

SECRET = "s3cr3t-t0ken"
START_S = 1_700_000_000.0


@asynccontextmanager
async def serving(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Serve range queries and yield the base URL."""
    app = web.Application()
    app.router.add_post("/api/v1/query_range", handler)
    app.router.add_get("/api/v1/query_range", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def refusal(url: str, *, deadline_s: float = 20.0, **settings: object) -> str:
    history = PrometheusHistory(PrometheusSettings(url=url, **settings))  # type: ignore[arg-type]
    with pytest.raises(Unavailable) as raised:
        await history.read("team", "llama", START_S, START_S + 600, deadline_s=deadline_s)
    return str(raised.value)


def answering(status: int, text: str, headers: dict[str, str] | None = None) -> AbstractAsyncContextManager[str]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    return serving(answer)


def answer_of(result: object) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (401, "no token", "HTTP Status Code 401 (no token)"),
        (400, '{"status":"error","error":"parse error"}', "parse error"),
        (422, "query processing would load too many samples", "too many samples"),
        (200, "<html>", "HTTP 200, but no answer to a range query"),
        (200, "[]", "HTTP 200, but no answer to a range query"),
        (200, answer_of([{"metric": {}}]), "HTTP 200, but no answer to a range query"),
        (200, answer_of({}), "the answer has no series"),
        (200, answer_of([{"metric": {}, "values": []}] * 20_001), "20001 series; allowed: at most 20000"),
        (200, answer_of([{"metric": {}, "values": [5]}]), "must be pairs of time and number"),
        (
            200,
            answer_of([{"metric": {}, "values": [[None, None]]}]),
            "must be pairs of time and number",
        ),
        (200, answer_of([{"metric": {}, "values": [[START_S, "abc"]]}]), "could not convert string to float: 'abc'"),
        (
            200,
            answer_of([{"metric": {}, "values": [[START_S, 10**400]]}]),
            "must be pairs of time and number",
        ),
        (200, answer_of("LONG").replace('"LONG"', "1" * 5000), "HTTP 200, but no answer to a range query"),
        (
            200,
            answer_of([{"metric": {}, "values": []}]),
            "must be pairs of time and number: found none",
        ),
        (200, "[" * 100_000, "HTTP 200, but no answer to a range query"),
        (200, answer_of([]), "no series of vllm for workload team/llama between 2023-11-14T22:13:20Z"),
    ],
)
async def test_a_refusal_is_worded_with_the_servers_name(status: int, text: str, message: str) -> None:
    async with answering(status, text) as url:
        refused = await refusal(url)
    assert refused.startswith(f"{url}: ")
    assert message in refused


async def test_a_header_that_cannot_be_sent_is_not_repeated() -> None:
    async with answering(200, answer_of([])) as url:
        message = await refusal(url, headers=(("X-Token", f"{SECRET}\nX-Other: 1"),))
    assert message == f"{url}: a header that is given cannot be sent (not shown: it may be a secret)"


async def test_a_closed_port_is_no_connection() -> None:
    assert "no connection" in await refusal(f"http://127.0.0.1:{free_port()}")


async def test_redirects_are_not_followed_with_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    elsewhere: list[web.Request] = []

    async def note(request: web.Request) -> web.Response:
        elsewhere.append(request)
        return web.Response(text=answer_of([]))

    async with serving(note) as other, answering(302, "", {"Location": f"{other}/api/v1/query_range"}) as url:
        assert "redirects are not followed" in await refusal(url, token_file=token)
    assert elsewhere == []


async def test_the_token_is_sent_and_never_repeated(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    requests: list[str] = []

    async def echo(request: web.Request) -> web.Response:
        requests.append(request.headers.get("Authorization", ""))
        return web.Response(status=403, text=f"bad {request.headers.get('Authorization')}")

    async with serving(echo) as url:
        message = await refusal(url, token_file=token, headers=(("X-Scope-OrgID", "a"),))
    assert requests == [f"Bearer {SECRET}"]
    assert SECRET not in message
    assert "403" in message


async def test_a_server_that_stalls_ends_at_the_time_out_of_a_query() -> None:
    told = asyncio.Event()

    async def stall(_request: web.Request) -> web.Response:
        await told.wait()
        return web.Response(text=answer_of([]))

    async with serving(stall) as url:
        assert "no answer within 0.1 s" in await refusal(url, timeout_s=0.1)
        told.set()


def dripping(left: asyncio.Event) -> AbstractAsyncContextManager[str]:
    """Serve an answer of minutes, a byte at a time; `left` is set while no client is there."""
    left.set()

    async def drip(request: web.Request) -> web.StreamResponse:
        left.clear()
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(4000):
                await response.write(b" ")
                await asyncio.sleep(0.05)
        left.set()
        return response

    return serving(drip)


@pytest.mark.parametrize(
    ("deadline_s", "timeout_s"), [(0.5, 10.0), (20.0, 0.3)], ids=["deadline", "time-out of a query"]
)
async def test_a_server_that_drips_is_given_up_in_time(deadline_s: float, timeout_s: float) -> None:
    left = asyncio.Event()
    async with dripping(left) as url:
        message = await refusal(url, deadline_s=deadline_s, timeout_s=timeout_s)
        assert "within" in message or "not read in time" in message  # the latter if its thread begins late
        async with asyncio.timeout(PATIENCE_S):  # nor does the thread that queried wait for the rest
            await left.wait()


async def test_a_server_that_names_an_hour_to_wait_is_not_waited_for() -> None:
    async with answering(429, "busy", {"Retry-After": "3600"}) as url:
        async with asyncio.timeout(PATIENCE_S):
            assert "HTTP Status Code 429" in await refusal(url)


async def test_a_gzip_bomb_is_refused_at_the_bound() -> None:
    bomb = gzip.compress(bytes(MAX_BYTES + 1), compresslevel=1)

    async def explode(_request: web.Request) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    async with serving(explode) as url:
        assert "the answer is longer than 134,217,728 bytes" in await refusal(url)


async def test_a_briefly_busy_server_is_queried_again() -> None:
    answers = iter([503, 503, 200])

    async def busy(_request: web.Request) -> web.Response:
        return web.Response(status=next(answers, 200), text=answer_of([]))

    async with serving(busy) as url:
        assert "no series of vllm" in await refusal(url)


async def test_the_deadline_holds_over_all_queries_together() -> None:
    async def slow(_request: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        return web.Response(text=answer_of([{"metric": {"metric": "pod"}, "values": [[START_S, "1"]]}]))

    async with serving(slow) as url:
        message = await refusal(url, deadline_s=0.15)
    assert "not read" in message or "no answer within" in message


async def test_a_password_without_a_user_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without a user name"):
        PrometheusHistory(PrometheusSettings(url="http://127.0.0.1:9", password_file=tmp_path / "none", tls=TlsFiles()))


@pytest.mark.parametrize(
    ("end_s", "step_s", "message"),
    [(START_S, 15.0, "0 steps of 15s"), (START_S + 1e9, 15.0, "allowed: 2 to"), (START_S + 60, 0.5, "at least 1s")],
)
async def test_an_interval_that_makes_no_sense_is_refused(end_s: float, step_s: float, message: str) -> None:
    history = PrometheusHistory(PrometheusSettings(url="http://127.0.0.1:9"))
    with pytest.raises(ValueError, match=message):
        await history.read("team", "llama", START_S, end_s, step_s=step_s)


async def test_a_name_that_is_none_does_not_get_into_a_query() -> None:
    history = PrometheusHistory(PrometheusSettings(url="http://127.0.0.1:9"))
    with pytest.raises(ValueError, match="is not the name of a workload"):
        await history.read("team", 'x"} or up{a="', START_S, START_S + 600)
