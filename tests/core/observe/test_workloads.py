"""From readings to the state of each workload, one statement at a time."""

import math

import numpy as np
import pytest

from autoscaler.core.model.fleet import PendingClass
from autoscaler.core.observe.gpu_activity import MAX_GPU_AGE_S
from autoscaler.core.observe.workloads import GATEWAY_REMEMBERED_S
from tests.core.recordings import DATA, clients, columns, replay
from tests.core.world import Story, first, fleet, seen, spec

# --- which pods count


def test_requests_are_summed_over_the_pods_of_each_workload():
    observation, _ = seen(fleet([2, 0, 1]), running=np.array([3.0, 4.0, 9.0]), waiting=np.array([1.0, 0.0, 5.0]))
    np.testing.assert_array_equal(observation.running, [7, np.nan, 9])
    np.testing.assert_array_equal(observation.waiting, [1, np.nan, 5])


def test_a_silent_pod_is_left_out_of_sums_and_means_and_shows_as_a_gap():
    found = first(fleet([3]), time_s=np.array([1000.0, np.nan, 1000.0]), running=8.0, kv_usage=0.5)
    assert (found["ready"], found["reporting"]) == (3, 2)
    assert (found["running"], found["kv_usage"]) == (16, 0.5)


def test_absent_stale_and_zero_are_three_things():
    cluster = fleet([1, 1, 1])
    found, _ = seen(cluster, time_s=np.array([np.nan, 930.0, 1000.0]), running=0.0)
    np.testing.assert_array_equal(found.reporting, [0, 0, 1])
    np.testing.assert_array_equal(found.running, [np.nan, np.nan, 0])
    np.testing.assert_array_equal(found.age_s, [np.nan, np.nan, 0])


def test_a_pod_that_was_last_heard_asleep_is_silent_and_not_asleep():
    found = first(fleet([2]), time_s=np.array([1000.0, 900.0]), asleep=np.array([0.0, 1.0]))
    assert (found["reporting"], found["asleep"]) == (1, 0)


def test_a_pod_whose_queue_is_not_told_does_not_report():
    assert first(fleet([2]), waiting=np.array([np.nan, 0.0]))["reporting"] == 1


def test_the_age_is_that_of_the_oldest_reading_that_counts():
    assert first(fleet([3]), time_s=np.array([995.0, 960.0, 900.0]))["age_s"] == 40


def test_leaving_pods_serve_nothing_and_hold_their_gpus():
    cluster = fleet([3], pod_terminating=np.array([False, False, True]))
    found = first(cluster, running=5.0)
    assert (found["ready"], found["terminating"], found["running"]) == (2, 1, 10)


@pytest.mark.parametrize("why", [reason for reason in PendingClass if reason is not PendingClass.NONE])
def test_pods_that_waiting_does_not_help_are_not_on_their_way(why):
    cluster = fleet([1], [2], pod_pending=np.array([0, 0, why]))
    found = first(cluster)
    assert (found["ready"], found["starting"], found["pending"]) == (1, 1, 1)


def test_a_ready_pod_that_crashed_before_counts_as_ready():
    assert first(fleet([1], pod_pending=np.array([PendingClass.CRASH_LOOP])))["pending"] == 0


def test_a_pod_just_ready_and_never_read_is_joining_and_an_old_silent_one_is_not():
    ready_s = np.array([500.0, 990.0, 500.0])
    cluster = fleet([3], pod_ready_s=ready_s)
    heard = np.array([1000.0, np.nan, np.nan])
    found = first(cluster, time_s=heard, running=6.0)
    assert (found["ready"], found["reporting"], found["newly_ready"]) == (3, 1, 1)


def test_a_pod_that_was_read_before_it_fell_silent_is_not_joining():
    cluster = fleet([1], pod_ready_s=np.array([990.0]))
    _, memory = seen(cluster, 1000.0)
    observation, _ = seen(cluster, 1005.0, memory, time_s=np.nan)
    assert observation.newly_ready[0] == 0


# --- sleeping engines


def test_a_sleeping_engine_hides_its_queue_and_load_tells_it():
    asleep = columns((DATA / "sleeping-queued.prom").read_text())
    assert (asleep["running"], asleep["waiting"], asleep["asleep"]) == (0, 0, 1)
    found = first(fleet([1]), **asleep, held=6.0)
    assert (found["asleep"], found["waiting"]) == (1, 6)


def test_load_is_not_added_to_gauges_that_already_show_it():
    found = first(fleet([1]), asleep=1.0, running=4.0, waiting=4.0, held=9.0)
    assert (found["running"], found["waiting"]) == (4, 5)


