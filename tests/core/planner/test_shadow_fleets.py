"""What becomes of the fleets on paper."""

import numpy as np
import pytest

from autoscaler.core.planner import miss_curve, strategies
from autoscaler.core.planner.offered_load import request_s
from autoscaler.core.planner.pod_work import LONGEST_STEP_S
from autoscaler.core.planner.select import ROOM_S, Rules, judge
from autoscaler.core.planner.shadow_fleets import SETTLED_S
from autoscaler.core.planner.step_time import prompt_share
from autoscaler.core.planner.strategies import EVERY_S
from tests.core.paper import Paper as PlainPaper
from tests.core.shown import NAN, judged, live, seen, silence

HOUR = int(3600 / EVERY_S)  # steps


@pytest.mark.slow
@pytest.mark.parametrize(("cold_start_s", "slots"), [(30.0, 0.0), (60.0, 0.0), (120.0, 4.0)])
def test_every_fleet_on_paper_is_that_of_the_plain_version(cold_start_s, slots):
    """Found too large; through waves, spikes, two steps of silence, and a rise that leaves queues at the end."""
    random = np.random.default_rng(7)
    steps = 300  # for longer than batches have no room
    waves = 4 + 3 * np.sin(np.arange(steps) / 12) + random.uniform(0, 1, steps) + 8.0 * (random.random(steps) < 0.03)
    promises = {"cold_start_s": cold_start_s, "ttft_objective_s": 1.0, "floor": 2.0, "ceiling": 12.0}
    plain = [PlainPaper(rule, **promises) for rule in range(0, strategies.RULES, 4)]
    rules, now_s, told = Rules.blank(1), 1000.0, {"slots": slots or NAN}
    for step, demand in enumerate([*waves, 9.0, 10.0]):
        now_s += EVERY_S
        replicas = 24.0 if step < 4 else None
        loaded = seen(demand, replicas=replicas, late=0.02, tally=told, **promises)
        shown = silence(**promises) if step in (70, 71) else loaded
        has_room = slots and rules.paper.watched_s[0] >= ROOM_S
        rules = judge(rules, shown, now_s)
        for each in plain:
            # Half of an answer is left in the batch, and answers are about half of the work: `shown.seen`.
            room_s = 0.5 * slots * float(request_s(rules.traffic)[0]) * float(1 - prompt_share(rules.engine.steps)[0])
            each.live(rules, float(shown.tally.arrived[0]), float(shown.replicas[0]), room_s if has_room else 0.0)
    assert max(each.missed for each in plain) > 2 * min(each.missed for each in plain) > 0
    assert max(each.backlog for each in plain) > 0
    for each in plain:
        for name in ("cost", "missed"):
            said = float(getattr(rules.paper, name)[each.rule, 0])
            assert said == pytest.approx(getattr(each, name), rel=1e-4), (strategies.describe(each.rule), name)
        assert rules.paper.asked[each.rule, 0] == each.asked(each.predicted[-1])
        assert rules.paper.backlog[each.rule, 0] == pytest.approx(each.backlog, rel=1e-3, abs=1e-2)


@pytest.mark.slow
def test_replicas_on_paper_come_one_cold_start_after_they_were_asked_for():
    quick, slow = (live([2.0] * 300 + [8.0] * 8, cold_start_s=cold_start_s) for cold_start_s in (30.0, 240.0))
    assert (slow.paper.missed >= 0.999 * quick.paper.missed).all()
    assert (slow.paper.missed > 2 * quick.paper.missed).any()


def test_after_a_hole_no_queue_is_remembered_and_the_hole_costs_nothing():
    rules = live([3.0] * 50 + [60.0] * 3, replicas=6.0)
    assert rules.paper.backlog.max() > 0
    after = judged(rules, seen(3.0), LONGEST_STEP_S + 1)
    assert after.paper.backlog.max() == 0
    np.testing.assert_array_equal(after.paper.cost, rules.paper.cost)
    np.testing.assert_array_equal(after.paper.missed, rules.paper.missed)


@pytest.mark.slow
def test_less_is_late_on_paper_when_a_batch_takes_a_surge_up():
    """Demand exceeds what each fleet serves for half a minute now and then; a replica runs eight requests at once."""
    surges = [2.0] * 250 + ([2.0] * 9 + [3.1]) * 12
    without, within = (live(surges, replicas=4.0, tally={"slots": slots}) for slots in (NAN, 8.0))
    none, some = (rules.paper.queued[strategies.BY_MARGIN :, 0] for rules in (without, within))
    three = int(np.flatnonzero(strategies.COUNTS[:, 0] == 3)[0])
    assert none[three] > 0 == some[three]
    assert (some <= none).all()


@pytest.mark.slow
def test_a_constant_count_costs_as_much_by_day_as_by_night():
    """A busy replica of four, then a tenth of one: 8 asks for 8, 1 for what the level of four minutes needs."""
    rules = live([4.0] * (2 * HOUR) + [0.1] * (3 * HOUR), replicas=4.0)
    asked = dict(
        zip(strategies.COUNTS[:, 0].tolist(), rules.paper.asked[strategies.BY_MARGIN :, 0].tolist(), strict=True)
    )
    assert asked == {count: count for count in asked}
    by_day = live([4.0] * (2 * HOUR), replicas=4.0).paper.asked[strategies.BY_MARGIN :, 0]
    assert by_day.tolist() == np.maximum(strategies.COUNTS[:, 0], 5.0).tolist()


def test_what_the_found_fleet_carried_is_no_miss_of_any_rule_at_first_and_is_one_later():
    """Demand of one replica becomes that of six, and ten were found: first within what is not charged, then beyond."""
    early, late = (live([1.0] * steps + [6.0] * 6, replicas=10, cold_start_s=30.0) for steps in (10, 60))
    assert early.paper.watched_s[0] <= SETTLED_S < late.paper.watched_s[0]
    assert early.paper.queued.max() == early.paper.backlog.max() == 0
    assert early.paper.asked.min() == 10  # whatever the load needs, none gives up what was found
    assert late.paper.queued.max() > 0
    assert late.paper.backlog.max() > 0


def test_what_a_load_makes_miss_is_judged_by_what_is_known_now_also_of_what_is_past():
    """A load at which all was well so far makes half of the requests miss: so it does in the hour before, on paper."""
    before = live([18.75] * HOUR, replicas=25)
    after = live([18.75] * HOUR, before, float(before.last_judged_s[0]), replicas=25, late=0.5)
    place = int(miss_curve.bin_of(np.array([0.75]))[0])
    then, now = (rules.paper.loaded[:, place, 0] for rules in (before, after))
    as_busy = (then > 0) & (now > 1.9 * then)
    assert as_busy.any()
    counts = after.loads.missed, after.loads.seen, after.loads.prefill_late, after.loads.prefill_judged
    late = miss_curve.by_load(*counts)[0][place, 0]
    assert late > 0.1
    assert (after.paper.missed[as_busy, 0] >= 0.99 * late * now[as_busy]).all()


def test_what_is_kept_for_each_rule_stays_small():
    rules = live([3.0] * 100)
    for name in ("asked", "backlog", "cost", "queued", "loaded", "missed"):
        assert getattr(rules.paper, name).dtype == np.float32, name
    assert rules.levels.peaks.dtype == rules.levels.lows.dtype == np.float32
