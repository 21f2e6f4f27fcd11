"""The HTTP server over loopback, asked by a real client."""

import asyncio
import json
import re
import socket
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from autoscaler.adapters.web.gpu_use import BY
from autoscaler.adapters.web.node_groups import FIELDS as NODE_GROUP_FIELDS
from autoscaler.adapters.web.quotas import FIELDS as QUOTA_FIELDS
from autoscaler.adapters.web.readiness import Readiness
from autoscaler.adapters.web.server import MAX_ANSWERS, MAX_CONNECTIONS, HttpServer
from autoscaler.adapters.web.table import FIELDS
from autoscaler.adapters.web.weights import FIELDS as WEIGHTS_FIELDS
from autoscaler.config.settings import HttpSettings
from autoscaler.core.model.fleet import HeldDevices, NodeGroup, NodeGroups, Pool, Workload, WorkloadRef
from autoscaler.core.model.samples import Samples, SourceReport
from autoscaler.ports import CannotServe, Unavailable
from tests.adapters.web.conftest import MAX_AGE_S, Daemon, HandClock
from tests.adapters.web.records import FORECAST, TEAMS, World, with_quotas, with_starts, with_weights
from tests.harness.process import PATIENCE_S, eventually

API = "/api/v1/workloads"


async def get(client: aiohttp.ClientSession, path: str, status: int = 200) -> Any:
    async with client.get(path) as response:
        assert response.status == status, await response.text()
        return await response.json()


# Listening


async def test_a_port_in_use_is_an_error_that_names_it(daemon: Daemon) -> None:
    with pytest.raises(CannotServe, match=f"port {daemon.server.port} on 127.0.0.1 is in use"):
        async with daemon.another(daemon.server.port):
            pass


async def test_an_address_of_another_machine_is_an_error_that_names_it(daemon: Daemon) -> None:
    parts = {"dashboard": daemon.dashboard, "metrics": daemon.metrics, "readiness": daemon.readiness}
    with pytest.raises(CannotServe, match=r"192\.0\.2\.1 port 8080"):
        async with HttpServer(HttpSettings(host="192.0.2.1", port=8080), **parts, mode="direct"):
            pass


async def test_after_closing_nobody_answers_and_the_port_is_free(daemon: Daemon) -> None:
    async with daemon.another(0) as server:
        port = server.port
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
    async with daemon.another(port) as server:
        assert server.port == port


@pytest.mark.slow
async def test_oldest_idle_connection_is_closed_at_the_limit(daemon: Daemon) -> None:
    """Those that never finish asking must not keep the probes of kubelet out."""
    async with aiohttp.ClientSession(daemon.url) as browser, browser.get("/api/v1/stream") as follows:
        opened = [await asyncio.open_connection("127.0.0.1", daemon.server.port) for _ in range(MAX_CONNECTIONS + 8)]
        for _, writer in opened:
            writer.write(b"GET / HTTP/1.1\r\nX-Slow: ")
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in opened[:9]:  # one more than the eight beyond the bound: the browser has one of its places
                assert await reader.read() == b""
            async with aiohttp.ClientSession(daemon.url) as probe, probe.get("/healthz") as response:
                assert response.status == 200
            daemon.record(*World(1).ticks(1))
            await follows.content.readuntil(b"event: tick")  # older than all of them, and still served
        assert not opened[-1][0].at_eof()
        for _, writer in opened:
            writer.close()


# Health


async def test_healthz_answers_before_the_first_tick(client: aiohttp.ClientSession) -> None:
    async with client.get("/healthz") as response:
        assert (response.status, await response.text()) == (200, "ok\n")


async def test_not_ready_before_the_first_tick(client: aiohttp.ClientSession) -> None:
    detail = await get(client, "/readyz", 503)
    assert detail["reason"] == "no tick has succeeded yet"
    assert detail["last_tick_age_s"] is None


