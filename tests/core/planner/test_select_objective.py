"""What was counted under one objective says nothing of another."""

import numpy as np
import pytest

from autoscaler.core.planner import select as R
from autoscaler.core.planner.strategies import EVERY_S
from tests.core.shown import NAN, WORK_S, judged, live, seen

COUNTED = ("loads.missed", "loads.prefill_late", "loads.unavoidable", "budget.burnt")
ON_PAPER = ("paper.queued", "paper.missed")
PROMPTS = {"prefill_judged": 45.0, "prefill_late": 12.0}


def strict(**columns):
    """Three hours in which a third of all requests missed, many of them whatever was done."""
    return live([3.0, 12.0, 3.0] * 120, late=0.3, replicas=5.0, tally=PROMPTS, **columns)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"ttft_objective_s": 2.0}, {"itl_objective_s": 0.2}, {"itl_objective_s": NAN}])
def test_what_was_counted_under_another_objective_begins_anew(changed):
    before = strict()
    after = judged(before, seen(3.0, replicas=7.0, **changed))
    then, now = before.columns(), after.columns()
    for place in COUNTED:
        assert then[place].max() > 0, place
        assert now[place].max() == 0, place
    came = 3.0 * EVERY_S / WORK_S
    assert after.budget.counted[0] == pytest.approx(came)
    for place in ON_PAPER:
        assert then[place].max() > 10 * came, place
        assert now[place].max() <= came, place  # of this step
    assert (after.paper.watched_s[0], after.found[0]) == (30.0, 7.0)  # a fleet that is found anew, as after an upgrade
    assert after.replicas[0] >= 7
    able, comes = (
        ("engine.readings", "engine.shortest_gap_s"),
        ("budget.served_s", "levels.level_s", "traffic.requests"),
    )
    for place in able + comes:
        assert now[place][0] > 0.9 * then[place][0], place
    assert after.traffic.demand[0] == pytest.approx(3.0, rel=0.05)


def test_it_begins_anew_once():
    after = judged(strict(), seen(3.0, ttft_objective_s=2.0, late=0.2))
    again = judged(after, seen(3.0, ttft_objective_s=2.0, late=0.2))
    assert again.budget.burnt[0] == pytest.approx(2 * after.budget.burnt[0], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("same", [{"ttft_objective_s": 1.0 + 1e-12}, {"may_miss": 0.02}, {"ceiling": 50.0}])
def test_the_last_digits_and_what_else_a_policy_says_change_nothing_that_was_counted(same):
    before = strict()
    assert judged(before, seen(3.0, **same)).budget.burnt[0] > 0.99 * before.budget.burnt[0]


def test_without_an_objective_it_stays_without_one():
    before = strict(itl_objective_s=NAN)
    assert judged(before, seen(3.0, itl_objective_s=NAN)).budget.burnt[0] > 0.99 * before.budget.burnt[0]


@pytest.mark.slow
def test_while_no_policy_is_in_force_what_was_counted_stays():
    nothing = {"ttft_objective_s": NAN, "itl_objective_s": NAN, "may_miss": NAN}
    before = strict()
    away = judged(before, seen(3.0, **nothing, tally={"ttft_judged": 0.0}))
    assert judged(away, seen(3.0)).budget.burnt[0] > 0.99 * before.budget.burnt[0]


def test_the_other_rows_keep_theirs():
    row = np.array([0])
    before = live([np.array([3.0, 3.0])] * 100, late=0.3)
    objectives = {"ttft_objective_s": np.array([1.0, 2.0])}
    after = judged(before, seen(np.array([3.0, 3.0]), late=0.3, **objectives))
    alone = judged(before.take(row), seen(3.0, late=0.3))
    for place, column in alone.columns().items():
        np.testing.assert_array_equal(after.columns()[place][..., row], column, err_msg=place)
    assert after.budget.burnt[1] < after.budget.burnt[0]
    assert after.paper.loaded.dtype == R.Rules.blank(1).paper.loaded.dtype
