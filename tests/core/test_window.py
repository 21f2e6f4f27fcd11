"""The sliding window against a list that forgets nothing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core import window
from autoscaler.core.window import SLOTS, Window

events = st.lists(st.tuples(st.floats(0.01, 50.0), st.floats(-100, 100)), min_size=1, max_size=60)


@given(events, st.floats(0.5, 300.0), st.sampled_from([1, -1]))
def test_extreme_covers_at_least_its_length_and_at_most_a_fifteenth_more(steps, length_s, sign):
    now_s, kept, seen = 1000.0, Window.blank(1), []
    length = np.array([length_s])
    for gap_s, value in steps:
        now_s += gap_s
        kept = window.push(kept, np.array([value]), now_s, length, sign)
        seen.append((now_s, value))
    found = window.extreme(kept, now_s, length, sign)[0] * sign
    must = max(v * sign for t, v in seen if now_s - t <= length_s * (1 - 1e-9))
    may = max(v * sign for t, v in seen if now_s - t <= length_s * SLOTS / (SLOTS - 1) + 1e-6)
    assert must <= found <= may


def test_nothing_pushed_is_unknown():
    assert np.isnan(window.extreme(Window.blank(3), 5.0, np.full(3, 60.0), 1)).all()


def test_unknown_values_leave_no_trace():
    kept = window.push(Window.blank(1), np.array([7.0]), 10.0, np.array([60.0]), 1)
    kept = window.push(kept, np.array([np.nan]), 11.0, np.array([60.0]), 1)
    assert window.extreme(kept, 11.0, np.array([60.0]), 1)[0] == 7.0


def test_rows_of_different_length_do_not_disturb_each_other():
    length = np.array([10.0, 1000.0])
    kept = window.push(Window.blank(2), np.array([5.0, 5.0]), 100.0, length, 1)
    kept = window.push(kept, np.array([1.0, 1.0]), 150.0, length, 1)
    assert window.extreme(kept, 150.0, length, 1).tolist() == [1.0, 5.0]


def test_a_window_of_length_zero_remembers_only_the_present():
    length = np.array([0.0])
    kept = window.push(Window.blank(1), np.array([5.0]), 100.0, length, 1)
    kept = window.push(kept, np.array([1.0]), 100.5, length, 1)
    assert window.extreme(kept, 100.5, length, 1)[0] == 1.0


changes = st.lists(
    st.tuples(st.floats(0.1, 60.0), st.floats(-100, 100), st.sampled_from([10.0, 60.0, 300.0])), max_size=60
)


@given(changes, st.sampled_from([1, -1]))
def test_a_changing_length_never_covers_less_than_it_says(steps, sign):
    """A new policy: what was wanted within its window still counts, for up to one window more."""
    now_s, kept, seen, last_s = 1000.0, Window.blank(1), [], 300.0
    for gap_s, value, length_s in steps:
        now_s, last_s = now_s + gap_s, length_s
        kept = window.push(kept, np.array([value]), now_s, np.array([length_s]), sign)
        seen.append((now_s, value, length_s))
    found = window.extreme(kept, now_s, np.array([last_s]), sign)[0] * sign
    shortest = min((length for _, _, length in seen), default=0.0)
    must = [value * sign for t, value, _ in seen if now_s - t <= shortest * (1 - 1e-9)]
    may = [value * sign for _, value, _ in seen]
    assert not seen or max(must) <= found <= max(may)


def test_a_row_without_a_length_remembers_nothing_and_disturbs_nobody():
    length = np.array([np.nan, 60.0])
    kept = window.push(Window.blank(2), np.array([5.0, 6.0]), 100.0, length, 1)
    np.testing.assert_array_equal(window.extreme(kept, 101.0, length, 1), [np.nan, 6.0])
