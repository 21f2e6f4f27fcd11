"""Node groups: nodes that are equal for every template, so thousands of nodes become a few groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from autoscaler.adapters.kubernetes.inventory.nodes import Node, Taint
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.pods.template import PRODUCT_LABELS

PROVISIONED_LABEL = "karpenter.sh/nodepool"  # nodes that are created on demand: their number is no limit
PRODUCT_LIMIT = 128  # characters of a product's name


class GroupKey(NamedTuple):
    """The properties that set a group of nodes apart from others."""

    labels: tuple[tuple[str, str], ...]  # those that some template reads
    taints: frozenset[Taint]
    devices: tuple[tuple[str, int], ...]  # of one node, by resource
    product: str
    provisioned: bool  # created on demand, so their number is no limit

    def devices_of(self, resource: str) -> int:
        return dict(self.devices).get(resource, 0)


def group_nodes(nodes: Mapping[str, Node], needs: Iterable[Needs]) -> dict[GroupKey, list[str]]:
    """Return the groups of nodes with GPUs, and the names of the nodes of each. needs: of all templates."""
    keys = {*PRODUCT_LABELS}.union(*(each.label_keys() for each in needs))
    groups: dict[GroupKey, list[str]] = {}
    for name, node in nodes.items():
        if any(node.gpus.values()):
            product = next((node.labels[key] for key in PRODUCT_LABELS if node.labels.get(key)), "")
            group = GroupKey(
                tuple(sorted((key, value) for key, value in node.labels.items() if key in keys)),
                node.taints,
                tuple(sorted((resource, count) for resource, count in node.gpus.items() if count)),
                product[:PRODUCT_LIMIT],
                PROVISIONED_LABEL in node.labels,
            )
            groups.setdefault(group, []).append(name)
    return groups
