"""GPU pools: accelerators by resource, product and nodes; their sizes, and the pool of each workload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.inventory.fit import admits, count_fitting
from autoscaler.adapters.kubernetes.inventory.groups import PRODUCT_LIMIT, GroupKey, group_nodes
from autoscaler.adapters.kubernetes.inventory.nodes import Node
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.pods.template import Facts
from autoscaler.core.model.fleet import NodeGroup, NodeGroups, Pool

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
    groups: NodeGroups  # of these pools
    fits: list[float]  # [W], replicas that fit on its nodes; infinity: no limit is known
    admitted: list[frozenset[int] | None]  # [W], node groups that admit it; None: all with its resource
    group_of: Mapping[str, int]  # node group by node

    @property
    def gpus(self) -> list[float]:
        """Return the devices of each pool; NaN: no limit is known."""
        sizes: list[float] = self.groups.pool_gpus.tolist()
        return sizes


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
    rows: list[int] = []
    fitting: list[float] = []
    admitting: list[frozenset[int] | None] = []
    for facts in workloads:
        if not facts.resource:
            rows.append(-1)
            fitting.append(math.inf)
            admitting.append(None)
            continue
        key = facts.resource, facts.product, facts.needs
        if key not in found:
            found[key] = _find_pool(groups, *key)
        pool, admitted, fits = found[key]
        rows.append(places.setdefault((pool, admitted), len(places)))
        fitting.append(fits)
        others = {place for place, group in enumerate(offered) if group.devices_of(facts.resource)} - admitted
        admitting.append(admitted if admitted and others else None)
    sets = list(places)
    node_groups = _node_groups(sets, groups)
    pools = tuple(
        pool if math.isnan(size) else pool._replace(grows=_growing_label(nodes, group_of, admitted))
        for (pool, admitted), size in zip(sets, node_groups.pool_gpus.tolist(), strict=True)
    )
    return Layout(rows, pools, node_groups, fitting, admitting, group_of)


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


def _node_groups(sets: Sequence[tuple[Pool, frozenset[int]]], groups: Mapping[GroupKey, int]) -> NodeGroups:
    """Return the devices of the node groups, and the groups of each pool."""
    keys = list(groups)
    mixed = {  # groups, by resource, that a workload without a product may use beside others
        (pool.resource, place)
        for pool, admitted in sets
        if len({keys[each].product for each in admitted}) > 1
        for place in admitted
    }
    rows = [
        (NodeGroup(resource, key.product), place, float(devices * nodes), key.provisioned)
        for place, (key, nodes) in enumerate(groups.items())
        for resource, devices in key.devices
    ]
    none = np.zeros(len(rows))
    return NodeGroups(
        groups=tuple(group for group, *_ in rows),
        allocatable=np.array(
            [math.nan if (group.resource, place) in mixed else devices for group, place, devices, _ in rows]
        ),
        used_by_others=none,
        used=np.full(len(rows), math.nan),
        can_add=np.array([math.inf if provisioned else 0.0 for *_, provisioned in rows]),
        closed=none.astype(bool),
        admitted=np.array(
            [
                [group.resource == pool.resource and place in admitted for group, place, *_ in rows]
                for pool, admitted in sets
            ],
            dtype=bool,
        ).reshape(len(sets), len(rows)),
    )


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
