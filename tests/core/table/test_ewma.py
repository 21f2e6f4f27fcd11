"""Averages over irregular intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.table import ewma


def test_five_of_sixty_seconds_have_a_weight_of_eight_percent():
    assert ewma.smoothing_factor(np.array([5.0]), 60.0)[0] == pytest.approx(0.08, abs=0.001)


@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=20), st.floats(1, 500), st.floats(-10, 10))
def test_many_updates_equal_one_over_the_same_time(steps, window_s, value):
    track = np.array([3.0])
    for step_s in steps:
        track = ewma.update(track, np.array([value]), ewma.smoothing_factor(np.array([step_s]), window_s))
    at_once = ewma.update(np.array([3.0]), np.array([value]), ewma.smoothing_factor(np.array([sum(steps)]), window_s))
    assert track[0] == pytest.approx(at_once[0], abs=1e-9)


def test_first_value_starts_the_average_and_nan_keeps_it():
    unknown, known = np.array([np.nan]), np.array([7.0])
    assert ewma.update(unknown, known, unknown)[0] == 7
    assert ewma.update(known, unknown, np.array([0.5]))[0] == 7
    assert ewma.update(known, np.array([9.0]), unknown)[0] == 7
    assert np.isnan(ewma.update(unknown, unknown, unknown)[0])
