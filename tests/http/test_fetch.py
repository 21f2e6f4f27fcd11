"""Fetching under bounds, from real servers on loopback that behave badly."""

import asyncio
import gzip
import resource
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from yarl import URL

from autoscaler.http.fetch import SPEAKS_HTTP, SPEAKS_TLS, FetchAnswer, Fetcher
from tests.harness.certificates import Certificates, KeyPair
from tests.harness.exposition import Answer as Served
from tests.harness.exposition import ExpositionServer
from tests.harness.exposition import exposition_server as another_server
from tests.harness.process import PATIENCE_S, free_port

LIMIT = 10_000


def fetcher(concurrency: int = 4, timeout_s: float = PATIENCE_S) -> Fetcher:
    return Fetcher(concurrency=concurrency, timeout_s=timeout_s, max_body_bytes=LIMIT)


Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(talk: Conversation) -> AsyncIterator[str]:
    """Serve a badly behaved answer; yield the URL."""
    talks: list[asyncio.Task[None]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics"
    finally:
        listening.close()
        await asyncio.wait_for(asyncio.gather(*talks), PATIENCE_S)
        await listening.wait_closed()


async def get(url: str, **options: float) -> FetchAnswer:
    async with fetcher(**options) as opened:  # type: ignore[arg-type]
        return await opened.get(URL(url))


async def test_a_body_arrives_as_it_is(exposition_server: ExpositionServer) -> None:
    assert await get(exposition_server.serve("/metrics", "a 1\n")) == FetchAnswer(b"a 1\n")


async def test_a_compressed_body_is_unpacked(exposition_server: ExpositionServer) -> None:
    assert await get(exposition_server.serve("/metrics", Served("a 1\n" * 99, gzip=True))) == FetchAnswer(b"a 1\n" * 99)
    assert exposition_server.requests[0].headers["Accept-Encoding"] == "gzip"


async def test_a_gzip_bomb_is_refused_without_unpacking_it(exposition_server: ExpositionServer) -> None:
    bomb = gzip.compress(b"\0" * (5 << 20))
    assert len(bomb) < LIMIT
    url = exposition_server.serve("/metrics", Served(bomb, headers={"Content-Encoding": "gzip"}))
    assert await get(url) == FetchAnswer(None, f"body larger than {LIMIT} bytes when unpacked")


async def test_a_huge_body_is_refused_as_soon_as_it_is_too_long(exposition_server: ExpositionServer) -> None:
    url = exposition_server.serve("/metrics", b"x" * (LIMIT + 1))
    assert await get(url) == FetchAnswer(None, f"body larger than {LIMIT} bytes")


async def test_a_body_without_end_is_refused_as_soon_as_it_is_too_long() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
            await writer.drain()

    async with server(endless) as url:
        assert await get(url) == FetchAnswer(None, f"body larger than {LIMIT} bytes")


ZIPPED = gzip.compress(b"a 1\n", mtime=0)


@pytest.mark.parametrize("body", [b"not gzip at all", ZIPPED[:-3], ZIPPED + b"more"])
async def test_broken_gzip_is_refused(exposition_server: ExpositionServer, body: bytes) -> None:
    url = exposition_server.serve("/metrics", Served(body, headers={"Content-Encoding": "gzip"}))
    assert await get(url) == FetchAnswer(None, "broken gzip")


async def test_another_encoding_is_named(exposition_server: ExpositionServer) -> None:
    url = exposition_server.serve("/metrics", Served(b"...", headers={"Content-Encoding": "br"}))
    assert await get(url) == FetchAnswer(None, "content encoding 'br'; only gzip is supported")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(exposition_server: ExpositionServer, status: int) -> None:
    elsewhere = exposition_server.serve("/elsewhere", "a 1\n")
    url = exposition_server.serve("/metrics", Served(status=status, headers={"Location": elsewhere}))
    assert await get(url) == FetchAnswer(None, f"redirects are not followed (HTTP {status})")
    assert exposition_server.asked("/elsewhere") == 0


@pytest.mark.parametrize("status", [401, 404, 500, 503])
async def test_another_status_is_named_and_its_body_is_not_read(
    exposition_server: ExpositionServer, status: int
) -> None:
    url = exposition_server.serve("/metrics", Served("a 1\n", status=status))
    assert await get(url) == FetchAnswer(None, f"HTTP {status}, not 200")


async def test_a_slow_server_is_abandoned_at_the_request_deadline(exposition_server: ExpositionServer) -> None:
    url = exposition_server.serve("/metrics", Served("a 1\n", delay_s=60))
    assert await get(url, timeout_s=0.1) == FetchAnswer(None, "no answer within 0.1 s")


async def test_a_server_that_sends_drop_by_drop_is_given_up_as_well() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with server(drip) as url:
        assert await get(url, timeout_s=0.15) == FetchAnswer(None, "no answer within 0.15 s")


async def test_a_closed_port_is_refused() -> None:
    assert await get(f"http://127.0.0.1:{free_port()}/metrics") == FetchAnswer(None, "connection refused")


async def test_a_name_that_does_not_exist_is_named_as_such() -> None:
    assert await get("http://no-such-host.invalid:9400/metrics") == FetchAnswer(None, "host name not found")


def served_by(pair: KeyPair) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


async def test_a_certificate_that_is_not_trusted_is_no_answer(certificates: Certificates) -> None:
    async with another_server(served_by(certificates.issue("127.0.0.1"))) as secure:
        _, problem = await get(secure.serve("/metrics", "a 1\n"))
    assert problem.startswith("the server's certificate: ")
    assert "certificate" in problem.removeprefix("the server's certificate: ")


async def test_a_tls_server_is_named_when_read_over_plain_http(certificates: Certificates) -> None:
    async with another_server(served_by(certificates.issue("127.0.0.1"))) as secure:
        url = secure.serve("/metrics", "a 1\n").replace("https:", "http:")
        assert await get(url) == FetchAnswer(None, SPEAKS_TLS)


async def test_tls_is_named_when_a_server_refuses_plain_http_in_words(certificates: Certificates) -> None:
    """As nginx and Go do, which see from the first byte what they are asked in."""
    secure = served_by(certificates.issue("127.0.0.1"))

    async def refuse_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) != b"\x16":
            writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
            await writer.drain()
            return
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        incoming.write(b"\x16" + await reader.read(4096))
        with suppress(ssl.SSLWantReadError):
            secure.wrap_bio(incoming, outgoing, server_side=True).do_handshake()
        writer.write(outgoing.read())
        await writer.drain()
        await reader.read(4096)

    async with server(refuse_plain) as url:
        assert (await get(url)).problem == SPEAKS_TLS


