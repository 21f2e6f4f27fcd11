"""Each stage alone, with the numbers its docstring gives."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.stabilize import stages
from autoscaler.core.table.sliding_window import SlidingWindow
from tests.core.world import spec


def column(*values):
    return np.array(values, dtype=float)


def test_silence_holds_or_grows_and_never_shrinks():
    untrusted = np.zeros(3, dtype=bool)
    assert stages.hold_unknown(column(2, 9, np.nan), column(5, 5, 5), untrusted).tolist() == [5, 9, 5]


def test_trusted_demand_may_shrink_but_no_opinion_holds():
    trusted = np.ones(2, dtype=bool)
    assert stages.hold_unknown(column(2, np.nan), column(5, 5), trusted).tolist() == [2, 5]


def test_tolerance_keeps_eighteen_to_twenty_two_at_twenty():
    desired = column(17.9, 18, 20.4, 22, 22.1)
    kept = stages.tolerate(desired, np.full(5, 20.0), np.full(5, 0.1))
    assert kept.tolist() == [18, 20, 20, 20, 23]


def test_rounding_goes_up_but_not_on_measurement_noise():
    assert stages.tolerate(column(3.2, 4.0000000001), column(1, 1), column(0, 0)).tolist() == [4, 4]


def test_from_zero_any_wish_is_beyond_the_tolerance():
    assert stages.tolerate(column(0.01), column(0), column(0.1)).tolist() == [1]


def stabilized(desired, current, now_s, rules, window=None, watched_s=1e9, informed=True, planned=False, beside=np.nan):
    value, after = stages.stabilize(
        column(desired),
        column(current),
        rules,
        window or SlidingWindow.blank(1),
        now_s,
        np.array([informed]),
        column(watched_s),
        np.array([planned]),
        column(beside),
    )
    return value[0], after


def test_shrinking_waits_until_the_whole_window_wanted_less():
    rules = spec(down_stabilization_s=60.0)
    value, window = stabilized(8, 8, 1000.0, rules)
    value, window = stabilized(3, 8, 1030.0, rules, window)
    assert value == 8
    value, window = stabilized(2, 8, 1050.0, rules, window)
    assert value == 8
    value, window = stabilized(2, 8, 1070.0, rules, window)
    assert value == 3  # the 8 has left the window, the 3 of 40 s ago has not


def test_window_remembers_no_peak_when_the_planner_speaks():
    rules = spec(down_stabilization_s=60.0)
    _, window = stabilized(8, 8, 1000.0, rules, planned=True)
    assert stabilized(3, 8, 1030.0, rules, window, planned=True)[0] == 3


def test_hold_ends_when_the_last_higher_count_leaves_the_window():
    rules = spec(down_stabilization_s=60.0)
    _, window = stabilized(8, 8, 1000.0, rules)
    _, window = stabilized(5, 8, 1020.0, rules, window)
    value, window = stabilized(3, 8, 1030.0, rules, window)
    left_s = stages.kept_for_s(column(value), column(3), rules, window, 1030.0, column(1e9))[0]
    assert stabilized(3, 8, 1030.0 + left_s - 0.1, rules, window)[0] == 8
    value, window = stabilized(3, 8, 1030.0 + left_s + 0.1, rules, window)
    assert value == 5
    assert stages.kept_for_s(column(value), column(3), rules, window, 1066.0, column(1e9))[0] > 0
    assert np.isnan(stages.kept_for_s(column(3), column(3), rules, window, 1100.0, column(1e9))[0])


def test_window_holds_other_signals_when_the_planner_speaks():
    rules = spec(down_stabilization_s=60.0)
    _, window = stabilized(8, 8, 1000.0, rules, planned=True, beside=8)
    value, window = stabilized(3, 8, 1030.0, rules, window, planned=True)
    assert value == 8
    assert stabilized(3, 8, 1070.0, rules, window, planned=True)[0] == 3


def test_nor_does_a_rule_shrink_before_a_full_window_was_watched():
    assert stabilized(3, 8, 1030.0, spec(down_stabilization_s=60.0), planned=True, watched_s=59.0)[0] == 8


def test_growing_waits_only_where_the_policy_says_so():
    assert stabilized(5, 2, 1000.0, spec())[0] == 5
    rules = spec(up_stabilization_s=30.0)
    value, window = stabilized(2, 2, 1000.0, rules)
    value, window = stabilized(5, 2, 1020.0, rules, window)
    assert value == 2
    value, window = stabilized(5, 2, 1040.0, rules, window)
    assert value == 5


def test_nothing_shrinks_before_a_full_window_was_watched():
    rules = spec(down_stabilization_s=60.0)
    assert stabilized(1, 8, 1000.0, rules, watched_s=59.0)[0] == 8
    assert stabilized(1, 8, 1000.0, rules, watched_s=60.0)[0] == 1


def test_never_watched_means_never_shrunk():
    assert stabilized(1, 8, 1000.0, spec(), watched_s=np.nan)[0] == 8


def test_untrusted_counts_do_not_delay_later_shrinking():
    rules = spec(down_stabilization_s=60.0)
    _, window = stabilized(8, 8, 1000.0, rules, informed=False)
    assert stabilized(2, 8, 1010.0, rules, window)[0] == 2


@pytest.mark.parametrize(
    ("desired", "current", "idle_s", "expected"),
    [
        (0, 3, 10, 1),  # no work yet, but not for long enough
        (0, 3, 900, 0),
        (0, 0, 10, 0),  # at zero nothing happens by itself
        (2, 0, 900, 2),  # a wish wakes
        (2, 2, 900, 2),
    ],
)
def test_zero_is_reached_by_idle_time_and_left_on_demand(desired, current, idle_s, expected):
    assert stages.go_idle(column(desired), column(current), column(600.0), column(idle_s))[0] == expected


def test_without_scale_to_zero_one_replica_stays():
    assert stages.go_idle(column(0), column(3), column(np.nan), column(1e9))[0] == 1


def limited(desired, current, now_s, rules, window=None):
    window = window or SlidingWindow.blank(1)
    value, _, after = stages.limit_rate(column(desired), column(current), rules, window, now_s)
    return value[0], after


def test_growth_is_the_larger_of_fraction_and_number_per_period():
    rules = spec(up_step_fraction=1.0, up_step_replicas=4.0, up_period_s=15.0)
    assert limited(50, 2, 1000.0, rules)[0] == 6
    assert limited(50, 10, 1000.0, rules)[0] == 20


def test_a_second_step_is_measured_from_the_start_of_the_period():
    rules = spec(up_step_fraction=1.0, up_period_s=60.0)
    value, window = limited(50, 4, 1000.0, rules)
    assert value == 8
    value, window = limited(50, 8, 1020.0, rules, window)
    assert value == 8
    value, window = limited(50, 8, 1070.0, rules, window)
    assert value == 16


@pytest.mark.parametrize("late_s", [-0.2, 0.0, 0.4])
def test_second_step_comes_with_the_tick_that_ends_the_period(late_s):
    """Ticks of 5 s: the count doubled with the first, and may double again with the fourth, be it a little early."""
    rules = spec(up_step_fraction=1.0, up_period_s=15.0)
    _, window = limited(50, 4, 1000.0, rules)
    for tick, count in ((1005.0, 8), (1010.0, 8), (1015.0 + late_s, 16)):
        value, window = limited(50, 8, tick, rules, window)
        assert value == count


def test_shrinking_by_a_quarter_a_minute_moves_by_one_at_least():
    rules = spec(down_step_fraction=0.25, down_period_s=60.0)
    assert limited(1, 8, 1000.0, rules)[0] == 6
    assert limited(1, 2, 1000.0, rules)[0] == 1


def test_unstated_steps_do_not_limit_and_neither_does_zero():
    assert limited(50, 2, 1000.0, spec())[0] == 50
    assert limited(5, 0, 1000.0, spec(up_step_fraction=1.0))[0] == 5


def test_bounds_hold_and_zero_is_below_the_floor_only_on_purpose():
    rules = spec(3, min_replicas=2.0, max_replicas=6.0, idle_after_s=[np.nan, 600.0, np.nan])
    assert stages.bound(column(0, 0, 9), rules, np.full(3, True), column(0, 0, 0)).tolist() == [2, 0, 6]


def test_a_row_without_policy_passes_every_stage_unchanged():
    rules = spec(**dict.fromkeys(vars(spec()), np.nan))
    assert stages.bound(column(7), rules, np.full(1, True), column(0))[0] == 7
    assert limited(7, 7, 1000.0, rules)[0] == 7
    assert stages.tolerate(column(7), column(7), rules.tolerance)[0] == 7
    assert stages.go_idle(column(7), column(7), rules.idle_after_s, column(1e9))[0] == 7


def test_tolerance_includes_its_edge_in_floating_point():
    assert stages.tolerate(column(1.1, 3.3), column(1, 3), column(0.1, 0.1)).tolist() == [1, 3]


def test_only_the_first_replica_is_not_put_off_from_zero():
    rules = spec(up_stabilization_s=120.0)
    _, window = stabilized(0, 0, 1000.0, rules)
    assert stabilized(4, 0, 1005.0, rules, window)[0] == 1


def test_the_way_from_the_floor_to_zero_is_one_step():
    rules = spec(min_replicas=3.0, down_step_replicas=1.0, down_period_s=60.0)
    assert limited(0, 5, 1000.0, rules)[0] == 4
    assert limited(0, 3, 1000.0, rules)[0] == 0


@given(
    st.lists(st.tuples(st.floats(1, 100), st.integers(1, 9)), min_size=2, max_size=40),
    st.sampled_from([30.0, 222.0]),
)
def test_no_replica_is_given_up_within_the_hold_after_growth(wishes, hold_s):
    """The count follows what is kept, as in a cluster. Growth is never put off, and a lower wish that lasts is met."""
    window, now_s, current, grown_s = SlidingWindow.blank(1), 1000.0, 1.0, -math.inf
    for interval_s, wish in wishes:
        now_s += interval_s
        kept, window = stages.keep_recent(column(wish), column(current), window, now_s, column(hold_s))
        if kept[0] > current:
            assert kept[0] == wish
            grown_s = now_s
        elif kept[0] < current:
            assert now_s - grown_s >= hold_s
            assert kept[0] >= wish
        current = kept[0]
    now_s += 1.1 * hold_s
    kept, window = stages.keep_recent(column(1), column(current), window, now_s, column(hold_s))
    assert kept[0] == 1


def test_hold_is_for_counts_above_zero_and_where_it_is_known():
    window = SlidingWindow.blank(2)
    hold_s, current = column(60, np.nan), column(5, 5)
    _, window = stages.keep_recent(column(5, 5), current, window, 1000.0, hold_s)
    kept, window = stages.keep_recent(column(2, 2), current, window, 1010.0, hold_s)
    assert kept.tolist() == [5, 2]
    kept, window = stages.keep_recent(column(0, 0), current, window, 1020.0, hold_s)
    assert kept.tolist() == [0, 0]
