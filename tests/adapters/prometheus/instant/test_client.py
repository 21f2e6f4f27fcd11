"""The client against well-behaved and hostile servers over HTTP on loopback."""

import asyncio
import base64
import json
import ssl
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.client import IN_FLIGHT, PrometheusClient, QueryFailed
from autoscaler.config.settings import PrometheusSettings, TlsFiles
from tests.adapters.prometheus.responses import PATH, html, pod, serving, vector
from tests.harness.certificates import Certificates
from tests.harness.exposition import Answer, ExpositionServer, exposition_server
from tests.harness.process import PATIENCE_S, free_port

SECRET = "s3cr3t-t0ken"


def client(url: str, *, max_answer_bytes: int = 1 << 20, **settings: object) -> PrometheusClient:
    return PrometheusClient(PrometheusSettings(url=url, **settings), SystemClock(), max_answer_bytes=max_answer_bytes)


async def refusal(server: ExpositionServer, answer: Answer | str, **settings: object) -> str:
    """Return how the client words what goes wrong with this answer."""
    server.serve(PATH, answer)
    async with client(server.url, **settings) as prometheus:
        with pytest.raises(QueryFailed) as failed:
            await prometheus.query("up")
    assert str(failed.value).startswith(f"{server.url}{PATH}: ")
    return str(failed.value)


async def test_a_query_is_posted_as_a_form_with_configured_headers(exposition_server: ExpositionServer):
    exposition_server.serve(PATH, vector((pod("a"), 1)))
    async with client(exposition_server.url, headers=(("X-Scope-OrgID", "team-a|team-b"),)) as prometheus:
        answer = await prometheus.query("sum(up)", at_s=1_700_000_000.25)
    assert answer.vector.values.tolist() == [1]
    assert answer.sent_s <= answer.received_s
    (request,) = exposition_server.requests
    assert request.method == "POST"
    assert request.content_type == "application/x-www-form-urlencoded"
    assert request.headers["X-Scope-OrgID"] == "team-a|team-b"
    assert "Authorization" not in request.headers


async def test_the_form_holds_query_time_and_timeout():
    forms = []

    async def answer(request: web.Request) -> web.Response:
        forms.append(dict(await request.post()))
        return web.Response(text=vector())

    async with serving(answer) as url, client(url, timeout_s=PATIENCE_S) as prometheus:
        await prometheus.query("sum(up) > 0", at_s=1_700_000_000.25)
        await prometheus.query("up", timeout_s=PATIENCE_S - 0.5)
    assert forms == [
        {"query": "sum(up) > 0", "time": "1700000000.250", "timeout": "60000ms", "nocache": "1"},
        {"query": "up", "timeout": "59500ms", "nocache": "1"},
    ]


async def test_prefix_and_parameters_of_the_url_are_kept(exposition_server: ExpositionServer):
    exposition_server.serve("/prometheus/api/v1/query", vector())
    async with client(exposition_server.url + "/prometheus/?dedup=true") as prometheus:
        await prometheus.query("up")
    assert exposition_server.requests[0].query == {"dedup": "true"}


async def test_a_token_that_rotates_is_read_again(exposition_server: ExpositionServer, tmp_path: Path):
    exposition_server.serve(PATH, vector())
    token = tmp_path / "token"
    token.write_text("first\n")
    async with client(exposition_server.url, token_file=token) as prometheus:
        await prometheus.query("up")
        await prometheus.query("up")
        replaced = tmp_path / "new"
        replaced.write_text("second\n")
        replaced.rename(token)
        await prometheus.query("up")
    sent = [request.headers["Authorization"] for request in exposition_server.requests]
    assert sent == ["Bearer first", "Bearer first", "Bearer second"]


