"""Interval statistics of workloads, made from the demand that they stand for."""

import math
from dataclasses import replace

import numpy as np

from autoscaler.core.measure import step_time
from autoscaler.core.measure.interval import IntervalStats, WorkTotals
from autoscaler.core.planner.select import StrategyState, update_strategies
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S

NAN = math.nan
WORK_S = 2.0  # busy replica-seconds of a request
IDLE_GAP_S = 0.01
PROMPT_TOKEN_S, OUTPUT_TOKEN_S = IDLE_GAP_S / 180, IDLE_GAP_S / 100  # close to the prior


def make_stats(demand, *, replicas=None, busy=None, late=0.0, totals=None, prefill=False, **columns):
    """Make the statistics of an interval in which arrivals keep `demand` replicas busy; numbers or float64[W].

    late: share of the served requests that missed TTFT. totals: columns of `WorkTotals` that differ from it.
    """
    demand = np.atleast_1d(np.asarray(demand, dtype=float))
    rows = len(demand)
    replicas = np.maximum(np.ceil(demand / 0.6), 1) if replicas is None else replicas
    busy = np.minimum(demand / replicas, 0.95) if busy is None else busy
    arrivals, served = demand * UPDATE_INTERVAL_S / WORK_S, busy * replicas * UPDATE_INTERVAL_S / WORK_S
    gap_s = np.broadcast_to(IDLE_GAP_S / (1 - busy), rows)
    work = {
        **dict.fromkeys(WorkTotals.__dataclass_fields__, 0.0),
        "covered_s": replicas * UPDATE_INTERVAL_S,
        "arrivals": arrivals,
        "queue_growth": np.maximum(arrivals - served, 0.0),
        "first_tokens": served,
        "ttft_counted": served,
        "ttft_missed": late * served,
        "gap_with_queue_s": gap_s,
        "generating_pods": replicas,
        "token_rate": replicas / gap_s,
        "shortest_gap_s": IDLE_GAP_S,
        **(totals or {}),
    }
    half = busy / 2  # prompts take half of the busy time, answers the other half
    work["step_sums"] = replicas * step_time.compute_sums(gap_s, half / PROMPT_TOKEN_S, half / OUTPUT_TOKEN_S)
    stats = {
        "replicas": replicas,
        "ordered": replicas,
        "mean_replicas": replicas,
        "waiting": 0.0,
        "cold_start_s": 60.0,
        "kept_asleep": 0.0,
        "wake_s": NAN,
        "first_token_limit_s": 1.0,
        "itl_objective_s": 0.1,
        "budget_share": 0.01,
        "window_s": 86_400.0,
        "floor": 1.0,
        "ceiling": 100.0,
        "window_floor": NAN,
        **columns,
    }
    tables = [
        {name: np.broadcast_to(np.asarray(value, float), (*np.shape(value)[:-1], rows)) for name, value in each.items()}
        for each in (work, stats)
    ]
    is_prefill = np.broadcast_to(np.asarray(prefill, bool), rows)
    return IntervalStats(WorkTotals(**tables[0]), prefill=is_prefill, **tables[1])


def make_silent_stats(**columns):
    """Make the statistics of an interval in which no pod reported anything."""
    nothing = dict.fromkeys(WorkTotals.__dataclass_fields__, 0.0) | {"shortest_gap_s": NAN}
    stats = make_stats(0.0, replicas=4, totals=nothing, **columns)
    return replace(stats, totals=replace(stats.totals, step_sums=np.zeros((step_time.SUMS, 1))))


def run(demands, state=None, now_s=1000.0, **columns):
    """Update the planner once for each of these demands."""
    state = StrategyState.blank(np.size(demands[0])) if state is None else state
    for demand in demands:
        now_s += UPDATE_INTERVAL_S
        state = update_strategies(state, make_stats(demand, **columns), now_s)
    return state


def update(state, stats, after_s=UPDATE_INTERVAL_S):
    """Update the planner once more."""
    return update_strategies(state, stats, float(state.last_updated_s[0]) + after_s)
