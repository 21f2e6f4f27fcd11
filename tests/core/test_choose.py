"""Which recommender speaks, and what it recommends."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.choose import PLANNER_DUE_S, ChoiceState, choose, strongest
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.spec import Schedule
from autoscaler.core.model.types import Capacity, Plan, Recommender, Signal
from autoscaler.core.planner.update import make_recommendation
from autoscaler.core.reactive import signals
from tests.core.world import fleet, observed, spec, world

NOW_S = 1000.0
NAN = math.nan
LEARNS = {"concurrency": NAN}
WINDOW = Schedule(*(np.array([[value]]) for value in (900.0, 1100.0, 3.0, NAN)))


def observation(**columns):
    """One workload with two replicas that run 40 requests."""
    busy = {"replicas": 2, "ready": 2, "reporting": 2, "newly_ready": 0, "asleep": 0, "running": 40, "waiting": 0}
    busy |= {"starting": 0, "cold_start_s": 60, "queue_wait_s": 0, **columns}
    return replace(Observation.filled(1), **{name: np.array([float(value)]) for name, value in busy.items()})


def chosen(found=None, *, plans=NAN, base=NAN, rules=None, schedule=None, silent_s=NAN, weighs_itl=False, gaps=1.0):
    """Choose between a planner that plans this many replicas, and signals at 10 requests a replica."""
    found = found or observation()
    inp = world(NOW_S, fleet([2]), rules or spec(**LEARNS), schedule, gaps=gaps)
    capacity = replace(Capacity.filled(1), concurrency=np.array([10.0]))
    plan = replace(Plan.filled(1), replicas=np.array([float(plans)]), base_replicas=np.array([float(base)]))
    both = replace(observed(found, pods=inp.samples.pods), last_tick_s=np.array([NOW_S - 5]))
    choice, _ = choose(
        inp,
        both,
        signals.recommend(inp, both, capacity),
        make_recommendation(inp, found, plan),
        np.array([weighs_itl]),
        ChoiceState(np.array([NOW_S - silent_s])),
    )
    return choice


def recommender(*args, **how):
    return Recommender(int(chosen(*args, **how).recommender[0]))


def test_planner_replaces_the_signals_that_it_weighs():
    choice = chosen(plans=2, schedule=WINDOW)
    assert choice.recommender[0] == Recommender.PLANNER
    assert np.isnan(choice.signals[Signal.CONCURRENCY, 0])
    assert (choice.signals[Signal.PLANNER, 0], choice.signals[Signal.SCHEDULE, 0], choice.replicas[0]) == (2, 3, 3)


def test_all_signals_count_while_requests_wait_for_too_long():
    """The policy allows a wait of one second."""
    short, late = (observation(waiting=200, queue_wait_s=wait_s) for wait_s in (1.0, 1.1))
    assert recommender(short, plans=2) == Recommender.PLANNER
    choice = chosen(late, plans=2)
    assert choice.recommender[0] == Recommender.OVERRULED_BY_QUEUE
    assert (choice.signals[Signal.CONCURRENCY, 0], choice.signals[Signal.PLANNER, 0]) == (24, 2)


def test_signals_count_alone_when_the_planner_is_silent_for_long():
    choice = chosen(silent_s=PLANNER_DUE_S)
    assert (choice.recommender[0], choice.replicas[0]) == (Recommender.REACTIVE, 4)


def test_planner_is_awaited_when_silent_for_a_short_time():
    assert recommender(silent_s=PLANNER_DUE_S - 1) == Recommender.WARMING_UP


@pytest.mark.parametrize("why", ["a queue is long", "the queue is unknown and fills slots", "no gaps are counted"])
def test_planner_is_not_awaited_when_requests_wait_or_gaps_lack(why):
    cases = {
        "a queue is long": {"found": observation(waiting=9, queue_wait_s=2.0)},
        "the queue is unknown and fills slots": {"found": observation(waiting=40, queue_wait_s=NAN)},
        "no gaps are counted": {"gaps": NAN},
    }
    assert recommender(silent_s=5.0, **cases[why]) == Recommender.REACTIVE


def test_stated_capacity_is_used_when_the_policy_states_it():
    choice = chosen(plans=2, rules=spec(concurrency=10.0), silent_s=5.0)
    assert (choice.recommender[0], choice.replicas[0]) == (Recommender.STATED, 4)
    assert np.isnan(choice.signals[Signal.PLANNER, 0])


def test_nothing_is_recommended_without_a_policy():
    rules = spec(**dict.fromkeys(vars(spec()), NAN))
    choice = chosen(observation(waiting=500, ttft_s=9, gateway_waiting=3), plans=2, rules=rules, schedule=WINDOW)
    assert choice.recommender[0] == Recommender.NO_POLICY
    assert np.isnan(choice.signals).all() and not choice.load_known[0]


def test_itl_is_left_out_when_the_planner_counts_who_met_it():
    slow = observation(itl_s=0.15)
    for weighs_itl in (True, False):
        assert math.isnan(chosen(slow, plans=2, weighs_itl=weighs_itl).signals[Signal.ITL, 0]) is weighs_itl


def test_the_planner_counts_idle_replicas_on_top_of_those_awake():
    for asleep, expected in ((0, 3), (3, 6), (1, 3)):
        busy = {"running": 40, "ready": 5 - asleep, "reporting": 5 - asleep}
        assert chosen(observation(**busy, asleep=asleep), plans=3).signals[Signal.PLANNER, 0] == expected


def test_base_replicas_cover_the_present_load_and_other_signals():
    assert chosen(plans=8, base=3).base_replicas[0] == 3
    assert chosen(plans=8, base=2, schedule=WINDOW).base_replicas[0] == 3
    assert chosen(observation(ready=2, asleep=2), plans=8, base=3).base_replicas[0] == 5  # three awake, two asleep
    assert chosen(plans=8, base=NAN, schedule=WINDOW).base_replicas[0] == 3


@pytest.mark.parametrize("why", ["capacity is stated", "the load is not known"])
def test_no_replica_is_headroom_when_the_planner_is_silent(why):
    """Then a stabilization window or missing inputs hold what there is, and neither is headroom."""
    stated = why == "capacity is stated"
    found = observation() if stated else observation(ready=0, reporting=0, starting=2, running=NAN)
    rules = spec(concurrency=20.0) if stated else spec(**LEARNS)
    assert chosen(found, plans=8, base=3, rules=rules).base_replicas[0] == math.inf


def test_both_recommenders_give_replicas_headroom_and_a_reason():
    inp, found = world(NOW_S, fleet([2]), spec(**LEARNS)), observation()
    plan = replace(Plan.filled(1), replicas=np.array([5.0]), base_replicas=np.array([3.0]))
    planned = make_recommendation(inp, found, plan)
    capacity = replace(Capacity.filled(1), concurrency=np.array([10.0]))
    reactive = signals.recommend(inp, observed(found), capacity)
    both = [(each.replicas[0], each.headroom[0], each.reason[0]) for each in (planned, reactive)]
    assert both == [(5, 2, Signal.PLANNER), (4, 0, Signal.CONCURRENCY)]


@given(
    plans=st.sampled_from([NAN, 0.0, 2.0, 9.0]),
    queue_wait_s=st.sampled_from([NAN, 0.0, 5.0, 61.0]),
    silent_s=st.sampled_from([NAN, 5.0, 1000.0]),
    stated=st.sampled_from([NAN, 10.0]),
    running=st.sampled_from([NAN, 0.0, 40.0]),
)
def test_recommender_agrees_with_the_signals_that_count(plans, queue_wait_s, silent_s, stated, running):
    """Later stages read the recommender alone, so it must say which signals are there."""
    found = observation(queue_wait_s=queue_wait_s, running=running)
    choice = chosen(found, plans=plans, base=1, silent_s=silent_s, rules=spec(concurrency=stated))
    speaks = Recommender(int(choice.recommender[0]))
    assert speaks.plans == choice.planned[0] == (not np.isnan(choice.signals[Signal.PLANNER, 0]))
    assert np.isnan(choice.signals[Signal.CONCURRENCY, 0]) == (speaks is Recommender.PLANNER or np.isnan(running))
    assert (choice.base_replicas[0] == math.inf) == (not speaks.plans)
    assert (speaks is Recommender.STATED) == (not np.isnan(stated))


def test_the_strongest_recommendation_counts_and_none_is_unknown():
    table = np.array([[1.0, NAN], [3.0, NAN], [NAN, NAN]])
    np.testing.assert_array_equal(strongest(table), [3, NAN])
