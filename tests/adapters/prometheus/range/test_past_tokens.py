"""The tokens of a week: from a real Prometheus and a real VictoriaMetrics, and from servers that are slow or odd."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from autoscaler.adapters.prometheus.range.recent import RecentHistory
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.recent import PastTokens
from autoscaler.ports import Unavailable
from tests.adapters.prometheus.backfill import Sample, pod_name
from tests.adapters.prometheus.range.test_recent import cluster, matrix, names_in, serving
from tests.adapters.prometheus.range.test_workload_history import load_into, prometheus_with
from tests.harness.fixtures import StartPromql
from tests.harness.process import free_port

STEP_S, STEPS = 900.0, 673
DAY_S, SCRAPE_S = 86_400.0, 60.0
END_S = float(int(time.time() - 3600) // 900 * 900)
START_S = END_S - STEPS * STEP_S


class Clock:
    """The clock of a daemon that starts at the end of the week."""

    def now_s(self) -> float:
        return 500.0

    def wall_s(self) -> float:
        return END_S + 0.4

    async def sleep(self, duration_s: float) -> None:
        raise AssertionError("the adapter does not sleep")


async def read(url: str, fleet: Fleet, *, rows: Sequence[int] | None = None, deadline_s: float = 120.0) -> PastTokens:
    history = RecentHistory(PrometheusSettings(url=url), Clock())
    wanted = range(len(fleet.workloads)) if rows is None else rows
    return await history.past_tokens(fleet, wanted, STEP_S, STEPS, deadline_s)


def counter(name: str, pod: str, per_s: float, from_s: float, to_s: float, **labels: str) -> list[Sample]:
    """Samples of a counter that grows steadily; a process that starts later counts from 0."""
    named = {"namespace": "team", "pod": pod, "instance": f"{pod}:8000", "job": "pods", "model_name": "m", **labels}
    times = np.arange(from_s, to_s, SCRAPE_S)
    return [Sample(name, named, at_s, round(per_s * (at_s - from_s))) for at_s in times.tolist()]


def engine(pod: str, rates: tuple[float, float], from_s: float, to_s: float, **labels: str) -> list[Sample]:
    prompt, generated = rates
    return [
        *counter("vllm:prompt_tokens_total", pod, prompt, from_s, to_s, **labels),
        *counter("vllm:generation_tokens_total", pod, generated, from_s, to_s, **labels),
        *counter("vllm:num_requests_running", pod, 0.0, from_s, to_s, **labels),
    ]


class Week:
    """A week of two workloads: restarts, pods that are gone, two scrape jobs, a new day without metrics."""

    def __init__(self) -> None:
        self.day = [START_S + day * DAY_S for day in range(8)]
        old, new, other = pod_name("llama", 1), pod_name("llama", 2), pod_name("qwen", 1)
        self.present = new
        sglang = {"engine_type": "unified"}
        tenant = {"namespace": "evil", "exported_namespace": "team"}  # it writes of pods of others, real and invented
        self.samples = (
            *engine(old, (100.0, 20.0), self.day[2], self.day[4]),  # its first two days are beyond the retention
            *engine(old, (300.0, 60.0), self.day[4], self.day[5]),  # the process restarted: its counters fell
            *engine(new, (200.0, 40.0), self.day[4], END_S + SCRAPE_S),
            *engine(new, (200.0, 40.0), self.day[4], END_S + SCRAPE_S, job="again"),  # another job reads it, too
            *engine("evil-0", (9e3, 9e3), self.day[2], END_S + SCRAPE_S, **tenant, exported_pod=new),
            *engine("evil-0", (9e3, 9e3), self.day[2], END_S + SCRAPE_S, **tenant, exported_pod=pod_name("llama", 9)),
            *counter("sglang:prompt_tokens_total", other, 50.0, self.day[5], END_S + SCRAPE_S, **sglang),
            *counter("sglang:cached_tokens_total", other, 10.0, self.day[5], END_S + SCRAPE_S, **sglang),
            *counter("sglang:generation_tokens_total", other, 7.0, self.day[5], END_S + SCRAPE_S, **sglang),
            *counter("sglang:num_running_reqs", other, 0.0, self.day[5], END_S + SCRAPE_S, **sglang),
        )

    def fleet(self) -> Fleet:
        made = cluster([("team", "llama"), ("team", "qwen"), ("team", "new")], [("team", self.present, 0)])
        engines = ("vllm", "sglang", "vllm")
        workloads = tuple(each._replace(engine=name) for each, name in zip(made.workloads, engines, strict=True))
        return replace(made, workloads=workloads)


def per_s(tokens: np.ndarray, from_s: float, to_s: float) -> float:
    """The median rate between two times, without the first and the last step."""
    first, last = round((END_S - to_s) / STEP_S) + 1, round((END_S - from_s) / STEP_S) - 1
    return float(np.median(tokens[first:last])) / STEP_S


def assert_tells_the_truth(found: PastTokens, week: Week) -> None:
    assert (found.problem, found.until_wall_s) == ("", END_S)
    assert found.prompt.shape == found.generated.shape == (STEPS, 3)
    llama, qwen = found.prompt[:, 0], found.prompt[:, 1]
    assert np.isnan(llama[round((END_S - week.day[2]) / STEP_S) + 1 :]).all()
    for day, rate in ((2, 100.0), (3, 100.0), (4, 500.0), (5, 200.0), (6, 200.0)):
        assert per_s(llama, week.day[day], week.day[day + 1]) == pytest.approx(rate, rel=0.02)
        assert per_s(found.generated[:, 0], week.day[day], week.day[day + 1]) == pytest.approx(rate / 5, rel=0.02)
    total = 100 * 2 * DAY_S + 300 * DAY_S + 200 * (END_S - week.day[4])
    assert np.nansum(llama) == pytest.approx(total, rel=0.01)  # whatever the restart
    assert per_s(qwen, week.day[6], END_S) == pytest.approx(40.0, rel=0.02)  # computed, not from the cache
    assert per_s(found.generated[:, 1], week.day[6], END_S) == pytest.approx(7.0, rel=0.02)
    assert np.isnan(found.prompt[:, 2]).all()


@pytest.fixture(scope="module")
def week() -> Week:
    return Week()


@pytest.mark.integration
async def test_prometheus_returns_the_tokens_of_a_week(week: Week, tmp_path: Path):
    async with prometheus_with(tmp_path, week.samples) as server:
        assert_tells_the_truth(await read(server.url, week.fleet()), week)
        only = await read(server.url, week.fleet(), rows=[1])
    assert np.isnan(only.prompt[:, 0]).all()
    assert (~np.isnan(only.prompt[:, 1])).any()


@pytest.mark.integration
async def test_victoria_metrics_returns_the_same_tokens(week: Week, victoria_metrics: StartPromql):
    server = await victoria_metrics()
    await load_into(server, week.samples)
    assert_tells_the_truth(await read(server.url, week.fleet()), week)


class Server:
    """Answers each query with the same tokens per step for some pods, as far as `refuses` lets it."""

    def __init__(self, *pods: str, tokens: str = "900") -> None:
        self.pods, self.tokens = pods, tokens
        self.refused: set[str] = set()  # names of workloads
        self.older_than_s = np.inf  # days before this are refused
        self.spans: list[tuple[float, float, float, str]] = []  # start, end, step and query

    async def answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        query = str(form["query"])
        start_s, end_s, step_s = (float(str(form[name])) for name in ("start", "end", "step"))
        if "label_replace(count" in query:
            return matrix([{"metric": {"metric": "engine/pod"}, "values": [[end_s, "1"]]}])
        self.spans.append((start_s, end_s, step_s, query))
        if names_in(query) & self.refused or END_S - end_s > self.older_than_s:
            error = {"status": "error", "errorType": "execution", "error": "too many samples"}
            return web.json_response(error, status=422)
        times = np.arange(start_s, end_s + 1, step_s).tolist()
        values = [[at_s, self.tokens] for at_s in times]
        return matrix([{"metric": {"namespace": "team", "pod": pod}, "values": values} for pod in self.pods])


async def test_each_query_spans_a_day_and_the_last_comes_first():
    server = Server("llama-0")
    async with serving(server.answer) as url:
        found = await read(url, cluster([("team", "llama")]))
    assert (found.prompt == 900).all()
    assert (found.generated == 900).all()
    ends_s = list(dict.fromkeys(end_s for _, end_s, *_ in server.spans))
    assert ends_s[0] == END_S
    assert ends_s[1:] == sorted(ends_s[1:])
    assert ends_s[1] <= END_S - 6 * DAY_S
    steps = [(end_s - start_s) / step_s + 1 for start_s, end_s, step_s, _ in server.spans]
    assert max(steps) <= 100
    assert sum(steps) == 2 * STEPS


async def test_every_selector_of_a_token_query_has_the_matchers():
    server = Server()
    async with serving(server.answer) as url:
        history = RecentHistory(PrometheusSettings(url=url, selector='cluster="prod"'), Clock())
        await history.past_tokens(cluster([("team", "llama")]), [0], STEP_S, STEPS, 60.0)
    for *_, query in server.spans:
        assert len(re.findall(r"\w\{", query)) == query.count('cluster="prod"}') > 0


async def test_refused_batch_loses_itself_and_is_not_queried_again():
    server = Server("large-0", "small-0")
    server.refused = {"large"}
    pods = [("team", f"large-{number}", 0) for number in range(250)]
    async with serving(server.answer) as url:
        found = await read(url, cluster([("team", "large"), ("team", "small")], pods))
    assert np.isnan(found.prompt[:, 0]).all()
    assert (found.prompt[:, 1] == 900).all()
    assert "too many samples" in found.problem
    assert sum("large" in names_in(query) for *_, query in server.spans) == 1


async def test_what_was_read_before_a_server_fails_is_kept():
    server = Server("large-0", "small-0")
    server.older_than_s = DAY_S
    pods = [("team", f"large-{number}", 0) for number in range(250)]
    async with serving(server.answer) as url:
        found = await read(url, cluster([("team", "large"), ("team", "small")], pods))
    assert (~np.isnan(found.prompt)).sum(axis=0).tolist() == [100, 100]
    assert "too many samples" in found.problem
    assert len(server.spans) == 4 + 2


async def test_server_is_unavailable_when_it_refuses_two_queries():
    server = Server()
    server.refused = {"large", "small"}
    pods = [("team", f"large-{number}", 0) for number in range(250)]
    async with serving(server.answer) as url:
        with pytest.raises(Unavailable, match="too many samples"):
            await read(url, cluster([("team", "large"), ("team", "small"), ("team", "tiny")], pods))
    assert len(server.spans) == 2
    with pytest.raises(Unavailable, match="no connection"):
        await read(f"http://127.0.0.1:{free_port()}", cluster([("team", "llama")]))


@pytest.mark.parametrize("tokens", ["-5", "NaN", "+Inf", "1e300"])
async def test_impossible_growth_is_unknown(tokens: str):
    server = Server("llama-0", tokens=tokens)
    async with serving(server.answer) as url:
        found = await read(url, cluster([("team", "llama")]))
    assert np.isnan(found.prompt).all()


async def test_engines_without_token_counters_are_not_queried():
    server = Server("llama-0")
    fleet = cluster([("team", "llama")])
    fleet = replace(fleet, workloads=tuple(each._replace(engine="trtllm") for each in fleet.workloads))
    async with serving(server.answer) as url:
        found = await read(url, fleet)
    assert not server.spans
    assert np.isnan(found.prompt).all()
