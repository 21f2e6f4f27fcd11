"""History from a real Prometheus and a real VictoriaMetrics, filled with a simulated run of known outcome."""

import math
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.resample import WorkloadHistory
from autoscaler.adapters.prometheus.range.workload_history import PrometheusHistory
from autoscaler.config.policy.parse import load
from autoscaler.config.settings import PrometheusSettings
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.lab.replay.inputs.from_history import to_score, to_trace
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.score import compute_score
from autoscaler.ports import Unavailable
from autoscaler.sim.engine.profiles import H100, LLAMA_8B, compute_profile
from autoscaler.sim.engine.traffic import Shape
from tests.adapters.prometheus.backfill import Sample, blocks, import_lines, request_gaps, samples, witnessed
from tests.harness.fixtures import StartPromql
from tests.harness.process import require_binary
from tests.harness.promql import PromqlServer, running
from tests.lab.replay.synthetic import generate

DURATION_S = 3600.0
START_S = float(int(time.time() - 2 * 86_400) // 3600 * 3600)  # within every server's default retention
GOAL = Goal(1.0, 0.1, 0.99)


class Backfilled:
    """One simulated hour, what its pods exposed, and what really happened in it."""

    def __init__(self) -> None:
        from autoscaler.sim.engine.traffic import Lengths

        shape = Shape(3.0, Lengths(400, 0.8, 4000), Lengths(120, 0.7, 1000), day=(1.0, 6.0) + (1.0,) * 22)
        trace = generate("hour", shape, DURATION_S, seed=3)
        self.case = Case(trace, compute_profile(LLAMA_8B, H100), GOAL, cold_start_s=60.0)
        witness, self.outcome = witnessed(self.case, PolicyScaler(self.case, load().policies["interactive"]))
        self.row = compute_score(self.case, self.outcome)
        self.samples = tuple(samples(witness, START_S, "team", "llama"))
        self.of_requests = tuple(request_gaps(witness, self.case, self.outcome, START_S, "team", "llama"))


@pytest.fixture(scope="module")
def backfilled(kernel: None) -> Backfilled:
    return Backfilled()


def prometheus_with(directory: Path, given: tuple[Sample, ...]) -> AbstractAsyncContextManager[PromqlServer]:
    binary = require_binary("prometheus", "apt-get install prometheus")
    fill = blocks(directory, given)

    def command(address: str, config: Path, storage: Path) -> list[str | Path]:
        fill(storage)
        split_learning = f"--config.file={config}", f"--web.listen-address={address}", f"--storage.tsdb.path={storage}"
        return [binary, *split_learning]

    return running("prometheus", command, directory, (), ready_path="/-/ready")


async def load_into(server: PromqlServer, given: tuple[Sample, ...]) -> None:
    await server.load(import_lines(given), f"last_over_time({given[-1].line(1.0).rpartition('}')[0]}}}[3d])")


async def read(server: PromqlServer, **more: float) -> WorkloadHistory:
    history = PrometheusHistory(PrometheusSettings(url=server.url))
    return await history.read("team", "llama", START_S, START_S + DURATION_S, **more)


async def read_with(server: PromqlServer, more: tuple[Sample, ...]) -> WorkloadHistory:
    await load_into(server, more)
    return await read(server)


def assert_tells_the_truth(past: WorkloadHistory, backfilled: Backfilled) -> None:
    trace = backfilled.case.trace
    per_minute = np.nan_to_num(past.arrivals).reshape(60, -1).sum(axis=1)
    real = np.bincount((trace.arrival_s // 60).astype(int), minlength=60)[:60]
    assert abs(per_minute.sum() - real.sum()) < 0.01 * real.sum()
    assert np.median(np.abs(per_minute - real) / np.maximum(real, 1)) < 0.1
    again = to_trace(past, "again", seed=1)
    assert len(again.arrival_s) == pytest.approx(len(trace.arrival_s), rel=0.01)
    assert again.prompt_tokens.mean() == pytest.approx(trace.prompt_tokens.mean(), rel=0.03)
    assert again.output_tokens.mean() == pytest.approx(trace.output_tokens.mean(), rel=0.03)
    row = to_score(past, GOAL, 1.0, backfilled.case.cold_start_s)
    assert row.attainment_ttft == pytest.approx(backfilled.row.attainment_ttft, abs=0.02)
    assert row.attainment_itl == pytest.approx(backfilled.row.attainment_itl, abs=0.02)
    assert row.gpu_hours == pytest.approx(backfilled.row.gpu_hours, rel=0.05)
    assert math.isnan(row.attainment)  # two histograms do not show how many requests met both


@pytest.mark.integration
async def test_prometheus_returns_the_simulated_history(backfilled: Backfilled, tmp_path: Path):
    async with prometheus_with(tmp_path, (*backfilled.samples, *backfilled.of_requests)) as server:
        past = await read(server)
    assert_tells_the_truth(past, backfilled)
    assert past.problems == ()


@pytest.mark.integration
async def test_victoria_metrics_returns_the_same(backfilled: Backfilled, victoria_metrics: StartPromql):
    server = await victoria_metrics()
    await load_into(server, (*backfilled.samples, *backfilled.of_requests))
    past = await read(server)
    assert_tells_the_truth(past, backfilled)
    assert past.problems == ()


@pytest.mark.integration
@pytest.mark.parametrize("by_source", [True, False])
async def test_cached_prompt_tokens_are_no_prefill_in_history(
    backfilled: Backfilled, victoria_metrics: StartPromql, by_source: bool
):
    """A quarter is computed; versions before 0.16 report only hits."""
    server = await victoria_metrics()
    await load_into(server, backfilled.samples)
    computed = np.nansum((await read(server)).prompt_tokens) / 4
    prompts = [sample for sample in backfilled.samples if sample.name == "vllm:prompt_tokens_total"]
    more = []
    for prompt in prompts:
        if by_source:
            name = "vllm:prompt_tokens_by_source_total"
            shares = {"local_compute": 0.25, "local_cache_hit": 0.25, "external_kv_transfer": 0.5}
            more += [
                replace(prompt, name=name, labels={**prompt.labels, "source": source}, value=share * prompt.value)
                for source, share in shares.items()
            ]
        more.append(replace(prompt, name="vllm:prefix_cache_hits_total", value=0.25 * prompt.value))
        more.append(replace(prompt, name="vllm:external_prefix_cache_hits_total", value=0.5 * prompt.value))
    past = await read_with(server, tuple(more))
    assert np.nansum(past.prompt_tokens) == pytest.approx(computed, rel=0.02)
    assert not any("went back" in problem for problem in past.problems)


@pytest.mark.integration
async def test_token_gaps_count_when_request_gaps_are_absent(backfilled: Backfilled, victoria_metrics: StartPromql):
    server = await victoria_metrics()
    await load_into(server, backfilled.samples)
    past = await read(server)
    assert past.problems == ("no histogram of ITL per request: shares of ITL are of tokens",)
    tokens = backfilled.case.trace.output_tokens
    assert past.itl.counts[:, -1].sum() == pytest.approx((tokens - 1).sum(), rel=0.05)
    assert (await read_with(server, backfilled.of_requests)).itl.counts[:, -1].sum() == pytest.approx(
        len(tokens), rel=0.05
    )


@pytest.mark.integration
async def test_pods_that_two_jobs_scrape_count_once(backfilled: Backfilled, tmp_path: Path):
    twice = [
        replace(sample, time_s=sample.time_s + late_s, labels={**sample.labels, "job": job, "endpoint": job})
        for sample in (*backfilled.samples, *backfilled.of_requests)
        for job, late_s in (("team/pods", 0.0), ("services", 4.0))
    ]
    async with prometheus_with(tmp_path, tuple(twice)) as server:
        past = await read(server)
    assert_tells_the_truth(past, backfilled)


@pytest.mark.integration
async def test_a_gap_loses_no_request_and_is_reported(backfilled: Backfilled, tmp_path: Path):
    hole = (START_S + 900.0, START_S + 1620.0)
    kept = tuple(sample for sample in backfilled.samples if not hole[0] < sample.time_s < hole[1])
    async with prometheus_with(tmp_path, kept) as server:
        past = await read(server)
    real = len(backfilled.case.trace.arrival_s)
    assert np.nansum(past.arrivals) == pytest.approx(real, rel=0.02)
    assert any("no pod reported" in problem for problem in past.problems)
    inside = np.nan_to_num(past.arrivals)[60:108]
    assert inside.max() < 3 * inside.mean()  # spread over the hole, not heaped at its end


@pytest.mark.integration
async def test_resets_and_label_changes_count_nothing_twice(backfilled: Backfilled, tmp_path: Path):
    turn_s = START_S + 1800.0
    from_zero: dict[tuple[str, str], float] = {}
    changed = []
    for sample in backfilled.samples:
        if sample.time_s < turn_s:
            changed.append(sample)
            continue
        value = sample.value
        if not is_gauge(sample.name):
            key = sample.name, str(sorted(sample.labels.items()))
            value -= from_zero.setdefault(key, value)
        changed.append(replace(sample, value=value, labels={**sample.labels, "model_name": "llama-v2"}))
    async with prometheus_with(tmp_path, tuple(changed)) as server:
        past = await read(server)
    assert np.nansum(past.arrivals) == pytest.approx(len(backfilled.case.trace.arrival_s), rel=0.02)
    assert any("counters went back" in problem for problem in past.problems)


@pytest.mark.integration
async def test_a_pod_scraped_late_adds_no_earlier_requests(backfilled: Backfilled, tmp_path: Path):
    late = max({sample.labels["pod"] for sample in backfilled.samples})  # it comes after half an hour
    assert all(sample.time_s > START_S + 1800 for sample in backfilled.samples if sample.labels["pod"] == late)
    old = [
        replace(sample, value=sample.value + 2e6 * (sample.labels["pod"] == late and not is_gauge(sample.name)))
        for sample in backfilled.samples
    ]
    async with prometheus_with(tmp_path, tuple(old)) as server:
        past = await read(server)
    assert np.nansum(past.arrivals) == pytest.approx(len(backfilled.case.trace.arrival_s), rel=0.05)
    assert any("1 engine, seen later than others, had served long before" in problem for problem in past.problems)


def is_gauge(name: str) -> bool:
    return name.startswith("vllm:num_requests")


@pytest.mark.integration
async def test_an_unknown_workload_is_reported_with_the_query(backfilled: Backfilled, victoria_metrics: StartPromql):
    server = await victoria_metrics()
    await load_into(server, backfilled.samples)
    history = PrometheusHistory(PrometheusSettings(url=server.url))
    there = r"found there: pod llama-\S+ of workload team/llama"
    with pytest.raises(Unavailable, match=rf"no series of vllm for workload team/lama .*pods of 'lama'; {there}"):
        await history.read("team", "lama", START_S, START_S + 600)
    with pytest.raises(Unavailable, match="no pod of that namespace is known"):
        await history.read("crew", "llama", START_S, START_S + 600)
