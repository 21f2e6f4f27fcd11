"""The registry of baselines: each runs a real case at every setting of its grid."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.lab.baselines import BASELINES, Axis
from autoscaler.lab.baselines.base import MIN_REPLICAS, concurrencies_to_try, min_replicas_to_try, request_rates_to_try
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score
from tests.lab.replay.synthetic import case_of, poisson, trace

NAMES = [
    "keda-queue",
    "keda-rps",
    "hpa-inflight",
    "knative-kpa",
    "llmd-slo",
    "static",
]


@pytest.fixture(scope="module")
def case() -> Case:
    """Load that doubles and falls; one replica serves about 22 such requests per second."""
    return case_of(poisson([10.0, 50.0, 50.0, 10.0], 300.0), start_replicas=1, max_replicas=12)


def test_baseline_names_are_stable() -> None:
    assert list(BASELINES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_numbers_and_words_in_a_fixed_order(name: str, case: Case) -> None:
    grid = BASELINES[name].grid(case)
    assert 4 <= len(grid) <= 40
    assert grid == BASELINES[name].grid(case) == json.loads(json.dumps(grid))
    assert len({json.dumps(params) for params in grid}) == len(grid)
    assert BASELINES[name].source


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_baseline_serves_without_numpy_warnings(name: str, case: Case) -> None:
    baseline = BASELINES[name]
    grid = baseline.grid(case)
    for params in (grid[0], grid[len(grid) // 2], grid[-1]):
        scaler = baseline(case, params)
        assert scaler.name == name
        row = compute_score(case, run(case, scaler))
        assert 0 <= row.attainment <= 1
        assert row.gpu_hours > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "static"])
def test_some_setting_follows_the_load_up_and_down(name: str, case: Case) -> None:
    rows = (compute_score(case, run(case, BASELINES[name](case, params))) for params in BASELINES[name].grid(case))
    assert any(row.scale_ups and row.scale_downs and row.attainment > 0.5 for row in rows)


DOCUMENTED = {
    "keda-queue": {"target": 5.0, "stabilization_s": 300.0, "min_replicas": 1.0},
    "hpa-inflight": {"target": 16.0, "stabilization_s": 300.0, "min_replicas": 1.0},
    "knative-kpa": {"limit": 100.0, "stable_s": 60.0, "min_replicas": 0.0},
    "llmd-slo": {"high": 0.55, "low_share": 0.40 / 0.55, "min_replicas": 1.0},
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_defaults_are_those_of_the_documentation(name: str, case: Case) -> None:
    default = BASELINES[name].default
    assert default
    assert default(case) == DOCUMENTED[name]


def test_undocumented_target_is_derived_and_noted(case: Case) -> None:
    derived = {name: baseline for name, baseline in BASELINES.items() if baseline.derived.startswith("target")}
    targets = {name: dict(baseline.default(case))["target"] for name, baseline in derived.items() if baseline.default}
    assert set(targets) == {"keda-rps"}
    # A full replica serves about 22 such requests per second; within the objectives it serves fewer.
    assert 1 < targets["keda-rps"] < 1 / (1000 * case.profile.prompt_token_s)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "static"])
def test_default_is_in_the_grid_and_has_neighbours(name: str, case: Case) -> None:
    baseline = BASELINES[name]
    assert baseline.default
    default = baseline.default(case)
    assert baseline.grid(case).count(default) == 1
    ranged_axes = [axis.name for axis in baseline.axes(case) if axis.within]
    around = baseline.around(case, default)
    assert len(around) == 2 * len(ranged_axes)
    for axis, (below, above) in zip(ranged_axes, zip(around[::2], around[1::2], strict=True), strict=True):
        assert float(below[axis]) < float(default[axis]) < float(above[axis])


def test_only_a_constant_count_has_no_default(case: Case) -> None:
    assert [name for name, baseline in BASELINES.items() if baseline.default is None] == ["static"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "static"])
def test_every_default_serves_even_without_requests(name: str, case: Case) -> None:
    baseline = BASELINES[name]
    assert baseline.default
    for each in (case, case_of(trace(np.array([1.0]), duration_s=60.0)), case_of(trace(np.empty(0), duration_s=60.0))):
        row = compute_score(each, run(each, baseline(each, baseline.default(each))))
        assert row.gpu_hours > 0


def test_unknown_setting_is_named(case: Case) -> None:
    with pytest.raises(ValueError, match="settings of hpa-inflight are goal, wanted: target, stabilization_s"):
        BASELINES["hpa-inflight"](case, {"goal": 3.0})


def test_refinement_goes_half_way_by_ratio_and_beyond_the_ends(case: Case) -> None:
    baseline = BASELINES["hpa-inflight"]
    around = baseline.around(case, {"target": 16.0, "stabilization_s": 60.0})
    assert [params["target"] for params in around] == [11.3137, 22.6274]
    assert all(params["stabilization_s"] == 60.0 for params in around)
    assert [params["target"] for params in baseline.around(case, {"target": 2.0, "stabilization_s": 60.0})] == [
        1.41421,
        2.82843,
    ]


def test_step_beyond_an_end_keeps_the_ratio_of_values(
    case: Case,
) -> None:
    baseline = BASELINES["hpa-inflight"]
    here = {"target": 16.0, "stabilization_s": 60.0, MIN_REPLICAS: 1.0}
    assert baseline.beyond(case, here) == []
    further = [{**here, "target": 1.0, "stabilization_s": stabilization_s} for stabilization_s in (60.0, 300.0, 900.0)]
    assert baseline.beyond(case, {**here, "target": 2.0}) == further
    assert {params["target"] for params in baseline.beyond(case, further[0])} == {0.5}
    assert {params["target"] for params in baseline.beyond(case, {**here, "target": 256.0})} == {512.0}


def test_no_step_leaves_the_range_of_a_setting(case: Case) -> None:
    axis = Axis("sensitivity", (0.2, 0.4, 0.8), within=(0.01, 1.0))
    assert [axis.beyond(here) for here in (0.8, 1.0, 0.2, 0.015, 0.01)] == [1.0, None, 0.1, 0.01, None]
    for baseline in BASELINES.values():
        for axis in baseline.axes(case):
            if axis.within:
                assert axis.within[0] <= float(axis.values[0]) < float(axis.values[-1]) <= axis.within[1]
    high = {"high": 2.0, "low_share": 0.5, "min_replicas": 1.0}
    around = BASELINES["llmd-slo"].around(case, high)
    assert [params["high"] for params in around] == [1.37840]


def test_neighbours_include_settings_beyond_the_grid(case: Case) -> None:
    baseline = BASELINES["hpa-inflight"]
    tried = [{"target": target, "stabilization_s": 60.0, MIN_REPLICAS: 1.0} for target in (1.0, 0.5)]
    around = baseline.around(case, tried[0], [*tried, {**tried[0], "target": 0.9, "stabilization_s": 300.0}])
    assert [params["target"] for params in around] == [0.707107, 1.41421]


def test_scale_to_zero_is_tried_only_with_long_idle_times() -> None:
    busy = case_of(trace(np.arange(0.0, 600.0, 5.0)))
    idle = case_of(trace(np.concatenate([np.arange(0.0, 100.0, 5.0), np.arange(500.0, 600.0, 5.0)])))
    assert min_replicas_to_try(busy, 60.0) == (1.0,)
    assert min_replicas_to_try(idle, 60.0) == (0.0, 1.0)
    assert {params["min_replicas"] for params in BASELINES["knative-kpa"].grid(idle)} == {0.0, 1.0}


def test_ranges_follow_the_case() -> None:
    case = case_of(poisson([20.0], 600.0))
    prompt_s = 1000 * case.profile.prompt_token_s
    assert request_rates_to_try(case)[-1] < 1 / prompt_s
    assert concurrencies_to_try(case)[-1] == 256
    assert math.isclose(request_rates_to_try(case)[-1] / request_rates_to_try(case)[0], 0.85 / 0.25, rel_tol=1e-3)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "static"])
def test_every_rule_keeps_its_minimum_from_the_start(name: str, case: Case) -> None:
    baseline = BASELINES[name]
    quiet = case_of(poisson([2.0, 0.0, 2.0], 400.0), start_replicas=1, max_replicas=12)
    assert baseline.default
    params = {**baseline.default(quiet), MIN_REPLICAS: 5.0}
    started = baseline.starting_case(quiet, params)
    assert started.start_replicas == 5
    assert baseline.starting_case(case_of(quiet.trace, start_replicas=7), params).start_replicas == 7
    outcome = run(started, baseline(started, params))
    assert outcome.timeline[:, 1].min() == 5
    assert compute_score(started, outcome).gpu_hours * 3600 >= 5 * quiet.trace.duration_s


def test_minimums_are_fractions_of_the_constant_count(case: Case) -> None:
    baseline = BASELINES["hpa-inflight"]
    setting = {"target": 128.0, "stabilization_s": 60.0, MIN_REPLICAS: 1.0}
    found = baseline.with_min_replicas(case, setting, enough=10)
    assert [(params[MIN_REPLICAS], params["target"]) for params in found] == [
        *((floor, target) for floor in (5, 8) for target in (128, 256)),
        (10, 256),
    ]
    beyond = baseline.with_min_replicas(case, {**setting, "target": 400.0}, enough=10)
    assert [(params[MIN_REPLICAS], params["target"]) for params in beyond] == [(5, 400), (8, 400), (10, 400)]
    assert baseline.with_min_replicas(case, setting, enough=1) == []
    assert BASELINES["static"].with_min_replicas(case, {"replicas": 3.0}, enough=10) == []


def test_minimum_is_bisected_until_no_count_lies_between() -> None:
    baseline, rule = BASELINES["hpa-inflight"], {"target": 4.0, "stabilization_s": 60.0}
    tried = [{**rule, MIN_REPLICAS: floor} for floor in (1.0, 5.0, 8.0)] + [{**rule, "target": 8.0, MIN_REPLICAS: 6.0}]
    between = [params[MIN_REPLICAS] for params in baseline.between(tried[1], tried)]
    assert between == [3.0, 7.0]
    assert baseline.between(tried[1], [*tried, *({**rule, MIN_REPLICAS: floor} for floor in (4.0, 6.0))]) == []
    assert [params[MIN_REPLICAS] for params in baseline.between(tried[2], tried)] == [6.0]


@pytest.mark.parametrize("goal", [Goal(1.0, math.nan, 0.99), Goal(math.nan, 0.1, 0.99)])
def test_slo_rule_shrinks_when_an_objective_is_not_stated(goal: Goal) -> None:
    falling = replace(case_of(poisson([30.0, 2.0, 2.0], 400.0), start_replicas=6, max_replicas=12), goal=goal)
    baseline = BASELINES["llmd-slo"]
    assert baseline.default
    row = compute_score(falling, run(falling, baseline(falling, baseline.default(falling))))
    assert row.scale_downs > 0
    assert row.gpu_hours * 3600 < 6 * falling.trace.duration_s
