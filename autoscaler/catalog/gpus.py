"""Names of the metrics and labels of DCGM exporter, for the scraper and the Prometheus adapter.

Sources: dcgm-exporter 4.5.3-4.8.2 (default counters, label rendering), DCGM 4.6.0 `dcgm_fields.h` for the new names.
The operator's counter file sets the exported names, so old and new names are both read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType

from autoscaler.catalog.series import Aggregation, Readings, Series, first

# DCGM has blank values for what it could not read, and exporters pass them on as numbers: 2^47 for ratios, 2^31 - 16
# and 2^63 - 16 for whole numbers, each with a few above it (`DCGM_FP64_BLANK`, `DCGM_INT32_BLANK`, `DCGM_INT64_BLANK`).
# So values that no GPU can have are unknown.
MAX_RATIO = 2.0  # SM_ACTIVE of a MIG instance can reach 1.3; values above 1 count as 1
MAX_PERCENT = 100.0
MAX_LINK_BYTES_PER_S = 1e13  # NVLink of 2026 carries up to 0.9e12 a direction
MAX_MIB = 1 << 21  # framebuffer; GPUs of 2026 have up to 0.3 million

# Framebuffer in MiB; usage is used / (used + free). DEV_FB_USED_* is used only if these are absent.
FB_USED = "DCGM_FI_DEV_FB_USED"
FB_FREE = "DCGM_FI_DEV_FB_FREE"
FB_RATIO: Readings = first("DCGM_FI_DEV_FB_USED_RATIO", "DCGM_FI_DEV_FB_USED_PERCENT", aggregation=Aggregation.MAX)

# Ratios 0..1 per device.
ACTIVITY: Mapping[str, Readings] = MappingProxyType(
    {
        "tensor_active": first(
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", aggregation=Aggregation.MAX
        ),
        # SM_ACTIVE is not exported by default. GR_ENGINE_ACTIVE is never below it, so a busy GPU cannot look idle.
        "sm_active": first(
            "DCGM_FI_PROF_SM_ACTIVE",
            "DCGM_FI_PROF_SM_UTIL_RATIO",
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
            aggregation=Aggregation.MAX,
        ),
        "dram_active": first("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", aggregation=Aggregation.MAX),
    }
)

# Whole-GPU readings: on a MIG instance they are missing, 0, or those of all instances, so they are unknown there.
# "Some kernel ran": one small kernel makes it 100 %, so only zero or more counts, where profiling counters are off. The
# new name is a percentage in DCGM 4.6 and a ratio in later versions.
GPU_UTIL: Readings = first("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", aggregation=Aggregation.MAX)
# Bytes per second, averaged over the sample, of each direction; the larger counts. DCGM 4.6 renames none of them.
LINKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "pcie_bytes_per_s": ("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"),
        "nvlink_bytes_per_s": ("DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"),
    }
)
COLUMNS = (*ACTIVITY, "gpu_util", *LINKS)
"""Columns of which sources keep the largest value over their window."""

# Labels that identify a device: with MIG all instances of a GPU have its UUID. Two exporters on one node may name the
# host differently, so host and index count only without a UUID.
SLICE_LABELS: tuple[str, ...] = ("GPU_I_ID", "GPU_I_PROFILE", "vgpu")
MIG_LABELS: tuple[str, ...] = ("GPU_I_ID", "GPU_I_PROFILE", "dra_mig_profile")  # any of them: a MIG instance
UUID_LABELS: tuple[str, ...] = ("UUID", "uuid")  # the second with --use-old-namespace
PLACE_LABELS: tuple[str, ...] = ("Hostname", "hostname", "gpu")


def metric_names() -> tuple[str, ...]:
    """Return the name of every metric of the table."""
    rows: tuple[Series, ...] = (*FB_RATIO, *(row for readings in ACTIVITY.values() for row in readings), *GPU_UTIL)
    return (FB_USED, FB_FREE, *(row.name for row in rows), *chain.from_iterable(LINKS.values()))


def max_value(name: str) -> float:
    """Return the largest possible value of a metric; the smallest is 0."""
    if name in (FB_USED, FB_FREE):
        return MAX_MIB
    if any(name in directions for directions in LINKS.values()):
        return MAX_LINK_BYTES_PER_S
    return MAX_PERCENT if any(name == row.name for row in GPU_UTIL) else MAX_RATIO


def device_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the labels that identify the device, or MIG instance, of a series."""
    uuid = next((labels[label] for label in UUID_LABELS if labels.get(label)), "")
    place = () if uuid else tuple(labels.get(label, "") for label in PLACE_LABELS)
    return (uuid, *place, *(labels.get(label, "") for label in SLICE_LABELS))
