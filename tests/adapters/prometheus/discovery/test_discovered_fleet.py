"""Discovery on servers that are down, slow, empty or incomplete. Another file has tests on real servers."""

import asyncio
import math
import re

import numpy as np
import pytest
from aiohttp import web

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.discovery.discovered_fleet import DiscoveredFleet
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.samples import Objectives, SourceReport
from autoscaler.ports import Unavailable
from tests.adapters.prometheus.responses import pod, serving, vector
from tests.harness.process import PATIENCE_S, free_port

CONVENTIONS = vector(({"metric": "engine/pod"}, 1))
POD = "llama-7d9c5b6f4-x2x8k"
ENGINES = vector(({**pod(POD), "metric": "vllm", "model_name": "llama-3"}, 1))
PODS = vector(({**pod("llama-7d9c5b6f4-b4b4b"), "metric": "kube_pod_created"}, 1_000))


class Server:
    """Answers by what occurs in a query; an int is a status."""

    def __init__(self, **rules: str | int) -> None:
        self.rules = rules

    async def answer(self, request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        for pattern, rule in self.rules.items():
            if re.search(pattern, query):
                return web.Response(status=rule) if isinstance(rule, int) else web.Response(text=rule)
        return web.Response(text=vector())


def healthy() -> dict[str, str | int]:
    return {"engine/pod": CONVENTIONS, "^label_replace.sum by": ENGINES, "kube_pod_created": PODS}


def names(workloads: DiscoveredFleet) -> list[str]:
    return sorted(each.name for each in workloads.fleet().pods)


async def test_discovery_starts_when_the_server_is_down():
    settings = PrometheusSettings(url=f"http://127.0.0.1:{free_port()}")
    async with DiscoveredFleet(settings, SystemClock()) as workloads:
        with pytest.raises(
            Unavailable, match=rf"^could not look for workloads: {settings.url}/api/v1/query: no connection"
        ):
            workloads.fleet()


async def test_a_server_without_engines_is_reported():
    async with (
        serving(Server().answer) as url,
        DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads,
    ):
        with pytest.raises(Unavailable, match=f"no workloads found: no engine reports metrics to {url}") as empty:
            workloads.fleet()
        assert "has none of vllm:num_requests_running, sglang:num_running_reqs, " in str(empty.value)


async def test_workloads_are_found_on_entering():
    async with (
        serving(Server(**healthy()).answer) as url,
        DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads,
    ):
        assert names(workloads) == sorted([POD, "llama-7d9c5b6f4-b4b4b"])
        assert [str(each.ref) for each in workloads.fleet().workloads] == ["llm/llama"]
        assert workloads.problems == ()


@pytest.mark.parametrize("lost", ["engine/pod", "^label_replace.sum by"])
async def test_when_the_server_fails_the_snapshot_stays_and_grows_old(lost: str):
    server = Server(**healthy())
    async with serving(server.answer) as url, DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads:
        before = workloads.fleet()
        server.rules = {**healthy(), lost: 503}
        await workloads.refresh(1)
        assert workloads.fleet() is before
        assert "HTTP 503" in workloads.problems[0]
        server.rules = healthy()
        await workloads.refresh(1)
        assert workloads.fleet().time_s > before.time_s
        assert workloads.problems == ()


async def reported(workloads: DiscoveredFleet) -> SourceReport:
    """Return the report of discovery, which has no readings of its own."""
    fleet = workloads.fleet()
    samples = await workloads.sample(fleet, Objectives(*np.full((3, len(fleet.workloads)), math.nan)), 1)
    assert np.isnan(samples.pods.time_s).all()
    (report,) = samples.reports
    return report


async def test_pods_are_kept_when_kube_state_metrics_is_briefly_absent():
    server = Server(**healthy())
    async with serving(server.answer) as url, DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads:
        before = names(workloads)
        assert (await reported(workloads)).problems == ()
        server.rules["kube_pod_created"] = 503
        await workloads.refresh(1)
        assert names(workloads) == before
        report = await reported(workloads)
        assert (report.source, report.failed) == ("discovery", 1)
        assert report.problems[0].startswith(f"pods: {url}/api/v1/query: HTTP 503")
        again = await reported(workloads)
        assert (again.queries, again.failed) == (0, 0), "each query is counted once"
        assert again.problems == report.problems


async def test_discovery_does_not_repeat_failures_of_the_server():
    server = Server(**healthy())
    async with serving(server.answer) as url, DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads:
        server.rules = {"": 503}
        await workloads.refresh(1)
        assert (await reported(workloads)).problems == ()


async def test_targets_are_reported_as_pods_when_metrics_name_none():
    target = {"job": "inference", "instance": "10.0.0.1:8000", "metric": "vllm", "model_name": "llama"}
    rules = {"engine/pod": vector(({"metric": "engine/instance"}, 1)), "^label_replace.sum by": vector((target, 1))}
    async with (
        serving(Server(**rules).answer) as url,
        DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads,
    ):
        assert [str(each.ref) for each in workloads.fleet().workloads] == ["inference/llama"]
        assert (await reported(workloads)).problems == (
            "labels that name pods: series of engines have none, so each scrape target counts as a pod, and all "
            "targets of one job with one model as a workload; add the labels namespace and pod to tell more apart",
        )


NAMELESS = {"metric": "vllm", "model_name": "g", "namespace": "agg"}


@pytest.mark.parametrize("labels", [NAMELESS, {**NAMELESS, "namespace": "", "pod": "g-7d9c5b6f4-x2x8k"}])
@pytest.mark.parametrize("beside", [[], [({**pod(POD), "metric": "vllm", "model_name": "llama-3"}, 1)]])
async def test_series_are_reported_when_they_name_no_pod(beside: list[tuple], labels: dict[str, str]):
    server = Server(**{**healthy(), "^label_replace.sum by": vector((labels, 19), *beside)})
    async with serving(server.answer) as url, DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads:
        (line,) = workloads.problems
        inside = " in namespace agg" if labels["namespace"] else ""
        assert line == (
            f"engines: series of model g{inside} name neither a pod with its namespace nor a scrape target, so 19 "
            "running requests count for no workload: keep the labels namespace and pod"
        )
        if not beside:
            with pytest.raises(Unavailable, match="no workloads found: engines: series of model g"):
                workloads.fleet()


async def test_reporting_pods_are_ready_when_readiness_is_not_exported():
    owner = {"metric": "kube_pod_owner", "owner_kind": "ReplicaSet", "owner_name": "llama-7d9c5b6f4"}
    silent = "llama-7d9c5b6f4-b4b4b"
    server = Server(
        **{**healthy(), "kube_pod_created": vector(*(({**owner, **pod(name)}, 1) for name in (POD, silent)))}
    )
    async with serving(server.answer) as url, DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads:
        fleet = workloads.fleet()
        assert {each.name: ready for each, ready in zip(fleet.pods, fleet.pod_ready.tolist(), strict=True)} == {
            POD: True,
            silent: False,
        }
        assert [str(each.ref) for each in fleet.workloads] == ["llm/llama"]  # the owner of the ReplicaSet is unknown
        (line,) = workloads.problems
        assert line.startswith(
            "pods: kube-state-metrics does not report kube_pod_status_ready, so a pod counts as ready"
        )
        waits = {"metric": "kube_pod_status_ready", "condition": "true", **pod(silent)}
        server.rules["kube_pod_created"] = vector(({**owner, **pod(POD)}, 1), (waits, 0))
        await workloads.refresh(1)
        assert not workloads.fleet().pod_ready.any()  # a pod without this condition is not ready
        assert workloads.problems == ()


async def test_a_partial_answer_about_labels_loses_no_pod():
    server = Server(**healthy())
    async with serving(server.answer) as url, DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads:
        before = names(workloads)
        server.rules = {"engine/pod": vector(({"metric": "engine/instance"}, 1), isPartial=True)}
        await workloads.refresh(1)
        assert names(workloads) == before


async def test_a_workload_is_at_zero_when_its_last_pod_is_deleted():
    server = Server(**healthy())
    async with serving(server.answer) as url, DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads:
        server.rules = {"engine/pod": CONVENTIONS}
        await workloads.refresh(1)
        assert workloads.fleet().pods == ()
        assert workloads.fleet().replicas.tolist() == [0]


async def test_discovery_repeats_until_its_context_ends():
    discovered = asyncio.Event()

    class Impatient(SystemClock):
        slept = 0

        async def sleep(self, duration_s: float) -> None:
            self.slept += 1
            if self.slept == 4:
                discovered.set()
            await asyncio.sleep(min(duration_s, 0.01))

    server = Server(**healthy())
    async with serving(server.answer) as url, DiscoveredFleet(PrometheusSettings(url=url), Impatient()) as workloads:
        before = workloads.fleet()
        async with asyncio.timeout(PATIENCE_S):
            await discovered.wait()
        assert workloads.fleet().time_s > before.time_s
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("discovery")] == []


