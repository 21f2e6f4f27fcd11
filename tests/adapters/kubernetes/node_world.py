"""Nodes in the real API server, which tests write as kubelets and device plugins do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.reflector import WatchTimes
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.stores import Scope
from autoscaler.config.settings import Mode
from autoscaler.core.model.fleet import Fleet
from tests.adapters.kubernetes.world import World
from tests.harness.kube_api import KubeApi

FAST = WatchTimes(lifetime_s=20, silence_s=10, backoff_s=0.05, backoff_cap_s=0.5, absent_s=1)
GPU = "nvidia.com/gpu"
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


class Nodes:
    """Nodes of one test. Each has a label of the test, so that others' nodes are in no pool of it."""

    def __init__(self, api: KubeApi, world: World) -> None:
        self._api = api
        self.mark = {"test": world.namespace}
        self._suffix = world.namespace

    async def add(
        self, name: str, devices: Mapping[str, int], labels: Mapping[str, str] | None = None, **spec: Any
    ) -> str:
        full = f"{name}-{self._suffix}"
        metadata = {"name": full, "labels": {**self.mark, **(labels or {})}}
        await self._api.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
        await self.offer(full, devices)
        return full

    async def offer(self, full: str, devices: Mapping[str, int], **status: Any) -> None:
        allocatable = {resource: str(count) for resource, count in devices.items()}
        await self._api.set_status("v1", "Node", None, full, {"allocatable": allocatable, **READY, **status})

    async def change(self, full: str, patch: Mapping[str, Any]) -> None:
        path = await self._api.path("v1", "Node", None, full)
        await self._api.request("PATCH", path, patch, content_type="application/merge-patch+json")

    async def remove(self, full: str) -> None:
        await self._api.delete("v1", "Node", None, full)


async def bind(api: KubeApi, world: World, name: str, node: str, resource: str, count: int, **metadata: Any) -> None:
    """Create a pod on a node that no workload of ours owns."""
    container = {"name": "c", "image": "i", "resources": {"limits": {resource: str(count)}}}
    spec = {"nodeName": node, "containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
    await api.apply(body, namespace=world.namespace)


def everywhere(kube: Kube, clock: SystemClock, **options: Any) -> KubeFleet:
    """Return a fleet that watches all namespaces, so that what others hold is known."""
    return KubeFleet(kube, clock, Scope(Mode.DIRECT, times=FAST, **options))


def row_of(world: World, view: Fleet, name: str) -> int:
    """Return the row of a workload of this test; the fleet has those of others as well."""
    refs = [(workload.ref.namespace, workload.ref.name) for workload in view.workloads]
    return refs.index((world.namespace, name))
