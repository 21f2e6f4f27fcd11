"""Names of extended resources: which are accelerators, which are not, and which are unknown.

Sources: the READMEs of the vendors' device plugins, GKE for TPUs, the AWS Neuron documentation, and the Kubernetes 1.36
documentation of DRA (extended resources). kube-state-metrics writes names as labels, `nvidia_com_gpu`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

ACCELERATORS: Mapping[str, str] = MappingProxyType(
    {
        "nvidia.com": r"gpu([._]shared)?|mig[-_].+",
        "amd.com": r"gpu|[a-z]px_nps\d",  # cpx_nps4: a partition
        "gpu.intel.com": r"i915|xe",  # not ..._monitoring, millicores, memory.max: shares of the same device
        "npu.intel.com": r"accel",
        "habana.ai": r"gaudi|goya",
        "google.com": r"tpu",
        "aws.amazon.com": r"neuron(core|device)?",
        "huawei.com": r"npu|Ascend[0-9A-Za-z]+([-_]\d+c([._][\w.]*)?)?",  # Ascend310P-4c: a slice; ...-memory: MiB
        "cambricon.com": r"mlu\d*",
        "hygon.com": r"dcu",
        "kunlunxin.com": r"xpu",
        "baidu.com": r"xpu",
        "metax-tech.com": r"gpu",
        "mthreads.com": r"v?gpu",
        "birentech.com": r"gpu",
        "iluvatar.com": r"gpu",
        "iluvatar.ai": r"gpu",
        "enflame.com": r"gcu",
        "furiosa.ai": r"npu|rngd|warboy",
        "beta.furiosa.ai": r"npu",
        "rebellions.ai": r"npu|ATOM",
        "tenstorrent.com": r"[0-9a-z]+",
        "qualcomm.com": r"qaic",
        "ibm.com": r"spyre_[pv]f",
    }
)
"""Regular expression for the name after the domain, also in its form as a label. A unit is a device or a slice."""

OTHER_DOMAINS = (
    "rdma",
    "vpc.amazonaws.com",  # Elastic Fabric Adapters
    "networking.gke.io",
    "networking.gke.io.networks",
    "mellanox.com",
    "sgx.intel.com",
    "qat.intel.com",
    "dsa.intel.com",
    "iaa.intel.com",
    "dlb.intel.com",
    "smarter-devices",  # fuse, kvm
    "devices.kubevirt.io",
)
"""Domains without accelerators."""

SHARE_ANNOTATIONS = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")
"""Annotations of a pod by which KAI and Run:ai give it a share of GPUs. It requests no resource of a device plugin.
Source: KAI-Scheduler, docs/gpu-sharing."""

VISIBLE_DEVICES, NO_DEVICES = "NVIDIA_VISIBLE_DEVICES", ("", "none", "void")
"""Variable by which NVIDIA's container runtime gives devices to a container, and its values for none."""

BY_CLASS = "deviceclass.resource.kubernetes.io"
"""Domain of the extended resource of a DRA DeviceClass, which may be a GPU or a network card."""


class ResourceKind(Enum):
    """The kind of a resource, by its name."""

    ACCELERATOR = "accelerator"
    OTHER = "other"
    UNKNOWN = "unknown"


_ACCELERATORS = {domain: re.compile(rest) for domain, rest in ACCELERATORS.items()}
_LABELS = {f"{re.sub(r'[^0-9A-Za-z]', '_', domain)}_": domain for domain in ACCELERATORS}
_SHARE = re.compile(r".*(mem|memory|memory-ratio|memory\.max|cores?|percentage|millicores|tiles)", re.IGNORECASE)
_MIG = re.compile(r"mig_(?P<compute>\d{1,2}g)_(?P<memory>\d{1,4}gb)(?P<rest>\w*)")


@lru_cache(maxsize=4096)  # called for every container of every pod
def resource_kind(resource: str) -> ResourceKind:
    """Return the kind of a resource. Kubernetes' own names have no domain: cpu, memory, hugepages-2Mi."""
    domain, slash, rest = resource.partition("/")
    if domain in _ACCELERATORS and _ACCELERATORS[domain].fullmatch(rest):
        return ResourceKind.ACCELERATOR
    if domain == BY_CLASS:
        return ResourceKind.UNKNOWN
    if not slash or domain in OTHER_DOMAINS or domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        return ResourceKind.OTHER
    return ResourceKind.UNKNOWN


def is_share(resource: str) -> bool:
    """Return whether a resource bounds the part of a device that a pod gets: memory, cores or a percentage.

    With it, several pods share what the resource of the device counts: nvidia.com/gpumem of HAMi, aliyun.com/gpu-mem,
    volcano.sh/vgpu-memory, koordinator.sh/gpu-core, gpu.intel.com/millicores.
    """
    return resource_kind(resource) is ResourceKind.UNKNOWN and _SHARE.fullmatch(resource.partition("/")[2]) is not None


def is_accelerator(resource: str) -> bool:
    return resource_kind(resource) is ResourceKind.ACCELERATOR


def labels() -> str:
    """Return a regular expression for the labels of kube-state-metrics that may name an accelerator."""
    return f"({'|'.join(_LABELS)}).+"


def from_label(label: str) -> str:
    """Return the accelerator in a label: nvidia.com/mig-3g.40gb for `nvidia_com_mig_3g_40gb`; "" for none."""
    for prefix, domain in _LABELS.items():
        rest = label.removeprefix(prefix)
        if rest != label and _ACCELERATORS[domain].fullmatch(rest):
            if match := _MIG.fullmatch(rest):
                rest = f"mig-{match['compute']}.{match['memory']}{match['rest'].replace('_', '.')}"
            elif rest == "gpu_shared":
                rest = "gpu.shared"
            return f"{domain}/{rest}"
    return ""