@pytest.mark.parametrize("count", ["NaN", "+Inf", "-1", "1e300"])
async def test_a_number_of_devices_that_no_pod_can_hold_is_unknown(count: str):
    device = vector(({**pod(POD), "modelName": "NVIDIA H100"}, count))
    rules = healthy() | {"engine/pod": vector(({"metric": "engine/pod"}, 1), ({"metric": "gpu/pod"}, 1))}
    server = Server(**{"^count by": device}, **rules)
    async with (
        serving(server.answer) as url,
        DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads,
    ):
        assert math.isnan(workloads.fleet().gpus_per_replica[0])
        assert workloads.problems == ()
        server.rules["^count by"] = vector(({**pod(POD), "modelName": "NVIDIA H100"}, 2))
        await workloads.refresh(1)
        assert workloads.fleet().gpus_per_replica[0] == 2


async def test_another_pod_changes_no_engine_and_no_gpus():
    other = {"namespace": "aaa", "pod": "aaa-0", "exported_namespace": "llm", "exported_pod": POD}
    engines = vector(
        ({**other, "metric": "sglang", "model_name": "a", "cluster": "b"}, 1),
        ({**pod(POD), "metric": "vllm", "model_name": "llama-3"}, 1),
        ({**pod("a" * 300), "metric": "vllm"}, 1),
        ({**pod("a-\u202e-0"), "metric": "vllm"}, 1),
    )
    honest = {**other, "namespace": "gpu", "modelName": "NVIDIA H100"}
    devices = vector((honest, 1), ({**other, "modelName": "NVIDIA T4"}, 1000))
    rules = healthy() | {"engine/pod": vector(({"metric": "engine/pod"}, 1), ({"metric": "gpu/pod"}, 1))}
    server = Server(**{"^count by": devices}, **rules | {"^label_replace.sum by": engines})
    async with (
        serving(server.answer) as url,
        DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads,
    ):
        fleet = workloads.fleet()
        assert [(str(each.ref), each.engine, each.model) for each in fleet.workloads] == [
            ("llm/llama", "vllm", "llama-3")
        ]
        assert math.isnan(fleet.gpus_per_replica[0])
        told = "pods: pods of 'aaa', 'gpu' contradict each other about GPUs of 'llm': none is believed"
        assert workloads.problems == (told,)


async def test_servers_without_statistics_and_odd_names_are_reported():
    mute = vector(*[({**pod(f"m-{number}"), "instance": "10.0.0.1:8000"}, 1) for number in range(5)])
    named = vector(({"__name__": "x_vllm:num_requests_running"}, 1))
    server = Server(**{"^group by .__name__": named, "http_requests_total": mute}, **healthy())
    async with (
        serving(server.answer) as url,
        DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads,
    ):
        problems = workloads.problems
        await workloads.refresh(5)
        assert workloads.problems == problems
    assert problems[0] == "names: found x_vllm:num_requests_running; state the prefix with --metric-prefix x_"
    assert "llm/m-0 serves completions and reports no metric of an engine" in problems[1]
    assert "--disable-log-stats" in problems[1]
    assert problems[-1] == "names: and 2 more serve completions without an engine's metrics"


async def test_no_problem_is_reported_when_name_queries_are_refused():
    server = Server(**{"^group by .__name__": 422}, **healthy())
    async with (
        serving(server.answer) as url,
        DiscoveredFleet(PrometheusSettings(url=url), SystemClock()) as workloads,
    ):
        assert workloads.problems == ()
