import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.adapters.prometheus.range.resample import (
    COUNTERS,
    EngineSeries,
    LatencyHistograms,
    WorkloadHistory,
    resample,
)
from autoscaler.lab.replay.case import Goal
from autoscaler.lab.replay.inputs.from_history import (
    NoRequests,
    RecordedScaler,
    count_replicas,
    to_score,
    to_timeline,
    to_trace,
)
from autoscaler.lab.replay.inputs.trace_file import MOST_TOKENS
from autoscaler.lab.replay.run import run
from tests.lab.replay import synthetic

GOAL = Goal(1.0, 0.1, 0.99)


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def past(pods: np.ndarray, arrivals: np.ndarray, step_s: float = 15.0) -> WorkloadHistory:
    return WorkloadHistory(
        start_s=1e9,
        step_s=step_s,
        pods=pods,
        running=np.ones(len(pods)),
        waiting=np.zeros(len(pods)),
        arrivals=arrivals,
        finished=arrivals,
        first_tokens=arrivals,
        prompt_tokens=300.0 * arrivals,
        generation_tokens=80.0 * arrivals,
        pods_added=np.zeros(len(pods)),
        window_s=60.0,
        ttft=LatencyHistograms(
            column(0.5, 1.0, 2.0, np.inf), np.array([[50, 90, 99, 100], [100, 100, 100, 100]], np.float64)
        ),
        itl=LatencyHistograms.none(),
    )


