"""Whole replicas at least cost: an integer covering problem per service, solved for all services at once.

Matrices have a row per service (S) and a column per variant (V). A variant that a service does not have has no room.
The search is greedy by cost per request and closes the rest with each variant in turn. Then it exchanges a few replicas
of one variant for those of another while that saves cost. `tests/core/allocate/test_least_cost.py` measures the gap to
an exact solver.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.table.columns import REPLICA_ROUNDING, FloatColumn, IntColumn

EXCHANGED = 4
"""At most this many replicas of one variant are exchanged at once."""

ROUNDS = 4
"""Rounds of exchanges; more change next to nothing."""


def cover(requests: FloatColumn, room: FloatColumn, each: FloatColumn, cost: FloatColumn) -> FloatColumn:
    """Return the whole replicas that carry `requests` at least cost, float64[S, V]; all that there is room for if few.

    requests: float64[S]. room, each, cost: float64[S, V], most replicas, requests of one replica (> 0) and its cost.
    """
    cheapest = np.argsort(cost / each, axis=1, kind="stable")
    whole, left = _fill(requests, room, each, cheapest)
    best = whole + _close(left, room - whole, each, cheapest)
    least = _price(best, cost)
    begun, begun_left = np.zeros_like(room), requests
    for place in range(room.shape[1] + 1):  # whole replicas of the cheapest ones, and one variant for all others
        for closing in range(room.shape[1]):
            tried = _add(begun, closing, np.ceil(begun_left / each[:, closing] - REPLICA_ROUNDING))
            _keep_better(best, least, tried, room, cost)
        if place < room.shape[1]:
            begun = np.where(np.arange(room.shape[1]) == cheapest[:, [place]], whole, begun)
            begun_left = np.fmax(requests - np.sum(begun * each, axis=1), 0.0)
    for _ in range(ROUNDS):
        before = least.copy()
        for leaving, count in np.ndindex(room.shape[1], EXCHANGED):
            fewer = _add(best, leaving, -np.fmin(count + 1.0, best[:, leaving]))
            missing = np.fmax(requests - np.sum(fewer * each, axis=1), 0.0)
            for joining in range(room.shape[1]):
                more = np.ceil(missing / each[:, joining] - REPLICA_ROUNDING)
                _keep_better(best, least, _add(fewer, joining, more), room, cost)
        if not (least < before).any():
            break
    return best


def shed(requests: FloatColumn, spare: FloatColumn, each: FloatColumn, cost: FloatColumn) -> FloatColumn:
    """Return the whole replicas that save the most and carry at most `requests`; float64[S, V].

    requests: float64[S]. spare, each, cost: float64[S, V], replicas that may go, requests of one, and its cost.
    """
    present = np.sum(spare * each, axis=1)
    return spare - cover(np.fmax(present - requests, 0.0), spare, each, cost)


def take(count: FloatColumn, replicas: FloatColumn, each: FloatColumn, cost: FloatColumn) -> FloatColumn:
    """Return at most `count` of these replicas, those with the cheapest requests first; float64[S, V]. count: [S]."""
    return _fill(count, replicas, np.ones_like(each), np.argsort(cost / each, axis=1, kind="stable"))[0]


def _fill(
    requests: FloatColumn, room: FloatColumn, each: FloatColumn, order: IntColumn
) -> tuple[FloatColumn, FloatColumn]:
    """Return the whole replicas of each variant in `order` that carry at most what is left, and what is left then."""
    replicas, left, rows = np.zeros_like(room), requests.copy(), np.arange(len(requests))
    for column in order.T:
        whole = np.clip(np.floor(left / each[rows, column] + REPLICA_ROUNDING), 0.0, room[rows, column])
        replicas[rows, column] = whole
        left = np.fmax(left - whole * each[rows, column], 0.0)
    return replicas, left


def _close(left: FloatColumn, room: FloatColumn, each: FloatColumn, order: IntColumn) -> FloatColumn:
    """Return the replicas that carry what is left, variants in `order`; the last of them is not full."""
    replicas, left, rows = np.zeros_like(room), left.copy(), np.arange(len(left))
    for column in order.T:
        more = np.clip(np.ceil(left / each[rows, column] - REPLICA_ROUNDING), 0.0, room[rows, column])
        replicas[rows, column] = more
        left = np.fmax(left - more * each[rows, column], 0.0)
    return replicas


def _keep_better(
    best: FloatColumn, least: FloatColumn, tried: FloatColumn, room: FloatColumn, cost: FloatColumn
) -> None:
    """Replace the rows of `best` and `least` for which `tried` costs less and has room."""
    price = _price(tried, cost)
    better = (price < least - REPLICA_ROUNDING) & (tried <= room).all(axis=1)
    best[better], least[better] = tried[better], price[better]


def _add(replicas: FloatColumn, variant: int, more: FloatColumn) -> FloatColumn:
    changed = replicas.copy()
    changed[:, variant] += more
    return changed


def _price(replicas: FloatColumn, cost: FloatColumn) -> FloatColumn:
    return np.asarray(np.sum(replicas * cost, axis=1))
