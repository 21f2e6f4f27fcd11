"""Nodes and node pools that a pod may land on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from autoscaler.catalog import node_labels
from autoscaler.catalog.devices import find_device, instance_devices
from autoscaler.config.check.engine_memory import memory_of
from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.model_memory import Range
from autoscaler.config.preflight.objects import Manifest, selects
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.workloads import EnginePod, quantity
from autoscaler.config.yaml import Loc

NODE_POOL = "karpenter.sh/nodepool"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
_ALWAYS_THERE = ("karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType")  # on each node of such a cluster
_OWN_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/")
_TERMS = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_MIB = float(1 << 20)
_CAPABILITIES: Mapping[str, float] = {"T4": 7.5, "V100": 7.0, "V100-16GB": 7.0, "V100-32GB": 7.0}
_CAPABILITIES_FROM_AMPERE = 8.0


def resource_of(pod: EnginePod) -> str:
    """Return the accelerator that a pod requests; "": none."""
    return next(iter(pod.devices), "")


def required(pod: EnginePod) -> list[dict[str, list[str]]]:
    """Return what the labels of a node must be: alternatives of allowed values by label."""
    base = {key: [value] for key, value in pod.node_selector.items()}
    terms = pod.at(*_TERMS)
    alternatives = []
    for term in terms if isinstance(terms, list) else []:
        wanted = dict(base)
        expressions = at(term, "matchExpressions")
        for each in expressions if isinstance(expressions, list) else []:
            values = at(each, "values")
            if text_at(each, "operator") == "In" and isinstance(values, list):
                wanted[text_at(each, "key")] = [str(value) for value in values]
            elif text_at(each, "operator") == "NotIn" and text_at(each, "key") in node_labels.CAPACITY_TYPES:
                left = [name for name in node_labels.CAPACITY_TYPES[text_at(each, "key")] if name not in _list(values)]
                if len(left) > 0 and text_at(each, "key") in _ALWAYS_THERE:
                    wanted[text_at(each, "key")] = left
            elif text_at(each, "operator") == "Exists" and text_at(each, "key") in node_labels.CAPACITY_TYPES:
                wanted[text_at(each, "key")] = list(node_labels.CAPACITY_TYPES[text_at(each, "key")])
        alternatives.append(wanted)
    return alternatives or [base]


def nodes_for(fleet: Scene, pod: EnginePod) -> list[Manifest]:
    """Return the nodes that have the labels that a pod requires and some of its accelerator."""
    return [node for node in labelled(fleet, pod) if not untolerated(node, pod)]


def labelled(fleet: Scene, pod: EnginePod) -> list[Manifest]:
    """Return the nodes with the labels and some of the accelerator, whatever their taints."""
    resource = resource_of(pod)
    wanted = required(pod)
    return [
        node
        for node in fleet.objects.of_kind("Node")
        if (not resource or quantity(node.at("status", "allocatable", resource)) > 0)
        and any(all(node.labels.get(key) in values for key, values in each.items()) for each in wanted)
        and _fits_terms(node, pod)
    ]


def _fits_terms(node: Manifest, pod: EnginePod) -> bool:
    """Return whether a node fits one of the required terms by what they exclude."""
    terms = _list(
        pod.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    )
    excluding = [
        [each for each in _list(at(term, "matchExpressions")) if text_at(each, "operator") in ("NotIn", "DoesNotExist")]
        for term in terms
    ]
    return not excluding or any(selects({"matchExpressions": each}, node.labels) for each in excluding)


def untolerated(place: Manifest, pod: EnginePod) -> str:
    """Return the key of a taint of a node or of a NodePool's nodes that keeps a pod away; "": none does."""
    spec: Loc = ("spec", "template", "spec") if place.kind == "NodePool" else ("spec",)
    for taint in place.list(*spec, "taints")[:64]:
        key, effect = text_at(taint, "key"), text_at(taint, "effect")
        # Kubernetes sets and removes its own, and an admission plugin tolerates that of the accelerator.
        if effect not in ("NoSchedule", "NoExecute") or key.startswith(_OWN_TAINTS) or key in pod.devices:
            continue
        if not any(_tolerates(each, key, text_at(taint, "value"), effect) for each in _list(pod.at("tolerations"))):
            return key
    return ""


def _tolerates(toleration: object, key: str, value: str, effect: str) -> bool:
    named, effects = text_at(toleration, "key"), text_at(toleration, "effect")
    if (named and named != key) or (effects and effects != effect):
        return False
    exists = text_at(toleration, "operator") == "Exists"
    return exists or (bool(named) and text_at(toleration, "value") == value)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def can_grow(fleet: Scene) -> bool:
    """Return whether something may add nodes: Karpenter, or a label of a pool that an autoscaler may enlarge."""
    if fleet.objects.of_kind("NodePool"):
        return True
    return any(node_labels.node_pool(node.labels) for node in fleet.objects.of_kind("Node"))


def pools_for(fleet: Scene, pod: EnginePod) -> list[Manifest]:
    """Return the NodePools that a pod names or, if it names none, those whose requirements do not exclude it."""
    pools = fleet.objects.of_kind("NodePool")
    wanted = required(pod)
    named = [each[NODE_POOL] for each in wanted if NODE_POOL in each]
    if named:
        return [pool for pool in pools if any(pool.name in names for names in named)]
    if not pod.devices:
        return []
    return [pool for pool in pools if _has_devices(pool) and any(_allows(pool, each) for each in wanted)]


