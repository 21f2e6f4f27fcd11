"""Foreign models on a real Prometheus and a real VictoriaMetrics."""

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.adapters.scrape.exposition import parse
from autoscaler.adapters.scrape.pod_columns import gauges_and_counters, sample_names
from autoscaler.catalog.engines import ENGINES
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import ServedNames
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.undisturbed import undisturbed
from tests.harness.exposition import ExpositionServer, exposition_server
from tests.harness.objectives import objectives
from tests.harness.prometheus import prometheus
from tests.harness.promql import PromqlServer, Target
from tests.harness.victoria_metrics import victoria_metrics

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

STARTED_S = 1_700_000_000
# Two data-parallel engines, of which one does not know its gauges.
SENTINEL = "".join(
    f'vllm:{name}{{engine="{number}",model_name="m"}} {value}\n'
    for name, values in {
        "num_requests_running": (10, -1),
        "num_requests_waiting": (4, -1),
        "kv_cache_usage_perc": (0.5, -1),
        "generation_tokens_total": (100, 50),
    }.items()
    for number, value in enumerate(values)
)


def engine(tokens: int, start_s: int | None = None, model: str = "m", running: int = 2) -> str:
    started = "" if start_s is None else f"process_start_time_seconds {start_s}\n"
    names = {"num_requests_running": running, "num_requests_waiting": 0, "generation_tokens_total": tokens}
    return started + "".join(f'vllm:{name}{{model_name="{model}"}} {value}\n' for name, value in names.items())


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[prometheus, victoria_metrics])
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[PromqlServer, ExpositionServer]]:
    async with exposition_server() as endpoints:

        def target(pod: str, text: str, path: str = "", job: str = "vllm", **labels: str) -> Target:
            endpoints.serve(f"/{path or pod}", text)
            return Target(endpoints.address, f"/{path or pod}", {"namespace": "llm", "pod": pod, **labels}, job)

        targets = [
            target("stands-0", engine(1000, STARTED_S)),
            target("restarts-0", engine(1000, STARTED_S)),
            target("silent-0", engine(1000)),
            target("sentinel-0", SENTINEL),
            target("sentinel-1", SENTINEL.replace("-1", "1")),
            target("true-0", engine(1000, model="x")),
            target("foreign-0", engine(1000, model="b")),
            target("mixed-0", engine(1000, model="a.v1", running=2) + engine(500, model="b", running=7)),
            target("forged-0", engine(1000, model="a.v1")),
            target(
                "neighbour-0", engine(9000, model="b", running=900), exported_namespace="llm", exported_pod="forged-0"
            ),
            target("silent-0", f"process_start_time_seconds {STARTED_S}\n", "sidecar", instance="10.0.0.1:15020"),
        ]
        async with request.param(tmp_path_factory.mktemp("server"), *targets) as server:
            await server.wait_for("up == 1", len(targets))
            yield server, endpoints


def source(server: PromqlServer) -> PrometheusSource:
    return PrometheusSource(PrometheusSettings(url=server.url, rate_window_s=60), SystemClock())


async def test_a_falling_counter_is_unknown_without_a_restart(
    scene: tuple[PromqlServer, ExpositionServer],
):
    server, endpoints = scene
    pods = ["stands-0", "restarts-0", "silent-0"]
    fleet = fleet_of({"llm/w": pods})
    async with source(server) as opened:
        before = await undisturbed(server, lambda: opened.sample(fleet, objectives(fleet), 10))
        endpoints.serve("/stands-0", engine(7, STARTED_S))
        endpoints.serve("/restarts-0", engine(7, STARTED_S + 60))
        endpoints.serve("/silent-0", engine(7))
        await server.wait_for("vllm:generation_tokens_total == 7", len(pods))
        after = await undisturbed(server, lambda: opened.sample(fleet, objectives(fleet), 10))
    assert before.pods.generation_tokens.tolist() == [1000] * 3
    assert after.pods.generation_tokens.tolist() == pytest.approx([np.nan, 7, 7], nan_ok=True)
    assert [line.split(":")[1] for line in after.reports[0].problems if "counters" in line] == [" pod llm/stands-0"]


async def test_series_of_a_model_not_served_are_left_out(scene: tuple[PromqlServer, ExpositionServer]):
    server, _ = scene
    served = {"true-0": "/models/x", "foreign-0": "a", "mixed-0": "a.v1", "forged-0": "a.v1"}
    fleet = fleet_of({"llm/w": list(served)})
    named = tuple(
        pod._replace(served=ServedNames((name,))) for pod, name in zip(fleet.pods, served.values(), strict=True)
    )
    async with source(server) as opened:
        renamed = replace(fleet, pods=named)
        samples = await undisturbed(server, lambda: opened.sample(renamed, objectives(fleet), 10))
        accepted = await undisturbed(server, lambda: opened.sample(fleet, objectives(fleet), 10))
    (report,) = samples.reports
    assert report.failed == 0
    assert samples.pods.running.tolist() == pytest.approx([2, np.nan, 2, 2], nan_ok=True)
    assert samples.pods.generation_tokens.tolist() == pytest.approx([1000, np.nan, 1000, 1000], nan_ok=True)
    assert np.isnan(samples.pods.time_s).tolist() == [False, True, False, False]
    (line,) = (line for line in report.problems if line.startswith("models"))
    assert line == (
        "models: pod llm/foreign-0 and 2 more: series of the model 'b' are left out: the pod's command line serves 'a'"
    )
    assert accepted.pods.running.tolist() == [2, 2, 9, 2]


async def test_gauge_is_unknown_when_one_engine_shows_a_sentinel(
    scene: tuple[PromqlServer, ExpositionServer],
):
    server, _ = scene
    fleet = fleet_of({"llm/w": ["sentinel-0", "sentinel-1"]})
    async with source(server) as opened:
        pods = (await undisturbed(server, lambda: opened.sample(fleet, objectives(fleet), 10))).pods
    exposition = parse(SENTINEL.encode(), sample_names(ENGINES["vllm"]))
    direct = gauges_and_counters(ENGINES["vllm"], exposition)
    for column in ("running", "waiting", "kv_usage", "generation_tokens"):
        assert getattr(pods, column)[0] == pytest.approx(direct[column], nan_ok=True)
    assert np.isnan([pods.running[0], pods.waiting[0], pods.kv_usage[0]]).all()
    assert (pods.running[1], pods.waiting[1], pods.generation_tokens[0]) == (11, 5, 150)
