"""Objects of dynamic resource allocation, as drivers, users and the scheduler write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from autoscaler.adapters.kubernetes.api import device_objects, objects, pod_objects
from autoscaler.adapters.kubernetes.inventory.devices.store import DeviceStore
from autoscaler.adapters.kubernetes.inventory.nodes import NodeStore
from autoscaler.adapters.kubernetes.inventory.pools import Layout, lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import Usage, count_usage
from autoscaler.adapters.kubernetes.pods.holdings import Holder, Holdings
from autoscaler.adapters.kubernetes.pods.template import Facts, read_template
from tests.adapters.keda.world import ManualClock
from tests.adapters.kubernetes.inventory.world import node

DRIVER = "gpu.nvidia.com"
FULL, SLICE_1G, SLICE_3G = "gpu.nvidia.com/gpu", "gpu.nvidia.com/mig-1g.10gb", "gpu.nvidia.com/mig-3g.40gb"
OF_TYPE = "device.driver == '{0}' && device.attributes['{0}'].type == '{1}'"
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
NAMESPACE = "team"


def attribute(name: str, driver: str = DRIVER) -> str:
    return f"device.attributes['{driver}'].{name}"


def gpu(name: str, product: str = H100, memory: str = "81559Mi", **more: Any) -> dict[str, Any]:
    attributes = {"type": {"string": "gpu"}, "productName": {"string": product}, "uuid": {"string": f"GPU-{name}"}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def mig(name: str, profile: str, **more: Any) -> dict[str, Any]:
    attributes = {"type": {"string": "mig"}, "profile": {"string": profile}, "productName": {"string": H100}}
    return {"name": name, "attributes": attributes, **more}


def taking(gpu_name: str, *places: int) -> list[dict[str, Any]]:
    """Return what a device takes of a GPU with eight slices of memory."""
    return [{"counterSet": gpu_name, "counters": {f"memory-slice-{place}": {"value": "1"} for place in places}}]


def whole(gpu_name: str) -> dict[str, Any]:
    """Return the counters of a GPU that can be cut."""
    return {"name": gpu_name, "counters": {f"memory-slice-{place}": {"value": "1"} for place in range(8)}}


def cuttable(name: str) -> list[dict[str, Any]]:
    """Return a GPU that can be cut into seven slices of 1g.10gb, two of 3g.40gb, or some of each."""
    return [
        gpu(name, consumesCounters=taking(name, *range(8))),
        *(mig(f"{name}-1g-{place}", "1g.10gb", consumesCounters=taking(name, place)) for place in range(7)),
        *(
            mig(f"{name}-3g-{place}", "3g.40gb", consumesCounters=taking(name, *range(place, place + 4)))
            for place in (0, 4)
        ),
    ]


def slice_of(
    name: str,
    devices: Sequence[Mapping[str, Any]],
    node_name: str | None = None,
    driver: str = DRIVER,
    generation: int = 1,
    slices: int = 1,
    pool: str | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a ResourceSlice; by default the only one of the pool of a node with the name of the slice."""
    owner = {"name": pool or name, "generation": generation, "resourceSliceCount": slices}
    place = {} if "allNodes" in spec or "nodeSelector" in spec else {"nodeName": node_name or name}
    if spec.get("perDeviceNodeSelection"):
        place = {}
    return {
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": owner, **({"devices": list(devices)} if devices else {}), **place, **spec},
    }


def device_class(name: str, *expressions: str, **spec: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}


def request(device_class_name: str, *expressions: str, **more: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"deviceClassName": device_class_name, "selectors": selectors, **more}


def claim_template(name: str, *requests: Mapping[str, Any], is_flat: bool = False) -> dict[str, Any]:
    """Return a ResourceClaimTemplate. is_flat: requests have their fields beside their name, as in v1beta1."""
    stated = [
        {"name": f"r{place}", **(each if is_flat or "firstAvailable" in each else {"exactly": each})}
        for place, each in enumerate(requests)
    ]
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"spec": {"devices": {"requests": stated}}}}


