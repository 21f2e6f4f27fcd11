"""The whole command on a real Prometheus that holds a generated week: its answers beside the generator's truth."""

import asyncio
import json
import time

import pytest
from click.testing import CliRunner

from autoscaler.cli.main import main
from autoscaler.config.policy.parse import load as load_policies
from tests.report.generated import HOUR_S, WORK_S, Service, filled_prometheus, generate, merged

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAYS = 10
"""Five days have at least three workdays, whatever today is."""

SCRAPE_S = 180.0
BURST_S = 1080.0


def office(low, high):
    """Return a rate that is high from nine to five on each day, by the clock of UTC."""
    return lambda at_s: high if 9 <= at_s / HOUR_S % 24 < 17 else low


def bursty(at_s):
    """Return 8 requests a second, and four times as many for 18 minutes of each sixth hour."""
    return 32.0 if 3600 <= at_s % (6 * HOUR_S) < 3600 + BURST_S else 8.0


def resting(at_s):
    """Return 5 requests a second for four hours of each day, and none in the others."""
    return 5.0 if at_s / HOUR_S % 24 < 4 else 0.0


@pytest.fixture(scope="module")
def generated():
    end_s = time.time() // 360 * 360
    start_s = end_s - DAYS * 24 * HOUR_S
    services = (
        Service("office", office(8.0, 48.0), lambda _: 4, gpus=2),
        Service("bursty", bursty, lambda _: 2),
        Service("resting", resting, lambda _: 2, is_profiled=True, team="support"),
    )
    made = [generate(service, start_s, end_s, SCRAPE_S) for service in services]
    truth = {service.name: one for service, (one, _) in zip(services, made, strict=True)}
    return truth, merged(lines for _, lines in made)


async def test_answers_equal_the_truth_when_history_is_generated(generated, tmp_path):
    truth, text = generated
    file, drafts = tmp_path / "demand.json", tmp_path / "drafts"
    drafts.mkdir()
    arguments = ["demand", "--since", f"{DAYS}d", "--json", str(file), "--drafts", str(drafts)]
    arguments += ["--html", str(tmp_path / "demand.html")]
    async with filled_prometheus(tmp_path, text) as server:
        result = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--prometheus", server.url])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    services = {row["name"]: row for row in found["services"]}
    assert services.keys() == truth.keys()

    office_, bursty_ = services["office"], services["bursty"]
    assert office_["concurrency"]["floor_replicas"] == pytest.approx(8 * WORK_S, rel=0.05)
    assert office_["concurrency"]["high_replicas"] == pytest.approx(48 * WORK_S, rel=0.05)
    by_hour = office_["concurrency"]["by_hour"]["p50"]
    assert by_hour[12] > 4 * by_hour[3]
    assert bursty_["bursts"]["bursts"] == pytest.approx(4 * DAYS, abs=1)
    assert bursty_["bursts"]["duration_p50_s"] == pytest.approx(BURST_S, abs=360)
    assert bursty_["bursts"]["height_p50"] == pytest.approx(4, rel=0.2)
    assert [services[name]["bursts"]["bursts"] for name in ("office", "resting")] == [0, 0]

    for name, row in services.items():
        assert row["duration"]["p50_s"] == pytest.approx(2.0, rel=0.02)
        assert row["duration"]["p99_s"] == pytest.approx(10.0, rel=0.02)
        assert row["duration"]["longest_s"] == 30
        assert row["mix"]["output_tokens"] == pytest.approx(200, rel=0.02)
        assert row["mix"]["prompt_tokens"] == pytest.approx(600, rel=0.02)
        active = truth[name].requests * WORK_S / 3600 / truth[name].replica_h
        assert row["residency"]["ratio"] == pytest.approx(active, rel=0.1)
        assert row["residency"]["loaded_h"] == pytest.approx(truth[name].replica_h, rel=0.02)

    check_gpus(found, services, truth)
    draft = office_["draft"]
    assert draft["offered"], draft["refusal"]
    assert draft["gpu_hours"]["draft"] <= draft["gpu_hours"]["today"]
    assert draft["attainment"]["draft"] >= min(draft["attainment"]["today"], 0.99) - 1e-4
    lines = {line["field"]: line for line in draft["lines"]}
    assert lines["prewarm"]["value"].startswith("0 9 * * * until 0 17 * * *")
    book = load_policies((drafts,), "team-office")
    spec = book.policies["team-office"].spec
    assert spec.replicas.max == int(lines["replicas.max"]["value"])
    assert found["sentence"] in " ".join(result.output.split())
    assert found["excess_gpus"]["held"] == pytest.approx(12, rel=0.01)
    excess = found["excess_gpus"]
    assert excess["most"] == pytest.approx(excess["held"] - excess["needed_usual"], abs=1e-3)


def check_gpus(found, services, truth):
    resting_ = services["resting"]
    idle_h = resting_["gpus"]["replica_hours"]["idle_and_loaded"]
    assert idle_h == pytest.approx(2 * 20 * DAYS, rel=0.02)
    assert resting_["gpus"]["idle_h"] == pytest.approx(idle_h, rel=0.01)
    assert resting_["gpus"]["loaded_h"] == pytest.approx(truth["resting"].replica_h, rel=0.02)
    assert resting_["gpus"]["active_h"] == pytest.approx(2 * 4 * DAYS, rel=0.05)
    decode_h = resting_["gpus"]["replica_hours"]["memory_bound_decode"]
    assert decode_h == pytest.approx(resting_["gpus"]["active_h"])
    assert services["office"]["gpus"]["sentence"].startswith("not known, because profiling counters are off")
    used = {(row["workload"], row["name"]): row["gpu_s"] / 3600 for row in found["gpu_use"]["rows"]}
    assert used["resting", "loaded_idle"] == pytest.approx(idle_h, rel=0.02)
    assert sum(used.values()) == pytest.approx(sum(team["gpu_hours"] for team in found["teams"]), rel=1e-3)
    assert {team["team"]: team["services"] for team in found["teams"]} == {"support": 1, "no team": 2}
