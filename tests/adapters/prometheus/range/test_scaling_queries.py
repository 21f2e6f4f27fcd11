"""Recording rules and past results of queries, from real servers and from answers that surprise."""

from pathlib import Path

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.scaling_queries import ScalingQueries, read_recorded
from autoscaler.config.settings import PrometheusSettings
from tests.adapters.prometheus.backfill import Sample, blocks
from tests.harness.fixtures import StartPromql
from tests.harness.process import require_binary
from tests.harness.promql import running

START_S = 1_767_225_600.0
RULES = """\
groups:
  - name: team
    rules:
      - {record: "team:queue", expr: 'sum(vllm:num_requests_waiting{namespace="team"})'}
      - {record: "team:twice", expr: 'a', labels: {x: "1"}}
      - {record: "team:twice", expr: 'b', labels: {x: "2"}}
      - {alert: Full, expr: 'up == 0'}
"""
SAMPLES = tuple(
    Sample("my_metric", {"pod": pod}, START_S + 15.0 * step, float(step))
    for pod, steps in (("a", range(41)), ("b", range(20, 31)))
    for step in steps
)


@pytest.mark.integration
async def test_rules_and_results_are_read_from_prometheus(tmp_path: Path) -> None:
    binary, fill = require_binary("prometheus", "apt-get install prometheus"), blocks(tmp_path, SAMPLES)

    def command(address: str, config: Path, storage: Path) -> list[str | Path]:
        fill(storage)
        rules = config.with_name("rules.yaml")
        rules.write_text(RULES)
        config.write_text(f"{config.read_text()}\nrule_files: [{rules}]\n")
        return [
            binary,
            f"--config.file={config}",
            f"--web.listen-address={address}",
            f"--storage.tsdb.path={storage}",
            "--query.lookback-delta=15s",
        ]

    async with running("prometheus", command, tmp_path, (), ready_path="/-/ready") as server:
        queries = ScalingQueries(PrometheusSettings(url=server.url))
        recorded, problem = await queries.recorded()
        assert (recorded, problem) == ({"team:queue": 'sum(vllm:num_requests_waiting{namespace="team"})'}, "")
        asked = ["my_metric", "sum(my_metric) > 1000", "sum("]
        found, problems = await queries.read(asked, START_S, START_S + 600.0, 15.0)
    times_s, values, several = found["my_metric"]
    assert len(times_s) == 41 and values[-1] == 40.0
    assert several[[0, 18, 21, 30, 33, 40]].tolist() == [1, 1, 2, 2, 1, 1]
    assert not found["sum(my_metric) > 1000"][2].any() and np.isnan(found["sum(my_metric) > 1000"][1]).all()
    (told,) = problems
    assert told.startswith("a query of a scaling rule could not be run: sum(: http://127.0.0.1:")


@pytest.mark.integration
async def test_server_without_rules_is_told(victoria_metrics: StartPromql) -> None:
    server = await victoria_metrics()
    recorded, problem = await ScalingQueries(PrometheusSettings(url=f"{server.url}/nowhere")).recorded()
    assert not recorded
    assert problem.startswith("recording rules could not be read, so they are not followed: http://127.0.0.1:")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"data": None},
        {"data": {"groups": {}}},
        {"data": {"groups": [None, {"rules": "x"}, {"rules": [1, {"type": "recording"}]}]}},
    ],
)
def test_answer_that_surprises_names_no_rule(answer: object) -> None:
    assert not {name for name in read_recorded(answer) if name != "None"}
