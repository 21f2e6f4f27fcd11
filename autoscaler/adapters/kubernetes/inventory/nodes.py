"""The nodes of the cluster, and what each of them offers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from sys import intern
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.node_objects import NodeObject as SeenNode
from autoscaler.adapters.kubernetes.pods.needs import CONTROL_PLANE_TAINTS
from autoscaler.adapters.kubernetes.pods.requests import CPU, MEMORY
from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.catalog.node_labels import REMOVAL_TAINTS, VOLATILE_LABELS, is_startup_taint, mig_problem
from autoscaler.config.findings import shown
from autoscaler.config.quantities import Quantity, read_quantity
from autoscaler.config.weights.report import LABEL_PREFIX as WEIGHTS_LABELS
from autoscaler.ports import Clock

MAX_NODE_DEVICES = 65_536  # 16 GPUs, each shared by 4,096 pods

SHRINK_DELAY_S = 600.0
"""A node that offers less than before is believed after this time. While its kubelet or device plugin restarts, it
offers no device and its product label may be missing, but its pods keep running. A new taint counts the same way."""


class NodeTaint(NamedTuple):
    key: str
    value: str
    effect: str


class Node(NamedTuple):
    """Resources that a node offers."""

    gpus: dict[str, int]  # by resource
    labels: dict[str, str]  # without those of weights, which change often
    taints: frozenset[NodeTaint] = frozenset()  # without those of the control plane and of new nodes
    cpu: float = math.inf  # cores; infinity: unknown
    memory: float = math.inf  # bytes
    closed: str = ""  # why it takes no new pod, "cordoned"; "": it takes pods
    device_sets: tuple[tuple[str, str], ...] = ()  # sets of kinds that drivers publish, by `DEVICES_FIELD` and resource
    when_free: tuple[tuple[str, int], ...] = ()  # devices there would be if no claim held silicon that they need
    product: str = ""  # of those devices, where no label names one
    device_memory: str = ""  # MiB

    def devices_when_free(self, resource: str) -> int:
        """Return the devices that the node offers if no claim holds another cut of them."""
        return max(self.gpus.get(resource, 0), dict(self.when_free).get(resource, 0))

    def at_least(self, other: Node) -> Node:
        """Return this node with everything that the other node offers beyond it."""
        return self._replace(
            gpus={name: max(self.gpus.get(name, 0), other.gpus.get(name, 0)) for name in self.gpus | other.gpus},
            labels=other.labels | self.labels,
            taints=self.taints & other.taints,
            cpu=max(self.cpu, other.cpu),
            memory=max(self.memory, other.memory),
        )


class NodeStore:
    """The nodes of the cluster. Those that take no new pod are closed: they count as far as pods are on them.

    So a control plane that loses contact with nodes scales no workload down.
    """

    def __init__(self, clock: Clock, has_devices: Callable[[str], bool] = lambda node: False) -> None:
        """has_devices: returns whether drivers publish devices of a node (DRA)."""
        self.nodes: dict[str, Node] = {}
        self.problems: dict[str, str] = {}  # by node: a number of devices that cannot be
        self.created_wall_s: dict[str, float] = {}  # Unix time at which each node was created
        self._clock = clock
        self._has_devices = has_devices
        self._version = 0
        self._shrunk: dict[str, tuple[float, Node]] = {}  # nodes that offer less than before: since when, and what

    def update(self) -> int:
        """Accept nodes that have offered less for `SHRINK_DELAY_S`. Return a version that grows with each change."""
        now_s = self._clock.now_s()
        for name, (since_s, node) in list(self._shrunk.items()):
            if now_s - since_s >= SHRINK_DELAY_S:
                self._set(name, node)
                del self._shrunk[name]
        return self._version

    def put(self, seen: SeenNode, /) -> None:
        name = seen.metadata.name
        if seen.metadata.creation_timestamp is not None:
            self.created_wall_s[name] = seen.metadata.creation_timestamp.timestamp()
        node, problem = _read(seen)
        if problem:
            self.problems[name] = problem
        else:
            self.problems.pop(name, None)
        before = self.nodes.get(name, node._replace(gpus=_gpus(seen.status.capacity)[0]))
        if not (node.gpus or before.gpus or self._has_devices(name)):
            self._version += name not in self.nodes
            self.nodes[name] = node  # no workload can run there yet, so changes of its labels do not matter
            return
        offered = node if _has_new_layout(before, node) else node.at_least(before)
        if offered == node:
            self._shrunk.pop(name, None)
        else:
            since_s, _ = self._shrunk.get(name, (self._clock.now_s(), node))
            self._shrunk[name] = since_s, node
        self._set(name, offered)

    def remove(self, namespace: str, name: str, /) -> None:
        self._shrunk.pop(name, None)
        self.problems.pop(name, None)
        self.created_wall_s.pop(name, None)
        if self.nodes.pop(name, None) is not None:
            self._version += 1

    def _set(self, name: str, node: Node) -> None:
        if self.nodes.get(name) != node:
            self.nodes[name] = node
            self._version += 1


def _read(seen: SeenNode) -> tuple[Node, str]:
    """Return what a node offers, and what is wrong with it."""
    labels = {
        intern(key): intern(value)
        for key, value in (seen.metadata.labels or {}).items()
        if key not in VOLATILE_LABELS and not key.startswith(WEIGHTS_LABELS)
    }
    taints = frozenset(
        NodeTaint(taint.key, taint.value, taint.effect)
        for taint in seen.spec.taints or ()
        if not (
            taint.key.startswith(CONTROL_PLANE_TAINTS) or taint.key in REMOVAL_TAINTS or is_startup_taint(taint.key)
        )
    )
    gpus, problem = _gpus(seen.status.allocatable)
    cpu, memory = (_capacity(seen, name) for name in (CPU, MEMORY))
    return Node(gpus, labels, taints, cpu, memory, _closed(seen, labels)), problem


def _closed(seen: SeenNode, labels: Mapping[str, str]) -> str:
    """Return why a node takes no new pod; "": it takes pods."""
    removed = any(taint.key in REMOVAL_TAINTS for taint in seen.spec.taints or ())
    if removed or seen.metadata.deletion_timestamp is not None:
        return "being removed"
    if seen.spec.unschedulable:
        return "cordoned"
    if any(each.type == "Ready" and each.status != "True" for each in seen.status.conditions or ()):
        return "not ready"
    return mig_problem(labels)


def _has_new_layout(before: Node, node: Node) -> bool:
    """Return whether the MIG manager has just cut the GPUs of a node again, so that old slices are gone for good."""
    return bool(mig_problem(before.labels)) and not mig_problem(node.labels)


def _gpus(offered: Mapping[str, Quantity] | None) -> tuple[dict[str, int], str]:
    """Return the devices that a node offers, and what is wrong with their numbers."""
    counts = {name: read_quantity(count) for name, count in (offered or {}).items() if is_accelerator(name)}
    possible = {
        name: int(count) for name, count in counts.items() if count.is_integer() and 0 <= count <= MAX_NODE_DEVICES
    }
    wrong = next((f"{name}: {shown(str(offered[name]))}" for name in counts.keys() - possible if offered), "")
    return possible, f"{wrong} devices are not believed; allowed: up to {MAX_NODE_DEVICES}" if wrong else ""


def _capacity(seen: SeenNode, resource: str) -> float:
    amount = read_quantity((seen.status.allocatable or {}).get(resource, ""))
    return math.inf if math.isnan(amount) else max(amount, 0.0)
