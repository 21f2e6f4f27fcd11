"""Place the GPUs that pools request on the node groups that admit them: a maximum flow from pools to groups.

Only GPUs are counted, so a replica may be split between groups. `Obstacles.fits` counts what whole nodes hold.
A node group has a row of its own beside the pools, for the replicas that run in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoscaler.core.model.fleet import NodeGroups
from autoscaler.core.table.columns import BoolColumn

ROUNDING_GPUS = 1e-9


class Placement:
    """The GPUs of each pool that have a place, by node group. Pools and groups are numbered from 0."""

    def __init__(self, gpus: Sequence[float], groups: Sequence[Sequence[int]]) -> None:
        """gpus: of each group, finite. groups: those that admit each pool."""
        self._gpus = list(gpus)
        self._free = list(gpus)
        self._groups = groups
        self._placed: list[dict[int, float]] = [{} for _ in groups]  # by pool, then by group
        self._pools: list[set[int]] = [set() for _ in gpus]  # pools with GPUs in each group
        self._is_copied: tuple[set[int], set[int]] = set(), set()  # pools and groups that share nothing with a copy

    def copy(self) -> Placement:
        """Return an independent placement, which is the same now."""
        other = object.__new__(Placement)
        other._gpus, other._groups = self._gpus, self._groups
        other._free, other._placed, other._pools = self._free.copy(), self._placed.copy(), self._pools.copy()
        self._is_copied, other._is_copied = (set(), set()), (set(), set())
        return other

    def place(self, more: Sequence[float]) -> BoolColumn:
        """Place so many more GPUs of each pool, as far as possible. Return the pools that are short; bool[N].

        They are the fewest pools that together request more than all groups have that admit any of them. If all GPUs
        have a place, no pool is short.
        """
        needed = {pool: gpus for pool, gpus in enumerate(more) if gpus > ROUNDING_GPUS}
        for pool in sorted(needed, key=lambda pool: len(self._groups[pool])):
            for group in self._groups[pool]:
                if (free := self._free[group]) > ROUNDING_GPUS:
                    gpus = min(needed[pool], free)
                    self._move(pool, group, gpus)
                    needed[pool] -= gpus
                    if needed[pool] <= ROUNDING_GPUS:
                        break
        full: set[int] = set()  # groups that nothing in them can leave
        short: set[int] = set()
        for pool, gpus in needed.items():
            left = gpus
            while left > ROUNDING_GPUS and pool not in short:
                left -= self._reroute(pool, left, full, short)
        is_short = np.zeros(len(self._groups), dtype=bool)
        is_short[list(short)] = True
        return is_short

    def size(self, pools: BoolColumn) -> float:
        """Return the GPUs that all groups of these pools together have. pools: bool[N]."""
        return sum(self._gpus[group] for group in self.groups(pools))

    def groups(self, pools: BoolColumn) -> set[int]:
        """Return the groups that admit any of these pools. pools: bool[N]."""
        return {group for pool in np.flatnonzero(pools).tolist() for group in self._groups[pool]}

    def left(self, pools: BoolColumn) -> float:
        """Return the GPUs that all groups of these pools together have beyond those of the pools. pools: bool[N]."""
        placed = sum(sum(self._placed[pool].values()) for pool in np.flatnonzero(pools).tolist())
        return self.size(pools) - placed

    def free(self, pool: int) -> float:
        """Return the GPUs that the groups of a pool have free while no other pool moves."""
        return sum(self._free[group] for group in self._groups[pool])

    @property
    def pools(self) -> int:
        """Return the number of pools."""
        return len(self._groups)

    def _reroute(self, pool: int, most: float, full: set[int], short: set[int]) -> float:
        """Place up to `most` GPUs of a pool where other pools can move to free ones. Return how many were placed.

        If there is no such place, the groups that were searched are added to `full`, and the pools to `short`.
        """
        came_from: dict[int, int] = {}  # pool by group that is reached from it
        entered: dict[int, int] = {pool: -1}  # group by pool that may leave it
        queue = [pool]
        for mover in queue:
            for group in self._groups[mover]:
                if group in came_from or group in full:
                    continue
                came_from[group] = mover
                if self._free[group] > ROUNDING_GPUS:
                    return self._shift(group, most, came_from, entered)
                for other in self._pools[group]:
                    if other not in entered:
                        entered[other] = group
                        queue.append(other)
        full.update(came_from)
        short.update(entered)
        return 0.0

    def _shift(self, group: int, most: float, came_from: dict[int, int], entered: dict[int, int]) -> float:
        """Move GPUs along a path that ends in a free group: each pool on it leaves one group for the next."""
        path, gpus, last = [], min(most, self._free[group]), group
        while True:
            mover = came_from[last]
            path.append((mover, last))
            last = entered[mover]
            if last < 0:
                break
            gpus = min(gpus, self._placed[mover][last])
        for (mover, target), source in zip(path, [entered[mover] for mover, _ in path], strict=True):
            self._move(mover, target, gpus)
            if source >= 0:
                self._move(mover, source, -gpus)
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
        placed = self._placed[pool]
        placed[group] = placed.get(group, 0.0) + gpus
        self._free[group] -= gpus
        if placed[group] > ROUNDING_GPUS:
            self._pools[group].add(pool)
        else:
            del placed[group]
            self._pools[group].discard(pool)


def place_pools(groups: NodeGroups, pools: Sequence[int]) -> Placement:
    """Return an empty placement of some pools, in this order, and of the replicas that run in each node group.

    A pool of unknown size has no place. Node groups that accept no new pod have no place either.
    """
    limited = np.isfinite(groups.gpus) & ~groups.closed
    by_pool = [np.flatnonzero(groups.admitted[pool] & limited).tolist() for pool in pools]
    by_group = [[group] if limited[group] else [] for group in range(len(limited))]
    return Placement(np.where(limited, groups.gpus, 0.0).tolist(), [*by_pool, *by_group])
