"""Accelerators that clusters offer: their memory, list price, names, and the parts that they are cut into.

Sources: product names of GPU feature discovery, AMD's node labeller, `cloud.google.com/gke-accelerator` and
`gke-tpu-accelerator`, `instance-gpu-name` of EKS and Karpenter, instance types of AWS, Azure, GCP, OCI and IBM;
NVIDIA's MIG user guide for profiles; AMD's guide to partitions of the MI300; price tables of Karpenter, and those that
`LISTED_*` name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

MAX_NAME = 256  # characters of a name that are read
LISTED = "on demand, AWS us-east-1, 2026-07-20"
LISTED_AZURE = "on demand, Azure eastus, 2026-06-18"
LISTED_OCI = "on demand, OCI, SkyPilot's catalog v8 as of 2026-11-28"
LISTED_GCP = "on demand, GCP us-central1, SkyPilot's catalog v8 as of 2026-11-28"
LISTED_LAMBDA = "on demand, Lambda, 2026-09-20"
LISTED_DIGITAL_OCEAN = "on demand, DigitalOcean, 2026-10-08"
LISTED_DENVR = "on demand, Denvr, SkyPilot's catalog v8 as of 2026-11-28"


class Product(NamedTuple):
    """One product, or a name that several products share."""

    name: str  # ours
    names: str  # regular expression for its names, in lower case and with hyphens
    memory_gb: float  # of the smallest product with this name
    price: float = math.nan  # list price, USD per GPU-hour; NaN: unknown
    instances: str = ""  # regular expression for instance types, in lower case
    most_gb: float = 0.0  # of the largest product with this name; 0: the same
    listed: str = LISTED  # where and when the price was listed

    @property
    def largest_gb(self) -> float:
        return max(self.memory_gb, self.most_gb)


# Instance types of AWS have a price over their GPUs. GB200 is Azure's.
DEVICES: tuple[Product, ...] = (
    # The first match counts, so a more specific name comes first.
    Product(
        "GB300",
        r"gb300",
        278,
        18.00,
        r"standard_nd128isr_([^_]*_)?gb300.*|p6e-gb300.*|a4x-max.*|bm\.gpu\.gb300.*",
        288,
        LISTED_OCI,
    ),
    Product(
        "GB200",
        r"gb200",
        186,
        27.04,
        r"standard_nd128isr_([^_]*_)?gb200.*|p6e-gb200.*|a4x-highgpu-.*",
        189,
        LISTED_AZURE,
    ),
    Product("GH200-144GB", r"gh200-144g", 144),
    Product("GH200", r"gh200", 96, 2.29, most_gb=144, listed=LISTED_LAMBDA),
    Product("B300", r"b300", 269, 17.80, r"p6-b300\..*", 288),
    Product("B200", r"b200", 180, 14.24, r"p6-b200\..*|a4-highgpu-.*", 186),
    Product("H200", r"h200", 141, 7.91, r"p5en?\..*|standard_nd96isr_h200.*|a3-ultragpu-.*"),
    Product("H100-NVL", r"h100-nvl", 94, 6.88, r"standard_nc\d+adi?s_h100_v5"),
    Product(
        "H100-80GB",
        r"h100-(80gb|pcie|sxm5?|mega-80gb)",
        80,
        6.88,
        r"p5\..*|standard_nd96isr_h100_v5|a3-(high|mega|edge)gpu-.*",
    ),
    Product("H100", r"h100", 80, 6.88, most_gb=94),
    Product("H20", r"h20", 96, most_gb=141),
    Product(
        "A100-80GB",
        r"a100-(.*-)?80gb",
        80,
        3.43,
        r"p4de\..*|standard_nc\d+ads_a100_v4|standard_nd96amsr_a100_v4|a2-ultragpu-.*",
    ),
    Product(
        "A100-40GB",
        r"tesla-a100|a100-(.*-)?40gb",
        40,
        2.74,
        r"p4d\..*|standard_nd96asr_v4|a2-(high|mega)gpu-.*",
    ),
    Product("A100", r"a100", 40, 2.74, most_gb=80),
    Product("RTX-PRO-6000", r"rtx-pro-6000", 96, 3.36, r"g7e\..*|g4-standard-.*"),
    Product("RTX-PRO-5000", r"rtx-pro-5000", 48, most_gb=72),
    Product("RTX-PRO-4500", r"rtx-pro-4500", 32),
    Product("L40S", r"l40s", 48, 1.86, r"g6e\..*"),
    Product("L40", r"l40", 48),
    Product("L4", r"l4", 24, 0.80, r"g6\..*|g2-standard-.*"),
    Product("A30", r"a30", 24),
    Product("A10G", r"a10g", 24, 1.01, r"g5\..*"),
    Product("A10", r"a10", 24, 1.01, r"standard_nv(36|72)adm?s_a10_v5"),
    Product("V100-32GB", r"v100-(.*-)?32gb", 32, 3.06, r"p3dn\..*|standard_nd40rs_v2"),
    Product("V100-16GB", r"tesla-v100|v100-(.*-)?16gb", 16, 3.06, r"p3\..*|standard_nc(6|12|24)r?s_v3"),
    Product("V100", r"v100", 16, 3.06, most_gb=32),
    Product("T4", r"t4", 16, 0.53, r"g4dn\..*|standard_nc\d+as_t4_v3"),
    Product("RTX-6000-Ada", r"rtx-6000-ada", 48, 1.57, listed=LISTED_DIGITAL_OCEAN),
    Product("RTX-A6000", r"rtx-a6000|a6000", 48, 1.09, listed=LISTED_LAMBDA),
    Product("MI355X", r"mi355x?", 288, 8.60, r"bm\.gpu\.mi355x.*", listed=LISTED_OCI),
    Product("MI350X", r"mi350x?", 288),
    Product("MI325X", r"mi325x?", 256, 3.80, listed=LISTED_DIGITAL_OCEAN),
    Product("MI300A", r"mi300a", 128),
    Product("MI300X", r"mi300x?", 192, 6.00, r"bm\.gpu\.mi300x.*|standard_nd96isr_mi300x_v5", listed=LISTED_OCI),
    Product("MI250", r"mi250x?", 64, most_gb=128),  # each half is a device of the plugin
    Product("Gaudi-3", r"gaudi-?3|hl-3\d\d[a-z]?", 128, instances=r"gx3d-.*gaudi3"),
    Product("Gaudi-2", r"gaudi-?2|hl-225[a-z]?", 96, 1.10, listed=LISTED_DENVR),
    Product("TPU-7x", r"tpu-?v?7x", 192, instances=r"tpu7x-.*"),
    Product("TPU-v6e", r"tpu-v6e", 32, 2.70, r"ct6e-.*", listed=LISTED_GCP),
    Product("TPU-v5p", r"tpu-v5p", 95, 4.20, r"ct5p-.*", listed=LISTED_GCP),
    Product("TPU-v5e", r"tpu-v5-?(lite|e)|tpu-v5litepod", 16, 1.20, r"ct5lp?-.*", listed=LISTED_GCP),
    Product("TPU-v4", r"tpu-v4", 32, instances=r"ct4p-.*"),
)


class MigProfile(NamedTuple):
    """A slice of a GPU."""

    memory: float  # fraction of the memory
    compute: float  # fraction of the compute slices
    memory_gb: float


# Memory in GB of 1g, 1g with double memory, 2g, 3g, 4g, 7g; 0: there is none. Memory is cut into eighths, compute into
# sevenths, but A30 and RTX PRO into quarters.
_EIGHTHS = (("1g", 1, 1), ("1g", 2, 1), ("2g", 2, 2), ("3g", 4, 3), ("4g", 4, 4), ("7g", 8, 7))
_SEVENTHS: Mapping[str, tuple[tuple[int, ...], ...]] = MappingProxyType(
    {
        "A100-40GB": ((5, 10, 10, 20, 20, 40),),
        "A100-80GB": ((10, 20, 20, 40, 40, 80),),
        "A100": ((5, 10, 10, 20, 20, 40), (10, 20, 20, 40, 40, 80)),
        "H100-80GB": ((10, 20, 20, 40, 40, 80),),
        "H100-NVL": ((12, 24, 24, 47, 47, 94),),
        "H100": ((10, 20, 20, 40, 40, 80), (12, 24, 24, 47, 47, 94)),
        "H20": ((12, 24, 24, 48, 48, 96), (18, 35, 35, 71, 71, 141)),
        "GH200": ((12, 24, 24, 48, 48, 96), (18, 36, 36, 72, 72, 144)),
        "GH200-144GB": ((18, 36, 36, 72, 72, 144),),
        "H200": ((18, 35, 35, 71, 71, 141),),
        "B200": ((23, 45, 45, 90, 90, 180),),
        "GB200": ((23, 47, 47, 93, 93, 186), (23, 47, 47, 95, 95, 189)),
        "B300": ((34, 67, 67, 135, 135, 269),),
        "GB300": ((35, 70, 70, 139, 139, 278),),
    }
)
_QUARTERS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "A30": (6, 12, 24),
        "RTX-PRO-6000": (24, 48, 96),
        "RTX-PRO-5000": (12, 24, 48),
    }
)
# "+me" is written ".me" in a resource's name, and "-me" is a profile too.
_PROFILE = re.compile(
    r"(?:^|mig[-_]|\D)(?P<size>\dg)[._](?P<memory>\d{1,4})gb(?:[.+_-](?:me|gfx|all))*$", re.IGNORECASE
)
_SAYS_MIG = re.compile(r"(^|[^0-9a-z])mig([^0-9a-z]|$)", re.IGNORECASE)
_VENDOR = re.compile(r"^((nvidia|amd|instinct|intel|habana)-)+")
_PARTITION = re.compile(r"amd[./_]com[/_](?P<mode>[a-z]px)_nps\d")
_PARTITIONS = MappingProxyType({"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8})
"""Partitions of an MI300 in each compute mode. An MI300A has six in CPX, so a partition of it counts as smaller."""
_VGPU = re.compile(r"-(?P<gb>\d{1,3})[abcq]\Z", re.IGNORECASE)  # L40S-24C: a virtual GPU of 24 GB


@lru_cache(maxsize=1024)
def find_device(name: str) -> Product | None:
    """Return the product with a name of GPU feature discovery, a cloud or Karpenter, or of an instance type."""
    plain = _plain(name[:MAX_NAME])
    for device in DEVICES:
        if plain == device.name.lower() or re.match(rf"(?:tesla-)?(?:{device.names})(?:-|\Z)", plain):
            return device
    return find_instance(name)


@lru_cache(maxsize=1024)
def find_instance(kind: str) -> Product | None:
    """Return the product that an instance type of a cloud has."""
    written = kind[:MAX_NAME].strip().lower()
    return next((each for each in DEVICES if each.instances and re.fullmatch(each.instances, written)), None)


_NAMED_COUNT = re.compile(r"a[23]-[a-z]{4,5}gpu-(\d{1,2})g")
_COUNTS = (
    (
        re.compile(r"(g4dn|g5|g6|g6e)\.([248]?|16)xlarge|p[35]\.[24]xlarge|gr6\.[48]xlarge|g2-standard-(4|8|12|16|32)"),
        1,
    ),
    (re.compile(r"g2-standard-24"), 2),
    (re.compile(r"(g4dn|g5|g6|g6e)\.(12|24)xlarge|p3\.8xlarge|g2-standard-48"), 4),
    (
        re.compile(
            r"(g5|g6|g6e)\.48xlarge|g4dn\.metal|p3\.16xlarge|p3dn\.24xlarge|p(4de?|5e?n?|6-b[23]00)\.(24|48)xlarge"
        ),
        8,
    ),
    (re.compile(r"g2-standard-96"), 8),
)
"""Instance types, and how many devices they have. Source: the clouds' lists of accelerated instances."""


