"""Scraping pods that are real servers on loopback, well-behaved and not."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace

import numpy as np
import pytest

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.scrape.pods import LOAD_PROBE_S, PodScraper
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import PodSamples, Samples
from autoscaler.ports import Clock
from tests.adapters.scrape.support import SteppedClock, fleet_of, recorded
from tests.harness.exposition import Answer, ExpositionServer
from tests.harness.exposition import exposition_server as another_server
from tests.harness.loop_time import pass_time
from tests.harness.objectives import objectives
from tests.harness.process import eventually, free_port
from tests.harness.ttft import POOLED_S, ttft_text

NAN = math.nan


@asynccontextmanager
async def scraper(clock: Clock | None = None, **settings: float) -> AsyncIterator[PodScraper]:
    values = {"timeout_s": 10.0, **settings}
    async with PodScraper(ScrapeSettings(**values), clock or SteppedClock()) as opened:  # type: ignore[arg-type]
        yield opened


async def sample(fleet: Fleet, ttft_s: float = NAN, itl_s: float = NAN, **settings: float) -> Samples:
    async with scraper(**settings) as opened:
        return await opened.sample(fleet, objectives(fleet, ttft_s, itl_s), deadline_s=20.0)


def text(running: float, *, start_s: float = 1e9, fast: int = 0, slow: int = 0, extra: str = "") -> str:
    """An engine's metrics in short: this many first tokens within 0.1 s and this many within 1 s."""
    return f"""process_start_time_seconds {start_s}
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1",model_name="m"}} {fast}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="1.0",model_name="m"}} {fast + slow}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {fast + slow}
{extra}"""