async def test_basic_auth_takes_its_password_from_a_file(exposition_server: ExpositionServer, tmp_path: Path):
    exposition_server.serve(PATH, vector())
    password = tmp_path / "password"
    password.write_text("pass:word\n")
    async with client(exposition_server.url, username="scaler", password_file=password) as prometheus:
        await prometheus.query("up")
    scheme, _, encoded = exposition_server.requests[0].headers["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(encoded)) == ("Basic", b"scaler:pass:word")


@pytest.mark.parametrize(("content", "why"), [("", "empty"), ("a\nb", "more than one line"), ("x" * 70_000, "bytes")])
async def test_an_unfit_token_file_is_named_and_its_content_is_not(
    exposition_server: ExpositionServer, tmp_path: Path, content: str, why: str
):
    token = tmp_path / "token"
    token.write_text(content)
    message = await refusal(exposition_server, vector(), token_file=token)
    assert f"not queried: {token}: " in message
    assert why in message
    assert exposition_server.requests == []


async def test_a_missing_token_file_is_named(exposition_server: ExpositionServer, tmp_path: Path):
    message = await refusal(exposition_server, vector(), token_file=tmp_path / "absent")
    assert f"{tmp_path}/absent: No such file or directory" in message


async def test_prometheus_down_is_reported_with_its_address():
    url = f"http://127.0.0.1:{free_port()}"
    async with client(url) as prometheus:
        with pytest.raises(QueryFailed, match=f"{url}{PATH}: no connection: .*Connect call failed") as failed:
            await prometheus.query("up")
    assert failed.value.status is None


async def test_a_slow_server_costs_the_time_out_and_no_more(exposition_server: ExpositionServer):
    message = await refusal(exposition_server, Answer(vector(), delay_s=2 * PATIENCE_S), timeout_s=0.1)
    assert message.endswith("no answer within 0.1 s")


async def test_the_callers_deadline_shortens_the_time_out(exposition_server: ExpositionServer):
    exposition_server.serve(PATH, Answer(vector(), delay_s=2 * PATIENCE_S))
    async with client(exposition_server.url, timeout_s=60) as prometheus:
        with pytest.raises(QueryFailed) as failed:
            await prometheus.query("up", timeout_s=0.0512345)
    message = str(failed.value)  # without the remaining time, which is not a setting
    assert message.endswith("no answer within the time left for all queries, at most 60 s")


async def test_a_body_with_an_error_under_status_200_is_an_error(exposition_server: ExpositionServer):
    body = {"status": "error", "errorType": "timeout", "error": "query timed out"}
    assert "HTTP 200, but timeout: query timed out" in await refusal(exposition_server, json.dumps(body))


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "bad_data"), (422, "execution"), (429, "too_many_requests"), (503, "unavailable")]
)
async def test_a_refusal_is_reported_with_status_and_reason(
    exposition_server: ExpositionServer, status: int, kind: str
):
    body = json.dumps({"status": "error", "errorType": kind, "error": "no\nway"})
    message = await refusal(exposition_server, Answer(body, status=status))
    assert f"HTTP {status} " in message
    assert message.endswith(f"{kind}: no way")


