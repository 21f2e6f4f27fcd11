"""Place the GPUs that pools request on the node groups that admit them: a maximum flow from pools to groups.

A group has several capacities if not all of its GPUs are of use to every pool: those of each level, which pools of
this level and of higher ones share. Tenants and their quotas take the places of pools and node groups, where quotas
limit replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

ROUNDING_GPUS = 1e-9


class Placement:
    """The GPUs of each pool that have a place, by node group. Pools and groups are numbered from 0."""

    def __init__(
        self,
        gpus: FloatColumn,
        groups: Sequence[Sequence[int]],
        levels: Sequence[int] | None = None,
        placed: FloatColumn | None = None,
    ) -> None:
        """gpus: float64[B, G], of each group for pools of each level and higher ones; finite, never more than before.

        groups: those that admit each pool. levels: of each pool; None: all are of level 0.
        placed: float64[N, G], GPUs that have their place already; None: none.
        """
        self._gpus = gpus
        self._left: list[list[float]] = gpus.tolist()  # by level, then by group
        self._groups = groups
        self._admitted = [frozenset(own) for own in groups]
        self._levels = [0] * len(groups) if levels is None else levels
        self._admits = np.zeros((len(groups), gpus.shape[1]), dtype=bool)
        for pool, own in enumerate(groups):
            self._admits[pool, own] = True
        self._open = [set(np.flatnonzero(left > ROUNDING_GPUS).tolist()) for left in np.minimum.accumulate(gpus)]
        self._sums = [0.0] * len(groups)  # by pool, of what is placed
        self._placed: list[dict[int, float]] = [{} for _ in groups]  # by pool, then by group
        self._pools: list[set[int]] = [set() for _ in range(gpus.shape[1])]  # pools with GPUs in each group
        self._is_copied: tuple[set[int], set[int]] = set(), set()  # pools and groups that share nothing with a copy
        if placed is not None:
            for pool, group in np.argwhere(placed > 0).tolist():
                self._move(pool, group, float(placed[pool, group]))

    def copy(self) -> Self:
        """Return an independent placement, which is the same now."""
        other = object.__new__(type(self))
        other._gpus, other._groups, other._admitted = self._gpus, self._groups, self._admitted
        other._levels, other._admits, other._sums = self._levels, self._admits, self._sums.copy()
        other._placed, other._pools = self._placed.copy(), self._pools.copy()
        other._left = [left.copy() for left in self._left]
        other._open = [groups.copy() for groups in self._open]
        self._is_copied, other._is_copied = (set(), set()), (set(), set())
        return other

    def place(self, more: FloatColumn) -> BoolColumn:
        """Place this many more GPUs of each pool, as far as possible. Return the pools that are short; bool[N].

        They are the fewest pools that together request more than all groups have that admit any of them. If all GPUs
        have a place, no pool is short. more: float64[N].
        """
        needed = {pool: float(more[pool]) for pool in np.flatnonzero(more > ROUNDING_GPUS).tolist()}
        for pool in sorted(needed, key=lambda pool: len(self._groups[pool])):
            needed[pool] -= self._fill(pool, needed[pool])
        full: dict[int, int] = {}  # lowest level of groups that nothing in them can leave
        short: set[int] = set()
        for pool, gpus in needed.items():
            left = gpus
            while left > ROUNDING_GPUS and pool not in short:
                left -= self._reroute(pool, left, full, short)
        is_short = np.zeros(len(self._groups), dtype=bool)
        is_short[list(short)] = True
        return is_short

    def to_array(self) -> FloatColumn:
        """Return the GPUs of each pool that have their place on each group; float64[N, G]."""
        placed = np.zeros(self._admits.shape)
        for pool, own in enumerate(self._placed):
            for group, gpus in own.items():
                placed[pool, group] = gpus
        return placed

    def size(self, pools: BoolColumn) -> float:
        """Return the GPUs that all groups of these pools together have for them. pools: bool[N]."""
        lowest = self.lowest(pools)
        groups = np.flatnonzero(lowest < len(self._gpus))
        return float(self._gpus[lowest[groups], groups].sum())

    def lowest(self, pools: BoolColumn) -> IntColumn:
        """Return the lowest level of these pools that each group admits; int64[G]. pools: bool[N].

        It is the number of levels if the group admits none of them.
        """
        none, levels = len(self._gpus), np.array(self._levels, dtype=np.int64)[pools]
        return np.asarray(np.where(self._admits[pools], levels[:, None], none).min(axis=0, initial=none))

    def left(self, pools: BoolColumn) -> float:
        """Return the GPUs that all groups of these pools together have beyond those of the pools. pools: bool[N]."""
        return self.size(pools) - sum(self._sums[pool] for pool in np.flatnonzero(pools).tolist())

    def costs(self, pool: IntColumn, gpus: FloatColumn, short: BoolColumn) -> FloatColumn:
        """Return the GPUs that each of some replicas takes from what is left to short pools, in this order; float64[L].

        pool: int64[L]; -1: none. gpus: float64[L]. short: bool[N].
        """
        return np.where(np.append(short, False)[pool], gpus, 0.0)

    def largest(self, short: BoolColumn) -> FloatColumn:
        """Return how many GPUs the next replica of each pool may have; float64[N]. Infinity: the pool is not short."""
        return np.where(short, self.left(short) + ROUNDING_GPUS, np.inf)

    def is_crowded(self, pool: IntColumn, gpus: FloatColumn, largest: FloatColumn) -> BoolColumn:
        """Return which replicas have no place if others before them have one; bool[L]. It may leave some out.

        pool: int64[L]; -1: none. gpus: float64[L]. largest: float64[N], result of `largest`.
        """
        return np.zeros(len(pool), dtype=bool)

    def free(self, pool: int) -> float:
        """Return the GPUs that the groups of a pool have free while no other pool moves."""
        return sum(self._free(self._levels[pool], group) for group in self._groups[pool])

    @property
    def pools(self) -> int:
        """Return the number of pools."""
        return len(self._groups)

    def _fill(self, pool: int, most: float) -> float:
        """Place up to `most` GPUs of a pool where its groups have some left, in their order. Return how many."""
        level, left = self._levels[pool], most
        for group in self._groups[pool]:
            if left <= ROUNDING_GPUS:
                break
            if group in self._open[level]:
                gpus = min(left, self._free(level, group))
                self._move(pool, group, gpus)
                left -= gpus
        return most - left

    def _resize(self, gpus: FloatColumn) -> FloatColumn:
        """Change the GPUs of each group. Return those that have lost their place by pool; float64[N]."""
        lost = np.zeros(len(self._groups))
        for group in np.flatnonzero((gpus != self._gpus).any(axis=0)).tolist():
            for left, change in zip(self._left, (gpus[:, group] - self._gpus[:, group]).tolist(), strict=True):
                left[group] += change
            for level, left in reversed(list(enumerate(self._left))):
                for pool in sorted(self._pools[group]) if left[group] < -ROUNDING_GPUS else ():
                    if self._levels[pool] >= level and left[group] < -ROUNDING_GPUS:
                        leaving = min(self._placed[pool][group], -left[group])
                        self._move(pool, group, -leaving)
                        lost[pool] += leaving
            self._list_open(group)
        self._gpus = gpus
        return lost

    def _reroute(self, pool: int, most: float, full: dict[int, int], short: set[int]) -> float:
        """Place up to `most` GPUs of a pool where other pools can move to free ones. Return how many were placed.

        If there is no such place, the groups that were searched are added to `full`, and the pools to `short`.
        """
        entered: dict[int, tuple[int, int]] = {pool: (-1, -1)}  # group that a pool may leave, for which one
        levels, admitted, is_open = self._levels, self._admitted, self._open
        if not is_open[levels[pool]].isdisjoint(admitted[pool]):
            return self._shift(pool, min(is_open[levels[pool]] & admitted[pool]), most, entered)
        queue, seen = [pool], full.copy()
        searched = {group for group, lowest in full.items() if lowest == 0}
        for mover in queue:
            level = levels[mover]
            for group in admitted[mover] - searched:
                reached = seen.get(group, len(is_open))
                if level >= reached:
                    continue
                lowest = level
                while lowest > 0 and self._left[lowest][group] > ROUNDING_GPUS:
                    lowest -= 1
                seen[group] = lowest
                if lowest == 0:
                    searched.add(group)
                for other in self._pools[group]:
                    if other not in entered and lowest <= levels[other] < reached:
                        entered[other] = group, mover
                        if not is_open[levels[other]].isdisjoint(admitted[other]):
                            return self._shift(other, min(is_open[levels[other]] & admitted[other]), most, entered)
                        queue.append(other)
        full.update(seen)
        short.update(entered)
        return 0.0

    def _shift(self, pool: int, target: int, most: float, entered: dict[int, tuple[int, int]]) -> float:
        """Move GPUs along a path that ends in a free group: each pool on it leaves one group for the next."""
        path, gpus = [], min(most, self._free(self._levels[pool], target))
        while True:
            source, mover = entered[pool]
            path.append((pool, target, source))
            if source < 0:
                break
            between = self._left[self._levels[pool] + 1 : self._levels[mover] + 1]
            gpus = min(gpus, self._placed[pool][source], *(left[source] for left in between))
            pool, target = mover, source
        for pool, target, source in path:
            if source >= 0:
                self._move(pool, source, -gpus)
            self._move(pool, target, gpus)
        return gpus

    def _move(self, pool: int, group: int, gpus: float) -> None:
        """Add GPUs of a pool to a group, or remove them."""
        pools, groups = self._is_copied
        if pool not in pools:
            self._placed[pool] = self._placed[pool].copy()
            pools.add(pool)
        if group not in groups:
            self._pools[group] = self._pools[group].copy()
            groups.add(group)
        placed, is_open = self._placed[pool], True
        placed[group] = placed.get(group, 0.0) + gpus
        self._sums[pool] += gpus
        for left in self._left[: self._levels[pool] + 1]:
            left[group] -= gpus
            is_open = is_open and left[group] > ROUNDING_GPUS
        if not is_open or (gpus < 0 and group not in self._open[-1]):
            self._list_open(group)
        if placed[group] > ROUNDING_GPUS:
            self._pools[group].add(pool)
        else:
            del placed[group]
            self._pools[group].discard(pool)

    def _free(self, level: int, group: int) -> float:
        """Return the GPUs that a group has left for a pool of this level."""
        return min(left[group] for left in self._left[: level + 1]) if level else self._left[0][group]

    def _list_open(self, group: int) -> None:
        """Note the levels for which a group has GPUs left."""
        is_open = True
        for left, groups in zip(self._left, self._open, strict=True):
            is_open = is_open and left[group] > ROUNDING_GPUS
            if is_open:
                groups.add(group)
            else:
                groups.discard(group)
