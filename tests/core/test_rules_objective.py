"""What was counted under one objective says nothing of another."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core import rules as R
from autoscaler.core.family import EVERY_S
from tests.core.shown import NAN, WORK_S, judged, live, seen

COUNTED = ("bin_missed", "burnt", "prefill_late", "unavoidable")
ON_PAPER = ("promised", "queued", "missed")
PROMPTS = {"prefill_judged": 45.0, "prefill_late": 12.0}


def strict(**columns):
    """Three hours in which a third of all requests missed, many of them whatever was done."""
    return live([3.0, 12.0, 3.0] * 120, late=0.3, replicas=5.0, tally=PROMPTS, **columns)


@pytest.mark.parametrize("changed", [{"ttft_objective_s": 2.0}, {"itl_objective_s": 0.2}, {"itl_objective_s": NAN}])
def test_what_was_counted_under_another_objective_begins_anew(changed):
    before = strict()
    after = judged(before, seen(3.0, replicas=7.0, **changed))
    for name in COUNTED:
        assert getattr(before, name).max() > 0, name
        assert getattr(after, name).max() == 0, name
    came = 3.0 * EVERY_S / WORK_S
    assert after.counted[0] == pytest.approx(came)
    for name in ON_PAPER:
        assert getattr(before, name).max() > 10 * came, name
        assert getattr(after, name).max() <= came, name  # of this step
    assert (after.watched_s[0], after.found[0]) == (30.0, 7.0)  # a fleet that is found anew, as after an upgrade
    assert after.replicas[0] >= 7
    for name in ("readings", "shortest_gap_s", "served_s", "level_s", "requests"):  # what it can do, and what comes
        assert getattr(after, name)[0] > 0.9 * getattr(before, name)[0], name
    assert after.demand[0] == pytest.approx(3.0, rel=0.05)


def test_it_begins_anew_once():
    after = judged(strict(), seen(3.0, ttft_objective_s=2.0, late=0.2))
    again = judged(after, seen(3.0, ttft_objective_s=2.0, late=0.2))
    assert again.burnt[0] == pytest.approx(2 * after.burnt[0], rel=0.01)


@pytest.mark.parametrize("same", [{"ttft_objective_s": 1.0 + 1e-12}, {"budget": 0.02}, {"ceiling": 50.0}])
def test_the_last_digits_and_what_else_a_policy_says_change_nothing_that_was_counted(same):
    before = strict()
    assert judged(before, seen(3.0, **same)).burnt[0] > 0.99 * before.burnt[0]


def test_without_an_objective_it_stays_without_one():
    before = strict(itl_objective_s=NAN)
    assert judged(before, seen(3.0, itl_objective_s=NAN)).burnt[0] > 0.99 * before.burnt[0]


def test_while_no_policy_is_in_force_what_was_counted_stays():
    nothing = {"ttft_objective_s": NAN, "itl_objective_s": NAN, "budget": NAN}
    before = strict()
    away = judged(before, seen(3.0, **nothing, tally={"ttft_judged": 0.0}))
    assert judged(away, seen(3.0)).burnt[0] > 0.99 * before.burnt[0]


def test_the_other_rows_keep_theirs():
    row = np.array([0])
    before = live([np.array([3.0, 3.0])] * 100, late=0.3)
    objectives = {"ttft_objective_s": np.array([1.0, 2.0])}
    after = judged(before, seen(np.array([3.0, 3.0]), late=0.3, **objectives))
    alone = judged(replace(before, **vars(before.take(row))), seen(3.0, late=0.3))
    for name, column in vars(alone).items():
        np.testing.assert_array_equal(getattr(after, name)[..., row], column, err_msg=name)
    assert after.burnt[1] < after.burnt[0]
    assert after.loaded.dtype == R.Rules.blank(1).loaded.dtype
