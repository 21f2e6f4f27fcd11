"""Numbers, times and shares as text."""

import math

import pytest

from autoscaler.core.explain.format import count, number, percent, seconds


@pytest.mark.parametrize(
    ("value", "text"),
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
def test_a_number_has_three_digits_and_no_power_of_ten(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1 replica"), (0.99999, "1 replica"), (0, "0 replicas"), (1.5, "1.5 replicas")]
)
def test_a_noun_is_singular_when_its_number_reads_as_one(value, text):
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
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
        (169_200, "47 h"),
        (172_800, "2 days"),
        (176_400, "2.04 days"),
        (13_413_600, "155 days"),
        (math.nan, "an unknown time"),
    ],
)
def test_a_time_has_the_unit_that_reads_best(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (1e-9, "0%"), (0.00272, "0.272%"), (4.5, "450%"), (math.nan, "an unknown share")]
)
def test_a_share_is_a_percentage_and_an_unknown_one_is_not_0(share, text):
    assert percent(share) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_unknown(value):
    assert number(value) == "an unknown number of"
