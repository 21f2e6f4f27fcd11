"""The behaviour of a real vLLM 0.32 server: one test for each finding of `tests/data/vllm/README.md`.

Every text is recorded. The scraper reads it over HTTP, from a server on loopback that answers what the real one did.
"""

import gzip
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.samples import PodSamples
from tests.adapters.scrape.support import RECORDINGS, SteppedClock, endpoint, fleet_of, recorded
from tests.harness.exposition import ExpositionServer
from tests.harness.objectives import objectives
from tests.harness.process import free_port

pytestmark = pytest.mark.slow

SETTINGS = ScrapeSettings(timeout_s=10.0, window_s=10.0)


async def read(server: ExpositionServer, *steps: tuple[str, int]) -> PodSamples:
    """Serve the texts one after the other, each with its /load, to one scraper; return its last reading."""
    clock = SteppedClock()
    async with PodScraper(SETTINGS, clock) as scraper:
        for text, load in steps:
            clock.time_s += 1.0
            server.serve("/metrics", text if text.endswith("\n") else text + "\n")
            server.serve("/load", json.dumps({"server_load": load}))
            pods = (await scraper.sample(fleet_of(server.address), objectives(fleet_of(server.address)), 20.0)).pods
    return pods


async def replay(server: ExpositionServer, series: str) -> AsyncIterator[tuple[dict[str, Any], PodSamples]]:
    """Serve a recorded series of scrapes, one a second, to one scraper, at the times of the recording."""
    clock = SteppedClock()
    async with PodScraper(SETTINGS, clock) as scraper:
        with gzip.open(RECORDINGS / series, "rt") as lines:
            for line in lines:
                moment = json.loads(line)
                clock.time_s = 1000.0 + moment["t"]
                text = moment["text"]
                server.serve("/metrics", text if text.endswith("\n") else text + "\n")
                server.serve("/load", json.dumps({"server_load": moment.get("load", 0)}))
                yield (
                    moment,
                    (await scraper.sample(fleet_of(server.address), objectives(fleet_of(server.address)), 20.0)).pods,
                )


def clients(name: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (RECORDINGS / name).read_text().splitlines()]


def sleep_step(tag: str) -> str:
    """The metrics of one recorded step of putting to sleep and waking up."""
    steps: Any = endpoint("dev_mode", "steps_in_order")
    (found,) = (step["metrics"] for step in steps if step.get("tag") == tag and "metrics" in step)
    return "\n".join(found)


async def test_finding_1_a_sleeping_replica_hides_its_queue(
    exposition_server: ExpositionServer,
) -> None:
    pods = await read(exposition_server, (recorded("sleeping-queued"), 6))
    assert (pods.running[0], pods.waiting[0], pods.asleep[0], pods.held[0]) == (0.0, 0.0, 1.0, 6.0)
    pods = await read(exposition_server, (recorded("awake-again"), 0))
    assert pods.asleep[0] == 0.0


async def test_finding_2_a_loading_server_is_unknown(
    exposition_server: ExpositionServer,
) -> None:
    assert "connection refused" in str(endpoint("while_loading"))
    async with PodScraper(SETTINGS, SteppedClock()) as scraper:
        loading = await scraper.sample(
            fleet_of(f"127.0.0.1:{free_port()}", ready=False),
            objectives(fleet_of(f"127.0.0.1:{free_port()}", ready=False)),
            20.0,
        )
    assert np.isnan([loading.pods.time_s[0], loading.pods.running[0], loading.pods.waiting[0]]).all()
    await read(exposition_server, (recorded("sleeping"), 0))
    assert {request.path for request in exposition_server.requests} == {"/metrics", "/load"}


