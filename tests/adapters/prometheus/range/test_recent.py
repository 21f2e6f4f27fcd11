"""The last hour of a fleet from a real Prometheus and a real VictoriaMetrics, filled with a simulated run."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from autoscaler.adapters.prometheus.range.fleet_queries import BATCH_PODS
from autoscaler.adapters.prometheus.range.recent import MAX_PODS, STEP_S, RecentHistory
from autoscaler.config.policy.parse import load
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet, Pod, Workload, WorkloadRef
from autoscaler.core.model.recent import RecentReadings
from autoscaler.core.model.samples import Objectives
from autoscaler.core.readings.counter_falls import PROCESS_START
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.ports import Unavailable
from autoscaler.sim.engine.profiles import H100, LLAMA_8B, compute_profile
from autoscaler.sim.engine.traffic import Lengths, Shape
from tests.adapters.prometheus.backfill import Sample, pod_name, samples, witnessed
from tests.adapters.prometheus.range.test_workload_history import load_into, prometheus_with
from tests.core.world import fleet
from tests.harness.fixtures import StartPromql
from tests.harness.process import free_port
from tests.harness.promql import PromqlServer
from tests.lab.replay.synthetic import generate

DURATION_S = 3600.0
START_S = float(int(time.time() - 86_400) // 3600 * 3600)
END_S = START_S + DURATION_S
NOW_S = 500.0  # of a machine that has been up for less than the span
DEADLINE_S = 120.0


class Clock:
    """A daemon that starts when the simulated hour ends, and whose time passes only when a test lets it."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_s(self) -> float:
        return NOW_S + self.passed_s

    def wall_s(self) -> float:
        return END_S + 0.4

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


def written_by_another(sample: Sample) -> Sample:
    """The same with larger numbers, from a pod that writes of others: the scrape has moved its labels."""
    pod = sample.labels["pod"]
    moved = {"namespace": "evil", "pod": "evil-0", "exported_namespace": "team", "exported_pod": pod}
    return replace(sample, labels={**sample.labels, **moved}, value=sample.value * 10 + 50)


class Backfilled:
    """The metrics of the pods of one workload within the hour."""

    def __init__(self) -> None:
        shape = Shape(3.0, Lengths(400, 0.8, 4000), Lengths(120, 0.7, 1000), day=(1.0, 6.0) + (1.0,) * 22)
        trace = generate("hour", shape, DURATION_S, seed=3)
        case = Case(trace, compute_profile(LLAMA_8B, H100), Goal(1.0, 0.1, 0.99), cold_start_s=60.0)
        witness, _ = witnessed(case, PolicyScaler(case, load().policies["interactive"]))
        backfilled = tuple(samples(witness, START_S, "team", "llama"))
        running = (sample for sample in backfilled if sample.name == "vllm:num_requests_running")
        starts = (replace(sample, name="process_start_time_seconds", value=1.7e9) for sample in running)
        self.own = own = (*backfilled, *starts)
        self.pods = sorted({sample.labels["pod"] for sample in own})
        self.samples = (*own, *map(written_by_another, own))
        late = trace.arrival_s > DURATION_S - 1800
        self.recent_output_tokens = float(trace.output_tokens[late].mean())

    def at(self, pod: str, name: str, time_s: float) -> float:
        """The value of a series on a server at a time: its last sample of five minutes."""
        shown = [
            sample
            for sample in self.samples
            if sample.labels["pod"] == pod and sample.name == name and time_s - 300 < sample.time_s <= time_s
        ]
        return shown[-1].value if shown else np.nan


@pytest.fixture(scope="module")
def backfilled() -> Backfilled:
    return Backfilled()


def cluster(names: Sequence[tuple[str, str]], pods: Sequence[tuple[str, str, int]] = (), **columns) -> Fleet:
    """A fleet of workloads by namespace and name, and of pods by namespace, name and workload."""
    made = fleet([0] * len(names))
    return replace(
        made,
        workloads=tuple(Workload(WorkloadRef(*name)) for name in names),
        pods=tuple(Pod(namespace, name) for namespace, name, _ in pods),
        pod_id=np.arange(len(pods)),
        pod_workload=np.array([row for *_, row in pods], dtype=np.int64),
        **{"replicas": np.ones(len(names)), **columns},
    )


