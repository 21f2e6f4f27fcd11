"""The share of requests that miss, by how busy replicas are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.planner import miss_curve as M
from autoscaler.core.planner.miss_curve import BINS, FADE_S, FEWEST_PROMPTS, KINDS, SHAPES, bin_of, either, learn
from tests.core.shown import judged, live
from tests.core.shown import seen as shown

PRIOR = SHAPES.mean(axis=0)
NOTHING = np.zeros((KINDS, BINS, 1))
TTFT, ITL = range(KINDS)


def learned(load, missed, seen, *, kind=TTFT, passed_s=0.0, before=(NOTHING, NOTHING)):
    """Counts after so many requests of one workload, of one kind."""
    new_missed, new = np.zeros((KINDS, 1)), np.zeros((KINDS, 1))
    new_missed[kind], new[kind] = missed, seen
    return learn(*before, np.array([load]), new_missed, new, np.array([passed_s]))


def share_by_load(missed, seen, at_any_load=(0.0, 0.0)):
    """The curve, where so much of each kind misses at any load."""
    return M.curve(missed, seen, np.broadcast_to(np.array(at_any_load)[:, None], seen[:, 0].shape))


def unavoidable(*counts):
    """The share that is unavoidable, of both kinds together."""
    return either(M.unavoidable(*counts))


def place_of(load):
    return int(bin_of(np.array([load]))[0])


def misses_at(load, of):
    """The share that misses at a load, after (load, missed, seen) of both kinds."""
    counts = NOTHING, NOTHING
    for each in of:
        for kind in range(KINDS):
            counts = learned(*each, kind=kind, before=counts)
    return share_by_load(*counts)[place_of(load), 0]


def test_before_anything_was_seen_the_prior_speaks_for_both_kinds():
    np.testing.assert_allclose(share_by_load(NOTHING, NOTHING)[:, 0], either(np.stack([PRIOR, PRIOR])))
    assert PRIOR[place_of(0.1)] < 0.002
    assert PRIOR[place_of(0.3)] < 0.02
    assert PRIOR[-1] > 0.5
    assert (np.diff(PRIOR) > 0).all()


def test_loads_that_were_never_seen_take_nothing_from_those_that_were():
    """What is believed of them is outweighed, also where it is less than what was seen below them."""
    share = misses_at(0.4, of=[(0.2, 2e4, 1e6), (0.4, 1e5, 1e6)])
    assert share == pytest.approx(either(np.array([0.1, 0.1])), rel=0.01)


@pytest.mark.parametrize("kind", range(KINDS))
def test_an_objective_of_which_nobody_tells_is_not_missed(kind):
    share = share_by_load(*learned(0.6, 30.0, 1e6, kind=kind))[:, 0]
    assert share[place_of(0.6)] == pytest.approx(3e-5, rel=0.2)


def test_who_misses_nothing_where_others_begin_to_is_believed_to_miss_less_beyond():
    assert misses_at(0.97, of=[(0.78, 0.0, 2000.0)]) < 0.9 * misses_at(0.97, of=[])
    assert misses_at(0.9, of=[(0.78, 0.0, 2000.0)]) < 0.5 * misses_at(0.9, of=[])
    assert misses_at(0.97, of=[(0.03, 0.0, 1e6)]) == pytest.approx(misses_at(0.97, of=[]))  # where hardly any do


def test_who_misses_early_is_believed_to_miss_more_beyond():
    assert misses_at(0.9, of=[(0.72, 40.0, 2000.0)]) > 1.5 * misses_at(0.9, of=[(0.72, 4.0, 2000.0)])


def test_what_misses_at_any_load_does_not_make_it_miss_more_beyond():
    seen = [(load, 60.0, 3000.0) for load in (0.1, 0.3, 0.5)]
    counts = NOTHING, NOTHING
    for load, missed, of in seen:
        counts = learned(load, missed, of, before=counts)
    steep, flat = (share_by_load(*counts, (share, 0.0))[place_of(0.9), 0] for share in (0.0, 0.02))
    assert 0.02 <= flat < 0.1
    assert steep > 0.2


def test_one_unlucky_moment_tells_little():
    """Three that missed together tell less than one that missed alone."""
    assert misses_at(0.9, of=[(0.3, 3.0, 100.0)]) == pytest.approx(misses_at(0.9, of=[]), rel=0.2)


@pytest.mark.parametrize("kind", range(KINDS))
def test_many_requests_outweigh_it(kind):
    """All bins of the other kind are seen to miss nothing."""
    counts = learned(0.97, 9_000.0, 10_000.0, kind=kind)
    for load in (np.arange(BINS) + 0.5) / BINS:
        counts = learned(load, 0.0, 10_000.0, kind=1 - kind, before=counts)
    assert share_by_load(*counts)[-1, 0] == pytest.approx(0.9, abs=0.01)


def test_demand_beyond_what_serves_falls_into_the_last_bin():
    missed, seen = learned(7.0, 40.0, 50.0)
    assert (missed[TTFT, -1, 0], seen[TTFT, -1, 0]) == (40, 50)
    assert place_of(1e300) == BINS - 1
    assert place_of(0.0) == 0


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_bin_that_contradicts_those_below_it_is_met_by_how_many_were_seen(weight):
    place = place_of(0.82)
    counts = NOTHING, NOTHING
    for kind in range(KINDS):
        counts = learned(0.75, 1e5, 1e6, kind=kind, before=counts)
        counts = learned(0.82, 0.0, weight * 1e6, kind=kind, before=counts)
    share = share_by_load(*counts)[:, 0]
    assert share[place - 1] == share[place] == pytest.approx(either(np.array([0.1, 0.1])) / (1 + weight), rel=0.01)


def test_who_misses_either_is_between_the_more_and_the_sum_of_both():
    assert either(np.array([[0.1], [0.04]]))[0] == pytest.approx(0.12)
    assert either(np.array([[0.0], [0.3]]))[0] == pytest.approx(0.3)


def test_nobody_misses_more_often_than_always():
    assert either(np.array([[1.0], [1.0]]))[0] == 1
    assert share_by_load(NOTHING, NOTHING).max() <= 1


def test_an_unknown_load_teaches_nothing():
    missed, seen = learned(np.nan, 5.0, 10.0)
    assert missed.sum() == seen.sum() == 0


def test_what_was_seen_fades_within_days():
    before = learned(0.9, 50.0, 100.0)
    missed, seen = learned(np.nan, 0.0, 0.0, passed_s=FADE_S, before=before)
    assert seen.sum() == pytest.approx(100 / np.e)
    assert missed.sum() == pytest.approx(50 / np.e)


def test_each_workload_learns_its_own_and_what_was_given_is_left_as_it_is():
    nothing = np.zeros((KINDS, BINS, 3))
    load = np.array([0.97, np.nan, 0.3])
    counts = learn(nothing, nothing, load, np.full((KINDS, 3), 5.0), np.full((KINDS, 3), 10.0), np.zeros(3))
    assert counts[1].sum(axis=(0, 1)).tolist() == [20, 0, 20]
    assert nothing.sum() == 0
    alone = learn(NOTHING, NOTHING, load[:1], np.full((KINDS, 1), 5.0), np.full((KINDS, 1), 10.0), np.zeros(1))
    np.testing.assert_array_equal(share_by_load(*counts)[:, :1], share_by_load(*alone))


anything_seen = st.lists(
    st.tuples(st.integers(0, KINDS - 1), st.floats(0, 1e9), st.floats(0, 1), st.floats(1, 1e9)), max_size=12
)


def all_learned(lessons):
    counts = (NOTHING, NOTHING)
    for kind, load, share, seen in lessons:
        counts = learned(load, share * seen, seen, kind=kind, passed_s=30.0, before=counts)
    return counts


@given(anything_seen)
def test_the_curve_is_a_share_and_never_falls(lessons):
    found = share_by_load(*all_learned(lessons))[:, 0]
    assert (np.diff(found) >= -1e-12).all()
    assert ((found >= 0) & (found <= 1)).all()


def pooled(missed, seen):
    """The second source: neighbours out of order are merged, one pair at a time, until none are."""
    runs = [(m, n, 1) for m, n in zip(missed, seen, strict=True)]
    place = 0
    while place < len(runs) - 1:
        (m, n, bins), (more_m, more_n, more) = runs[place : place + 2]
        if m * more_n > more_m * n:
            runs[place : place + 2] = [(m + more_m, n + more_n, bins + more)]
            place = max(place - 1, 0)
        else:
            place += 1
    return np.concatenate([[m / n] * bins for m, n, bins in runs])


@given(anything_seen)
def test_bins_out_of_order_are_pooled_with_the_weight_of_what_was_seen(lessons):
    missed, seen = all_learned(lessons)
    prior = M.believed(missed, seen, np.zeros((KINDS, 1)))
    total, weight = (missed + M.PRIOR_REQUESTS * prior)[:, :, 0], (seen + M.PRIOR_REQUESTS)[:, :, 0]
    told = seen[:, :, 0].any(axis=1) if seen.any() else np.ones(KINDS)
    expected = either(np.stack([pooled(*of) for of in zip(total, weight, strict=True)]) * told[:, None])
    np.testing.assert_allclose(share_by_load(missed, seen)[:, 0], expected, rtol=1e-6, atol=1e-9)


UNTOLD = np.zeros(1), np.zeros(1)
LOADS = (np.arange(BINS) + 0.5) / BINS


def at_each_load(share, requests=1e5):
    """Counts of requests of which so many missed ITL at each load."""
    seen = np.full((KINDS, BINS, 1), requests)
    missed = np.zeros_like(seen)
    missed[1, :, 0] = np.asarray(share) * requests
    return missed, seen


def test_what_misses_at_every_low_load_is_unavoidable_and_what_grows_with_the_load_is_not():
    assert unavoidable(*at_each_load(0.02), *UNTOLD)[0] == pytest.approx(0.02, rel=0.02)
    assert unavoidable(*at_each_load(0.1 * LOADS), *UNTOLD)[0] == pytest.approx(0.0, abs=1e-3)
    assert unavoidable(*at_each_load(0.02 + 0.1 * LOADS), *UNTOLD)[0] == pytest.approx(0.02, rel=0.1)


def test_few_requests_do_not_tell_what_is_unavoidable():
    assert unavoidable(*at_each_load(0.02, requests=5.0), *UNTOLD)[0] < 0.002
    assert unavoidable(NOTHING, NOTHING, *UNTOLD)[0] == 0


def test_one_load_alone_does_not_tell_either():
    missed, seen = at_each_load(0.02)
    one = np.zeros_like(seen)
    one[:, 4] = 1.0
    assert unavoidable(missed * one, seen * one, *UNTOLD)[0] == pytest.approx(0.0, abs=1e-9)


def test_a_burst_within_a_calm_reading_is_not_what_misses_at_any_load():
    """Of 170,000 at loads of 0.1 to 0.3 none missed; then the seconds of a burst made one in twenty miss, at 0.22."""
    missed, seen = np.zeros((2, KINDS, BINS, 1))
    seen[TTFT, :6, 0] = [30_000, 40_000, 20_000, 70_000, 30_000, 50_000]
    missed[TTFT, 3] = 3500
    assert unavoidable(missed, seen, *UNTOLD)[0] < 0.001


def seen_at(requests, share):
    """Counts of TTFT after so many requests at each load, {load: requests}, of which a share missed, one or by load."""
    counts = NOTHING, NOTHING
    for load, of in requests.items():
        counts = learned(load, (share(load) if callable(share) else share) * of, of, before=counts)
    return counts


FIRST_HOUR = {2.5 / BINS: 700.0, 3.5 / BINS: 20_000.0, 4.5 / BINS: 30_000.0, 5.5 / BINS: 30_000.0}
"""Of 25 requests a second on seven to eleven replicas, that keep two and a half busy."""


@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_of_many_that_miss_at_every_low_load_an_hour_tells_nearly_all(share):
    """What is left of it would be laid to the load, beyond any budget, and replicas bought against it."""
    assert unavoidable(*seen_at(FIRST_HOUR, share), *UNTOLD)[0] == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize("share", [lambda load: 0.9 * load, lambda load: load**2 / (1 - load)])
def test_as_many_misses_that_grow_with_the_load_are_its_own(share):
    assert unavoidable(*seen_at(FIRST_HOUR, share), *UNTOLD)[0] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("load", [0.28, 0.47])
def test_a_surge_in_which_all_miss_is_not_what_misses_at_any_load(load):
    """Nor with some before it that missed, as an engine compiles, nor beside a lower load at which none did."""
    surge = {load: 4500.0, 0.6: 5000.0, 0.97: 15_000.0}
    assert unavoidable(*seen_at(surge, 1.0), *UNTOLD)[0] == pytest.approx(0.0, abs=1e-9)
    assert unavoidable(*seen_at({0.22: 60.0} | surge, 1.0), *UNTOLD)[0] < 0.02
    assert unavoidable(*seen_at({0.22: 2000.0} | surge, lambda at: float(at > 0.25)), *UNTOLD)[0] < 0.01


@pytest.mark.parametrize(("minutes", "share"), [(1, 0.3), (5, 0.1), (10, 0.03)])
def test_the_fewer_miss_the_longer_it_takes_to_tell_that_the_load_is_no_reason(minutes, share):
    few = {load: requests * minutes / 60 for load, requests in FIRST_HOUR.items()}
    assert unavoidable(*seen_at(few, share), *UNTOLD)[0] < share / 3


def told(prefill_late, prefill_seen):
    return np.array([prefill_late]), np.array([prefill_seen])


def test_prompts_that_took_too_long_tell_it_at_once_and_only_if_they_are_some():
    assert unavoidable(NOTHING, NOTHING, *told(9.0, 300.0))[0] == pytest.approx(0.03)
    assert unavoidable(NOTHING, NOTHING, *told(3.0, FEWEST_PROMPTS - 1))[0] == 0


def test_what_else_misses_at_every_load_is_unavoidable_too():
    """Prompts say 3 %, and 2 % miss ITL whatever the load: half of the fewer are believed to be among the others."""
    assert unavoidable(*at_each_load(0.02), *told(30.0, 1000.0))[0] == pytest.approx(0.04, rel=0.02)


@given(anything_seen, st.floats(0, 1), st.floats(0, 1e6))
def test_what_is_unavoidable_is_a_share(lessons, late, prompts):
    assert 0 <= unavoidable(*all_learned(lessons), *told(late * prompts, prompts))[0] <= 1


# --- what is learned of a load


def test_misses_are_learned_at_the_load_they_happened_at_and_not_while_a_queue_stands():
    rules = live([3.0] * 200, replicas=4, late=0.2)
    place = place_of(0.75)
    assert rules.loads.missed[0, place, 0] / rules.loads.seen[0].sum() == pytest.approx(0.2, rel=0.05)
    queue = judged(rules, shown(3.0, replicas=4, late=1.0, waiting=40.0))
    np.testing.assert_allclose(queue.loads.missed, rules.loads.missed, rtol=0.01)
    assert queue.budget.burnt[0] > rules.budget.burnt[0] + 40
    drained = judged(rules, shown(3.0, replicas=4, late=1.0, tally={"queue_grown": -40.0}))
    np.testing.assert_allclose(
        drained.loads.missed, rules.loads.missed, rtol=0.01, err_msg="TTFT is told after the wait"
    )
    assert drained.budget.burnt[0] > rules.budget.burnt[0] + 40


@pytest.mark.parametrize(("columns", "learned"), [({"waiting": 0.6}, True), ({"waiting": 1.4}, False)])
def test_a_queue_that_is_worked_off_within_a_breath_is_part_of_the_load(columns, learned):
    """Four replicas work at so many requests for 0.3 and 0.7 s."""
    rules = live([3.0] * 20, replicas=4)
    queue = judged(rules, shown(3.0, replicas=4, late=1.0, **columns))
    assert (queue.loads.missed.sum() > rules.loads.missed.sum() + 40) == learned


@pytest.mark.parametrize(("demand", "learned"), [(4.4, True), (7.6, False)])
def test_far_beyond_what_serves_nothing_is_learned_of_loads(demand, learned):
    rules = live([3.0] * 20, replicas=4)
    beyond = judged(rules, shown(demand, replicas=4, late=1.0, tally={"queue_grown": 0.0}))
    assert (beyond.loads.missed.sum() > rules.loads.missed.sum() + 40) == learned
