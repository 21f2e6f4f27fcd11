"""The clairvoyant bound: replica-seconds below which nobody meets the goal of a case, whatever they know.

What is held on to: each request costs an engine the work that `request_work_s` counts, between its arrival and the
moment at which its objectives are lost; replicas are whole; each start costs the shortest cold start that is ever drawn
and each second of serving a second. What is relaxed, so that it is a bound for every scheduler and not only for those
built here:

* inside a moment work is a fluid that any replica takes, in any order, with no interference between requests;
* a step is shared by as many requests as the scarcest of slots, KV cache and token budget could ever allow, and a
  request may be decoded in bursts as long as it ends in time: ITL limits when it must have ended, not the batch;
* the requests that may miss vanish at no cost, and may be any: at most the allowed number, at most the work of the
  heaviest so many;
* at the beginning any number of replicas is there, whatever the case says;
* a replica ends the moment it is not needed, without draining; what may end after the trace is free;
* a request whose time spans more than `LONGEST_OFF` windows (60 s at the finest) does not ask for a replica in between,
  so for very long objectives on quiet traffic a start-up is forgotten, and the bound is valid but loose;
* time is cut into windows, within which work and replicas may move freely; a start is credited with what that gives.

It is solved as a dynamic program over windows, whole replicas and the backlog of work. The price of a miss is a
Lagrange multiplier: each price gives a bound, and the best of several is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.bounds.dynamic_programs import Windows, cheapest, climb
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.request_cost import request_work_s, servable
from autoscaler.lab.replay.starts import least_pace

FINEST_S = 1.875  # window, at the shortest, where a cold start takes a minute or more
FINEST = 32  # windows in a shorter cold start, at most
COARSEST = 4  # windows in a cold start, at least: each start is credited with two
MOST_WINDOWS = 700_000  # a fortnight at the finest; 32 columns of them are some 200 MB
QUANTA = 16  # of work in a window, at most: below, a single request would not count
SEARCH_OPERATIONS = 6e7  # cells of a run of the dynamic program that looks for prices; some nanoseconds each
FINAL_OPERATIONS = 1e9  # of the runs that count
LONGEST_OFF = 32  # windows without a replica that are told apart: a request with more time than that is not counted
ROUNDS = 2  # of the search for prices
NO_MISS = 1e9  # a price that nobody pays
FINAL_FACTORS = ((1.0, 1.0), (0.8, 1.0), (1.25, 1.0), (1.0, 0.8), (1.0, 1.25))


@dataclass(frozen=True)
class Bound:
    """No schedule of replicas that meets the goal costs less than `replica_s`, with whatever luck its starts have."""

    replica_s: float
    gpu_hours: float
    work_s: float  # the part of it that is work: all replicas always busy, no starts
    window_s: float  # NaN: no windows, and starts are not counted


class Demand(NamedTuple):
    """Requests of a case as work with deadlines, float64[n] each; those that nobody can serve in time are left out."""

    arrival_s: FloatColumn
    prefill_s: FloatColumn  # work until the first token
    prefill_end_s: FloatColumn  # when it must be done
    decode_s: FloatColumn
    decode_end_s: FloatColumn

    @property
    def work_s(self) -> FloatColumn:
        return self.prefill_s + self.decode_s


def demand(case: Case) -> Demand:
    """Return the work of the requests that can be served in time, with its deadlines."""
    trace, goal = case.trace, case.goal
    keep = servable(case)
    prefill_s, decode_s = request_work_s(case)
    no_ttft, no_itl = math.isnan(goal.ttft_s), math.isnan(goal.itl_s)
    first_s = trace.arrival_s + (math.inf if no_ttft else goal.ttft_s)
    gaps = np.maximum(trace.output_tokens - 1, 0)
    last_s = first_s + (np.where(gaps > 0, math.inf, 0.0) if no_itl else goal.itl_s * gaps)
    return Demand(*(column[keep] for column in (trace.arrival_s, prefill_s, first_s, decode_s, last_s)))


def bound(case: Case, most_windows: int = MOST_WINDOWS) -> Bound:
    """Compute the bound. Requests that nobody can serve in time are taken as missed, and count as allowed misses.

    Where so many windows are too long for the cold start, the bound is the work alone, as if starts cost nothing.
    """
    case = replace(case, cold_start_s=case.cold_start_s * least_pace(case.cold_start_spread))
    wanted = demand(case)
    count = len(case.trace.arrival_s)
    allowed = case.goal.may_miss(count)
    may_miss = max(allowed - (count - len(wanted.arrival_s)), 0)
    # Who need not end within the trace may be served after it, for free.
    ends_s = case.trace.duration_s
    work = np.where(wanted.prefill_end_s <= ends_s, wanted.prefill_s, 0.0)
    work += np.where(wanted.decode_end_s <= ends_s, wanted.decode_s, 0.0)
    heaviest = np.sort(wanted.work_s)[::-1][:may_miss]
    work_s = max(float(work.sum() - heaviest.sum()), 0.0)
    replica_s, window_s = work_s, math.nan
    if ends_s <= most_windows * case.cold_start_s / COARSEST and len(wanted.arrival_s):
        misses = _Misses(may_miss, float(heaviest.sum()))
        prices = _search(case, _windows(case, wanted, SEARCH_OPERATIONS, most_windows), misses)
        windows = _windows(case, wanted, FINAL_OPERATIONS, most_windows)
        window_s = windows.window_s
        for factors in FINAL_FACTORS:
            around = _Prices(prices.work * factors[0], prices.request * factors[1])
            replica_s = max(replica_s, _priced(case, windows, misses, around))
    return Bound(
        replica_s=replica_s,
        gpu_hours=replica_s * case.gpus_per_replica / 3600,
        work_s=work_s,
        window_s=window_s,
    )


def _windows(case: Case, wanted: Demand, operations: float, most: int) -> Windows:
    """Cut the trace into windows, as fine as their number and the budget of operations allow."""
    window_s, quanta = max(min(case.cold_start_s / FINEST, FINEST_S), case.trace.duration_s / most), QUANTA
    coarsest_s = case.cold_start_s / COARSEST
    windows = _cut(case, wanted, window_s, quanta)
    while windows.operations > operations and (quanta > 1 or window_s < coarsest_s):
        if quanta > 1:
            quanta //= 2
        else:
            window_s = min(window_s * 1.5, coarsest_s)
        windows = _cut(case, wanted, window_s, quanta)
    return windows


def _cut(case: Case, wanted: Demand, window_s: float, quanta: int) -> Windows:
    """Count work in quanta, `quanta` of which fill a replica for a window; deadlines and arrivals by window.

    What has arrived is rounded up and what is due is rounded down, as sums since the start, so nothing adds up.
    """
    count = math.ceil(case.trace.duration_s / window_s)
    quantum_s = window_s / quanta
    arrived = np.cumsum(_by_window(wanted.arrival_s, wanted.work_s, window_s, count)) / quantum_s
    due = _by_window(wanted.prefill_end_s, wanted.prefill_s, window_s, count)
    due += _by_window(wanted.decode_end_s, wanted.decode_s, window_s, count)
    due = np.cumsum(due) / quantum_s
    arrived_quanta = np.ceil(arrived - 1e-6).astype(np.int64)
    due_quanta = np.floor(due + 1e-6).astype(np.int64) - 1  # one for misses, which are rounded down too
    slack = np.maximum(arrived_quanta - np.maximum(due_quanta, 0), 0)
    work = np.diff(arrived_quanta, prepend=0)
    return Windows(window_s, quanta, work, slack, _alone(wanted, window_s, count), _most_replicas(work, slack, quanta))


def _by_window(time_s: FloatColumn, weight: FloatColumn, window_s: float, count: int) -> FloatColumn:
    """Sum up `weight` by the window that holds `time_s`; what lies behind the last window is left out."""
    inside = time_s < count * window_s
    place = (time_s[inside] / window_s).astype(np.int64)
    total: FloatColumn = np.bincount(place, weight[inside], minlength=count).astype(np.float64)
    return total


def _alone(wanted: Demand, window_s: float, count: int) -> FloatColumn:
    """Count the requests that are lost if no replica serves in a window and so many before it.

    Returns float64[count, K]: row j, column r - 1 for j and the r - 1 windows before it, K for as many or more.
    """
    last_s = wanted.decode_end_s
    inside = last_s < count * window_s
    first = (wanted.arrival_s[inside] / window_s).astype(np.int64)
    last = (last_s[inside] / window_s).astype(np.int64)
    span = last - first + 1
    longest = int(min(span.max(initial=1), LONGEST_OFF))
    short = span <= longest
    place = last[short] * longest + span[short] - 1
    lost = np.bincount(place, minlength=count * longest).reshape(count, longest)
    return np.cumsum(lost, axis=1, dtype=np.float64)


def _most_replicas(work: IntColumn, slack: IntColumn, quanta: int) -> int:
    """Return two more than the least constant count that keeps every deadline. So many count as infinitely fast."""
    low, high = 1, max(int(work.max(initial=1)) // quanta + 2, 2)
    while low < high:
        middle = (low + high) // 2
        done = np.cumsum(work - middle * quanta)
        backlog = done - np.minimum(np.minimum.accumulate(done), 0)
        low, high = (low, middle) if (backlog <= slack).all() else (middle + 1, high)
    return low + 2


class _Misses(NamedTuple):
    """What may be missed: so many requests, and so much work."""

    requests: int
    work_s: float


class _Prices(NamedTuple):
    """Of what is missed, in replica-seconds: per second of work, and per request that came while nobody served."""

    work: float
    request: float


def _priced(case: Case, windows: Windows, misses: _Misses, prices: _Prices) -> float:
    """Return the bound that these prices give."""
    # A replica that serves for s seconds touches fewer than s / window_s + 2 windows.
    start_s = case.cold_start_s - 2 * windows.window_s
    cost_s = cheapest(windows, start_s, prices.work * windows.quantum_s, prices.request)
    return cost_s - prices.work * misses.work_s - prices.request * misses.requests


def _search(case: Case, windows: Windows, misses: _Misses) -> _Prices:
    """Find prices with a high bound, one after the other, a few times. The bound is concave in both together."""
    if not misses.requests:
        return _Prices(NO_MISS, NO_MISS)
    dearest = 4 * (case.cold_start_s + windows.window_s)
    steepest = dearest / windows.quantum_s
    prices = _Prices(1.0, 0.0)
    best, least = prices, -math.inf
    for _ in range(ROUNDS):
        work, request = prices
        if windows.lost_alone.any():
            request = climb(lambda price: _priced(case, windows, misses, _Prices(work, price)), 1e-3, dearest)  # noqa: B023
        work = climb(lambda price: _priced(case, windows, misses, _Prices(price, request)), 0.5, steepest)  # noqa: B023
        prices = _Prices(work, request)
        found = _priced(case, windows, misses, prices)
        if found > least:
            best, least = prices, found
    return best
