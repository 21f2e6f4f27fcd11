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

    def sum_gpus(self, replicas: IntColumn) -> FloatColumn:
        """Return the GPUs of these replicas by row of the placement. replicas: indices."""
        sums = np.bincount(self.row[replicas] + 1, self.gpus[replicas], 1 + self.placement.pools)
        return sums[1:].astype(np.float64)

    def copy_with(self, replicas: IntColumn) -> tuple[Limit, BoolColumn]:
        """Return a copy in which these replicas are placed as well, and the rows that are short then; bool[N]."""
        placement = self.placement.copy()
        return self._replace(placement=placement), placement.place(self.sum_gpus(replicas))

    def count_fitting(self, replicas: IntColumn, short: BoolColumn) -> int:
        """Return how many of these replicas come before the first that has no place with the others, for short rows."""
        ends = np.cumsum(self.placement.costs(self.row[replicas], self.gpus[replicas], short))
        return int(np.searchsorted(ends, self.placement.left(short) + ROUNDING_GPUS, side="right"))

    def is_crowded(self, replicas: IntColumn, largest: FloatColumn) -> BoolColumn:
        """Return which of these replicas have no place if all before them on their node have one; bool, by replica."""
        return self.placement.is_crowded(self.row[replicas], self.gpus[replicas], largest)

    def is_behind(self, replicas: IntColumn, others: IntColumn) -> BoolColumn:
        """Return which of these replicas come after any of the others of the same row; bool, by replica."""
        first = np.full(1 + self.placement.pools, len(self.row))
        np.minimum.at(first[:-1], *(column[self.row[others] >= 0] for column in (self.row[others], others)))
        return np.asarray(replicas > first[self.row[replicas]])


def take(limits: Sequence[Limit], least: int = AT_ONCE) -> BoolColumn:
    """Take replicas in order, and leave out each that has no place together with those taken before it; bool[L].

    least: replicas that it tries at once, or more. While rows of a limit are short, it tries only as many as have a
    place by their sum. The next replica has no place then, nor has any other of these rows that is as large. Replicas
    that have none behind others of their node are left out at once, and come back if one of those has no place itself.
    """
    count = len(limits[0].row)
    if len(limits) > 1:
        limits = [limit for limit in limits if limit.copy_with(np.arange(count))[1].any()]
    largest = [np.full(1 + limit.placement.pools, np.inf) for limit in limits]  # by row, of a replica with a place
    taken, listed = np.zeros(count, dtype=bool), 0
    waiting = np.zeros(0, dtype=np.int64)  # replicas to try, the first of all that follow
    crowded = [waiting for _ in limits]  # those without a place behind others of their node
    known: list[tuple[int, BoolColumn]] = []  # limit and its short rows of the last try; they may be short again
    while len(waiting) or listed < count:
        more = np.arange(listed, min(listed + max(least - len(waiting), 0), count))
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
        refused, waiting = waiting[end : end + 1], waiting[end + 1 :]
        limits, known = trials, found
        if found:
            which, short = found[-1]
            limit, gpus = limits[which], largest[which]
            now = limit.placement.largest(short)
            gpus[:-1] = np.fmin(gpus[:-1], now)
            fits = limit.gpus[waiting] <= gpus[limit.row[waiting]]
            refused, waiting = np.concatenate([refused, waiting[~fits]]), waiting[fits]
            for place, (each, out) in enumerate(zip(limits, crowded, strict=True)):
                back = each.is_behind(out, refused)
                crowded[place] = out[~back]
                waiting = np.union1d(waiting, out[back]) if back.any() else waiting
            leaves = limit.is_crowded(waiting, now)
            crowded[which], waiting = np.concatenate([crowded[which], waiting[leaves]]), waiting[~leaves]
    return taken
