"""Pods that are read from several sources, on a real Prometheus and a real VictoriaMetrics.

Samples are written with their own times, as federation, remote write and OpenTelemetry do, so nothing marks their end.
"""

import time
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.config.settings import PrometheusSettings
from tests.adapters.prometheus.fleets import fleet_of
from tests.harness.objectives import objectives
from tests.harness.process import PATIENCE_S
from tests.harness.prometheus import prometheus
from tests.harness.promql import PromqlServer
from tests.harness.remote_write import write_samples
from tests.harness.victoria_metrics import victoria_metrics

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

STARTED_S = 1_700_000_000.25


class Written(NamedTuple):
    """The series of one engine in a source; all values follow from the running requests."""

    running: float
    labels: str = ""
    last_s: float = 1.0  # age of the last sample
    every_s: float = 15.0
    first_s: float = 700.0  # largest age of a sample
    started_s: float = np.nan  # of the process
    used_s: float = np.nan  # processor time
    path: str = "vllm:"


class Case(NamedTuple):
    running: float
    line: str  # what is reported, "" for nothing
    sources: tuple[Written, ...]
    max_age_s: float = np.nan  # by the policy


A, B = "instance=10.0.0.5:8000", "instance=10.0.0.5:8001"
MOVED = "instance=10.0.0.9:8000"
OLDER = "left out: their last sample is older"
CASES = {
    "a pod moved": Case(2, OLDER, (Written(8, A, last_s=45), Written(2, MOVED, first_s=40))),
    "a pod moved twice": Case(
        2, OLDER, (Written(8, A, last_s=200), Written(7, B, last_s=100, first_s=190), Written(2, MOVED, first_s=61))
    ),
    "a pod moved after a short life": Case(
        2, OLDER, (Written(8, A, 17, 1, first_s=18), Written(2, MOVED, 1, 1, first_s=12))
    ),
    "a pod moved behind one address": Case(
        2, OLDER, (Written(8, "instance=q:m,uid=1", last_s=70), Written(2, "instance=q:m,uid=2", first_s=61))
    ),
    "a pod moved without instance": Case(2, OLDER, (Written(8, "node=n1", 50), Written(2, "node=n2", first_s=31))),
    "the newest server has one sample": Case(
        10, "", (Written(8, A, last_s=45, first_s=60), Written(2, MOVED, first_s=2))
    ),
    "a replica of Prometheus lags": Case(
        3, OLDER, (Written(3, f"{A},prometheus_replica=a"), Written(9, f"{A},prometheus_replica=b", last_s=130))
    ),
    "a replica lags behind two engines": Case(
        5,
        OLDER,
        (
            *(Written(3 - number, f"{A},engine={number},ha=a") for number in range(2)),
            *(Written(9, f"{A},engine={number},ha=b", last_s=131) for number in range(2)),
        ),
    ),
    "replicas of Prometheus agree": Case(3, "", (Written(3, f"{A},ha=a"), Written(3, f"{A},ha=b", last_s=14))),
    "a data-parallel engine is gone": Case(
        3, OLDER, (Written(3, f"{A},engine=0"), Written(4, f"{A},engine=1", last_s=101))
    ),
    "a scrape job has ended": Case(3, "job=old", (Written(9, f"{A},job=old", last_s=122), Written(3, f"{B},job=new"))),
    "a job scrapes once a minute": Case(
        5, "2 scrape jobs", (Written(5, f"{A},job=slow", 55, 60), Written(3, f"{A},job=fast"))
    ),
    "one server is scraped once a minute": Case(7, "", (Written(4, A, 55, 60), Written(3, B))),
    "two servers are scraped in turn": Case(7, "", (Written(4, A, last_s=14.5), Written(3, B))),
    "all series are old": Case(7, "", (Written(4, A, last_s=100), Written(3, B, last_s=104))),
    "one process has two ports": Case(
        4,
        "one process is read at 2 addresses",
        (Written(3, A, 9, started_s=STARTED_S), Written(4, B, started_s=STARTED_S)),
    ),
    "one process has used time": Case(
        4,
        "one process is read at 2 addresses",
        (Written(3, A, 9, started_s=STARTED_S, used_s=100), Written(4, B, started_s=STARTED_S, used_s=104)),
    ),
    "two processes started at once": Case(
        7, "", (Written(3, A, started_s=STARTED_S, used_s=90), Written(4, B, started_s=STARTED_S, used_s=700))
    ),
    "two engines of one process have ports": Case(
        7, "", (Written(3, f"{A},engine=0", started_s=STARTED_S), Written(4, f"{B},engine=1", started_s=STARTED_S))
    ),
    "scrapes are too far apart": Case(
        3, "scrape job slow: scrapes of engines are more than 30 s apart", (Written(3, f"{A},job=slow", 1, 45),)
    ),
    "scrapes are too far apart for the policy": Case(
        3, "job slow: scrapes of engines are more than 10 s apart, half of", (Written(3, f"{A},job=slow", 1, 15),), 20
    ),
    "scrapes are as far apart as the policy allows": Case(3, "", (Written(3, f"{A},job=fast", 1, 15),), 30),
    "scrapes are as far apart as allowed": Case(3, "", (Written(3, f"{A},job=fast", 1, 30),)),
    "scrapes have just begun": Case(3, "", (Written(3, f"{A},job=new", 1, 45, first_s=300),)),
    "Ray has two model replicas on a port": Case(
        7, "", (Written(3, f"{A},WorkerId=aa", path="ray_vllm_"), Written(4, f"{A},WorkerId=bb", path="ray_vllm_"))
    ),
    "Ray has one worker at two ports": Case(
        4,
        "one process is read at 2 addresses",
        (Written(3, f"{A},WorkerId=aa", 9, path="ray_vllm_"), Written(4, f"{B},WorkerId=aa", path="ray_vllm_")),
    ),
    "Ray has a worker at each port": Case(
        7, "", (Written(3, f"{A},WorkerId=aa", path="ray_vllm_"), Written(4, f"{B},WorkerId=bb", path="ray_vllm_"))
    ),
}


