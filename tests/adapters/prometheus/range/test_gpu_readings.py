"""GPUs, teams and the daemon's own sums as history tells them, from a real Prometheus."""

import math
import re
import time

import numpy as np
import pytest

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.range.gpu_readings import read_gpus
from autoscaler.adapters.prometheus.range.own_use import CAUSE, STATE, read_gateways, read_own_use
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import ServiceName, find_engines
from autoscaler.adapters.prometheus.range.team_labels import MAX_VALUE, MOST_OF_NAMESPACE, read_teams
from autoscaler.app.report_gpus import of_teams
from autoscaler.catalog.spellings import all_spellings
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.report.diagnosis import count_hours
from autoscaler.report.history import FleetHistory, Span
from tests.harness.dcgm_recordings import SHOWN, page
from tests.report.generated import filled_prometheus

pytestmark = pytest.mark.integration

SCRAPE_S, SPAN_S, STEP_S = 30, 3600, 600.0
LATE = "late"  # a TensorRT-LLM that gives long answers: it counts a request when it ends, and nothing before
SERVICES = tuple(ServiceName("", "llm", name) for name in (*SHOWN, LATE))
LONG = "x" * 10_000
LABELS = {
    "idle": '<img src=x onerror=\\"alert(1)\\">',
    "decode": LONG,
    "prefill": "a\\nb",
    "pcie": "",
}


def samples(at_s: int, since_s: int):
    """Yield the lines of one scrape: DCGM's recordings, and an engine for each pod."""
    yield from (f"{line} {at_s}" for line in page().splitlines())
    for name, shown in SHOWN.items():
        where = f'namespace="llm",pod="{name}-0",job="vllm",instance="{name}:8000",model_name="m"'
        grown = 0 if shown.stuck else since_s
        yield f"vllm:num_requests_running{{{where}}} {shown.running} {at_s}"
        yield f"vllm:num_requests_waiting{{{where}}} {shown.waiting} {at_s}"
        yield f'vllm:num_requests_waiting_by_reason{{{where},reason="deferred"}} {shown.deferred} {at_s}'
        for counter in ("generation_tokens", "prompt_tokens", "request_success"):
            if (name, counter) != ("stuck-unseen", "prompt_tokens"):  # what others count, it need not
                yield f"vllm:{counter}_total{{{where}}} {grown} {at_s}"
    where = f'namespace="llm",pod="{LATE}-0",job="trtllm",instance="{LATE}:8000",model_name="m"'
    yield f"trtllm_num_requests_running{{{where}}} 2 {at_s}"
    yield f"trtllm_num_requests_waiting{{{where}}} 0 {at_s}"
    yield f"trtllm_request_success_total{{{where}}} 0 {at_s}"
    for name, team in LABELS.items():
        yield f'kube_statefulset_labels{{namespace="llm",statefulset="{name}",label_team="{team}"}} 1 {at_s}'
    team = "all" if since_s > SPAN_S / 2 else "others"
    yield f'kube_namespace_labels{{namespace="llm",label_team="{team}"}} 1 {at_s}'
    for pod in ("leader", "follower"):  # both count
        own = f'exported_namespace="llm",namespace="autoscaler",workload="idle",pod="{pod}"'
        yield f"vllm_autoscaler_gateway_waiting_requests{{{own}}} 0 {at_s}"
        own = f'namespace="llm",workload="w",kind="Deployment",pod="{pod}"'
        yield f'vllm_autoscaler_gpu_seconds_total{{{own},state="floor"}} {2 * since_s} {at_s}'
        yield f'vllm_autoscaler_idle_gpu_seconds_total{{{own},cause="floor"}} {2 * since_s} {at_s}'
        yield f'vllm_autoscaler_gpu_seconds_total{{{own},state="warming"}} NaN {at_s}'


