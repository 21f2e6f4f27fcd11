"""The young follow what they see."""

import math
from dataclasses import replace

import numpy as np

from autoscaler.core import family
from autoscaler.core import rules as R
from autoscaler.core.family import EVERY_S
from tests.core.shown import judged, live, seen


def test_the_young_follow_the_fastest_level_and_hold_it_longest():
    rules, now_s, chosen = R.Rules.blank(1), 1000.0, set()
    while rules.watched_s[0] < R.YOUNG_S:
        now_s += EVERY_S
        rules = R.judge(rules, seen(3.0 + 2.0 * math.sin(now_s / 3000)), now_s)
        if rules.watched_s[0] < R.YOUNG_S and not np.isnan(rules.rule[0]):
            chosen.add(family.describe(int(rules.rule[0]))[:2])
    assert chosen == {(family.LEVELS_S[0], family.LONGEST_HOLD)}


def test_the_young_do_so_also_where_requests_are_no_work():
    """Engines as fast as when idle; a price of nothing is no reason to give anything up."""
    rules = replace(live([3.0] * 10), work_s=np.zeros(1))
    after = judged(rules, seen(3.0, busy=0.0, tally={"began": 0.0}))
    assert after.work_s[0] == 0
    assert family.describe(int(after.rule[0]))[1] == family.LONGEST_HOLD