class Rank(NamedTuple):
    """The gauges of one rank of SGLang. Paused requests are labelled with each process whose file is there."""

    paused: tuple[tuple[str, float], ...]  # by `pid`
    labels: str = A
    rank: int = 0
    queued: float = 2.0


RANKS: dict[str, tuple[float, tuple[Rank, ...]]] = {  # waiting requests
    "a process was replaced": (2, (Rank((("77", 5), ("912", 0))),)),
    "the number of a process is longer": (3, (Rank((("998", 3), ("1002", 1))),)),
    "each process of a group was replaced": (
        6,
        tuple(Rank(((f"{70 + n}", 9), (f"{900 + n}", 4)), A, n) for n in range(4)),
    ),
    "no process was replaced": (5, tuple(Rank(((f"{900 + n}", 3),), A, n) for n in range(4))),
    "one of two servers was replaced": (6, (Rank((("77", 5), ("912", 1))), Rank((("77", 1),), B))),
    "two servers of Prometheus see a dead process": (
        2,
        tuple(Rank((("77", 5), ("912", 0)), f"{A},prometheus_replica={name}") for name in "ab"),
    ),
    "two jobs see a dead process": (2, tuple(Rank((("77", 5), ("912", 0)), f"{A},job={name}") for name in "ab")),
    "numbers of processes are text": (5, (Rank((("x" * 99, 3), ("1e9", 1))),)),
}


def ranks(
    pod: str, processes: Iterable[Rank], now_s: float
) -> Iterable[tuple[dict[str, str], list[tuple[float, float]]]]:
    for each in processes:
        given = dict(text.split("=") for text in each.labels.split(","))
        labels = {"namespace": "llm", "pod": pod, "job": "sglang", **given}
        labels |= {"model_name": "m", "engine_type": "unified", "tp_rank": f"{each.rank}", "pp_rank": "0"}
        values = [("num_running_reqs", {}, 10.0), ("num_queue_reqs", {}, each.queued)]
        values += [("num_paused_reqs", {"pid": pid}, paused) for pid, paused in each.paused]
        for name, more, value in values:
            yield {"__name__": f"sglang:{name}", **labels, **more}, [(now_s - age_s, value) for age_s in (31, 16, 1)]


def series(pod: str, source: Written, now_s: float) -> Iterable[tuple[dict[str, str], list[tuple[float, float]]]]:
    given = dict(text.split("=") for text in source.labels.split(",") if text)
    labels = {"namespace": "llm", "pod": pod, "job": "vllm", **given}
    ages_s = np.arange(source.last_s, source.first_s, source.every_s)[::-1]
    of_engine = {"model_name": "m", "engine": "0"} | labels
    values = {
        "num_requests_running": source.running,
        "num_requests_waiting": source.running / 2,
        "kv_cache_usage_perc": source.running / 10,
        "generation_tokens_total": source.running * 1000,
        "time_to_first_token_seconds_count": source.running * 10,
    }
    for name, value in values.items():
        yield {"__name__": source.path + name, **of_engine}, [(now_s - age_s, value) for age_s in ages_s.tolist()]
    for name, value in (("start_time_seconds", source.started_s), ("cpu_seconds_total", source.used_s)):
        if not np.isnan(value):
            labels.pop("engine", "")
            yield {"__name__": f"process_{name}", **labels}, [(now_s - age_s, value) for age_s in ages_s.tolist()]


ARRIVALS = {  # seconds between two scrapes, counts up to 2 s ago, and whether requests arrive
    "over": (15, (5, 9, 9, 9, 9, 9, 9), False),  # the last one came 77 to 92 s ago
    "coming": (15, (5, 5, 5, 5, 5, 6, 6), True),
    "restarted": (15, (900, 900, 900, 0, 1, 1, 2), True),
    "scraped-slowly": (60, (5, 5, 6), True),
    "slow-and-over": (60, (5, 6, 6, 6), False),  # VictoriaMetrics answers for 30 s ago
}