async def test_a_recorded_server_fills_the_columns_of_its_pod(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", recorded("saturated"))
    exposition_server.serve("/load", '{"server_load":34}')
    samples = await sample(fleet_of(exposition_server.address), ttft_s=0.15, itl_s=0.02)
    known = {c.name: getattr(samples.pods, c.name)[0] for c in fields(PodSamples)}
    assert {name: value for name, value in known.items() if not np.isnan(value)} == {
        "time_s": 1000.0,
        "running": 4.0,
        "waiting": 30.0,
        "deferred": 0.0,
        "held": 34.0,
        "asleep": 0.0,
        "kv_usage": pytest.approx(0.348, abs=1e-3),
        "prompt_tokens": 2948.0,
        "generation_tokens": 8914.0,
        "finished": 26.0,
        "first_tokens": 30.0,
        "ttft_met": pytest.approx(16 + 2 / 3),  # 16 until 0.1 s, 18 until 0.25 s
        "gap_s": pytest.approx(91.12, abs=0.01),
        "gaps": 8884.0,
        "itl_judged": 26.0,
        "itl_met": pytest.approx(22.0),  # 14 until 10 ms, all until 25 ms
        "prefill_judged": 26.0,
        "prefill_met": 26.0,  # none above 0.3 s, the next bound above 0.15 s
        "preemptions": 0.0,
        "rejections": 0.0,
    }
    assert samples.reports[0].source == "scrape"
    assert (samples.reports[0].queries, samples.reports[0].failed, samples.reports[0].problems) == (2, 0, ())
    assert np.isnan(samples.gateways.time_s).all()


async def test_objectives_are_counted_only_for_workloads_with_one(
    exposition_server: ExpositionServer,
) -> None:
    exposition_server.serve("/metrics", recorded("saturated"))
    samples = await sample(fleet_of(exposition_server.address), itl_s=0.01)
    assert (samples.pods.itl_met.tolist(), samples.pods.itl_judged.tolist()) == ([14], [26])
    assert np.isnan(samples.pods.ttft_met).all()
    assert samples.reports[0].problems == ()


async def test_a_missing_histogram_is_reported_once_requests_end(
    exposition_server: ExpositionServer,
) -> None:
    fleet = fleet_of(exposition_server.address)
    exposition_server.serve("/metrics", text(1, fast=7, slow=2))
    samples = await sample(fleet, ttft_s=1.0, itl_s=0.05)
    assert (samples.pods.ttft_met.tolist(), samples.reports[0].problems) == ([9], ())
    exposition_server.serve("/metrics", text(1, extra='vllm:request_success_total{finished_reason="stop"} 3\n'))
    samples = await sample(fleet, ttft_s=1.0, itl_s=0.05)
    assert np.isnan(samples.pods.itl_met).all()
    (problem,) = samples.reports[0].problems
    assert "itl_met unknown: ITL misses are neither learned by load" in problem


async def test_quantiles_cover_the_window_and_need_requests(
    exposition_server: ExpositionServer,
) -> None:
    clock, fleet = SteppedClock(), fleet_of(exposition_server.address)
    async with scraper(clock, window_s=60.0) as opened:

        async def ttft_s(body: str, after_s: float) -> float:
            clock.time_s += after_s
            exposition_server.serve("/metrics", body)
            return float((await opened.sample(fleet, objectives(fleet), 20.0)).pods.ttft_s[0])

        assert math.isnan(await ttft_s(text(1, fast=1000), 0))  # what happened before is not in the window
        assert await ttft_s(text(1, fast=1000, slow=100), 5) == pytest.approx(0.955)
        assert math.isnan(await ttft_s(text(0, fast=1000, slow=100), 70))


async def test_quantile_is_that_of_all_pods_together() -> None:
    clock = SteppedClock()
    async with another_server() as one, another_server() as other, scraper(clock) as opened:
        fleet, samples = fleet_of(one.address, other.address), []
        for times in (1, 2):
            one.serve("/metrics", ttft_text(quick=50 * times, slow=0))
            other.serve("/metrics", ttft_text(quick=0, slow=50 * times))
            samples.append(await opened.sample(fleet, objectives(fleet), 20.0))
            clock.time_s += 5
    assert np.isnan(samples[0].pods.ttft_s).all()
    assert samples[1].pods.ttft_s == pytest.approx([POOLED_S, POOLED_S])


async def test_a_silent_pod_is_not_part_of_the_quantile() -> None:
    clock = SteppedClock()
    async with another_server() as one, another_server() as other, scraper(clock) as opened:
        fleet = fleet_of(one.address, other.address)
        for times in (1, 2, 3):
            one.serve("/metrics", ttft_text(quick=50 * times, slow=0))
            gone = Answer("", status=503)
            other.serve("/metrics", gone if times == 3 else ttft_text(quick=0, slow=50 * times))
            samples = await opened.sample(fleet, objectives(fleet), 20.0)
            clock.time_s += 5
    assert samples.pods.ttft_s == pytest.approx([2.425, NAN], nan_ok=True)


async def test_a_restarted_pod_needs_two_readings_for_a_quantile(
    exposition_server: ExpositionServer,
) -> None:
    clock, fleet = SteppedClock(), fleet_of(exposition_server.address)
    async with scraper(clock) as opened:

        async def ttft_s(body: str) -> float:
            clock.time_s += 5
            exposition_server.serve("/metrics", body)
            return float((await opened.sample(fleet, objectives(fleet), 20.0)).pods.ttft_s[0])

        await ttft_s(text(1, fast=10))
        assert await ttft_s(text(1, fast=110)) == pytest.approx(0.095)
        # More than before, so only the start time shows that all are new, and their time is unknown.
        assert math.isnan(await ttft_s(text(1, start_s=2e9, slow=500, fast=110)))
        assert await ttft_s(text(1, start_s=2e9, slow=500, fast=210)) == pytest.approx(0.095)
        # Without a start time, decreasing counts show it.
        assert math.isnan(await ttft_s(text(1, fast=1).partition("\n")[2]))


async def test_a_counter_that_jumps_back_is_passed_on_as_it_is(exposition_server: ExpositionServer) -> None:
    fleet = fleet_of(exposition_server.address)
    async with scraper() as opened:
        for value in (500.0, 3.0):
            exposition_server.serve("/metrics", text(1, extra=f"vllm:generation_tokens_total {value}\n"))
            assert (await opened.sample(fleet, objectives(fleet), 20.0)).pods.generation_tokens.tolist() == [value]


async def test_a_pod_with_a_closed_port_is_starting() -> None:
    samples = await sample(fleet_of(f"127.0.0.1:{free_port()}", ready=False))
    assert np.isnan(samples.pods.time_s).all()
    assert (samples.reports[0].queries, samples.reports[0].failed, samples.reports[0].problems) == (1, 0, ())


async def test_a_ready_pod_that_does_not_answer_is_named() -> None:
    samples = await sample(fleet_of(f"127.0.0.1:{free_port()}"))
    assert np.isnan(samples.pods.running).all()
    assert samples.reports[0].failed == 1
    assert samples.reports[0].problems == ("llm/qwen-0: connection refused",)


async def test_a_pod_that_is_not_ready_but_answers_is_read(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", text(2))
    assert (await sample(fleet_of(exposition_server.address, ready=False))).pods.running.tolist() == [2.0]


async def test_a_pod_without_an_address_is_not_read() -> None:
    fleet = fleet_of("127.0.0.1:1")
    samples = await sample(replace(fleet, pods=(fleet.pods[0]._replace(ip=""),)))
    assert samples.reports[0].queries == 0


@pytest.mark.parametrize(
    "ip", ["metadata.internal", "127.0.0.1@evil", "127.0.0.1/x?", "::1%eth0:80", "0x7f.1", "127.1"]
)
async def test_an_invalid_address_is_reported_and_not_read(ip: str) -> None:
    fleet = fleet_of("127.0.0.1:1")
    samples = await sample(replace(fleet, pods=(fleet.pods[0]._replace(ip=ip),)))
    assert samples.reports[0].queries == 0
    assert samples.reports[0].problems == (
        f"llm/qwen-0: address {ip!r} port 1; allowed: an IP address and a port from 1 to 65535",
    )


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_an_invalid_port_is_reported_and_not_read(port: int) -> None:
    fleet = fleet_of("127.0.0.1:1")
    samples = await sample(replace(fleet, pods=(fleet.pods[0]._replace(metrics_port=port),)))
    assert samples.reports[0].problems == (
        f"llm/qwen-0: address '127.0.0.1' port {port}; allowed: an IP address and a port from 1 to 65535",
    )


async def test_an_unknown_engine_is_reported_with_the_known_ones() -> None:
    samples = await sample(fleet_of("127.0.0.1:1", engine="llama"))
    assert samples.reports[0].problems == (
        "llm/qwen: engine 'llama', known are vllm, sglang, tgi, trtllm, triton, nim",
    )


async def test_each_workload_is_read_by_its_engines_table_and_path(
    exposition_server: ExpositionServer,
) -> None:
    exposition_server.serve("/prometheus/metrics", 'trtllm_num_requests_running{model_name="m"} 3\n')
    samples = await sample(fleet_of(exposition_server.address, engine="trtllm"))
    assert samples.pods.running.tolist() == [3.0]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(recorded("running")[:-100]), "cut off after"),
        (Answer(b"\x7fELF\0\0\n"), "binary"),
        (Answer(recorded("running"), truncate_at=9000), "connection closed inside the body"),
        (Answer("x 1\n" * 300_000), "body larger than 1000000 bytes"),
        (Answer("<html>login</html>\n"), "HTML, not metrics text"),
        (Answer('[{"iter": 1}]'), "JSON, not metrics text"),
        (Answer("process_start_time_seconds 1.7e9\nhttp_requests_total 5\n"), "no metric of vllm"),
        (Answer(""), "no metric of vllm"),
        (Answer(status=503), "HTTP 503"),
        (Answer(status=302, headers={"Location": "http://169.254.169.254/"}), "redirects are not followed"),
        (Answer(status=301, headers={"Location": "https://llm/metrics"}), "metrics-scheme: https says so"),
        (Answer(drop=True), "connection closed without an answer"),
        (Answer(b"\x1f\x8b", headers={"Content-Encoding": "gzip"}), "broken gzip"),
        (Answer("a 1\n", delay_s=9000), "no answer within 10 s"),
    ],
)
async def test_a_hostile_pod_is_reported_and_harms_no_other(
    exposition_server: ExpositionServer, answer: Answer, problem: str
) -> None:
    exposition_server.serve("/metrics", answer)
    async with another_server() as good:
        good.serve("/metrics", text(5))
        fleet = fleet_of(exposition_server.address, good.address)
        sampling = asyncio.create_task(sample(fleet, max_body_bytes=1_000_000))
        if answer.delay_s:
            await asked(exposition_server, 1)
            await asked(good, 2)  # also for its /load, so its metrics have been read
            pass_time(12)  # aiohttp rounds long time-outs up
        samples = await sampling
    assert np.isnan(samples.pods.time_s[0]) and np.isnan(samples.pods.running[0])
    assert samples.pods.running[1] == 5.0
    assert samples.reports[0].failed == 1
    assert problem in samples.reports[0].problems[0]


