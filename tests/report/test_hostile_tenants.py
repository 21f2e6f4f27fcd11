"""The whole command on a real Prometheus in which other tenants have written what they like."""

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.promql.engines import PER_NAMESPACE, bounds_query
from autoscaler.adapters.prometheus.promql.within_objective import MAX_BOUNDS
from autoscaler.adapters.prometheus.range.capacity_queries import read_exported_use
from autoscaler.adapters.prometheus.range.crowds import read_crowds
from autoscaler.adapters.prometheus.range.gpu_readings import read_gpus
from autoscaler.adapters.prometheus.range.latency_queries import latency_queries, read_latencies
from autoscaler.adapters.prometheus.range.own_use import read_gateways, read_own_use
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import (
    Objective,
    ServiceName,
    find_engines,
    read_devices,
    read_policy_names,
    service_queries,
)
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import PrometheusSettings
from autoscaler.report.history import Span
from autoscaler.report.piece_cache import PieceCache
from autoscaler.report.read_history import read_history
from tests.report.generated import HOUR_S, TTFT, Service, day, filled_prometheus, generate, merged
from tests.report.test_report import invoke

KEPT_H = 6
BOMB = 6000
ODD = ("NaN", "+Inf", "1e308", "-5", "1e14")


def bomb(end_s: float) -> Iterator[str]:
    """A namespace in which each pod looks like a service of its own, for half an hour."""
    for number in range(BOMB):
        for at_s in np.arange(end_s - 0.9 * HOUR_S, end_s - 0.4 * HOUR_S, 240.0).tolist():
            yield f'vllm:num_requests_running{{namespace="bomb",pod="x{number}-0"}} 1 {at_s:.0f}'


