"""The whole command on real servers that hold a generated day: every figure compared with the generator's truth."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import numpy as np
import pytest
from click.testing import CliRunner

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.cli.main import main
from autoscaler.config.settings import PrometheusSettings
from autoscaler.lab.replay.case import Goal
from autoscaler.report.past import past_of_prometheus
from tests.harness.victoria_metrics import victoria_metrics
from tests.report.generated import (
    HOUR_S,
    Service,
    day,
    fill_victoria_metrics,
    filled_prometheus,
    generate,
    merged,
    pod_name,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HOURS = 30


def office(at_s: float) -> int:
    return 3 if 8 <= at_s / HOUR_S % 24 < 20 else 1


@pytest.fixture(scope="module")
def generated():
    """Return the end, the truth by service, and OpenMetrics text."""
    end_s = time.time() // 60 * 60
    start_s = end_s - HOURS * HOUR_S
    services = (
        Service("generous", day(0.5, 12), lambda _: 4, gpus=2),
        Service("right", day(2, 12), lambda _: 1),
        Service("short", day(6, 30), lambda _: 1),
        Service("office", day(1, 24), office, start_s=150.0, restarts_s=(start_s + 9 * HOUR_S,)),
        Service("generous", day(1, 5), lambda _: 1, labels={"cluster": "west"}),
        Service("patient", day(2, 24), lambda _: 1),
    )
    made = [generate(service, start_s, end_s, 60.0) for service in services]
    names = ["/".join(filter(None, (each.labels.get("cluster", ""), "team", each.name))) for each in services]
    truth = dict(zip(names, (truth for truth, _ in made), strict=True))
    labels = 'namespace="team",deployment="patient",annotation_vllm_autoscaler_io_policy="batch"'
    times_s = np.arange(start_s, end_s, 60.0).tolist()
    stated = {"kube_deployment_annotations": [f"kube_deployment_annotations{{{labels}}} 1 {at_s}" for at_s in times_s]}
    return truth, merged(iter([*(lines for _, lines in made), stated]))


async def test_an_hour_is_that_of_its_own_cluster(tmp_path):
    """Another cluster has a service of the same name, and a tenant writes of both, of real and of invented pods."""
    end_s = time.time() // 60 * 60
    rates = {"east": 1.0, "west": 4.0}
    services = [
        Service("same", lambda _, each=each: rates[each], lambda _: 1, labels={"cluster": each}) for each in rates
    ]
    moved = {"cluster": "west", "exported_namespace": "team"}
    services += (
        Service("evil", lambda _: 9.0, lambda _: 1, "evil", {**moved, "exported_pod": pod_name("same", number)})
        for number in (0, 7)
    )
    text = merged(generate(each, end_s - 3 * HOUR_S, end_s, 60.0)[1] for each in services)
    async with filled_prometheus(tmp_path, text) as server:
        read = past_of_prometheus(PrometheusSettings(url=server.url))
        span, goal = (end_s - HOUR_S, end_s), Goal(1.0, 0.1, 0.99)
        hours = [await asyncio.to_thread(read, ServiceName(each, "team", "same"), *span, goal) for each in rates]
    assert [np.nansum(each.finished) for each in hours] == pytest.approx([HOUR_S, 4 * HOUR_S], rel=0.05)
    counted = [np.nansum(each.ttft.counts[:, -1]) for each in hours]
    assert counted == pytest.approx([HOUR_S, 4 * HOUR_S], rel=0.1)


@asynccontextmanager
async def filled(kind, directory, text):
    if kind == "prometheus":
        async with filled_prometheus(directory, text) as server:
            yield server
    else:
        async with victoria_metrics(directory) as server:
            await fill_victoria_metrics(server, text)
            yield server


async def run_report(url, *more):
    """Run the command with all of the generated history; return its result."""
    return await invoke("--prometheus", url, "--since", f"{HOURS}h", *more)


async def invoke(*words):
    """Run the command in a thread; return its result."""
    return await asyncio.to_thread(CliRunner().invoke, main, ["report", *map(str, words)])


@pytest.mark.parametrize("kind", ["prometheus", pytest.param("victoria-metrics", marks=pytest.mark.long)])
async def test_figures_equal_the_truth_when_history_is_generated(kind, generated, tmp_path):
    truth, text = generated
    file = tmp_path / "report.json"
    async with filled(kind, tmp_path, text) as server:
        result = await run_report(
            server.url, "--json", str(file), "--cache", str(tmp_path / "cache"), "--html", str(tmp_path / "report.html")
        )
        assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    services = {
        "/".join(filter(None, (row["cluster"], row["namespace"], row["name"]))): row for row in found["services"]
    }
    assert services.keys() == truth.keys()
    for name, true in truth.items():
        row = services[name]
        was = row["columns"]["actual"]
        gpus = 2 if name == "team/generous" else 1
        assert was["gpu_hours"] == pytest.approx(true.replica_h * gpus, rel=0.02)
        assert was["requests"] == pytest.approx(true.requests, rel=0.02)
        assert row["policy"] == ("batch" if name == "team/patient" else "interactive")
        if row["policy"] == "interactive":  # the truth is that of its limit
            assert was["missed"] == pytest.approx(true.missed, rel=0.05, abs=0.002 * true.requests)
            assert was["breach_min"] == pytest.approx(true.breach_min, abs=0.03 * HOURS * 60)
        assert was["changes"] == true.changes
        assert was["cold_starts"] == true.started
        assert row["seen_share"] > 0.95
        assert row["work_s"] == pytest.approx(0.0557, rel=0.15)
        if true.attainment > 0.99:  # else its gaps are those of full batches
            assert row["idle_gap_s"] == pytest.approx(0.010, rel=0.2)
    assert services["team/office"]["cold_start_s"] == 150
    assert services["team/right"]["cold_start_s"] == 180 and "cold start" in services["team/right"]["assumed"][-1]
    # Three replicas carry 12 requests per second with room to spare; the generator's own queue says how few would.
    need = services["team/generous"]["columns"]["constant"]
    assert need["gpu_hours"] == pytest.approx(2 * HOURS, rel=0.02)
    assert found["sample"], found["notes"]
    patient = truth["team/patient"]
    assert patient.attainment < 0.95 and services["team/patient"]["columns"]["actual"]["missed"] == 0
    assert found["verdict"]["missing"] == sum(true.attainment < 0.99 for true in truth.values() if true is not patient)
    assert found["verdict"]["judged"] == sum(not row["doubt"] for row in services.values())
    assert found["verdict"]["generous"] == 1
    assert found["sentence"] in " ".join(result.output.split())
