"""The line through the readings: the idle gap and what tokens cost, found of a fleet that is never idle."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.planner import step_time
from autoscaler.core.planner.step_time import (
    DOUBTED,
    FEWEST_READINGS,
    IDLE_GAP_DRIFT,
    NOISE,
    OUTPUT_SHARE,
    PROMPT_SHARE,
    SHORTEST_SHARE,
    SUMS,
    fit,
    lessons,
    shortest,
)

IDLE_GAP_S, PROMPT_TOKEN_S, OUTPUT_TOKEN_S = 0.008, 25e-6, 180e-6
DAY_S = 86_400.0


def gap_of(prompt_per_s, output_per_s, idle_gap_s=IDLE_GAP_S, prompt_s=PROMPT_TOKEN_S, output_s=OUTPUT_TOKEN_S):
    """Gap between tokens of an engine whose step takes a fixed time and more for every token."""
    return idle_gap_s / (1 - prompt_per_s * prompt_s - output_per_s * output_s)


def drawn(gap_s, prompt_per_s, output_per_s, shortest_gap_s=None):
    """The line through these readings of one workload."""
    sums = lessons(gap_s, prompt_per_s, output_per_s).sum(axis=1, keepdims=True)
    least = np.array([gap_s.min() if shortest_gap_s is None else shortest_gap_s])
    return fit(sums, np.array([float(len(gap_s))]), least)


def busy_readings(random, count=400):
    """Token rates of a fleet between a quarter and three quarters busy, each with a mix of its own."""
    prompt_per_s, output_per_s = random.uniform(6_000, 16_000, count), random.uniform(600, 1_800, count)
    return prompt_per_s, output_per_s


def ridged(gap_s, prompt_per_s, output_per_s, kinds=("prompt", "output")):
    """The second source: gaps by least squares, each belief one reading more, of a slope and of no gap.

    Returns the gap when idle, and the time of each of these kinds of token, of which there is at least one.
    """
    each = {"prompt": (gap_s * prompt_per_s, PROMPT_SHARE), "output": (gap_s * output_per_s, OUTPUT_SHARE)}
    guess_s = gap_s.sum() / (len(gap_s) + sum(share * tokens.sum() for tokens, share in each.values()))
    sure = np.diag([NOISE / (DOUBTED * each[kind][1]) for kind in kinds])
    steps = np.stack([np.ones_like(gap_s), *(each[kind][0] for kind in kinds)], axis=1)
    beliefs = np.concatenate([np.zeros((len(kinds), 1)), sure], axis=1)
    said = np.concatenate([gap_s, guess_s * sure @ [each[kind][1] for kind in kinds]])
    return np.linalg.lstsq(np.concatenate([steps, beliefs]), said, rcond=None)[0]


def test_without_noise_the_three_are_found_of_a_fleet_that_is_never_idle():
    """Whose tokens take half and more than twice of what is believed."""
    prompt_per_s, output_per_s = busy_readings(np.random.default_rng(1), 4000)
    gap_s = gap_of(prompt_per_s, output_per_s)
    assert gap_s.min() > 1.3 * IDLE_GAP_S
    line = drawn(gap_s, prompt_per_s, output_per_s)
    assert line.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.002)
    assert line.prompt_token_s[0] == pytest.approx(PROMPT_TOKEN_S, rel=0.005)
    assert line.output_token_s[0] == pytest.approx(OUTPUT_TOKEN_S, rel=0.005)


@pytest.mark.parametrize("seed", range(5))
def test_gaps_that_scatter_by_five_percent_move_none_of_them_by_more_than_a_tenth(seed):
    random = np.random.default_rng(seed)
    prompt_per_s, output_per_s = busy_readings(random)
    gap_s = gap_of(prompt_per_s, output_per_s) * random.lognormal(0, 0.05, len(prompt_per_s))
    line = drawn(gap_s, prompt_per_s, output_per_s)
    assert line.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.1)
    assert line.prompt_token_s[0] == pytest.approx(PROMPT_TOKEN_S, rel=0.1)
    assert line.output_token_s[0] == pytest.approx(OUTPUT_TOKEN_S, rel=0.1)


def test_an_idle_fleet_shows_its_gap_and_of_what_tokens_cost_belief_stands():
    """Without variation nothing is read out of noise."""
    random = np.random.default_rng(2)
    gap_s = IDLE_GAP_S * random.lognormal(0, 0.05, 200)
    line = drawn(gap_s, 0.24 / gap_s, 0.1 / gap_s)  # tokens a step: 0.24 and 0.1
    assert gap_s.min() * SHORTEST_SHARE <= line.idle_gap_s[0] <= gap_s.min()
    assert line.prompt_token_s[0] == pytest.approx(PROMPT_SHARE * line.idle_gap_s[0], rel=1e-6)
    assert line.output_token_s[0] == pytest.approx(OUTPUT_SHARE * line.idle_gap_s[0], rel=1e-6)


def test_where_only_one_kind_of_token_varies_its_cost_is_found_and_of_the_other_belief_stands():
    prompt_per_s = np.linspace(1_000, 20_000, 50)
    line = drawn(gap_of(prompt_per_s, 0.0), prompt_per_s, np.zeros(50))
    assert line.prompt_token_s[0] == pytest.approx(PROMPT_TOKEN_S, rel=0.01)
    gap_s = gap_of(prompt_per_s, 0.0)
    guess_s = gap_s.sum() / (1 + PROMPT_SHARE * gap_s * prompt_per_s).sum()  # as belief alone would have the idle gap
    assert line.output_token_s[0] == pytest.approx(OUTPUT_SHARE * guess_s, rel=1e-6)
    assert line.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.01)


@pytest.mark.parametrize("count", [4, 16, 400])
def test_the_line_is_that_of_least_squares_with_belief_as_two_readings_more(count):
    random = np.random.default_rng(6)
    prompt_per_s, output_per_s = busy_readings(random, count)
    gap_s = gap_of(prompt_per_s, output_per_s) * random.lognormal(0, 0.05, count)
    line = drawn(gap_s, prompt_per_s, output_per_s)
    idle_gap_s, by_prompt, by_output = ridged(gap_s, prompt_per_s, output_per_s)
    assert line.idle_gap_s[0] == pytest.approx(idle_gap_s, rel=1e-6)
    assert line.prompt_token_s[0] == pytest.approx(by_prompt, rel=1e-6)
    assert line.output_token_s[0] == pytest.approx(by_output, rel=1e-6)
    half = drawn(gap_s, prompt_per_s, output_per_s, idle_gap_s / 2)  # there was a shorter gap: so all is faster
    np.testing.assert_allclose(np.array(half), np.array(line) / 2, rtol=1e-6)


@pytest.mark.parametrize(("count", "noise"), [(100, 0.02), (200_000, 0.02), (200_000, 0.1)])
def test_any_number_of_readings_of_one_load_tell_the_idle_gap(count, noise):
    """Whatever makes single pods slow makes them write fewer tokens a second, not a step."""
    random = np.random.default_rng(10)
    prompts, outputs = random.normal(30.0, 5.0, count), random.normal(35.0, 3.0, count)  # a step
    costs = PROMPT_SHARE * IDLE_GAP_S, OUTPUT_SHARE * IDLE_GAP_S
    gap_s = (IDLE_GAP_S + costs[0] * prompts + costs[1] * outputs) * random.lognormal(0, noise, count)
    line = drawn(gap_s, prompts / gap_s, outputs / gap_s)
    assert gap_s.mean() > 1.45 * IDLE_GAP_S
    assert line.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.05)


@pytest.mark.parametrize(
    ("idle_gap_s", "prompts", "outputs"),
    [
        (0.008, 220, 96),
        (0.012, 105, 104),
        (0.013, 200, 123),
        (0.014, 180, 106),
        (0.016, 107, 67),
        (0.016, 90, 70),
        (0.018, 228, 288),
    ],
)
def test_four_readings_of_one_steady_load_and_belief_give_the_idle_gap(idle_gap_s, prompts, outputs):
    """Engines of the profile table, by how many tokens take as long as an idle gap, three tenths busy.

    Each gap that is seen is 43 % too long; of the rest, the error grows with how busy they are.
    """
    costs = idle_gap_s / prompts, idle_gap_s / outputs
    output_per_s = 0.3 / (4 * costs[0] + costs[1])  # four prompt tokens for each of them
    random = np.random.default_rng(8)
    prompt_per_s, output_per_s = output_per_s * random.normal([[4.0], [1.0]], 0.02, (2, int(FEWEST_READINGS)))
    gap_s = gap_of(prompt_per_s, output_per_s, idle_gap_s, *costs) * random.lognormal(0, 0.02, len(prompt_per_s))
    line = drawn(gap_s, prompt_per_s, output_per_s)
    assert gap_s.min() > 1.35 * idle_gap_s
    assert line.idle_gap_s[0] == pytest.approx(idle_gap_s, rel=0.17)


@pytest.mark.parametrize("prompt_off", [0.5, 1.5])
@pytest.mark.parametrize("output_off", [0.5, 1.5])
def test_after_many_readings_that_vary_it_no_longer_matters_that_belief_was_off_by_half(prompt_off, output_off):
    costs = prompt_off * PROMPT_SHARE * IDLE_GAP_S, output_off * OUTPUT_SHARE * IDLE_GAP_S
    random = np.random.default_rng(9)
    prompt_per_s, output_per_s = random.uniform(0.1, 0.4, (2, 2000)) / np.array(costs)[:, None]
    line = drawn(gap_of(prompt_per_s, output_per_s, IDLE_GAP_S, *costs), prompt_per_s, output_per_s)
    assert line.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.01)
    assert line.prompt_token_s[0] == pytest.approx(costs[0], rel=0.02)
    assert line.output_token_s[0] == pytest.approx(costs[1], rel=0.02)


@pytest.mark.parametrize("faster", ["prompt", "output"])
def test_a_slope_that_comes_out_negative_is_none_and_the_other_is_drawn_alone(faster):
    """Gaps that get shorter with one kind of token, both kinds coming together."""
    random = np.random.default_rng(3)
    prompt_per_s, _ = busy_readings(random, 20_000)
    output_per_s = prompt_per_s / 9 + random.uniform(-100, 100, len(prompt_per_s))
    gain = {"prompt": (-4e-6, OUTPUT_TOKEN_S), "output": (PROMPT_TOKEN_S, -40e-6)}[faster]
    gap_s = IDLE_GAP_S / (1 - gain[0] * prompt_per_s - gain[1] * output_per_s)
    line = drawn(gap_s, prompt_per_s, output_per_s)
    both = dict(zip(("prompt", "output"), ridged(gap_s, prompt_per_s, output_per_s)[1:], strict=True))
    (other,) = {"prompt", "output"} - {faster}
    assert both[faster] < 0 < both[other]
    slope = ridged(gap_s, prompt_per_s, output_per_s, (other,))[1]
    idle_gap_s = float((gap_s - slope * gap_s * {"prompt": prompt_per_s, "output": output_per_s}[other]).mean())
    costs = {"prompt": line.prompt_token_s[0], "output": line.output_token_s[0]}
    assert costs[faster] == 0
    assert costs[other] == pytest.approx(slope * line.idle_gap_s[0] / max(idle_gap_s, line.idle_gap_s[0]), rel=1e-6)


def test_the_idle_gap_is_never_above_the_shortest_gap_nor_far_below_it():
    prompt_per_s, output_per_s = busy_readings(np.random.default_rng(4))
    gap_s = gap_of(prompt_per_s, output_per_s)
    assert drawn(gap_s, prompt_per_s, output_per_s, 0.004).idle_gap_s[0] == 0.004
    assert drawn(gap_s, prompt_per_s, output_per_s, 0.1).idle_gap_s[0] == pytest.approx(SHORTEST_SHARE * 0.1)


def test_few_readings_say_nothing():
    prompt_per_s, output_per_s = busy_readings(np.random.default_rng(5), int(FEWEST_READINGS) - 1)
    assert all(np.isnan(value[0]) for value in drawn(gap_of(prompt_per_s, output_per_s), prompt_per_s, output_per_s))
    prompt_per_s, output_per_s = busy_readings(np.random.default_rng(5), int(FEWEST_READINGS))
    known = drawn(gap_of(prompt_per_s, output_per_s), prompt_per_s, output_per_s)
    assert known.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.05)


def test_the_shortest_gap_is_that_of_any_time_let_grow_a_little():
    def one(known_s, seen_s, step_s):
        return shortest(np.array([known_s]), np.array([seen_s]), np.array([step_s]))[0]

    assert math.isnan(one(math.nan, math.nan, 0.0))
    assert one(math.nan, 0.02, 0.0) == 0.02
    assert one(0.01, math.nan, 0.0) == 0.01
    assert one(0.01, 0.05, DAY_S) == pytest.approx(0.01 * (1 + IDLE_GAP_DRIFT))
    assert one(0.01, 0.002, 30.0) == 0.002
    assert one(0.01, 0.05, 100 * DAY_S) == one(0.01, 0.05, DAY_S)  # a pause is no reason to forget


def test_an_engine_that_becomes_faster_is_believed_at_once_and_a_slower_one_by_two_percent_a_day():
    gap_s = np.array([0.01])
    assert shortest(gap_s, np.array([0.005]), np.array([30.0]))[0] == 0.005
    for _ in range(int(10 * DAY_S / 30)):
        gap_s = shortest(gap_s, np.array([0.02]), np.array([30.0]))
    assert gap_s[0] == pytest.approx(0.01 * math.exp(10 * IDLE_GAP_DRIFT), rel=0.01)


rates = st.one_of(st.sampled_from([0.0, 1e-12, 1.0, 1e9, 1e12]), st.floats(0, 1e12))
readings = st.tuples(st.one_of(st.sampled_from([1e-5, 60.0]), st.floats(1e-5, 60.0)), rates, rates)


@pytest.mark.slow
@given(st.lists(st.lists(readings, min_size=1, max_size=40), min_size=1, max_size=4))
def test_whatever_engines_count_the_line_is_finite_or_unknown_and_costs_nobody_less_than_no_time(fleets):
    """Within what `work` lets through; of several workloads at once."""
    columns = [np.array(fleet).T for fleet in fleets]
    sums = np.stack([lessons(*column).sum(axis=1) for column in columns], axis=1)
    assert sums.shape == (SUMS, len(fleets))
    least = np.array([column[0].min() for column in columns])
    line = fit(sums, np.array([float(column.shape[1]) for column in columns]), least)
    enough = np.array([column.shape[1] >= FEWEST_READINGS for column in columns])
    np.testing.assert_array_equal(~np.isnan(line.idle_gap_s), enough)
    assert (line.idle_gap_s[enough] <= least[enough]).all()
    assert (line.idle_gap_s[enough] >= SHORTEST_SHARE * least[enough] * (1 - 1e-9)).all()
    for slope in (line.prompt_token_s, line.output_token_s):
        assert not np.isinf(slope).any()
        assert not (slope < 0).any()


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=SUMS, max_size=SUMS))
def test_sums_that_no_readings_could_have_made_warn_of_nothing_and_give_no_negative_cost(numbers):
    """Such as a damaged state file might hold."""
    line = fit(np.array(numbers)[:, None], np.array([100.0]), np.array([0.01]))
    assert 0.003 * (1 - 1e-9) <= line.idle_gap_s[0] <= 0.01
    assert not line.prompt_token_s[0] < 0
    assert not line.output_token_s[0] < 0


def test_nothing_seen_is_nothing_known():
    line = fit(np.zeros((step_time.SUMS, 2)), np.array([0.0, 100.0]), np.array([math.nan, math.nan]))
    assert all(np.isnan(value).all() for value in line)
