"""GPU pools: accelerators by resource, product and nodes; their sizes, and the pool of each workload."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.objects import Node
from autoscaler.adapters.kubernetes.pods.template import PRODUCT_LABELS, Facts
from autoscaler.adapters.kubernetes.scheduling import (
    Needs,
    NodeGroup,
    Taint,
    admits,
    count_fitting,
    describe,
    find_joints,
)
from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.core.model.fleet import Pool, PoolOverlap
from autoscaler.ports import Clock

PROVISIONED_LABEL = "karpenter.sh/nodepool"  # nodes that are created on demand: their number is no limit
GROWING_LABELS = (  # of node pools that a cluster autoscaler may enlarge; whether it does is not known
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
)
VOLATILE_LABELS = ("nvidia.com/gfd.timestamp",)  # rewritten every minute, and read by no template
PRODUCT_LIMIT = 128  # characters of a product's name

SHRINK_DELAY_S = 600.0
"""A node that offers less than before is believed after this time. While its kubelet or device plugin restarts, it
offers no device and its product label may be missing, but its pods keep running. A new taint counts the same way."""


class _Node(NamedTuple):
    gpus: dict[str, int]  # by resource
    labels: dict[str, str]
    taints: frozenset[Taint] = frozenset()

    def at_least(self, other: _Node) -> _Node:
        """Return this node with everything that the other node offers beyond it."""
        gpus = {name: max(self.gpus.get(name, 0), other.gpus.get(name, 0)) for name in self.gpus | other.gpus}
        return _Node(gpus, other.labels | self.labels, self.taints & other.taints)


class Layout(NamedTuple):
    """The pools, and the pool of each workload."""

    rows: list[int]  # [W], pool of each workload; -1: unknown
    pools: tuple[Pool, ...]
    gpus: list[float]  # by pool; NaN: no limit is known
    fits: list[float]  # [W], replicas that fit on its nodes; infinity: no limit is known
    joint: tuple[PoolOverlap, ...]
    admitted: list[frozenset[int] | None]  # [W], node groups that admit it; None: all with its resource


class NodeStore:
    """The nodes of the cluster. Cordoned and not-ready nodes count as well, because their pods still hold GPUs.

    So a control plane that loses contact with nodes scales no workload down.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version = 0
        self._nodes: dict[str, _Node] = {}
        self._shrunk: dict[str, tuple[float, _Node]] = {}  # nodes that offer less than before: since when, and what
        self._group: dict[str, int] = {}  # by node, as of the last layout

    def update(self) -> int:
        """Accept nodes that have offered less for `SHRINK_DELAY_S`. Return a version that grows with each change."""
        now_s = self._clock.now_s()
        for name, (since_s, node) in list(self._shrunk.items()):
            if now_s - since_s >= SHRINK_DELAY_S:
                self._set(name, node)
                del self._shrunk[name]
        return self._version

    def put(self, seen: Node, /) -> None:
        name = seen.metadata.name
        labels = {key: value for key, value in (seen.metadata.labels or {}).items() if key not in VOLATILE_LABELS}
        taints = frozenset(Taint(taint.key, taint.value, taint.effect) for taint in seen.spec.taints or ())
        node = _Node(_gpus(seen.status.allocatable), labels, taints)
        before = self._nodes.get(name, node._replace(gpus=_gpus(seen.status.capacity)))
        if not (node.gpus or before.gpus):  # no workload can run there, so changes of its labels do not matter
            node = before = _Node({}, {})
        offered = node.at_least(before)
        if offered == node:
            self._shrunk.pop(name, None)
        else:
            since_s, _ = self._shrunk.get(name, (self._clock.now_s(), node))
            self._shrunk[name] = since_s, node
        self._set(name, offered)

    def remove(self, namespace: str, name: str, /) -> None:
        self._shrunk.pop(name, None)
        if self._nodes.pop(name, None) is not None:
            self._version += 1

    def group(self, node: str) -> int:
        """Return the group of a node, as of the last layout; -1: the node is not known."""
        return self._group.get(node, -1)

    def _set(self, name: str, node: _Node) -> None:
        if self._nodes.get(name) != node:
            self._nodes[name] = node
            self._version += 1

    def lay_out_pools(self, workloads: Sequence[Facts]) -> Layout:
        """Return the pool of each workload, and the sizes of the pools.

        Workloads that the same nodes admit share a pool. A template without a product may run on any product. If nodes
        offer several, its use of each is not known, so pools with these nodes have no limit. Pools without a node have
        no limit either, because their nodes may still be created.
        """
        groups = self._group_nodes(workloads)
        offered = list(groups)
        found: dict[tuple[str, tuple[str, str] | None, Needs], tuple[Pool, frozenset[int], float]] = {}
        places: dict[tuple[Pool, frozenset[int]], int] = {}
        layout = Layout([], (), [], [], (), [])
        for facts in workloads:
            if not facts.resource:
                layout.rows.append(-1)
                layout.fits.append(math.inf)
                layout.admitted.append(None)
                continue
            key = facts.resource, facts.product, facts.needs
            if key not in found:
                found[key] = _find_pool(groups, *key)
            pool, admitted, fits = found[key]
            layout.rows.append(places.setdefault((pool, admitted), len(places)))
            layout.fits.append(fits)
            others = {place for place, group in enumerate(offered) if group.devices_of(facts.resource)} - admitted
            layout.admitted.append(admitted if admitted and others else None)
        sets = list(places)
        sizes = _sizes(sets, groups)
        return layout._replace(
            pools=tuple(
                pool if math.isnan(size) else pool._replace(grows=self._growing_label(admitted))
                for (pool, admitted), size in zip(sets, sizes, strict=True)
            ),
            gpus=sizes,
            joint=_find_joints(sets, groups),
        )

    def _group_nodes(self, workloads: Sequence[Facts]) -> dict[NodeGroup, int]:
        """Return the groups of nodes with GPUs, and the number of nodes of each."""
        keys = {*PRODUCT_LABELS}.union(*(needs.label_keys() for needs in {facts.needs for facts in workloads}))
        groups: Counter[NodeGroup] = Counter()
        members = {}
        for name, node in self._nodes.items():
            if any(node.gpus.values()):
                product = next((node.labels[key] for key in PRODUCT_LABELS if node.labels.get(key)), "")
                labels = sorted((key, value) for key, value in node.labels.items() if key in keys)
                members[name] = NodeGroup(
                    tuple(labels),
                    node.taints,
                    tuple(sorted((resource, count) for resource, count in node.gpus.items() if count)),
                    product[:PRODUCT_LIMIT],
                    PROVISIONED_LABEL in node.labels,
                )
                groups[members[name]] += 1
        places = {group: place for place, group in enumerate(groups)}
        self._group = {name: places[group] for name, group in members.items()}
        return groups

    def _growing_label(self, admitted: frozenset[int]) -> str:
        """Return the label of a node pool that a cluster autoscaler may enlarge; "": these nodes have none."""
        labels = (self._nodes[name].labels for name, group in self._group.items() if group in admitted)
        found = {f"{key}={each[key]}"[:PRODUCT_LIMIT] for each in labels for key in GROWING_LABELS if each.get(key)}
        return min(found, default="")


