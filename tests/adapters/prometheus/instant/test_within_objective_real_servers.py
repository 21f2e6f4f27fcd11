"""Requests within objectives, read by a real Prometheus, a real VictoriaMetrics and the scraper from the same servers.

Expected counts are worked out by hand from the buckets; the texts are recorded, or made as `test_reading` makes them.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import pytest_asyncio

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.prometheus.instant.source import PrometheusSource
from autoscaler.adapters.prometheus.promql.engines import bounds_query
from autoscaler.adapters.prometheus.promql.within_objective import MAX_BOUNDS
from autoscaler.adapters.scrape.pods import PodScraper
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.spellings import all_spellings, engines_spelled
from autoscaler.config.settings import PrometheusSettings, ScrapeSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Objectives, Samples
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.undisturbed import undisturbed
from tests.adapters.scrape.support import recorded
from tests.harness.exposition import ExpositionServer, exposition_server
from tests.harness.objectives import objectives
from tests.harness.process import eventually
from tests.harness.prometheus import prometheus
from tests.harness.promql import PromqlServer, Target
from tests.harness.victoria_metrics import victoria_metrics

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NAN = float("nan")
COLUMNS = ("ttft_met", "gap_s", "gaps", "itl_met", "itl_judged", "prefill_met", "prefill_judged")


class Case(NamedTuple):
    """One pod of a workload of its own: what it shows, what it promises, and what must be counted."""

    text: str
    ttft_s: float
    itl_s: float
    counted: tuple[float, ...]  # of COLUMNS, those of prefill apart
    engine: str = "vllm"
    prefill: tuple[float, ...] = (NAN, NAN)

    @property
    def expected(self) -> tuple[float, ...]:
        return self.counted + self.prefill


def buckets(name: str, labels: str, total_s: float, **counts: int) -> str:
    """A histogram's text; bounds as keyword: le_0_5=3."""
    lines = []
    for key, count in counts.items():
        bound = "+Inf" if key == "le_inf" else key.removeprefix("le_").replace("_", ".")
        lines.append(f'{name}_bucket{{le="{bound}",{labels}}} {count}')
    lines.append(f"{name}_sum{{{labels}}} {total_s}\n{name}_count{{{labels}}} {counts['le_inf']}\n")
    return "\n".join(lines)


def engine_text(
    prefix: str, ttft: str, gap: str, per_request: str, running: str, labels: str = 'model_name="m"'
) -> str:
    """Metrics of another engine: 8 of 10 first tokens within 1 s, 6 of 9 requests within 40 ms."""
    text = f"{prefix}{running}{{{labels}}} 1\n"
    if ttft:
        text += buckets(f"{prefix}{ttft}", labels, 12.5, le_0_5=4, le_1=8, le_4=10, le_inf=10)
    if gap:
        text += buckets(f"{prefix}{gap}", labels, 3.5, le_0_02=60, le_0_04=90, le_inf=100)
    if per_request:
        text += buckets(f"{prefix}{per_request}", labels, 0.3, le_0_02=2, le_0_04=6, le_inf=9)
    return text


