"""Where replicas have a place: those that run hold GPUs of their node, and others need whole places on what is left.

GPUs that are left on nodes are divided into blocks. A node with 7 of them has one block of 4 GPUs, one of 2 and one
of 1. A replica of several GPUs has its place in blocks of its size or a multiple of it, on a node group of its pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.supply.packing import pack
from autoscaler.core.supply.placement import ROUNDING_GPUS, Placement
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

MOST_PLACES = 2000
"""Only the largest sizes are placed on nodes if pools have more node groups, together and for each size. It bounds the
time: 50 groups that 100 pools share are left with one size, and all sizes are placed if 20 pools share them."""


class Rows(NamedTuple):
    """Numbers of the rows of a `NodePlacement`. smallest: the smallest blocks that hold the replicas of a row."""

    pools: int
    groups: int
    levels: int  # sizes of blocks; the first are single GPUs

    def of_pool(self, smallest: IntColumn, pool: IntColumn) -> IntColumn:
        """Return the rows of replicas that have a place on any group of a pool."""
        return (self.pools + self.groups) * smallest + pool

    def of_group(self, smallest: IntColumn, group: IntColumn) -> IntColumn:
        """Return the rows of replicas that run on some node of a group."""
        return self.of_pool(smallest, self.pools + group)

    def of_node(self, node: IntColumn) -> IntColumn:
        """Return the rows of replicas that run on a node."""
        return (self.pools + self.groups) * self.levels + node


class Nodes(NamedTuple):
    """The nodes of the groups that limit replicas, and the sizes of blocks into which GPUs left on them are divided."""

    group: IntColumn  # int64[N]
    gpus: FloatColumn  # float64[N]
    apart: FloatColumn  # float64[G], GPUs of groups on nodes that are not known or do not exist yet
    units: FloatColumn  # float64[B], GPUs of a block: 0, for one of any size, and sizes of pods; each divides the next

    def hold(self, left: FloatColumn) -> FloatColumn:
        """Return the GPUs in blocks of each size or larger ones; float64[B, G]. left: float64[N], of each node."""
        whole = (_in_whole(left, unit) for unit in self.units.tolist())
        return np.array([np.bincount(self.group, gpus, len(self.apart)) + self.apart for gpus in whole])

    def level_of(self, gpus: FloatColumn) -> IntColumn:
        """Return the place in `units` of the largest block of which pods with this many GPUs have a multiple."""
        level = np.zeros(len(gpus), dtype=np.int64)
        for unit in self.units[1:].tolist():
            level += (gpus > 0) & (gpus % unit == 0)
        return level


class NodePlacement(Placement):
    """A placement of pools and of replicas that run. Rows of pools and groups come first, and then those of nodes."""

    def __init__(self, nodes: Nodes, groups: Sequence[Sequence[int]], levels: Sequence[int]) -> None:
        self._nodes, self._on_nodes = nodes, nodes.gpus
        super().__init__(nodes.hold(nodes.gpus), groups, levels)

    def copy(self) -> Self:
        other = super().copy()
        other._nodes, other._on_nodes = self._nodes, self._on_nodes
        return other

    @property
    def pools(self) -> int:
        return super().pools + len(self._on_nodes)

    def place(self, more: FloatColumn) -> BoolColumn:
        """Place this many more GPUs of each row. Return rows that are short, with the nodes whose GPUs they need."""
        flows = super().pools
        needed, held = more[:flows], more[flows:]
        if held.any():
            self._on_nodes = np.fmax(self._on_nodes - held, 0.0)
            needed = needed + self._resize(self._nodes.hold(self._on_nodes))
        short = super().place(needed)
        needs_nodes = self._units(short)[self._nodes.group] >= 0 if short.any() else np.zeros(len(held), dtype=bool)
        return np.append(short, needs_nodes)

    def pack(self, sizes: FloatColumn, pods: FloatColumn) -> BoolColumn:
        """Return for which pods no node is found beside what is on nodes; bool[S, N].

        sizes: float64[S], GPUs, ascending. pods: float64[S, N], by size, and by pool or group. All have their GPUs
        here, as rows of their level.
        """
        nodes, open_to = self._nodes, pods.shape[1]
        return pack(
            np.concatenate([self._on_nodes, nodes.apart]),
            np.concatenate([nodes.group, np.arange(len(nodes.apart))]),
            sizes,
            pods,
            self._groups[:open_to],
            self.to_array().reshape(-1, open_to, len(nodes.apart)),
            nodes.level_of(sizes),
        )

    def level_of(self, gpus: FloatColumn) -> IntColumn:
        """Return the level of pods with this many GPUs."""
        return self._nodes.level_of(gpus)

    def lowest(self, pools: BoolColumn) -> IntColumn:
        return super().lowest(pools[: super().pools])

    def left(self, pools: BoolColumn) -> float:
        return super().left(pools[: super().pools])

    def costs(self, pool: IntColumn, gpus: FloatColumn, short: BoolColumn) -> FloatColumn:
        flows, costs = super().pools, super().costs(pool, gpus, short)
        held = np.flatnonzero((pool >= flows) & (costs > 0))
        if len(held):
            held = held[np.argsort(pool[held], kind="stable")]
            node, more = pool[held] - flows, gpus[held]
            left, unit = self._on_nodes[node] - sum_before(node, more), self._units(short)[self._nodes.group[node]]
            costs[held] = _in_whole(left, unit) - _in_whole(left - more, unit)
        return costs

    def largest(self, short: BoolColumn) -> FloatColumn:
        flows, left = super().pools, self.left(short)
        unit = self._units(short)[self._nodes.group]
        slack = self._on_nodes - _in_whole(self._on_nodes, unit)
        of_nodes = np.where(short[flows:], slack + _in_whole(left, unit) + ROUNDING_GPUS, np.inf)
        return np.append(np.where(short[:flows], left + ROUNDING_GPUS, np.inf), of_nodes)

    def is_crowded(self, pool: IntColumn, gpus: FloatColumn, largest: FloatColumn) -> BoolColumn:
        """Return which replicas that run have no place if those before them on their node have one; bool[L]."""
        crowded, most = np.zeros(len(pool), dtype=bool), np.append(largest, np.inf)
        held = np.flatnonzero((pool >= super().pools) & np.isfinite(most[pool]))
        held = held[np.argsort(pool[held], kind="stable")]
        while len(held):
            node, more = pool[held], gpus[held]
            over = sum_before(node, more) + more > most[node]
            if not over.any():
                break
            first = over & (sum_before(node, over.astype(np.float64)) == 0)
            least = np.full(len(most), np.inf)
            least[node[first]] = more[first]
            crowded[held] = over = more >= np.where(
                sum_before(node, first.astype(float)) + first > 0, least[node], np.inf
            )
            held = held[~over]
        return crowded

    def _fill(self, pool: int, most: float) -> float:
        """Use the groups with the most GPUs left first, so that few become full and few GPUs are moved later."""
        level, left = self._levels[pool], most
        groups, size = self._open[level] & self._admitted[pool], self._left[level].__getitem__
        while groups and left > ROUNDING_GPUS:
            group = max(groups, key=size)
            groups.remove(group)
            gpus = min(left, self._free(level, group))
            self._move(pool, group, gpus)
            left -= gpus
        return most - left

    def _units(self, short: BoolColumn) -> FloatColumn:
        """Return the smallest blocks of each node group that short rows may use; float64[G]. Below 0: none."""
        return np.asarray(np.append(self._nodes.units, -1.0)[self.lowest(short)])


class Places(NamedTuple):
    """The places that node groups and their nodes have for the replicas of a fleet."""

    rows: Rows
    smallest: IntColumn  # int64[W], of the blocks in which a replica of each workload has a place
    placement: NodePlacement  # empty
    sizes: FloatColumn  # float64[S], GPUs of pods, ascending; empty: no pod needs several GPUs of one node
    pods: FloatColumn  # float64[W, S], pods of a replica

    def rows_of(self, pool: IntColumn, gpus: FloatColumn) -> IntColumn:
        """Return the rows of pods with this many GPUs, which have a place on any group of a pool."""
        return self.rows.of_pool(self.placement.level_of(gpus), pool)

    def find_pools(self, short: BoolColumn) -> list[int]:
        """Return the pools with short rows, by their numbers here."""
        pool = np.flatnonzero(short[: int(self.rows.of_node(np.array(0)))]) % (self.rows.pools + self.rows.groups)
        return sorted(set(pool[pool < self.rows.pools].tolist()))

    def find_unplaced(self, pods: BoolColumn, admitted: BoolColumn) -> BoolColumn:
        """Return the pools with such pods, also on their groups; bool[N]. pods: bool[S, N], result of `pack`."""
        rows = np.asarray(pods.any(axis=0))
        return np.asarray(rows[: self.rows.pools] | admitted[:, rows[self.rows.pools :]].any(axis=1))

    def of_rows(self, rows: IntColumn) -> Places:
        """Return those for some workloads."""
        return self._replace(smallest=self.smallest[rows], pods=self.pods[rows])

    def count_pods(self, workload: IntColumn, row: IntColumn, replicas: FloatColumn) -> FloatColumn:
        """Return the pods of replicas that are on no known node, by size, pool and group; float64[S, N].

        workload, row: int64[K]; row: of the placement; -1: it has no place. replicas: float64[K].
        """
        open_to = self.rows.pools + self.rows.groups
        found = (row >= 0) & (row < open_to * self.rows.levels) & (replicas > 0)
        workload, pool, count = workload[found], row[found] % open_to, replicas[found]
        anywhere = pool < self.rows.pools  # then all of one workload have the same row
        rows = np.zeros(len(self.pods), dtype=np.int64)
        rows[workload[anywhere]] = pool[anywhere]
        by_workload = np.bincount(workload[anywhere], count[anywhere], len(rows))
        rows, pods = np.append(rows, pool[~anywhere]), self.pods * by_workload[:, None]
        pods = np.concatenate([pods, self.pods[workload[~anywhere]] * count[~anywhere, None]])
        return np.array([np.bincount(rows, each, open_to) for each in pods.T]).reshape(len(self.sizes), open_to)

    def count_single(self, row: IntColumn, gpus: FloatColumn) -> FloatColumn:
        """Return the pods that are on no known node, as `count_pods`. row: int64[K], of each; gpus: float64[K]."""
        open_to = self.rows.pools + self.rows.groups
        found = row < open_to * self.rows.levels
        pods = np.zeros((len(self.sizes), open_to))
        if len(self.sizes):
            np.add.at(pods, (np.searchsorted(self.sizes, gpus[found]), row[found] % open_to), 1.0)
        return pods

    def pack(self, placement: Placement, pods: FloatColumn) -> BoolColumn:
        """Return for which pods of a placement no node is found, by size, pool and group; bool[S, N].

        placement: of these replicas, and those on nodes. pods: float64[S, N], result of `count_pods`.
        """
        if len(self.sizes) and isinstance(placement, NodePlacement):
            return placement.pack(self.sizes, pods)
        return np.zeros(pods.shape, dtype=bool)


def list_places(fleet: Fleet) -> Places:
    """Return what limits the replicas of all pools.

    Blocks are of sizes of pods of which each divides the next. Pods of other sizes have a place in blocks of any size,
    and so have all where nodes are not known. `Places.pack` finds out whether each has a node.
    A pool of unknown size has no place, nor have node groups that accept no new pod.
    """
    groups, count = fleet.groups, len(fleet.workloads)
    units = np.zeros(count) if fleet.gpus_per_pod is None else np.nan_to_num(fleet.gpus_per_pod, posinf=0.0)
    limited = np.isfinite(groups.gpus) & ~groups.closed
    node_group = np.repeat(np.arange(len(limited)), [len(nodes) for nodes in groups.by_node] or 0 * limited)
    on_nodes = np.where(limited[node_group], np.concatenate([np.zeros(0), *groups.by_node]), 0.0)
    apart = np.where(limited, groups.gpus, 0.0) - np.bincount(node_group, on_nodes, len(limited))
    nodes = Nodes(node_group, on_nodes, np.fmax(apart, 0.0), np.zeros(1))
    admitted = np.concatenate([groups.admitted, np.eye(len(limited), dtype=bool)]) & limited
    order = np.argsort(admitted.sum(axis=0), kind="stable")  # groups of few pools first, so that fewer GPUs are moved
    most_levels = max(int(MOST_PLACES / max(admitted[: len(fleet.pools)].sum(), 1)) - 1, 0)
    chain = _chain(np.array(sorted(set(units[(fleet.pool >= 0) & (units > 0)].tolist()))), nodes)
    nodes = nodes._replace(units=np.array([0.0, *chain[max(len(chain) - most_levels, 0) :]]))
    rows = Rows(len(fleet.pools), len(limited), len(nodes.units))
    of_rows = [order[(row & held)[order]].tolist() for held in nodes.hold(on_nodes) > 0 for row in admitted]
    levels = np.repeat(np.arange(rows.levels), len(admitted)).tolist()
    sizes, pods = _list_pods(fleet) if len(on_nodes) else (np.zeros(0), np.zeros((count, 0)))
    return Places(rows, nodes.level_of(units), NodePlacement(nodes, of_rows, levels), sizes, pods)


def _list_pods(fleet: Fleet) -> tuple[FloatColumn, FloatColumn]:
    """Return the sizes of pods, float64[S], ascending, and the pods of a replica, float64[W, S].

    A replica whose pods are not known has pods of 1 GPU. There are none if all pods of the fleet have 1 GPU.
    """
    known = np.zeros(len(fleet.workloads)) if fleet.gpus_per_pod is None else np.nan_to_num(fleet.gpus_per_pod)
    gpus = np.where((fleet.pool >= 0) & np.isfinite(fleet.gpus_per_replica), fleet.gpus_per_replica, 0.0)
    each = np.where(known > 0, known, 1.0)
    unequal = {size for pods in fleet.pods_of_replica.values() for size in pods}
    sizes = np.array(sorted(unequal.union(each[gpus > 0].tolist())))  # `np.unique` takes several times as long
    if sizes.max(initial=0.0) <= 1.0:
        return np.zeros(0), np.zeros((len(gpus), 0))
    pods = np.where(each[:, None] == sizes, np.ceil(gpus / each)[:, None], 0.0)
    for row, own in fleet.pods_of_replica.items():
        pods[row] = np.bincount(np.searchsorted(sizes, own), minlength=len(sizes))
    return sizes, pods


def _chain(sizes: FloatColumn, nodes: Nodes) -> list[float]:
    """Return the sizes of blocks, of which each divides the next. sizes: of pods, ascending.

    A size is left out if all pods have a multiple of it, and all nodes hold whole blocks of it.
    """
    left = [
        unit
        for unit in (sizes[sizes > 1].tolist() if len(nodes.gpus) else ())
        if (sizes % unit != 0).any() or (_in_whole(nodes.gpus, unit) < nodes.gpus - ROUNDING_GPUS).any()
    ]
    chains: list[list[float]] = [[]]
    for largest in left:
        chain = [largest]
        for unit in reversed(left[: left.index(largest)]):
            if chain[0] % unit == 0:
                chain.insert(0, unit)
        chains.append(chain)
    return max(chains, key=len)


def _in_whole(gpus: FloatColumn | float, unit: FloatColumn | float) -> FloatColumn:
    """Return the GPUs in whole blocks. unit: GPUs of a block; 0 or less: it is of any size."""
    each = np.where(np.asarray(unit) > 0, unit, 1.0)
    return np.asarray(np.where(np.asarray(unit) > 0, np.floor(gpus / each + ROUNDING_GPUS) * each, gpus))


def sum_before(group: IntColumn, amounts: FloatColumn) -> FloatColumn:
    """Return the sum of the amounts before each one in its group. group: ascending."""
    ends = np.append(0.0, np.cumsum(amounts))
    return np.asarray(ends[:-1] - ends[np.searchsorted(group, group)])
