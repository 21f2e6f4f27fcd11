"""Counters that fall: a restart if the start time of the process changes, else NaN."""

import math

import numpy as np
import pytest

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.readings.counter_falls import COUNTERS, REPORTED_S, UNKNOWN_WINDOWS, CounterHistory, discard_fallen
from autoscaler.core.readings.rates import GAUGES
from autoscaler.core.table.columns import replace
from tests.core.world import fleet

STARTED_S = 1_700_000_000.0
WINDOW_S = 120.0


def pods(*ids: int, workloads: tuple[int, ...] = ()) -> Fleet:
    """Pods of one workload, or of these."""
    rows = np.array(workloads or [0] * len(ids), dtype=np.int64)
    return replace(fleet([len(ids)]), pod_id=np.array(ids), pod_workload=rows)


class Watch:
    """One pod, read every 15 s."""

    def __init__(self) -> None:
        self.counted, self.time_s = CounterHistory.blank(0), 1000.0

    def read(self, start_s: float = STARTED_S, *, step_s: float = 15.0, **columns: float) -> PodSamples:
        self.time_s += step_s
        samples = replace(
            PodSamples.filled(1), time_s=np.array([self.time_s]), **{name: np.array([v]) for name, v in columns.items()}
        )
        samples_after, self.counted = discard_fallen(self.counted, samples, np.array([start_s]), pods(7), WINDOW_S)
        return samples_after

    def tokens(self, count: float, start_s: float = STARTED_S, *, step_s: float = 15.0) -> float:
        return float(self.read(start_s, step_s=step_s, generation_tokens=count).generation_tokens[0])


def test_counter_is_nan_when_it_falls_without_a_restart():
    watch = Watch()
    assert watch.tokens(1000) == 1000
    assert math.isnan(watch.tokens(0))
    assert watch.counted.fell_recently(watch.time_s)[0]
    assert not watch.counted.fell_recently(watch.time_s + REPORTED_S + 1)[0]


def test_counter_counts_from_zero_when_its_process_restarts():
    watch = Watch()
    assert (watch.tokens(1000), watch.tokens(40, STARTED_S + 60)) == (1000, 40)
    assert not watch.counted.fell_recently(watch.time_s)[0]


def test_counter_counts_from_zero_without_a_process_start():
    for starts in ((math.nan, math.nan), (STARTED_S, math.nan), (math.nan, STARTED_S)):
        watch = Watch()
        assert [watch.tokens(count, start) for count, start in zip((1000, 40), starts, strict=True)] == [1000, 40]


def test_a_counter_goes_on_when_it_is_back_after_one_reading():
    watch = Watch()
    watch.tokens(1000)
    watch.tokens(0)
    assert watch.tokens(1010) == 1010
    assert math.isnan(watch.tokens(0))  # and is doubted again


def test_counter_is_valid_again_after_two_lower_readings():
    watch = Watch()
    watch.tokens(1000)
    watch.tokens(0)
    assert [watch.tokens(count) for count in (50, 60, 70)] == [50, 60, 70]


def test_a_reading_seen_twice_is_unknown_both_times():
    watch = Watch()
    watch.tokens(1000)
    assert math.isnan(watch.tokens(0))
    assert math.isnan(watch.tokens(0, step_s=0))


def test_a_fall_by_the_last_step_is_a_late_answer():
    watch = Watch()
    assert [watch.tokens(count) for count in (1000, 1100, 1020, 1120)] == [1000, 1100, 1020, 1120]


def test_a_step_back_from_an_impossible_count_allows_no_fall():
    watch = Watch()
    read = [watch.tokens(count) for count in (1000, 1010, 0, 1020, 900)]
    assert [math.isnan(count) for count in read] == [False, False, True, False, True]


def test_a_counter_that_goes_up_and_down_is_doubted():
    watch = Watch()
    samples_after = [watch.tokens(count) for count in (0, 1000, 0, 1000, 0)]
    assert [math.isnan(value) for value in samples_after] == [False, False, True, False, True]