def test_load_of_an_awake_engine_counts_nothing_twice():
    """/load counts requests that are not yet in the engine, so it may be one or two more."""
    found = first(fleet([1]), asleep=0.0, running=4.0, waiting=30.0, held=36.0)
    assert (found["running"], found["waiting"]) == (4, 30)


def test_without_load_a_sleeping_engine_shows_what_it_says():
    assert first(fleet([1]), asleep=1.0)["waiting"] == 0


def test_the_empty_cache_of_a_sleeping_engine_does_not_hide_the_full_one_of_its_neighbour():
    found = first(fleet([2]), asleep=np.array([1.0, 0.0]), kv_usage=np.array([0.0, 0.9]))
    assert found["kv_usage"] == 0.9


# --- rates


def test_the_first_tick_knows_no_rates_and_the_second_does():
    cluster = fleet([2])
    _, memory = seen(cluster, 1000.0, generation_tokens=500.0)
    observation, _ = seen(cluster, 1010.0, memory, generation_tokens=np.array([1500.0, 500.0]))
    assert observation.generation_tokens_per_s[0] == pytest.approx(100)


def test_rates_are_unknown_where_the_counter_is_absent_and_zero_where_it_stands():
    cluster = fleet([1])
    _, memory = seen(cluster, 1000.0, preemptions=np.nan)
    observation, _ = seen(cluster, 1010.0, memory, preemptions=np.nan)
    assert np.isnan(observation.preemptions_per_s[0])
    assert observation.finished_per_s[0] == 0


# --- tokens per request, and the wait of a queue


def lengths(load, *, tokens=300.0, every_s=5.0):
    """Tick through (seconds, requests per second), each of so many tokens; return the last observation."""
    story, made, ended = Story(spec()), 0.0, 0.0
    for duration_s, per_s in load:
        for _ in range(int(duration_s / every_s)):
            ended += per_s * every_s
            made += per_s * every_s * tokens
            decision = story.tick(fleet([1]), every_s, generation_tokens=made, finished=ended, first_tokens=ended)
    return decision.observation


def test_tokens_per_request_are_learned_from_what_is_written_and_what_ends():
    assert lengths([(300, 2.0)]).output_tokens[0] == pytest.approx(300)


def test_before_a_request_has_ended_nothing_is_known_of_their_length():
    story = Story(spec())
    story.tick(fleet([1]), generation_tokens=0.0)
    decision = story.tick(fleet([1]), generation_tokens=400.0, first_tokens=1.0, running=1.0)
    assert np.isnan(decision.observation.output_tokens[0])


@pytest.mark.slow
def test_an_idle_night_and_the_first_requests_after_it_leave_the_length_alone():
    """Rates fade towards zero without reaching it: their ratio must not be trusted then."""
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


def test_an_empty_queue_waits_for_nothing_and_an_unknown_one_is_unknown():
    story = Story(spec(2))
    cluster = fleet([1, 1])
    story.tick(cluster, generation_tokens=0.0)
    found = story.tick(cluster, waiting=np.array([0.0, np.nan])).observation
    np.testing.assert_array_equal(found.queue_wait_s, [0, np.nan])


@pytest.mark.slow
def test_the_wait_of_a_queue_rests_on_the_rate_since_work_began():
    """27 waiting, 350 tokens/s and 100 tokens a request: 27 x 100 / 350 = 7.7 s, however long nothing was written."""
    story, cluster = Story(spec(concurrency=np.nan)), fleet([1])
    for step in range(120):  # ten requests of 100 tokens each
        done = 10.0 * step
        story.tick(cluster, 5.0, generation_tokens=100 * done, finished=done, first_tokens=done)
    story.watch(cluster, 300, generation_tokens=100 * done, finished=done, first_tokens=done)
    busy = {"running": 4.0, "waiting": 27.0, "generation_tokens": 100 * done + 1750, "finished": done + 17.5}
    found = story.tick(cluster, 5.0, **busy, first_tokens=done + 17.5).observation
    assert found.queue_wait_s[0] == pytest.approx(7.7, rel=0.02)


def test_the_wait_of_a_queue_is_that_of_the_worst_pod():
    """8 running and 264 waiting beside 2 and none: 264 x 100 tokens / 267 tokens/s, the other's rate is no help."""
    story, cluster = Story(spec(concurrency=np.nan)), fleet([2])
    each_per_s = np.array([8 / 3, 2 / 3])  # requests of 100 tokens
    for step in range(60):
        done = each_per_s * 5.0 * step
        shown = {"running": np.array([8.0, 2.0]), "waiting": np.array([264.0, 0.0])}
        found = story.tick(cluster, 5.0, **shown, generation_tokens=100 * done, finished=done, first_tokens=done)
    assert found.observation.queue_wait_s[0] == pytest.approx(99, rel=0.01)
    assert found.observation.waiting[0] == 264


