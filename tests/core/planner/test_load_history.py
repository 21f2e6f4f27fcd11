"""How demand ran: levels, how far it is off them, and peaks that are held."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.planner import load_history, strategies

NAN = math.nan


def followed(*steps):
    """The levels after demand was so much for so long, one after the other."""
    level, level_s = np.full((len(strategies.LEVELS_S), 1), NAN), np.zeros(1)
    for demand, step_s in steps:
        level = load_history.averaged(level, level_s, np.array([demand]), np.array([step_s]))
        level_s = level_s + step_s
    return level[:, 0]


@given(st.lists(st.tuples(st.floats(0.0, 1000.0), st.floats(0.1, 120.0)), min_size=1, max_size=20))
def test_a_level_is_the_mean_of_all_demand_so_far_the_older_the_less_it_weighs(steps):
    ends_s = np.cumsum([step_s for _, step_s in steps])
    for level, over_s in zip(followed(*steps), strategies.LEVELS_S.tolist(), strict=True):
        past = [math.exp((end_s - ends_s[-1]) / over_s) for end_s in ends_s]
        weights = [at * -math.expm1(-step_s / over_s) for at, (_, step_s) in zip(past, steps, strict=True)]
        mean = sum(weight * demand for weight, (demand, _) in zip(weights, steps, strict=True)) / sum(weights)
        assert level == pytest.approx(mean, rel=1e-6, abs=1e-6)


def test_engines_that_fill_at_first_do_not_stand_for_a_whole_time_constant():
    """Read for 5 s and half full, then for 30 s: what was seen for a sixth of the time does not lower the mean more."""
    level = followed((5.0, 5.0), (10.0, 30.0))
    assert level[-1] == pytest.approx(10 - 5 / 7, rel=0.01)
    assert level[0] < 1.06 * level[1]


def test_a_level_stands_while_demand_is_not_known():
    assert followed((4.0, 30.0), (NAN, 0.0)).tolist() == [4.0] * len(strategies.LEVELS_S)
    assert np.isnan(followed((NAN, 0.0))).all()


@given(st.floats(0.01, 1000.0), st.floats(0.0, 5000.0), st.floats(0.01, 100.0))
def test_demand_is_off_its_steady_level_by_a_share_whatever_the_size(level, demand, times):
    def off(size):
        return load_history.off_level(np.full((len(strategies.LEVELS_S), 1), level * size), np.array([demand * size]))[
            0
        ]

    assert off(1.0) == pytest.approx(abs(demand / level - 1), abs=1e-9)
    assert off(times) == pytest.approx(off(1.0), abs=1e-9)


def test_nothing_is_off_no_level():
    assert load_history.off_level(np.zeros((len(strategies.LEVELS_S), 1)), np.zeros(1))[0] == 0
    assert np.isnan(load_history.off_level(np.full((len(strategies.LEVELS_S), 1), NAN), np.full(1, NAN))[0])


# --- a peak that is held


@pytest.mark.parametrize(("cold_start_s", "spans"), [(1.0, 1), (30.0, 1), (31.0, 2), (60.0, 2), (120.0, 4), (900.0, 4)])
def test_a_cold_start_takes_whole_spans_and_at_most_four(cold_start_s, spans):
    assert load_history.spans(np.array([cold_start_s]))[0] == spans


@pytest.mark.parametrize("late_s", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("cold_start_s", [60.0, 124.0, 180.0, 244.0])
def test_peaks_are_held_for_as_long_as_is_said_whenever_ticks_come(cold_start_s, late_s):
    """One surge, and then nothing: each hold lets go of it after its cold starts, be ticks on time or late."""
    rng, cold = np.random.default_rng(1), np.array([cold_start_s])
    now, held, last_s = load_history.Levels.blank(1), {}, -strategies.EVERY_S
    for number in range(int(12 * cold_start_s / strategies.EVERY_S)):
        now_s = strategies.EVERY_S * number + rng.uniform(0.0, late_s)
        demand = np.array([10.0 if number == 0 else 0.0])
        now, said = load_history.follow(now, demand, cold, np.array([now_s - last_s]), now_s)
        held |= dict.fromkeys(np.flatnonzero(said[:, 0] >= 9.9).tolist(), now_s)
        last_s = now_s
    for place, (_, hold) in enumerate(strategies.PREDICTORS):
        if hold:
            assert held[place] == pytest.approx(hold * cold_start_s, abs=2 * load_history.span_s(cold)[0] + late_s)


def test_an_unknown_cold_start_takes_one_span():
    assert load_history.spans(np.array([NAN]))[0] == 1


@given(st.lists(st.floats(0, 100, width=32), min_size=60, max_size=60), st.integers(1, load_history.SPANS_A_COLD_START))
def test_each_predictor_says_the_peak_of_its_level_over_its_hold(run, reach):
    """Against looking back over all that ever was."""
    past = np.zeros((len(strategies.LEVELS_S), load_history.PEAKS, 1), np.float32)
    scale = np.arange(1, len(strategies.LEVELS_S) + 1, dtype=np.float32)[:, None]  # levels that differ
    for value in run:
        level = scale * np.float32(value)
        past = load_history.push(past, level, np.ones(1, bool), np.maximum)
    said = load_history.held(level, past, np.array([reach]))[:, 0]
    for predictor, (place, hold) in enumerate((*strategies.PREDICTORS, strategies.OF_LOAD)):
        peak = max(float(np.float32(value)) for value in run[-1 - hold * reach :])
        assert said[predictor] == pytest.approx(float(scale[place, 0]) * peak, rel=1e-6)


def test_what_is_not_known_is_not_held():
    level = np.full((len(strategies.LEVELS_S), 1), np.nan, np.float32)
    past = np.ones((len(strategies.LEVELS_S), load_history.PEAKS, 1), np.float32)
    assert np.isnan(load_history.held(level, past, np.array([1]))).all()


def test_a_span_keeps_its_extreme_until_its_time_is_over():
    past = np.array([[[5.0, 5.0], [3.0, 3.0]]], np.float32)
    pushed = load_history.push(past, np.array([[4.0, 4.0]], np.float32), np.array([False, True]), np.maximum)
    assert pushed[0].tolist() == [[5.0, 4.0], [3.0, 5.0]]


def test_a_peak_is_held_until_its_last_span_leaves():
    """30 s a span, 4 spans a cold start, held for 10 of them: a peak 6 spans ago leaves 35 turns from the next."""
    ran = load_history.Levels.blank(2)
    ran.peaks[0, 6] = ran.peaks[0, 9] = np.float32(3.0)
    ran.peaks[0, 0, 1] = np.float32(3.0)
    ran = load_history.Levels(**{**vars(ran), "span_since_s": np.full(2, 1000.0)})
    cold_start_s = np.full(2, 4 * strategies.EVERY_S)
    until_s = load_history.held_until_s(ran, np.zeros(2, np.int64), np.full(2, 2.0), cold_start_s)
    assert until_s[0] == 1000 + (40 - 6 + 1) * strategies.EVERY_S
    assert np.isnan(until_s[1])  # the present level is as high
    assert np.isnan(load_history.held_until_s(ran, np.zeros(2, np.int64), np.full(2, 4.0), cold_start_s)).all()
