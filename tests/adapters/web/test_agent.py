"""The agent of weights on HTTP: its states as metrics, and whether it runs."""

from __future__ import annotations

import aiohttp
import pytest

from autoscaler.adapters.web.agent import AgentServer, AgentStatus
from autoscaler.adapters.web.exported_metrics import AGENT
from autoscaler.config.settings import HttpSettings
from autoscaler.config.weights.report import ModelReport, Report, State
from autoscaler.ports import CannotServe

MODELS = {
    "a" * 16: ModelReport("hf://org/a@main", State.READY, 100),
    "b" * 16: ModelReport("hf://org/b@main", State.FETCHING, 200),
    "c" * 16: ModelReport('s3://bucket/"\\quoted"', State.FAILED, 0, "denied", "why"),
}
STATUS = AgentStatus(Report(MODELS, "0.2.0", 1000, 700), "b" * 16, 50, 150, 1, {"denied": 3}, 2, {"right": 1}, 7)
LOOPBACK = HttpSettings(host="127.0.0.1", port=0)


async def get(server: AgentServer, path: str, accept: str = "") -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}{path}", headers={"Accept": accept}) as answer,
    ):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        return answer.status, await answer.text()


async def test_metrics_say_what_the_agent_says() -> None:
    async with AgentServer(LOOPBACK, lambda: STATUS) as server:
        status, text = await get(server, "/metrics")
        openmetrics = await get(server, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert openmetrics[1].endswith("# EOF\n")
    lines = set(text.splitlines())
    prefix = "vllm_autoscaler_weights_agent_"
    assert lines >= {
        f'{prefix}info{{version="0.2.0"}} 1.0',
        f'{prefix}models{{state="ready"}} 1.0',
        f'{prefix}models{{state="waiting"}} 0.0',
        f'{prefix}model{{cause="denied",key="{"c" * 16}",source="s3://bucket/\\"\\\\quoted\\"",state="failed"}} 1.0',
        f'{prefix}model_present_bytes{{key="{"b" * 16}"}} 50.0',
        f'{prefix}model_size_bytes{{key="{"b" * 16}"}} 200.0',
        f"{prefix}budget_bytes 1000.0",
        f"{prefix}free_bytes 700.0",
        f"{prefix}compile_cache_bytes 7.0",
        f"{prefix}fetched_bytes_total 150.0",
        f'{prefix}failures_total{{cause="denied"}} 3.0',
        f"{prefix}evictions_total 2.0",
        f'{prefix}checked_models_total{{result="right"}} 1.0',
    }
    assert f'{prefix}model_size_bytes{{key="{"c" * 16}"}}' not in text
    assert f"{prefix}problem{{" not in text
    for family in AGENT:
        assert f"# TYPE {family.full_name} {family.type}" in text or family.type == "counter"


async def test_problem_of_the_folder_is_told_without_a_restart() -> None:
    report = Report({}, "0.2.0", cause="disk", text="the disk does not answer")
    async with AgentServer(LOOPBACK, lambda: STATUS._replace(report=report, fetching="")) as server:
        assert await get(server, "/healthz") == (
            200,
            '{"cause":"disk","text":"the disk does not answer","models":{}}',
        )
        assert 'vllm_autoscaler_weights_agent_problem{cause="disk"} 1.0' in (await get(server, "/metrics"))[1]


async def test_port_in_use_is_told() -> None:
    async with AgentServer(LOOPBACK, lambda: STATUS) as server:
        with pytest.raises(CannotServe, match="in use"):
            async with AgentServer(HttpSettings(host="127.0.0.1", port=server.port), lambda: STATUS):
                pass