def test_the_wait_is_unknown_when_the_pod_with_the_queue_writes_nothing():
    story, cluster = Story(spec(concurrency=np.nan)), fleet([2])
    for step in range(60):
        done = np.array([0.0, 5.0 * step])
        shown = {"running": np.array([8.0, 2.0]), "waiting": np.array([9.0, 0.0])}
        found = story.tick(cluster, 5.0, **shown, generation_tokens=100 * done, finished=done, first_tokens=done)
    assert np.isnan(found.observation.queue_wait_s[0])


@pytest.mark.slow
def test_the_wait_of_a_queue_that_nobody_serves_cannot_be_told():
    load = lengths([(300, 2.0), (1200, 0.0)])
    assert load.output_tokens[0] == pytest.approx(300)
    story = Story(spec())
    story.watch(fleet([1]), 300, generation_tokens=1e6, finished=5e3)
    assert np.isnan(story.tick(fleet([1]), generation_tokens=1e6, finished=5e3, waiting=9.0).observation.queue_wait_s)


# --- the recorded run


def predicted_waits():
    """queue_wait_s at each second of the recorded run, and the TTFT quantile beside it."""
    return {round(t): decision.observation for t, decision in replay("load", spec())}


def test_the_wait_of_the_queue_predicts_what_the_last_in_line_then_really_waited():
    """Finding 4: the histogram says 5 s when the last in line is to wait 35."""
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


def test_the_ttft_histogram_lags_and_is_worst_when_the_queue_is_gone():
    observed = predicted_waits()
    assert observed[40].ttft_s[0] < 0.25 * observed[40].queue_wait_s[0]
    assert observed[80].waiting[0] == 0
    assert observed[80].queue_wait_s[0] == 0
    assert observed[80].ttft_s[0] > 30


def test_tokens_per_request_of_the_recorded_run_are_those_its_clients_got():
    observed = predicted_waits()
    truth = [client.tokens for client in clients("load") if client.t_s + client.e2e_s < 100]
    assert observed[100].output_tokens[0] == pytest.approx(sum(truth) / len(truth), rel=0.1)


@pytest.mark.slow
def test_a_queue_for_slots_leaves_the_cache_low_and_one_for_the_cache_leaves_the_slots_empty():
    """Finding 5, both ways round."""
    slots = [d.observation for _, d in replay("load", spec()) if d.observation.waiting[0] >= 20]
    assert max(o.kv_usage[0] for o in slots) <= 0.7
    assert {o.running[0] for o in slots} <= {3.0, 4.0}  # 3 for one scrape at a time
    cache = [d.observation for _, d in replay("kv-bound", spec()) if d.observation.waiting[0] >= 15]
    assert np.median([o.kv_usage[0] for o in cache]) > 0.8
    assert max(o.running[0] for o in cache) <= 6  # of 16 slots
    assert max(o.preemptions_per_s[0] for o in cache) > 0.2  # the only trace of the work lost


def test_arrivals_of_the_recorded_run_are_counted_though_no_counter_tells_them():
    """Finding 8: what ended and the change of what is in flight are what came, to the request."""
    arrived, in_flight = 0.0, 0.0
    for t, decision in replay("load", spec()):
        found = decision.observation
        change, in_flight = found.running[0] + found.waiting[0] - in_flight, found.running[0] + found.waiting[0]
        arrived += found.ended[0] + change
        really = sum(client.t_s < t for client in clients("load"))
        assert arrived == pytest.approx(really, abs=3), t  # one or two are not in the engine yet
    assert arrived == 60


def test_requests_that_clients_give_up_leave_the_queue_and_no_trace_in_the_counters():
    """Finding 6: in flight falls, nothing ends; arrivals must not go up by it."""
    story = Story(spec(cold_start_s=60.0))
    story.watch(fleet([1]), 60, running=10.0, waiting=40.0)
    before = story.memory.workloads.observe.arrivals.per_s[0]
    decision = story.tick(fleet([1]), running=10.0, waiting=0.0)
    assert decision.observation.waiting[0] == 0
    assert story.memory.workloads.observe.arrivals.per_s[0] <= before


def test_data_parallel_ranks_arrive_folded():
    """Finding 9: running and waiting are sums over engines, KV usage is the largest."""
    found = first(fleet([1]), **columns((DATA / "dp2-saturated.prom").read_text()))
    assert found["running"] + found["waiting"] == 24
    assert 0 < found["kv_usage"] <= 1


# --- GPUs


GPU = {"gpu_time_s": 995.0, "fb_usage": 0.9, "tensor_active": 0.0, "sm_active": 0.0, "dram_active": 0.0}