VLLM = ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds")
OLD = "time_per_output_token_seconds"  # of tokens
MADE = engine_text("vllm:", *VLLM, "num_requests_running")
PROMPTS = (26, 26)  # none took longer than 0.3 s
SATURATED = (91.11973735799961, 8884.0)
CASES = {
    # 16 until 0.1 s and 18 until 0.25 s; 14 until 10 ms and 26 until 25 ms
    "between": Case(recorded("saturated"), 0.15, 0.02, (16 + 2 / 3, *SATURATED, 22, 26), prefill=PROMPTS),
    "on-a-bound": Case(recorded("saturated"), 5.0, 0.01, (22, *SATURATED, 14, 26), prefill=PROMPTS),
    "below-all": Case(recorded("saturated"), 0.0005, 0.0025, (0, *SATURATED, 3.5, 26), prefill=PROMPTS),
    "beyond-all": Case(recorded("saturated"), 3600, 90, (30, *SATURATED, 26, 26), prefill=PROMPTS),
    "aimless": Case(recorded("saturated"), NAN, NAN, (NAN, *SATURATED, NAN, 26), prefill=(NAN, 26)),
    "renamed": Case(
        recorded("saturated").replace("vllm:", "vllm_"), 0.15, NAN, (16 + 2 / 3, *SATURATED, NAN, 26), prefill=PROMPTS
    ),
    "two-engines": Case(
        engine_text("vllm:", *VLLM, "num_requests_running", 'engine="0",model_name="m"')
        + engine_text("vllm:", *VLLM, "num_requests_running", 'engine="1",model_name="m"'),
        0.75,
        0.03,
        (12, 7, 200, 8, 18),
    ),
    "bare-spelling": Case(MADE, 1.0, 0.04, (8, 3.5, 100, 6, 9)),  # le="1" where the recordings have le="1.0"
    "beyond-only": Case(MADE, 60.0, 1.0, (10, 3.5, 100, 6, 9)),  # 3 of 9 may be anything above 40 ms
    # 9 prompts: 4 took up to 0.3 s, 3 more until 1 s; one between 1 and 1.5 s took longer than 0.75 s for certain.
    "long-prompts": Case(
        MADE + buckets("vllm:request_prefill_time_seconds", 'model_name="m"', 6, le_0_3=4, le_1=7, le_1_5=8, le_inf=9),
        0.75,
        0.04,
        (6, 3.5, 100, 6, 9),
        prefill=(7, 9),
    ),
    # An operator's own bounds, which only this pod has, between those of all others around the same objective.
    "own-bounds": Case(
        "vllm:num_requests_running 1\n"
        + buckets(f"vllm:{VLLM[0]}", 'model_name="m"', 1, le_0_14=5, le_0_16=7, le_inf=9),
        0.15,
        NAN,
        (6, NAN, NAN, NAN, NAN),
    ),
    # Before 0.11 there is no histogram of requests; what is called time per output token is of tokens.
    "old": Case(engine_text("vllm:", VLLM[0], OLD, "", "num_requests_running"), 0.75, 0.03, (6, 3.5, 100, NAN, NAN)),
    "silent": Case("vllm:num_requests_running 1\n", 1.0, 0.04, (NAN,) * 5),
    "sglang": Case(engine_text("sglang:", *VLLM, "num_running_reqs"), 2.5, 0.04, (9, 3.5, 100, 6, 9), "sglang"),
    "sglang-old": Case(
        engine_text("sglang:", VLLM[0], OLD, "", "num_running_reqs"), 2.5, 0.04, (9, 3.5, 100, NAN, NAN), "sglang"
    ),
    # Its time per token includes prefill, so no request can be judged by it.
    "tgi": Case(
        engine_text("tgi_", "", "", "request_mean_time_per_token_duration", "batch_current_size", 'x="y"'),
        1.0,
        0.03,
        (NAN,) * 5,
        "tgi",
    ),
    "trtllm": Case(
        engine_text("trtllm_", VLLM[0], "", OLD, "num_requests_running"), 0.75, 0.03, (6, NAN, NAN, 4, 9), "trtllm"
    ),
    "triton": Case(
        'nv_trt_llm_request_metrics{request_type="active",model="m"} 1\n'
        + buckets("nv_inference_first_response_histogram_ms", 'model="m"', 1, le_100=2, le_500=6, le_inf=8),
        0.3,
        0.04,
        (4, NAN, NAN, NAN, NAN),
        "triton",
    ),
}


# A pod in no fleet: far more bounds than any engine has.
FLOOD = "vllm:num_requests_running 1\n" + "".join(
    f'vllm:time_to_first_token_seconds_bucket{{le="{bound + 0.7}"}} 1\n' for bound in range(2 * MAX_BOUNDS)
)


