"""The registry: every baseline runs on a real study, at every setting that it is tuned over."""

import json
import math

import numpy as np
import pytest

from autoscaler.sim.study.baselines import BASELINES
from autoscaler.sim.study.baselines.base import concurrencies, floors, least_replicas, request_rates
from autoscaler.sim.study.case import Case
from autoscaler.sim.study.run import run
from autoscaler.sim.study.score import summarize
from tests.sim.study.small import poisson, study, trace

NAMES = [
    "keda-queue",
    "keda-rps",
    "hpa-inflight",
    "knative-kpa",
    "llmd-slo",
    "wva-saturation",
    "wva-throughput",
    "aibrix-apa",
    "dynamo-throughput",
    "dynamo-load",
    "ray-serve",
    "skyserve",
    "static",
]


@pytest.fixture(scope="module")
def case() -> Case:
    """Load that doubles and falls: one replica does some 22 such requests a second."""
    return study(poisson([10.0, 50.0, 50.0, 10.0], 300.0), start_replicas=1, max_replicas=12)


def test_the_names_of_the_table_are_stable() -> None:
    assert list(BASELINES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_plain_numbers_and_words_and_always_in_the_same_order(name: str, case: Case) -> None:
    grid = BASELINES[name].grid(case)
    assert 4 <= len(grid) <= 30
    assert grid == BASELINES[name].grid(case) == json.loads(json.dumps(grid))
    assert len({json.dumps(params) for params in grid}) == len(grid)
    assert BASELINES[name].source


@pytest.mark.parametrize("name", NAMES)
def test_every_baseline_serves_at_its_settings_without_a_numpy_warning(name: str, case: Case) -> None:
    baseline = BASELINES[name]
    grid = baseline.grid(case)
    for params in (grid[0], grid[len(grid) // 2], grid[-1]):
        scaler = baseline(case, params)
        assert scaler.name == name
        row = summarize(case, run(case, scaler))
        assert 0 <= row.attainment <= 1
        assert row.gpu_hours > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "static"])
def test_some_setting_grows_with_the_load_and_shrinks_after_it(name: str, case: Case) -> None:
    rows = (summarize(case, run(case, BASELINES[name](case, params))) for params in BASELINES[name].grid(case))
    assert any(row.scale_ups and row.scale_downs and row.attainment > 0.5 for row in rows)


def test_a_wrong_setting_is_named(case: Case) -> None:
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


def test_scale_to_zero_is_tried_only_where_somebody_is_idle_for_long() -> None:
    busy = study(trace(np.arange(0.0, 600.0, 5.0)))
    idle = study(trace(np.concatenate([np.arange(0.0, 100.0, 5.0), np.arange(500.0, 600.0, 5.0)])))
    assert least_replicas(busy, 60.0) == (1.0,)
    assert least_replicas(idle, 60.0) == (0.0, 1.0)
    assert {params["min_replicas"] for params in BASELINES["knative-kpa"].grid(idle)} == {0.0, 1.0}


def test_ranges_follow_the_case() -> None:
    case = study(poisson([20.0], 600.0))
    prompt_s = 1000 * case.profile.prompt_token_s
    assert request_rates(case)[-1] < 1 / prompt_s
    assert concurrencies(case)[-1] == 256
    assert floors(case) == (1.0, 2.0)
    assert math.isclose(request_rates(case)[-1] / request_rates(case)[0], 0.85 / 0.25, rel_tol=1e-3)
