"""The nodes of the cluster, and what each of them offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.objects import Node as SeenNode
from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.ports import Clock

VOLATILE_LABELS = ("nvidia.com/gfd.timestamp",)  # rewritten every minute, and read by no template

SHRINK_DELAY_S = 600.0
"""A node that offers less than before is believed after this time. While its kubelet or device plugin restarts, it
offers no device and its product label may be missing, but its pods keep running. A new taint counts the same way."""


class Taint(NamedTuple):
    key: str
    value: str
    effect: str


class Node(NamedTuple):
    """What a node offers."""

    gpus: dict[str, int]  # by resource
    labels: dict[str, str]
    taints: frozenset[Taint] = frozenset()

    def at_least(self, other: Node) -> Node:
        """Return this node with everything that the other node offers beyond it."""
        gpus = {name: max(self.gpus.get(name, 0), other.gpus.get(name, 0)) for name in self.gpus | other.gpus}
        return Node(gpus, other.labels | self.labels, self.taints & other.taints)


class NodeStore:
    """The nodes of the cluster. Cordoned and not-ready nodes count as well, because their pods still hold GPUs.

    So a control plane that loses contact with nodes scales no workload down.
    """

    def __init__(self, clock: Clock) -> None:
        self.nodes: dict[str, Node] = {}
        self._clock = clock
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
        labels = {key: value for key, value in (seen.metadata.labels or {}).items() if key not in VOLATILE_LABELS}
        taints = frozenset(Taint(taint.key, taint.value, taint.effect) for taint in seen.spec.taints or ())
        node = Node(_gpus(seen.status.allocatable), labels, taints)
        before = self.nodes.get(name, node._replace(gpus=_gpus(seen.status.capacity)))
        if not (node.gpus or before.gpus):  # no workload can run there, so changes of its labels do not matter
            node = before = Node({}, {})
        offered = node.at_least(before)
        if offered == node:
            self._shrunk.pop(name, None)
        else:
            since_s, _ = self._shrunk.get(name, (self._clock.now_s(), node))
            self._shrunk[name] = since_s, node
        self._set(name, offered)

    def remove(self, namespace: str, name: str, /) -> None:
        self._shrunk.pop(name, None)
        if self.nodes.pop(name, None) is not None:
            self._version += 1

    def _set(self, name: str, node: Node) -> None:
        if self.nodes.get(name) != node:
            self.nodes[name] = node
            self._version += 1


def _gpus(offered: Mapping[str, str | int | float] | None) -> dict[str, int]:
    return {
        name: int(count)
        for name, count in (offered or {}).items()
        if is_accelerator(name) and str(count).isascii() and str(count).isdigit() and len(str(count)) < 9
    }
