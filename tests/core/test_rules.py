"""Rules on paper: what each would have cost and missed, and which is followed."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core import error_budget, family, speed
from autoscaler.core import rules as R
from autoscaler.core.family import EVERY_S
from autoscaler.core.work import LONGEST_STEP_S, SHORTEST_STEP_S, Tally
from tests.core.paper import Paper
from tests.core.shown import NAN, WORK_S, judged, live, seen, silence

HOUR = int(3600 / EVERY_S)  # steps


# --- demand


def test_demand_is_arrivals_times_the_work_of_a_request():
    assert live([3.0] * 100).demand[0] == pytest.approx(3.0, rel=0.01)


def test_two_estimates_are_averaged_arrivals_times_work_and_how_busy_replicas_are():
    """Arrivals say 2 replicas, gaps say 3 of 4: 2.5."""
    known, quiet = live([3.0] * 100), {"began": 0.0, "queue_grown": 0.0}
    both = judged(known, seen(3.0, replicas=4, busy=0.75, tally={**quiet, "arrived": 2 * EVERY_S / WORK_S}))
    assert both.demand[0] == pytest.approx(2.5, rel=0.01)


def test_a_queue_that_grows_is_demand_and_a_batch_that_grows_as_far_as_replicas_are_full():
    known = live([3.0] * 100)
    arrived = 3 * EVERY_S / WORK_S
    queue = judged(known, seen(3.0, replicas=4, busy=0.75, tally={"began": 0.0, "queue_grown": 30.0}))
    assert queue.demand[0] == pytest.approx((3 + 3 + 30 * WORK_S / EVERY_S) / 2, rel=0.01)
    batch = {"began": 0.0, "queue_grown": 0.0, "batch_grown": 16.0, "arrived": arrived}
    full = judged(known, seen(3.0, replicas=4, busy=0.75, tally=batch))
    assert full.demand[0] == pytest.approx((3 + 3 + 0.75**2 * 16 * WORK_S / EVERY_S) / 2, rel=0.01)


def test_a_queue_that_is_worked_off_is_no_demand():
    known = live([3.0] * 100)
    drained = {"began": 60.0, "arrived": 15.0, "queue_grown": -45.0}
    after = judged(known, seen(1.0, replicas=4, busy=0.95, tally=drained))
    assert after.demand[0] == pytest.approx(1.0, abs=0.15)


def slots_after(known, busy, running, full, after_s=EVERY_S):
    """Slots known after a step in which the fullest pod ran so many requests, and the fullest with a queue so many."""
    fullest = {"most_running": running, "full_running": full, "slots": NAN}
    return judged(known, seen(3.0, replicas=4, busy=busy, tally=fullest), after_s).slots[0]


@pytest.mark.parametrize(
    ("busy", "full", "slots"), [(0.6, 24.0, 24.0), (0.6, 22.0, 24.0), (0.6, 20.0, NAN), (0.8, 24.0, NAN)]
)
def test_who_has_a_queue_has_full_slots_if_it_computes_little_and_runs_about_as_many_as_any_ever_did(busy, full, slots):
    np.testing.assert_equal(slots_after(live([3.0] * 100), busy, 24.0, full), slots)


@pytest.mark.parametrize(("days", "slots"), [(20.0, 64.0), (36.0, 32.0)])
def test_half_as_many_slots_are_believed_within_weeks(days, slots):
    known = replace(live([3.0] * 100), most_running=np.full(1, 64.0), slots=np.full(1, 64.0))
    assert slots_after(known, 0.6, 32.0, 32.0, after_s=days * 86_400) == slots


def test_with_too_few_gaps_arrivals_alone_speak():
    after = judged(live([3.0] * 100), seen(1.0, tally={"gaps": 5.0, "gap_s": 0.2, "began": 0.0}))
    assert after.demand[0] == pytest.approx(1.0, rel=0.01)


def test_pods_that_were_counted_speak_for_those_that_were_not():
    half = {"covered_s": 2 * EVERY_S, "arrived": 1.5 * EVERY_S / WORK_S, "began": 0.0}
    after = judged(live([3.0] * 100), seen(3.0, replicas=4, busy=0.75, tally=half))
    assert after.demand[0] == pytest.approx(3.0, rel=0.01)
    assert after.served[0] - live([3.0] * 100).served[0] == pytest.approx(45.0, rel=0.1)


def test_demand_follows_answers_that_become_longer():
    longer = live([3.0] * 100)
    for _ in range(60):  # as many requests, each twice the work
        longer = judged(longer, seen(6.0, tally={"arrived": 45.0, "began": 45.0, "ttft_judged": 0.0}))
    assert longer.demand[0] == pytest.approx(6.0, rel=0.05)


# --- who speaks


def test_no_rule_speaks_before_the_speed_is_known():
    rules, now_s = R.Rules.blank(1), 1000.0
    while rules.readings[0] + 1 < speed.FEWEST_READINGS:
        now_s += EVERY_S
        rules = R.judge(rules, seen(0.5, replicas=1), now_s)
        assert np.isnan(rules.demand[0])
        assert np.isnan(rules.replicas[0])
    assert not np.isnan(live([0.5, 0.5], rules, now_s, replicas=1).replicas[0])


def test_without_a_promise_demand_is_known_and_no_rule_speaks():
    rules = live([3.0] * 50, ttft_objective_s=NAN)
    assert rules.demand[0] == pytest.approx(3.0, rel=0.01)
    assert np.isnan(rules.replicas[0])
    assert np.isnan(rules.rule[0])


def test_unknown_demand_keeps_all_that_is_known_and_says_nothing():
    rules = live([3.0] * 200)
    after = judged(rules, silence())
    assert np.isnan(after.replicas[0])
    for name in ("cost", "missed", "level", "asked", "rule", "work_s", "requests", "bin_seen", "burnt", "served"):
        np.testing.assert_array_equal(getattr(after, name), getattr(rules, name), err_msg=name)
    back = judged(after, seen(3.0))
    assert back.replicas[0] == rules.replicas[0]


def test_a_clock_that_stands_or_goes_back_costs_nothing():
    rules = live([3.0] * 100)
    for after_s in (0.0, -500.0):
        after = judged(rules, seen(3.0), after_s)
        np.testing.assert_array_equal(after.cost, rules.cost)
        np.testing.assert_array_equal(after.missed, rules.missed)


# --- on paper


@pytest.mark.parametrize("cold_start_s", [30.0, 60.0, 120.0])
def test_every_fleet_on_paper_is_that_of_the_plain_version(cold_start_s):
    """Found too large; through waves, spikes, two steps of silence, and a rise that leaves queues at the end."""
    random = np.random.default_rng(7)
    waves = 4 + 3 * np.sin(np.arange(160) / 12) + random.uniform(0, 1, 160) + 8.0 * (random.random(160) < 0.03)
    promises = {"cold_start_s": cold_start_s, "ttft_objective_s": 1.0, "floor": 2.0, "ceiling": 12.0}
    papers = [Paper(rule, **promises) for rule in range(0, family.RULES, 5)]
    rules, now_s = R.Rules.blank(1), 1000.0
    for step, demand in enumerate([*waves, 9.0, 10.0]):
        now_s += EVERY_S
        replicas = 24.0 if step < 4 else None
        shown = silence(**promises) if step in (70, 71) else seen(demand, replicas=replicas, late=0.02, **promises)
        rules = R.judge(rules, shown, now_s)
        for paper in papers:
            paper.live(rules, float(shown.tally.arrived[0]), float(shown.replicas[0]))
    assert max(paper.missed for paper in papers) > 2 * min(paper.missed for paper in papers) > 0
    assert max(paper.backlog for paper in papers) > 0
    for paper in papers:
        for name in ("cost", "missed"):
            said = float(getattr(rules, name)[paper.rule, 0])
            assert said == pytest.approx(getattr(paper, name), rel=1e-4), (family.describe(paper.rule), name)
        assert rules.asked[paper.rule, 0] == paper.asked(paper.predicted[-1])
        assert rules.backlog[paper.rule, 0] == pytest.approx(paper.backlog, rel=1e-3, abs=1e-2)


def test_replicas_on_paper_come_one_cold_start_after_they_were_asked_for():
    quick, slow = (live([2.0] * 300 + [8.0] * 8, cold_start_s=cold_start_s) for cold_start_s in (30.0, 240.0))
    assert (slow.missed >= 0.999 * quick.missed).all()
    assert (slow.missed > 2 * quick.missed).any()


def test_after_a_hole_no_queue_is_remembered_and_the_hole_costs_nothing():
    rules = live([3.0] * 50 + [60.0] * 3, replicas=6.0)
    assert rules.backlog.max() > 0
    assert rules.real_backlog[0] > 0
    after = judged(rules, seen(3.0), LONGEST_STEP_S + 1)
    assert after.backlog.max() == after.real_backlog[0] == 0
    np.testing.assert_array_equal(after.cost, rules.cost)
    np.testing.assert_array_equal(after.missed, rules.missed)


def test_what_the_found_fleet_carried_is_no_miss_of_any_rule_at_first_and_is_one_later():
    """Demand of one replica becomes that of six, and ten were found: first within what is not charged, then beyond."""
    early, late = (live([1.0] * steps + [6.0] * 6, replicas=10, cold_start_s=30.0) for steps in (10, 60))
    assert early.watched_s[0] <= R.SETTLED_S < late.watched_s[0]
    assert early.queued.max() == early.backlog.max() == 0
    assert early.asked.min() == 10  # whatever the load needs, none gives up what was found
    assert late.queued.max() > 0
    assert late.backlog.max() > 0


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
        "surges": np.where(steps % HOUR < 8, 30.0, 3.0),
        **{f"size {size:g}": np.maximum(size + math.sqrt(size) * scatter[n], 0.05) for n, size in enumerate(SIZES)},
    }
    replicas = np.array([max(math.ceil(1.3 * run.max()), 1) for run in demands.values()], dtype=float)
    cold_start_s = np.where(np.array(list(demands)) == "surges", 240.0, 60.0)
    rules = live(np.stack(list(demands.values())).T, replicas=replicas, cold_start_s=cold_start_s, ceiling=1000.0)
    return {name: rules.take(np.array([row])) for row, name in enumerate(demands)}


SIZES = (1.0, 10.0, 100.0)


def test_who_has_seen_waves_for_a_day_pays_no_more_than_what_keeps_the_budget(lived):
    rules = lived["waves"]
    in_force = int(rules.rule[0])
    keeps = rules.missed[:, 0] < 0.8 * rules.budget[0] * rules.arrived[0]
    assert keeps.any()
    assert rules.cost[in_force, 0] <= (1 + R.WORTH) * rules.cost[keeps, 0].min()
    assert rules.cost[in_force, 0] < 0.8 * rules.cost[:, 0].max()


@pytest.mark.parametrize("name", ["steady", "waves", "bursts", "surges", "size 1", "size 10", "size 100"])
def test_no_other_rule_would_have_cost_less_and_missed_less(lived, name):
    """All but what every rule is believed to miss before much was seen, which is little after a day."""
    rules = lived[name]
    in_force, cost, missed = int(rules.rule[0]), rules.cost[:, 0], rules.missed[:, 0]
    better = (cost < 0.98 * cost[in_force]) & (missed <= 0.8 * missed[in_force])
    assert not better.any(), [family.describe(int(rule)) for rule in np.flatnonzero(better)]


@pytest.mark.parametrize("name", ["steady", "waves", "bursts", "size 1", "size 10", "size 100"])
def test_the_rule_in_force_stays_within_the_budget_on_paper_where_that_is_to_be_had(lived, name):
    rules = lived[name]
    share = rules.missed[int(rules.rule[0]), 0] / rules.arrived[0]
    assert share * float(R.wrongness(rules, np.array([0.01]))[0]) <= 1.1 * rules.budget[0]


def test_steady_demand_is_carried_with_little_on_top(lived):
    assert math.ceil(3 / family.MOST_BUSY) <= lived["steady"].replicas[0] <= 6


def test_large_fleets_are_carried_with_less_on_top_than_small_ones(lived):
    """Demand that scatters with the root of its size, as that of independent requests does."""
    on_top = [lived[f"size {size:g}"].replicas[0] / size for size in SIZES]
    assert on_top[0] > on_top[1] > on_top[2]
    assert 1 < on_top[2] < 1.5


def test_demand_that_doubles_now_and_then_asks_for_more_than_steady_demand(lived):
    assert lived["bursts"].demand[0] == pytest.approx(3.0, rel=0.02)
    assert lived["bursts"].replicas[0] > lived["steady"].replicas[0]


def test_what_no_rule_could_avoid_is_no_reason_for_the_dearest(lived):
    """Once an hour demand rises tenfold for as long as a cold start: any rule misses that, however much it spends."""
    rules = lived["surges"]
    assert rules.missed[:, 0].min() > rules.budget[0] * rules.arrived[0]
    assert rules.cost[int(rules.rule[0]), 0] < 0.7 * rules.cost[:, 0].max()


def test_a_rule_is_left_for_one_that_is_cheaper_however_large_the_fines_of_all_are(lived):
    """After a surge that nobody met, any two of them are equal but for a hundredth."""
    rules = lived["waves"]
    missed = np.full_like(rules.missed, 4 * rules.arrived[0])
    fines = R.MISS_PRICE * WORK_S * R.wrongness(rules, np.array([0.01])) * missed.min()
    cost = rules.cost[:, 0]
    dear = int(np.flatnonzero(cost > 1.2 * cost[int(rules.rule[0])])[0])
    assert 0.01 * fines[0] > cost[dear]
    after = judged(replace(rules, missed=missed, rule=np.array([float(dear)])), seen(4.0, replicas=10))
    assert after.cost[int(after.rule[0]), 0] < 0.9 * cost[dear]


@pytest.mark.parametrize(("waiting", "kept"), [(0.0, False), (3.0, False), (12.0, True)])
def test_while_requests_wait_for_too_long_nothing_is_given_up(lived, waiting, kept):
    """Another rule has become the cheapest. Ten replicas work at three requests for 0.6 s, at twelve for 2.4 s."""
    rules = lived["waves"]
    cheapest = np.float32(rules.asked.min(axis=1) == rules.asked.min())[:, None]
    cheap = replace(rules, cost=(1 - cheapest) * np.float32(1e12), replicas=np.full(1, 10.0))
    after = judged(cheap, seen(4.0, replicas=10, waiting=waiting))
    assert (after.replicas[0] == 10) == kept
    assert judged(cheap, seen(4.0, replicas=10, waiting=waiting, ceiling=7.0)).replicas[0] <= 7


@pytest.mark.parametrize(("dearer", "stays"), [(1.005, True), (1.02, False)])
def test_of_two_rules_that_cost_nearly_the_same_the_one_in_force_stays(lived, dearer, stays):
    rules = lived["waves"]
    cost, missed = np.full_like(rules.cost, 2 * rules.cost.max()), np.zeros_like(rules.missed)
    cost[[3, 7], 0] = dearer * 1e6, 1e6
    loaded, queued = np.zeros_like(rules.loaded), np.zeros_like(rules.queued)
    either = replace(rules, cost=cost, missed=missed, loaded=loaded, queued=queued, rule=np.full(1, 3.0))
    assert (judged(either, seen(4.0, replicas=10)).rule[0] == 3) == stays


def test_floor_and_ceiling_hold():
    assert live([0.1] * 60, floor=3.0).replicas[0] == 3
    assert live([50.0] * 60, ceiling=7.0).replicas[0] == 7


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
    assert rules.needed[0] == math.ceil((6 + math.sqrt(6)) / family.MOST_BUSY)
    for _ in range(round((3 * cold_start_s + 270) / EVERY_S)):
        rules = judged(rules, calm)
    assert rules.needed[0] == math.ceil((2 + math.sqrt(2)) / family.MOST_BUSY) < rules.replicas[0]


# --- what was really missed


def test_more_real_misses_than_promised_make_it_strict_and_none_make_it_lax():
    late, fine = live([3.0] * 6 * HOUR, late=0.05), live([3.0] * 6 * HOUR)
    assert late.budget[0] == pytest.approx(error_budget.STRICTEST * 0.01)
    assert fine.budget[0] > error_budget.AIMED * 0.01
    assert late.replicas[0] > fine.replicas[0]
    assert late.burnt[0] / late.served[0] == pytest.approx(0.05, rel=0.02)


def test_where_nobody_counts_what_was_missed_paper_stands():
    rules = live([3.0] * 6 * HOUR, tally={"ttft_judged": 0.0, "ttft_missed": 0.0})
    assert rules.budget[0] == pytest.approx(error_budget.AIMED * 0.01)
    assert R.wrongness(rules, np.array([0.01]))[0] == 1
    assert rules.counted[0] == 0
    assert rules.served[0] > 0


def test_no_replicas_are_bought_against_what_none_can_change():
    """Two in a hundred miss at any load: the same rule is followed, for the same money, as if none did."""
    careful = plain = None
    for hour, replicas in enumerate((5.0, 8.0, 12.0, 20.0)):
        careful, plain = (
            live([3.0] * 3 * HOUR, rules, 1000.0 + 3 * 3600 * hour, replicas=replicas, late=late)
            for rules, late in ((careful, 0.02), (plain, 0.0))
        )
    assert careful.replicas[0] <= plain.replicas[0]


def test_prompts_that_are_too_long_are_no_reason_for_more_replicas_from_the_first_minutes_on():
    """Two in a hundred miss alone on a replica: as load and misses tell within a day, and their prompts at once."""
    told = {"prefill_judged": 45.0, "prefill_late": 0.9}
    untold, known = (live([8.0] * HOUR, late=0.02, tally=tally) for tally in ({}, told))
    assert known.unavoidable[0] == pytest.approx(0.02, rel=0.01)
    assert untold.unavoidable[0] < 0.01
    assert known.replicas[0] < untold.replicas[0]


def test_misses_are_learned_at_the_load_they_happened_at_and_not_while_a_queue_stands():
    rules = live([3.0] * 200, replicas=4, late=0.2)
    place = int(R.misses.bin_of(np.array([0.75]))[0])
    assert rules.bin_missed[0, place, 0] / rules.bin_seen[0].sum() == pytest.approx(0.2, rel=0.05)
    queue = judged(rules, seen(3.0, replicas=4, late=1.0, waiting=40.0))
    np.testing.assert_allclose(queue.bin_missed, rules.bin_missed, rtol=0.01)
    assert queue.burnt[0] > rules.burnt[0] + 40
    drained = judged(rules, seen(3.0, replicas=4, late=1.0, tally={"queue_grown": -40.0}))
    np.testing.assert_allclose(drained.bin_missed, rules.bin_missed, rtol=0.01, err_msg="TTFT is told after the wait")
    assert drained.burnt[0] > rules.burnt[0] + 40


@pytest.mark.parametrize(("columns", "learned"), [({"waiting": 0.6}, True), ({"waiting": 1.4}, False)])
def test_a_queue_that_is_worked_off_within_a_breath_is_part_of_the_load(columns, learned):
    """Four replicas work at so many requests for 0.3 and 0.7 s."""
    rules = live([3.0] * 20, replicas=4)
    queue = judged(rules, seen(3.0, replicas=4, late=1.0, **columns))
    assert (queue.bin_missed.sum() > rules.bin_missed.sum() + 40) == learned


@pytest.mark.parametrize(("demand", "learned"), [(4.4, True), (7.6, False)])
def test_far_beyond_what_serves_nothing_is_learned_of_loads(demand, learned):
    rules = live([3.0] * 20, replicas=4)
    beyond = judged(rules, seen(demand, replicas=4, late=1.0, tally={"queue_grown": 0.0}))
    assert (beyond.bin_missed.sum() > rules.bin_missed.sum() + 40) == learned


def test_what_a_load_makes_miss_is_judged_by_what_is_known_now_also_of_what_is_past():
    """A load at which all was well so far makes half of the requests miss: so it does in the hour before, on paper."""
    before = live([18.75] * HOUR, replicas=25)
    after = live([18.75] * HOUR, before, float(before.judged_s[0]), replicas=25, late=0.5)
    place = int(R.misses.bin_of(np.array([0.75]))[0])
    as_busy = (before.loaded[:, place, 0] > 0) & (after.loaded[:, place, 0] > 1.9 * before.loaded[:, place, 0])
    assert as_busy.any()
    came = after.loaded[as_busy, place, 0]
    counts = after.bin_missed, after.bin_seen, after.prefill_late, after.prefill_judged
    late = R.misses.by_load(*counts)[0][place, 0]
    assert late > 0.1
    assert (after.missed[as_busy, 0] >= 0.99 * late * came).all()


# --- values and rows


def both(one, other):
    """Two rows of what was seen."""
    columns = {n: np.concatenate([v, vars(other)[n]]) for n, v in vars(one).items() if n != "tally"}
    return R.Seen(Tally.stack([one.tally, other.tally]), **columns)


def test_rows_do_not_touch_each_other():
    rules, alone, now_s = R.Rules.blank(2), R.Rules.blank(1), 1000.0
    for step in range(200):
        now_s += EVERY_S
        other = silence() if step % 7 == 0 else seen(1e8, ceiling=1e6, replicas=3, late=1.0)
        rules = R.judge(rules, both(seen(3.0 + step % 3), other), now_s)
        alone = R.judge(alone, seen(3.0 + step % 3), now_s)
    for name, column in vars(alone).items():
        np.testing.assert_array_equal(getattr(rules, name)[..., :1], column, err_msg=name)


def test_judging_writes_into_nothing_it_was_given_and_gives_the_same_again():
    rules, shown = live([3.0, 9.0, 2.0] * 20), seen(5.0, late=0.1)
    for table in (rules, shown.tally, shown):
        for field in fields(table):
            if isinstance(column := getattr(table, field.name), np.ndarray):
                column.flags.writeable = False
    once, again = judged(rules, shown), judged(rules, shown)
    for name, column in vars(once).items():
        np.testing.assert_array_equal(getattr(again, name), column, err_msg=name)


def test_what_is_kept_for_each_rule_stays_small():
    rules = live([3.0] * 100)
    for name in ("peaks", "lows", "asked", "backlog", "cost", "missed"):
        assert getattr(rules, name).dtype == np.float32, name


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


@settings(max_examples=100)
@given(st.lists(tallies(), max_size=4))
def test_whatever_was_counted_a_count_within_bounds_comes_of_it_or_none(steps):
    """Warnings are errors in these tests."""
    rules = live([3.0] * 20)
    for tally in steps:
        rules = judged(rules, seen(3.0, tally=tally, floor=2.0, ceiling=50.0))
        assert np.isnan(rules.replicas[0]) or 2 <= rules.replicas[0] <= 50
        for name in ("cost", "missed", "backlog", "burnt", "served", "demand"):
            column = getattr(rules, name)
            assert not np.isinf(column).any(), name
            assert not (column < 0).any(), name
