"""The effective request of a pod: devices, CPU and memory that the scheduler reserves for it.

Source: Kubernetes' `PodRequests` (component-helpers), and "Resource units in Kubernetes" for quantities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.api.pod_objects import Resources as Stated
from autoscaler.catalog.accelerators import ResourceKind, resource_kind
from autoscaler.config.quantities import Quantity, read_quantity

MAX_DEVICES = 1024  # of one container; no node has more
ALWAYS = "Always"  # restartPolicy of a native sidecar: an init container that keeps running
CPU, MEMORY = "cpu", "memory"  # cores, bytes

Requests = dict[str, float]  # by resource; NaN: an invalid number


class ClaimRef(NamedTuple):
    """A claim of a pod on devices (DRA)."""

    template: str  # ResourceClaimTemplate of claims that each pod has for itself; "": none
    shared: str  # ResourceClaim that several pods may use; "": none


def requested_devices(spec: PodSpec) -> Requests:
    """Return the devices of a pod that may be accelerators; NaN: an invalid number."""
    return _effective(spec, _devices)


def referenced_claims(spec: PodSpec) -> tuple[ClaimRef, ...]:
    """Return the claims of a pod. Which devices they ask for is stated elsewhere."""
    return tuple(
        ClaimRef(each.resource_claim_template_name or "", each.resource_claim_name or "")
        for each in spec.resource_claims or ()
    )


def requested_capacity(spec: PodSpec) -> tuple[float, float]:
    """Return the CPU cores and bytes of memory of a pod. An invalid number counts as 0."""
    found = _effective(spec, _capacity)
    if spec.resources is not None:  # of the pod as a whole, which then count instead of the sum of its containers
        found |= _capacity({**(spec.resources.limits or {}), **(spec.resources.requests or {})})
    return found.get(CPU, 0.0), found.get(MEMORY, 0.0)


def read_devices(stated: Quantity) -> float:
    """Parse the devices of one container; NaN: not a whole number that is possible."""
    count = read_quantity(stated)
    return count if count.is_integer() and 0 <= count <= MAX_DEVICES else math.nan


def _effective(spec: PodSpec, read: Callable[[Mapping[str, Quantity]], Requests]) -> Requests:
    """Return the request of a pod.

    Containers and native sidecars run together. Before them each init container runs beside the sidecars above it.
    """
    sidecars: Requests = {}
    start: Requests = {}
    for container in spec.init_containers or ():
        # What it does not name itself is at most what all sidecars request at the end, which counts below.
        for name, count in _of_container(container.resources, read).items():
            need = sidecars.get(name, 0.0) + count
            start[name] = _larger(start.get(name, 0.0), need)
            if container.restart_policy == ALWAYS:
                sidecars[name] = need
    together = _sum((sidecars, *(_of_container(each.resources, read) for each in spec.containers or ())))
    needs = {name: _larger(together.get(name, 0.0), start.get(name, 0.0)) for name in together | start}
    return _sum((needs, read(spec.overhead or {})))


def _of_container(resources: Stated | None, read: Callable[[Mapping[str, Quantity]], Requests]) -> Requests:
    """Return what a container requests. A limit without a request is a request."""
    return {} if resources is None else read({**(resources.limits or {}), **(resources.requests or {})})


def _devices(stated: Mapping[str, Quantity]) -> Requests:
    found = {
        name: read_devices(count) for name, count in stated.items() if resource_kind(name) is not ResourceKind.OTHER
    }
    return {name: count for name, count in found.items() if count != 0}


def _capacity(stated: Mapping[str, Quantity]) -> Requests:
    found = {name: read_quantity(stated[name]) for name in (CPU, MEMORY) if name in stated}
    return {name: amount for name, amount in found.items() if amount > 0}


def _sum(parts: Iterable[Requests]) -> Requests:
    total: Requests = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0.0) + count
    return total


def _larger(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)
