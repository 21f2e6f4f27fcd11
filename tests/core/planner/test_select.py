"""Rules on paper: what each would have cost and missed, and which is followed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.planner import error_budget, step_time, strategies
from autoscaler.core.planner import select as R
from autoscaler.core.planner.interval import Seen
from autoscaler.core.planner.pod_work import SHORTEST_STEP_S
from autoscaler.core.planner.strategies import EVERY_S
from tests.core.shown import NAN, WORK_S, judged, live, seen, silence

HOUR = int(3600 / EVERY_S)  # steps


# --- who speaks


def test_no_rule_speaks_before_the_speed_is_known():
    rules, now_s = R.Rules.blank(1), 1000.0
    while rules.engine.readings[0] + 1 < step_time.FEWEST_READINGS:
        now_s += EVERY_S
        rules = R.judge(rules, seen(0.5, replicas=1), now_s)
        assert np.isnan(rules.traffic.demand[0])
        assert np.isnan(rules.replicas[0])
    assert not np.isnan(live([0.5, 0.5], rules, now_s, replicas=1).replicas[0])


def test_without_a_promise_demand_is_known_and_no_rule_speaks():
    rules = live([3.0] * 50, ttft_objective_s=NAN)
    assert rules.traffic.demand[0] == pytest.approx(3.0, rel=0.01)
    assert np.isnan(rules.replicas[0])
    assert np.isnan(rules.rule[0])


def test_unknown_demand_keeps_all_that_is_known_and_says_nothing():
    rules = live([3.0] * 200)
    after = judged(rules, silence())
    assert np.isnan(after.replicas[0])
    places = ("paper.cost", "paper.missed", "paper.asked", "levels.level", "rule", "traffic.work_s", "traffic.requests")
    for place in (*places, "loads.seen", "budget.burnt", "budget.served"):
        np.testing.assert_array_equal(after.columns()[place], rules.columns()[place], err_msg=place)
    back = judged(after, seen(3.0))
    assert back.replicas[0] == rules.replicas[0]


def test_a_clock_that_stands_or_goes_back_costs_nothing():
    rules = live([3.0] * 100)
    for after_s in (0.0, -500.0):
        after = judged(rules, seen(3.0), after_s)
        np.testing.assert_array_equal(after.paper.cost, rules.paper.cost)
        np.testing.assert_array_equal(after.paper.missed, rules.paper.missed)


# --- which rule is in force


@pytest.fixture(scope="module")
def lived():
    """The rules of workloads that lived through a day, by how their demand ran."""
    random = np.random.default_rng(3)
    steps = np.arange(24 * HOUR)
    scatter = 0.3 * random.standard_normal((3, len(steps)))
    demands = {
        "steady": np.full(len(steps), 3.0),
        "waves": 4.0 + 3.0 * np.sin(steps / HOUR),
        "bursts": np.where((steps % 40 < 8) & (steps < steps[-12]), 6.0, 3.0),
        "surges": np.where(steps % HOUR < 8, 100.0, 3.0),
        **{f"size {size:g}": np.maximum(size + math.sqrt(size) * scatter[n], 0.05) for n, size in enumerate(SIZES)},
    }
    replicas = np.array([max(math.ceil(1.3 * run.max()), 1) for run in demands.values()], dtype=float)
    cold_start_s = np.where(np.array(list(demands)) == "surges", 240.0, 60.0)
    rules = live(np.stack(list(demands.values())).T, replicas=replicas, cold_start_s=cold_start_s, ceiling=1000.0)
    return {name: rules.take(np.array([row])) for row, name in enumerate(demands)}


SIZES = (1.0, 10.0, 100.0)


@pytest.mark.slow
def test_who_has_seen_waves_for_a_day_pays_no_more_than_what_keeps_the_budget(lived):
    rules = lived["waves"]
    in_force = int(rules.rule[0])
    keeps = rules.paper.missed[:, 0] < 0.8 * rules.allowed[0] * rules.paper.arrived[0]
    assert keeps.any()
    assert rules.paper.cost[in_force, 0] <= (1 + R.WORTH) * rules.paper.cost[keeps, 0].min()
    assert rules.paper.cost[in_force, 0] < 0.8 * rules.paper.cost[:, 0].max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steady", "waves", "bursts", "surges", "size 1", "size 10", "size 100"])
def test_no_other_rule_would_have_cost_less_and_missed_less(lived, name):
    """All but what every rule is believed to miss before much was seen, which is little after a day."""
    rules = lived[name]
    in_force, cost, missed = int(rules.rule[0]), rules.paper.cost[:, 0], rules.paper.missed[:, 0]
    better = (cost < 0.98 * cost[in_force]) & (missed <= 0.8 * missed[in_force])
    assert not better.any(), [strategies.describe(int(rule)) for rule in np.flatnonzero(better)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steady", "waves", "bursts", "size 1", "size 10", "size 100"])
def test_the_rule_in_force_stays_within_the_budget_on_paper_where_that_is_to_be_had(lived, name):
    rules = lived[name]
    share = rules.paper.missed[int(rules.rule[0]), 0] / rules.paper.arrived[0]
    assert share <= 1.1 * rules.allowed[0]


def test_steady_demand_is_carried_with_little_on_top(lived):
    assert math.ceil(3 / strategies.MOST_BUSY) <= lived["steady"].replicas[0] <= 6


def test_large_fleets_are_carried_with_less_on_top_than_small_ones(lived):
    """Demand that scatters with the root of its size, as that of independent requests does."""
    on_top = [lived[f"size {size:g}"].replicas[0] / size for size in SIZES]
    assert on_top[0] > on_top[1] > on_top[2]
    assert 1 < on_top[2] < 1.5


def test_demand_that_doubles_now_and_then_asks_for_more_than_steady_demand(lived):
    assert lived["bursts"].traffic.demand[0] == pytest.approx(3.0, rel=0.02)
    assert lived["bursts"].replicas[0] > lived["steady"].replicas[0]


def test_what_no_rule_could_avoid_is_no_reason_for_the_dearest(lived):
    """Once an hour demand rises to far more than the largest constant count, for as long as a cold start."""
    rules = lived["surges"]
    assert rules.paper.missed[:, 0].min() > rules.allowed[0] * rules.paper.arrived[0]
    assert rules.paper.cost[int(rules.rule[0]), 0] < 0.7 * rules.paper.cost[:, 0].max()


def test_a_rule_is_left_for_one_that_is_cheaper_however_large_the_fines_of_all_are(lived):
    """After a surge that nobody met, any two of them are equal but for a hundredth."""
    rules = lived["waves"]
    missed = np.full_like(rules.paper.missed, 10 * rules.paper.arrived[0])
    fines = R.MISS_PRICE * WORK_S * missed.min()
    cost = rules.paper.cost[:, 0]
    dear = int(cost.argmax())
    assert 0.01 * fines > cost[dear]
    after = judged(
        rules.with_columns({"paper.missed": missed, "rule": np.array([float(dear)])}), seen(4.0, replicas=10)
    )
    assert after.paper.cost[int(after.rule[0]), 0] < 0.9 * cost[dear]


@pytest.mark.parametrize(("waiting", "kept"), [(0.0, False), (3.0, False), (12.0, True)])
def test_while_requests_wait_for_too_long_nothing_is_given_up(lived, waiting, kept):
    """Another rule has become the cheapest. Ten replicas work at three requests for 0.6 s, at twelve for 2.4 s."""
    rules = lived["waves"]
    cheapest = np.float32(rules.paper.asked.min(axis=1) == rules.paper.asked.min())[:, None]
    cheap = rules.with_columns({"paper.cost": (1 - cheapest) * np.float32(1e12), "replicas": np.full(1, 10.0)})
    after = judged(cheap, seen(4.0, replicas=10, waiting=waiting))
    assert (after.replicas[0] == 10) == kept
    assert judged(cheap, seen(4.0, replicas=10, waiting=waiting, ceiling=7.0)).replicas[0] <= 7


@pytest.mark.parametrize(("dearer", "stays"), [(1.005, True), (1.02, False)])
def test_of_two_rules_that_cost_nearly_the_same_the_one_in_force_stays(lived, dearer, stays):
    rules = lived["waves"]
    cost, missed = np.full_like(rules.paper.cost, 2 * rules.paper.cost.max()), np.zeros_like(rules.paper.missed)
    cost[[3, 7], 0] = dearer * 1e6, 1e6
    loaded, queued = np.zeros_like(rules.paper.loaded), np.zeros_like(rules.paper.queued)
    paper = replace(rules.paper, cost=cost, missed=missed, loaded=loaded, queued=queued)
    either = replace(rules, paper=paper, rule=np.full(1, 3.0))
    assert (judged(either, seen(4.0, replicas=10)).rule[0] == 3) == stays


def test_a_rule_that_is_believed_to_miss_less_than_it_may_has_no_more_left_for_what_really_comes(lived):
    """Two with large margins, of which the cheaper one missed on paper a few more than it may."""
    rules = lived["waves"]
    doubted = strategies.doubted(rules.levels.level[-1]).ravel()
    cheap, dear = np.flatnonzero(doubted < 0.1 * rules.allowed[0])[:2]
    spared = error_budget.served_per_s(rules.budget)[0] * R.DOUBT_S * (rules.allowed[0] - doubted[cheap])
    cost = np.full_like(rules.paper.cost, 1e12)
    cost[[cheap, dear], 0] = 1e4, 1.1e4
    for more, followed in ((0.1 * spared, dear), (-0.1 * spared, cheap)):
        missed = np.zeros_like(rules.paper.missed)
        missed[cheap] = rules.allowed * rules.paper.arrived + more
        either = rules.with_columns({"paper.cost": cost, "paper.missed": missed})
        assert R.follow(either, seen(4.0, replicas=10)).rule[0] == followed


def test_floor_and_ceiling_hold():
    assert live([0.1] * 60, floor=3.0).replicas[0] == 3
    assert live([50.0] * 60, ceiling=7.0).replicas[0] == 7


@pytest.mark.slow
@pytest.mark.parametrize("cold_start_s", [30.0, 60.0, 240.0])
@pytest.mark.parametrize("demand", [(1.0, 1.0), (0.2, 1.8)])
def test_a_fleet_found_larger_than_its_load_needs_is_kept_for_twenty_minutes_or_ten_cold_starts(demand, cold_start_s):
    found, asked = {"replicas": 12, "cold_start_s": cold_start_s}, []
    rules = live(demand, **found)  # its demand is known from here on
    needed = live(demand * 60, replicas=3, cold_start_s=cold_start_s).replicas[0]
    for step in range(round(max(1200.0, 10 * cold_start_s) / EVERY_S)):
        asked.append(rules.replicas[0])
        rules = judged(rules, seen(demand[step % 2], **found))
    assert set(asked) == {12.0}
    assert rules.replicas[0] < 9
    assert needed < 9


def test_one_idle_replica_that_was_found_is_not_made_two():
    assert live([0.1] * 30, replicas=1).replicas[0] == 1


@pytest.mark.parametrize("cold_start_s", [60.0, 120.0])
def test_what_the_load_needs_are_its_peaks_of_three_cold_starts_and_one_root_more(cold_start_s):
    """Whatever the rule in force asks for beyond that is a reserve."""
    shown = {"cold_start_s": cold_start_s, "replicas": 2}
    calm, peak = (seen(demand, **shown) for demand in (2.0, 6.0))
    rules = live([2.0] * 10, **shown)
    for _ in range(10):
        rules = judged(rules, peak)
    assert rules.needed[0] == math.ceil((6 + math.sqrt(6)) / strategies.MOST_BUSY)
    for _ in range(round((3 * cold_start_s + 270) / EVERY_S)):
        rules = judged(rules, calm)
    assert rules.needed[0] == math.ceil((2 + math.sqrt(2)) / strategies.MOST_BUSY) < rules.replicas[0]


def test_a_queue_that_is_late_before_a_rule_ever_spoke_asks_for_no_more_than_rules_do():
    """One replica, and four times what it can serve from the first reading on."""
    rules, spoken = R.Rules.blank(1), []
    for step in range(10):
        rules = live([4.0], rules, 1000.0 + step * EVERY_S, replicas=1, waiting=200.0, ceiling=1000.0)
        if not np.isnan(rules.replicas[0]):
            spoken.append(rules.replicas[0])
            assert rules.replicas[0] <= rules.paper.asked[:, 0].max() < 100
    assert len(spoken) > 5


@pytest.mark.parametrize("before", [12.0, math.nan])
def test_after_silence_a_late_queue_keeps_nothing_that_is_not_known_to_have_been_asked_for(before):
    rules = live([4.0] * 100, replicas=10)
    waits = seen(4.0, replicas=10, waiting=200.0, ceiling=1000.0)
    after = judged(rules.with_columns({"replicas": np.full(1, before)}), waits)
    asked = after.paper.asked[int(after.rule[0]), 0]
    assert after.replicas[0] == (asked if math.isnan(before) else max(before, asked))


# --- what was really missed


@pytest.mark.slow
def test_more_real_misses_than_promised_make_it_strict_and_none_make_it_lax():
    late, fine = live([3.0] * 6 * HOUR, late=0.05), live([3.0] * 6 * HOUR)
    assert late.allowed[0] == pytest.approx(error_budget.STRICTEST * 0.01)
    assert fine.allowed[0] > error_budget.AIMED * 0.01
    assert late.replicas[0] > fine.replicas[0]
    assert late.budget.burnt[0] / late.budget.served[0] == pytest.approx(0.05, rel=0.02)


@pytest.mark.slow
def test_where_nobody_counts_what_was_missed_paper_stands():
    rules = live([3.0] * 6 * HOUR, tally={"ttft_judged": 0.0, "ttft_missed": 0.0})
    assert rules.allowed[0] == pytest.approx(error_budget.AIMED * 0.01)
    assert rules.budget.counted[0] == 0
    assert rules.budget.served[0] > 0


@pytest.mark.slow
def test_what_no_replica_can_change_buys_one_at_most():
    """Two in a hundred miss at any load: nothing is saved to be spent, as it is where none does, and that is all."""
    careful = plain = None
    for hour, replicas in enumerate((5.0, 8.0, 12.0, 20.0)):
        careful, plain = (
            live([3.0] * 3 * HOUR, rules, 1000.0 + 3 * 3600 * hour, replicas=replicas, late=late)
            for rules, late in ((careful, 0.02), (plain, 0.0))
        )
    assert careful.replicas[0] <= plain.replicas[0] + 1


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.1, 0.3, 1.0])
def test_a_tenth_or_more_that_misses_whatever_serves_buys_one_replica_after_an_hour_and_none_after_some(late):
    """Of 24 requests a second, served by as many as are asked for; more than if none missed."""
    asked = {}
    for share in (0.0, late):
        rules, counts = R.Rules.blank(1), [4.0]
        for step, demand in enumerate(2.4 + 0.2 * np.sin(np.arange(5 * HOUR))):
            requests = 10 * demand * EVERY_S
            tally = {"arrived": requests, "began": requests, "ttft_judged": requests, "ttft_missed": share * requests}
            shown = seen(demand, replicas=counts[-1], tally={"queue_grown": 0.0, **tally})
            rules = R.judge(rules, shown, 1000.0 + step * EVERY_S)
            counts.append(float(np.nan_to_num(rules.replicas[0], nan=4.0)))
        asked[share] = counts
    assert max(asked[late]) > max(asked[0.0])  # to no avail, which is what tells
    assert max(asked[late][5 * HOUR // 4 :]) <= max(asked[0.0][5 * HOUR // 4 :]) + 1
    assert max(asked[late][4 * HOUR :]) <= max(asked[0.0][4 * HOUR :])


def test_prompts_that_are_too_long_are_no_reason_for_more_replicas_from_the_first_minutes_on():
    """Two in a hundred miss alone on a replica: as load and misses tell within a day, and their prompts at once."""
    told = {"prefill_judged": 45.0, "prefill_late": 0.9}
    untold, known = (live([8.0] * HOUR, late=0.02, tally=tally) for tally in ({}, told))
    assert known.loads.unavoidable[0] == pytest.approx(0.02, rel=0.01)
    assert untold.loads.unavoidable[0] < 0.01
    assert known.replicas[0] < untold.replicas[0]


# --- values and rows


@pytest.mark.slow
def test_rows_do_not_touch_each_other():
    rules, alone, now_s = R.Rules.blank(2), R.Rules.blank(1), 1000.0
    for step in range(200):
        now_s += EVERY_S
        other = silence() if step % 7 == 0 else seen(1e8, ceiling=1e6, replicas=3, late=1.0)
        rules = R.judge(rules, Seen.stack([seen(3.0 + step % 3), other]), now_s)
        alone = R.judge(alone, seen(3.0 + step % 3), now_s)
    for place, column in alone.columns().items():
        np.testing.assert_array_equal(rules.columns()[place][..., :1], column, err_msg=place)


def test_judging_writes_into_nothing_it_was_given_and_gives_the_same_again():
    rules, shown = live([3.0, 9.0, 2.0] * 20), seen(5.0, late=0.1)
    for column in (*rules.columns().values(), *shown.columns().values()):
        column.flags.writeable = False
    once, again = judged(rules, shown), judged(rules, shown)
    for place, column in once.columns().items():
        np.testing.assert_array_equal(again.columns()[place], column, err_msg=place)


amounts = st.one_of(st.sampled_from([0.0, 1e-320, 1.0, 1e9]), st.floats(0, 1e9))
shares = st.floats(0, 1)


@st.composite
def tallies(draw):
    """Whatever `work.count` may give."""
    gaps, judged = draw(st.one_of(st.just(0.0), st.floats(20, 1e9))), {k: draw(amounts) for k in ("ttft", "itl")}
    return {
        **{name: draw(amounts) for name in ("arrived", "began", "readings")},
        **{name: draw(amounts) * draw(st.sampled_from([-1.0, 1.0])) for name in ("queue_grown", "batch_grown")},
        "covered_s": draw(st.one_of(st.just(0.0), st.floats(SHORTEST_STEP_S, 1e3))),
        "gaps": gaps,
        "gap_s": gaps * draw(st.floats(1e-5, 60.0)),
        "shortest_gap_s": draw(st.one_of(st.just(NAN), st.floats(1e-5, 60.0))),
        "kv_usage": draw(shares),
        **{f"{kind}_judged": count for kind, count in judged.items()},
        **{f"{kind}_missed": count * draw(shares) for kind, count in judged.items()},
    }


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(tallies(), max_size=4))
def test_whatever_was_counted_a_count_within_bounds_comes_of_it_or_none(steps):
    """Warnings are errors in these tests."""
    rules = live([3.0] * 20)
    for tally in steps:
        rules = judged(rules, seen(3.0, tally=tally, floor=2.0, ceiling=50.0))
        assert np.isnan(rules.replicas[0]) or 2 <= rules.replicas[0] <= 50
        for table in (rules.paper, rules.budget, rules.traffic):
            for place, column in table.columns().items():
                assert not np.isinf(column).any(), place
                assert not (column < 0).any(), place
