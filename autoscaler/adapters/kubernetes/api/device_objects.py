"""The fields of devices and claims (dynamic resource allocation) that are read, as types for the JSON decoder."""

from __future__ import annotations

from typing import Any

import msgspec

from autoscaler.adapters.kubernetes.api.node_objects import Taint
from autoscaler.adapters.kubernetes.api.objects import AnnotatedMetadata, Fields, Object
from autoscaler.adapters.kubernetes.api.pod_objects import NodeSelector


class CelSelector(Fields, frozen=True):
    expression: str = ""


class DeviceSelector(Fields, frozen=True):
    cel: CelSelector | None = None


class ExactRequest(Fields, frozen=True):
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    capacity: Any = None


class DeviceRequest(ExactRequest, frozen=True):
    """A request for devices. In v1beta1 it has the fields of `exactly` itself."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[ExactRequest] | None = None


class DeviceRequests(Fields, frozen=True):
    requests: list[DeviceRequest] | None = None


class ClaimSpec(Fields, frozen=True):
    devices: DeviceRequests = DeviceRequests()


class ClaimTemplateSpec(Fields, frozen=True):
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(Object, frozen=True):
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class AllocatedDevice(Fields, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")


class AllocatedDevices(Fields, frozen=True):
    results: list[AllocatedDevice] | None = None


class Allocation(Fields, frozen=True):
    devices: AllocatedDevices = AllocatedDevices()


class ClaimConsumer(Fields, frozen=True):
    resource: str = ""
    name: str = ""


class ClaimStatus(Fields, frozen=True):
    allocation: Allocation | None = None
    reserved_for: list[ClaimConsumer] | None = None


class ResourceClaim(Object, frozen=True):
    metadata: AnnotatedMetadata = AnnotatedMetadata()
    status: ClaimStatus = ClaimStatus()


class DeviceClassSpec(Fields, frozen=True):
    selectors: list[DeviceSelector] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Object, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceAttribute(Fields, frozen=True):
    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None


class DeviceQuantity(Fields, frozen=True):
    """The amount of a capacity or of a counter."""

    value: str | int | float = 0


class CounterSet(Fields, frozen=True):
    """Counters that devices share, or what a device takes of them."""

    name: str = ""
    counter_set: str = ""
    counters: dict[str, DeviceQuantity] | None = None


class SeenDevice(Fields, frozen=True):
    """A device. In v1beta1 all fields but the name are in `basic`."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceQuantity] | None = None
    consumes_counters: list[CounterSet] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: list[Taint] | None = None
    allow_multiple_allocations: bool | None = None
    basic: SeenDevice | None = None


class SlicePool(Fields, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Fields, frozen=True):
    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    devices: list[SeenDevice] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSlice(Object, frozen=True):
    spec: SliceSpec = SliceSpec()