def instance_devices(kind: str) -> float:
    """Return how many devices an instance type has; infinity: unknown."""
    written = kind[:MAX_NAME].strip().lower()
    if in_name := _NAMED_COUNT.match(written):
        return float(in_name[1])
    return next((float(count) for pattern, count in _COUNTS if pattern.fullmatch(written)), math.inf)


def is_mig(resource: str, product: str) -> bool:
    """Return whether a device is a slice, by its resource (strategy mixed) or its product (strategy single)."""
    return bool(_SAYS_MIG.search(resource[:MAX_NAME]) or _SAYS_MIG.search(product[:MAX_NAME]))


def mig_profile(device: Product | None, resource: str, product: str) -> MigProfile | None:
    """Return the profile of a slice; None: unknown. `is_mig` is true of the device.

    A product with several sizes of memory has the profiles of all of them; a doubtful one counts as its larger share.
    """
    found = _PROFILE.search(_unshared(resource)) or _PROFILE.search(_unshared(product))
    if found is None or device is None:
        return None
    size, memory_gb = found["size"].lower(), int(found["memory"])
    profiles = [each for each in _profiles(device.name) if each[:2] == (size, memory_gb)]
    return max((each[2] for each in profiles), default=None)


def mig_profiles(device: Product) -> tuple[tuple[str, MigProfile], ...]:
    """Return all slices of a product by name, the smallest first, as `1g.10gb`; (): it is not cut.

    Of a name with several sizes of memory those of the smallest are returned.
    """
    found = {
        size + f"{gb}": (f"{size}.{gb}gb", profile)
        for size, gb, profile in reversed(_profiles(device.name))
        if round(gb / profile.memory) <= 1.1 * device.memory_gb
    }
    return tuple(sorted(found.values(), key=lambda each: (each[1].memory, each[1].compute)))


