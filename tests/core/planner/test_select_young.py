"""The young follow what they see, and keep to the fleet that was found while traffic is calm."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.planner import load_history, strategies
from autoscaler.core.planner import select as R
from autoscaler.core.planner.strategies import EVERY_S
from tests.core.shown import judged, live, seen, silence


def test_the_young_follow_the_fastest_level_and_hold_it_longest():
    rules, now_s, chosen = R.Rules.blank(1), 1000.0, set()
    while rules.paper.watched_s[0] < R.YOUNG_S:
        now_s += EVERY_S
        rules = R.judge(rules, seen(3.0 + 2.0 * math.sin(now_s / 3000)), now_s)
        if rules.paper.watched_s[0] < R.YOUNG_S and not np.isnan(rules.rule[0]):
            chosen.add(strategies.describe(int(rules.rule[0]))[:2])
    assert chosen == {(strategies.LEVELS_S[0], strategies.LONGEST_HOLD)}


FOUND = 66.0
CALM, WILD = [50.0, 52.0, 48.0, 50.0] * 2, [20.0, 80.0, 20.0, 80.0] * 2


@pytest.mark.parametrize("demands", [CALM, WILD])
def test_only_careful_rules_are_followed_by_the_young_however_cheap_the_others_are(demands):
    rules = live(demands, replicas=FOUND)
    dear = np.where(strategies.CAREFUL[:, None], np.float32(1e9), rules.paper.cost)
    for watched_s, careful in ((R.YOUNG_S - 2 * EVERY_S, True), (R.YOUNG_S, False)):
        after = judged(
            rules.with_columns({"paper.cost": dear, "paper.watched_s": np.full(1, watched_s)}),
            seen(50.0, replicas=FOUND),
        )
        assert strategies.CAREFUL[int(after.rule[0])] == careful


def asked_by_rule(rules):
    return rules.paper.asked[int(rules.rule[0]), 0]


def test_while_traffic_is_calm_the_young_add_no_reserve_to_what_they_found():
    rules = live(CALM, replicas=FOUND)
    assert asked_by_rule(rules) > FOUND == rules.paper.asked[strategies.ENOUGH, 0]
    assert rules.replicas[0] == FOUND


def test_what_was_found_is_kept_but_for_the_ceiling():
    rules = live([1.0, 1.0, 1.0], replicas=12.0)
    assert rules.replicas[0] == 12
    assert judged(rules, seen(1.0, replicas=12.0, ceiling=5.0)).replicas[0] == 5


def test_without_any_traffic_nothing_is_calm():
    assert not load_history.is_calm(live([0.0] * 5, replicas=12.0).levels)[0]
    assert load_history.is_calm(live(CALM).levels)[0]


def test_what_the_peak_so_far_needs_is_added_though_traffic_is_calm():
    rules = live(CALM, replicas=55.0, busy=0.9)
    enough = rules.paper.asked[strategies.ENOUGH, 0]
    assert asked_by_rule(rules) > enough > 55
    assert rules.replicas[0] == enough


def test_where_demand_goes_up_and_down_the_rule_says_how_many():
    rules = live(WILD, replicas=FOUND)
    assert rules.replicas[0] == asked_by_rule(rules) > FOUND


def test_one_lone_outburst_ends_the_calm():
    rules = live(CALM, replicas=FOUND)
    after = live([250.0, 250.0], rules, float(rules.last_judged_s[0]), replicas=FOUND, busy=0.95, ceiling=1000.0)
    assert after.replicas[0] == asked_by_rule(after) > max(FOUND, after.paper.asked[strategies.ENOUGH, 0])


def test_whoever_misses_more_than_the_budget_and_some_minutes_of_it_in_advance_gets_what_the_rule_says():
    few = live(CALM, replicas=FOUND, late=0.02)
    many = live(CALM, replicas=FOUND, late=0.05)
    assert few.replicas[0] == FOUND
    assert many.replicas[0] == asked_by_rule(many) > FOUND


def test_calm_for_long_enough_gets_what_the_rule_says():
    rules = live(CALM, replicas=FOUND)
    assert asked_by_rule(rules) > rules.replicas[0]
    grown = judged(rules.with_columns({"paper.watched_s": np.full(1, R.CALM_S)}), seen(50.0, replicas=FOUND))
    assert grown.replicas[0] == asked_by_rule(grown)


@pytest.mark.slow
@given(st.lists(st.floats(0.1, 40.0), min_size=2, max_size=30), st.floats(1.0, 50.0), st.floats(0.0, 0.1))
@settings(max_examples=60)
def test_the_rule_or_what_was_found_at_most_and_the_rule_or_the_peak_and_one_root_at_least(demands, replicas, late):
    rules = live([5.0] * 5 + demands, replicas=math.ceil(replicas), late=late)
    by_rule = asked_by_rule(rules)
    assert min(by_rule, rules.paper.asked[strategies.ENOUGH, 0]) <= rules.replicas[0] <= max(by_rule, rules.found[0])


def test_while_demand_is_not_known_traffic_is_neither_calmer_nor_wilder():
    rules = live(WILD, replicas=FOUND)
    after = judged(rules, silence())
    assert np.isnan(after.traffic.demand[0])
    assert (after.levels.unrest[0], after.levels.level_s[0]) == (rules.levels.unrest[0], rules.levels.level_s[0])
    assert rules.levels.unrest[0] > 0


def test_the_young_do_so_also_where_requests_are_no_work():
    """Engines as fast as when idle; a price of nothing is no reason to give anything up."""
    rules = live([3.0] * 10).with_columns({"traffic.work_s": np.zeros(1)})
    after = judged(rules, seen(3.0, busy=0.0, tally={"began": 0.0}))
    assert after.traffic.work_s[0] == 0
    assert strategies.describe(int(after.rule[0]))[1] == strategies.LONGEST_HOLD


def test_once_the_fleet_that_was_found_is_no_longer_kept_it_is_not_kept_again():
    """A start that takes ten times as long makes ten cold starts longer than all that was watched."""
    rules = live([1.0] * round(R.YOUNG_S / EVERY_S), replicas=12.0)
    assert rules.paper.asked.min() == 12
    later = judged(judged(rules, seen(1.0)), seen(1.0))
    assert later.paper.asked.min() < 12
    after = judged(later, seen(1.0, cold_start_s=600.0))
    assert after.paper.asked.min() < 12
    assert live([1.0] * 40, replicas=12.0, cold_start_s=600.0).paper.asked.min() == 12


def test_while_it_is_kept_it_is_so_for_as_long_as_cold_starts_are_by_now():
    rules = live([1.0] * 30, replicas=12.0, cold_start_s=600.0)
    shorter = live([1.0] * 20, rules, float(rules.last_judged_s[0]), replicas=12.0)
    assert shorter.paper.asked.min() < 12
    longer = live([1.0] * 30, live([1.0] * 30, replicas=12.0), 1900.0, replicas=12.0, cold_start_s=600.0)
    assert longer.paper.asked.min() == 12
