"""The work of pods: how busy they were, what arrived, and what was missed."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.rates import MAX_INTERVAL_S, PLANNER_COUNTERS
from autoscaler.core.planner.pod_work import (
    MAX_INCREASE,
    PodReadings,
    WorkTotals,
    compute_batch_room_s,
    compute_busy_share,
    count_work,
)

NAN = math.nan
IDLE_GAP_S = np.array([0.01])
NO_SLOTS = np.array([np.nan])


def read(time_s, pods=1, **columns):
    """Return the samples of pods at a time: every counter is reported, and 0 unless given."""
    values = {"running": 0.0, "waiting": 0.0, **dict.fromkeys(PLANNER_COUNTERS, 0.0), **columns}
    table = {name: np.broadcast_to(np.asarray(value, dtype=float), pods).copy() for name, value in values.items()}
    return replace(PodSamples.filled(pods), time_s=np.broadcast_to(np.asarray(time_s, dtype=float), pods), **table)


def none_stalled(pods):
    return np.zeros(pods, dtype=bool)


def count(*samples):
    """Return the totals of the last of these samples of one workload."""
    pods = len(samples[0].time_s)
    ids, row, readings = np.arange(pods), np.zeros(pods, dtype=np.int64), PodReadings.blank(pods)
    for each in samples:
        now_s = float(np.nanmax(each.time_s))
        totals, readings = count_work(readings, each, now_s, ids, ids, row, 1, none_stalled(pods))
    return totals


# --- how busy


def test_pod_is_two_thirds_busy_when_gaps_are_tripled():
    totals = count(read(100.0), read(130.0, gap_s=30.0, gaps=1000.0))
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(2 / 3)


def test_kv_cache_in_use_adds_to_the_busy_share():
    """8 ms when idle, 20 ms now, a quarter of the cache in use: 1 - 0.4 x 0.75."""
    totals = count(read(100.0), read(130.0, gap_s=20.0, gaps=1000.0, kv_usage=0.25))
    assert compute_busy_share(totals, np.array([0.008]), NO_SLOTS)[0] == pytest.approx(0.7)
    full = count(read(100.0), read(130.0, gap_s=10.0, gaps=1000.0, kv_usage=1.0))
    assert compute_busy_share(full, IDLE_GAP_S, NO_SLOTS)[0] == 1


def test_kv_usage_is_the_mean_of_the_pods_that_report_it():
    totals = count(read(100.0, pods=3), read(130.0, pods=3, kv_usage=[0.2, NAN, 0.6]))
    assert totals.kv_usage[0] == pytest.approx(0.4)
    assert count(read(100.0), read(130.0, kv_usage=NAN)).kv_usage[0] == 0


def test_busy_share_is_zero_when_gaps_are_below_the_idle_gap():
    totals = count(read(100.0), read(130.0, gap_s=1.0, gaps=1000.0))
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == 0


def test_busy_share_is_unknown_when_gaps_are_too_few():
    totals = count(read(100.0), read(130.0, gap_s=0.5, gaps=19.0))
    assert np.isnan(compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0])
    assert totals.readings[0] == 0


def test_busy_share_is_unknown_when_the_idle_gap_is():
    totals = count(read(100.0), read(130.0, gap_s=20.0, gaps=1000.0))
    assert np.isnan(compute_busy_share(totals, np.array([NAN]), NO_SLOTS)[0])


def test_each_pod_counts_once_whatever_it_generated():
    """One generates 900 tokens 40 ms apart, one 100 tokens 10 ms apart: three quarters busy, and not at all."""
    totals = count(read(100.0, pods=2), read(130.0, pods=2, gap_s=[36.0, 1.0], gaps=[900.0, 100.0]))
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(0.75 / 2)
    assert totals.shortest_gap_s[0] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("gaps", "running", "waiting", "busy"),
    [
        (0.0, 0.0, 0.0, 0.75 / 2),  # idle
        (10.0, 0.0, 0.0, 0.75 / 2),  # a short answer, and idle again
        (0.0, 1.0, 0.0, 0.75),  # unknown: it has a request whose tokens are still to come
        (0.0, 0.0, 1.0, 0.75),
        (NAN, 0.0, 0.0, 0.75),  # not reported
    ],
)
def test_pod_without_tokens_is_idle_when_it_has_no_request(gaps, running, waiting, busy):
    """The other pod has gaps four times as long as an idle engine."""
    columns = {
        "gap_s": [40.0, 0.01 * gaps],
        "gaps": [1000.0, gaps],
        "running": [9.0, running],
        "waiting": [0.0, waiting],
    }
    totals = count(read(100.0, pods=2), read(130.0, pods=2, **columns))
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(busy)


def test_full_pod_does_not_make_the_other_pods_busy():
    """A surge has filled the cache, or the slots, of one pod. Three that became ready since have idle gaps."""
    columns = {"gap_s": 10.0, "gaps": 1000.0}
    by_cache = count(read(100.0, pods=4), read(130.0, pods=4, kv_usage=[1.0, 0.0, 0.0, 0.0], **columns))
    assert compute_busy_share(by_cache, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(0.25)
    by_slots = count(read(100.0, pods=4), read(130.0, pods=4, running=[24.0, 0.0, 0.0, 0.0], **columns))
    assert compute_busy_share(by_slots, IDLE_GAP_S, np.array([24.0]))[0] == pytest.approx(0.25)


def test_pod_beyond_its_cache_and_slots_counts_as_full():
    beyond = {"kv_usage": [9.0, 0.0], "running": [1e5, 0.0], "max_running": [24.0, 24.0]}
    totals = count(read(100.0, pods=2), read(130.0, pods=2, gap_s=10.0, gaps=1000.0, **beyond))
    assert compute_busy_share(totals, IDLE_GAP_S, np.array([24.0]))[0] == pytest.approx(0.5)


def test_batch_room_is_limited_by_slots_cache_and_gaps():
    """The cache fits 96 requests of 2 s. A third of each is the prompt, and half of the rest is still to come."""
    totals = count(read(100.0), read(130.0, running=24.0, kv_usage=0.25))
    work_s, third = np.array([2.0]), np.array([1 / 3])

    def room_s(slots, max_running):
        return compute_batch_room_s(totals, work_s, third, np.array([slots]), np.array([max_running]))[0]

    assert room_s(NAN, NAN) == pytest.approx(96 * 2 / 3)
    assert room_s(48.0, NAN) == pytest.approx(48 * 2 / 3)
    assert room_s(48.0, 30.0) == pytest.approx(30 * 2 / 3)
    assert room_s(48.0, -5.0) == 0  # the gaps exceed the objective even for a single request


def test_batch_room_is_zero_when_slots_and_cache_are_unknown():
    totals = count(read(100.0), read(130.0, running=24.0, kv_usage=NAN))
    room_s = compute_batch_room_s(totals, np.array([2.0]), np.array([0.3]), NO_SLOTS, np.array([50.0]))
    assert room_s[0] == 0
    for work_s, prompts in ((NAN, 0.3), (2.0, NAN)):
        room_s = compute_batch_room_s(totals, np.array([work_s]), np.array([prompts]), np.array([24.0]), NO_SLOTS)
        assert room_s[0] == 0


@pytest.mark.parametrize("gap_s", [1e-4, 1e5])
def test_impossible_token_gaps_are_left_out(gap_s):
    totals = count(read(100.0, pods=2), read(130.0, pods=2, gap_s=[10.0, gap_s], gaps=[1000.0, 1000.0]))
    assert (totals.gaps[0], totals.gap_s[0], totals.readings[0]) == (1000, 10, 1)
    assert totals.shortest_gap_s[0] == pytest.approx(0.01)


def test_step_time_is_learned_from_pods_that_report_all_tokens():
    columns = {"gap_s": 20.0, "gaps": 1000.0, "generation_tokens": 1000.0}
    totals = count(read(100.0, pods=2), read(130.0, pods=2, prompt_tokens=[60_000.0, NAN], **columns))
    assert totals.readings[0] == 1
    assert totals.step_sums[0, 0] == 1
    assert totals.step_sums[1, 0] == pytest.approx(0.02 * 60_000 / 30 / 100)


# --- what arrived


def test_arrivals_are_ended_requests_plus_growth_in_flight():
    totals = count(read(100.0, running=4.0), read(115.0, finished=10.0, running=5.0, waiting=3.0))
    assert (totals.arrivals[0], totals.covered_s[0]) == (14, 15)
    assert (totals.queue_growth[0], totals.batch_growth[0]) == (3, 1)


def test_arrivals_are_not_negative_when_clients_disconnect():
    assert count(read(100.0, waiting=50.0), read(115.0)).arrivals[0] == 0


def test_pod_is_left_out_when_its_counter_falls():
    before = read(100.0, pods=2, finished=50.0)
    totals = count(before, read(115.0, pods=2, finished=[60.0, 2.0]))
    assert (totals.arrivals[0], totals.covered_s[0]) == (10, 15)


def test_pod_counts_again_after_a_counter_reset():
    totals = count(read(100.0, finished=50.0), read(130.0, finished=2.0), read(160.0, finished=9.0))
    assert (totals.arrivals[0], totals.covered_s[0]) == (7, 30)


def test_other_counters_still_count_when_one_falls():
    before = read(100.0, gap_s=500.0, gaps=100.0)
    totals = count(before, read(130.0, finished=6.0, gap_s=3.0, gaps=1100.0))
    assert totals.arrivals[0] == 6
    assert (totals.gaps[0], totals.readings[0]) == (0, 0)


def test_pod_is_left_out_until_it_is_read_again():
    totals = count(read(100.0), read(100.0), read(115.0, finished=6.0))
    assert (totals.arrivals[0], totals.covered_s[0]) == (6, 15)


def test_all_work_of_a_pod_counts_after_a_missed_reading():
    silent = read([100.0, NAN], pods=2, finished=[0.0, NAN], running=[0.0, NAN])
    totals = count(read(90.0, pods=2), silent, read(120.0, pods=2, finished=[4.0, 6.0]))
    assert (totals.arrivals[0], totals.covered_s[0]) == (10, 20 + 30)


def test_nothing_is_counted_after_a_long_gap():
    totals = count(read(100.0), read(100.0 + MAX_INTERVAL_S + 1, finished=60.0))
    assert (totals.arrivals[0], totals.covered_s[0]) == (0, 0)


def test_nothing_is_counted_between_two_readings_of_one_moment():
    totals = count(read(100.0), read(100.0 + 1e-9, finished=60.0, gap_s=20.0, gaps=1000.0))
    assert (totals.arrivals[0], totals.covered_s[0], totals.readings[0]) == (0, 0, 0)


# --- what was missed


def test_misses_are_counted_only_when_they_are_reported():
    totals = count(read(100.0), read(115.0, first_tokens=10.0, ttft_met=9.0, itl_judged=8.0, itl_met=6.0))
    assert (totals.ttft_counted[0], totals.ttft_missed[0]) == (10, 1)
    assert (totals.itl_counted[0], totals.itl_missed[0]) == (8, 2)
    assert (totals.prefill_counted[0], totals.prefill_late[0]) == (0, 0)
    unreported = {"ttft_met": NAN, "itl_judged": NAN, "itl_met": NAN}
    silent = count(read(100.0, **unreported), read(115.0, first_tokens=10.0, **unreported))
    assert (silent.first_tokens[0], silent.ttft_counted[0], silent.itl_counted[0]) == (10, 0, 0)


def test_long_prompts_are_counted_only_when_reported():
    totals = count(read(100.0), read(115.0, prefill_judged=8.0, prefill_met=5.0))
    assert (totals.prefill_counted[0], totals.prefill_late[0]) == (8, 3)
    laxer = count(read(100.0, prefill_met=10.0), read(115.0, prefill_judged=8.0, prefill_met=4000.0))
    assert (laxer.prefill_counted[0], laxer.prefill_late[0]) == (8, 0)
    stricter = count(read(100.0, prefill_met=4000.0), read(115.0, prefill_judged=8.0, prefill_met=10.0))
    unreported = count(read(100.0), read(115.0, prefill_judged=8.0, prefill_met=NAN))
    assert stricter.prefill_counted[0] == unreported.prefill_counted[0] == 0


def test_no_request_is_late_when_a_laxer_objective_begins():
    totals = count(read(100.0, ttft_met=10.0, itl_met=10.0), read(130.0, **reported(5.0, met=4000.0)))
    assert (totals.ttft_counted[0], totals.ttft_missed[0]) == (5, 0)
    assert (totals.itl_counted[0], totals.itl_missed[0]) == (5, 0)


def test_no_request_is_counted_when_a_stricter_objective_begins():
    totals = count(read(100.0, ttft_met=4000.0, itl_met=4000.0), read(130.0, **reported(5.0, met=10.0)))
    assert (totals.ttft_counted[0], totals.ttft_missed[0]) == (0, 0)
    assert (totals.itl_counted[0], totals.itl_missed[0]) == (0, 0)
    assert totals.first_tokens[0] == 5


def reported(requests, met):
    return {"first_tokens": requests, "itl_judged": requests, "ttft_met": met, "itl_met": met}


# --- rows


def test_readings_are_found_by_pod_id():
    before = replace(PodReadings.blank(3), pod_id=np.array([2, 5, 9]), time_s=np.array([20.0, 50.0, 90.0]))
    found = before.find(np.array([1, 5, 9, 12]))
    assert found.pod_id.tolist() == [1, 5, 9, 12]
    np.testing.assert_array_equal(found.time_s, [NAN, 50.0, 90.0, NAN])
    assert found.counter.shape == (len(PLANNER_COUNTERS), 4)
    assert before.find(np.array([2, 5, 9])) is before
    assert np.isnan(PodReadings.blank(0).find(np.array([4])).time_s).all()
    assert len(before.find(np.empty(0, dtype=np.int64)).time_s) == 0


def test_each_pod_counts_for_its_own_workload():
    ids, row = np.array([3, 4, 8]), np.array([0, 2, 2])
    _, readings = count_work(
        PodReadings.blank(0), read(100.0, pods=3), 100.0, np.arange(3), ids, row, 3, none_stalled(3)
    )
    totals, _ = count_work(
        readings, read(130.0, pods=3, finished=[1.0, 2.0, 4.0]), 130.0, np.arange(3), ids, row, 3, none_stalled(3)
    )
    assert totals.arrivals.tolist() == [1, 0, 6]
    assert totals.covered_s.tolist() == [30, 0, 60]
    assert np.isnan(totals.shortest_gap_s).all()


def test_only_the_given_pods_are_counted():
    chosen = np.array([0, 2])
    _, readings = count_work(
        PodReadings.blank(0), read(100.0, pods=3), 100.0, chosen, chosen, np.zeros(2, np.int64), 1, none_stalled(2)
    )
    after = read(130.0, pods=3, finished=[1.0, 1e6, 4.0])
    totals, readings = count_work(readings, after, 130.0, chosen, chosen, np.zeros(2, np.int64), 1, none_stalled(2))
    assert totals.arrivals[0] == 5
    assert readings.pod_id.tolist() == [0, 2]


# --- readings that no engine would report

ABSURD = [NAN, 0.0, -1.0, 1e-320, 1.0, 999.0, MAX_INCREASE, 1e15, 1e300, np.inf, -np.inf]
anything = st.one_of(st.sampled_from(ABSURD), st.floats())


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data())
def test_absurd_readings_stay_bounded_and_with_their_workload(data):
    """Warnings are errors in these tests."""
    readings, alone = PodReadings.blank(0), PodReadings.blank(0)
    for number in range(1, 4):
        now_s = 100.0 + 30 * number
        one = read(now_s, finished=10.0 * number, gap_s=20.0 * number, gaps=1000.0 * number, running=4.0)
        both = PodSamples.stack([one, PodSamples(*(np.array([data.draw(anything)]) for _ in fields(PodSamples)))])
        ids = np.arange(2)
        totals, readings = count_work(readings, both, now_s, ids, ids, ids, 2, none_stalled(2))
        known, alone = count_work(alone, one, now_s, ids[:1], ids[:1], ids[:1], 1, none_stalled(1))
        for field in fields(WorkTotals):
            column = getattr(totals, field.name)
            np.testing.assert_array_equal(column[..., :1], getattr(known, field.name), err_msg=field.name)
            if field.name not in ("kv_usage", "queue_growth", "batch_growth"):
                assert not (column < 0).any(), field.name
                assert not np.isinf(column).any(), field.name
        busy = compute_busy_share(totals, np.array([0.01, 0.01]), NO_SLOTS)
        assert (np.isnan(busy) | ((busy >= 0) & (busy <= 1))).all()


def test_replica_is_busy_when_its_slots_are_full():
    totals = count(read(100.0), read(115.0, gap_s=10.0, gaps=1000.0, running=24.0))
    assert compute_busy_share(totals, IDLE_GAP_S, np.array([24.0]))[0] == 1
    assert compute_busy_share(totals, IDLE_GAP_S, np.array([48.0]))[0] == pytest.approx(0.5)
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == 0


def test_pod_is_full_when_it_has_a_queue_at_both_readings():
    passing = count(read(100.0, running=24.0), read(115.0, running=24.0, waiting=30.0))
    short = count(read(100.0, running=24.0, waiting=2.0), read(115.0, running=24.0, waiting=2.0))
    lasting = count(read(100.0, running=24.0, waiting=10.0), read(115.0, running=24.0, waiting=30.0))
    assert np.isnan(passing.running_with_queue[0])
    assert np.isnan(short.running_with_queue[0])
    assert lasting.running_with_queue[0] == passing.peak_running[0] == 24