async def test_finding_3_a_replica_that_drains_is_read_to_its_end(exposition_server: ExpositionServer) -> None:
    pods = await read(exposition_server, (recorded("running"), 2), (recorded("drained"), 0))
    assert (pods.running[0], pods.waiting[0]) == (0.0, 0.0)
    async with PodScraper(SETTINGS, SteppedClock()) as scraper:
        exposition_server.serve("/metrics", recorded("running"))
        # Kubernetes has taken it out of the endpoints, so it is not ready any more.
        terminating = await scraper.sample(
            fleet_of(exposition_server.address, ready=False),
            objectives(fleet_of(exposition_server.address, ready=False)),
            20.0,
        )
    assert terminating.pods.running[0] == 2.0


async def test_finding_4_waiting_shows_a_queue_before_ttft_does(
    exposition_server: ExpositionServer,
) -> None:
    waiting, ttft_s, rate = {}, {}, {}
    before: dict[float, float] = {}
    async for moment, pods in replay(exposition_server, "load-timeseries.jsonl.gz"):
        t = round(moment["t"])
        waiting[t], ttft_s[t] = float(pods.waiting[0]), float(pods.ttft_s[0])
        before[t] = float(pods.generation_tokens[0])
        rate[t] = (before[t] - before.get(t - 10, math.nan)) / 10
    assert waiting[28] == 0 and waiting[40] == 32 and waiting[76] == 0
    real_wait_s = max(client["ttft"] for client in clients("load-clients.jsonl"))
    assert ttft_s[40] < real_wait_s / 2  # the histogram is far too good while the queue is longest ...
    assert ttft_s[76] > 20  # ... and worst when it is gone
    assert waiting[40] * 400 / rate[40] == pytest.approx(real_wait_s, rel=0.15)


async def test_finding_5_kv_usage_shows_a_queue_for_blocks_only(
    exposition_server: ExpositionServer,
) -> None:
    slots = await read(exposition_server, (recorded("saturated"), 34))
    blocks = await read(exposition_server, (recorded("kv-bound"), 26))
    assert slots.waiting[0] == 30 and slots.kv_usage[0] < 0.5 and slots.preemptions[0] == 0
    assert blocks.waiting[0] == 22 and blocks.kv_usage[0] > 0.9 and blocks.preemptions[0] == 5
    assert np.isnan([slots.max_running[0], blocks.max_running[0]]).all()  # --max-num-seqs is in no metric


async def test_finding_6_aborts_by_the_engine_are_counted_as_ended(exposition_server: ExpositionServer) -> None:
    # Those that clients give up are in no metric at all; those that sleep ended are, as `abort`.
    text = recorded("sleeping")
    assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 8.0' in text
    assert (await read(exposition_server, (text, 0))).finished[0] == 8.0


async def test_finding_7_rejections_grow_while_the_queue_is_capped(
    exposition_server: ExpositionServer,
) -> None:
    statuses: Any = endpoint("admission_limit", "statuses_in_order_of_sending")
    pods = await read(exposition_server, (recorded("admission-limit"), 10))
    assert (pods.running[0], pods.waiting[0]) == (4.0, 6.0)
    assert pods.rejections[0] == statuses.count(503) == 10


async def test_finding_8_arrivals_are_ended_requests_plus_those_inside(exposition_server: ExpositionServer) -> None:
    starts = [client["t"] for client in clients("load-clients.jsonl")]
    async for moment, pods in replay(exposition_server, "load-timeseries.jsonl.gz"):
        arrived = pods.finished[0] + pods.running[0] + pods.waiting[0]
        surely = sum(start < moment["t"] - 0.2 for start in starts)
        perhaps = sum(start < moment["t"] + 0.2 for start in starts)
        assert surely - 1 <= arrived <= perhaps + 1
    assert pods.finished[0] == len(starts) == 60


async def test_finding_9_data_parallel_engines_are_summed(
    exposition_server: ExpositionServer,
) -> None:
    text = recorded("dp2-saturated")
    pods = await read(exposition_server, (text, 12))
    assert (pods.running[0], pods.waiting[0]) == (8.0, 16.0)
    assert pods.kv_usage[0] == pytest.approx(0.348, abs=1e-3)
    assert pods.first_tokens[0] == 8.0


