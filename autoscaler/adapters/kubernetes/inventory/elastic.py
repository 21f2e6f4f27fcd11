"""Autoscalers of nodes, and how many devices they may still add.

Sources: Karpenter's NodePool API (v1); the status of cluster-autoscaler, a ConfigMap whose text became YAML in 1.30;
how GKE, EKS and AKS name the groups that it enlarges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api import node_objects, objects
from autoscaler.adapters.kubernetes.inventory.nodes import Node
from autoscaler.adapters.kubernetes.pods.requests import CPU, MEMORY
from autoscaler.catalog.node_labels import KARPENTER_LABEL
from autoscaler.config.quantities import Quantity, read_quantity
from autoscaler.core.model.fleet import NodeGroups

STATUS_OBJECT = "kube-system", "cluster-autoscaler-status"
MAX_GROUPS = 1000  # of cluster-autoscaler's status
NODES = "nodes"  # the key of a NodePool's limit on their number

_ITEM = re.compile(r"^[^\S\n]*(?:-\s|(?=Name:\s))", re.MULTILINE)
_NAME = re.compile(r"\b[nN]ame:\s+[\"']?([^\s\"']{1,500})")
_MAX = re.compile(r"\bmaxSize[=:]\s*(\d{1,9})")
_GKE_SUFFIX = "-grp"
_AKS_LABELS = ("kubernetes.azure.com/agentpool", "agentpool")
_EKS_LABEL = "eks.amazonaws.com/nodegroup"


class _NodePool(NamedTuple):
    limits: Mapping[str, float]
    used: Mapping[str, float]  # by all nodes that were started, known or on their way


class NodePoolStore:
    """Karpenter's NodePools."""

    def __init__(self) -> None:
        self.version = 0
        self.pools: dict[str, _NodePool] = {}

    def put(self, seen: node_objects.NodePool, /) -> None:
        used = _quantities(seen.status.resources)
        if seen.status.nodes is not None:
            used[NODES] = float(seen.status.nodes)
        pool = _NodePool(_quantities(seen.spec.limits), used)
        if self.pools.get(seen.metadata.name) != pool:
            self.pools[seen.metadata.name] = pool
            self.version += 1

    def remove(self, namespace: str, name: str, /) -> None:
        if self.pools.pop(name, None) is not None:
            self.version += 1


class StatusStore:
    """The node groups of cluster-autoscaler, from the ConfigMap with its status."""

    def __init__(self) -> None:
        self.version = 0
        self.max_nodes: dict[str, int] = {}  # by node group

    def put(self, seen: objects.ConfigMap, /) -> None:
        if (seen.metadata.namespace, seen.metadata.name) == STATUS_OBJECT:
            self._set(dict(_read_status((seen.data or {}).get("status", ""))))

    def remove(self, namespace: str, name: str, /) -> None:
        if (namespace, name) == STATUS_OBJECT:
            self._set({})

    def _set(self, max_nodes: dict[str, int]) -> None:
        if self.max_nodes != max_nodes:
            self.max_nodes = max_nodes
            self.version += 1


