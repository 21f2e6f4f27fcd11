"""The fit of the step time: the idle gap and the times of tokens, found for a fleet that is never idle."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.measure.step_time import (
    IDLE_GAP_DRIFT,
    MIN_READINGS,
    PRIOR_DEVIATION,
    PRIOR_OUTPUT_SHARE,
    PRIOR_PROMPT_SHARE,
    READING_NOISE,
    SUMS,
    compute_sums,
    fit_step_time,
    update_shortest_gap,
)

IDLE_GAP_S, PROMPT_TOKEN_S, OUTPUT_TOKEN_S = 0.008, 25e-6, 180e-6
DAY_S = 86_400.0


def compute_gap(prompt_per_s, output_per_s, idle_gap_s=IDLE_GAP_S, prompt_s=PROMPT_TOKEN_S, output_s=OUTPUT_TOKEN_S):
    """Return the token gap of an engine with these constants."""
    return idle_gap_s / (1 - prompt_per_s * prompt_s - output_per_s * output_s)


def fit(gap_s, prompt_per_s, output_per_s, shortest_gap_s=None):
    """Fit the step time to readings of one workload."""
    sums = compute_sums(gap_s, prompt_per_s, output_per_s).sum(axis=1, keepdims=True)
    shortest_gap_s = np.array([gap_s.min() if shortest_gap_s is None else shortest_gap_s])
    return fit_step_time(sums, np.array([float(len(gap_s))]), shortest_gap_s)


def busy_token_rates(random, count=400):
    """Return token rates of a fleet between a quarter and three quarters busy, each with a mix of its own."""
    return random.uniform(6_000, 16_000, count), random.uniform(600, 1_800, count)


def fit_by_ridge(gap_s, prompt_per_s, output_per_s, kinds=("prompt", "output")):
    """Fit by least squares with the prior of each slope as one more reading: the second source.

    Return the idle gap, and the time of each of these kinds of token.
    """
    each = {
        "prompt": (gap_s * prompt_per_s, PRIOR_PROMPT_SHARE),
        "output": (gap_s * output_per_s, PRIOR_OUTPUT_SHARE),
    }
    prior_gap_s = gap_s.sum() / (len(gap_s) + sum(share * tokens.sum() for tokens, share in each.values()))
    weight = np.diag([READING_NOISE / (PRIOR_DEVIATION * each[kind][1]) for kind in kinds])
    tokens = np.stack([np.ones_like(gap_s), *(each[kind][0] for kind in kinds)], axis=1)
    prior = np.concatenate([np.zeros((len(kinds), 1)), weight], axis=1)
    gaps_s = np.concatenate([gap_s, prior_gap_s * weight @ [each[kind][1] for kind in kinds]])
    return np.linalg.lstsq(np.concatenate([tokens, prior]), gaps_s, rcond=None)[0]


def test_constants_are_exact_when_busy_readings_have_no_noise():
    """Tokens take a half and more than twice the prior time."""
    prompt_per_s, output_per_s = busy_token_rates(np.random.default_rng(1), 4000)
    gap_s = compute_gap(prompt_per_s, output_per_s)
    assert gap_s.min() > 1.3 * IDLE_GAP_S
    fitted = fit(gap_s, prompt_per_s, output_per_s)
    assert fitted.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.002)
    assert fitted.prompt_token_s[0] == pytest.approx(PROMPT_TOKEN_S, rel=0.005)
    assert fitted.output_token_s[0] == pytest.approx(OUTPUT_TOKEN_S, rel=0.005)


@pytest.mark.parametrize("seed", range(5))
def test_constants_are_within_a_tenth_when_gaps_have_noise(seed):
    random = np.random.default_rng(seed)
    prompt_per_s, output_per_s = busy_token_rates(random)
    gap_s = compute_gap(prompt_per_s, output_per_s) * random.lognormal(0, 0.05, len(prompt_per_s))
    fitted = fit(gap_s, prompt_per_s, output_per_s)
    assert fitted.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.1)
    assert fitted.prompt_token_s[0] == pytest.approx(PROMPT_TOKEN_S, rel=0.1)
    assert fitted.output_token_s[0] == pytest.approx(OUTPUT_TOKEN_S, rel=0.1)


def test_token_times_are_the_prior_when_the_fleet_is_idle():
    """Without variation the fit does not read slopes out of noise."""
    random = np.random.default_rng(2)
    gap_s = IDLE_GAP_S * random.lognormal(0, 0.05, 200)
    fitted = fit(gap_s, 0.24 / gap_s, 0.1 / gap_s)  # 0.24 and 0.1 tokens per step
    assert 0.8 * gap_s.min() <= fitted.idle_gap_s[0] <= gap_s.min()
    assert fitted.prompt_token_s[0] == pytest.approx(PRIOR_PROMPT_SHARE * fitted.idle_gap_s[0], rel=1e-6)
    assert fitted.output_token_s[0] == pytest.approx(PRIOR_OUTPUT_SHARE * fitted.idle_gap_s[0], rel=1e-6)


def test_output_time_is_the_prior_when_only_prompts_vary():
    prompt_per_s = np.linspace(1_000, 20_000, 50)
    gap_s = compute_gap(prompt_per_s, 0.0)
    fitted = fit(gap_s, prompt_per_s, np.zeros(50))
    assert fitted.prompt_token_s[0] == pytest.approx(PROMPT_TOKEN_S, rel=0.01)
    prior_gap_s = gap_s.sum() / (1 + PRIOR_PROMPT_SHARE * gap_s * prompt_per_s).sum()
    assert fitted.output_token_s[0] == pytest.approx(PRIOR_OUTPUT_SHARE * prior_gap_s, rel=1e-6)
    assert fitted.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.01)


@pytest.mark.parametrize("count", [4, 16, 400])
def test_fit_equals_least_squares_with_the_prior_as_readings(count):
    random = np.random.default_rng(6)
    prompt_per_s, output_per_s = busy_token_rates(random, count)
    gap_s = compute_gap(prompt_per_s, output_per_s) * random.lognormal(0, 0.05, count)
    fitted = fit(gap_s, prompt_per_s, output_per_s)
    idle_gap_s, prompt_s, output_s = fit_by_ridge(gap_s, prompt_per_s, output_per_s)
    assert fitted.idle_gap_s[0] == pytest.approx(idle_gap_s, rel=1e-6)
    assert fitted.prompt_token_s[0] == pytest.approx(prompt_s, rel=1e-6)
    assert fitted.output_token_s[0] == pytest.approx(output_s, rel=1e-6)
    # A shorter gap was seen before, so all of it is faster.
    scaled = fit(gap_s, prompt_per_s, output_per_s, idle_gap_s / 2)
    np.testing.assert_allclose(np.array(scaled), np.array(fitted) / 2, rtol=1e-6)


@pytest.mark.parametrize(("count", "noise"), [(100, 0.02), (200_000, 0.02), (200_000, 0.1)])
def test_idle_gap_is_found_when_all_readings_have_one_load(count, noise):
    """A pod that is slow for another reason generates fewer tokens per second, but not per step."""
    random = np.random.default_rng(10)
    prompts, outputs = random.normal(30.0, 5.0, count), random.normal(35.0, 3.0, count)  # per step
    prompt_s, output_s = PRIOR_PROMPT_SHARE * IDLE_GAP_S, PRIOR_OUTPUT_SHARE * IDLE_GAP_S
    gap_s = (IDLE_GAP_S + prompt_s * prompts + output_s * outputs) * random.lognormal(0, noise, count)
    fitted = fit(gap_s, prompts / gap_s, outputs / gap_s)
    assert gap_s.mean() > 1.45 * IDLE_GAP_S
    assert fitted.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.05)


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
def test_idle_gap_is_found_from_four_readings_of_one_load(idle_gap_s, prompts, outputs):
    """Engines of the profile table, three tenths busy; prompts and outputs are tokens that take one idle gap.

    Each gap is 43 % longer than the idle gap. The error grows with the busy share.
    """
    prompt_s, output_s = idle_gap_s / prompts, idle_gap_s / outputs
    output_per_s = 0.3 / (4 * prompt_s + output_s)  # with four prompt tokens for each generated one
    random = np.random.default_rng(8)
    prompt_per_s, output_per_s = output_per_s * random.normal([[4.0], [1.0]], 0.02, (2, int(MIN_READINGS)))
    gap_s = compute_gap(prompt_per_s, output_per_s, idle_gap_s, prompt_s, output_s)
    gap_s = gap_s * random.lognormal(0, 0.02, len(prompt_per_s))
    assert gap_s.min() > 1.35 * idle_gap_s
    assert fit(gap_s, prompt_per_s, output_per_s).idle_gap_s[0] == pytest.approx(idle_gap_s, rel=0.17)


@pytest.mark.parametrize("prompt_factor", [0.5, 1.5])
@pytest.mark.parametrize("output_factor", [0.5, 1.5])
def test_readings_that_vary_outweigh_a_wrong_prior(prompt_factor, output_factor):
    prompt_s = prompt_factor * PRIOR_PROMPT_SHARE * IDLE_GAP_S
    output_s = output_factor * PRIOR_OUTPUT_SHARE * IDLE_GAP_S
    random = np.random.default_rng(9)
    prompt_per_s, output_per_s = random.uniform(0.1, 0.4, (2, 2000)) / np.array([[prompt_s], [output_s]])
    gap_s = compute_gap(prompt_per_s, output_per_s, IDLE_GAP_S, prompt_s, output_s)
    fitted = fit(gap_s, prompt_per_s, output_per_s)
    assert fitted.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.01)
    assert fitted.prompt_token_s[0] == pytest.approx(prompt_s, rel=0.02)
    assert fitted.output_token_s[0] == pytest.approx(output_s, rel=0.02)


@pytest.mark.parametrize("faster", ["prompt", "output"])
def test_negative_slope_is_zero_and_the_other_fitted_alone(faster):
    """Gaps become shorter with one kind of token, and both kinds grow together."""
    random = np.random.default_rng(3)
    prompt_per_s, _ = busy_token_rates(random, 20_000)
    output_per_s = prompt_per_s / 9 + random.uniform(-100, 100, len(prompt_per_s))
    slopes = {"prompt": (-4e-6, OUTPUT_TOKEN_S), "output": (PROMPT_TOKEN_S, -40e-6)}[faster]
    gap_s = IDLE_GAP_S / (1 - slopes[0] * prompt_per_s - slopes[1] * output_per_s)
    fitted = fit(gap_s, prompt_per_s, output_per_s)
    both = dict(zip(("prompt", "output"), fit_by_ridge(gap_s, prompt_per_s, output_per_s)[1:], strict=True))
    (other,) = {"prompt", "output"} - {faster}
    assert both[faster] < 0 < both[other]
    slope = fit_by_ridge(gap_s, prompt_per_s, output_per_s, (other,))[1]
    tokens_per_s = {"prompt": prompt_per_s, "output": output_per_s}[other]
    intercept_s = float((gap_s - slope * gap_s * tokens_per_s).mean())
    token_s = {"prompt": fitted.prompt_token_s[0], "output": fitted.output_token_s[0]}
    scale = fitted.idle_gap_s[0] / max(intercept_s, fitted.idle_gap_s[0])
    assert token_s[faster] == 0
    assert token_s[other] == pytest.approx(slope * scale, rel=1e-6)


def test_idle_gap_is_bounded_by_the_shortest_gap():
    prompt_per_s, output_per_s = busy_token_rates(np.random.default_rng(4))
    gap_s = compute_gap(prompt_per_s, output_per_s)
    assert fit(gap_s, prompt_per_s, output_per_s, 0.004).idle_gap_s[0] == 0.004
    assert fit(gap_s, prompt_per_s, output_per_s, 0.1).idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.01)


def test_nothing_is_known_when_readings_are_too_few():
    prompt_per_s, output_per_s = busy_token_rates(np.random.default_rng(5), int(MIN_READINGS) - 1)
    fitted = fit(compute_gap(prompt_per_s, output_per_s), prompt_per_s, output_per_s)
    assert all(np.isnan(value[0]) for value in fitted)
    prompt_per_s, output_per_s = busy_token_rates(np.random.default_rng(5), int(MIN_READINGS))
    fitted = fit(compute_gap(prompt_per_s, output_per_s), prompt_per_s, output_per_s)
    assert fitted.idle_gap_s[0] == pytest.approx(IDLE_GAP_S, rel=0.05)


def test_shortest_gap_grows_slowly():
    def shortest(before_s, measured_s, interval_s):
        return update_shortest_gap(np.array([before_s]), np.array([measured_s]), np.array([interval_s]))[0]

    assert math.isnan(shortest(math.nan, math.nan, 0.0))
    assert shortest(math.nan, 0.02, 0.0) == 0.02
    assert shortest(0.01, math.nan, 0.0) == 0.01
    assert shortest(0.01, 0.05, DAY_S) == pytest.approx(0.01 * (1 + IDLE_GAP_DRIFT))
    assert shortest(0.01, 0.002, 30.0) == 0.002


def test_shortest_gap_follows_a_slower_engine_slowly():
    gap_s = np.array([0.01])
    assert update_shortest_gap(gap_s, np.array([0.005]), np.array([30.0]))[0] == 0.005
    for _ in range(int(10 * DAY_S / 30)):
        gap_s = update_shortest_gap(gap_s, np.array([0.02]), np.array([30.0]))
    assert gap_s[0] == pytest.approx(0.01 * math.exp(10 * IDLE_GAP_DRIFT), rel=0.01)


rates = st.one_of(st.sampled_from([0.0, 1e-12, 1.0, 1e9, 1e12]), st.floats(0, 1e12))
readings = st.tuples(st.one_of(st.sampled_from([1e-5, 60.0]), st.floats(1e-5, 60.0)), rates, rates)


@pytest.mark.slow
@given(st.lists(st.lists(readings, min_size=1, max_size=40), min_size=1, max_size=4))
def test_fit_is_unknown_or_finite_and_not_negative(fleets):
    """Any readings that `interval` lets through, of several workloads at once."""
    columns = [np.array(fleet).T for fleet in fleets]
    sums = np.stack([compute_sums(*column).sum(axis=1) for column in columns], axis=1)
    assert sums.shape == (SUMS, len(fleets))
    shortest_gap_s = np.array([column[0].min() for column in columns])
    fitted = fit_step_time(sums, np.array([float(column.shape[1]) for column in columns]), shortest_gap_s)
    is_known = np.array([column.shape[1] >= MIN_READINGS for column in columns])
    np.testing.assert_array_equal(~np.isnan(fitted.idle_gap_s), is_known)
    assert (fitted.idle_gap_s[is_known] <= shortest_gap_s[is_known]).all()
    assert (fitted.idle_gap_s[is_known] >= 0).all()
    for token_s in (fitted.prompt_token_s, fitted.output_token_s):
        assert not np.isinf(token_s).any()
        assert not (token_s < 0).any()


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=SUMS, max_size=SUMS))
def test_fit_is_bounded_when_sums_are_impossible(numbers):
    """A damaged state file might hold such sums."""
    fitted = fit_step_time(np.array(numbers)[:, None], np.array([100.0]), np.array([0.01]))
    assert np.isnan(fitted.idle_gap_s[0]) or 0 <= fitted.idle_gap_s[0] <= 0.01
    assert not fitted.prompt_token_s[0] < 0
    assert not fitted.output_token_s[0] < 0


def test_nothing_is_known_when_no_gap_was_seen():
    fitted = fit_step_time(np.zeros((SUMS, 2)), np.array([0.0, 100.0]), np.array([math.nan, math.nan]))
    assert all(np.isnan(value).all() for value in fitted)
