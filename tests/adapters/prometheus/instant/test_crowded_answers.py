"""Answers that one tenant makes too long: others keep theirs, and the tenant is named."""

import json
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.crowded_answers import KEPT_S, AnswerBytes, CrowdedNamespaces
from autoscaler.adapters.prometheus.decode import parse_labels
from autoscaler.adapters.prometheus.discovery.discovered_fleet import DiscoveredFleet
from autoscaler.adapters.prometheus.instant.client import PrometheusClient, QueryFailed
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.config.settings import PrometheusSettings
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.responses import pod, serving, vector
from tests.harness.objectives import objectives
from tests.harness.prometheus import prometheus
from tests.harness.remote_write import write_samples

LIMIT = 60_000
LONG = {f"x{number}": "y" * 1_000 for number in range(100)}
FORGED = '"},{"metric":{"namespace":"good","x":"'
Series = dict[str, str]


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=5), st.sampled_from([FORGED, "é{,\\", ""]))
def test_bytes_count_for_their_namespace_in_blocks_of_any_size(sizes: list[int], forged: str):
    evil = {"a": forged * 50, 'x,{"namespace': "good", "namespace": "evil", "z": forged + "z" * 5_000}
    body = vector(
        (pod("a", "good"), 1), (evil, 1), (pod("b", "good"), 1), (pod("n", "n" * 300), 1), (pod("q", 'quo"' * 9), 1)
    ).encode()
    content, begin = AnswerBytes(), 0
    while begin < len(body):
        size = sizes[begin % len(sizes)]
        content.add(body[begin : begin + size])
        begin += size
    ((_, counted),) = (counts := next(content.crowds(2_000))).items()
    assert [*counts] == [("namespace", "evil")]
    assert abs(counted - len(json.dumps(evil, separators=(",", ":")))) < 60
    (everybody,) = content.crowds(1)
    assert {name[:9] for _, name in everybody} == {"evil", "good", "n" * 9}


def test_crowded_namespaces_are_let_in_again_after_a_while():
    crowded = CrowdedNamespaces()
    crowded.add({("namespace", "evil"): 7}, 100.0)
    crowded.add({("namespace", "more"): 9}, 200.0)
    assert [name for _, name in crowded.current(99.0 + KEPT_S)] == ["evil", "more"]
    assert not crowded.current(100.0 + KEPT_S)


async def ask(stored: list[Series], times: int = 1, *, is_ours: bool = True) -> tuple[list[Series], str, int]:
    """Query a server that knows these series; return the last answer, what it lacks, and the number of requests."""
    queries: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        queries.append(str((await request.post())["query"]))
        without = re.findall(r'(\w+)!="([^"]*)"', queries[-1])
        long = re.findall(r'(\w+)!~"\.\{254,\}"', queries[-1])
        kept = [
            each
            for each in stored
            if not any(each.get(label) == name for label, name in without)
            and not any(len(each.get(label, "")) > 253 for label in long)
        ]
        return web.Response(text=vector(*[(labels, 1) for labels in kept]))

    async with serving(answer) as url:
        client = PrometheusClient(PrometheusSettings(url=url), SystemClock(), max_answer_bytes=LIMIT)
        async with client:
            for _ in range(times):
                found = await client.query("up", is_ours=is_ours)
    return [parse_labels(raw) for raw in found.vector.labels], found.left_out, len(queries)


@pytest.mark.parametrize("name", ["evil", "e" * 5_000])
async def test_a_crowded_namespace_is_left_out_and_remembered(name: str):
    good = pod("a", "good")
    found, left_out, asked = await ask([good, {**pod("e", name), **LONG}], times=3)
    assert (found, asked) == ([good], 4)
    assert f"namespace '{name[:20]}" in left_out
    assert len(left_out) < 600


