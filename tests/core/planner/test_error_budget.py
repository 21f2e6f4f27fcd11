"""What was missed, and what may still be."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.planner import error_budget as E
from autoscaler.core.planner import miss_curve
from autoscaler.core.planner.interval import Step
from autoscaler.core.planner.strategies import EVERY_S
from tests.core.shown import seen

PROMISED = 0.01
DAY = 8640.0  # requests, one each ten seconds


def counts(**columns):
    return replace(E.Budget.blank(1), **{name: np.array([value]) for name, value in columns.items()})


def steered(burnt, counted=DAY, served=0.1, served_s=1.0, unavoidable=0.0):
    budget = counts(burnt=burnt, counted=counted, served=served, served_s=served_s)
    return float(E.steered(budget, np.array([PROMISED]), np.array([unavoidable]))[0])


@pytest.mark.parametrize(
    ("burnt_fraction", "share"), [(E.AIMED_LATER * PROMISED, E.AIMED_LATER), (0.0, E.LAXEST), (0.1, E.STRICTEST)]
)
def test_the_budget_is_steered_between_its_bounds(burnt_fraction, share):
    """As many as were aimed at: go on so; none: lax; ten times too many: strict."""
    assert steered(DAY * burnt_fraction) == pytest.approx(share * PROMISED)


@pytest.mark.parametrize(("more", "within_s"), [(3.0, E.BUDGET_S), (30.0, E.BUDGET_S), (-3.0, E.SPENT_S)])
def test_what_was_burnt_is_made_up_for_within_a_day_and_what_was_saved_is_spent_in_half_of_it(more, within_s):
    coming = DAY * within_s / 86_400.0
    said = steered(DAY * E.AIMED_LATER * PROMISED + more)
    assert said == pytest.approx(E.AIMED_LATER * PROMISED - more / coming)


@pytest.mark.parametrize("served_s", [1.0, 0.0])
def test_who_served_nobody_has_what_is_aimed_at(served_s):
    assert steered(0.0, counted=0.0, served=0.0, served_s=served_s) == pytest.approx(E.AIMED * PROMISED)


@pytest.mark.parametrize("unavoidable", [0.2, 0.5, 0.8])
def test_nothing_is_left_to_chance_of_what_misses_anyway(unavoidable):
    """Of the rest a share is aimed at: with 0.8 of the budget gone and 0.8 aimed at, something may still be missed."""
    for counted, aim in ((0.0, E.AIMED), (DAY, E.AIMED_LATER)):
        rest = aim * (1 - unavoidable)
        said = steered((unavoidable + rest) * PROMISED * counted, counted, unavoidable=unavoidable * PROMISED)
        assert said == pytest.approx(max(rest, E.STRICTEST) * PROMISED)


def test_the_longer_it_was_counted_the_less_is_left_to_chance():
    """As many missed as were aimed at: half way through the day a quarter of the way, and no further after it."""
    for days, way in ((0.0, 0.0), (0.5, 0.25), (1.0, 1.0), (1.5, 1.0)):
        aim = (E.AIMED + (E.AIMED_LATER - E.AIMED) * way) * PROMISED
        assert steered(aim * days * DAY, counted=days * DAY) == pytest.approx(aim)


def test_what_misses_on_any_number_of_replicas_is_no_rules_to_miss():
    burnt = DAY * PROMISED * E.AIMED_LATER
    with_unavoidable = DAY * (0.004 + E.AIMED_LATER * (PROMISED - 0.004))
    spared = steered(burnt) - steered(with_unavoidable, unavoidable=0.004)
    assert spared == pytest.approx(E.AIMED_LATER * 0.004)


@pytest.mark.parametrize(
    ("unavoidable", "share"), [(0.5, E.STRICTEST), (1.05, E.STRICTEST), (1.5, 0.5), (1.8, E.AIMED), (9.0, E.AIMED)]
)
def test_the_further_a_promise_is_out_of_reach_the_less_strict_are_the_others_served(unavoidable, share):
    """unavoidable, share: of what is promised. Ten times too many were missed."""
    assert steered(10 * PROMISED * DAY, unavoidable=unavoidable * PROMISED) == pytest.approx(share * PROMISED)


def counted(late, budget=None, **shown):
    """Count one step of 450 requests in which a share was late."""
    now = seen(30.0, replicas=60.0, late=late, **shown)
    step = Step(np.array([EVERY_S]), np.array([30.0]), now.tally.arrived, np.zeros((miss_curve.BINS, 1)), np.zeros(1))
    return E.count(E.Budget.blank(1) if budget is None else budget, now, step)


def test_what_was_missed_is_counted_and_fades_within_a_day():
    first = counted(0.4)
    assert (first.burnt[0], first.counted[0], first.served[0]) == pytest.approx((180, 450, 450))
    faded = np.exp(-EVERY_S / E.BUDGET_S)
    second = counted(0.0, first)
    assert (second.burnt[0], second.counted[0]) == pytest.approx((180 * faded, 450 * (1 + faded)))
    assert second.served_s[0] == pytest.approx(EVERY_S * (1 + faded))


def test_where_nobody_tells_whether_requests_missed_none_of_them_count():
    silent = counted(0.4, tally={"ttft_judged": 0.0, "ttft_missed": 0.0})
    assert (silent.burnt[0], silent.counted[0], silent.served[0]) == pytest.approx((0, 0, 450))
