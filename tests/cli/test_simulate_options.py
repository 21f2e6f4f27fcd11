"""Options of `simulate` and `replay` on what replicas, router and clients do: each reaches the run and is printed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.study import PROFILE, invoke, write_trace

TWO = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: two}
spec:
  objective: {ttft: 1s, itl: 100ms, attainment: 0.99}
  replicas: {min: 2, max: 2}
"""

MOVES = """\
apiVersion: vllm-autoscaler.io/v1
kind: Policy
metadata: {name: moves}
spec:
  objective: {ttft: 1s, itl: 100ms, attainment: 0.99}
  replicas: {min: 1, max: 6}
  capacity: {concurrency: 100}
  scaleDown: {stabilization: 0s, maxStep: 100%, per: 15s}
"""

Ran = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def ran(tmp_path: Path, kernel: None) -> Ran:
    """Run ten minutes, every other request a long one, on two replicas; returns the proof and what was printed."""
    times = np.sort(np.random.default_rng(5).uniform(0, 600, 3000))
    rows = [f"{time_s:.3f},{(12_000, 100)[number % 2]},80" for number, time_s in enumerate(times)]
    trace, policy, out = write_trace(tmp_path / "mixed.csv", rows), tmp_path / "two.yaml", tmp_path / "proof.json"

    def run(*options: object, policy_text: str = TWO) -> tuple[dict[str, Any], str]:
        policy.write_text(policy_text)
        result = invoke("simulate", "--trace", trace, *PROFILE, "--policy", policy, "--json", out, *options)
        assert result.exit_code == 0, result.output
        return json.loads(out.read_text()), result.output

    return run


@pytest.mark.slow
def test_no_crashes_and_no_impatience_by_default(ran: Ran) -> None:
    written, said = ran("--start-replicas", 2)
    assert (written["router"], written["patience_s"], written["crash_every_s"]) == ("least-requests", None, None)
    assert written["cold_start_spread"] == 0.1
    assert written["notes"] == []
    assert "note" not in said


@pytest.mark.slow
def test_round_robin_attains_less_with_mixed_lengths(ran: Ran) -> None:
    counted, _ = ran("--start-replicas", 2)
    in_turn, said = ran("--start-replicas", 2, "--router", "round-robin")
    assert in_turn["router"] == "round-robin"
    assert in_turn["policies"][0]["attainment"] < counted["policies"][0]["attainment"] - 0.02
    assert "requests go to replicas round robin, however many they hold" in said


@pytest.mark.slow
def test_crashes_cost_attainment_and_requests(ran: Ran) -> None:
    calm, _ = ran("--start-replicas", 2)
    crashing, said = ran("--start-replicas", 2, "--crash-every", "5m")
    assert crashing["crash_every_s"] == 300.0
    assert crashing["policies"][0]["attainment"] < calm["policies"][0]["attainment"] - 0.05
    assert crashing["policies"][0]["unfinished"] > calm["policies"][0]["unfinished"] == 0
    assert "a serving replica crashes every 5 min on average and loses the requests it holds" in said


@pytest.mark.slow
def test_impatient_clients_leave_when_no_replica_serves(ran: Ran) -> None:
    patient, _ = ran("--start-replicas", 0)
    terminating, said = ran("--start-replicas", 0, "--patience", "10s")
    assert terminating["patience_s"] == 10.0
    assert patient["policies"][0]["unfinished"] == 0
    assert terminating["policies"][0]["unfinished"] > 100
    assert "clients still waiting after 10 s leave" in said


@pytest.mark.slow
def test_a_queue_that_is_read_less_often_is_seen_later(ran: Ran) -> None:
    """Attainment depends as much on the replicas that leave between two queues, which this policy gives up at once."""
    often, _ = ran("--start-replicas", 1, policy_text=MOVES)
    seldom, said = ran("--start-replicas", 1, "--scrape-every", "60s", policy_text=MOVES)
    assert (often["scrape_s"], seldom["scrape_s"]) == (15.0, 60.0)
    assert seldom["policies"][0]["ttft_p99_s"] > often["policies"][0]["ttft_p99_s"] + 1
    assert "replicas are scraped every 60 s" in said


@pytest.mark.slow
def test_replica_without_drain_time_aborts_its_requests(ran: Ran) -> None:
    lost = {}
    for drain in ("0s", "30s"):
        written, said = ran("--start-replicas", 6, "--drain", drain, policy_text=MOVES)
        assert written["drain_s"] == float(drain[:-1])
        assert written["policies"][0]["scale_downs"] > 0
        assert ("replicas on their way out abort what they run" in said) == (drain == "0s")
        lost[drain] = written["policies"][0]["unfinished"]
    assert lost["0s"] > lost["30s"] == 0


@pytest.mark.long
def test_cold_starts_are_drawn_around_their_mean(ran: Ran) -> None:
    drawn = {
        spread: [ran("--start-replicas", 0, "--cold-start-spread", spread, "--seed", seed)[0] for seed in (1, 2)]
        for spread in (0, 0.8)
    }
    assert [each["cold_start_spread"] for each in drawn[0.8]] == [0.8] * 2
    longest = {
        spread: [each["policies"][0]["ttft_p99_s"] for each in comparisons] for spread, comparisons in drawn.items()
    }
    assert np.ptp(longest[0]) < 0.5
    assert np.ptp(longest[0.8]) > 5.0


def test_a_mean_time_between_crashes_may_be_months(ran: Ran) -> None:
    written, _ = ran("--start-replicas", 2, "--crash-every", "2000h")
    assert written["crash_every_s"] == 7_200_000.0


@pytest.mark.parametrize("command", ["simulate", "replay"])
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--router", "magic", "'magic' is not one of 'least-requests', 'round-robin'"),
        ("--crash-every", "0s", "found '0s'; allowed: a duration such as 500ms, 5s or 2m, above 0 and at most 8760h"),
        (
            "--crash-every",
            "9000h",
            "found '9000h'; allowed: a duration such as 500ms, 5s or 2m, above 0 and at most 8760h",
        ),
        (
            "--patience",
            "20",
            "a duration without a unit, found '20'; allowed: a duration such as 500ms, 5s or 2m, above 0",
        ),
        ("--drain", "2h", "found '2h'; allowed: a duration such as 500ms, 5s or 2m, at least 0s and at most 1h"),
        (
            "--scrape-every",
            "500ms",
            "found '500ms'; allowed: a duration such as 500ms, 5s or 2m, at least 1s and at most 120s",
        ),
        ("--cold-start-spread", "1.5", "1.5 is not in the range 0<=x<=1"),
        ("--cold-start-spread", "-0.1", "-0.1 is not in the range 0<=x<=1"),
        ("--cold-start-spread", "nan", "nan is not in the range 0<=x<=1"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_is_allowed(
    command: str, option: str, value: str, said: str
) -> None:
    result = invoke(command, *PROFILE, option, value)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
