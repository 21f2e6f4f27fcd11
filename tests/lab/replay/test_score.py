"""The score of a run, computed by hand."""

import math

import numpy as np
import pytest

from autoscaler.lab.replay.case import Case, Goal, RunOutcome
from autoscaler.lab.replay.score import compute_score, downsample
from tests.lab.replay.cases import make_case, trace_of

INF = math.inf
GOAL = Goal(1.0, 0.05, 0.9)


def outcome(ttft_s: list[float], itl_s: list[float], changes: list[tuple[float, int]] | None = None) -> RunOutcome:
    done = [1.0 if math.isfinite(gap) else INF for gap in itl_s]
    return RunOutcome(
        ttft_s=np.array(ttft_s),
        itl_s=np.array(itl_s),
        e2e_s=np.array(done),
        change_s=np.array([at_s for at_s, _ in changes or []]),
        change_to=np.array([to for _, to in changes or []], np.int64),
        spans=np.array([[0.0, 7200.0]]),
        timeline=np.empty((0, 5)),
    )


def case(arrivals: list[float], goal: Goal = GOAL, **changes: object) -> Case:
    return make_case(trace_of(arrivals, 10, duration_s=1000.0), goal=goal, **changes)


def test_request_must_meet_both_objectives_and_finish() -> None:
    row = compute_score(case([1, 2, 3, 4]), outcome([0.5, 1.0, 1.5, 0.5], [0.05, 0.06, 0.01, INF]))
    assert (row.attainment, row.attainment_ttft, row.attainment_itl) == (0.25, 0.75, 0.5)
    assert row.goodput_rps == pytest.approx(1 / 1000)
    assert row.goodput_tokens_per_s == pytest.approx(10 / 1000)
    assert row.unfinished == 1


def test_served_request_meets_missing_objectives() -> None:
    goal = Goal(math.nan, math.nan, 0.9)
    row = compute_score(case([1, 2, 3], goal), outcome([50.0, INF, 5.0], [9.0, INF, INF]))
    assert (row.attainment, row.attainment_ttft, row.attainment_itl) == pytest.approx((1 / 3, 2 / 3, 1 / 3))


def test_quantiles_are_real_values_and_include_unanswered() -> None:
    values = [0.1 * number for number in range(1, 99)] + [INF, INF]
    row = compute_score(case([float(n) for n in range(100)]), outcome(values, [0.0] * 100))
    assert (row.ttft_p50_s, row.ttft_p95_s, row.ttft_p99_s) == pytest.approx((5.0, 9.5, INF))


def test_gpu_hours_count_every_gpu_of_a_replica() -> None:
    assert compute_score(case([1.0], gpus_per_replica=4.0), outcome([0.1], [0.0])).gpu_hours == pytest.approx(8.0)


def test_learning_part_is_in_no_figure() -> None:
    """The first two requests and changes are in the learning part. A reversal of such a change counts."""
    changes = [(0.0, 3), (450.0, 2), (500.0, 4), (600.0, 3)]
    made = outcome([9.0, INF, 0.5, 0.7], [0.01, INF, 0.01, 0.5], changes)
    row = compute_score(case([100, 400, 500, 700], counted_from_s=500.0, cold_start_s=101.0), made)
    assert (row.attainment, row.attainment_ttft, row.attainment_itl, row.unfinished) == (0.5, 1.0, 0.5, 0)
    assert (row.ttft_p50_s, row.ttft_p99_s) == (0.5, 0.7)
    assert (row.goodput_rps, row.goodput_tokens_per_s) == (1 / 500, 10 / 500)
    assert (row.scale_ups, row.scale_downs, row.flaps) == (1, 1, 1)
    assert row.breach_s == 60.0  # the minute of the last one
    assert compute_score(case([100, 400], counted_from_s=500.0), outcome([9.0, INF], [0.0, INF])).attainment == 1.0


def test_reversal_within_one_cold_start_is_a_flap() -> None:
    changes = [(0.0, 3), (500.0, 2), (1100.0, 4), (1701.0, 5), (1800.0, 4), (1900.0, 1)]
    row = compute_score(case([1.0], cold_start_s=600.0), outcome([0.1], [0.0], changes))
    assert (row.scale_ups, row.scale_downs, row.flaps) == (3, 3, 2)  # 500 s and 1800 s; 1100 s is a cold start later
    quick = compute_score(case([1.0], cold_start_s=99.0), outcome([0.1], [0.0], changes))
    assert (quick.scale_ups, quick.scale_downs, quick.flaps) == (3, 3, 0)
    first = compute_score(case([1.0], start_replicas=3), outcome([0.1], [0.0], [(5.0, 1)]))
    assert (first.scale_ups, first.scale_downs) == (0, 1)


def test_minute_below_the_attainment_is_in_breach() -> None:
    arrivals = [float(n) for n in range(10)] + [70.0, 71.0] + [200.0]
    ttft_s = [0.1] * 9 + [2.0] + [0.1, 2.0] + [0.1]  # 90 %, 50 %, none, 100 %
    assert compute_score(case(arrivals), outcome(ttft_s, [0.0] * 13)).breach_s == 60.0


def test_trace_without_requests_has_a_score() -> None:
    row = compute_score(case([]), outcome([], []))
    assert (row.attainment, row.breach_s) == (1.0, 0.0)
    assert math.isnan(row.ttft_p99_s)


def test_downsampled_timeline_keeps_its_peaks() -> None:
    rows = np.zeros((10_000, 5))
    rows[:, 0] = np.arange(10_000)
    rows[7777, 1] = 42.0
    thinned = downsample(rows, 100)
    assert len(thinned) == 100
    assert thinned[:, 1].max() == 42.0
    assert (np.diff(thinned[:, 0]) > 0).all()


def test_goal_tolerates_rounding_and_refuses_nan() -> None:
    goal = Goal(1.0, 0.1, 0.99)
    assert goal.is_met_by(0.99)
    assert goal.is_met_by(float(np.average([0.985, 0.995], weights=[1.0, 1.0])) - 1e-15)
    assert not goal.is_met_by(0.98999)
    assert not goal.is_met_by(float("nan"))
