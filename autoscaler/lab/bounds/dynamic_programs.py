"""The dynamic programs behind the clairvoyant bound: the cheapest whole numbers of replicas, window by window.

Misses come in by a price (a Lagrange multiplier), and `climb` looks for the best one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.compiled import compiled

PRICES = 11  # that a search tries


@dataclass(frozen=True)
class Windows:
    """Time cut into J windows of `window_s`, and work into quanta."""

    window_s: float
    quanta: int  # that a replica does in a window
    work: IntColumn  # int64[J], quanta that arrive
    slack: IntColumn  # int64[J], quanta that may be undone at the end of the window
    lost_alone: FloatColumn  # float64[J, K], requests lost without a replica in this window and k before it
    most_replicas: int  # counts as infinitely fast

    @property
    def quantum_s(self) -> float:
        return self.window_s / self.quanta

    @property
    def operations(self) -> float:
        """Cells that one run of the program visits."""
        rows = self.most_replicas + self.lost_alone.shape[1]
        deepest = int(self.slack.max(initial=0))
        return float(len(self.work) * rows * (deepest + 1))


def cheapest(windows: Windows, start_s: float, quantum_price_s: float, request_price_s: float) -> float:
    """Return the least of: seconds of replicas, `start_s` for each start, and the prices of what is missed.

    Any number is there at the beginning. Their first window is free, for they may end within it. Undone work beyond the
    slack of a window is missed, at `quantum_price_s` each; requests that came and ended while there was no replica at
    `request_price_s` each.
    Raises ValueError if a start costs less than nothing, which no window should be long enough for.
    """
    if start_s < 0:
        raise ValueError(f"start_s is {start_s:g}; it must be 0 or more: windows may be at most half a cold start")
    return float(
        _cheapest(
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


def cheapest_counts(missed: IntColumn, level: IntColumn, window_s: float, start_s: float, price_s: float) -> float:
    """Return the least of: seconds of replicas, `start_s` for each start, and `price_s` for each miss.

    missed: int64[J, L], misses in a window at each level. level: int64[N + 1], the level of each count of replicas.
    Any number is there at the beginning. Their first window is free, for they may end within it.
    """
    if start_s < 0:
        raise ValueError(f"start_s is {start_s:g}; it must be 0 or more: windows may be at most half a cold start")
    return float(_cheapest_counts(missed, level, window_s, start_s, price_s))


def climb(value: Callable[[float], float], low: float, high: float) -> float:
    """Return about where `value`, which has one summit, is highest between `low` and `high`, on a scale of ratios."""
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
def _cheapest(
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
    """See `cheapest`. A state is the replicas, or the windows without any, and the backlog in quanta.

    Row `off + n` holds the costs with n replicas; the rows below tell how long there has been none.
    """
    off = lost_alone.shape[1]
    width = slack.max() + 1
    rows = off + most + 1  # row off + 0 stays unused
    cost = np.full((rows, width), math.inf)
    after = np.full((rows, width), math.inf)
    cost[off - 1, 0] = 0.0
    for count in range(1, most + 1):
        cost[off + count, 0] = -count * window_s
    before = 0  # greatest backlog that any state has
    for window in range(len(work)):
        if window > 0:
            _change(cost, off, most, before, start_s)
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
def _change(cost: FloatColumn, off: int, most: int, before: int, start_s: float) -> None:
    """Let replicas end, for nothing, and start. Rows without any replica grow older by one window."""
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
def _cheapest_counts(missed: IntColumn, level: IntColumn, window_s: float, start_s: float, price_s: float) -> float:
    """See `cheapest_counts`."""
    most = len(level) - 1
    cost = -window_s * np.arange(most + 1.0)
    for window in range(len(missed)):
        for count in range(most + 1):
            cost[count] += count * window_s + price_s * missed[window, level[count]]
        for count in range(most - 1, -1, -1):  # replicas end, for nothing, and start
            cost[count] = min(cost[count], cost[count + 1])
        for count in range(1, most + 1):
            cost[count] = min(cost[count], cost[count - 1] + start_s)
    least_s: float = cost.min()
    return least_s