def _find_pool(
    groups: Mapping[NodeGroup, int], resource: str, product_label: tuple[str, str] | None, needs: Needs
) -> tuple[Pool, frozenset[int], float]:
    """Return the pool of such templates, the node groups that admit them, and how many replicas fit."""
    needs = needs._replace(resource=resource)
    offering = {
        place: group
        for place, group in enumerate(groups)
        if group.devices_of(resource) and (product_label is None or product_label in group.labels)
    }
    admitted = {place: group for place, group in offering.items() if admits(group, needs)}
    products = {group.product for group in (admitted or offering).values()}
    product = products.pop() if len(products) == 1 else product_label[1][:PRODUCT_LIMIT] if product_label else ""
    same_product = {
        place for place, group in enumerate(groups) if group.devices_of(resource) and group.product == product
    }
    others = same_product if product else set(offering)
    pool = Pool(resource, product, describe(needs) if admitted and set(admitted) != others else "")
    mixed = len({group.product for group in admitted.values()}) > 1
    limited = admitted and not mixed and not any(group.provisioned for group in admitted.values())
    fits = count_fitting({group: groups[group] for group in admitted.values()}, needs) if limited else math.inf
    return pool, frozenset(admitted), fits


def _sizes(sets: Sequence[tuple[Pool, frozenset[int]]], groups: Mapping[NodeGroup, int]) -> list[float]:
    """Return the devices of each pool; NaN: no limit is known."""
    nodes = list(groups.items())
    mixed = {  # groups, by resource, that a workload without a product may use beside others
        (pool.resource, place)
        for pool, admitted in sets
        if len({nodes[place][0].product for place in admitted}) > 1
        for place in admitted
    }
    return [
        math.nan
        if not admitted or any((pool.resource, place) in mixed or nodes[place][0].provisioned for place in admitted)
        else float(sum(nodes[place][0].devices_of(pool.resource) * nodes[place][1] for place in admitted))
        for pool, admitted in sets
    ]


def _find_joints(
    sets: Sequence[tuple[Pool, frozenset[int]]], groups: Mapping[NodeGroup, int]
) -> tuple[PoolOverlap, ...]:
    """Return the pools that overlap and whose sizes are known."""
    sizes, nodes = _sizes(sets, groups), list(groups.items())
    joints: list[PoolOverlap] = []
    for resource in {pool.resource for pool, _ in sets}:
        shared = [
            place for place, (pool, _) in enumerate(sets) if pool.resource == resource and not math.isnan(sizes[place])
        ]
        devices = {place: float(group.devices_of(resource) * count) for place, (group, count) in enumerate(nodes)}
        overlaps = find_joints([sets[place][1] for place in shared], devices)
        joints += (PoolOverlap(tuple(shared[pool] for pool in joint.pools), joint.gpus) for joint in overlaps)
    return tuple(joints)


def _gpus(offered: Mapping[str, str | int | float] | None) -> dict[str, int]:
    return {
        name: int(count)
        for name, count in (offered or {}).items()
        if is_accelerator(name) and str(count).isascii() and str(count).isdigit() and len(str(count)) < 9
    }