async def test_ready_until_the_last_successful_tick_is_too_old(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    daemon.record(World(2).tick())
    assert (await get(client, "/readyz"))["leader"] is True
    daemon.clock.time_s = MAX_AGE_S
    assert (await get(client, "/readyz"))["last_tick_age_s"] == MAX_AGE_S
    daemon.clock.time_s = MAX_AGE_S + 1
    detail = await get(client, "/readyz", 503)
    assert detail["reason"] == "the last successful tick is 41.0 s old, more than 40 s"


def test_follower_may_tick_less_often() -> None:
    clock, record = HandClock(), World(1).tick()
    readiness = Readiness(clock, 40.0, follower_max_age_s=60.0)
    for leading, allowed_s in ((True, 40.0), (False, 60.0)):
        readiness.record(replace(record, leading=leading))
        assert [readiness.check().ready for clock.time_s in (allowed_s, allowed_s + 1)] == [True, False]


@pytest.mark.slow
async def test_answer_says_that_the_last_tick_is_old_and_why(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    assert (await get(client, API))["stale"] == "no tick has succeeded yet"
    world = World(1)
    daemon.record(world.tick())
    one = f"{API}/{world.members[0].ref}"
    daemon.readiness.failed(0.0, OSError("no connection"))
    assert [(await get(client, path))["stale"] for path in (API, one)] == ["", ""]
    daemon.clock.time_s = MAX_AGE_S + 1
    why = "the last successful tick is 41.0 s old, more than 40 s: OSError: no connection"
    assert [(await get(client, path))["stale"] for path in (API, one)] == [why, why]


async def test_failed_ticks_are_reported_until_one_succeeds(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    world = World(2)
    daemon.record(world.tick())
    daemon.readiness.failed(0.0, RuntimeError("the API server\nis away"))
    detail = await get(client, "/readyz")
    assert detail["failed_ticks_in_a_row"] == 1
    assert detail["last_error"] == "RuntimeError: the API server\N{REPLACEMENT CHARACTER}is away"
    daemon.record(world.tick())
    assert (await get(client, "/readyz"))["last_error"] == ""


async def test_invalid_policy_is_reported_and_stays_ready(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    daemon.record(World(2).tick())
    daemon.detail = {"policies": "realtime.yaml:3: replicas.min is 5, at most replicas.max (2) is allowed"}
    assert "replicas.min is 5" in (await get(client, "/readyz"))["policies"]


async def test_source_problems_are_reported_and_bounded(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    tick = World(2).tick()
    report = SourceReport("prometheus", 14, 14, tuple(f"{i}: " + "x" * 1000 for i in range(100)))
    daemon.record(replace(tick, input=replace(tick.input, samples=Samples.unknown(2, 0, (report,)))))
    (source,) = (await get(client, "/readyz"))["sources"]
    assert (source["source"], source["failed"], len(source["problems"])) == ("prometheus", 14, 32)
    assert max(map(len, source["problems"])) == 300


# Metrics


async def test_metrics_are_prometheus_text(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    daemon.record(World(3).tick())
    async with client.get("/metrics") as response:
        text = await response.text()
        assert response.content_type == "text/plain"
    assert 'vllm_autoscaler_ticks_total{result="ok"} 1.0\n' in text
    assert text.count("\nvllm_autoscaler_desired_replicas{") == 3


async def test_metrics_are_openmetrics_where_asked_for(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}) as response:
        assert response.content_type == "application/openmetrics-text"
        assert (await response.text()).endswith("# EOF\n")


# The list


async def test_the_list_before_the_first_tick_is_empty(client: aiohttp.ClientSession) -> None:
    body = await get(client, API)
    assert (body["tick"], body["total"], body["workloads"]) == (None, 0, [])


async def test_a_row_has_the_documented_fields_and_unknown_is_null(
    daemon: Daemon, client: aiohttp.ClientSession
) -> None:
    tick = World(2).tick()
    daemon.record(tick)
    body = await get(client, API)
    row = body["workloads"][1]
    assert list(row) == list(FIELDS)
    assert row["wanted"] == tick.decision.replicas[1]
    assert row["gateway_waiting"] is None
    assert (row["signal"], row["paused"], row["trusted"]) == ("concurrency", False, True)
    assert (body["total"], body["matched"], body["mode"], body["leading"]) == (2, 2, "demo", True)


async def test_the_list_is_filtered_sorted_and_cut(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    daemon.record(World(40).tick())
    body = await get(client, f"{API}?q=REALTIME&sort=-waiting&limit=3&offset=1")
    everything = (await get(client, f"{API}?limit=1000"))["workloads"]
    realtime = [row for row in everything if row["policy"] == "realtime"]
    assert body["matched"] == len(realtime)
    ordered = sorted(realtime, key=lambda row: -row["waiting"])
    assert [row["waiting"] for row in body["workloads"]] == [row["waiting"] for row in ordered[1:4]]


@pytest.mark.parametrize("sort", ["ttft_s", "-ttft_s"])
async def test_unknown_values_come_last_whichever_way_it_is_sorted(
    daemon: Daemon, client: aiohttp.ClientSession, sort: str
) -> None:
    tick = World(3).tick()
    seen = replace(tick.decision.observation, ttft_s=np.array([np.nan, 1.0, 2.0]))
    daemon.record(replace(tick, decision=replace(tick.decision, observation=seen)))
    values = [row["ttft_s"] for row in (await get(client, f"{API}?sort={sort}"))["workloads"]]
    assert values == ([1.0, 2.0, None] if sort == "ttft_s" else [2.0, 1.0, None])


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("limit=0", "limit is '0'; allowed: a whole number from 1 to 1000"),
        ("limit=1001", "limit is '1001'; allowed: a whole number from 1 to 1000"),
        ("offset=-1", "offset is '-1'; allowed: a whole number from 0 to 1000000000"),
        ("offset=1e3", "offset is '1e3'; allowed: a whole number"),
        ("limit=%D9%A3", "limit is '٣'; allowed: a whole number"),
        ("limit=" + "9" * 2000, "allowed: a whole number"),
        ("sort=secret", "sort is 'secret'; allowed: one of id, namespace"),
        ("q=%00", "q is '\\x00'; allowed: at most 253 printable characters"),
        ("q=" + "a" * 300, "allowed: at most 253 printable characters"),
        ("page=2", "unknown parameter 'page'; allowed: q, sort, limit, offset"),
        ("q=a&q=b", "parameter q is given more than once"),
    ],
)
async def test_bad_parameter_is_refused_with_value_and_allowed_values(
    client: aiohttp.ClientSession, query: str, error: str
) -> None:
    body = await get(client, f"{API}?{query}", 400)
    assert error in body["error"]
    assert len(body["error"]) < 600


async def test_the_stream_refuses_parameters_as_the_list_does(client: aiohttp.ClientSession) -> None:
    body = await get(client, "/api/v1/stream?since=4", 400)
    assert body["error"] == "unknown parameter 'since'; allowed: none"


# One workload


@pytest.mark.slow
async def test_one_workload_has_its_explanation_history_and_changes(
    daemon: Daemon, client: aiohttp.ClientSession
) -> None:
    ticks = World(3).ticks(12)
    daemon.record(*ticks)
    ref = ticks[-1].input.fleet.workloads[1].ref
    body = await get(client, f"{API}/{ref.namespace}/{ref.name}")
    assert body["workload"]["name"] == ref.name
    assert body["explanation"]["sentence"].endswith(".")
    assert body["explanation"]["inputs"]["kv_usage"] is None
    assert body["explanation"]["forecast"] == [{"name": line.name, "text": line.text} for line in FORECAST]
    assert [step["stage"] for step in body["explanation"]["steps"]][:2] == ["demand", "unknown"]
    assert body["history"]["tick"] == list(range(12))
    assert body["history"]["wanted"] == [tick.decision.replicas[1] for tick in ticks]
    outcomes = [outcome for tick in ticks for outcome in tick.outcomes if outcome.change.ref == ref]
    assert [change["after"] for change in body["changes"]] == [outcome.change.after for outcome in outcomes]
    assert [change["reason"] for change in body["changes"]] == [outcome.change.reason for outcome in outcomes]


@pytest.mark.slow
@pytest.mark.parametrize("leading", [True, False])
async def test_answers_say_whether_this_process_leads(
    daemon: Daemon, client: aiohttp.ClientSession, leading: bool
) -> None:
    tick = replace(World(1).tick(), leading=leading)
    daemon.record(tick)
    ref = tick.input.fleet.workloads[0].ref
    assert (await get(client, API))["leading"] is leading
    assert (await get(client, f"{API}/{ref.namespace}/{ref.name}"))["leading"] is leading


@pytest.mark.slow
async def test_since_asks_only_for_what_is_new(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    ticks = World(3).ticks(12)
    daemon.record(*ticks)
    ref = ticks[-1].input.fleet.workloads[1].ref
    body = await get(client, f"{API}/{ref.namespace}/{ref.name}?since=9")
    assert body["history"]["tick"] == [10, 11]
    assert all(change["tick"] > 9 for change in body["changes"])


@pytest.mark.slow
async def test_two_kinds_of_one_name_are_told_apart(daemon: Daemon, client: aiohttp.ClientSession) -> None:
    members = (Workload(WorkloadRef("a", "x")), Workload(WorkloadRef("a", "x", "StatefulSet")))
    daemon.record(World(members).tick())
    assert (await get(client, f"{API}/a/x?kind=Deployment"))["workload"]["id"] == 0
    assert (await get(client, f"{API}/a/x?kind=StatefulSet"))["workload"]["id"] == 1
    refused = await get(client, f"{API}/a/x", 400)
    assert refused["error"] == "several workloads are named a/x; state the kind of one: Deployment, StatefulSet"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["meta/llama 3.1", "<b>bold</b>", "../../etc/passwd", "ü%2F?#"])
async def test_a_name_with_any_printable_characters_is_found(
    daemon: Daemon, client: aiohttp.ClientSession, name: str
) -> None:
    daemon.record(World((Workload(WorkloadRef("ns", name)),)).tick())
    quoted = "".join(f"%{byte:02X}" for byte in name.encode())
    request = f"GET {API}/ns/{quoted} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    status, _, body = await raw(daemon, request.encode())
    assert status == 200
    assert json.loads(body)["workload"]["name"] == name


async def test_a_workload_that_is_not_there_is_named_in_the_error(
    daemon: Daemon, client: aiohttp.ClientSession
) -> None:
    daemon.record(World(2).tick())
    assert (await get(client, f"{API}/ns/nobody", 404))["error"] == "no workload ns/nobody in the last tick"


async def test_no_workload_is_called_missing_before_the_first_tick(
    daemon: Daemon, client: aiohttp.ClientSession
) -> None:
    assert (await get(client, f"{API}/ns/llama", 404))["error"] == "no tick has succeeded yet"
    daemon.readiness.failed(0.0, Unavailable("no workloads found"))
    error = (await get(client, f"{API}/ns/llama", 404))["error"]
    assert error == "no tick has succeeded yet: Unavailable: no workloads found"


async def test_a_path_that_is_not_served_is_named(client: aiohttp.ClientSession) -> None:
    assert (await get(client, f"/foo{API}/ns/llama", 404))["error"] == f"nothing is served at '/foo{API}/ns/llama'"


async def test_a_workload_name_out_of_bounds_is_refused(client: aiohttp.ClientSession) -> None:
    assert "name is " in (await get(client, f"{API}/ns/{'a' * 254}", 400))["error"]
    assert "namespace is 'n\\x07'" in (await get(client, f"{API}/n%07/a", 400))["error"]


# What a request may be


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/metrics", API, "/readyz", "/api/v1/stream"])
async def test_only_get_and_head_are_answered(client: aiohttp.ClientSession, method: str, path: str) -> None:
    async with client.request(method, path, data=b"x" if method == "POST" else None) as response:
        assert response.status == 405
        allowed = response.headers["Allow"].split(",")
        assert set(allowed) <= {"GET", "HEAD"}
        assert (await response.json())["error"] == f"method {method}; allowed: {', '.join(sorted(allowed))}"


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", API, "/static/app.js"])
async def test_head_has_the_headers_and_no_body(daemon: Daemon, path: str) -> None:
    daemon.record(World(2).tick())
    request = f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    status, headers, body = await raw(daemon, request.encode())
    assert status == 200
    assert "content-type" in headers
    assert body == b""


async def test_a_get_with_a_body_is_refused(client: aiohttp.ClientSession) -> None:
    async with client.get(API, data=b"x" * 100_000) as response:
        assert response.status == 413


async def test_too_long_request_is_refused_and_the_next_is_served(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    too_long = "request line or header too long; allowed: at most 4096 bytes"
    for request, error in (
        (f"GET /{'a' * 10_000} HTTP/1.1\r\nHost: x".encode(), too_long),
        (f"GET / HTTP/1.1\r\nHost: x\r\nX: {'a' * 10_000}".encode(), too_long),
        (b"GET / HTTP/1.1\r\nHost x", "not an HTTP request"),
        (b"\x00\xff\x16garbage", "not an HTTP request"),
    ):
        status, headers, body = await raw(daemon, request + b"\r\n\r\n")
        assert (status, json.loads(body)) == (400, {"error": error})
        assert "x-content-type-options" in headers
    assert (await raw(daemon, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))[0] == 200
    assert caplog.text == "", "whoever reaches the port could fill the log"


@pytest.mark.slow
async def test_client_that_disconnects_mid_answer_is_not_logged(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.record(World(2000).tick())
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    await asyncio.sleep(1.0)
    assert caplog.text == ""


async def test_faults_are_json_and_logged_once_when_they_repeat(
    daemon: Daemon, client: aiohttp.ClientSession, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.detail = {"odd": object()}
    for _ in range(3):
        async with client.get("/readyz") as response:
            assert response.status == 500
            assert (await response.json())["error"].startswith("an unexpected error")
    logged = capsys.readouterr().out
    assert logged.count("an answer failed") == logged.count("Traceback") == 1


@pytest.mark.parametrize("accept", ["text/plain;version=x", "application/openmetrics-text;version=1.x", "a;q=b,;;=,*"])
async def test_metrics_are_text_when_the_accept_header_is_odd(client: aiohttp.ClientSession, accept: str) -> None:
    async with client.get("/metrics", headers={"Accept": accept}) as response:
        assert response.status == 200
        assert "vllm_autoscaler_ticks_total" in await response.text()


@pytest.mark.slow
async def test_probes_are_answered_when_answers_are_stuck(daemon: Daemon) -> None:
    """Clients that read nothing take all places until their time is up; what comes is refused, and kubelet is not."""
    daemon.record(World(2000).tick())
    async with (
        daemon.another(0, write_deadline_s=60.0, answer_s=10.0) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client,
    ):
        await eventually(lambda: served(client, "/metrics"), "metrics that are made")
        stuck = [await stuck_client(server.port) for _ in range(MAX_ANSWERS)]
        await eventually(lambda: refused(client), "an answer that is refused")
        async with client.get("/healthz") as probe:
            assert probe.status == 200
        await eventually(lambda: served(client, API), "an answer after those that were cut off")
        for _, writer in stuck:
            writer.transport.abort()


async def stuck_client(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for more than the buffers of a connection hold, and read none of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    return reader, writer


async def served(client: aiohttp.ClientSession, path: str) -> bool:
    with suppress(aiohttp.ClientError):
        async with client.get(path) as response:
            return response.status == 200
    return False


async def refused(client: aiohttp.ClientSession) -> bool:
    async with client.get(API) as response:
        if response.status == 503:
            assert response.headers["Retry-After"] == "1"
            assert str(MAX_ANSWERS) in (await response.json())["error"]
        return response.status == 503


async def raw(daemon: Daemon, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are; return status, headers by lower-case name, body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.server.port)
    writer.write(request)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    return int(status.split()[1]), {line.split(":")[0].lower(): line for line in lines}, body


# Headers


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/healthz", "/readyz", "/metrics", API, "/nothing", "/api/v1/stream"]
)
async def test_every_answer_has_security_headers_and_no_cors(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(path, headers={"Origin": "http://elsewhere.example"}) as response:
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert not [header for header in response.headers if header.lower().startswith("access-control")]


async def test_page_references_only_served_files_and_no_inline_script(
    client: aiohttp.ClientSession,
) -> None:
    async with client.get("/") as response:
        assert response.content_type == "text/html"
        page = await response.text()
    paths = set(re.findall(r'(?:src|href)="(/[^"]*)"', page))
    assert "/static/app.js" in paths
    for path in paths:
        async with client.get(path) as response:
            assert response.status == 200
            imports = re.findall(r'from "\./([a-z]+\.js)"', await response.text()) if path.endswith(".js") else []
        for name in imports:
            async with client.get(f"/static/{name}") as response:
                assert response.status == 200
                assert response.content_type == "text/javascript"
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", page)


async def test_node_groups_are_listed_with_what_is_not_known_as_null(daemon: Daemon) -> None:
    tick = World(2).tick()
    groups = NodeGroups(
        groups=(
            NodeGroup("nvidia.com/gpu", "H100", "team=a", "zone-1", "spot", "", "karpenter.sh/nodepool=gpu"),
            NodeGroup("nvidia.com/gpu", "H100", "cordoned", sharing="mps", sharers=4),
            NodeGroup("nvidia.com/gpu", "H100", "nodes to come", grows="karpenter.sh/nodepool=gpu", sharers=0),
        ),
        allocatable=np.array([16.0, 8.0, 0.0]),
        used=np.array([4.0, 2.0, 0.0]),
        used_by_others=np.array([3.0, 0.0, 0.0]),
        can_add=np.array([0.0, 0.0, np.inf]),
        closed=np.array([False, True, False]),
        admitted=np.ones((1, 3), dtype=bool),
    )
    daemon.record(replace(tick, input=replace(tick.input, fleet=replace(tick.input.fleet, groups=groups))))
    async with aiohttp.ClientSession(daemon.url) as client:
        body = await get(client, "/api/v1/node-groups")
        refused = await get(client, "/api/v1/node-groups?zone=a", 400)
        text = await (await client.get("/metrics")).text()
    assert (body["total"], body["tick"], body["stale"]) == (3, 0, "")
    first, closed, coming = body["node_groups"]
    assert list(first) == list(NODE_GROUP_FIELDS)
    assert (first["zone"], first["capacity_type"], first["node_pool"]) == (
        "zone-1",
        "spot",
        "karpenter.sh/nodepool=gpu",
    )
    assert [first[field] for field in ("allocatable", "ours", "others", "free", "can_add")] == [
        16.0,
        4.0,
        3.0,
        9.0,
        0.0,
    ]
    assert (closed["closed"], closed["others"], closed["free"]) == (True, 0.0, 0.0)
    assert coming["can_add"] is None
    assert [each["sharers"] for each in (first, closed, coming)] == [1, 4, None]
    assert refused["error"] == "unknown parameter 'zone'; allowed: none"
    labels = 'capacity_type="spot",nodes="team=a",product="H100",resource="nvidia.com/gpu",zone="zone-1"'
    found = {line for line in text.splitlines() if line.startswith("vllm_autoscaler_node_group")}
    series = {"".join(sorted(line.partition("{")[2].partition("}")[0])) for line in found}
    assert "".join(sorted(labels)) in series
    assert len([line for line in found if "_others_gpus{" in line]) == 3
    assert len([line for line in found if "_addable_gpus{" in line]) == 2


async def test_node_groups_are_none_before_the_first_tick(daemon: Daemon) -> None:
    async with aiohttp.ClientSession(daemon.url) as client:
        body = await get(client, "/api/v1/node-groups")
    assert (body["tick"], body["total"], body["node_groups"]) == (None, 0, [])


def test_fields_of_node_groups_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "api.md").read_text()
    assert "".join(f"| `{name}` | {meaning} |\n" for name, meaning in NODE_GROUP_FIELDS.items()) in page


async def test_gpu_use_is_added_up_by_what_is_asked_for(daemon: Daemon) -> None:
    world = World(3)
    daemon.record(world.tick(), with_starts(world.tick()))
    async with aiohttp.ClientSession(daemon.url) as client:
        by_namespace = await get(client, "/api/v1/gpu-use")
        others = {by: await get(client, f"/api/v1/gpu-use?by={by}") for by in BY}
        refused = await get(client, "/api/v1/gpu-use?by=label", 400)
    assert (by_namespace["by"], by_namespace["seconds"], by_namespace["total"]) == ("namespace", 5.0, 3)
    sums = {by: sum(sum(use["gpu_hours"].values()) for use in body["uses"]) for by, body in others.items()}
    assert list(sums.values()) == [pytest.approx(sums["workload"], abs=1e-5)] * len(BY)
    by_device, by_team = others["device"], others["team"]
    assert {use["name"]: use["workloads"] for use in by_team["uses"]} == {TEAMS[0]: 1, TEAMS[2]: 1, "": 1}
    first = by_namespace["uses"][0]
    hours = pytest.approx(5 / 3600, abs=1e-6)
    assert (first["name"], first["idle_gpu_hours"], first["gpu_hours"]["warming"]) == (TEAMS[0], hours, hours)
    assert first["idle_by_cause"]["cold_start"] == hours
    assert (first["lacking_gpu_hours"], first["beyond_gpu_hours"]) == (0, 0)
    needed_h = sum(use["needed_gpu_hours"] for use in by_namespace["uses"])
    assert needed_h == pytest.approx(by_device["uses"][0]["needed_gpu_hours"], abs=1e-5) != 0
    assert (first["idle_cost"]["usd"], first["idle_cost"]["unpriced"][0]["why"]) == (None, "no price is known")
    assert [(use["name"], use["workloads"]) for use in by_device["uses"]] == [("NVIDIA-H100-80GB-HBM3", 3)]
    (pool,) = by_namespace["pools"]
    assert (pool["devices"], sum(pool["states"].values())) == (12, 12)
    assert refused["error"].startswith("by")


async def test_gpu_use_stays_with_its_pool_when_a_workload_moves(daemon: Daemon) -> None:
    """A pod that starts on one device is followed by one that starts on two of another pool."""
    world = World(2)
    world.tick()
    ticks = [with_starts(world.tick()) for _ in range(3)]
    pools = (*ticks[0].input.fleet.pools, Pool("nvidia.com/gpu", "NVIDIA-H200"))
    groups = NodeGroups.of_pools(pools, np.array([8.0, 4.0]))
    for tick, group in zip(ticks, (0, 0, 1), strict=True):
        own = np.zeros(1, dtype=np.int64)
        held = HeldDevices(own, own, np.array([group]), np.array([1.0 + group]), groups.allocatable)
        fleet = replace(tick.input.fleet, pools=pools, groups=groups, pool=np.array([group, 0]), held=held)
        daemon.record(replace(tick, input=replace(tick.input, fleet=fleet)))
    async with aiohttp.ClientSession(daemon.url) as client:
        body = await get(client, "/api/v1/gpu-use?by=device")
    warming = {use["name"]: use["gpu_hours"]["warming"] for use in body["uses"]}
    assert warming == {pool["product"]: pool["gpu_hours"]["warming"] for pool in body["pools"]}
    assert warming == {
        each.product: pytest.approx(hours, abs=1e-6) for each, hours in zip(pools, (5 / 3600, 10 / 3600), strict=True)
    }


async def test_gpu_use_keeps_the_sums_of_removed_workloads(daemon: Daemon) -> None:
    world, rest = World(3), World(2)
    ticks = [world.tick(), world.tick(), *rest.ticks(4)[2:]]
    daemon.record(*ticks[:2])
    async with aiohttp.ClientSession(daemon.url) as client:
        before = await get(client, "/api/v1/gpu-use?by=workload")
        daemon.record(*ticks[2:])
        after = {by: await get(client, f"/api/v1/gpu-use?by={by}") for by in BY}
    needed = [{use["name"]: use["needed_gpu_hours"] for use in body["uses"]} for body in (before, after["workload"])]
    (removed,) = needed[0].keys() - {each.ref.label for each in rest.members}
    assert needed[1][removed] == needed[0][removed] > 0
    sums = [sum(use["needed_gpu_hours"] for use in body["uses"]) for body in after.values()]
    assert sums == [pytest.approx(sum(needed[1].values()), abs=1e-5)] * len(BY)
    assert [use["workloads"] for use in after["device"]["uses"]] == [3]


async def test_quotas_are_listed_with_loans(daemon: Daemon) -> None:
    daemon.record(with_quotas(World(2).tick()))
    async with aiohttp.ClientSession(daemon.url) as client:
        body = await get(client, "/api/v1/quotas")
        refused = await get(client, "/api/v1/quotas?cohort=all", 400)
        text = await (await client.get("/metrics")).text()
    assert (body["total"], body["tick"], body["stale"]) == (4, 0, "")
    prod, research, cohort, namespace = body["quotas"]
    assert list(prod) == list(QUOTA_FIELDS)
    assert prod == {
        "quota": "ClusterQueue/prod",
        "resource": "nvidia.com/gpu",
        "flavor": "h100",
        "cohort": "all",
        "nominal": 8.0,
        "borrowing_limit": None,
        "lending_limit": 6.0,
        "ours": 1.0,
        "others": 1.0,
        "borrowed": 0.0,
        "lent": 1.5,
    }
    assert (research["borrowed"], research["lent"]) == (2.0, 0.0)
    assert cohort["lent"] == 0.5
    assert (namespace["ours"], namespace["borrowed"], namespace["lent"]) == (None, None, 0.0)
    assert refused["error"] == "unknown parameter 'cohort'; allowed: none"
    found = [line for line in text.splitlines() if line.startswith("vllm_autoscaler_quota_")]
    series = Counter(line.partition("{")[0] for line in found)
    assert series == {
        "vllm_autoscaler_quota_gpus": 4,
        "vllm_autoscaler_quota_borrowing_limit_gpus": 3,
        "vllm_autoscaler_quota_lending_limit_gpus": 4,
        "vllm_autoscaler_quota_used_gpus": 3,
        "vllm_autoscaler_quota_others_gpus": 4,
        "vllm_autoscaler_quota_borrowed_gpus": 3,
        "vllm_autoscaler_quota_lent_gpus": 4,
    }
    assert (
        'vllm_autoscaler_quota_used_gpus{cohort="all",flavor="h100",quota="ClusterQueue/research",'
        'resource="nvidia.com/gpu"} 2.0'
    ) in found


async def test_weights_are_listed_with_nodes_and_failures(daemon: Daemon) -> None:
    daemon.record(with_weights(World(2).tick()))
    async with aiohttp.ClientSession(daemon.url) as client:
        body = await get(client, "/api/v1/weights")
        text = await (await client.get("/metrics")).text()
    (row,) = body["weights"]
    assert list(row) == list(WEIGHTS_FIELDS)
    assert (body["total"], body["nodes"], body["planned"], body["published"], body["writes_last_hour"]) == (
        1,
        6,
        True,
        True,
        3,
    )
    assert (row["source"], row["size_bytes"], row["steered"]) == ("hf://org/chat@main", 16e9, True)
    assert (row["nodes_held"], row["nodes_wished"], row["nodes_fetching"], row["nodes_failed"]) == (1, 3, 1, 1)
    assert row["failures"] == [{"node": "node-7", "cause": "unauthorized", "text": "the hub wants a token"}]
    assert (row["places_held"], row["places_free"], row["replicas_missing"]) == (4.0, 9.0, 2.0)
    assert row["groups"][0]["nodes_held"] == 1.0
    assert 'vllm_autoscaler_weights_nodes{source="hf://org/chat@main",state="wished"} 3.0' in text
    assert 'vllm_autoscaler_weights_missing_replicas{source="hf://org/chat@main"} 2.0' in text
    assert "vllm_autoscaler_weights_wish_writes_total 7.0" in text


async def test_weights_are_none_before_the_first_tick(daemon: Daemon) -> None:
    async with aiohttp.ClientSession(daemon.url) as client:
        body = await get(client, "/api/v1/weights")
    assert (body["total"], body["weights"], body["planned"]) == (0, [], False)


async def test_quotas_are_none_before_the_first_tick(daemon: Daemon) -> None:
    async with aiohttp.ClientSession(daemon.url) as client:
        body = await get(client, "/api/v1/quotas")
    assert (body["tick"], body["total"], body["quotas"]) == (None, 0, [])


def test_fields_of_quotas_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "api.md").read_text()
    assert "".join(f"| `{name}` | {meaning} |\n" for name, meaning in QUOTA_FIELDS.items()) in page
    assert "".join(f"| `{name}` | {meaning} |\n" for name, meaning in WEIGHTS_FIELDS.items()) in page


async def test_a_recorded_past_is_read_beside_the_loop_one_at_a_time(daemon: Daemon):
    """The timeline comes from a thread; a second question meanwhile, a wrong one and an unknown name are refused."""
    asked, began, finish = [], threading.Event(), threading.Event()

    def timeline(namespace: str, name: str, kind: str, hours: float) -> dict[str, object]:
        asked.append((namespace, name, kind, hours))
        began.set()
        if name == "gone":
            raise LookupError("ns/gone is not in the record")
        finish.wait(10)
        return {"history": {"wall_s": [1.0]}}

    async with (
        daemon.another(port=0, timeline=timeline) as server,
        aiohttp.ClientSession(server.url) as session,
    ):
        path = "/api/v1/record/ns/chat"
        first = asyncio.create_task(get(session, f"{path}?hours=168&kind=Deployment"))
        await asyncio.to_thread(began.wait, 10)
        busy = await get(session, path, 503)
        finish.set()
        body = await first
        gone = await get(session, "/api/v1/record/ns/gone", 404)
        wrong = await get(session, f"{path}?hours=0", 400)
    assert asked == [("ns", "chat", "Deployment", 168), ("ns", "gone", "", 24)]
    assert body == {"history": {"wall_s": [1.0]}}
    assert (busy["error"], gone["error"]) == ("a record is read already", "ns/gone is not in the record")
    assert wrong["error"].startswith("hours is '0'; allowed: a whole number from 1")


async def test_without_a_record_its_option_is_named(client: aiohttp.ClientSession):
    body = await get(client, "/api/v1/record/ns/chat", 404)
    assert body["error"] == "this daemon keeps no record; `--record DIR` lets it keep one"
