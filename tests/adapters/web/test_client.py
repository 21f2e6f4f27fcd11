"""Asking a running daemon, and whatever else may listen at its address."""

import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from autoscaler.adapters.web.client import NoExplanation, explanation
from autoscaler.adapters.web.dashboard import Dashboard
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.types import Signal, Stage
from autoscaler.ports import Unavailable
from tests.adapters.web.conftest import Daemon
from tests.adapters.web.records import World, with_rise, with_starts, with_window
from tests.harness.exposition import Answer, ExpositionServer
from tests.harness.process import PATIENCE_S, free_port

PATH = "/api/v1/workloads/ns/llama"


async def refusal(server: ExpositionServer, answer: Answer | str) -> str:
    server.serve(PATH, answer)
    is_slow = isinstance(answer, Answer) and answer.delay_s > 0
    with pytest.raises(Unavailable) as refused:
        await explanation(server.url, "ns", "llama", timeout_s=0.1 if is_slow else PATIENCE_S)
    assert server.url in str(refused.value)
    return str(refused.value)


async def test_sentence_and_planner_lines_have_no_control_characters(
    exposition_server: ExpositionServer,
):
    forecast = [{"name": "load", "text": "2.31 replicas"}, {"name": "strategy", "text": "a\x1b[31m"}]
    explained = {
        "sentence": "Keeps\x1b[2J 4\nreplicas.",
        "forecast": forecast,
        "warnings": ["its time\x1b[2J is up"],
        "pair": "with the decode workload\x1b[2J",
        "chain": {
            "window": "office\x1b[2J",
            "wall_s": 9e99,
            "replicas": 4,
            "places": 2,
            "links": [{"link": "node\n", "wall_s": -9e99}],
        },
        "start": {
            "takes_s": 9e99,
            "phases": {
                "weights\x1b[2J": {"p50_s": 1, "p90_s": 2},
                "image": {"p50_s": -9e99, "p90_s": None},
                "node": {"p50_s": 0, "p90_s": 0},
            },
            "starting": [{"pod": "a\x1b[2J", "phase": "image\n"}],
        },
    }
    answer = {"explanation": explained, "history": {}}
    exposition_server.serve(f"/prefix{PATH}", json.dumps(answer))
    lines = await explanation(f"{exposition_server.url}/prefix/", "ns", "llama")
    assert lines == [
        "Keeps [2J 4 replicas.",
        "Warning: its time [2J is up.",
        "  next        ? node , for ? window office [2J (4 replicas; places are on request for 2)",
        "  pair        with the decode workload [2J",
        "  load        2.31 replicas",
        "  strategy    a [31m",
        "  start       an unknown time: weights [2J 1 s to 2 s",
        "  starting    a [2J: image  for an unknown time",
    ]


@pytest.mark.parametrize(
    ("leading", "begins"),
    [
        (True, "Scales up from 1 to 2 replicas: concurrency recommends 2"),
        (
            False,
            "This replica of the daemon does not hold the lease and does not act. "
            "It would scale up from 1 to 2 replicas: concurrency recommends 2",
        ),
    ],
)
async def test_explain_says_that_a_follower_does_not_act(daemon: Daemon, leading: bool, begins: str):
    """The real sentence, through the real dashboard, server and client."""
    daemon.dashboard = Dashboard(explain)
    tick = World(1).tick()
    recommended, desired = np.full_like(tick.decision.recommendations, np.nan), np.array([2.0])
    recommended[Signal.CONCURRENCY] = 2.0
    decision = replace(
        tick.decision, recommendations=recommended, stages=np.tile(desired, (len(Stage), 1)), replicas=desired
    )
    fleet = replace(tick.input.fleet, replicas=np.array([1.0]))
    inp = replace(tick.input, fleet=fleet, spec=replace(tick.input.spec, max_replicas=np.array([9.0])))
    async with daemon.another(port=0) as server:
        daemon.record(replace(tick, input=inp, decision=decision, leading=leading))
        ref = fleet.workloads[0].ref
        lines = await explanation(server.url, ref.namespace, ref.name)
    assert lines[0].startswith(begins)


async def test_explain_shows_the_links_of_the_next_window(daemon: Daemon):
    daemon.dashboard = Dashboard(explain)
    tick = with_window(World(1).tick())
    async with daemon.another(port=0) as server:
        daemon.record(tick)
        ref = tick.input.fleet.workloads[0].ref
        lines = await explanation(server.url, ref.namespace, ref.name)
    start, node, replica = (
        f"{datetime.fromtimestamp(tick.wall_s + ahead_s).astimezone():%Y-%m-%d %H:%M}" for ahead_s in (1800, 600, 1200)
    )
    (line,) = [line for line in lines if line.startswith("  next ")]
    nodes = "places are on request for 2"
    assert line == f"  next        {node} node, {replica} replica, for {start} window office (4 replicas; {nodes})"