def odd_samples(end_s: float) -> Iterator[str]:
    """Numbers that cannot be true, counters that fall with each scrape, and names that no pod can have."""
    metrics = (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:inter_token_latency_seconds_count",
        TTFT + "_count",
    )
    names = ("liar", "<script>alert(1)</script>", b"\\u001b[31mred".decode("unicode_escape"), "n" * 10_000)
    for metric in metrics:
        for name in names:
            pod = f'namespace="odd",pod="{name}-0",job="vllm",instance="{name[:5]}:8000"'
            for number, at_s in enumerate(np.arange(end_s - KEPT_H * HOUR_S, end_s, 60.0).tolist()):
                value = ODD[number % len(ODD)] if number % 3 else str(1000 - number % 1000)
                yield f"{metric}{{{pod}}} {value} {at_s:.0f}"
    for number, at_s in enumerate(np.arange(end_s - KEPT_H * HOUR_S, end_s + 2 * HOUR_S, 60.0).tolist()):
        le = ("0.3", "1e300", "NaN", "-1")[number // 30 % 4]  # bounds come and go, and some samples are of tomorrow
        yield f'{TTFT}_bucket{{namespace="odd",pod="liar-0",le="{le}"}} {number} {at_s:.0f}'


@pytest.mark.integration
async def test_odd_bounds_of_a_tenant_displace_none_that_others_have(tmp_path: Path):
    end_s = time.time() // 60 * 60
    usual, odd = ("0.5", "1.0", "+Inf"), (*(f"{1 + row / 1000}" for row in range(1, MAX_BOUNDS)), "+Inf")
    pods = [("a", 0, usual), ("b", 0, usual), *(("odd", number, odd) for number in range(3))]
    lines = (
        f'{TTFT}_bucket{{namespace="{space}",pod="x-{number}",le="{le}"}} 1 {end_s:.0f}'
        for space, number, bounds in pods
        for le in bounds
    )
    async with filled_prometheus(tmp_path, merged(iter([families(lines)]))) as server:
        settings = PrometheusSettings(url=server.url)
        reader = RangeReader(settings, Credentials(settings), time.monotonic() + 60)
        rows = reader.query(bounds_query(ENGINES["vllm"].readings["ttft_met"], MAX_BOUNDS), end_s, end_s, 60.0)
        reader.close()
    counts = {row["metric"]["le"]: divmod(row["values"][-1, 1], PER_NAMESPACE) for row in rows}
    assert len(rows) == MAX_BOUNDS
    assert (counts["0.5"], counts["1.0"], counts["+Inf"]) == ((2, 2), (2, 2), (3, 5))


@pytest.mark.integration
async def test_namespaces_that_a_pod_invents_leave_out_its_own_alone(tmp_path: Path):
    """Other ones each hour, in all more than there is room for."""
    end_s, evil = time.time() // 60 * 60, 'namespace="evil",pod="evil-0",exported_pod="x-0"'
    lines = [f'vllm:num_requests_running{{namespace="team",pod="good-0"}} 1 {end_s:.0f}']
    lines += (
        f'vllm:num_requests_running{{{evil},exported_namespace="n{hour}-{number}"}} 1 {end_s - 3600 * hour:.0f}'
        for hour in range(8)
        for number in range(700)
    )
    async with filled_prometheus(tmp_path, merged(iter([families(iter(lines))]))) as server:
        settings, span_s = PrometheusSettings(url=server.url), (end_s - 8 * 3600, end_s)
        reader = RangeReader(settings, Credentials(settings), time.monotonic() + 60)
        crowds = read_crowds(reader, find_engines(reader, all_spellings(()), span_s), span_s)
        reader.close()
    assert (crowds.matchers, crowds.services) == ('namespace!="evil"', 1)


@pytest.mark.integration
async def test_a_few_large_namespaces_make_no_step_longer_for_others(tmp_path: Path):
    """One has many services; pods of another write of many in a third one, whose own service is scraped, too."""
    end_s, lines = time.time() // 60 * 60, list[str]()
    pods = [f'namespace="team-{number}",pod="chat-0"' for number in range(4)]
    pods += (f'namespace="large",pod="s{number}-0"' for number in range(30))
    written = 'namespace="loud",pod="loud-0",exported_namespace="team-0"'
    pods += (f'{written},exported_pod="s{number}-0"' for number in range(30))
    lines = [f"vllm:num_requests_running{{{pod}}} 1 {end_s:.0f}" for pod in pods]
    async with filled_prometheus(tmp_path, merged(iter([families(iter(lines))]))) as server:
        settings, span_s = PrometheusSettings(url=server.url), (end_s - 3600, end_s)
        reader = RangeReader(settings, Credentials(settings), time.monotonic() + 60)
        found = find_engines(reader, all_spellings(()), span_s)
        cases: list[tuple[list[str], int]] = [([], 99), ([], 20), (["large"], 20)]
        crowds = [read_crowds(reader, found, span_s, wanted, most) for wanted, most in cases]
        reader.close()
    assert [(each.matchers, each.services) for each in crowds] == [
        ("", 64),
        ('namespace!="large",namespace!="loud"', 4),
        ("", 30),  # it is asked for, and alone
    ]
    said = "namespace 'large' is left out: it has 30 services; allowed: 8, so that steps stay short for others"
    assert crowds[1].problems[0] == f"{said} (--namespace reads it)"


def written_of_others(end_s: float) -> Iterator[str]:
    """An honest service with what operators' exporters tell of it, and a tenant that writes the same of it."""
    # Without `honor_labels` the scrape has moved labels that name another pod.
    pod, moved = 'namespace="team",pod="good-0"', 'exported_namespace="team",exported_pod="good-0"'
    dcgm, tenant = f'{moved},namespace="gpu-operator",pod="dcgm"', f'{moved},namespace="evil",pod="evil-0"'
    of_daemon = 'exported_namespace="team",workload="good",kind="Deployment",state="floor"'
    kept = 'deployment="good",annotation_vllm_autoscaler_io_policy'
    for count, at_s in enumerate(np.arange(end_s - 3600, end_s + 1, 60.0).tolist()):
        for where, value, device in ((pod, 1, ""), (tenant, 90, "evil-")):
            yield f"vllm:num_requests_running{{{where}}} {value} {at_s:.0f}"
            for bound in ("1.0", "+Inf"):
                yield f'{TTFT}_bucket{{{where},le="{bound}"}} {count * value} {at_s:.0f}'
            exporter = where if device else dcgm
            gpu = f'{{{exporter},UUID="{device}u",modelName="NVIDIA-L4"}}'
            yield f"DCGM_FI_DEV_FB_USED{gpu} {value} {at_s:.0f}"
            yield f"DCGM_FI_DEV_FB_FREE{gpu} 1 {at_s:.0f}"
        yield f'DCGM_FI_DEV_FB_USED{{{tenant},UUID="evil-2",modelName="NVIDIA-L4"}} 1 {at_s:.0f}'
        yield f"tgi_batch_current_size{{{tenant}}} 50 {at_s:.0f}"
        yield f"tgi_queue_size{{{tenant}}} 50 {at_s:.0f}"
        for name, where in (("slow", 'namespace="team"'), ("zzz", 'namespace="evil",exported_namespace="team"')):
            yield f'kube_deployment_annotations{{{where},{kept}="{name}"}} 1 {at_s:.0f}'
        yield f'vllm_autoscaler_gpu_seconds_total{{namespace="ops",{of_daemon}}} {count * 60} {at_s:.0f}'
        yield f'vllm_autoscaler_gpu_seconds_total{{namespace="evil",{of_daemon}}} {count * 900} {at_s:.0f}'
        yield f'vllm_autoscaler_gateway_waiting_requests{{namespace="evil",{of_daemon}}} 0 {at_s:.0f}'
        yield f'vllm_autoscaler_gateway_waiting_requests{{namespace="ops",{of_daemon}}} 0 {at_s:.0f}'


@pytest.mark.integration
async def test_what_a_tenant_writes_of_others_counts_for_none(tmp_path: Path):
    end_s = time.time() // 60 * 60
    span_s, good = (end_s - 3600, end_s), ServiceName("", "team", "good")
    told: dict[str, dict[str, None]] = {name: {} for name in ("gpus", "devices", "policies", "use", "gateways")}
    async with filled_prometheus(tmp_path, merged(iter([families(written_of_others(end_s))]))) as server:
        settings = PrometheusSettings(url=server.url)

        def connect() -> RangeReader:
            return RangeReader(settings, Credentials(settings), time.monotonic() + 60)

        reader = connect()
        found = find_engines(reader, all_spellings(()), span_s)
        queries = service_queries(reader, found, [Objective(1.0, math.nan)], span_s, 120.0)
        history = read_history(connect, queries, Span(end_s - 3600, 120.0, 30), PieceCache(tmp_path / "cache", "here"))
        again = read_history(connect, queries, Span(end_s - 3600, 120.0, 30), PieceCache(tmp_path / "cache", "here"))
        latencies, _ = read_latencies(reader, latency_queries(found), span_s)
        moments = list(read_gpus(reader, found, span_s, 300.0, problems=told["gpus"]))
        devices = read_devices(reader, span_s, told["devices"])
        policies = read_policy_names(reader, span_s, told["policies"])
        use = read_own_use(reader, span_s, told["use"])
        gateways = read_gateways(reader, span_s, told["gateways"])
        exported = read_exported_use(reader, (end_s - 7200, end_s + 3600))
        reader.close()
    assert {engine.name for engine, _ in found.engines} == {"vllm", "tgi"}
    for read in (history, again):
        assert read.services == (good,)
        assert (np.nanmax(read.column("pods")), np.nanmax(read.column("running"))) == (1.0, 1.0)
        assert np.isnan(read.column("waiting")).all()
    assert latencies["ttft"][good].counts[-1] <= 60
    assert [day.samples.running.max() for day in moments] == [1.0]
    assert [np.isnan(day.samples.fb_usage).all() for day in moments] == [True]
    assert {*told["gpus"]} == {
        "pods of 'evil', 'gpu-operator' contradict each other about pods of 'team/good': none is believed"
    }
    assert policies == {good: "slow"}
    assert (devices, use, gateways, exported.columns["gpus"]) == ({}, (), frozenset(), {})
    assert set(told["devices"]) == {
        "pods of 'evil', 'gpu-operator' contradict each other about 'team/good': none is believed"
    }
    for each in (told["use"], told["gateways"], exported.problems):
        assert any("'ops' all export metrics of the daemon about 'team/good" in said for said in each), each
    assert not told["policies"]


def families(lines: Iterator[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(re.split(r"[{ ]", line, maxsplit=1)[0], []).append(line)
    return found


@pytest.mark.integration
@pytest.mark.slow
async def test_a_tenant_spoils_only_its_own_row(tmp_path: Path):
    end_s = time.time() // 60 * 60
    service = Service("generous", day(0.5, 12), lambda _: 4)
    truth, lines = generate(service, end_s - KEPT_H * HOUR_S, end_s, 60.0)
    text = merged(iter([lines, families(bomb(end_s)), families(odd_samples(end_s))]))
    json_file, page = tmp_path / "report.json", tmp_path / "report.html"
    async with filled_prometheus(tmp_path, text) as server:
        result = await invoke(
            *("--prometheus", server.url, "--since", f"{KEPT_H}h", "--json", json_file, "--html", page, "--no-cache")
        )
        settings, span_s = PrometheusSettings(url=server.url), (end_s - 14 * 86_400, end_s)
        reader = RangeReader(settings, Credentials(settings), time.monotonic() + 60)
        crowds = read_crowds(reader, find_engines(reader, all_spellings(()), span_s), span_s)
        reader.close()
    assert crowds.matchers == 'namespace!="bomb"'  # found within an hour, too, in which no count is taken
    assert result.exit_code == 0, result.output
    found = json.loads(json_file.read_text())
    rows = {f"{row['namespace']}/{row['name']}": row for row in found["services"]}
    was = rows.pop("team/generous")["columns"]["actual"]
    assert was["gpu_hours"] == pytest.approx(truth.replica_h, rel=0.02)
    assert was["requests"] == pytest.approx(truth.requests, rel=0.02)
    assert {row["namespace"] for row in rows.values()} == {"odd"}
    assert any(f"'bomb' is left out: it has {BOMB:,} services" in note for note in found["notes"]), found["notes"]
    assert any("names are not names of Kubernetes" in note for note in found["notes"]), found["notes"]
    assert found["step_s"] == 120  # two scrapes: that of most namespaces
    assert "numbers that cannot be true" in rows["odd/liar"]["doubt"]
    sums = [value for column in found["columns"] for value in column["total"].values() if isinstance(value, float)]
    assert sums and all(abs(value) < 1e10 for value in sums if not math.isnan(value)), found["columns"]
    for output in (result.output, page.read_text(), json_file.read_text()):
        assert "\x1b[31mred" not in output and "n" * 254 not in output
    assert "<script" not in page.read_text()
