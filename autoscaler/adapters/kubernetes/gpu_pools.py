"""Accelerators by resource, product and the nodes that admit a workload: how many there are, and who draws on which."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.objects import Node
from autoscaler.adapters.kubernetes.pods.template import PRODUCT_LABELS, Facts
from autoscaler.adapters.kubernetes.scheduling import Group, Needs, Taint, admits, described, fitting, joints
from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.core.model.fleet import Joint, Pool
from autoscaler.ports import Clock

PROVISIONED_LABEL = "karpenter.sh/nodepool"  # nodes that come when pods ask for them: their number is no limit
GROWING_LABELS = (  # of node pools that a cluster autoscaler may enlarge: it is not known whether one does
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
)
RESTLESS_LABELS = ("nvidia.com/gfd.timestamp",)  # written anew every minute, and looked at by no template
PRODUCT_LIMIT = 128  # characters of a product's name


HELD_S = 600.0
"""A node that offers less than before is believed after so long: while its kubelet or device plugin starts anew it
offers nothing, its product label may be missing, and what runs there runs on. A taint more is less on offer."""


class _Node(NamedTuple):
    gpus: dict[str, int]  # by resource
    labels: dict[str, str]
    taints: frozenset[Taint] = frozenset()

    def at_least(self, other: _Node) -> _Node:
        """Return this node with all that the other offers more."""
        gpus = {name: max(self.gpus.get(name, 0), other.gpus.get(name, 0)) for name in self.gpus | other.gpus}
        return _Node(gpus, other.labels | self.labels, self.taints & other.taints)


class Layout(NamedTuple):
    """Pools as the nodes make them."""

    rows: list[int]  # [W], pool of each workload; -1: unknown
    pools: tuple[Pool, ...]
    gpus: list[float]  # by pool; NaN: no limit is known
    fits: list[float]  # [W], replicas that its nodes can hold; infinity: no limit is known
    joint: tuple[Joint, ...]
    admitted: list[frozenset[int] | None]  # [W], groups of nodes, where some of this resource are not; None: all are


class NodeTable:
    """Receives nodes. Cordoned and not-ready ones count as well: what runs there still holds its GPUs, and a control
    plane that loses sight of nodes must not shrink anybody."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version = 0
        self._nodes: dict[str, _Node] = {}
        self._less: dict[str, tuple[float, _Node]] = {}  # since when, and what, nodes offer that offered more before
        self._group: dict[str, int] = {}  # of each node, as of the last layout

    def settle(self) -> int:
        """Believe what was less for `HELD_S`; return a number that grows when what is offered changes."""
        now_s = self._clock.now_s()
        for name, (since_s, node) in list(self._less.items()):
            if now_s - since_s >= HELD_S:
                self._keep(name, node)
                del self._less[name]
        return self._version

    def put(self, seen: Node, /) -> None:
        name = seen.metadata.name
        labels = {key: value for key, value in (seen.metadata.labels or {}).items() if key not in RESTLESS_LABELS}
        taints = frozenset(Taint(taint.key, taint.value, taint.effect) for taint in seen.spec.taints or ())
        node = _Node(_gpus(seen.status.allocatable), labels, taints)
        before = self._nodes.get(name, node._replace(gpus=_gpus(seen.status.capacity)))
        if not (node.gpus or before.gpus):  # whatever is written on it, nothing here can run there
            node = before = _Node({}, {})
        offered = node.at_least(before)
        if offered == node:
            self._less.pop(name, None)
        else:
            since_s, _ = self._less.get(name, (self._clock.now_s(), node))
            self._less[name] = since_s, node
        self._keep(name, offered)

    def remove(self, namespace: str, name: str, /) -> None:
        self._less.pop(name, None)
        if self._nodes.pop(name, None) is not None:
            self._version += 1

    def group(self, node: str) -> int:
        """Return the group of a node as of the last layout; -1: the node is not known."""
        return self._group.get(node, -1)

    def _keep(self, name: str, node: _Node) -> None:
        if self._nodes.get(name) != node:
            self._nodes[name] = node
            self._version += 1

    def pools(self, wanted: Sequence[Facts]) -> Layout:
        """Return the pool of each workload, and what the pools have.

        Workloads that the same nodes admit share a pool. A template without a product may run on any; where nodes offer
        several, what it takes from which is not known, so pools with these nodes are then not shared out. Nor are pools
        without a node: theirs may still have to be made.
        """
        groups = self._grouped(wanted)
        offered = list(groups)
        answers: dict[tuple[str, tuple[str, str] | None, Needs], tuple[Pool, frozenset[int], float]] = {}
        places: dict[tuple[Pool, frozenset[int]], int] = {}
        layout = Layout([], (), [], [], (), [])
        for facts in wanted:
            if not facts.resource:
                layout.rows.append(-1)
                layout.fits.append(math.inf)
                layout.admitted.append(None)
                continue
            due = facts.resource, facts.product, facts.needs
            if due not in answers:
                answers[due] = _answer(groups, *due)
            pool, admitted, fits = answers[due]
            layout.rows.append(places.setdefault((pool, admitted), len(places)))
            layout.fits.append(fits)
            others = {place for place, group in enumerate(offered) if group.devices_of(facts.resource)} - admitted
            layout.admitted.append(admitted if admitted and others else None)
        sets = list(places)
        sizes = _sizes(sets, groups)
        return layout._replace(
            pools=tuple(
                pool if math.isnan(size) else pool._replace(grows=self._growing(admitted))
                for (pool, admitted), size in zip(sets, sizes, strict=True)
            ),
            gpus=sizes,
            joint=_joints(sets, groups),
        )

    def _grouped(self, wanted: Sequence[Facts]) -> dict[Group, int]:
        """Return the groups of nodes with GPUs, and how many nodes each has."""
        keys = {*PRODUCT_LABELS}.union(*(needs.looked_at() for needs in {facts.needs for facts in wanted}))
        groups: Counter[Group] = Counter()
        members = {}
        for name, node in self._nodes.items():
            if any(node.gpus.values()):
                product = next((node.labels[key] for key in PRODUCT_LABELS if node.labels.get(key)), "")
                labels = sorted((key, value) for key, value in node.labels.items() if key in keys)
                members[name] = Group(
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

    def _growing(self, admitted: frozenset[int]) -> str:
        """Return the label by which nodes of these groups belong to a pool that a cluster autoscaler may enlarge."""
        labels = (self._nodes[name].labels for name, group in self._group.items() if group in admitted)
        found = {f"{key}={each[key]}"[:PRODUCT_LIMIT] for each in labels for key in GROWING_LABELS if each.get(key)}
        return min(found, default="")


def _answer(
    groups: Mapping[Group, int], resource: str, demanded: tuple[str, str] | None, needs: Needs
) -> tuple[Pool, frozenset[int], float]:
    """Return the pool of such templates, the groups of nodes that admit them, and how many replicas these hold."""
    needs = needs._replace(resource=resource)
    offering = {
        place: group
        for place, group in enumerate(groups)
        if group.devices_of(resource) and (demanded is None or demanded in group.labels)
    }
    admitted = {place: group for place, group in offering.items() if admits(group, needs)}
    products = {group.product for group in (admitted or offering).values()}
    product = products.pop() if len(products) == 1 else demanded[1][:PRODUCT_LIMIT] if demanded else ""
    alike = {place for place, group in enumerate(groups) if group.devices_of(resource) and group.product == product}
    told_apart = (bool(product) and set(admitted) != alike) or (not product and set(admitted) != set(offering))
    pool = Pool(resource, product, described(needs) if admitted and told_apart else "")
    mixed = len({group.product for group in admitted.values()}) > 1
    limited = admitted and not mixed and not any(group.provisioned for group in admitted.values())
    fits = fitting({group: groups[group] for group in admitted.values()}, needs) if limited else math.inf
    return pool, frozenset(admitted), fits


def _sizes(sets: Sequence[tuple[Pool, frozenset[int]]], groups: Mapping[Group, int]) -> list[float]:
    """Return the devices of each pool; NaN: no limit is known."""
    nodes = list(groups.items())
    mixed = {  # by resource: groups that a workload without a product may use beside others
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


def _joints(sets: Sequence[tuple[Pool, frozenset[int]]], groups: Mapping[Group, int]) -> tuple[Joint, ...]:
    """Return the pools that overlap, as far as their sizes are known."""
    sizes, nodes = _sizes(sets, groups), list(groups.items())
    found: list[Joint] = []
    for resource in {pool.resource for pool, _ in sets}:
        shared = [
            place for place, (pool, _) in enumerate(sets) if pool.resource == resource and not math.isnan(sizes[place])
        ]
        devices = {place: float(group.devices_of(resource) * count) for place, (group, count) in enumerate(nodes)}
        overlaps = joints([sets[place][1] for place in shared], devices)
        found += (Joint(tuple(shared[pool] for pool in joint.pools), joint.gpus) for joint in overlaps)
    return tuple(found)


def _gpus(offered: Mapping[str, str | int | float] | None) -> dict[str, int]:
    return {
        name: int(count)
        for name, count in (offered or {}).items()
        if is_accelerator(name) and str(count).isascii() and str(count).isdigit() and len(str(count)) < 9
    }