def test_trace_has_the_counted_requests_of_each_step() -> None:
    history = past(np.ones(4), column(3, 0, 5, 2))
    trace = to_trace(history, "again", seed=1)
    assert np.bincount((trace.arrival_s // 15).astype(int), minlength=4).tolist() == [3, 0, 5, 2]
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert trace.duration_s == 60.0
    assert trace.start_s == history.start_s


@pytest.mark.parametrize(("count", "said"), [(5e7, "100,000,000"), (1e300, r"2e\+300")])
def test_too_many_requests_are_refused(count: float, said: str) -> None:
    with pytest.raises(ValueError, match=f"again: {said} requests are more than 50,000,000"):
        to_trace(past(np.ones(2), column(count, count)), "again", seed=1)


def test_lengths_are_clamped_to_the_longest_request() -> None:
    history = replace(past(np.ones(2), column(5, 5)), prompt_tokens=column(1e300, 0))
    assert to_trace(history, "again", seed=1).prompt_tokens.max() == MOST_TOKENS


def test_fractional_requests_add_up() -> None:
    trace = to_trace(past(np.ones(1000), np.full(1000, 0.3)), "again", seed=1)
    assert abs(len(trace.arrival_s) - 300) <= 1


def test_lengths_follow_the_mean_over_time() -> None:
    history = past(np.ones(960), np.full(960, 5.0))
    later = np.arange(960) >= 480
    history = replace(history, prompt_tokens=np.where(later, 4000.0, 1000.0))
    trace = to_trace(history, "again", seed=1)
    early = trace.arrival_s < 6000
    late = trace.arrival_s > 8400
    assert trace.prompt_tokens[early].mean() == pytest.approx(200, rel=0.1)
    assert trace.prompt_tokens[late].mean() == pytest.approx(800, rel=0.1)
    assert trace.output_tokens.mean() == pytest.approx(80, rel=0.02)
    assert trace.output_tokens.min() >= 1


def test_seed_determines_the_requests() -> None:
    history = past(np.ones(40), np.full(40, 5.0))
    one, same, other = (to_trace(history, "again", seed) for seed in (1, 1, 2))
    assert np.array_equal(one.arrival_s, same.arrival_s)
    assert np.array_equal(one.output_tokens, same.output_tokens)
    assert not np.array_equal(one.arrival_s, other.arrival_s)


def test_history_without_requests_is_refused() -> None:
    with pytest.raises(NoRequests, match="team/model: no request came"):
        to_trace(past(np.ones(4), np.zeros(4)), "team/model", seed=1)


def test_gap_without_counters_has_no_replica_and_no_request() -> None:
    history = past(column(1, np.nan, 2, 2), column(1, np.nan, 1, 1))
    assert count_replicas(history).tolist() == [1, 0, 2, 2]
    assert len(to_trace(history, "again", 1).arrival_s) == 3


def test_gap_with_counters_keeps_the_replicas_before_it() -> None:
    """Ten minutes without a scrape begin and end within a step; a third replica appears after them."""
    at_s = np.concatenate([np.arange(7.0, 600.0, 15.0), np.arange(1207.0, 1800.0, 15.0)])
    alike = dict.fromkeys(COUNTERS, 2 * at_s)
    engines = [EngineSeries(pod, at_s, np.ones(len(at_s)), np.zeros(len(at_s)), **alike) for pod in "ab"]
    late = at_s[at_s > 1500]
    engines.append(EngineSeries("c", late, *np.zeros((6, len(late)))))
    columns = resample(0.0, 1800.0, 15.0, engines)
    history = replace(past(np.ones(120), np.ones(120)), **columns)
    assert np.isnan(history.pods).sum() * 15.0 > 500
    counts = count_replicas(history)
    assert counts[:99].tolist() == [2] * 99
    assert counts[101:-1].tolist() == [3] * 18  # the last scrape covers the last step in part
    assert len(to_trace(history, "again", 1).arrival_s) == pytest.approx(4 * 1800, rel=0.02)
    row = to_score(history, GOAL, gpus_per_replica=1.0, cold_start_s=0.0)
    assert row.gpu_hours == pytest.approx((2 * 1800 + 300) / 3600, rel=0.01)
    assert row.scale_ups == 1


def test_actual_score_comes_from_pods_and_histograms() -> None:
    history = replace(past(column(1, 2, 2, 1), np.ones(4)), pods_added=column(0, 1, 0, 0))
    row = to_score(history, Goal(1.0, math.nan, 0.99), gpus_per_replica=2.0, cold_start_s=90.0)
    assert row.gpu_hours == pytest.approx(2 * (6 * 15 + 90) / 3600)
    assert row.attainment == row.attainment_ttft == pytest.approx(190 / 200)
    assert (row.scale_ups, row.scale_downs, row.flaps) == (1, 1, 1)
    assert row.breach_s == 60.0  # the first window only
    assert row.ttft_p50_s == pytest.approx(1 / 3)


def test_later_part_is_scored_on_its_own() -> None:
    whole = replace(past(column(1, 1, 1, 1, 2, 3, 3, 3), np.ones(8)), pods_added=column(0, 0, 0, 0, 1, 1, 0, 0))
    late = whole.since(60.0)
    assert (late.start_s, late.duration_s) == (1e9 + 60, 60.0)
    row = to_score(late, Goal(1.0, math.nan, 0.99), gpus_per_replica=1.0, cold_start_s=90.0)
    assert row.gpu_hours == pytest.approx((11 * 15 + 2 * 90) / 3600)
    assert row.attainment == 1.0  # of the second window
    assert row.scale_ups == 1
    assert to_timeline(late)[:, :2].tolist() == [[0, 2], [15, 3], [30, 3], [45, 3]]
    assert len(whole.since(1.0).pods) == 7 and len(whole.since(1.0).ttft.counts) == 1
    assert repr(to_score(whole.since(0.0), GOAL, 1.0, 90.0)) == repr(to_score(whole, GOAL, 1.0, 90.0))


def test_attainment_of_two_objectives_is_unknown() -> None:
    history = past(np.ones(4), np.ones(4))
    itl = LatencyHistograms(column(0.05, 0.1, np.inf), np.array([[9.0, 10.0, 10.0]]))
    row = to_score(replace(history, itl=itl), GOAL, 1.0, 60.0)
    assert math.isnan(row.attainment)
    assert row.attainment_itl == 1.0


def test_without_histograms_shares_are_unknown_and_never_zero() -> None:
    row = to_score(replace(past(np.ones(4), np.ones(4)), ttft=LatencyHistograms.none()), GOAL, 1.0, 60.0)
    assert math.isnan(row.attainment_ttft)
    assert math.isnan(row.ttft_p99_s)
    assert math.isnan(row.breach_s)
    assert math.isnan(row.unfinished)


def test_breach_time_is_unknown_without_both_histograms() -> None:
    assert math.isnan(to_score(past(np.ones(4), np.ones(4)), GOAL, 1.0, 60.0).breach_s)
    itl = LatencyHistograms(column(0.05, 0.1, np.inf), np.array([[10.0, 10.0, 10.0], [9.0, 9.0, 10.0]]))
    assert to_score(replace(past(np.ones(4), np.ones(4)), itl=itl), GOAL, 1.0, 60.0).breach_s == 120.0


def test_recorded_replicas_are_ready_when_they_were() -> None:
    counts = np.repeat([1.0, 3.0, 1.0], 40)
    history = past(counts, np.ones(120))
    case = synthetic.case_of(synthetic.trace(np.arange(100) * 18.0, duration_s=1800.0))
    outcome = run(case, RecordedScaler(history, 60.0))
    at, ready = outcome.timeline[:, 0], outcome.timeline[:, 2]
    assert ready[(at > 660) & (at < 1140)].tolist() == [3.0] * int(((at > 660) & (at < 1140)).sum())
    assert ready[(at > 120) & (at < 540)].max() == 1.0


def test_timeline_of_history_shows_replicas_and_load() -> None:
    rows = to_timeline(past(column(1, np.nan, 2, 2), column(1, np.nan, 1, 1)))
    assert rows.shape == (4, 5)
    assert rows[:, 2].tolist() == [1, 0, 2, 2]
