"""Labels by which clouds, provisioners and device plugins describe a node.

Sources: NVIDIA GPU feature discovery and MIG manager, the AMD labeller, GKE, EKS, AKS, Karpenter and its providers. For
the way of paying also OKE (preemptible worker nodes), Cast AI (node labels and taints), Spot Ocean (node-lifecycle),
OpenShift (HyperShift's node pools) and Cluster API (MachineInterruptible).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autoscaler.catalog.devices import find_instance
from autoscaler.core.model.fleet import ON_DEMAND, RESERVED, SPOT

Labels = Mapping[str, str]

# The accelerator: the vendors' labels first, then those of clouds and provisioners.
PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-accelerator-name",
    "eks.amazonaws.com/instance-gpu-name",
    "karpenter.azure.com/sku-gpu-name",
)
INSTANCE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
GKE_SLICE_LABEL = "cloud.google.com/gke-gpu-partition-size"  # "1g.5gb": each device of the node is such a slice
MEMORY_LABELS = ("nvidia.com/gpu.memory", "amd.com/gpu.vram", "karpenter.k8s.aws/instance-gpu-memory")
ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
MIG_STRATEGY_LABEL = "nvidia.com/mig.strategy"
MIG_STATE_LABEL = "nvidia.com/mig.config.state"
MIG_NOT_READY = ("pending", "rebooting", "failed")  # states in which the devices of a node change, or could not
VOLATILE_LABELS = ("nvidia.com/gfd.timestamp",)  # rewritten every minute, and read by no template

KARPENTER_LABEL = "karpenter.sh/nodepool"
NODE_POOL_LABELS = (  # of node pools that an autoscaler may enlarge
    KARPENTER_LABEL,
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
)

REMOVAL_TAINTS = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption")
# Taints of nodes that are about to accept pods: prefixes, and the end of the names that agents use.
STARTUP_TAINTS = (
    "karpenter.sh/unregistered",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
)
STARTUP_SUFFIX = "agent-not-ready"

CAPACITY_TYPES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "karpenter.sh/capacity-type": {"spot": SPOT, "on-demand": ON_DEMAND, "reserved": RESERVED},
        "eks.amazonaws.com/capacityType": {"SPOT": SPOT, "ON_DEMAND": ON_DEMAND, "CAPACITY_BLOCK": RESERVED},
        "cloud.google.com/gke-spot": {"true": SPOT},
        "cloud.google.com/gke-preemptible": {"true": SPOT},
        "cloud.google.com/gke-provisioning": {"spot": SPOT, "preemptible": SPOT},  # standard: or of a reservation
        "kubernetes.azure.com/scalesetpriority": {"spot": SPOT, "regular": ON_DEMAND},
        "oci.oraclecloud.com/oke-is-preemptible": {"true": SPOT},
        "scheduling.cast.ai/spot": {"true": SPOT},
        "scheduling.cast.ai/on-demand": {"true": ON_DEMAND},
        "spotinst.io/node-lifecycle": {"spot": SPOT, "od": ON_DEMAND},
        "machine.openshift.io/interruptible-instance": {"": SPOT, "true": SPOT},
        "cluster.x-k8s.io/interruptible": {"": SPOT, "true": SPOT},
        "node.kubernetes.io/lifecycle": {"spot": SPOT, "normal": ON_DEMAND},
    }
)
"""Values of labels, and the way of paying for a node that they state."""
RESERVATION_LABELS = ("cloud.google.com/reservation-name", "karpenter.k8s.aws/capacity-reservation-id")
# On nodes with these labels the absence of a label above means on demand.
ON_DEMAND_UNLESS_STATED = (
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "kubernetes.azure.com/cluster",
)

SHARING_LABELS = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
SHARING: Mapping[str, str] = MappingProxyType(
    {"time-slicing": "time-slicing", "time-sharing": "time-slicing", "mps": "mps"}
)
# Pods that share a device, in addition to `<resource>.replicas`.
SHARERS_LABELS = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")
MAX_SHARERS = 4096


def product(labels: Labels) -> str:
    """Return the product of a node's devices as its labels name it; without such a label, that of its instance type.

    A slice has its profile in the name, as with GPU feature discovery.
    """
    found = _first(labels, PRODUCT_LABELS)
    if not found and (device := find_instance(_first(labels, INSTANCE_LABELS))) is not None:
        found = device.name
    profile = labels.get(GKE_SLICE_LABEL, "")
    return f"{found}-MIG-{profile}" if found and profile and "-MIG-" not in found else found


def memory(labels: Labels) -> str:
    """Return the memory of a device as its label states it."""
    return _first(labels, MEMORY_LABELS)


def zone(labels: Labels) -> str:
    return _first(labels, ZONE_LABELS)


def node_pool(labels: Labels) -> str:
    """Return the label of the node pool that an autoscaler may enlarge, "key=value"; "": there is none."""
    return next((f"{key}={labels[key]}" for key in NODE_POOL_LABELS if labels.get(key)), "")


def capacity_type(labels: Labels) -> str:
    """Return how a node is paid for: "spot", "on-demand", "reserved"; "": unknown."""
    on_demand = ON_DEMAND if any(key in labels for key in ON_DEMAND_UNLESS_STATED) else ""
    return stated_capacity_type(labels) or on_demand


def stated_capacity_type(labels: Labels) -> str:
    """Return the way of paying that labels, or those that a template requires, state; "": none."""
    for key, meanings in CAPACITY_TYPES.items():
        if key in labels and (found := meanings.get(labels[key], "")):
            return found
    return RESERVED if _first(labels, RESERVATION_LABELS) else ""


def sharing(labels: Labels, resource: str) -> str:
    """Return how pods share a device of a node: "time-slicing", "mps"; "": a pod has its devices to itself.

    Without a label, a name that says "shared" means time-slicing, which is the older of the two.
    """
    own = f"{resource.removesuffix('.shared')}.sharing-strategy"  # of a MIG profile
    for key in (own, *SHARING_LABELS):
        if key in labels:
            return SHARING.get(labels[key], "")
    is_shared = resource.endswith(".shared") or labels.get(PRODUCT_LABELS[0], "").endswith("-SHARED")
    return SHARING["time-slicing"] if is_shared else ""


def sharers(labels: Labels, resource: str) -> int:
    """Return how many pods share a device of a node; 1: it is not shared, 0: unknown."""
    if not sharing(labels, resource):
        return 1
    own = f"{resource.removesuffix('.shared')}.replicas"
    keys = (own,) if "mig-" in resource else (own, *SHARERS_LABELS)
    written = _first(labels, keys)
    count = int(written) if written.isascii() and written.isdigit() and len(written) <= len(str(MAX_SHARERS)) else 0
    return count if count <= MAX_SHARERS else 0


def is_startup_taint(key: str) -> bool:
    """Return whether a taint is taken away as soon as its new node is complete."""
    return key.startswith(STARTUP_TAINTS) or key.endswith(STARTUP_SUFFIX)


def mig_problem(labels: Labels) -> str:
    """Return why a node takes no pod although it is ready: its MIG layout changes; "": it does not."""
    state = labels.get(MIG_STATE_LABEL, "")
    return f"MIG layout {state}" if state in MIG_NOT_READY else ""


def _first(labels: Labels, keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")
