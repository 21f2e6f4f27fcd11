"""Worked examples of each rule, and its timing."""

import math

import numpy as np
import pytest

from autoscaler.lab.baselines import aibrix, dynamo, knative, llmd, predictors, ray_serve, skyserve, static
from autoscaler.lab.baselines import load_test as loadtest
from autoscaler.lab.baselines.signals import GAPS, TTFT, MovingMax, MovingMean
from autoscaler.lab.replay.case import Goal
from tests.lab.replay.synthetic import GOAL, FakeView, case_of, llama, observed, poisson

CASE = case_of(poisson([5.0], 60.0), max_replicas=50)
PROFILE = llama()


# Windows.


def test_moving_mean_drops_values_older_than_its_window() -> None:
    mean = MovingMean(6.0)
    assert [mean.add(float(now), float(now)) for now in range(0, 10, 2)] == [0.0, 1.0, 2.0, 4.0, 6.0]


def test_moving_maximum_falls_when_the_maximum_is_too_old() -> None:
    highest = MovingMax(20.0)
    assert [highest.add(now, count) for now, count in ((0, 5), (10, 3), (20, 4), (21, 1), (41, 2))] == [5, 5, 5, 4, 2]


# Knative.


def test_knative_divides_concurrency_by_70_percent_of_the_limit() -> None:
    scaler = knative.Knative(CASE, limit=10)
    assert scaler.scale(0.0, ready=4, stable=27.9, panic=27.9) == 4
    assert scaler.scale(2.0, ready=4, stable=28.1, panic=28.1) == 5


def test_knative_shrinks_by_half_at_most() -> None:
    assert knative.Knative(CASE, limit=10).scale(0.0, ready=8, stable=1.0, panic=1.0) == 4


def test_knative_panics_at_200_percent_for_a_stable_window() -> None:
    scaler = knative.Knative(CASE, limit=10)
    assert scaler.scale(0.0, ready=2, stable=7.0, panic=28.0) == 4  # 4 / 2 is the threshold
    assert scaler.scale(30.0, ready=4, stable=7.0, panic=7.0) == 4
    assert scaler.scale(60.0, ready=4, stable=7.0, panic=7.0) == 4
    assert scaler.scale(62.0, ready=4, stable=7.0, panic=7.0) == 2


def test_knative_keeps_the_last_replica_for_the_grace_period() -> None:
    scaler = knative.Knative(CASE, limit=10, stable_s=60.0, least=0)
    view = FakeView(concurrency=5.0)
    counts = {}
    for now in range(2, 200, 2):
        view.now_s, view.concurrency = float(now), 5.0 if now <= 10 else 0.0
        view.desired = view.ready = counts[now] = scaler.decide(view)
    assert min(now for now, count in counts.items() if count == 0) == 10 + 60 + 30


def test_knative_keeps_replicas_until_its_window_is_full() -> None:
    """Requests before the run are unknown, but the window reaches back beyond its beginning."""
    scaler = knative.Knative(CASE, limit=10, stable_s=60.0, least=0)
    view, counts = FakeView(concurrency=0.0, desired=1, ready=1), {}
    for now in range(2, 200, 2):
        view.now_s = float(now)
        view.desired = view.ready = counts[now] = scaler.decide(view)
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
    view = FakeView().scrape(
        60.0, ttft_buckets=observed(TTFT, np.full(100, 0.3)), itl_buckets=observed(GAPS, np.full(99, 0.02))
    )
    assert llmd.saturation(view, GOAL) == pytest.approx(0.25 + 0.9 * 0.25)  # p90 within the bucket 0.25..0.5
    view.scrape(120.0, ttft_buckets=view.totals.ttft_buckets + observed(TTFT, np.full(100, 8.0)))
    assert llmd.saturation(view, GOAL) == 2.0


def test_saturation_without_traffic_is_zero() -> None:
    assert llmd.saturation(FakeView().scrape(60.0), GOAL) == 0.0