async def test_finding_10_load_of_one_process_is_a_lower_bound(
    exposition_server: ExpositionServer,
) -> None:
    text = recorded("dp2-saturated")
    assert "process_start_time_seconds" not in text
    asleep = text.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0')
    assert (await read(exposition_server, (text, 12), (asleep, 12))).held[0] == 12.0
    assert math.isnan((await read(exposition_server, (text, 12), (asleep, 0))).held[0])


async def test_finding_11_load_of_zero_needs_tracking(
    exposition_server: ExpositionServer,
) -> None:
    answer: Any = endpoint("load_without_the_flag", "body")
    assert json.loads(answer) == {"server_load": 0}  # with 4 requests running and 4 waiting
    asleep = recorded("sleeping")
    assert math.isnan((await read(exposition_server, (recorded("saturated"), 0), (asleep, 0))).held[0])
    assert (await read(exposition_server, (recorded("saturated"), 34), (asleep, 0))).held[0] == 0.0


async def test_finding_12_gauges_and_load_differ_by_few_requests(
    exposition_server: ExpositionServer,
) -> None:
    async for moment, pods in replay(exposition_server, "load-timeseries.jsonl.gz"):
        assert abs(moment["load"] - pods.running[0] - pods.waiting[0]) <= 2
        assert pods.running[0] <= 4


async def test_finding_13_preemptions_are_counted(
    exposition_server: ExpositionServer,
) -> None:
    pods = [pods async for _, pods in replay(exposition_server, "kv-bound-timeseries.jsonl.gz")][-1]
    assert pods.preemptions[0] == 32
    assert pods.prompt_tokens[0] == 10215
    assert pods.generation_tokens[0] == sum(client["tokens"] for client in clients("kv-bound-clients.jsonl"))


@pytest.mark.parametrize(
    ("tag", "asleep"),
    [
        ("dev mode, awake, idle", 0.0),
        ("asleep, idle", 1.0),
        ("asleep, 6 requests sent 2 s ago", 1.0),
        ("awake again", 0.0),
        ("sleep level 2", 1.0),
        ("woken only with tags=weights", 1.0),
        ("woken kv_cache too", 0.0),
        ("sleep level 0", 1.0),  # sets none of the three states
        ("paused (mode=keep) with 8 requests in flight", 0.0),  # paused is not asleep; its gauges stand still
    ],
)
async def test_finding_14_every_sleep_level_is_sleep(
    exposition_server: ExpositionServer, tag: str, asleep: float
) -> None:
    pods = await read(exposition_server, (sleep_step(tag), 0))
    assert pods.asleep[0] == asleep


async def test_counters_and_their_created_gauges_are_not_mixed_up(exposition_server: ExpositionServer) -> None:
    text = recorded("saturated")
    assert "vllm:generation_tokens_created" in text and "vllm:num_preemptions_created" in text
    pods = await read(exposition_server, (text, 34))
    assert (pods.generation_tokens[0], pods.preemptions[0]) == (8914.0, 0.0)


async def test_histogram_iteration_tokens_total_is_no_counter(
    exposition_server: ExpositionServer,
) -> None:
    text = recorded("saturated")
    assert "# TYPE vllm:iteration_tokens_total histogram" in text
    with_it = await read(exposition_server, (text, 34))
    without = "\n".join(line for line in text.splitlines() if "iteration_tokens_total" not in line)
    without_it = await read(exposition_server, (without, 34))
    for column in ("prompt_tokens", "generation_tokens", "finished", "first_tokens"):
        assert getattr(with_it, column)[0] == getattr(without_it, column)[0]


async def test_without_requests_there_is_no_quantile(exposition_server: ExpositionServer) -> None:
    pods = await read(exposition_server, (recorded("drained"), 0), (recorded("drained"), 0))
    assert np.isnan([pods.ttft_s[0], pods.itl_s[0]]).all()
    assert pods.first_tokens[0] == 60.0