async def test_401_is_reported_without_the_token(exposition_server: ExpositionServer, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text(SECRET)
    message = await refusal(exposition_server, Answer(f"bad token {SECRET}", status=401), token_file=token)
    assert message.endswith("HTTP 401 Unauthorized: bad token ***")


async def test_a_password_in_the_url_is_used_and_never_shown():
    url = f"http://scaler:{SECRET}@127.0.0.1:{free_port()}"
    async with client(url) as prometheus:
        with pytest.raises(QueryFailed) as failed:
            await prometheus.query("up")
    assert SECRET not in str(failed.value)
    assert "scaler" not in str(failed.value)


async def test_a_non_http_server_is_named_without_the_url_key():
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1")
    async with server, client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?key={SECRET}") as prometheus:
        with pytest.raises(QueryFailed, match="not an HTTP answer") as failed:
            await prometheus.query("up")
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("status", [200, 502])
async def test_an_html_page_is_reported_as_text(exposition_server: ExpositionServer, status: int):
    message = await refusal(exposition_server, html(status))
    assert f"HTTP {status}" in message
    assert "<" not in message
    assert message.endswith("not an answer of the query API: Oops Bad gateway nginx" if status == 200 else "nginx")


async def test_a_page_with_the_token_is_reported_without_it(exposition_server: ExpositionServer, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text(SECRET)
    message = await refusal(exposition_server, f"<html>who is {SECRET}?</html>", token_file=token)
    assert message.endswith("not an answer of the query API: who is ***?")


@pytest.mark.parametrize("body", ["", " \n", "<html></html>"])
async def test_an_empty_answer_is_reported_as_empty(exposition_server: ExpositionServer, body: str):
    assert (await refusal(exposition_server, body)).endswith("HTTP 200, but not an answer of the query API: no text")


@pytest.mark.parametrize("gzip", [False, True])
async def test_a_huge_answer_is_refused_at_the_bound(exposition_server: ExpositionServer, gzip: bool):
    huge = Answer(vector(*[(pod(f"p{number}"), 1) for number in range(3000)]), gzip=gzip)
    exposition_server.serve(PATH, huge)
    async with client(exposition_server.url, max_answer_bytes=100_000) as prometheus:
        with pytest.raises(QueryFailed, match="larger than the 100000 bytes allowed"):
            await prometheus.query("up")


async def test_a_huge_refusal_is_reported_in_one_line(exposition_server: ExpositionServer):
    message = await refusal(exposition_server, Answer("no " * 1_000_000, status=503))
    assert len(message) < 600


async def test_a_truncated_response_is_no_answer(exposition_server: ExpositionServer):
    message = await refusal(exposition_server, Answer(vector((pod("a"), 1)), truncate_at=20))
    assert "closed the connection in the middle of the answer" in message


async def test_json_cut_off_is_no_answer(exposition_server: ExpositionServer):
    assert "not an answer of the query API" in await refusal(exposition_server, vector((pod("a"), 1))[:-5])


async def test_a_closed_connection_is_reported(exposition_server: ExpositionServer):
    assert "closed the connection without an answer" in await refusal(exposition_server, Answer(drop=True))


async def test_a_redirect_is_not_followed(exposition_server: ExpositionServer):
    moved = Answer("", status=307, headers={"Location": "http://elsewhere.example/?key=1"})
    message = await refusal(exposition_server, moved)
    assert message.endswith("redirects are not followed; it points to http://elsewhere.example/")
    assert exposition_server.asked(PATH) == 1


async def test_proxies_of_the_environment_are_not_used(
    exposition_server: ExpositionServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "")
    exposition_server.serve(PATH, vector((pod("a"), 1)))
    async with client(exposition_server.url) as prometheus:
        assert len((await prometheus.query("up")).vector.values) == 1


async def test_no_more_than_a_few_queries_are_under_way_at_once():
    under_way, most = 0, 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        return web.Response(text=vector())

    async with serving(answer) as url, client(url) as prometheus:
        await asyncio.gather(*(prometheus.query("up") for _ in range(3 * IN_FLIGHT)))
    assert most == IN_FLIGHT


async def test_a_timeout_names_the_wait_for_earlier_queries(
    exposition_server: ExpositionServer,
):
    exposition_server.serve(PATH, Answer(vector(), delay_s=2 * PATIENCE_S))
    async with client(exposition_server.url, timeout_s=0.2) as prometheus:
        failed = await asyncio.gather(*(prometheus.query("up") for _ in range(3 * IN_FLIGHT)), return_exceptions=True)
    reported = Counter(str(each).partition(": ")[2] for each in failed if isinstance(each, QueryFailed))
    assert reported == {
        "no answer within 0.2 s": IN_FLIGHT,
        "no answer within 0.2 s, in which it also waited for earlier queries": 2 * IN_FLIGHT,
    }


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"url": "http://"}, "no host"),
        ({"url": "http://a", "token_file": Path("t"), "username": "u"}, "exclude each other"),
        ({"url": "http://a", "token_file": Path("t"), "headers": (("authorization", "x"),)}, "exclude each other"),
        ({"url": "http://a", "password_file": Path("p")}, "without a user name"),
        ({"url": "http://u:p@a", "username": "u"}, "exclude each other"),
        ({"url": "http://u:p@a", "token_file": Path("t")}, "exclude each other"),
        ({"url": "http://a", "tls": TlsFiles(ca=Path("ca"))}, "not https"),
        ({"url": "http://a", "headers": (("X Y", "1"),)}, "not a valid header name"),
        ({"url": "http://a", "headers": (("X-Key", f"{SECRET}\r\nX: 1"),)}, "X-Key"),
    ],
)
def test_settings_that_contradict_themselves_stop_the_start(settings: dict, why: str):
    with pytest.raises(ValueError, match=why) as refused:
        client(**settings)
    assert SECRET not in str(refused.value)