@pytest.mark.parametrize(
    ("engine", "body", "missing"),
    [
        ("triton", 'nv_inference_request_success{model="m",version="1"} 5\n', "nv_trt_llm_request_metrics"),
        ("trtllm", 'trtllm_time_to_first_token_seconds_count{model_name="m"} 5\n', "trtllm_num_requests_running"),
        ("trtllm", 'trtllm_request_success_total{model_name="m"} 5\n', "trtllm_num_requests_running"),
    ],
)
async def test_missing_running_requests_are_reported(
    exposition_server: ExpositionServer, engine: str, body: str, missing: str
) -> None:
    for path in ("/metrics", "/prometheus/metrics"):
        exposition_server.serve(path, body)
    (report,) = (await sample(fleet_of(exposition_server.address, engine=engine))).reports
    assert f"reports metrics of {engine}, but none of {missing}" in report.problems[0]


async def test_hostile_label_values_change_no_reading(exposition_server: ExpositionServer) -> None:
    evil = r"\"} 99\nvllm:num_requests_running{x=\"" + "\u2028é" * 50 + "'; DROP TABLE--{}"
    body = f'vllm:num_requests_running{{engine="0",model_name="{evil}"}} 2\n'
    exposition_server.serve("/metrics", body + f'vllm:num_requests_waiting{{model_name="{evil}"}} 1\n')
    samples = await sample(fleet_of(exposition_server.address))
    assert (samples.pods.running.tolist(), samples.pods.waiting.tolist()) == ([2.0], [1.0])


