"""The figures and lines of the planner: right, readable, and silent about what is not known."""

import math
import re
from dataclasses import fields, replace

import numpy as np
import pytest

from autoscaler.core.explain import planner_lines
from autoscaler.core.explain.planner_lines import Figures
from autoscaler.core.explain.row import TickRow
from autoscaler.core.explain.starts import takes
from autoscaler.core.model.types import Plan, Recommender, Signal
from autoscaler.core.planner.strategies import (
    IS_SEASONAL,
    MARGINS,
    PEAK_HOLDS,
    STRATEGIES,
)
from autoscaler.core.tick import tick
from tests.core.planner.planned import PEAK_STRATEGIES
from tests.core.world import Story, fleet, spec, world

NAN = math.nan
LEARNED = {
    "idle_gap_s": 0.0078,
    "prompt_token_s": 1 / 30_000,
    "output_token_s": 1 / 12_500,
    "slots": NAN,
    "readings": 3210.0,
    "last_updated_s": 0.0,
    "demand": 2.31,
    "work_s": 0.134,
    "busy": 0.5775,
    "strategy": float(PEAK_HOLDS.index((2, 10)) * len(MARGINS) + MARGINS.index((1.1, 0.0))),
    "constant_count": 0.0,
    "observed_s": 7200.0,
    "warm_up_s": 1200.0,
    "initial_fleet": 2.0,
    "allowed_fraction": 0.0065,
    "shadow_missed_fraction": 0.0046,
    "strategy_replicas": 4.0,
    "unavoidable_fraction": 0.002,
    "missed_fraction": 0.025,
    "itl_counted_requests": 100.0,
    "base_replicas": 3.0,
    "replicas": 4.0,
    "peak_expires_in_s": NAN,
    "day_ago_load": NAN,
    "week_ago_load": NAN,
    "surges": 0.0,
    "surge_counts_s": NAN,
}


READ = {"gap_s": 1.0}
TOLD = [field.name for field in fields(Plan) if field.name != "forecast"]


def made(rules=None, asked=4.0, read=READ, **plan):
    """A tick whose forecast is made up: what it knows is stated here, the rest of it is real.

    read: counters of the pods, in addition to those that a world has by itself.
    """
    story = Story(rules or spec(concurrency=NAN))
    story.tick(fleet([4]), running=4.0)
    inp = world(story.now_s, fleet([4]), story.spec, running=4.0, **read)
    decision, _ = tick(inp, story.memory)
    asks = decision.recommendations.copy()
    asks[Signal.PLANNER] = asked
    known = replace(Plan.blank(1), **{name: np.array([(LEARNED | plan)[name]]) for name in TOLD})
    speaks = Recommender.STATED if inp.spec.has_stated_capacity[0] else Recommender.REACTIVE
    speaks = speaks if math.isnan(asked) else Recommender.PLANNER
    return inp, replace(decision, recommender=np.array([speaks]), recommendations=asks, plan=known)


def told(rules=None, asked=4.0, read=READ | {"gaps": 1.0}, **plan) -> dict[str, str]:
    inp, decision = made(rules, asked, read, **plan)
    return {
        line.name: line.text for line in planner_lines.lines(planner_lines.read(inp, decision, 0), inp, decision, 0)
    }


def test_each_question_of_an_operator_has_a_line():
    assert told() == {
        "load": "arriving requests keep 2.31 replicas busy",
        "headroom": "1.69 replicas: 4 recommended for a load of 2.31; 3 of them are base replicas",
        "strategy": "follows the load average over 4 min, holds its peaks for 10 cold starts of 60 s on average, "
        "adds 110%",
        "shadow": "the strategy would have missed 0.46% of requests so far and may miss 0.65% now, "
        "beyond the 0.2% that always miss",
        "budget": "1% of requests may miss in a day, 2.5% missed in 2 h of traffic: 250% of the error budget; "
        "0.2% miss at any number of replicas",
        "replica": "7.46 requests/s keep one busy; 7.8 ms between tokens when idle; "
        "at most 30000 prompt or 12500 generated tokens/s",
        "confidence": "3210 readings of busy replicas, 2 h of traffic observed",
    }


def test_a_cold_start_is_assumed_until_one_was_seen():
    inp, decision = made()
    unseen = replace(decision, starts=replace(decision.starts, seen=np.zeros(1)))
    told_lines = planner_lines.lines(planner_lines.read(inp, unseen, 0), inp, unseen, 0)
    assert "holds its peaks for 10 cold starts of an assumed 60 s, " in str(told_lines)
    assert str(takes(TickRow(inp, unseen, 0))) == "is assumed to take 90 s"
    assert str(takes(TickRow(inp, decision, 0))) == "takes 90 s"


