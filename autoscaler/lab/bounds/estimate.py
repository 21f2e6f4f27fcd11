"""An estimate of the least replica-seconds that meet the goal, with the engines and the router of a case.

The lower bound ignores interference: there, a prefill delays no other request. This estimate includes it. The trace is
cut into windows. Each window is served by idle engines, by one, by two and so on, and the missed requests are counted.
A dynamic program then finds the cheapest count for each window, with one price for a miss in all windows. The estimate
errs to the cheap side:

* Every window starts with idle engines and has no later requests. A replica that serves in part of a window serves all
  of it.
* A request near the end of a window or of the trace is no miss if it could still be answered in time.
* A replica ends as soon as it is not needed. Starts take the mean time, and each is credited with two windows, since a
  replica touches two of its windows in part.
* The misses at a count are the least over that count and all smaller ones. An untried count has the misses of the next
  higher tried one. A window with nearly no misses counts as having none.

The estimate is not a bound. A replica that becomes ready or drains right at a burst of prompts shields later requests
from it, or the burst from them; a replica that serves the whole window does not. A schedule made for that costs 12 %
less than the estimate in `tests/lab/bounds/test_estimate.py`, and up to 45 % less with stronger bursts. Nor do more
replicas help every single request.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.lab.bounds.dynamic_programs import maximize, minimize_cost_of_counts
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.engine import kernel
from autoscaler.lab.replay.engine.state import EngineParams, EngineState, empty_gateway
from autoscaler.lab.replay.request_cost import find_servable, idle_latencies_s, request_work_s
from autoscaler.lab.replay.score import meets_objectives

WINDOWS = 4  # windows per cold start; longer ones hide starts, shorter ones hide interference
MOST_WINDOWS = 400_000
GROWTH = 1.06  # growth of the tried counts, from 34 on
MIN_PREFILL_FRACTION = (
    0.4  # fraction of the replicas that prefill keeps busy; smaller counts miss nearly all and are not tried
)
DISTANCE_FACTOR = 20.0  # distance of windows, as a multiple of the serial time of their requests
NEGLIGIBLE_FRACTION = 0.05  # fraction of the allowed misses; a window below it is not tried with more replicas


def estimate_replica_s(case: Case) -> float:
    """Return the estimated least replica-seconds that meet the goal of the case, over the whole trace.

    Returns 0 if the goal is out of reach, if windows would be shorter than the TTFT objective, or if there would be too
    many. Then only the lower bound is known.
    """
    window_s = case.cold_start_s / WINDOWS
    count = math.ceil(case.trace.duration_s / window_s) if window_s > 0 else MOST_WINDOWS + 1
    if not window_s > case.goal.ttft_s or count > MOST_WINDOWS:
        return 0.0
    can = find_servable(case)
    requests = len(case.trace.arrival_s)
    allowed_misses = case.goal.allowed_misses(requests) - int((~can).sum())
    if allowed_misses < 0:
        return 0.0
    window = np.minimum((case.trace.arrival_s / window_s).astype(np.int64), count - 1)
    end_s = np.minimum((window + 1) * window_s, case.trace.duration_s)
    in_time = case.trace.arrival_s + case.goal.ttft_s <= end_s
    nearly = NEGLIGIBLE_FRACTION * allowed_misses / max(requests, 1)
    tried, missed = _count_misses(case, window, in_time & can, count, nearly)
    # An untried count has the misses of the next higher tried one.
    level = np.searchsorted(tried, np.arange(tried[-1] + 2))
    start_s = case.cold_start_s - 2 * window_s

    def bound_at_price(price_s: float) -> float:
        least_s = minimize_cost_of_counts(missed, level, window_s, start_s, price_s)
        return least_s - price_s * allowed_misses

    dearest_s = 100 * case.cold_start_s
    return max(bound_at_price(maximize(bound_at_price, 1e-3, dearest_s)), bound_at_price(dearest_s), 0.0)


def _count_misses(
    case: Case, window: IntColumn, counts: BoolColumn, windows: int, nearly: float
) -> tuple[IntColumn, IntColumn]:
    """Serve every window with more and more replicas, until at most the fraction `nearly` of its requests misses.

    window: int64[n], window of each request. counts: bool[n], whether a miss of the request counts.
    Returns the tried replica counts, int64[L], and the misses with each of them, int64[windows, L + 1]; the last column
    is for more replicas than all of them.
    """
    asked = np.bincount(window, counts, windows).astype(np.int64)
    enough = nearly * np.bincount(window, minlength=windows)
    prefill_s, _ = request_work_s(case)
    busy = np.bincount(window, prefill_s, windows) * WINDOWS / case.cold_start_s
    apart_s = _window_offsets_s(case, window, windows)
    tried, columns = [0], [asked]
    least, open_ = asked.copy(), asked > 0
    while open_.any() and tried[-1] < case.max_replicas:
        replicas = min(max(tried[-1] + 1, int(tried[-1] * GROWTH)), case.max_replicas)
        now = open_ & (replicas >= MIN_PREFILL_FRACTION * busy)
        rows = np.flatnonzero(now[window])
        missed = counts[rows] & ~_meets_objectives(
            case, rows, case.trace.arrival_s[rows] + apart_s[window[rows]], replicas
        )
        least = np.where(now, np.minimum(least, np.bincount(window[rows], missed, windows).astype(np.int64)), least)
        open_ &= ~now | (least > enough)
        columns.append(np.where(now, least, np.where(open_, -1, 0)))
        tried.append(replicas)
    columns.append(np.zeros(windows, np.int64))
    for place in range(len(columns) - 2, 0, -1):  # an untried count has the misses of the next tried one
        columns[place] = np.where(columns[place] < 0, columns[place + 1], columns[place])
    return np.array(tried), np.ascontiguousarray(np.array(columns).T)


def _window_offsets_s(case: Case, window: IntColumn, windows: int) -> FloatColumn:
    """Return the seconds by which to delay each window so that all earlier ones are finished, float64[windows]."""
    ttft_s, itl_s = idle_latencies_s(case)
    one_by_one_s = np.bincount(window, ttft_s + itl_s * case.trace.output_tokens, windows)
    # A multiple, because preempted requests are recomputed.
    later_s: FloatColumn = np.concatenate([[0.0], np.cumsum(DISTANCE_FACTOR * one_by_one_s)[:-1]])
    return later_s


def _meets_objectives(case: Case, rows: IntColumn, arrival_s: FloatColumn, replicas: int) -> BoolColumn:
    """Serve the requests of `rows` with `replicas` idle engines; return which meet the objectives, bool[n].

    rows: int64[n], requests of the trace. arrival_s: float64[n], their arrivals in seconds.
    """
    trace = case.trace
    part = replace(
        trace,
        arrival_s=arrival_s,
        prompt_tokens=trace.prompt_tokens[rows],
        output_tokens=trace.output_tokens[rows],
    )
    state = EngineState.create(part, case.profile.max_num_seqs, replicas)
    engine = EngineParams.from_profile(case.profile, case.patience_s)
    for row in range(replicas):
        state.start_replica(row, 0.0)
    serving = np.arange(replicas)
    kernel.arrive(state, (engine,), empty_gateway(), serving, math.inf, case.router == "least-requests")
    for row in range(replicas):
        kernel.advance(state, engine, row, math.inf)
    ttft_s, itl_s, _ = state.latencies_s()
    ttft_met, itl_met = meets_objectives(case.goal, ttft_s, itl_s)
    return ttft_met & itl_met