def requirement(pool: Manifest, key: str) -> list[str]:
    """Return the values that a NodePool's requirement on a label allows; []: it has none."""
    for each in pool.list("spec", "template", "spec", "requirements"):
        values = at(each, "values")
        if text_at(each, "key") == key and text_at(each, "operator") == "In" and isinstance(values, list):
            return [str(value) for value in values]
    return []


def most_devices(pool: Manifest) -> float:
    """Return the most devices that an instance of a NodePool may have; infinity: its requirements do not tell."""
    types = [instance_devices(kind) for key in node_labels.INSTANCE_LABELS for kind in requirement(pool, key)]
    most = max(types, default=math.inf)
    for each in pool.list("spec", "template", "spec", "requirements"):
        values = at(each, "values")
        if not text_at(each, "key").endswith("-gpu-count") or not isinstance(values, list) or not values:
            continue
        numbers = [quantity(str(value)) for value in values]
        operator = text_at(each, "operator")
        if operator in ("In", "Lt") and not any(math.isnan(number) for number in numbers):
            most = min(most, max(numbers) - (operator == "Lt"))
    return most


def _has_devices(pool: Manifest) -> bool:
    requirements = str(pool.at("spec", "template", "spec", "requirements"))[:10_000].lower()
    taints = str(pool.at("spec", "template", "spec", "taints"))[:10_000]
    limits = pool.map("spec", "limits")
    return "gpu" in requirements or "gpu" in taints or any("gpu" in key for key in limits)


def _allows(pool: Manifest, wanted: Mapping[str, list[str]]) -> bool:
    labels = pool.texts("spec", "template", "metadata", "labels")
    for key, values in wanted.items():
        own = requirement(pool, key) or ([labels[key]] if key in labels else [])
        if own and not set(own) & set(values):
            return False
        if (
            not own
            and key not in labels
            and not key.startswith(("karpenter", "kubernetes.io", "node.kubernetes.io", "topology"))
        ):
            return False
    return True


def capacity_types(fleet: Scene, pod: EnginePod) -> set[str]:
    """Return how the nodes that a pod may land on are paid for; empty: unknown."""
    for wanted in required(pod):
        for key, meanings in node_labels.CAPACITY_TYPES.items():
            if key in wanted:
                return {meanings.get(value, "") for value in wanted[key]}
    pools = pools_for(fleet, pod) if any(NODE_POOL in each for each in required(pod)) else []
    if pools:
        stated = [requirement(pool, CAPACITY_TYPE) or ["on-demand"] for pool in pools]
        return {value for values in stated for value in values}
    return {node_labels.capacity_type(node.labels) for node in nodes_for(fleet, pod)}


def sharers(fleet: Scene, pod: EnginePod) -> list[tuple[str, int]]:
    """Return (kind of sharing, pods per device) of each node that a pod may land on; ("", 1): a device of its own."""
    resource = resource_of(pod)
    found = [
        (
            node_labels.sharing(node.labels, resource),
            node_labels.sharers(node.labels, resource) or _by_count(node, resource),
        )
        for node in nodes_for(fleet, pod)
    ]
    if found:
        return found
    labels = _labels(fleet, pod)[0]
    way = node_labels.sharing(labels, resource)
    return [(way, node_labels.sharers(labels, resource))] if way else []


def _by_count(node: Manifest, resource: str) -> int:
    """Return how often a node hands out each of its devices; 0: unknown."""
    handed, there = (
        quantity(node.at("status", "allocatable", resource)),
        quantity(node.labels.get("nvidia.com/gpu.count")),
    )
    return int(handed / there) if there > 0 and handed <= 4096 else 0


def _labels(fleet: Scene, pod: EnginePod) -> list[Mapping[str, str]]:
    """Return the labels of the nodes that a pod may get: of those there are, else what it and its pools require."""
    nodes = nodes_for(fleet, pod)
    if nodes:
        return [node.labels for node in nodes]
    base = {key: values[0] for key, values in required(pod)[0].items() if values}
    if node_labels.product(base) or NODE_POOL not in base:
        return [base]
    keys = (*node_labels.PRODUCT_LABELS, *node_labels.INSTANCE_LABELS)
    return [
        {**base, key: value} for pool in pools_for(fleet, pod) for key in keys for value in requirement(pool, key)[:64]
    ] or [base]


def memories(fleet: Scene, pod: EnginePod) -> Range | None:
    """Return the bytes of one device that a pod may get, from the least to the most; None: unknown."""
    resource = resource_of(pod)
    if not resource:
        return None
    found = []
    for labels in _labels(fleet, pod):
        named = memory_of(resource, node_labels.product(labels))
        key = "nvidia.com/gpu.memory" if resource == "nvidia.com/gpu" else f"{resource}.memory"
        stated = quantity(labels.get(key)) * _MIB
        found.append(named if math.isnan(stated) else Range(stated, stated))
    least, most = min(each.least for each in found), max(each.most for each in found)
    return Range(least, most) if all(math.isfinite(each.most) for each in found) else None


def capability(fleet: Scene, pod: EnginePod) -> float:
    """Return the highest compute capability among the devices that a pod may get; NaN: unknown."""
    found = list(_capabilities(fleet, pod))
    return max(found) if found and not any(math.isnan(each) for each in found) else math.nan


def _capabilities(fleet: Scene, pod: EnginePod) -> Iterator[float]:
    for each in _labels(fleet, pod):
        major, minor = (each.get(f"nvidia.com/gpu.compute.{part}", "") for part in ("major", "minor"))
        if re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", version := f"{major}.{minor}"):
            yield float(version)
            continue
        device = find_device(node_labels.product(each))
        name = device.name if device is not None else ""
        yield _CAPABILITIES.get(name, _CAPABILITIES_FROM_AMPERE if name else math.nan)
