"""The bound holds: no schedule that meets the goal in the simulator is cheaper, and simple ones come close."""

import itertools
import math
import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest

from autoscaler.lab.bounds.lower_bound import MOST_WINDOWS, compute_demand, compute_lower_bound
from autoscaler.lab.replay.case import Case, Goal, View
from autoscaler.lab.replay.request_cost import find_servable, idle_latencies_s, request_work_s
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import Score, compute_score
from tests.lab.replay.synthetic import case_of, llama, poisson, trace


@dataclass
class Stepped:
    """Recommends the n-th count of a list in the n-th interval."""

    counts: tuple[int, ...]
    period_s: float
    name: str = "stepped"

    def decide(self, view: View) -> int:
        return self.counts[min(round(view.now_s / self.period_s) - 1, len(self.counts) - 1)]


def all_schedules(case: Case, period_s: float, highest: int) -> list[Score]:
    """Run every schedule of counts up to `highest` that changes every `period_s`."""
    periods = round(case.trace.duration_s / period_s)
    return [
        compute_score(case, run(case, Stepped(counts, period_s)))
        for counts in itertools.product(range(highest + 1), repeat=periods)
    ]


def cheapest_that_meets(case: Case, rows: list[Score]) -> float:
    return min((row.gpu_hours for row in rows if row.attainment >= case.goal.attainment), default=math.inf)