def test_a_difference_may_fall_alone_and_is_doubted_with_others():
    watch = Watch()
    watch.read(prompt_tokens=500, ttft_met=50, finished=10)
    alone = watch.read(prompt_tokens=400, ttft_met=20, finished=10)
    assert (alone.prompt_tokens[0], alone.ttft_met[0]) == (400, 20)
    together = watch.read(prompt_tokens=0, ttft_met=0, finished=0)
    assert np.isnan([together.prompt_tokens[0], together.ttft_met[0], together.finished[0]]).all()


@pytest.mark.parametrize("impossible", [0.0, 1e15])
def test_gauges_are_unknown_beside_counters_that_cannot_be_true(impossible: float):
    watch = Watch()
    gauges = dict.fromkeys(GAUGES, 0.5)
    watch.read(**gauges, finished=1000, generation_tokens=5000)
    forged = watch.read(**gauges, finished=impossible, generation_tokens=5001)
    again = watch.read(**gauges, finished=impossible, generation_tokens=5001, step_s=0)
    for samples in (forged, again):
        assert np.isnan([getattr(samples, name)[0] for name in (*GAUGES, "finished")]).all()
        assert samples.generation_tokens[0] == 5001
    assert watch.counted.fell_recently(watch.time_s)[0]
    later = watch.read(**gauges, finished=impossible + 1, generation_tokens=5002)
    assert [getattr(later, name)[0] for name in GAUGES] == [0.5] * len(GAUGES)


def test_quantiles_are_unknown_for_the_window_after_a_fall():
    watch = Watch()
    watch.read(running=3, finished=1000, ttft_s=0.2, itl_s=0.02)
    fallen = watch.read(running=3, finished=0, ttft_s=9, itl_s=9)
    assert np.isnan([fallen.ttft_s[0], fallen.itl_s[0]]).all()
    assert np.isnan(watch.read(finished=1001, ttft_s=9).ttft_s[0])
    later = watch.read(step_s=UNKNOWN_WINDOWS * WINDOW_S, finished=1002, ttft_s=0.2)
    assert later.ttft_s[0] == 0.2


def test_every_counter_of_the_samples_is_watched():
    watch = Watch()
    watch.read(**dict.fromkeys(COUNTERS, 100.0))
    fallen = watch.read(**dict.fromkeys(COUNTERS, 0.0))
    assert all(np.isnan(getattr(fallen, name)).all() for name in COUNTERS)


def test_pods_keep_their_counts_when_others_come_and_go():
    def samples(*tokens: float, at_s: float) -> PodSamples:
        filled = PodSamples.filled(len(tokens))
        return replace(filled, time_s=np.full(len(tokens), at_s), generation_tokens=np.array(tokens))

    _, counted = discard_fallen(CounterHistory.blank(0), samples(10, 20, at_s=1), np.full(2, 5.0), pods(1, 2), WINDOW_S)
    samples_after, _ = discard_fallen(counted, samples(0, 0, at_s=2), np.full(2, 5.0), pods(2, 3), WINDOW_S)
    assert np.isnan(samples_after.generation_tokens).tolist() == [True, False]


def test_quantiles_of_a_workload_are_nan_when_a_counter_fell():
    counted, members = CounterHistory.blank(0), pods(1, 2, 3, workloads=(0, 0, 1))
    for at_s, finished in ((15.0, [10.0, 10.0, 10.0]), (30.0, [0.0, 11.0, 11.0])):
        columns = {"time_s": np.full(3, at_s), "finished": np.array(finished), "ttft_s": np.full(3, 9.0)}
        samples = replace(PodSamples.filled(3), **columns)
        samples_after, counted = discard_fallen(counted, samples, np.full(3, STARTED_S), members, WINDOW_S)
    assert np.isnan(samples_after.finished).tolist() == [True, False, False]
    assert np.isnan(samples_after.ttft_s).tolist() == [True, True, False]
