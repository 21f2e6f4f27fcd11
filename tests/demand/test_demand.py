"""The command on a real Prometheus that holds a generated week: its answers compared with the generator's truth."""

import asyncio
import json
import time

import pytest
from click.testing import CliRunner

from autoscaler.cli.main import main
from autoscaler.config.policy.parse import load as load_policies
from tests.demand.truth import DAYS, compare, generate_days
from tests.report.generated import filled_prometheus

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.parametrize("days", [2, pytest.param(DAYS, marks=pytest.mark.long)])
async def test_answers_equal_the_truth_when_history_is_generated(days, tmp_path):
    truth, text = generate_days(time.time(), days)
    file, drafts = tmp_path / "demand.json", tmp_path / "drafts"
    drafts.mkdir()
    arguments = ["demand", "--since", f"{days}d", "--json", str(file), "--drafts", str(drafts)]
    arguments += ["--html", str(tmp_path / "demand.html")]
    async with filled_prometheus(tmp_path, text) as server:
        result = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--prometheus", server.url])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    services = {row["name"]: row for row in found["services"]}
    assert services.keys() == truth.keys()

    far = [each for each in compare(services, truth, days) if not each.error <= each.allowed]
    assert not far
    office_ = services["office"]
    by_hour = office_["concurrency"]["by_hour"]["p50"]
    assert by_hour[12] > 4 * by_hour[3]

    check_gpus(found, services)
    offered = {f"team-{name}" for name, row in services.items() if row["draft"]["offered"]}
    assert {path.stem for path in drafts.iterdir()} == offered
    if days == DAYS:
        check_draft(office_["draft"], drafts)
    assert found["sentence"] in " ".join(result.output.split())
    assert found["excess_gpus"]["held"] == pytest.approx(12, rel=0.01)
    excess = found["excess_gpus"]
    assert excess["most"] == pytest.approx(excess["held"] - excess["needed_usual"], abs=1e-3)


def check_draft(draft, folder):
    assert draft["offered"], draft["refusal"]
    assert draft["gpu_hours"]["draft"] <= draft["gpu_hours"]["today"]
    assert draft["attainment"]["draft"] >= min(draft["attainment"]["today"], 0.99) - 1e-4
    lines = {line["field"]: line for line in draft["lines"]}
    assert lines["prewarm"]["value"].startswith("0 9 * * * until 0 17 * * *")
    book = load_policies((folder,), "team-office")
    assert book.policies["team-office"].spec.replicas.max == int(lines["replicas.max"]["value"])


def check_gpus(found, services):
    resting_ = services["resting"]
    idle_h = resting_["gpus"]["replica_hours"]["idle_and_loaded"]
    assert resting_["gpus"]["idle_h"] == pytest.approx(idle_h, rel=0.01)
    decode_h = resting_["gpus"]["replica_hours"]["memory_bound_decode"]
    assert decode_h == pytest.approx(resting_["gpus"]["active_h"])
    assert services["office"]["gpus"]["sentence"].startswith("not known, because profiling counters are off")
    used = {(row["workload"], row["name"]): row["gpu_s"] / 3600 for row in found["gpu_use"]["rows"]}
    assert used["resting", "loaded_idle"] == pytest.approx(idle_h, rel=0.02)
    assert sum(used.values()) == pytest.approx(sum(team["gpu_hours"] for team in found["teams"]), rel=1e-3)
    assert {team["team"]: team["services"] for team in found["teams"]} == {"support": 1, "no team": 2}
