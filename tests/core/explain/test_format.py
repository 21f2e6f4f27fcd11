"""Numbers as people say them."""

import math

import pytest

from autoscaler.core.explain.format import count, number, percent, seconds


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (2, "2"),
        (2.5, "2.5"),
        (0.0123456, "0.0123"),
        (1e-18, "0"),
        (123.4, "123"),
        (1e15, "1000000000000000"),
        (-5, "-5"),
    ],
)
def test_a_number_has_three_digits_and_no_power_of_ten(value, said):
    assert number(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(1, "1 replica"), (0.99999, "1 replica"), (0, "0 replicas"), (1.5, "1.5 replicas")]
)
def test_what_reads_as_one_is_one_replica(value, said):
    assert count(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 s"),
        (1e-9, "0 ms"),
        (0.0082, "8.2 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (90, "90 s"),
        (132, "132 s"),
        (240, "4 min"),
        (900, "15 min"),
        (176_400, "49 h"),
        (math.nan, "an unknown time"),
    ],
)
def test_times_have_the_unit_one_would_use(value, said):
    assert seconds(value) == said


@pytest.mark.parametrize(
    ("share", "said"), [(0.0, "0%"), (1e-9, "0%"), (0.00272, "0.272%"), (4.5, "450%"), (math.nan, "an unknown share")]
)
def test_shares_are_said_in_percent_and_an_unknown_one_is_not_none(share, said):
    assert percent(share) == said


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_said_to_be_unknown(value):
    assert number(value) == "an unknown number of"
