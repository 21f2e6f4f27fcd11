import json
import math
from pathlib import Path

import numpy as np
import pytest

from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.score import meets_objectives
from autoscaler.sim.demo.summary import DemoObjective, DemoScore, Summary, WorkloadSummary
from autoscaler.sim.engine.request import Ending, Request


def ended(ttft_s: float, itl_s: float, ending: Ending = Ending.FINISHED, tokens: int = 11) -> Request:
    request = Request(100.0, 10, tokens)
    request.first_token_s = 100.0 + ttft_s
    request.ended_s = request.first_token_s + itl_s * (tokens - 1)
    request.ending = ending
    return request


def test_request_is_scored_against_its_objectives() -> None:
    score = DemoScore(DemoObjective(1.0, 0.1))
    score.add([ended(0.5, 0.05), ended(2.0, 0.05), ended(0.5, 0.2), ended(2.0, 0.2), ended(0.5, 0.0, tokens=1)])
    assert (score.met_ttft, score.met_itl, score.met_both) == (3, 3, 2)


def test_without_an_objective_every_finished_request_meets_it() -> None:
    score = DemoScore(DemoObjective())
    score.add([ended(1e6, 1e6)])
    assert (score.met_ttft, score.met_itl, score.met_both) == (1, 1, 1)


@pytest.mark.parametrize("objective", [DemoObjective(1.0, 0.1), DemoObjective()])
@pytest.mark.parametrize("ending", [Ending.REJECTED, Ending.GIVEN_UP, Ending.FAILED])
def test_unanswered_request_meets_nothing(ending: Ending, objective: DemoObjective) -> None:
    score = DemoScore(objective)
    score.add([ended(math.nan, math.nan, ending)])
    assert (score.ended, score.met_both, score.met_ttft, score.met_itl) == (1, 0, 0, 0)


@pytest.mark.parametrize(
    "objective", [DemoObjective(1.0, 0.1), DemoObjective(1.0), DemoObjective(math.nan, 0.1), DemoObjective()]
)
def test_demo_and_laboratory_score_requests_alike(objective: DemoObjective) -> None:
    """Two requests were lost with their engine after a first token, one of them in time; one before it."""
    finished = [ended(0.5, 0.05), ended(2.0, 0.05), ended(0.5, 0.2), ended(0.5, 0.0, tokens=1)]
    lost = [ended(ttft_s, 0.01, Ending.FAILED) for ttft_s in (0.5, 2.0, math.nan)]
    score = DemoScore(objective)
    score.add([*finished, *lost])
    ttft_s = np.nan_to_num([request.ttft_s for request in [*finished, *lost]], nan=math.inf)
    itl_s = np.array([*np.nan_to_num([request.itl_s for request in finished]), *[math.inf] * 3])
    ttft_met, itl_met = meets_objectives(Goal(objective.ttft_s, objective.itl_s, 0.99), ttft_s, itl_s)
    assert score.met_ttft == ttft_met.sum()
    assert score.met_itl == itl_met.sum()
    assert score.met_both == (ttft_met & itl_met).sum()


def test_waiting_requests_beyond_ttft_count_as_late() -> None:
    score = DemoScore(DemoObjective(1.0))
    assert score.late([Request(at_s, 1, 1) for at_s in (8.0, 8.9, 9.0, 9.5)], now_s=10.0) == 2


def row(name: str, arrived: int, attainment: float | None, usd: float | None = 10.0) -> WorkloadSummary:
    return WorkloadSummary(name, arrived, arrived, 0, 0, 3, 0, attainment, attainment, attainment, 1.5, 2.0, 4, 5, usd)


def test_json_summary_weights_workloads_by_requests() -> None:
    summary = Summary(7, 60.0, 1, (row("a", 900, 1.0), row("b", 100, 0.5), row("c", 0, None, usd=None)))
    assert summary.sentence().endswith(
        "The GPU-hours cost $20.00 for 2 of 3 workloads; 1 without a price: c (unknown)."
    )
    plain = json.loads(json.dumps(summary.as_json()))
    workloads = plain.pop("workloads")
    assert plain == {
        "version": 1,
        "seed": 7,
        "simulated_s": 60.0,
        "requests": 1000,
        "attainment": 0.95,
        "gpu_hours": 4.5,
        "static_gpu_hours": 6.0,
        "cost": {
            "usd": 20.0,
            "priced": 2,
            "parts": 3,
            "unpriced": [{"name": "c", "why": "unknown"}],
            "too_high": [],
        },
        "scale_ups": 12,
        "scale_downs": 15,
        "errors": 9,
        "crashes": 1,
    }
    assert workloads["b"]["attainment_ttft"] == 0.5
    assert workloads["c"]["attainment"] is None
    described = Summary.as_json.__doc__ or ""
    assert all(key in described for key in plain)
    page = (Path(__file__).parents[3] / "docs" / "reference" / "simulate.md").read_text("utf-8")
    section = page[page.index("## demo --json") : page.index("## simulate fit")]
    assert all(f"`{key}`" in section for key in (*plain, *workloads["b"]))


def test_without_requests_there_is_no_attainment() -> None:
    plain = Summary(1, 0.0, 0, (row("a", 0, None),)).as_json()
    assert plain["attainment"] is None
    assert not any(isinstance(value, float) and math.isnan(value) for value in plain.values())
