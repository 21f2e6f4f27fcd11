"""Experiments: reachable goals, and initial replicas."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.config.policy.parse import load
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.bounds.constant_count import START_FACTOR
from autoscaler.lab.compare.experiment import check_cases, goal_from_policy, with_start_replicas
from autoscaler.lab.compare.run_result import run_case
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.lab.replay.check import UnreachableGoal
from autoscaler.lab.replay.inputs.transform import clip
from autoscaler.lab.replay.request_cost import request_work_s
from tests.lab.compare.experiments import INTERACTIVE, busy


def test_goal_comes_from_the_policy() -> None:
    assert goal_from_policy(INTERACTIVE) == Goal(1.0, 0.1, 0.99)
    assert np.isnan(goal_from_policy(load().policies["batch"]).itl_s)


def test_ttft_below_one_step_is_refused() -> None:
    with pytest.raises(UnreachableGoal, match=r"^TTFT 2 ms is below the time this profile takes for one token"):
        check_cases(replace(busy(), goal=Goal(0.002, 0.1, 0.99)))


def test_partly_unreachable_objective_is_noted() -> None:
    case = busy()
    case.trace.prompt_tokens[: len(case.trace.prompt_tokens) // 4] = 7000
    (note,) = check_cases(replace(case, goal=Goal(0.1, 0.1, 0.99)))
    assert "at most 75% of the requests can meet the objective" in note


def test_unreachable_objective_is_refused() -> None:
    with pytest.raises(UnreachableGoal, match="no request of busy can meet the objective"):
        check_cases(replace(busy(), goal=Goal(0.03, 0.1, 0.99)))


def test_missing_objective_is_always_reachable() -> None:
    assert check_cases(replace(busy(), goal=Goal(float("nan"), float("nan"), 0.99))) == ()


def attained(case: Case, count: int, until_s: float) -> float:
    """Return the attainment of a constant count for the requests before `until_s`."""
    beginning = replace(case, trace=clip(case.trace, 0.0, until_s), start_replicas=count)
    return run_case(beginning, Static(count)).score.attainment


@pytest.mark.parametrize(("duration_s", "until_s"), [(50.0, 50.0), (900.0, 600.0)])
def test_start_replicas_are_the_fewest_that_meet_the_goal(duration_s: float, until_s: float) -> None:
    """Only the first ten minutes count."""
    case = replace(busy(per_s=40.0, duration_s=duration_s), goal=Goal(0.4, 0.02, 0.99))
    later = case.trace.arrival_s >= until_s
    case.trace.output_tokens[later] = 4000
    count = with_start_replicas(case).start_replicas
    assert count > 1
    assert attained(case, count, until_s) >= case.goal.attainment > attained(case, count - 1, until_s)


def test_start_replicas_are_one_without_early_requests() -> None:
    case = busy()
    trace = replace(case.trace, arrival_s=600.0 + case.trace.arrival_s, duration_s=1200.0)
    assert with_start_replicas(replace(case, trace=trace, start_replicas=7)).start_replicas == 1


def test_start_replicas_cover_an_early_burst() -> None:
    """Twenty seconds of sixty requests per second in ten minutes: the mean keeps two replicas busy, the burst needs
    over ten.
    """
    case = replace(busy(per_s=60.0, duration_s=20.0), goal=Goal(0.4, 0.02, 0.99))
    trace = replace(case.trace, arrival_s=500.0 + case.trace.arrival_s, duration_s=600.0)
    burst = replace(case, trace=trace)
    count = with_start_replicas(burst).start_replicas
    prefill_s, decode_s = request_work_s(burst)
    assert count > START_FACTOR * (prefill_s + decode_s).sum() / 600.0
    assert attained(burst, count, 600.0) >= 0.99 > attained(burst, count - 1, 600.0)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_start_replicas_stay_within_the_maximum(most: int) -> None:
    few = replace(busy(per_s=60.0), max_replicas=most)
    count = with_start_replicas(few).start_replicas
    assert 1 <= count <= most
    assert attained(few, count, 600.0) == attained(few, most, 600.0) < few.goal.attainment


@pytest.mark.slow
def test_start_replicas_fit_the_first_minutes() -> None:
    assert with_start_replicas(busy(per_s=0.01)).start_replicas == 1
    one, two = (with_start_replicas(busy(per_s=per_s)).start_replicas for per_s in (80.0, 160.0))
    assert one > 2
    assert 1.5 * one <= two <= 2 * one  # more replicas queue less
