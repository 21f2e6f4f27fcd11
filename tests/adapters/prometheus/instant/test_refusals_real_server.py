"""A limit of requests in front of a real Prometheus, as gateways of hosted backends have one."""

import re
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.config.settings import PrometheusSettings
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.responses import serving
from tests.harness.objectives import objectives
from tests.harness.prometheus import prometheus
from tests.harness.remote_write import write_samples

pytestmark = pytest.mark.integration

RUNNING = re.compile(r"^\(sum .*num_requests_running")
LABELS = {"namespace": "llm", "pod": "q-0", "job": "vllm", "model_name": "m", "engine": "0"}


async def test_a_tick_goes_on_after_a_limit_of_requests(tmp_path: Path):
    """The first query for running requests is refused, with one second to wait. The next tick is refused for longer."""
    tries: list[bool] = []  # whether each query was refused
    refusals = ["1"]

    async def limit(url: str, request: web.Request) -> web.Response:
        form = await request.post()
        refuses = bool(refusals and RUNNING.search(str(form["query"])))
        tries.append(refuses)
        if refuses:
            return web.Response(status=429, text="too many requests", headers={"Retry-After": refusals.pop()})
        async with aiohttp.ClientSession() as session, session.post(f"{url}{request.path}", data=dict(form)) as found:
            return web.Response(body=await found.read(), status=found.status, content_type="application/json")

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(prometheus(tmp_path, flags=("--web.enable-remote-write-receiver",)))
        now_s = time.time()
        await write_samples(
            server.url,
            [
                ({"__name__": f"vllm:num_requests_{name}", **LABELS}, [(now_s - age_s, 3.0) for age_s in (31, 16, 1)])
                for name in ("running", "waiting")
            ],
        )
        await server.wait_for("vllm:num_requests_running", 1)
        url = await stack.enter_async_context(serving(partial(limit, server.url)))
        source = await stack.enter_async_context(PrometheusSource(PrometheusSettings(url=url), SystemClock()))
        fleet = fleet_of({"llm/q": ["q-0"]})
        samples = await source.sample(fleet, objectives(fleet), 30)
        assert (samples.pods.running.tolist(), samples.reports[0].failed) == ([3.0], 0)
        assert tries.count(True) == 1
        refusals.append("60")
        samples = await source.sample(fleet, objectives(fleet), 30)
        assert any("asked to wait (Retry-After)" in line for line in samples.reports[0].problems)
        tries.clear()
        await source.sample(fleet, objectives(fleet), 30)
        assert not tries
