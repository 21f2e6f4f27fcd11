"""The last reading of each pod, and its growth since the one before."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.readings.pod_deltas import (
    COUNTERS,
    MAX_INCREASE,
    MAX_INTERVAL_S,
    MIN_INTERVAL_S,
    PodReadings,
    read,
)

NAN = math.nan


def samples(time_s, **columns):
    """Return the samples of pods: gauges and counters are 0 unless given."""
    times = np.atleast_1d(np.asarray(time_s, dtype=float))
    values = {**dict.fromkeys(("running", "waiting", *COUNTERS), 0.0), **columns}
    table = {name: np.broadcast_to(np.asarray(value, dtype=float), len(times)) for name, value in values.items()}
    return replace(PodSamples.filled(len(times)), time_s=times, **table)


def deltas_of(*readings):
    """Return the growth that the last of these samples shows."""
    last = PodReadings.blank(len(readings[0].time_s))
    for each in readings:
        deltas = read(each, last)
        last = deltas.now
    return deltas


def test_growth_is_the_difference_of_two_readings():
    deltas = deltas_of(samples(100.0, finished=50.0, waiting=9.0), samples(115.0, finished=60.0, running=2.0))
    assert (deltas.interval_s[0], deltas.valid("finished")[0]) == (15, 10)
    assert (deltas.waiting[0], deltas.running[0], deltas.arrivals[0]) == (-9, 2, 3)


def test_growth_is_unknown_after_the_first_reading():
    deltas = deltas_of(samples(100.0, finished=50.0))
    assert deltas.is_new[0]
    assert not deltas.is_valid[0]
    assert np.isnan([deltas.interval_s, deltas.growth("finished"), deltas.valid("finished"), deltas.arrivals]).all()


def test_silent_pod_keeps_its_last_reading():
    """The second of two pods does not answer for a while."""
    silent = samples([115.0, NAN], finished=[8.0, NAN])
    deltas = deltas_of(samples([100.0, 100.0], finished=4.0), silent)
    assert deltas.is_new.tolist() == [True, False]
    np.testing.assert_array_equal(deltas.interval_s, [15, NAN])
    np.testing.assert_array_equal(deltas.valid("finished"), [4, NAN])
    assert deltas.now.time_s.tolist() == [115, 100]
    assert deltas.now.of("finished").tolist() == [8, 4]
    later = read(samples([130.0, 130.0], finished=[9.0, 14.0]), deltas.now)
    assert (later.interval_s.tolist(), later.valid("finished").tolist()) == ([15, 30], [1, 10])


@pytest.mark.parametrize("time_s", [NAN, 90.0, 100.0])
def test_nothing_changes_without_a_newer_reading(time_s):
    before = deltas_of(samples(100.0, finished=4.0)).now
    deltas = read(samples(time_s, finished=9.0), before)
    assert deltas.now is before
    assert np.isnan(deltas.valid("finished")[0])


def test_counter_that_fell_is_not_valid():
    deltas = deltas_of(samples(100.0, finished=50.0, gaps=5.0), samples(115.0, finished=2.0, gaps=9.0))
    assert (deltas.growth("finished")[0], deltas.valid("gaps")[0]) == (-48, 4)
    assert np.isnan([deltas.valid("finished"), deltas.arrivals]).all()


@pytest.mark.parametrize(
    ("interval_s", "finished", "valid"),
    [
        (MAX_INTERVAL_S, 60.0, True),
        (MAX_INTERVAL_S + 1, 60.0, False),
        (MIN_INTERVAL_S / 2, 60.0, False),
        (15.0, MAX_INCREASE, True),
        (15.0, 2 * MAX_INCREASE, False),
    ],
)
def test_growth_is_valid_within_its_bounds(interval_s, finished, valid):
    deltas = deltas_of(samples(0.0), samples(interval_s, finished=finished))
    assert np.isnan(deltas.valid("finished")[0]) != valid


@given(st.lists(st.lists(st.tuples(st.sampled_from([NAN, 0.0, 5.0]), st.integers(0, 50)), min_size=3, max_size=3)))
def test_growth_of_all_readings_adds_up(ticks):
    """Each of three pods answers at some ticks; its counter grows by as much as it says."""
    last = PodReadings.blank(3)
    total, grown = np.zeros(3), np.zeros(3)
    first = np.full(3, NAN)
    for number, tick in enumerate(ticks):
        answers = np.array([not math.isnan(delay_s) for delay_s, _ in tick])
        total += [growth for _, growth in tick]
        deltas = read(samples(np.where(answers, 5.0 * number, NAN), finished=total), last)
        last, first = deltas.now, np.where(np.isnan(first) & answers, total, first)
        grown += np.where(np.isnan(deltas.interval_s), 0.0, deltas.growth("finished"))
    np.testing.assert_array_equal(np.where(np.isnan(first), 0.0, last.of("finished") - first), grown)
