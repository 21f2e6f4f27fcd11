"""The engine model compared with two recorded runs of the real server, with the same requests.

The profile is fitted by hand to one run. Two token gaps (9.1 ms with two running, 10.7 ms with four) give the step and
its growth. The TTFT without a queue gives the prefill. The other run, with four times the slots, has no free parameter.
"""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.core.table.columns import FloatColumn
from autoscaler.sim.engine.profiles import Profile
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Request

RECORDED = Path(__file__).parents[2] / "data" / "vllm"

FITTED = Profile(
    step_s=0.0075,
    sequence_s=0.0009,
    kv_token_s=0.0,
    prompt_token_s=3e-4,
    kv_capacity_tokens=23 * 128,  # 24 blocks, one of them reserved
    max_num_seqs=4,
    max_model_len=2048,
    block_size=128,
)


@dataclass
class Run:
    """One row per scrape, float64[T], and one per request, float64[N]."""

    running: FloatColumn
    waiting: FloatColumn
    generation_tokens: FloatColumn
    kv_usage: FloatColumn
    ttft_s: FloatColumn
    preemptions: float


def lines(name: str) -> Iterator[dict[str, object]]:
    path = RECORDED / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from (json.loads(line) for line in file)


def value(text: str, name: str) -> float:
    match = re.search(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
    assert match, name
    return float(match[1])


def both(name: str, profile: Profile, prompt_tokens: int) -> tuple[Run, Run]:
    """Return the recorded run, and the simulated run with the same requests."""
    clients = sorted(lines(f"{name}-clients.jsonl"), key=lambda client: float(str(client["t"])))
    scrapes = list(lines(f"{name}-timeseries.jsonl.gz"))
    texts = [str(scrape["text"]) for scrape in scrapes]
    real = Run(
        *(
            np.array([value(text, metric) for text in texts])
            for metric in ("num_requests_running", "num_requests_waiting", "generation_tokens_total")
        ),
        kv_usage=np.array([value(text, "kv_cache_usage_perc") for text in texts]),
        ttft_s=np.array([client["ttft"] for client in clients], dtype=np.float64),
        preemptions=value(texts[-1], "num_preemptions_total"),
    )
    replica = Replica(profile, 0.0)
    requests = [Request(float(str(c["t"])), prompt_tokens, int(str(c["tokens"]))) for c in clients]
    due, rows = list(requests), []
    for scrape in scrapes:
        at_s = float(str(scrape["t"]))
        while due and due[0].arrived_s <= at_s:
            request = due.pop(0)
            replica.advance(request.arrived_s)
            replica.submit(request, request.arrived_s)
        replica.advance(at_s)
        rows.append((replica.running, replica.waiting, replica.metrics.generation_tokens, replica.kv_usage))
    columns = np.array(rows, dtype=np.float64).T
    ttft_s = np.array([request.ttft_s for request in requests])
    return real, Run(*columns, ttft_s=ttft_s, preemptions=replica.metrics.preemptions)


def median_error(real: FloatColumn, simulated: FloatColumn) -> float:
    """Return the median of the relative errors where the real value is not zero."""
    known = real > 0
    return float(np.median(np.abs(simulated[known] - real[known]) / real[known]))


def test_model_follows_the_recording_it_was_fitted_to() -> None:
    real, simulated = both("load", FITTED, prompt_tokens=85)
    assert median_error(real.ttft_s, simulated.ttft_s) < 0.08  # measured: 0.036
    assert median_error(real.waiting, simulated.waiting) < 0.05  # measured: 0.0
    assert np.abs(simulated.waiting - real.waiting).max() <= 4
    assert median_error(real.generation_tokens, simulated.generation_tokens) < 0.03
    assert simulated.ttft_s.max() == pytest.approx(real.ttft_s.max(), rel=0.05)  # the longest wait: 34.9 s
    busy = real.running > 0
    assert np.median(np.abs(simulated.kv_usage - real.kv_usage)[busy]) < 0.1


def test_profile_follows_another_recording_bound_by_kv_cache() -> None:
    real, simulated = both("kv-bound", replace(FITTED, max_num_seqs=16), prompt_tokens=340)
    assert median_error(real.ttft_s, simulated.ttft_s) < 0.15  # measured: 0.112
    assert median_error(real.waiting, simulated.waiting) < 0.15  # measured: 0.105
    assert simulated.preemptions == pytest.approx(real.preemptions, rel=0.25)  # 32 recorded, 30 here
    assert simulated.running.max() <= 8  # of 16 slots, as recorded
    assert real.running.max() <= 8


def test_aborts_by_sleep_appear_in_the_recorded_metrics() -> None:
    """In `sleeping.prom`, eight requests of 400 tokens run or wait (four each) when the engine goes to sleep."""
    text = (RECORDED / "sleeping.prom").read_text()
    replica = Replica(FITTED, 0.0)
    for _ in range(8):
        replica.submit(Request(2630.0, 86, 400), 2630.0)
    replica.advance(2631.5)
    assert (replica.running, replica.waiting) == (4, 4)
    replica.pause("abort", 2631.5)
    its = replica.metrics
    histograms = {
        "time_to_first_token_seconds": its.ttft,
        "request_time_per_output_token_seconds": its.request_token_gap,
        "e2e_request_latency_seconds": its.e2e,
        "request_queue_time_seconds": its.queue,
        "request_inference_time_seconds": its.inference,
        "request_prefill_time_seconds": its.prefill,
        "request_decode_time_seconds": its.decode,
        "request_prompt_tokens": its.request_prompt,
        "request_generation_tokens": its.request_output,
        "request_num_preemptions": its.request_preemptions,
        "request_params_n": its.samples,
    }
    for name, histogram in histograms.items():
        assert histogram.count == value(text, f"{name}_count") == 8, name
        assert histogram.total == pytest.approx(value(text, f"{name}_sum"), rel=0.15, abs=0.01), name
    assert its.finished_abort == 8
    assert its.http_ok == its.http.count == its.http_fine.count == 8
    # The abort is one more gap for requests with tokens.
    assert its.token_gap.count == its.generation_tokens
    assert value(text, "inter_token_latency_seconds_count") == value(text, "generation_tokens_total")
    assert its.prompt_tokens == pytest.approx(value(text, "prompt_tokens_total"), rel=0.1)
