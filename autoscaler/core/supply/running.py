"""The nodes on which replicas run. Kubernetes moves no running pod, so each needs a place where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from math import isfinite
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.supply.nodes import Places
from autoscaler.core.supply.placement import ROUNDING_GPUS
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

ANY = -1
"""Any node group of the pool, or any node of the group: the replica does not run yet, or its node is not known."""

SEVERAL = -2
"""The pods of the replica are on several nodes, or some are on none yet."""


class PartsOnRows(NamedTuple):
    """GPUs that replicas of several pods need on several rows of `Places`."""

    replica: IntColumn  # int64[K], ascending
    row: IntColumn  # int64[K]
    gpus: FloatColumn  # float64[K]

    @classmethod
    def none(cls) -> PartsOnRows:
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, np.zeros(0))


class Running(NamedTuple):
    """Replicas that run, by workload, those that should stay longest first. It numbers them from 0.

    A replica of several pods counts as soon as one of these holds GPUs of a node. The others need a place still.
    """

    pod: IntColumn  # int64[R]
    row: IntColumn  # int64[R], workload, ascending
    number: IntColumn  # int64[R], by workload
    group: IntColumn  # int64[R], node group; `ANY`
    node: IntColumn  # int64[R], number of its node; `ANY`; `SEVERAL`
    total: IntColumn  # int64[W]
    ready: IntColumn  # int64[W], the first ones of each; the others leave before them, the last ones first
    parts: PartsOnNodes  # those of replicas with `SEVERAL`

    @classmethod
    def none(cls, rows: int) -> Running:
        """Return that no replica of this many workloads runs."""
        empty = np.zeros(0, dtype=np.int64)
        none = np.zeros(rows, dtype=np.int64)
        return cls(empty, empty, empty, empty, empty, none, none, PartsOnNodes.of([]))

    def find_rows(self, places: Places, pool: IntColumn, row: IntColumn, number: IntColumn) -> IntColumn:
        """Return the rows of places for replicas, by their workload and number; -1: none, or `find_parts` has several.

        pool: int64[W], as numbered in `places`; -1: its replicas have no place.
        """
        smallest = places.smallest[row]
        anywhere = np.where(pool[row] >= 0, places.rows.of_pool(smallest, pool[row]), -1)
        if (self.group == ANY).all() and (self.node == ANY).all():
            return anywhere
        place = self._place(row, number)
        place = np.where(anywhere >= 0, place, -1)
        group, node = (np.append(known, ANY)[place] for known in (self.group, self.node))
        on_group = np.where(group == ANY, anywhere, places.rows.of_group(smallest, group))
        return np.where(node == ANY, on_group, np.where(node == SEVERAL, -1, places.rows.of_node(node)))

    def find_parts(self, places: Places, pool: IntColumn, row: IntColumn, number: IntColumn) -> PartsOnRows:
        """Return what those of some replicas that have several pods need on several rows. Arguments: as `find_rows`."""
        if not len(self.parts.place):
            return PartsOnRows.none()
        place = self._place(row, number)
        own = np.flatnonzero((np.append(self.node, ANY)[place] == SEVERAL) & (pool[row] >= 0))
        replica = np.full(len(self.row), -1)
        replica[place[own]] = own
        needed = replica[self.parts.place] >= 0
        of_replica, node, gpus = replica[self.parts.place[needed]], self.parts.node[needed], self.parts.gpus[needed]
        to_place = places.rows_of(pool[row[of_replica]], gpus)
        order = np.argsort(of_replica, kind="stable")
        rows = np.where(node == ANY, to_place, places.rows.of_node(node))
        return PartsOnRows(of_replica[order], rows[order], gpus[order])

    def without_rest(self, pods: BoolColumn) -> tuple[Running, dict[int, FloatColumn]]:
        """Return these without the pods that some replicas have to place still. pods: bool[P], those replicas.

        Returns also the GPUs of each such pod of the first of these replicas, by workload.
        """
        left_out = (self.parts.node == ANY) & pods[self.pod[self.parts.place]]
        row, first = np.unique(self.row[self.parts.place[left_out]], return_index=True)
        place = self.parts.place[left_out]
        rest = {
            int(own): self.parts.gpus[left_out][place == which] for own, which in zip(row, place[first], strict=True)
        }
        return self._replace(parts=PartsOnNodes(*(column[~left_out] for column in self.parts))), rest

    def sum_held(self, places: Places, replicas: BoolColumn) -> FloatColumn:
        """Return the GPUs that pods of replicas of several pods hold, by row of `places`. replicas: bool[R]."""
        held = replicas[self.parts.place] & (self.parts.node != ANY) & (self.node[self.parts.place] == SEVERAL)
        row, gpus = places.rows.of_node(self.parts.node[held]), self.parts.gpus[held]
        return np.bincount(row, gpus, places.placement.pools).astype(np.float64)

    def _place(self, row: IntColumn, number: IntColumn) -> IntColumn:
        """Return the place of each replica here; -1: it does not run."""
        return np.where(number < self.total[row], (np.cumsum(self.total) - self.total)[row] + number, -1)

    def of_rows(self, rows: IntColumn) -> Running:
        """Return those of some workloads, which become rows 0, 1, and so on. rows: int64[N], ascending."""
        place = np.full(len(self.total), -1)
        place[rows] = np.arange(len(rows))
        own = place[self.row] >= 0
        number, group, node = self.number[own], self.group[own], self.node[own]
        parts = self.parts.of_places(own)
        total, ready = self.total[rows], self.ready[rows]
        return Running(self.pod[own], place[self.row[own]], number, group, node, total, ready, parts)


class PartsOnNodes(NamedTuple):
    """Pods of replicas of several pods: those on nodes that accept new pods, and those that need a place still."""

    place: IntColumn  # int64[K], of the replica in `Running`
    node: IntColumn  # int64[K], number of its node; `ANY`: it needs a place
    gpus: FloatColumn  # float64[K]

    @classmethod
    def of(cls, parts: Sequence[tuple[int, int, float]]) -> PartsOnNodes:
        """Return these, each with its place, node and GPUs."""
        place, node, gpus = zip(*parts, strict=True) if parts else ((), (), ())
        return cls(np.array(place, dtype=np.int64), np.array(node, dtype=np.int64), np.array(gpus, dtype=np.float64))

    def of_places(self, own: BoolColumn) -> PartsOnNodes:
        """Return the pods of some replicas, which become 0, 1, and so on. own: bool[R]."""
        kept = own[self.place]
        return PartsOnNodes((np.cumsum(own) - 1)[self.place[kept]], self.node[kept], self.gpus[kept])


def list_running(fleet: Fleet, has_gpus: BoolColumn) -> Running:
    """Return the replicas whose pods have GPUs. has_gpus: bool[P].

    Those on nodes that accept no new pod stay longest, because their GPUs are of use to no other replica. Those that
    are not ready leave first, and then the youngest, as in a ReplicaSet. If pods hold more GPUs of a group or a node
    than it has, their places there are not known.
    """
    groups, places = find_places(fleet)
    split = _find_parts(fleet, groups)
    pods = np.flatnonzero(has_gpus | _are_partly_placed(fleet, split))
    row, group, node = fleet.pod_workload[pods], groups[pods], places[pods]
    leaves = np.where(np.append(fleet.groups.closed, False)[group], 0, np.where(fleet.pod_ready[pods], 1, 2))
    leaves += ~has_gpus[pods]
    order = np.argsort(4 * row + leaves, kind="stable")
    pods, row, group, node, leaves = pods[order], row[order], group[order], node[order], leaves[order]
    count = np.bincount(row, minlength=len(fleet.workloads))
    ready = np.bincount(row[leaves < 2], minlength=len(count))
    number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    several = np.flatnonzero(np.isin(pods, list(split))).tolist() if split else []
    parts = PartsOnNodes.of([(place, *part) for place in several for part in split[int(pods[place])]])
    on_node = parts.node != ANY
    is_split = np.bincount(parts.place, minlength=len(row)) > 0
    is_single = np.zeros(len(row), dtype=bool)
    if fleet.gpus_per_pod is not None:
        is_single = ~is_split & (fleet.gpus_per_pod == fleet.gpus_per_replica)[row]
    held = np.append(np.where(is_split, 0.0, np.nan_to_num(fleet.gpus_per_replica)[row]), parts.gpus[on_node])
    by_node = np.concatenate([np.zeros(0), *fleet.groups.by_node])
    group_of_node = np.repeat(np.arange(len(fleet.groups.by_node)), [len(own) for own in fleet.groups.by_node])
    replica = np.append(np.arange(len(row)), parts.place[on_node])

    def find_crowded(place: IntColumn, of_parts: IntColumn, most: FloatColumn) -> BoolColumn:
        return np.bincount(replica, _holds_too_many(np.append(place, of_parts), held, most), len(row)) > 0

    # Nothing else may use the GPUs of a closed group. Its replicas may have fewer than their template states now.
    most = np.where(fleet.groups.closed, np.inf, fleet.groups.gpus)
    crowded = find_crowded(group, group_of_node[parts.node[on_node]], most)
    group, node = np.where(crowded, ANY, group), np.where(crowded | ~is_single, ANY, node)
    crowded |= find_crowded(node, parts.node[on_node], by_node)
    node = np.where(crowded, ANY, np.where(is_split, SEVERAL, node))
    return Running(pods, row, number, group, node, count, ready, parts)


def _holds_too_many(place: IntColumn, gpus: FloatColumn, most: FloatColumn) -> BoolColumn:
    """Return which replicas are at a place where replicas hold more GPUs than there are. most: by place."""
    held = np.bincount(place + 1, gpus, 1 + len(most))[1:]
    return np.append(held > most + ROUNDING_GPUS, False)[place]


def find_places(fleet: Fleet) -> tuple[IntColumn, IntColumn]:
    """Return the node group in which each pod is, and the number of its node; int64[P] each. `ANY`: it is not known.

    Nodes are numbered as in `by_node`, one group after the other. A replica of several pods is where its first one is,
    or another if that node accepts no new pod.
    """
    group, node = _locate(fleet, map(attrgetter("node"), fleet.pods), fleet.pool[fleet.pod_workload])
    if not fleet.parts:
        return group, node
    pods = np.array([part.pod for part in fleet.parts])
    others, _ = _locate(fleet, [part.node for part in fleet.parts], fleet.pool[fleet.pod_workload[pods]])
    closed = np.append(fleet.groups.closed, False)
    is_open = (others != ANY) & ~closed[others]
    moved = np.full(len(group), ANY)
    moved[pods[is_open][::-1]] = others[is_open][::-1]
    return np.where(closed[group] & (moved != ANY), moved, group), node


def _locate(fleet: Fleet, names: Iterable[str], pool: IntColumn) -> tuple[IntColumn, IntColumn]:
    """Return the node group of nodes for pools, and the numbers of the nodes. pool: int64[K]."""
    of_node, admitted, by_node = fleet.groups.of_node, fleet.groups.admitted, fleet.groups.by_node
    unknown = np.full(len(pool), ANY)
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
    place = np.fromiter(map(place_of.get, names, repeat(-1)), dtype=np.int64, count=len(pool))
    group = own[kind_of[place], pool]
    if not by_node:
        return group, unknown
    count = np.array([len(nodes) for nodes in by_node])
    within = np.cumsum(holds[kind_of], axis=0)[place, group] - 1
    known = (group != ANY) & (within < count[group])
    return group, np.where(known, (np.cumsum(count) - count)[group] + within, ANY)


def _find_parts(fleet: Fleet, groups: IntColumn) -> dict[int, list[tuple[int, float]]]:
    """Return the node and the GPUs of each pod of the replicas of several pods, by pod of the fleet.

    A pod that is on no node yet has `ANY`. Pods on nodes that accept no new pod need no place, so they are left out. A
    replica is left out if a node is not known, or a pod has other GPUs than its template states.
    """
    if not fleet.parts or fleet.gpus_per_pod is None:
        return {}
    pods = [part.pod for part in fleet.parts]
    group, node = _locate(fleet, [part.node for part in fleet.parts], fleet.pool[fleet.pod_workload[pods]])
    closed = np.append(fleet.groups.closed, False)[group]
    found: dict[int, list[tuple[int, float]]] = {}
    left: dict[int, Counter[float]] = {}
    bad: set[int] = set()
    for part, own, is_closed in zip(fleet.parts, node.tolist(), closed.tolist(), strict=True):
        row = int(fleet.pod_workload[part.pod])
        if part.pod not in left:
            left[part.pod], found[part.pod] = Counter(_pods_of(fleet, row)), []
        left[part.pod][part.gpus] -= 1
        if left[part.pod][part.gpus] < 0 or (own == ANY and not is_closed):
            bad.add(part.pod)
        elif not is_closed:
            found[part.pod].append((own, part.gpus))
    for pod, sizes in left.items():
        found[pod] += [(ANY, gpus) for gpus in sorted(sizes.elements(), reverse=True)]
    return {pod: parts for pod, parts in found.items() if pod not in bad and parts}


def _pods_of(fleet: Fleet, row: int) -> tuple[float, ...]:
    """Return the GPUs of each pod of a replica of a workload; empty: they are not known."""
    total, each = float(fleet.gpus_per_replica[row]), np.nan if fleet.gpus_per_pod is None else fleet.gpus_per_pod[row]
    known = isfinite(total) and each > 0
    return fleet.pods_of_replica.get(row, (float(each),) * round(total / each) if known else ())


def _are_partly_placed(fleet: Fleet, parts: Mapping[int, list[tuple[int, float]]]) -> BoolColumn:
    """Return the replicas of which some pods hold GPUs of nodes, and are not terminating; bool[P]."""
    found = np.zeros(len(fleet.pods), dtype=bool)
    found[[pod for pod, own in parts.items() if any(node != ANY for node, _ in own)]] = True
    return np.asarray(found & ~fleet.pod_terminating)


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
) -> tuple[FloatColumn, FloatColumn]:
    """Return the GPUs that replicas need by row of `places`, which are those of all pools, and their pods to place.

    replicas: float64[W], the first ones of each workload. limited: bool[W], the workloads that count.
    since: float64[W], this many of the first ones are left out; None: none.
    """
    each = np.where(limited, fleet.gpus_per_replica, 0.0)
    before = np.zeros(len(each)) if since is None else since
    counted = (running.number >= before[running.row]) & (running.number < replicas[running.row]) & limited[running.row]
    counted &= ~np.append(fleet.groups.closed, False)[running.group]
    row, number, pool = running.row[counted], running.number[counted], np.fmax(fleet.pool, 0)
    place, parts = running.find_rows(places, pool, row, number), running.find_parts(places, pool, row, number)
    more = np.where(limited, np.fmax(replicas - np.fmax(running.total, before), 0.0), 0.0)
    anywhere, rows = places.rows.of_pool(places.smallest, pool), places.placement.pools
    gpus = np.bincount(anywhere, more * each, rows) + np.bincount(1 + place, each[row], 1 + rows)[1:]
    gpus = gpus + np.bincount(parts.row, parts.gpus, rows)
    pods = places.count_pods(np.arange(len(each)), anywhere, more)
    pods = pods + places.count_pods(row, place, np.ones(len(row))) + places.count_single(parts.row, parts.gpus)
    return gpus.astype(np.float64), pods
