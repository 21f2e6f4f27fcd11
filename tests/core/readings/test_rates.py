"""Plausible readings, and rates of counters compared with a plain integration."""

import math
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.samples import GatewaySamples, PodSamples
from autoscaler.core.readings import pod_deltas
from autoscaler.core.readings import rates as readings
from autoscaler.core.readings.pod_deltas import RATED, PodReadings
from autoscaler.core.readings.rates import RATE_WINDOW_S, TIMES, Rates

TOKENS, FINISHED = RATED.index("generation_tokens"), RATED.index("finished")


def pod(time_s, **columns):
    row = {"time_s": time_s, **columns}
    return replace(PodSamples.filled(1), **{name: np.array([float(value)]) for name, value in row.items()})


class Pod:
    """Reads the counters of one pod again and again."""

    def __init__(self):
        self.last, self.rates = PodReadings.blank(1), Rates.blank(1)

    def read(self, samples):
        """Return the rates, and the increases since the last reading."""
        deltas = pod_deltas.read(samples, self.last)
        self.last = deltas.now
        self.rates, rates, grown = readings.update(self.rates, deltas)
        return rates, grown


def read(*steps, column="generation_tokens"):
    """Read one counter at each (time, value); return the last rate and the pod."""
    engine, rates = Pod(), None
    for time_s, value in steps:
        rates, _ = engine.read(pod(time_s, **{column: value}))
    return rates[RATED.index(column), 0], engine


def slow_rate(steps):
    """The exponentially weighted mean of a rate that is constant between readings, by plain integration."""
    end_s = steps[-1][0]
    weighed = weight = 0.0
    for (before_s, before), (after_s, after) in pairwise(steps):
        seconds = RATE_WINDOW_S * (
            math.exp((after_s - end_s) / RATE_WINDOW_S) - math.exp((before_s - end_s) / RATE_WINDOW_S)
        )
        weighed += seconds * (after - before) / (after_s - before_s)
        weight += seconds
    return weighed / weight


gaps_and_growth = st.lists(st.tuples(st.floats(0.1, 400), st.floats(0, 1e5)), min_size=1, max_size=30)


@given(gaps_and_growth)
def test_rate_is_the_weighted_mean_for_any_spacing(steps):
    track = [(1000.0, 500.0)]
    for gap_s, growth in steps:
        track.append((track[-1][0] + gap_s, track[-1][1] + growth))
    assert read(*track)[0] == pytest.approx(slow_rate(track), rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(0.1, 200), min_size=1, max_size=20), st.floats(0.01, 1e4))
def test_steady_counter_has_its_rate_from_the_second_reading(gaps, per_s):
    time_s, engine = 50.0, Pod()
    rates, _ = engine.read(pod(time_s, finished=7.0))
    assert np.isnan(rates[FINISHED, 0])
    for gap_s in gaps:
        time_s += gap_s
        rates, _ = engine.read(pod(time_s, finished=7.0 + per_s * (time_s - 50.0)))
        assert rates[FINISHED, 0] == pytest.approx(per_s, rel=1e-6)


def test_long_gap_has_the_weight_of_the_past():
    # an hour at 100/s without readings, then 60 s at 10/s: after two time constants 86 % of the weight is new
    rate, _ = read((0, 0), (3600, 360_000), (3630, 360_300), (3660, 360_600))
    assert rate == pytest.approx(10 + 90 * math.exp(-2), rel=1e-6)


def test_same_reading_changes_nothing():
    rate, engine = read((0, 0), (10, 1000))
    before = engine.rates
    rates, grown = engine.read(pod(10, generation_tokens=1000))
    assert rates[TOKENS, 0] == rate == pytest.approx(100)
    assert engine.rates is before
    assert not grown.any()


def test_older_reading_is_no_reset():
    """Two servers share one address, and one of them gives older answers."""
    rate, engine = read((0, 0), (10, 1000))
    rates, _ = engine.read(pod(8, generation_tokens=800))
    assert rates[TOKENS, 0] == rate


