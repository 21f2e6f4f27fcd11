"""The error budget: what was missed, and what may still be missed."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.measure.interval import Interval
from autoscaler.core.planner.error_budget import (
    FIRST_AIM,
    LATER_AIM,
    MAX_ALLOWED,
    MIN_ALLOWED,
    SAVINGS_SHARE,
    ErrorBudget,
    compute_allowed_share,
    update_error_budget,
)
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from tests.core.planner.interval_stats import make_stats

BUDGET = 0.01
DAY = 8640.0  # requests, one every ten seconds


def allowed(missed, counted=DAY, served=0.1, served_s=1.0, unavoidable=0.0, window_s=86_400.0):
    """Return the allowed share of a workload with these counts, by a window of a day if none is given."""
    columns = {"missed": missed, "counted": counted, "served": served, "served_s": served_s}
    budget = replace(ErrorBudget.blank(1), **{name: np.array([value]) for name, value in columns.items()})
    return float(compute_allowed_share(budget, *(np.array([value]) for value in (BUDGET, window_s, unavoidable)))[0])


@pytest.mark.parametrize(
    ("missed_share", "share"), [(LATER_AIM * BUDGET, LATER_AIM), (0.0, MAX_ALLOWED), (0.1, MIN_ALLOWED)]
)
def test_allowed_share_stays_within_its_bounds(missed_share, share):
    """As many misses as aimed at, none, and ten times too many."""
    assert allowed(DAY * missed_share) == pytest.approx(share * BUDGET)


@pytest.mark.parametrize("days", [1.0, 0.25, 7.0])
@pytest.mark.parametrize(("excess", "share"), [(0.003, 1.0), (-0.0003, SAVINGS_SHARE)])
def test_overspend_is_recovered_in_a_window_and_savings_in_half(excess, share, days):
    """As many requests as arrive in a window were counted. excess: of misses, as a share of them."""
    missed, counted = LATER_AIM * BUDGET + excess, DAY * days
    found = allowed(missed * counted, counted, window_s=86_400.0 * days)
    assert found == pytest.approx(LATER_AIM * BUDGET - excess / share)


@pytest.mark.parametrize("served_s", [1.0, 0.0])
def test_allowed_share_is_the_first_aim_without_requests(served_s):
    assert allowed(0.0, counted=0.0, served=0.0, served_s=served_s) == pytest.approx(FIRST_AIM * BUDGET)


@pytest.mark.parametrize("unavoidable", [0.2, 0.5, 0.8])
def test_aim_is_a_share_of_the_avoidable_budget(unavoidable):
    """Unavoidable misses take 0.8 of the budget and 0.8 is aimed at, and still some requests may miss."""
    for counted, aim in ((0.0, FIRST_AIM), (DAY, LATER_AIM)):
        rest = aim * (1 - unavoidable)
        share = allowed((unavoidable + rest) * BUDGET * counted, counted, unavoidable=unavoidable * BUDGET)
        assert share == pytest.approx(max(rest, MIN_ALLOWED) * BUDGET)


def test_aim_rises_with_the_time_that_was_counted():
    """As many misses as aimed at. After half a day the aim has moved by a quarter, after a day by all."""
    for days, way in ((0.0, 0.0), (0.5, 0.25), (1.0, 1.0), (1.5, 1.0)):
        aim = (FIRST_AIM + (LATER_AIM - FIRST_AIM) * way) * BUDGET
        assert allowed(aim * days * DAY, counted=days * DAY) == pytest.approx(aim)


def test_unavoidable_misses_are_deducted_from_the_allowed_share():
    missed = DAY * BUDGET * LATER_AIM
    missed_with_unavoidable = DAY * (0.004 + LATER_AIM * (BUDGET - 0.004))
    deducted = allowed(missed) - allowed(missed_with_unavoidable, unavoidable=0.004)
    assert deducted == pytest.approx(LATER_AIM * 0.004)


@pytest.mark.parametrize(
    ("unavoidable", "share"), [(0.5, MIN_ALLOWED), (1.05, MIN_ALLOWED), (1.5, 0.5), (1.8, FIRST_AIM), (9.0, FIRST_AIM)]
)
def test_allowed_share_grows_when_the_budget_is_out_of_reach(unavoidable, share):
    """Both are shares of the budget. Ten times too many requests missed."""
    assert allowed(10 * BUDGET * DAY, unavoidable=unavoidable * BUDGET) == pytest.approx(share * BUDGET)


def add_interval(late, budget=None, **stats):
    """Add an interval of 450 requests, a share of which missed."""
    stats = make_stats(30.0, replicas=60.0, late=late, **stats)
    none = np.zeros(1)
    interval = Interval(np.array([UPDATE_INTERVAL_S]), np.array([30.0]), stats.totals.arrivals, none, none)
    return update_error_budget(ErrorBudget.blank(1) if budget is None else budget, stats, interval)[0]


@pytest.mark.parametrize("window_s", [86_400.0, 3600.0])
def test_misses_are_counted_and_fade_within_the_window(window_s):
    first = add_interval(0.4, window_s=window_s)
    assert (first.missed[0], first.counted[0], first.served[0]) == pytest.approx((180, 450, 450))
    fade = np.exp(-UPDATE_INTERVAL_S / window_s)
    second = add_interval(0.0, first, window_s=window_s)
    assert (second.missed[0], second.counted[0]) == pytest.approx((180 * fade, 450 * (1 + fade)))
    assert second.served_s[0] == pytest.approx(UPDATE_INTERVAL_S * (1 + fade))


def test_misses_are_counted_when_they_end():
    """Of 450 that arrive 90 get their first token, all late. The others are counted with theirs, none of them twice."""
    first = add_interval(0.0, totals={"ttft_counted": 90.0, "ttft_missed": 90.0})
    assert (first.missed[0], first.counted[0], first.served[0]) == pytest.approx((90, 90, 450))
    after = add_interval(0.0, first, totals={"arrivals": 0.0, "ttft_counted": 360.0, "ttft_missed": 0.0})
    assert after.missed[0] / after.counted[0] == pytest.approx(0.2, rel=1e-3)


def test_requests_are_not_counted_when_misses_are_not_reported():
    after = add_interval(0.4, totals={"ttft_counted": 0.0, "ttft_missed": 0.0})
    assert (after.missed[0], after.counted[0], after.served[0]) == pytest.approx((0, 0, 450))