async def test_a_broken_line_makes_its_own_column_unknown_and_is_named(exposition_server: ExpositionServer) -> None:
    body = (
        'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1} 2\nvllm:num_requests_waiting 1\n'
    )
    exposition_server.serve("/metrics", body)
    samples = await sample(fleet_of(exposition_server.address))
    assert np.isnan(samples.pods.running[0])
    assert samples.pods.waiting[0] == 1.0
    assert samples.reports[0].problems == ("llm/qwen-0: lines that cannot be read: vllm:num_requests_running",)


async def test_absurd_values_are_unknown(exposition_server: ExpositionServer) -> None:
    exposition_server.serve(
        "/metrics",
        "vllm:num_requests_running -3\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc 97\n"
        "vllm:generation_tokens_total NaN\nvllm:prompt_tokens_total 5\n",
    )
    pods = (await sample(fleet_of(exposition_server.address))).pods
    assert pods.prompt_tokens[0] == 5.0
    for column in (pods.running, pods.waiting, pods.kv_usage, pods.generation_tokens):
        assert np.isnan(column[0])


async def asked(server: ExpositionServer, times: int) -> None:
    """Wait until the server has been asked this many times."""

    async def often() -> bool:
        return len(server.requests) >= times

    await eventually(often, f"{times} requests", every_s=0.005)