async def test_a_custom_ca_is_trusted_and_a_client_certificate_is_sent(certificates: Certificates):
    server, mine = certificates.issue("127.0.0.1"), certificates.issue("client")
    tls = TlsFiles(ca=certificates.ca, cert=mine.certificate, key=mine.key)
    async with exposition_server(mutual(server, certificates.ca)) as endpoints:
        endpoints.serve(PATH, vector((pod("a"), 1)))
        async with client(endpoints.url, tls=tls) as prometheus:
            assert (await prometheus.query("up")).vector.values.tolist() == [1]
        await refusal(endpoints, vector(), tls=TlsFiles(ca=certificates.ca))  # no certificate of ours, no answer
        assert endpoints.asked(PATH) == 1


async def test_an_authority_that_is_not_known_is_not_trusted(certificates: Certificates):
    async with exposition_server(mutual(certificates.issue("127.0.0.1"), None)) as endpoints:
        assert "certificate is not trusted" in await refusal(endpoints, vector())


async def test_an_expired_certificate_is_not_trusted(certificates: Certificates):
    expired = certificates.issue("127.0.0.1", valid_for=timedelta(days=-1))
    async with exposition_server(mutual(expired, None)) as endpoints:
        message = await refusal(endpoints, vector(), tls=TlsFiles(ca=certificates.ca))
    assert "certificate is not trusted" in message
    assert "expired" in message


async def test_an_encrypted_key_is_refused_without_a_prompt(certificates: Certificates, tmp_path: Path):
    pair, locked = certificates.issue("127.0.0.1"), tmp_path / "locked.key"
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    async with exposition_server(mutual(pair, None)) as endpoints:
        message = await refusal(
            endpoints, vector(), tls=TlsFiles(ca=certificates.ca, cert=pair.certificate, key=locked)
        )
    assert "not queried" in message
    assert "the key is encrypted; allowed: a key without a password" in message


async def test_certificates_that_rotate_are_read_again(certificates: Certificates, tmp_path: Path):
    async with exposition_server(mutual(certificates.issue("127.0.0.1"), None)) as endpoints:
        endpoints.serve(PATH, vector())
        ca = tmp_path / "ca.pem"
        ca.write_text("not yet a certificate")
        async with client(endpoints.url, tls=TlsFiles(ca=ca)) as prometheus:
            with pytest.raises(QueryFailed, match=f"not queried: {ca}: no usable certificate"):
                await prometheus.query("up")
            ca.write_bytes(certificates.ca.read_bytes())
            await prometheus.query("up")
            ca.unlink()
            with pytest.raises(QueryFailed, match=f"not queried: {ca}: No such file"):
                await prometheus.query("up")


def mutual(server: Iterable[Path], ca: Path | None) -> ssl.SSLContext:
    """A server's context; with `ca` it wants to see a client's certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*server)
    if ca is not None:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
