"""DeviceClasses, ResourceClaimTemplates and ResourceClaims: the devices that pods may request, and those held."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api import device_objects
from autoscaler.adapters.kubernetes.inventory.devices.slices import PoolKey
from autoscaler.adapters.kubernetes.pods.requests import MAX_DEVICES
from autoscaler.adapters.kubernetes.pods.status import Key
from autoscaler.catalog.accelerators import BY_CLASS
from autoscaler.catalog.dra import EXTENDED_CLAIM, is_accelerator_driver
from autoscaler.config.findings import shown

MAX_REQUESTS = 64  # of one claim, with their alternatives; the API server allows 32
MAX_SELECTORS = 64  # of one class or claim
MAX_CONSUMERS = 256
MAX_NAME = 253
ALL = "All"


class Selection(NamedTuple):
    """A choice of devices."""

    device_class: str
    selectors: tuple[str, ...]  # CEL expressions, which must all be true


class ClaimRequest(NamedTuple):
    """One request of a claim."""

    devices: int = 0
    either: tuple[Selection, ...] = ()  # alternatives
    problem: str = ""  # why its devices are not known


class KnownClass(NamedTuple):
    selectors: tuple[str, ...]
    extended: str  # extended resource that it serves; "": only the implicit one
    created_s: float


class ClassStore:
    """Receives DeviceClasses."""

    def __init__(self) -> None:
        self.version = 0
        self.classes: dict[str, KnownClass] = {}

    def put(self, seen: device_objects.DeviceClass, /) -> None:
        created = seen.metadata.creation_timestamp
        extended = seen.spec.extended_resource_name or ""
        found = KnownClass(
            _expressions(seen.spec.selectors),
            extended if len(extended) <= MAX_NAME else "",
            created.timestamp() if created is not None else 0.0,
        )
        if self.classes.get(seen.metadata.name) != found:
            self.classes[seen.metadata.name] = found
            self.version += 1

    def remove(self, namespace: str, name: str, /) -> None:
        self.version += self.classes.pop(name, None) is not None

    def clear(self) -> None:
        self.classes = {}
        self.version += 1

    def serving(self, resource: str) -> str:
        """Return the class that serves an extended resource, as the scheduler chooses it; "": none.

        It is the newest of those that state the name, then the first by name.
        """
        domain, _, name = resource.partition("/")
        if domain == BY_CLASS:
            return name if name in self.classes else ""
        found = [(-each.created_s, name) for name, each in self.classes.items() if each.extended == resource]
        return min(found)[1] if found else ""


class TemplateStore:
    """Receives ResourceClaimTemplates."""

    def __init__(self) -> None:
        self.version = 0
        self.requests: dict[Key, tuple[ClaimRequest, ...]] = {}

    def put(self, seen: device_objects.ResourceClaimTemplate, /) -> None:
        key = seen.metadata.namespace, seen.metadata.name
        found = _requests(seen.spec.spec)
        if self.requests.get(key) != found:
            self.requests[key] = found
            self.version += 1

    def remove(self, namespace: str, name: str, /) -> None:
        self.version += self.requests.pop((namespace, name), None) is not None

    def clear(self) -> None:
        self.requests = {}
        self.version += 1


class HeldDevice(NamedTuple):
    pool: PoolKey
    device: str


class Claim(NamedTuple):
    """A claim with devices."""

    devices: tuple[HeldDevice, ...]
    pods: tuple[Key, ...]  # that use it; () if none does at the moment
    is_extended: bool  # its pod counts by the extended resource that it requests


class ClaimStore:
    """Receives ResourceClaims. Only those with devices of accelerators count."""

    def __init__(self, on_change: Callable[[PoolKey], None]) -> None:
        """on_change: called with a pool when other devices of it are held than before."""
        self.version = 0
        self.claims: dict[Key, Claim] = {}
        self._on_change = on_change
        self._held: dict[PoolKey, dict[str, int]] = {}  # by device: number of claims

    def held(self, pool: PoolKey) -> frozenset[str]:
        """Return the names of the devices of a pool that claims hold."""
        return frozenset(self._held.get(pool, ()))

    def put(self, seen: device_objects.ResourceClaim, /) -> None:
        key = seen.metadata.namespace, seen.metadata.name
        allocation = seen.status.allocation
        results = (allocation.devices.results if allocation is not None else None) or ()
        devices = tuple(
            HeldDevice((each.driver, each.pool), each.device)
            for each in results[:MAX_REQUESTS]
            if is_accelerator_driver(each.driver) and not each.admin_access and not each.share_id
        )
        users = (seen.status.reserved_for or ())[:MAX_CONSUMERS]
        pods = tuple((key[0], each.name) for each in users if each.resource == "pods")
        is_extended = (seen.metadata.annotations or {}).get(EXTENDED_CLAIM) == "true"
        self._set(key, Claim(devices, pods, is_extended) if devices else None)

    def remove(self, namespace: str, name: str, /) -> None:
        self._set((namespace, name), None)

    def clear(self) -> None:
        for key in list(self.claims):
            self._set(key, None)

    def _set(self, key: Key, claim: Claim | None) -> None:
        before = self.claims.get(key)
        if before == claim:
            return
        self.version += 1
        if claim is not None:
            self.claims[key] = claim
        else:
            del self.claims[key]
        devices_before = before.devices if before is not None else ()
        devices = claim.devices if claim is not None else ()
        if devices_before == devices:
            return
        for pool, device in devices_before:
            users = self._held[pool]
            users[device] -= 1
            if not users[device]:
                del users[device]
            if not users:
                del self._held[pool]
        for pool, device in devices:
            users = self._held.setdefault(pool, {})
            users[device] = users.get(device, 0) + 1
        for pool in {each.pool for each in (*devices_before, *devices)}:
            self._on_change(pool)


def _requests(spec: device_objects.ClaimSpec) -> tuple[ClaimRequest, ...]:
    """Read the requests of a claim."""
    stated = spec.devices.requests or ()
    choices = [choice for each in stated for choice in each.first_available or (each.exactly or each,)]
    if len(choices) > MAX_REQUESTS:
        return (ClaimRequest(problem=f"it has more than {MAX_REQUESTS} requests and alternatives"),)
    if sum(len(each.selectors or ()) for each in choices) > MAX_SELECTORS:
        return (ClaimRequest(problem=f"it has more than {MAX_SELECTORS} selectors"),)
    return tuple(found for each in stated for found in [_request(each)] if found != ClaimRequest())


def _request(stated: device_objects.DeviceRequest) -> ClaimRequest:
    """Read a request. One with admin access holds no device, and is empty."""
    if stated.first_available:
        found = [_exact(each) for each in stated.first_available]
        problem = next((each.problem for each in found if each.problem), "")
        if len({each.devices for each in found}) > 1:
            problem = problem or "its alternatives have different numbers of devices"
        return ClaimRequest(found[0].devices, tuple(either for each in found for either in each.either), problem)
    return _exact(stated.exactly or stated)


def _exact(stated: device_objects.ExactRequest) -> ClaimRequest:
    if stated.admin_access:
        return ClaimRequest()
    choice = Selection(stated.device_class_name, _expressions(stated.selectors))
    problem = ""
    if stated.allocation_mode == ALL:
        problem = "it asks for all devices of a node"
    elif stated.capacity:
        problem = "it asks for a share of a device"
    count = 1 if stated.count is None else stated.count
    if not 0 < count <= MAX_DEVICES:
        problem = problem or f"it asks for {shown(count)} devices; allowed: 1 to {MAX_DEVICES}"
    return ClaimRequest(count, (choice,), problem)


def _expressions(stated: list[device_objects.DeviceSelector] | None) -> tuple[str, ...]:
    """Return the expressions of selectors. One of a newer kind, or beyond the limit, is empty and so unknown."""
    found = [each.cel.expression if each.cel is not None else "" for each in (stated or ())[:MAX_SELECTORS]]
    return (*found, *([""] if len(stated or ()) > MAX_SELECTORS else []))
