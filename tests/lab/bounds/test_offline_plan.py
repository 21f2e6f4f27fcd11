import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.lab.baselines.static import Static
from autoscaler.lab.bounds.lower_bound import compute_lower_bound
from autoscaler.lab.bounds.offline_plan import (
    BIN_S,
    OPTIONS,
    OfflinePlan,
    OfflinePlanScaler,
    PlannedCounts,
    _run_uniform,
    search_offline_plan,
)
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.lab.replay.parallel.search import run_searches
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score
from tests.lab.replay.synthetic import FakeView, case_of, poisson, trace


def offline_plan(
    cases: Sequence[Case], workers: int, progress: Callable[[float], None] = lambda _share: None
) -> list[OfflinePlan]:
    return run_searches(
        [search_offline_plan(cases, place) for place in range(len(cases))], cases, workers, progress=progress
    )


def test_schedule_is_followed_and_its_last_count_stays() -> None:
    scaler = OfflinePlanScaler(PlannedCounts(5.0, np.array([1, 2, 3])))
    assert [scaler.decide(FakeView(now_s=now)) for now in (5.0, 10.0, 15.0, 500.0)] == [2, 3, 3, 3]


@pytest.mark.slow
def test_plan_costs_less_than_static_but_not_than_the_bound() -> None:
    case = case_of(poisson([10.0, 10.0, 60.0, 60.0, 10.0, 10.0], 300.0), start_replicas=1)
    told: list[float] = []
    (plan,) = offline_plan([case], 1, progress=told.append)
    assert plan.score.attainment >= case.goal.attainment
    assert compute_lower_bound(case).gpu_hours <= plan.score.gpu_hours <= 1.35 * compute_lower_bound(case).gpu_hours
    statics = [compute_score(case, run(case, Static(count))) for count in range(1, 6)]
    assert plan.score.gpu_hours < min(row.gpu_hours for row in statics if row.attainment >= case.goal.attainment)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)


@pytest.mark.slow
def test_plan_costs_no_more_than_a_constant_count() -> None:
    """A router that counts requests swamps each new replica, so a constant count can be cheaper."""
    case = case_of(poisson([100.0, 200.0, 200.0, 60.0], 30.0, 2, prompt=1500), start_replicas=15)
    constant = compute_score(case, run(case, Static(15)))
    assert case.goal.is_met_by(constant.attainment)
    (plan,) = offline_plan([case], 1)
    assert case.goal.is_met_by(plan.score.attainment)
    assert plan.score.gpu_hours <= 1.01 * constant.gpu_hours


@pytest.mark.slow
def test_schedule_reproduces_the_score_of_the_plan() -> None:
    case = case_of(poisson([5.0, 30.0, 5.0], 300.0), start_replicas=1)
    (plan,) = offline_plan([case], 1)
    assert compute_score(case, run(case, OfflinePlanScaler(plan.schedule))) == plan.score


@pytest.mark.slow
def test_mixed_options_cost_less_than_any_single_option() -> None:
    case = case_of(poisson([2.0, 40.0, 4.0, 60.0, 3.0], 300.0), start_replicas=1)
    alone = [_run_uniform([case], 0, option).score for option in range(len(OPTIONS))]
    best_gpu_hours = min(row.gpu_hours for row in alone if row.attainment >= case.goal.attainment)
    (plan,) = offline_plan([case], 1)
    assert plan.score.attainment >= case.goal.attainment
    assert plan.score.gpu_hours < 0.98 * best_gpu_hours


@pytest.mark.slow
def test_plan_of_a_case_is_the_same_alone_and_in_parallel() -> None:
    cases = [case_of(poisson([5.0, 30.0, 5.0], 200.0, seed), start_replicas=1) for seed in (1, 2)]
    together = offline_plan(cases, 2)
    for case, plan in zip(cases, together, strict=True):
        (alone,) = offline_plan([case], 1)
        assert alone.score == plan.score
        assert np.array_equal(alone.schedule.replicas, plan.schedule.replicas)


def test_replicas_are_requested_a_cold_start_ahead() -> None:
    visits = np.concatenate([np.arange(300.0, 310.0), np.arange(340.0, 350.0), np.arange(800.0, 810.0)])
    case = case_of(trace(visits, duration_s=900.0), start_replicas=0, cold_start_s=60.0)
    (plan,) = offline_plan([case], 1)
    desired = plan.schedule.replicas
    assert plan.score.attainment == 1.0
    assert desired[int(200 / BIN_S)] == 0
    assert desired[int(240 / BIN_S)] == 1
    assert desired[int(325 / BIN_S)] == 1
    assert desired[int(500 / BIN_S)] == 0


def test_new_maximum_is_requested_ahead_by_a_fresh_node_start() -> None:
    visits = np.concatenate([np.arange(600.0, 610.0), np.arange(1500.0, 1510.0)])
    case = case_of(trace(visits, duration_s=1800.0), start_replicas=0, cold_start_s=60.0, cold_start_uncached_s=240.0)
    (plan,) = offline_plan([case], 1)
    desired = plan.schedule.replicas
    assert plan.score.attainment == 1.0
    assert desired[int(360 / BIN_S)] == 1
    assert desired[int(1380 / BIN_S)] == 0  # the second time the node is known
    assert desired[int(1435 / BIN_S)] == 1


def test_unreachable_goal_gives_the_best_attainment() -> None:
    case = case_of(poisson([10.0] * 2, 60.0), goal=Goal(0.02, 0.1, 0.99))  # a prompt takes 44 ms
    (plan,) = offline_plan([case], 1)
    assert plan.score.attainment == 0.0
    assert math.isfinite(plan.score.gpu_hours)


@pytest.mark.slow
def test_missing_objective_is_not_missed() -> None:
    case = case_of(poisson([5.0, 45.0, 5.0], 300.0), goal=Goal(2.0, math.nan, 0.99), start_replicas=1)
    strict = replace(case, goal=Goal(2.0, 0.02, 0.99))
    loose_plan, strict_plan = offline_plan([case, strict], 1)
    assert loose_plan.score.attainment >= 0.99
    assert loose_plan.score.gpu_hours < strict_plan.score.gpu_hours


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_plan_allows_for_late_cold_starts(spread: float) -> None:
    case = case_of(poisson([5.0, 45.0, 5.0], 300.0), cold_start_spread=spread, start_replicas=1)
    (plan,) = offline_plan([case], 1)
    assert plan.score.attainment >= 0.99
