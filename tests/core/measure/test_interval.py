"""Interval statistics: the work of pods, what arrived, and what was missed."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.measure.interval import WorkTotals
from autoscaler.core.measure.offered_load import compute_busy_share
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.pods import measure_pods
from autoscaler.core.readings.pod_deltas import MAX_INCREASE, MAX_INTERVAL_S
from tests.core.measure.counted_work import NAN, Counting, count, read


def reported(requests, met):
    return {"first_tokens": requests, "itl_judged": requests, "ttft_met": met, "itl_met": met}


# --- tokens, gauges, slots


def test_kv_usage_is_the_mean_of_the_pods_that_report_it():
    totals = count(read(100.0, pods=3), read(130.0, pods=3, kv_usage=[0.2, NAN, 0.6]))
    assert totals.kv_usage[0] == pytest.approx(0.4)
    assert count(read(100.0), read(130.0, kv_usage=NAN)).kv_usage[0] == 0


@pytest.mark.parametrize("gap_s", [1e-4, 1e5])
def test_impossible_token_gaps_are_left_out(gap_s):
    totals = count(read(100.0, pods=2), read(130.0, pods=2, gap_s=[10.0, gap_s], gaps=[1000.0, 1000.0]))
    assert (totals.generating_pods[0], totals.token_rate[0], totals.step_sums[0, 0]) == (1, 100, 1)


def test_part_of_a_token_gap_is_left_out():
    totals = count(read(100.0), read(130.0, gap_s=20.0, gaps=1e-320))
    assert (totals.token_rate[0], totals.generating_pods[0], totals.step_sums[0, 0]) == (0, 0, 0)


def test_step_time_is_learned_from_pods_that_report_all_tokens():
    columns = {"gap_s": 20.0, "gaps": 1000.0, "generation_tokens": 1000.0}
    totals = count(read(100.0, pods=2), read(130.0, pods=2, prompt_tokens=[60_000.0, NAN], **columns))
    assert totals.step_sums[0, 0] == 1
    assert totals.step_sums[1, 0] == pytest.approx(0.02 * 60_000 / 30 / 100)


def test_prompt_tokens_are_counted_with_the_busy_time_of_pods():
    before, busy = read(100.0, pods=3), {"running": [1.0, 0.0, 0.0], "waiting": [0.0, 2.0, 0.0]}
    totals = count(before, read(110.0, pods=3, prompt_tokens=[9000.0, 4000.0, NAN], **busy))
    assert (totals.prompt_tokens[0], totals.prompt_s[0], totals.prompt_busy_s[0]) == (13_000, 20, 10)


def test_prompt_tokens_of_decode_pods_were_computed_elsewhere():
    """The counter of older engines includes them. The step time is learned without them."""
    columns = {"gap_s": 20.0, "gaps": 1000.0, "generation_tokens": 1000.0, "prompt_tokens": 60_000.0}
    totals = count(read(100.0), read(130.0, **columns), decode=np.array([True]))
    assert (totals.prompt_tokens[0], totals.step_sums[0, 0], totals.step_sums[1, 0]) == (0, 1, 0)


def test_pod_is_full_when_its_last_two_readings_show_a_queue():
    made = {"running": 24.0, "finished": 1.0, "gaps": 1000.0, "gap_s": 20.0}
    passing = count(read(100.0, running=24.0), read(115.0, waiting=30.0, **made))
    short = count(read(100.0, running=24.0, waiting=2.0), read(115.0, waiting=2.0, **made))
    lasting = count(read(100.0, running=24.0, waiting=9.0), read(115.0, waiting=30.0, **made))
    assert np.isnan(passing.running_with_queue[0])
    assert np.isnan(short.running_with_queue[0])
    assert lasting.running_with_queue[0] == passing.peak_running[0] == 24
    assert lasting.gap_with_queue_s[0] == 0.02


# --- what arrived


def test_arrivals_are_ended_requests_plus_growth_in_flight():
    totals = count(read(100.0, running=4.0), read(115.0, finished=10.0, running=5.0, waiting=3.0))
    assert (totals.arrivals[0], totals.covered_s[0]) == (14, 15)
    assert totals.queue_growth[0] == 3


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
    assert (totals.generating_pods[0], totals.step_sums[0, 0]) == (0, 0)


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
    assert (totals.arrivals[0], totals.covered_s[0], totals.step_sums[0, 0]) == (0, 0, 0)


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


# --- which pods count


def test_pod_without_progress_counts_once_it_moves():
    """All that arrived in the meantime is counted then."""
    counting = Counting(1)
    counting.tick(read(100.0, running=4.0))
    stalled = counting.tick(read(115.0, running=4.0))
    assert (stalled.arrivals[0], stalled.covered_s[0]) == (0, 0)
    moved = counting.tick(read(130.0, running=4.0, finished=6.0))
    assert (moved.arrivals[0], moved.covered_s[0]) == (6, 30)


def test_pod_is_left_out_when_it_does_not_answer_now():
    counting = Counting(1)
    counting.tick(read(100.0))
    between = measure_pods(read(105.0, finished=2.0), 105.0, counting.pods)
    counting.pods = replace(counting.pods, readings=between.readings)
    silent = counting.tick(read(NAN, running=NAN), now_s=110.0)
    assert (silent.arrivals[0], silent.covered_s[0]) == (0, 0)
    again = counting.tick(read(115.0, finished=6.0))
    assert (again.arrivals[0], again.covered_s[0]) == (6, 15)


def test_each_pod_counts_for_its_own_workload():
    counting = Counting(3, rows=[0, 2, 2])
    counting.tick(read(100.0, pods=3))
    totals = counting.tick(read(130.0, pods=3, finished=[1.0, 2.0, 4.0]))
    assert totals.arrivals.tolist() == [1, 0, 6]
    assert totals.covered_s.tolist() == [30, 0, 60]


def test_only_the_given_pods_are_counted():
    counting = Counting(3, chosen=[0, 2])
    counting.tick(read(100.0, pods=3))
    totals = counting.tick(read(130.0, pods=3, finished=[1.0, 1e6, 4.0]))
    assert totals.arrivals[0] == 5
    assert counting.counted.time_s.tolist() == [130, 130]


# --- readings that no engine would report

ABSURD = [NAN, 0.0, -1.0, 1e-320, 1.0, 999.0, MAX_INCREASE, 1e15, 1e300, np.inf, -np.inf]
anything = st.one_of(st.sampled_from(ABSURD), st.floats())


@pytest.mark.slow
@given(st.data())
def test_absurd_readings_stay_bounded_and_with_their_workload(data):
    """Warnings are errors in these tests."""
    beside, alone = Counting(2, rows=[0, 1]), Counting(1)
    for number in range(1, 4):
        now_s = 100.0 + 30 * number
        one = read(now_s, finished=10.0 * number, gap_s=20.0 * number, gaps=1000.0 * number, running=4.0)
        both = PodSamples.stack([one, PodSamples(*(np.array([data.draw(anything)]) for _ in fields(PodSamples)))])
        totals, known = beside.tick(both, now_s), alone.tick(one, now_s)
        for field in fields(WorkTotals):
            column = getattr(totals, field.name)
            np.testing.assert_array_equal(column[..., :1], getattr(known, field.name), err_msg=field.name)
            if field.name != "queue_growth":
                assert not (column < 0).any(), field.name
                assert not np.isinf(column).any(), field.name
        busy = compute_busy_share(totals, np.array([0.01, 0.01]), np.array([NAN]))
        assert (np.isnan(busy) | ((busy >= 0) & (busy <= 1))).all()