async def test_a_crowded_namespace_is_remembered_when_asking_again_fails():
    """A server that needs all of the time for the long answer leaves none for the next: ticks must not stay blind."""
    asked: list[bool] = []  # whether it was without that namespace

    async def answer(request: web.Request) -> web.Response:
        asked.append("evil" in str((await request.post())["query"]))
        if asked == [False, True]:
            return web.Response(status=503)
        crowd = () if asked[-1] else (({**pod("e", "evil"), **LONG}, 1),)
        return web.Response(text=vector((pod("a", "good"), 1), *crowd))

    async with (
        serving(answer) as url,
        PrometheusClient(PrometheusSettings(url=url), SystemClock(), max_answer_bytes=LIMIT) as client,
    ):
        with pytest.raises(QueryFailed, match="503"):
            await client.query("up")
        found = await client.query("up")
    assert len(found.vector.labels) == 1
    assert asked == [False, True, True]


async def test_many_series_are_crowded_as_long_labels_are():
    good = pod("a", "good")
    found, left_out, _ = await ask([*(pod(f"p{number}", "evil") for number in range(2_000)), good])
    assert found == [good]
    assert "namespace 'evil'" in left_out


async def test_tenants_are_told_apart_where_one_collector_tells_of_all():
    """They are for this answer alone: by such a label a pod may name anybody."""
    good, evil = ({**pod("otel", "monitoring"), "exported_namespace": name} for name in ("good", "evil"))
    found, left_out, asked = await ask([good, {**evil, **LONG}], times=2)
    assert (found, asked) == ([good], 6)
    assert "namespace 'evil'" in left_out


async def test_an_answer_is_empty_when_a_crowded_namespace_is_alone():
    found, left_out, _ = await ask([{**pod("e", "evil"), **LONG}])
    assert found == []
    assert "namespace 'evil'" in left_out


async def test_an_answer_to_a_query_of_a_tenant_names_nobody():
    with pytest.raises(QueryFailed, match="larger than"):
        await ask([{**pod("e", "good"), **LONG}], is_ours=False)


@pytest.mark.integration
async def test_others_keep_readings_when_a_pod_has_endless_labels(tmp_path: Path):
    """On a real Prometheus labels and model names of one pod are too long, and bounds of another for any answer."""
    now_s, job = time.time(), {"job": "vllm", "engine": "0"}
    written: list[Series] = [{**job, "namespace": "good", "pod": "q-0", "model_name": "m"}]
    labels = ("exported_pod", "cluster", "exported_job", "model_name", "foreign")
    for number in range(10):
        long = dict.fromkeys(labels, f"{number}" * 4000)
        written.append({**job, **long, "namespace": "evil", "pod": "e-0"})
    buckets = "vllm:time_to_first_token_seconds_bucket"
    series = [{**each, "__name__": f"vllm:num_requests_{name}"} for each in written for name in ("running", "waiting")]
    series += [{**each, "__name__": buckets, "le": le} for each in written[:1] for le in ("0.5", "+Inf")]
    wide = {**job, "__name__": buckets, "namespace": "wide", "pod": "w-0"}  # this answer names no namespace
    series += [{**wide, "le": f"{number}" * 20_000} for number in range(10)]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(prometheus(tmp_path, flags=("--web.enable-remote-write-receiver",)))
        await write_samples(server.url, [(each, [(now_s - age_s, 3.0) for age_s in (31, 16, 1)]) for each in series])
        await server.wait_for("vllm:num_requests_running", 11)
        settings, clock, fleet = PrometheusSettings(url=server.url), SystemClock(), fleet_of({"good/q": ["q-0"]})
        source = PrometheusSource(settings, clock, max_answer_bytes=LIMIT)
        found = DiscoveredFleet(settings, clock, max_answer_bytes=LIMIT)
        source, found = await stack.enter_async_context(source), await stack.enter_async_context(found)
        promised = objectives(fleet, ttft_s=0.5)
        for _ in range(2):
            samples = await source.sample(fleet, promised, 30)
            (report,) = samples.reports
            assert (samples.pods.running.tolist(), report.failed) == ([3.0], 0)
            assert samples.pods.ttft_met.tolist() == [3.0]
            assert any("namespace 'evil' is left out" in line for line in report.problems)
        assert [str(each.ref) for each in found.fleet().workloads] == ["good/q"]
        assert any("namespace 'evil' is left out" in line for line in found.problems)