def test_slo_rule_has_the_documented_hpa_behaviour() -> None:
    scaler = llmd.LLMD_SLO(CASE, {"high": 0.55, "low_share": 0.4 / 0.55, "min_replicas": 1.0})
    view = FakeView(desired=4, ready=4)
    slow = np.zeros(len(TTFT))
    counts = {}
    for now in range(15, 800, 15):
        if now <= 90:
            slow = slow + observed(TTFT, np.full(50, 0.9))
        view.scrape(float(now), ttft_buckets=slow, running=np.ones(view.desired))
        view.desired = view.ready = counts[now] = scaler.decide(view)
    assert counts[30] == 4
    grown = max(counts.values())
    assert 4 < grown <= 8 * 2
    falls = [now for now in range(30, 795, 15) if counts[now] < counts[now - 15]]
    assert all(counts[now] == counts[now - 15] - 1 for now in falls)
    assert len(falls) >= 2 and min(np.diff(falls)) >= 120
    assert falls[0] >= 90 + 180


# AIBrix.


@pytest.mark.parametrize(
    ("n", "q", "desired"),
    [
        (4, 1.5, 6),
        (4, 3.0, 8),
        (4, 1.1, 4),
        (4, 0.9, 4),
        (4, 0.8, 4),
        (4, 0.5, 2),
        (4, 0.1, 2),
        (5, 0.1, 2),
        (1, 0.0, 0),
    ],
)
def test_apa_keeps_a_band_and_at_most_doubles_or_halves(n: int, q: float, desired: int) -> None:
    assert aibrix.desired_replicas(n, q) == desired


def test_apa_counts_starting_replicas() -> None:
    scaler = aibrix.AibrixApa(CASE, target=10)
    view = FakeView(desired=2, ready=2).scrape(10.0, running=np.array([15.0, 15.0]))
    assert scaler.decide(view) == 3
    view.desired = 3
    assert scaler.decide(view.scrape(20.0)) == 3


def test_apa_shrinks_to_the_highest_value_of_five_minutes() -> None:
    scaler = aibrix.AibrixApa(CASE, target=10)
    view = FakeView(desired=4, ready=4)
    counts = {}
    for now in range(10, 700, 10):
        view.scrape(float(now), running=np.array([40.0 if now == 10 else 5.0]))
        view.desired = counts[now] = scaler.decide(view)
    assert counts[310] == 4
    assert counts[320] == 2
    assert counts[690] == 1


# Dynamo.


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


def test_throughput_mode_sizes_for_the_last_interval() -> None:
    scaler = dynamo.DynamoThroughput(CASE, "constant", 180.0)
    view = FakeView()
    view.scrape(
        180.0, arrivals=18_000.0, first_tokens=18_000.0, prompt_tokens=18e6, finished=18_000.0, generation_tokens=1.8e6
    )
    assert scaler.decide(view) == math.ceil(100 / loadtest.engine_rps(PROFILE, GOAL, 1000, 100))


def test_throughput_mode_keeps_the_count_without_requests() -> None:
    scaler = dynamo.DynamoThroughput(CASE, "constant", 180.0)
    assert scaler.decide(FakeView(desired=3).scrape(180.0)) == 3


def test_correction_tightens_itl_by_observed_over_expected() -> None:
    goal = Goal(1.0, 0.05, 0.99)
    case = case_of(poisson([5.0], 60.0), max_replicas=5000, goal=goal)
    prompt = 50 * 1000 / 100  # 50 requests of 100 tokens: a prompt begins in every other step
    expected_s = (
        PROFILE.step_s + 50 * (PROFILE.sequence_s + PROFILE.kv_token_s * 1050) + PROFILE.prompt_token_s * prompt
    )

    def decided(observed_s: float, corrected: bool) -> int:
        view = FakeView(desired=2, ready=2)
        for now_s in np.arange(15.0, 181.0, 15.0):  # as many requests are in flight at every scrape
            totals = view.scrape(now_s, running=np.array([30.0, 50.0]), waiting=np.array([0.0, 20.0]))
        totals.scrape(
            180.0,
            arrivals=180_000.0,
            first_tokens=180_000.0,
            prompt_tokens=180e6,
            finished=180_000.0,
            generation_tokens=18e6,
            itl_sum_s=observed_s * 18e6,
            itl_buckets=np.full(len(GAPS), 18e6),
        )
        return dynamo.DynamoThroughput(case, "constant", 180.0, corrected=corrected).decide(view)

    for factor in (0.8, 1.0, 1.5):
        corrected = loadtest.engine_rps(PROFILE, Goal(1.0, 0.05 / factor, 0.99), 1000, 100)
        assert decided(factor * expected_s, corrected=True) == math.ceil(1000 / corrected)
        assert decided(factor * expected_s, corrected=False) == math.ceil(
            1000 / loadtest.engine_rps(PROFILE, goal, 1000, 100)
        )
    assert decided(math.nan, corrected=True) == decided(1.0, corrected=False)