async def test_explain_shows_the_links_of_a_forecast_and_its_load(daemon: Daemon):
    daemon.dashboard = Dashboard(explain)
    tick = with_rise(World(1).tick())
    async with daemon.another(port=0) as server:
        daemon.record(tick)
        ref = tick.input.fleet.workloads[0].ref
        lines = await explanation(server.url, ref.namespace, ref.name)
    start, node, weights = (
        f"{datetime.fromtimestamp(tick.wall_s + ahead_s).astimezone():%Y-%m-%d %H:%M}" for ahead_s in (1800, 600, 900)
    )
    (line,) = [line for line in lines if line.startswith("  next ")]
    why = "by the load of a week ago (4 replicas; places are on request for 2)"
    assert line == f"  next        {node} node, {weights} weights, for {start} {why}"


async def test_explain_shows_the_next_start_and_those_under_way(daemon: Daemon):
    daemon.dashboard = Dashboard(explain)
    tick = with_starts(World(1).tick())
    async with daemon.another(port=0) as server:
        daemon.record(tick)
        ref = tick.input.fleet.workloads[0].ref
        lines = await explanation(server.url, ref.namespace, ref.name)
    assert "1 pod is stuck starting (its weights are loading for 12 min, usually 2 min)" in lines[0]
    start, weights, starting = lines[-3:]
    assert start.startswith("  start       95 s on a node with the weights, from 5 starts: schedule ")
    assert ", weights 40 s to 60 s, " in start
    assert weights == "  weights     on a node that exists, 250 s if unknown, 400 s if absent, 55 s if held"
    assert starting == "  starting    late-0: weights for 12 min, usually 2 min; it is late"


@pytest.mark.parametrize("change", ["", "sleep of idle replicas"])
async def test_explain_shows_what_gpus_do_and_what_to_consider(exposition_server: ExpositionServer, change: str):
    gpus = {"diagnosis": "idle_and_loaded", "weak": False, "sentence": "2 of 2: idle and loaded", "change": change}
    explained = json.dumps({"explanation": {"sentence": "Keeps 4.", "forecast": [], "gpus": gpus}})
    exposition_server.serve(PATH, explained)
    first, *lines = await explanation(exposition_server.url, "ns", "llama")
    assert first == "Keeps 4."
    assert [line.split(maxsplit=1) for line in lines] == [
        ["gpus", "2 of 2: idle and loaded"],
        *([["consider", change]] if change else []),
    ]


async def test_old_last_tick_is_said_first(exposition_server: ExpositionServer):
    explained = '{"sentence": "Keeps 4 replicas.", "forecast": []}'
    stale = "the last successful tick is 3600.0 s old, more than 40 s: OSError: no connection"
    exposition_server.serve(PATH, f'{{"stale": "{stale}", "explanation": {explained}}}')
    lines = await explanation(exposition_server.url, "ns", "llama")
    assert lines == [f"What follows may no longer be so: {stale}.", "Keeps 4 replicas."]


async def test_refusal_names_the_address_and_the_daemon_s_reason(exposition_server: ExpositionServer):
    exposition_server.serve(PATH, Answer('{"error": "no workload ns/llama in the last tick"}', status=404))
    url = exposition_server.url
    with pytest.raises(NoExplanation, match=rf"^{url}: no workload ns/llama in the last tick$"):
        await explanation(f"{url}?key=hunter2", "ns", "llama")


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (Answer("<html>another server</html>"), "(HTTP 200)"),
        (Answer("", status=502), "(HTTP 502)"),
        (Answer("", status=302, headers={"Location": "http://127.0.0.1:1/"}), "(HTTP 302)"),
        (Answer('{"explanation": ["not", "ours"]}'), "(HTTP 200)"),
        (Answer('{"explanation": {"sentence": 5}}'), "(HTTP 200)"),
        (Answer("[" * 100_000), "(HTTP 200)"),
        (Answer(" " * (2 << 20)), "(more than 1048576 bytes)"),
        (Answer(b" " * (8 << 20), gzip=True), "(more than 1048576 bytes)"),
        (Answer("{}", drop=True), "it closed the connection"),
        (Answer("{}", truncate_at=1), "it closed the connection"),
        (Answer("{}", delay_s=60), "no answer within 0.1 s"),
    ],
    ids=["page", "empty", "redirect", "list", "number", "deep", "large", "bomb", "dropped", "cut off", "late"],
)
async def test_other_server_is_reported_in_one_line(exposition_server: ExpositionServer, answer: Answer, part: str):
    said = await refusal(exposition_server, answer)
    assert part in said
    assert "\n" not in said


async def test_connection_error_is_reported_without_the_password():
    url = f"http://me:hunter2@127.0.0.1:{free_port()}/?key=hunter2"
    with pytest.raises(Unavailable, match=r"connection refused; is the daemon running, .* port-forward") as refused:
        await explanation(url, "ns", "llama")
    assert "hunter2" not in str(refused.value)


async def test_explain_asks_for_the_kind_where_two_share_a_name(daemon: Daemon):
    members = (Workload(WorkloadRef("a", "x")), Workload(WorkloadRef("a", "x", "StatefulSet")))
    daemon.record(World(members).tick())
    with pytest.raises(NoExplanation, match="are named a/x; state the kind of one: Deployment, StatefulSet"):
        await explanation(daemon.url, "a", "x")
    assert await explanation(daemon.url, "a", "x", "StatefulSet")