def mig_parts(device: Product) -> int:
    """Return the parts into which MIG cuts the memory of a GPU; 0: it is not cut, or into which is not known."""
    if device.name in _SEVENTHS:
        return 8
    return 4 if device.name in _QUARTERS and device.name != "RTX-PRO-5000" else 0  # that one has two instances at most


def device_share(resource: str, product: str) -> float:
    """Return the share of a whole device that one of a resource is, 0..1; NaN: its size is not known.

    A MIG slice is its larger share, of memory or of compute: 3g.40gb of an 80 GB card is half of it.
    """
    device = find_device(product)
    if is_mig(resource, product):
        profile = mig_profile(device, resource, product)
        return max(profile.memory, profile.compute) if profile is not None else math.nan
    if found := _PARTITION.fullmatch(resource[:MAX_NAME]):
        return 1 / _PARTITIONS.get(found["mode"], math.nan)
    virtual = _VGPU.search(_unshared(product)) if device is not None and resource.startswith("nvidia") else None
    return min(float(virtual["gb"]) / device.memory_gb, 1.0) if device is not None and virtual is not None else 1.0


@lru_cache(maxsize=64)
def _profiles(name: str) -> tuple[tuple[str, int, MigProfile], ...]:
    rows = [
        (size, gb, MigProfile(memory / 8, compute / 7, gb))
        for sizes in _SEVENTHS.get(name, ())
        for gb, (size, memory, compute) in zip(sizes, _EIGHTHS, strict=True)
    ]
    if name in _QUARTERS:
        rows += [
            (f"{slices}g", gb, MigProfile(slices / 4, slices / 4, gb))
            for gb, slices in zip(_QUARTERS[name], (1, 2, 4), strict=True)
        ]
    return tuple(rows)


