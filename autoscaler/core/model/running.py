"""The nodes on which replicas run. Kubernetes moves no running pod, so each needs a place where it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.nodes import Places
from autoscaler.core.model.placement import ROUNDING_GPUS
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

ANY = -1
"""Any node group of the pool, or any node of the group: the replica does not run yet, or its node is not known."""


class Running(NamedTuple):
    """Replicas that run, by workload, those that should stay longest first. It numbers them from 0."""

    pod: IntColumn  # int64[R]
    row: IntColumn  # int64[R], workload, ascending
    number: IntColumn  # int64[R], by workload
    group: IntColumn  # int64[R], node group; `ANY`
    node: IntColumn  # int64[R], number of its node; `ANY`
    total: IntColumn  # int64[W]

    @classmethod
    def none(cls, rows: int) -> Running:
        """Return that no replica of so many workloads runs."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty, empty, empty, np.zeros(rows, dtype=np.int64))

    def find_rows(self, places: Places, pool: IntColumn, row: IntColumn, number: IntColumn) -> IntColumn:
        """Return the rows of places for replicas, by their workload and number.

        pool: int64[W], as numbered in `places`; -1: its replicas have no place.
        """
        smallest = places.smallest[row]
        anywhere = np.where(pool[row] >= 0, places.rows.of_pool(smallest, pool[row]), -1)
        if not (self.group != ANY).any():
            return anywhere
        place = np.fmin((np.cumsum(self.total) - self.total)[row] + number, len(self.group))
        runs = (number < self.total[row]) & (anywhere >= 0)
        group, node = (np.where(runs, np.append(known, ANY)[place], ANY) for known in (self.group, self.node))
        on_group = np.where(group == ANY, anywhere, places.rows.of_group(smallest, group))
        return np.where(node == ANY, on_group, places.rows.of_node(node))

    def of_rows(self, rows: IntColumn) -> Running:
        """Return those of some workloads, which become rows 0, 1, and so on. rows: int64[N], ascending."""
        place = np.full(len(self.total), -1)
        place[rows] = np.arange(len(rows))
        own = place[self.row] >= 0
        number, group, node = self.number[own], self.group[own], self.node[own]
        return Running(self.pod[own], place[self.row[own]], number, group, node, self.total[rows])


def list_running(fleet: Fleet, has_gpus: BoolColumn) -> Running:
    """Return the replicas whose pods have GPUs. has_gpus: bool[P].

    Those on nodes that accept no new pod stay longest, because their GPUs are of use to no other replica. Those that
    are not ready leave first, and then the youngest, as in a ReplicaSet. If pods hold more GPUs of a group or a node
    than it has, their places there are not known. So are the nodes of replicas of several pods.
    """
    pods = np.flatnonzero(has_gpus)
    groups, places = find_places(fleet)
    row, group, node = fleet.pod_workload[pods], groups[pods], places[pods]
    leaves = np.where(np.append(fleet.groups.closed, False)[group], 0, np.where(fleet.pod_ready[pods], 1, 2))
    order = np.argsort(3 * row + leaves, kind="stable")
    pods, row, group, node = pods[order], row[order], group[order], node[order]
    count = np.bincount(row, minlength=len(fleet.workloads))
    gpus = np.nan_to_num(fleet.gpus_per_replica)
    number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    group = np.where(_holds_too_many(group, gpus[row], fleet.groups.gpus), ANY, group)
    if fleet.gpus_per_pod is None:
        return Running(pods, row, number, group, np.full(len(row), ANY), count)
    node = np.where((group == ANY) | (fleet.gpus_per_pod != fleet.gpus_per_replica)[row], ANY, node)
    node = np.where(_holds_too_many(node, gpus[row], np.concatenate([np.zeros(0), *fleet.groups.by_node])), ANY, node)
    return Running(pods, row, number, group, node, count)


def _holds_too_many(place: IntColumn, gpus: FloatColumn, most: FloatColumn) -> BoolColumn:
    """Return which replicas are at a place where replicas hold more GPUs than there are. most: by place."""
    held = np.bincount(place + 1, gpus, 1 + len(most))[1:]
    return np.append(held > most + ROUNDING_GPUS, False)[place]


def find_places(fleet: Fleet) -> tuple[IntColumn, IntColumn]:
    """Return the node group in which each pod is, and the number of its node; int64[P] each. `ANY`: it is not known.

    Nodes are numbered as in `by_node`, one group after the other.
    """
    of_node, admitted, by_node = fleet.groups.of_node, fleet.groups.admitted, fleet.groups.by_node
    unknown = np.full(len(fleet.pods), ANY)
    if not of_node:
        return unknown, unknown
    kinds = {lines: place for place, lines in enumerate(dict.fromkeys(of_node.values()))}
    own = np.full((len(kinds) + 1, len(fleet.pools) + 1), ANY)  # the last: of unknown nodes and pools
    holds = np.zeros((len(kinds) + 1, admitted.shape[1]), dtype=bool)
    for lines, kind in kinds.items():
        for line in lines:
            own[kind, :-1][admitted[:, line]] = line
            holds[kind, line] = True
    place_of = {name: place for place, name in enumerate(of_node)}
    kind_of = np.array([*(kinds[lines] for lines in of_node.values()), len(kinds)])
    place = np.array([place_of.get(pod.node, -1) for pod in fleet.pods], dtype=np.int64)
    group = own[kind_of[place], fleet.pool[fleet.pod_workload]]
    if not by_node:
        return group, unknown
    count = np.array([len(nodes) for nodes in by_node])
    within = np.cumsum(holds[kind_of], axis=0)[place, group] - 1
    known = (group != ANY) & (within < count[group])
    return group, np.where(known, (np.cumsum(count) - count)[group] + within, ANY)


def count_confined(fleet: Fleet) -> FloatColumn:
    """Return how many replicas of each workload run on nodes that accept no new pod; float64[W].

    Their GPUs are of use to no other replica, so they need no place.
    """
    if not fleet.groups.closed.any():
        return np.zeros(len(fleet.workloads))
    confined = np.append(fleet.groups.closed, False)[find_places(fleet)[0]] & ~fleet.pod_terminating
    return np.bincount(fleet.pod_workload[confined], minlength=len(fleet.workloads)).astype(np.float64)


def sum_gpus(
    fleet: Fleet,
    running: Running,
    replicas: FloatColumn,
    limited: BoolColumn,
    places: Places,
    since: FloatColumn | None = None,
) -> FloatColumn:
    """Return the GPUs that replicas need by row of `places`, which are those of all pools.

    replicas: float64[W], the first ones of each workload. limited: bool[W], the workloads that count.
    since: float64[W], so many of the first ones are left out; None: none.
    """
    each = np.where(limited, fleet.gpus_per_replica, 0.0)
    before = np.zeros(len(each)) if since is None else since
    counted = (running.number >= before[running.row]) & (running.number < replicas[running.row])
    counted &= ~np.append(fleet.groups.closed, False)[running.group]
    place = running.find_rows(places, np.fmax(fleet.pool, 0), running.row, running.number)
    gpus = np.bincount(place, each[running.row] * counted, places.placement.pools).astype(np.float64)
    more = np.where(limited, np.fmax(replicas - np.fmax(running.total, before), 0.0), 0.0) * each
    anywhere = places.rows.of_pool(places.smallest, np.fmax(fleet.pool, 0))
    return np.asarray(gpus + np.bincount(anywhere, more, len(gpus)))