def aims(readings: Fleet, ttft_s: float = 1.0) -> Objectives:
    rows = len(readings.workloads)
    return Objectives(np.full(rows, ttft_s), *np.full((2, rows), np.nan))


async def read(url: str, readings: Fleet, clock: Clock | None = None) -> RecentReadings:
    history = RecentHistory(PrometheusSettings(url=url, rate_window_s=60.0), clock or Clock())
    return await history.recent(readings, aims(readings), DURATION_S, DEADLINE_S)


async def tells_the_truth(server: PromqlServer, backfilled: Backfilled) -> None:
    here = backfilled.pods[-1]
    readings = cluster([("other", "mistral"), ("team", "llama")], [("team", here, 1)])
    found = await read(server.url, readings)
    assert found.problem == ""
    assert found.time_s[-1] == pytest.approx(NOW_S, abs=1.0)
    assert len(found.time_s) == 61
    assert np.diff(found.time_s).tolist() == [STEP_S] * 60
    assert found.pod_workload.tolist() == [1] * len(backfilled.pods)
    assert sorted(found.pod.tolist()) == [-1] * (len(backfilled.pods) - 1) + [0]
    place = found.pod.tolist().index(0)
    for name, column in (("num_requests_running", "running"), ("generation_tokens_total", "generation_tokens")):
        truth = [backfilled.at(here, f"vllm:{name}", START_S + STEP_S * step) for step in range(61)]
        np.testing.assert_allclose(found.columns[column][:, place], truth, err_msg=column)
    read_then = ~np.isnan(found.columns["running"])
    assert (found.columns[PROCESS_START][read_then] == 1.7e9).all()
    age_s = found.time_s[:, None] - found.columns["time_s"]
    assert 0 <= np.nanmin(age_s) < 16
    met = found.columns["ttft_met"][-1]
    assert np.nanmax(met) > 1000
    assert {"waiting", "prompt_tokens", "finished", "first_tokens", "itl_s", "ttft_s"} <= found.columns.keys()
    several = found.columns["ttft_s"][(~np.isnan(found.columns["ttft_s"])).sum(axis=1) > 1]
    assert len(several) > 10
    assert (np.nanmax(several, axis=1) == np.nanmin(several, axis=1)).all()  # of all pods together


@pytest.mark.integration
async def test_prometheus_returns_the_readings_of_ticks(backfilled: Backfilled, tmp_path: Path):
    async with prometheus_with(tmp_path, backfilled.samples) as server:
        await tells_the_truth(server, backfilled)


@pytest.mark.integration
async def test_victoria_metrics_returns_the_same(backfilled: Backfilled, victoria_metrics: StartPromql):
    server = await victoria_metrics()
    await load_into(server, backfilled.samples)
    await tells_the_truth(server, backfilled)