class Elastic:
    """Devices that autoscalers may add to node pools.

    stated: the largest number of nodes with a label, "key=value", as the operator says. It precedes what is found.
    """

    def __init__(self, stated: Mapping[str, int] | None = None) -> None:
        self.stated = dict(stated or {})
        self.node_pools = NodePoolStore()
        self.status = StatusStore()

    @property
    def version(self) -> tuple[int, int]:
        return self.node_pools.version, self.status.version

    def can_add(self, label: str, members: Mapping[str, Node], resource: str) -> float:
        """Return the devices that may still come to a node pool; infinity: without limit; NaN: it is not known.

        label: of the node pool. members: its nodes with accelerators, by name. A node that is on its way, or does not
        offer its devices yet, is to come.
        """
        offering = {name: node for name, node in members.items() if node.devices_when_free(resource)}
        each = max((node.devices_when_free(resource) for node in offering.values()), default=0)
        if label in self.stated:
            return float(max(self.stated[label] - len(offering), 0) * each)
        key, _, value = label.partition("=")
        if key == KARPENTER_LABEL:
            pool = self.node_pools.pools.get(value)
            return math.inf if pool is None or not pool.limits else _left(pool, offering, resource)
        found = {
            group: most - sum(_is_of(group, name, node) for name, node in offering.items())
            for group, most in self.status.max_nodes.items()
            if any(_is_of(group, name, node) for name, node in offering.items())
        }
        return float(sum(max(nodes, 0) for nodes in found.values()) * each) if found else math.nan

    def describe(self, groups: NodeGroups) -> list[str]:
        """Return what autoscalers may add to the node pools, one line each."""
        lines = []
        for group, devices in zip(groups.groups, groups.can_add.tolist(), strict=True):
            if group.grows in self.stated:
                said = "as --node-group-max says"
            elif group.grows.startswith(KARPENTER_LABEL):
                said = "within the limits of its NodePool"
            else:
                said = "by the status of cluster-autoscaler"
            name = group.product or group.resource
            if 0 < devices < math.inf:
                lines.append(f"{name}: {group.grows} may get {devices:g} more GPUs, {said}")
            elif devices == math.inf:
                known = group.grows.partition("=")[2] in self.node_pools.pools
                why = "its NodePool has no limits" if known else "its NodePool cannot be read"
                lines.append(f"{name}: {group.grows} has no limit, because {why}")
        return list(dict.fromkeys(lines))


def _left(pool: _NodePool, offering: Mapping[str, Node], resource: str) -> float:
    """Return the devices that may still come within the limits of a NodePool."""
    known = float(sum(node.devices_when_free(resource) for node in offering.values()))
    started = max(pool.used.get(resource, 0.0), known)
    largest = max(offering.values(), key=lambda node: node.devices_when_free(resource))
    each = largest.devices_when_free(resource)
    of_node = {CPU: largest.cpu, MEMORY: largest.memory, NODES: 1.0, **largest.gpus}
    left = math.inf
    for name, limit in pool.limits.items():
        free = max(limit - (started if name == resource else pool.used.get(name, 0.0)), 0.0)
        if name == resource:
            left = min(left, free)
        elif 0 < of_node.get(name, 0.0) < math.inf:
            left = min(left, free // of_node[name] * each)
    return started - known + left


def _is_of(group: str, name: str, node: Node) -> bool:
    """Return whether a node belongs to a group of cluster-autoscaler, as clouds name them.

    GKE: the instance group "gke-CLUSTER-POOL-HASH-grp" has nodes "gke-CLUSTER-POOL-HASH-xxxx". AKS: the scale set
    "aks-POOL-NUMBER-vmss" has nodes "aks-POOL-NUMBER-vmss00000a". EKS: the Auto Scaling group is "eks-POOL-UUID".
    Elsewhere the group may have the name of the node pool.
    """
    group = group.rpartition("/")[2]
    if group.endswith(_GKE_SUFFIX):
        return name.rpartition("-")[0] == group.removesuffix(_GKE_SUFFIX)
    if _EKS_LABEL in node.labels:
        return re.fullmatch(rf"eks-{re.escape(node.labels[_EKS_LABEL])}-[0-9a-f-]{{36}}", group) is not None
    if any(node.labels.get(label) == group for label in _AKS_LABELS):
        return True
    return re.fullmatch(rf"{re.escape(group)}[0-9a-z]{{6}}", name) is not None


def _read_status(text: str) -> Iterator[tuple[str, int]]:
    """Read the names and largest sizes of node groups, from either form of the status."""
    for item in _ITEM.split(text)[1 : MAX_GROUPS + 1]:
        name, most = _NAME.search(item), _MAX.search(item)
        if name and most:
            yield name[1], int(most[1])


def _quantities(stated: Mapping[str, Quantity] | None) -> dict[str, float]:
    """Return the amounts by resource, without those that are invalid."""
    amounts = {name: read_quantity(amount) for name, amount in (stated or {}).items()}
    return {name: amount for name, amount in amounts.items() if amount >= 0}
