"""Node groups as rows of the API, and as series."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoscaler.adapters.web.tick_values import bounded
from autoscaler.core.model.fleet import NodeGroups
from autoscaler.core.table.columns import FloatColumn

FIELDS = {
    "resource": "name of the resource",
    "product": "product by its label; empty: unknown",
    "nodes": "labels that templates read, taints, why no new pod is taken; `nodes to come`: an autoscaler may add them",
    "zone": "zone; empty: unknown",
    "capacity_type": "`spot`, `on-demand` or `reserved`; empty: unknown",
    "sharing": "`time-slicing` or `mps`: pods share a device; empty: they do not",
    "sharers": "pods that share a device; 1: it is not shared, null: unknown",
    "node_pool": "label of the node pool that an autoscaler may enlarge; empty: none is known",
    "closed": "the nodes take no new pod: cordoned, not ready, being removed, their MIG layout changes, or labels or "
    "taints no longer admit the pods that hold these devices",
    "allocatable": "devices that the nodes offer; null: unknown",
    "ours": "devices held by pods of managed workloads; null: unknown",
    "others": "devices held by other pods of the namespaces that are watched, without those of negative priority",
    "free": "devices that no pod holds; 0 on closed nodes; null: unknown",
    "can_add": "devices that an autoscaler may still add; null: without limit",
}
LABELS = ("resource", "product", "nodes", "zone", "capacity_type")


def rows(groups: NodeGroups, most: int) -> list[dict[str, Any]]:
    """Return the first rows with the fields of `FIELDS`. NaN and infinity become null when encoded."""
    columns = {
        "closed": groups.closed,
        "allocatable": groups.allocatable,
        "ours": groups.used,
        "others": groups.used_by_others,
        "free": free(groups),
        "can_add": groups.can_add,
    }
    numbers = [
        dict(zip(columns, row, strict=True)) for row in zip(*(each.tolist() for each in columns.values()), strict=True)
    ]
    return [
        {
            "resource": bounded(group.resource),
            "product": bounded(group.product),
            "nodes": bounded(group.nodes),
            "zone": bounded(group.zone),
            "capacity_type": bounded(group.capacity_type),
            "sharing": bounded(group.sharing),
            "sharers": group.sharers or None,
            "node_pool": bounded(group.grows),
            **row,
        }
        for group, row in zip(groups.groups[:most], numbers, strict=False)
    ]


def free(groups: NodeGroups) -> FloatColumn:
    """Return the devices that no pod holds, float64[G], as far as pods are read."""
    left = np.maximum(groups.allocatable - groups.used - groups.used_by_others, 0.0)
    return np.where(groups.closed, 0.0, left)


def by_labels(groups: NodeGroups, most: int) -> dict[tuple[str, ...], list[int]]:
    """Return the first groups with different values of `LABELS`, and their rows, which are added up."""
    found: dict[tuple[str, ...], list[int]] = {}
    for row, group in enumerate(groups.groups):
        labels = tuple(bounded(getattr(group, label)) for label in LABELS)
        if labels in found or len(found) < most:
            found.setdefault(labels, []).append(row)
    return found
