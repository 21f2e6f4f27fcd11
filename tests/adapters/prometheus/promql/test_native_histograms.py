"""Native histograms, read from a real Prometheus."""

import time
from pathlib import Path

import numpy as np
import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.source import MEAN_OF_PODS, PrometheusSource
from autoscaler.adapters.prometheus.promql.expressions import QuantileQuery
from autoscaler.adapters.prometheus.promql.labels import POD
from autoscaler.adapters.prometheus.promql.native_histograms import native_count, native_queries
from autoscaler.catalog.engines import ENGINES
from autoscaler.config.settings import PrometheusSettings
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.undisturbed import undisturbed
from tests.harness.exposition import exposition_server
from tests.harness.objectives import objectives
from tests.harness.prometheus import prometheus
from tests.harness.promql import Target
from tests.harness.remote_write import write_histogram

VLLM = ENGINES["vllm"]


def test_bucket_columns_are_not_queried_from_native_histograms():
    columns = [query.column for query in native_queries(VLLM, POD, QuantileQuery(60))]
    assert sorted(columns) == ["first_tokens", "gap_s", "gaps", "itl_judged", "itl_s", "ttft_s"]
    assert native_count("prefill_met", VLLM.readings["prefill_met"], POD, 1.0) == ""


@pytest.mark.integration
async def test_latencies_and_counts_are_read_from_native_histograms(tmp_path: Path):
    fleet = fleet_of({"llm/a": ["a-0"]}, engine="vllm")
    running = 'vllm:num_requests_running{model_name="m"} 3\n'
    flags = ("--enable-feature=native-histograms", "--web.enable-remote-write-receiver")
    async with exposition_server() as endpoints:
        endpoints.serve("/metrics", running)
        target = Target(endpoints.address, "/metrics", {"namespace": "llm", "pod": "a-0"})
        async with prometheus(tmp_path, target, flags=flags) as server:
            await server.wait_for("vllm:num_requests_running")
            labels = {"namespace": "llm", "pod": "a-0", "job": "vllm", "instance": "x", "model_name": "m"}
            for ago_s, times in ((35, 1), (20, 2), (5, 3)):  # the moment of the query may be a little behind
                for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
                    series = {**labels, "__name__": f"vllm:{name}"}
                    # Eight buckets up to 0.5, then eight up to 1: 10 and 30 observations in the last of each.
                    counts = [0] * 7 + [10 * times] + [0] * 7 + [30 * times]
                    await write_histogram(server.url, series, counts, 35.0 * times, time.time() - ago_s)
            settings, promised = PrometheusSettings(url=server.url, rate_window_s=60), objectives(fleet, ttft_s=0.5)
            async with PrometheusSource(settings, SystemClock()) as source:
                for _ in range(2):
                    samples = await undisturbed(server, lambda: source.sample(fleet, promised, 10))
    pods = samples.pods
    assert samples.reports[0].problems == ()
    assert pods.first_tokens.tolist() == pods.gaps.tolist() == [120]
    assert pods.gap_s.tolist() == [105]
    assert pods.ttft_met == pytest.approx([30])
    assert 0.9 < pods.ttft_s[0] <= 1
    assert np.isnan(pods.prefill_met).all()


@pytest.mark.integration
async def test_pods_keep_own_quantiles_without_native_groups(tmp_path: Path):
    """Prometheus 2.42 drops them where they get another label; 3 does not."""
    pods = ["a-0", "a-1"]
    fleet = fleet_of({"llm/a": pods}, engine="vllm")
    flags = ("--enable-feature=native-histograms", "--web.enable-remote-write-receiver")
    async with exposition_server() as endpoints:
        endpoints.serve("/metrics", 'vllm:num_requests_running{model_name="m"} 3\n')
        targets = [Target(endpoints.address, "/metrics", {"namespace": "llm", "pod": pod}) for pod in pods]
        async with prometheus(tmp_path, *targets, flags=flags) as server:
            await server.wait_for("vllm:num_requests_running", 2)
            for ago_s, times in ((35, 1), (20, 2), (5, 3)):
                for pod, counts in zip(pods, ([0] * 7 + [20 * times] + [0] * 8, [0] * 15 + [20 * times]), strict=True):
                    labels = {"namespace": "llm", "pod": pod, "job": "vllm", "instance": "x", "model_name": "m"}
                    series = {**labels, "__name__": "vllm:time_to_first_token_seconds"}
                    await write_histogram(server.url, series, counts, 15.0 * times, time.time() - ago_s)
            settings = PrometheusSettings(url=server.url, rate_window_s=60)
            async with PrometheusSource(settings, SystemClock()) as source:
                for _ in range(2):
                    samples = await undisturbed(server, lambda: source.sample(fleet, objectives(fleet), 10))
    assert samples.pods.ttft_s == pytest.approx([0.5, 1.0], abs=0.05)
    assert samples.reports[0].problems == (f"ttft_s: llm/a: {MEAN_OF_PODS}",)
