"""The bound holds: no schedule that meets the goal in the simulator is cheaper, and simple ones come near."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.sim.proof.clairvoyant import bound
from autoscaler.sim.study.baselines.static import Static
from autoscaler.sim.study.case import Case, Goal
from autoscaler.sim.study.run import run
from autoscaler.sim.study.score import Row, summarize
from tests.sim.proof.schedules import Stepped
from tests.sim.study.small import llama, poisson, study, trace


def all_schedules(case: Case, period_s: float, highest: int) -> list[Row]:
    """Run every schedule of counts up to `highest` that changes every `period_s`."""
    periods = round(case.trace.duration_s / period_s)
    return [
        summarize(case, run(case, Stepped(counts, period_s)))
        for counts in itertools.product(range(highest + 1), repeat=periods)
    ]


def cheapest_that_meets(case: Case, rows: list[Row]) -> float:
    return min((row.gpu_hours for row in rows if row.attainment >= case.goal.attainment), default=math.inf)


CASES = {
    "steady": study(poisson([12.0] * 5, 60.0), cold_start_s=30.0),
    "a burst in the middle": study(poisson([4.0, 4.0, 40.0, 4.0, 4.0], 60.0), cold_start_s=30.0),
    "two visits": study(
        trace(np.concatenate([np.arange(60.0, 75.0), np.arange(270.0, 280.0)]), duration_s=300.0), cold_start_s=30.0
    ),
    "nobody there at first": study(poisson([0.0, 0.0, 15.0, 15.0, 0.0], 60.0), cold_start_s=30.0, start_replicas=0),
    "long answers": study(poisson([3.0, 9.0, 9.0, 3.0, 0.5], 60.0, prompt=200, output=600), cold_start_s=30.0),
}


@pytest.mark.parametrize("attainment", [0.9, 0.99])
@pytest.mark.parametrize("name", CASES)
def test_no_schedule_that_meets_the_goal_costs_less(name: str, attainment: float) -> None:
    case = replace(CASES[name], goal=Goal(1.0, 0.1, attainment))
    rows = all_schedules(case, 60.0, 2)
    best = cheapest_that_meets(case, rows)
    assert math.isfinite(best)
    assert 0 < bound(case).gpu_hours <= best


@pytest.mark.parametrize(("name", "share"), [("steady", 0.9), ("two visits", 0.25), ("nobody there at first", 0.5)])
def test_the_bound_is_not_far_below_the_best_of_coarse_schedules(name: str, share: float) -> None:
    """They change once a minute, a whole cold start later than they should: this much of their cost is certain."""
    case = CASES[name]
    assert bound(case).gpu_hours >= share * cheapest_that_meets(case, all_schedules(case, 60.0, 2))


def test_random_goals_and_traffic_never_get_below_the_bound() -> None:
    rng = np.random.default_rng(7)
    met = 0
    for seed in range(8):
        rates = [float(rate) for rate in rng.choice([0.2, 5.0, 20.0, 45.0], 6)]
        case = study(
            poisson(rates, 40.0, seed, prompt=int(rng.integers(100, 3000)), output=int(rng.integers(1, 300))),
            goal=Goal(
                float(rng.choice([0.5, 1.0, 5.0])), float(rng.choice([0.05, 0.1])), float(rng.choice([0.8, 0.99]))
            ),
            cold_start_s=float(rng.choice([10.0, 40.0, 100.0])),
            start_replicas=int(rng.integers(0, 4)),
            profile=llama(int(rng.choice([16, 256]))),
        )
        least = bound(case).gpu_hours
        for counts in rng.integers(0, 6, (20, 12)):
            row = summarize(case, run(case, Stepped(tuple(counts.tolist()), 20.0)))
            if row.attainment >= case.goal.attainment:
                met += 1
                assert row.gpu_hours >= least
        for count in (1, 3, 6):
            ready = replace(case, start_replicas=count)
            row = summarize(ready, run(ready, Static(count)))
            if row.attainment >= case.goal.attainment:
                met += 1
                assert row.gpu_hours >= bound(ready).gpu_hours
    assert met > 5


@pytest.mark.parametrize("router", ["least-requests", "round-robin"])
def test_the_least_constant_count_that_meets_the_goal_is_never_below_the_bound(router: str) -> None:
    """It costs no start, and steady traffic needs nothing else: what comes nearest to the bound from above."""
    rng = np.random.default_rng(11)
    over = []
    for seed in range(12):
        rates = [float(rate) for rate in rng.choice([4.0, 10.0, 20.0], int(rng.integers(1, 3)))]
        output = int(rng.choice([1, 3, 10, 50, 200]))
        requests = poisson(rates, 90.0, seed, prompt=int(rng.integers(100, 3000)), output=output)
        paces = rng.lognormal(-0.5, 1.0, len(requests.arrival_s))
        requests = replace(requests, prompt_tokens=np.clip(requests.prompt_tokens * paces, 1, 6000).astype(np.int64))
        goal = Goal(float(rng.choice([0.3, 1.0])), float(rng.choice([0.02, 0.05, 0.1])), float(rng.choice([0.9, 0.99])))
        case = study(requests, goal=goal, cold_start_s=float(rng.choice([30.0, 120.0])), router=router)
        for count in range(1, 20):
            ready = replace(case, start_replicas=count)
            row = summarize(ready, run(ready, Static(count)))
            if case.goal.met_by(row.attainment):
                over.append(row.gpu_hours / bound(ready).gpu_hours)
                break
    assert len(over) > 8
    assert 1.0 <= min(over) < 1.15


def test_gpus_of_a_replica_and_a_trace_without_requests() -> None:
    case = study(poisson([10.0] * 3, 60.0), gpus_per_replica=4.0)
    result = bound(case)
    assert result.gpu_hours == pytest.approx(4 * result.replica_s / 3600)
    nobody = study(trace(np.array([5.0]), duration_s=100.0), goal=Goal(1.0, 0.1, 0.0))
    assert bound(nobody).gpu_hours == 0.0