class Scene(NamedTuple):
    server: PromqlServer
    pods: dict[str, ExpositionServer]
    fleet: Fleet
    promised: Objectives

    async def prometheus(self) -> Samples:
        async with PrometheusSource(PrometheusSettings(url=self.server.url), SystemClock()) as source:
            return await undisturbed(self.server, lambda: source.sample(self.fleet, self.promised, 10))

    async def scraped(self) -> Samples:
        engines = engines_spelled(all_spellings())
        async with PodScraper(ScrapeSettings(timeout_s=10), SystemClock(), engines) as scraper:
            return await scraper.sample(self.fleet, self.promised, 20)

    def reported(self, samples: Samples, name: str) -> tuple[float, ...]:
        row = list(CASES).index(name)
        return tuple(float(getattr(samples.pods, column)[row]) for column in COLUMNS)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[prometheus, victoria_metrics])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Each case is a pod with a server of its own, which both sources read."""
    async with AsyncExitStack() as stack:
        pods, targets = {}, []
        for name, case in CASES.items():
            pods[name] = await stack.enter_async_context(exposition_server())
            path = ENGINES[case.engine].path
            pods[name].serve(path, case.text)
            targets.append(Target(pods[name].address, path, {"namespace": "llm", "pod": f"{name}-0"}))
        flood = await stack.enter_async_context(exposition_server())
        flood.serve("/metrics", FLOOD)
        targets.append(Target(flood.address, "/metrics", {"namespace": "llm", "pod": "flood-0"}))
        server = await stack.enter_async_context(request.param(tmp_path_factory.mktemp("server"), *targets))
        await server.wait_for("up == 1", len(targets))
        yield Scene(server, pods, _fleet(pods), _promised())


def _fleet(servers: dict[str, ExpositionServer]) -> Fleet:
    plain = fleet_of({f"llm/{name}": [f"{name}-0"] for name in CASES})
    addresses = [server.address.partition(":") for server in servers.values()]
    return replace(
        plain,
        workloads=tuple(
            workload._replace(engine=case.engine)
            for workload, case in zip(plain.workloads, CASES.values(), strict=True)
        ),
        pods=tuple(
            pod._replace(ip=ip, metrics_port=int(port))
            for pod, (ip, _, port) in zip(plain.pods, addresses, strict=True)
        ),
    )


def _promised() -> Objectives:
    columns = np.array([[case.ttft_s, case.itl_s] for case in CASES.values()]).T
    return objectives(fleet_of({f"llm/{name}": [] for name in CASES}), *columns)


@pytest.mark.parametrize("name", CASES)
async def test_requests_within_the_objective_are_counted_as_by_hand(scene: Scene, name: str):
    samples = await scene.prometheus()
    assert samples.reports[0].failed == 0, samples.reports
    assert scene.reported(samples, name) == pytest.approx(CASES[name].expected, nan_ok=True, rel=1e-9)


async def test_a_pod_with_many_bounds_does_not_affect_others(scene: Scene):
    found = await scene.server.query(bounds_query(ENGINES["vllm"].readings["ttft_met"], MAX_BOUNDS))
    bounds = {float(series["metric"]["le"]) for series in found}
    assert {0.001, 0.14, 0.16, 0.5, 2560.0, np.inf} <= bounds
    assert len(bounds) < 40
    assert 100.7 not in bounds


async def test_both_sources_agree_about_every_pod(scene: Scene):
    scraped, queried = await scene.scraped(), await scene.prometheus()
    assert scraped.reports[0].failed == 0, scraped.reports
    for name in CASES:
        assert scene.reported(queried, name) == pytest.approx(scene.reported(scraped, name), nan_ok=True, rel=1e-9), (
            name
        )


async def test_a_counter_that_went_back_is_passed_on_as_it_is(scene: Scene):
    """As the last of this file: it changes what a pod shows."""
    name = "on-a-bound"
    scene.pods[name].serve("/metrics", recorded("running"))

    async def reported() -> bool:
        await scene.server.flush()
        return scene.reported(await scene.prometheus(), name)[0] != CASES[name].expected[0]

    await eventually(reported, "the restarted engine", every_s=0.2)
    scraped, queried = await scene.scraped(), await scene.prometheus()
    assert scene.reported(queried, name) == pytest.approx(scene.reported(scraped, name), rel=1e-9)
    assert scene.reported(queried, name)[0] == 12 < CASES[name].expected[0]