def test_without_gpu_metrics_nobody_is_loaded_active_or_idle():
    found = first(fleet([2]))
    assert all(math.isnan(found[name]) for name in ("gpu_loaded", "gpu_active", "loaded_idle_s"))


def test_the_framebuffer_alone_tells_loaded_and_not_idle():
    found = first(fleet([2]), gpu_time_s=995.0, fb_usage=np.array([0.9, 0.02]))
    assert found["gpu_loaded"] == 1
    assert math.isnan(found["gpu_active"])
    assert math.isnan(found["loaded_idle_s"])


@pytest.mark.parametrize("witness", ["tensor_active", "sm_active", "dram_active"])
def test_any_unit_at_work_is_activity(witness):
    assert first(fleet([2]), **{**GPU, witness: np.array([0.3, 0.0])})["gpu_active"] == 1


def test_an_old_gpu_reading_is_unknown():
    found = first(fleet([1]), **{**GPU, "gpu_time_s": 1000.0 - MAX_GPU_AGE_S - 1})
    assert math.isnan(found["gpu_loaded"])
    assert math.isnan(found["gpu_active"])


def idle_seconds(for_s=60.0, every_s=5.0, **columns):
    story = Story(spec())
    story.tick(fleet([2]), every_s, **{**GPU, "gpu_time_s": story.now_s, **columns})
    for _ in range(int(for_s / every_s)):
        story.tick(fleet([2]), every_s, **{**GPU, "gpu_time_s": story.now_s, **columns})
    return story.memory.workloads.observe.loaded_idle_s[0]


def test_loaded_and_idle_seconds_add_up_over_replicas_and_time():
    assert idle_seconds() == pytest.approx(120)


def test_a_gpu_at_work_or_an_engine_with_requests_is_not_idle():
    assert idle_seconds(tensor_active=np.array([0.2, 0.0])) == pytest.approx(60)
    assert idle_seconds(running=np.array([0.0, 1.0])) == pytest.approx(60)


def test_an_engine_that_does_not_answer_is_not_called_idle():
    assert idle_seconds(running=np.array([np.nan, 0.0])) == pytest.approx(60)


def test_of_a_long_pause_of_the_daemon_no_idleness_is_claimed():
    assert idle_seconds(for_s=7200.0, every_s=3600.0) <= 2 * 2 * MAX_GPU_AGE_S


# --- latency


def test_latency_is_weighted_by_what_each_pod_did():
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


def test_a_pod_that_nobody_asked_says_nothing_of_latency():
    found = first(fleet([2]), ttft_s=np.array([np.nan, 3.0]))
    assert found["ttft_s"] == pytest.approx(3.0)
    assert math.isnan(first(fleet([2]))["ttft_s"])


# --- in front


def test_a_gateway_that_fell_silent_is_unknown_and_an_empty_one_is_empty():
    cluster = fleet([0])
    assert first(cluster, gateway_waiting=0.0)["gateway_waiting"] == 0
    assert math.isnan(first(cluster, gateway_waiting=5.0, gateway_time_s=900.0)["gateway_waiting"])
    assert math.isnan(first(cluster)["gateway_waiting"])


# --- rows


def test_a_hostile_pod_does_not_reach_its_neighbours():
    cluster = fleet([2, 1])
    wild = {name: np.array([value, 3.0, 5.0]) for name, value in (("running", 1e300), ("waiting", -9.0))}
    found, memory = seen(cluster, generation_tokens=np.array([np.inf, 1.0, 1.0]), **wild)
    np.testing.assert_array_equal(found.reporting, [1, 1])
    np.testing.assert_array_equal(found.running, [3, 5])
    assert np.isfinite(memory.pods.counters.counter[1, 1:]).all()


def test_an_empty_cluster_is_an_empty_observation():
    observation, memory = seen(fleet([]))
    assert len(observation.ready) == 0
    assert len(memory.pods.counters.time_s) == 0


def test_of_a_long_pause_no_more_is_loaded_and_idle_than_a_reading_lasts():
    story = Story(spec())
    for pause_s in (5.0, 3600.0):
        story.tick(fleet([1]), pause_s, **{**GPU, "gpu_time_s": story.now_s + pause_s})
    assert story.memory.workloads.observe.loaded_idle_s[0] == MAX_GPU_AGE_S


def test_a_gateway_that_told_nothing_for_a_day_is_waited_for_no_longer():
    story = Story(spec())
    story.tick(fleet([1]), gateway_waiting=0.0)
    last = story.tick(fleet([1]), GATEWAY_REMEMBERED_S)
    assert last.observation.gateway_silent_s[0] == GATEWAY_REMEMBERED_S
    assert math.isnan(story.tick(fleet([1])).observation.gateway_silent_s[0])
