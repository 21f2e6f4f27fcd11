"""The arithmetic of the HPA and of KEDA, compared with transcriptions of their code, and the baselines made of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.hpa as double
from autoscaler.config.rules.query import recognize
from autoscaler.config.rules.rule import DOWN, UP, BehaviorPolicy, Closed, Direction, Fallback, HpaRule, Keda, Metric
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.baselines.hpa import HpaController, propose
from autoscaler.lab.baselines.keda import Executor, TriggerFailures
from autoscaler.lab.replay.case import Scaler
from tests.lab.baselines.controller import Controller
from tests.lab.replay.synthetic import FakeView, case_of, poisson

CASE = case_of(poisson([5.0], 60.0), max_replicas=50)
SOURCE = Closed(recognize("sum(vllm:num_requests_waiting)"))

POLICIES = st.builds(
    BehaviorPolicy,
    st.sampled_from(["Pods", "Percent"]),
    st.sampled_from([1, 2, 4, 10, 25, 50, 100, 150]),
    st.sampled_from([15, 30, 60, 120, 600]),
)
DIRECTIONS = st.builds(
    Direction,
    st.sampled_from([0.0, 15.0, 60.0, 180.0, 300.0]),
    st.lists(POLICIES, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["Max", "Max", "Min", "Disabled"]),
    st.sampled_from([0.0, 0.05, 0.1, 0.5]),
)
HPAS = st.builds(HpaRule, st.integers(1, 4), st.integers(4, 60), DIRECTIONS, DIRECTIONS) | st.builds(
    lambda least, most: HpaRule(least, most, stated=False), st.integers(1, 4), st.integers(4, 60)
)
METRICS = st.builds(
    lambda target, kind: Metric("m", SOURCE, target, is_average=kind != "Value", per_pod=kind == "Pods"),
    st.sampled_from([0.001, 0.5, 1.0, 5.0, 7.5, 80.0]),
    st.sampled_from(["AverageValue", "Value", "Pods"]),
)
THOUSANDTHS = st.integers(0, 500_000).map(lambda milli: milli / 1000)


@st.composite
def syncs(draw: st.DrawFn) -> tuple[HpaRule, list[Metric], list[list[list[float] | None]], list[int]]:
    """An HPA, its metrics, their values at each sync (None: none), and how many pods are not ready."""
    metrics = draw(st.lists(METRICS, min_size=1, max_size=3))
    rounds = draw(st.integers(1, 50))
    answers = st.none() | st.lists(THOUSANDTHS, min_size=1, max_size=2)
    values = [[draw(answers) for _ in metrics] for _ in range(rounds)]
    return draw(HPAS), metrics, values, [draw(st.integers(0, 3)) for _ in range(rounds)]


@given(syncs(), st.integers(0, 70))
def test_counts_match_the_transcription(drawn: tuple, start: int) -> None:
    hpa, metrics, rounds, unready = drawn
    ours, theirs = HpaController(hpa), Controller(hpa)
    count = start
    for step, (values, waiting) in enumerate(zip(rounds, unready, strict=True)):
        now_s, ready = step * 15.0, max(count - waiting, 0)
        pairs = [
            (metric, value if value is None or not metric.per_pod else (value * 40)[: max(ready, 1)])
            for metric, value in zip(metrics, values, strict=True)
        ]
        proposals = [
            propose(metric, np.array(value or []), count, ready, hpa) if count else None for metric, value in pairs
        ]
        expected = theirs.reconcile(now_s, count, ready, pairs)
        assert ours.sync(now_s, count, proposals) == expected
        count = expected


def average(target: float) -> Metric:
    return Metric("m", SOURCE, target)


def proposed(value: float, target: float, current: int, tolerance: float = 0.1) -> int | None:
    hpa = HpaRule(up=Direction(0, (), tolerance=tolerance), down=Direction(0, (), tolerance=tolerance))
    return propose(average(target), np.array([value]), current, current, hpa)


@pytest.mark.parametrize(
    ("current", "value", "target", "count"),
    [
        (2, 12.0, 5, 3),
        (2, 10.9, 5, 2),  # ratio 1.09
        (10, 55.0, 5, 10),  # 1.1 is still within
        (10, 55.1, 5, 12),
        (10, 44.9, 5, 9),
    ],
)
def test_count_is_kept_within_tolerance_else_value_over_target(
    current: int, value: float, target: float, count: int
) -> None:
    assert proposed(value, target, current) == count


def test_tolerance_of_zero_follows_every_count() -> None:
    assert proposed(11.0, 1, 10, tolerance=0.0) == 11


def run_hpa(hpa: HpaRule, wishes: list[float], start: int = 1) -> list[int]:
    controller, counts = HpaController(hpa), [start]
    for step, wish in enumerate(wishes):
        proposal = propose(average(1), np.array([wish]), counts[-1], counts[-1], hpa)
        counts.append(controller.sync(step * 15.0, counts[-1], [proposal]))
    return counts


@pytest.mark.parametrize(
    ("hpa", "counts"),
    [
        (HpaRule(1, 100), [1, 5, 10, 20, 40, 80]),
        (HpaRule(1, 100, stated=False), [1, 4, 8, 16, 32, 64]),
    ],
    ids=["behavior stated", "none"],
)
def test_count_doubles_at_each_sync(hpa: HpaRule, counts: list[int]) -> None:
    assert run_hpa(hpa, [90.0] * 5) == counts


def test_down_goes_to_the_highest_recommendation_of_five_minutes() -> None:
    counts = run_hpa(HpaRule(1, 100), [10.0, 8.0, *[3.0] * 22], start=10)
    assert (counts[19 + 1], counts[20 + 1], counts[21 + 1]) == (10, 8, 3)  # 285, 300 and 315 s


@pytest.mark.parametrize("count", [0, 3])
def test_count_is_clamped_but_zero_stays(count: int) -> None:
    assert HpaController(HpaRule(5, 10)).sync(0.0, count, [7]) == (0 if count == 0 else 5)


def test_count_does_not_fall_while_a_metric_is_invalid() -> None:
    quick = HpaRule(down=Direction(0.0, DOWN.policies), up=UP)
    assert HpaController(quick).sync(0.0, 6, [3, None]) == 6
    assert HpaController(quick).sync(0.0, 6, [7, None]) == 7
    assert HpaController(quick).sync(0.0, 6, [None, None]) == 6
    assert HpaController(quick).sync(0.0, 6, [3, 2]) == 3


# KEDA.

EXECUTORS = st.builds(
    Keda,
    cooldown_s=st.sampled_from([0.0, 30.0, 300.0]),
    least=st.sampled_from([0, 1, 2]),
    idle=st.sampled_from([None, None, 0, 1]),
    fallback=st.sampled_from([None, Fallback(3, 0), Fallback(3, 4)]),
    paused_in=st.booleans(),
    paused_out=st.booleans(),
    forced=st.sampled_from([False, False, True]),
).filter(lambda keda: keda.idle is None or keda.idle < keda.least)  # KEDA refuses others


@given(EXECUTORS, st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=60), st.integers(0, 3))
def test_polls_match_the_double(keda: Keda, active: list[bool | None], start: int) -> None:
    """`None`: nothing is active, and a trigger failed."""
    ours = Executor(keda)
    theirs = double.Executor(
        keda.least,
        keda.cooldown_s,
        keda.idle,
        keda.fallback.replicas if keda.fallback else None,
        paused_in=keda.paused_in,
        paused_out=keda.paused_out,
        forced=keda.forced,
    )
    count = start
    for step, is_active in enumerate(active):
        expected = theirs.poll(step * 30.0, is_active, count)
        assert ours.poll(step * 30.0, count, bool(is_active), is_active is None and not keda.forced) == expected
        count = expected


def test_first_cooldown_counts_from_creation_when_never_active() -> None:
    executor = Executor(Keda(initial_cooldown_s=120.0, cooldown_s=600.0))
    assert [executor.poll(now_s, 2, False) for now_s in (0.0, 90.0, 120.0)] == [2, 2, 0]


@pytest.mark.parametrize(
    ("behavior", "current", "replicas"),
    [
        ("static", 7, 4),
        ("currentReplicas", 7, 7),
        ("currentReplicasIfHigher", 7, 7),
        ("currentReplicasIfHigher", 2, 4),
        ("currentReplicasIfLower", 7, 4),
        ("currentReplicasIfLower", 2, 2),
    ],
)
def test_fallback_serves_its_count_after_the_threshold(behavior: str, current: int, replicas: int) -> None:
    failures, metric = TriggerFailures(Keda(fallback=Fallback(2, 4, behavior))), average(5.0)
    states = [failures.state(metric, None, False, current, current) for _ in range(3)]
    assert [state.failed for state in states] == [True, True, False]
    assert states[-1].value == 5.0 * replicas and states[-1].active
    assert not failures.state(metric, 1.0, True, current, current).fallback
    assert failures.state(metric, None, False, current, current).failed


def test_fallback_of_a_value_target_is_divided_by_ready_pods() -> None:
    failures = TriggerFailures(Keda(fallback=Fallback(0, 4)))
    metric = Metric("m", SOURCE, 5.0, is_average=False)
    assert failures.state(metric, None, False, 4, 2).value == 10.0
    assert failures.state(metric, None, False, 4, 0).failed


# The baselines made of them.


def make(name: str, **params: float) -> Scaler:
    return BASELINES[name](CASE, {"stabilization_s": 300.0, "min_replicas": 1.0, **params})


def test_requests_in_flight_are_kept_at_the_target() -> None:
    view = FakeView(desired=2, ready=2).scrape(15.0, running=np.array([40.0, 30.0]), waiting=np.array([5.0, 5.0]))
    assert make("hpa-inflight", target=16.0).decide(view) == 5  # 80 / 16


def test_gateway_requests_count_when_no_pod_is_ready() -> None:
    view = FakeView(desired=1, ready=0).scrape(15.0, gateway_waiting=33.0)
    assert make("hpa-inflight", target=10.0).decide(view) == 4


def keda(least: float = 0.0) -> Scaler:
    return make("keda-queue", target=5.0, min_replicas=least)


def test_queue_of_twelve_over_threshold_five_gives_three() -> None:
    view = FakeView(desired=1)
    assert keda().decide(view.scrape(15.0, running=np.array([256.0]), waiting=np.array([12.0]))) == 3


def test_empty_queue_scales_to_zero_after_the_cooldown() -> None:
    view = FakeView(desired=1)
    scaler = keda()
    counts = {}
    for now in range(15, 600, 15):
        queue = 12.0 if now == 15 else 0.0
        view.desired = scaler.decide(view.scrape(float(now), running=np.zeros(1), waiting=np.array([queue])))
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
    scaler = make("keda-rps", target=2.0)
    for now in range(15, 91, 15):
        view.scrape(float(now), arrivals=7.0 * now, finished=0.0)
    assert scaler.decide(view) == 4  # 7 per second over 2