def arrivals(now_s: float) -> Iterable[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Write the requests that a gateway has counted for each pool."""
    for pool, (every_s, counts, _) in ARRIVALS.items():
        labels = {"namespace": "llm", "job": "epp", "pod": "epp-1", "inference_pool": pool}
        ages_s = [2 + every_s * number for number in range(len(counts))][::-1]
        samples = [(now_s - age_s, float(count)) for age_s, count in zip(ages_s, counts, strict=True)]
        yield {"__name__": "llm_d_epp_request_total", **labels}, samples


def gateways(now_s: float) -> Iterable[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Write the queue of a gateway: of a replica that is gone, of two others, and as a lagging server has it."""
    for queue, last_s, more in (
        (100, 90, {"pod": "epp-0"}),
        (3, 1, {"pod": "epp-1", "prometheus_replica": "a"}),
        (200, 130, {"pod": "epp-1", "prometheus_replica": "b"}),
        (2, 29, {"pod": "epp-2"}),
    ):
        labels = {"namespace": "llm", "job": "epp", "inference_pool": "empty", **more}
        samples = [(now_s - age_s, float(queue)) for age_s in range(last_s + 150, last_s - 1, -30)]
        yield {"__name__": "llm_d_epp_flow_control_queue_size", **labels}, samples


def pod_of(name: str) -> str:
    return f"{name.replace(' ', '-').lower()}-0"


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[partial(prometheus, flags=("--web.enable-remote-write-receiver",)), victoria_metrics],
    ids=["prometheus", "victoria-metrics"],
)
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, tuple[float, ...]]]:
    async with request.param(tmp_path_factory.mktemp("server")) as server:
        yield await read(server)


async def read(server: PromqlServer) -> dict[str, tuple[float, ...]]:
    """Return running, waiting, KV usage, tokens and lines of each case, each pod in a fleet of its own."""
    now_s = time.time()
    written = [
        each for name, case in CASES.items() for source in case.sources for each in series(pod_of(name), source, now_s)
    ]
    written += [each for name, (_, processes) in RANKS.items() for each in ranks(pod_of(name), processes, now_s)]
    await write_samples(server.url, [*written, *gateways(now_s), *arrivals(now_s)])
    await server.wait_for("count by (pod) (vllm:num_requests_running)", sum("Ray" not in name for name in CASES))
    found = {}
    for name, case in CASES.items():
        fleet = fleet_of({"llm/q": [pod_of(name)]})
        async with PrometheusSource(PrometheusSettings(url=server.url), SystemClock()) as source:
            samples = await source.sample(fleet, objectives(fleet, max_age_s=case.max_age_s), PATIENCE_S)
        (report,) = samples.reports
        assert not report.failed, report.problems
        columns = ("running", "waiting", "kv_usage", "generation_tokens", "first_tokens")
        values = [float(getattr(samples.pods, column)[0]) for column in columns]
        lines = [line for line in report.problems if not line.startswith("running: no ready pod")]
        found[name] = (*values, "\n".join(lines))
    for name in RANKS:
        fleet = fleet_of({"llm/q": [pod_of(name)]}, engine="sglang")
        async with PrometheusSource(PrometheusSettings(url=server.url), SystemClock()) as source:
            samples = await source.sample(fleet, objectives(fleet), PATIENCE_S)
        found[name] = (float(samples.pods.waiting[0]),)
    fleet = fleet_of({f"llm/{name}": [] for name in ("empty", *ARRIVALS)})
    async with PrometheusSource(PrometheusSettings(url=server.url), SystemClock()) as source:
        samples = await source.sample(fleet, objectives(fleet), PATIENCE_S)
    found["gateway"] = (float(samples.gateways.waiting[0]),)
    found["arrivals"] = tuple(samples.gateways.arrivals_per_s[1:].tolist())
    return found


@pytest.mark.parametrize("name", CASES)
async def test_each_process_of_a_pod_counts_once(scene: dict[str, tuple[float, ...]], name: str):
    case = CASES[name]
    running, waiting, _, tokens, first_tokens, line = scene[name]
    assert (running, waiting, tokens, first_tokens) == tuple(case.running * each for each in (1, 0.5, 1000, 10))
    assert (case.line in line) if case.line else not line


@pytest.mark.parametrize("name", RANKS)
async def test_dead_processes_of_a_rank_do_not_count(scene: dict[str, tuple[float, ...]], name: str):
    assert scene[name] == (RANKS[name][0],)


async def test_queues_of_gateways_that_are_gone_do_not_count(scene: dict[str, tuple[float, ...]]):
    assert scene["gateway"] == (5,)


async def test_requests_arrive_for_a_minute_after_the_last(scene: dict[str, tuple[float, ...]]):
    found = {name: per_s > 0 for name, per_s in zip(ARRIVALS, scene["arrivals"], strict=True)}
    assert found == {name: comes for name, (_, _, comes) in ARRIVALS.items()}
    assert not np.isnan(scene["arrivals"]).any()


async def test_kv_usage_is_the_largest_of_processes_that_count(scene: dict[str, tuple[float, ...]]):
    usages = {"a pod moved": 0.2, "two servers are scraped in turn": 0.4, "one process has two ports": 0.4}
    assert {name: scene[name][2] for name in usages} == usages
