"""Gateways read directly, as real servers on loopback. The texts are made from the names in `catalog/gateways.py`."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from autoscaler.adapters.scrape.gateways import GatewayScraper
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.samples import GatewaySamples, SourceReport
from tests.adapters.scrape.support import SteppedClock, fleet_of
from tests.harness.exposition import Answer, ExpositionServer
from tests.harness.exposition import exposition_server as another_server
from tests.harness.objectives import objectives
from tests.harness.process import free_port

FLEET = fleet_of()  # workload llm/qwen, at zero
EPP = 'llm_d_epp_flow_control_queue_size{{inference_pool="qwen",fairness_id="",priority="0",model_name="qwen"}} {}\n'
INCOMING = 'vllm:num_incoming_requests_total{{model="qwen"}} {}\n'


class Reader:
    """A scraper and its clock: set what the gateways answer, step the time, read."""

    def __init__(self, scraper: GatewayScraper, clock: SteppedClock) -> None:
        self._scraper = scraper
        self._clock = clock
        self.report = SourceReport("")

    async def read(self, after_s: float = 0.0) -> GatewaySamples:
        self._clock.time_s += after_s
        samples = await self._scraper.sample(FLEET, objectives(FLEET), deadline_s=20.0)
        (self.report,) = samples.reports
        assert np.isnan(samples.pods.time_s).all()
        return samples.gateways


@asynccontextmanager
async def watching(*servers: ExpositionServer | str) -> AsyncIterator[Reader]:
    urls = tuple(server if isinstance(server, str) else f"{server.url}/metrics" for server in servers)
    clock = SteppedClock()
    async with GatewayScraper(ScrapeSettings(gateways=urls, timeout_s=10.0, window_s=60.0), clock) as scraper:
        yield Reader(scraper, clock)


async def test_one_waiting_request_shows_without_a_pod(
    exposition_server: ExpositionServer,
) -> None:
    exposition_server.serve("/metrics", EPP.format(1))
    async with watching(exposition_server) as reader:
        front = await reader.read()
    assert (front.waiting[0], front.time_s[0]) == (1.0, 1000.0)
    assert math.isnan(front.arrivals_per_s[0])
    assert (reader.report.source, reader.report.queries, reader.report.failed) == ("gateway", 1, 0)


async def test_old_and_new_names_of_one_gateway_are_not_added(
    exposition_server: ExpositionServer,
) -> None:
    old = EPP.replace("llm_d_epp_", "inference_extension_")
    exposition_server.serve("/metrics", EPP.format(3) + old.format(3))
    async with watching(exposition_server) as reader:
        assert (await reader.read()).waiting[0] == 3.0


async def test_replicas_of_a_gateway_are_added(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", EPP.format(3))
    async with another_server() as second, watching(exposition_server, second) as reader:
        second.serve("/metrics", EPP.format(4))
        assert (await reader.read()).waiting[0] == 7.0


async def test_a_gateway_without_series_is_unknown_and_zero_is_zero(
    exposition_server: ExpositionServer,
) -> None:
    exposition_server.serve("/metrics", "up 1\n")
    async with watching(exposition_server) as reader:
        front = await reader.read()
        assert np.isnan([front.waiting[0], front.arrivals_per_s[0], front.time_s[0]]).all()
        exposition_server.serve("/metrics", EPP.format(0))
        assert (await reader.read()).waiting[0] == 0.0


async def test_arrivals_end_with_the_reading_after_the_last(exposition_server: ExpositionServer) -> None:
    async with watching(exposition_server) as reader:

        async def rate(count: int, after_s: float) -> float:
            exposition_server.serve("/metrics", INCOMING.format(count))
            return float((await reader.read(after_s)).arrivals_per_s[0])

        assert math.isnan(await rate(5_000, 0))  # arrivals before the first read came at an unknown time
        assert await rate(5_010, 5) == 2.0
        assert await rate(5_010, 5) == 0.0
        assert await rate(5_030, 20) == 1.0
        assert await rate(5_030, 5) == 0.0


async def test_a_counter_that_falls_without_a_restart_is_unknown(exposition_server: ExpositionServer) -> None:
    started = "process_start_time_seconds 1.7e9\n"
    async with watching(exposition_server) as reader:
        rates, reported = [], []
        for count in (1000, 1006, 0, 1012, 0, 3, 9):
            exposition_server.serve("/metrics", started + INCOMING.format(count))
            rates.append((await reader.read(after_s=6.0)).arrivals_per_s[0])
            reported.append(reader.report.problems)
    assert math.isnan(rates[0]) and math.isnan(rates[2]) and math.isnan(rates[4])
    assert max(rate for rate in rates if not math.isnan(rate)) <= 1.0
    assert rates[-1] > 0
    assert reported[:2] == [(), ()]
    assert all("counters fell although the process did not start again" in line for (line,) in reported[2:])


async def test_a_counter_that_was_reset_counts_from_zero(exposition_server: ExpositionServer) -> None:
    async with watching(exposition_server) as reader:
        for count, after_s, expected in ((500, 0, math.nan), (510, 10, 1.0), (10, 10, 1.0)):
            exposition_server.serve("/metrics", INCOMING.format(count))
            found = float((await reader.read(after_s)).arrivals_per_s[0])
            assert found == pytest.approx(expected, nan_ok=True)


async def test_a_series_made_by_the_first_request_counts_it(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", 'vllm:num_incoming_requests_total{model="other"} 7\n')
    async with watching(exposition_server) as reader:
        assert math.isnan((await reader.read()).arrivals_per_s[0])
        exposition_server.serve("/metrics", INCOMING.format(1))
        assert (await reader.read(1)).arrivals_per_s[0] > 0
        exposition_server.serve("/metrics", INCOMING.format(3))
        assert (await reader.read(1)).arrivals_per_s[0] == 2.0


async def test_a_series_that_disappears_does_not_count_twice(exposition_server: ExpositionServer) -> None:
    async with watching(exposition_server) as reader:
        for text in (INCOMING.format(1000), INCOMING.format(1000), "up 1\n", INCOMING.format(1000)):
            exposition_server.serve("/metrics", text)
            front = await reader.read(5)
    assert front.arrivals_per_s[0] == 0.0


async def test_a_count_that_is_none_is_left_out_and_does_no_harm_later(exposition_server: ExpositionServer) -> None:
    async with watching(exposition_server) as reader:
        for count in ("1000", "NaN", "+Inf", "-5", "1010"):
            exposition_server.serve("/metrics", INCOMING.format(count))
            front = await reader.read(5)
    assert front.arrivals_per_s[0] == 0.5


async def test_a_series_that_a_body_has_twice_counts_once(exposition_server: ExpositionServer) -> None:
    async with watching(exposition_server) as reader:
        for count in (0, 10):
            exposition_server.serve("/metrics", 2 * INCOMING.format(count))
            front = await reader.read(5)
    assert front.arrivals_per_s[0] == 2.0


async def test_zeros_are_unknown_while_a_gateway_replica_is_silent(
    exposition_server: ExpositionServer,
) -> None:
    exposition_server.serve("/metrics", EPP.format(0))
    async with another_server() as second, watching(exposition_server, second) as reader:
        second.serve("/metrics", EPP.format(2))
        assert (await reader.read()).waiting[0] == 2.0
        second.serve("/metrics", Answer(status=503))
        assert math.isnan((await reader.read()).waiting[0])  # a lost replica never makes it 0
        assert reader.report.failed == 1
        exposition_server.serve("/metrics", EPP.format(5))
        assert (await reader.read()).waiting[0] == 5.0


async def test_a_silent_gateway_affects_only_workloads_it_reported(
    exposition_server: ExpositionServer,
) -> None:
    exposition_server.serve("/metrics", EPP.format(0))
    async with watching(exposition_server, f"http://127.0.0.1:{free_port()}/metrics") as reader:
        assert (await reader.read()).waiting[0] == 0.0
        assert "connection refused" in reader.report.problems[0]


async def test_silence_makes_everything_unknown(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", EPP.format(4) + INCOMING.format(1))
    async with watching(exposition_server) as reader:
        await reader.read()
        exposition_server.serve("/metrics", Answer(drop=True))
        front = await reader.read(5)
        assert np.isnan([front.waiting[0], front.arrivals_per_s[0], front.time_s[0]]).all()


async def test_arrivals_during_a_silence_are_spread_over_it(exposition_server: ExpositionServer) -> None:
    exposition_server.serve("/metrics", INCOMING.format(0))
    async with watching(exposition_server) as reader:
        await reader.read()
        exposition_server.serve("/metrics", Answer(status=503))
        await reader.read(10)
        exposition_server.serve("/metrics", INCOMING.format(40))
        assert (await reader.read(10)).arrivals_per_s[0] == 2.0


async def test_the_password_of_a_gateway_is_in_no_report() -> None:
    async with watching(f"http://user:secret@127.0.0.1:{free_port()}/metrics?token=secret") as reader:
        await reader.read()
    assert "connection refused" in reader.report.problems[0]
    assert "secret" not in str(reader.report)


@pytest.mark.parametrize("body", [EPP.format(3)[:-1], "\0\n", EPP.format(3) + "llm_d_epp_flow_control_queue_size{ 1\n"])
async def test_text_that_cannot_be_trusted_is_unknown(exposition_server: ExpositionServer, body: str) -> None:
    exposition_server.serve("/metrics", body)
    async with watching(exposition_server) as reader:
        assert math.isnan((await reader.read()).waiting[0])