def load_view(queue: float, kv_usage: float, ready: int = 3) -> FakeView:
    view = FakeView(desired=3, ready=ready, starting=3 - ready)
    return view.scrape(
        60.0,
        first_tokens=600.0,
        prompt_tokens=600_000.0,
        finished=600.0,
        generation_tokens=60_000.0,
        itl_sum_s=600.0,
        itl_buckets=np.full(len(GAPS), 60_000.0),
        running=np.full(3, 50.0),
        waiting=np.full(3, queue),
        kv_usage=np.full(3, kv_usage),
    )


def test_load_mode_adds_one_only_if_all_engines_break_an_slo() -> None:
    assert dynamo.DynamoLoad(CASE).decide(load_view(queue=30.0, kv_usage=0.2)) == 4  # 31 prompts of 1000 tokens: 1.1 s
    one_free = load_view(queue=30.0, kv_usage=0.2)
    one_free.scrape(75.0, waiting=np.array([30.0, 30.0, 0.0]))
    assert dynamo.DynamoLoad(CASE).decide(one_free) == 3


def test_load_mode_removes_one_if_others_stay_below_80_percent() -> None:
    assert dynamo.DynamoLoad(CASE).decide(load_view(queue=0.0, kv_usage=0.1)) == 2
    assert dynamo.DynamoLoad(CASE).decide(load_view(queue=16.0, kv_usage=0.1)) == 3  # 24 prompts: 0.87 s of 0.77 s
    assert dynamo.DynamoLoad(CASE).decide(load_view(queue=0.0, kv_usage=0.7)) == 3  # 1.05 of the cache


def test_load_mode_waits_while_a_change_is_in_progress() -> None:
    assert dynamo.DynamoLoad(CASE).decide(load_view(queue=30.0, kv_usage=0.2, ready=2)) == 3


# Predictors.


def forecast(predictor: str, values: np.ndarray, interval_s: float = 180.0) -> float:
    series = predictors.Series(predictor)
    for value in values:
        series.add(float(value))
    return series.next(interval_s)


def test_leading_zeros_are_skipped_and_nan_counts_as_zero() -> None:
    assert forecast("constant", np.array([0.0, 0.0])) == 0.0
    assert forecast("prophet", np.array([0.0, 0.0, 4.0, 4.0, 4.0, 4.0, 4.0])) == pytest.approx(4.0)
    assert forecast("constant", np.array([3.0, math.inf])) == 0.0


@pytest.mark.parametrize("predictor", ["arima", "kalman", "prophet"])
def test_line_predictor_extends_a_straight_line(predictor: str) -> None:
    assert forecast(predictor, np.arange(10.0, 60.0)) == pytest.approx(60.0, rel=0.02)


@pytest.mark.parametrize("predictor", ["arima", "kalman", "prophet", "seasonal"])
def test_last_value_is_predicted_with_fewer_than_five_points(predictor: str) -> None:
    assert forecast(predictor, np.array([5.0, 9.0, 7.0])) == 7.0


def test_autoregression_predicts_an_alternation() -> None:
    values = np.tile([10.0, 20.0], 20)
    assert forecast("arima", values) == pytest.approx(10.0, abs=0.1)


def test_seasonal_repeats_yesterday_at_the_level_of_today() -> None:
    interval_s = 3600.0
    day = 50 + 40 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    values = np.concatenate([day, day, 2 * day[:6]])
    assert forecast("seasonal", values, interval_s) == pytest.approx(2 * day[6])