def test_the_figures_are_those_of_the_lines():
    figures = planner_lines.read(*made(), 0)
    assert figures == Figures(
        demand_replicas=2.31,
        recommended_replicas=4.0,
        headroom_replicas=pytest.approx(1.69),
        strategy_replicas=4.0,
        base_replicas=3.0,
        requests_per_s=pytest.approx(7.46, abs=0.01),
        idle_gap_s=0.0078,
        prompt_tokens_per_s=pytest.approx(30_000),
        generation_tokens_per_s=pytest.approx(12_500),
        readings=3210.0,
        observed_s=7200.0,
        warm_up_s=1200.0,
        average_s=240.0,
        hold_cold_starts=10,
        margin_fraction=1.1,
        margin_roots=0.0,
        constant_replicas=0.0,
        budget_fraction=pytest.approx(0.01),
        window_s=86_400.0,
        allowed_fraction=0.0065,
        shadow_missed_fraction=0.0046,
        unavoidable_fraction=0.002,
        missed_fraction=0.025,
        used_budgets=pytest.approx(2.5),
        peak_expires_in_s=pytest.approx(NAN, nan_ok=True),
    )


@pytest.mark.parametrize("count", [2, 9, 645])
def test_a_constant_count_is_named_with_the_peak_it_yields_to(count):
    selected = {"strategy": float(PEAK_STRATEGIES), "constant_count": float(count)}
    said = told(**selected)["strategy"]
    needs = "while the peak of the load average over 4 min in the last 10 cold starts of 60 s on average needs more"
    assert said == f"keeps {count} replicas, and more {needs}"
    assert planner_lines.read(*made(**selected), 0).constant_replicas == count


def test_slots_limit_a_replica_when_they_are_few():
    assert told(slots=4.0)["replica"].endswith("at most 30000 prompt or 493 generated tokens/s")
    assert told(slots=4.0, output_token_s=NAN)["replica"].endswith("or 513 generated tokens/s")
    assert told(slots=1e6)["replica"].endswith("or 12499 generated tokens/s")


def test_no_headroom_is_named_when_zero_is_recommended():
    assert "headroom" not in told(asked=0.0, demand=0.0182, replicas=1.0)


@pytest.mark.parametrize("rule", range(PEAK_STRATEGIES))
def test_every_strategy_has_a_line(rule):
    said = told(strategy=float(rule))["strategy"]
    assert re.fullmatch(
        r"follows the load average over (20 s|4 min), holds its peaks for (3|10) cold starts of 60 s on average"
        r"(, expects no less than a day and a week ago at this time)?(, adds (\d+%|[\d.]+ times its square root))?",
        said,
    )
    assert ("%" in said) == (STRATEGIES[rule].margin_share > 0)
    assert ("day" in said) == IS_SEASONAL[rule]


def test_the_warm_up_is_named_until_it_is_over():
    kept = "; the initial fleet is kept for 20 min"
    assert told(observed_s=1199.0)["strategy"].endswith(f"adds 110%{kept}")
    assert told(observed_s=1200.0)["strategy"].endswith("adds 110%")


def test_the_initial_fleet_is_named_when_it_limits_a_strategy():
    assert told(strategy_replicas=6.0)["strategy"].endswith(
        "adds 110%; it would recommend 6, but no more headroom is added in the first hours of steady traffic"
    )
    assert told(strategy_replicas=3.0)["strategy"].endswith("adds 110%")  # the policy has a floor


@pytest.mark.parametrize(
    ("rules", "plan", "why"),
    [
        ({"concurrency": 10.0}, {}, "no recommendation: the policy states what a replica can do"),
        (
            {"ttft_objective_s": NAN, "max_wait_s": NAN},
            {},
            "no recommendation: the policy limits neither TTFT nor the time in the queue",
        ),
        (
            {},
            {"readings": 0.0},
            "no recommendation yet: no reading of busy replicas, 4 show how fast one is",
        ),
        ({}, {"readings": 3.0}, "no recommendation yet: 3 readings of busy replicas, 4 show how fast one is"),
        ({}, {"readings": 1.0}, "no recommendation yet: 1 reading of busy replicas, 4 show how fast one is"),
        ({}, {}, "no recommendation: the arrival rate is not known right now"),
    ],
)
def test_a_planner_without_recommendation_says_why(rules, plan, why):
    said = told(spec(**({"concurrency": NAN} | rules)), asked=NAN, **plan)
    assert said["planner"] == why
    assert not {"headroom", "strategy", "shadow"} & said.keys()


@pytest.mark.parametrize(
    ("absent", "named"),
    [
        (("gaps",), "the number of gaps between tokens"),
        (("first_tokens", "gap_s", "gaps"), "first tokens, the time between tokens, the number of gaps between tokens"),
        (("finished",), "finished requests"),
    ],
)
def test_the_planner_names_inputs_when_they_are_missing(absent, named):
    read = {"gap_s": 1.0, "gaps": 1.0} | dict.fromkeys(absent, NAN)
    said = told(spec(concurrency=NAN), asked=NAN, read=read, readings=0.0)["planner"]
    assert said == f"no recommendation: the metrics of its pods lack {named}"