async def test_history_diagnoses_as_the_daemon_does(tmp_path):
    end_s = int(time.time()) // 3600 * 3600
    families: dict[str, list[str]] = {}
    for since_s in range(0, SPAN_S + 1, SCRAPE_S):
        for line in samples(end_s - SPAN_S + since_s, since_s):
            families.setdefault(line.split("{")[0], []).append(line)
    text = "\n".join([*(line for lines in families.values() for line in lines), "# EOF", ""])
    span = Span(float(end_s - SPAN_S), 60.0, SPAN_S // 60)
    span_s = (span.start_s, span.end_s)
    async with filled_prometheus(tmp_path, text) as server:
        settings = PrometheusSettings(url=server.url)
        reader = RangeReader(settings, Credentials(settings), time.monotonic() + 60)
        found = find_engines(reader, all_spellings(()), span_s)
        days = list(read_gpus(reader, found, span_s, STEP_S))
        teams, problems = read_teams(reader, "team", SERVICES, span_s)
        others, _ = read_teams(reader, "example.com/Team", SERVICES, span_s)
        used = read_own_use(reader, span_s, {})
        gateways = read_gateways(reader, span_s, {})
        of_half = read_own_use(reader, (span_s[1] - SPAN_S / 2, span_s[1]), {})
        chosen, of_chosen, _ = of_teams("team", ("a?b",), reader, FleetHistory(span, SERVICES, {}))
        with pytest.raises(ValueError, match=r"no service of team nobody; found: .*all"):
            of_teams("team", ("nobody",), reader, FleetHistory(span, SERVICES, {}))
        reader.close()

    hours = count_hours(days, SERVICES, STEP_S)
    assert hours.by_diagnosis.sum(axis=0) == pytest.approx(1.0)
    *rows, told_late = (Diagnosis(int(found)) for found in hours.by_diagnosis.argmax(axis=0))
    told = dict(zip(SHOWN, rows, strict=True))
    assert told == {name: shown.diagnosis for name, shown in SHOWN.items()}
    assert [name for row, name in enumerate(SHOWN) if hours.weak_h[row]] == [
        name for name, shown in SHOWN.items() if shown.weak
    ]

    (moved,) = problems
    assert moved.endswith(": the team changed within the span, and their whole spans count for their last one")
    assert told_late is Diagnosis.NO_GPU_READING
    team = dict(zip((*SHOWN, LATE), teams, strict=True))
    assert team["idle"] == '<img src=x onerror="alert(1)">'
    assert team["decode"] == "x" * (MAX_VALUE - 1) + "…"
    assert team["prefill"] == "a?b"
    assert team["pcie"] == team["busy"] == "all"
    assert (chosen.services, of_chosen) == ((ServiceName("", "llm", "prefill"),), ("a?b",))
    assert set(others) == {""}

    assert gateways == {("llm", "idle")}

    sums = {(row.kind, row.name): row for row in used}
    assert set(sums) == {(STATE, "floor"), (CAUSE, "floor")}
    assert sums[STATE, "floor"].gpu_s == pytest.approx(2 * SPAN_S, rel=0.01)
    assert math.isnan(sums[STATE, "floor"].usd)
    assert [row.gpu_s for row in of_half] == pytest.approx([SPAN_S] * 2, rel=0.02)


class Labelled:
    """A server with many labelled Deployments in each namespace; a real one is not filled with a hundred spaces."""

    left_out = ()

    def __init__(self, of_namespace):
        self.of_namespace, self.asked = of_namespace, []

    def query(self, expression, start_s, end_s, step_s):
        spaces = re.search(r'namespace=~"([^"]*)"', expression)[1].split("|")
        self.asked.append(len(spaces))
        if "kube_deployment_labels" not in expression:
            return []
        return [
            {"metric": {"namespace": space, "group": f"s{row}", "label_team": f"t{row}"}, "values": np.ones((1, 2))}
            for space in spaces
            for row in range(self.of_namespace.get(space, 1))
        ]


@pytest.mark.parametrize("crowd", [1, MOST_OF_NAMESPACE])
def test_teams_are_read_of_some_namespaces_at_a_time(crowd):
    services = [ServiceName("", f"space-{row}", "s0") for row in range(120)]
    services += [ServiceName("", "<script>", "s0"), ServiceName("", "", "job")]
    server = Labelled({"space-7": crowd})
    teams, problems = read_teams(server, "team", services, (0.0, 3600.0))
    assert teams == ("t0",) * 120 + ("",) * 2
    assert max(server.asked) == 50 and sum(server.asked) == 4 * 120
    assert ["of some workloads of space-7 is not read" in each for each in problems] == [True] * (crowd > 1)