CASES = {
    "steady": case_of(poisson([12.0] * 5, 60.0), cold_start_s=30.0),
    "a burst in the middle": case_of(poisson([4.0, 4.0, 40.0, 4.0, 4.0], 60.0), cold_start_s=30.0),
    "two visits": case_of(
        trace(np.concatenate([np.arange(60.0, 75.0), np.arange(270.0, 280.0)]), duration_s=300.0), cold_start_s=30.0
    ),
    "nobody there at first": case_of(poisson([0.0, 0.0, 15.0, 15.0, 0.0], 60.0), cold_start_s=30.0, start_replicas=0),
    "long answers": case_of(poisson([3.0, 9.0, 9.0, 3.0, 0.5], 60.0, prompt=200, output=600), cold_start_s=30.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("attainment", [0.9, 0.99])
@pytest.mark.parametrize("name", CASES)
def test_no_schedule_that_meets_the_goal_costs_less(name: str, attainment: float) -> None:
    case = replace(CASES[name], goal=Goal(1.0, 0.1, attainment))
    rows = all_schedules(case, 60.0, 2)
    best = cheapest_that_meets(case, rows)
    assert math.isfinite(best)
    assert 0 < compute_lower_bound(case).gpu_hours <= best


@pytest.mark.parametrize("start_replicas", [0, 1])
@pytest.mark.parametrize("arrival_s", [5.0, 5.3, 5.6, 90.0, 90.3, 90.6])
def test_bound_of_one_request_is_a_start_and_its_work(arrival_s: float, start_replicas: int) -> None:
    case = case_of(trace(np.array([arrival_s]), duration_s=120.0), cold_start_s=30.0, start_replicas=start_replicas)
    ttft_s, itl_s = (float(each[0]) for each in idle_latencies_s(case))
    before_s = min(30.0, arrival_s) if start_replicas else 30.0
    assert 0 < compute_lower_bound(case).replica_s <= before_s + ttft_s + itl_s * case.trace.output_tokens[0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("steady", 0.9), ("two visits", 0.25), ("nobody there at first", 0.5)])
def test_the_bound_is_not_far_below_the_best_of_coarse_schedules(name: str, share: float) -> None:
    """The schedules change once a minute, a cold start too late, which explains that much of their cost."""
    case = CASES[name]
    assert compute_lower_bound(case).gpu_hours >= share * cheapest_that_meets(case, all_schedules(case, 60.0, 2))


@pytest.mark.long
def test_random_goals_and_traffic_never_get_below_the_bound() -> None:
    rng = np.random.default_rng(7)
    met = 0
    for seed in range(8):
        rates = [float(rate) for rate in rng.choice([0.2, 5.0, 20.0, 45.0], 6)]
        case = case_of(
            poisson(rates, 40.0, seed, prompt=int(rng.integers(100, 3000)), output=int(rng.integers(1, 300))),
            goal=Goal(
                float(rng.choice([0.5, 1.0, 5.0])), float(rng.choice([0.05, 0.1])), float(rng.choice([0.8, 0.99]))
            ),
            cold_start_s=float(rng.choice([10.0, 40.0, 100.0])),
            start_replicas=int(rng.integers(0, 4)),
            profile=llama(int(rng.choice([16, 256]))),
        )
        least = compute_lower_bound(case).gpu_hours
        for counts in rng.integers(0, 6, (20, 12)):
            row = compute_score(case, run(case, Stepped(tuple(counts.tolist()), 20.0)))
            if row.attainment >= case.goal.attainment:
                met += 1
                assert row.gpu_hours >= least
        for count in (1, 3, 6):
            ready = replace(case, start_replicas=count)
            row = compute_score(ready, run(ready, Stepped((count,), 60.0)))
            if row.attainment >= case.goal.attainment:
                met += 1
                assert row.gpu_hours >= compute_lower_bound(ready).gpu_hours
    assert met > 5


@pytest.mark.slow
def test_lucky_cold_starts_stay_above_the_bound() -> None:
    """One request, for which a replica is requested so late that only a quick start is in time."""

    @dataclass
    class Late:
        name: str = "late"
        period_s: float = 5.0

        def decide(self, view: View) -> int:
            return int(60 <= view.now_s < 95)

    base = case_of(trace(np.array([90.0]), duration_s=120.0), scrape_s=5.0, start_replicas=0, goal=Goal(1.0, 0.1, 1.0))
    least_h = compute_lower_bound(replace(base, cold_start_spread=0.3)).gpu_hours
    rows = [
        compute_score(case, run(case, Late()))
        for case in (replace(base, cold_start_spread=0.3, seed=seed) for seed in range(150))
    ]
    lucky = [row.gpu_hours for row in rows if row.attainment == 1.0]
    assert lucky
    assert 0 < least_h <= min(lucky) < 45 / 3600 < compute_lower_bound(base).gpu_hours


def test_more_start_replicas_stay_above_the_bound() -> None:
    case = case_of(poisson([40.0, 40.0, 2.0], 60.0), cold_start_s=60.0, start_replicas=0)
    ready = replace(case, start_replicas=3)
    row = compute_score(ready, run(ready, Stepped((3, 1, 1), 60.0)))
    assert row.attainment >= case.goal.attainment
    assert 0 < compute_lower_bound(case).gpu_hours <= row.gpu_hours
    assert compute_lower_bound(case) == compute_lower_bound(ready)


def test_request_work_is_the_engine_time_at_full_load() -> None:
    """A replica with all slots taken spends exactly the work; no schedule shares a step better."""
    case = case_of(trace(np.zeros(256 * 4), prompt=50, output=400, duration_s=300.0), goal=Goal(1e4, 1e4, 1.0))
    prefill_s, decode_s = request_work_s(case)
    outcome = run(case, Stepped((1,), 60.0))
    spent_s = float(np.max(outcome.e2e_s))
    assert float((prefill_s + decode_s).sum()) == pytest.approx(spent_s, rel=0.02)
    assert float((prefill_s + decode_s).sum()) <= spent_s


def test_scarcest_resource_limits_the_shared_step() -> None:
    profile = llama()
    # 1 + 99 steps of each of 256 slots; at 4,000 tokens the cache holds but 114 sequences.
    short = case_of(trace(np.zeros(10), prompt=10, output=100), profile=profile)
    prefill_s, decode_s = request_work_s(short)
    own_s = 99 * profile.sequence_s + profile.kv_token_s * (99 * 10 + 99 * 100 / 2) + 10 * profile.prompt_token_s
    assert prefill_s[0] + decode_s[0] - own_s == pytest.approx(100 * profile.step_s / 256)
    long = case_of(trace(np.zeros(10), prompt=4000, output=100), profile=profile)
    prefill_s, decode_s = request_work_s(long)
    tokens = 99 * 4000 + 99 * 100 / 2
    own_s = 99 * profile.sequence_s + profile.kv_token_s * tokens + 4000 * profile.prompt_token_s
    shared = (4000 + tokens + 7.5 * 99) / profile.kv_capacity_tokens
    assert prefill_s[0] + decode_s[0] - own_s == pytest.approx(profile.step_s * shared)


def test_unservable_requests_count_as_allowed_misses() -> None:
    case = case_of(trace(np.linspace(0, 99, 100), prompt=8000, output=10, duration_s=100.0))
    assert find_servable(case).all()
    hard = replace(case, goal=Goal(0.2, 0.1, 0.99))  # a prompt of 8,000 tokens takes 0.29 s
    assert not find_servable(hard).any()
    assert compute_lower_bound(hard).gpu_hours == 0.0
    assert len(compute_demand(hard).arrival_s) == 0


def test_missing_objective_sets_no_deadline() -> None:
    case = case_of(poisson([10.0] * 3, 60.0), goal=Goal(math.nan, math.nan, 0.99))
    assert np.isinf(compute_demand(case).decode_end_s).all()
    # a request without an objective is served after the trace, for free
    assert compute_lower_bound(case).gpu_hours == 0.0


def test_higher_goal_or_longer_starts_never_cost_less() -> None:
    base = case_of(poisson([2.0, 30.0, 2.0, 30.0], 120.0), start_replicas=0)
    by_attainment = [
        compute_lower_bound(replace(base, goal=Goal(1.0, 0.1, share))).replica_s for share in (0.5, 0.9, 0.99, 1.0)
    ]
    assert by_attainment == sorted(by_attainment)
    # If no request may be missed, there is no price to search, and the bound follows the starts closely.
    must = replace(base, goal=Goal(1.0, 0.1, 1.0))
    by_start = [
        compute_lower_bound(replace(must, cold_start_s=start_s)).replica_s for start_s in (15.0, 30.0, 60.0, 120.0)
    ]
    assert by_start == sorted(by_start)
    assert by_start[-1] - by_start[0] > 100


def test_one_visit_costs_a_start_and_the_time_of_its_work() -> None:
    case = case_of(trace(np.array([300.0]), duration_s=600.0), start_replicas=0, goal=Goal(1.0, 0.1, 1.0))
    least_s = compute_lower_bound(case).replica_s
    assert 0.9 * 60 <= least_s <= 60 + 2


def test_replica_stays_between_visits_when_a_start_costs_more() -> None:
    often = case_of(trace(np.arange(0.0, 600.0, 30.0), duration_s=600.0), goal=Goal(1.0, 0.1, 1.0), start_replicas=0)
    rarely = case_of(
        trace(np.arange(0.0, 3600.0, 400.0), duration_s=3600.0), goal=Goal(1.0, 0.1, 1.0), start_replicas=0
    )
    assert 0.9 * 600 <= compute_lower_bound(often).replica_s <= 660
    assert 8 * 0.9 * 60 <= compute_lower_bound(rarely).replica_s <= 8 * 75  # the first request finds an initial replica


def test_bound_scales_with_gpus_and_is_zero_without_requests() -> None:
    case = case_of(poisson([10.0] * 3, 60.0), gpus_per_replica=4.0)
    result = compute_lower_bound(case)
    assert result.gpu_hours == pytest.approx(4 * result.replica_s / 3600)
    nobody = case_of(trace(np.array([5.0]), duration_s=100.0), goal=Goal(1.0, 0.1, 0.0))
    assert compute_lower_bound(nobody).gpu_hours == 0.0


def test_bound_is_the_work_when_starts_are_free() -> None:
    case = case_of(poisson([10.0] * 3, 60.0), cold_start_s=0.0)
    result = compute_lower_bound(case)
    assert result.replica_s == result.work_s > 0


@pytest.mark.long
@pytest.mark.parametrize("cold_start_s", [0.001, 2.0])
def test_short_cold_start_on_a_long_trace_bounds_memory(cold_start_s: float) -> None:
    case = case_of(trace(np.arange(0.0, 86_400.0, 100.0), duration_s=86_400.0), cold_start_s=cold_start_s)
    tracemalloc.start()
    try:
        result = compute_lower_bound(case)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert math.isnan(result.window_s) or math.ceil(86_400 / result.window_s - 1e-6) <= MOST_WINDOWS
    assert peak_bytes < 1 << 30
    if math.isnan(result.window_s):
        assert result.replica_s == result.work_s > 0
    else:
        assert result.replica_s > 2 * result.work_s > 0  # there is a start for each of the rare requests, or idle time


def test_fewer_windows_never_raise_the_bound() -> None:
    case = CASES["two visits"]
    fine = compute_lower_bound(case)
    coarse = [compute_lower_bound(case, most_windows=most) for most in (80, 40, 39)]
    assert [each.window_s for each in coarse] == pytest.approx([3.75, 7.5, math.nan], nan_ok=True)
    replica_s = [each.replica_s for each in (fine, *coarse)]
    assert replica_s == sorted(replica_s, reverse=True)
    assert replica_s[-1] == fine.work_s < replica_s[-2]


@pytest.mark.slow
def test_bound_of_half_a_busy_day_takes_seconds() -> None:
    hours = 12
    rates = [20 + 15 * math.sin(hour / 12 * 2 * math.pi) for hour in range(hours)]
    case = case_of(poisson(rates, 3600.0))
    result = compute_lower_bound(case)
    assert len(case.trace.arrival_s) > 800_000
    # Its work keeps one replica busy, and the busy hours need two.
    assert 1.4 * result.work_s < result.replica_s < 2 * 12 * 3600