class Server:
    """Answers range queries with one series for each of some pods, and remembers what was queried."""

    def __init__(
        self, pods: Sequence[tuple[str, str]] = (), *, most: float = math.inf, clock: Clock | None = None
    ) -> None:
        """most: number of queries that are answered in time; later ones pass the deadline on this clock."""
        self.pods, self.most, self.clock = pods, most, clock or Clock()
        self.queries: list[str] = []
        self.lengths: list[int] = []

    async def answer(self, request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        self.queries.append(query)
        if len(self.queries) > self.most:
            self.clock.passed_s = DEADLINE_S + 1
        self.lengths.append(len(request.raw_path))
        at_s = float(str((await request.post())["end"]))
        if "label_replace(count" in query:
            return matrix([{"metric": {"metric": "engine/pod"}, "values": [[at_s, "1"]]}])
        return matrix(
            [
                {"metric": {"namespace": namespace, "pod": pod}, "values": [[at_s - STEP_S, "3"], [at_s, "4"]]}
                for namespace, pod in self.pods
            ]
        )

    def names_queried(self, name: str) -> bool:
        return any(name in query for query in self.queries)


def matrix(result: object) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application(handler_args={"max_line_size": 1 << 17})
    app.router.add_post("/api/v1/query_range", answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_only_pods_of_the_fleet_and_deleted_ones_are_read():
    ours = [("team", pod_name("llama", 1)), ("team", "llama-0"), ("team", pod_name("llama-large", 1))]
    server = Server([*ours, ("team", "router"), ("elsewhere", pod_name("llama", 2))])
    async with serving(server.answer) as url:
        found = await read(url, cluster([("team", "llama"), ("team", "mistral")], [("team", "llama-0", 0)]))
    assert found.pod_workload.tolist() == [0, 0]
    assert found.pod.tolist() == [-1, 0]
    np.testing.assert_array_equal(found.columns["running"][-3:], [[np.nan] * 2, [3.0] * 2, [4.0] * 2])


async def test_pods_keep_own_quantiles_when_other_pods_match():
    pods = [("team", pod_name("llama", 1)), ("team", "llama-0"), ("team", "qwen-0"), ("team", "qwen-1")]
    own_s = dict(zip([name for _, name in pods], (1.0, 2.0, 3.0, 4.0), strict=True))

    async def answer(request: web.Request) -> web.Response:
        form = await request.post()
        query, at_s = str(form["query"]), float(str(form["end"]))
        if "label_replace(count" in query:
            return matrix([{"metric": {"metric": "engine/pod"}, "values": [[at_s, "1"]]}])
        series = [({"namespace": "team", "pod": name}, own_s[name]) for _, name in pods]
        if '"group"' in query:
            series = [({"namespace": "team", "group": name}, 9.0) for name in ("llama", "qwen")]
        return matrix([{"metric": labels, "values": [[at_s, str(value)]]} for labels, value in series])

    async with serving(answer) as url:
        found = await read(url, cluster([("team", "llama"), ("team", "qwen")], [("team", "llama-0", 1)]))
    ttft_s = found.columns["ttft_s"][-1]
    assert found.pod_workload.tolist() == [0, 1, 1, 1]
    assert ttft_s.tolist() == [1.0, 2.0, 9.0, 9.0]


async def test_invalid_names_get_into_no_query():
    server = Server()
    names = [('te"am', "x"), ("team", 'x"} or up{a="'), ("team", "a\\b"), ("team", "llama.v2")]
    async with serving(server.answer) as url:
        await read(url, cluster(names))
    assert server.names_queried("llama[.]v2")
    assert not any("up{" in query or "te" + '"am' in query or "\\" in query for query in server.queries)


async def test_every_query_has_the_configured_selector():
    server = Server()
    async with serving(server.answer) as url:
        history = RecentHistory(PrometheusSettings(url=url, selector='cluster="prod"'), Clock())
        readings = cluster([("team", "llama")])
        await history.recent(readings, aims(readings), 3600, 20)
    assert len(server.queries) > 10
    for query in server.queries:
        assert len(re.findall(r"\w\{", query)) == query.count('cluster="prod"}') > 0


@pytest.mark.slow
async def test_no_query_is_longer_than_a_proxy_takes_in_a_url():
    server = Server()
    names = [
        (f"a-team-with-a-long-name-{row % 7}", f"deepseek-r1-distill-qwen-32b-instruct-{row}") for row in range(40)
    ]
    async with serving(server.answer) as url:
        await read(url, cluster(names))
    assert all(server.names_queried(name) for _, name in names)
    assert max(server.lengths) < 8000


async def test_largest_workloads_are_read_first_until_the_deadline():
    names = [("team", f"model-{row:03d}" + "x" * 80) for row in range(60)]
    sizes = np.arange(60.0)
    server = Server([("team", f"{name}-0") for _, name in names], most=100, clock=(clock := Clock()))
    async with serving(server.answer) as url:
        found = await read(url, cluster(names, replicas=sizes), clock)
    read_rows = sorted(set(found.pod_workload.tolist()))
    assert 0 < len(read_rows) < 60
    assert read_rows[-1] == 59
    assert read_rows == list(range(read_rows[0], 60))
    assert "not read in time" in found.problem


@pytest.mark.slow
async def test_more_pods_than_there_is_room_for_are_not_read():
    names = [("team", f"model-{row}") for row in range(31)]
    sizes = [MAX_PODS + 1, *[100] * 30]
    pods = [("team", f"{name}-{number}", row) for row, (_, name) in enumerate(names) for number in range(sizes[row])]
    server = Server([(namespace, pod) for namespace, pod, _ in pods])

    async def answer(request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        server.pods = [(namespace, pod) for namespace, pod, row in pods if f"model-{row}" in names_in(query)]
        return await server.answer(request)

    async with serving(answer) as url:
        found = await read(url, cluster(names, pods))
    assert MAX_PODS - BATCH_PODS < len(found.pod) <= MAX_PODS
    assert 0 not in found.pod_workload
    assert found.problem == f"no more than {MAX_PODS} pods are read from history"


async def refusing(refused: Sequence[str]) -> tuple[RecentReadings, Server]:
    """Read workloads of one query each from a server to which some of them are too much."""
    names = [("team", f"model-{row}") for row in range(4)]
    pods = [("team", f"{name}-{number}", row) for row, (_, name) in enumerate(names) for number in range(BATCH_PODS)]
    server = Server()

    async def answer(request: web.Request) -> web.Response:
        names = names_in(str((await request.post())["query"]))
        server.pods = [(namespace, pod) for namespace, pod, row in pods if f"model-{row}" in names]
        answered = await server.answer(request)
        error = {"status": "error", "errorType": "execution", "error": "too many samples"}
        return web.json_response(error, status=422) if names & set(refused) else answered

    async with serving(answer) as url:
        return await read(url, cluster(names, pods)), server


@pytest.mark.slow
async def test_a_failing_workload_loses_only_its_own_history():
    found, _ = await refusing(["model-0"])
    assert sorted(set(found.pod_workload.tolist())) == [1, 2, 3]
    assert "too many samples" in found.problem


@pytest.mark.slow
async def test_after_two_failures_in_a_row_the_server_is_left_alone():
    found, server = await refusing(["model-1", "model-2"])
    assert sorted(set(found.pod_workload.tolist())) == [0]
    assert "too many samples" in found.problem
    assert not server.names_queried("model-3")
    with pytest.raises(Unavailable, match="too many samples"):
        await refusing(["model-0", "model-1"])


def names_in(query: str) -> set[str]:
    """The names of the workloads in a query."""
    _, _, rest = query.partition('pod=~"(')
    return set(rest.partition(")")[0].split("|"))


LABELS = {"namespace": "team", "pod": "llama-0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "result",
    [
        pytest.param({}, id="no list"),
        pytest.param([{"metric": ["pod"], "values": []}], id="labels are a list"),
        pytest.param([{"metric": {**LABELS, "pod": ["a"]}, "values": []}], id="a label is a list"),
        pytest.param([{"metric": LABELS, "values": [["now", "many"]]}], id="words for numbers"),
        pytest.param([{"metric": LABELS, "values": [[1.0], [2.0, "3"]]}], id="no pairs"),
        pytest.param([{"metric": LABELS, "values": [[1.0, "2", 3.0], [4.0, "5", 6.0]]}], id="triples"),
        pytest.param([{"metric": LABELS, "values": [{"a": 1}]}], id="objects"),
    ],
)
@pytest.mark.parametrize("fine", ["label_replace(count", "namespace"], ids=["of a column", "of the bounds"])
async def test_an_odd_answer_is_unavailable_and_nothing_else(result: object, fine: str):
    async def answer(request: web.Request) -> web.Response:
        return matrix([] if fine in str((await request.post())["query"]) else result)

    async with serving(answer) as url:
        with pytest.raises(Unavailable, match=r"no answer to a range query|has no series"):
            await read(url, cluster([("team", "llama")], [("team", "llama-0", 0)]))


async def test_impossible_numbers_are_returned_and_times_outside_not():
    async def answer(request: web.Request) -> web.Response:
        end_s = float(str((await request.post())["end"]))
        values = [[end_s - 1e6, "5"], [end_s + 1e6, "5"], [end_s - STEP_S, "-7"], [end_s, "NaN"], [float("1e300"), "1"]]
        return matrix([{"metric": {"namespace": "team", "pod": "llama-0"}, "values": values}])

    async with serving(answer) as url:
        found = await read(url, cluster([("team", "llama")], [("team", "llama-0", 0)]))
    np.testing.assert_array_equal(found.columns["running"][-3:, 0], [np.nan, -7.0, np.nan])
    assert np.isnan(found.columns["running"][:-3]).all()


async def test_a_closed_port_is_unavailable():
    with pytest.raises(Unavailable, match="no connection"):
        await read(f"http://127.0.0.1:{free_port()}", cluster([("team", "llama")]))