def claim(
    name: str, devices: Sequence[tuple[str, str]], pods: Sequence[str] = (), driver: str = DRIVER, **metadata: Any
) -> dict[str, Any]:
    """Return an allocated ResourceClaim. devices: with their pools."""
    results = [{"request": "r0", "driver": driver, "pool": pool, "device": device} for pool, device in devices]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
    }
    return {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "status": status}


NVIDIA = (
    device_class(DRIVER, OF_TYPE.format(DRIVER, "gpu")),
    device_class("mig.nvidia.com", OF_TYPE.format(DRIVER, "mig")),
)


def pod_spec(*claims: str, limits: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod with claims from templates."""
    return {
        "containers": [{"name": "vllm", "resources": {"limits": dict(limits or {})}}],
        "resourceClaims": [{"name": each, "resourceClaimTemplateName": each} for each in claims],
        **spec,
    }


def facts_of(*claims: str, limits: Mapping[str, str] | None = None, **spec: Any) -> Facts:
    return read_template(msgspec.convert(pod_spec(*claims, limits=limits, **spec), pod_objects.PodSpec))


class Cluster:
    """A store of devices, nodes and pods, and what they add up to."""

    def __init__(self, nodes: Sequence[str] = (), classes: Sequence[Mapping[str, Any]] = NVIDIA) -> None:
        self.clock = ManualClock()
        self.store = DeviceStore(self.clock)
        self.nodes = NodeStore(self.clock, self.store.has_devices)
        self.holdings = Holdings()
        self.owners: dict[str, int] = {}  # target by the name of a pod
        for name in nodes:
            self.nodes.put(node(name, {}, allocatable={"cpu": "64"}))
        for each in classes:
            self.put(device_objects.DeviceClass, each)

    def put(self, kind: type[objects.Object], value: Mapping[str, Any]) -> None:
        stores = {
            device_objects.DeviceClass: self.store.classes,
            device_objects.ResourceSlice: self.store.slices,
            device_objects.ResourceClaimTemplate: self.store.templates,
            device_objects.ResourceClaim: self.store.claims,
        }
        stores[kind].put(msgspec.convert(value, kind))  # type: ignore[attr-defined]

    def slices(self, *values: Mapping[str, Any]) -> None:
        for each in values:
            self.put(device_objects.ResourceSlice, each)

    def template(self, name: str, *requests: Mapping[str, Any]) -> None:
        self.put(device_objects.ResourceClaimTemplate, claim_template(name, *requests))

    def claim(self, *args: Any, **more: Any) -> None:
        self.put(device_objects.ResourceClaim, claim(*args, **more))

    def pod(
        self, name: str, node_name: str, target: int, *claims: str, limits: Mapping[str, str] | None = None
    ) -> None:
        body = {
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": name},
            "spec": {"nodeName": node_name, **pod_spec(*claims, limits=limits)},
            "status": {"phase": "Running"},
        }
        self.owners[name] = target
        self.holdings.put((NAMESPACE, name), msgspec.convert(body, pod_objects.PodObject))

    def settle(self, *facts: Facts) -> list[Facts]:
        return self.store.settle([(NAMESPACE, each) for each in facts])

    def count(self, *facts: Facts) -> tuple[Layout, Usage]:
        settled = self.settle(*facts)
        layout = lay_out_pools(self.store.add_to(self.nodes.nodes), settled)

        def holder_of(key: tuple[str, str]) -> Holder:
            return Holder(self.owners.get(key[1], -1), -1)

        held = self.store.add_held(self.holdings.held(holder_of), holder_of, self.holdings.priority)
        return layout, count_usage(layout, held, np.arange(len(facts)))

    def pools(self, *facts: Facts) -> list[tuple[str, float, float]]:
        """Return by workload the name of its pool, its devices, and the replicas that fit."""
        layout, usage = self.count(*facts)
        gpus = usage.groups.pool_gpus.tolist()
        return [
            (layout.pools[row].resource, gpus[row], fits) if row >= 0 else ("", float("nan"), fits)
            for row, fits in zip(layout.rows, usage.fits.tolist(), strict=True)
        ]
