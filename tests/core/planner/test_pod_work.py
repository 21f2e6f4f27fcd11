"""Work from counters: how busy replicas are, what arrived, and what was missed."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.planner.pod_work import (
    COUNTED,
    LONGEST_STEP_S,
    MOST_GROWN,
    PodWork,
    Tally,
    batch_room_s,
    busy_share,
    count,
)

NAN = math.nan
IDLE_GAP_S = np.array([0.01])
NO_SLOTS = np.array([np.nan])


def readings(time_s, pods=1, **columns):
    """What so many pods show at a time; all told, and nothing done yet, unless stated."""
    values = {"running": 0.0, "waiting": 0.0, **dict.fromkeys(COUNTED, 0.0), **columns}
    table = {name: np.broadcast_to(np.asarray(value, dtype=float), pods).copy() for name, value in values.items()}
    return replace(PodSamples.filled(pods), time_s=np.broadcast_to(np.asarray(time_s, dtype=float), pods), **table)


def stands(pods):
    """None of so many pods stands still."""
    return np.zeros(pods, dtype=bool)


def counted(*samples):
    """What a row of readings of the pods of one workload tells with the last of them."""
    pods = len(samples[0].time_s)
    each, work = np.arange(pods), PodWork.blank(pods)
    for one in samples:
        tally, work = count(
            work, one, float(np.nanmax(one.time_s)), each, each, np.zeros(pods, dtype=np.int64), 1, stands(pods)
        )
    return tally


# --- how busy


def test_gaps_three_times_as_long_as_those_of_an_idle_engine_are_two_thirds_busy():
    tally = counted(readings(100.0), readings(130.0, gap_s=30.0, gaps=1000.0))
    assert busy_share(tally, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(2 / 3)


def test_of_what_computing_leaves_the_kv_cache_in_use_is_taken_as_well():
    """8 ms when idle, 20 ms now, a quarter of the cache in use: 1 - 0.4 x 0.75."""
    tally = counted(readings(100.0), readings(130.0, gap_s=20.0, gaps=1000.0, kv_usage=0.25))
    assert busy_share(tally, np.array([0.008]), NO_SLOTS)[0] == pytest.approx(0.7)
    full = counted(readings(100.0), readings(130.0, gap_s=10.0, gaps=1000.0, kv_usage=1.0))
    assert busy_share(full, IDLE_GAP_S, NO_SLOTS)[0] == 1


def test_the_kv_cache_is_the_mean_of_the_pods_that_tell_and_empty_where_none_does():
    told = counted(readings(100.0, pods=3), readings(130.0, pods=3, kv_usage=[0.2, NAN, 0.6]))
    assert told.kv_usage[0] == pytest.approx(0.4)
    assert counted(readings(100.0), readings(130.0, kv_usage=NAN)).kv_usage[0] == 0


def test_an_engine_faster_than_when_idle_is_not_busy_and_no_less_than_that():
    tally = counted(readings(100.0), readings(130.0, gap_s=1.0, gaps=1000.0))
    assert busy_share(tally, IDLE_GAP_S, NO_SLOTS)[0] == 0


def test_too_few_gaps_tell_nothing():
    tally = counted(readings(100.0), readings(130.0, gap_s=0.5, gaps=19.0))
    assert np.isnan(busy_share(tally, IDLE_GAP_S, NO_SLOTS)[0])
    assert tally.readings[0] == 0


def test_gaps_without_a_known_idle_gap_tell_nothing():
    tally = counted(readings(100.0), readings(130.0, gap_s=20.0, gaps=1000.0))
    assert np.isnan(busy_share(tally, np.array([NAN]), NO_SLOTS)[0])


def test_each_pod_counts_once_whatever_it_wrote():
    """One writes 900 tokens 40 ms apart, one 100 tokens 10 ms apart: three quarters busy, and not at all."""
    tally = counted(readings(100.0, pods=2), readings(130.0, pods=2, gap_s=[36.0, 1.0], gaps=[900.0, 100.0]))
    assert busy_share(tally, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(0.75 / 2)
    assert tally.shortest_gap_s[0] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("gaps", "running", "waiting", "busy"),
    [
        (0.0, 0.0, 0.0, 0.75 / 2),  # idle
        (10.0, 0.0, 0.0, 0.75 / 2),  # a short answer, and idle again
        (0.0, 1.0, 0.0, 0.75),  # it has a request whose tokens are still to come, and tells nothing
        (0.0, 0.0, 1.0, 0.75),
        (NAN, 0.0, 0.0, 0.75),  # it does not say
    ],
)
def test_a_pod_that_wrote_nothing_is_idle_when_it_has_no_request(gaps, running, waiting, busy):
    """Beside one whose gaps are four times those of an idle engine."""
    wrote = {"gap_s": [40.0, 0.01 * gaps], "gaps": [1000.0, gaps], "running": [9.0, running], "waiting": [0.0, waiting]}
    tally = counted(readings(100.0, pods=2), readings(130.0, pods=2, **wrote))
    assert busy_share(tally, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(busy)


def test_a_full_pod_says_nothing_of_how_full_the_others_are():
    """A surge has filled the cache, or the slots, of one pod; three that became ready since write at an idle pace."""
    written = {"gap_s": 10.0, "gaps": 1000.0}
    by_cache = counted(readings(100.0, pods=4), readings(130.0, pods=4, kv_usage=[1.0, 0.0, 0.0, 0.0], **written))
    assert busy_share(by_cache, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(0.25)
    by_slots = counted(readings(100.0, pods=4), readings(130.0, pods=4, running=[24.0, 0.0, 0.0, 0.0], **written))
    assert busy_share(by_slots, IDLE_GAP_S, np.array([24.0]))[0] == pytest.approx(0.25)


def test_one_pod_beyond_its_cache_and_slots_counts_as_one_full_pod():
    beyond = {"kv_usage": [9.0, 0.0], "running": [1e5, 0.0], "max_running": [24.0, 24.0]}
    tally = counted(readings(100.0, pods=2), readings(130.0, pods=2, gap_s=10.0, gaps=1000.0, **beyond))
    assert busy_share(tally, IDLE_GAP_S, np.array([24.0]))[0] == pytest.approx(0.5)


def test_the_batch_takes_up_what_fits_slots_cache_and_gaps():
    """24 of 96 requests that fit the cache: a third of 2 s is the prompt, half of the rest is yet to be written."""
    tally = counted(readings(100.0), readings(130.0, running=24.0, kv_usage=0.25))
    work_s, third = np.array([2.0]), np.array([1 / 3])

    def room_s(slots, most_running, tally=tally):
        return batch_room_s(tally, work_s, third, np.array([slots]), np.array([most_running]))[0]

    assert room_s(NAN, NAN) == pytest.approx(96 * 2 / 3)
    assert room_s(48.0, NAN) == pytest.approx(48 * 2 / 3)
    assert room_s(48.0, 30.0) == pytest.approx(30 * 2 / 3)
    assert room_s(48.0, -5.0) == 0  # gaps are longer than may be even without a neighbour


def test_there_is_no_room_where_neither_slots_nor_cache_are_known():
    tally = counted(readings(100.0), readings(130.0, running=24.0, kv_usage=NAN))
    none = batch_room_s(tally, np.array([2.0]), np.array([0.3]), NO_SLOTS, np.array([50.0]))
    assert none[0] == 0
    for work_s, prompts in ((NAN, 0.3), (2.0, NAN)):
        assert batch_room_s(tally, np.array([work_s]), np.array([prompts]), np.array([24.0]), np.array([NAN]))[0] == 0


@pytest.mark.parametrize("gap_s", [1e-4, 1e5])
def test_a_pace_at_which_no_engine_writes_is_left_out(gap_s):
    tally = counted(readings(100.0, pods=2), readings(130.0, pods=2, gap_s=[10.0, gap_s], gaps=[1000.0, 1000.0]))
    assert (tally.gaps[0], tally.gap_s[0], tally.readings[0]) == (1000, 10, 1)
    assert tally.shortest_gap_s[0] == pytest.approx(0.01)


def test_speed_is_learned_of_pods_that_tell_all_their_tokens():
    told = {"gap_s": 20.0, "gaps": 1000.0, "generation_tokens": 1000.0}
    tally = counted(readings(100.0, pods=2), readings(130.0, pods=2, prompt_tokens=[60_000.0, NAN], **told))
    assert tally.readings[0] == 1
    assert tally.lessons[0, 0] == 1
    assert tally.lessons[1, 0] == pytest.approx(0.02 * 60_000 / 30 / 100)


# --- what arrived


def test_what_arrived_is_what_ended_and_the_change_of_those_in_flight():
    tally = counted(readings(100.0, running=4.0), readings(115.0, finished=10.0, running=5.0, waiting=3.0))
    assert (tally.arrived[0], tally.covered_s[0]) == (14, 15)
    assert (tally.queue_grown[0], tally.batch_grown[0]) == (3, 1)


def test_disconnected_clients_may_leave_fewer_than_came_but_never_less_than_none():
    assert counted(readings(100.0, waiting=50.0), readings(115.0)).arrived[0] == 0


def test_a_counter_that_went_back_leaves_its_pod_out_and_the_others_speak():
    before = readings(100.0, pods=2, finished=50.0)
    tally = counted(before, readings(115.0, pods=2, finished=[60.0, 2.0]))
    assert (tally.arrived[0], tally.covered_s[0]) == (10, 15)


def test_after_a_reset_a_pod_counts_on_from_where_it_is():
    tally = counted(readings(100.0, finished=50.0), readings(130.0, finished=2.0), readings(160.0, finished=9.0))
    assert (tally.arrived[0], tally.covered_s[0]) == (7, 30)


def test_one_counter_that_went_back_takes_only_what_it_tells():
    before = readings(100.0, gap_s=500.0, gaps=100.0)
    tally = counted(before, readings(130.0, finished=6.0, gap_s=3.0, gaps=1100.0))
    assert tally.arrived[0] == 6
    assert (tally.gaps[0], tally.readings[0]) == (0, 0)


def test_a_pod_that_is_not_read_anew_is_left_out_and_comes_back_with_all_it_did():
    tally = counted(readings(100.0), readings(100.0), readings(115.0, finished=6.0))
    assert (tally.arrived[0], tally.covered_s[0]) == (6, 15)


def test_a_pod_that_did_not_answer_once_comes_back_with_all_it_did():
    silent = readings([100.0, NAN], pods=2, finished=[0.0, NAN], running=[0.0, NAN])
    tally = counted(readings(90.0, pods=2), silent, readings(120.0, pods=2, finished=[4.0, 6.0]))
    assert (tally.arrived[0], tally.covered_s[0]) == (10, 20 + 30)


def test_after_a_long_hole_nothing_is_counted():
    tally = counted(readings(100.0), readings(100.0 + LONGEST_STEP_S + 1, finished=60.0))
    assert (tally.arrived[0], tally.covered_s[0]) == (0, 0)


def test_what_grew_between_two_readings_of_the_same_moment_is_no_rate():
    tally = counted(readings(100.0), readings(100.0 + 1e-9, finished=60.0, gap_s=20.0, gaps=1000.0))
    assert (tally.arrived[0], tally.covered_s[0], tally.readings[0]) == (0, 0, 0)


# --- what was missed


def test_requests_within_the_objective_are_known_only_where_the_source_tells():
    tally = counted(readings(100.0), readings(115.0, first_tokens=10.0, ttft_met=9.0, itl_judged=8.0, itl_met=6.0))
    assert (tally.ttft_judged[0], tally.ttft_missed[0]) == (10, 1)
    assert (tally.itl_judged[0], tally.itl_missed[0]) == (8, 2)
    assert (tally.prefill_judged[0], tally.prefill_late[0]) == (0, 0)
    untold = {"ttft_met": NAN, "itl_judged": NAN, "itl_met": NAN}
    silent = counted(readings(100.0, **untold), readings(115.0, first_tokens=10.0, **untold))
    assert (silent.began[0], silent.ttft_judged[0], silent.itl_judged[0]) == (10, 0, 0)


def test_prompts_that_took_too_long_are_counted_of_those_of_which_it_is_told():
    tally = counted(readings(100.0), readings(115.0, prefill_judged=8.0, prefill_met=5.0))
    assert (tally.prefill_judged[0], tally.prefill_late[0]) == (8, 3)
    laxer = counted(readings(100.0, prefill_met=10.0), readings(115.0, prefill_judged=8.0, prefill_met=4000.0))
    assert (laxer.prefill_judged[0], laxer.prefill_late[0]) == (8, 0)
    stricter = counted(readings(100.0, prefill_met=4000.0), readings(115.0, prefill_judged=8.0, prefill_met=10.0))
    untold = counted(readings(100.0), readings(115.0, prefill_judged=8.0, prefill_met=NAN))
    assert stricter.prefill_judged[0] == untold.prefill_judged[0] == 0


def test_a_laxer_objective_makes_its_counter_jump_up_and_nobody_late_nor_more_than_all_met():
    met = counted(readings(100.0, ttft_met=10.0, itl_met=10.0), readings(130.0, **told_of(5.0, met=4000.0)))
    assert (met.ttft_judged[0], met.ttft_missed[0]) == (5, 0)
    assert (met.itl_judged[0], met.itl_missed[0]) == (5, 0)


def test_a_stricter_objective_makes_its_counter_jump_back_and_nobody_is_judged():
    met = counted(readings(100.0, ttft_met=4000.0, itl_met=4000.0), readings(130.0, **told_of(5.0, met=10.0)))
    assert (met.ttft_judged[0], met.ttft_missed[0]) == (0, 0)
    assert (met.itl_judged[0], met.itl_missed[0]) == (0, 0)
    assert met.began[0] == 5


def told_of(requests, met):
    return {"first_tokens": requests, "itl_judged": requests, "ttft_met": met, "itl_met": met}


# --- rows


def test_pods_are_known_by_id_whatever_rows_they_stand_on():
    before = replace(PodWork.blank(3), pod_id=np.array([2, 5, 9]), time_s=np.array([20.0, 50.0, 90.0]))
    of = before.of(np.array([1, 5, 9, 12]))
    assert of.pod_id.tolist() == [1, 5, 9, 12]
    np.testing.assert_array_equal(of.time_s, [NAN, 50.0, 90.0, NAN])
    assert of.counter.shape == (len(COUNTED), 4)
    assert before.of(np.array([2, 5, 9])) is before
    assert np.isnan(PodWork.blank(0).of(np.array([4])).time_s).all()
    assert len(before.of(np.empty(0, dtype=np.int64)).time_s) == 0


def test_each_pod_counts_for_its_own_workload():
    ids, row = np.array([3, 4, 8]), np.array([0, 2, 2])
    _, work = count(PodWork.blank(0), readings(100.0, pods=3), 100.0, np.arange(3), ids, row, 3, stands(3))
    tally, _ = count(
        work, readings(130.0, pods=3, finished=[1.0, 2.0, 4.0]), 130.0, np.arange(3), ids, row, 3, stands(3)
    )
    assert tally.arrived.tolist() == [1, 0, 6]
    assert tally.covered_s.tolist() == [30, 0, 60]
    assert np.isnan(tally.shortest_gap_s).all()


def test_only_the_pods_that_are_to_be_counted_are():
    chosen = np.array([0, 2])
    _, work = count(
        PodWork.blank(0), readings(100.0, pods=3), 100.0, chosen, chosen, np.zeros(2, np.int64), 1, stands(2)
    )
    after = readings(130.0, pods=3, finished=[1.0, 1e6, 4.0])
    tally, work = count(work, after, 130.0, chosen, chosen, np.zeros(2, np.int64), 1, stands(2))
    assert tally.arrived[0] == 5
    assert work.pod_id.tolist() == [0, 2]


# --- what no engine would say

ABSURD = [NAN, 0.0, -1.0, 1e-320, 1.0, 999.0, MOST_GROWN, 1e15, 1e300, np.inf, -np.inf]
anything = st.one_of(st.sampled_from(ABSURD), st.floats())


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data())
def test_absurd_readings_stay_with_their_own_workload_and_nothing_counted_is_negative_or_without_bound(data):
    """Warnings are errors in these tests."""
    work, alone = PodWork.blank(0), PodWork.blank(0)
    for step in range(1, 4):
        now_s = 100.0 + 30 * step
        one = readings(now_s, finished=10.0 * step, gap_s=20.0 * step, gaps=1000.0 * step, running=4.0)
        both = PodSamples.stack([one, PodSamples(*(np.array([data.draw(anything)]) for _ in fields(PodSamples)))])
        ids = np.arange(2)
        tally, work = count(work, both, now_s, ids, ids, ids, 2, stands(2))
        known, alone = count(alone, one, now_s, ids[:1], ids[:1], ids[:1], 1, stands(1))
        for field in fields(Tally):
            column = getattr(tally, field.name)
            np.testing.assert_array_equal(column[..., :1], getattr(known, field.name), err_msg=field.name)
            if field.name not in ("kv_usage", "queue_grown", "batch_grown"):
                assert not (column < 0).any(), field.name
                assert not np.isinf(column).any(), field.name
        busy = busy_share(tally, np.array([0.01, 0.01]), NO_SLOTS)
        assert (np.isnan(busy) | ((busy >= 0) & (busy <= 1))).all()


def test_where_slots_are_full_a_replica_is_busy_however_short_its_gaps():
    tally = counted(readings(100.0), readings(115.0, gap_s=10.0, gaps=1000.0, running=24.0))
    assert busy_share(tally, IDLE_GAP_S, np.array([24.0]))[0] == 1
    assert busy_share(tally, IDLE_GAP_S, np.array([48.0]))[0] == pytest.approx(0.5)
    assert busy_share(tally, IDLE_GAP_S, NO_SLOTS)[0] == 0


def test_a_full_pod_is_one_that_had_a_queue_at_both_readings():
    passing = counted(readings(100.0, running=24.0), readings(115.0, running=24.0, waiting=30.0))
    short = counted(readings(100.0, running=24.0, waiting=2.0), readings(115.0, running=24.0, waiting=2.0))
    lasting = counted(readings(100.0, running=24.0, waiting=10.0), readings(115.0, running=24.0, waiting=30.0))
    assert np.isnan(passing.full_running[0])
    assert np.isnan(short.full_running[0])
    assert lasting.full_running[0] == passing.most_running[0] == 24
