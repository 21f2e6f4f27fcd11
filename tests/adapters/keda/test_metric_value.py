"""The published value, checked by the HPA's arithmetic."""

from decimal import Decimal
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoscaler.adapters.keda.metric_value import PublishedValue, Tolerance, publish
from tests.hpa import DEFAULT_DOWN, DEFAULT_UP, EXACT, Direction, Hpa, Policy, keda_value, older_keda_value

COUNTS = 201
counts = st.integers(0, 2000)
tolerances = st.builds(Tolerance, st.floats(0, 2), st.floats(0, 1))


def land(value: float, current: int, tolerance: Tolerance) -> int:
    """Return the count to which the HPA scales from `current`, limited only by the tolerance."""
    free = (Policy("Pods", 100_000),)
    hpa = Hpa(
        min_replicas=0,
        max_replicas=100_000,
        up=Direction(0, free, tolerance.up),
        down=Direction(0, free, tolerance.down),
        replicas=current,
    )
    return hpa.sync(0.0, keda_value(value, ceil(value)))


def test_every_count_is_reachable_with_tolerance_0():
    exact = Tolerance(0, 0)
    for current in range(COUNTS):
        for desired in range(COUNTS):
            published = publish(desired, current, exact)
            assert published == PublishedValue(desired, True)
            assert land(published.value, current, exact) == (desired if current else 0)  # at 0 the HPA is off


@pytest.mark.slow
def test_unreachable_steps_are_those_no_value_reaches():
    """Every value that rounds up to the desired count is tried in thousandths, with numpy instead of the model."""
    fractions = np.arange(1, 1001)  # N - 1 + 0.001 ... N
    swallowed = 0
    for current in range(1, COUNTS):
        for desired in range(COUNTS):
            milli = (desired - 1) * 1000 + fractions if desired else np.zeros(1)
            ratio = milli / (1000.0 * current)
            seen = (ratio < 1.0 - 0.1) | (ratio > 1.0 + 0.1)
            published = publish(desired, current, Tolerance())
            assert published.reachable == (desired == current or bool(seen.any())), (current, desired)
            assert (land(published.value, current, Tolerance()) == desired) == published.reachable, (current, desired)
            swallowed += not published.reachable
    assert swallowed == 3466  # of 40,200 steps


@pytest.mark.parametrize(
    ("current", "desired", "value", "reachable"),
    [
        (1, 2, 2.0, True),
        (9, 10, 10.0, True),
        (10, 11, 11.0, False),  # the bound itself, 1.1, is inside the tolerance
        (20, 22, 22.0, False),
        (30, 33, 33.0, False),
        (9, 8, 8.0, True),
        (10, 9, 8.00125, True),  # 0.8001; 9 would be 0.9, kept
        (11, 10, 9.00125, True),
        (19, 18, 17.00125, True),
        (20, 19, 19.0, False),  # 18.001/20 = 0.90005
        (20, 18, 17.00125, True),
        (0, 7, 7.0, True),
        (1, 0, 0.0, True),
        (7, 7, 7.0, True),
    ],
)
def test_known_steps_under_the_default_tolerance(current: int, desired: int, value: float, reachable: bool):
    assert publish(desired, current, Tolerance()) == PublishedValue(value, reachable)


@given(counts, counts, tolerances)
def test_value_always_rounds_up_to_the_desired_count(current: int, desired: int, tolerance: Tolerance):
    assert ceil(keda_value(publish(desired, current, tolerance).value, 0)) == desired


@given(counts, counts, tolerances)
@example(9, 10, Tolerance())  # 8.001 * 1000 is less than 8001, and so is 32.001 * 1000 less than 32001
@example(33, 36, Tolerance())
def test_rounding_and_truncating_give_the_same_value(desired: int, current: int, tolerance: Tolerance):
    value = publish(desired, current, tolerance).value
    assert older_keda_value(value) == keda_value(value, 0)


@given(counts, counts, tolerances)
def test_hpa_reaches_the_count_exactly_when_reachable(current: int, desired: int, tolerance: Tolerance):
    published = publish(desired, current, tolerance)
    landed = land(published.value, current, tolerance)
    if current == 0:
        assert landed == 0 and published.reachable
    else:
        assert landed == (desired if published.reachable else current)


@given(counts, counts, tolerances)
def test_finer_values_reach_no_more_counts(current: int, desired: int, tolerance: Tolerance):
    if publish(desired, current, tolerance).reachable:
        return
    assert land(desired, current, tolerance) == current
    if desired:
        assert land(desired - 1 + 0.0011, current, tolerance) == current


def test_no_value_is_negative():
    assert publish(0, 5, Tolerance(0.1, 1.0)) == (0.0, False)


def test_quantity_has_three_decimals():
    assert keda_value(9.0014, 10) == Decimal("9.001")
    assert keda_value(0.0, 3) == keda_value(-1.0, 3) == keda_value(float("nan"), 3) == 3
    assert keda_value(-1.0, -1) == keda_value(float("inf"), 0) == 0


class TestTheDouble:
    """The model of the HPA against worked examples."""

    def test_default_behavior_adds_4_pods_or_doubles(self):
        hpa = Hpa(replicas=1)
        assert [hpa.sync(t, Decimal(40)) for t in (0, 15, 30, 45)] == [5, 10, 20, 40]

    def test_default_behavior_waits_five_minutes_to_scale_down(self):
        hpa = Hpa(replicas=10)
        hpa.sync(0, Decimal(10))
        assert hpa.sync(15, Decimal(2)) == 10
        assert hpa.sync(301, Decimal(2)) == 2

    def test_shipped_behavior_reaches_the_count_at_once(self):
        hpa = Hpa(replicas=1, max_replicas=200, up=EXACT, down=EXACT)
        desired = [7, 8, 20, 21, 22, 40, 39, 38, 10, 11, 10, 3]  # a run seen on a real cluster
        assert [hpa.sync(15.0 * i, Decimal(n)) for i, n in enumerate(desired)] == desired

    def test_bounds_of_the_tolerance_are_inside_it(self):
        assert Hpa(replicas=10, down=EXACT).sync(0, Decimal(11)) == 10
        assert Hpa(replicas=10, up=DEFAULT_UP, down=Direction(0, DEFAULT_DOWN.policies)).sync(0, Decimal(9)) == 10

    def test_value_metric_drifts_during_a_cold_start(self):
        hpa = Hpa(metric_type="Value", target=Decimal(1), replicas=4, ready=2, up=EXACT, down=EXACT)
        assert hpa.sync(0, Decimal(2)) == 4
        hpa.ready = 1
        assert hpa.sync(15, Decimal(2)) == 2

    def test_bounds_apply_without_a_metric(self):
        assert Hpa(replicas=101).sync(0, None) == 100
        assert Hpa(replicas=2, min_replicas=3).sync(0, None) == 3
        assert Hpa(replicas=5).sync(0, None) == 5
        assert Hpa(replicas=0).sync(0, Decimal(9)) == 0

    def test_change_counts_against_the_limit_of_its_period(self):
        hpa = Hpa(replicas=10, up=Direction(0, (Policy("Pods", 2, 60),), 0))
        assert [hpa.sync(t, Decimal(20)) for t in (0, 15, 59, 61)] == [12, 12, 12, 14]