def _unshared(name: str) -> str:
    text = name[:MAX_NAME].strip()
    while text[-7:].lower() in (".shared", "_shared", "-shared"):
        text = text[:-7]
    return text


def _plain(name: str) -> str:
    """Return a name in lower case, with hyphens, without vendor, and without what sharing and MIG add to it."""
    text = re.sub(r"[\s_]+", "-", name.strip().lower())
    return _unshared(_VENDOR.sub("", text).partition("-mig-")[0])


def device_memory_gb(resource: str, product: str) -> tuple[float, float]:
    """Return the least and the most GB of a device, as its name states them; 0 and infinity: unknown."""
    if is_mig(resource, product):
        found = _PROFILE.search(_unshared(resource)) or _PROFILE.search(_unshared(product))
        return (float(found["memory"]), float(found["memory"])) if found else (0.0, math.inf)
    device = find_device(product)
    if device is None:
        return 0.0, math.inf
    # Partitions of an AMD device may see all of its memory.
    return device.memory_gb * device_share(resource, product), device.largest_gb


def markdown() -> str:
    """Return the table of the page about prices."""
    lines = ["| device | memory, GB | list price, USD per hour | listed |", "|---|---|---|---|"]
    for each in DEVICES:
        sizes = dict.fromkeys((each.memory_gb, each.largest_gb))
        memory = " to ".join(f"{size:g}" for size in sizes)
        price, listed = ("", "") if math.isnan(each.price) else (f"{each.price:.2f}", each.listed)
        lines.append(f"| {each.name} | {memory} | {price} | {listed} |")
    return "\n".join(lines) + "\n"
