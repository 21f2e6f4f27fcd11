"""Place the GPUs that pools request on the node groups that admit them: a maximum flow from pools to groups.

A node group has a row of its own beside the pools, for the replicas that run in it. GPUs of a group are divided into
blocks that its nodes hold whole. A replica of several GPUs has its place in blocks of its size or a multiple of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import Fleet, NodeGroups
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

ROUNDING_GPUS = 1e-9

MOST_BLOCKS = 60
"""Node groups are divided for the largest sizes only, where there were more blocks otherwise. It bounds the time."""


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


class Blocks(NamedTuple):
    """The GPUs of node groups, in blocks that a node holds whole; the smallest first."""

    gpus: FloatColumn  # float64[B, G], without groups of unknown size and those that accept no new pod
    smallest: IntColumn  # int64[W], the smallest blocks in which a replica of each workload has a place


def divide_groups(fleet: Fleet) -> Blocks:
    """Divide the GPUs of node groups by the sizes of pods, as far as each size divides the next.

    On nodes of 7 GPUs, pods of 1, 2 and 4 GPUs make one block of 4 each, one of 2, and one of 1. So two workloads are
    not promised more replicas of 4 GPUs together than there are nodes. Other sizes have a place anywhere, and so have
    all where the nodes are not known.
    """
    groups, count = fleet.groups, len(fleet.workloads)
    sizes = np.zeros(count) if fleet.gpus_per_pod is None else np.nan_to_num(fleet.gpus_per_pod, posinf=0.0)
    gpus = np.where(np.isfinite(groups.gpus) & ~groups.closed, groups.gpus, 0.0)
    units, held = _find_units(groups, np.unique(sizes[(fleet.pool >= 0) & (sizes > 1)]), gpus)
    blocks = np.array([*(all_of - larger for all_of, larger in pairwise(held)), np.zeros(len(gpus))])
    blocks[-1] = np.fmax(gpus - blocks.sum(axis=0), 0.0)
    smallest = np.sum([(sizes > 0) & (sizes % unit == 0) for unit in units], axis=0, dtype=np.int64)
    return Blocks(blocks, np.broadcast_to(smallest, count))


def _find_units(groups: NodeGroups, sizes: FloatColumn, gpus: FloatColumn) -> tuple[list[float], list[FloatColumn]]:
    """Return the sizes of blocks, and the GPUs of groups on nodes, float64[G]: all, and those in blocks of each size.

    sizes: of pods, ascending. gpus: float64[G]. A size is left out if all nodes hold whole blocks of it.
    """
    if not groups.by_node:
        return [], [gpus]
    nodes, group = np.concatenate(groups.by_node), np.repeat(np.arange(len(gpus)), list(map(len, groups.by_node)))
    units: list[float] = []
    held = [np.where(gpus > 0, np.bincount(group, nodes, len(gpus)), 0.0)]
    for unit in sizes.tolist():
        whole = np.bincount(group, np.floor(nodes / unit + ROUNDING_GPUS) * unit, len(gpus)) * (gpus > 0)
        if (not units or unit % units[-1] == 0) and (whole < held[-1]).any():
            units.append(unit)
            held.append(whole)
    first = len(units) - min(len(units), max(MOST_BLOCKS // len(gpus) - 1, 0))
    return units[first:], [held[0], *held[1 + first :]]


class Rows(NamedTuple):
    """Numbers of the rows of `place_pools`. smallest: as in `Blocks`, of the replicas that a row is for."""

    pools: int
    groups: int

    def of_pool(self, smallest: IntColumn, pool: IntColumn) -> IntColumn:
        """Return the rows of replicas that have a place on any group of a pool."""
        return (self.pools + self.groups) * smallest + pool

    def of_group(self, smallest: IntColumn, group: IntColumn) -> IntColumn:
        """Return the rows of replicas that run on a node group."""
        return self.of_pool(smallest, self.pools + group)


def place_pools(groups: NodeGroups, pools: Sequence[int], blocks: FloatColumn | None = None) -> Placement:
    """Return an empty placement of pools, and of the replicas that run in each node group, by the size of replicas.

    blocks: as in `Blocks`; None: groups are not divided. The rows of replicas that have a place anywhere come first:
    the pools in this order, and then the groups. Those of replicas that have a place in all blocks but the smallest
    follow, and so on (`Rows`). A pool of unknown size has no place, nor have node groups that accept no new pod.
    """
    limited = np.isfinite(groups.gpus) & ~groups.closed
    blocks = np.where(limited, groups.gpus, 0.0)[None] if blocks is None else blocks
    admitted = [np.flatnonzero(groups.admitted[pool] & limited) for pool in pools]
    admitted += [np.flatnonzero(limited[[group]]) + group for group in range(len(limited))]
    rows = [
        (own + len(limited) * np.arange(smallest, len(blocks))[:, None])[blocks[smallest:, own] > 0].tolist()
        for smallest in range(len(blocks))
        for own in admitted
    ]
    return Placement(blocks.ravel().tolist(), rows)