async def test_slow_pods_keep_the_others_waiting_once_and_not_again(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", Answer(text(1), delay_s=9000))

    async def time_passes() -> None:
        """Whenever two more slow pods are asked, let the time-out pass, or what is left until the deadline."""
        for pairs, seconds in enumerate((41, 41, 20) * 2, 1):  # aiohttp rounds long time-outs up
            await asked(exposition_server, 2 * pairs)
            pass_time(seconds)

    async with another_server() as good:
        good.serve("/metrics", text(5))
        fleet = fleet_of(*[exposition_server.address] * 6, *[good.address] * 3)
        passing = asyncio.create_task(time_passes())
        async with scraper(SystemClock(), concurrency=2, timeout_s=40) as opened:
            first = await opened.sample(fleet, objectives(fleet), deadline_s=100)
            assert np.isnan(first.pods.running).all()  # two at once, abandoned after 40 s
            assert any("not reached within the 100 s" in line for line in first.reports[0].problems)
            second = await opened.sample(fleet, objectives(fleet), deadline_s=100)
        passing.cancel()
        assert second.pods.running[6:].tolist() == [5.0, 5.0, 5.0]
        assert np.isnan(second.pods.running[:6]).all()


@pytest.mark.parametrize("has_neighbour", [True, False])
async def test_slow_pods_of_a_namespace_end_no_reading_late(
    exposition_server: ExpositionServer, has_neighbour: bool
) -> None:
    """Two of twelve are asked at once. With a neighbour the reading goes on after the first two; all get their turn."""
    exposition_server.serve("/metrics", Answer(text(1), delay_s=9000))

    async def time_passes() -> None:
        for pairs in range(1, 20):
            await asked(exposition_server, 2 * pairs)
            pass_time(41)

    async with another_server() as good:
        good.serve("/metrics", text(5))
        fleet = fleet_of(*[exposition_server.address] * 12, *[good.address] * 2)
        near = [pod._replace(namespace="near") for pod in fleet.pods[12:]] if has_neighbour else fleet.pods[12:]
        fleet = replace(fleet, pods=(*fleet.pods[:12], *near))
        passing = asyncio.create_task(time_passes())
        async with scraper(SystemClock(), concurrency=2, timeout_s=40) as opened:
            for number in (1, 2):
                found = await opened.sample(fleet, objectives(fleet), deadline_s=1000)
                assert found.pods.running[12:].tolist() == [5.0, 5.0]
                assert exposition_server.asked("/metrics") == (2 if has_neighbour else 12) * number
            names = {line.partition(":")[0] for line in found.reports[0].problems if "no answer within" in line}
            assert not has_neighbour or names == {"llm/qwen-2", "llm/qwen-3"}
            assert any("not asked in this reading" in line for line in found.reports[0].problems) == has_neighbour
        passing.cancel()


async def test_readings_before_the_deadline_are_kept(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", Answer(text(1), delay_s=9000))

    async def time_passes() -> None:
        await asked(exposition_server, 1)  # the other pod has been read by then
        pass_time(100)

    async with another_server() as good:
        good.serve("/metrics", text(5))
        fleet = fleet_of(good.address, exposition_server.address)
        async with scraper(concurrency=1, timeout_s=1000) as opened, asyncio.TaskGroup() as group:
            group.create_task(time_passes())
            samples = await opened.sample(fleet, objectives(fleet), deadline_s=100)
    assert samples.pods.running[0] == 5.0
    assert np.isnan(samples.pods.running[1])


async def test_many_failures_are_counted_and_a_few_named() -> None:
    samples = await sample(fleet_of(*[f"127.0.0.1:{free_port()}"] * 40))
    assert samples.reports[0].failed == 40
    assert len(samples.reports[0].problems) == 9
    assert samples.reports[0].problems[-1] == "and 32 more"


async def test_an_empty_fleet_sends_no_request() -> None:
    samples = await sample(fleet_of())
    assert len(samples.pods.running) == 0
    assert samples.reports[0].queries == 0


async def test_a_successor_of_a_deleted_pod_starts_without_history(
    exposition_server: ExpositionServer,
) -> None:
    clock = SteppedClock()
    async with scraper(clock) as opened:
        for pod_id, fast in ((0, 0), (0, 100), (1, 200)):
            clock.time_s += 5
            exposition_server.serve("/metrics", text(1, fast=fast))
            samples = await opened.sample(
                fleet_of(exposition_server.address, first_id=pod_id),
                objectives(fleet_of(exposition_server.address, first_id=pod_id)),
                20.0,
            )
            assert math.isnan(samples.pods.ttft_s[0]) == (fast != 100)


# /load: what a sleeping engine hides.

ASLEEP = 'vllm:engine_sleep_state{sleep_state="awake"} 0\n'
AWAKE = 'vllm:engine_sleep_state{sleep_state="awake"} 1\n'


async def held(opened: PodScraper, server: ExpositionServer, body: str, load: str | Answer) -> float:
    server.serve("/metrics", body)
    server.serve("/load", load)
    return float(
        (await opened.sample(fleet_of(server.address), objectives(fleet_of(server.address)), 20.0)).pods.held[0]
    )


async def test_load_of_an_idle_awake_engine_is_not_read(exposition_server: ExpositionServer) -> None:
    async with scraper() as opened:
        assert math.isnan(await held(opened, exposition_server, text(0, extra=AWAKE), '{"server_load":0}'))
    assert exposition_server.asked("/load") == 0


async def test_load_of_a_sleeping_engine_counts_above_zero(exposition_server: ExpositionServer) -> None:
    async with scraper() as opened:
        assert await held(opened, exposition_server, text(0, extra=ASLEEP), '{"server_load":6}') == 6.0


async def test_a_load_of_zero_is_unknown_until_tracking_is_shown(
    exposition_server: ExpositionServer,
) -> None:
    async with scraper() as opened:
        assert math.isnan(await held(opened, exposition_server, text(0, extra=ASLEEP), '{"server_load":0}'))
        assert await held(opened, exposition_server, text(3, extra=AWAKE), '{"server_load":3}') == 3.0
        assert await held(opened, exposition_server, text(0, extra=ASLEEP), '{"server_load":0}') == 0.0


async def test_a_server_without_load_tracking_is_probed_rarely(
    exposition_server: ExpositionServer,
) -> None:
    clock = SteppedClock()
    async with scraper(clock) as opened:
        for _ in range(3):
            clock.time_s += 1
            assert math.isnan(await held(opened, exposition_server, text(3, extra=AWAKE), '{"server_load":0}'))
        assert exposition_server.asked("/load") == 1
        clock.time_s += LOAD_PROBE_S
        await held(opened, exposition_server, text(3, extra=AWAKE), '{"server_load":0}')
        assert exposition_server.asked("/load") == 2


@pytest.mark.parametrize(
    "load",
    [
        "",
        "[]",
        "null",
        '"6"',
        '{"server_load":"6"}',
        '{"server_load":true}',
        '{"server_load":-1}',
        '{"load":6}',
        '{"server_load":1e400}',
        '{"server_load":' + "9" * 5000 + "}",
        "[" * 100_000,
        Answer(status=404),
    ],
)
async def test_a_senseless_load_is_unknown_and_no_failure(
    exposition_server: ExpositionServer, load: str | Answer
) -> None:
    exposition_server.serve("/metrics", text(0, extra=ASLEEP))
    exposition_server.serve("/load", load)
    samples = await sample(fleet_of(exposition_server.address))
    assert math.isnan(samples.pods.held[0])
    assert samples.pods.asleep[0] == 1.0
    assert samples.reports[0].failed == 0


async def test_names_with_a_prefix_are_read_when_it_is_known_or_stated(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", text(3).replace("vllm:", "ray_vllm_"))
    assert (await sample(fleet_of(exposition_server.address))).pods.running[0] == 3
    exposition_server.serve("/metrics", text(3).replace("vllm:", "x_vllm:"))
    (problem,) = (await sample(fleet_of(exposition_server.address))).reports[0].problems
    assert problem.endswith("bytes: found x_vllm:num_requests_running; state the prefix with --metric-prefix x_")
    stated = await sample(fleet_of(exposition_server.address), metric_prefixes=("x_",))  # type: ignore[arg-type]
    assert stated.pods.running[0] == 3


async def test_a_hint_is_given_when_no_engine_metric_is_found(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", "python_info 1\nhttp_requests_total 5\n")
    (problem,) = (await sample(fleet_of(exposition_server.address))).reports[0].problems
    assert problem.endswith("are its statistics off (--disable-log-stats), or not on (--enable-metrics)?")
    exposition_server.serve("/metrics", 'sglang:num_running_reqs{model_name="m"} 5\n')
    (problem,) = (await sample(fleet_of(exposition_server.address))).reports[0].problems
    assert "found sglang:num_running_reqs, of engine sglang" in problem
