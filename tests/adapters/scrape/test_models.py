"""Metrics of another model than the one that a pod's command line serves, as a server on loopback shows them."""

from dataclasses import replace

import numpy as np

from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import ServedNames
from autoscaler.core.model.samples import Samples
from tests.adapters.scrape.support import SteppedClock, fleet_of
from tests.harness.exposition import ExpositionServer
from tests.harness.objectives import objectives


def text(*models: str, engine: str = "vllm:num_requests_running", other: str = "vllm:num_requests_waiting") -> str:
    return "".join(f'{engine}{{model_name="{model}"}} 2\n{other}{{model_name="{model}"}} 5\n' for model in models)


async def read(
    server: ExpositionServer, body: str, *names: str, engine: str = "vllm", model: str = "", or_path: bool = False
) -> Samples:
    server.serve("/metrics", body)
    server.serve("/load", '{"server_load":0}')
    fleet = fleet_of(server.address, engine=engine)
    fleet = replace(
        fleet,
        workloads=(fleet.workloads[0]._replace(model=model),),
        pods=(fleet.pods[0]._replace(metrics_path="/metrics", served=ServedNames(names, or_path)),),
    )
    async with PodScraper(ScrapeSettings(timeout_s=10.0), SteppedClock()) as scraper:
        return await scraper.sample(fleet, objectives(fleet), 20.0)


async def test_metrics_of_another_model_are_dropped_and_reported(exposition_server: ExpositionServer) -> None:
    samples = await read(exposition_server, text("b"), "a")
    assert np.isnan([samples.pods.running[0], samples.pods.time_s[0]]).all()
    (report,) = samples.reports
    assert report.failed == 1
    assert report.problems == ("llm/qwen-0: series of the model 'b' are left out: the pod's command line serves 'a'",)


async def test_a_pods_own_model_is_read_beside_another(exposition_server: ExpositionServer) -> None:
    samples = await read(exposition_server, text("b", "a"), "a")
    assert (samples.pods.running[0], samples.pods.waiting[0]) == (2, 5)
    (report,) = samples.reports
    assert report.failed == 0
    assert "series of the model 'b' are left out" in report.problems[0]


async def test_a_possible_model_name_of_the_pod_counts(exposition_server: ExpositionServer) -> None:
    for body, names, more in (
        (text("b"), (), {}),
        (text("x"), ("/models/x",), {}),
        (text("A"), ("a",), {}),
        (text("second"), ("first", "second"), {}),
        (text("alias"), ("a",), {"model": "alias"}),
        (text("/hub/models--org--a/snapshots/0"), ("org/a",), {"or_path": True}),
        ("vllm:num_requests_running 2\nvllm:num_requests_waiting 5\n", ("a",), {}),
    ):
        samples = await read(exposition_server, body, *names, **more)  # type: ignore[arg-type]
        assert (samples.pods.running[0], samples.pods.waiting[0]) == (2, 5)
        assert samples.reports[0].problems == ()


async def test_engines_without_the_served_name_count(exposition_server: ExpositionServer) -> None:
    body = text("undefined", engine="trtllm_num_requests_running", other="trtllm_num_requests_waiting")
    assert (await read(exposition_server, body, "a", engine="trtllm")).pods.running[0] == 2
    body = text("b", engine="sglang:num_running_reqs", other="sglang:num_queue_reqs")
    assert np.isnan((await read(exposition_server, body, "a", engine="sglang")).pods.running[0])
