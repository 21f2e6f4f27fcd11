"""The observation of each workload, from the samples of its pods."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.observe import load
from autoscaler.core.observe.gateways import GATEWAY_REMEMBERED_S, UNSERVED_S
from tests.core.recordings import DATA, clients, columns, replay
from tests.core.world import Story, fleet, observe_first, observe_once, samples, spec

pytestmark = pytest.mark.slow

# --- which pods count


def test_requests_are_summed_over_the_pods_of_each_workload():
    observation, _ = observe_once(
        fleet([2, 0, 1]), running=np.array([3.0, 4.0, 9.0]), waiting=np.array([1.0, 0.0, 5.0])
    )
    np.testing.assert_array_equal(observation.running, [7, np.nan, 9])
    np.testing.assert_array_equal(observation.waiting, [1, np.nan, 5])


def test_silent_pod_is_left_out_and_not_reporting():
    found = observe_first(fleet([3]), time_s=np.array([1000.0, np.nan, 1000.0]), running=8.0, kv_usage=0.5)
    assert (found["ready"], found["reporting"]) == (3, 2)
    assert (found["running"], found["kv_usage"]) == (16, 0.5)


def test_absent_stale_and_zero_readings_differ():
    cluster = fleet([1, 1, 1])
    found, _ = observe_once(cluster, time_s=np.array([np.nan, 930.0, 1000.0]), running=0.0)
    np.testing.assert_array_equal(found.reporting, [0, 0, 1])
    np.testing.assert_array_equal(found.running, [np.nan, np.nan, 0])
    np.testing.assert_array_equal(found.age_s, [np.nan, np.nan, 0])


def test_sleeping_pod_is_not_asleep_when_its_reading_is_stale():
    found = observe_first(fleet([2]), time_s=np.array([1000.0, 900.0]), asleep=np.array([0.0, 1.0]))
    assert (found["reporting"], found["asleep"]) == (1, 0)


def test_pod_does_not_report_when_its_queue_is_unknown():
    assert observe_first(fleet([2]), waiting=np.array([np.nan, 0.0]))["reporting"] == 1


def test_age_is_that_of_the_oldest_trusted_reading():
    assert observe_first(fleet([3]), time_s=np.array([995.0, 960.0, 900.0]))["age_s"] == 40


def test_terminating_pods_do_not_serve():
    cluster = fleet([3], pod_terminating=np.array([False, False, True]))
    found = observe_first(cluster, running=5.0)
    assert (found["ready"], found["terminating"], found["running"]) == (2, 1, 10)


@pytest.mark.parametrize("why", [reason for reason in PendingCause if reason > PendingCause.NODE_COMING])
def test_pods_with_a_pending_cause_are_not_starting(why):
    cluster = fleet([1], [2], pod_pending=np.array([0, 0, why]))
    found = observe_first(cluster)
    assert (found["ready"], found["starting"], found["pending"]) == (1, 1, 1)


def test_ready_pod_is_not_pending_when_it_crashed_before():
    assert observe_first(fleet([1], pod_pending=np.array([PendingCause.CRASH_LOOP])))["pending"] == 0


def test_pod_is_newly_ready_until_its_first_reading():
    ready_s = np.array([500.0, 990.0, 500.0])
    cluster = fleet([3], pod_ready_s=ready_s)
    heard = np.array([1000.0, np.nan, np.nan])
    found = observe_first(cluster, time_s=heard, running=6.0)
    assert (found["ready"], found["reporting"], found["newly_ready"]) == (3, 1, 1)


def test_silent_pod_is_not_newly_ready_when_it_had_a_reading():
    cluster = fleet([1], pod_ready_s=np.array([990.0]))
    _, memory = observe_once(cluster, 1000.0)
    observation, _ = observe_once(cluster, 1005.0, memory, time_s=np.nan)
    assert observation.newly_ready[0] == 0


# --- sleeping engines


def test_load_endpoint_shows_the_queue_of_a_sleeping_engine():
    asleep = columns((DATA / "sleeping-queued.prom").read_text())
    assert (asleep["running"], asleep["waiting"], asleep["asleep"]) == (0, 0, 1)
    found = observe_first(fleet([1]), **asleep, held=6.0)
    assert (found["ready"], found["asleep"], found["waiting"]) == (0, 1, 6)


def test_load_endpoint_is_not_added_to_gauges():
    found = observe_first(fleet([1]), asleep=1.0, running=4.0, waiting=4.0, held=9.0)
    assert (found["running"], found["waiting"]) == (4, 5)


def test_load_endpoint_is_ignored_when_the_engine_is_awake():
    """/load also counts requests that are not in the engine yet, so it may be higher by one or two."""
    found = observe_first(fleet([1]), asleep=0.0, running=4.0, waiting=30.0, held=36.0)
    assert (found["running"], found["waiting"]) == (4, 30)


def test_gauges_count_when_there_is_no_load_endpoint():
    assert observe_first(fleet([1]), asleep=1.0)["waiting"] == 0


def test_sleeping_pod_is_not_starting_when_its_probe_fails():
    """Its readiness probe asks whether the engine sleeps. It is no pod that starts, is pending or is missing."""
    cluster = fleet([1], [1], pod_started_s=np.array([0.0, 0.0]))
    found = observe_first(cluster, asleep=np.array([0.0, 1.0]), running=np.array([3.0, 0.0]))
    counts = {name: found[name] for name in ("ready", "asleep", "starting", "pending", "missing_pods", "reporting")}
    assert counts == {"ready": 1, "asleep": 1, "starting": 0, "pending": 0, "missing_pods": 0, "reporting": 1}
    assert (found["running"], found["starting_replica_s"]) == (3, 0)


def test_sleeping_pods_stay_asleep_when_no_metrics_arrive():
    cluster = fleet([0], [1], pod_started_s=np.array([0.0]))
    _, memory = observe_once(cluster, 1000.0, asleep=1.0)
    silent, memory = observe_once(cluster, 2000.0, memory, time_s=np.nan)
    assert (silent.asleep[0], silent.starting[0]) == (1, 0)
    restarted = replace(cluster, pod_started_s=np.array([np.nan]))
    starting, _ = observe_once(restarted, 2005.0, memory, time_s=np.nan)
    assert starting.asleep[0] == 0


def test_pod_that_crashes_is_not_asleep():
    cluster = fleet([0], [1], pod_pending=np.array([PendingCause.CRASH_LOOP]))
    found = observe_first(cluster, asleep=1.0)
    assert (found["asleep"], found["pending"]) == (0, 1)


def test_pod_that_wakes_is_no_cold_start():
    asleep = fleet([0], [1], pod_started_s=np.array([0.0]), starting_since_s=100.0)
    first, memory = observe_once(asleep, 1000.0, asleep=1.0)
    awake = fleet([1], created_s=100.0, pod_ready_s=np.array([1010.0]))
    second, _ = observe_once(awake, 1015.0, memory)
    assert (second.ready[0], second.cold_start_s[0]) == (1, first.cold_start_s[0])


def test_load_is_known_when_all_replicas_sleep():
    found = observe_first(fleet([0], [2]), asleep=1.0, running=0.0, waiting=0.0)
    assert (found["running"], found["waiting"], found["age_s"]) == (0, 0, 0)


def test_kv_usage_ignores_sleeping_engines():
    found = observe_first(fleet([2]), asleep=np.array([1.0, 0.0]), kv_usage=np.array([0.0, 0.9]))
    assert found["kv_usage"] == 0.9


# --- rates


def test_rates_are_known_from_the_second_tick():
    cluster = fleet([2])
    _, memory = observe_once(cluster, 1000.0, generation_tokens=500.0)
    observation, _ = observe_once(cluster, 1010.0, memory, generation_tokens=np.array([1500.0, 500.0]))
    assert observation.generation_tokens_per_s[0] == pytest.approx(100)


def test_rate_is_nan_without_a_counter_and_0_when_it_stands():
    cluster = fleet([1])
    _, memory = observe_once(cluster, 1000.0, preemptions=np.nan)
    observation, _ = observe_once(cluster, 1010.0, memory, preemptions=np.nan)
    assert np.isnan(observation.preemptions_per_s[0])
    assert observation.finished_per_s[0] == 0


# --- tokens per request, and the wait of a queue


def lengths(load, *, tokens=300.0, every_s=5.0):
    """Tick through (seconds, requests per second), with this many tokens per request; return the last observation."""
    story, made, ended = Story(spec()), 0.0, 0.0
    for duration_s, per_s in load:
        for _ in range(int(duration_s / every_s)):
            ended += per_s * every_s
            made += per_s * every_s * tokens
            decision = story.tick(fleet([1]), every_s, generation_tokens=made, finished=ended, first_tokens=ended)
    return decision.observation


def test_tokens_per_request_are_learned_from_counters():
    assert lengths([(300, 2.0)]).output_tokens[0] == pytest.approx(300)


def test_tokens_per_request_are_nan_before_a_request_ended():
    story = Story(spec())
    story.tick(fleet([1]), generation_tokens=0.0)
    decision = story.tick(fleet([1]), generation_tokens=400.0, first_tokens=1.0, running=1.0)
    assert np.isnan(decision.observation.output_tokens[0])


def test_tokens_per_request_stay_after_an_idle_night():
    """Averaged rates approach zero without reaching it; then their ratio is not used."""
    story, tokens, ended = Story(spec()), 0.0, 0.0
    for _ in range(60):
        tokens, ended = tokens + 3000, ended + 10
        story.tick(fleet([1]), generation_tokens=tokens, finished=ended, first_tokens=ended)
    story.watch(fleet([1]), 4 * 3600, 60, generation_tokens=tokens, finished=ended, first_tokens=ended)
    for _ in range(2):  # forty requests begin, none has ended yet
        tokens += 1000
        decision = story.tick(fleet([1]), generation_tokens=tokens, finished=ended, first_tokens=ended + 40, waiting=20)
    assert 280 < decision.observation.output_tokens[0] < 320
    assert decision.observation.queue_wait_s[0] < 300


def test_queue_wait_is_0_when_empty_and_nan_when_unknown():
    story = Story(spec(2))
    cluster = fleet([1, 1])
    story.tick(cluster, generation_tokens=0.0)
    found = story.tick(cluster, waiting=np.array([0.0, np.nan])).observation
    np.testing.assert_array_equal(found.queue_wait_s, [0, np.nan])


def test_queue_wait_uses_the_rate_since_work_began():
    """27 waiting, 350 tokens/s and 100 tokens per request give 27 x 100 / 350 = 7.7 s, after any idle time."""
    story, cluster = Story(spec(concurrency=np.nan)), fleet([1])
    for step in range(120):  # ten requests of 100 tokens each
        done = 10.0 * step
        story.tick(cluster, 5.0, generation_tokens=100 * done, finished=done, first_tokens=done)
    story.watch(cluster, 300, generation_tokens=100 * done, finished=done, first_tokens=done)
    busy = {"running": 4.0, "waiting": 27.0, "generation_tokens": 100 * done + 1750, "finished": done + 17.5}
    found = story.tick(cluster, 5.0, **busy, first_tokens=done + 17.5).observation
    assert found.queue_wait_s[0] == pytest.approx(7.7, rel=0.02)


def test_queue_wait_is_that_of_the_worst_pod():
    """One pod has 264 waiting requests and generates 267 tokens/s; the rate of the other pod does not help."""
    story, cluster = Story(spec(concurrency=np.nan)), fleet([2])
    each_per_s = np.array([8 / 3, 2 / 3])  # requests of 100 tokens
    for step in range(60):
        done = each_per_s * 5.0 * step
        shown = {"running": np.array([8.0, 2.0]), "waiting": np.array([264.0, 0.0])}
        found = story.tick(cluster, 5.0, **shown, generation_tokens=100 * done, finished=done, first_tokens=done)
    assert found.observation.queue_wait_s[0] == pytest.approx(99, rel=0.01)
    assert found.observation.waiting[0] == 264


def test_few_requests_wait_for_a_step_unless_they_show_twice():
    """Two requests run, one has just come: it is taken in by the next step, and not after half of an answer."""
    story, cluster, done = Story(spec(concurrency=np.nan)), fleet([1]), 0.0

    def read(waiting):
        nonlocal done
        done += 5.0  # requests of 100 tokens, one each second
        shown = {"running": 2.0, "waiting": waiting, "generation_tokens": 100 * done, "finished": done}
        return story.tick(cluster, 5.0, **shown, first_tokens=done).observation

    for _ in range(60):
        read(0.0)
    found = [read(waiting) for waiting in (1.0, 0.0, 8.0, 1.0, 1.0, 0.0, 9.0)]
    np.testing.assert_allclose([each.queue_wait_s[0] for each in found], [0, 0, 0, 1, 1, 0, 9], rtol=0.02)
    assert [each.saturated[0] for each in found] == [0, 0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("reading", "is_queue"),
    [
        ({"running": 2.0, "waiting": 6.0}, False),
        ({"running": 4.0, "waiting": 4.0}, False),
        ({"running": 4.0, "waiting": 6.0}, True),  # it took in two of the eight
        ({"running": 2.0, "waiting": 1.0, "max_running": 2.0}, True),
        ({"running": 2.0, "waiting": 1.0, "kv_usage": 0.95}, True),
    ],
)
def test_few_waiting_requests_are_a_queue_when_engines_are_full(reading, is_queue):
    story, cluster = Story(spec(concurrency=np.nan)), fleet([1])
    for done in np.arange(0.0, 60.0, 5.0):
        story.tick(cluster, 5.0, running=2.0, generation_tokens=100 * done, finished=done, first_tokens=done)
    found = story.tick(cluster, 5.0, generation_tokens=6000.0, finished=60.0, first_tokens=60.0, **reading)
    assert (found.observation.queue_wait_s[0] > 0) == is_queue


def test_a_late_reading_counts_a_queue_once():
    """The daemon ticks more often than engines are read."""
    story, cluster, tokens = Story(spec(concurrency=np.nan)), fleet([1]), np.arange(0.0, 6100.0, 500.0)
    for each in tokens:
        story.tick(cluster, 5.0, generation_tokens=each, finished=each / 100, first_tokens=each / 100, running=2.0)
    read = {"generation_tokens": 6500.0, "finished": 65.0, "first_tokens": 65.0, "running": 2.0, "waiting": 1.0}
    first = story.tick(cluster, 5.0, **read)
    again = story.tick(cluster, 5.0, time_s=story.now_s, **read)
    assert [each.observation.queue_wait_s[0] for each in (first, again)] == [0, 0]


def test_queue_wait_is_nan_when_its_pod_generates_nothing():
    story, cluster = Story(spec(concurrency=np.nan)), fleet([2])
    for step in range(60):
        done = np.array([0.0, 5.0 * step])
        shown = {"running": np.array([8.0, 2.0]), "waiting": np.array([9.0, 0.0])}
        found = story.tick(cluster, 5.0, **shown, generation_tokens=100 * done, finished=done, first_tokens=done)
    assert np.isnan(found.observation.queue_wait_s[0])


def test_queue_wait_is_nan_when_no_pod_serves_the_queue():
    load = lengths([(300, 2.0), (1200, 0.0)])
    assert load.output_tokens[0] == pytest.approx(300)
    story = Story(spec())
    story.watch(fleet([1]), 300, generation_tokens=1e6, finished=5e3)
    assert np.isnan(story.tick(fleet([1]), generation_tokens=1e6, finished=5e3, waiting=9.0).observation.queue_wait_s)


# --- the recorded run


def predicted_waits():
    """queue_wait_s and the TTFT quantile at each second of the recorded run."""
    return {round(t): decision.observation for t, decision in replay("load", spec())}


def test_queue_wait_predicts_the_wait_of_the_last_request():
    """The TTFT histogram shows 5 s when the last request is to wait 35 s."""
    observed = predicted_waits()
    for second in range(30, 76):
        really = max(client.t_s + client.ttft_s - second for client in clients("load") if client.t_s < second - 0.05)
        predicted = observed[second].queue_wait_s[0]
        assert really - 3.5 <= predicted <= really * 1.3 + 3.5, second  # the token rate lags while load grows
        if second >= 45:
            assert predicted == pytest.approx(really, abs=3.5), second
    longest = max(client.ttft_s for client in clients("load"))
    assert longest == pytest.approx(34.9, abs=0.1)
    assert observed[40].queue_wait_s[0] == pytest.approx(longest, rel=0.2)


def test_ttft_quantile_lags_behind_the_queue():
    observed = predicted_waits()
    assert observed[40].ttft_s[0] < 0.25 * observed[40].queue_wait_s[0]
    assert observed[80].waiting[0] == 0
    assert observed[80].queue_wait_s[0] == 0
    assert observed[80].ttft_s[0] > 30


def test_tokens_per_request_match_those_of_recorded_clients():
    observed = predicted_waits()
    truth = [client.tokens for client in clients("load") if client.t_s + client.e2e_s < 100]
    assert observed[100].output_tokens[0] == pytest.approx(sum(truth) / len(truth), rel=0.1)


def test_queues_for_slots_and_for_the_cache_look_different():
    """A queue for slots leaves the cache low; a queue for the cache leaves slots empty."""
    slots = [d.observation for _, d in replay("load", spec()) if d.observation.waiting[0] >= 20]
    assert max(o.kv_usage[0] for o in slots) <= 0.7
    assert {o.running[0] for o in slots} <= {3.0, 4.0}  # 3 for one scrape at a time
    cache = [d.observation for _, d in replay("kv-bound", spec()) if d.observation.waiting[0] >= 15]
    assert np.median([o.kv_usage[0] for o in cache]) > 0.8
    assert max(o.running[0] for o in cache) <= 6  # of 16 slots
    assert max(o.preemptions_per_s[0] for o in cache) > 0.2  # only preemptions show the lost work


def test_arrivals_match_the_recorded_run_without_a_counter():
    """Arrivals equal the ended requests plus the change of those in flight."""
    arrived, in_flight = 0.0, 0.0
    for t, decision in replay("load", spec()):
        found = decision.observation
        change, in_flight = found.running[0] + found.waiting[0] - in_flight, found.running[0] + found.waiting[0]
        arrived += found.ended[0] + change
        really = sum(client.t_s < t for client in clients("load"))
        assert arrived == pytest.approx(really, abs=3), t  # one or two are not in the engine yet
    assert arrived == 60


def test_arrivals_do_not_grow_when_clients_give_up():
    """Requests in flight fall while none ends; arrivals do not grow."""
    story = Story(spec(cold_start_s=60.0))
    story.watch(fleet([1]), 60, running=10.0, waiting=40.0)
    before = story.memory.workloads.observe.arrivals.per_s[0]
    decision = story.tick(fleet([1]), running=10.0, waiting=0.0)
    assert decision.observation.waiting[0] == 0
    assert story.memory.workloads.observe.arrivals.per_s[0] <= before


def test_data_parallel_ranks_arrive_aggregated():
    """Running and waiting are sums over engines, KV-cache usage is the largest."""
    found = observe_first(fleet([1]), **columns((DATA / "dp2-saturated.prom").read_text()))
    assert found["running"] + found["waiting"] == 24
    assert 0 < found["kv_usage"] <= 1


# --- latency


def test_latency_is_weighted_by_the_rate_of_each_pod():
    story, cluster = Story(spec()), fleet([2])
    story.tick(cluster, 5, first_tokens=0.0, generation_tokens=0.0)
    found = story.tick(
        cluster,
        10,
        first_tokens=np.array([90.0, 10.0]),
        generation_tokens=np.array([100.0, 300.0]),
        ttft_s=np.array([1.0, 2.0]),
        itl_s=np.array([0.01, 0.05]),
    ).observation
    assert found.ttft_s[0] == pytest.approx(1.1)
    assert found.itl_s[0] == pytest.approx(0.04)


def test_pod_without_requests_does_not_change_the_latency():
    found = observe_first(fleet([2]), ttft_s=np.array([np.nan, 3.0]))
    assert found["ttft_s"] == pytest.approx(3.0)
    assert math.isnan(observe_first(fleet([2]))["ttft_s"])


# --- in front


def test_gateway_is_nan_when_silent_and_0_when_empty():
    cluster = fleet([0])
    assert observe_first(cluster, gateway_waiting=0.0)["gateway_waiting"] == 0
    assert math.isnan(observe_first(cluster, gateway_waiting=5.0, gateway_time_s=900.0)["gateway_waiting"])
    assert math.isnan(observe_first(cluster)["gateway_waiting"])


# --- rows


def test_hostile_pod_does_not_affect_other_workloads():
    cluster = fleet([2, 1])
    wild = {name: np.array([value, 3.0, 5.0]) for name, value in (("running", 1e300), ("waiting", -9.0))}
    found, memory = observe_once(cluster, generation_tokens=np.array([np.inf, 1.0, 1.0]), **wild)
    np.testing.assert_array_equal(found.reporting, [1, 1])
    np.testing.assert_array_equal(found.running, [3, 5])
    assert np.isfinite(memory.pods.readings.counter[1, 1:]).all()


def test_empty_cluster_has_an_empty_observation():
    observation, memory = observe_once(fleet([]))
    assert len(observation.ready) == 0
    assert len(memory.pods.readings.time_s) == 0


def test_gateway_is_forgotten_when_silent_for_a_day():
    story = Story(spec())
    story.tick(fleet([1]), gateway_waiting=0.0)
    last = story.tick(fleet([1]), GATEWAY_REMEMBERED_S)
    assert last.observation.gateway_silent_s[0] == GATEWAY_REMEMBERED_S
    assert math.isnan(story.tick(fleet([1])).observation.gateway_silent_s[0])


def test_request_that_finds_no_replica_counts_until_one_serves():
    story, none = Story(spec(idle_after_s=10.0)), fleet([0], replicas=[0])
    quiet = {"gateway_arrivals_per_s": 0.0}
    story.tick(none, **quiet)
    assert story.tick(none, gateway_arrivals_per_s=0.5).observation.gateway_arrivals_per_s[0] == 0.5
    decision = story.watch(none, UNSERVED_S - 5, **quiet)
    assert decision.observation.gateway_arrivals_per_s[0] > 0
    assert decision.replicas[0] == 1
    assert story.watch(none, 10, **quiet).replicas[0] == 0

    story.tick(none, gateway_arrivals_per_s=0.5)
    assert story.tick(fleet([1]), **quiet).observation.gateway_arrivals_per_s[0] == 0
    assert story.tick(none, **quiet).replicas[0] == 0


@pytest.mark.parametrize(
    ("reported", "slots"),
    [((1.0, math.nan), 1), ((4.0, 8.0), 8), ((0.5, math.nan), np.inf), ((math.nan, math.nan), np.inf)],
)
def test_the_most_slots_of_a_replica_are_those_of_its_workload(reported: tuple[float, float], slots: float):
    cluster = fleet([2])
    assert load.slots(cluster, samples(cluster, 0.0, max_running=np.array(reported)).pods).tolist() == [slots]
