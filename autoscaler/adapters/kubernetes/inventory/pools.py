"""GPU pools: the node groups that admit the replicas of a workload, and what autoscalers may add to them.

Nothing here depends on pods; `usage` counts what they hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.inventory.elastic import Elastic
from autoscaler.adapters.kubernetes.inventory.groups import TEXT_LIMIT, Group, describe, group_nodes
from autoscaler.adapters.kubernetes.inventory.nodes import Node
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.pods.template import Facts
from autoscaler.catalog.node_labels import stated_capacity_type
from autoscaler.core.model.fleet import NodeGroup, NodeGroups, Pool
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

NO_GROUP = -1
TO_COME = "nodes to come"


class GroupLine(NamedTuple):
    """One row of `NodeGroups`: devices of one resource on a node group, or those that are still to come."""

    group: int  # -1: to come
    resource: int
    node: NodeGroup
    allocatable: float
    can_add: float  # NaN: it may grow, and its limit is not known
    closed: bool
    label: str  # of the node pool that an autoscaler may enlarge; "": none


class Layout(NamedTuple):
    """The pool of each workload, the node groups, and the nodes as columns."""

    rows: list[int]  # [W], pool of each workload; -1: unknown
    pools: tuple[Pool, ...]
    templates: list[Needs]  # [T]
    template: list[int]  # [W], template of each workload; -1: unknown
    admitted: BoolColumn  # bool[T, groups]
    groups: list[Group]
    lines: list[GroupLine]
    node_groups: NodeGroups  # as if no pod held a device
    resources: list[str]
    place: Mapping[str, int]  # by node: its row in the columns below
    group: IntColumn  # int64[nodes]
    devices: FloatColumn  # float64[nodes, resources]
    cpu: FloatColumn  # float64[nodes]
    memory: FloatColumn  # float64[nodes]

    def resource_of(self, workload: int) -> str:
        """Return the resource that the replicas of a workload request; "": it is not known."""
        template = self.template[workload]
        return self.templates[template].resource if template >= 0 else ""


def lay_out_pools(nodes: Mapping[str, Node], workloads: Sequence[Facts], elastic: Elastic | None = None) -> Layout:
    """Return the pool of each workload, and the node groups.

    Workloads that the same groups admit share a pool. A pool without a node has no limit, because its nodes may still
    be created.
    """
    places: dict[Needs, int] = {}
    template = [places.setdefault(_requirement(each), len(places)) if each.resource else -1 for each in workloads]
    templates = list(places)
    groups = group_nodes(nodes, templates)
    resources = sorted({resource for group in groups for resource, _ in group.key.devices})
    lines = _lines(nodes, groups, resources, elastic or Elastic())
    admitted = np.array(
        [[_admits(group, place, needs) for group in groups] for place, needs in enumerate(templates)], dtype=bool
    ).reshape(len(templates), len(groups))
    grows = {line.group: line.label for line in lines if math.isnan(line.can_add)}
    product = {place: each.product for place, each in zip(template, workloads, strict=True)}
    found: dict[tuple[Pool, bytes], int] = {}
    pool_of = []
    for place, needs in enumerate(templates):
        pool = _pool(needs, product[place], groups, admitted[place], grows)
        pool_of.append(found.setdefault((pool, admitted[place].tobytes()), len(found)))
    pools = [pool for pool, _ in found]
    sets = [admitted[pool_of.index(pool)] for pool in range(len(pools))]
    members = [(name, place) for place, group in enumerate(groups) for name in group.nodes]
    seen = [nodes[name] for name, _ in members]
    return Layout(
        rows=[pool_of[place] if place >= 0 else -1 for place in template],
        pools=tuple(pools),
        templates=templates,
        template=template,
        admitted=admitted,
        groups=groups,
        lines=lines,
        node_groups=_node_groups(lines, pools, sets, groups, resources),
        resources=resources,
        place={name: row for row, (name, _) in enumerate(members)},
        group=np.array([place for _, place in members], dtype=np.int64),
        devices=np.array([[node.gpus.get(each, 0) for each in resources] for node in seen], dtype=np.float64).reshape(
            len(seen), len(resources)
        ),
        cpu=np.array([node.cpu for node in seen], dtype=np.float64),
        memory=np.array([node.memory for node in seen], dtype=np.float64),
    )


def _requirement(facts: Facts) -> Needs:
    """Return the needs of a workload with its resource, and with the product that its template requires."""
    selector = {*facts.needs.selector, *([facts.product] if facts.product else [])}
    return facts.needs._replace(resource=facts.resource, selector=tuple(sorted(selector)))


def _admits(group: Group, template: int, needs: Needs) -> bool:
    """Return whether an empty node of a group could run the largest pod of a template."""
    devices = group.key.devices_when_free(needs.resource)
    return group.key.admits(template) and 0 < devices >= (1.0 if math.isnan(needs.largest) else needs.largest)


def _pool(
    needs: Needs, label: tuple[str, str] | None, groups: Sequence[Group], admitted: BoolColumn, grows: Mapping[int, str]
) -> Pool:
    """Return the pool of a template. label: the product that it requires. grows: node pools with unknown limits."""
    own = [place for place in range(len(groups)) if admitted[place]]
    offering = [place for place, group in enumerate(groups) if group.key.devices_when_free(needs.resource)]
    products = {groups[place].key.product for place in own or (offering if label is None else ())}
    product = products.pop() if len(products) == 1 else label[1][:TEXT_LIMIT] if label else ""
    others = [place for place in offering if product in ("", groups[place].key.product)]
    growing = min((grows[place] for place in own if place in grows), default="")
    paid = {groups[place].key.capacity_type for place in own} or {stated_capacity_type(dict(needs.selector))}
    return Pool(
        needs.resource,
        product,
        nodes=_words(needs) if own and own != others else "",
        grows=growing[:TEXT_LIMIT],
        capacity_type=" or ".join(sorted(kind or "unknown" for kind in paid)) if len(paid) > 1 else paid.pop(),
    )


def _words(needs: Needs) -> str:
    """Describe the nodes that a template requires."""
    words = [f"{key}={value}" for key, value in needs.selector]
    words += ["a required node affinity"] * (needs.terms is not None)
    return (", ".join(words) or "those it tolerates and fits on")[:TEXT_LIMIT]


def _lines(
    nodes: Mapping[str, Node], groups: Sequence[Group], resources: Sequence[str], elastic: Elastic
) -> list[GroupLine]:
    """Return the rows of `NodeGroups`.

    The groups of a node pool share its limit, so what may come is a row of its own.
    """
    node_pools: dict[str, dict[str, Node]] = {}
    for group in groups:
        node_pools.setdefault(group.key.node_pool, {}).update((name, nodes[name]) for name in group.nodes)
    offered = {(group.key.node_pool, resource): group for group in groups for resource, _ in group.key.devices}
    to_come = {
        (label, resource): elastic.can_add(label, node_pools[label], resource) if label else 0.0
        for label, resource in offered
    }
    lines = [
        GroupLine(
            place,
            resources.index(resource),
            NodeGroup(
                resource=resource,
                product=group.key.product,
                nodes=describe(group),
                zone=group.key.zone[:TEXT_LIMIT],
                capacity_type=group.key.capacity_type,
                sharing=sharing,
                grows=group.key.node_pool[:TEXT_LIMIT],
                sharers=sharers,
            ),
            allocatable=float(devices * len(group.nodes)),
            can_add=math.nan if math.isnan(to_come[group.key.node_pool, resource]) else 0.0,
            closed=bool(group.key.closed),
            label=group.key.node_pool,
        )
        for place, group in enumerate(groups)
        for (resource, devices), sharing, sharers in zip(
            group.key.devices, group.key.sharing, group.key.sharers, strict=True
        )
    ]
    for (label, resource), devices in to_come.items():
        if devices > 0:
            key = offered[label, resource].key
            sharers = dict(zip(dict(key.devices), key.sharers, strict=True))[resource]
            paid = {group.key.capacity_type for group in groups if group.key.node_pool == label}
            node = NodeGroup(
                resource,
                key.product,
                TO_COME,
                capacity_type=paid.pop() if len(paid) == 1 else "",
                grows=label[:TEXT_LIMIT],
                sharers=sharers,
            )
            lines.append(GroupLine(NO_GROUP, resources.index(resource), node, 0.0, devices, False, label))
    return lines


def _node_groups(
    lines: Sequence[GroupLine],
    pools: Sequence[Pool],
    admitted: Sequence[BoolColumn],
    groups: Sequence[Group],
    resources: Sequence[str],
) -> NodeGroups:
    """Return the node groups of the pools, as if no pod held a device. admitted: groups of each pool."""
    labels = [{group.key.node_pool for group, own in zip(groups, each, strict=True) if own} for each in admitted]
    none = np.zeros(len(lines))
    return NodeGroups(
        groups=tuple(line.node for line in lines),
        allocatable=np.array([line.allocatable for line in lines], dtype=np.float64),
        used_by_others=none,
        used=none,
        can_add=np.array([0.0 if math.isnan(line.can_add) else line.can_add for line in lines], dtype=np.float64),
        closed=np.array([line.closed for line in lines], dtype=bool),
        admitted=np.array(
            [
                [
                    resources[line.resource] == pool.resource
                    and (bool(own[line.group]) if line.group != NO_GROUP else line.label in names)
                    for line in lines
                ]
                for pool, own, names in zip(pools, admitted, labels, strict=True)
            ],
            dtype=bool,
        ).reshape(len(pools), len(lines)),
        of_node={
            name: rows
            for place, group in enumerate(groups)
            for rows in [tuple(row for row, line in enumerate(lines) if line.group == place)]
            for name in group.nodes
        },
    )