def test_reset_counter_counts_its_value_as_increase():
    rate, _ = read((0, 10_000), (10, 11_000), (20, 50))
    assert rate == pytest.approx(slow_rate([(0, 0), (10, 1000), (20, 1050)]))


def test_sum_counts_at_most_its_rate_when_one_part_is_reset():
    rate, _ = read((0, 1_000_000), (10, 1_001_000), (20, 500_000), (30, 501_000))
    assert rate == pytest.approx(100)


def test_absent_counter_has_no_rate_until_two_readings_in_a_row():
    engine, results = Pod(), []
    for time_s, tokens in ((0, 0), (10, 1000), (20, math.nan), (30, 3000), (40, 4000)):
        rates, _ = engine.read(pod(time_s, generation_tokens=tokens, finished=time_s))
        results.append((rates[TOKENS, 0], rates[FINISHED, 0]))
    tokens, finished = (np.array(column) for column in zip(*results, strict=True))
    np.testing.assert_allclose(tokens, [np.nan, 100, np.nan, np.nan, 100])
    np.testing.assert_allclose(finished, [np.nan, 1, 1, 1, 1])


def test_state_is_kept_when_a_pod_does_not_answer():
    _, engine = read((0, 0), (10, 1000))
    rates, _ = engine.read(pod(math.nan))
    assert rates[TOKENS, 0] == pytest.approx(100)
    rates, _ = engine.read(pod(60, generation_tokens=6000))
    assert rates[TOKENS, 0] == pytest.approx(100)


def test_implausible_increase_is_nan():
    rate, engine = read((0, 0), (10, 1e14))
    assert np.isnan(rate)
    rates, _ = engine.read(pod(20, generation_tokens=1e14 + 500))
    assert rates[TOKENS, 0] == pytest.approx(50)


def test_increase_is_exact_and_survives_a_reset():
    engine, results = Pod(), []
    for time_s, tokens in ((0, 100), (10, 100), (20, 130), (20, 130), (30, 4), (40, math.nan)):
        _, grown = engine.read(pod(time_s, generation_tokens=tokens))
        results.append(grown[TOKENS, 0])
    np.testing.assert_array_equal(results, [0, 0, 30, 0, 4, np.nan])


@pytest.mark.parametrize("value", [-1.0, -np.inf, np.inf, 1e300])
@pytest.mark.parametrize("table", [PodSamples, GatewaySamples])
def test_implausible_readings_are_nan(table, value):
    believed = readings.discard_implausible(table.filled(2, value), 100.0)
    for field in fields(table):
        if field.name not in TIMES:
            assert np.isnan(getattr(believed, field.name)).all(), field.name


def test_fractions_above_one_are_nan():
    fractions = ("asleep", "kv_usage", "fb_usage", "tensor_active", "sm_active", "dram_active")
    believed = readings.discard_implausible(pod(90.0, **dict.fromkeys(fractions, 1.01)), 100.0)
    assert np.isnan([getattr(believed, name)[0] for name in fractions]).all()


def test_plausible_readings_and_nan_are_unchanged():
    samples = replace(PodSamples.filled(2, 0.5), waiting=np.array([np.nan, 40.0]))
    believed = readings.discard_implausible(samples, 100.0)
    for field in fields(PodSamples):
        np.testing.assert_array_equal(getattr(believed, field.name), getattr(samples, field.name))


@pytest.mark.parametrize(("finished", "running"), [(7.0, 3.0), (-1.0, np.nan), (2e15, np.nan), (np.nan, 3.0)])
def test_gauges_are_unknown_beside_an_implausible_counter(finished, running):
    believed = readings.discard_implausible(pod(90.0, running=3, finished=finished, generation_tokens=5), 100.0)
    np.testing.assert_equal((believed.running[0], believed.generation_tokens[0]), (running, 5))


def test_future_time_becomes_now_and_nan_stays():
    samples = replace(PodSamples.filled(3), time_s=np.array([150.0, np.inf, np.nan]))
    np.testing.assert_array_equal(readings.discard_implausible(samples, 100.0).time_s, [100.0, np.nan, np.nan])
