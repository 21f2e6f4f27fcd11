"""The node groups in which replicas run. Kubernetes moves no running pod, so each needs a place where it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.placement import ROUNDING_GPUS, Blocks, Rows
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

ANY = -1
"""Any node group of the pool: the replica does not run yet, or its node is not known."""


class Running(NamedTuple):
    """Replicas that run, by workload, those that should stay longest first. It numbers them from 0."""

    row: IntColumn  # int64[R], workload, ascending
    number: IntColumn  # int64[R], by workload
    group: IntColumn  # int64[R], node group; `ANY`
    total: IntColumn  # int64[W]

    @classmethod
    def none(cls, rows: int) -> Running:
        """Return that no replica of so many workloads runs."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty, np.zeros(rows, dtype=np.int64))

    def group_of(self, row: IntColumn, number: IntColumn) -> IntColumn:
        """Return the node groups of replicas, by their workload and number. `ANY`: it does not run."""
        if not self.is_known:
            return np.full(len(row), ANY)
        place = (np.cumsum(self.total) - self.total)[row] + number
        return np.where(number < self.total[row], np.append(self.group, ANY)[np.fmin(place, len(self.group))], ANY)

    @property
    def is_known(self) -> bool:
        """Return whether the node group of any is known."""
        return bool((self.group != ANY).any())

    def of_rows(self, rows: IntColumn) -> Running:
        """Return those of some workloads, which become rows 0, 1, and so on. rows: int64[N], ascending."""
        place = np.full(len(self.total), -1)
        place[rows] = np.arange(len(rows))
        own = place[self.row] >= 0
        return Running(place[self.row[own]], self.number[own], self.group[own], self.total[rows])


def list_running(fleet: Fleet, has_gpus: BoolColumn) -> Running:
    """Return the replicas whose pods have GPUs. has_gpus: bool[P].

    Those on nodes that accept no new pod stay longest, because their GPUs are of use to no other replica. Those that
    are not ready leave first, and then the youngest, as in a ReplicaSet. If pods hold more GPUs of a group than it
    has, their places are not known.
    """
    pods = np.flatnonzero(has_gpus)
    row, group = fleet.pod_workload[pods], find_groups(fleet)[pods]
    leaves = np.where(np.append(fleet.groups.closed, False)[group], 0, np.where(fleet.pod_ready[pods], 1, 2))
    order = np.argsort(3 * row + leaves, kind="stable")
    row, group = row[order], group[order]
    count = np.bincount(row, minlength=len(fleet.workloads))
    held = np.bincount(group + 1, np.nan_to_num(fleet.gpus_per_replica)[row], 1 + len(fleet.groups.gpus))
    too_many = np.append(held[1:] > fleet.groups.gpus + ROUNDING_GPUS, False)
    number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return Running(row, number, np.where(too_many[group], ANY, group), count)


def find_groups(fleet: Fleet) -> IntColumn:
    """Return the node group in which each pod is; int64[P]. `ANY`: it is not known."""
    of_node, admitted = fleet.groups.of_node, fleet.groups.admitted
    if not of_node:
        return np.full(len(fleet.pods), ANY)
    kinds = {lines: place for place, lines in enumerate(dict.fromkeys(of_node.values()))}
    own = np.full((len(kinds) + 1, len(fleet.pools) + 1), ANY)  # the last: of unknown nodes and pools
    for lines, kind in kinds.items():
        for line in lines:
            own[kind, :-1][admitted[:, line]] = line
    by_node = {name: kinds[lines] for name, lines in of_node.items()}
    kind_of = np.array([by_node.get(pod.node, -1) for pod in fleet.pods], dtype=np.int64)
    return own[kind_of, fleet.pool[fleet.pod_workload]]


def count_confined(fleet: Fleet) -> FloatColumn:
    """Return how many replicas of each workload run on nodes that accept no new pod; float64[W].

    Their GPUs are of use to no other replica, so they need no place.
    """
    if not fleet.groups.closed.any():
        return np.zeros(len(fleet.workloads))
    confined = np.append(fleet.groups.closed, False)[find_groups(fleet)] & ~fleet.pod_terminating
    return np.bincount(fleet.pod_workload[confined], minlength=len(fleet.workloads)).astype(np.float64)


def sum_gpus(
    fleet: Fleet,
    running: Running,
    replicas: FloatColumn,
    limited: BoolColumn,
    blocks: Blocks,
    since: FloatColumn | None = None,
) -> FloatColumn:
    """Return the GPUs that replicas need by row of `place_pools` with all pools; float64[B * (N + G)].

    replicas: float64[W], the first ones of each workload. limited: bool[W], the workloads that count.
    since: float64[W], so many of the first ones are left out; None: none.
    """
    groups, rows = fleet.groups, Rows(len(fleet.pools), len(fleet.groups.gpus))
    each = np.where(limited, fleet.gpus_per_replica, 0.0)
    pool = rows.of_pool(blocks.smallest, np.fmax(fleet.pool, 0))
    before = np.zeros(len(each)) if since is None else since
    counted = (running.number >= before[running.row]) & (running.number < replicas[running.row])
    counted &= ~np.append(groups.closed, False)[running.group]
    in_group = rows.of_group(blocks.smallest[running.row], running.group)
    place = np.where(running.group == ANY, pool[running.row], in_group)
    count = len(blocks.gpus) * (rows.pools + rows.groups)
    gpus = np.bincount(place, each[running.row] * counted, count).astype(np.float64)
    more = np.where(limited, np.fmax(replicas - np.fmax(running.total, before), 0.0), 0.0) * each
    return np.asarray(gpus + np.bincount(pool, more, len(gpus)))
