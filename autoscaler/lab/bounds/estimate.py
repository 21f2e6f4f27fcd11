"""An estimate of what any schedule of replicas takes at the least with the engines and the router of a case.

The bound of `clairvoyant` holds for whoever decides, but knows no neighbours: a prompt that is computed delays nobody's
tokens there. Here it does. A trace is cut into windows. Each is served by engines of the case that hold nothing yet, by
one of them, by two and so on, and those are counted who miss their objectives. From that the cheapest count for each
window follows by a dynamic program, with one price for a miss in all of them. To the cheaper side:

* every window finds engines that are empty, and nobody comes after it; all replicas that serve at any time in it serve
  all of it, however they came and went;
* who comes so late in a window, or in the trace, that what comes after could still answer in time has not missed;
* a replica ends the moment it is not needed; starts take the mean time, and each is credited with two windows, since a
  replica touches two of its windows in part;
* what misses at a count is the least of that count and all smaller ones, and of a count that was not tried it is what
  misses at the next higher one that was; where nearly nobody misses, nobody does.

It is no bound. A replica that becomes ready, or drains, right beside a burst of prompts keeps out of it what comes
after, or the other way round, which a replica that serves all of the window does not: a schedule that was made for that
costs 12 % less than the estimate in `tests/lab/bounds/test_estimate.py`, and up to 45 % less where bursts are worse.
Nor are more replicas better for each request.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.lab.bounds.dynamic_programs import cheapest_counts, climb
from autoscaler.lab.replay import kernel
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.request_cost import alone_s, request_work_s, servable
from autoscaler.lab.replay.score import within
from autoscaler.lab.replay.state import Engine, State, new_gateway

WINDOWS = 4  # in a cold start: in longer ones starts count less, in shorter ones requests meet fewer neighbours
MOST_WINDOWS = 400_000
GROWTH = 1.06  # from one count that is tried to the next, from 34 on
IDLEST = 0.4  # of what the prompts of a window keep busy: fewer replicas miss most of them, and are not tried
APART = 20.0  # times what the requests of a window take one after the other
NEARLY = 0.05  # of the misses that are allowed: a window that has fewer is not tried with more replicas


def served(case: Case) -> float:
    """Return about so many replica-seconds as meeting the goal of the case takes at the least; all of it counts.

    0 where the goal is out of reach, and where windows would be shorter than the TTFT objective, or too many: then only
    the bound is known.
    """
    window_s = case.cold_start_s / WINDOWS
    count = math.ceil(case.trace.duration_s / window_s) if window_s > 0 else MOST_WINDOWS + 1
    if not window_s > case.goal.ttft_s or count > MOST_WINDOWS:
        return 0.0
    can = servable(case)
    requests = len(case.trace.arrival_s)
    may_miss = case.goal.may_miss(requests) - int((~can).sum())
    if may_miss < 0:
        return 0.0
    window = np.minimum((case.trace.arrival_s / window_s).astype(np.int64), count - 1)
    end_s = np.minimum((window + 1) * window_s, case.trace.duration_s)
    in_time = case.trace.arrival_s + case.goal.ttft_s <= end_s
    nearly = NEARLY * may_miss / max(requests, 1)
    tried, missed = _table(case, window, in_time & can, count, nearly)
    # A count that was not tried misses as many as the next higher one that was.
    level = np.searchsorted(tried, np.arange(tried[-1] + 2))
    start_s = case.cold_start_s - 2 * window_s

    def priced(price_s: float) -> float:
        least_s = cheapest_counts(missed, level, window_s, start_s, price_s)
        return least_s - price_s * may_miss

    dearest_s = 100 * case.cold_start_s
    return max(priced(climb(priced, 1e-3, dearest_s)), priced(dearest_s), 0.0)


def _table(
    case: Case, window: IntColumn, counts: BoolColumn, windows: int, nearly: float
) -> tuple[IntColumn, IntColumn]:
    """Serve every window with more and more replicas, until at most the share `nearly` of its requests misses.

    window: int64[n], of each request. counts: bool[n], whether it counts if it misses.
    Returns int64[L], the counts of replicas that were tried, and int64[windows, L + 1], the misses with each and, last,
    with more than all of them.
    """
    asked = np.bincount(window, counts, windows).astype(np.int64)
    enough = nearly * np.bincount(window, minlength=windows)
    prefill_s, _ = request_work_s(case)
    busy = np.bincount(window, prefill_s, windows) * WINDOWS / case.cold_start_s
    apart_s = _apart_s(case, window, windows)
    tried, columns = [0], [asked]
    least, open_ = asked.copy(), asked > 0
    while open_.any() and tried[-1] < case.max_replicas:
        replicas = min(max(tried[-1] + 1, int(tried[-1] * GROWTH)), case.max_replicas)
        now = open_ & (replicas >= IDLEST * busy)
        rows = np.flatnonzero(now[window])
        missed = counts[rows] & ~_met(case, rows, case.trace.arrival_s[rows] + apart_s[window[rows]], replicas)
        least = np.where(now, np.minimum(least, np.bincount(window[rows], missed, windows).astype(np.int64)), least)
        open_ &= ~now | (least > enough)
        columns.append(np.where(now, least, np.where(open_, -1, 0)))
        tried.append(replicas)
    columns.append(np.zeros(windows, np.int64))
    for place in range(len(columns) - 2, 0, -1):  # what was not tried misses as many as the next that was
        columns[place] = np.where(columns[place] < 0, columns[place + 1], columns[place])
    return np.array(tried), np.ascontiguousarray(np.array(columns).T)


def _apart_s(case: Case, window: IntColumn, windows: int) -> FloatColumn:
    """Return how much later each window must be for all before it to be served by then, float64[windows]."""
    ttft_s, itl_s = alone_s(case)
    one_by_one_s = np.bincount(window, ttft_s + itl_s * case.trace.output_tokens, windows)
    # Many times as long: who is preempted computes again.
    later_s: FloatColumn = np.concatenate([[0.0], np.cumsum(APART * one_by_one_s)[:-1]])
    return later_s


def _met(case: Case, rows: IntColumn, arrival_s: FloatColumn, replicas: int) -> BoolColumn:
    """Serve the requests of `rows`, come at `arrival_s`, by so many replicas; say who met the objectives."""
    trace = case.trace
    part = replace(
        trace,
        arrival_s=arrival_s,
        prompt_tokens=trace.prompt_tokens[rows],
        output_tokens=trace.output_tokens[rows],
    )
    state = State.of(part, case.profile, replicas)
    engine = Engine.of(case.profile, case.patience_s)
    for row in range(replicas):
        state.open(row, 0.0)
    serving = np.arange(replicas)
    kernel.arrive(state, engine, new_gateway(), serving, math.inf, case.router == "least-requests")
    for row in range(replicas):
        kernel.advance(state, engine, row, math.inf)
    ttft_s, itl_s, _ = state.latencies_s()
    ttft_met, itl_met = within(case.goal, ttft_s, itl_s)
    return ttft_met & itl_met
