"""Counters of a pod that fall, as a server on loopback shows them."""

import numpy as np

from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.samples import Samples
from tests.adapters.scrape.support import SteppedClock, fleet_of
from tests.harness.exposition import ExpositionServer
from tests.harness.objectives import objectives


def text(tokens: int, start_s: float | None, slow: int = 0) -> str:
    started = "" if start_s is None else f"process_start_time_seconds {start_s}\n"
    return started + "".join(
        f'vllm:{name}{{engine="0",model_name="m"{more}}} {value}\n'
        for name, more, value in (
            ("num_requests_running", "", 2),
            ("num_requests_waiting", "", 0),
            ("generation_tokens_total", "", tokens),
            ("request_success_total", ',finished_reason="stop"', tokens // 10),
            ("time_to_first_token_seconds_count", "", tokens // 10),
            ("time_to_first_token_seconds_bucket", ',le="0.1"', tokens // 10 - slow),
            ("time_to_first_token_seconds_bucket", ',le="10"', tokens // 10),
            ("time_to_first_token_seconds_bucket", ',le="+Inf"', tokens // 10),
        )
    )


async def read(server: ExpositionServer, *texts: str, step_s: float = 5.0) -> list[Samples]:
    clock, fleet, readings = SteppedClock(), fleet_of(server.address), []
    server.serve("/load", '{"server_load":0}')
    async with PodScraper(ScrapeSettings(timeout_s=10.0, window_s=30.0), clock) as scraper:
        for each in texts:
            clock.time_s += step_s
            server.serve("/metrics", each)
            readings.append(await scraper.sample(fleet, objectives(fleet, ttft_s=0.1), 20.0))
    return readings


async def test_falling_counters_are_unknown_without_a_restart(exposition_server: ExpositionServer) -> None:
    readings = await read(exposition_server, text(1000, 1e9), text(0, 1e9), text(1100, 1e9, slow=90))
    tokens, finished, met = (
        [getattr(each.pods, name)[0] for each in readings] for name in ("generation_tokens", "finished", "ttft_met")
    )
    assert np.isnan([tokens[1], finished[1], met[1]]).all()
    assert (tokens[2], finished[2]) == (1100, 110)
    assert np.isnan([each.pods.running[0] for each in readings]).tolist() == [False, True, False]
    assert np.isnan(readings[2].pods.ttft_s[0])  # the buckets of an hour would count as those of the window
    assert readings[0].reports[0].problems == ()
    for each in readings[1:]:
        (line,) = each.reports[0].problems
        assert line.startswith("llm/qwen-0: counters fell although the process did not start again")


async def test_counters_count_from_zero_when_the_process_starts_again(exposition_server: ExpositionServer) -> None:
    for starts in ((1e9, 1e9 + 60), (None, None)):
        before, after = await read(exposition_server, text(1000, starts[0]), text(40, starts[1]))
        assert (before.pods.generation_tokens[0], after.pods.generation_tokens[0]) == (1000, 40)
        assert after.reports[0].problems == ()
