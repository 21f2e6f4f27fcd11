"""Drivers of dynamic resource allocation (DRA): which publish accelerators, and what their attributes say.

Sources: NVIDIA's `k8s-dra-driver-gpu` 25.12, the drivers of AMD, Intel and Google, the Kubernetes 1.36 documentation.
"""

from __future__ import annotations

import re

GROUP = "resource.k8s.io"
EXTENDED_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that the scheduler made for a pod whose extended resource a DeviceClass serves."""

# First part of the names of drivers whose devices are accelerators: gpu.nvidia.com, tpu.google.com.
ACCELERATOR_PARTS = frozenset({"gpu", "tpu", "npu", "xpu", "gcu", "dcu", "gaudi", "neuron", "accel", "accelerator"})
OTHER_DRIVERS = frozenset(
    {
        "compute-domain.nvidia.com",  # the network between the nodes of a job
        "dra.net",
        "dra.cpu",
        "dra.memory",
        "cpu.dra.k8s.io",
        "networking.k8s.io",
        "qat.intel.com",
        "sriovnetwork.k8snetworkplumbingwg.io",
    }
)
OTHER_PARTS = frozenset({"net", "nic", "rdma", "cpu", "memory", "sriov", "storage", "fpga"})

# Attributes of a device, without their domain. The first that a device has counts.
TYPE = "type"
PROFILES = ("profile", "partitionProfile")
PRODUCTS = ("productName", "model", "tpuGen", "gen")
MEMORY = "memory"  # a capacity, in bytes

IDENTIFYING = frozenset(
    {
        "uuid",
        "parentUUID",
        "serial",
        "serialNumber",
        "index",
        "parentIndex",
        "minor",
        "parentMinor",
        "cardIndex",
        "renderIndex",
        "pciAddress",
        "pciBusID",
        "pcieBusID",
        "pcieRoot",
        "parentPciAddress",
        "deviceID",  # AMD: of one device
        "pciAddr",
        "parentPciAddr",
        "uid",
        "parentUID",
        "placementStart",
        "placementSize",
    }
)
"""Attributes that differ between devices of one product. They are not kept, so like nodes have equal devices."""


IDENTIFYING_VALUE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-|[0-9a-f]{4}:[0-9a-f]{2}", re.IGNORECASE)
"""A UUID or a PCI address within the value of an attribute that is not known. It is not kept either."""


def is_accelerator_driver(driver: str) -> bool | None:
    """Return whether the devices of a driver are accelerators; None: unknown."""
    part = driver.partition(".")[0]
    if driver in OTHER_DRIVERS or part in OTHER_PARTS:
        return False
    return True if part in ACCELERATOR_PARTS else None


def resource_name(driver: str, kind: str, profile: str) -> str:
    """Return the name that devices have in the inventory: `gpu.nvidia.com/gpu`, `gpu.nvidia.com/mig-3g.40gb`.

    kind: the attribute `type`; "": the driver states none.
    """
    return f"{driver}/{kind or 'device'}" + (f"-{profile}" if profile else "")
