"""A lower bound: no schedule that meets the goal of a case takes fewer replica-seconds, even if it knows the future.

The bound keeps these facts. Each request costs the engine time of `request_work_s`, between its arrival and the time at
which its objectives are lost. Replica counts are whole numbers. Each start costs the shortest cold start that can be
drawn, and serving costs its time. The bound relaxes the rest, so that it holds for every scheduler:

* Within a window, work is a fluid that any replica serves in any order, without interference between requests.
* A step is shared by as many requests as the scarcest of slots, KV cache and token budget allows. ITL limits the end of
  a request, not its batch.
* Allowed misses cost nothing and may be any requests: at most the allowed number, and at most the work of the heaviest
  ones.
* The initial replica count is free to choose.
* A replica ends without draining as soon as it is not needed. Work that may end after the trace is free.
* A request that may take longer than `LONGEST_OFF` windows (60 s at the finest) forces no replica. With very long
  objectives and little traffic the bound then misses a start: it stays valid but is loose.
* Replicas and work move freely within a window; a start is credited with the time that this can save.

The solution is a dynamic program over windows, whole replicas and the backlog of work. The price of a miss is a
Lagrange multiplier: each price gives a bound, and the best of several is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.bounds.dynamic_programs import TimeWindows, maximize, minimize_cost
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.engine.cold_starts import least_duration_factor
from autoscaler.lab.replay.request_cost import find_servable, request_work_s

SHORTEST_WINDOW_S = 1.875  # shortest window, for cold starts of a minute or more
MOST_WINDOWS_PER_START = 32  # most windows in a shorter cold start
FEWEST_WINDOWS_PER_START = 4  # fewest windows in a cold start; each start is credited with two
MOST_WINDOWS = 700_000  # two weeks at the finest; 32 columns of them take about 200 MB
QUANTA = 16  # most quanta of work in a window; with fewer, a single request would not count
SEARCH_OPERATIONS = 6e7  # cells of a search run of the dynamic program, some nanoseconds each
FINAL_OPERATIONS = 1e9  # cells of a final run
LONGEST_OFF = 32  # longest distinguished time without replicas, in windows; requests with more time are not counted
ROUNDS = 2  # rounds of the price search
NO_MISS = 1e9  # a price above any worth paying
FINAL_FACTORS = ((1.0, 1.0), (0.8, 1.0), (1.25, 1.0), (1.0, 0.8), (1.0, 1.25))


@dataclass(frozen=True)
class LowerBound:
    """The lower bound: no schedule that meets the goal costs less than `replica_s`, whatever its cold starts."""

    replica_s: float
    gpu_hours: float
    work_s: float  # the part for work: replicas always busy, no starts
    window_s: float  # NaN: no windows, starts are not counted


class Demand(NamedTuple):
    """The requests of a case as work with deadlines, float64[n] each, seconds. Requests that cannot meet their
    objectives are left out.
    """

    arrival_s: FloatColumn
    prefill_s: FloatColumn  # engine time until the first token
    prefill_end_s: FloatColumn  # deadline of this work
    decode_s: FloatColumn
    decode_end_s: FloatColumn

    @property
    def work_s(self) -> FloatColumn:
        return self.prefill_s + self.decode_s


def compute_demand(case: Case) -> Demand:
    """Return the work and deadlines of the requests that can meet their objectives."""
    trace, goal = case.trace, case.goal
    keep = find_servable(case)
    prefill_s, decode_s = request_work_s(case)
    no_ttft, no_itl = math.isnan(goal.ttft_s), math.isnan(goal.itl_s)
    first_s = trace.arrival_s + (math.inf if no_ttft else goal.ttft_s)
    gaps = np.maximum(trace.output_tokens - 1, 0)
    last_s = first_s + (np.where(gaps > 0, math.inf, 0.0) if no_itl else goal.itl_s * gaps)
    return Demand(*(column[keep] for column in (trace.arrival_s, prefill_s, first_s, decode_s, last_s)))


def compute_lower_bound(case: Case, most_windows: int = MOST_WINDOWS) -> LowerBound:
    """Compute the lower bound. Requests that cannot meet their objectives count as allowed misses.

    If `most_windows` windows are too long for the cold start, the bound is the work alone, without starts.
    """
    case = replace(case, cold_start_s=case.cold_start_s * least_duration_factor(case.cold_start_spread))
    demand = compute_demand(case)
    count = len(case.trace.arrival_s)
    allowed = case.goal.allowed_misses(count)
    allowed_misses = max(allowed - (count - len(demand.arrival_s)), 0)
    # Work that may end after the trace is free.
    ends_s = case.trace.duration_s
    work = np.where(demand.prefill_end_s <= ends_s, demand.prefill_s, 0.0)
    work += np.where(demand.decode_end_s <= ends_s, demand.decode_s, 0.0)
    heaviest = np.sort(demand.work_s)[::-1][:allowed_misses]
    work_s = max(float(work.sum() - heaviest.sum()), 0.0)
    replica_s, window_s = work_s, math.nan
    if ends_s <= most_windows * case.cold_start_s / FEWEST_WINDOWS_PER_START and len(demand.arrival_s):
        misses = _AllowedMisses(allowed_misses, float(heaviest.sum()))
        prices = _search_prices(case, _choose_windows(case, demand, SEARCH_OPERATIONS, most_windows), misses)
        windows = _choose_windows(case, demand, FINAL_OPERATIONS, most_windows)
        window_s = windows.window_s
        for factors in FINAL_FACTORS:
            around = _Prices(prices.work * factors[0], prices.request * factors[1])
            replica_s = max(replica_s, _bound_at_prices(case, windows, misses, around))
    return LowerBound(
        replica_s=replica_s,
        gpu_hours=replica_s * case.gpus_per_replica / 3600,
        work_s=work_s,
        window_s=window_s,
    )


def _choose_windows(case: Case, demand: Demand, operations: float, most: int) -> TimeWindows:
    """Choose the finest windows that their number and the budget of operations allow."""
    window_s, quanta = (
        max(min(case.cold_start_s / MOST_WINDOWS_PER_START, SHORTEST_WINDOW_S), case.trace.duration_s / most),
        QUANTA,
    )
    coarsest_s = case.cold_start_s / FEWEST_WINDOWS_PER_START
    windows = _cut_windows(case, demand, window_s, quanta)
    while windows.operations > operations and (quanta > 1 or window_s < coarsest_s):
        if quanta > 1:
            quanta //= 2
        else:
            window_s = min(window_s * 1.5, coarsest_s)
        windows = _cut_windows(case, demand, window_s, quanta)
    return windows


def _cut_windows(case: Case, demand: Demand, window_s: float, quanta: int) -> TimeWindows:
    """Convert work to quanta, `quanta` of which fill a replica for a window, and times to windows.

    Cumulative arrivals are rounded up and cumulative deadlines down, so rounding errors do not accumulate.
    """
    count = math.ceil(case.trace.duration_s / window_s)
    quantum_s = window_s / quanta
    arrived = np.cumsum(_by_window(demand.arrival_s, demand.work_s, window_s, count)) / quantum_s
    due = _by_window(demand.prefill_end_s, demand.prefill_s, window_s, count)
    due += _by_window(demand.decode_end_s, demand.decode_s, window_s, count)
    due = np.cumsum(due) / quantum_s
    arrived_quanta = np.ceil(arrived - 1e-6).astype(np.int64)
    due_quanta = np.floor(due + 1e-6).astype(np.int64) - 1  # one less for misses, which are also rounded down
    slack = np.maximum(arrived_quanta - np.maximum(due_quanta, 0), 0)
    work = np.diff(arrived_quanta, prepend=0)
    return TimeWindows(
        window_s, quanta, work, slack, _count_lost(demand, window_s, count), _most_replicas(work, slack, quanta)
    )


def _by_window(time_s: FloatColumn, weight: FloatColumn, window_s: float, count: int) -> FloatColumn:
    """Return sums of `weight`, float64[count], by the window of `time_s`; later times are left out."""
    inside = time_s < count * window_s
    place = (time_s[inside] / window_s).astype(np.int64)
    total: FloatColumn = np.bincount(place, weight[inside], minlength=count).astype(np.float64)
    return total


def _count_lost(demand: Demand, window_s: float, count: int) -> FloatColumn:
    """Count the requests lost if no replica serves in a window and the windows before it.

    Returns float64[count, K]: row j, column r - 1 for window j and the r - 1 windows before it, K for as many or more.
    """
    last_s = demand.decode_end_s
    inside = last_s < count * window_s
    first = (demand.arrival_s[inside] / window_s).astype(np.int64)
    last = (last_s[inside] / window_s).astype(np.int64)
    span = last - first + 1
    longest = int(min(span.max(initial=1), LONGEST_OFF))
    short = span <= longest
    place = last[short] * longest + span[short] - 1
    lost = np.bincount(place, minlength=count * longest).reshape(count, longest)
    return np.cumsum(lost, axis=1, dtype=np.float64)


def _most_replicas(work: IntColumn, slack: IntColumn, quanta: int) -> int:
    """Return the smallest constant count that keeps every deadline, plus two. That many count as infinitely fast."""
    low, high = 1, max(int(work.max(initial=1)) // quanta + 2, 2)
    while low < high:
        middle = (low + high) // 2
        done = np.cumsum(work - middle * quanta)
        backlog = done - np.minimum(np.minimum.accumulate(done), 0)
        low, high = (low, middle) if (backlog <= slack).all() else (middle + 1, high)
    return low + 2


class _AllowedMisses(NamedTuple):
    """The allowed misses: number of requests, and their work in seconds."""

    requests: int
    work_s: float


class _Prices(NamedTuple):
    """Prices of misses in replica-seconds: per second of work, and per request that meets no serving replica."""

    work: float
    request: float


def _bound_at_prices(case: Case, windows: TimeWindows, misses: _AllowedMisses, prices: _Prices) -> float:
    """Return the bound in replica-seconds that these prices give."""
    # A replica that serves for s seconds touches fewer than s / window_s + 2 windows.
    start_s = case.cold_start_s - 2 * windows.window_s
    cost_s = minimize_cost(windows, start_s, prices.work * windows.quantum_s, prices.request)
    return cost_s - prices.work * misses.work_s - prices.request * misses.requests


def _search_prices(case: Case, windows: TimeWindows, misses: _AllowedMisses) -> _Prices:
    """Find prices with a high bound by alternating searches. The bound is concave in both prices together."""
    if not misses.requests:
        return _Prices(NO_MISS, NO_MISS)
    dearest = 4 * (case.cold_start_s + windows.window_s)
    steepest = dearest / windows.quantum_s

    def at_request_price(work: float, request: float) -> float:
        return _bound_at_prices(case, windows, misses, _Prices(work, request))

    def at_work_price(request: float, work: float) -> float:
        return at_request_price(work, request)

    prices = _Prices(1.0, 0.0)
    best, least = prices, -math.inf
    for _ in range(ROUNDS):
        work, request = prices
        if windows.lost_alone.any():
            request = maximize(partial(at_request_price, work), 1e-3, dearest)
        work = maximize(partial(at_work_price, request), 0.5, steepest)
        prices = _Prices(work, request)
        found = _bound_at_prices(case, windows, misses, prices)
        if found > least:
            best, least = prices, found
    return best
