"""Take replicas one after the other, each as long as it and those before it have a place within every limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.placement import ROUNDING_GPUS, Placement
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

AT_ONCE = 4096
"""Replicas that are tried at once where limits are short, or more."""


class Limit(NamedTuple):
    """One limit on the replicas: node groups limit those of pools, and quotas limit those of tenants."""

    row: IntColumn  # int64[L], of each replica in the placement; -1: this does not limit it
    gpus: FloatColumn  # float64[L], of each replica, that need a place
    placement: Placement  # of what is placed before

    def sum_gpus(self, replicas: IntColumn) -> list[float]:
        """Return the GPUs of these replicas by row of the placement. replicas: indices."""
        sums = np.bincount(self.row[replicas] + 1, self.gpus[replicas], 1 + self.placement.pools)
        return list(sums[1:].tolist())

    def copy_with(self, replicas: IntColumn) -> tuple[Limit, BoolColumn]:
        """Return a copy in which these replicas are placed as well, and the rows that are short then; bool[N]."""
        placement = self.placement.copy()
        return self._replace(placement=placement), placement.place(self.sum_gpus(replicas))

    def is_among(self, replicas: IntColumn, short: BoolColumn) -> BoolColumn:
        """Return which of these replicas belong to a short row; bool, by replica."""
        return np.append(short, False)[self.row[replicas]]

    def count_fitting(self, replicas: IntColumn, short: BoolColumn) -> int:
        """Return how many of these replicas come before the first of a short row that has no place with the others."""
        ends = np.cumsum(np.where(self.is_among(replicas, short), self.gpus[replicas], 0.0))
        return int(np.searchsorted(ends, self.placement.left(short) + ROUNDING_GPUS, side="right"))


def take(limits: Sequence[Limit], least: int = AT_ONCE) -> BoolColumn:
    """Take replicas in order, and leave out each that has no place together with those taken before it; bool[L].

    least: replicas that it tries at once, or more. While rows of a limit are short, it tries only as many as have a
    place by their sum. The next replica has no place then, nor has any other of these rows that is as large.
    """
    count = len(limits[0].row)
    limits = [limit for limit in limits if limit.copy_with(np.arange(count))[1].any()]
    largest = [np.full(1 + limit.placement.pools, np.inf) for limit in limits]  # by row, of a replica with a place
    taken, listed, at_once = np.zeros(count, dtype=bool), 0, least
    waiting = np.zeros(0, dtype=np.int64)  # replicas to try, the first of all that follow
    known: list[tuple[int, BoolColumn]] = []  # limit and its short rows of the last try; they may be short again
    while len(waiting) or listed < count:
        more = np.arange(listed, min(listed + max(at_once - len(waiting), 0), count))
        listed += len(more)
        for limit, gpus in zip(limits, largest, strict=True):
            more = more[limit.gpus[more] <= gpus[limit.row[more]]]
        waiting = np.concatenate([waiting, more])
        end, found = len(waiting), []
        for which, short in known:
            if (held := limits[which].count_fitting(waiting[:end], short)) < end:
                end = held
                found.append((which, short))
        trials: list[Limit] = []
        while len(trials) < len(limits):
            limit, tried = limits[len(trials)], waiting[:end]
            trial, short = limit.copy_with(tried)
            if short.any():
                end = min(limit.count_fitting(tried, short), end - 1)
                found.append((len(trials), short))
                trials = []
            else:
                trials.append(trial)
        taken[waiting[:end]] = True
        waiting, limits, known, at_once = waiting[end + 1 :], trials, found, max(least, 2 * end)
        if found:
            which, short = found[-1]
            limit = limits[which]
            largest[which][:-1][short] = limit.placement.left(short) + ROUNDING_GPUS
            waiting = waiting[limit.gpus[waiting] <= largest[which][limit.row[waiting]]]
    return taken
