from dataclasses import replace

import numpy as np
import pytest

from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.baselines.base import request_rates_to_try
from autoscaler.lab.compare.tune import MIN_RISE, STEPS, TunedBaseline, search_best_settings
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.lab.replay.parallel.search import run_searches
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score
from tests.lab.replay.synthetic import case_of, poisson, trace

pytestmark = pytest.mark.slow


def tune(case: Case, *names: str, workers: int = 1) -> list[TunedBaseline]:
    return [best for (best,) in run_searches([search_best_settings([case], name) for name in names], [case], workers)]


@pytest.fixture(scope="module")
def case() -> Case:
    return case_of(poisson([10.0, 40.0, 10.0], 200.0), start_replicas=2, max_replicas=12)


@pytest.fixture(scope="module")
def tuned(case: Case) -> dict[str, TunedBaseline]:
    return {best.name: best for best in tune(case, "static", "keda-rps")}


def test_cheapest_setting_that_meets_the_goal_is_kept(case: Case, tuned: dict[str, TunedBaseline]) -> None:
    best = tuned["keda-rps"]
    assert best.score.attainment >= case.goal.attainment
    rows = [
        compute_score(case, run(case, BASELINES["keda-rps"](case, params)))
        for params in BASELINES["keda-rps"].grid(case)
    ]
    assert best.score.gpu_hours <= min(score.gpu_hours for score in rows if score.attainment >= case.goal.attainment)
    assert len(best.found) > len(rows)
    assert best.score == compute_score(case, run(case, BASELINES["keda-rps"](case, best.params)))


def test_static_is_the_smallest_count_that_meets_the_goal(case: Case, tuned: dict[str, TunedBaseline]) -> None:
    count = tuned["static"].params["replicas"]
    assert tuned["static"].score.attainment >= case.goal.attainment
    fewer = replace(case, start_replicas=int(count) - 1)
    less = compute_score(fewer, run(fewer, BASELINES["static"](fewer, {"replicas": float(count) - 1})))
    assert less.attainment < case.goal.attainment
    assert len(tuned["static"].found) < 12


def test_closest_setting_is_kept_when_none_meets_the_goal(case: Case) -> None:
    hard = replace(case, goal=Goal(0.01, 0.1, 0.99))
    (best,) = tune(hard, "hpa-inflight")
    assert best.score.attainment < hard.goal.attainment
    assert best.score.attainment == max(score.attainment for _, score in best.found)


def test_grid_is_extended_while_its_end_is_the_best(case: Case) -> None:
    """The goal is loose, so fewer replicas are better, and the highest target of the grid still gives too many."""
    rule = BASELINES["hpa-inflight"]
    calm = replace(case, trace=poisson([25.0, 30.0], 240.0), goal=Goal(60.0, 0.5, 0.99), start_replicas=2)
    (best,) = tune(calm, "hpa-inflight")
    grid = [compute_score(calm, run(calm, rule(calm, params))) for params in rule.grid(calm)]
    assert best.score.gpu_hours < min(score.gpu_hours for score in grid if calm.goal.is_met_by(score.attainment))
    assert float(best.params["target"]) > 256


def test_grid_is_extended_until_a_setting_meets_the_goal(case: Case) -> None:
    rule = BASELINES["keda-rps"]
    hard = replace(case, goal=Goal(0.1, 0.012, 0.9), max_replicas=60)
    grid = [compute_score(hard, run(hard, rule(hard, params))) for params in rule.grid(hard)]
    assert max(score.attainment for score in grid) < 0.7
    (best,) = tune(hard, "keda-rps")
    assert hard.goal.is_met_by(best.score.attainment)
    hopeless = replace(case, goal=Goal(0.03, 0.0085, 0.99))
    (best,) = tune(hopeless, "keda-rps")
    assert not hopeless.goal.is_met_by(best.score.attainment)
    assert len(best.found) <= len(grid) + 2 * STEPS + 2  # a step with either stabilization, and two around the best


@pytest.fixture
def hopeless(case: Case) -> Case:
    """One of twenty requests has a prompt that takes longer than the goal allows, even alone."""
    trace = replace(case.trace, prompt_tokens=case.trace.prompt_tokens.copy())
    trace.prompt_tokens[::20] = 6000
    return replace(case, trace=trace, goal=Goal(0.2, 0.1, 0.99), max_replicas=1000, start_replicas=30)


