"""The HPA's algorithm and KEDA on top of it, compared with the fake of the KEDA adapter's tests."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.hpa as double
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.baselines.hpa import Direction, HpaInflight, HpaPolicy, HpaRule
from autoscaler.lab.baselines.keda import Executor
from autoscaler.lab.replay.case import Scaler
from tests.lab.replay.synthetic import FakeView, case_of, poisson

CASE = case_of(poisson([5.0], 60.0), max_replicas=50)


def test_count_is_kept_within_tolerance_else_value_over_target() -> None:
    hpa = HpaRule(target=5, least=1, most=100)
    assert hpa.recommend(2, 12.0) == 3
    assert hpa.recommend(2, 10.9) == 2  # ratio 1.09
    assert hpa.recommend(10, 55.0) == 10  # 1.1 is still within
    assert hpa.recommend(10, 55.1) == 12
    assert hpa.recommend(10, 44.9) == 9
    assert HpaRule(1, 1, 100, tolerance=0.0).recommend(10, 11.0) == 11


@given(
    st.lists(st.floats(0, 500, allow_nan=False), min_size=1, max_size=60),
    st.sampled_from([1, 5, 7.5]),
    st.integers(1, 4),
)
def test_counts_match_a_second_implementation(values: list[float], target: float, least: int) -> None:
    hpa = HpaRule(target, least, 60)
    # The fake keeps a recommendation that is exactly as old as the window; the controller does not.
    down = double.Direction(299.0, double.DEFAULT_DOWN.policies)
    other = double.Hpa(min_replicas=least, max_replicas=60, target=Decimal(str(target)), down=down, replicas=1)
    count = 1
    for step, value in enumerate(values):
        shown = round(value, 3)
        count = hpa.sync(step * 15.0, count, shown)
        assert count == other.sync(step * 15.0, Decimal(str(shown)))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(1, 240), st.integers(1, 240))
def test_windows_and_policies_match_a_second_implementation(wishes: list[int], up_s: int, down_s: int) -> None:
    """One direction at a time, because the fake does not undo changes of the other direction."""
    for series in (sorted(wishes), sorted(wishes, reverse=True)):
        hpa = HpaRule(
            1,
            1,
            60,
            Direction(up_s, (HpaPolicy("Pods", 2, 60),)),
            Direction(down_s, (HpaPolicy("Percent", 25, 60),)),
            0.0,
        )
        other = double.Hpa(
            min_replicas=1,
            max_replicas=60,
            target=Decimal(1),
            up=double.Direction(up_s - 0.5, (double.Policy("Pods", 2, 60),), 0.0),
            down=double.Direction(down_s - 0.5, (double.Policy("Percent", 25, 60),), 0.0),
            replicas=max(series[0], 1),
        )
        count = other.replicas
        for step, wish in enumerate(series):
            count = hpa.sync(step * 15.0, count, float(wish))
            assert count == other.sync(step * 15.0, Decimal(wish))


def test_the_count_doubles_or_gains_four_at_each_sync() -> None:
    hpa = HpaRule(1, 1, 100)
    counts = [1]
    for step in range(5):
        counts.append(hpa.sync(step * 15.0, counts[-1], 90.0))
    assert counts == [1, 5, 10, 20, 40, 80]


def test_down_goes_to_the_highest_recommendation_of_five_minutes() -> None:
    hpa = HpaRule(1, 1, 100)
    count = hpa.sync(0, 10, 10.0)
    wishes = {15: 8.0, 30: 3.0}
    times = range(15, 360, 15)
    history = {}
    for now in times:
        count = hpa.sync(now, count, wishes.get(now, 3.0))
        history[now] = count
    assert history[285] == 10  # the recommendation of time 0 counts until then
    assert history[300] == 8
    assert history[315] == 3


def test_requests_in_flight_are_kept_at_the_target() -> None:
    scaler = HpaInflight(CASE, target=16, stabilization_s=300)
    view = FakeView(desired=2, ready=2).scrape(15.0, running=np.array([40.0, 30.0]), waiting=np.array([5.0, 5.0]))
    assert scaler.decide(view) == 5  # 80 / 16


def test_gateway_requests_count_when_no_pod_is_ready() -> None:
    scaler = HpaInflight(CASE, target=10, stabilization_s=300)
    assert scaler.decide(FakeView(desired=1, ready=0).scrape(15.0, gateway_waiting=33.0)) == 4


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.sampled_from([0, 1, 2]))
def test_scaling_to_zero_matches_a_second_implementation(active: list[bool], least: int) -> None:
    executor, other = Executor(least), double.Executor(least, 300.0)
    count = expected = 1
    for step, is_active in enumerate(active):
        count = executor.poll(step * 30.0, count, is_active)
        expected = other.poll(step * 30.0, is_active, expected)
        assert count == expected


def keda(name: str = "keda-queue", least: float = 0.0) -> Scaler:
    target = 5.0 if name == "keda-queue" else 2.0
    return BASELINES[name](CASE, {"target": target, "stabilization_s": 300.0, "min_replicas": least})


def test_queue_of_twelve_over_threshold_five_gives_three() -> None:
    view = FakeView(desired=1)
    scaler = keda()
    assert scaler.decide(view.scrape(15.0, running=np.array([256.0]), waiting=np.array([12.0]))) == 3


def test_empty_queue_scales_to_zero_after_the_cooldown() -> None:
    view = FakeView(desired=1)
    scaler = keda()
    counts = {}
    for now in range(15, 600, 15):
        queue = 12.0 if now == 15 else 0.0
        view.desired = scaler.decide(view.scrape(float(now), waiting=np.array([queue])))
        counts[now] = view.desired
    assert counts[15] == 3
    assert counts[300] >= 1
    zero_s = min(now for now, count in counts.items() if count == 0)
    assert 315 <= zero_s <= 345  # 300 s after the last activity, seen by a poll every 30 s


def test_gateway_queue_wakes_one_replica_then_the_hpa_follows() -> None:
    view = FakeView(desired=0, ready=0)
    scaler = keda()
    counts = []
    for now in (15.0, 30.0, 45.0):
        view.desired = scaler.decide(view.scrape(now, gateway_waiting=40.0))
        counts.append(view.desired)
    assert counts[0] == 1
    assert counts[1] >= 5


def test_request_rate_counts_arrivals() -> None:
    view = FakeView(desired=1)
    scaler = keda("keda-rps", least=1.0)
    for now in range(15, 91, 15):
        view.scrape(float(now), arrivals=7.0 * now, finished=0.0)
    assert scaler.decide(view) == 4  # 7 per second over 2


@pytest.mark.parametrize("count", [0, 3])
def test_count_is_clamped_but_zero_stays(count: int) -> None:
    assert HpaRule(1, 5, 10).sync(0.0, count, 7.0) == (0 if count == 0 else 5)
