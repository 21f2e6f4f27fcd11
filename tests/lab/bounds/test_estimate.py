"""The estimate, from windows served by the engines of the case."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.lab.baselines.static import Static
from autoscaler.lab.bounds.estimate import WINDOWS, estimate_replica_s
from autoscaler.lab.bounds.lower_bound import compute_lower_bound
from autoscaler.lab.replay.case import Goal, Trace, View
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score
from tests.lab.replay.synthetic import case_of, poisson, trace


def test_interference_of_prompts_raises_the_estimate() -> None:
    """Code completion: 20 prompts of 3,000 tokens per second keep two replicas busy, and three tokens are soon late."""
    case = case_of(poisson([20.0] * 4, 60.0, prompt=3000, output=4), goal=Goal(1.0, 0.03, 0.95), start_replicas=20)
    least = next(
        count
        for count in range(1, 40)
        if case.goal.is_met_by(compute_score(case, run(replace(case, start_replicas=count), Static(count))).attainment)
    )
    by_service, by_work = estimate_replica_s(case) / 240, compute_lower_bound(case).replica_s / 240
    assert by_work < 0.6 * by_service
    assert 0.6 * least < by_service <= least


def test_window_costs_the_fewest_replicas_without_misses() -> None:
    """Four requests at once with three tokens each: one replica serves the last one late, two do not. A start counts
    once.
    """
    together = trace(np.full(4, 300.0), prompt=4000, output=3, duration_s=600.0)
    case = case_of(together, goal=Goal(0.4, 0.1, 1.0), start_replicas=0)
    alone = case_of(trace(np.array([300.0]), prompt=4000, output=3, duration_s=600.0), goal=case.goal, start_replicas=0)
    one_s = 60.0 - 60.0 / WINDOWS  # a start, credited with two windows, and the window
    assert estimate_replica_s(alone) == pytest.approx(one_s)
    assert estimate_replica_s(case) == pytest.approx(2 * one_s)
    at_once = replace(case, trace=replace(together, arrival_s=together.arrival_s - 299))
    assert estimate_replica_s(at_once) == 0.0  # initial replicas may end within the window


def test_late_request_of_a_window_can_be_answered_in_the_next() -> None:
    late = case_of(trace(np.array([299.5]), duration_s=600.0), goal=Goal(1.0, 0.1, 1.0), start_replicas=0)
    assert estimate_replica_s(late) == 0.0
    assert estimate_replica_s(replace(late, goal=Goal(0.4, 0.1, 1.0))) > 0


def test_estimate_is_zero_when_windows_do_not_fit() -> None:
    case = case_of(poisson([10.0] * 3, 60.0))
    assert estimate_replica_s(case) > 0
    for goal in (Goal(60.0 / WINDOWS, 0.1, 0.99), Goal(math.nan, 0.1, 0.99), Goal(0.01, 0.1, 0.99)):
        assert estimate_replica_s(replace(case, goal=goal)) == 0.0
    assert estimate_replica_s(replace(case, cold_start_s=0.0)) == 0.0
    assert estimate_replica_s(replace(case, cold_start_s=0.001, goal=Goal(1e-4, 0.1, 0.99))) == 0.0


def test_missing_objective_is_met_by_finished_requests() -> None:
    case = case_of(poisson([20.0] * 4, 60.0, prompt=3000, output=4), goal=Goal(1.0, 0.03, 0.95))
    assert 0 < estimate_replica_s(replace(case, goal=Goal(1.0, math.nan, 0.95))) < estimate_replica_s(case)


def test_unservable_requests_use_up_allowed_misses() -> None:
    case = case_of(poisson([20.0] * 4, 60.0, prompt=3000, output=4), goal=Goal(1.0, 0.03, 0.95))
    prompt_tokens = case.trace.prompt_tokens.copy()
    prompt_tokens[::50] = 8000
    hard = replace(case, trace=replace(case.trace, prompt_tokens=prompt_tokens), goal=Goal(0.25, 0.03, 0.95))
    spared = replace(hard, goal=Goal(0.25, 0.03, 0.95 + 0.02))
    assert estimate_replica_s(case) < estimate_replica_s(hard) < estimate_replica_s(spared)


def test_client_that_leaves_is_a_miss() -> None:
    """Sixty requests at once keep one replica busy for two seconds; clients leave after a tenth of a second."""
    case = case_of(trace(np.full(60, 100.0), duration_s=200.0), goal=Goal(5.0, 0.1, 0.99), start_replicas=1)
    assert estimate_replica_s(replace(case, patience_s=0.1)) > estimate_replica_s(case)


@given(st.integers(0, 10_000), st.sampled_from([15.0, 60.0]), st.integers(0, 3))
def test_more_attainment_never_costs_less(seed: int, cold_start_s: float, replicas: int) -> None:
    case = case_of(
        poisson([2.0, 20.0, 5.0], 60.0, seed, prompt=2000), cold_start_s=cold_start_s, start_replicas=replicas
    )
    by_attainment = [estimate_replica_s(replace(case, goal=Goal(1.0, 0.05, share))) for share in (0.5, 0.9, 0.99)]
    assert by_attainment == sorted(by_attainment)


@pytest.mark.slow
@pytest.mark.parametrize("router", ["least-requests", "round-robin"])
def test_constant_count_is_not_below_the_estimate(router: str) -> None:
    """A constant count has no start, and steady traffic needs none."""
    rng = np.random.default_rng(11)
    over = []
    for seed in range(12):
        rates = [float(rate) for rate in rng.choice([4.0, 10.0, 20.0], int(rng.integers(1, 3)))]
        output = int(rng.choice([1, 3, 10, 50, 200]))
        requests = poisson(rates, 90.0, seed, prompt=int(rng.integers(100, 3000)), output=output)
        paces = rng.lognormal(-0.5, 1.0, len(requests.arrival_s))
        requests = replace(requests, prompt_tokens=np.clip(requests.prompt_tokens * paces, 1, 6000).astype(np.int64))
        goal = Goal(float(rng.choice([0.3, 1.0])), float(rng.choice([0.02, 0.05, 0.1])), float(rng.choice([0.9, 0.99])))
        case = case_of(requests, goal=goal, cold_start_s=float(rng.choice([30.0, 120.0])), router=router)
        for count in range(1, 20):
            ready = replace(case, start_replicas=count)
            row = compute_score(ready, run(ready, Static(count)))
            if case.goal.is_met_by(row.attainment):
                over.append(row.gpu_hours / max(estimate_replica_s(ready), compute_lower_bound(ready).replica_s) * 3600)
                break
    assert len(over) > 8
    assert 1.0 <= min(over) < 1.15


class SecondAfter:
    """Recommends a second replica that is ready just after a burst."""

    name, period_s = "second after", 1.0

    def decide(self, view: View) -> int:
        return 2 if 242 <= view.now_s < 312 else 1


def test_schedule_around_bursts_can_cost_less_than_the_estimate() -> None:
    """Forty prompts of 8,000 tokens jam the present replicas; a replica that starts then serves all later requests."""
    light, burst = np.arange(0.05, 600.0, 0.1), 301.0 + np.arange(40) * 0.005
    order = np.argsort(np.concatenate([light, burst]), kind="stable")
    prompts = np.concatenate([np.full(len(light), 300), np.full(40, 8000)])[order]
    outputs = np.concatenate([np.full(len(light), 10), np.full(40, 2)])[order]
    requests = Trace("burst", np.concatenate([light, burst])[order], prompts, outputs, 600.0)
    case = case_of(requests, goal=Goal(0.5, 0.05, 0.99), cold_start_s=60.0, start_replicas=1)
    row = compute_score(case, run(case, SecondAfter()))
    assert case.goal.is_met_by(row.attainment)
    assert compute_lower_bound(case).gpu_hours < row.gpu_hours < estimate_replica_s(case) / 3600
