"""Take replicas one after the other, each as long as it and those before it have a place within every limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.core.supply.nodes import Places
from autoscaler.core.supply.placement import ROUNDING_GPUS, Placement
from autoscaler.core.supply.running import PartsOnRows
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

AT_ONCE = 4096
"""Replicas that are tried at once where limits are short, or more."""


class Limit(NamedTuple):
    """One limit on the replicas: node groups limit those of pools, and quotas limit those of tenants."""

    row: IntColumn  # int64[L], of each replica in the placement; -1: this does not limit it
    gpus: FloatColumn  # float64[L], of each replica, that need a place
    placement: Placement  # of what is placed before
    parts: PartsOnRows = (
        PartsOnRows.none()
    )  # of replicas that need GPUs of several rows, by index; these have no row above

    def sum_gpus(self, replicas: IntColumn) -> FloatColumn:
        """Return the GPUs of these replicas by row of the placement. replicas: indices."""
        sums = np.bincount(self.row[replicas] + 1, self.gpus[replicas], 1 + self.placement.pools)[1:]
        if len(self.parts.replica):
            _, row, gpus = self.find_parts(replicas)
            sums = sums + np.bincount(row, gpus, self.placement.pools)
        return np.asarray(sums, dtype=np.float64)

    def find_parts(self, replicas: IntColumn) -> PartsOnRows:
        """Return the parts of these replicas, by their place among them."""
        if not len(self.parts.replica):
            return self.parts
        place = np.full(len(self.row), -1)
        place[replicas] = np.arange(len(replicas))
        own = place[self.parts.replica] >= 0
        return PartsOnRows(place[self.parts.replica[own]], self.parts.row[own], self.parts.gpus[own])

    def fits(self, replicas: IntColumn, largest: FloatColumn) -> BoolColumn:
        """Return which of these replicas need no more GPUs than the next one of its row may have; bool, by replica."""
        fits = self.gpus[replicas] <= largest[self.row[replicas]]
        if len(self.parts.replica):
            place, row, gpus = self.find_parts(replicas)
            fits[place[gpus > largest[row]]] = False
        return np.asarray(fits)

    def copy_with(self, replicas: IntColumn) -> tuple[Limit, BoolColumn]:
        """Return a copy in which these replicas are placed as well, and the rows that are short then; bool[N]."""
        placement = self.placement.copy()
        return self._replace(placement=placement), placement.place(self.sum_gpus(replicas))

    def count_fitting(self, replicas: IntColumn, short: BoolColumn) -> int:
        """Return how many of these replicas come before the first that has no place with the others, for short rows."""
        row, gpus, place = self.row[replicas], self.gpus[replicas], np.arange(len(replicas))
        if len(self.parts.replica):
            parts = self.find_parts(replicas)
            place = np.append(place, parts.replica)
            order = np.argsort(place, kind="stable")
            place, row = place[order], np.append(row, parts.row)[order]
            gpus = np.append(gpus, parts.gpus)[order]
        costs = self.placement.costs(row, gpus, short)
        ends = np.cumsum(np.bincount(place, costs) if len(place) > len(replicas) else costs)
        return int(np.searchsorted(ends, self.placement.left(short) + ROUNDING_GPUS, side="right"))

    def is_crowded(self, replicas: IntColumn, largest: FloatColumn) -> BoolColumn:
        """Return which of these replicas have no place if all before them on their node have one; bool, by replica."""
        return self.placement.is_crowded(self.row[replicas], self.gpus[replicas], largest)

    def is_behind(self, replicas: IntColumn, others: IntColumn) -> BoolColumn:
        """Return which of these replicas come after any of the others of the same row; bool, by replica."""
        first = np.full(1 + self.placement.pools, len(self.row))
        np.minimum.at(first[:-1], *(column[self.row[others] >= 0] for column in (self.row[others], others)))
        return np.asarray(replicas > first[self.row[replicas]])


class OnNodes(NamedTuple):
    """Replicas that need single nodes, beside others that have theirs."""

    places: Places
    workload: IntColumn  # int64[L], of each replica
    limit: Limit  # node groups, beside the others
    pods: FloatColumn  # float64[S, N], of the others, to place
    unplaced: BoolColumn  # bool[S, N], those of them for which no node is found

    @classmethod
    def of(cls, places: Places, workload: IntColumn, limit: Limit, pods: FloatColumn) -> OnNodes:
        return cls(places, workload, limit, pods, places.pack(limit.placement, pods))

    def beside(self, gpus: FloatColumn, pods: FloatColumn) -> OnNodes:
        """Return what limits them beside further replicas. gpus: by row of the placement. pods: float64[S, N]."""
        placement = self.limit.placement.copy()
        placement.place(gpus)
        return self._replace(limit=self.limit._replace(placement=placement), pods=self.pods + pods)

    def count_pods(self, replicas: IntColumn) -> FloatColumn:
        """Return the pods of these replicas that are on no known node; float64[S, N]."""
        _, row, gpus = self.limit.find_parts(replicas)
        counted = (self.limit.gpus[replicas] > 0).astype(np.float64)
        pods = self.places.count_pods(self.workload[replicas], self.limit.row[replicas], counted)
        return pods + self.places.count_single(row, gpus)

    def hold(self, replicas: IntColumn) -> bool:
        """Return whether all these replicas have a place, and a node is found for each pod of them and the others."""
        limit, short = self.limit.copy_with(replicas)
        if short.any():
            return False
        pods = self.pods + self.count_pods(replicas)
        return not (self.places.pack(limit.placement, pods) & ~self.unplaced).any()

    def find_first_without_node(self, replicas: IntColumn) -> int | None:
        """Return the first of these replicas for which no node is found beside all before it; None: all have one."""
        if not len(self.places.sizes) or self.hold(replicas):
            return None
        fitting, most = 0, len(replicas)
        while most - fitting > 1:
            tried = (fitting + most) // 2
            fitting, most = (tried, most) if self.hold(replicas[:tried]) else (fitting, tried)
        return int(replicas[fitting])


def take(limits: Sequence[Limit], least: int = AT_ONCE, allowed: BoolColumn | None = None) -> BoolColumn:
    """Take replicas in order, and leave out each that has no place together with those taken before it; bool[L].

    least: replicas that it tries at once, or more. While rows of a limit are short, it tries only as many as have a
    place by their sum. The next replica has no place then, nor has any other of these rows that is as large. Replicas
    that have none behind others of their node are left out at once, and come back if one of those has no place itself.
    allowed: bool[L], those that may be taken; None: all.
    """
    taken, listed = np.zeros(len(limits[0].row), dtype=bool), 0
    listing = np.arange(len(taken)) if allowed is None else np.flatnonzero(allowed)
    if len(limits) > 1:
        limits = [limit for limit in limits if limit.copy_with(listing)[1].any()]
    largest = [np.full(1 + limit.placement.pools, np.inf) for limit in limits]  # by row, of a replica with a place
    waiting = np.zeros(0, dtype=np.int64)  # replicas to try, the first of all that follow
    crowded = [waiting for _ in limits]  # those without a place behind others of their node
    known: list[tuple[int, BoolColumn]] = []  # limit and its short rows of the last try; they may be short again
    while len(waiting) or listed < len(listing):
        more = listing[listed : listed + max(least - len(waiting), 0)]
        listed += len(more)
        for limit, gpus in zip(limits, largest, strict=True):
            more = more[limit.fits(more, gpus)]
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
            fits = limit.fits(waiting, gpus)
            refused, waiting = np.concatenate([refused, waiting[~fits]]), waiting[fits]
            for place, (each, out) in enumerate(zip(limits, crowded, strict=True)):
                back = each.is_behind(out, refused)
                crowded[place] = out[~back]
                waiting = np.union1d(waiting, out[back]) if back.any() else waiting
            leaves = limit.is_crowded(waiting, now)
            crowded[which], waiting = np.concatenate([crowded[which], waiting[leaves]]), waiting[~leaves]
    return taken
