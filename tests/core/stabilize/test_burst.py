"""Burst or noise: the projected queue against a slow integration, and what is ordered for it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import Capacity
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.stabilize import burst
from autoscaler.core.stabilize.burst import KnownSpeed
from tests.core.world import fleet, spec, world

NAN = math.nan


def observation(**columns):
    """One awake replica that serves 3 requests of 100 tokens a second; a cold start takes a minute."""
    state = {
        "replicas": 1,
        "ready": 1,
        "reporting": 1,
        "asleep": 0,
        "newly_ready": 0,
        "starting": 0,
        "starting_replica_s": 0,
        "running": 10,
    }
    state |= {"waiting": 0, "generation_tokens_per_s": 300, "output_tokens": 100, "cold_start_s": 60, **columns}
    return replace(Observation.filled(1), **{name: np.array([float(value)]) for name, value in state.items()})


def known_speed(best_tokens_per_s=NAN, work_s=NAN, demand=NAN):
    return KnownSpeed(np.array([best_tokens_per_s]), np.array([work_s]), np.array([demand]))


def projected(found, arrivals_per_s=2.0, stated_tokens_per_s=NAN, in_queue=(0, 0), **known):
    """in_queue: the requests that arrived since the queue began, and the seconds since then."""
    counted = {"per_s": arrivals_per_s, "queue_arrived": in_queue[0], "queue_s": in_queue[1]}
    arrivals = replace(Arrivals.blank(1), **{name: np.array([float(value)]) for name, value in counted.items()})
    capacity = replace(Capacity.filled(1), decode_tokens_per_s=np.array([stated_tokens_per_s]))
    return burst.project(found, capacity, arrivals, known_speed(**known))


def is_noise(found, max_wait_s=1.0, **known):
    inp = world(1000.0, fleet([1]), spec(max_wait_s=max_wait_s))
    return bool(burst.is_noise(inp, found, projected(found, **known))[0])


def test_a_queue_is_noise_when_it_drains_within_a_cold_start():
    assert projected(observation(waiting=30)).wait_s[0] == 0
    assert is_noise(observation(waiting=30))


def test_a_queue_is_no_noise_when_it_outlasts_a_cold_start():
    found = observation(waiting=120)
    assert projected(found).queue[0] == pytest.approx(120 - 60)
    assert projected(found).wait_s[0] == pytest.approx(20)
    assert not is_noise(found)


def test_a_queue_is_noise_when_the_policy_tolerates_its_wait():
    assert is_noise(observation(waiting=120), max_wait_s=20.0)
    assert not is_noise(observation(waiting=120), max_wait_s=19.0)


def test_a_short_queue_is_no_noise_when_the_overload_lasts():
    assert not is_noise(observation(waiting=1), arrivals_per_s=4.0)


def test_present_arrivals_above_the_average_count():
    """5 arrive now and 3 are served each second: 120 more wait in 60 s. Fewer than on average do not end a surge."""
    found = observation(waiting=10)
    assert projected(found, 2.0, demand=5 / 3, work_s=1 / 3).queue[0] == pytest.approx(10 + 120)
    assert projected(found, 5.0, demand=2 / 3, work_s=1 / 3).queue[0] == pytest.approx(10 + 120)


@pytest.mark.parametrize(
    ("in_queue", "is_seen"),
    [((57, 15), True), ((19, 5), False), ((0, 0), False), ((30, 15), False)],
    ids=["for 15 s", "too few to be sure", "no queue", "at the average"],
)
def test_arrivals_since_the_queue_began_count_when_they_are_sure(in_queue, is_seen):
    """Few arrived in the last cold start, but 3.8 arrive now and 3 are served each second."""
    found = observation(waiting=15, cold_start_s=240)
    assert is_noise(found, max_wait_s=2.0, in_queue=in_queue) is not is_seen


def test_requests_without_work_make_no_arrivals():
    assert projected(observation(waiting=10), 5.0, demand=0.0, work_s=0.0).arrivals_per_s[0] == 5.0


def test_queue_wakes_replicas_although_no_new_one_would_help():
    """30 wait, which is noise for a cold start of 60 s. In 4 s they are 26 still, so a sleeping one wakes."""
    known = {"waiting": 30, "replicas": 3, "asleep": 2, "queue_wait_s": 10}
    inp, lasting = world(1000.0, fleet([1]), spec(max_wait_s=1.0)), np.array([0.7])
    arrivals = replace(Arrivals.blank(1), per_s=np.array([2.0]))

    def woken(desired=5.0, **columns):
        found = observation(**known, **columns)
        args = inp, found, Capacity.filled(1), arrivals, known_speed()
        return burst.wake(*args, np.array([desired]), lasting)[0]

    assert is_noise(observation(**known))
    assert math.isnan(woken(wakeable=0, wake_s=4))
    assert woken(wakeable=2, wake_s=4) == pytest.approx((2 + 26 / 4) / 3)
    assert woken(wakeable=2, wake_s=1) == 3  # no more than there are
    assert woken(wakeable=2, wake_s=30) == 1  # gone by then


def test_loading_replicas_count_for_the_time_they_will_serve():
    """150 wait; a replica ordered 50 s ago serves for 50 of the next 60 s: 150 - 60 - 150 < 0."""
    assert not is_noise(observation(waiting=150))
    assert is_noise(observation(waiting=150, starting=1, starting_replica_s=50))
    assert not is_noise(observation(waiting=150, starting=1, starting_replica_s=5))  # ordered only just


def test_replicas_serve_a_queue_before_their_first_reading():
    """150 wait; two replicas that have just become ready serve as many as the first: 150 + 120 - 3 x 180 < 0."""
    assert is_noise(observation(waiting=150, ready=3, newly_ready=2))


def test_a_queue_counts_when_it_waits_at_the_gateway_alone():
    assert not is_noise(observation(waiting=0, gateway_waiting=120))
    assert is_noise(observation(waiting=0, gateway_waiting=30))


def test_the_worst_pods_own_queue_is_no_noise_when_it_lasts():
    """All pods together are done with 30 in a moment, but 99 s of work wait in one of them: 39 s are left then."""
    found = observation(waiting=30, queue_wait_s=99)
    assert projected(found).wait_s[0] == pytest.approx(39)
    assert not is_noise(found, max_wait_s=30.0)
    assert is_noise(found, max_wait_s=40.0)


def test_service_is_counted_at_the_rate_since_work_began():
    """27 tokens/s on average over a quiet minute, and 300 since there is work."""
    assert not is_noise(observation(waiting=120, generation_tokens_per_s=27))
    assert is_noise(observation(waiting=30, generation_tokens_per_s=27, pod_tokens_per_s=300))


def test_no_queue_is_not_called_a_noisy_one():
    assert not is_noise(observation(waiting=0))


@pytest.mark.parametrize(
    "unknown",
    [
        {"generation_tokens_per_s": 0},
        {"generation_tokens_per_s": 1e-12},
        {"generation_tokens_per_s": NAN},
        {"output_tokens": NAN},
        {"reporting": 0},
        {"cold_start_s": NAN},
        {"waiting": 0, "gateway_waiting": 5, "reporting": 0, "ready": 0, "generation_tokens_per_s": NAN},
    ],
)
def test_nothing_is_absorbed_when_the_service_rate_is_unknown(unknown):
    found = observation(**{"waiting": 5, **unknown})
    assert not is_noise(found)
    needed = burst.replicas_to_drain(world(1000.0, fleet([1]), spec()), found, projected(found))
    desired = burst.absorb(np.array([9.0]), np.array([1.0]), needed, found, np.array([False]))
    assert desired[0] == 9


def test_unknown_arrivals_are_no_reason_to_wait():
    assert not is_noise(observation(waiting=30), arrivals_per_s=NAN)


def test_arrivals_below_zero_are_none():
    """The average is of samples that may be below zero; it must not drain the queue."""
    assert projected(observation(waiting=300), arrivals_per_s=-2.0).queue[0] == pytest.approx(300 - 180)


def test_projection_uses_the_stated_or_learned_rate_when_faster():
    """At the start of a burst the token rate is still that of the quiet before it."""
    quiet = observation(waiting=60, generation_tokens_per_s=50)
    assert not is_noise(quiet, arrivals_per_s=0.5)
    assert is_noise(quiet, arrivals_per_s=0.5, best_tokens_per_s=300.0)
    assert is_noise(quiet, arrivals_per_s=0.5, stated_tokens_per_s=300.0)


def test_projection_uses_the_work_of_a_request_when_known():
    """A replica that seldom had more than one request shows a low rate of tokens. With 0.25 s of work it serves 4/s."""
    found = observation(waiting=150, generation_tokens_per_s=50)
    assert projected(found, work_s=0.25).queue[0] == pytest.approx(150 + (2 - 4) * 60)
    assert projected(found, work_s=0.25, best_tokens_per_s=1000.0).queue[0] == pytest.approx(30)


def test_first_replica_clears_what_waits_at_the_gateway():
    """31 wait and no replica serves yet. The one that loads serves 4 a second for the last 50 of the next 60 s."""
    at_zero = {"ready": 0, "reporting": 0, "running": NAN, "waiting": 0, "generation_tokens_per_s": NAN}
    found = observation(**at_zero, gateway_waiting=31, starting=1, starting_replica_s=50)
    assert is_noise(found, arrivals_per_s=0.1, work_s=0.25)
    assert not is_noise(found, arrivals_per_s=0.1)  # not known how fast it will be
    assert not is_noise(found, arrivals_per_s=8.0, work_s=0.25)


@pytest.mark.parametrize(
    ("left", "drained_per_s"),
    [(90.0, 3.0), (180.0, 4.0), (600.0, 10.0)],
    ids=["half a start", "as arrivals", "a start"],
)
def test_ordered_replicas_drain_a_queue_within_half_a_cold_start(left, drained_per_s):
    """It drains no faster than requests arrive, 4 each second, and within a cold start of 60 s at the latest."""
    inp = world(1000.0, fleet([1]), spec(target_usage=0.8))
    projection = burst.Projection(*(np.array([value]) for value in (left, 75.0, 4.0, 4.0, 1.6)))
    needed = burst.replicas_to_drain(inp, observation(), projection)[0]
    assert needed == pytest.approx(4 / 1.28 + drained_per_s / 1.6)


def test_arrivals_of_some_readings_are_served_but_not_drained():
    """The fluid queue of a step at its first reading orders twice what the step needs."""
    inp = world(1000.0, fleet([1]), spec(target_usage=0.8))
    projection = burst.Projection(*(np.array([value]) for value in (0.0, 75.0, 1.0, 8.0, 1.6)))
    assert burst.replicas_to_drain(inp, observation(), projection)[0] == pytest.approx(8 / 1.28)


def test_a_patient_tier_takes_longer_to_be_rid_of_a_queue():
    inp = world(1000.0, fleet([1]), spec(max_wait_s=600.0))
    projection = burst.Projection(*(np.array([value]) for value in (1200.0, 750.0, 1.6, 1.6, 1.6)))
    assert burst.replicas_to_drain(inp, observation(), projection)[0] == pytest.approx((1.6 + 2) / 1.6)


def absorbed(desired, *, lasting=1.0, needed=NAN, quiet=False, **columns):
    found = observation(**{"waiting": 50, **columns})
    columns = (np.array([float(value)]) for value in (desired, lasting, needed))
    return burst.absorb(*columns, found, np.array([quiet]))[0]


def test_noise_wants_no_more_than_there_is_or_than_lasts():
    assert absorbed(9, quiet=True) == 1
    assert absorbed(9, quiet=True, replicas=3) == 3  # two are loading already
    assert absorbed(9, quiet=True, lasting=2.4) == 2.4


def test_a_real_queue_wants_what_will_be_left_of_it():
    assert absorbed(9, needed=4.5) == 4.5
    assert absorbed(3, needed=4.5) == 3
    assert absorbed(9, needed=0.5) == 1  # never fewer than stand
    assert absorbed(9, needed=2.0, lasting=5.0) == 5


def test_without_a_queue_nothing_is_absorbed():
    assert absorbed(9, waiting=0, needed=2.0) == 9


def test_less_than_there_is_stays_less():
    assert absorbed(0.4, quiet=True, replicas=3) == 0.4


def slow_queue(queue, arrivals_per_s, ready, ages_s, served_each_per_s, cold_start_s, step_s=0.05):
    """Live through one cold start in small steps; the queue may go below zero, as in the closed form."""
    time_s = 0.0
    while time_s < cold_start_s - 1e-9:
        serving = ready + sum(age + time_s >= cold_start_s for age in ages_s)
        queue += (arrivals_per_s - serving * served_each_per_s) * step_s
        time_s += step_s
    return max(queue, 0.0)


@given(
    st.integers(1, 500),
    st.floats(0, 20),
    st.integers(1, 5),
    st.lists(st.floats(0, 54), max_size=4),
    st.floats(0.1, 4),
)
def test_projection_equals_the_queue_of_a_simulation(waiting, arrivals_per_s, ready, ages_s, each):
    found = observation(
        waiting=waiting,
        ready=ready,
        reporting=ready,
        starting=len(ages_s),
        starting_replica_s=sum(ages_s),
        generation_tokens_per_s=ready * each * 100,
    )
    slow = slow_queue(waiting, arrivals_per_s, ready, ages_s, each, 60.0)
    step_error = 0.05 * each * (len(ages_s) + 1)
    assert projected(found, arrivals_per_s).queue[0] == pytest.approx(slow, rel=1e-6, abs=step_error + 0.01)
