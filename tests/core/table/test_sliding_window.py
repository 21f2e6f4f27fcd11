"""The sliding window, compared with a list of all values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.table import sliding_window
from autoscaler.core.table.sliding_window import SLOTS, SlidingWindow

events = st.lists(st.tuples(st.floats(0.01, 50.0), st.floats(-100, 100)), min_size=1, max_size=60)


def pushed(kept, values, now_s, lengths_s):
    return sliding_window.update(kept, np.array(values), np.array(values), now_s, lengths_s, lengths_s)


def extremes(kept, now_s, length_s):
    """The highest and the lowest of each row; float64[2, W]."""
    nothing = np.full(len(length_s), np.nan)
    return np.array(sliding_window.update(kept, nothing, nothing, now_s, length_s, length_s)[1:])


@given(events, st.floats(0.5, 300.0), st.floats(0.5, 300.0))
def test_extremes_cover_their_length_and_at_most_1_15_more(steps, high_s, low_s):
    now_s, kept, values_so_far = 1000.0, SlidingWindow.blank(1), []
    for gap_s, value in steps:
        now_s += gap_s
        column = np.array([value])
        kept, highest, lowest = sliding_window.update(
            kept, column, column, now_s, np.array([high_s]), np.array([low_s])
        )
        values_so_far.append((now_s, value))
    for found, sign, length_s in ((highest[0], 1, high_s), (-lowest[0], -1, low_s)):
        must = max(v * sign for t, v in values_so_far if now_s - t <= length_s * (1 - 1e-9))
        may = max(v * sign for t, v in values_so_far if now_s - t <= length_s * SLOTS / (SLOTS - 1) + 1e-6)
        assert must <= found <= may


def test_extremes_are_nan_without_values():
    assert np.isnan(extremes(SlidingWindow.blank(3), 5.0, np.full(3, 60.0))).all()


def test_nan_values_are_ignored():
    kept, *_ = pushed(SlidingWindow.blank(1), [7.0], 10.0, np.array([60.0]))
    kept, *found = pushed(kept, [np.nan], 11.0, np.array([60.0]))
    assert np.ravel(found).tolist() == [7.0, 7.0]


def test_rows_may_differ_in_length():
    length = np.array([10.0, 1000.0])
    kept, *_ = pushed(SlidingWindow.blank(2), [5.0, 5.0], 100.0, length)
    kept, highest, lowest = pushed(kept, [1.0, 7.0], 150.0, length)
    assert highest.tolist() == [1.0, 7.0]
    assert lowest.tolist() == [1.0, 5.0]


def test_window_of_length_zero_has_only_the_present_value():
    length = np.array([0.0])
    kept, *_ = pushed(SlidingWindow.blank(1), [5.0], 100.0, length)
    kept, highest, _ = pushed(kept, [1.0], 100.5, length)
    assert highest[0] == 1.0


changes = st.lists(
    st.tuples(st.floats(0.1, 60.0), st.floats(-100, 100), st.sampled_from([10.0, 60.0, 300.0])), max_size=60
)


@pytest.mark.slow
@given(changes)
def test_window_covers_its_length_when_the_length_changes(steps):
    """A new policy may change the length; earlier values may count for up to one window more."""
    now_s, kept, values_so_far, last_s = 1000.0, SlidingWindow.blank(1), [], 300.0
    for gap_s, value, length_s in steps:
        now_s, last_s = now_s + gap_s, length_s
        kept, *_ = pushed(kept, [value], now_s, np.array([length_s]))
        values_so_far.append((now_s, value, length_s))
    highest, lowest = extremes(kept, now_s, np.array([last_s]))[:, 0]
    shortest = min((length for _, _, length in values_so_far), default=0.0)
    for found, sign in ((highest, 1), (-lowest, -1)):
        must = [value * sign for t, value, _ in values_so_far if now_s - t <= shortest * (1 - 1e-9)]
        may = [value * sign for _, value, _ in values_so_far]
        assert not values_so_far or max(must) <= found <= max(may)


def test_row_without_a_length_has_no_extremes():
    length = np.array([np.nan, 60.0])
    kept, *_ = pushed(SlidingWindow.blank(2), [5.0, 6.0], 100.0, length)
    np.testing.assert_array_equal(extremes(kept, 101.0, length), [[np.nan, 6.0]] * 2)


@pytest.mark.parametrize("is_short", [True, False])
def test_values_stay_when_the_length_is_unknown_for_a_while(is_short):
    """Such a tick is a slow reading, or a policy that is away. Whichever slot it falls into, the peak is not lost."""
    length, unknown = np.array([240.0]), np.array([np.nan])
    for start_s in np.arange(1000.0, 1300.0, 7.3):
        kept, *_ = pushed(SlidingWindow.blank(1), [4.0], start_s, length)
        for now_s in np.arange(start_s + 5.0, start_s + 200.0, 5.0 if is_short else 60.0):
            kept, *_ = pushed(kept, [2.0], now_s, unknown)
        _, highest, _ = pushed(kept, [2.0], start_s + 205.0, length)
        assert highest[0] == 4.0
