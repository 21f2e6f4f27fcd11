"""Devices that pods hold on the node groups, and how many replicas of each template fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.inventory.node_admission import CLOSE, count_pods, count_replicas
from autoscaler.adapters.kubernetes.inventory.pools import NO_GROUP, Layout
from autoscaler.adapters.kubernetes.pods.holdings import SHARED, HeldRows
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.core.model.fleet import HeldDevices, NodeGroups
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


class Usage(NamedTuple):
    """The node groups with what pods hold, and the replicas that fit."""

    groups: NodeGroups
    fits: FloatColumn  # float64[W], replicas that fit if all devices of managed workloads were free; infinity: no limit
    room: FloatColumn  # float64[W], replicas that fit next to all present pods; NaN: not known
    gpus_per_pod: FloatColumn  # float64[W], all pods of a replica have this many devices, or a multiple; NaN: unknown
    held: UsedOnNodes  # by all present pods
    pods_of_replica: Mapping[int, tuple[float, ...]]  # devices of each, by row of the workload, if they differ
    former: FloatColumn  # float64[W], replicas on nodes that an earlier template made
    of_pods: HeldDevices | None  # by id of the replica instead of its row; None: no node is known


class UsedOnNodes(NamedTuple):
    """Devices, CPU and memory of each node that some pods hold."""

    devices: FloatColumn  # float64[nodes, resources]
    cpu: FloatColumn
    memory: FloatColumn

    def plus(self, other: UsedOnNodes) -> UsedOnNodes:
        return UsedOnNodes(self.devices + other.devices, self.cpu + other.cpu, self.memory + other.memory)


def count_usage(layout: Layout, held: HeldRows, workload_id: IntColumn, preempts: FloatColumn | None = None) -> Usage:
    """Count what pods hold.

    preempts: float64[W], the scheduler evicts pods of a lower priority for those of each workload; None: 0 for all.

    workload_id: int64[W], ascending: the targets that are managed. What pods of namespaces hold that are not read is
    not known, and counts as free.
    """
    place = np.array([layout.place.get(name, -1) for name in held.nodes], dtype=np.int64)[held.node]
    by_resource = {resource: index for index, resource in enumerate(layout.resources)}
    resource = np.array([by_resource.get(name, -1) for name in held.resources], dtype=np.int64)[held.resource]
    row = _rows_of(held.target, workload_id)
    on_node = place >= 0
    below = np.zeros(len(layout.template)) if preempts is None else preempts
    others = on_node & (row < 0)

    def hold_against(least: FloatColumn | float) -> UsedOnNodes:
        """Return what others hold against workloads that preempt pods below a priority, by row or for all."""
        return _sum(layout, held, place, resource, others & (held.priority >= least))

    # Workloads that share nodes share what all of them can get.
    by_others = hold_against(np.append(_lowest_by_group(layout, below)[layout.group], 0.0)[place])
    by_ours = _sum(layout, held, place, resource, on_node & (row >= 0))

    by_all = by_others.plus(by_ours)

    groups = replace(
        layout.node_groups,
        used=_by_line(layout, by_ours.devices),
        used_by_others=_by_line(layout, by_others.devices),
    )
    is_stray, is_former = _find_strays(layout, held, place, resource, row)
    strays = _sum(layout, held, place, resource, is_stray)
    groups = replace(groups, by_node=_list_by_node(layout, layout.devices - by_others.devices - strays.devices))
    to_come = _pods_to_come(layout)
    unequal = {place for place, needs in enumerate(layout.templates) if needs.pods}
    return Usage(
        _move_strays(layout, groups, held, place, row, is_stray, strays),
        _count_by_level(
            layout, {least: hold_against(least).plus(strays) for least in set(below.tolist())}, below, to_come
        )
        + _count_kept(layout, held, place, resource, row, is_stray, is_former),
        _count_fitting(layout, by_all, np.zeros_like(to_come)),
        _find_pod_sizes(layout),
        by_all,
        {row: layout.templates[place].pods for row, place in enumerate(layout.template) if place in unequal},
        _count_kept(layout, held, place, resource, np.where(is_former, row, -1), is_former, is_former),
        _list_held(layout, held, place, resource, row) if len(layout.group) else None,
    )


def _list_held(layout: Layout, held: HeldRows, place: IntColumn, resource: IntColumn, row: IntColumn) -> HeldDevices:
    """Return the devices that pods of managed workloads hold, those of strays with the node groups of their nodes."""
    line_of = np.full((len(layout.groups), len(layout.resources)), -1)
    for number, line in enumerate(layout.lines):
        if line.group != NO_GROUP:
            line_of[line.group, line.resource] = number
    ours = np.flatnonzero((place >= 0) & (row >= 0) & (resource >= 0) & (held.devices > 0))
    group = line_of[layout.group[place[ours]], resource[ours]]
    ours, group = ours[group >= 0], group[group >= 0]
    return HeldDevices(row[ours], held.replica[ours], group, held.devices[ours], layout.node_groups.allocatable)


def _lowest_by_group(layout: Layout, preempts: FloatColumn) -> FloatColumn:
    """Return the lowest of `preempts` of the workloads that each node group admits; float64[groups]."""
    lowest = np.full(len(layout.groups), np.inf)
    for row, template in enumerate(layout.template):
        if template >= 0:
            own = layout.admitted[template]
            lowest[own] = np.minimum(lowest[own], preempts[row])
    return np.where(np.isposinf(lowest), 0.0, lowest)


def _count_by_level(
    layout: Layout, held: Mapping[float, UsedOnNodes], preempts: FloatColumn, pods_to_come: FloatColumn
) -> FloatColumn:
    """Return how many replicas of each workload fit. held: what pods hold against it, by its value of `preempts`."""
    fits = np.full(len(layout.template), np.inf)
    for least, on_nodes in held.items():
        fits = np.where(preempts == least, _count_fitting(layout, on_nodes, pods_to_come), fits)
    return fits


def _rows_of(target: IntColumn, workload_id: IntColumn) -> IntColumn:
    """Return the row of the workload that is each target; -1: it is not managed."""
    if not len(workload_id):
        return np.full(len(target), -1)
    row = np.minimum(np.searchsorted(workload_id, target), len(workload_id) - 1)
    return np.where(workload_id[row] == target, row, -1)


def _sum(layout: Layout, held: HeldRows, place: IntColumn, resource: IntColumn, counted: BoolColumn) -> UsedOnNodes:
    """Return what the counted rows hold on each node."""
    nodes, resources = layout.devices.shape
    known = counted & (resource >= 0)
    cells = place[known] * resources + resource[known]
    return UsedOnNodes(
        _bincount(cells, held.devices[known], nodes * resources).reshape(nodes, resources),
        _bincount(place[counted], held.cpu[counted], nodes),
        _bincount(place[counted], held.memory[counted], nodes),
    )


def _by_line(layout: Layout, devices: FloatColumn) -> FloatColumn:
    """Sum devices of nodes over the node groups. devices: float64[nodes, resources]. Returns float64[G]."""
    by_group = np.zeros((len(layout.groups), len(layout.resources)))
    np.add.at(by_group, layout.group, devices)
    return np.array(
        [0.0 if line.group == NO_GROUP else by_group[line.group, line.resource] for line in layout.lines],
        dtype=np.float64,
    )


def _find_pod_sizes(layout: Layout) -> FloatColumn:
    """Return the devices of which each pod of a replica has a multiple, float64[W]; NaN: there is no such number."""
    sizes = [
        needs.smallest
        if needs.smallest > 0 and needs.largest % needs.smallest == 0 == needs.total % needs.smallest
        else np.nan
        for needs in layout.templates
    ]
    return np.array([*sizes, np.nan])[np.array(layout.template, dtype=np.int64)]


def _list_by_node(layout: Layout, devices: FloatColumn) -> tuple[FloatColumn, ...]:
    """Return the devices of each node, by row of the node groups. devices: float64[nodes, resources]."""
    order = np.argsort(layout.group, kind="stable")
    ends = np.searchsorted(layout.group[order], np.arange(len(layout.groups) + 1))
    nodes = np.maximum(devices, 0.0)[order]
    none = np.zeros(0)
    return tuple(
        none if line.group == NO_GROUP else nodes[ends[line.group] : ends[line.group + 1], line.resource]
        for line in layout.lines
    )


def _find_strays(
    layout: Layout, held: HeldRows, place: IntColumn, resource: IntColumn, row: IntColumn
) -> tuple[BoolColumn, BoolColumn]:
    """Return the rows of stray pods, and those of them that another template made.

    The template of their workload does not describe strays any more. They have another number of devices or another
    resource, or are on a node that no longer admits them, because the node has a new taint, or the template a new
    selector. They keep serving, and their devices are not available to others.
    """
    places = {resource: index for index, resource in enumerate(layout.resources)}
    wanted = np.array([places.get(each.resource, -1) for each in layout.templates], dtype=np.int64)
    has_nodes = np.array(layout.admitted.any(axis=1), dtype=bool)
    strays = np.zeros(len(place), dtype=bool)
    ours = np.flatnonzero((place >= 0) & (row >= 0) & (resource >= 0))
    template = np.array(layout.template, dtype=np.int64)[row[ours]]
    ours, template = ours[template >= 0], template[template >= 0]
    is_own = resource[ours] == wanted[template]
    strays[ours] = is_own & has_nodes[template] & ~layout.admitted[template, layout.group[place[ours]]]
    # A claim that pods share tells nothing of one of them.
    stated = held.claimant[ours] != SHARED
    devices, _ = _of_pods(held, resource)
    sizes = [{needs.largest, needs.smallest, *needs.pods} for needs in layout.templates]
    kinds = zip(template.tolist(), devices[ours].tolist(), strict=True)
    has_size = np.array([math.isnan(layout.templates[of].total) or size in sizes[of] for of, size in kinds], dtype=bool)
    former = np.zeros(len(place), dtype=bool)
    former[ours] = stated & (~is_own | ~has_size)
    has_pool = np.zeros(len(place), dtype=bool)
    has_pool[ours] = has_nodes[template]
    return strays | (former & has_pool), former


def _of_pods(held: HeldRows, resource: IntColumn) -> tuple[FloatColumn, FloatColumn]:
    """Return for each row the devices of its pod and resource, and the number of its rows with a known resource.

    Devices of claims have a row each; all others of a pod and resource are in one.
    """
    is_claimed, is_known = held.claimant >= 0, resource >= 0
    devices, rows = held.devices.copy(), np.ones(len(resource))
    if is_claimed.any():
        _, pods = np.unique(np.stack([held.claimant, resource])[:, is_claimed], axis=1, return_inverse=True)
        devices[is_claimed] = np.bincount(pods.ravel(), held.devices[is_claimed])[pods.ravel()]
        owner = held.claimant[is_claimed]
        rows[is_claimed] = np.maximum(np.bincount(owner, is_known[is_claimed]), 1.0)[owner]
    return devices, rows


def _move_strays(
    layout: Layout,
    groups: NodeGroups,
    held: HeldRows,
    place: IntColumn,
    row: IntColumn,
    is_stray: BoolColumn,
    strays: UsedOnNodes,
) -> NodeGroups:
    """Return the node groups with the devices of strays in groups of their own, which only their pools have.

    These groups accept no new pod, so nothing else is promised what strays hold.
    """
    if not is_stray.any():
        return groups
    moved = _by_line(layout, strays.devices)
    pool = np.array(layout.rows)[row]
    pools = _bincount(pool[is_stray], held.devices[is_stray], len(layout.pools))
    left = replace(
        groups, allocatable=np.maximum(groups.allocatable - moved, 0.0), used=np.maximum(groups.used - moved, 0.0)
    )
    grown = left.add_to_pools(layout.pools, pools)
    added = np.arange(len(grown.groups)) >= len(left.groups)
    line_of = dict(zip(np.flatnonzero(pools).tolist(), np.flatnonzero(added).tolist(), strict=True))
    names, of_node = list(layout.place), dict(left.of_node)
    for node, own in sorted(set(zip(place[is_stray].tolist(), pool[is_stray].tolist(), strict=True))):
        of_node[names[node]] = (*of_node[names[node]], line_of[own])
    return replace(
        grown, used=np.where(added, grown.allocatable, grown.used), closed=grown.closed | added, of_node=of_node
    )


def _count_kept(
    layout: Layout,
    held: HeldRows,
    place: IntColumn,
    resource: IntColumn,
    row: IntColumn,
    is_stray: BoolColumn,
    is_former: BoolColumn,
) -> FloatColumn:
    """Return how many replicas of each workload are on nodes that take no more of them. float64[W].

    is_former: their pods count one by one, because their devices are those of another template.
    """
    is_closed = np.array([bool(group.key.closed) for group in layout.groups], dtype=bool)
    ours = np.flatnonzero((place >= 0) & (row >= 0) & (resource >= 0))
    ours = ours[is_stray[ours] | is_closed[layout.group[place[ours]]]]
    templates = [layout.templates[place] if place >= 0 else Needs() for place in layout.template]
    each = np.array([needs.total / max(_count_pods(needs), 1.0) for needs in templates])
    _, rows = _of_pods(held, resource)
    devices = np.where(is_former[ours], each[row[ours]] / rows[ours], held.devices[ours])
    total = np.array([needs.total for needs in templates])
    kept: FloatColumn = np.divide(
        _bincount(row[ours], devices, len(total)), total, out=np.zeros(len(total)), where=total > 0
    )
    return np.floor(kept + CLOSE)


def _count_pods(needs: Needs) -> float:
    """Return the pods with devices of a replica; NaN: not known."""
    return float(len(needs.pods)) or needs.total / needs.smallest if needs.smallest > 0 else math.nan


def _pods_to_come(layout: Layout) -> FloatColumn:
    """Return how many of the smallest pods of each template fit on nodes to come, float64[T]; infinity: no limit."""
    pods = np.zeros(len(layout.templates))
    by_label = {(line.label, line.resource): line.can_add for line in layout.lines if line.can_add > 0}
    for place, needs in enumerate(layout.templates):
        own = [group for group, is_own in zip(layout.groups, layout.admitted[place], strict=True) if is_own]
        if not own:
            pods[place] = np.inf  # their nodes may still be created
        for label in {group.key.node_pool for group in own} if needs.smallest > 0 else ():
            devices = by_label.get((label, layout.resources.index(needs.resource)), 0.0)
            each = max(group.key.devices_when_free(needs.resource) for group in own if group.key.node_pool == label)
            if devices == np.inf:
                pods[place] = np.inf
            else:
                full, rest = divmod(devices, each)
                pods[place] += full * (each // needs.smallest) + rest // needs.smallest
    return pods


def _count_fitting(layout: Layout, held: UsedOnNodes, pods_to_come: FloatColumn) -> FloatColumn:
    """Return how many replicas of each workload fit beside what pods hold; infinity: no limit is known. float64[W]."""
    by_size: dict[tuple[str, float, float, float], FloatColumn] = {}
    is_open = np.array([not group.key.closed for group in layout.groups], dtype=bool)
    fits = np.full(len(layout.templates) + 1, np.inf)  # the last: of workloads without a template
    for place, needs in enumerate(layout.templates):
        if needs.smallest > 0 and needs.total > 0 and pods_to_come[place] < np.inf:
            size = needs.resource, needs.smallest, needs.cpu, needs.memory
            if size not in by_size:
                by_size[size] = _count_by_group(layout, held, needs)
            pods = by_size[size][layout.admitted[place] & is_open].sum()
            fits[place] = count_replicas(float(pods + pods_to_come[place]), needs)
    return fits[np.array(layout.template, dtype=np.int64)] if layout.template else np.zeros(0)


def _count_by_group(layout: Layout, held: UsedOnNodes, needs: Needs) -> FloatColumn:
    """Return how many of the smallest pods of a template the nodes of each group hold, if they admit it."""
    return _bincount(layout.group, count_on_nodes(layout, held, needs), len(layout.groups))


def count_on_nodes(layout: Layout, held: UsedOnNodes, needs: Needs) -> FloatColumn:
    """Return how many of the smallest pods of a template fit on each node, if it admits them. float64[nodes]."""
    if needs.resource not in layout.resources:
        return np.zeros(len(layout.group))
    resource = layout.resources.index(needs.resource)
    free = layout.devices[:, resource] - held.devices[:, resource]
    return count_pods(free, layout.cpu - held.cpu, layout.memory - held.memory, needs)


def _bincount(places: IntColumn, amounts: FloatColumn, length: int) -> FloatColumn:
    """Sum amounts by place. Without any, numpy would return integers."""
    return np.bincount(places, amounts, length).astype(np.float64)