def test_kalman_agrees_with_textbook_steps() -> None:
    values = np.array([10.0, 12.0, 9.0, 14.0, 15.0])
    state, spread = np.array([[10.0], [0.0]]), 1000.0 * np.eye(2)
    step, look = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0]])
    for value in values[1:]:
        state, spread = step @ state, step @ spread @ step.T + np.diag([1.0, 0.1])
        gain = spread @ look.T / (look @ spread @ look.T + 10.0)
        state = state + gain * (value - look @ state)
        spread = (np.eye(2) - gain @ look) @ spread
    assert forecast("kalman", values) == pytest.approx(float((step @ state)[0, 0]))


def test_unknown_predictor_is_named() -> None:
    with pytest.raises(ValueError, match="predictor is 'oracle'; allowed: constant"):
        predictors.Series("oracle")


# Ray Serve, SkyServe, static.


def test_ray_serve_delays_30_s_up_and_10_min_down() -> None:
    scaler = ray_serve.RayServe(CASE, target=2)
    count, counts = 1, {}
    for now in range(0, 1000, 5):
        count = counts[now] = scaler.delay(float(now), count, 9.0 if now < 200 else 1.0)
    assert counts[25] == 1
    assert counts[30] == 5  # ceil(9 / 2)
    assert counts[795] == 5
    assert counts[800] == 1


def test_ray_serve_restarts_the_delay_when_the_direction_changes() -> None:
    scaler = ray_serve.RayServe(CASE, target=2)
    load = dict.fromkeys(range(0, 25, 5), 9.0) | {25: 2.0} | dict.fromkeys(range(30, 100, 5), 9.0)
    count, counts = 1, {}
    for now, ongoing in load.items():
        count = counts[now] = scaler.delay(float(now), count, ongoing)
    assert counts[55] == 1
    assert counts[60] == 5


def test_ray_serve_leaves_zero_at_once_with_one_replica() -> None:
    scaler = ray_serve.RayServe(CASE, target=2, least=0)
    view, counts = FakeView(desired=0, ready=0), []
    for step in range(50):
        view.concurrency = 10.0 * step
        view.ready = view.desired if step > 40 else 0
        view.desired = scaler.decide(view.scrape(5.0 * step))
        counts.append(view.desired)
    assert counts[:2] == [0, 1]
    assert set(counts[1:47]) == {1}
    assert counts[48] > 40  # desired for thirty seconds since then


def test_ray_serve_reaches_zero_only_from_one() -> None:
    scaler = ray_serve.RayServe(CASE, target=2, least=0)
    scaler.delay(5.0, 3, 0.0)
    assert scaler.delay(605.0, 3, 0.0) == 1
    scaler.delay(610.0, 1, 0.0)
    assert scaler.delay(1210.0, 1, 0.0) == 0


def test_skyserve_needs_15_decisions_up_and_60_down() -> None:
    scaler = skyserve.SkyServe(CASE, target=2.5)
    counts = [1]
    for _ in range(16):
        counts.append(scaler.count(counts[-1], 10.1))
    assert counts[14] == 1 and counts[15] == 5
    for _ in range(60):
        counts.append(scaler.count(counts[-1], 2.0))
    assert counts[-2] == 5 and counts[-1] == 1


def test_skyserve_resets_its_counter_when_a_decision_differs() -> None:
    scaler = skyserve.SkyServe(CASE, target=2.5)
    for _ in range(14):
        assert scaler.count(1, 10.0) == 1
    assert scaler.count(1, 2.0) == 1
    assert [scaler.count(1, 10.0) for _ in range(15)][-1] == 4


def test_skyserve_leaves_zero_at_its_next_decision() -> None:
    scaler = skyserve.SkyServe(CASE, target=1.0, least=0)
    view = FakeView(desired=0)
    assert scaler.decide(view.scrape(5.0)) == 0
    assert scaler.decide(view.scrape(10.0, arrivals=30.0)) == 3


def test_static_count_never_changes() -> None:
    assert static.Static(7).decide(FakeView(concurrency=1e6)) == 7
