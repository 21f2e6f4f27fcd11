"""Node groups: nodes that a scheduler sees alike, so thousands of nodes become a few groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.inventory.node_admission import Labels, admits
from autoscaler.adapters.kubernetes.inventory.nodes import Node, NodeTaint
from autoscaler.adapters.kubernetes.pods.needs import NAME_FIELD, Needs
from autoscaler.catalog import node_labels

TEXT_LIMIT = 128  # characters of a product's name, or of the words that describe nodes


class GroupKey(NamedTuple):
    """The properties that set a group of nodes apart from others."""

    admitted: int  # bit mask: the templates whose selector, affinity and tolerations admit its nodes
    devices: tuple[tuple[str, int], ...]  # of one node, by resource
    when_free: tuple[int, ...]  # by resource, devices of a node if no claim holds another cut of them
    product: str
    memory: str
    mig_strategy: str
    sharing: tuple[str, ...]  # by resource
    sharers: tuple[int, ...]  # by resource, pods that share a device; 0: unknown
    zone: str
    capacity_type: str
    node_pool: str  # label of the node pool that an autoscaler may enlarge; "": none
    taints: frozenset[NodeTaint]
    closed: str  # why its nodes take no new pod; "": they take pods

    def devices_of(self, resource: str) -> int:
        return dict(self.devices).get(resource, 0)

    def devices_when_free(self, resource: str) -> int:
        return {name: count for (name, _), count in zip(self.devices, self.when_free, strict=True)}.get(resource, 0)

    def admits(self, template: int) -> bool:
        """Return whether the labels and taints of its nodes admit a template, given by its place."""
        return bool(self.admitted >> template & 1)


class Group(NamedTuple):
    """Nodes with the same key."""

    key: GroupKey
    nodes: list[str]
    labels: tuple[tuple[str, str], ...]  # those of all its nodes that some template reads, without products


def group_nodes(nodes: Mapping[str, Node], templates: Sequence[Needs]) -> list[Group]:
    """Return the groups of nodes with accelerators. Nodes are alike if they are for each of the templates.

    So a template that names one node makes two groups, not one for each node.
    """
    groups: dict[GroupKey, list[str]] = {}
    masks = _Masks(templates)
    for name, node in nodes.items():
        devices = tuple(sorted(each for each in node.gpus.items() if node.devices_when_free(each[0])))
        if devices:
            labels = node.labels
            key = GroupKey(
                admitted=masks.of(name, node),
                devices=devices,
                when_free=tuple(node.devices_when_free(resource) for resource, _ in devices),
                product=(node_labels.product(labels) or node.product)[:TEXT_LIMIT],
                memory=node_labels.memory(labels) or node.device_memory,
                mig_strategy=labels.get(node_labels.MIG_STRATEGY_LABEL, ""),
                sharing=tuple(node_labels.sharing(labels, resource) for resource, _ in devices),
                sharers=tuple(node_labels.sharers(labels, resource) for resource, _ in devices),
                zone=node_labels.zone(labels),
                capacity_type=node_labels.capacity_type(labels),
                node_pool=node_labels.node_pool(labels),
                taints=node.taints,
                closed=node.closed,
            )
            groups.setdefault(key, []).append(name)
    keys = frozenset[str]().union(*(needs.label_keys() for needs in templates)) - {*node_labels.PRODUCT_LABELS}
    return [Group(key, names, _common(keys, [nodes[name].labels for name in names])) for key, names in groups.items()]


def describe(group: Group) -> str:
    """Describe the nodes of a group: the labels that templates read, its taints, and why it takes no pod."""
    words = [f"{key}={value}" for key, value in group.labels] or [group.key.node_pool]
    words += sorted(f"taint {taint.key}" for taint in group.key.taints)
    return ", ".join(word for word in (*words, group.key.closed) if word)[:TEXT_LIMIT]


class _Masks:
    """The templates that admit a node, as a bit mask. Nodes with equal values of the labels that it reads share it."""

    def __init__(self, templates: Sequence[Needs]) -> None:
        self._by_keys: dict[frozenset[str], list[tuple[int, Needs]]] = {}
        for place, needs in enumerate(templates):
            self._by_keys.setdefault(needs.label_keys(), []).append((place, needs))
        self._known: dict[tuple[frozenset[str], frozenset[NodeTaint], tuple[str | None, ...]], int] = {}

    def of(self, name: str, node: Node) -> int:
        mask = 0
        labels = {**node.labels, NAME_FIELD: name, **dict(node.device_sets)}
        for keys, templates in self._by_keys.items():
            values = keys, node.taints, tuple(labels.get(key) for key in keys)
            if values not in self._known:
                self._known[values] = sum(
                    1 << place for place, needs in templates if admits(labels, node.taints, needs)
                )
            mask |= self._known[values]
        return mask


def _common(keys: Iterable[str], nodes: Sequence[Labels]) -> tuple[tuple[str, str], ...]:
    """Return the labels with these keys that all nodes have alike."""
    values = {key: {labels.get(key) for labels in nodes} for key in keys}
    return tuple(
        sorted((key, value) for key, found in values.items() if len(found) == 1 and (value := min(found, key=str)))
    )
