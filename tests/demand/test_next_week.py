"""The band of the highest hour holds as many weeks as it says, where days are as it takes them to be."""

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from autoscaler.demand.next_week import band_of_weeks

MONDAY_S = 1_715_558_400.0
UTC = ZoneInfo("UTC")


def hours_of(highest):
    """Return hours with one highest hour a day."""
    at_s = MONDAY_S + 3600.0 * np.arange(24 * len(highest))
    return at_s, (np.where(np.arange(24) == 14, 1.0, 0.3) * highest[:, None]).ravel()


@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_band_holds_nine_of_ten_weeks(spread):
    draw, inside = np.random.default_rng(0), 0
    for _ in range(200):
        highest = 100 * np.exp(draw.normal(0, spread, 21)) * np.where(np.arange(21) % 7 > 4, 0.5, 1.0)
        band = band_of_weeks(*hours_of(highest[:14]), UTC)
        inside += band.low <= highest[14:].max() <= band.high
    assert 0.8 <= inside / 200 <= 1.0


def test_band_is_narrow_when_all_days_are_alike():
    band = band_of_weeks(*hours_of(np.full(14, 40.0)), UTC)
    assert 39 <= band.low <= 40 <= band.high <= 41


def test_band_is_unknown_before_a_week_of_days():
    assert np.isnan(band_of_weeks(*hours_of(np.full(6, 40.0)), UTC).low)
    assert np.isnan(band_of_weeks(np.empty(0), np.empty(0), UTC).high)
    assert band_of_weeks(*hours_of(np.zeros(7)), UTC)[:2] == (0.0, 0.0)


def test_days_are_those_of_the_zone():
    at_s, needed = hours_of(np.full(8, 40.0))
    assert band_of_weeks(at_s, needed, UTC).days == 8
    assert band_of_weeks(at_s, needed, ZoneInfo("Pacific/Auckland")).days == 7  # the first and the last are half days
