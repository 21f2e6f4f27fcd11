"""A rise is continued for a cold start, and the young follow what they see."""

import math
from dataclasses import replace

import numpy as np

from autoscaler.core import rules as R
from tests.core.shown import judged, live, seen


def asks_of_the_fastest(rules):
    return rules.asked[R.CAREFUL, 0]


def test_the_fastest_level_goes_on_rising_for_a_cold_start_and_the_others_do_not():
    flat, rising = live([4.0] * 20), live(np.linspace(1.0, 4.0, 20))
    assert (asks_of_the_fastest(rising) >= asks_of_the_fastest(flat)).all()
    assert asks_of_the_fastest(rising).sum() >= asks_of_the_fastest(flat).sum() + 5
    slower = slice(len(R.HOLDS) * R.MARGINS, None)
    assert (rising.asked[slower, 0] <= flat.asked[slower, 0]).all()


def test_no_rise_is_believed_to_lead_beyond_half_as_much_again():
    level = np.array([[9.0], [1.0], [1.0]])
    assert R._rising(level, np.array([600.0]))[:, 0].tolist() == [R.MOST_RISE * 9.0, 1.0, 1.0]


def test_a_fall_is_not_continued():
    level = np.array([[3.0], [6.0], [8.0]])
    np.testing.assert_array_equal(R._rising(level, np.array([60.0])), level)


def test_the_young_follow_the_fastest_level_and_hold_it_longest():
    rules, now_s, chosen = R.Rules.blank(1), 1000.0, set()
    while rules.watched_s[0] < R.YOUNG_S:
        now_s += R.EVERY_S
        rules = R.judge(rules, seen(3.0 + 2.0 * math.sin(now_s / 3000)), now_s)
        if rules.watched_s[0] < R.YOUNG_S and not np.isnan(rules.rule[0]):
            chosen.add(R.describe(int(rules.rule[0]))[:2])
    assert chosen == {(R.LEVELS_S[0], R.HOLDS[-1])}


def test_the_young_do_so_also_where_requests_are_no_work():
    """Engines as fast as when idle; a price of nothing is no reason to give anything up."""
    rules = replace(live([3.0] * 10), work_s=np.zeros(1))
    after = judged(rules, seen(3.0, busy=0.0, tally={"began": 0.0}))
    assert after.work_s[0] == 0
    assert R.describe(int(after.rule[0]))[1] == R.HOLDS[-1]
