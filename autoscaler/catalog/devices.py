"""Products of NVIDIA that clusters offer: their memory, list price, names and MIG profiles.

Sources: product names of GPU feature discovery, `cloud.google.com/gke-accelerator`, `instance-gpu-name` of EKS and
Karpenter, instance types of AWS, Azure and GCP; NVIDIA's MIG user guide for profiles; Karpenter's price tables.
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
    Product("GB300", r"gb300", 278, most_gb=288),
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
    Product("GH200", r"gh200", 96, most_gb=144),
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
_VENDOR = re.compile(r"^(nvidia-)+")


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
    return (device.memory_gb, device.largest_gb) if device is not None else (0.0, math.inf)


def markdown() -> str:
    """Return the table of the page about prices."""
    lines = ["| GPU | memory, GB | list price, USD per hour | listed |", "|---|---|---|---|"]
    for each in DEVICES:
        sizes = dict.fromkeys((each.memory_gb, each.largest_gb))
        memory = " to ".join(f"{size:g}" for size in sizes)
        price, listed = ("", "") if math.isnan(each.price) else (f"{each.price:.2f}", each.listed)
        lines.append(f"| {each.name} | {memory} | {price} | {listed} |")
    return "\n".join(lines) + "\n"
