"""What DCGM exporter calls its metrics and labels, read by the scraper and the Prometheus adapter.

Sources: dcgm-exporter 4.5.3-4.8.2 (default counters, label rendering), DCGM 4.6.0 `dcgm_fields.h` for the new names.
The exported name is whatever the operator's counter file says, so old and new names are both read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autoscaler.catalog.series import Fold, Readings, Series, first

# DCGM has marks for what it could not read, and exporters pass them on as numbers: 2^47 for ratios, 2^31 - 16 and
# 2^63 - 16 for whole numbers, each with a few above it (`DCGM_FP64_BLANK`, `DCGM_INT32_BLANK`, `DCGM_INT64_BLANK`).
# So what no GPU can show is unknown.
MOST_RATIO = 2.0  # SM_ACTIVE of a MIG instance has been seen at 1.3; what is above 1 counts as 1
MOST_MIB = 1 << 21  # framebuffer; GPUs of 2026 have up to 0.3 million

# Framebuffer in MiB; usage is used / (used + free). A ratio is taken from DEV_FB_USED_* only where these are absent.
FB_USED = "DCGM_FI_DEV_FB_USED"
FB_FREE = "DCGM_FI_DEV_FB_FREE"
FB_RATIO: Readings = first("DCGM_FI_DEV_FB_USED_RATIO", "DCGM_FI_DEV_FB_USED_PERCENT", fold=Fold.MAX)

# Ratios 0..1 per device. GPU_UTIL is not here: it does not exist under MIG, and one tiny kernel makes it 100%.
ACTIVITY: Mapping[str, Readings] = MappingProxyType(
    {
        "tensor_active": first("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", fold=Fold.MAX),
        # SM_ACTIVE is not exported by default. GR_ENGINE_ACTIVE is never below it, so it cannot feign idleness.
        "sm_active": first(
            "DCGM_FI_PROF_SM_ACTIVE",
            "DCGM_FI_PROF_SM_UTIL_RATIO",
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
            fold=Fold.MAX,
        ),
        "dram_active": first("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", fold=Fold.MAX),
    }
)

# Together they tell one device from another: under MIG all instances of a GPU have its UUID. Two exporters on one node
# may call the host differently, so host and index count only where there is no UUID.
SLICE_LABELS: tuple[str, ...] = ("GPU_I_ID", "GPU_I_PROFILE", "vgpu")
UUID_LABELS: tuple[str, ...] = ("UUID", "uuid")  # the second with --use-old-namespace
PLACE_LABELS: tuple[str, ...] = ("Hostname", "hostname", "gpu")


def metric_names() -> tuple[str, ...]:
    """Return the name of every metric of the table."""
    rows: tuple[Series, ...] = (*FB_RATIO, *(row for readings in ACTIVITY.values() for row in readings))
    return (FB_USED, FB_FREE, *(row.name for row in rows))


def most(name: str) -> float:
    """Return the largest believable value of a metric of the table; the least is 0."""
    return MOST_MIB if name in (FB_USED, FB_FREE) else MOST_RATIO


def device_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return what identifies the device, or the MIG instance, that a series is about."""
    uuid = next((labels[label] for label in UUID_LABELS if labels.get(label)), "")
    place = () if uuid else tuple(labels.get(label, "") for label in PLACE_LABELS)
    return (uuid, *place, *(labels.get(label, "") for label in SLICE_LABELS))
