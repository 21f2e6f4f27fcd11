"""The selected strategy: which one is selected, and what is recommended by it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.measure import step_time
from autoscaler.core.measure.capacity import count_carrying
from autoscaler.core.measure.interval import IntervalStats
from autoscaler.core.planner import error_budget, strategies
from autoscaler.core.planner.select import (
    MIN_SAVING,
    MISS_PRICE,
    StrategyState,
    select_strategy,
    update_strategies,
)
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from autoscaler.core.planner.surges import PRIOR_S
from autoscaler.core.readings.pod_deltas import MIN_INTERVAL_S
from tests.core.planner.interval_stats import NAN, WORK_S, make_silent_stats, make_stats, run, update

HOUR = int(3600 / UPDATE_INTERVAL_S)  # updates


# --- when the planner has an opinion


def test_planner_has_no_opinion_before_the_step_time_is_known():
    state, now_s = StrategyState.blank(1), 1000.0
    while state.speed.readings[0] + 1 < step_time.MIN_READINGS:
        now_s += UPDATE_INTERVAL_S
        state = update_strategies(state, make_stats(0.5, replicas=1), now_s)
        assert np.isnan(state.offered_load.demand[0])
        assert np.isnan(state.replicas[0])
    assert not np.isnan(run([0.5, 0.5], state, now_s, replicas=1).replicas[0])


def test_planner_has_no_opinion_without_an_objective():
    state = run([3.0] * 50, first_token_limit_s=NAN)
    assert state.offered_load.demand[0] == pytest.approx(3.0, rel=0.01)
    assert np.isnan(state.replicas[0])
    assert np.isnan(state.strategy[0])


def test_state_is_kept_when_demand_is_unknown():
    before = run([3.0] * 200)
    after = update(before, make_silent_stats())
    assert np.isnan(after.replicas[0])
    for place in (
        "shadow.cost",
        "shadow.missed",
        "shadow.requested",
        "history.averages",
        "strategy",
        "offered_load.busy_s",
        "offered_load.requests",
        "miss_counts.counted",
        "budget.missed",
        "budget.served",
    ):
        np.testing.assert_array_equal(after.columns()[place], before.columns()[place], err_msg=place)
    again = update(after, make_stats(3.0))
    assert again.replicas[0] == before.replicas[0]


def test_nothing_is_charged_when_the_clock_stands_or_goes_back():
    before = run([3.0] * 100)
    for after_s in (0.0, -500.0):
        after = update(before, make_stats(3.0), after_s)
        np.testing.assert_array_equal(after.shadow.cost, before.shadow.cost)
        np.testing.assert_array_equal(after.shadow.missed, before.shadow.missed)


# --- which strategy is selected

SIZES = (1.0, 10.0, 100.0)


@pytest.fixture(scope="module")
def after_a_day():
    """Return the state of workloads after a day, by the shape of their demand."""
    random = np.random.default_rng(3)
    numbers = np.arange(24 * HOUR)
    scatter = 0.3 * random.standard_normal((3, len(numbers)))
    demands = {
        "steady": np.full(len(numbers), 3.0),
        "waves": 4.0 + 3.0 * np.sin(numbers / HOUR),
        "bursts": np.where((numbers % 40 < 8) & (numbers < numbers[-12]), 6.0, 3.0),
        "surges": np.where(numbers % HOUR < 8, 100.0, 3.0),
        **{f"size {size:g}": np.maximum(size + math.sqrt(size) * scatter[n], 0.05) for n, size in enumerate(SIZES)},
    }
    replicas = np.array([max(math.ceil(1.3 * demand.max()), 1) for demand in demands.values()], dtype=float)
    cold_start_s = np.where(np.array(list(demands)) == "surges", 240.0, 60.0)
    state = run(np.stack(list(demands.values())).T, replicas=replicas, cold_start_s=cold_start_s, ceiling=1000.0)
    return {name: state.take(np.array([row])) for row, name in enumerate(demands)}


@pytest.mark.slow
def test_selected_costs_no_more_than_those_within_the_budget(after_a_day):
    state = after_a_day["waves"]
    cost, selected = state.shadow.cost[:, 0], int(state.strategy[0])
    is_within = state.shadow.missed[:, 0] < 0.8 * state.allowed_share[0] * state.shadow.arrived[0]
    assert is_within.any()
    assert cost[selected] <= (1 + MIN_SAVING) * cost[is_within].min()
    assert cost[selected] < 0.8 * cost.max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steady", "waves", "bursts", "surges", "size 1", "size 10", "size 100"])
def test_no_other_strategy_costs_and_misses_less(after_a_day, name):
    """The misses of the prior are left out; they are few after a day."""
    state = after_a_day[name]
    selected, cost, missed = int(state.strategy[0]), state.shadow.cost[:, 0], state.shadow.missed[:, 0]
    is_better = (cost < 0.98 * cost[selected]) & (missed <= 0.8 * missed[selected])
    assert not is_better.any(), [strategies.STRATEGIES[strategy] for strategy in np.flatnonzero(is_better)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["steady", "waves", "bursts", "size 1", "size 10", "size 100"])
def test_shadow_fleet_of_the_selected_stays_within_the_budget(after_a_day, name):
    """There are strategies within the budget for each of these shapes of demand."""
    state = after_a_day[name]
    share = state.shadow.missed[int(state.strategy[0]), 0] / state.shadow.arrived[0]
    assert share <= 1.1 * state.allowed_share[0]


@pytest.mark.slow
def test_steady_demand_needs_little_headroom(after_a_day):
    assert math.ceil(count_carrying(3)) <= after_a_day["steady"].replicas[0] <= 6


@pytest.mark.slow
def test_large_fleets_need_relatively_less_headroom(after_a_day):
    """Demand varies by the square root of its size, as that of independent requests does."""
    ratios = [after_a_day[f"size {size:g}"].replicas[0] / size for size in SIZES]
    assert ratios[0] > ratios[1] > ratios[2]
    assert 1 < ratios[2] < 1.5


@pytest.mark.slow
def test_bursty_demand_needs_more_than_steady_demand(after_a_day):
    assert after_a_day["bursts"].offered_load.demand[0] == pytest.approx(3.0, rel=0.02)
    assert after_a_day["bursts"].replicas[0] > after_a_day["steady"].replicas[0]


@pytest.mark.slow
def test_the_dearest_is_not_selected_against_unavoidable_misses(after_a_day):
    """Demand rises once an hour to far more than the largest constant count, for as long as a cold start."""
    state = after_a_day["surges"]
    cost = state.shadow.cost[:, 0]
    assert state.shadow.missed[:, 0].min() > state.allowed_share[0] * state.shadow.arrived[0]
    assert cost[int(state.strategy[0])] < 0.7 * cost.max()


@pytest.mark.slow
def test_cheaper_strategy_is_selected_when_all_miss_as_many(after_a_day):
    """After a surge that no strategy met, the prices of any two are equal within a hundredth."""
    state = after_a_day["waves"]
    missed = np.full_like(state.shadow.missed, 10 * state.shadow.arrived[0])
    cost = state.shadow.cost[:, 0]
    dearest = int(cost.argmax())
    assert 0.01 * MISS_PRICE * WORK_S * missed.min() > cost[dearest]
    before = state.with_columns({"shadow.missed": missed, "strategy": np.array([float(dearest)])})
    after = update(before, make_stats(4.0, replicas=10))
    assert after.shadow.cost[int(after.strategy[0]), 0] < 0.9 * cost[dearest]


@pytest.mark.slow
@pytest.mark.parametrize(("waiting", "is_kept"), [(0.0, False), (3.0, False), (12.0, True)])
def test_replicas_are_kept_when_requests_wait_too_long(after_a_day, waiting, is_kept):
    """Another strategy became the cheapest. Ten replicas need 0.6 s for three requests, and 2.4 s for twelve."""
    state = after_a_day["waves"]
    is_smallest = np.float32(state.shadow.requested.min(axis=1) == state.shadow.requested.min())[:, None]
    cheap = state.with_columns({"shadow.cost": (1 - is_smallest) * np.float32(1e12), "replicas": np.full(1, 10.0)})
    after = update(cheap, make_stats(4.0, replicas=10, waiting=waiting))
    assert (after.replicas[0] == 10) == is_kept
    assert update(cheap, make_stats(4.0, replicas=10, waiting=waiting, ceiling=7.0)).replicas[0] <= 7


@pytest.mark.slow
@pytest.mark.parametrize(("cost_ratio", "stays"), [(1.005, True), (1.02, False)])
def test_selected_strategy_stays_when_another_saves_little(after_a_day, cost_ratio, stays):
    state = after_a_day["waves"]
    cost, missed = np.full_like(state.shadow.cost, 2 * state.shadow.cost.max()), np.zeros_like(state.shadow.missed)
    cost[[3, 7], 0] = cost_ratio * 1e6, 1e6
    nothing = {"queue_sum": np.zeros_like(missed), "queue_missed": missed}
    shadow = replace(state.shadow, cost=cost, missed=missed, **nothing)
    before = replace(state, shadow=shadow, strategy=np.full(1, 3.0))
    assert (update(before, make_stats(4.0, replicas=10)).strategy[0] == 3) == stays


@pytest.mark.slow
def test_prior_below_the_allowed_share_frees_no_budget(after_a_day):
    """Two strategies have large margins; the cheaper one missed a few more than allowed, or a few less."""
    state = after_a_day["waves"]
    prior = strategies.compute_prior_misses(state.history.averages[-1], state.shadow.counts).ravel()
    cheap, dear = np.flatnonzero(prior < 0.1 * state.allowed_share[0])[:2]
    requests = error_budget.compute_requests_per_s(state.budget)[0] * PRIOR_S
    freed = requests * (state.allowed_share[0] - prior[cheap])
    cost = np.full_like(state.shadow.cost, 1e12)
    cost[[cheap, dear], 0] = 1e4, 1.1e4
    for excess, selected in ((0.1 * freed, dear), (-0.1 * freed, cheap)):
        missed = np.zeros_like(state.shadow.missed)
        missed[cheap] = state.allowed_share * state.shadow.arrived + excess
        before = state.with_columns({"shadow.cost": cost, "shadow.missed": missed})
        assert select_strategy(before, make_stats(4.0, replicas=10)).strategy[0] == selected


def test_floor_and_ceiling_bound_the_recommendation():
    assert run([0.1] * 60, floor=3.0).replicas[0] == 3
    assert run([50.0] * 60, ceiling=7.0).replicas[0] == 7


@pytest.mark.slow
@pytest.mark.parametrize("cold_start_s", [30.0, 60.0, 240.0])
@pytest.mark.parametrize("demand", [(1.0, 1.0), (0.2, 1.8)])
def test_large_initial_fleet_is_kept_while_warming_up(demand, cold_start_s):
    """For ten cold starts, as a peak would be that was seen just before."""
    initial, recommended = {"replicas": 12, "cold_start_s": cold_start_s}, []
    state = run(demand, **initial)  # demand is known from here on
    small = run(demand * 60, replicas=3, cold_start_s=cold_start_s).replicas[0]
    for number in range(round(10 * cold_start_s / UPDATE_INTERVAL_S)):
        recommended.append(state.replicas[0])
        state = update(state, make_stats(demand[number % 2], **initial))
    assert set(recommended) == {12.0}
    assert state.replicas[0] < 9
    assert small < 9


def test_one_idle_initial_replica_does_not_become_two():
    assert run([0.1] * 30, replicas=1).replicas[0] == 1


@pytest.mark.parametrize("cold_start_s", [60.0, 120.0])
def test_base_replicas_are_the_recent_peak_and_a_root(cold_start_s):
    columns = {"cold_start_s": cold_start_s, "replicas": 2}
    low, high = (make_stats(demand, **columns) for demand in (2.0, 6.0))
    state = run([2.0] * 10, **columns)
    for _ in range(10):
        state = update(state, high)
    assert state.base_replicas[0] == math.ceil(count_carrying(6 + math.sqrt(6)))
    for _ in range(round((3 * cold_start_s + 270) / UPDATE_INTERVAL_S)):
        state = update(state, low)
    # The recommendation is higher: the rest is headroom.
    assert state.base_replicas[0] == math.ceil(count_carrying(2 + math.sqrt(2))) < state.replicas[0]


def test_late_queue_requests_no_more_than_strategies_do_at_first():
    """One replica gets four times what it can serve from the first reading on."""
    state, opinions = StrategyState.blank(1), 0
    for number in range(10):
        now_s = 1000.0 + number * UPDATE_INTERVAL_S
        state = run([4.0], state, now_s, replicas=1, waiting=200.0, ceiling=1000.0)
        if not np.isnan(state.replicas[0]):
            opinions += 1
            assert state.replicas[0] <= state.shadow.requested[:, 0].max() < 100
    assert opinions > 5


@pytest.mark.parametrize("before", [12.0, math.nan])
def test_late_queue_keeps_only_a_known_recommendation(before):
    state = run([4.0] * 100, replicas=10)
    stats = make_stats(4.0, replicas=10, waiting=200.0, ceiling=1000.0)
    after = update(state.with_columns({"replicas": np.full(1, before)}), stats)
    requested = after.shadow.requested[int(after.strategy[0]), 0]
    assert after.replicas[0] == (requested if math.isnan(before) else max(before, requested))


# --- real misses


@pytest.mark.slow
def test_real_misses_make_the_allowed_share_strict_and_none_lax():
    late, on_time = run([3.0] * 6 * HOUR, late=0.05), run([3.0] * 6 * HOUR)
    assert late.allowed_share[0] == pytest.approx(error_budget.MIN_ALLOWED * 0.01)
    assert on_time.allowed_share[0] > error_budget.FIRST_AIM * 0.01
    assert late.replicas[0] > on_time.replicas[0]
    assert late.budget.missed[0] / late.budget.served[0] == pytest.approx(0.05, rel=0.02)


@pytest.mark.slow
def test_allowed_share_is_the_first_aim_when_none_are_counted():
    state = run([3.0] * 6 * HOUR, totals={"ttft_counted": 0.0, "ttft_missed": 0.0})
    assert state.allowed_share[0] == pytest.approx(error_budget.FIRST_AIM * 0.01)
    assert state.budget.counted[0] == 0
    assert state.budget.served[0] > 0


@pytest.mark.slow
def test_unavoidable_misses_add_one_replica_at_most():
    """2 % of the first miss at any load. Nothing is saved that could be spent, and that is the only difference."""
    state = None
    for number, replicas in enumerate((5.0, 8.0, 12.0, 20.0)):
        now_s = 1000.0 + 3 * 3600 * number
        state = run(np.full((3 * HOUR, 2), 3.0), state, now_s, replicas=replicas, late=np.array([0.02, 0.0]))
    assert state.replicas[0] <= state.replicas[1] + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "late", [pytest.param(0.1, marks=pytest.mark.long), 0.3, pytest.param(1.0, marks=pytest.mark.long)]
)
def test_many_unavoidable_misses_add_no_replicas_for_long(late):
    """24 requests/s, served by as many replicas as recommended. After an hour at most one replica is added."""
    recommended = {}
    for share in (0.0, late):
        state, counts = StrategyState.blank(1), [4.0]
        for number, demand in enumerate(2.4 + 0.2 * np.sin(np.arange(5 * HOUR))):
            requests = 10 * demand * UPDATE_INTERVAL_S
            totals = {"arrivals": requests, "first_tokens": requests, "queue_growth": 0.0}
            totals |= {"ttft_counted": requests, "ttft_missed": share * requests}
            stats = make_stats(demand, replicas=counts[-1], totals=totals)
            state = update_strategies(state, stats, 1000.0 + number * UPDATE_INTERVAL_S)
            counts.append(float(np.nan_to_num(state.replicas[0], nan=4.0)))
        recommended[share] = counts
    with_misses, without = recommended[late], recommended[0.0]
    assert max(with_misses) > max(without)  # replicas that do not help show that the misses are unavoidable
    assert max(with_misses[5 * HOUR // 4 :]) <= max(without[5 * HOUR // 4 :]) + 1
    assert max(with_misses[4 * HOUR :]) <= max(without[4 * HOUR :])


def test_long_prompts_add_no_replicas_from_the_first_minutes_on():
    """2 % of prompts are too long for one replica. Load and misses show it within a day, prefill times at once."""
    prefill = {"prefill_counted": 45.0, "prefill_late": 0.9}
    unreported, reported = (run([8.0] * HOUR, late=0.02, totals=totals) for totals in ({}, prefill))
    assert reported.miss_counts.unavoidable[0] == pytest.approx(0.02, rel=0.01)
    assert unreported.miss_counts.unavoidable[0] < 0.01
    assert reported.replicas[0] < unreported.replicas[0]


# --- values and rows


@pytest.mark.slow
def test_rows_are_independent():
    both, alone, now_s = StrategyState.blank(2), StrategyState.blank(1), 1000.0
    for number in range(200):
        now_s += UPDATE_INTERVAL_S
        other = make_silent_stats() if number % 7 == 0 else make_stats(1e8, ceiling=1e6, replicas=3, late=1.0)
        stats = make_stats(3.0 + number % 3)
        both = update_strategies(both, IntervalStats.stack([stats, other]), now_s)
        alone = update_strategies(alone, stats, now_s)
    for place, column in alone.columns().items():
        np.testing.assert_array_equal(both.columns()[place][..., :1], column, err_msg=place)


def test_update_is_deterministic_and_changes_no_input():
    state, stats = run([3.0, 9.0, 2.0] * 20), make_stats(5.0, late=0.1)
    for column in (*state.columns().values(), *stats.columns().values()):
        column.flags.writeable = False
    first, second = update(state, stats), update(state, stats)
    for place, column in first.columns().items():
        np.testing.assert_array_equal(second.columns()[place], column, err_msg=place)


amounts = st.one_of(st.sampled_from([0.0, 1e-320, 1.0, 1e9]), st.floats(0, 1e9))
shares = st.floats(0, 1)


@st.composite
def any_totals(draw):
    """Draw any totals that `interval.count_work` may return."""
    counted = {objective: draw(amounts) for objective in ("ttft", "itl")}
    return {
        **{name: draw(amounts) for name in ("arrivals", "first_tokens")},
        "queue_growth": draw(amounts) * draw(st.sampled_from([-1.0, 1.0])),
        "covered_s": draw(st.one_of(st.just(0.0), st.floats(MIN_INTERVAL_S, 1e3))),
        "shortest_gap_s": draw(st.one_of(st.just(NAN), st.floats(1e-5, 60.0))),
        "kv_usage": draw(shares),
        **{f"{objective}_counted": requests for objective, requests in counted.items()},
        **{f"{objective}_missed": requests * draw(shares) for objective, requests in counted.items()},
    }


@pytest.mark.slow
@given(st.lists(any_totals(), max_size=4))
def test_recommendation_is_within_bounds_or_unknown(intervals):
    """Warnings are errors in these tests."""
    state = run([3.0] * 20)
    for totals in intervals:
        state = update(state, make_stats(3.0, totals=totals, floor=2.0, ceiling=50.0))
        assert np.isnan(state.replicas[0]) or 2 <= state.replicas[0] <= 50
        for table in (state.shadow, state.budget, state.offered_load):
            for place, column in table.columns().items():
                assert not np.isinf(column).any(), place
                assert not (column < 0).any(), place
