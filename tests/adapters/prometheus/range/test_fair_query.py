"""A tenant with more series than an answer may have hides no others: all that `demand` asks, on a real server."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.range.capacity_queries import read_exported_use
from autoscaler.adapters.prometheus.range.gpu_readings import read_gpus
from autoscaler.adapters.prometheus.range.latency_queries import REQUEST, TTFT, latency_queries, read_latencies
from autoscaler.adapters.prometheus.range.node_costs import read_capacity_types, read_node_costs
from autoscaler.adapters.prometheus.range.own_use import STATE, read_gateways, read_own_use
from autoscaler.adapters.prometheus.range.reader import MAX_SERIES, RangeReader
from autoscaler.adapters.prometheus.range.service_queries import (
    ServiceName,
    find_engines,
    read_cold_starts,
    read_devices,
    read_policy_names,
    service_queries,
)
from autoscaler.adapters.prometheus.range.team_labels import read_teams
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import PrometheusSettings
from autoscaler.report.history import Span
from autoscaler.report.piece_cache import PieceCache
from autoscaler.report.read_history import read_history
from tests.report.generated import filled_prometheus, merged
from tests.report.test_hostile_tenants import families

GOOD = ServiceName("", "team", "good")
BOUNDS = ("0.5", "1.0", "+Inf")
HISTOGRAMS = ("vllm:time_to_first_token_seconds_bucket", "vllm:e2e_request_latency_seconds_bucket")
SERIES = 6_000  # of each family, of one tenant
MOST_BYTES = 250_000  # of an answer; these series need more
LONG = "n" * 8_000  # of a model's name
OWN = 'namespace="autoscaler",exported_namespace="team",workload="good",kind="Deployment"'  # the scrape moved a label


def history(end_s: float) -> Iterator[str]:
    """An honest service, and a tenant that writes of others, with numbers that cannot be and clocks that are wrong."""
    times_s = np.arange(end_s - 3600, end_s + 1, 300.0).tolist()
    for count, at_s in enumerate(times_s):
        yield f'vllm:num_requests_running{{namespace="team",pod="good-0",model_name="m"}} 1 {at_s:.0f}'
        yield f'DCGM_FI_DEV_FB_USED{{namespace="team",pod="good-0",UUID="u"}} 70000 {at_s:.0f}'
        yield f'DCGM_FI_DEV_FB_FREE{{namespace="team",pod="good-0",UUID="u"}} 10000 {at_s:.0f}'
        pool = 'resource="nvidia.com/gpu",product="H100",nodes=""'
        yield f"vllm_autoscaler_needed_gpu_seconds_total{{{OWN},{pool}}} {count * 600} {at_s:.0f}"
        yield f'vllm_autoscaler_gpu_seconds_total{{{OWN},state="floor"}} {count * 600} {at_s:.0f}'
        yield f"vllm_autoscaler_gateway_waiting_requests{{{OWN}}} 0 {at_s:.0f}"
        kept = 'namespace="team",deployment="good",annotation_vllm_autoscaler_io_policy="slow"'
        yield f"kube_deployment_annotations{{{kept}}} 1 {at_s:.0f}"
        yield f'node_gpu_hourly_cost{{namespace="costs",node="n",instance_type="g6.xlarge"}} 0.5 {at_s:.0f}'
        for name in HISTOGRAMS:
            for bound, le in enumerate(BOUNDS):
                yield f'{name}{{namespace="team",pod="good-0",le="{le}"}} {count * 10 * (bound + 1)} {at_s:.0f}'
    odd = ("NaN", "+Inf", "-1", "1e308")
    for number in range(SERIES):
        long = LONG if number % 150 == 0 else "m"
        wrong_clock_s = [end_s + 7200] if number % 20 == 0 else []
        for later, at_s in enumerate((end_s - 900, end_s - 600, *wrong_clock_s)):
            value = odd[number % 4] if number % 3 else f"{later}"
            of_others = f'namespace="evil",exported_namespace="team-{number}"'
            pod = f'{of_others},pod="x",exported_pod="good-{number}"'
            bucket = f'namespace="evil",pod="x-0",model_name="{long}",le="{number}"'
            yield from (f"{name}{{{bucket}}} {value} {at_s:.0f}" for name in HISTOGRAMS)
            yield f"DCGM_FI_DEV_FB_USED{{{pod}}} {value} {at_s:.0f}"
            for name in ("needed_gpu_seconds_total", "gpu_seconds_total", "gateway_waiting_requests"):
                yield f'vllm_autoscaler_{name}{{{of_others},workload="w",state="floor"}} {value} {at_s:.0f}'
            if later == 0:
                yield f'node_gpu_hourly_cost{{namespace="evil",node="{number}",instance_type="x"}} {value} {at_s:.0f}'
                named = f'{of_others},deployment="good",annotation_vllm_autoscaler_io_policy="{number}"'
                yield f"kube_deployment_annotations{{{named}}} 1 {at_s:.0f}"


@pytest.mark.integration
@pytest.mark.slow
async def test_exporter_of_many_tenants_loses_the_crowded_one(tmp_path: Path):
    end_s = time.time() // 3600 * 3600
    crowd = (("evil", f"x{number}-0") for number in range(MAX_SERIES + 1))
    lines = (
        f'DCGM_FI_DEV_FB_USED{{namespace="gpu-operator",pod="dcgm",exported_namespace="{space}",exported_pod="{pod}",'
        f'UUID="{pod}"}} 1 {end_s:.0f}'
        for space, pod in (("team", "good-0"), *crowd)
    )
    own = f'DCGM_FI_DEV_FB_USED{{namespace="other",pod="fine-0",UUID="u"}} 1 {end_s:.0f}'
    told = dict[str, None]()
    async with filled_prometheus(tmp_path, merged(iter([families(iter([*lines, own]))]))) as server:
        settings = PrometheusSettings(url=server.url)
        reader = RangeReader(settings, Credentials(settings), time.monotonic() + 120)
        devices = read_devices(reader, (end_s - 600, end_s), told)
        reader.close()
    assert {str(name) for name in devices} == {"team/good", "other/fine"}
    [said] = told
    assert said.startswith("namespace 'evil', of which pods of 'gpu-operator' tell, left out: its 20,001 series"), said


@pytest.mark.integration
@pytest.mark.slow
async def test_tenant_with_many_series_is_left_out_and_told(tmp_path: Path):
    end_s = time.time() // 3600 * 3600
    span_s = (end_s - 3600, end_s)
    async with filled_prometheus(tmp_path, merged(iter([families(history(end_s))]))) as server:
        settings = PrometheusSettings(url=server.url)
        reader = RangeReader(settings, Credentials(settings), time.monotonic() + 120, MOST_BYTES)
        found = find_engines(reader, all_spellings(()), span_s)
        latencies, problems = read_latencies(reader, latency_queries(found), span_s)
        told = dict[str, None]()
        days = list(read_gpus(reader, found, span_s, 300.0, problems=told))
        used = read_exported_use(reader, span_s)
        others: dict[str, dict[str, None]] = {name: {} for name in ("devices", "use", "gateways", "policies")}
        devices = read_devices(reader, span_s, others["devices"])
        own_use = read_own_use(reader, span_s, others["use"])
        gateways = read_gateways(reader, span_s, others["gateways"])
        policies = read_policy_names(reader, span_s, others["policies"])
        costs = read_node_costs(reader, span_s)
        unasked = read_capacity_types(reader, span_s, {}), read_cold_starts(reader, found.spellings, span_s, {})
        reader.close()
    assert latencies[TTFT][GOOD].counts.tolist() == pytest.approx([120, 240, 360], rel=0.1)
    assert GOOD in latencies[REQUEST]
    assert [name for day in days for name in day.services if name == GOOD]
    assert {key[:2] for key in used.columns["needed"]} == {("team", "good")}
    assert (devices[GOOD].per_replica, policies) == (1.0, {GOOD: "slow"})
    assert {row[:4] for row in own_use} == {("team", "good", STATE, "floor")}
    assert gateways == {("team", "good")}
    assert costs.prices == {"": {"g6.xlarge": 0.5}}
    assert unasked == ({}, {})
    for said in (problems, told, used.problems, *others.values(), costs.problems):
        assert any("namespace 'evil'" in each for each in said), (problems, told, used.problems)


@pytest.mark.integration
@pytest.mark.slow
async def test_few_series_with_long_labels_are_left_out_and_told(tmp_path: Path):
    """Each of a handful of series is longer than what hundreds of services need: the report is that of the others."""
    end_s = time.time() // 3600 * 3600
    times_s = np.arange(end_s - 3600, end_s + 1, 60.0).tolist()
    long = ",".join(f'{label}="{"y" * 90_000}"' for label in ("cluster", "exported_pod", "exported_namespace"))
    running = [
        line
        for at_s in times_s
        for line in (
            f'vllm:num_requests_running{{namespace="team",pod="good-0",model_name="m"}} 1 {at_s:.0f}',
            f'vllm:num_requests_running{{namespace="evil",pod="x-0",{long}}} 1 {at_s:.0f}',
        )
    ]
    teams = [
        f'kube_pod_labels{{namespace="team",pod="good-0",label_team="ours"}} 1 {end_s:.0f}',
        f'kube_pod_labels{{namespace="evil",pod="x-0",label_team="{"y" * 300_000}"}} 1 {end_s:.0f}',
    ]
    span = Span(end_s - 3600, 60.0, 60)
    async with filled_prometheus(tmp_path, merged(iter([families(iter([*running, *teams]))]))) as server:
        settings = PrometheusSettings(url=server.url)

        def reader() -> RangeReader:
            return RangeReader(settings, Credentials(settings), time.monotonic() + 120, MOST_BYTES)

        one, another = reader(), reader()
        found = find_engines(one, all_spellings(()), (span.start_s, span.end_s))
        queries = service_queries(one, found, (), (span.start_s, span.end_s), span.step_s)
        history = read_history(reader, queries, span, PieceCache.none())
        names, problems = read_teams(another, "team", [GOOD, ServiceName("", "evil", "x")], (span.start_s, span.end_s))
        one.close()
        another.close()
    assert (history.services, names) == ((GOOD,), ("ours", ""))
    for told in (history.problems, problems):
        [said] = told
        assert said.startswith("namespace 'evil' is left out: ")