@pytest.mark.parametrize("name", ["hpa-inflight", pytest.param("keda-rps", marks=pytest.mark.long)])
def test_extension_stops_when_attainment_stops_rising(hopeless: Case, name: str) -> None:
    rule = BASELINES[name]
    (best,) = tune(hopeless, name)
    assert not hopeless.goal.is_met_by(best.score.attainment)
    (axis,) = (axis for axis in rule.axes(hopeless) if axis.within)
    first, second, *_ = (float(value) for value in axis.values)
    lowest = min(float(params[axis.name]) for params, _ in best.found)
    assert first * (first / second) ** (STEPS - 2) < lowest < first
    at_the_end = [score.attainment for params, score in best.found if float(params[axis.name]) == lowest]
    before_it = [score.attainment for params, score in best.found if lowest < float(params[axis.name])]
    assert max(at_the_end) < max(before_it) + MIN_RISE


def test_constant_count_stops_growing_without_effect(hopeless: Case) -> None:
    (best,) = tune(hopeless, "static")
    count = int(float(best.params["replicas"]))
    many = replace(hopeless, start_replicas=400)
    score = compute_score(many, run(many, BASELINES["static"](many, {"replicas": 400.0})))
    assert score.attainment - MIN_RISE < best.score.attainment < 0.96
    assert max(float(params["replicas"]) for params, _ in best.found) <= 2 * count < 400


def test_extension_stops_after_a_step_without_effect(case: Case) -> None:
    """With one request per second, all targets above some value give one replica."""
    light = replace(case, trace=poisson([1.0], 300.0), start_replicas=1)
    (best,) = tune(light, "hpa-inflight")
    targets = sorted({float(params["target"]) for params, _ in best.found})
    assert (best.params["target"], targets[-1]) == (256.0, 512.0)


def test_extension_continues_while_replicas_can_be_saved(case: Case) -> None:
    """Slightly more than two replicas can serve: the last target of the grid gives three, and so does the next."""
    rule, most = BASELINES["keda-rps"], request_rates_to_try(case)[-1] / 0.85
    arrivals = trace(np.arange(0, 480, 1 / (2.1 * most)), duration_s=480.0)
    steady = replace(case, trace=arrivals, goal=Goal(60.0, 0.5, 0.99), start_replicas=3)
    (best,) = tune(steady, "keda-rps")
    last, beyond = (
        compute_score(steady, run(steady, rule(steady, {**best.params, "target": share * most})))
        for share in (0.85, 1.03)
    )
    assert last.gpu_hours == beyond.gpu_hours
    assert best.score.gpu_hours < 0.9 * beyond.gpu_hours
    assert steady.goal.is_met_by(best.score.attainment)


def test_tuning_in_processes_gives_the_same_settings(case: Case, tuned: dict[str, TunedBaseline]) -> None:
    static, again = tune(case, "static", "keda-rps", workers=2)
    assert again == tuned["keda-rps"]
    assert static == tuned["static"]


def test_each_case_gets_the_same_setting_as_alone(case: Case, tuned: dict[str, TunedBaseline]) -> None:
    quiet = replace(case, trace=poisson([4.0], 300.0))
    cases = [case, quiet]
    for name in ("static", "keda-rps"):
        (both,) = run_searches([search_best_settings(cases, name)], cases, workers=1)
        assert both == [tuned[name], *tune(quiet, name)]


def test_unknown_baseline_is_named(case: Case) -> None:
    with pytest.raises(ValueError, match="baseline is 'magic'; allowed: keda-queue, "):
        search_best_settings([case], "magic")


@pytest.mark.parametrize("found", [1, 12])
def test_static_ignores_the_start_replicas_of_the_case(case: Case, found: int) -> None:
    """A service with a constant count ran it before, so no replica starts or ends."""
    (best,) = tune(replace(case, start_replicas=found), "static")
    (tuned,) = tune(case, "static")
    assert best == tuned
    assert (best.score.scale_ups, best.score.scale_downs) == (0, 0)
    duration_s = case.trace.duration_s
    assert best.score.gpu_hours * 3600 >= float(best.params["replicas"]) * duration_s


@pytest.mark.parametrize("name", ["hpa-inflight", pytest.param("keda-queue", marks=pytest.mark.long)])
def test_rule_costs_no_more_than_the_constant_count(case: Case, name: str) -> None:
    """Load that jumps too fast for a long cold start: only a minimum replica count meets the goal."""
    jumps = replace(case, trace=poisson([5.0, 60.0, 5.0, 60.0], 100.0), cold_start_s=200.0)
    static, best = tune(jumps, "static", name)
    assert jumps.goal.is_met_by(static.score.attainment)
    assert jumps.goal.is_met_by(best.score.attainment)
    assert best.score.gpu_hours <= static.score.gpu_hours * (1 + 1e-9)
    assert float(best.params["min_replicas"]) > 1
    grid = [compute_score(jumps, run(jumps, BASELINES[name](jumps, params))) for params in BASELINES[name].grid(jumps)]
    assert not any(jumps.goal.is_met_by(score.attainment) and score.gpu_hours <= best.score.gpu_hours for score in grid)