def test_the_budget_line_says_when_misses_are_not_counted():
    assert told(unavoidable_fraction=0.031)["budget"].endswith(
        "; 3.1% miss at any number of replicas, more than may: the objective is out of reach"
    )
    assert told(missed_fraction=NAN)["budget"] == "1% of requests may miss in a day; misses are not counted"


def test_the_budget_line_says_when_no_request_was_counted():
    nobody = {"missed_fraction": NAN, "shadow_missed_fraction": NAN}
    assert told(**nobody)["budget"] == "1% of requests may miss in a day; no request was counted yet"


@pytest.mark.parametrize(("finished_per_s", "said"), [(NAN, "no request was counted yet"), (1.0, "are not counted")])
def test_finished_requests_show_that_misses_are_not_counted(finished_per_s, said):
    inp, decision = made(missed_fraction=NAN, shadow_missed_fraction=NAN, readings=0.0)
    observation = replace(decision.observation, finished_per_s=np.array([finished_per_s]))
    decision = replace(decision, observation=observation)
    lines = planner_lines.lines(planner_lines.read(inp, decision, 0), inp, decision, 0)
    assert {line.name: line.text for line in lines}["budget"].endswith(said)


def test_no_request_is_counted_before_the_first_plan():
    inp, decision = made(missed_fraction=NAN, shadow_missed_fraction=NAN, readings=0.0)
    observation = replace(decision.observation, finished_per_s=np.array([1.0]))
    gaps = replace(inp.samples.pods, gaps=np.array([NAN, 5.0, NAN, 7.0]))
    inp = replace(inp, samples=replace(inp.samples, pods=gaps))
    decision = replace(decision, observation=observation)
    lines = planner_lines.lines(planner_lines.read(inp, decision, 0), inp, decision, 0)
    assert {line.name: line.text for line in lines}["budget"].endswith("no request was counted yet")


def test_a_token_time_of_almost_zero_is_no_limit():
    said = told(prompt_token_s=0.0, output_token_s=1e-14)
    assert said["replica"] == "7.46 requests/s keep one busy; 7.8 ms between tokens when idle"


def test_the_headroom_line_says_how_many_are_too_few():
    assert told(demand=9.0)["load"] == "arriving requests would keep 9 replicas busy"
    assert told(demand=9.0, base_replicas=4.0)["headroom"] == "5 replicas too few: 4 recommended for a load of 9"
    most = told(spec(concurrency=NAN, max_replicas=4.0), demand=5.0)["headroom"]
    assert most == "1 replica too few: 4 recommended, the maximum, for a load of 5"


def test_misses_are_of_a_day_when_a_day_was_observed():
    assert "2.5% missed in about a day" in told(observed_s=90_000.0)["budget"]
    shorter = told(spec(concurrency=NAN, window_s=21_600.0), observed_s=22_000.0)["budget"]
    assert shorter.startswith("1% of requests may miss in 6 h, 2.5% missed in about 6 h")
    assert "2.5% missed in 13.1 min of traffic" in told(observed_s=786.0)["budget"]


def test_no_time_is_named_when_none_was_observed():
    """Misses may come from history, or from another set of strategies."""
    assert ", 2.5% missed so far: " in told(observed_s=0.0)["budget"]


def test_the_error_budget_has_no_rounding_noise():
    assert planner_lines.read(*made(spec(attainment=0.9)), 0).budget_fraction == 0.1


def test_the_initial_fleet_is_not_named_when_zero_is_recommended():
    assert told(asked=0.0, strategy_replicas=1.0)["strategy"].endswith("adds 110%")


def test_base_replicas_are_at_most_the_recommendation():
    assert planner_lines.read(*made(asked=0.0), 0).base_replicas == 0
    assert math.isnan(planner_lines.read(*made(asked=NAN), 0).base_replicas)


def test_there_is_no_line_when_no_policy_is_in_force():
    inp, decision = made()
    decision = replace(decision, recommender=np.array([Recommender.NO_POLICY]))
    assert planner_lines.lines(planner_lines.read(inp, decision, 0), inp, decision, 0) == ()


@pytest.mark.slow
@pytest.mark.parametrize("wild", [NAN, math.inf, -math.inf, -1.0, 0.0, 1e18])
@pytest.mark.parametrize("name", [name for name in TOLD if name != "strategy"])
def test_no_line_contains_nan_for_any_value(name, wild):
    for text in told(**{name: wild}).values():
        assert not re.search(r"\bnan\b|\binf\b|\d+e[+-]\d+", text)
