"""Nodes, templates and pods of the inventory's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from autoscaler.adapters.kubernetes.api.node_objects import NodeObject
from autoscaler.adapters.kubernetes.api.pod_objects import PodObject
from autoscaler.adapters.kubernetes.inventory.elastic import Elastic
from autoscaler.adapters.kubernetes.inventory.nodes import NodeStore
from autoscaler.adapters.kubernetes.inventory.pools import Layout, lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import count_usage
from autoscaler.adapters.kubernetes.pods.holdings import HeldRows, Holder, Holdings
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.pods.template import NO_FACTS, Facts
from autoscaler.core.model.fleet import NodeGroups, Pool
from tests.adapters.keda.world import ManualClock

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
PRODUCT, GKE = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"
OURS, THEIRS = "ours-", "theirs-"


class Seen(NamedTuple):
    """A layout with what pods hold."""

    layout: Layout
    groups: NodeGroups
    rows: list[int]
    pools: tuple[Pool, ...]
    gpus: list[float]  # by pool
    fits: list[float]
    room: list[float]

    def by_group(self, column: str) -> dict[str, float]:
        """Return a column of the node groups by the words for their nodes, or their product."""
        values = getattr(self.groups, column).tolist()
        return {group.nodes or group.product: each for group, each in zip(self.groups.groups, values, strict=True)}


def node(
    name: str,
    labels: Mapping[str, str],
    taints: Sequence[Mapping[str, str]] = (),
    spec: Mapping[str, Any] | None = None,
    **status: Any,
) -> NodeObject:
    seen = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints, **(spec or {})}, "status": status}
    return msgspec.convert(seen, NodeObject)


def nodes(*given: tuple[Mapping[str, str], Mapping[str, str]], clock: ManualClock | None = None) -> NodeStore:
    store = NodeStore(clock or ManualClock())
    for index, (labels, allocatable) in enumerate(given):
        store.put(node(f"n{index}", labels, allocatable=allocatable))
    return store


def pod(name: str, node_name: str, limits: Mapping[str, str], **spec: Any) -> PodObject:
    """Return a pod. Its name tells whose it is: `OURS` with the row of its workload, or `THEIRS`."""
    container = {"name": "vllm", "resources": {"limits": limits}}
    metadata = {"name": name, "namespace": "x", "uid": name}
    body = {"nodeName": node_name, "containers": [container], **spec}
    return msgspec.convert({"metadata": metadata, "spec": body, "status": {"phase": "Running"}}, PodObject)


def hold(*pods: PodObject) -> HeldRows:
    holdings = Holdings()
    for each in pods:
        holdings.put((each.metadata.namespace, each.metadata.name), each)
    return holdings.held(_holder_of)


def _holder_of(key: tuple[str, str]) -> Holder:
    name, _, number = key[1].partition(".")
    replica = int(number) if number.isdigit() else -1
    return Holder(int(name.removeprefix(OURS)) if name.startswith(OURS) else 99, replica)


def lay_out(
    store: NodeStore,
    workloads: Sequence[Facts],
    pods: Sequence[PodObject] = (),
    elastic: Elastic | None = None,
) -> Seen:
    layout = lay_out_pools(store.nodes, workloads, elastic)
    usage = count_usage(layout, hold(*pods), np.arange(len(workloads)))
    gpus = usage.groups.pool_gpus.tolist()
    return Seen(layout, usage.groups, layout.rows, layout.pools, gpus, usage.fits.tolist(), usage.room.tolist())


def facts(resource: str = GPU, product: tuple[str, str] | None = None) -> Facts:
    return NO_FACTS._replace(resource=resource, product=product)


def placed_facts(gpus: float = 1.0, resource: str = GPU, **needs: Any) -> Facts:
    return facts(resource)._replace(gpus=gpus, needs=Needs(resource, gpus, gpus, gpus, **needs))
