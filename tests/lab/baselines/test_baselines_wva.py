"""Worked examples of WVA: saturation, throughput, and the optimizer behind both."""

import numpy as np
import pytest

from autoscaler.lab.baselines import wva
from autoscaler.lab.baselines.signals import GAPS
from tests.lab.replay.synthetic import FakeView, case_of, llama, poisson

CASE = case_of(poisson([5.0], 60.0), max_replicas=50)
PROFILE = llama()


def test_wva_adds_the_shortfall_and_counts_pending_replicas() -> None:
    assert wva.balance(desired=4, ready=4, capacity=100, demand=500, up=0.85, down=0.70) == 6  # 588 - 400 = 188
    assert wva.balance(desired=6, ready=4, capacity=100, demand=500, up=0.85, down=0.70) == 6
    assert wva.balance(desired=6, ready=6, capacity=100, demand=250, up=0.85, down=0.70) == 4  # 600 - 357 = 243
    assert wva.balance(desired=2, ready=2, capacity=100, demand=0, up=0.85, down=0.70) == 1


def test_compute_bound_follows_from_the_engine_limits() -> None:
    # 8192 x 250 / 1250 = 1638 sequences, cut at 256 slots, of 1125 tokens each.
    assert wva.steady_tokens(PROFILE, 1000, 250) == 256 * 1125
    # 8192 x 10 / 4010 = 20.4 sequences of 4005 tokens.
    assert wva.steady_tokens(PROFILE, 4000, 10) == pytest.approx(8192 * 10 / 4010 * 4005)


def test_saturation_learns_the_compute_bound_from_queues() -> None:
    analyze = wva.Saturation(PROFILE)
    view = FakeView(now_s=0.0).scrape(
        60.0,
        first_tokens=100.0,
        prompt_tokens=100_000.0,
        finished=100.0,
        generation_tokens=25_000.0,
        kv_usage=np.array([0.25, 0.25]),
        waiting=np.array([0.0, 2.0]),
    )
    result = analyze(view)
    assert result is not None
    assert result[0] == 256 * 1125
    assert result[1] == pytest.approx(0.5 * PROFILE.kv_capacity_tokens + 2 * 1000)
    view.scrape(75.0, waiting=np.array([5.0, 7.0]))
    result = analyze(view)
    assert result is not None
    assert result[0] == pytest.approx(0.25 * PROFILE.kv_capacity_tokens)  # both queue, so this is their capacity
    view.scrape(90.0, waiting=np.array([0.0, 0.0]), kv_usage=np.array([0.1, 0.1]))
    result = analyze(view)
    assert result is not None
    assert result[0] == pytest.approx(0.25 * PROFILE.kv_capacity_tokens)  # remembered


def test_saturation_keeps_the_last_lengths_without_requests() -> None:
    """Idle replicas have capacity and no demand, so they are removed."""
    scaler = wva.Saturation(PROFILE)
    busy_counters = {"first_tokens": 100.0, "prompt_tokens": 1e5, "finished": 100.0, "generation_tokens": 25e3}
    view = FakeView(now_s=0.0)
    before = scaler(view.scrape(60.0, **busy_counters, kv_usage=np.array([0.25, 0.25]), waiting=np.zeros(2)))
    idle = scaler(view.scrape(4000.0, **busy_counters, kv_usage=np.zeros(2), waiting=np.zeros(2)))
    assert before is not None
    assert idle == (before[0], 0.0)


def test_itl_line_is_fitted_or_goes_through_the_empty_step() -> None:
    k = np.array([0.1, 0.3, 0.5, 0.7])
    assert wva.fit_line(np.column_stack([k, 0.04 * k + 0.008]), 0.005) == pytest.approx((0.04, 0.008))
    slope, base_s = wva.fit_line(np.array([[0.2, 0.016], [0.21, 0.016]]), 0.006)
    assert base_s == 0.006
    assert slope == pytest.approx(0.01 / 0.205, rel=0.01)


def test_throughput_is_the_cached_requests_over_itl() -> None:
    analyze = wva.Throughput(PROFILE, 0.8)
    view = FakeView(desired=2, ready=2)
    for step in range(1, 9):
        use = 0.1 * step
        view.scrape(
            15.0 * step,
            arrivals=30.0 * 15 * step,
            first_tokens=30.0 * 15 * step,
            prompt_tokens=3000.0 * 30 * 15 * step,
            finished=30.0 * 15 * step,
            generation_tokens=200.0 * 30 * 15 * step,
            kv_usage=np.array([use, use]),
            itl_buckets=np.full(len(GAPS), 1000.0 * step),
            itl_sum_s=float(sum(1000 * (0.03 * 0.1 * part + 0.008) for part in range(1, step + 1))),
        )
        result = analyze(view)
    assert result is not None
    sequences = 0.8 * PROFILE.kv_capacity_tokens / 3100
    assert sequences < PROFILE.max_num_seqs
    assert result[0] == pytest.approx(sequences / (0.03 * 0.8 + 0.008), rel=0.25)  # ITL is a mean over a minute
    assert result[1] == pytest.approx(30 * 200)


@pytest.mark.parametrize(("calm_until_s", "grows_s"), [(0.0, 15 + 240), (100.0, 90 + 240)])
def test_wva_waits_four_minutes_before_scaling_up(calm_until_s: float, grows_s: int) -> None:
    scaler = wva.Wva("wva", CASE, lambda view: (100.0, 150.0 if view.now_s < calm_until_s else 500.0))
    view = FakeView(desired=2, ready=2)
    counts = {}
    for now in range(15, 400, 15):
        view.scrape(float(now), running=np.ones(view.desired))
        view.desired = view.ready = counts[now] = scaler.decide(view)
    assert min(now for now, count in counts.items() if count > 2) == grows_s


def test_wva_scales_to_zero_after_ten_idle_minutes() -> None:
    scaler = wva.Wva("wva", CASE, lambda view: None, least=0)
    view = FakeView(desired=1)
    counts = {}
    for now in range(15, 900, 15):
        view.scrape(float(now), gateway_waiting=1.0 if now == 885 else 0.0)
        view.desired = counts[now] = scaler.decide(view)
    assert counts[585] == 1
    assert counts[600] == 0
    assert counts[870] == 0
    assert counts[885] == 1
