"""Dynamic programs behind the bounds: the cheapest whole numbers of replicas, window by window.

Misses enter with a price (a Lagrange multiplier), and `maximize` searches the best price. J is the number of windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.engine.compiled import compiled

PRICES = 11  # prices that a search evaluates


@dataclass(frozen=True)
class TimeWindows:
    """Time in J windows of `window_s` seconds, and work in quanta."""

    window_s: float
    quanta: int  # work of a replica in a window
    work: IntColumn  # int64[J], quanta that arrive
    slack: IntColumn  # int64[J], quanta that may be undone at the end of the window
    lost_alone: FloatColumn  # float64[J, K], requests lost without a replica in this window and k before it
    most_replicas: int  # a replica count that serves any work at once

    @property
    def quantum_s(self) -> float:
        return self.window_s / self.quanta

    @property
    def operations(self) -> float:
        """Number of cells that one run of the program visits."""
        rows = self.most_replicas + self.lost_alone.shape[1]
        deepest = int(self.slack.max(initial=0))
        return float(len(self.work) * rows * (deepest + 1))


def minimize_cost(windows: TimeWindows, start_s: float, quantum_price_s: float, request_price_s: float) -> float:
    """Return the least cost in seconds: replica-seconds, `start_s` for each start, and the prices of misses.

    The initial count is free to choose, and its first window costs nothing, since these replicas may end within it.
    Work beyond the slack of a window is missed, at `quantum_price_s` per quantum. A request that arrives and expires
    while no replica serves is missed, at `request_price_s`.
    Raises ValueError for a negative `start_s`, that is for windows that are too long.
    """
    if start_s < 0:
        raise ValueError(f"start_s is {start_s:g}; it must be 0 or more: windows may be at most half a cold start")
    return float(
        _minimize_cost(
            windows.work,
            windows.slack,
            windows.lost_alone,
            windows.most_replicas,
            windows.quanta,
            windows.window_s,
            start_s,
            quantum_price_s,
            request_price_s,
        )
    )


def minimize_cost_of_counts(
    missed: IntColumn, level: IntColumn, window_s: float, start_s: float, price_s: float
) -> float:
    """Return the least cost in seconds: replica-seconds, `start_s` for each start, and `price_s` for each miss.

    missed: int64[J, L], misses in a window at each level. level: int64[N + 1], the level of each replica count.
    The initial count is free to choose, and its first window costs nothing.
    """
    if start_s < 0:
        raise ValueError(f"start_s is {start_s:g}; it must be 0 or more: windows may be at most half a cold start")
    return float(_minimize_cost_of_counts(missed, level, window_s, start_s, price_s))


def maximize(value: Callable[[float], float], low: float, high: float) -> float:
    """Return approximately where the unimodal `value` is highest between `low` and `high`, by golden-section search on
    a log scale.
    """
    ratio = (math.sqrt(5) - 1) / 2
    left, right = math.log(low), math.log(high)
    at = [right - ratio * (right - left), left + ratio * (right - left)]
    found = [value(math.exp(place)) for place in at]
    for _ in range(PRICES - 2):
        if found[0] >= found[1]:
            right = at[1]
            at = [right - ratio * (right - left), at[0]]
            found = [value(math.exp(at[0])), found[0]]
        else:
            left = at[0]
            at = [at[1], left + ratio * (right - left)]
            found = [found[1], value(math.exp(at[1]))]
    return math.exp(at[int(found[1] > found[0])])


@compiled
def _minimize_cost(
    work: IntColumn,
    slack: IntColumn,
    lost_alone: FloatColumn,
    most: int,
    quanta: int,
    window_s: float,
    start_s: float,
    quantum_price_s: float,
    request_price_s: float,
) -> float:
    """Compiled part of `minimize_cost`. A state is the replica count, or the windows without replicas, and the backlog
    in quanta.

    work, slack: int64[J], quanta. lost_alone: float64[J, K], requests. Row `off + n` of the costs, float64[rows,
    backlog], holds those with n replicas; the rows below count windows without any.
    """
    off = lost_alone.shape[1]
    width = slack.max() + 1
    rows = off + most + 1  # row off + 0 is unused
    cost = np.full((rows, width), math.inf)
    after = np.full((rows, width), math.inf)
    cost[off - 1, 0] = 0.0
    for count in range(1, most + 1):
        cost[off + count, 0] = -count * window_s
    before = 0  # largest backlog of any state
    for window in range(len(work)):
        if window > 0:
            _start_and_stop(cost, off, most, before, start_s)
        room = slack[window]
        after[:, : room + 1] = math.inf
        for row in range(rows):
            if row == off:
                continue
            count = max(row - off, 0)
            paid_s = count * window_s
            if count == 0:
                paid_s += request_price_s * lost_alone[window, row]
            change = work[window] - count * quanta
            for backlog in range(before + 1):
                total_s = cost[row, backlog] + paid_s
                if total_s == math.inf:
                    continue
                left = 0 if count == most else max(backlog + change, 0)
                if left > room:
                    total_s += (left - room) * quantum_price_s
                    left = room
                after[row, left] = min(after[row, left], total_s)
        cost, after = after, cost
        before = room
    least_s: float = cost[:, : before + 1].min()
    return least_s


@compiled
def _start_and_stop(cost: FloatColumn, off: int, most: int, before: int, start_s: float) -> None:
    """Apply stops, which are free, and starts at `start_s` to the costs. Rows without replicas age by one window."""
    for backlog in range(before + 1):
        idle_s = cost[:off, backlog].min()
        for row in range(off + most - 1, off, -1):
            cost[row, backlog] = min(cost[row, backlog], cost[row + 1, backlog])
        oldest_s = cost[off - 1, backlog]
        for row in range(off - 1, 0, -1):
            cost[row, backlog] = cost[row - 1, backlog]
        cost[0, backlog] = cost[off + 1, backlog]
        cost[off - 1, backlog] = min(cost[off - 1, backlog], oldest_s)
        cost[off + 1, backlog] = min(cost[off + 1, backlog], idle_s + start_s)
        for row in range(off + 2, off + most + 1):
            cost[row, backlog] = min(cost[row, backlog], cost[row - 1, backlog] + start_s)


@compiled
def _minimize_cost_of_counts(
    missed: IntColumn, level: IntColumn, window_s: float, start_s: float, price_s: float
) -> float:
    """Compiled part of `minimize_cost_of_counts`."""
    most = len(level) - 1
    cost = -window_s * np.arange(most + 1.0)
    for window in range(len(missed)):
        for count in range(most + 1):
            cost[count] += count * window_s + price_s * missed[window, level[count]]
        for count in range(most - 1, -1, -1):  # stops are free; then starts
            cost[count] = min(cost[count], cost[count + 1])
        for count in range(1, most + 1):
            cost[count] = min(cost[count], cost[count - 1] + start_s)
    least_s: float = cost.min()
    return least_s
