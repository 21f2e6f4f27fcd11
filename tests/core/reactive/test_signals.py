"""Each signal alone, with the numbers of its docstring; NaN is no opinion."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.observation import Observation
from autoscaler.core.model.spec import Schedule
from autoscaler.core.model.types import Capacity, Signal
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.reactive import signals
from tests.core.recordings import DATA, columns
from tests.core.world import Story, fleet, observed, spec, world

NOW_S = 1000.0
NAN = math.nan


def observation(**columns):
    """One workload with two replicas that report and do nothing."""
    quiet = {"replicas": 2, "ready": 2, "reporting": 2, "newly_ready": 0, "asleep": 0, "running": 0, "waiting": 0}
    quiet |= {"starting": 0, "cold_start_s": 60, **columns}
    return replace(Observation.filled(1), **{name: np.array([float(value)]) for name, value in quiet.items()})


def capacity(**columns):
    known = {"concurrency": 20, **columns}
    return replace(Capacity.filled(1), **{name: np.array([float(value)]) for name, value in known.items()})


def arrived(**columns):
    return replace(Arrivals.blank(1), **{name: np.array([float(value)]) for name, value in columns.items()})


def recommended(signal, found, *, rules=None, each=None, arrivals=None, schedule=None):
    """Return the recommendation of one signal, computed with all others."""
    inp = world(NOW_S, fleet([2]), rules or spec(), schedule)
    return signals.recommend(inp, observed(found, arrivals), each or capacity()).signals[signal, 0]


# --- concurrency


def test_requests_in_flight_over_what_a_replica_should_hold():
    found = observation(running=40, waiting=24)
    assert recommended(Signal.CONCURRENCY, found, rules=spec(target_usage=0.8)) == pytest.approx(4)


def test_requests_at_the_gateway_count_like_those_in_engines():
    found = observation(running=40, waiting=24, gateway_waiting=16)
    assert recommended(Signal.CONCURRENCY, found, rules=spec(target_usage=0.8)) == pytest.approx(5)


def test_no_requests_are_an_opinion_and_no_reports_are_none():
    assert recommended(Signal.CONCURRENCY, observation()) == 0
    assert math.isnan(recommended(Signal.CONCURRENCY, observation(reporting=0, running=NAN, waiting=NAN)))


def test_reporting_pods_speak_for_the_silent_ones():
    found = observation(replicas=4, ready=4, reporting=3, running=60)
    assert recommended(Signal.CONCURRENCY, found) == pytest.approx(80 / 20)


def test_load_is_not_multiplied_when_replicas_just_became_ready():
    """Twenty became forty a moment ago: the load is still that of the twenty that are read."""
    found = observation(replicas=40, ready=40, reporting=20, newly_ready=20, running=400)
    assert recommended(Signal.CONCURRENCY, found) == pytest.approx(20)


def test_sleeping_replicas_count_on_top_when_more_must_serve():
    assert recommended(Signal.CONCURRENCY, observation(ready=1, reporting=1, asleep=1, running=30)) == pytest.approx(
        1.5 + 1
    )
    assert recommended(Signal.CONCURRENCY, observation(ready=1, reporting=1, asleep=1, running=16)) == pytest.approx(
        0.8
    )


# --- token rates


def test_token_rates_over_what_a_replica_computes_and_writes():
    found = observation(prompt_tokens_per_s=9000, generation_tokens_per_s=3000)
    each = capacity(prefill_tokens_per_s=5000, decode_tokens_per_s=1000)
    assert recommended(Signal.PREFILL, found, each=each, rules=spec(target_usage=0.9)) == pytest.approx(2)
    assert recommended(Signal.DECODE, found, each=each, rules=spec(target_usage=0.75)) == pytest.approx(4)


def test_tokens_of_leaving_pods_count_on_top():
    leaving = {"draining_prompt_tokens_per_s": 2250, "draining_generation_tokens_per_s": 750}
    found = observation(prompt_tokens_per_s=9000, generation_tokens_per_s=3000, **leaving)
    each = capacity(prefill_tokens_per_s=5000, decode_tokens_per_s=1000)
    assert recommended(Signal.PREFILL, found, each=each, rules=spec(target_usage=0.9)) == pytest.approx(2.5)
    assert recommended(Signal.DECODE, found, each=each, rules=spec(target_usage=0.75)) == pytest.approx(5)
    running = observation(running=40, waiting=8, draining_requests=16)
    assert recommended(Signal.CONCURRENCY, running, rules=spec(target_usage=0.8)) == pytest.approx(4)


def test_without_a_known_capacity_token_rates_have_no_opinion():
    found = observation(prompt_tokens_per_s=9000, generation_tokens_per_s=3000)
    assert math.isnan(recommended(Signal.PREFILL, found))
    assert math.isnan(recommended(Signal.DECODE, found))


# --- KV cache


def test_kv_cache_grows_in_proportion_when_usage_is_over_target():
    found = observation(ready=3, reporting=3, kv_usage=0.9)
    assert recommended(Signal.KV_CACHE, found, rules=spec(kv_target_usage=0.8)) == pytest.approx(3.375)
    leaving = observation(ready=3, reporting=3, kv_usage=0.9, draining_kv_usage=0.8)
    assert recommended(Signal.KV_CACHE, leaving, rules=spec(kv_target_usage=0.8)) == pytest.approx(4.375)


def test_an_empty_cache_is_no_reason_for_less():
    """A queue for slots leaves KV usage low."""
    found = observation(**{name: columns((DATA / "saturated.prom").read_text())[name] for name in ("kv_usage",)})
    assert found.kv_usage[0] < 0.8
    assert math.isnan(recommended(Signal.KV_CACHE, found))
    assert math.isnan(recommended(Signal.KV_CACHE, observation(kv_usage=NAN)))


# --- latency


def test_a_breach_asks_in_proportion_and_for_at_most_double():
    assert recommended(Signal.TTFT, observation(ttft_s=1.5), rules=spec(ttft_objective_s=1.0)) == pytest.approx(3)
    assert recommended(Signal.TTFT, observation(ttft_s=60.0), rules=spec(ttft_objective_s=1.0)) == pytest.approx(4)
    assert recommended(Signal.ITL, observation(itl_s=0.12), rules=spec(itl_objective_s=0.1)) == pytest.approx(2.4)


@pytest.mark.parametrize("signal", [Signal.TTFT, Signal.ITL])
def test_latency_within_the_objective_has_no_opinion(signal):
    assert math.isnan(recommended(signal, observation(ttft_s=0.2, itl_s=0.02)))


@pytest.mark.parametrize("signal", [Signal.TTFT, Signal.ITL])
def test_latency_has_no_opinion_when_no_requests_arrive(signal):
    assert math.isnan(recommended(signal, observation(ttft_s=NAN, itl_s=NAN)))


@pytest.mark.parametrize("signal", [Signal.TTFT, Signal.ITL])
def test_without_an_objective_latency_has_no_opinion(signal):
    found = observation(ttft_s=60.0, itl_s=60.0)
    assert math.isnan(recommended(signal, found, rules=spec(ttft_objective_s=NAN, itl_objective_s=NAN)))


@pytest.mark.parametrize(
    ("waiting", "queue_ago_s", "speaks"),
    [
        (5, 0, True),  # of the queue that is there
        (0, 5, False),  # of a queue that is gone: the histogram is worst then
        (0, signals.LATENCY_LAG_S, False),
        (0, signals.LATENCY_LAG_S + 1, True),  # there was no queue as far as it reaches back: the engine itself is slow
        (0, NAN, True),
    ],
)
def test_latency_speaks_of_now_or_not_at_all(waiting, queue_ago_s, speaks):
    found = observation(waiting=waiting, ttft_s=2.0, itl_s=1.0)
    arrivals = arrived(last_queued_s=NOW_S - queue_ago_s)
    for signal in (Signal.TTFT, Signal.ITL):
        assert math.isnan(recommended(signal, found, arrivals=arrivals)) is not speaks


def test_latency_is_ignored_for_one_window_after_a_restart():
    story = Story(spec())
    for _ in range(int(signals.LATENCY_LAG_S / 5)):
        decision = story.tick(fleet([2]), 5, ttft_s=30.0)
        assert math.isnan(decision.recommendations[Signal.TTFT, 0])
    assert story.watch(fleet([2]), 15, ttft_s=30.0).recommendations[Signal.TTFT, 0] == pytest.approx(4)


def test_latency_speaks_when_requests_wait_for_a_step_only():
    """Every other reading shows one: prompts take long, and there was no queue as far as the histogram reaches back."""
    story, tokens, speaks = Story(spec()), 0.0, []
    for number in range(60):
        tokens += 1000.0
        queue = {"running": 20.0, "waiting": float(number % 2), "ttft_s": 6.0}
        decision = story.tick(fleet([2]), 5.0, generation_tokens=tokens, finished=tokens / 100, **queue)
        assert decision.observation.queue_wait_s[0] == 0
        speaks.append(not math.isnan(decision.recommendations[Signal.TTFT, 0]))
    lag = int(signals.LATENCY_LAG_S / 5) + 1
    assert (any(speaks[:lag]), all(speaks[lag:])) == (False, True)


# --- rejections

REFUSING = {"arrivals": arrived(last_refused_s=NOW_S)}


def test_refusals_add_replicas_when_the_queue_gauge_is_low():
    """Finding 7: ten are refused for every ten served; the gauge stays at 6 waiting."""
    limited = columns((DATA / "admission-limit.prom").read_text())
    assert (limited["waiting"], limited["rejections"]) == (6, 10)
    found = observation(finished_per_s=10, rejections_per_s=5)
    assert recommended(Signal.REJECTIONS, found, **REFUSING) == pytest.approx(3)


def test_refusals_where_nothing_is_served_ask_for_double():
    assert recommended(Signal.REJECTIONS, observation(finished_per_s=0, rejections_per_s=5), **REFUSING) == 4


def test_refusals_add_one_when_served_requests_are_unknown():
    """Double, whenever the last ones are ready, would be all there are within minutes."""
    assert recommended(Signal.REJECTIONS, observation(finished_per_s=NAN, rejections_per_s=5), **REFUSING) == 3


@pytest.mark.parametrize("rejections_per_s", [0.0, 1e-9, NAN])
def test_no_refusals_are_no_opinion(rejections_per_s):
    found = observation(finished_per_s=1, rejections_per_s=rejections_per_s)
    assert math.isnan(recommended(Signal.REJECTIONS, found, **REFUSING))


@pytest.mark.parametrize("last_refused_s", [NAN, NOW_S - 31])
def test_refusals_have_no_opinion_once_they_are_over(last_refused_s):
    found = observation(finished_per_s=1, rejections_per_s=5)
    assert math.isnan(recommended(Signal.REJECTIONS, found, arrivals=arrived(last_refused_s=last_refused_s)))


class Refusing(Story):
    """Replicas that serve two requests a second each and refuse what comes beyond; a new one takes a minute to load."""

    def __init__(self, rules, replicas):
        super().__init__(rules)
        self.born_s, self.finished, self.refused = [-10_000.0] * replicas, 0.0, 0.0

    def receive(self, per_s, for_s):
        """Let this many requests a second come; returns how many replicas there are at each tick."""
        counts = []
        for _ in range(int(for_s / 5)):
            born_s = np.array(self.born_s)
            ready = self.now_s + 5 - born_s >= 60
            served = min(per_s, 2.0 * ready.sum())
            self.finished, self.refused = self.finished + 5 * served, self.refused + 5 * (per_s - served)
            cluster = fleet([len(born_s)], pod_ready=ready, pod_ready_s=np.where(ready, born_s + 60, NAN))
            first = np.arange(len(born_s)) == 0
            shown = {"finished": self.finished * first, "rejections": self.refused * first}
            desired = int(self.tick(cluster, 5, running=served / ready.sum(), **shown).replicas[0])
            self.born_s = self.born_s[:desired] + [self.now_s] * (desired - len(born_s))
            counts.append(desired)
        return counts


@pytest.mark.slow
def test_a_refused_burst_orders_nothing_once_it_is_over():
    """Half of it was refused: four more are ordered, and these refuse nothing and call for no others."""
    story = Refusing(spec(down_stabilization_s=600.0), 4)
    story.receive(8.0, 120)
    assert max(story.receive(16.0, 60)) == 8
    assert max(story.receive(0.0, 600)) == 8


@pytest.mark.slow
def test_as_many_are_ordered_as_refuse_nobody():
    story = Refusing(spec(down_stabilization_s=600.0), 4)
    story.receive(8.0, 120)
    assert 24 <= max(story.receive(48.0, 600)) <= 30


# --- schedule


def windows(*rows):
    return Schedule(*(np.array([column], dtype=float) for column in zip(*rows, strict=True)))


@pytest.mark.parametrize(
    ("start_s", "until_s", "lead_s", "expected"),
    [
        (900, 1100, NAN, 3),  # open
        (1060, 1100, NAN, 3),  # opens one cold start from now
        (1061, 1100, NAN, NAN),
        (1061, 1100, 90, 3),  # a stated lead
        (1001, 1100, 0, NAN),
        (900, 1000, NAN, NAN),  # just closed
        (NAN, NAN, NAN, NAN),
    ],
)
def test_a_window_recommends_from_its_lead_until_it_closes(start_s, until_s, lead_s, expected):
    ask = recommended(Signal.SCHEDULE, observation(cold_start_s=60), schedule=windows((start_s, until_s, 3, lead_s)))
    np.testing.assert_equal(ask, expected)


def test_of_several_windows_the_largest_counts():
    schedule = windows((900, 1100, 3, NAN), (950, 1050, 5, NAN), (2000, 2100, 9, NAN))
    assert recommended(Signal.SCHEDULE, observation(), schedule=schedule) == 5


# --- wake-up


def asleep(**columns):
    return observation(**{"replicas": 0, "ready": 0, "reporting": 0, "running": NAN, "waiting": NAN, **columns})


@pytest.mark.parametrize("front", [{"gateway_waiting": 1}, {"gateway_arrivals_per_s": 0.003}])
def test_one_request_at_the_gateway_wakes_a_workload(front):
    assert recommended(Signal.WAKE, asleep(**front)) == 1


def test_a_long_queue_wakes_as_many_as_it_needs():
    assert recommended(Signal.WAKE, asleep(gateway_waiting=64), rules=spec(target_usage=0.8)) == pytest.approx(4)


@pytest.mark.parametrize("silence", [{}, {"gateway_waiting": 0}, {"gateway_waiting": 0, "gateway_arrivals_per_s": 0}])
def test_nothing_wakes_when_the_gateway_is_empty(silence):
    assert math.isnan(recommended(Signal.WAKE, asleep(**silence)))


def test_nothing_wakes_when_a_replica_serves():
    assert math.isnan(recommended(Signal.WAKE, observation(gateway_waiting=9)))


def test_wake_up_adds_one_when_a_sleeping_engine_holds_requests():
    found = observation(replicas=1, ready=0, reporting=0, asleep=1, waiting=6)
    assert recommended(Signal.WAKE, found) == 2


def test_wake_up_adds_one_when_requests_wait_before_a_sleeper():
    found = observation(replicas=1, ready=0, reporting=0, asleep=1, gateway_waiting=1)
    assert recommended(Signal.WAKE, found) == 2


def test_one_replica_stands_in_for_a_stuck_one():
    found = observation(ready=1, reporting=1, stuck=1, gateway_waiting=200, stuck_min_replicas=2)
    assert recommended(Signal.WAKE, found) == 2


def test_a_queue_at_the_gateway_needs_one_awake_replica():
    found = asleep(gateway_waiting=64)
    recommendations = signals.recommend(world(NOW_S, fleet([0]), spec()), observed(found), capacity())
    assert recommendations.signals[Signal.WAKE, 0] > 1
    assert signals.beside_queue(found, recommendations.signals)[0] == 1


def test_running_requests_count_without_their_queue():
    found = observation(running=30, waiting=90, prompt_tokens_per_s=1000)
    inp, each = world(NOW_S, fleet([2]), spec(target_usage=0.75)), capacity(prefill_tokens_per_s=2000)
    recommendations = signals.recommend(inp, observed(found), each)
    assert signals.without_queue(inp, found, each, recommendations.signals)[0] == pytest.approx(2)


# --- all together


readings = st.fixed_dictionaries(
    {
        "running": st.integers(0, 300),
        "waiting": st.integers(0, 300),
        "kv_usage": st.floats(0, 1),
        "ttft_s": st.floats(0, 100),
        "rejections_per_s": st.floats(0, 10),
        "finished_per_s": st.floats(0, 10),
        "asleep": st.integers(0, 2),
        "gateway_waiting": st.one_of(st.just(NAN), st.integers(0, 50)),
    }
)


@given(readings, st.integers(0, 50), st.integers(0, 50))
def test_more_running_or_waiting_never_asks_for_fewer(found, running, waiting):
    inp = world(NOW_S, fleet([2]), spec())
    refused = arrived(last_refused_s=NOW_S)
    less = signals.recommend(inp, observed(observation(**found), refused), capacity()).signals
    more = {**found, "running": found["running"] + running, "waiting": found["waiting"] + waiting}
    more = signals.recommend(inp, observed(observation(**more), refused), capacity()).signals
    assert (np.nan_to_num(more) >= np.nan_to_num(less)).all()


@pytest.mark.slow
@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([NAN, 0.0, 0.4]))
def test_the_framebuffer_never_changes_a_recommendation(before, after, tensor_active):
    asks = []
    for usage in (before, after):
        story = Story(spec())
        gpu = {"gpu_time_s": 1000.0, "fb_usage": usage, "tensor_active": tensor_active}
        asks.append(story.watch(fleet([3]), 30, running=7.0, waiting=2.0, ttft_s=3.0, **gpu))
    np.testing.assert_array_equal(asks[0].recommendations, asks[1].recommendations)
    np.testing.assert_array_equal(asks[0].stages, asks[1].stages)
