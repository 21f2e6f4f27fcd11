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
from autoscaler.adapters.prometheus.range.crowds import read_crowds
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import find_engines
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import PrometheusSettings
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
