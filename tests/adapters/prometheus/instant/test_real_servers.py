"""PrometheusSource on a real Prometheus and a real VictoriaMetrics that scrape recorded and constructed texts."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.gateways import WakeUpQuery
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.adapters.prometheus.instant.unread_metrics import partial_pods_query, unreported_pods_query
from autoscaler.catalog.engines import ENGINES, QUANTILES
from autoscaler.catalog.evaluate import read
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import PodSamples, Samples
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.undisturbed import undisturbed
from tests.harness.dcgm_recordings import diagnoses, expected_diagnoses, page, recorded_fleet
from tests.harness.exposition import ExpositionServer, exposition_server
from tests.harness.objectives import objectives
from tests.harness.process import PATIENCE_S
from tests.harness.prometheus import prometheus
from tests.harness.promql import PromqlServer, Target
from tests.harness.victoria_metrics import victoria_metrics

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

RECORDED = Path(__file__).parents[3] / "data/vllm"
PODS = {
    "llm/tiny": ["tiny-saturated", "tiny-twice", "tiny-moving"],
    "llm/dp": ["dp-0"],
    "llm/sleepy": ["sleepy-0"],
    "llm/renamed": ["renamed-0"],
    "llm/old": ["old-0"],
    "llm/silent": ["silent-0"],
    "llm/empty": [],
}
# vLLM 0.6 (V0), by the tables of the metrics reference: no `engine`, other names for KV usage and token gaps.
OLD_VLLM = """\
vllm:num_requests_running{model_name="m"} 3
vllm:num_requests_waiting{model_name="m"} 2
vllm:num_requests_swapped{model_name="m"} 1
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:prompt_tokens_total{model_name="m"} 100
"""
# Pods whose prompt tokens mostly come with the KV cache of others: as expected_values from 0.16 on, and before.
DECODE = OLD_VLLM + "".join(
    f'vllm:prompt_tokens_by_source_total{{model_name="m",source="{source}"}} {tokens}\n'
    for source, tokens in (("local_compute", 2), ("local_cache_hit", 8), ("external_kv_transfer", 90))
)
OLD_DECODE = OLD_VLLM + 'vllm:gpu_prefix_cache_hits_total{model_name="m"} 30\n'
# Requests that were preempted, by the tables of vLLM 0.9 to 0.11.0: their own blocks count as hits of the cache.
PREEMPTED = OLD_VLLM + 'vllm:prefix_cache_hits_total{model_name="m"} 43\n'
PREEMPTED += 'vllm:prefix_cache_queries_total{model_name="m"} 133\n'
OLD_DECODE += 'vllm:external_prefix_cache_hits_total{model_name="m"} 60\n'
# Names that NIM and release candidates of TensorRT-LLM share.
NIM = "".join(
    f'{name}{{model_name="m"}} {value}\n'
    for name, value in {
        "num_requests_running": 5,
        "num_requests_waiting": 2,
        "num_request_max": 64,
        "gpu_cache_usage_perc": 0.25,
        "prompt_tokens_total": 100,
    }.items()
)
BARE_TRTLLM = "".join(
    f'{name}{{model_name="m",engine_type="trtllm"}} {value}\n'
    for name, value in {"num_requests_running": 7, "num_requests_waiting": 1, "kv_cache_utilization": 0.5}.items()
)
# With priorities, SGLang also reports a queue as a whole, and counts streamed requests separately.
SGLANG = """\
sglang:num_running_reqs{model_name="m",priority=""} 5
sglang:num_running_reqs{model_name="m",priority="0"} 2
sglang:num_running_reqs{model_name="m",priority="7"} 3
sglang:generation_tokens_total{is_streaming="true",model_name="m",priority="0"} 100
sglang:generation_tokens_total{is_streaming="false",model_name="m",priority="0"} 50
sglang:generation_tokens_total{is_streaming="true",model_name="m",priority="7"} 7
"""
# SGLang with metrics of all schedulers: gauges of a tensor-parallel group, some with the process that set them.
SGLANG_RANKS = "".join(
    f'sglang:num_running_reqs{{model_name="m",tp_rank="{rank}"}} 10\n'
    f'sglang:num_queue_reqs{{model_name="m",tp_rank="{rank}"}} 2\n'
    f'sglang:num_paused_reqs{{model_name="m",pid="{900 + rank}",tp_rank="{rank}"}} 3\n'
    for rank in range(4)
)
# Metrics of the vLLM production-stack router: the engines' names, with a label `server`.
ROUTER = """\
vllm:num_requests_running{server="http://10.0.0.1:8000"} 400
vllm:num_requests_waiting{server="http://10.0.0.1:8000"} 500
vllm:num_incoming_requests_total{model="empty-model"} 7
"""
EPP = """\
llm_d_epp_flow_control_queue_size{fairness_id="a",priority="0",inference_pool="empty",model_name="empty-model"} 3
llm_d_epp_flow_control_queue_size{fairness_id="b",priority="0",inference_pool="empty",model_name="empty-model"} 2
inference_extension_flow_control_queue_size{fairness_id="a",priority="0",inference_pool="empty"} 5
"""
# One pod with two devices, one pod on a MIG slice, one unused device.
DCGM = """\
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",Hostname="n1",namespace="llm",pod="tiny-saturated"} 60000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1",Hostname="n1",namespace="llm",pod="tiny-saturated"} 20000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",Hostname="n1",namespace="llm",pod="tiny-saturated"} 70000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-2",Hostname="n1",namespace="llm",pod="tiny-saturated"} 10000
DCGM_FI_DEV_FB_USED{gpu="2",UUID="GPU-3",GPU_I_ID="2",GPU_I_PROFILE="3g.40gb",namespace="llm",pod="dp-0"} 10000
DCGM_FI_DEV_FB_FREE{gpu="2",UUID="GPU-3",GPU_I_ID="2",GPU_I_PROFILE="3g.40gb",namespace="llm",pod="dp-0"} 30000
DCGM_FI_DEV_FB_USED{gpu="3",UUID="GPU-4",Hostname="n1"} 4
DCGM_FI_DEV_FB_FREE{gpu="3",UUID="GPU-4",Hostname="n1"} 80000
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-1",Hostname="n1",namespace="llm",pod="tiny-saturated"} 0.1
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1",UUID="GPU-2",Hostname="n1",namespace="llm",pod="tiny-saturated"} 0.3
DCGM_FI_PROF_TENSOR_UTIL_RATIO{gpu="2",UUID="GPU-3",GPU_I_ID="2",GPU_I_PROFILE="3g.40gb",namespace="llm",pod="dp-0"} 0.2
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="2",UUID="GPU-3",GPU_I_ID="2",GPU_I_PROFILE="3g.40gb",namespace="llm",pod="dp-0"} 0.5
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-2",Hostname="n1",namespace="llm",pod="tiny-saturated"} 1.3
"""
# DCGM could not read these, and the exporter passed its marks on.
DCGM += "".join(
    f'{name}{{gpu="4",UUID="GPU-5",Hostname="n2",namespace="llm",pod="tiny-twice"}} {value}\n'
    for name, value in (
        ("DCGM_FI_DEV_FB_USED", "9223372036854775794"),
        ("DCGM_FI_DEV_FB_FREE", "80000"),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "140737488355328"),
        ("DCGM_FI_PROF_SM_ACTIVE", "140737488355330"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "2.01"),
    )
)


class Scene(NamedTuple):
    server: PromqlServer
    endpoints: ExpositionServer
    fleet: Fleet

    def source(self, *queries: WakeUpQuery) -> PrometheusSource:
        settings = PrometheusSettings(url=self.server.url, rate_window_s=60)
        return PrometheusSource(settings, SystemClock(), wake_up_queries=lambda: queries)

    def value(self, samples: Samples, pod: str, column: str) -> float:
        row = [each.name for each in self.fleet.pods].index(pod)
        return float(getattr(samples.pods, column)[row])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[prometheus, victoria_metrics])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """One server for all tests of this file, with everything scraped at least once."""
    async with exposition_server() as endpoints:

        def target(pod: str, text: str, job: str = "vllm", **labels: str) -> Target:
            path = f"/{pod}"
            endpoints.serve(path, text)
            return Target(endpoints.address, path, {"namespace": "llm", "pod": pod, **labels}, job)

        saturated = recorded("saturated")
        targets = [
            target("tiny-saturated", saturated),
            target("tiny-twice", saturated, prometheus_replica="prometheus-0"),
            target("tiny-twice", saturated, prometheus_replica="prometheus-1"),
            target("tiny-moving", recorded("running")),
            target("dp-0", recorded("dp2-saturated")),
            target("sleepy-0", recorded("sleeping-queued")),
            target("renamed-0", recorded("running").replace("vllm:", "vllm_")),
            target("old-0", OLD_VLLM),
            target("kserve-0", recorded("running").replace("vllm:", "kserve_vllm:")),
            target("ray-0", recorded("running").replace("vllm:", "ray_vllm_")),
            target("stated-0", recorded("running").replace("vllm:", "x_vllm:")),
            target("partial-0", 'nv_inference_request_success{model="m",version="1"} 5\n'),
            target("partial-1", 'trtllm_time_to_first_token_seconds_count{model_name="m"} 5\n'),
            target("partial-2", 'vllm_request_success_total{model_name="m",finished_reason="stop"} 5\n'),
            target("mute-0", 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 14\n'),
            target("nim-0", NIM),
            target("trtllm-0", BARE_TRTLLM),
            target("decode-0", DECODE),
            target("decode-1", OLD_DECODE),
            target("preempted-0", PREEMPTED),
            target("preempted-1", PREEMPTED.replace("133", "200")),
            target("sglang-0", SGLANG),
            target("sglang-1", SGLANG_RANKS),
            target("gone-0", saturated),
            target("router-0", ROUTER, job="router"),
            target("epp-0", EPP, job="epp"),
            target("epp-0", EPP, job="epp-again", endpoint="metrics", container="epp", instance="epp-0:metrics"),
            target("dcgm-0", DCGM, job="dcgm"),
            target("dcgm-1", page(), job="dcgm"),
        ]
        async with request.param(tmp_path_factory.mktemp("server"), *targets) as server:
            await server.wait_for("up == 1", len(targets))
            endpoints.serve("/tiny-moving", saturated)
            endpoints.serve("/router-0", ROUTER.replace("} 7", "} 19"))
            await server.wait_for('vllm:num_requests_waiting{pod="tiny-moving"} == 30')
            await server.wait_for('vllm:num_incoming_requests_total{pod="router-0"} == 19')
            yield Scene(server, endpoints, fleet_of(PODS))


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.prom").read_text()


def expected(text: str, column: str) -> float:
    """Read a column by the table straight from the text: the second source, without any server."""
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            series.setdefault(sample.name, []).append((sample.labels, sample.value))
    return read(ENGINES["vllm"].readings[column], series)


async def sampled(scene: Scene, *queries: WakeUpQuery) -> Samples:
    async with scene.source(*queries) as source:
        samples = await undisturbed(scene.server, lambda: source.sample(scene.fleet, objectives(scene.fleet), 10))
    assert [report.failed for report in samples.reports] == [0], samples.reports
    return samples


@pytest.mark.parametrize(
    ("pod", "text"), [("tiny-saturated", "saturated"), ("dp-0", "dp2-saturated"), ("sleepy-0", "sleeping-queued")]
)
async def test_every_column_of_a_recorded_engine_reads_as_in_its_text(scene: Scene, pod: str, text: str):
    samples = await sampled(scene)
    columns = [column for column in ENGINES["vllm"].readings if column not in QUANTILES]
    expected_values = {column: expected(recorded(text), column) for column in columns}
    found = {column: scene.value(samples, pod, column) for column in columns}
    assert found == pytest.approx(expected_values, nan_ok=True)


async def test_two_prometheus_replicas_that_scrape_one_pod_count_once(scene: Scene):
    samples = await sampled(scene)
    assert scene.value(samples, "tiny-twice", "waiting") == 30
    assert scene.value(samples, "tiny-twice", "prompt_tokens") == 2948


async def test_engines_of_one_pod_are_summed_and_their_kv_usage_is_not(scene: Scene):
    samples = await sampled(scene)
    assert scene.value(samples, "dp-0", "running") == 8
    assert scene.value(samples, "dp-0", "waiting") == 16
    assert 0 < scene.value(samples, "dp-0", "kv_usage") <= 1


async def test_a_sleeping_engine_is_recognized(scene: Scene):
    samples = await sampled(scene)
    assert scene.value(samples, "sleepy-0", "asleep") == 1
    assert scene.value(samples, "tiny-saturated", "asleep") == 0


async def test_names_with_underscores_are_the_same_names(scene: Scene):
    samples = await sampled(scene)
    assert scene.value(samples, "renamed-0", "running") == 2
    assert scene.value(samples, "renamed-0", "generation_tokens") == expected(recorded("running"), "generation_tokens")


async def test_names_with_a_prefix_are_read_when_it_is_known_or_stated(scene: Scene):
    there = scene._replace(fleet=fleet_of({"llm/p": ["kserve-0", "ray-0", "stated-0"]}))
    pods, columns = ("kserve-0", "ray-0", "stated-0"), ("running", "waiting", "generation_tokens", "prompt_tokens")
    samples = await sampled(there)
    expected_values = [expected(recorded("running"), column) for column in columns]
    assert [[there.value(samples, pod, column) for column in columns] for pod in pods[:2]] == [
        expected_values,
        expected_values,
    ]
    assert np.isnan(there.value(samples, "stated-0", "running"))
    (problem,) = (line for line in samples.reports[0].problems if "metric-prefix" in line)
    assert "found x_vllm:num_requests_running; state the prefix with --metric-prefix x_" in problem
    settings = PrometheusSettings(url=scene.server.url, metric_prefixes=("x_",))
    async with PrometheusSource(settings, SystemClock()) as source:
        samples = await undisturbed(scene.server, lambda: source.sample(there.fleet, objectives(there.fleet), 10))
    assert [there.value(samples, "stated-0", column) for column in columns] == expected_values
    assert not any("metric-prefix" in line for line in samples.reports[0].problems)


async def test_a_server_is_found_when_its_engine_reports_nothing(scene: Scene):
    asked = unreported_pods_query(all_spellings(("x_",)))
    found = await undisturbed(scene.server, lambda: scene.server.query(asked))
    assert [series["metric"]["pod"] for series in found] == ["mute-0"]


async def test_engines_are_found_when_running_requests_are_missing(scene: Scene):
    asked = partial_pods_query(all_spellings(("x_",)))
    found = await undisturbed(scene.server, lambda: scene.server.query(asked))
    engines = {series["metric"]["pod"]: series["metric"]["metric"] for series in found}
    assert engines == {"partial-0": "triton", "partial-1": "trtllm", "partial-2": "vllm"}


@pytest.mark.parametrize(("engine", "pod", "running"), [("nim", "nim-0", 5), ("trtllm", "trtllm-0", 7)])
async def test_a_shared_name_is_read_from_its_own_product_alone(scene: Scene, engine: str, pod: str, running: int):
    there = scene._replace(fleet=fleet_of({"llm/bare": ["nim-0", "trtllm-0"]}, engine=engine))
    samples = await sampled(there)
    assert there.value(samples, pod, "running") == running
    other = "trtllm-0" if pod == "nim-0" else "nim-0"
    assert np.isnan([there.value(samples, other, column) for column in ("running", "time_s")]).all()


async def test_an_old_engine_is_read_by_its_old_names(scene: Scene):
    samples = await sampled(scene)
    assert scene.value(samples, "old-0", "running") == 3
    assert scene.value(samples, "old-0", "waiting") == 3  # two waiting and one swapped out
    assert scene.value(samples, "old-0", "kv_usage") == 0.25
    assert np.isnan(scene.value(samples, "old-0", "asleep"))


async def test_transferred_prompt_tokens_are_no_prefill(scene: Scene):
    there = scene._replace(fleet=fleet_of({"llm/decode": ["decode-0", "decode-1", "old-0"]}))
    samples = await sampled(there)
    assert [there.value(samples, pod, "prompt_tokens") for pod in ("decode-0", "decode-1", "old-0")] == [2, 10, 100]


async def test_prompt_tokens_are_computed_when_requests_are_preempted(scene: Scene):
    there = scene._replace(fleet=fleet_of({"llm/preempted": ["preempted-0", "preempted-1"]}))
    samples = await sampled(there)
    assert [there.value(samples, pod, "prompt_tokens") for pod in ("preempted-0", "preempted-1")] == [90, 100]
    assert expected(PREEMPTED, "prompt_tokens") == 90


async def test_all_priorities_are_added_and_queues_counted_once(scene: Scene):
    there = scene._replace(fleet=fleet_of({"llm/sglang": ["sglang-0", "sglang-1"]}, engine="sglang"))
    samples = await sampled(there)
    assert there.value(samples, "sglang-0", "running") == 5
    assert there.value(samples, "sglang-0", "generation_tokens") == 157
    assert (there.value(samples, "sglang-1", "running"), there.value(samples, "sglang-1", "waiting")) == (10, 5)


async def test_a_pod_without_metrics_is_unknown_and_not_zero(scene: Scene):
    samples = await sampled(scene)
    silent = samples.pods.take(np.array([[pod.name for pod in scene.fleet.pods].index("silent-0")]))
    known = [name for name in PodSamples.__dataclass_fields__ if not np.isnan(getattr(silent, name)).all()]
    assert known == []


async def test_latency_is_a_window_quantile_unless_the_engine_is_idle(scene: Scene):
    samples = await sampled(scene)
    # Between the two recordings 13 requests got their first token, most of them after 2.5 to 10 s in the queue.
    assert 5 < scene.value(samples, "tiny-moving", "ttft_s") <= 10
    assert 0.01 < scene.value(samples, "tiny-moving", "itl_s") <= 0.025
    assert np.isnan(scene.value(samples, "tiny-saturated", "ttft_s"))


async def test_the_time_of_a_reading_is_that_of_the_scrape(scene: Scene):
    clock = SystemClock()
    before_s = clock.now_s()
    samples = await sampled(scene)
    age_s = before_s - scene.value(samples, "tiny-saturated", "time_s")
    assert -1 < age_s < PATIENCE_S  # the time of VictoriaMetrics is in whole seconds


async def test_a_sample_read_twice_has_one_time(scene: Scene):
    async with scene.source() as source:
        readings = {}
        for _ in range(4):
            samples = await source.sample(scene.fleet, objectives(scene.fleet), 10)
            generation, time_s = (
                scene.value(samples, "tiny-saturated", name) for name in ("generation_tokens", "time_s")
            )
            readings[round(time_s, 1)] = (time_s, generation)
            again = await source.sample(scene.fleet, objectives(scene.fleet), 10)
            if abs(scene.value(again, "tiny-saturated", "time_s") - time_s) < 0.5:
                assert scene.value(again, "tiny-saturated", "time_s") == pytest.approx(time_s, abs=1e-6)
    assert readings


async def test_gpus_count_for_the_pod_and_not_for_the_exporter(scene: Scene):
    samples = await sampled(scene)
    assert scene.value(samples, "tiny-saturated", "fb_usage") == 0.875  # the fuller of two devices
    assert scene.value(samples, "tiny-saturated", "tensor_active") == 0.3
    assert scene.value(samples, "dp-0", "fb_usage") == 0.25
    assert scene.value(samples, "dp-0", "tensor_active") == 0.2
    assert scene.value(samples, "dp-0", "sm_active") == 0.5
    assert np.isnan(scene.value(samples, "dp-0", "dram_active"))
    assert not np.isnan(scene.value(samples, "dp-0", "gpu_time_s"))
    assert scene.value(samples, "tiny-saturated", "sm_active") == 1
    unknown = ("fb_usage", "tensor_active", "sm_active", "dram_active")
    assert all(np.isnan(scene.value(samples, "tiny-twice", column)) for column in unknown)


async def test_each_recording_of_gpus_is_read_as_its_diagnosis(scene: Scene):
    pods = (await sampled(scene._replace(fleet=recorded_fleet()))).pods
    assert diagnoses(pods, SystemClock().now_s()) == expected_diagnoses()


async def test_a_gateway_queue_counts_once_for_two_names_and_jobs(scene: Scene):
    samples = await sampled(scene)
    assert samples.gateways.waiting.tolist() == pytest.approx([np.nan] * 6 + [5], nan_ok=True)


async def test_router_arrivals_are_a_rate_for_the_model(scene: Scene):
    fleet = fleet_of({"llm/empty": []}, model="empty-model")
    async with scene.source() as source:
        samples = await undisturbed(scene.server, lambda: source.sample(fleet, objectives(fleet), 10))
    assert samples.gateways.arrivals_per_s[0] > 0


async def test_a_policys_own_expression_wakes_its_workload(scene: Scene):
    query = WakeUpQuery(
        "standard",
        'sum by (namespace, deployment) (label_replace(up{job="epp"}, "deployment", "silent", "", ""))',
        True,
    )
    samples = await sampled(scene, query)
    assert samples.gateways.waiting[5] == 1


async def test_an_invalid_expression_of_one_policy_harms_nothing_else(scene: Scene):
    async with scene.source(WakeUpQuery("broken", "sum by (", False)) as source:
        samples = await undisturbed(scene.server, lambda: source.sample(scene.fleet, objectives(scene.fleet), 10))
    assert scene.value(samples, "tiny-saturated", "waiting") == 30
    (report,) = samples.reports
    assert report.failed == 1
    (problem,) = (line for line in report.problems if "wakeUp.query of policy broken" in line)
    assert "HTTP 4" in problem
