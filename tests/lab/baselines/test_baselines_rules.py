"""Worked examples of each rule, and its timing."""

import math

import numpy as np
import pytest

from autoscaler.config.rules.rule import Knative
from autoscaler.lab.baselines import llmd, static
from autoscaler.lab.baselines import load_test as loadtest
from autoscaler.lab.baselines.knative import KnativeAutoscaler
from autoscaler.lab.baselines.signals import MovingMean
from autoscaler.lab.replay.case import Goal
from tests.lab.replay.synthetic import GOAL, FakeView, case_of, llama, observed, poisson

CASE = case_of(poisson([5.0], 60.0), max_replicas=50)
PROFILE = llama()


# Windows.


def test_moving_mean_drops_values_older_than_its_window() -> None:
    mean = MovingMean(6.0)
    assert [mean.add(float(now), float(now)) for now in range(0, 10, 2)] == [0.0, 1.0, 2.0, 4.0, 6.0]


# Knative.


def test_knative_divides_concurrency_by_70_percent_of_the_limit() -> None:
    scaler = KnativeAutoscaler(Knative(10.0), 1)
    assert scaler.scale(0.0, ready=4, stable=27.9, panic=27.9) == 4
    assert scaler.scale(2.0, ready=4, stable=28.1, panic=28.1) == 5


def test_knative_shrinks_by_half_at_most() -> None:
    assert KnativeAutoscaler(Knative(10.0), 1).scale(0.0, ready=8, stable=1.0, panic=1.0) == 4


def test_knative_panics_at_200_percent_for_a_stable_window() -> None:
    scaler = KnativeAutoscaler(Knative(10.0), 1)
    assert scaler.scale(0.0, ready=2, stable=7.0, panic=28.0) == 4  # 4 / 2 is the threshold
    assert scaler.scale(30.0, ready=4, stable=7.0, panic=7.0) == 4
    assert scaler.scale(60.0, ready=4, stable=7.0, panic=7.0) == 4
    assert scaler.scale(62.0, ready=4, stable=7.0, panic=7.0) == 2


def test_knative_keeps_the_last_replica_for_the_grace_period() -> None:
    scaler = KnativeAutoscaler(Knative(10.0), 1)
    view = FakeView(concurrency=5.0)
    counts = {}
    for now in range(2, 200, 2):
        view.now_s, view.concurrency = float(now), 5.0 if now <= 10 else 0.0
        view.desired = view.ready = counts[now] = scaler.step(view.now_s, view, view.desired)
    assert min(now for now, count in counts.items() if count == 0) == 10 + 60 + 30


def test_knative_keeps_replicas_until_its_window_is_full() -> None:
    """Requests before the run are unknown, but the window reaches back beyond its beginning."""
    scaler = KnativeAutoscaler(Knative(10.0), 1)
    view, counts = FakeView(concurrency=0.0, desired=1, ready=1), {}
    for now in range(2, 200, 2):
        view.now_s = float(now)
        view.desired = view.ready = counts[now] = scaler.step(view.now_s, view, view.desired)
    assert min(now for now, count in counts.items() if count == 0) == 60


# llm-d's SLO-aware rule.


@pytest.mark.parametrize(
    ("replicas", "ready", "s", "desired"),
    [
        (4, 4, 1.1, 8),
        (4, 2, 1.1, 4),
        (4, 0, 1.1, 8),  # without a ready replica there is no credit
        (4, 3, 1.1, 6),
        (4, 4, 0.5, 4),
        (4, 4, 0.2, 2),
        (10, 10, 0.39, 10),
        (3, 3, 0.0, 0),
    ],
)
def test_slo_rule_credits_starting_replicas(replicas: int, ready: int, s: float, desired: int) -> None:
    assert llmd.desired_replicas(replicas, ready, s) == desired


def test_saturation_is_the_worse_latency_ratio_up_to_two() -> None:
    view = FakeView()
    view.scrape(60.0, latencies=observed(view.totals, ttft=np.full(100, 0.3), itl=np.full(99, 0.02)))
    assert llmd.saturation(view, GOAL) == pytest.approx(0.25 + 0.9 * 0.25)  # p90 within the bucket 0.25..0.5
    view.scrape(120.0, latencies=observed(view.totals, ttft=np.full(100, 8.0)))
    assert llmd.saturation(view, GOAL) == 2.0


def test_saturation_without_traffic_is_zero() -> None:
    assert llmd.saturation(FakeView().scrape(60.0), GOAL) == 0.0


def test_slo_rule_has_the_documented_hpa_behaviour() -> None:
    scaler = llmd.LLMD_SLO(CASE, {"high": 0.55, "low_share": 0.4 / 0.55, "min_replicas": 1.0})
    view = FakeView(desired=4, ready=4)
    counts = {}
    for now in range(15, 800, 15):
        slow = np.full(50 if now <= 90 else 0, 0.9)
        view.scrape(float(now), latencies=observed(view.totals, ttft=slow), running=np.ones(view.desired))
        view.desired = view.ready = counts[now] = scaler.decide(view)
    assert counts[30] == 4
    grown = max(counts.values())
    assert 4 < grown <= 8 * 2
    falls = [now for now in range(30, 795, 15) if counts[now] < counts[now - 15]]
    assert all(counts[now] == counts[now - 15] - 1 for now in falls)
    assert len(falls) >= 2 and min(np.diff(falls)) >= 120
    assert falls[0] >= 90 + 180


# The load test of KEDA's rate.


def test_engine_rate_is_at_the_largest_batch_within_objectives() -> None:
    rates = []
    isl, osl = 1000.0, 100.0
    for batch in range(1, 257):  # a slow second implementation
        prompt = batch * isl / osl
        itl_s = (
            PROFILE.step_s
            + PROFILE.sequence_s * batch
            + PROFILE.kv_token_s * batch * 1050
            + PROFILE.prompt_token_s * prompt
        )
        chunks = math.ceil((math.floor(prompt) + isl) / 8192)
        decode_s = PROFILE.step_s + PROFILE.sequence_s * batch + PROFILE.kv_token_s * batch * 1050
        ttft_s = chunks * decode_s + PROFILE.prompt_token_s * (math.floor(prompt) + isl)
        if itl_s > 0.1 or ttft_s > 1.0:
            break
        rates.append(batch / (osl * itl_s))
    assert loadtest.engine_rps(PROFILE, GOAL, isl, osl) == pytest.approx(rates[-1])
    tight = loadtest.engine_rps(PROFILE, Goal(1.0, 0.02, 0.99), isl, osl)
    assert 0 < tight < rates[-1]


def test_batch_is_one_when_one_request_breaks_an_objective() -> None:
    step_s = PROFILE.step_s + PROFILE.sequence_s + PROFILE.kv_token_s * 1050 + PROFILE.prompt_token_s * 10
    assert loadtest.engine_rps(PROFILE, Goal(1.0, 0.001, 0.99), 1000, 100) == pytest.approx(1 / (100 * step_s))


# A constant count.


def test_static_count_never_changes() -> None:
    assert static.Static(7).decide(FakeView(concurrency=1e6)) == 7
