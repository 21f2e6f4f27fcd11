"""GPU pools: accelerators by resource, product and nodes; their sizes, and the pool of each workload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.inventory.fit import admits, count_fitting
from autoscaler.adapters.kubernetes.inventory.groups import PRODUCT_LIMIT, GroupKey, group_nodes
from autoscaler.adapters.kubernetes.inventory.nodes import Node
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.pods.template import Facts
from autoscaler.core.model.fleet import Pool, PoolOverlap

GROWING_LABELS = (  # of node pools that a cluster autoscaler may enlarge; whether it does is not known
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
)
WORDS_LIMIT = 128  # characters that describe the nodes of a pool


class Layout(NamedTuple):
    """The pools, and the pool of each workload."""

    rows: list[int]  # [W], pool of each workload; -1: unknown
    pools: tuple[Pool, ...]
    gpus: list[float]  # by pool; NaN: no limit is known
    fits: list[float]  # [W], replicas that fit on its nodes; infinity: no limit is known
    joint: tuple[PoolOverlap, ...]
    admitted: list[frozenset[int] | None]  # [W], node groups that admit it; None: all with its resource
    group_of: Mapping[str, int]  # node group by node


def lay_out_pools(nodes: Mapping[str, Node], workloads: Sequence[Facts]) -> Layout:
    """Return the pool of each workload, and the sizes of the pools.

    Workloads that the same nodes admit share a pool. A template without a product may run on any product. If nodes
    offer several, its use of each is not known, so pools with these nodes have no limit. Pools without a node have
    no limit either, because their nodes may still be created.
    """
    members = group_nodes(nodes, {facts.needs for facts in workloads})
    groups = {group: len(names) for group, names in members.items()}
    group_of = {name: place for place, names in enumerate(members.values()) for name in names}
    offered = list(groups)
    found: dict[tuple[str, tuple[str, str] | None, Needs], tuple[Pool, frozenset[int], float]] = {}
    places: dict[tuple[Pool, frozenset[int]], int] = {}
    layout = Layout([], (), [], [], (), [], group_of)
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
            pool if math.isnan(size) else pool._replace(grows=_growing_label(nodes, group_of, admitted))
            for (pool, admitted), size in zip(sets, sizes, strict=True)
        ),
        gpus=sizes,
        joint=_find_joints(sets, groups),
    )


def _find_pool(
    groups: Mapping[GroupKey, int], resource: str, product_label: tuple[str, str] | None, needs: Needs
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


def _sizes(sets: Sequence[tuple[Pool, frozenset[int]]], groups: Mapping[GroupKey, int]) -> list[float]:
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
    sets: Sequence[tuple[Pool, frozenset[int]]], groups: Mapping[GroupKey, int]
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


def find_joints(sets: Sequence[frozenset[int]], sizes: Mapping[int, float]) -> list[PoolOverlap]:
    """Return the pools that have node groups in common, and their size together; the smallest first.

    sets: the node groups of each pool. sizes: devices by node group. A pool inside another one uses the larger pool's
    nodes. Pools that overlap otherwise form one joint pool with all pools that are linked by overlaps.
    """
    groups_of: dict[tuple[int, ...], frozenset[int]] = {}

    def add(members: Iterable[int]) -> None:
        pools = tuple(sorted(set(members)))
        if len(pools) > 1:
            groups_of[pools] = frozenset().union(*(sets[pool] for pool in pools))

    linked: list[set[int]] = []
    for pool, own in enumerate(sets):
        add(other for other, groups in enumerate(sets) if groups and groups <= own)
        overlapping = [each for each in linked if any(sets[other] & own for other in each)]
        linked = [each for each in linked if each not in overlapping] + [{pool}.union(*overlapping)]
    for each in linked:
        add(each)
    joints = (PoolOverlap(pools, sum(sizes[group] for group in groups)) for pools, groups in groups_of.items())
    return sorted(joints, key=lambda joint: (len(groups_of[joint.pools]), joint.pools))


def describe(needs: Needs) -> str:
    """Describe the nodes that a template requires."""
    words = [f"{key}={value}" for key, value in needs.selector]
    words += ["a required node affinity"] * (needs.terms is not None)
    return (", ".join(words) or "those it tolerates and fits on")[:WORDS_LIMIT]


def _growing_label(nodes: Mapping[str, Node], group_of: Mapping[str, int], admitted: frozenset[int]) -> str:
    """Return the label of a node pool that a cluster autoscaler may enlarge; "": these nodes have none."""
    labels = (nodes[name].labels for name, group in group_of.items() if group in admitted)
    found = {f"{key}={each[key]}"[:PRODUCT_LIMIT] for each in labels for key in GROWING_LABELS if each.get(key)}
    return min(found, default="")