async def test_plain_http_is_named_when_the_server_is_read_over_tls(exposition_server: ExpositionServer) -> None:
    url = exposition_server.serve("/metrics", "a 1\n").replace("http:", "https:")
    assert await get(url) == FetchAnswer(None, SPEAKS_HTTP)


async def test_a_token_is_not_sent_over_plain_http(exposition_server: ExpositionServer) -> None:
    url = exposition_server.serve("/metrics", "a 1\n")
    async with fetcher() as opened:
        assert await opened.get(URL(url), "secret") == FetchAnswer(b"a 1\n")
    assert "Authorization" not in exposition_server.requests[0].headers


async def test_a_connection_closed_without_an_answer_is_named(exposition_server: ExpositionServer) -> None:
    url = exposition_server.serve("/metrics", Served("a 1\n", drop=True))
    assert await get(url) == FetchAnswer(None, "connection closed without an answer")


async def test_a_connection_closed_inside_the_body_is_named(exposition_server: ExpositionServer) -> None:
    url = exposition_server.serve("/metrics", Served("a 1\n" * 100, truncate_at=50))
    assert await get(url) == FetchAnswer(None, "connection closed inside the body")


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0\1\2\3\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"],
)
async def test_a_non_http_response_is_no_answer(answer: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with server(respond) as url:
        assert await get(url) == FetchAnswer(None, "not an HTTP answer")


async def test_a_connection_is_used_again() -> None:
    connections = 0

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n")

    async with server(respond) as url, fetcher() as opened:
        for _ in range(5):
            assert await opened.get(URL(url)) == FetchAnswer(b"a 1\n")
    assert connections == 1


async def test_a_closed_connection_is_opened_again() -> None:
    connections = 0

    async def respond_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n")

    async with server(respond_once) as url, fetcher() as opened:
        for _ in range(3):
            assert await opened.get(URL(url)) == FetchAnswer(b"a 1\n")
    assert connections == 3


async def test_a_proxy_of_the_environment_is_not_used(
    exposition_server: ExpositionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert await get(exposition_server.serve("/metrics", "a 1\n")) == FetchAnswer(b"a 1\n")


@pytest.mark.looptime  # on a busy machine no visit might be done by a real deadline
async def test_the_items_not_done_by_the_deadline_come_back() -> None:
    visited: list[int] = []

    async def visit(item: int) -> None:
        await asyncio.sleep(0 if item < 3 else 60)
        visited.append(item)

    async with fetcher(concurrency=2) as opened:
        assert await opened.each(range(6), visit, deadline_s=0.1) == [3, 4, 5]
        assert await opened.each([], visit, deadline_s=0.1) == []
    assert visited == [0, 1, 2]


async def test_no_more_than_allowed_are_visited_at_once() -> None:
    now, most = 0, 0

    async def visit(_: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    async with fetcher(concurrency=3) as opened:
        assert await opened.each(range(20), visit, deadline_s=PATIENCE_S) == []
    assert most == 3


async def test_cancelling_a_reading_ends_it_at_once() -> None:
    async def visit(_: int) -> None:
        await asyncio.sleep(60)

    async with fetcher() as opened:
        task = asyncio.create_task(opened.each(range(3), visit, deadline_s=60.0))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_unopened_fetcher_raises() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await fetcher().get(URL("http://127.0.0.1:1/"))


async def test_any_bytes_of_a_server_make_an_answer() -> None:
    random = Random(1)
    good = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n0\r\n\r\n"

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer = bytearray(good)
        for _ in range(random.randrange(1, 6)):
            kind, at = random.randrange(3), random.randrange(len(answer))
            if kind == 0:
                answer[at] = random.randrange(256)
            elif kind == 1:
                del answer[at : at + random.randrange(1, 12)]
            else:
                answer[at:at] = random.choice([b"\r\n", b"\0", b"Content-Length: 9\r\n", b"ffffffff", b"-1", b":"])
        writer.write(bytes(answer))

    async with server(respond) as url, fetcher() as opened:
        answers = [await opened.get(URL(url)) for _ in range(300)]
    assert all((answer.body is None) == bool(answer.problem) for answer in answers)
    assert {answer.problem for answer in answers} >= {"", "not an HTTP answer", "connection closed inside the body"}


def highest_open_file() -> int:
    """Return the highest number of an open file; other tests of this process may have left some."""
    return max(int(file.name) for file in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("kept", [True, False])
async def test_connections_are_kept_only_as_far_as_open_files_allow(
    exposition_server: ExpositionServer, kept: bool
) -> None:
    url = URL(exposition_server.serve("/metrics", "a 1\n"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = highest_open_file() + 256
    targets = 10 if kept else limit // 2 + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        async with fetcher() as opened:

            async def visit(_: int) -> None:
                assert (await opened.get(url)).problem == ""

            assert await opened.each(range(targets), visit, deadline_s=PATIENCE_S) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    asked_to_close = {request.headers.get("Connection") == "close" for request in exposition_server.requests}
    assert asked_to_close == {not kept}
